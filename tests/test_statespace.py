"""The state space against dense Gaussian algebra.

The oracle is the recursion of one optimizer update, run on vectors: every quantity is a constant
plus a linear combination of all the independent standard normal inputs of the run (first reward,
plateau, a shock for each update, a step of the plateau for each tick).  Means, covariances and
conditional distributions of anything then follow by plain linear algebra.

Convention: the plateau's random walk steps once per tick, after the last update of the tick.  Under
hold-and-refresh a tick is one refresh, so the plateau stands still while the sampler is frozen;
with a constant lag, and on-policy, a tick is one update.
"""

import subprocess
import sys
from functools import cache
from math import ceil, log, pi, sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.linalg
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_grpo.mean_curves import Recipe
from bayes_grpo.model import Data, bind, build_program, parse_model
from bayes_grpo.priors import RunScale
from bayes_grpo.run import Run
from bayes_grpo.statespace import (
    Noise,
    Ticks,
    draw_noise,
    draw_states,
    filter_run,
    log_likelihood,
    noise_shapes,
    row_means,
    simulate,
    smooth,
)
from bayes_grpo.timeline import pad_ticks
from bayes_grpo.trajectory import block_responses

pytestmark = pytest.mark.usefixtures("strict_float64")

SHAPES = {
    "oscillator": ("oscillator", "hold", 0),
    "exponential": ("exponential", "hold", 0),
    "hold": ("closed_form", "hold", 0),
    **{f"lag {lag}": ("closed_form", "constant", lag) for lag in (0, 1, 2, 5, 16)},
}
FEW = ("oscillator", "exponential", "hold", "lag 2")

INITIAL = (-0.4, 0.7)  # mean and standard deviation in units of the spread, about the location
PLATEAU = (0.9, 1.3)

MODEL = """
trajectory = "{trajectory}"
fluctuation = ["process", "drift"]
measurement = "white"
[priors]
initial_reward = {{ distribution = "Normal", mean = -0.4, sd = 0.7, unit = "reward" }}
plateau = {{ distribution = "Normal", mean = 0.9, sd = 1.3, unit = "reward" }}
relaxation_time = {{ distribution = "LogNormal", median = 20, sd_log = 1 }}
fluctuation_sd = {{ distribution = "HalfNormal", sd = 1 }}
drift_sd = {{ distribution = "HalfNormal", sd = 1 }}
sampling_sd = {{ distribution = "HalfNormal", sd = 1 }}
"""


# --- oracle ---------------------------------------------------------------------------------------


class Gaussian(NamedTuple):
    """Jointly normal variables as affine functions of independent standard normal inputs.

    The last axis holds the constant and then the weight of every input.
    """

    sampler: np.ndarray  # reward of the policy that sampled for each update, (updates, 1 + inputs)
    states: np.ndarray  # reward, velocity, plateau before each tick and at the end


def run_of_updates(
    learning_rate, momentum, pull, shock, drift, initial, plateau, refresh=1, lag=None, nudges=None
):
    """Every reward of a run, from the recursion of one update.

    Hold and refresh unless a constant ``lag`` is given.  ``drift`` is the standard deviation of the
    plateau's step, once for each of the ``ceil(updates / refresh)`` ticks.
    """
    updates = len(learning_rate)
    ticks = ceil(updates / refresh)
    inputs = np.eye(3 + updates + ticks)
    one, start, level = inputs[:3]
    shocks, drifts = inputs[3 : 3 + updates], inputs[3 + updates :]
    reward = initial[0] * one + initial[1] * start
    target = plateau[0] * one + plateau[1] * level
    velocity = 0 * one
    sampler, states, past = [], [], []
    for u in range(updates):
        tick, since_refresh = divmod(u, refresh)
        if since_refresh == 0:
            if nudges is not None:
                reward, velocity, target = (
                    value + nudge * one
                    for value, nudge in zip((reward, velocity, target), nudges[tick], strict=True)
                )
            stale = reward
            states.append([reward, velocity, target])
        past.append(reward)
        if lag is not None:
            stale = past[max(u - lag, 0)]
        sampler.append(stale)
        force = -pull * (stale - target) + shock * shocks[u]
        velocity = momentum * velocity + learning_rate[u] * force
        reward = reward + velocity
        if since_refresh == refresh - 1:
            target = target + drift * drifts[tick]
    states.append([reward, velocity, target])
    return Gaussian(np.array(sampler), np.array(states))


def moments(affine):
    return affine[:, 0], affine[:, 1:] @ affine[:, 1:].T


def log_normal_density(y, mean, covariance):
    factor = np.linalg.cholesky(covariance)
    z = scipy.linalg.solve_triangular(factor, y - mean, lower=True)
    return -0.5 * z @ z - np.log(np.diag(factor)).sum() - 0.5 * len(y) * log(2 * pi)


