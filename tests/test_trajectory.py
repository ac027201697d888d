"""The mean curves against closed forms, exact critical points and brute force."""

from functools import cache
from itertools import pairwise
from math import exp, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from bayes_grpo.mean_curves import MEAN_CURVES, Recipe
from bayes_grpo.statespace import Ticks
from bayes_grpo.trajectory import (
    EXPONENTIAL,
    HOLD_AND_REFRESH,
    OSCILLATOR,
    block_responses,
    closed_form,
    constant_lag,
    damping_ratio,
    momentum_and_pull,
    stationary_variance,
)

pytestmark = pytest.mark.usefixtures("strict_float64")

INITIAL, PLATEAU = 0.2, 0.9


def clock(rates, momentum=0.0, trajectory=OSCILLATOR):
    """Ticks without data from learning rates of shape (ticks, updates per tick)."""
    rates = np.asarray(rates, dtype=float)
    count = len(rates)
    return Ticks(
        learning_rate=jnp.asarray(rates.mean(axis=1)),
        root_time=jnp.full(count, 0.1),
        reward=jnp.zeros(count),
        observed=jnp.zeros(count),
        share=jnp.ones(count),
        keep=jnp.zeros(count),
        row_variance=jnp.ones(count),
        elapsed=jnp.asarray(np.cumsum(rates.mean(axis=1)) - rates.mean(axis=1)),
        response={
            name: jnp.asarray(values)
            for name, values in trajectory.responses(rates, momentum).items()
        },
    )


def constants(**more):
    levels = {"initial_reward": INITIAL, "initial_reward_sd": 0.0, "plateau": PLATEAU}
    return {**levels, "plateau_sd": 0.0, "updates_per_tick": 1.0, "optimizer_momentum": 0.0, **more}


def mean_path(trajectory, params, ticks, start=None):
    """States before each tick without any noise, and what the sampler's reward is there."""
    params = trajectory.derive(params)
    start = trajectory.start(params)[0] if start is None else start
    start = tuple(jnp.asarray(value, dtype=float) for value in start)

    def step(x, tick):
        seen = jnp.asarray(trajectory.observe(params, tick, x), dtype=float)
        return tuple(trajectory.advance(params, tick, x)), (jnp.stack(x), seen)

    return lax.scan(step, start, ticks)[1]


@cache
def compiled_curve(trajectory):
    def rewards(params, ticks):
        return mean_path(trajectory, params, ticks)[0][:, 0]

    return jax.jit(rewards)


def curve(trajectory, ticks, **params):
    return np.asarray(compiled_curve(trajectory)(constants(**params), ticks))


# --- continuous closed forms (THEORY section 2) ---------------------------------------------------


def closed_curve(t, m, gamma, k):
    """m R'' + gamma R' + k (R - R*) = 0 from rest: the three cases as they are written down."""
    discriminant = gamma**2 - 4 * m * k
    if abs(discriminant) < 1e-12 * gamma**2:
        r = gamma / (2 * m)
        left = (1 + r * t) * np.exp(-r * t)
    elif discriminant > 0:
        fast = (gamma + sqrt(discriminant)) / (2 * m)
        slow = (gamma - sqrt(discriminant)) / (2 * m)
        left = (fast * np.exp(-slow * t) - slow * np.exp(-fast * t)) / (fast - slow)
    else:
        w = sqrt(k / m - gamma**2 / (4 * m**2))
        decay = gamma / (2 * m)
        left = np.exp(-decay * t) * (np.cos(w * t) + decay / w * np.sin(w * t))
    return PLATEAU - (PLATEAU - INITIAL) * left


@pytest.mark.parametrize("damping", [0.15, 0.6, 1.0, 3.0])
def test_oscillator_tends_to_the_closed_form(damping):
    """First order: halving the step halves the largest error."""
    tau, span = 1.0, 4.0
    # With unit mass: tau = gamma / k and damping = gamma / (2 sqrt(k)).
    gamma = 4 * damping**2 / tau
    k = gamma / tau
    errors = []
    for steps in (1600, 3200, 6400):
        h = span / steps
        ticks = clock(np.ones((steps, 1)))
        found = curve(OSCILLATOR, ticks, relaxation_time=tau / h, damping_ratio=damping)
        errors.append(np.abs(found - closed_curve(h * np.arange(steps), 1.0, gamma, k)).max())
    for coarse, fine in pairwise(errors):
        assert np.log2(coarse / fine) == pytest.approx(1, abs=0.03), errors
    assert errors[-1] < 1e-3


