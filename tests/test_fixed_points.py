"""The fixed point of the alignment objective against closed forms, enumeration and Monte Carlo."""

from functools import cache
from itertools import pairwise, product
from math import comb, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from bayes_grpo.fixed_points import MANY, aligned_success, group_force

pytestmark = pytest.mark.usefixtures("strict_float64")

REFERENCES = st.floats(1e-3, 1 - 1e-3)
WEIGHTS = st.floats(1e-2, 100)


@cache
def compiled(group_size):
    return jax.jit(lambda reference, weight: aligned_success(reference, weight, group_size))


@cache
def compiled_gradient(group_size):
    return jax.jit(
        jax.grad(lambda reference, weight: aligned_success(reference, weight, group_size), (0, 1))
    )


def aligned(reference, weight, group_size):
    return float(compiled(group_size)(reference, weight))


def forces(successes, group_size):
    """At many successes at once, which is a broadcast between ranks by intent."""
    with jax.numpy_rank_promotion("allow"):
        return np.asarray(group_force(successes, group_size))


def enumerated_force(p, group_size):
    """Expected population sd of the rewards of a group: every number of successes in turn."""
    total = 0.0
    for k in range(group_size + 1):
        rewards = [1.0] * k + [0.0] * (group_size - k)
        total += comb(group_size, k) * p**k * (1 - p) ** (group_size - k) * np.std(rewards)
    return total


# --- force ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [2, 3, 4, 5, 8, 16, 64, 255])
def test_force_is_the_expected_spread_of_a_group(group_size):
    at = np.array([1e-6, 1e-3, 0.04, 0.3, 0.5, 0.77, 0.99, 1 - 1e-6])
    exact = [enumerated_force(p, group_size) for p in at]
    np.testing.assert_allclose(forces(at, group_size), exact, rtol=1e-9)
    assert group_force(0.3, group_size).shape == ()


@pytest.mark.parametrize("group_size", [2, 3])
def test_force_over_every_outcome_of_a_small_group(group_size):
    """Without the binomial: all 2^G strings of rewards."""
    p = 0.37
    total = 0.0
    for rewards in product((0, 1), repeat=group_size):
        wins = sum(rewards)
        total += p**wins * (1 - p) ** (group_size - wins) * np.std(rewards)
    assert float(group_force(p, group_size)) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("group_size", [8, 128, 1024])
def test_force_of_drawn_groups(group_size):
    rng = np.random.default_rng(group_size)
    for p in (0.1, 0.6):
        share = rng.binomial(group_size, p, 400_000) / group_size
        spread = np.sqrt(share * (1 - share))
        error = spread.std() / sqrt(len(spread))
        # The limit of large groups leaves out 1 / (8 G sqrt(p (1 - p))).
        left_out = 1 / (8 * group_size * sqrt(p * (1 - p))) if group_size >= MANY else 0.0
        assert abs(float(group_force(p, group_size)) - left_out - spread.mean()) < 5 * error


def test_force_is_the_same_for_right_and_wrong_and_grows_with_the_group():
    at = np.linspace(0.01, 0.99, 50)
    found = [forces(at, g) for g in (2, 3, 4, 8, 32, 255, 256)]
    for small, large in pairwise(found):
        assert np.all(small < large)
    for force in found:
        np.testing.assert_allclose(force, force[::-1], rtol=1e-9)


def test_force_tends_to_the_limit_of_large_groups():
    """The error is 1 / (8 G sqrt(p (1 - p))): below 1 / G but for the edges."""
    at = np.linspace(0.02, 0.98, 100)
    limit = forces(at, MANY)
    np.testing.assert_allclose(limit, np.sqrt(at * (1 - at)), rtol=1e-14)
    below = limit - forces(at, MANY - 1)
    assert np.all(below > 0)
    assert np.all(below < 1.1 / MANY)
    middle = (at > 0.3) & (at < 0.7)
    np.testing.assert_allclose(below[middle], 1 / (8 * MANY * limit[middle]), rtol=0.03)


# --- fixed point ----------------------------------------------------------------------------------


@given(REFERENCES, WEIGHTS)
def test_groups_of_two_have_a_closed_form(reference, weight):
    root = sqrt((1 - weight) ** 2 + 4 * weight * reference)
    # The root of p (1 - p) = b (p - p_ref) without a difference of nearly equal numbers.
    exact = (1 - weight + root) / 2 if weight < 1 else 2 * weight * reference / (weight - 1 + root)
    assert aligned(reference, weight, 2) == pytest.approx(exact, rel=1e-9)


@given(REFERENCES, WEIGHTS)
def test_groups_of_three_have_one_too(reference, weight):
    """Both mixed outcomes have the spread sqrt(2) / 3: the force is sqrt(2) p (1 - p)."""
    scaled = weight / sqrt(2)
    root = sqrt((1 - scaled) ** 2 + 4 * scaled * reference)
    exact = (1 - scaled + root) / 2 if scaled < 1 else 2 * scaled * reference / (scaled - 1 + root)
    assert aligned(reference, weight, 3) == pytest.approx(exact, rel=1e-9)


