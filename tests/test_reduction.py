"""Exact thresholds and rates against brute force: the recursion run update by update."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bayes_grpo as bg
from bayes_grpo import reduction, spectrum
from bayes_grpo import trajectory as curves

PATTERNS = ["hold", "constant"]
MOMENTA = st.one_of(st.just(0.0), st.floats(0, 0.995))

# THEORY of the project, section 4: momentum, updates, Lambda with the digits that it gives.
DIVERGENCE = [
    *[("hold", 0.0, n, 2.0, 1e-9) for n in (1, 2, 16, 1000)],
    *[("hold", 0.9, n, x, 0.05) for n, x in ((2, 4.2), (4, 2.9), (8, 2.7), (16, 3.0), (64, 2.8))],
    ("hold", 0.9, 10**9, 2.0, 1e-6),
    ("constant", 0.0, 1, 1.0, 1e-9),
    ("constant", 0.0, 10**9, np.pi / 2, 1e-6),
    # 1.02498: the table rounds it up.
    *[("constant", 0.9, n, x, 0.006) for n, x in ((2, 1.03), (4, 1.06), (8, 1.12))],
    *[("constant", 0.9, n, x, 0.005) for n, x in ((16, 1.20), (64, 1.40))],
    ("constant", 0.9, 10**9, np.pi / 2, 1e-6),
]
ONSET = [
    *[("hold", 0.0, n, 1.0, 1e-9) for n in (1, 2, 16, 1000)],
    *[("hold", 0.9, n, x, 0.005) for n, x in ((2, 0.05), (4, 0.10), (8, 0.18), (16, 0.29))],
    ("hold", 0.9, 64, 0.53, 0.005),
    ("hold", 0.9, 10**12, 1.0, 1e-5),
    ("constant", 0.0, 1, 0.25, 1e-9),
    ("constant", 0.0, 10**9, np.exp(-1), 1e-6),
    *[("constant", 0.9, n, x, 0.006) for n, x in ((2, 0.05), (4, 0.09), (8, 0.15), (16, 0.21))],
    ("constant", 0.9, 64, 0.32, 0.005),
    ("constant", 0.9, 10**12, np.exp(-1), 1e-6),
]


def path(momentum, updates, interval, lag, convention, rate, curvature):
    """Deviation from the plateau, as an optimizer makes it: start at rest, deviation 1."""
    weight = 1 - momentum if convention == "ema" else 1.0
    rewards, average = [1.0], 0.0
    for t in range(updates):
        seen = t - t % interval if lag == "hold" else max(t - interval, 0)
        average = momentum * average + weight * -curvature * rewards[seen]
        rewards.append(rewards[-1] + rate * average)
    return np.array(rewards)


def roots(momentum, pull, n, lag):
    """Eigenvalues of the recursion over one refresh (hold) or one update (constant)."""
    if lag == "constant":
        polynomial = np.zeros(max(n, 1) + 2)
        polynomial[:3] = 1, -(1 + momentum), momentum
        polynomial[n + 1 if n else 1] += pull
        return np.roots(polynomial)
    update = np.array([[1, momentum, -pull], [0, momentum, -pull], [0, 0, 1.0]])
    refresh = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0.0]])
    return np.linalg.eigvals((np.linalg.matrix_power(update, n) @ refresh)[:2, :2])


@pytest.mark.parametrize(("lag", "momentum", "n", "expected", "digits"), DIVERGENCE)
def test_table_of_divergence(lag, momentum, n, expected, digits):
    assert abs(bg.reduction.divergence_staleness(momentum, n, lag) - expected) <= digits


@pytest.mark.parametrize(("lag", "momentum", "n", "expected", "digits"), ONSET)
def test_table_of_oscillation(lag, momentum, n, expected, digits):
    assert abs(bg.reduction.oscillation_staleness(momentum, n, lag) - expected) <= digits


@pytest.mark.parametrize("convention", ["ema", "heavy_ball"])
@pytest.mark.parametrize("lag", PATTERNS)
@pytest.mark.parametrize(("momentum", "n"), [(0.0, 1), (0.0, 3), (0.9, 1), (0.9, 4), (0.95, 24)])
def test_the_recursion_diverges_beyond_the_threshold(momentum, n, lag, convention):
    bound = reduction.divergence_staleness(momentum, n, lag)
    rate, size = 3e-6, []
    for factor in (0.98, 1.02):
        scale = 1 - momentum if convention == "heavy_ball" else 1.0
        curvature = factor * bound * scale / (rate * n)
        assert reduction.staleness(rate, curvature, momentum, n, convention) == pytest.approx(
            factor * bound
        )
        pull = reduction.stiffness(rate, curvature, momentum, convention)
        growth = reduction.slowest_mode(momentum, pull, n, lag).growth_rate
        window = max(400, int(10 / abs(growth)))
        rewards = path(momentum, 3 * window, n, lag, convention, rate, curvature)
        sizes = [np.abs(part).max() for part in np.split(rewards[1:], 3)]
        size.append(np.log(sizes[2] / sizes[1]) / window)
        assert size[-1] == pytest.approx(growth, rel=0.1)
    assert size[0] < 0 < size[1]


@pytest.mark.parametrize("convention", ["ema", "heavy_ball"])
@pytest.mark.parametrize("lag", PATTERNS)
@pytest.mark.parametrize(("momentum", "n"), [(0.0, 1), (0.0, 3), (0.9, 1), (0.9, 4), (0.95, 24)])
def test_the_recursion_overshoots_beyond_the_onset(momentum, n, lag, convention):
    onset = reduction.oscillation_staleness(momentum, n, lag)
    crossed = []
    for factor in (0.98, 1.02):
        scale = 1 - momentum if convention == "heavy_ball" else 1.0
        rewards = path(
            momentum, 3000, n, lag, convention, 1e-6, factor * onset * scale / (1e-6 * n)
        )
        crossed.append(bool((rewards[np.abs(rewards) > 1e-280] < 0).any()))
    assert crossed == [False, True]


@given(
    momentum=MOMENTA,
    n=st.integers(0, 40),
    lag=st.sampled_from(PATTERNS),
    log_pull=st.floats(-7, 2),
)
def test_modes_are_the_eigenvalues(momentum, n, lag, log_pull):
    n, pull = max(n, 1 if lag == "hold" else 0), np.exp(log_pull)
    values = roots(momentum, pull, n, lag)
    largest = np.abs(values).max()
    span = n if lag == "hold" else 1
    mode = reduction.slowest_mode(momentum, pull, n, lag)
    # Near a double root eigenvalues are good to the square root of the rounding error only.
    assert mode.spectral_radius**span == pytest.approx(largest, rel=1e-5, abs=1e-6)
    dominant = [z for z in values if abs(z) >= largest * (1 - 1e-5)]
    angles = np.abs(np.angle(dominant)) / span
    assert np.abs(angles - mode.frequency).min() < 2e-3 or largest < 1e-6


@given(
    momentum=MOMENTA,
    n=st.integers(0, 40),
    lag=st.sampled_from(PATTERNS),
    factor=st.sampled_from([0.999, 1.001]),
)
def test_thresholds_are_where_the_eigenvalues_turn(momentum, n, lag, factor):
    n = max(n, 1 if lag == "hold" else 0)
    values = roots(momentum, factor * reduction.divergence_pull(momentum, n, lag), n, lag)
    assert (np.abs(values).max() > 1) == (factor > 1)
    onset = reduction.oscillation_pull(momentum, n, lag)
    values = roots(momentum, factor * onset, n, lag)
    leading = values[np.argmax(np.abs(values))]
    swings = abs(leading.imag) > 1e-9 or leading.real < -1e-9
    assert swings == (factor > 1)
    assert reduction.is_oscillatory(momentum, factor * onset, n, lag) == (factor > 1)


@pytest.mark.parametrize("lag", PATTERNS)
@pytest.mark.parametrize("momentum", [0.0, 1e-8, 0.3, 0.9, 0.99, 0.99999])
def test_longer_intervals_and_more_pull_are_never_safer(momentum, lag):
    n = np.unique(np.geomspace(1, 1e6, 500).round())
    for threshold in (reduction.oscillation_pull, reduction.divergence_pull):
        assert (np.diff(threshold(momentum, n, lag)) < 0).all()
    onset, end = (f(momentum, n, lag) for f in (reduction.oscillation_pull,
                                                reduction.divergence_pull))  # fmt: skip
    assert (onset < end).all()
    assert reduction.spectral_radius(momentum, end[:5], n[:5], lag) == pytest.approx(1, abs=1e-5)


def test_grids_broadcast_and_keep_scalars():
    momentum, n = np.linspace(0, 0.99, 30)[:, None], np.arange(1, 41)
    for f in (reduction.divergence_staleness, reduction.oscillation_staleness):
        for lag in PATTERNS:
            grid = f(momentum, n, lag)
            assert grid.shape == (30, 40)
            assert grid[7, 11] == pytest.approx(f(momentum[7, 0], 12, lag), rel=1e-12)
            assert np.ndim(f(0.9, 4, lag)) == 0
    mode = reduction.slowest_mode(momentum, 0.01, np.arange(4), "constant")
    assert mode.frequency.shape == (30, 4)


@pytest.mark.parametrize("lag", [0, 1, 2, 5])
def test_a_constant_lag_is_the_setting_lag(lag):
    """``refresh_interval`` of the constant pattern is ``lag`` of the shipped closed form."""
    part = curves.constant_lag(lag)
    params = {"momentum": 0.8, "pull": jnp.asarray(0.03)}
    tick = type("Tick", (), {"learning_rate": 1.0})
    columns = [
        [float(x) for x in part.advance(params, tick, tuple(unit))] for unit in np.eye(part.size)
    ]
    matrix = np.delete(np.delete(np.array(columns).T, 2, 0), 2, 1)
    largest = np.abs(np.linalg.eigvals(matrix)).max()
    assert reduction.spectral_radius(0.8, 0.03, lag, "constant") == pytest.approx(largest, abs=1e-6)


def test_no_lag_is_the_same_under_both_patterns():
    momentum = np.linspace(0, 0.99, 20)
    for f in (reduction.divergence_pull, reduction.oscillation_pull):
        np.testing.assert_allclose(f(momentum, 0, "constant"), f(momentum, 1, "hold"), rtol=1e-12)
    np.testing.assert_allclose(reduction.divergence_pull(momentum, 1), 2 * (1 + momentum))
    np.testing.assert_allclose(
        reduction.exact_damping_ratio(momentum, 0.01),
        np.asarray(curves.damping_ratio(momentum, 0.01)),
        rtol=1e-5,
    )


@given(
    momentum=MOMENTA, n=st.integers(1, 30), tau=st.floats(5, 500), split=st.floats(1e-8, 1e3)
)  # fmt: skip
def test_learning_rate_and_curvature_count_only_as_their_product(momentum, n, tau, split):
    for convention in ("ema", "heavy_ball"):
        values = [
            reduction.staleness(rate, 1 / (tau * rate), momentum, n, convention)
            for rate in (1.0, split)
        ]
        assert values[0] == pytest.approx(values[1], rel=1e-9)
    ema = reduction.staleness(1.0, 1 / tau, momentum, n, "ema")
    heavy = reduction.staleness(1.0, (1 - momentum) / tau, momentum, n, "heavy_ball")
    assert ema == pytest.approx(heavy, rel=1e-9)
    assert ema == pytest.approx(n / tau, rel=1e-9)


@pytest.mark.parametrize("lag", PATTERNS)
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 3, 10])
def test_logged_deviations_add_up_to_the_relaxation_time_without_lag(momentum, n, lag):
    """Why a curve fitted to the rewards of stale rollouts shows it, whatever the lag."""
    tau, updates = 60.0, 6000
    rewards = path(momentum, updates, n, lag, "ema", 1.0, 1 / tau)
    t = np.arange(updates)
    seen = rewards[t - t % n if lag == "hold" else np.maximum(t - n, 0)]
    assert seen.sum() == pytest.approx(tau, rel=1e-9)


# --- leading order -------------------------------------------------------------------------------


def test_mass_damping_and_stiffness_expand_the_characteristic_function():
    momentum, pull, n = 0.9, 0.002, 5
    k = reduction.stiffness(1e-6, 2000.0, momentum, "heavy_ball")
    assert k == pytest.approx(pull)
    assert reduction.stiffness(1e-6, 2000.0, momentum) == pytest.approx(0.1 * pull)
    gamma, m = reduction.damping(momentum, k, n), reduction.mass(momentum, k, n)
    errors = []
    for s in (-0.002, -0.001):
        exact = np.expm1(s) + momentum * np.expm1(-s) + k * np.exp(-n * s)
        errors.append(exact - (m * s**2 + gamma * s + k))
    assert errors[0] / errors[1] == pytest.approx(8, rel=0.05)  # third order is all that is left


def test_second_order_mass_matches_the_exact_fast_rate():
    momentum, pull = 0.9, 0.0005
    fast = -np.log(np.roots([1, -(1 + momentum - pull), momentum]).min())
    rates = {
        order: np.roots([reduction.mass(momentum, pull, 0, order),
                         -reduction.damping(momentum, pull, 0), pull]).max()
        for order in (1, 2)
    }  # fmt: skip
    assert rates[2] == pytest.approx(fast, rel=2e-3)
    assert 0.04 < rates[1] / fast - 1 < 0.16


def test_the_rule_is_zero_damping():
    momentum, n = 0.9, 8
    pull = (1 - momentum) / n  # staleness 1
    assert reduction.damping(momentum, pull, n) == pytest.approx(0, abs=1e-15)
    m = reduction.mass(momentum, pull, n)
    assert reduction.damping_ratio(m, -0.1, pull) < 0 < reduction.damping_ratio(m, 0.1, pull)


def test_periods_agree_for_small_steps():
    momentum = 0.999
    pull = 1e-4
    m, gamma = reduction.mass(momentum, pull, 0), reduction.damping(momentum, pull, 0)
    exact = reduction.slowest_mode(momentum, pull).period
    assert reduction.period(m, gamma, pull) == pytest.approx(exact, rel=1e-3)
    assert reduction.oscillation_period(momentum, pull) == pytest.approx(exact, rel=1e-9)
    assert reduction.period(m, 1.0, pull) == np.inf


def test_settling_time_and_period_of_a_mode():
    mode = spectrum.Mode(np.array([-0.1, 0.1]), np.array([0.0, 0.5]))
    np.testing.assert_allclose(mode.settling_time, [30, np.inf])
    np.testing.assert_allclose(mode.period, [np.inf, 4 * np.pi])
    # Without momentum or lag the deviation falls by 1 - pull each update.
    assert reduction.slowest_mode(0.0, 0.05).settling_time == pytest.approx(-3 / np.log(0.95))


# --- names and refusals --------------------------------------------------------------------------


@pytest.mark.parametrize("lag", PATTERNS)
def test_regimes(lag):
    onset, end = (f(0.9, 6, lag) for f in (reduction.oscillation_pull, reduction.divergence_pull))
    names = [reduction.regime(0.9, a, 6, lag) for a in (onset / 2, onset, onset * 2, end * 1.01)]
    assert names == ["overdamped", "critical", "oscillatory", "unstable"]
    assert list(reduction.regime(0.9, np.array([onset / 2, end * 2]), 6, lag)) == [
        "overdamped",
        "unstable",
    ]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: reduction.divergence_staleness(1.0, 4), "momentum is 1.0"),
        (lambda: reduction.divergence_staleness(-0.1, 4), "momentum is -0.1"),
        (lambda: reduction.oscillation_staleness(0.9, 0, "constant"), "refresh_interval is 0"),
        (lambda: reduction.oscillation_staleness(0.9, 2.5), "refresh_interval is 2.5"),
        (lambda: reduction.divergence_pull(0.9, 0, "hold"), "refresh_interval is 0"),
        (lambda: reduction.divergence_staleness(0.9, 4, "both"), "lag is 'both'"),
        (lambda: reduction.regime(0.9, -1.0), "pull is -1.0"),
        (lambda: reduction.mass(0.9, 0.1, 4, order=3), "order is 3"),
        (lambda: reduction.stiffness(1.0, 1.0, 0.9, "adam"), "convention is 'adam'"),
    ],
)
def test_refusals(call, says):
    with pytest.raises(bg.InputError, match=says):
        call()
