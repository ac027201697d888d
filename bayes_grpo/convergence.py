"""Whether a fit may be believed: r_hat, effective sample size, divergences."""

from dataclasses import dataclass
from enum import Enum

import numpy as np

MAX_R_HAT = 1.01
MIN_ESS = 400
MAX_DIVERGENT = 0.01


class ConvergenceWarning(UserWarning):
    """A fit did not converge; nothing should be claimed from it."""


class Trouble(Enum):
    """What can be wrong with a fit; the value says what to do about it."""

    R_HAT = "the chains disagree: run longer (tune, draws), or simplify the model"
    ESS = "too few independent draws: run longer (draws)"
    DIVERGENCES = "divergent transitions: raise target_accept towards 0.99, or tighten the priors"


@dataclass(frozen=True)
class Convergence:
    """Convergence of one fit.

    Parameters
    ----------
    r_hat
        Largest over the parameters.
    ess
        Smallest bulk effective sample size over the parameters.
    divergent
        Fraction of divergent draws.
    """

    r_hat: float
    ess: float
    divergent: float

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """What is wrong, if anything."""
        # Written so that a NaN counts as trouble.
        checks = (
            (Trouble.R_HAT, self.r_hat <= MAX_R_HAT),
            (Trouble.ESS, self.ess >= MIN_ESS),
            (Trouble.DIVERGENCES, self.divergent <= MAX_DIVERGENT),
        )
        return tuple(trouble for trouble, fine in checks if not fine)

    @property
    def converged(self) -> bool:
        """Whether the fit may be used."""
        return not self.troubles

    def __str__(self) -> str:
        numbers = f"r_hat {self.r_hat:.3f}, ess {self.ess:.0f}, divergences {self.divergent:.1%}"
        if self.converged:
            return f"converged ({numbers})"
        mends = "; ".join(trouble.value for trouble in self.troubles)
        return f"DID NOT CONVERGE ({numbers}): claim nothing from this fit; {mends}"


def r_hat(values: np.ndarray) -> float:
    """Rank-normalised r_hat of draws of shape (chains, draws); one chain is compared with itself.

    Returns
    -------
    float
        NaN for a constant.
    """
    from arviz_stats import rhat  # type: ignore[attr-defined]

    if np.ptp(values) == 0:
        return float("nan")
    if len(values) == 1:
        half = values.shape[1] // 2
        values = values[:, : 2 * half].reshape(2, half)
    return float(rhat(values))


def effective_draws(values: np.ndarray) -> float:
    """Bulk effective sample size of draws of shape (chains, draws); NaN for a constant."""
    from arviz_stats import ess  # type: ignore[attr-defined]

    return float("nan") if np.ptp(values) == 0 else float(ess(values))


def assess(draws: dict[str, np.ndarray], diverging: np.ndarray) -> Convergence:
    """Judge draws, shape (chains, draws) each.

    Returns
    -------
    Convergence
    """
    varying = [values for values in draws.values() if np.ptp(values) > 0]
    if not varying:
        return Convergence(1.0, float(diverging.size), float(np.mean(diverging)))
    return Convergence(
        r_hat=max(r_hat(values) for values in varying),
        ess=min(effective_draws(values) for values in varying),
        divergent=float(np.mean(diverging)),
    )
