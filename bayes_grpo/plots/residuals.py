"""Residuals of a fit: what is left of each row when the rows before it are known."""

from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from scipy.stats import binom

from bayes_grpo.checks import residual_autocorrelation, residuals
from bayes_grpo.errors import InputError
from bayes_grpo.fit import Fit
from bayes_grpo.outlook import number
from bayes_grpo.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = ("z", "pit", "autocorrelation")

LARGE = 2.0
"""Errors over their sd from which on points stand out: 5 % of the rows of a true model."""

BAND = 1.645
"""Errors over their sd that 90 % of the rows of a true model stay within."""

BINS = 20
LAGS = 20
CURVE = 0.1
"""Share of the rows that the running mean averages."""


def plot_residuals(
    fit: Fit,
    ax: "Axes | None" = None,
    kind: Literal["z", "pit", "autocorrelation"] = "z",
) -> "Axes":
    """Plot the errors of one-step predictions against what the model says they should be.

    Parameters
    ----------
    fit
        The fit; a stack is refused.
    ax
        Axes to draw into; None: a new figure.
    kind
        ``"z"``: error of each row over its predictive sd, with the band of 90 % (±1.64), lines at
        ±2, and their running mean over a tenth of the rows. ``"pit"``: histogram of the predictive
        probability of a smaller reward, with the 90 % band of a uniform one. ``"autocorrelation"``:
        that of the errors, with the 50 % and 90 % bands of runs of the model itself.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the kind is not known, it is not a fit, or has too few rows for an autocorrelation.
    """
    if kind not in KINDS:
        raise InputError(f"kind of plot is {kind!r}: expected 'z', 'pit' or 'autocorrelation'")
    if kind == "autocorrelation":
        table = residual_autocorrelation(fit, min(LAGS, max(1, len(fit.run) // 3)))
    else:
        table = residuals(fit)
    ax = style.new_axes() if ax is None else ax
    draw = {"z": _scores, "pit": _pit, "autocorrelation": _autocorrelation}[kind]
    subtitle = draw(ax, table)
    style.axes(ax)
    if kind == "pit":
        ax.set_xticks(np.linspace(0, 1, 6))
    elif kind == "autocorrelation":
        ticks = np.linspace(1, len(table), min(len(table), 7)).round()
        ax.set_xticks(np.unique(ticks))
    style.head(ax, fit.run.name, fit.name, subtitle, fit.convergence.converged)
    style.legend_below(ax)
    return ax


def _scores(ax: "Axes", table: pd.DataFrame) -> str:
    steps, z = table["step"].to_numpy(), table["z"].to_numpy()
    ax.axhspan(-BAND, BAND, color=style.BLUE, alpha=style.WIDE, linewidth=0, zorder=1,
               label="90 % of the errors of a true model")  # fmt: skip
    for side in (-LARGE, LARGE):
        ax.axhline(side, color=style.BLUE, linewidth=1.0, linestyle=(0, (5, 3)), zorder=1.2,
                   label="±2" if side > 0 else None)  # fmt: skip
    ax.axhline(0, color=style.INK, linewidth=0.9, zorder=1.3)
    style.rows(ax, steps, z, "error of a row")
    large = np.abs(z) > LARGE
    if large.any():
        ax.plot(steps[large], z[large], linestyle="none", marker="o", markersize=4.5,
                color=style.VERMILION, markeredgewidth=0, zorder=3,
                label="beyond ±2")  # fmt: skip
    width = max(3, round(CURVE * len(z)))
    if len(z) >= 2 * width:
        mean = np.convolve(z, np.ones(width) / width, mode="valid")
        middle = np.convolve(steps, np.ones(width) / width, mode="valid")
        shown = style.thinned(len(mean))
        ax.plot(middle[shown], mean[shown], color=style.GREEN, linewidth=1.8, zorder=3.5,
                label=f"mean of {width} rows")  # fmt: skip
    edge = max(3.2, 1.08 * float(np.abs(z).max()))
    ax.set_ylim(-edge, edge)
    ax.set_xlabel("optimizer step")
    ax.set_ylabel("error / predictive sd")
    inside = float(np.mean(np.abs(table["pit"] - 0.5) <= 0.45))
    worst = int(np.argmax(np.abs(z)))
    return (
        f"each row predicted from the rows before it: {100 * inside:.0f} % lie inside their 90 % "
        f"band; the largest error is {number(float(z[worst]), 2)} sd, at step {steps[worst]}"
    )


def _pit(ax: "Axes", table: pd.DataFrame) -> str:
    pit = table["pit"].to_numpy()
    bins = min(BINS, max(5, len(pit) // 10))
    low, high = binom.ppf((0.05, 0.95), len(pit), 1 / bins)
    ax.axhspan(low, high, color=style.BLUE, alpha=style.WIDE, linewidth=0, zorder=1,
               label="90 % band of a uniform distribution")  # fmt: skip
    ax.axhline(len(pit) / bins, color=style.BLUE, linewidth=1.8, zorder=2, label="uniform")
    counts, edges = np.histogram(np.clip(pit, 0, 1), bins, range=(0, 1))
    ax.stairs(counts, edges, color=style.INK, linewidth=2, zorder=3, label="logged rows")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.1 * max(counts.max(), high))
    ax.set_xlabel("predictive probability of a smaller reward")
    ax.set_ylabel("rows")
    outside = int(np.sum((counts < low) | (counts > high)))
    return (
        f"where rows stand in the predictions from the rows before them: {outside} of {bins} bins "
        f"outside their 90 % band (about {number(0.1 * bins, 1)} expected); hump: bands too wide, "
        "bowl: too narrow, slope: biased"
    )


def _autocorrelation(ax: "Axes", table: pd.DataFrame) -> str:
    lags = table["lag"].to_numpy()
    found = table["autocorrelation"].to_numpy()
    known = ~np.isnan(table["p"].to_numpy())
    for low, high, opacity, label in (
        ("q05", "q95", style.WIDE, "runs of the model itself (50 %, 90 %)"),
        ("q25", "q75", style.NARROW, None),
    ):
        bottom, top = table[low].to_numpy(), table[high].to_numpy()
        ax.bar(lags[known], (top - bottom)[known], bottom=bottom[known], width=0.92,
               color=style.BLUE, alpha=opacity, linewidth=0, zorder=1, label=label)  # fmt: skip
    ax.axhline(0, color=style.INK, linewidth=0.9, zorder=2)
    far = known & (table["p"].to_numpy() < 0.05)
    for chosen, color, label in (
        (known & ~far, style.INK, "this run"),
        (far, style.VERMILION, "this run, p below 0.05"),
    ):
        if chosen.any():
            ax.vlines(lags[chosen], 0, found[chosen], color=color, linewidth=2.2, zorder=3)
            ax.plot(lags[chosen], found[chosen], linestyle="none", marker="o", markersize=5,
                    color=color, zorder=3, label=label)  # fmt: skip
    ax.set_xlim(0.3, lags[-1] + 0.7)
    if known.any():
        edge = table.loc[known, ["autocorrelation", "q05", "q95"]].abs().to_numpy().max()
        ax.set_ylim(-1.1 * edge, 1.1 * edge)
    ax.set_xlabel("lag (logged rows)")
    ax.set_ylabel("autocorrelation of errors")
    if not known.any():
        return "autocorrelation of one-step errors: no neighbouring rows"
    first = table[known].iloc[0]
    count = int(known.sum())
    return (
        f"do errors remember the row before? p = {number(float(first['p']), 2)} at lag "
        f"{int(first['lag'])}; {int(far.sum())} of {count} lags have p below 0.05 (about "
        f"{number(0.05 * count, 1)} expected)"
    )
