"""How stale a sampler and how high a learning rate may be, given draws of the stiffness."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo.spectrum import PATTERNS, divergence_pull, oscillation_pull

CRITERIA: Mapping[str, Callable[..., Any]] = {
    "stable": divergence_pull,
    "no oscillation": oscillation_pull,
}
"""What a limit keeps up, and the exact pull at which it ends."""


def limits(
    pull: np.ndarray,
    momentum: float,
    level: float,
    learning_rate: float,
    at: Mapping[str, int],
) -> pd.DataFrame:
    """Largest refresh interval or lag, and largest learning rate, that keep failures rare.

    Parameters
    ----------
    pull
        Draws of the stiffness of one update at the learning rate, shape (draws,).
    momentum
        Of one update.
    level
        A failure keeps to a probability below this, in (0, 1).
    learning_rate
        Peak learning rate of the run.
    at
        By lag pattern, the interval or lag in updates at which the learning rate is varied.

    Returns
    -------
    pandas.DataFrame
        Indexed by ``lag_pattern`` and ``keeps``; columns ``longest`` (updates, NaN if none),
        ``at``, ``learning_rate`` and ``relative``, which is that over the run's.
    """
    # Strictly less than the level of the draws lie above this one.
    high = float(np.quantile(pull, 1 - level, method="higher"))
    rows = []
    for pattern in PATTERNS:
        for keeps, threshold in CRITERIA.items():
            limit = partial(threshold, momentum, lag=pattern)
            longest = _longest(limit, high, least=0 if pattern == "constant" else 1)
            relative = float(limit(at[pattern])) / high
            rows.append(
                {
                    "lag_pattern": pattern,
                    "keeps": keeps,
                    "longest": np.nan if longest is None else longest,
                    "at": at[pattern],
                    "learning_rate": relative * learning_rate,
                    "relative": relative,
                }
            )
    return pd.DataFrame(rows).astype({"longest": float}).set_index(["lag_pattern", "keeps"])


def _longest(limit: Callable[[int], float], pull: float, least: int) -> int | None:
    """Largest number of updates whose limit lies above the pull; None if the least does not.

    Limits fall as the number grows.
    """
    if not limit(least) > pull:
        return None
    low, high = least, max(1, 2 * least)
    while limit(high) > pull:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if limit(middle) > pull else (low, middle)
    return low
