"""Compare models of one run by how well they predict what they have not seen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.fit import Fit
from bayes_grpo.leave_future_out import LeaveFutureOut, leave_future_out
from bayes_grpo.stacking_weights import stacking_weights


@dataclass(frozen=True, eq=False)
class Scored:
    """Fits of one run with their scores and weights, in the order they were given.

    Parameters
    ----------
    fits
        The fits.
    names
        Their names, each once: a second fit of a model gets a number.
    scores
        Their predictions of the later rows.
    weights
        Stacking weights, shape (fits,).
    """

    fits: tuple[Fit, ...]
    names: tuple[str, ...]
    scores: tuple[LeaveFutureOut, ...]
    weights: np.ndarray

    def table(self) -> pd.DataFrame:
        """Put the scores into the table of `compare`."""
        best = max(self.scores, key=lambda score: score.log_density.sum())
        rows = [
            {
                "model": name,
                "elpd": score.log_density.sum(),
                "se": _standard_error(score.log_density),
                "difference": np.sum(best.log_density - score.log_density),
                "difference_se": _standard_error(best.log_density - score.log_density),
                "weight": weight,
                "crps": score.crps.mean(),
                "inside50": score.inside(0.5),
                "inside90": score.inside(0.9),
                "refits": score.refits,
                "pareto_k": score.pareto_k.max(),
                "converged": fit.convergence.converged,
            }
            for fit, name, score, weight in zip(
                self.fits, self.names, self.scores, self.weights, strict=True
            )
        ]
        table = pd.DataFrame(rows).set_index("model").sort_values("elpd", ascending=False)
        one = self.scores[0]
        table.attrs.update(
            run=self.fits[0].run.name,
            rows=len(one.steps),
            known=one.known,
            first_step=int(one.steps[0]),
            ahead=one.ahead,
        )
        return table


def compare(
    fits: Sequence[Fit], *, start: int | None = None, ahead: int = 1, seed: int = 0
) -> pd.DataFrame:
    """Compare fits of one run by leave-future-out predictive density.

    Every row after the first few is predicted from the rows before it, and what counts is the log
    density of what was then logged.  Leave-one-out, the usual number, is not offered: in a time
    series it predicts a row from its neighbours on both sides, which a random walk does better
    than any curve, and a forecast has no right-hand neighbour.  R^2 cannot tell curves apart
    either: all rise and level off.

    Parameters
    ----------
    fits
        Fits of the same run with the same planned length, at least one.
    start
        Rows that the first prediction knows; None: a tenth of the rewarded rows, at least 8. The
        slow start, where variants differ most, is in the first rows.
    ahead
        Rows that each density is of.
    seed
        Of refits and draws.

    Returns
    -------
    pandas.DataFrame
        One row a model, the best first. ``elpd``: sum of the log predictive densities, with its
        standard error ``se``; ``difference`` to the best and ``difference_se``, from the paired
        rows (of ``ahead`` above 1 the terms overlap, and errors are too small); ``weight`` in the
        stack (`stack`); ``crps``, ``inside50``, ``inside90``: of the rows one step ahead;
        ``refits`` that were needed, and the largest ``pareto_k`` of the weights that were used
        instead; ``converged``.

    Raises
    ------
    InputError
        If there is no fit, the fits are of different runs, or rows are too few.
    """
    return score_fits(fits, start=start, ahead=ahead, seed=seed).table()


def score_fits(
    fits: Sequence[Fit], *, start: int | None = None, ahead: int = 1, seed: int = 0
) -> Scored:
    """Score and weigh fits of one run: what `compare` and `stack` share, with their arguments."""
    fits = tuple(fits)
    _check(fits)
    scores = tuple(leave_future_out(f, start=start, ahead=ahead, seed=seed) for f in fits)
    densities = np.stack([score.log_density for score in scores], axis=1)
    return Scored(
        fits, _distinct([f.model.name for f in fits]), scores, stacking_weights(densities)
    )


def _standard_error(terms: np.ndarray) -> float:
    return float(np.sqrt(len(terms)) * terms.std(ddof=1)) if len(terms) > 1 else float("nan")


def _check(fits: tuple[Fit, ...]) -> None:
    if not fits:
        raise InputError("no fits to compare: expected at least one")
    for fit in fits:
        if not isinstance(fit, Fit):
            raise InputError(f"cannot compare a {type(fit).__name__}: expected fits of one run")
    first = fits[0]
    for other in fits[1:]:
        columns = ["step", "reward"]
        if not first.run.table[columns].equals(other.run.table[columns]):
            raise InputError(
                f"fits of different data cannot be compared: '{first.run.name}' "
                f"({first.model.name}) and '{other.run.name}' ({other.model.name}) differ in their "
                "rows"
            )
        # Rows that one clock averages are one row there and several here.
        if len(first.bound[1].rows) != len(other.bound[1].rows):
            raise InputError(
                f"models '{first.model.name}' and '{other.model.name}' see other rows of "
                f"'{first.run.name}': fit them with the same settings"
            )
        if first.horizon != other.horizon:
            raise InputError(
                f"fits have different planned lengths, {first.horizon} and {other.horizon}: their "
                "priors differ; fit them with the same horizon"
            )


def _distinct(names: list[str]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        copies = sum(f == name or f.startswith(f"{name} (") for f in found)
        found.append(name if not copies else f"{name} ({copies + 1})")
    return tuple(found)
