"""Optimizer updates of softmax bandits, as pure functions of arrays.

The formulas stand at the head of `bayes_grpo.simulate.bandit`.  Everything here is meant for
float64 and for one setting; `run_batch` maps it over many.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

COLUMNS = (
    "reward",
    "reward_std",
    "zero_std_fraction",
    "kl",
    "entropy",
    "clip_fraction",
    "eval_reward",
)
"""What can be recorded of every update, under the names of a run's table."""

ADAM_EPSILON = 1e-8

LARGEST_LOG_RATIO = 30.0
"""Importance ratios beyond e^30 are infinite for every purpose but keep 0 times ratio at 0."""


class Kind(NamedTuple):
    """What a compiled simulation depends on besides its arrays.

    Parameters
    ----------
    normalisation, optimizer, lag_pattern, ratio, stale_force, group_size, prompts_per_step
        As in `bayes_grpo.simulate.bandit.Bandit`.
    history
        Old policies kept for a constant lag, one more than the longest lag.
    n_updates
        Optimizer updates.
    record
        Which of `COLUMNS` to keep.
    """

    normalisation: str
    optimizer: str
    lag_pattern: str
    ratio: str
    stale_force: str
    group_size: int | None
    prompts_per_step: int
    history: int
    n_updates: int
    record: tuple[str, ...]


class _State(NamedTuple):
    """What moves: logits, the optimizer's moments, and the policies that still sample."""

    logits: Array
    moment: Array
    square: Array
    sampler: Array


class _Batch(NamedTuple):
    """Rollouts of one update, as shares of all rollouts and as sums of advantages by arm.

    ``good`` and ``bad`` are the rewarded and the other rollouts, shape (arms,) each.
    """

    share_good: Array
    share_bad: Array
    push_good: Array
    push_bad: Array
    reward: Array
    reward_std: Array
    zero_std_fraction: Array


def _scale(variance: Array, normalisation: str) -> Array:
    """Factor of a centred reward: one over the standard deviation where there is one."""
    if normalisation == "mean":
        return jnp.ones_like(variance)
    positive = variance > 0
    return jnp.where(positive, 1 / jnp.sqrt(jnp.where(positive, variance, 1.0)), 0.0)


def _exact_batch(kind: Kind, success: Array, sampler: Array) -> _Batch:
    policy = jax.nn.softmax(sampler)
    good, bad = policy * success, policy * (1 - success)
    p, q = good.sum(), bad.sum()
    variance = p * q
    scale = _scale(variance, kind.normalisation)
    none = jnp.where(variance > 0, 0.0, 1.0)
    return _Batch(good, bad, good * q * scale, -bad * p * scale, p, jnp.sqrt(variance), none)


def _sampled_batch(kind: Kind, success: Array, sampler: Array, key: Array) -> _Batch:
    assert kind.group_size is not None
    policy = jax.nn.softmax(sampler)
    arms = len(success)
    # One random word a rollout decides arm and reward: it falls into one of 2 A intervals.
    chances = jnp.concatenate([policy * success, policy * (1 - success)])
    # Compared as whole numbers of 31 bits: fast, and a chance of 1 still has an edge of its own.
    edges = jnp.round(jnp.cumsum(chances)[:-1] * 2.0**31).astype(jnp.uint32)
    bits = jax.random.bits(key, (kind.prompts_per_step, kind.group_size), jnp.uint32) >> 1
    below = [(bits < edges[k]).sum(axis=1, dtype=jnp.int32) for k in range(2 * arms - 1)]
    counts = jnp.stack([*below, jnp.full_like(below[0], kind.group_size)], axis=1)
    cumulative = counts.astype(policy.dtype)
    first = cumulative[:, :1]
    shares = jnp.concatenate([first, jnp.diff(cumulative, axis=1)], axis=1) / kind.group_size
    good, bad = shares[:, :arms], shares[:, arms:]  # (prompts, arms)
    p = cumulative[:, arms - 1] / kind.group_size
    variance = p * (1 - p)
    scale = _scale(variance, kind.normalisation)
    mean = lambda values: values.mean(axis=0)  # noqa: E731
    return _Batch(
        mean(good),
        mean(bad),
        mean(good * ((1 - p) * scale)[:, None]),
        mean(-bad * (p * scale)[:, None]),
        mean(p),
        mean(jnp.sqrt(variance)),
        mean(jnp.where(variance > 0, 0.0, 1.0)),
    )


def _kl_and_gradient(log_policy: Array, log_reference: Array) -> tuple[Array, Array]:
    policy = jnp.exp(log_policy)
    gap = log_policy - log_reference
    divergence = (policy * gap).sum()
    return divergence, policy * (gap - divergence)