@pytest.mark.parametrize(("momentum", "pull"), [(0.9, 0.0005), (0.9, 0.002), (0.99, 2e-5)])
def test_rates_of_the_second_order_mass(momentum, pull):
    """THEORY section 1: m = (1 + mu) / 2 gives both rates to three digits, m = mu does not."""
    roots = step_roots(HOLD_AND_REFRESH, momentum, (1 - momentum) / pull)
    slow, fast = np.sort(-np.log(np.real(roots)))

    def rates(m):
        root = sqrt((1 - momentum) ** 2 - 4 * m * pull)
        return (1 - momentum - root) / (2 * m), (1 - momentum + root) / (2 * m)

    assert rates((1 + momentum) / 2) == pytest.approx((slow, fast), rel=2e-3)
    assert rates(momentum)[1] > (1 + 0.5 * (1 - momentum)) * fast


def test_exponential_tends_to_the_exponential():
    tau, span, errors = 1.0, 4.0, []
    for steps in (100, 200, 400):
        h = span / steps
        found = curve(EXPONENTIAL, clock(np.ones((steps, 1))), relaxation_time=tau / h)
        exact = PLATEAU - (PLATEAU - INITIAL) * np.exp(-h * np.arange(steps) / tau)
        errors.append(np.abs(found - exact).max())
    assert errors[1] / errors[2] == pytest.approx(2, abs=0.05)
    assert errors[2] < 0.002


def test_exponential_is_exactly_geometric():
    found = curve(EXPONENTIAL, clock(np.ones((50, 1))), relaxation_time=7.0)
    exact = PLATEAU - (PLATEAU - INITIAL) * (1 - 1 / 7) ** np.arange(50)
    np.testing.assert_allclose(found, exact, rtol=1e-13)


# --- the discrete recursion exactly, through the critical point -----------------------------------


def exact_left(momentum, pull, count):
    """What is left of the gap after t steps, from the roots of z^2 - (1 + mu - a) z + mu."""
    t = np.arange(count)
    middle = (1 + momentum - pull) / 2
    quarter = middle**2 - momentum
    if quarter == 0:
        z = middle
        return z**t * (1 + t * (1 - pull - z) / z)
    z1, z2 = middle + np.emath.sqrt(quarter), middle - np.emath.sqrt(quarter)
    first = 1 - pull
    return np.real(((first - z2) * z1**t - (first - z1) * z2**t) / (z1 - z2))


@pytest.mark.parametrize("tau", [3.0, 40.0])
@pytest.mark.parametrize("relative", [0.3, 0.9, 0.999, 1.001, 1.1, 4.0])
def test_oscillator_is_the_exact_discrete_solution(tau, relative):
    critical = 1 / sqrt(1 - 1 / tau)
    damping = relative * critical
    root = tau / (tau + 2 * damping**2)
    left = exact_left(root**2, (1 - root**2) / tau, 120)
    found = curve(OSCILLATOR, clock(np.ones((120, 1))), relaxation_time=tau, damping_ratio=damping)
    np.testing.assert_allclose(found, PLATEAU - (PLATEAU - INITIAL) * left, rtol=1e-9, atol=1e-12)
    overshoots = np.any(found > PLATEAU + 1e-9)
    assert not (overshoots and relative > 1)
    assert overshoots or relative > 0.3 or tau > 3


