"""Shapes of mean curves: what share of the way to the plateau is left, as a function of time.

Every shape is a function ``left(time, ...)`` with ``left(0) = 1`` that falls to ``1 / e`` at
``time = 1``: time is counted in relaxation times, the time in which 63 % of the way is covered, so
that one parameter means the same in all of them and their priors can be shared.  The reward is
``plateau + (initial_reward - plateau) * left``.

Learning-rate schedules enter through the time, which is the accumulated learning rate.

Sources: ScaleRL, arXiv 2510.13786; logistic, arXiv 2507.18014; Rate or Fate, arXiv 2601.04411;
success amplification, arXiv 2503.06639.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array, lax

from bayes_grpo.statespace import Scalar

LEFT = 1 / math.e
"""Share of the way that is left at the relaxation time."""

ITERATIONS = 64
"""Iterations of a recursion after which it is taken to be where it ends."""

EPSILON = 1e-4
"""Added to the variance of the success in success amplification, as its source does."""

GRID = 128
"""Points of the table by which time is turned into success where there is no closed form."""


def exponential(time: Array) -> Array:
    """Single exponential."""
    return jnp.exp(-time)


def power_law(time: Array, decay_exponent: Scalar) -> Array:
    """Power law ``(1 + t / s)^-b``; ``b`` is ``decay_exponent`` (the exponential as it grows)."""
    stretch: Array = jnp.expm1(jnp.asarray(1 / decay_exponent))
    return jnp.exp(-decay_exponent * jnp.log1p(stretch * time))


def scalerl(time: Array, steepness: Scalar) -> Array:
    """Sigmoid in log compute, ``1 / (1 + (C / C_mid)^B)``; ``B`` is ``steepness``."""
    started = time > 0
    log_time = jnp.log(jnp.where(started, time, 1.0))
    # Beyond e^300 nothing is left, and the derivative stays a number.
    power = jnp.exp(jnp.minimum(steepness * log_time, 300.0))
    odds = jnp.where(started, (math.e - 1) * power, 0.0)
    return jnp.asarray(1 / (1 + odds))


def logistic(time: Array, initial_success: Scalar) -> Array:
    """Logistic growth ``u' = delta u (1 - u)`` from ``u(0) = initial_success``."""
    gained = jnp.log1p((math.e - 1) / initial_success)  # delta times the relaxation time
    # Beyond e^300 nothing is left, and the derivative stays a number.
    grown = initial_success * jnp.expm1(jnp.minimum(gained * time, 300.0))
    return jnp.asarray(1 / (1 + grown))


def _signed_odds(success: Scalar) -> Scalar:
    """Return ``(2u - 1) / sqrt(u (1 - u))``, which grows linearly with a clean verifier."""
    return (2 * success - 1) / jnp.sqrt(success * (1 - success))


def rate_or_fate(time: Array, initial_success: Scalar) -> Array:
    """Bandit learner with a clean verifier, ``u' = eta [u (1 - u)]^(3/2)``.

    ``phi = (2u - 1) / sqrt(u (1 - u))`` grows linearly, at ``eta / 2``, and
    ``u = 1/2 + phi / (2 sqrt(4 + phi^2))``; the tail is ``t^-2``.
    """
    wrong = 1 - initial_success
    first = _signed_odds(initial_success)
    phi = first + (_signed_odds(1 - LEFT * wrong) - first) * time
    root = jnp.sqrt(4 + phi**2)
    # 1 - u without the difference of nearly equal numbers that the formula above ends in.
    late = 2 / (root * (root + jnp.abs(phi)))
    return jnp.where(phi > 0, late, 1 - late) / wrong


