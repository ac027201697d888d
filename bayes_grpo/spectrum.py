"""Exact spectrum of the mean dynamics under stale sampling: when it oscillates, when it diverges.

The recursion of one optimizer update, about the plateau (`bayes_grpo.trajectory`):

    v' = momentum v - pull R_stale,    R' = R + v'

``refresh_interval`` counts optimizer updates, and its meaning follows the lag pattern:

``hold``
    The sampler is frozen for ``refresh_interval`` updates, then refreshed: the lag runs through
    0 ... refresh_interval - 1, and 1 is on-policy.  From refresh to refresh, with ``n`` the
    interval, ``M = momentum^n``, ``b = momentum + ... + momentum^n``, a 2x2 map with trace
    ``1 + M - pull (n - b) / (1 - momentum)`` and determinant
    ``M + pull (b - n M) / (1 - momentum)``.
``constant``
    An asynchronous sampler is always ``refresh_interval`` updates behind: the setting ``lag``.
    ``z^(lag - 1) (z - 1) (z - momentum) + pull = 0``; a lag of 0 is the hold pattern at 1.

Staleness is ``Lambda = pull refresh_interval / (1 - momentum)``, which is ``learning_rate curvature
refresh_interval`` for ema momentum and that over ``1 - momentum`` for heavy ball; in units of it
all thresholds are the same for both conventions. Source of the rule ``Lambda < 1`` that they
replace: arXiv 2606.30789; the exact spectra are derived here.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from bayes_grpo.errors import InputError

type LagPattern = Literal["hold", "constant"]

PATTERNS = ("hold", "constant")
REGIMES = ("overdamped", "critical", "oscillatory", "unstable")

CRITICAL = 1e-9
"""Relative distance to the onset of oscillation within which a regime is called critical."""

NEWTON_STEPS = 100
"""More than the doublings from the smallest to the largest angle that double precision tells."""


class Mode(NamedTuple):
    """Slowest mode of the mean dynamics: ``exp((growth_rate + i frequency) t)``.

    Parameters
    ----------
    growth_rate
        Per optimizer update; negative where the mode decays.
    frequency
        Radians per optimizer update; 0 where the mode does not oscillate.
    """

    growth_rate: Any
    frequency: Any

    @property
    def spectral_radius(self) -> Any:
        """Factor by which the mode grows per optimizer update; 1 or more does not settle."""
        return np.exp(self.growth_rate)

    @property
    def period(self) -> Any:
        """Optimizer updates of one oscillation; infinite where there is none."""
        with np.errstate(divide="ignore"):
            return 2 * np.pi / np.asarray(self.frequency)

    @property
    def settling_time(self) -> Any:
        """Three time constants (95 % of the way) in optimizer updates; infinite if unstable."""
        rate = np.asarray(self.growth_rate, dtype=float)
        with np.errstate(divide="ignore"):
            return np.where(rate < 0, -3 / rate, np.inf)[()]


def divergence_staleness(momentum: Any, refresh_interval: Any, lag: LagPattern = "hold") -> Any:
    """Staleness at which the mean reward starts to diverge, exactly.

    Hold: the smaller of ``n (1 - M) / (b - n M)`` (a pair of complex roots leaves the unit circle)
    and ``2 n (1 + M) / (n (1 + M) - 2 b)`` (a root passes -1), Jury's conditions of the 2x2 map.
    Constant: ``2 n sin(w / 2) |exp(iw) - momentum| / (1 - momentum)`` at the smallest angle with
    ``(n - 1/2) w + arg(exp(iw) - momentum) = pi / 2``.

    Parameters
    ----------
    momentum
        Of one update, ``0 <= momentum < 1``.
    refresh_interval
        Optimizer updates, at least 1: see the module for what it means under each pattern.
    lag
        ``"hold"`` or ``"constant"``.

    Returns
    -------
    float or ndarray
        Lambda; arguments are broadcast against each other.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    mu, n = _checked(momentum, refresh_interval, lag, least=1)
    return (_hold_divergence if lag == "hold" else _constant_divergence)(mu, n)[()]


