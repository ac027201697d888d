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
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_grpo.model import Data, bind, build_program, parse_model
from bayes_grpo.priors import RunScale
from bayes_grpo.run import Run
from bayes_grpo.statespace import (
    Ticks,
    draw_states,
    filter_run,
    log_likelihood,
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


# --- oracle --------------------------------------------------------------------------------------


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

    @property
    def windowed(self):
        return bool(np.any(self.first < self.last))

    @property
    def planned(self):
        return 2.5 * self.rates.size

    @property
    def scale(self):
        return RunScale(0.45, 0.2, self.planned, 1.0)

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
    return build_program(parse_model(text, "test", "test.toml"), pattern, lag, windowed)


def density_of(program):
    def density(draws, data):
        params = program.params(draws, data)
        return log_likelihood(program.system, params, data.ticks, windowed=program.windowed)

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
        at = min(at + width + int(rng.integers(0, 3)), ticks - 1)
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
    case = Case(
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
    # A window of one tick is no window; the program compiled for windows must serve it all the same.
    return case


def make_cases(shape, *, windowed, count, seed=0):
    rng = np.random.default_rng([seed, len(shape), windowed])
    return [make_case(rng, shape, windowed=windowed) for _ in range(count)]


# --- likelihood ----------------------------------------------------------------------------------


@pytest.mark.parametrize("windowed", [False, True], ids=["single", "windows"])
@pytest.mark.parametrize("shape", SHAPES)
def test_log_likelihood_is_the_dense_normal_density(shape, windowed):
    count = 8 if shape == "lag 16" else 25
    for case in make_cases(shape, windowed=windowed, count=count):
        program, data = case.bound()
        found = float(compiled(program)(case.draws, data))
        assert found == pytest.approx(case.dense_log_likelihood(), rel=1e-8, abs=1e-8), case
