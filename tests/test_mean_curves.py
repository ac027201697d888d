"""Mean curves without inertia: dense Gaussian algebra, schedules, forecasts, files.

The oracle writes every expected reward of a run as a constant plus a linear combination of
independent standard normal inputs, from the curve's formula and the decay of a disturbance; no
state is followed.
"""

import warnings
from functools import cache
from math import comb, e, log, pi, sqrt
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.linalg
from scipy.optimize import brentq

import bayes_grpo as bg
from bayes_grpo import shapes
from bayes_grpo.errors import ModelFileError
from bayes_grpo.mean_curves import MEAN_CURVES, MeanCurve, Recipe, shaped
from bayes_grpo.model import bind, load_model, parse_model, responses_of
from bayes_grpo.posterior import forecast_draws, levels_of_path
from bayes_grpo.run import Run
from bayes_grpo.simulate.generator import simulate_model
from bayes_grpo.statespace import (
    Noise,
    draw_noise,
    draw_states,
    filter_run,
    noise_shapes,
    row_means,
    simulate,
    smooth,
)
from bayes_grpo.timeline import build_timeline, future_ticks
from bayes_grpo.trajectory import EXPONENTIAL, no_responses

pytestmark = pytest.mark.usefixtures("strict_float64")

SHAPED = {  # trajectory: its own parameters, away from special values
    "power_law": {"decay_exponent": 1.3},
    "scalerl": {"steepness": 1.8},
    "logistic": {"initial_success": 0.07},
    "rate_or_fate": {"initial_success": 0.2},
    "rate_or_fate_noisy": {
        "initial_success": 0.2,
        "true_positive_rate": 0.9,
        "false_positive_rate": 0.1,
    },
    "success_amplification": {"initial_success": 0.05, "kl_weight": 2.5},
    "success_amplification_mirror": {"initial_success": 0.1, "kl_weight": 5.0},
}

OWN = {**SHAPED, "exponential": {}, "alignment": {"kl_weight": 1.4}, "local_level": {}}

PULLED = [name for name in OWN if name != "local_level"]

INITIAL, INITIAL_SD = 0.23, 0.11
PLATEAU, PLATEAU_SD = 0.81, 0.17
NOISE = {"fluctuation_sd": 0.06, "drift_sd": 0.21, "sampling_sd": 0.08}
SILENT = dict.fromkeys(NOISE, 0.0)
GROUP = 5

LEVELS = {
    "initial_reward": (INITIAL, INITIAL_SD),
    "plateau": (PLATEAU, PLATEAU_SD),
}


@cache
def model_of(trajectory):
    """A model whose priors are in natural units, so that a draw is the number itself."""
    curve = MEAN_CURVES[trajectory].build(Recipe())
    fluctuation = '["process", "drift"]' if curve.relaxes else '["drift"]'
    lines = [f'trajectory = "{trajectory}"', f"fluctuation = {fluctuation}"]
    lines += ['measurement = "white"', "[priors]"]
    for level in curve.levels:
        mean, sd = LEVELS[level]
        lines.append(f'{level} = {{ distribution = "Normal", mean = {mean}, sd = {sd} }}')
    others = [*curve.parameters, *NOISE]
    for name in others if curve.relaxes else ("drift_sd", "sampling_sd"):
        lines.append(f'{name} = {{ distribution = "HalfNormal", sd = 1 }}')
    return parse_model("\n".join(lines), trajectory, "natural.toml")


def draws_of(program, relaxation_time, own, noise):
    known = {"relaxation_time": relaxation_time, "initial_reward": INITIAL, **own, **noise}
    return {name: known[name] for name in program.sampled}


# --- oracle ---------------------------------------------------------------------------------------


class Log(NamedTuple):
    """A hand-made log and what its reader is to make of it."""

    table: pd.DataFrame
    settings: dict
    rates: np.ndarray  # of every tick
    first: np.ndarray  # tick of each rewarded row
    last: np.ndarray

    @property
    def run(self):
        return Run.from_table(self.table, **self.settings)

    @property
    def reward(self):
        return self.table["reward"].dropna().to_numpy()