def oscillation_staleness(momentum: Any, refresh_interval: Any, lag: LagPattern = "hold") -> Any:
    """Staleness at which the mean reward starts to overshoot and swing, exactly.

    Beyond it the slowest mode is no longer a positive real root.  Hold:
    ``(1 - M) / (1 + sqrt(b / n))^2``. Constant: the double root of the characteristic polynomial,
    ``n z^(n - 1) (1 - z) (z - momentum) / (1 - momentum)`` at its maximum over z, which is at
    ``z = [n (1 + momentum) + sqrt(n^2 (1 - momentum)^2 + 4 momentum)] / (2 n + 2)``.

    Parameters
    ----------
    momentum, refresh_interval, lag
        As for `divergence_staleness`.

    Returns
    -------
    float or ndarray
        Lambda; arguments are broadcast against each other.

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    mu, n = _checked(momentum, refresh_interval, lag, least=1)
    return (_hold_oscillation if lag == "hold" else _constant_oscillation)(mu, n)[()]


def divergence_pull(momentum: Any, refresh_interval: Any, lag: LagPattern = "hold") -> Any:
    """Pull at which the mean reward starts to diverge; a constant lag may be 0.

    Parameters
    ----------
    momentum, refresh_interval, lag
        As for `divergence_staleness`.

    Returns
    -------
    float or ndarray
        Coefficient ``pull`` of one update.
    """
    return _per_update(divergence_staleness, momentum, refresh_interval, lag)


def oscillation_pull(momentum: Any, refresh_interval: Any, lag: LagPattern = "hold") -> Any:
    """Pull at which the mean reward starts to oscillate; a constant lag may be 0.

    Parameters
    ----------
    momentum, refresh_interval, lag
        As for `divergence_staleness`.

    Returns
    -------
    float or ndarray
        Coefficient ``pull`` of one update.
    """
    return _per_update(oscillation_staleness, momentum, refresh_interval, lag)


def exact_damping_ratio(
    momentum: Any, pull: Any, refresh_interval: Any = 1, lag: LagPattern = "hold"
) -> Any:
    """Damping ratio, 1 at the exact onset of oscillation: ``sqrt(oscillation_pull / pull)``.

    Without lag it is ``(1 - sqrt(momentum)) / sqrt(pull)``, `bayes_grpo.trajectory.damping_ratio`.

    Parameters
    ----------
    momentum, pull
        Coefficients of one update.
    refresh_interval, lag
        As for `divergence_staleness`; a constant lag may be 0.

    Returns
    -------
    float or ndarray
        Below 1 it oscillates.
    """
    _check_pull(pull)
    return np.sqrt(oscillation_pull(momentum, refresh_interval, lag) / np.asarray(pull))


def is_oscillatory(
    momentum: Any, pull: Any, refresh_interval: Any = 1, lag: LagPattern = "hold"
) -> Any:
    """Whether the mean reward overshoots and swings, stable or not.

    Parameters
    ----------
    momentum, pull, refresh_interval, lag
        As for `exact_damping_ratio`.

    Returns
    -------
    bool or ndarray of bool
    """
    _check_pull(pull)
    return np.asarray(pull) > oscillation_pull(momentum, refresh_interval, lag)


def regime(momentum: Any, pull: Any, refresh_interval: Any = 1, lag: LagPattern = "hold") -> Any:
    """Name the regime of the mean dynamics.

    Parameters
    ----------
    momentum, pull, refresh_interval, lag
        As for `exact_damping_ratio`.

    Returns
    -------
    str or ndarray of str
        ``"overdamped"``, ``"critical"``, ``"oscillatory"`` or ``"unstable"``.
    """
    _check_pull(pull)
    onset = oscillation_pull(momentum, refresh_interval, lag)
    end = divergence_pull(momentum, refresh_interval, lag)
    distance = np.asarray(pull) / onset - 1
    # Without lag and momentum both thresholds differ by 2; with them, by more than `CRITICAL`.
    names = np.select(
        [np.asarray(pull) >= end, np.abs(distance) <= CRITICAL, distance > 0],
        [REGIMES[3], REGIMES[1], REGIMES[2]],
        REGIMES[0],
    )
    return names if names.ndim else str(names)


def slowest_mode(
    momentum: Any, pull: Any, refresh_interval: Any = 1, lag: LagPattern = "hold"
) -> Mode:
    """Slowest mode of the mean dynamics, from the eigenvalues of the exact recursion.

    Parameters
    ----------
    momentum, pull, refresh_interval, lag
        As for `exact_damping_ratio`.

    Returns
    -------
    Mode
        Rates per optimizer update under both patterns.
    """
    mu, n = _checked(momentum, refresh_interval, lag, least=0 if lag == "constant" else 1)
    _check_pull(pull)
    mu, n, a = np.broadcast_arrays(mu, n, np.asarray(pull, dtype=float))
    shape = mu.shape
    mu, n, a = mu.ravel(), n.ravel(), a.ravel()
    growth, frequency = _hold_mode(mu, a, n if lag == "hold" else np.ones_like(n))
    if lag == "constant":
        for updates in np.unique(n[n > 0]):
            here = n == updates
            growth[here], frequency[here] = _constant_mode(mu[here], a[here], int(updates))
    return Mode(growth.reshape(shape)[()], frequency.reshape(shape)[()])


def spectral_radius(
    momentum: Any, pull: Any, refresh_interval: Any = 1, lag: LagPattern = "hold"
) -> Any:
    """Factor per optimizer update by which a deviation from the plateau grows in the long run.

    Parameters
    ----------
    momentum, pull, refresh_interval, lag
        As for `exact_damping_ratio`.

    Returns
    -------
    float or ndarray
        Largest modulus of the eigenvalues of one update; under hold, of one refresh, to the power
        of ``1 / refresh_interval``.
    """
    return slowest_mode(momentum, pull, refresh_interval, lag).spectral_radius


# --- hold and refresh ----------------------------------------------------------------------------


def _block(mu: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``mu^n``, ``1 - mu^n`` and ``mu + ... + mu^n``, with their digits as mu tends to 1."""
    with np.errstate(divide="ignore"):
        forgotten = -np.expm1(n * np.log(mu))
    return mu**n, forgotten, mu * forgotten / (1 - mu)


