"""A fit as files and as numbers for other programs."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from bayes_grpo.files import write_whole
from bayes_grpo.fit import Fit
from bayes_grpo.forecasting import Forecaster
from bayes_grpo.outlook import in_words, last_forecast_step

DPI = 120


def forecast_table(fit: Fit, horizon: int | None = None) -> pd.DataFrame:
    """Forecast of logged rows, with quantiles of the reward without sampling noise beside them.

    Parameters
    ----------
    fit
        The fit.
    horizon
        Last step; None: see `bayes_grpo.outlook.last_forecast_step`.

    Returns
    -------
    pandas.DataFrame
        The columns of ``Fit.forecast``, and ``mean_q05``, ``mean_q25``, ...
    """
    ahead = last_forecast_step(fit, horizon) - int(fit.run.table["step"].iloc[-1])
    table = fit.forecast(ahead)
    mean = fit.forecast(ahead, kind="mean").filter(regex="^q")
    return table.join(mean.add_prefix("mean_"))


def write_results(fit: Fit, folder: Path, horizon: int | None = None) -> dict[str, Path]:
    """Write fit.nc, summary.csv, forecast.csv and forecast.png, each whole or not at all.

    Parameters
    ----------
    fit
        The fit. Where it did not converge, the tables say so in a column ``converged``, the picture
        in red, and the netCDF file in its attribute ``convergence``.
    folder
        Made if need be.
    horizon
        Last step of the forecast.

    Returns
    -------
    dict
        Path of each file by its name.
    """
    forecast = forecast_table(fit, horizon)
    fit.idata.attrs["convergence"] = str(fit.convergence)
    return {
        "fit.nc": fit.save(folder / "fit.nc"),
        "summary.csv": write_table(fit, fit.summary(), folder / "summary.csv", index=True),
        "forecast.csv": write_table(fit, forecast, folder / "forecast.csv"),
        "forecast.png": write_picture(fit, folder / "forecast.png", horizon),
    }


def write_table(fit: Fit, table: pd.DataFrame, path: Path, index: bool = False) -> Path:
    """Write a table of a fit as CSV, with a column that says whether the fit may be used."""
    marked = table.assign(converged=fit.convergence.converged)
    return write_whole(path, lambda at: marked.to_csv(at, index=index))


def write_picture(fit: Forecaster, path: Path, horizon: int | None = None) -> Path:
    """Write the plot of the forecast as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from bayes_grpo.plots import plot_forecast
    from bayes_grpo.plots.style import SIZE

    figure, ax = plt.subplots(figsize=SIZE, layout="constrained")
    try:
        plot_forecast(fit, ax, horizon)
        return write_whole(path, lambda at: figure.savefig(at, dpi=DPI))
    finally:
        plt.close(figure)


def as_numbers(fit: Fit, forecast: pd.DataFrame) -> dict[str, Any]:
    """Everything that the terminal shows of a fit, for `to_json`.

    Parameters
    ----------
    fit
        The fit.
    forecast
        Its forecast.

    Returns
    -------
    dict
    """
    convergence = fit.convergence
    return {
        "run": fit.run.name,
        "source": fit.run.source,
        "model": fit.model.name,
        "seed": fit.seed,
        "horizon": fit.horizon,
        "rows": len(fit.run),
        "last_step": int(fit.run.table["step"].iloc[-1]),
        "converged": convergence.converged,
        "convergence": {**vars(convergence), "text": str(convergence)},
        "in_words": in_words(fit),
        "cautions": list(fit.run.cautions),
        "notes": list(fit.notes),
        "settings": json.loads(fit.run.settings.to_json()),
        "summary": fit.summary().to_dict(orient="index"),
        "forecast": forecast.to_dict(orient="list"),
    }