def make_log(seed, *, windowed, refresh=1, rows=13):
    """Rows of one to four ticks, some without a reward, under a warm-up and a decay."""
    rng = np.random.default_rng(seed)
    gaps = rng.integers(1, 5, rows)
    gaps[0] = max(1, int(np.median(gaps[1:])))
    done = np.cumsum(gaps)  # in ticks
    gaps[0] = done[0] = min(done[0], max(1, int(np.median(np.diff(done)))))
    done = np.cumsum(gaps)
    rate = 2e-6 * np.minimum(1, (1 + np.arange(rows)) / 4) * (1 - 0.05 * np.arange(rows))
    reward = rng.uniform(0.1, 0.9, rows)
    reward[[2, 7]] = np.nan
    table = pd.DataFrame({"step": refresh * done, "reward": reward, "learning_rate": rate})
    settings = {
        "refresh_interval": refresh,
        "row_average": "window" if windowed else "single",
        "max_steps": 90 * refresh,
        "group_size": GROUP,
        "reward_bounds": (-0.2, 1.3),
    }
    updates = 1 + np.arange(refresh * done[-1])
    rates = np.interp(updates, refresh * done, rate / rate.max()).reshape(-1, refresh).mean(axis=1)
    last = done - 1
    first = done - gaps if windowed else last
    kept = np.isfinite(reward)
    return Log(table, settings, rates, first[kept], last[kept])


def implied_plateau(initial, weight, group_size, low, high):
    """Where force and pull balance, every number of successes of a group in turn."""
    reference = (initial - low) / (high - low)

    def excess(p):
        force = sum(
            comb(group_size, k)
            * p**k
            * (1 - p) ** (group_size - k)
            * sqrt(k / group_size * (1 - k / group_size))
            for k in range(group_size + 1)
        )
        return force - weight * (p - reference)

    return low + (high - low) * brentq(excess, reference, 1 - 1e-12, xtol=1e-15)


def left_of_the_way(trajectory, time, own):
    """Formulas of the sources where there is one; the others are tested as shapes."""
    if trajectory == "power_law":
        b = own["decay_exponent"]
        return (1 + time * (e ** (1 / b) - 1)) ** -b
    if trajectory == "scalerl":
        return 1 / (1 + (e - 1) * time ** own["steepness"])
    if trajectory == "logistic":
        u0 = own["initial_success"]
        wrong = (1 - u0) / e
        delta = log((1 - wrong) / wrong) - log(u0 / (1 - u0))
        return 1 / (1 + u0 / (1 - u0) * np.exp(delta * time)) / (1 - u0)
    return np.asarray(getattr(shapes, trajectory)(jnp.asarray(time), *own.values()))


def decay(rates, pull):
    """What is left before tick t of a disturbance made before tick s, and 0 for t < s."""
    count = len(rates)
    left = np.zeros((count + 1, count + 1))
    for s in range(count + 1):
        left[s:, s] = np.cumprod(np.append(1.0, 1 - pull * rates[s:]))
    return left


def gaussian(trajectory, rates, refresh, planned, relaxation_time, own, noise, bounds=(-0.2, 1.3)):
    """Expected reward and plateau before each tick: constant first, then the weights of inputs."""
    count = len(rates)
    step = noise["drift_sd"] * sqrt(refresh / planned)
    came = np.tril(np.ones((count, count)), -1)  # a step of tick s is there from tick s + 1 on
    one = np.ones(count)
    if trajectory == "local_level":
        walk = np.column_stack([INITIAL * one, INITIAL_SD * one, step * came])
        return walk, walk
    pull = refresh / relaxation_time
    left = decay(rates, pull)
    after = left[:count, 1:]
    shock = noise["fluctuation_sd"] * sqrt(1 - (1 - pull) ** 2)  # of an autoregression's sd
    random = np.hstack([shock * rates * after, step * (came - after * came)])
    steps = np.hstack([0 * came, step * came])
    if trajectory == "alignment":
        level = implied_plateau(INITIAL, own["kl_weight"], GROUP, *bounds)
        mean = level - (level - INITIAL) * left[:count, 0]
        return np.column_stack([mean, random]), np.column_stack([level * one, steps])
    if trajectory == "exponential":
        curve = left[:count, 0]
    else:
        time = pull * (np.cumsum(rates) - rates)
        curve = left_of_the_way(trajectory, time, own)
    mean = PLATEAU - (PLATEAU - INITIAL) * curve
    return (
        np.column_stack([mean, INITIAL_SD * curve, PLATEAU_SD * (1 - curve), random]),
        np.column_stack([PLATEAU * one, 0 * one, PLATEAU_SD * one, steps]),
    )


