"""Checks of a fit in numbers: residuals, their autocorrelation, and one table of verdicts.

All rest on predictions of each row from the rows before it, whose states are integrated out.  The
parameters are those of the fit and so have seen every row: checks are a little too kind, the more
so the fewer the rows.  `bayes_grpo.leave_future_out` gives the predictions without that.
"""

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.fit import Fit
from bayes_grpo.one_step import RowPredictions, affordable, one_fit, predict_rows
from bayes_grpo.residual_statistics import (
    LEAST_PAIRS,
    autocorrelation,
    mixture,
    two_sided,
    verdicts,
)
from bayes_grpo.sensitivity import THRESHOLD, sensitivity
from bayes_grpo.timeline import Timeline

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of a predictive distribution that a table shows."""

FINE = "as expected"

NAMED = 3
"""Quantities that a verdict names."""


def residuals(fit: Fit, seed: int = 0) -> pd.DataFrame:
    """Errors of the predictions of each row from the rows before it.

    The prediction is the mixture over posterior draws of the parameters, the states given only the
    earlier rows.  The parameters have seen all rows: what z and pit look like without that,
    strictly out of sample, is in `bayes_grpo.leave_future_out`.

    Parameters
    ----------
    fit
        The fit; a stack is refused: check each of its fits.
    seed
        Of the choice of at most 2,000 draws.

    Returns
    -------
    pandas.DataFrame
        One row a rewarded row: ``step``, ``reward``, ``mean`` and ``sd`` of the prediction, ``z``
        (error over sd), ``pit`` (predictive probability of a smaller reward). If the model is
        right, z is about standard normal and pit uniform, and neither remembers the row before.

    Raises
    ------
    InputError
        If it is not a fit.
    """
    _, rows, reward = _predictions(fit, seed, "residuals")
    found = mixture(rows.mean, rows.sd, reward)
    steps = fit.run.table["step"].to_numpy()[fit.bound[1].rows]
    table = pd.DataFrame({"step": steps, "reward": reward, **found._asdict()})
    table.attrs["convergence"] = str(fit.convergence)
    return table


def residual_autocorrelation(fit: Fit, lags: int = 20, seed: int = 0) -> pd.DataFrame:
    """Autocorrelation of the one-step errors, beside that of runs of the model itself.

    Replicates are whole runs simulated from posterior draws, each filtered with its own draw's
    parameters.  The standardised one-step errors of such a run are independent standard normals,
    exactly and whatever the draw, so they are drawn as that.

    Parameters
    ----------
    fit
        The fit; a stack is refused.
    lags
        Largest lag, in logged rows; a row without a reward keeps its place.
    seed
        Of the choice of at most 2,000 draws, and of the replicates.

    Returns
    -------
    pandas.DataFrame
        One row a lag: ``lag``, ``pairs`` of rows, ``autocorrelation`` of the z-scores of
        `residuals`, quantiles ``q05`` ... ``q95`` of the replicates, and ``p``, the two-sided
        posterior predictive p-value: small where the errors remember more, or the opposite of,
        what the model allows. It compares each draw's errors with its own replicate's, and is a
        little too large as the parameters were fitted to the rows. NaN at lags of fewer than 3
        pairs.

    Raises
    ------
    InputError
        If it is not a fit, or lags is not between 1 and the number of logged rows less 3.
    """
    timeline, rows, reward = _predictions(fit, seed, "residual_autocorrelation")
    total = len(fit.run)
    most = max(1, total - LEAST_PAIRS)
    if not isinstance(lags, int | np.integer) or not 1 <= lags <= most:
        raise InputError(
            f"run '{fit.run.name}': lags is {lags!r}: expected a whole number from 1 to {most}, "
            f"as there are {total} rows"
        )
    errors = (reward - rows.mean) / rows.sd
    replicated = np.random.default_rng((seed, 1)).standard_normal(errors.shape)
    place = timeline.rows
    each, _ = autocorrelation(errors, place, total, lags)
    replicates, pairs = autocorrelation(replicated, place, total, lags)
    z = mixture(rows.mean, rows.sd, reward).z
    table = pd.DataFrame(
        {
            "lag": np.arange(1, lags + 1),
            "pairs": pairs,
            "autocorrelation": autocorrelation(z[None], place, total, lags)[0][0],
        }
    )
    bands = np.quantile(replicates, LEVELS, axis=0)
    for level, band in zip(LEVELS, bands, strict=True):
        table[f"q{100 * level:02.0f}"] = band
    table["p"] = np.where(pairs >= LEAST_PAIRS, two_sided(replicates, each), np.nan)
    table.attrs["convergence"] = str(fit.convergence)
    return table


def check(fit: Fit, seed: int = 0) -> pd.DataFrame:
    """Check a fit: does the model predict its own run as well as it says.

    Parameters
    ----------
    fit
        The fit; a stack is refused.
    seed
        Of everything random.

    Returns
    -------
    pandas.DataFrame
        One row a check: ``value``, the range ``low`` to ``high`` in which 95 % of the runs of a
        true model lie, ``verdict`` in words.

        ``inside50``, ``inside90``
            Share of the rows inside the bands one step ahead.
        ``pit_uniform``
            p of the Kolmogorov-Smirnov test that pit is uniform. Approximate: the parameters were
            fitted to the rows, which makes p too large.
        ``mean_z``, ``sd_z``
            Of the one-step errors over their sd.
        ``lag1_p``
            p of the autocorrelation of neighbouring errors, see `residual_autocorrelation`.
        ``largest_z``
            The largest error over its sd, with its step.
        ``prior_sensitivity``
            The largest of `bayes_grpo.sensitivity` and whether data or prior decide.

        ``attrs["convergence"]`` says whether the fit may be used at all.

    Raises
    ------
    InputError
        If it is not a fit.
    """
    found = residuals(fit, seed)
    lag = residual_autocorrelation(fit, 1, seed).iloc[0]
    rows = [*verdicts(found["z"].to_numpy(), found["pit"].to_numpy(), found["step"].to_numpy())]
    memory = "errors run in a row" if lag["autocorrelation"] > 0 else "errors alternate"
    unknown = "unknown: no neighbouring rows" if np.isnan(lag["p"]) else memory
    rows.insert(5, ("lag1_p", lag["p"], 0.05, 1.0, unknown))
    table = pd.DataFrame(rows, columns=["check", "value", "low", "high", "verdict"])
    inside = (table["value"] >= table["low"]) & (table["value"] <= table["high"])
    table["verdict"] = np.where(inside, FINE, table["verdict"])
    table.loc[len(table)] = _prior_row(fit)
    table = table.set_index("check")
    table.attrs["convergence"] = str(fit.convergence)
    return table


def _predictions(fit: Fit, seed: int, what: str) -> tuple[Timeline, RowPredictions, np.ndarray]:
    """Clock, predictions of the rewarded rows by some draws, and the rewards."""
    one_fit(fit, what)
    timeline = fit.bound[1]
    draws = fit.parameter_draws
    total = len(next(iter(draws.values())))
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(total, affordable(fit, total), replace=False))
    rows = predict_rows(fit, {name: values[chosen] for name, values in draws.items()})
    return timeline, rows, np.asarray(timeline.ticks.reward)[timeline.row_tick]


def _prior_row(fit: Fit) -> tuple[str, float, float, float, str]:
    """Say whether the prior decides anything that the fit reports."""
    table = sensitivity(fit)
    moved = table[table["prior"] >= THRESHOLD]
    weak = list(moved.index[moved["likelihood"] < THRESHOLD])
    who, names = ("prior decides", weak) if weak else ("prior and data decide", list(moved.index))
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    words = FINE if moved.empty else f"{who} {', '.join(names[:NAMED])}{more}"
    return "prior_sensitivity", float(table["prior"].max()), 0.0, THRESHOLD, words