def _hold_divergence(mu: np.ndarray, n: np.ndarray) -> np.ndarray:
    kept, forgotten, carried = _block(mu, n)
    # At one update, or without momentum, nothing of the lag is left: no pair of roots to escape.
    lagging = np.where((n > 1) & (mu > 0), carried - n * kept, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        escape = np.where(lagging > 0, n * forgotten / np.maximum(lagging, 0), np.inf)
    flip = 2 * n * (1 + kept) / (n * (1 + kept) - 2 * carried)
    return np.minimum(escape, flip)


def _hold_oscillation(mu: np.ndarray, n: np.ndarray) -> np.ndarray:
    _, forgotten, carried = _block(mu, n)
    return forgotten / (1 + np.sqrt(carried / n)) ** 2


def _hold_mode(mu: np.ndarray, a: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Growth rate and frequency of the dominant eigenvalue ``1 - r`` of the map over a refresh.

    ``r`` solves ``r^2 - (2 - trace) r + (1 - trace + determinant) = 0``: in r, a slow mode keeps
    its digits.
    """
    kept, forgotten, carried = _block(mu, n)
    drop = forgotten + a * (n - carried) / (1 - mu)
    product = a * n * forgotten / (1 - mu)
    determinant = kept + a * np.maximum(carried - n * kept, 0) / (1 - mu)
    gap = drop**2 - 4 * product
    root = np.sqrt(np.maximum(gap, 0))
    trace = 2 - drop
    with np.errstate(divide="ignore", invalid="ignore"):
        slow = np.log1p(-np.minimum(2 * product / (drop + root), 1))
        flipping = np.log(np.maximum((root - trace) / 2, 0))
        swinging = np.log(determinant) / 2
        angle = np.arccos(np.clip(trace / (2 * np.sqrt(determinant)), -1, 1))
    real = np.where(trace > 0, slow, flipping)
    growth = np.where(gap < 0, swinging, real) / n
    frequency = np.where(gap < 0, angle, np.where(trace > 0, 0.0, np.pi)) / n
    return growth, frequency


# --- constant lag --------------------------------------------------------------------------------


def _constant_divergence(mu: np.ndarray, n: np.ndarray) -> np.ndarray:
    """First crossing of the unit circle.

    On the circle the phase condition fixes the angle and the modulus the pull. The left side of the
    condition rises and is concave, so that Newton's steps from 0 rise to its root without passing.
    The modulus grows with the angle: the first root is the first crossing.
    """
    mu, n = np.broadcast_arrays(mu, n)
    rest, angle = 1 - mu, np.zeros(mu.shape)
    for _ in range(NEWTON_STEPS):
        half = np.sin(angle / 2) ** 2
        phase = np.arctan2(np.sin(angle), rest - 2 * half)
        slope = n - 0.5 + (rest + 2 * mu * half) / (rest**2 + 4 * mu * half)
        step = (np.pi / 2 - (n - 0.5) * angle - phase) / slope
        angle = angle + step
        if np.all(np.abs(step) <= 4 * np.finfo(float).eps * angle):
            break
    half = np.sin(angle / 2)
    return 2 * n * half * np.sqrt(rest**2 + 4 * mu * half**2) / rest


def _constant_oscillation(mu: np.ndarray, n: np.ndarray) -> np.ndarray:
    root = np.sqrt((n * (1 - mu)) ** 2 + 4 * mu)
    # 1 - z and z - mu of the double root z, each without a difference of near numbers.
    below = 2 * (1 - mu) / (n * (1 - mu) + 2 + root)
    above = (1 - mu) - below
    return n * np.exp((n - 1) * np.log1p(-below)) * below * above / (1 - mu)


def _constant_mode(mu: np.ndarray, a: np.ndarray, lag: int) -> tuple[np.ndarray, np.ndarray]:
    """Dominant eigenvalue of the companion matrix; ``mu`` and ``a`` of shape (cases,)."""
    companion = np.zeros((len(mu), lag + 1, lag + 1))
    companion[:, np.arange(1, lag + 1), np.arange(lag)] = 1.0
    companion[:, 0, 0] = 1 + mu
    companion[:, 0, 1] = -mu
    companion[:, 0, lag] -= a
    eigenvalues = np.linalg.eigvals(companion)
    largest = np.argmax(np.abs(eigenvalues), axis=1)
    dominant = np.log(eigenvalues[np.arange(len(mu)), largest].astype(complex))
    return dominant.real, np.abs(dominant.imag)


# --- arguments -----------------------------------------------------------------------------------


def _checked(
    momentum: Any, refresh_interval: Any, lag: str, least: int
) -> tuple[np.ndarray, np.ndarray]:
    if lag not in PATTERNS:
        raise InputError(f"lag is {lag!r}: expected 'hold' or 'constant'")
    mu, n = np.asarray(momentum, dtype=float), np.asarray(refresh_interval, dtype=float)
    if not np.all((mu >= 0) & (mu < 1)):
        raise InputError(f"momentum is {momentum!r}: expected numbers with 0 <= momentum < 1")
    if not np.all((n >= least) & (n == np.floor(n)) & np.isfinite(n)):
        raise InputError(
            f"refresh_interval is {refresh_interval!r}: expected whole numbers of at least {least}"
        )
    return mu, n


def _check_pull(pull: Any) -> None:
    if not np.all((np.asarray(pull) > 0) & np.isfinite(pull)):
        raise InputError(f"pull is {pull!r}: expected finite numbers > 0")


def _per_update(staleness: Any, momentum: Any, refresh_interval: Any, lag: LagPattern) -> Any:
    mu, n = _checked(momentum, refresh_interval, lag, least=0 if lag == "constant" else 1)
    positive = np.maximum(n, 1)
    found = staleness(mu, positive, lag) * (1 - mu) / positive
    if lag == "constant":  # a lag of 0 is on-policy sampling
        found = np.where(n > 0, found, staleness(mu, 1, "hold") * (1 - mu))
    return np.asarray(found)[()]