class Case(NamedTuple):
    """A model bound to a log, and the oracle's word on both."""

    program: object
    data: object
    timeline: object
    draws: dict
    y: np.ndarray
    reward: np.ndarray  # affine in the inputs, (ticks, 1 + inputs)
    plateau: np.ndarray
    rows: np.ndarray  # which ticks a row averages, (rows, ticks)
    variance: np.ndarray  # sampling noise of each row

    def parts(self):
        """What the functions of the state space take, without padding."""
        ticks = jax.tree.map(jnp.asarray, self.timeline.ticks)
        params = self.program.params(self.draws, self.data)
        return self.program.system, params, self.program.timed(params, ticks)


def make_case(trajectory, seed, *, windowed, refresh=1, relaxation_time=9.0):
    made = make_log(seed, windowed=windowed, refresh=refresh)
    program, timeline, data = bind(model_of(trajectory), made.run)
    own = OWN[trajectory]
    reward, plateau = gaussian(
        trajectory, made.rates, refresh, 90 * refresh, refresh * relaxation_time, own, NOISE
    )
    rows = np.zeros((len(made.first), len(made.rates)))
    for row, (a, b) in zip(rows, zip(made.first, made.last, strict=True), strict=True):
        row[a : b + 1] = 1 / (b + 1 - a)
    variance = NOISE["sampling_sd"] ** 2 / (made.last + 1 - made.first)
    draws = draws_of(program, refresh * relaxation_time, own, NOISE)
    return Case(program, data, timeline, draws, made.reward, reward, plateau, rows, variance)


def log_normal_density(y, mean, covariance):
    factor = np.linalg.cholesky(covariance)
    z = scipy.linalg.solve_triangular(factor, y - mean, lower=True)
    return -0.5 * z @ z - np.log(np.diag(factor)).sum() - 0.5 * len(y) * log(2 * pi)


def condition(wanted, case):
    """Mean and covariance of affine variables given the rewards of the log."""
    rows = case.rows @ case.reward
    covariance = rows[:, 1:] @ rows[:, 1:].T + np.diag(case.variance)
    gain = np.linalg.solve(covariance, rows[:, 1:] @ wanted[:, 1:].T).T
    left = wanted - gain @ rows
    spread = left[:, 1:] @ left[:, 1:].T + gain * case.variance @ gain.T
    return left[:, 0] + gain @ case.y, spread


# --- likelihood, smoother, simulation -------------------------------------------------------------


@cache
def compiled(program):
    return jax.jit(program.log_likelihood)


@pytest.mark.parametrize("trajectory", OWN)
def test_log_likelihood_is_the_dense_normal_density(trajectory):
    kinds = [(True, 1), (True, 2)]
    if trajectory in ("power_law", "local_level", "alignment"):
        kinds += [(False, 1), (False, 4)]
    for seed, (windowed, refresh) in enumerate(kinds):
        case = make_case(trajectory, seed, windowed=windowed, refresh=refresh)
        rows = case.rows @ case.reward
        covariance = rows[:, 1:] @ rows[:, 1:].T + np.diag(case.variance)
        exact = log_normal_density(case.y, rows[:, 0], covariance)
        found = float(compiled(case.program)(case.draws, case.data))
        assert found == pytest.approx(exact, rel=1e-9), (windowed, refresh)


SOME = ["power_law", "alignment", "local_level"]


@pytest.mark.parametrize("trajectory", SOME)
def test_smoother_is_the_conditional_mean(trajectory):
    case = make_case(trajectory, 11, windowed=True)
    system, params, ticks = case.parts()
    states = np.asarray(
        jax.jit(lambda params, ticks: smooth(system, params, ticks, windowed=True))(params, ticks)
    )
    left = ticks.response.get("left")
    reward = states[:, 0] if left is None else states[:, 0] + np.asarray(left) * states[:, 2]
    np.testing.assert_allclose(reward, condition(case.reward, case)[0], rtol=1e-8)
    level = states[:, case.program.parts.plateau_index]
    np.testing.assert_allclose(level, condition(case.plateau, case)[0], rtol=1e-8)


