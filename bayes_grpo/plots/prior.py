"""What a model says before the fit, beside what it says after it and what was logged."""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from arviz_stats.base.array import array_stats

from bayes_grpo.errors import InputError
from bayes_grpo.fit import Fit
from bayes_grpo.one_step import one_fit
from bayes_grpo.outlook import Interval
from bayes_grpo.plots import style
from bayes_grpo.results import SUMMARY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWS = 4000
"""Draws from the prior, where a fit holds none."""

CURVES = 2
DECADES = 2.0
"""Spread of a positive quantity from which on it is drawn over its logarithm."""


def plot_prior_posterior(fit: Fit, quantity: str = "plateau", ax: "Axes | None" = None) -> "Axes":
    """Plot prior and posterior of a quantity: what the run has added to what was assumed.

    Parameters
    ----------
    fit
        The fit; its own prior draws are used if it has any (`Fit.with_prior`).
    quantity
        A quantity of the summary.
    ax
        Axes to draw into; None: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Densities; with bars for the 90 % intervals. A positive quantity whose prior spreads over
        more than two decades is drawn over its logarithm.

    Raises
    ------
    InputError
        If it is not a fit, or the quantity is not in its summary or fixed.
    """
    one_fit(fit, "prior and posterior")
    posterior = fit.idata["posterior"]
    known = [name for name in SUMMARY if name in posterior]
    if quantity not in known:
        raise InputError(
            f"model '{fit.name}' has no quantity {quantity!r} in its summary; it has "
            f"{', '.join(known)}"
        )
    drawn = fit if "prior" in fit.idata.children else fit.with_prior(DRAWS)
    before = drawn.idata["prior"][quantity].to_numpy().reshape(-1)
    after = posterior[quantity].to_numpy().reshape(-1)
    if np.ptp(after) == 0 or np.ptp(before) == 0:
        raise InputError(
            f"{quantity} is fixed in model '{fit.name}', at {after[0]:.4g}: it has no prior"
        )
    ax = style.new_axes() if ax is None else ax
    logarithmic = _long_tailed(np.concatenate([before, after]))
    bounds = fit.run.settings.reward_bounds if SUMMARY[quantity] == "reward" else None
    at_bounds = 0.0
    tallest = []
    for draws, color, label in (
        (before, style.ORANGE, "prior (90 %)"),
        (after, style.BLUE, "posterior (90 %)"),
    ):
        x, density, outside = _density(draws, bounds, logarithmic)
        at_bounds = max(at_bounds, outside)
        ax.fill_between(x, density, color=color, alpha=style.NARROW, linewidth=0, zorder=2)
        ax.plot(x, density, color=color, linewidth=1.8, label=label, zorder=3)
        tallest.append(density.max())
    top = max(tallest)
    for row, (draws, color) in enumerate(((before, style.ORANGE), (after, style.BLUE))):
        interval = Interval.of(draws)
        height = -0.04 * top * (row + 1)
        ax.plot([interval.low, interval.high], [height] * 2, color=color, linewidth=3, zorder=3)
        ax.plot([interval.median], [height], color=color, marker="o", markersize=6, zorder=4)
    style.axes(ax)
    _span(ax, before, after, logarithmic)
    ax.set_ylim(-0.12 * top, 1.05 * top)
    ax.set_yticks([tick for tick in ax.get_yticks() if 0 <= tick <= 1.05 * top])
    unit = "" if SUMMARY[quantity] == "1" else f" ({SUMMARY[quantity]})"
    ax.set_xlabel(f"{quantity}{unit}")
    ax.set_ylabel("density per decade" if logarithmic else "density")
    subtitle = f"{_gain(before, after, logarithmic)}: {Interval.of(after)}"
    if at_bounds >= 0.005:
        subtitle += f"; {100 * at_bounds:.0f} % of the prior beyond the reward's bounds, not drawn"
    style.head(ax, fit.run.name, fit.name, subtitle, fit.convergence.converged)
    style.legend_below(ax)
    return ax


