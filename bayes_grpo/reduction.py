"""From settings and curvature to the oscillator's numbers, and back (arXiv 2606.30789).

Adam and every exponential moving average multiply the gradient by ``1 - momentum``; heavy-ball
momentum applies it in full.  The convention decides how a relaxation time reads as a curvature.

Leading order, the continuous oscillator ``m R'' + gamma R' + k (R - plateau) = noise``: `mass`,
`damping`, `stiffness`, `damping_ratio`, `period`.  The exact thresholds and rates of the discrete
recursion are in `bayes_grpo.spectrum`, and by name here as well.
"""

from typing import Any, Literal

import numpy as np

from bayes_grpo.errors import InputError
from bayes_grpo.settings import Settings
from bayes_grpo.spectrum import divergence_pull as divergence_pull
from bayes_grpo.spectrum import divergence_staleness as divergence_staleness
from bayes_grpo.spectrum import exact_damping_ratio as exact_damping_ratio
from bayes_grpo.spectrum import is_oscillatory as is_oscillatory
from bayes_grpo.spectrum import oscillation_pull as oscillation_pull
from bayes_grpo.spectrum import oscillation_staleness as oscillation_staleness
from bayes_grpo.spectrum import regime as regime
from bayes_grpo.spectrum import slowest_mode as slowest_mode
from bayes_grpo.spectrum import spectral_radius as spectral_radius

type Convention = Literal["ema", "heavy_ball"]


def stiffness(
    learning_rate: Any, curvature: Any, momentum: Any, convention: Convention = "ema"
) -> Any:
    """Stiffness k, the ``pull`` of one update: ``eta K``, times ``1 - momentum`` for ema.

    Parameters
    ----------
    learning_rate, curvature
        eta and K, any shape.
    momentum
        Of one update, ``0 <= momentum < 1``.
    convention
        Whether the gradient enters the momentum with weight ``1 - momentum`` (``"ema"``, Adam) or
        1 (``"heavy_ball"``, SGD).

    Returns
    -------
    ndarray or float
        Arguments broadcast against each other.

    Raises
    ------
    InputError
        If the convention is not known.
    """
    if convention not in ("ema", "heavy_ball"):
        raise InputError(f"convention is {convention!r}: expected 'ema' or 'heavy_ball'")
    weight = 1 - np.asarray(momentum) if convention == "ema" else 1.0
    return np.asarray(learning_rate) * curvature * weight


def staleness(
    learning_rate: Any,
    curvature: Any,
    momentum: Any,
    refresh_interval: Any,
    convention: Convention = "ema",
) -> Any:
    """Staleness Lambda: ``eta K K_ref`` for ema, ``eta K K_ref / (1 - momentum)`` for heavy ball.

    Parameters
    ----------
    learning_rate, curvature, momentum, convention
        As for `stiffness`.
    refresh_interval
        Updates between two refreshes of the sampler, or its constant lag in updates.

    Returns
    -------
    ndarray or float
        To be held against `divergence_staleness` and `oscillation_staleness`; the leading-order
        rule is ``Lambda < 1``.
    """
    pull = stiffness(learning_rate, curvature, momentum, convention)
    return pull * np.asarray(refresh_interval) / (1 - np.asarray(momentum))


def damping(momentum: Any, stiffness: Any, refresh_interval: Any) -> Any:
    """Damping gamma to leading order: ``1 - momentum - k K_ref``; the rule is ``gamma > 0``.

    Parameters
    ----------
    momentum
        Of one update.
    stiffness
        k, from `stiffness`.
    refresh_interval
        Lag of the force in updates; 0 without lag.

    Returns
    -------
    ndarray or float
    """
    return 1 - np.asarray(momentum) - np.asarray(stiffness) * refresh_interval


def mass(momentum: Any, stiffness: Any, refresh_interval: Any, order: Literal[1, 2] = 2) -> Any:
    """Mass m: ``momentum`` to first order, ``(1 + momentum + k K_ref^2) / 2`` to second.

    The second is the second-order term of ``(e^s - 1) - momentum (1 - e^-s) + k e^(-K_ref s)``,
    the characteristic function of the recursion under a lag of ``K_ref``.

    Parameters
    ----------
    momentum, stiffness, refresh_interval
        As for `damping`.
    order
        1 or 2.

    Returns
    -------
    ndarray or float

    Raises
    ------
    InputError
        If the order is neither.
    """
    if order not in (1, 2):
        raise InputError(f"order is {order!r}: expected 1 or 2")
    momentum = np.asarray(momentum)
    if order == 1:
        return momentum + 0.0 * np.asarray(stiffness) * np.asarray(refresh_interval)
    return (1 + momentum + np.asarray(stiffness) * np.square(refresh_interval)) / 2