@pytest.mark.parametrize("tau", [3.0, 40.0])
def test_no_kink_at_the_critical_point(tau):
    critical = 1 / sqrt(1 - 1 / tau)
    ticks = clock(np.ones((60, 1)))

    def rewards(damping):
        params = constants(relaxation_time=jnp.asarray(tau), damping_ratio=damping)
        return mean_path(OSCILLATOR, params, ticks)[0][:, 0]

    both = jax.jit(lambda d: (rewards(d), jax.jacfwd(rewards)(d), jax.jacrev(rewards)(d)))
    at, slope, slope_reverse = (np.asarray(part) for part in both(jnp.asarray(critical)))
    np.testing.assert_allclose(slope, slope_reverse, rtol=1e-9, atol=1e-12)
    z = tau / (tau + 2 * critical**2)
    left = z ** np.arange(60.0) * (1 + np.arange(60) * (1 - (1 - z**2) / tau - z) / z)
    np.testing.assert_allclose(at, PLATEAU - (PLATEAU - INITIAL) * left, rtol=1e-10)

    def exact(damping):
        root = tau / (tau + 2 * damping**2)
        return PLATEAU - (PLATEAU - INITIAL) * exact_left(root**2, (1 - root**2) / tau, 60)

    for sign in (-1, 1):
        h = 1e-4 * sign
        one_sided = (4 * exact(critical + h) - exact(critical + 2 * h) - 3 * at) / (2 * h)
        np.testing.assert_allclose(slope, one_sided, atol=1e-6)
        near = 1e-7 * sign
        beside, slope_beside, _ = (np.asarray(part) for part in both(jnp.asarray(critical + near)))
        np.testing.assert_allclose(beside, at + near * slope, rtol=1e-12)
        np.testing.assert_allclose(slope_beside, slope, atol=1e-5)


@given(st.floats(0, 0.9999))
def test_critical_pull(momentum):
    pull = (1 - sqrt(momentum)) ** 2
    # The roots of z^2 - (1 + mu - a) z + mu meet.
    assert (1 + momentum - pull) ** 2 == pytest.approx(4 * momentum, rel=1e-12, abs=1e-14)
    assert float(damping_ratio(momentum, pull)) == pytest.approx(1, rel=1e-12)
    for factor, oscillates in ((0.99, False), (1.01, True)):
        ratio = float(damping_ratio(momentum, factor * pull))
        assert (ratio < 1) == oscillates
        if momentum > 1e-3:  # without any memory the roots are 0 and 1 - a: real
            assert ((1 + momentum - factor * pull) ** 2 < 4 * momentum) == oscillates


def test_critical_point_at_the_usual_momentum():
    """THEORY section 2: mu = .9 is overdamped iff the relaxation time exceeds 38 updates."""
    momentum = 0.9
    tau = (1 - momentum) / (1 - sqrt(momentum)) ** 2
    assert tau == pytest.approx(38, abs=0.1)
    assert float(damping_ratio(momentum, (1 - momentum) / tau)) == pytest.approx(1, rel=1e-12)


@given(st.floats(0.51, 1e5), st.floats(0.02, 50))
def test_momentum_and_pull_round_trip(tau, damping):
    momentum, pull = (float(x) for x in momentum_and_pull(tau, damping))
    assert 0 < momentum < 1
    assert (1 - momentum) / pull == pytest.approx(tau, rel=1e-12)
    ratio = float(damping_ratio(momentum, pull))
    rounding = 1e-15 / (1 - momentum)  # of 1 - sqrt(momentum)
    assert 1 / ratio**2 == pytest.approx(1 / damping**2 + 1 / tau, rel=1e-12 + rounding)


@given(st.floats(5, 1e4), st.floats(0.05, 20))
def test_damping_ratio_decides_oscillation(tau, damping):
    momentum, pull = (float(x) for x in momentum_and_pull(tau, damping))
    roots = np.roots([1, -(1 + momentum - pull), momentum])
    ratio = float(damping_ratio(momentum, pull))
    if abs(ratio - 1) > 1e-4:
        assert (ratio < 1) == (np.abs(roots.imag).max() > 1e-9)
    assert np.abs(roots).max() < 1


# --- stationary variance --------------------------------------------------------------------------


@given(st.floats(0, 0.995), st.floats(0.001, 0.99))
def test_stationary_variance_solves_the_lyapunov_equation(momentum, part):
    pull = part * 2 * (1 + momentum)  # stable below that
    a = np.array([[1 - pull, momentum], [-pull, momentum]])
    exact = scipy.linalg.solve_discrete_lyapunov(a, np.ones((2, 2)))[0, 0]
    assert float(stationary_variance(momentum, pull)) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(("momentum", "pull"), [(0.0, 0.05), (0.6, 0.4), (0.9, 0.02)])
