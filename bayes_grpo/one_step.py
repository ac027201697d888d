"""Predictions of every logged row of a fitted run from the rows before it."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bayes_grpo.errors import InputError
from bayes_grpo.fit import Fit
from bayes_grpo.posterior import one_step_ahead
from bayes_grpo.precision import float64

MOST_DRAWS = 2000
CELLS = 4_000_000
"""Draws times ticks of which predictions are kept: bounds the memory that long runs need."""


class RowPredictions(NamedTuple):
    """One-step-ahead predictions of the rewarded rows, shape (draws, rows) each.

    Parameters
    ----------
    mean, sd
        Of the row's reward given the rows before it and the parameters of the draw.
    log_density
        Of the logged reward.
    """

    mean: np.ndarray
    sd: np.ndarray
    log_density: np.ndarray


def affordable(fit: Fit, total: int) -> int:
    """How many of a number of draws are predicted from: fewer for a long run, at least 100."""
    return min(max(100, min(MOST_DRAWS, CELLS // len(fit.bound[2].ticks.reward))), total)


def predict_rows(fit: Fit, draws: Mapping[str, np.ndarray]) -> RowPredictions:
    """Predict every rewarded row from the rows before it; the states are integrated out.

    Parameters
    ----------
    fit
        The fit: its run and its model.
    draws
        Draws in the priors' own units, shape (draws,) each.

    Returns
    -------
    RowPredictions
    """
    program, timeline, data = fit.bound
    rows = timeline.row_tick - len(timeline.ticks.reward)  # padding stands before the run
    with float64():
        mean, variance, density = (a[:, rows] for a in one_step_ahead(program, data, draws))
    return RowPredictions(mean, np.sqrt(variance), density)


def one_fit(fit: object, what: str) -> None:
    """Refuse what is not a fit, such as a stack of fits; raises `InputError`."""
    if not isinstance(fit, Fit):
        raise InputError(
            f"{what} of a {type(fit).__name__}: expected a fit; of a stack, ask for each of its "
            "fits"
        )
