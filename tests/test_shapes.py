"""The shapes of the mean curves against their sources: formulas, rate equations, recursions.

The clock of every source is its own; one relaxation time on it is where 1 / e of the way is left,
which the tests find by following the source, not by the formula of the shape.
"""

from functools import cache
from itertools import pairwise
from math import e, log, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import expit

from bayes_grpo import shapes

pytestmark = pytest.mark.usefixtures("strict_float64")

SUCCESS = st.floats(1e-3, 1 - 1e-3)

PARAMETERS = {  # of every shape, over what its prior reaches and beyond
    "exponential": (),
    "power_law": (st.floats(0.05, 1e4),),
    "scalerl": (st.floats(0.05, 100),),
    "logistic": (SUCCESS,),
    "rate_or_fate": (SUCCESS,),
    "rate_or_fate_noisy": (SUCCESS, st.floats(0.5, 0.9999), st.floats(1e-4, 0.5)),
    "success_amplification": (SUCCESS, st.floats(0.01, 100)),
    "success_amplification_mirror": (SUCCESS, st.floats(0.01, 100)),
}

EVERY_SHAPE = pytest.mark.parametrize("name", PARAMETERS)

TIMES = np.concatenate([[0.0, 1.0], np.geomspace(1e-9, 1e9, 73), np.linspace(0.05, 3, 60)])


@cache
def compiled(name):
    return jax.jit(getattr(shapes, name))


@cache
def compiled_gradients(name):
    """Derivative in the time and in every parameter, shape (times,) each."""
    arguments = tuple(range(1 + len(PARAMETERS[name])))
    slope = jax.grad(lambda t, *p: getattr(shapes, name)(t[None], *p)[0], argnums=arguments)
    return jax.jit(jax.vmap(slope, in_axes=(0, *(None for _ in arguments[1:]))))


def left_of(name, times, *parameters):
    return np.asarray(compiled(name)(jnp.asarray(times), *parameters))


# --- what all shapes have in common ---------------------------------------------------------------


@EVERY_SHAPE
@given(st.data())
@settings(max_examples=50)
def test_all_of_the_way_is_left_at_first_and_one_part_in_e_at_the_relaxation_time(name, data):
    parameters = data.draw(st.tuples(*PARAMETERS[name]))
    left = left_of(name, TIMES, *parameters)
    assert left[0] == pytest.approx(1, abs=1e-12)
    assert left[1] == pytest.approx(1 / e, abs=1e-10)
    assert np.all(np.isfinite(left))


RISING = {  # the penalty to the reference alone makes a curve that overshoots
    **{name: PARAMETERS[name] for name in PARAMETERS if name != "success_amplification"},
    # With a larger weight the recursion has not reached its end when it is cut off.
    "success_amplification_mirror": (SUCCESS, st.floats(0.01, 18)),
}


@pytest.mark.parametrize("name", RISING)
@given(st.data())
@settings(max_examples=50)
def test_without_a_reference_nothing_comes_back(name, data):
    parameters = data.draw(st.tuples(*RISING[name]))
    left = left_of(name, np.sort(TIMES), *parameters)
    assert np.all(np.diff(left) <= 1e-12)
    assert np.all(left >= -1e-9)


@EVERY_SHAPE
@given(st.data())
@settings(max_examples=50)
def test_every_derivative_is_a_number_at_every_time(name, data):
    """A sampler that meets one derivative that is none stops where it is."""
    parameters = data.draw(st.tuples(*PARAMETERS[name]))
    for slopes in compiled_gradients(name)(jnp.asarray(TIMES), *parameters):
        assert np.all(np.isfinite(slopes))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("exponential", ()),
        ("power_law", (1.5,)),
        ("scalerl", (1.7,)),
        ("logistic", (0.1,)),
        ("rate_or_fate", (0.2,)),
        ("rate_or_fate_noisy", (0.2, 0.9, 0.1)),
        ("success_amplification", (0.1, 3.0)),
        ("success_amplification_mirror", (0.1, 5.0)),
    ],
)
def test_derivatives_are_those_of_the_curve(name, parameters):
    times = np.array([0.037, 0.31, 0.83, 1.21, 2.17])  # between the kinks of tables and iterations
    found = compiled_gradients(name)(jnp.asarray(times), *parameters)
    for which, slopes in enumerate(found):
        low, high = [times, *parameters], [times, *parameters]
        step = 1e-6 * np.abs(low[which])
        low[which], high[which] = low[which] - step, high[which] + step
        between = (left_of(name, *high) - left_of(name, *low)) / (2 * step)
        np.testing.assert_allclose(slopes, between, rtol=1e-5, atol=1e-8)