def condition(wanted, rows, variance, y):
    """Mean and covariance of ``wanted`` given that ``rows`` plus noise came out as ``y``."""
    gain = np.linalg.solve(
        rows[:, 1:] @ rows[:, 1:].T + np.diag(variance), rows[:, 1:] @ wanted[:, 1:].T
    ).T
    left = wanted - gain @ rows
    return left[:, 0] + gain @ y, left[:, 1:] @ left[:, 1:].T + gain * variance @ gain.T


def stationary_sd(momentum, pull):
    """Stationary deviation of the reward under unit shocks, from the Lyapunov equation."""
    a = np.array([[1 - pull, momentum], [-pull, momentum]])
    return sqrt(scipy.linalg.solve_discrete_lyapunov(a, np.ones((2, 2)))[0, 0])


def coefficients(trajectory, draws, momentum, updates_per_tick):
    """Momentum and pull of one step of the recursion, and the updates in such a step."""
    tau = draws["relaxation_time"]
    if trajectory == "closed_form":
        return momentum, (1 - momentum) / tau, 1
    tau = tau / updates_per_tick
    if trajectory == "exponential":
        return 0.0, 1 / tau, updates_per_tick
    root = tau / (tau + 2 * draws["damping_ratio"] ** 2)
    return root**2, (1 - root**2) / tau, updates_per_tick


class Case(NamedTuple):
    """A run on a hand-made clock: which ticks each row averages, and what it says."""

    shape: str
    momentum: float
    refresh: int  # updates per tick
    rates: np.ndarray  # (ticks, refresh)
    first: np.ndarray  # (rows,)
    last: np.ndarray
    y: np.ndarray
    generations: np.ndarray
    draws: dict
    planned: float = 300.0  # updates
    location: float = 0.45
    spread: float = 0.2

    @property
    def windowed(self):
        return bool(np.any(self.first < self.last))

    @property
    def scale(self):
        return RunScale(self.location, self.spread, self.planned, 1.0)

    @property
    def variance(self):
        return self.draws["sampling_sd"] ** 2 / self.generations

    def gaussian(self, draws=None, nudges=None):
        draws = draws or self.draws
        trajectory, pattern, lag = SHAPES[self.shape]
        momentum, pull, per_step = coefficients(trajectory, draws, self.momentum, self.refresh)
        by_step = self.rates.reshape(-1, per_step).mean(axis=1)
        location, spread = self.scale[:2]
        return run_of_updates(
            by_step,
            momentum,
            pull,
            draws["fluctuation_sd"] / stationary_sd(momentum, pull),
            draws["drift_sd"] * sqrt(self.refresh / self.planned),
            (location + spread * INITIAL[0], spread * INITIAL[1]),
            (location + spread * PLATEAU[0], spread * PLATEAU[1]),
            refresh=self.refresh // per_step,
            lag=lag if pattern == "constant" else None,
            nudges=nudges,
        )

    def rows(self, gaussian):
        per_tick = gaussian.sampler[:: len(gaussian.sampler) // len(self.rates)]
        return np.array(
            [per_tick[a : b + 1].mean(axis=0) for a, b in zip(self.first, self.last, strict=True)]
        )

    def dense_log_likelihood(self, draws=None, nudges=None):
        mean, covariance = moments(self.rows(self.gaussian(draws, nudges)))
        variance = (draws or self.draws)["sampling_sd"] ** 2 / self.generations
        return log_normal_density(self.y, mean, covariance + np.diag(variance))

    def ticks(self):
        count = len(self.rates)
        ticks = Ticks(
            learning_rate=self.rates.mean(axis=1),
            root_time=np.full(count, sqrt(self.refresh / self.planned)),
            reward=np.full(count, 3.3),
            observed=np.zeros(count),
            share=np.ones(count),
            keep=np.zeros(count),
            row_variance=np.ones(count),
            elapsed=np.cumsum(self.rates.mean(axis=1)) - self.rates.mean(axis=1),
            response=block_responses(self.rates, self.momentum) if self.shape == "hold" else {},
        )
        for a, b, y, n in zip(self.first, self.last, self.y, self.generations, strict=True):
            ticks.reward[b], ticks.observed[b], ticks.row_variance[b] = y, 1, 1 / n
            ticks.share[a : b + 1] = 1 / (b - a + 1)
            ticks.keep[a + 1 : b + 1] = 1
        return ticks

    def bound(self, padded=64):
        program = program_of(self.shape, self.windowed)
        constants = {"optimizer_momentum": self.momentum, "updates_per_tick": float(self.refresh)}
        ticks = pad_ticks(self.ticks(), padded) if padded else self.ticks()
        return program, Data(ticks, self.scale, constants)

    def parts(self):
        """What the functions of the state space take, without padding."""
        program, data = self.bound(padded=None)
        ticks = jax.tree.map(jnp.asarray, data.ticks)
        return program.system, program.params(self.draws, data), ticks


@cache
def program_of(shape, windowed):
    trajectory, pattern, lag = SHAPES[shape]
    text = MODEL.format(trajectory=trajectory)
    if trajectory == "oscillator":
        text += 'damping_ratio = { distribution = "LogNormal", median = 2, sd_log = 1 }\n'
    return build_program(parse_model(text, "test", "test.toml"), Recipe(pattern, lag), windowed)


def density_of(program):
    def density(draws, data):
        return program.log_likelihood(draws, data)

    return density


@cache
def compiled(program):
    return jax.jit(density_of(program))


@cache
def compiled_gradient(program):
    return jax.jit(jax.grad(density_of(program)))


def make_case(rng, shape, *, windowed, ticks=None, refresh=None, momentum=None):
    """A random case: schedule, gaps, missing rows, rows of one or several ticks."""
    trajectory, pattern, lag = SHAPES[shape]
    ticks = ticks or int(rng.integers(3, 50))
    if refresh is None:
        refresh = 1 if pattern == "constant" else int(rng.integers(1, 9))
    if momentum is None:
        momentum = float(rng.choice([0.0, 0.5, 0.9, 0.99, rng.uniform(0, 0.99)]))
    updates = np.arange(1, ticks * refresh + 1)
    warmup = np.minimum(1, updates / rng.integers(1, ticks * refresh + 1))
    rates = warmup * np.clip(1 - updates * rng.uniform(0, 1.2) / len(updates), 0, None)
    width = int(rng.integers(2, 11)) if windowed else 1
    last, at = [], -1
    while at < ticks - 1:
        at = min(at + width + int(rng.integers(0, 3)) * (ticks > 2), ticks - 1)
        last.append(at)
    last = np.array(last)
    first = np.maximum(last - width + 1, np.append(0, last[:-1] + 1))
    if windowed and len(last) == 1:
        first = np.array([0])
    kept = rng.random(len(last)) < 0.8
    kept[[0, -1]] = True
    first, last = first[kept], last[kept]
    draws = {
        "relaxation_time": float(max(refresh, lag + 1) * rng.uniform(0.9, 20)),
        "fluctuation_sd": float(rng.uniform(0.02, 0.3)),
        "drift_sd": float(rng.uniform(0.02, 0.5)),
        "sampling_sd": float(rng.uniform(0.02, 0.3)),
    }
    if trajectory == "oscillator":
        draws["damping_ratio"] = float(np.exp(rng.uniform(-1.5, 2)))
    return Case(
        shape,
        momentum,
        refresh,
        rates.reshape(ticks, refresh),
        first,
        last,
        rng.uniform(0, 1, len(last)),
        rng.integers(1, 5, len(last)).astype(float),
        draws,
    )


def make_cases(shape, *, windowed, count, seed=0):
    rng = np.random.default_rng([seed, len(shape), windowed])
    return [make_case(rng, shape, windowed=windowed) for _ in range(count)]


# --- likelihood -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "windowed"),  # the longest lag is slow to compile: once is enough
    [(s, w) for s in SHAPES for w in (False, True) if w or s != "lag 16"],
)
def test_log_likelihood_is_the_dense_normal_density(shape, windowed):
    count = 8 if shape == "lag 16" else 25
    for case in make_cases(shape, windowed=windowed, count=count):
        program, data = case.bound()
        found = float(compiled(program)(case.draws, data))
        assert found == pytest.approx(case.dense_log_likelihood(), rel=1e-10, abs=1e-10), case