def rate_or_fate_noisy(
    time: Array,
    initial_success: Scalar,
    true_positive_rate: Scalar,
    false_positive_rate: Scalar,
) -> Array:
    """Bandit learner with a verifier that errs, ``p' = -eta (J / sigma(p)) p^2 (1 - p)^2``.

    ``p`` is the wrong mass, ``sigma`` the standard deviation of the verifier's verdict.  ``J =
    TPR - FPR`` only sets speed and direction, which relaxation time and levels carry.  Time as a
    function of ``logit p`` is the integral of ``sigma / (p (1 - p))``, which is tabulated.
    """
    wrong = 1 - initial_success
    first = jnp.log(wrong / initial_success)
    way = jnp.linspace(0.0, 1.0, GRID)
    # Even steps up to the relaxation time, then longer ones: the tail falls like 1 / t.
    middle = jnp.log(LEFT * wrong / (1 - LEFT * wrong))
    logit = jnp.concatenate([first + (middle - first) * way, middle - 14 * way[1:] ** 1.5])

    def slowness(p: Array) -> Array:
        said = true_positive_rate * (1 - p) + false_positive_rate * p
        return jnp.sqrt(said * (1 - said)) / (p * (1 - p))

    p = jax.nn.sigmoid(logit)
    centre = jax.nn.sigmoid(0.5 * (logit[1:] + logit[:-1]))
    mean = (slowness(p[1:]) + 4 * slowness(centre) + slowness(p[:-1])) / 6  # Simpson's rule
    taken = jnp.concatenate([jnp.zeros(1), jnp.cumsum(mean * -jnp.diff(logit))])
    return jax.nn.sigmoid(jnp.interp(time * taken[GRID - 1], taken, logit)) / wrong


def _amplified(initial_success: Scalar, kl_weight: Scalar, mirror: bool) -> Array:
    """Success of every iteration of the recursion, shape (ITERATIONS + 1,)."""
    reference = jnp.log(initial_success / (1 - initial_success))

    def iterate(success: Array, _: None) -> tuple[Array, Array]:
        gain = 1 / (kl_weight * jnp.sqrt(success * (1 - success) + EPSILON))
        # A logit of 30 is a success of 1, and so are all beyond it.
        origin = jnp.log(success / jnp.maximum(1 - success, 1e-13)) if mirror else reference
        success = jax.nn.sigmoid(jnp.minimum(origin + gain, 30.0))
        return success, success

    first = jnp.asarray(initial_success, dtype=jnp.result_type(float))
    return jnp.concatenate([first[None], lax.scan(iterate, first, None, length=ITERATIONS)[1]])


def _by_iteration(time: Array, success: Array) -> Array:
    """Shape of a recursion, straight between its iterations."""
    end = 0.5 * (success[-1] + success[-2])  # the middle, where it ends in a two-cycle
    left = (end - success) / (end - success[0])
    after = jnp.argmax(left <= LEFT)  # first iteration that has covered 63 %
    share = (left[after - 1] - LEFT) / (left[after - 1] - left[after])
    at = time * (after - 1 + share)
    return jnp.interp(at, jnp.arange(len(success), dtype=success.dtype), left)


def success_amplification(time: Array, initial_success: Scalar, kl_weight: Scalar) -> Array:
    """Recursion of the success with a penalty to the reference policy.

    ``logit p_n = logit p_ref + 1 / (beta sqrt(p_{n-1} (1 - p_{n-1}) + eps))`` from ``p_0 = p_ref``;
    it overshoots its fixed point, and a small ``beta`` can end it in a two-cycle.
    """
    return _by_iteration(time, _amplified(initial_success, kl_weight, mirror=False))


def success_amplification_mirror(time: Array, initial_success: Scalar, kl_weight: Scalar) -> Array:
    """Recursion of the success with a penalty to the policy before (mirror descent).

    ``p_{n-1}`` stands in the place of ``p_ref`` in `success_amplification`: the success goes to 1,
    in about ``beta (pi - 2 asin sqrt(p_0))`` iterations; beyond `ITERATIONS` it is cut off.
    """
    return _by_iteration(time, _amplified(initial_success, kl_weight, mirror=True))