# --- formulas -------------------------------------------------------------------------------------


@given(st.floats(0.1, 50))
def test_power_law(b):
    """R* - (R* - R0) (1 + t / s)^-b, with s where it has covered 63 % of the way."""
    low, high = 0.2, 0.9

    def reward(t, s):
        return high - (high - low) * (1 + t / s) ** -b

    relaxed = high - (high - low) / e
    s = brentq(lambda s: reward(1.0, s) - relaxed, 1e-6, 1e3, xtol=1e-15, rtol=1e-14)
    times = np.array([0, 0.01, 0.3, 1, 2, 7, 40, 1e3])
    found = high - (high - low) * left_of("power_law", times, b)
    np.testing.assert_allclose(found, reward(times, s), rtol=1e-8)


@given(st.floats(0.2, 10), st.floats(1, 1e6))
def test_scalerl(steepness, compute):
    """R - R0 = (A - R0) / (1 + (C_mid / C)^B), whatever the unit of compute."""
    low, high = 0.1, 0.7

    def reward(c):
        return low + (high - low) / (1 + (compute / c) ** steepness)

    relaxed = high - (high - low) / e
    unit = brentq(lambda c: reward(c) - relaxed, compute, 1e4 * compute, xtol=1e-9, rtol=1e-14)
    times = np.array([0.003, 0.1, 0.5, 1, 3, 20, 500])
    found = high - (high - low) * left_of("scalerl", times, steepness)
    np.testing.assert_allclose(found, reward(times * unit), rtol=1e-9)


def distances(name, parameters):
    """Largest distance from the exponential for each parameter."""
    times = np.linspace(0, 8, 200)
    return [np.abs(left_of(name, times, p) - np.exp(-times)).max() for p in parameters]


def test_a_steep_power_law_is_the_exponential():
    """To first order in 1 / b."""
    far = distances("power_law", [10.0, 100.0, 1e3, 1e4])
    for wide, close in pairwise(far[1:]):
        assert wide / close == pytest.approx(10, rel=0.02)
    assert 1e-6 < far[-1] < 1e-4


def test_logistic_growth_from_nearly_everything_is_the_exponential():
    """To first order in what there is to win."""
    far = distances("logistic", [1 - 1e-2, 1 - 1e-3, 1 - 1e-4])
    for wide, close in pairwise(far):
        assert wide / close == pytest.approx(10, rel=0.02)
    assert 1e-6 < far[-1] < 1e-4


# --- differential equations -----------------------------------------------------------------------


def followed(rate, success, times):
    """Share of the wrong mass p that is left, from ``d logit p / dt = rate(p)``.

    Its relaxation time is where the solution says that 1 / e of the mass is left.
    """

    def slope(_, y):
        return rate(expit(y))

    wrong = 1 - success
    start, goal = log(wrong / success), log(wrong / e / (1 - wrong / e))

    def relaxed(_, y):
        return y[0] - goal

    relaxed.terminal = True
    exactly = {"method": "LSODA", "rtol": 1e-10, "atol": 1e-11}
    unit = solve_ivp(slope, (0, 1e9), [start], events=relaxed, **exactly).t_events[0][0]
    at = np.asarray(times) * unit
    path = solve_ivp(slope, (0, at[-1]), [start], t_eval=at, **exactly)
    return expit(path.y[0]) / wrong


AT = np.concatenate([np.linspace(0, 4, 41), np.geomspace(5, 300, 15)])

START = pytest.mark.parametrize("success", [0.003, 0.1, 0.5, 0.8, 0.99])


@START
def test_logistic_growth(success):
    """u' = delta u (1 - u): the logit of the wrong mass 1 - u falls at a constant rate."""
    found = left_of("logistic", AT, success)
    np.testing.assert_allclose(found, followed(lambda p: -1.0 + 0 * p, success, AT), atol=1e-7)


@START
def test_rate_or_fate(success):
    """u' = eta [u (1 - u)]^(3/2)."""
    exact = followed(lambda p: -np.sqrt(p * (1 - p)), success, AT)
    found = left_of("rate_or_fate", AT, success)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-9)


@START
def test_rate_or_fate_is_linear_in_the_signed_odds(success):
    """Phi = (2u - 1) / sqrt(u (1 - u)) grows at one rate through all three phases."""
    times = np.linspace(0, 10, 101)
    u = 1 - (1 - success) * left_of("rate_or_fate", times, success)
    phi = (2 * u - 1) / np.sqrt(u * (1 - u))
    assert phi[-1] > phi[0]
    np.testing.assert_allclose(np.diff(phi), (phi[-1] - phi[0]) / 100, rtol=1e-6)