def flat_noise(case, z):
    """Noise of a run from one vector of standard normal numbers."""
    system, params, ticks = case.parts()
    parts, begin = [], 0
    for shape in noise_shapes(system, params, ticks):
        size = int(np.prod(shape))
        parts.append(z[begin : begin + size].reshape(shape))
        begin += size
    return Noise(*parts)


def affine_in_noise(case, function):
    """Value at zero noise, and the covariance that unit noise gives."""
    system, params, ticks = case.parts()
    count = sum(int(np.prod(shape)) for shape in noise_shapes(system, params, ticks))
    zero = jnp.zeros(count)
    both = jax.jit(lambda z: (function(z), jax.jacfwd(function)(z)))
    value, weights = (np.asarray(part) for part in both(zero))
    return value, weights @ weights.T


@pytest.mark.parametrize("trajectory", SOME)
def test_simulation_has_the_moments_of_the_model(trajectory):
    case = make_case(trajectory, 12, windowed=True)
    system, params, ticks = case.parts()
    at = case.timeline.row_tick

    def rewards(z):
        return simulate(system, params, ticks, flat_noise(case, z))[1][at]

    mean, covariance = affine_in_noise(case, rewards)
    rows = case.rows @ case.reward
    np.testing.assert_allclose(mean, rows[:, 0], rtol=1e-9)
    exact = rows[:, 1:] @ rows[:, 1:].T + np.diag(case.variance)
    np.testing.assert_allclose(covariance, exact, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("trajectory", SOME)
def test_drawn_curves_are_draws_given_the_log(trajectory):
    case = make_case(trajectory, 13, windowed=True)
    system, params, ticks = case.parts()
    at = case.timeline.row_tick

    def latent(z):
        states, _ = draw_states(system, params, ticks, flat_noise(case, z), windowed=True)
        return row_means(system, params, ticks, states)[at]

    mean, covariance = affine_in_noise(case, latent)
    exact_mean, exact_covariance = condition(case.rows @ case.reward, case)
    np.testing.assert_allclose(mean, exact_mean, rtol=1e-8)
    np.testing.assert_allclose(covariance, exact_covariance, rtol=1e-6, atol=1e-11)


# --- a shape that is the exponential --------------------------------------------------------------


def geometric(time):
    """The product of 1 - pull times rate over the ticks before, read off the times."""
    return jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - jnp.diff(time))])


@pytest.fixture
def geometric_curve(monkeypatch):
    curve = shaped("geometric", geometric, ())
    monkeypatch.setitem(MEAN_CURVES, "geometric", MeanCurve(lambda recipe: curve))
    yield "geometric"
    model_of.cache_clear()


@pytest.mark.parametrize(("windowed", "refresh"), [(False, 1), (True, 3)])
def test_a_geometric_shape_is_the_exponential_model(geometric_curve, windowed, refresh):
    """By superposition: noise, drift, windows, missing rows and schedule make no difference."""
    run = make_log(21, windowed=windowed, refresh=refresh).run
    found = []
    for trajectory in ("exponential", geometric_curve):
        program, timeline, data = bind(model_of(trajectory), run)
        both = jax.jit(jax.value_and_grad(program.log_likelihood))
        for relaxation_time in (1.2 * refresh, 9.0 * refresh, 300.0 * refresh):
            draws = draws_of(program, relaxation_time, {}, NOISE)
            value, slopes = both(draws, data)
            found.append([float(value), *(float(slopes[name]) for name in sorted(slopes))])
        params = program.params(draws, data)
        ticks = program.timed(params, jax.tree.map(jnp.asarray, timeline.ticks))
        rows = filter_run(program.system, params, ticks, windowed=windowed)
        at = timeline.row_tick
        found.append([*rows.mean[at], *rows.variance[at]])
    for exponential, shape in zip(found[:4], found[4:], strict=True):
        np.testing.assert_allclose(shape, exponential, rtol=1e-8)


# --- schedules ------------------------------------------------------------------------------------


