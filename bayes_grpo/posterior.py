"""From draws of the parameters to everything else that a fit reports: arrays in, arrays out.

For each draw the states are drawn given all rows (the filter has integrated them out), so that
plateau, first reward and the latent curve are exact joint draws with the parameters.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bayes_grpo.model import Data, Program
from bayes_grpo.statespace import (
    Noise,
    Ticks,
    draw_states,
    filter_run,
    noise_shapes,
    row_means,
    simulate,
)
from bayes_grpo.timeline import Timeline, bucket

BATCH_CELLS = 1_100_000
"""Draws times ticks that are worked on at once: bounds the memory that long runs need."""

COMPILED = 128
"""Compiled functions that are kept: each takes memory maps, of which a process has some 65,000."""

FAR = 1e3
"""Relaxation times after which a curve that has not settled is given up."""


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


def _levels(
    program: Program, data: Data, draw: Mapping[str, Array], noise: Noise
) -> tuple[Levels, Ticks, Array]:
    params = program.params(draw, data)
    ticks = program.timed(params, data.ticks)
    states, end = draw_states(program.system, params, ticks, noise, windowed=program.windowed)
    return levels_of_path(program, ticks, params, states, end), ticks, states


def levels_of_path(
    program: Program, ticks: Ticks, params: Mapping[str, Any], states: Array, end: Array
) -> Levels:
    """Read the levels of a fit off a path of the state.

    Parameters
    ----------
    program, params
        The model and its parameters.
    ticks
        From `Program.timed`.
    states, end
        State before every tick, shape (ticks, size), and after the last one, shape (size,).

    Returns
    -------
    Levels
        Of one draw.
    """
    first = jax.tree.map(lambda a: jnp.asarray(a)[0], ticks)
    observe = program.system.observe
    level = program.parts.plateau_index
    return Levels(
        params={name: jnp.asarray(value) for name, value in params.items()},
        initial_reward=jnp.asarray(observe(params, first, tuple(states[0]))),
        reward_now=jnp.asarray(observe(params, program.after(params, ticks), tuple(end))),
        initial_plateau=states[0][level],
        plateau=end[level],
        end=end,
    )


def _levels_only(
    program: Program, data: Data, draw: Mapping[str, Array], noise: Noise, replicate: Noise
) -> Levels:
    del replicate
    return _levels(program, data, draw, noise)[0]


def _levels_and_paths(
    program: Program, data: Data, draw: Mapping[str, Array], noise: Noise, replicate: Noise
) -> tuple[Levels, Paths]:
    levels, ticks, states = _levels(program, data, draw, noise)
    params = program.params(draw, data)
    latent = row_means(program.system, params, ticks, states)
    _, rewards, _ = simulate(program.system, params, ticks, replicate, start=states[0])
    rows = filter_run(program.system, params, ticks, windowed=program.windowed).log_density
    return levels, Paths(latent, rewards, rows)


def _future(
    program: Program,
    data: Data,
    future: tuple[Ticks, Array, Array],
    draw: Mapping[str, Array],
    end: Array,
    noise: Noise,
) -> tuple[Array, Array]:
    ticks, first, last = future
    params = program.params(draw, data)
    ticks = program.timed(params, ticks)
    states, _, _ = simulate(program.system, params, ticks, noise, start=end)
    total = jnp.concatenate(
        [jnp.zeros(1), jnp.cumsum(row_means(program.system, params, ticks, states))]
    )
    mean = (total[last + 1] - total[first]) / (last + 1 - first)
    rows = jax.tree.map(lambda a: a[last], ticks)
    variance = jax.vmap(lambda tick: program.system.sampling_variance(params, tick))(rows)
    return mean, mean + jnp.sqrt(variance) * noise.rows[last]


@lru_cache(maxsize=COMPILED)
def _compiled(program: Program, what: Callable[..., Any]) -> Any:
    """Compile ``what`` for many draws at once; its first arguments are common to all of them."""

    def run(common: tuple[Any, ...], each: tuple[Any, ...]) -> Any:
        return jax.vmap(lambda *own: what(program, *common, *own))(*each)

    return jax.jit(run)


def _in_batches(
    function: Callable[..., Any],
    common: tuple[Any, ...],
    each: tuple[Any, ...],
    shapes: Sequence[tuple[tuple[int, ...], ...]],
    rng: np.random.Generator,
) -> Any:
    """Apply a compiled function to draws, a batch of one size at a time, with fresh noise."""
    count = jax.tree.leaves(each)[0].shape[0]
    ticks = shapes[0][-1][0]
    size = -(-count // -(-count * ticks // BATCH_CELLS))
    parts = []
    for begin in range(0, count, size):
        chosen = np.minimum(np.arange(begin, begin + size), count - 1)
        own = jax.tree.map(lambda a, chosen=chosen: a[chosen], each)
        noise = (Noise(*(rng.standard_normal((size, *shape)) for shape in s)) for s in shapes)
        parts.append(jax.tree.map(np.asarray, function(common, (*own, *noise))))
    return jax.tree.map(lambda *arrays: np.concatenate(arrays)[:count], *parts)


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
    chains = next(iter(draws.values())).shape[0]
    shape = _noise_shapes(program, data, data.ticks, draws)
    rng = np.random.default_rng(seed)
    flat = lambda a: a.reshape((-1, *a.shape[2:]))  # noqa: E731
    with_paths = _compiled(program, _levels_and_paths)
    some = {name: flat(values[:, ::thin]) for name, values in draws.items()}
    levels, paths = _in_batches(with_paths, (data,), (some,), (shape, shape), rng)
    if thin > 1:
        every = {name: flat(values) for name, values in draws.items()}
        only = _compiled(program, _levels_only)
        levels = _in_batches(only, (data,), (every,), (shape, shape), rng)
    back = lambda a: a.reshape((chains, -1, *a.shape[1:]))  # noqa: E731
    return jax.tree.map(back, (levels, paths))


def _from_prior(
    program: Program, data: Data, draw: Mapping[str, Array], noise: Noise
) -> tuple[Levels, Array]:
    """Draw levels and a run from the prior: what `_levels_and_paths` gives without any data."""
    params = program.params(draw, data)
    ticks = program.timed(params, data.ticks)
    states, rewards, end = simulate(program.system, params, ticks, noise)
    return levels_of_path(program, ticks, params, states, end), rewards


def parameters_from_prior(program: Program, count: int, seed: int) -> dict[str, np.ndarray]:
    """Draw the sampled parameters from their priors, in the priors' own units, shape (count,)."""
    keys = jax.random.split(jax.random.key(seed), len(program.sampled))
    return {
        name: np.asarray(program.model.priors[name].in_unit().sample(key, (count,)))
        for name, key in zip(program.sampled, keys, strict=True)
    }


