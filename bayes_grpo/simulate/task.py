"""A verifiable task with many prompts of unequal difficulty: arithmetic modulo a prime."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bayes_grpo.errors import InputError

OPERATIONS = ("+", "-", "*")
SMALLEST_MODULUS, LARGEST_MODULUS = 3, 31


class Task(NamedTuple):
    """Prompts ``a op b (mod m)``; a completion is one token, the answer.

    Parameters
    ----------
    prompts
        Shape (prompts, 3), whole numbers: a, index of the operation, b.
    answers
        Shape (prompts,): the right answer.
    rewards
        Shape (prompts, modulus): the verifier's reward of every answer, 0 or 1. An unsolvable
        prompt (its verifier knows no right answer) has zeros only.
    trained
        Shape (training prompts,): indices of the prompts that are trained on.
    held_out
        Shape (held-out prompts,): indices of those that only the evaluation sees.
    frequency
        Shape (prompts,): how often pretraining saw each prompt, summing to 1. This is what makes
        some prompts easy and others hard.
    """

    prompts: jax.Array
    answers: jax.Array
    rewards: jax.Array
    trained: jax.Array
    held_out: jax.Array
    frequency: jax.Array

    @property
    def modulus(self) -> int:
        """Number of possible answers."""
        return int(self.rewards.shape[1])


def arithmetic_task(
    seed: int = 0,
    *,
    modulus: int = 11,
    unsolvable: float = 0.1,
    held_out: float = 0.2,
    spread: float = 1.0,
) -> Task:
    """Make the task.

    Parameters
    ----------
    seed
        Which prompts are unsolvable, held out, frequent.
    modulus
        m; there are ``3 m^2`` prompts and m answers.
    unsolvable
        Fraction of prompts that no answer solves.
    held_out
        Fraction of prompts kept for evaluation.
    spread
        Standard deviation of the logarithm of the pretraining frequency.

    Returns
    -------
    Task

    Raises
    ------
    InputError
        If a number is out of range.
    """
    if not SMALLEST_MODULUS <= modulus <= LARGEST_MODULUS:
        raise InputError(f"modulus is {modulus}: expected {SMALLEST_MODULUS} to {LARGEST_MODULUS}")
    for name, value in (("unsolvable", unsolvable), ("held_out", held_out)):
        if not 0 <= value < 1:
            raise InputError(f"{name} is {value}: expected a fraction from 0 to below 1")
    rng = np.random.default_rng(seed)
    grid = np.meshgrid(*map(np.arange, (modulus, len(OPERATIONS), modulus)), indexing="ij")
    prompts = np.stack([axis.ravel() for axis in grid], axis=1)
    a, operation, b = prompts.T
    answers = np.choose(operation, [a + b, a - b, a * b]) % modulus
    count = len(prompts)
    order = rng.permutation(count)
    kept = max(1, round(held_out * count)) if held_out > 0 else 0
    rewards = np.eye(modulus)[answers]
    rewards[rng.permutation(count)[: round(unsolvable * count)]] = 0.0
    frequency = np.exp(spread * rng.standard_normal(count))
    return Task(
        prompts=jnp.asarray(prompts),
        answers=jnp.asarray(answers),
        rewards=jnp.asarray(rewards),
        trained=jnp.asarray(np.sort(order[kept:])),
        held_out=jnp.asarray(np.sort(order[:kept])),
        frequency=jnp.asarray(frequency / frequency.sum()),
    )
