"""Which steps a forecast is for, and its draws as a table."""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import numpy as np
import pandas as pd
import xarray as xr

from bayes_grpo.convergence import Convergence
from bayes_grpo.errors import InputError
from bayes_grpo.run import Run
from bayes_grpo.timeline import check_distance

type Kind = Literal["observed", "mean"]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

MAX_FUTURE_ROWS = 400
"""Rows of a forecast whose steps were not listed."""


class Forecaster(Protocol):
    """What plots and tables of a forecast ask for: a `Fit`, or a `Stack` of fits."""

    @property
    def run(self) -> Run:
        """The run that is forecast."""

    @property
    def horizon(self) -> int:
        """Planned last step."""

    @property
    def name(self) -> str:
        """Name of the model, for titles."""

    @property
    def relaxes(self) -> bool:
        """Whether there is a plateau that the reward comes closer to."""

    @property
    def convergence(self) -> Convergence:
        """Whether it may be used."""

    @property
    def idata(self) -> xr.DataTree:
        """Groups posterior, smoothed, posterior_predictive, observed_data and constant_data."""

    def forecast_draws(self, steps: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws of future rows without and with sampling noise, shape (draws, steps)."""


def future_steps(run: Run, horizon: int, steps: int | Iterable[int] | None) -> np.ndarray:
    """Steps of a forecast.

    Parameters
    ----------
    run
        The run.
    horizon
        Planned last step.
    steps
        How many steps ahead, or the steps themselves; None: to the planned last step.

    Returns
    -------
    ndarray
        Rising, beyond the end of the log; at most `MAX_FUTURE_ROWS` where they were not listed.

    Raises
    ------
    InputError
        If a step is not beyond the end of the log, or absurdly far away.
    """
    table = run.table
    last = int(table["step"].iloc[-1])
    spacing = max(1, int(table["step"].diff().median()))
    if steps is None or isinstance(steps, int | np.integer):
        ahead = horizon - last if steps is None else int(steps)
        if steps is not None and ahead < 1:
            raise InputError(f"forecast steps is {steps}: expected at least 1 step ahead")
        if ahead < 1:
            raise InputError(
                f"run '{run.name}': nothing to forecast: the planned last step is "
                f"{horizon} and the log goes to {last}; give more steps"
            )
        rows = max(1, ahead // spacing)
        thin = -(-rows // MAX_FUTURE_ROWS)
        wanted = np.arange(last + ahead, last, -spacing * thin, dtype=float)[::-1]
    else:
        wanted = np.asarray(list(steps), dtype=float)
        if wanted.size == 0:
            raise InputError("forecast steps are empty: expected at least one step")
        if not np.all(np.equal(np.mod(wanted, 1), 0)):
            raise InputError("forecast steps must be whole numbers")
    settings = run.settings
    batches = (wanted[-1] - last) * settings.updates_per_step / settings.refresh_interval
    check_distance(run.name, batches, wanted[-1])
    if wanted[0] <= last or np.any(np.diff(wanted) <= 0):
        raise InputError(
            f"run '{run.name}': forecast steps must rise from beyond the last logged step "
            f"{last}, found {wanted[0]:g} ... {wanted[-1]:g}"
        )
    return wanted.astype(np.int64)


def forecast_table(
    steps: np.ndarray,
    draws: tuple[np.ndarray, np.ndarray],
    kind: Kind,
    quantiles: Sequence[float],
) -> pd.DataFrame:
    """Put the draws of a forecast into a table.

    Parameters
    ----------
    steps
        Shape (steps,).
    draws
        Reward without and with sampling noise, shape (draws, steps) each.
    kind
        Which of the two: ``"mean"`` or ``"observed"``.
    quantiles
        Each in [0, 1].

    Returns
    -------
    pandas.DataFrame
        Columns step, mean, sd, and ``q05``, ``q25``, ... for the quantiles.

    Raises
    ------
    InputError
        If kind or a quantile is not known.
    """
    if kind not in ("observed", "mean"):
        raise InputError(f"forecast kind is {kind!r}: expected 'observed' or 'mean'")
    check_quantiles(quantiles, "forecast")
    chosen = draws[1] if kind == "observed" else draws[0]
    columns = {
        f"q{100 * q:04.1f}".removesuffix(".0"): np.quantile(chosen, q, axis=0) for q in quantiles
    }
    return pd.DataFrame(
        {"step": steps, "mean": chosen.mean(axis=0), "sd": chosen.std(axis=0), **columns}
    )


def check_quantiles(quantiles: Sequence[float], what: str) -> None:
    """Refuse what is not a probability; raises `InputError`."""
    try:
        fine = all(0 <= q <= 1 for q in quantiles)
    except TypeError:
        fine = False
    if not fine:
        raise InputError(f"{what} quantiles are {quantiles!r}: expected numbers in [0, 1]")
