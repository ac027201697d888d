"""Statistics of one-step errors: pure functions of arrays."""

from typing import NamedTuple

import numpy as np
from scipy.stats import binom, chi2, kstest, norm

LEAST_PAIRS = 3
"""Pairs of rows of which an autocorrelation is taken at least."""

RANGE = (0.025, 0.975)
"""Quantiles between which a check is as expected: of 100 checks of a true model, 5 are not."""


class Pit(NamedTuple):
    """Where the logged rewards stand in their predictive distributions, shape (rows,) each.

    Parameters
    ----------
    mean, sd
        Of the prediction.
    z
        Logged reward minus mean, over sd.
    pit
        Predictive probability of a smaller reward.
    """

    mean: np.ndarray
    sd: np.ndarray
    z: np.ndarray
    pit: np.ndarray


def verdicts(
    z: np.ndarray, pit: np.ndarray, steps: np.ndarray
) -> list[tuple[str, float, float, float, str]]:
    """Check z-scores and PITs of independent predictions.

    Parameters
    ----------
    z, pit, steps
        Shape (rows,) each.

    Returns
    -------
    list of tuple
        Name, value, lowest and highest expected value, and what is the matter beyond them.
    """
    rows = len(z)
    checks = []
    for level in (0.5, 0.9):
        value = float(np.mean(np.abs(pit - 0.5) <= level / 2))
        words = "bands too narrow" if value < level else "bands too wide"
        low, high = binom.ppf(RANGE, rows, level) / rows
        checks.append((f"inside{100 * level:.0f}", value, low, high, words))
    p = float(kstest(pit, "uniform").pvalue)
    checks.append(("pit_uniform", p, 0.05, 1.0, "predictive distribution has another shape"))
    low, high = norm.ppf(RANGE) / np.sqrt(rows)
    words = "rewards above" if z.mean() > 0 else "rewards below"
    checks.append(("mean_z", float(z.mean()), low, high, f"{words} what is predicted"))
    low, high = np.sqrt(chi2.ppf(RANGE, rows - 1) / (rows - 1))
    spread = float(z.std(ddof=1))
    words = "errors larger than predicted" if spread > 1 else "errors smaller than predicted"
    checks.append(("sd_z", spread, low, high, words))
    # |z| of all rows stay below x with probability (2 Phi(x) - 1)^rows.
    low, high = norm.ppf((1 + np.array(RANGE) ** (1 / rows)) / 2)
    worst = int(np.argmax(np.abs(z)))
    largest = float(abs(z[worst]))
    words = f"outlier at step {steps[worst]}" if largest > high else "errors too small throughout"
    checks.append(("largest_z", largest, low, high, words))
    return checks


def mixture(mean: np.ndarray, sd: np.ndarray, reward: np.ndarray) -> Pit:
    """Place rewards in mixtures of normal predictions.

    Parameters
    ----------
    mean, sd
        Of each draw's prediction, shape (draws, rows).
    reward
        Shape (rows,).

    Returns
    -------
    Pit
    """
    middle = mean.mean(axis=0)
    spread = np.sqrt(np.mean(sd**2, axis=0) + mean.var(axis=0))
    pit = norm.cdf((reward - mean) / sd).mean(axis=0)
    return Pit(middle, spread, (reward - middle) / spread, pit)


def autocorrelation(
    series: np.ndarray, place: np.ndarray, length: int, lags: int
) -> tuple[np.ndarray, np.ndarray]:
    """Autocorrelation of series with gaps.

    Parameters
    ----------
    series
        Shape (series, values).
    place
        Where the values stand among ``length`` equidistant places, shape (values,).
    length
        Number of places.
    lags
        Largest lag.

    Returns
    -------
    found : ndarray
        Mean product of the deviations from the series' mean at pairs of places, over their mean
        square; shape (series, lags), NaN where fewer than 3 pairs are.
    pairs : ndarray
        Pairs of places that both have a value, shape (lags,).
    """
    deviations = np.zeros((len(series), length))
    deviations[:, place] = series - series.mean(axis=1, keepdims=True)
    there = np.zeros(length, dtype=bool)
    there[place] = True
    square = np.mean((series - series.mean(axis=1, keepdims=True)) ** 2, axis=1)
    found = np.full((len(series), lags), np.nan)
    pairs = np.array([int(np.sum(there[:-lag] & there[lag:])) for lag in range(1, lags + 1)])
    for lag, count in enumerate(pairs, start=1):
        if count >= LEAST_PAIRS:
            products = np.einsum("ij,ij->i", deviations[:, :-lag], deviations[:, lag:])
            found[:, lag - 1] = products / count / square
    return found, pairs


def two_sided(replicates: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Two-sided p-value of statistics against replicates of them, shape (draws, ...) each."""
    draws = len(replicates)
    above = (1 + np.sum(replicates >= found, axis=0)) / (draws + 1)
    below = (1 + np.sum(replicates <= found, axis=0)) / (draws + 1)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(above, below)))
