"""Scores of probabilistic forecasts, from draws: pure functions of arrays."""

import numpy as np

BLOCK = 500
"""Rows that are scored at once: 4,000 draws of a whole long run would fill gigabytes."""


def crps(draws: np.ndarray, found: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Continuous ranked probability score of each row, ``E|Y - y| - E|Y - Y'| / 2``.

    Parameters
    ----------
    draws
        Of the forecast, shape (draws, rows).
    found
        What was logged, shape (rows,).
    weights
        Of the draws, summing to 1 in each row, shape (draws, rows); None: equal weights, and the
        estimate without bias for a finite number of draws (Gneiting & Raftery 2007).

    Returns
    -------
    ndarray
        Shape (rows,), in the unit of the reward; smaller is better.
    """
    scores = []
    for begin in range(0, len(found), BLOCK):
        part = slice(begin, begin + BLOCK)
        scores.append(
            _equal(draws[:, part], found[part])
            if weights is None
            else _weighted(draws[:, part], found[part], weights[:, part])
        )
    return np.concatenate(scores) if scores else np.zeros(0)


def _equal(draws: np.ndarray, found: np.ndarray) -> np.ndarray:
    count = len(draws)
    spread = (2 * np.arange(1, count + 1) - count - 1) / (count * (count - 1))
    ordered = np.sort(draws, axis=0)
    return np.asarray(np.abs(ordered - found).mean(axis=0) - spread @ ordered)


def _weighted(draws: np.ndarray, found: np.ndarray, weights: np.ndarray) -> np.ndarray:
    order = np.argsort(draws, axis=0)
    ordered = np.take_along_axis(draws, order, axis=0)
    weight = np.take_along_axis(weights, order, axis=0)
    below = np.cumsum(weight, axis=0) - 0.5 * weight
    error = np.sum(weight * np.abs(ordered - found), axis=0)
    return np.asarray(error - np.sum(weight * ordered * (2 * below - 1), axis=0))
