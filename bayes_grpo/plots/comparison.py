"""Models of one run side by side: how much worse than the best each predicts, and its weight."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.outlook import number
from bayes_grpo.plots import style
from bayes_grpo.stacking import Stack

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEEDED = ("difference", "difference_se", "weight")


def plot_comparison(table: pd.DataFrame | Stack, ax: "Axes | None" = None) -> "Axes":
    """Plot how much worse than the best each model predicts, with the weights beside.

    Parameters
    ----------
    table
        From `bayes_grpo.compare`, or a stack.
    ax
        Axes to draw into; None: a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        One row a model, the best on top. Dot: difference of its expected log predictive density
        to the best; thick line ±1, thin line ±2 standard errors of the difference.

    Raises
    ------
    InputError
        If it is not such a table.
    """
    if isinstance(table, Stack):
        table = table.comparison
    missing = [name for name in NEEDED if name not in getattr(table, "columns", ())]
    if missing or not len(table):
        what = f"without {', '.join(missing)}" if missing else "without rows"
        raise InputError(f"comparison {what}: expected the table of bayes_grpo.compare, or a stack")
    ax = style.new_axes() if ax is None else ax
    worse = -table["difference"].to_numpy(dtype=float)
    error = np.nan_to_num(table["difference_se"].to_numpy(dtype=float))
    at = np.arange(len(table))
    ax.axvline(0, color=style.GREY, linewidth=0.9, linestyle=":", zorder=1)
    ax.hlines(at, worse - 2 * error, worse + 2 * error, color=style.BLUE, linewidth=1.3,
              zorder=2, label="±2 standard errors")  # fmt: skip
    ax.hlines(at, worse - error, worse + error, color=style.BLUE, linewidth=4, alpha=0.55,
              zorder=2, label="±1 standard error")  # fmt: skip
    ax.plot(worse, at, linestyle="none", marker="o", markersize=7, color=style.BLUE, zorder=3,
            label="difference to the best")  # fmt: skip
    _weights(ax, table)
    style.axes(ax)
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x", color="#E6E6E6", linewidth=0.8)
    _names(ax, table)
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.set_xlabel("log predictive density, less that of the best")
    run = str(table.attrs.get("run", "comparison"))
    many = f"{len(table)} model" + "s" * (len(table) != 1)
    style.head(ax, run, many, _subtitle(table), True)
    style.legend_below(ax)
    return ax


def _names(ax: "Axes", table: pd.DataFrame) -> None:
    fine = table["converged"].to_numpy() if "converged" in table else np.ones(len(table), bool)
    names = [
        style.shorten(str(name), 30) + ("" if ok else "\ndid not converge")
        for name, ok in zip(table.index, fine, strict=True)
    ]
    ax.set_yticks(np.arange(len(table)), names)
    for label, ok in zip(ax.get_yticklabels(), fine, strict=True):
        label.set_parse_math(False)
        if not ok:
            label.set(color=style.ALARM)
    ax.tick_params(axis="y", length=0)


def _weights(ax: "Axes", table: pd.DataFrame) -> None:
    """Write the weights right of the axes, under a heading."""
    entries = [(i, f"{w:.2f}", "normal") for i, w in enumerate(table["weight"])]
    for at, text, style_of_text in [(-0.6, "weight", "italic"), *entries]:
        ax.annotate(
            text,
            (1, at),
            xycoords=ax.get_yaxis_transform(),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
            style=style_of_text,
            color=style.INK,
            annotation_clip=False,
        )


def _subtitle(table: pd.DataFrame) -> str:
    rows, first = table.attrs.get("rows"), table.attrs.get("first_step")
    what = f"{rows} rows from step {first} on, " if rows and first else "later rows, "
    line = f"{what}each predicted from the rows before it"
    if len(table) < 2:
        return line
    best, second = table.iloc[0], table.iloc[1]
    gap, error = float(second["difference"]), float(second["difference_se"])
    words = "clearly better" if gap > 2 * error else "not clearly better"
    return (
        f"{line}: {table.index[0]} is {words} than {table.index[1]} "
        f"(by {number(gap, 2)} ± {number(error, 2)}); best weight {float(best['weight']):.2f}"
    )