def test_stationary_variance_of_a_long_simulation(momentum, pull):
    count = 1_000_000
    shocks = np.random.default_rng(0).normal(size=count)
    # R[t+1] = (1 + mu - a) R[t] - mu R[t-1] + w[t]
    path = scipy.signal.lfilter([1.0], [1, -(1 + momentum - pull), momentum], shocks)[2000:]
    blocks = (path[: len(path) // 500 * 500] ** 2).reshape(500, -1).mean(axis=1)
    error = blocks.std() / sqrt(500)
    assert error < 0.02 * blocks.mean()
    exact = float(stationary_variance(momentum, pull))
    assert abs(blocks.mean() - exact) < 5 * error


def test_stationary_variance_tends_to_the_continuous_one():
    """Var = s^2 / (2 gamma k) as momentum and pull tend to those of a small step."""
    for momentum, pull, tolerance in ((0.9, 1e-3, 0.06), (0.99, 1e-5, 0.006)):
        continuous = 1 / (2 * (1 - momentum) * pull)
        assert float(stationary_variance(momentum, pull)) == pytest.approx(
            continuous, rel=tolerance
        )


# --- blocks of updates that share a sampler -------------------------------------------------------


def brute_block(rates, momentum):
    """One block, update by update: (displacement, end velocity) per unit of every input."""
    updates = len(rates)
    inputs = np.eye(2 + updates)  # velocity before, constant force, a shock for every update
    velocity, moved = inputs[0], np.zeros(2 + updates)
    for u in range(updates):
        velocity = momentum * velocity + rates[u] * (inputs[1] + inputs[2 + u])
        moved = moved + velocity
    return moved, velocity


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12),
    st.floats(0, 0.99),
)
def test_block_responses_are_the_updates_one_by_one(rates, momentum):
    rates = np.array(rates)
    found = block_responses(rates[None], momentum)
    moved, velocity = brute_block(rates, momentum)
    assert {values.shape for values in found.values()} == {(1,)}
    found = {name: values[0] for name, values in found.items()}
    for name, exact in {
        "coasted": moved[0],
        "velocity_kept": velocity[0],
        "reward_push": moved[1],
        "velocity_push": velocity[1],
    }.items():
        assert found[name] == pytest.approx(exact, rel=1e-12, abs=1e-300), name
    factor = np.array(
        [[found["noise_reward"], 0], [found["noise_shared"], found["noise_velocity"]]]
    )
    shocks = np.array([moved[2:], velocity[2:]])
    exact = shocks @ shocks.T
    scale = np.sqrt(np.outer(np.diag(exact), np.diag(exact)))
    np.testing.assert_allclose(factor @ factor.T, exact, rtol=1e-12, atol=1e-14 * scale.max())


@given(st.integers(1, 64), st.floats(0, 0.99), st.floats(0.01, 2))
def test_block_map_at_a_constant_rate(n, momentum, staleness):
    """THEORY section 4: [[1 - a d, b], [-a c, mu^n]] on (R - R*, v)."""
    tau = n / staleness
    a = (1 - momentum) / tau
    b = momentum * (1 - momentum**n) / (1 - momentum)
    c = (1 - momentum**n) / (1 - momentum)
    d = (n - b) / (1 - momentum)
    ticks = clock(np.ones((1, n)), momentum, HOLD_AND_REFRESH)
    tick = jax.tree.map(lambda values: values[0], ticks)
    params = HOLD_AND_REFRESH.derive(constants(relaxation_time=tau, optimizer_momentum=momentum))
    columns = [
        HOLD_AND_REFRESH.advance(params, tick, (PLATEAU + gap, velocity, PLATEAU))
        for gap, velocity in ((1.0, 0.0), (0.0, 1.0))
    ]
    found = np.array([[float(x[0]) - PLATEAU, float(x[1])] for x in columns]).T
    exact = np.array([[1 - a * d, b], [-a * c, momentum**n]])
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-12)