@cache
def compiled_rewards(program):
    """Expected rewards from known levels, with what process noise and drift add to them."""

    def rewards(draws, data):
        params = program.params(draws, data)
        ticks = program.timed(params, data.ticks)
        noise = draw_noise(program.system, params, ticks, jax.random.key(0))
        noise = noise._replace(start=jnp.zeros_like(noise.start))
        states, _, _ = simulate(program.system, params, ticks, noise)
        return row_means(program.system, params, ticks, states)

    return jax.jit(rewards)


def rewards_at(trajectory, rates, relaxation_time=40.0, **noise):
    """Expected rewards at given relative rates, one update a row."""
    step = np.arange(1, len(rates) + 1)
    reward = 0.5 + 0.4 * np.sin(step)
    table = pd.DataFrame({"step": step, "reward": reward, "learning_rate": 3e-6 * rates})
    run = Run.from_table(table, max_steps=len(rates), group_size=GROUP, reward_bounds=(0.0, 1.0))
    program, _, data = bind(model_of(trajectory), run)
    draws = draws_of(program, relaxation_time, OWN[trajectory], {**SILENT, **noise})
    return np.asarray(compiled_rewards(program)(draws, data))[-len(rates) :]


@pytest.mark.parametrize("trajectory", PULLED)
def test_half_the_rate_for_twice_as_long_is_the_same_curve(trajectory):
    """Only the accumulated rate counts; the steps of a recursion must be small for that."""
    exact = trajectory in SHAPED
    relaxation_time = 40.0 if exact else 800.0
    full = rewards_at(trajectory, np.ones(220), relaxation_time)
    halved = rewards_at(trajectory, np.append(np.ones(20), np.full(200, 0.5)), relaxation_time)
    np.testing.assert_allclose(halved[:20], full[:20], rtol=1e-12)
    np.testing.assert_allclose(halved[20::2], full[20:120], rtol=1e-12 if exact else 1e-4)
    assert abs(full[119] - full[60]) > 0.01  # there was something to see
    assert np.abs(halved[20:120] - full[20:120]).max() > 0.01


@pytest.mark.parametrize("trajectory", PULLED)
def test_the_mean_stands_still_while_the_rate_is_zero(trajectory):
    rates = np.concatenate([np.zeros(10), np.ones(30), np.zeros(20), np.ones(160)])
    path = rewards_at(trajectory, rates)
    np.testing.assert_allclose(path[:11], INITIAL, rtol=1e-12)
    np.testing.assert_allclose(path[40:61], path[40], rtol=1e-12)
    assert path[40] > INITIAL + 0.05
    assert abs(path[69] - path[60]) > 1e-3
    # Neither does a random force move it, nor a plateau that drifts away.
    noisy = rewards_at(trajectory, rates, fluctuation_sd=0.1, drift_sd=0.5)
    np.testing.assert_allclose(noisy[40:61], noisy[40], rtol=1e-12)
    assert abs(noisy[40] - path[40]) > 1e-4


def test_a_random_walk_does_not_know_the_rate():
    rates = np.append(np.ones(10), np.zeros(210))
    walk = rewards_at("local_level", rates, drift_sd=0.5)
    assert np.all(np.diff(walk) != 0)
    np.testing.assert_array_equal(rewards_at("local_level", np.ones(220), drift_sd=0.5), walk)
    np.testing.assert_array_equal(rewards_at("local_level", rates), INITIAL)


# --- shipped models -------------------------------------------------------------------------------

SHIPPED = sorted(set(MEAN_CURVES) - {"local_level", "alignment"})


def mean_of(name, rows, own):
    """Expected rewards of a shipped model without any noise, one update a row."""
    model = load_model(name)
    values = {"initial_reward": INITIAL, "plateau": PLATEAU, "relaxation_time": 30.0, **own}
    known = {key: value for key, value in {**values, **SILENT}.items() if key in model.priors}
    made = simulate_model(model, known, n_rows=rows, reward_bounds=(0.0, 1.0))
    assert made.parameters["initial_reward"] == pytest.approx(INITIAL, rel=1e-12)
    return made.expected_reward


