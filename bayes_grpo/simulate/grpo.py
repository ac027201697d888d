"""The GRPO update on answer counts: advantages, importance ratios, KL penalty, exact drift.

A group is described by how often each answer was sampled, which is all that its gradient depends
on. An update direction is a table of *weights* ``W[q, y]``, so that the gradient ascended is
``mean_q sum_y W[q, y] grad log pi(y | q)``. With the reward part ``W = counts / G * advantage`` the
weights of a prompt sum to zero; the expectation over groups has the same form and is exact, which
gives the drift of the mean-field theory at any group size, infinite included.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy

Normalisation = Literal["std", "mean"]
Ratio = Literal["none", "unclipped", "clipped"]
StaleForce = Literal["reward", "all"]

EPSILON = 1e-4
"""Added to the standard deviation of a group, as TRL does."""


class Loss(NamedTuple):
    """What GRPO maximises.

    Parameters
    ----------
    normalisation
        ``"std"`` divides advantages by the group's standard deviation, ``"mean"`` does not
        (Dr. GRPO).
    ratio
        ``"none"``: the gradient of ``log pi`` weighted by the sampler's advantages, the first-order
        surrogate whose force is as stale as the sampler. ``"unclipped"``: importance ratios.
        ``"clipped"``: PPO's clipped ratios.
    stale_force
        What is evaluated at the sampler. ``"all"``: the KL penalty too, folded into the advantages
        of the sampler's answers, as the theory assumes; ``"reward"``: the penalty is a term of the
        loss at the current policy.
    ddof
        1 for the unbiased standard deviation of a group, as ``torch.std``; 0 for the plain one.
    clip
        Half width of the clipping range of the ratio.
    """

    normalisation: Normalisation = "std"
    ratio: Ratio = "none"
    stale_force: StaleForce = "all"
    ddof: int = 0
    clip: float = 0.2


def group_advantages(
    counts: jax.Array, rewards: jax.Array, loss: Loss
) -> tuple[jax.Array, jax.Array]:
    """Advantage of every answer relative to its group.

    Parameters
    ----------
    counts
        Shape (batch, answers): how often the group holds each answer.
    rewards
        Shape (batch, answers): the reward of each answer.
    loss
        Normalisation.

    Returns
    -------
    advantages : jax.Array
        Shape (batch, answers); 0 for a group whose rewards are all equal.
    std : jax.Array
        Shape (batch,): the group's standard deviation, with ``ddof=1`` as trainers log it.
    """
    group_size = jnp.sum(counts, axis=-1, keepdims=True)
    mean = jnp.sum(counts * rewards, axis=-1, keepdims=True) / group_size
    variance = jnp.sum(counts * (rewards - mean) ** 2, axis=-1, keepdims=True) / group_size
    unbiased = variance * group_size / jnp.maximum(group_size - 1, 1)
    dead = variance <= 0
    centred = jnp.where(dead, 0.0, rewards - mean)
    std = jnp.sqrt(unbiased if loss.ddof else variance)
    advantages = centred / (std + EPSILON) if loss.normalisation == "std" else centred
    return advantages, jnp.sqrt(unbiased)[..., 0]


def expected_gain(chance: jax.Array, group_size: int | None, loss: Loss) -> jax.Array:
    """Factor that turns ``grad rho`` into the mean reward part of the gradient.

    ``E[sqrt(k (G - k))] / (G rho (1 - rho))`` with k successes of G for ``"std"`` (which follows
    from the identity of arXiv 2607.00152), ``(G - 1) / G`` for ``"mean"``; 1 / sqrt(rho (1 -
    rho)) and 1 for infinite groups. Holds for rewards of 0 and 1 without `EPSILON`.

    Parameters
    ----------
    chance
        rho, the chance of a reward, any shape.
    group_size
        G, or None for infinite groups.
    loss
        Normalisation and ``ddof``.

    Returns
    -------
    jax.Array
        Same shape; finite at 0 and 1 for finite groups. For infinite ones it is 0 there, where
        ``grad rho`` vanishes too.
    """
    if loss.normalisation == "mean":
        return jnp.full_like(chance, 1.0 if group_size is None else (group_size - 1) / group_size)
    if group_size is None:
        variance = chance * (1 - chance)
        inside = variance > 0
        return jnp.where(inside, 1 / jnp.sqrt(jnp.where(inside, variance, 1.0)), 0.0)
    total = jnp.zeros_like(chance)
    for k in range(1, group_size):
        # One power of rho and of 1 - rho less than the binomial: the division is done by hand.
        scale = math.comb(group_size, k) * math.sqrt(k * (group_size - k)) / group_size
        log_term = xlogy(k - 1.0, chance) + xlogy(group_size - k - 1.0, 1 - chance)
        total = total + jnp.exp(math.log(scale) + log_term)
    return total * math.sqrt((group_size - loss.ddof) / group_size)


def drift_factor(chance: float, group_size: int, *, ddof: int = 0) -> float:
    """Mean logit force of a group of G as a fraction of that of an infinite one (``"std"``).

    ``E[sqrt(phat (1 - phat))] / sqrt(p (1 - p))``: 0.81 at p = 1/2 and G = 4.

    Parameters
    ----------
    chance
        p, strictly between 0 and 1.
    group_size
        G, at least 2.
    ddof
        As in `Loss`.

    Returns
    -------
    float
    """
    k = np.arange(group_size + 1)
    binomial = np.array([math.comb(group_size, int(i)) for i in k], dtype=float)
    weights = binomial * chance**k * (1 - chance) ** (group_size - k)
    mean = float(np.sum(weights * np.sqrt(k * (group_size - k))) / group_size)
    unbiased = math.sqrt((group_size - ddof) / group_size)
    return mean * unbiased / math.sqrt(chance * (1 - chance))


def penalty_weights(log_policy: jax.Array, log_reference: jax.Array) -> jax.Array:
    """Weights of minus the gradient of KL(policy || reference), all answers summed exactly.

    Parameters
    ----------
    log_policy, log_reference
        Shape (batch, answers).

    Returns
    -------
    jax.Array
        Shape (batch, answers), summing to 0 over the answers.
    """
    chances, gap = jnp.exp(log_policy), log_policy - log_reference
    return -chances * (gap - jnp.sum(chances * gap, axis=-1, keepdims=True))


def expected_weights(
    log_sampler: jax.Array, rewards: jax.Array, group_size: int | None, loss: Loss
) -> jax.Array:
    """Mean over groups of ``counts / G * advantage``.

    Parameters
    ----------
    log_sampler
        Shape (batch, answers).
    rewards
        Shape (batch, answers), 0 or 1.
    group_size
        G, or None for infinite groups.
    loss
        Normalisation.

    Returns
    -------
    jax.Array
        Shape (batch, answers), summing to 0 over the answers.
    """
    chances = jnp.exp(log_sampler)
    # Summing failures and successes alike keeps the chance within [0, 1] in floating point.
    chance = jnp.clip(jnp.sum(chances * rewards, axis=-1, keepdims=True), 0.0, 1.0)
    return chances * (rewards - chance) * expected_gain(chance, group_size, loss)


class Surrogate(NamedTuple):
    """What an update needs to know of its batch; all of shape (batch, answers).

    Parameters
    ----------
    weights
        Reward part.
    sign
        Sign of the advantage of each answer, for clipping.
    share
        Share of each answer in the samples of its group.
    log_sampler, log_reference
        Log probabilities.
    """

    weights: jax.Array
    sign: jax.Array
    share: jax.Array
    log_sampler: jax.Array
    log_reference: jax.Array


def gradient(
    log_policy: Callable[[jax.Array], jax.Array],
    parameters: jax.Array,
    batch: Surrogate,
    kl_weight: jax.Array | float,
    loss: Loss,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Direction of ascent of the surrogate at the current parameters.

    Parameters
    ----------
    log_policy
        From parameters to log probabilities at the prompts of the batch.
    parameters
        Shape (parameters,).
    batch
        The batch.
    kl_weight
        beta.
    loss
        Ratio and where the penalty is evaluated. A penalty at the sampler takes part in the ratio,
        but not in the clipping.

    Returns
    -------
    direction : jax.Array
        Shape (parameters,).
    log_now : jax.Array
        Shape (batch, answers): log probabilities of the current policy.
    clip_fraction : jax.Array
        Share of the samples whose ratio was clipped.
    """
    log_now, pull_back = jax.vjp(log_policy, parameters)
    ratio = jnp.exp(log_now - batch.log_sampler)
    outside = ((batch.sign > 0) & (ratio > 1 + loss.clip)) | (
        (batch.sign < 0) & (ratio < 1 - loss.clip)
    )
    clip_fraction = jnp.mean(jnp.sum(jnp.where(outside, batch.share, 0.0), axis=-1))
    weights = batch.weights
    at_sampler = kl_weight * penalty_weights(batch.log_sampler, batch.log_reference)
    if loss.ratio != "none":
        weights, at_sampler = weights * ratio, at_sampler * ratio
    if loss.ratio == "clipped":
        weights = jnp.where(outside, 0.0, weights)
    else:
        clip_fraction = jnp.zeros_like(clip_fraction)
    if loss.stale_force == "all":
        weights = weights + at_sampler
    else:
        weights = weights + kl_weight * penalty_weights(log_now, batch.log_reference)
    (direction,) = pull_back(weights / weights.shape[0])
    return direction, log_now, clip_fraction
