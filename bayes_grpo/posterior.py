"""From posterior draws of the parameters to everything else that a fit reports: arrays in, arrays out.

For each draw the states are drawn given all rows (the filter has integrated them out), so that
plateau, first reward and the latent curve are exact joint draws with the parameters.
"""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bayes_grpo.model import Data, Program
from bayes_grpo.statespace import Ticks, draw_states, filter_run, row_means, simulate

BATCH_CELLS = 500_000
"""Draws times ticks that are worked on at once: bounds the memory that long runs need."""


class Levels(NamedTuple):
    """Per-draw numbers of a fit, shape (draws,) unless said otherwise.

    Parameters
    ----------
    params
        All numbers of the recursion in natural units.
    initial_reward, reward_now
        Expected reward at the start and after the last logged row.
    initial_plateau, plateau
        The level that the reward is heading for, at the start and after the last logged row.
    end
        State after the last tick, shape (draws, size).
    """

    params: dict[str, Array]
    initial_reward: Array
    reward_now: Array
    initial_plateau: Array
    plateau: Array
    end: Array


class Paths(NamedTuple):
    """Per-draw curves of a fit over all (padded) ticks, shape (draws, ticks).

    Parameters
    ----------
    latent
        Reward without sampling noise of the row that the tick ends or continues, given all rows.
    replicate
        Logged reward of a new run with the same parameters, start and plateau at the start.
    log_likelihood
        Log density of each row given the rows before it.
    """

    latent: Array
    replicate: Array
    log_likelihood: Array


def _levels(program: Program, data: Data, draw: Mapping[str, Array], key: Array) -> tuple[Levels, Array]:
    params = program.params(draw, data)
    states, end = draw_states(program.system, params, data.ticks, key, windowed=program.windowed)
    tick = jax.tree.map(lambda a: a[-1], data.ticks)
    now = program.system.observe(params, tick, tuple(end))
    level = program.parts.plateau_index
    as_arrays = {name: jnp.asarray(value) for name, value in params.items()}
    return Levels(as_arrays, states[0][0], now, states[0][level], end[level], end), states


def _paths(
    program: Program, data: Data, draw: Mapping[str, Array], key: Array
) -> tuple[Levels, Paths]:
    levels, states = _levels(program, data, draw, key)
    params = program.params(draw, data)
    latent = row_means(program.system, params, data.ticks, states)
    _, replicate, _ = simulate(
        program.system, params, data.ticks, jax.random.fold_in(key, 1), start=states[0]
    )
    rows = filter_run(program.system, params, data.ticks, windowed=program.windowed).log_density
    return levels, Paths(latent, replicate, rows)


@lru_cache(maxsize=32)
def _compiled(program: Program, with_paths: bool) -> Any:
    if with_paths:
        one = partial(_paths, program)
    else:
        one = lambda data, draw, key: (_levels(program, data, draw, key)[0], None)  # noqa: E731

    def run(data: Data, draws: Mapping[str, Array], keys: Array) -> Any:
        batch = max(1, BATCH_CELLS // data.ticks.reward.shape[0])
        return jax.lax.map(lambda at: one(data, *at), (draws, keys), batch_size=min(batch, len(keys)))

    return jax.jit(run)


def levels_and_paths(
    program: Program, data: Data, draws: Mapping[str, np.ndarray], seed: int, thin: int = 1
) -> tuple[Levels, Paths]:
    """Everything that a fit reports, from draws of the sampled parameters.

    Parameters
    ----------
    program, data
        From `bayes_grpo.model.bind`.
    draws
        Draws in the priors' own units, shape (chains, draws) each.
    seed
        Seed of the states' draws.
    thin
        Curves are kept for every ``thin``-th draw of a chain.

    Returns
    -------
    Levels
        For every draw, with leading axes (chains, draws).
    Paths
        For every ``thin``-th draw, with leading axes (chains, draws / thin).
    """
    shape = next(iter(draws.values())).shape
    keys = jax.random.split(jax.random.key(seed), shape)
    flat = lambda a: a.reshape((-1, *a.shape[2:]))  # noqa: E731
    levels, paths = _compiled(program, thin == 1)(
        data, {name: flat(values) for name, values in draws.items()}, flat(keys)
    )
    if thin > 1:
        some = {name: flat(values[:, ::thin]) for name, values in draws.items()}
        _, paths = _compiled(program, True)(data, some, flat(keys[:, ::thin]))
    back = lambda a: np.asarray(a).reshape((shape[0], -1, *a.shape[1:]))  # noqa: E731
    return jax.tree.map(back, (levels, paths))


@lru_cache(maxsize=32)
def _forecaster(program: Program) -> Any:
    def one(
        data: Data, ticks: Ticks, first: Array, last: Array, draw: Any, end: Array, key: Array
    ) -> Any:
        params = program.params(draw, data)
        key_path, key_rows = jax.random.split(key)
        states, _, _ = simulate(program.system, params, ticks, key_path, start=end)
        batch_means = row_means(program.system, params, ticks, states)
        total = jnp.concatenate([jnp.zeros(1), jnp.cumsum(batch_means)])
        mean = (total[last + 1] - total[first]) / (last + 1 - first)
        rows = jax.tree.map(lambda a: a[last], ticks)
        variance = jax.vmap(lambda tick: program.system.sampling_variance(params, tick))(rows)
        noise = jax.random.normal(key_rows, mean.shape)
        return mean, mean + jnp.sqrt(variance) * noise

    def run(
        data: Data, ticks: Ticks, first: Array, last: Array, draws: Any, ends: Array, keys: Array
    ) -> tuple[Array, Array]:
        batch = max(1, BATCH_CELLS // ticks.reward.shape[0])
        return jax.lax.map(
            lambda at: one(data, ticks, first, last, *at),
            (draws, ends, keys),
            batch_size=min(batch, len(keys)),
        )

    return jax.jit(run)


def forecast_draws(
    program: Program,
    data: Data,
    ticks: Ticks,
    first: np.ndarray,
    last: np.ndarray,
    draws: Mapping[str, np.ndarray],
    ends: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Future rows, drawn from the posterior predictive distribution.

    Parameters
    ----------
    program, data
        From `bayes_grpo.model.bind`.
    ticks, first, last
        From `bayes_grpo.timeline.future_ticks`.
    draws
        Draws in the priors' own units, shape (draws,) each.
    ends
        State after the last logged tick, shape (draws, size).
    seed
        Seed of the future.

    Returns
    -------
    mean, observed : ndarray
        Reward without and with sampling noise, shape (draws, steps).
    """
    keys = jax.random.split(jax.random.key(seed), len(ends))
    mean, observed = _forecaster(program)(
        data, ticks, jnp.asarray(first), jnp.asarray(last), dict(draws), ends, keys
    )
    return np.asarray(mean), np.asarray(observed)