@pytest.mark.parametrize("name", SHIPPED)
def test_the_mean_goes_from_the_initial_reward_to_the_plateau(name):
    path = mean_of(name, 4000, {**OWN.get(name, {}), "damping_ratio": 2.0})
    assert path[0] == pytest.approx(INITIAL, rel=1e-12)
    left = (PLATEAU - path) / (PLATEAU - INITIAL)
    assert np.all(np.abs(left[-500:]) < 0.03)
    if name in SHAPED:
        assert left[30] == pytest.approx(1 / e, abs=1e-9)
        assert np.all(left[:30] > 1 / e)
    if name == "exponential":
        assert left[30] == pytest.approx((1 - 1 / 30) ** 30, rel=1e-10)


def test_alignment_goes_where_the_fixed_point_is():
    path = mean_of("alignment", 1500, OWN["alignment"])
    exact = implied_plateau(INITIAL, OWN["alignment"]["kl_weight"], 8, 0.0, 1.0)
    assert path[-1] == pytest.approx(exact, rel=1e-9)
    assert (exact - path[30]) / (exact - INITIAL) == pytest.approx((1 - 1 / 30) ** 30, rel=1e-9)


@pytest.mark.parametrize("group_size", [1, 2, 6])
def test_alignment_between_any_bounds(group_size):
    """A group of one, which teaches nothing, is taken as two."""
    table = pd.DataFrame({"step": np.arange(1, 21), "reward": np.linspace(-0.8, 2, 20)})
    run = Run.from_table(table, group_size=group_size, reward_bounds=(-1.0, 3.0))
    program, _, data = bind(model_of("alignment"), run)
    params = program.params(draws_of(program, 5.0, OWN["alignment"], NOISE), data)
    exact = implied_plateau(INITIAL, 1.4, max(2, group_size), -1.0, 3.0)
    assert float(params["plateau"]) == pytest.approx(exact, rel=1e-9)
    assert params["plateau_sd"] == 0.0


def test_alignment_keeps_a_reference_beyond_the_bounds_inside():
    """A draw of the first reward may lie anywhere: the plateau stays a reward, with a slope."""
    table = pd.DataFrame({"step": np.arange(1, 21), "reward": np.linspace(0.1, 0.9, 20)})
    program, _, data = bind(model_of("alignment"), Run.from_table(table, group_size=4))
    draws = draws_of(program, 5.0, OWN["alignment"], NOISE)
    slope = jax.jit(jax.grad(program.log_likelihood))
    for initial in (-3.0, 0.0, 1.0, 4.0):
        params = program.params({**draws, "initial_reward": initial}, data)
        assert 0 < float(params["plateau"]) < 1
        slopes = slope({**draws, "initial_reward": initial}, data)
        assert np.all(np.isfinite(list(slopes.values())))


def test_only_alignment_asks_for_the_group_size():
    """Runs that differ in a setting that a curve does not read share one compiled program."""
    table = pd.DataFrame({"step": np.arange(1, 21), "reward": np.linspace(0.1, 0.9, 20)})

    def program(trajectory, **settings):
        return bind(model_of(trajectory), Run.from_table(table, **settings))[0]

    for trajectory in OWN:
        same = program(trajectory, group_size=4) is program(trajectory, group_size=16)
        assert same == (trajectory != "alignment"), trajectory
        assert program(trajectory, group_size=4) is program(trajectory, group_size=4)


def test_process_noise_needs_a_plateau():
    text = load_model("local_level").text
    slip = text.replace('["drift"]', '["drift", "process"]')
    assert slip != text
    with pytest.raises(ModelFileError, match=r"walk\.toml: .*'process'.*'local_level'"):
        parse_model(slip, "walk", "walk.toml")


# --- forecasts ------------------------------------------------------------------------------------

RATES = {
    "constant": np.ones(60),
    "linear": np.linspace(1, 0.2, 60),
    "warm-up": np.minimum(np.arange(1, 61) / 10, np.linspace(1.1, 0.3, 60)),
    "to zero": np.clip(1 - np.arange(60) / 47, 0, None),
}


