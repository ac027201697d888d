"""From settings and curvature to the oscillator's numbers, and back (arXiv 2606.30789).

Adam and every exponential moving average multiply the gradient by ``1 - momentum``; heavy-ball
momentum applies it in full.  The convention decides how a relaxation time reads as a curvature.
"""

from typing import Any

import numpy as np

from bayes_grpo.settings import Settings


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
