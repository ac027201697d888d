"""Colours and drawing steps that the plots share."""

from typing import TYPE_CHECKING

import numpy as np

from bayes_grpo.fit import Fit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito: told apart with any kind of colour vision.
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
GREY = "#6E6E6E"
INK = "#222222"
ALARM = "#B00020"

WIDE = 0.18
"""Opacity of a 90 % band; the 50 % band within it is drawn with `NARROW`."""

NARROW = 0.32
FAINT = 0.09
MANY_ROWS = 1500
"""Rows beyond which points become faint and are drawn as pixels."""

MAX_POINTS = 1000
"""Points that a curve is drawn with; more are not seen."""

MAX_TITLE = 60
"""Characters of a run's name that fit above a plot."""

SIZE = (9.0, 5.2)
"""Width and height of a figure in inches."""


def new_axes() -> "Axes":
    """Make a figure of one plot."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=SIZE, layout="constrained")[1]


def thinned(rows: int) -> np.ndarray:
    """Positions of evenly spaced rows, with the first and the last, at most `MAX_POINTS`."""
    return np.unique(np.linspace(0, rows - 1, min(rows, MAX_POINTS)).round().astype(int))


def flat_draws(fit: Fit, group: str) -> np.ndarray:
    """Draws of the reward in a group of the data tree, shape (draws, rows)."""
    values = fit.idata[group]["reward"].to_numpy()
    return values.reshape(-1, values.shape[-1])


def rows(ax: "Axes", steps: np.ndarray, rewards: np.ndarray) -> None:
    """Draw the logged rewards, fainter the more there are."""
    many = len(steps) > MANY_ROWS
    ax.plot(
        steps,
        rewards,
        linestyle="none",
        marker="o" if not many else ".",
        markersize=3.2 if not many else 2.5,
        markeredgewidth=0,
        color=GREY,
        alpha=0.5 if not many else max(0.12, 0.5 * MANY_ROWS / len(steps)),
        label="logged reward",
        zorder=1.5,
        rasterized=many,
    )


def band(
    ax: "Axes", x: np.ndarray, draws: np.ndarray, color: str, label: str, line: str = "-"
) -> None:
    """Draw the median of draws, shape (draws, points), with its 50 % and 90 % bands."""
    low, lower, middle, upper, high = np.quantile(draws, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
    # A band of one point would not be seen: it is drawn half a step wide to both sides.
    if len(x) == 1:
        x = np.array([x[0] - 0.5, x[0] + 0.5])
        low, lower, middle, upper, high = (
            np.repeat(q, 2) for q in (low, lower, middle, upper, high)
        )
    ax.fill_between(x, low, high, color=color, alpha=WIDE, linewidth=0, zorder=2)
    ax.fill_between(x, lower, upper, color=color, alpha=NARROW, linewidth=0, zorder=2)
    ax.plot(x, middle, color=color, linewidth=1.8, linestyle=line, label=label, zorder=3)


def shorten(text: str, length: int = MAX_TITLE) -> str:
    """Cut a long name in the middle, where names of runs differ least."""
    if len(text) <= length:
        return text
    half = (length - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def finish(ax: "Axes", fit: Fit, subtitle: str) -> None:
    """Add the title, a line below it, labels, and the warning if the fit may not be used."""
    ax.set_xlabel("optimizer step")
    ax.set_ylabel("reward")
    ax.grid(visible=True, axis="y", color="#E6E6E6", linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    title = ax.set_title(
        f"{shorten(fit.run.name)}: {shorten(fit.model.name, 30)}",
        loc="left",
        fontsize=12,
        fontweight="bold",
        color=INK,
        pad=24,
    )
    note = ax.annotate(
        subtitle,
        (0, 1),
        xytext=(0, 8),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=9.5,
        color=INK,
    )
    for text in (title, note):
        text.set_parse_math(False)  # a name may hold a dollar sign
    if not fit.convergence.converged:
        ax.text(
            0.5,
            0.5,
            "DID NOT CONVERGE: claim nothing from this fit",
            transform=ax.transAxes,
            ha="center",
            va="center",
            fontsize=13,
            fontweight="bold",
            color=ALARM,
            bbox={"facecolor": "white", "edgecolor": ALARM, "alpha": 0.9, "pad": 6},
            zorder=10,
        )


def legend_below(ax: "Axes", columns: int) -> None:
    """Put the legend under the axis label, where it covers nothing."""
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncols=columns,
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=1.6,
    )