@pytest.mark.parametrize("schedule", RATES)
@pytest.mark.parametrize(("refresh", "per_step"), [(1, 1), (4, 2)])
def test_the_clock_of_a_forecast_is_that_of_a_longer_log(schedule, refresh, per_step):
    step = 2 * np.arange(1, 61)
    table = pd.DataFrame({"step": step, "reward": np.sin(step), "learning_rate": RATES[schedule]})
    given = {"refresh_interval": refresh, "updates_per_step": per_step, "max_steps": 150}
    responses = responses_of(EXPONENTIAL, 0.0)
    whole = build_timeline(Run.from_table(table, **given), responses)
    cut = build_timeline(Run.from_table(table.head(40), **given), responses)
    updates = whole.row_updates[40:]
    ticks, first, last = future_ticks(cut, responses, updates, 1, 1.0)
    begin = len(cut.ticks.reward)
    assert begin + len(ticks.elapsed) == len(whole.ticks.reward)
    for part in ("elapsed", "learning_rate", "root_time"):
        ahead = getattr(whole.ticks, part)[begin:]
        np.testing.assert_allclose(getattr(ticks, part), ahead, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(begin + last, whole.row_tick[40:])
    np.testing.assert_array_equal(first, last)
    assert ticks.elapsed[0] == pytest.approx(cut.ticks.elapsed[-1] + cut.ticks.learning_rate[-1])


@pytest.mark.parametrize("trajectory", OWN)
def test_a_forecast_goes_on_where_the_log_ended(trajectory):
    """Without noise the future is the rest of the curve, and the reward now its first point."""
    step = np.arange(1, 61)
    table = pd.DataFrame({"step": step, "reward": np.sin(step), "learning_rate": RATES["linear"]})
    curves = []
    for rows in (60, 35):
        run = Run.from_table(table.head(rows), max_steps=60)
        program, timeline, data = bind(model_of(trajectory), run)
        if trajectory == "alignment":  # the bounds of the reward are guessed from the log
            data = data._replace(constants={**data.constants, "reward_low": 0, "reward_high": 1})
        draws = draws_of(program, 12.0, OWN[trajectory], SILENT)
        params = program.params(draws, data)
        ticks = program.timed(params, data.ticks)
        noise = Noise(*map(jnp.zeros, noise_shapes(program.system, params, ticks)))
        states, _, end = simulate(program.system, params, ticks, noise)
        curves.append(row_means(program.system, params, ticks, states)[-rows:])
    whole, cut = curves
    np.testing.assert_allclose(cut, whole[:35], rtol=1e-12)
    levels = levels_of_path(program, ticks, params, states, end)
    assert float(levels.reward_now) == pytest.approx(float(whole[35]), rel=1e-9)
    assert float(levels.initial_reward) == pytest.approx(INITIAL, rel=1e-12)
    future = future_ticks(timeline, lambda rates: no_responses(rates, 0.0), step[35:], 1, 1.0)
    several = {name: np.full(3, value) for name, value in draws.items()}
    ends = np.tile(np.asarray(end), (3, 1))
    mean, observed = forecast_draws(program, data, future, several, ends, 0)
    np.testing.assert_allclose(mean, np.tile(whole[35:], (3, 1)), rtol=1e-9)
    np.testing.assert_allclose(observed, mean, rtol=1e-12)


# --- on disk --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["power_law", "alignment", "local_level"])
def test_a_fit_survives_the_disk(name, tmp_path):
    rng = np.random.default_rng(3)
    rewards = 0.7 - 0.4 * np.exp(-np.arange(40) / 12) + 0.05 * rng.standard_normal(40)
    table = pd.DataFrame({"step": np.arange(1, 41), "reward": rewards})
    run = Run.from_table(table, name="curve", max_steps=60, group_size=GROUP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bg.ConvergenceWarning)
        fitted = bg.fit(run, name, chains=1, draws=20, tune=20, progress=False)
    loaded = bg.load_fit(fitted.save(tmp_path / "fit.nc"))
    assert loaded.model == fitted.model
    assert loaded.relaxes == fitted.relaxes == (name != "local_level")
    for group in ("posterior", "smoothed", "posterior_predictive"):
        assert loaded.idata[group].to_dataset().identical(fitted.idata[group].to_dataset())
    for kind in ("mean", "observed"):
        here, there = fitted.forecast(kind=kind), loaded.forecast(kind=kind)
        pd.testing.assert_frame_equal(there, here, check_exact=True)
        assert list(here["step"]) == list(range(41, 61))
        assert np.all(np.isfinite(here["mean"]))
    pd.testing.assert_frame_equal(loaded.summary(), fitted.summary(), check_exact=True)
