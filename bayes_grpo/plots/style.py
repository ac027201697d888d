"""Colours and drawing steps that the plots share."""

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from bayes_grpo.forecasting import Forecaster

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from matplotlib.ticker import ScalarFormatter

# Okabe and Ito: told apart with any kind of colour vision.
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
ORANGE = "#E69F00"
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

LINE = 13
"""Height of a line of the header in points."""

LEGEND_GAP = 34
"""Points between the axes and the legend, in which the axis label stands."""

LOGGED = "logged reward"

SIZE = (9.0, 5.2)
"""Width and height of a figure in inches."""


def new_axes() -> "Axes":
    """Make a figure of one plot."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=SIZE, layout="constrained")[1]


def thinned(rows: int) -> np.ndarray:
    """Positions of evenly spaced rows, with the first and the last, at most `MAX_POINTS`."""
    return np.unique(np.linspace(0, rows - 1, min(rows, MAX_POINTS)).round().astype(int))


def flat_draws(fit: Forecaster, group: str) -> np.ndarray:
    """Draws of the reward in a group of the data tree, shape (draws, rows)."""
    values = fit.idata[group]["reward"].to_numpy()
    return values.reshape(-1, values.shape[-1])


def rows(ax: "Axes", steps: np.ndarray, rewards: np.ndarray, label: str = LOGGED) -> "Line2D":
    """Draw the logged rewards, or another number of each row, fainter the more there are."""
    many = len(steps) > MANY_ROWS
    (line,) = ax.plot(
        steps,
        rewards,
        linestyle="none",
        marker="o" if not many else ".",
        markersize=3.2 if not many else 2.5,
        markeredgewidth=0,
        color=GREY,
        alpha=0.5 if not many else max(0.2, 0.5 * MANY_ROWS / len(steps)),
        label=label,
        zorder=1.5,
        rasterized=many,
    )
    return line


def quantiles(draws: np.ndarray) -> np.ndarray:
    """Quantiles that `band` draws, of draws of shape (draws, points)."""
    return np.quantile(draws, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)


def band(ax: "Axes", x: np.ndarray, levels: np.ndarray, color: str, label: str) -> None:
    """Draw a median with its 50 % and 90 % bands, from `quantiles`."""
    low, lower, middle, upper, high = levels
    ax.fill_between(x, low, high, color=color, alpha=WIDE, linewidth=0, zorder=2)
    ax.fill_between(x, lower, upper, color=color, alpha=NARROW, linewidth=0, zorder=2)
    ax.plot(x, middle, color=color, linewidth=1.8, label=label, zorder=3)


def wrap(text: str, width: int) -> list[str]:
    """Break a line where it is wider than the axes."""
    return textwrap.wrap(text, width)


def shorten(text: str, length: int) -> str:
    """Cut a long name in the middle, where names of runs differ least."""
    if len(text) <= length:
        return text
    half = (length - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def finish(ax: "Axes", fit: Forecaster, subtitle: str) -> None:
    """Add labels, the title with a line below it, and a warning if the fit may not be used."""
    ax.set_xlabel("optimizer step")
    ax.set_ylabel("reward")
    axes(ax)
    head(ax, fit.run.name, fit.name, subtitle, fit.convergence.converged)


def axes(ax: "Axes") -> None:
    """Set up ticks and grid of plain axes."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(nbins=max(3, min(9, int(1.4 * inches(ax))))))
    ax.yaxis.set_major_formatter(_plain_ticks())
    ax.grid(visible=True, axis="y", color="#E6E6E6", linewidth=0.8)
    ax.set_axisbelow(True)


def head(
    ax: "Axes", run: str, model: str, subtitle: str, converged: bool, warning: str = ""
) -> None:
    """Add the title with lines below it, in red what keeps the picture from being believed."""
    width = inches(ax)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    columns = max(30, int(13 * width))
    lines = [(line, INK, "normal") for line in wrap(subtitle, columns)]
    lines = [*((line, ALARM, "bold") for line in wrap(warning, columns)), *lines]
    if not converged:
        lines.insert(0, ("DID NOT CONVERGE: claim nothing from this fit", ALARM, "bold"))
        for spine in ax.spines.values():
            spine.set(visible=True, color=ALARM, linewidth=1.6)
    for number, (line, color, weight) in enumerate(reversed(lines)):
        ax.annotate(
            line,
            (0, 1),
            xytext=(0, 8 + LINE * number),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=9.5,
            fontweight=weight,
            color=color,
        ).set_parse_math(False)
    model = shorten(model, 24)
    ax.set_title(
        f"{shorten(run, max(16, int(8.5 * width) - len(model)))}: {model}",
        loc="left",
        fontsize=12,
        fontweight="bold",
        color=INK,
        pad=10 + LINE * len(lines),
    ).set_parse_math(False)  # a name may hold a dollar sign


def inches(ax: "Axes") -> float:
    """Width of the axes before the layout makes room for labels."""
    return float(ax.figure.get_figure(root=True).get_figwidth() * ax.get_position().width)


def _plain_ticks() -> "ScalarFormatter":
    """Tick labels with the exponent in each, instead of one above the axis among the titles."""
    from matplotlib.ticker import ScalarFormatter

    class Plain(ScalarFormatter):
        def format_ticks(self, values: Any) -> list[str]:
            labels = [f"{value:.4g}".replace("-", "\N{MINUS SIGN}") for value in values]
            if len(set(labels)) == len(labels):
                return labels
            return list(super().format_ticks(values))

    return Plain(useOffset=False)


def legend_below(ax: "Axes") -> None:
    """Put the legend under the axis label, where it covers nothing, in columns that fit."""
    from matplotlib.transforms import ScaledTranslation

    below = ScaledTranslation(0, -LEGEND_GAP / 72, ax.figure.get_figure(root=True).dpi_scale_trans)
    legend = ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=ax.transAxes + below,
        ncols=max(1, min(3, int(inches(ax) / 2.1))),
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=1.6,
    )
    for handle in legend.legend_handles:
        if handle is not None and handle.get_label() == LOGGED:
            handle.set(alpha=0.8, markersize=4)  # the points themselves may be all but transparent
