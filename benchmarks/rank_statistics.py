"""Are ranks uniform?  Three tests of the ranks of simulation-based calibration, and their figure.

A rank counts the posterior draws below the true value, 0 ... ``VALUES - 1``; it is uniform if the
posterior is right (Talts et al. 2018, arXiv 1804.06788).  The tests see different faults:

chi-square
    Counts in equal bins.
Kolmogorov-Smirnov
    Largest distance of the empirical distribution from the uniform one, sensitive in the middle.
ECDF band
    The distribution at every rank lies inside pointwise binomial bands whose common level makes
    them simultaneous (Säilynoja, Bürkner & Vehtari 2022, arXiv 2103.10522), sensitive in the tails.
    The level comes from simulated ranks, which are discrete as the real ones.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy import stats

VALUES = 100
"""Possible values of a rank: one more than posterior draws it is counted in."""

NULL_SAMPLES = 100_000
"""More than one over the smallest level that a corrected test is held against."""


@dataclass(frozen=True)
class Verdict:
    """What the three tests say of one quantity's ranks, as p values."""

    chi_square: float
    ks: float
    ecdf: float

    @property
    def smallest(self) -> float:
        return min(self.chi_square, self.ks, self.ecdf)


@dataclass(frozen=True)
class Null:
    """How ECDFs of uniform ranks scatter, for one number of simulations.

    Parameters
    ----------
    depth
        Two-sided binomial p value of each count at each rank, shape (VALUES - 1, simulations + 1).
    smallest
        Sorted smallest depth over the ranks of ECDFs of uniform ranks, shape (NULL_SAMPLES,).
    """

    depth: np.ndarray
    smallest: np.ndarray

    def band(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest count at each rank in the simultaneous band, (VALUES - 1,) each."""
        inside = self.depth >= np.quantile(self.smallest, 1 - level)
        return inside.argmax(axis=1), inside.shape[1] - 1 - inside[:, ::-1].argmax(axis=1)


@lru_cache
def null(simulations: int) -> Null:
    at = np.arange(1, VALUES)[:, None] / VALUES
    counts = np.arange(simulations + 1)
    below = stats.binom.cdf(counts, simulations, at)
    above = stats.binom.sf(counts - 1, simulations, at)
    depth = 2 * np.minimum(below, above)
    uniform = np.random.default_rng(0).multinomial(
        simulations, np.full(VALUES, 1 / VALUES), NULL_SAMPLES
    )
    return Null(depth, np.sort(_smallest(depth, uniform)))


def _smallest(depth: np.ndarray, histogram: np.ndarray) -> np.ndarray:
    counts = np.cumsum(histogram, axis=-1)[..., :-1]
    return depth[np.arange(VALUES - 1), counts].min(axis=-1)


def judge(ranks: np.ndarray) -> Verdict:
    """P values of the hypothesis that ranks, shape (simulations,), are uniform."""
    histogram = np.bincount(ranks, minlength=VALUES)
    bins = bins_for(len(ranks))
    reference = null(len(ranks))
    found = _smallest(reference.depth, histogram)
    # Ranks are discrete; spread within their cells they are continuous, and uniform just as well.
    spread = (ranks + np.random.default_rng(1).uniform(size=len(ranks))) / VALUES
    return Verdict(
        chi_square=float(stats.chisquare(histogram.reshape(bins, -1).sum(axis=1)).pvalue),
        ks=float(stats.kstest(spread, "uniform").pvalue),
        ecdf=float((1 + (reference.smallest <= found).sum()) / (1 + NULL_SAMPLES)),
    )


def bins_for(simulations: int) -> int:
    """Most bins that still hold ten ranks each on average, but at least five."""
    return next((bins for bins in (20, 10) if simulations >= 10 * bins), 5)


def draw_figure(ranks: dict[str, np.ndarray], title: str, path: Path) -> None:
    """ECDF difference and histogram of every quantity's ranks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Okabe-Ito: told apart by every kind of colour vision, and in grey.
    shade = {"color": "#56B4E9", "alpha": 0.45, "lw": 0}
    line_colour, out_colour = "#000000", "#D55E00"
    columns = 5
    blocks = -(-len(ranks) // columns)
    figure, axes = plt.subplots(
        2 * blocks,
        columns,
        figsize=(2.9 * columns, 3.5 * blocks + 0.6),
        height_ratios=[2.2, 1] * blocks,
        layout="constrained",
        squeeze=False,
    )
    for axis in axes.flat:
        axis.set_visible(False)
    at = np.arange(1, VALUES) / VALUES
    for number, (name, found) in enumerate(ranks.items()):
        block, column = divmod(number, columns)
        count = len(found)
        low, high = null(count).band(0.95)
        ecdf = np.cumsum(np.bincount(found, minlength=VALUES))[:-1]
        difference = ecdf / count - at
        out = (ecdf < low) | (ecdf > high)
        top, bottom = axes[2 * block, column], axes[2 * block + 1, column]
        top.set_visible(True)
        bottom.set_visible(True)
        top.fill_between(at, low / count - at, high / count - at, **shade)
        top.axhline(0, color="0.4", lw=0.7, ls="--")
        top.plot(at, difference, color=line_colour, lw=1.2)
        top.plot(at[out], difference[out], "o", color=out_colour, ms=3)
        top.set_title(f"{name}\nin band: {'no' if out.any() else 'yes'}", fontsize=10)
        bins = bins_for(count)
        expected = stats.binom(count, 1 / bins)
        bottom.axhspan(expected.ppf(0.025), expected.ppf(0.975), **shade)
        bottom.hist(found / VALUES, np.linspace(0, 1, bins + 1), color="0.55", edgecolor="white")
        bottom.axhline(count / bins, color="0.2", lw=0.7, ls="--")
        for axis in (top, bottom):
            axis.set_xlim(0, 1)
            axis.tick_params(labelsize=8)
        bottom.set_xlabel("rank / draws", fontsize=9)
        if column == 0:
            top.set_ylabel("ECDF minus uniform", fontsize=9)
            bottom.set_ylabel("simulations", fontsize=9)
    figure.suptitle(
        f"{title}\nblue: 95 % of right posteriors stay inside (ECDF: at all ranks at once; "
        "histogram: bin by bin); orange: outside",
        fontsize=11,
    )
    figure.savefig(path, dpi=130)
    plt.close(figure)
