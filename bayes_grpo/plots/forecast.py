"""Where the reward goes from here: the log, the smoothed curve, the forecast and the plateau."""

from typing import TYPE_CHECKING

import numpy as np

from bayes_grpo.forecasting import Forecaster
from bayes_grpo.outlook import (
    Interval,
    count,
    last_forecast_step,
    number,
    plateau,
    relaxation_steps,
)
from bayes_grpo.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORECAST_POINTS = 200
"""Steps at which the forecast is drawn."""


def plot_forecast(fit: Forecaster, ax: "Axes | None" = None, horizon: int | None = None) -> "Axes":
    """Plot the logged rewards, what they say about the reward so far, and the forecast.

    Parameters
    ----------
    fit
        The fit, or a stack of fits.
    ax
        Axes to draw into; None: a new figure.
    horizon
        Last step of the forecast; None: the planned last step, or a quarter beyond the log if that
        is reached.

    Returns
    -------
    matplotlib.axes.Axes
        Blue: reward without sampling noise (median, 50 % and 90 % bands). Vermilion: its forecast,
        and in the faintest shade the 90 % band of rows to be logged. Green: the plateau, if there
        is one.

    Raises
    ------
    InputError
        If the horizon is not beyond the end of the log.
    """
    end = last_forecast_step(fit, horizon)
    ax = style.new_axes() if ax is None else ax
    observed = fit.idata["observed_data"]["reward"]
    steps, rewards = observed["step"].to_numpy(), observed.to_numpy()
    last = int(fit.run.table["step"].iloc[-1])

    style.rows(ax, steps, rewards)
    shown = style.thinned(len(steps))
    smoothed = style.quantiles(style.flat_draws(fit, "smoothed")[:, shown])
    style.band(ax, steps[shown], smoothed, style.BLUE, "reward without sampling noise (50 %, 90 %)")
    future = np.linspace(last + 1, end, min(end - last, FORECAST_POINTS)).round().astype(np.int64)
    mean, rows = fit.forecast_draws(future)
    # From the last logged row on, so that the curve has no gap.
    joined = np.concatenate([smoothed[:, -1:], style.quantiles(mean)], axis=1)
    style.band(
        ax, np.append(steps[-1], future), joined, style.VERMILION, "its forecast (50 %, 90 %)"
    )
    low, high = np.quantile(rows, (0.05, 0.95), axis=0)
    ax.fill_between(
        np.append(future[0] - 0.5, future) if len(future) == 1 else future,
        np.repeat(low, 2) if len(future) == 1 else low,
        np.repeat(high, 2) if len(future) == 1 else high,
        color=style.VERMILION,
        alpha=style.FAINT,
        linewidth=0,
        zorder=1,
        label="logged rows to come (90 %)",
    )
    level = plateau(fit)
    if fit.relaxes:
        _plateau(ax, level, float(steps[0]), float(end))
        line = f"plateau {level}"
        if "relaxation_time" in fit.idata["posterior"]:
            time = relaxation_steps(fit)
            between = f"(90 %: {count(time.low)} to {count(time.high)})"
            line = f"{line}; relaxation time {count(time.median)} steps {between}"
    else:
        line = f"reward now {level}; this model has no plateau"
    _start_of_forecast(ax, last, rewards)
    style.finish(ax, fit, line)
    style.legend_below(ax)
    return ax


def _plateau(ax: "Axes", level: Interval, first: float, end: float) -> None:
    """Draw the plateau as a line, with its 90 % interval as a bracket at the right edge."""
    width = max(end - first, 1.0)
    at = end + 0.025 * width
    ax.plot(
        [first, at], [level.median] * 2, color=style.GREEN, linewidth=1.2, linestyle=(0, (5, 3)),
        label="plateau (90 %)", zorder=2.5,
    )  # fmt: skip
    arm = 0.008 * width
    ax.plot(
        [at - arm, at + arm, at, at, at - arm, at + arm],
        [level.high, level.high, level.high, level.low, level.low, level.low],
        color=style.GREEN,
        linewidth=1.8,
        zorder=4,
    )
    ax.plot([at], [level.median], color=style.GREEN, marker="o", markersize=5, zorder=4)
    ax.set_xlim(first - 0.02 * width, at + 0.015 * width)
    ax.annotate(
        f"plateau\n{number(level.median)}\n({number(level.low)} to\n{number(level.high)})",
        (at, level.median),
        xytext=(10, 0),
        textcoords="offset points",
        va="center",
        fontsize=9.5,
        color="#00664B",
        annotation_clip=False,
    )


def _start_of_forecast(ax: "Axes", last: int, rewards: np.ndarray) -> None:
    ax.axvline(last, color=style.INK, linewidth=0.9, linestyle=":", zorder=2)
    left, right = ax.get_xlim()
    low, high = ax.get_ylim()
    ends_high = np.median(rewards[-max(1, len(rewards) // 5) :]) > (low + high) / 2
    beside_left = (last - left) / (right - left) > 0.7
    ax.annotate(
        f"forecast from step {last + 1}" if not beside_left else f"log ends at step {last}",
        (last, 0.02 if ends_high else 0.98),
        xycoords=ax.get_xaxis_transform(),
        xytext=(-5 if beside_left else 5, 0),
        textcoords="offset points",
        ha="right" if beside_left else "left",
        va="bottom" if ends_high else "top",
        fontsize=9,
        color=style.INK,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5},
        zorder=5,
    )