@st.composite
def tables(draw):
    """A table of a run, settings for `Run.from_table`, and a shape."""
    shape = draw(st.sampled_from([s for s in SHAPES if s != "lag 16"]))
    _, pattern, lag = SHAPES[shape]
    given = {"momentum": draw(st.sampled_from([0.0, 0.5, 0.9, 0.99]) | st.floats(0, 0.99))}
    if pattern == "constant":
        given |= {"lag": lag, "lag_pattern": "constant"}
    else:
        given["refresh_interval"] = draw(st.integers(1, 8))
    refresh = given.get("refresh_interval", 1)
    given["updates_per_step"] = draw(st.sampled_from([1, 2, refresh]))
    given["row_average"] = draw(st.sampled_from(["single", "window"]))
    room = 60 * refresh // given["updates_per_step"]
    count = draw(st.integers(2, 25))
    widest = max(1, min(10, (room - 10) // count))
    gaps = draw(st.lists(st.integers(1, widest), min_size=count, max_size=count))
    start = draw(st.sampled_from([0, 1, 7, 1000]))
    steps = start + np.cumsum([0, *gaps[1:]])
    given["max_steps"] = int(steps[-1]) + draw(st.integers(0, 200))
    reward = np.array(
        draw(st.lists(st.integers(0, 97), min_size=count, max_size=count, unique=True))
    )
    reward = reward / 97
    reward[1:-1][np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))[1:-1]] = (
        np.nan
    )
    table = pd.DataFrame({"step": steps, "reward": reward})
    schedule = draw(st.sampled_from(["none", "constant", "warmup", "gaps"]))
    if schedule != "none":
        rate = 3e-6 * np.linspace(1, 0.2, count)
        if schedule == "constant":
            rate[:] = 3e-6
        else:
            rate[: count // 3] *= np.linspace(0, 1, count // 3)
            rate[1 : -1 : 2 if schedule == "gaps" else count] = np.nan
        table["learning_rate"] = rate
    if draw(st.booleans()):
        table["generations"] = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    draws = {
        "relaxation_time": max(refresh, lag + 1) * draw(st.floats(0.9, 20)),
        "fluctuation_sd": draw(st.floats(0.02, 0.3)),
        "drift_sd": draw(st.floats(0.0, 0.5)),
        "sampling_sd": draw(st.floats(0.02, 0.3)),
    }
    if shape == "oscillator":
        draws["damping_ratio"] = draw(st.floats(0.2, 8))
    return shape, table, given, draws


def case_of_table(shape, table, given, draws):
    """Read a table by hand: when its batches were made and which of them each row averages.

    A batch belongs to the window in which it was made; a row in whose window none was made repeats
    the batch in use, and rows of one batch are averaged, weighted by their generations.
    """
    refresh, per_step = given.get("refresh_interval", 1), given["updates_per_step"]
    step, reward = table["step"].to_numpy(), table["reward"].to_numpy()
    spacing = max(1, round(float(np.median(np.diff(step)))))
    before = 1 if step[0] == 0 else min(step[0], spacing)
    done = (step - step[0] + before) * per_step
    previous = np.append(0, done[:-1])
    window = given["row_average"] == "window"
    if "generations" in table:
        generations = table["generations"].to_numpy(dtype=float)
    else:
        generations = np.maximum(1, (done - previous) // refresh) if window else np.ones(len(done))
    rows = {}  # last batch -> [first batch, reward, generations]
    for end, begin, y, n in zip(done, previous, reward, generations, strict=True):
        if np.isnan(y):
            continue
        made = [b for b in range(end) if begin <= b * refresh < end]
        in_use = (end - 1) // refresh
        first = made[0] if window and made else in_use
        if in_use in rows:
            row = rows[in_use]
            row[1:] = [(row[1] * row[2] + y * n) / (row[2] + n), row[2] + n]
        else:
            rows[in_use] = [first, y, n]
    ticks = ceil(done[-1] / refresh)
    rates = np.ones(ticks * refresh)
    if "learning_rate" in table:
        rate = table["learning_rate"].to_numpy()
        known = np.isfinite(rate)
        updates = np.arange(1, ticks * refresh + 1)
        rates = np.interp(updates, done[known], rate[known] / np.nanmax(rate))
    first, y, n = (np.array(column) for column in zip(*rows.values(), strict=True))
    return Case(
        shape,
        given["momentum"],
        refresh,
        rates.reshape(ticks, refresh),
        first,
        np.array(list(rows)),
        y,
        n,
        draws,
        planned=done[-1] + (given["max_steps"] - step[-1]) * per_step,
        location=np.nanmedian(reward),
        spread=np.nanstd(reward),
    )


@given(tables())
@settings(max_examples=100)
def test_log_likelihood_of_a_table_is_the_dense_normal_density(drawn):
    shape, table, given_settings, draws = drawn
    run = Run.from_table(table, **given_settings)
    program, _, data = bind(program_of(shape, False).model, run)
    case = case_of_table(*drawn)
    assert program.windowed == case.windowed
    found = float(compiled(program)(draws, data))
    assert found == pytest.approx(case.dense_log_likelihood(), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(
    ("shape", "windowed"),
    [
        ("oscillator", True),
        ("oscillator", False),
        ("exponential", False),
        ("hold", True),
        ("hold", False),
        ("lag 2", False),
    ],
)
def test_gradient_is_that_of_the_dense_density(shape, windowed):
    for case in make_cases(shape, windowed=windowed, count=3, seed=1):
        program, data = case.bound()
        found = compiled_gradient(program)(case.draws, data)
        assert set(found) == set(program.sampled)
        for name, value in case.draws.items():
            step = 1e-5 * value
            up, down = (
                case.dense_log_likelihood({**case.draws, name: value + sign * step})
                for sign in (1, -1)
            )
            slope = (up - down) / (2 * step)
            # What the dense density itself loses by rounding, over the width of the difference.
            noise = 1e-12 * max(1, abs(up)) / step
            assert float(found[name]) == pytest.approx(slope, rel=1e-6, abs=1e-7 + noise), name


@pytest.mark.parametrize("windowed", [False, True], ids=["single", "windows"])
@pytest.mark.parametrize("shape", ["oscillator", "hold"])
def test_gradient_in_the_nudges_is_that_of_shifted_states(shape, windowed):
    case = make_case(np.random.default_rng(2), shape, windowed=windowed, ticks=14)
    system, params, ticks = case.parts()
    found = jax.grad(
        lambda nudges: log_likelihood(system, params, ticks, windowed=case.windowed, nudges=nudges)
    )(tuple(jnp.zeros(14) for _ in range(3)))
    for tick in range(14):
        for state in range(3):
            nudge = np.zeros((14, 3))
            nudge[tick, state] = 0.1  # the density is quadratic in it: no error of the difference
            up, down = (case.dense_log_likelihood(nudges=sign * nudge) for sign in (1, -1))
            assert float(found[state][tick]) == pytest.approx((up - down) / 0.2, rel=1e-8, abs=1e-8)


# --- one-step-ahead predictions -------------------------------------------------------------------


@pytest.mark.parametrize("windowed", [False, True], ids=["single", "windows"])
@pytest.mark.parametrize("shape", FEW)
def test_predictions_are_the_dense_conditionals(shape, windowed):
    case = make_case(np.random.default_rng(3), shape, windowed=windowed, ticks=30)
    system, params, ticks = case.parts()
    filtered = filter_run(system, params, ticks, windowed=case.windowed)
    gaussian = case.gaussian()
    rows = case.rows(gaussian)
    mean, covariance = moments(rows)
    factor = np.linalg.cholesky(covariance + np.diag(case.variance))
    surprise = scipy.linalg.solve_triangular(factor, case.y - mean, lower=True)
    deviation = np.diag(factor)
    np.testing.assert_allclose(
        filtered.mean[case.last], case.y - deviation * surprise, rtol=1e-9, atol=1e-10
    )
    np.testing.assert_allclose(filtered.variance[case.last], deviation**2, rtol=1e-9)
    log_density = -0.5 * (log(2 * pi) + 2 * np.log(deviation) + surprise**2)
    np.testing.assert_allclose(filtered.log_density[case.last], log_density, rtol=1e-8, atol=1e-9)
    elsewhere = np.delete(np.asarray(filtered.log_density), case.last)
    np.testing.assert_array_equal(elsewhere, 0)
    total = log_likelihood(system, params, ticks, windowed=case.windowed)
    assert float(filtered.log_density.sum()) == pytest.approx(float(total), rel=1e-13)

    states = state_vectors(case, gaussian)
    end_mean, end_covariance = condition(states[-1], rows, case.variance, case.y)
    np.testing.assert_allclose(filtered.state_mean, end_mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(filtered.state_covariance, end_covariance, rtol=1e-8, atol=1e-10)


def textbook_filter(a, q, h, r, mean, covariance, y):
    """Kalman filter of a time-varying state, a scalar row each tick, NaN where there is none."""
    predictions = []
    for a_t, q_t, r_t, y_t in zip(a, q, r, y, strict=True):
        predicted, variance = h @ mean, h @ covariance @ h + r_t
        predictions.append((predicted, variance))
        if np.isfinite(y_t):
            gain = covariance @ h / variance
            mean = mean + gain * (y_t - predicted)
            covariance = covariance - np.outer(gain, gain) * variance
        mean, covariance = a_t @ mean, a_t @ covariance @ a_t.T + q_t
    return np.array(predictions), mean, covariance


def test_filter_is_the_textbook_one():
    rng = np.random.default_rng(4)
    case = make_case(rng, "oscillator", windowed=False, ticks=400, refresh=3)
    system, params, ticks = case.parts()
    filtered = filter_run(system, params, ticks, windowed=False)
    momentum, pull, _ = coefficients("oscillator", case.draws, case.momentum, case.refresh)
    shock = case.draws["fluctuation_sd"] / stationary_sd(momentum, pull)
    rates = case.rates.mean(axis=1)
    a = [
        np.array([[1 - pull * e, momentum, pull * e], [-pull * e, momentum, pull * e], [0, 0, 1]])
        for e in rates
    ]
    drift = case.draws["drift_sd"] ** 2 * case.refresh / case.planned
    q = [np.diag([0, 0, drift]) + (shock * e) ** 2 * np.outer([1, 1, 0], [1, 1, 0]) for e in rates]
    y, r = np.full(400, np.nan), np.ones(400) * case.draws["sampling_sd"] ** 2
    y[case.last], r[case.last] = case.y, case.variance
    location, spread = case.location, case.spread
    start = np.array([location + spread * INITIAL[0], 0, location + spread * PLATEAU[0]])
    spread_of_start = np.diag([spread * INITIAL[1], 0, spread * PLATEAU[1]]) ** 2
    predictions, mean, covariance = textbook_filter(
        a, q, np.array([1.0, 0, 0]), r, start, spread_of_start, y
    )
    np.testing.assert_allclose(filtered.mean, predictions[:, 0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(filtered.variance, predictions[:, 1], rtol=1e-9)
    np.testing.assert_allclose(filtered.state_mean, mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(filtered.state_covariance, covariance, rtol=1e-8, atol=1e-13)


# --- smoothing and simulation ---------------------------------------------------------------------


def state_vectors(case, gaussian):
    """States before each tick and at the end, ordered as in the package: (ticks + 1, size, -1)."""
    reward, velocity, plateau = np.moveaxis(gaussian.states, 1, 0)
    if case.shape == "exponential":
        return np.stack([reward, plateau], axis=1)
    lag = SHAPES[case.shape][2]
    older = [
        np.concatenate([np.zeros_like(velocity[:back]), velocity])[: len(velocity)]
        for back in range(1, lag)
    ]
    return np.stack([reward, velocity, plateau, *older], axis=1)


@pytest.mark.parametrize(
    ("shape", "windowed"),
    [
        ("oscillator", False),
        ("exponential", True),
        ("hold", True),
        ("hold", False),
        ("lag 5", True),
    ],
)
def test_smoothed_states_are_the_dense_conditional_means(shape, windowed):
    case = make_case(np.random.default_rng(5), shape, windowed=windowed, ticks=24)
    system, params, ticks = case.parts()
    found = smooth(system, params, ticks, windowed=case.windowed)
    gaussian = case.gaussian()
    states = state_vectors(case, gaussian)[:-1]
    flat = states.reshape(-1, states.shape[-1])
    expected, _ = condition(flat, case.rows(gaussian), case.variance, case.y)
    np.testing.assert_allclose(found, expected.reshape(states.shape[:2]), rtol=1e-7, atol=1e-9)


@cache
def noise_directions(shapes):
    """Every unit vector of the noise of a run, and no noise at all in front of them."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    directions = np.concatenate([np.zeros((1, sum(sizes))), np.eye(sum(sizes))])
    parts = np.split(directions, np.cumsum(sizes)[:-1], axis=1)
    return Noise(*(part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)))


def affine_in_noise(function, shapes):
    """What ``function`` makes of noise, as constant and weights: it is affine, so this is all."""
    values = jax.jit(jax.vmap(function))(noise_directions(shapes))
    flat = np.concatenate([np.asarray(v).reshape(len(v), -1) for v in values], axis=1).T
    return np.concatenate([flat[:, :1], flat[:, 1:] - flat[:, :1]], axis=1)


@pytest.mark.parametrize(
    ("shape", "windowed"),
    [("oscillator", True), ("exponential", False), ("hold", False), ("lag 2", True)],
)
def test_drawn_states_have_the_dense_conditional_moments(shape, windowed):
    """Draws are affine in standard normal noise: their moments are exact, without any sampling."""
    case = make_case(np.random.default_rng(6), shape, windowed=windowed, ticks=12)
    system, params, ticks = case.parts()
    draws = affine_in_noise(
        lambda noise: draw_states(system, params, ticks, noise, windowed=case.windowed),
        noise_shapes(system, params, ticks),
    )
    gaussian = case.gaussian()
    exact = state_vectors(case, gaussian)
    exact = np.concatenate([exact[:-1].reshape(-1, exact.shape[-1]), exact[-1]])
    mean, covariance = condition(exact, case.rows(gaussian), case.variance, case.y)
    found_mean, found_covariance = moments(draws)
    np.testing.assert_allclose(found_mean, mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(found_covariance, covariance, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    ("shape", "start"),
    [("lag 2", None), ("exponential", None), ("oscillator", None), ("hold", (0.2, 0.03, 0.8))],
)
def test_simulated_runs_have_the_dense_moments(shape, start):
    case = make_case(np.random.default_rng(7), shape, windowed=start is None, ticks=12)
    system, params, ticks = case.parts()
    given_start = None if start is None else jnp.array(start)

    def simulated(noise):
        states, rewards, end = simulate(system, params, ticks, noise, given_start)
        return states, end, rewards[case.last]

    runs = affine_in_noise(simulated, noise_shapes(system, params, ticks))
    gaussian = case.gaussian()
    if start is not None:  # from a given state: put there, and nothing uncertain about it
        nudges = np.zeros((12, 3))
        nudges[0] = np.array(start) - gaussian.states[0, :, 0]
        gaussian = case.gaussian(nudges=nudges)
        for affine in gaussian:
            affine[..., 1:3] = 0
    exact = state_vectors(case, gaussian)
    exact = np.concatenate([exact.reshape(-1, exact.shape[-1]), case.rows(gaussian)])
    mean, covariance = moments(exact)
    covariance[-len(case.y) :, -len(case.y) :] += np.diag(case.variance)
    found_mean, found_covariance = moments(runs)
    np.testing.assert_allclose(found_mean, mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found_covariance, covariance, rtol=1e-9, atol=1e-13)


def test_drawn_noise_is_standard_normal():
    case = make_case(np.random.default_rng(8), "hold", windowed=False, ticks=3)
    system, params, ticks = case.parts()
    assert noise_shapes(system, params, ticks) == ((2,), (3, 3), (3,))
    draw = jax.jit(jax.vmap(lambda key: draw_noise(system, params, ticks, key)))
    noise = draw(jax.random.split(jax.random.key(0), 5_000))
    numbers = np.concatenate([np.asarray(part).reshape(5_000, -1) for part in noise], axis=1)
    assert numbers.shape == (5_000, 14)
    for column in numbers.T:
        assert scipy.stats.kstest(column, "norm").pvalue > 1e-4
    for power in (1, 2):  # independent of each other, to six standard errors
        correlation = np.corrcoef(numbers.T**power)
        assert np.abs(correlation - np.eye(14)).max() < 6 / sqrt(5_000)


def test_row_means_run_through_each_row():
    case = make_case(np.random.default_rng(9), "oscillator", windowed=True, ticks=20)
    system, params, ticks = case.parts()
    states = np.random.default_rng(10).normal(size=(20, 3))
    found = row_means(system, params, ticks, jnp.asarray(states))
    expected = [states[a : b + 1, 0].mean() for a, b in zip(case.first, case.last, strict=True)]
    np.testing.assert_allclose(found[case.last], expected, rtol=1e-13)


# --- invariances ----------------------------------------------------------------------------------


@pytest.mark.parametrize("windowed", [False, True], ids=["single", "windows"])
@pytest.mark.parametrize("shape", FEW)
def test_masked_rows_are_dropped_rows(shape, windowed):
    case = make_case(np.random.default_rng(11), shape, windowed=windowed, ticks=45)
    assert len(case.y) > 3
    program, data = case.bound()
    masked = data.ticks._replace(
        observed=data.ticks.observed.copy(), reward=data.ticks.reward.copy()
    )
    at = case.last[1] - len(case.rates)  # padding comes first
    masked.observed[at] = 0
    hidden = float(compiled(program)(case.draws, data._replace(ticks=masked)))
    kept = np.arange(len(case.y)) != 1
    dropped = case._replace(
        first=case.first[kept],
        last=case.last[kept],
        y=case.y[kept],
        generations=case.generations[kept],
    )
    assert hidden == pytest.approx(dropped.dense_log_likelihood(), rel=1e-8, abs=1e-8)
    masked.reward[masked.observed == 0] = -1e6
    assert float(compiled(program)(case.draws, data._replace(ticks=masked))) == hidden


def test_a_missing_reward_is_a_missing_row():
    rng = np.random.default_rng(12)
    table = pd.DataFrame({"step": np.arange(1, 31), "reward": rng.uniform(size=30), "updates": 1})
    gone = rng.random(30) < 0.4
    gone[0] = gone[-1] = False
    blank = table.assign(reward=table["reward"].where(~gone))
    short = blank[~gone].assign(updates=lambda t: t["step"].diff().fillna(1))
    given_settings = {"momentum": 0.9, "max_steps": 50}
    program = program_of("hold", False)
    draws = make_case(rng, "hold", windowed=False).draws
    values = []
    for kind in (blank, short):
        found, _, data = bind(program.model, Run.from_table(kind, **given_settings))
        values.append(float(compiled(found)(draws, data)))
    assert values[0] == pytest.approx(values[1], rel=1e-13)
    full, _, data = bind(program.model, Run.from_table(table, **given_settings))
    assert abs(float(compiled(full)(draws, data)) - values[0]) > 1e-3


@pytest.mark.parametrize("shape", FEW)
def test_padding_changes_nothing(shape):
    case = make_case(np.random.default_rng(13), shape, windowed=True, ticks=40)
    program, data = case.bound(padded=None)
    bare = float(compiled(program)(case.draws, data))
    for count in (40, 64, 96):
        _, data = case.bound(padded=count)
        assert len(data.ticks.reward) == count
        assert float(compiled(program)(case.draws, data)) == pytest.approx(bare, rel=1e-12)


@pytest.mark.parametrize("shape", ["oscillator", "hold"])
def test_vmap_is_a_loop(shape):
    cases = [
        make_case(np.random.default_rng([14, k]), shape, windowed=True, ticks=20 + k)
        for k in range(4)
    ]
    bound = [case.bound() for case in cases]
    program = bound[0][0]
    assert all(other is program for other, _ in bound)

    def stacked(trees):
        return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)

    draws, data = stacked([case.draws for case in cases]), stacked([data for _, data in bound])
    together = jax.jit(jax.vmap(jax.value_and_grad(density_of(program))))(draws, data)
    for k, (case, (_, data)) in enumerate(zip(cases, bound, strict=True)):
        assert float(together[0][k]) == pytest.approx(
            float(compiled(program)(case.draws, data)), rel=1e-11
        )
        for name, slope in compiled_gradient(program)(case.draws, data).items():
            assert float(together[1][name][k]) == pytest.approx(float(slope), rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("shape", FEW)
def test_jit_changes_nothing(shape):
    case = make_case(np.random.default_rng(15), shape, windowed=True, ticks=6)
    program, data = case.bound()
    with jax.disable_jit():
        interpreted = float(density_of(program)(case.draws, case.bound(padded=None)[1]))
    assert interpreted == pytest.approx(float(compiled(program)(case.draws, data)), rel=1e-12)


@pytest.mark.parametrize("ticks", [1, 2])
@pytest.mark.parametrize("shape", FEW)
def test_the_shortest_runs(shape, ticks):
    case = make_case(np.random.default_rng(16), shape, windowed=False, ticks=ticks)
    assert len(case.y) == ticks
    program, data = case.bound()
    found = float(compiled(program)(case.draws, data))
    assert found == pytest.approx(case.dense_log_likelihood(), rel=1e-8)
    gradient = compiled_gradient(program)(case.draws, data)
    assert all(np.isfinite(slope) for slope in gradient.values())


def test_smoothing_a_single_row():
    case = make_case(np.random.default_rng(16), "hold", windowed=False, ticks=1)
    system, params, ticks = case.parts()
    gaussian = case.gaussian()
    expected, _ = condition(gaussian.states[0], case.rows(gaussian), case.variance, case.y)
    found = smooth(system, params, ticks, windowed=False)
    np.testing.assert_allclose(found, expected[None], rtol=1e-9, atol=1e-12)


def test_a_hundred_thousand_rows():
    count = 100_000
    rng = np.random.default_rng(17)
    case = Case(
        "exponential",
        0.9,
        1,
        np.linspace(1, 0.5, count)[:, None],
        np.arange(count),
        np.arange(count),
        rng.uniform(size=count),
        np.ones(count),
        {"relaxation_time": 300.0, "fluctuation_sd": 0.05, "drift_sd": 0.1, "sampling_sd": 0.08},
        planned=2.0 * count,
    )
    program, data = case.bound(padded=None)
    found = float(compiled(program)(case.draws, data))
    gradient = compiled_gradient(program)(case.draws, data)
    assert all(np.isfinite(slope) for slope in gradient.values())

    # The textbook filter once more, for two states and in plain numbers.
    pull = 1 / 300
    shock = 0.05**2 * pull * (2 - pull)
    drift, noise = 0.1**2 / case.planned, 0.08**2
    x, p = case.location + case.spread * INITIAL[0], case.location + case.spread * PLATEAU[0]
    xx, xp, pp = (case.spread * INITIAL[1]) ** 2, 0.0, (case.spread * PLATEAU[1]) ** 2
    total = 0.0
    for y, rate in zip(case.y.tolist(), case.rates[:, 0].tolist(), strict=True):
        variance = xx + noise
        off = y - x
        total -= 0.5 * (log(2 * pi * variance) + off * off / variance)
        x, p = x + xx * off / variance, p + xp * off / variance
        xx, xp, pp = xx - xx * xx / variance, xp - xx * xp / variance, pp - xp * xp / variance
        f = pull * rate
        x = (1 - f) * x + f * p
        xx, xp = (1 - f) ** 2 * xx + 2 * f * (1 - f) * xp + f * f * pp, (1 - f) * xp + f * pp
        xx, pp = xx + shock * rate * rate, pp + drift
    assert found == pytest.approx(total, rel=1e-9)


# --- precision ------------------------------------------------------------------------------------

ELSEWHERE = """
import importlib, json, pkgutil, sys
import jax
before = dict(jax.config.values)
import bayes_grpo
for module in pkgutil.iter_modules(bayes_grpo.__path__):
    if module.name != "__main__":
        importlib.import_module("bayes_grpo." + module.name)
changed = [name for name, value in jax.config.values.items() if before.get(name) != value]

import numpy as np
import pandas as pd
from bayes_grpo.model import bind, load_model
from bayes_grpo.precision import float64
from bayes_grpo.run import Run
from bayes_grpo.statespace import log_likelihood

rng = np.random.default_rng(0)
run = Run.from_table(pd.DataFrame({"step": range(1, 51), "reward": rng.uniform(size=50)}))
program, _, data = bind(load_model("oscillator"), run)
draws = {name: 0.1 for name in program.sampled}
values, outside = [], []
for x64 in (False, True):
    jax.config.update("jax_enable_x64", x64)
    with float64():
        density = jax.jit(
            lambda draws, data: log_likelihood(
                program.system, program.params(draws, data), data.ticks, windowed=program.windowed
            )
        )(draws, data)
    values.append([str(density.dtype), float(density).hex()])
    outside.append(str(jax.numpy.zeros(()).dtype))
print(json.dumps({"changed": changed, "values": values, "outside": outside}))
"""


def test_precision_is_the_packages_own_affair():
    """In a fresh process: imports leave JAX's settings alone, and they do not change the result."""
    import json

    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["changed"] == []
    assert told["values"][0] == told["values"][1]
    assert told["values"][0][0] == "float64"
    assert told["outside"] == ["float32", "float64"]