def prior_draws(
    program: Program, data: Data, count: int, seed: int
) -> tuple[dict[str, np.ndarray], Levels, np.ndarray]:
    """Parameters and whole runs from the prior.

    Parameters
    ----------
    program, data
        From `bayes_grpo.model.bind`; the logged rewards are not read.
    count
        Number of draws.
    seed
        Seed of everything random.

    Returns
    -------
    draws : dict
        In the priors' own units, shape (1, count) each.
    levels : Levels
        With leading axes (1, count).
    rewards : ndarray
        Logged rewards of the runs over all (padded) ticks, shape (1, count, ticks).
    """
    draws = parameters_from_prior(program, count, seed)
    shape = _noise_shapes(program, data, data.ticks, draws)
    rng = np.random.default_rng(seed)
    levels, rewards = _in_batches(_compiled(program, _from_prior), (data,), (draws,), (shape,), rng)
    first = lambda a: a[None]  # noqa: E731
    return jax.tree.map(first, (draws, levels, rewards))


def forecast_draws(
    program: Program,
    data: Data,
    future: tuple[Ticks, np.ndarray, np.ndarray],
    draws: Mapping[str, np.ndarray],
    ends: np.ndarray,
    seed: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Future rows, drawn from the posterior predictive distribution.

    Parameters
    ----------
    program, data
        From `bayes_grpo.model.bind`.
    future
        Ticks, first and last tick of each row: from `bayes_grpo.timeline.future_ticks`.
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
    ticks, first, last = future
    steps = len(last)
    # Padded behind, so that forecasts of different lengths share one compiled program.
    more = bucket(len(ticks.reward)) - len(ticks.reward)
    ticks = jax.tree.map(lambda a: np.pad(np.asarray(a), (0, more), mode="edge"), ticks)
    first, last = (np.pad(a, (0, bucket(steps) - steps), mode="edge") for a in (first, last))
    shape = _noise_shapes(program, data, ticks, draws)
    rng = np.random.default_rng(seed)
    mean, observed = _in_batches(
        _compiled(program, _future),
        (data, (ticks, first, last)),
        (dict(draws), ends),
        (shape,),
        rng,
    )
    return mean[:, :steps], observed[:, :steps]


def one_step_ahead(
    program: Program, data: Data, draws: Mapping[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions of every row from the rows before it, for given parameters.

    Parameters
    ----------
    program, data
        From `bayes_grpo.model.bind`.
    draws
        Draws in the priors' own units, shape (draws,) each.

    Returns
    -------
    mean, variance, log_density : ndarray
        Of the row that each (padded) tick ends, shape (draws, ticks); see
        `bayes_grpo.statespace.Filtered`.
    """
    return jax.tree.map(np.asarray, _compiled(program, _predictions)((data,), (dict(draws),)))


def _predictions(
    program: Program, data: Data, draw: Mapping[str, Array]
) -> tuple[Array, Array, Array]:
    params = program.params(draw, data)
    ticks = program.timed(params, data.ticks)
    found = filter_run(program.system, params, ticks, windowed=program.windowed)
    return found.mean, found.variance, found.log_density


def held_back(data: Data, timeline: Timeline, known: int) -> Data:
    """Data of the same run as if only its first rows had been logged.

    Parameters
    ----------
    data, timeline
        From `bayes_grpo.model.bind`.
    known
        Rewarded rows that are kept.

    Returns
    -------
    Data
        The later rows carry no reward; clock, schedule and the scale of the priors stay.
    """
    observed = np.array(data.ticks.observed, dtype=float)
    padding = len(observed) - len(timeline.ticks.reward)
    observed[padding + timeline.row_tick[known:]] = 0.0
    return data._replace(ticks=data.ticks._replace(observed=observed))


def settling_draws(program: Program, data: Data, draws: Mapping[str, np.ndarray]) -> np.ndarray:
    """Updates in which 95 % of what is left of a shaped mean curve is covered, at the peak rate.

    Parameters
    ----------
    program, data
        From `bayes_grpo.model.bind`; the mean curve must have a shape.
    draws
        Draws in the priors' own units, shape (draws,) each.

    Returns
    -------
    ndarray
        Shape (draws,); at most `FAR` relaxation times.
    """
    return np.asarray(_compiled(program, _settling)((data,), (dict(draws),)))


def _settling(program: Program, data: Data, draw: Mapping[str, Array]) -> Array:
    params = program.params(draw, data)
    shape = program.parts.shape
    if shape is None:
        raise ValueError(f"mean curve '{program.parts.name}' has no shape")
    now = params["pull"] * (data.ticks.elapsed[-1] + data.ticks.learning_rate[-1])
    ahead = jnp.concatenate([jnp.zeros(1), jnp.geomspace(1e-2, FAR, 600)])
    left = jnp.abs(shape(params, now + ahead))
    # The last time that it is still too far away: some curves come back.
    far = jnp.max(jnp.where(left > 0.05 * left[0], ahead, 0.0))
    return far * params["relaxation_time"]


def _noise_shapes(
    program: Program, data: Data, ticks: Ticks, draws: Mapping[str, np.ndarray]
) -> tuple[tuple[int, ...], ...]:
    first = {name: values.flat[0] for name, values in draws.items()}
    return noise_shapes(program.system, program.params(first, data), ticks)