def _update(
    kind: Kind, numbers: dict[str, Array], key: Array, state: _State, time: Array
) -> tuple[_State, tuple[Array, ...]]:
    """One optimizer update, and the record of it."""
    if kind.lag_pattern == "hold":
        fresh = time % numbers["refresh_interval"] == 0
        held = jnp.where(fresh, state.logits, state.sampler)
        old = held
    else:
        # A ring of the last policies; before the start they are all the initial one.
        held = state.sampler.at[time % kind.history].set(state.logits)
        old = held[(time - numbers["lag"]) % kind.history]
    success = numbers["success"]
    if kind.group_size is None:
        batch = _exact_batch(kind, success, old)
    else:
        batch = _sampled_batch(kind, success, old, jax.random.fold_in(key, time))

    log_policy = jax.nn.log_softmax(state.logits)
    log_old = jax.nn.log_softmax(old)
    log_reference = jax.nn.log_softmax(numbers["reference"])
    policy = jnp.exp(log_policy)
    log_ratio = jnp.minimum(log_policy - log_old, LARGEST_LOG_RATIO)
    ratio = jnp.ones_like(policy) if kind.ratio == "none" else jnp.exp(log_ratio)
    keep_good = keep_bad = jnp.ones_like(policy)
    if kind.ratio == "clipped":
        keep_good = jnp.where(ratio <= 1 + numbers["clip"], 1.0, 0.0)
        keep_bad = jnp.where(ratio >= 1 - numbers["clip"], 1.0, 0.0)
    push = ratio * (batch.push_good * keep_good + batch.push_bad * keep_bad)
    divergence, kl_gradient = _kl_and_gradient(log_policy, log_reference)
    if kind.stale_force == "all":
        _, kl_gradient = _kl_and_gradient(log_old, log_reference)
    force = push - policy * push.sum() - numbers["kl_weight"] * kl_gradient

    momentum, rate, square = numbers["momentum"], numbers["learning_rate"], state.square
    if kind.optimizer == "sgd":
        moment = momentum * state.moment + force
        step = rate * moment
    else:
        beta2, count = numbers["beta2"], time + 1.0
        moment = momentum * state.moment + (1 - momentum) * force
        square = beta2 * state.square + (1 - beta2) * force**2
        root = jnp.sqrt(square / (1 - beta2**count)) + ADAM_EPSILON
        step = rate * (moment / (1 - momentum**count)) / root
    columns = {
        "reward": batch.reward,
        "reward_std": batch.reward_std,
        "zero_std_fraction": batch.zero_std_fraction,
        "kl": divergence,
        "entropy": -(policy * log_policy).sum(),
        "clip_fraction": (
            batch.share_good * (1 - keep_good) + batch.share_bad * (1 - keep_bad)
        ).sum(),
        "eval_reward": (policy * success).sum(),
    }
    moved = _State(state.logits + step, moment, square, held)
    return moved, tuple(columns[name] for name in kind.record)


def _simulate_one(
    kind: Kind, numbers: dict[str, Array], key: Array
) -> tuple[tuple[Array, ...], Array]:
    logits = numbers["initial"]
    rest = jnp.zeros_like(logits)
    hold = kind.lag_pattern == "hold"
    sampler = logits if hold else jnp.broadcast_to(logits, (kind.history, len(logits)))
    begin = _State(logits, rest, rest, sampler)
    end, record = lax.scan(
        lambda state, time: _update(kind, numbers, key, state, time),
        begin,
        jnp.arange(kind.n_updates),
    )
    return record, end.logits


@partial(jax.jit, static_argnums=0)
def run_batch(
    kind: Kind, numbers: dict[str, Array], seeds: Array, places: Array
) -> tuple[tuple[Array, ...], Array]:
    """Train every setting of a batch.

    Parameters
    ----------
    kind
        The switches, and how many updates.
    numbers
        From `bayes_grpo.simulate.bandit.Bandit.arrays`, shapes (settings,) and (settings, arms).
    seeds, places
        Seed of each setting, and its place among settings with that seed, shape (settings,).

    Returns
    -------
    columns : tuple of Array
        What ``kind.record`` names, shape (updates, settings) each.
    logits : Array
        After the last update, shape (settings, arms).
    """
    keys = jax.vmap(lambda s, place: jax.random.fold_in(jax.random.key(s), place))(seeds, places)
    run = partial(_simulate_one, kind)
    return jax.vmap(run, out_axes=((1,) * len(kind.record), 0))(numbers, keys)