def step_roots(trajectory, momentum, tau, refresh=1):
    """Eigenvalues of one tick as a linear map, the plateau left out."""
    ticks = clock(np.ones((1, refresh)), momentum, trajectory)
    tick = jax.tree.map(lambda values: float(values[0]), ticks)
    params = trajectory.derive(constants(relaxation_time=tau, optimizer_momentum=momentum))
    unit = np.eye(trajectory.size)
    a = np.array([trajectory.advance(params, tick, tuple(x)) for x in unit], dtype=float).T
    kept = np.arange(trajectory.size) != trajectory.plateau_index
    return np.linalg.eigvals(a[np.ix_(kept, kept)])


DIVERGENCE = [  # THEORY section 4 at mu = .9: updates of delay, Lambda, digits that it has there
    *[("constant", n, bound, 0.006) for n, bound in ((2, 1.03), (4, 1.06), (8, 1.12))],
    *[("constant", n, bound, 0.006) for n, bound in ((16, 1.20), (64, 1.40))],
    *[
        ("hold", n, bound, 0.06)
        for n, bound in ((2, 4.2), (4, 2.9), (8, 2.7), (16, 3.0), (64, 2.8))
    ],
]


@pytest.mark.parametrize(("pattern", "n", "bound", "digits"), DIVERGENCE)
def test_divergence(pattern, n, bound, digits):
    trajectory, refresh = (constant_lag(n), 1) if pattern == "constant" else (HOLD_AND_REFRESH, n)
    below, above = (
        np.abs(step_roots(trajectory, 0.9, n / (bound + off), refresh)).max()
        for off in (-digits, digits)
    )
    assert below < 1 < above


ONSET = [  # of oscillation, same section
    *[("constant", n, bound) for n, bound in ((2, 0.05), (4, 0.09), (8, 0.15), (16, 0.21))],
    *[("constant", 64, 0.32), ("hold", 2, 0.05), ("hold", 4, 0.10), ("hold", 8, 0.18)],
    *[("hold", 16, 0.29), ("hold", 64, 0.53)],
]


@pytest.mark.parametrize(("pattern", "n", "bound"), ONSET)
def test_onset_of_oscillation(pattern, n, bound):
    trajectory, refresh = (constant_lag(n), 1) if pattern == "constant" else (HOLD_AND_REFRESH, n)
    turning = []
    for off in (-0.006, 0.006):
        roots = step_roots(trajectory, 0.9, n / (bound + off), refresh)
        turning.append(abs(roots[np.argmax(np.abs(roots))].imag) > 1e-9)
    assert turning == [False, True]


# --- limits of one trajectory in another ----------------------------------------------------------


def test_strong_damping_is_the_exponential():
    rates = np.concatenate([np.linspace(0, 1, 20), np.linspace(1, 0, 80)])[:, None]
    ticks = clock(rates)
    slow = curve(EXPONENTIAL, ticks, relaxation_time=9.0)
    errors = [
        np.abs(curve(OSCILLATOR, ticks, relaxation_time=9.0, damping_ratio=d) - slow).max()
        for d in (30.0, 300.0, 3000.0)
    ]
    assert errors[0] > 100 * errors[1] * 0.5  # momentum is of the order of damping^-4
    assert errors[2] < 1e-9


