"""A small neural policy, and the reference it starts from."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from bayes_grpo.errors import InputError
from bayes_grpo.simulate.task import OPERATIONS, Task

_PRETRAINING_STEPS = 600
_PRETRAINING_RATE = 0.01


class Network(NamedTuple):
    """Sizes of the policy: two embeddings and an operation into one hidden layer.

    Parameters
    ----------
    modulus
        Answers.
    embedding
        Width of each embedding.
    hidden
        Width of the hidden layer.
    """

    modulus: int
    embedding: int = 24
    hidden: int = 64


def _shapes(network: Network) -> dict[str, tuple[int, ...]]:
    m, e, h = network
    return {
        "first": (m, e),
        "operation": (len(OPERATIONS), e),
        "second": (m, e),
        "inner": (3 * e, h),
        "inner_bias": (h,),
        "outer": (h, m),
        "outer_bias": (m,),
    }


def parameter_count(network: Network) -> int:
    """Return how many parameters the policy has."""
    return int(ravel_pytree(_zeros(network))[0].size)


def _zeros(network: Network) -> dict[str, jax.Array]:
    return {name: jnp.zeros(shape) for name, shape in _shapes(network).items()}


def _unravel(network: Network) -> Callable[[jax.Array], dict[str, jax.Array]]:
    return ravel_pytree(_zeros(network))[1]


def initial_parameters(network: Network, key: jax.Array) -> jax.Array:
    """Draw parameters: unit embeddings, layers scaled by their fan-in, biases 0.

    Returns
    -------
    jax.Array
        Shape (parameters,).
    """
    shapes = _shapes(network)
    keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
    scale = {"inner": (3 * network.embedding) ** -0.5, "outer": network.hidden**-0.5}
    # Drawn in single precision whatever the user's setting: one seed is one policy in both.
    parameters = {
        name: jnp.zeros(shape)
        if name.endswith("bias")
        else scale.get(name, 1.0) * jax.random.normal(keys[name], shape, jnp.float32)
        for name, shape in shapes.items()
    }
    return ravel_pytree(parameters)[0].astype(float)


def log_policy(network: Network, parameters: jax.Array, prompts: jax.Array) -> jax.Array:
    """Log probability of every answer.

    Parameters
    ----------
    network
        Sizes.
    parameters
        Shape (parameters,).
    prompts
        Shape (batch, 3).

    Returns
    -------
    jax.Array
        Shape (batch, modulus).
    """
    p = _unravel(network)(parameters)
    embedded = jnp.concatenate(
        [p["first"][prompts[:, 0]], p["operation"][prompts[:, 1]], p["second"][prompts[:, 2]]],
        axis=-1,
    )
    inner = jnp.tanh(embedded @ p["inner"] + p["inner_bias"][None, :])
    return jax.nn.log_softmax(inner @ p["outer"] + p["outer_bias"][None, :], axis=-1)


class Reference(NamedTuple):
    """The pretrained policy: where training starts and what the KL penalty pulls back to.

    Parameters
    ----------
    network
        Sizes.
    parameters
        Shape (parameters,).
    log_probabilities
        Shape (prompts, modulus): its log policy at every prompt of the task.
    """

    network: Network
    parameters: jax.Array
    log_probabilities: jax.Array


def pretrain(
    task: Task,
    seed: int = 0,
    *,
    accuracy: float = 0.35,
    embedding: int = 24,
    hidden: int = 64,
) -> Reference:
    """Train the reference by supervision until it is right often enough.

    Cross-entropy on the right answers of all prompts, weighted by their frequency, by Adam; the
    first step at which the mean chance of the right answer reaches ``accuracy`` is taken.

    Parameters
    ----------
    task
        The task.
    seed
        Initial parameters.
    accuracy
        Mean probability of the right answer to stop at, over all prompts.
    embedding, hidden
        Widths.

    Returns
    -------
    Reference

    Raises
    ------
    InputError
        If the accuracy is not reached.
    """
    network = Network(task.modulus, embedding, hidden)
    start = initial_parameters(network, jax.random.key(seed))
    parameters, reached = _pretrain(network, task, start, accuracy)
    if not reached >= accuracy:
        raise InputError(
            f"pretraining reaches an accuracy of {float(reached):.2f}, not {accuracy}: expected "
            "a lower one, or a wider network"
        )
    return Reference(network, parameters, log_policy(network, parameters, task.prompts))


@partial(jax.jit, static_argnums=0)
def _pretrain(
    network: Network, task: Task, start: jax.Array, accuracy: float
) -> tuple[jax.Array, jax.Array]:
    def right(parameters: jax.Array) -> jax.Array:
        chances = log_policy(network, parameters, task.prompts)
        return jnp.take_along_axis(chances, task.answers[:, None], axis=1)[:, 0]

    def loss(parameters: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_right = right(parameters)
        return -jnp.sum(task.frequency * log_right), jnp.mean(jnp.exp(log_right))

    def step(carry: Any, index: jax.Array) -> tuple[Any, None]:
        parameters, mean, square, kept, best = carry
        gradient, now = jax.grad(loss, has_aux=True)(parameters)
        kept = jnp.where(best >= accuracy, kept, parameters)
        best = jnp.where(best >= accuracy, best, now)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        scaled = mean / (1 - 0.9 ** (index + 1))
        root = jnp.sqrt(square / (1 - 0.999 ** (index + 1))) + 1e-8
        return (parameters - _PRETRAINING_RATE * scaled / root, mean, square, kept, best), None

    zero = jnp.zeros_like(start)
    carry = (start, zero, zero, start, jnp.zeros((), start.dtype))
    (*_, kept, best), _ = jax.lax.scan(step, carry, jnp.arange(_PRETRAINING_STEPS))
    return kept, best


def expected_reward(
    reference: Reference, task: Task, parameters: jax.Array, indices: jax.Array
) -> jax.Array:
    """Exact mean reward of a policy over some prompts: a sum over all answers.

    Parameters
    ----------
    reference
        Gives the network.
    task
        The task.
    parameters
        Shape (parameters,).
    indices
        Shape (n,): the prompts.

    Returns
    -------
    jax.Array
        Scalar.
    """
    chances = jnp.exp(log_policy(reference.network, parameters, task.prompts[indices]))
    return jnp.mean(jnp.sum(chances * task.rewards[indices], axis=-1))