def plot_prior_predictive(source: xr.DataTree | Fit, ax: "Axes | None" = None) -> "Axes":
    """Plot logs that a model may produce before it has seen the rewards, beside the real one.

    Parameters
    ----------
    source
        From `bayes_grpo.prior_predictive`, or a fit.
    ax
        Axes to draw into; None: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Median, 50 % and 90 % bands of the logs, a few single ones, and the logged rows.

    Raises
    ------
    InputError
        If it is neither.
    """
    if isinstance(source, Fit):
        fit = source if "prior_predictive" in source.idata.children else source.with_prior(DRAWS)
        source = fit.idata
    if not isinstance(source, xr.DataTree) or "prior_predictive" not in source.children:
        raise InputError(
            f"prior predictive of a {type(source).__name__}: expected what "
            "bayes_grpo.prior_predictive returns, or a fit"
        )
    ax = style.new_axes() if ax is None else ax
    observed = source["observed_data"]["reward"]
    steps, rewards = observed["step"].to_numpy(), observed.to_numpy()
    draws = source["prior_predictive"]["reward"].to_numpy().reshape(-1, len(steps))
    shown = style.thinned(len(steps))
    style.band(
        ax,
        steps[shown],
        style.quantiles(draws[:, shown]),
        style.ORANGE,
        "logs from the prior (median, 50 %, 90 %)",
    )
    for number, one in enumerate(draws[:CURVES]):
        ax.plot(steps[shown], one[shown], color=style.VERMILION, linewidth=0.6, alpha=0.45,
                zorder=2.5, label=None if number else "single logs")  # fmt: skip
    style.rows(ax, steps, rewards).set(zorder=4, color=style.INK)  # the bands cover all
    low, high = np.quantile(draws, (0.05, 0.95), axis=0)
    inside = float(np.mean((rewards >= low) & (rewards <= high)))
    style.axes(ax)
    ax.set_xlabel("optimizer step")
    ax.set_ylabel("reward")
    style.head(
        ax,
        str(source.attrs["run"]),
        str(source.attrs["model"]),
        f"before the fit: {100 * inside:.0f} % of the logged rows lie inside the 90 % band of logs "
        "that the prior allows",
        True,
    )
    style.legend_below(ax)
    return ax


def _long_tailed(draws: np.ndarray) -> bool:
    if draws.min() <= 0:
        return False
    low, high = np.quantile(draws, (0.005, 0.995))
    return bool(np.log10(high / low) > DECADES)


def _density(
    draws: np.ndarray, bounds: tuple[float, float] | None, logarithmic: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """Places, density there, and the share of draws that lie at a bound and are left out."""
    inside = draws
    if bounds is not None:
        inside = draws[(draws > bounds[0]) & (draws < bounds[1])]
    share = len(inside) / len(draws)
    if np.unique(inside).size < 2:
        return np.unique(draws), np.zeros(len(np.unique(draws))), 1 - share
    x, density, _ = array_stats.kde(np.log10(inside) if logarithmic else inside)
    return 10**x if logarithmic else x, share * density, 1 - share


def _span(ax: "Axes", before: np.ndarray, after: np.ndarray, logarithmic: bool) -> None:
    """Show the posterior whole, and the prior without its farthest tails."""
    from matplotlib.ticker import NullFormatter

    low = min(np.quantile(before, 0.005), np.quantile(after, 0.001))
    high = max(np.quantile(before, 0.98), np.quantile(after, 0.999))
    if logarithmic:
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlim(low, max(high, np.quantile(before, 0.995)))
    else:
        margin = 0.02 * (high - low)
        ax.set_xlim(low - margin, high + margin)


def _gain(before: np.ndarray, after: np.ndarray, logarithmic: bool) -> str:
    """Say how much narrower the run has made it."""
    if logarithmic:
        before, after = np.log(before), np.log(after)
    widths = [np.ptp(np.quantile(draws, (0.05, 0.95))) for draws in (before, after)]
    if widths[0] == 0:
        return "posterior"
    ratio = widths[1] / widths[0]
    scale = ", in its logarithm," if logarithmic else ""
    if ratio > 0.8:
        return "the run says little beyond the prior"
    return f"the run has narrowed the 90 % interval{scale} to {100 * ratio:.0f} % of the prior's"