def test_no_lag_is_a_refresh_at_every_update():
    rng = np.random.default_rng(0)
    rates = rng.uniform(0, 1, (40, 1))
    lag = constant_lag(0)
    given_params = constants(relaxation_time=6.0, optimizer_momentum=0.9)
    start = (0.3, -0.02, 0.8)
    paths = []
    for trajectory in (HOLD_AND_REFRESH, lag):
        ticks = clock(rates, 0.9, trajectory)
        paths.append(mean_path(trajectory, given_params, ticks, start))
        params = trajectory.derive(given_params)
        tick = jax.tree.map(lambda values: values[7], ticks)
        loadings = np.array(trajectory.shocks(params, tick), dtype=float)
        np.testing.assert_allclose(
            loadings.T @ loadings,
            rates[7, 0] ** 2 * np.outer([1, 1, 0], [1, 1, 0]),
            rtol=1e-12,
            atol=1e-15,
        )
    for hold, pipelined in zip(*paths, strict=True):
        np.testing.assert_allclose(hold, pipelined, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("lag", [0, 1, 2, 3, 8])
def test_constant_lag_update_by_update(lag):
    rng = np.random.default_rng(lag)
    rates, momentum, tau = rng.uniform(0, 1, 60), 0.8, 12.0
    rewards, velocity, seen = [INITIAL], 0.0, []
    for u in range(60):
        stale = rewards[max(u - lag, 0)]
        seen.append(stale)
        velocity = momentum * velocity - rates[u] * (1 - momentum) / tau * (stale - PLATEAU)
        rewards.append(rewards[-1] + velocity)
    trajectory = constant_lag(lag)
    params = constants(relaxation_time=tau, optimizer_momentum=momentum)
    states, observed = mean_path(trajectory, params, clock(rates[:, None]))
    assert states.shape == (60, trajectory.size)
    np.testing.assert_allclose(states[:, 0], rewards[:-1], rtol=1e-12)
    np.testing.assert_allclose(observed, seen, rtol=1e-12)


def test_hold_and_refresh_update_by_update():
    rng = np.random.default_rng(9)
    rates, momentum, tau, n = rng.uniform(0, 1, (20, 5)), 0.9, 12.0, 5
    reward, velocity, path = INITIAL, 0.0, []
    for u in range(100):
        if u % n == 0:
            stale = reward
            path.append((reward, velocity, PLATEAU))
        gap = stale - PLATEAU
        velocity = momentum * velocity - rates.ravel()[u] * (1 - momentum) / tau * gap
        reward += velocity
    ticks = clock(rates, momentum, HOLD_AND_REFRESH)
    params = constants(relaxation_time=tau, optimizer_momentum=momentum)
    states, observed = mean_path(HOLD_AND_REFRESH, params, ticks)
    np.testing.assert_allclose(states, path, rtol=1e-12)
    np.testing.assert_allclose(observed, states[:, 0], rtol=0)


@pytest.mark.parametrize("trajectory", [OSCILLATOR, EXPONENTIAL])
def test_a_longer_tick_is_a_shorter_relaxation(trajectory):
    """Relaxation time is in updates: twice of it in ticks of two updates is the same curve."""
    ticks = clock(np.linspace(1, 0, 30)[:, None])
    more = {} if trajectory is EXPONENTIAL else {"damping_ratio": 0.7}
    one = curve(trajectory, ticks, relaxation_time=8.0, **more)
    two = curve(trajectory, ticks, relaxation_time=16.0, updates_per_tick=2.0, **more)
    np.testing.assert_allclose(one, two, rtol=1e-14)
    assert np.ptp(one) > 0.3


def test_no_learning_rate_no_motion():
    ticks = clock(np.zeros((10, 4)), 0.9, HOLD_AND_REFRESH)
    params = constants(relaxation_time=6.0, optimizer_momentum=0.9, damping_ratio=0.5)
    for trajectory in (OSCILLATOR, EXPONENTIAL, HOLD_AND_REFRESH, constant_lag(3)):
        states, _ = mean_path(trajectory, params, ticks)
        np.testing.assert_array_equal(states[:, 0], INITIAL)


def test_closed_form_follows_the_lag_pattern():
    assert closed_form("hold", 0) is HOLD_AND_REFRESH
    lagging = MEAN_CURVES["closed_form"].build(Recipe("constant", 4))
    assert lagging.size == constant_lag(4).size == 6
    assert lagging.one_update_ticks
    assert not HOLD_AND_REFRESH.one_update_ticks


@pytest.mark.parametrize("lag", [1, 4])
def test_onset_of_oscillation_at_a_constant_lag(lag):
    """Without momentum a constant lag oscillates where a = lag^lag / (lag + 1)^(lag + 1)."""
    critical = lag**lag / (lag + 1) ** (lag + 1)
    for factor, oscillates in ((0.99, False), (1.01, True)):
        roots = step_roots(constant_lag(lag), 0.0, 1 / (factor * critical))
        leading = roots[np.argmax(np.abs(roots))]
        assert (abs(leading.imag) > 1e-6) == oscillates
    assert lag * critical == pytest.approx({1: 0.25, 4: 0.328}[lag], abs=0.001)
    assert lag * critical < exp(-1)