NOISY = pytest.mark.parametrize(
    "verifier", [(0.9, 0.1), (0.99, 0.01), (0.6, 0.5), (0.999, 0.3), (0.5, 0.001)]
)


@START
@NOISY
def test_rate_or_fate_with_a_verifier_that_errs(success, verifier):
    """p' = -eta (J / sigma(p)) p^2 (1 - p)^2, sigma the sd of the verdict; J is only a unit."""
    passed, slipped = verifier

    def rate(p):
        said = passed * (1 - p) + slipped * p
        return -(passed - slipped) * p * (1 - p) / np.sqrt(said * (1 - said))

    found = left_of("rate_or_fate_noisy", AT, success, passed, slipped)
    # Straight lines between the points of its table: good to 1e-4 of the way, 1/300 of the tail.
    exact = followed(rate, success, AT)
    np.testing.assert_allclose(found, exact, atol=1e-4)
    np.testing.assert_allclose(found, exact, rtol=5e-3)


@START
def test_a_verifier_that_never_errs_is_the_clean_one(success):
    clean = left_of("rate_or_fate", AT, success)
    found = left_of("rate_or_fate_noisy", AT, success, 1.0, 0.0)
    np.testing.assert_allclose(found, clean, atol=1e-4)
    nearly = left_of("rate_or_fate_noisy", AT, success, 1 - 1e-9, 1e-9)
    np.testing.assert_allclose(nearly, clean, atol=1e-4)


def test_a_verifier_that_errs_has_a_tail_of_its_own():
    """Few right answers fail with a clean verifier: its end is 1 / t^2, with errors 1 / t."""
    times = np.geomspace(300, 3000, 20)

    def power(name, *parameters):
        left = left_of(name, times, 0.3, *parameters)
        return np.polyfit(np.log(times), np.log(left), 1)[0]

    assert power("rate_or_fate") == pytest.approx(-2, abs=0.01)
    for verifier in ((0.9, 0.1), (0.7, 0.2), (0.95, 0.0)):
        assert power("rate_or_fate_noisy", *verifier) == pytest.approx(-1, abs=0.02), verifier


@pytest.mark.parametrize("name", ["logistic", "rate_or_fate", "rate_or_fate_noisy"])
def test_a_late_start_is_the_same_curve_from_there_on(name):
    """These have no memory: a curve begun halfway is the old one, on a clock of its own."""
    verifier = (0.9, 0.1) if name == "rate_or_fate_noisy" else ()
    times = np.linspace(0, 6, 301)
    left = left_of(name, times, 0.1, *verifier)
    halfway = 1 - 0.9 * left[50]  # success there
    rest = left[50:] / left[50]
    unit = np.interp(-1 / e, -rest, times[50:] - times[50])
    again = left_of(name, (times[50:] - times[50]) / unit, halfway, *verifier)
    np.testing.assert_allclose(again, rest, atol=2e-3)


# --- recursions -----------------------------------------------------------------------------------


def logit(p):
    return log(p / (1 - p))


def amplified(start, kl_weight, count, mirror=False):
    """Success of every iteration, as the source has it, followed as its logit."""
    path = [logit(start)]
    for _ in range(count):
        variance = expit(path[-1]) * expit(-path[-1])
        push = 1 / (kl_weight * sqrt(variance + 1e-4))
        path.append((path[-1] if mirror else path[0]) + push)
    return expit(np.array(path))


def on_its_clock(left):
    """Iterations of one relaxation time: where the broken line first has 1 / e left."""
    after = int(np.argmax(left <= 1 / e))
    part = (left[after - 1] - 1 / e) / (left[after - 1] - left[after])
    return after - 1 + part


def at_rest(start, kl_weight):
    """Fixed point of the recursion with a reference, the first above the reference."""

    def excess(p):
        return logit(p) - logit(start) - 1 / (kl_weight * sqrt(p * (1 - p) + 1e-4))

    grid = np.linspace(start, 1 - 1e-6, 20_000)
    first = next(i for i, p in enumerate(grid) if excess(p) > 0)
    return brentq(excess, grid[first - 1], grid[first], xtol=1e-15, rtol=1e-14)


