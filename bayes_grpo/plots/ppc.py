"""Posterior predictive check: a log beside logs that the fitted model would produce."""

from typing import TYPE_CHECKING, Literal

import numpy as np

from bayes_grpo.errors import InputError
from bayes_grpo.forecasting import Forecaster
from bayes_grpo.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = 4
"""Single replicates drawn over the bands."""

HISTOGRAMS = 500
"""Replicates of which the histogram is taken."""


def plot_ppc(
    fit: Forecaster, ax: "Axes | None" = None, kind: Literal["curve", "density"] = "curve"
) -> "Axes":
    """Plot the logged rewards against replicates of the run drawn from the fitted model.

    Parameters
    ----------
    fit
        The fit, or a stack of fits.
    ax
        Axes to draw into; None: a new figure.
    kind
        ``"curve"``: rewards over steps, with the 50 % and 90 % bands of the replicates and a few
        single ones. ``"density"``: histogram of the rewards, and the
        bands of the replicates' histograms.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the kind is not known.
    """
    if kind not in ("curve", "density"):
        raise InputError(f"kind of plot is {kind!r}: expected 'curve' or 'density'")
    ax = style.new_axes() if ax is None else ax
    observed = fit.idata["observed_data"]["reward"]
    steps, rewards = observed["step"].to_numpy(), observed.to_numpy()
    replicates = style.flat_draws(fit, "posterior_predictive")
    inside = _inside(rewards, replicates)
    if kind == "curve":
        _curve(ax, steps, rewards, replicates)
    else:
        _density(ax, rewards, replicates)
    style.finish(
        ax,
        fit,
        f"posterior predictive check: {100 * inside:.0f} % of the logged rows lie inside the "
        "90 % band of replicates",
    )
    if kind == "density":
        ax.set_xlabel("reward")
        ax.set_ylabel("density (1 / reward)")
    style.legend_below(ax)
    return ax


def _inside(rewards: np.ndarray, replicates: np.ndarray) -> float:
    low, high = np.quantile(replicates, (0.05, 0.95), axis=0)
    return float(np.mean((rewards >= low) & (rewards <= high)))


def _curve(ax: "Axes", steps: np.ndarray, rewards: np.ndarray, replicates: np.ndarray) -> None:
    style.rows(ax, steps, rewards)
    shown = style.thinned(len(steps))
    style.band(
        ax,
        steps[shown],
        style.quantiles(replicates[:, shown]),
        style.BLUE,
        "replicates (median, 50 %, 90 %)",
    )
    for number, replicate in enumerate(_some(replicates, CURVES)):
        ax.plot(
            steps[shown],
            replicate[shown],
            color=style.VERMILION,
            linewidth=0.6,
            alpha=0.45,
            zorder=1.8,
            label=None if number else "single replicates",
        )


def _density(ax: "Axes", rewards: np.ndarray, replicates: np.ndarray) -> None:
    some = _some(replicates, HISTOGRAMS)
    # The observed rewards set the bins; what lies beyond is gathered in bins of the same width.
    width = np.ptp(rewards) / min(30, max(5, int(np.sqrt(len(rewards)))))
    low = rewards.min() - width * min(20, np.ceil(max(0, rewards.min() - some.min()) / width))
    high = rewards.max() + width * min(20, np.ceil(max(0, some.max() - rewards.max()) / width))
    bins = np.linspace(low, high, round((high - low) / width) + 1)
    densities = [np.histogram(np.clip(r, low, high), bins, density=True)[0] for r in some]
    bands = np.quantile(densities, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
    for outer, inner, opacity in (
        (bands[4], bands[0], style.WIDE),
        (bands[3], bands[1], style.NARROW),
    ):
        ax.stairs(outer, bins, baseline=inner, fill=True, color=style.BLUE, alpha=opacity)
    ax.stairs(bands[2], bins, color=style.BLUE, label="replicates (median, 50 %, 90 %)")
    density, _ = np.histogram(rewards, bins, density=True)
    ax.stairs(density, bins, color=style.INK, linewidth=2, label="logged rewards")


def _some(replicates: np.ndarray, wanted: int) -> np.ndarray:
    """Evenly spaced draws."""
    return replicates[np.linspace(0, len(replicates) - 1, min(wanted, len(replicates))).astype(int)]