def damping_ratio(mass: Any, damping: Any, stiffness: Any) -> Any:
    """Damping ratio of the continuous oscillator, ``gamma / (2 sqrt(m k))``.

    Parameters
    ----------
    mass, damping, stiffness
        m, gamma, k.

    Returns
    -------
    ndarray or float
        Below 1 it oscillates; below 0 it diverges; infinite without mass.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(damping) / (2 * np.sqrt(np.asarray(mass) * stiffness))


def period(mass: Any, damping: Any, stiffness: Any) -> Any:
    """Period of the continuous oscillator in updates; infinite where it does not oscillate.

    Parameters
    ----------
    mass, damping, stiffness
        m, gamma, k.

    Returns
    -------
    ndarray or float
        ``2 pi / sqrt(k / m - gamma^2 / 4 m^2)``.
    """
    m, k = np.asarray(mass, dtype=float), np.asarray(stiffness, dtype=float)
    with np.errstate(divide="ignore"):
        return 2 * np.pi * 2 * m / np.sqrt(np.maximum(4 * m * k - np.square(damping), 0))


def step_factor(settings: Settings) -> float:
    """Factor by which a lasting unit force moves the reward per update and unit learning rate.

    1 for the ``ema`` convention, ``1 / (1 - momentum)`` for ``heavy_ball``.
    """
    if settings.momentum_convention == "ema":
        return 1.0
    return 1 / (1 - settings.momentum)


def curvature(relaxation_time: Any, settings: Settings) -> Any:
    """Curvature scale of the potential at the plateau, per unit learning rate.

    Parameters
    ----------
    relaxation_time
        ``tau_0 = (1 - momentum) / (eta K)`` for heavy ball, ``1 / (eta K)`` for ema, in updates at
        the reference learning rate; any shape.
    settings
        ``learning_rate``, ``momentum`` and its convention.

    Returns
    -------
    Any
        K, same shape.
    """
    return 1 / (relaxation_time * settings.learning_rate * step_factor(settings))


def temperature(diffusion: Any, settings: Settings) -> Any:
    """Strength of the gradient noise: process noise is ``eta^2 T / (B G)`` per update.

    Parameters
    ----------
    diffusion
        Standard deviation per square root of an update of the reward's random walk under the noise
        alone, any shape.
    settings
        ``learning_rate``, ``momentum`` and its convention, ``group_size``, ``prompts_per_step``.

    Returns
    -------
    Any
        T, same shape.
    """
    rollouts = settings.group_size * settings.prompts_per_step
    return rollouts * (diffusion / (settings.learning_rate * step_factor(settings))) ** 2


def oscillation_period(momentum: Any, pull: Any) -> Any:
    """Period of the discrete recursion in its own steps; NaN where it does not oscillate.

    Parameters
    ----------
    momentum, pull
        Coefficients of ``v' = momentum v - pull (R - plateau), R' = R + v'``, any shape.

    Returns
    -------
    ndarray
        Same shape.
    """
    momentum, pull = np.asarray(momentum), np.asarray(pull)
    with np.errstate(divide="ignore", invalid="ignore"):
        cosine = (1 + momentum - pull) / (2 * np.sqrt(momentum))
        inside = np.where(np.abs(cosine) < 1, cosine, np.nan)
        return 2 * np.pi / np.arccos(inside)


def settling_time(relaxation_time: Any, damping_ratio: Any = np.inf) -> Any:
    """Time in which 95 % of the distance to the plateau is covered, at the peak learning rate.

    Three time constants of the slowest mode of the continuous oscillator: three relaxation times
    without inertia, ``3 relaxation_time / (2 damping_ratio^2)`` (the envelope) where it oscillates.

    Parameters
    ----------
    relaxation_time
        In any unit of time, > 0, any shape.
    damping_ratio
        Greater than 0; infinite without inertia.

    Returns
    -------
    ndarray
        In the unit of the relaxation time.
    """
    with np.errstate(divide="ignore"):
        inverse_square = 1 / np.square(np.asarray(damping_ratio, dtype=float))
    # Rates of the two modes, times the relaxation time: 2 d^2 (1 -+ sqrt(1 - 1 / d^2)). Written as
    # 2 / (1 + sqrt(...)), the slow one keeps its digits at strong damping.
    root = np.sqrt(np.clip(1 - inverse_square, 0, None))
    oscillating = inverse_square > 1
    rate = np.where(oscillating, 2 / np.where(oscillating, inverse_square, 1.0), 2 / (1 + root))
    return 3 * np.asarray(relaxation_time) / rate