@pytest.mark.parametrize(
    ("start", "kl_weight"),
    [(0.05, 4.0), (0.05, 1.5), (0.2, 3.0), (0.3, 6.0), (0.5, 3.0), (0.1, 40)],
)
def test_success_amplification(start, kl_weight):
    """Every whole iteration is the source's, and what is left counts from its fixed point."""
    end = at_rest(start, kl_weight)
    path = amplified(start, kl_weight, 12)
    left = (end - path) / (end - start)
    found = left_of("success_amplification", np.arange(13) / on_its_clock(left), start, kl_weight)
    np.testing.assert_allclose(found, left, atol=1e-6)


def test_success_amplification_overshoots_and_swings():
    """The variance grows up to one half: the next push is weaker than that which led there."""
    left = left_of("success_amplification", np.linspace(0, 200, 4000), 0.02, 1.0)
    assert left.min() < -0.05
    signs = np.sign(left[np.abs(left) > 1e-3])
    assert np.count_nonzero(np.diff(signs)) >= 3
    assert np.abs(left[-100:]).max() < 0.02


def test_a_two_cycle_ends_in_its_middle():
    start, kl_weight = 0.003, 2.0
    path = amplified(start, kl_weight, 400)
    high, low = path[-1], path[-2]
    assert abs(high - low) > 0.1  # the recursion has not come to rest
    middle = (high + low) / 2
    left = (middle - path[:65]) / (middle - start)
    found = left_of("success_amplification", np.arange(65) / on_its_clock(left), start, kl_weight)
    np.testing.assert_allclose(found, left, atol=1e-3)
    late = left_of("success_amplification", np.array([1e3, 1e6]), start, kl_weight)
    assert np.all(np.isfinite(late))
    # After the last iteration it stays where it is, on one of the two sides.
    assert late[0] == late[1]
    assert abs(late[0]) < 1.5


@given(st.floats(0.011, 0.98), st.floats(2, 30))
def test_two_cycles_need_a_small_weight_or_a_small_start(start, kl_weight):
    """The lower bound of the model file, for a reference that solves more than one in a hundred."""
    path = amplified(start, kl_weight, 1500)
    swings = np.diff(path[-3:])
    assert np.all(np.abs(swings) < 1e-3)


@pytest.mark.parametrize(
    ("start", "kl_weight"), [(0.01, 5.0), (0.1, 5.0), (0.1, 12.0), (0.4, 8.0), (0.8, 20.0)]
)
def test_success_amplification_by_mirror_descent(start, kl_weight):
    """The policy before stands in the place of the reference: every iteration goes up, to 1."""
    path = amplified(start, kl_weight, 40, mirror=True)[:20]
    left = (1 - path) / (1 - start)
    times = np.arange(20) / on_its_clock(left)
    found = left_of("success_amplification_mirror", times, start, kl_weight)
    np.testing.assert_allclose(found, left, atol=1e-6)
    late = left_of("success_amplification_mirror", np.array([1e3]), start, kl_weight)
    assert late[0] == pytest.approx(0, abs=1e-9)


def test_mirror_descent_has_an_end():
    """Small steps: p' = sqrt(p (1 - p)) / beta is linear in arcsin sqrt(p), and over at pi / 2."""
    start, kl_weight = 0.2, 18.0
    angle = np.arcsin(sqrt(start))

    def success(n):
        return np.sin(np.minimum(angle + n / (2 * kl_weight), np.pi / 2)) ** 2

    relaxed = 1 - (1 - start) / e
    unit = 2 * kl_weight * (np.arcsin(sqrt(relaxed)) - angle)
    times = np.linspace(0, 2.2, 60)
    exact = (1 - success(times * unit)) / (1 - start)
    found = left_of("success_amplification_mirror", times, start, kl_weight)
    np.testing.assert_allclose(found, exact, atol=0.02)
    over = 2 * kl_weight * (np.pi / 2 - angle) / unit
    assert left_of("success_amplification_mirror", np.array([1.1 * over]), start, kl_weight) < 1e-3


def test_between_iterations_the_curve_is_straight():
    for name, mirror in (("success_amplification", False), ("success_amplification_mirror", True)):
        path = amplified(0.1, 5.0, 40, mirror)
        end = 1.0 if mirror else at_rest(0.1, 5.0)
        unit = on_its_clock((end - path) / (end - 0.1))
        whole = left_of(name, np.arange(6) / unit, 0.1, 5.0)
        half = left_of(name, (np.arange(5) + 0.5) / unit, 0.1, 5.0)
        np.testing.assert_allclose(half, (whole[1:] + whole[:-1]) / 2, atol=1e-6)