@given(REFERENCES, WEIGHTS)
def test_large_groups(reference, weight):
    """p = p_ref + sqrt(p (1 - p)) / beta, a quadratic once it is squared."""
    square = weight**2
    a, b, c = square + 1, 2 * square * reference + 1, square * reference**2
    exact = (b + sqrt(b * b - 4 * a * c)) / (2 * a)
    assert aligned(reference, weight, 4096) == pytest.approx(exact, rel=1e-8)
    assert aligned(reference, weight, MANY) == aligned(reference, weight, 4096)


@pytest.mark.parametrize("group_size", [8, 40])
def test_other_groups(group_size):
    for reference, weight in ((0.01, 0.3), (0.2, 1.0), (0.2, 5.0), (0.6, 2.0), (0.95, 0.1)):
        exact = brentq(
            lambda p, r=reference, b=weight: enumerated_force(p, group_size) - b * (p - r),
            reference,
            1 - 1e-12,
            xtol=1e-14,
        )
        assert aligned(reference, weight, group_size) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("group_size", [2, 8, 255, 256])
@given(REFERENCES, REFERENCES, WEIGHTS, WEIGHTS)
def test_it_rises_with_the_reference_and_falls_with_the_penalty(group_size, a, b, weak, strong):
    (low, high), (weak, strong) = sorted((a, b)), sorted((weak, strong))
    value = aligned(low, strong, group_size)
    assert low <= value < 1
    assert value <= aligned(high, strong, group_size) + 1e-12
    assert value <= aligned(low, weak, group_size) + 1e-12
    if high > low + 1e-6 and strong > 1.0001 * weak:
        assert value < aligned(high, strong, group_size)
        assert value < aligned(low, weak, group_size)


@given(REFERENCES, WEIGHTS)
def test_nothing_jumps_where_the_limit_is_taken(reference, weight):
    finite = aligned(reference, weight, MANY - 1)
    limit = aligned(reference, weight, MANY)
    assert 0 < limit - finite < 1 / MANY


@pytest.mark.parametrize("group_size", [2, 8])
def test_without_a_penalty_everything_is_learned_and_with_a_strong_one_nothing(group_size):
    assert aligned(0.3, 1e-6, group_size) == pytest.approx(1, abs=1e-5)
    assert aligned(0.3, 1e6, group_size) == pytest.approx(0.3, abs=1e-6)


# --- derivatives and batches ----------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [2, 8, 255, 256])
@given(st.floats(0.002, 0.99), st.floats(0.05, 50))
def test_gradient_is_the_slope_of_the_fixed_point(group_size, reference, weight):
    by_reference, by_weight = (float(g) for g in compiled_gradient(group_size)(reference, weight))
    h = 1e-5
    slope = aligned(reference * (1 + h), weight, group_size)
    slope = (slope - aligned(reference * (1 - h), weight, group_size)) / (2 * h * reference)
    assert by_reference == pytest.approx(slope, rel=2e-4, abs=1e-7)
    slope = aligned(reference, weight * (1 + h), group_size)
    slope = (slope - aligned(reference, weight * (1 - h), group_size)) / (2 * h * weight)
    assert by_weight == pytest.approx(slope, rel=2e-4, abs=1e-7)


def test_gradient_of_groups_of_two_in_closed_form():
    """Of p (1 - p) = b (p - p_ref): dp = (b dp_ref - (p - p_ref) db) / (b + 2p - 1)."""
    for reference, weight in ((0.1, 0.5), (0.3, 1.0), (0.7, 4.0)):
        p = (1 - weight + sqrt((1 - weight) ** 2 + 4 * weight * reference)) / 2
        found = compiled_gradient(2)(reference, weight)
        assert float(found[0]) == pytest.approx(weight / (weight + 2 * p - 1), rel=1e-7)
        assert float(found[1]) == pytest.approx((reference - p) / (weight + 2 * p - 1), rel=1e-7)


@pytest.mark.parametrize("group_size", [2, 8, 512])
def test_many_at_once(group_size):
    """As in the chains of a fit: each draw gets its own fixed point and derivative."""
    references = jnp.linspace(0.01, 0.95, 40)
    weights = jnp.geomspace(0.05, 20, 40)
    both = jax.vmap(
        jax.value_and_grad(lambda r, b: aligned_success(r, b, group_size), argnums=(0, 1))
    )
    values, gradients = jax.jit(both)(references, weights)
    alone = [aligned(r, b, group_size) for r, b in zip(references, weights, strict=True)]
    np.testing.assert_allclose(values, alone, rtol=1e-12)
    slopes = [compiled_gradient(group_size)(r, b) for r, b in zip(references, weights, strict=True)]
    np.testing.assert_allclose(gradients, np.array(slopes).T, rtol=1e-9)
