"""Phase diagram: refresh interval and learning rate against oscillation and divergence."""

from typing import TYPE_CHECKING, Any

import numpy as np

from bayes_grpo.fit import Fit
from bayes_grpo.outlook import Interval, number
from bayes_grpo.plots import style
from bayes_grpo.spectrum import LagPattern, divergence_pull, oscillation_pull
from bayes_grpo.stability import Stability, stability

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 10**6
"""Largest refresh interval that is drawn."""

POINTS = 300
TINT = 0.16
"""Opacity of a region."""

WARNING = "NO EVIDENCE OF A MARGIN: no oscillation is clearly visible in this run"


def plot_stability(
    answer: Stability | Fit, ax: "Axes | None" = None, lag: LagPattern | None = None
) -> "Axes":
    """Plot which refresh intervals and learning rates oscillate or diverge, and where the run is.

    Parameters
    ----------
    answer
        From `bayes_grpo.stability`, or a fit.
    ax
        Axes to draw into; None: a new figure.
    lag
        Lag pattern of the diagram, ``"hold"`` or ``"constant"``; None: that of the run.

    Returns
    -------
    matplotlib.axes.Axes
        Regions at the posterior median of the curvature, with the 90 % band of their borders; the
        dotted line is the leading-order rule.  The run stands at its refresh interval, its
        learning rate times the posterior of the curvature over its median (90 %).

    Raises
    ------
    InputError
        As `bayes_grpo.stability`.
    """
    if isinstance(answer, Fit):
        answer = stability(answer)
    ax = style.new_axes() if ax is None else ax
    pattern: Any = answer.lag_pattern if lag is None else lag
    momentum = answer.settings.momentum
    pull = Interval.of(answer.pull)
    here = max(1, answer.refresh_interval)

    span = _span(momentum, pattern, pull.median, here)
    n = np.unique(np.geomspace(1, span, POINTS).round())
    borders = {
        "oscillates beyond (exact, 90 %)": (oscillation_pull(momentum, n, pattern), style.BLUE),
        "diverges beyond (exact, 90 %)": (divergence_pull(momentum, n, pattern), style.VERMILION),
    }
    onset, end = (border / pull.median for border, _ in borders.values())
    bottom = 10.0 ** np.floor(np.log10(min(0.3, onset[-1], pull.low / pull.median)))
    top = float(np.clip(3 * end[np.searchsorted(n, here)], 10, 1e4))

    for low, high, color in (
        (bottom, onset, style.BLUE),
        (onset, end, style.ORANGE),
        (end, top, style.VERMILION),
    ):
        ax.fill_between(
            n, np.clip(low, bottom, top), np.clip(high, bottom, top),
            color=color, alpha=TINT, linewidth=0, zorder=1,
        )  # fmt: skip
    for label, (border, color) in borders.items():
        ax.fill_between(
            n, border / pull.high, border / pull.low,
            color=color, alpha=style.NARROW, linewidth=0, zorder=2,
        )  # fmt: skip
        ax.plot(n, border / pull.median, color=color, linewidth=1.8, label=label, zorder=3)
    ax.plot(
        n, (1 - momentum) / n / pull.median,
        color=style.GREY, linewidth=1.2, linestyle=":", zorder=2.5,
        label="leading-order rule, staleness 1",
    )  # fmt: skip
    ax.errorbar(
        [here], [1.0],
        yerr=[[1 - pull.low / pull.median], [pull.high / pull.median - 1]],
        color=style.INK, marker="o", markersize=6, linewidth=1.8, capsize=4, zorder=5,
        label=_label(answer.lag_pattern, pattern),
    )  # fmt: skip
    _axes(ax, answer, pattern, (1 / 1.3, float(n[-1])), (float(bottom), top))
    _names(ax, n, onset, end, (float(bottom), top))
    style.head(
        ax,
        answer.run,
        answer.model,
        f"staleness {Interval.of(answer.staleness)}; P(oscillatory) "
        f"{answer.p_oscillatory:.2f}, P(unstable) {answer.p_unstable:.2f}",
        answer.convergence.converged,
        WARNING if answer.tautology else "",
    )
    style.legend_below(ax)
    return ax


def _span(momentum: float, pattern: LagPattern, pull: float, here: int) -> int:
    """Largest interval to draw: beyond the run's own, and beyond where its rate diverges."""
    span = 8 * here
    while span < LONGEST and divergence_pull(momentum, span, pattern) > pull / 3:
        span *= 2
    return span


def _label(own: str, drawn: str) -> str:
    if own == drawn:
        return "this run (curvature, 90 %)"
    instead = "a constant lag" if drawn == "constant" else "hold and refresh"
    return f"this run, if it had {instead} (90 %)"


def _axes(
    ax: "Axes",
    answer: Stability,
    pattern: str,
    x: tuple[float, float],
    y: tuple[float, float],
) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(*x)
    ax.set_ylim(*y)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
        axis.set_minor_formatter(NullFormatter())
    what = "constant lag" if pattern == "constant" else "refresh interval"
    ax.set_xlabel(f"{what} (optimizer updates)")
    rate = answer.settings["learning_rate"]
    unit = "the run's" if rate.provenance == "default" else f"the run's {number(rate.value)}"
    ax.set_ylabel(f"peak learning rate / {unit}")


def _names(
    ax: "Axes",
    n: np.ndarray,
    onset: np.ndarray,
    end: np.ndarray,
    y: tuple[float, float],
) -> None:
    """Write the name of each region where it is high enough for one."""
    edges = {
        "overdamped": (np.full(len(n), y[0]), onset),
        "oscillatory": (onset, end),
        "unstable": (end, np.full(len(n), y[1])),
    }
    whole = np.log(y[1] / y[0])
    for name, (low, high) in edges.items():
        low, high = np.clip(low, *y), np.clip(high, *y)
        inside = (n >= n[-1] ** 0.12) & (n <= n[-1] ** 0.88)
        height = np.where(inside, np.log(high / low) / whole, 0)
        widest = int(np.argmax(height))
        if height[widest] > 0.08:
            ax.text(
                n[widest],
                np.sqrt(low[widest] * high[widest]),
                name,
                ha="center",
                va="center",
                fontsize=10,
                color=style.INK,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.5, "pad": 1.5},
                zorder=4,
            )
