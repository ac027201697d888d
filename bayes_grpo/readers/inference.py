"""Settings that a log does not name but that follow from the arithmetic of its numbers.

A mean of N rewards that are 0 or 1 is a whole number of Nths; a lone success in a group of G has
the standardised advantage ``(G - 1) / sqrt(G)``; a fraction of P prompts is a whole number of Pths;
and the standard deviation of all rewards of a batch, if they are 0 or 1, is ``sqrt(m (1 - m))``.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo.readers.protocol import Parsed, spelled
from bayes_grpo.readers.records import number_or_nan
from bayes_grpo.settings import Setting

# Fewer rows can lie on a coarse grid by chance.
_ROWS = 12
_FINEST_GRID = 4096
_GROUPS = 1024

_ADVANTAGES = ("critic/advantages/max", "advantages/max", "max_advantage", "advantage_max")


def infer(parsed: Parsed, given: Mapping[str, Any]) -> Parsed:
    """Add the settings that the numbers of a run give away.

    Parameters
    ----------
    parsed
        Rows with canonical names. Settings that were read are left alone.
    given
        Settings given by hand, from which others may follow.

    Returns
    -------
    Parsed
        With further settings, marked as inferred, each with its reason.
    """
    columns = {
        name: numbers
        for name in parsed.table.columns
        if np.isfinite(numbers := _numbers(parsed.table[name])).sum() >= _ROWS
    }
    known: dict[str, Any] = {
        name: item.value for name, item in parsed.settings.items() if item.provenance != "default"
    } | dict(given)
    found: dict[str, Setting] = {}

    def add(name: str, setting: Setting | None) -> None:
        if setting is not None and name not in known:
            found[name] = setting
            known[name] = setting.value

    for name in columns:
        if spelled(name) in _ADVANTAGES:
            add("group_size", group_of_advantages(columns[name]))
    batches = _batches_per_row(columns, known)
    prompts = _prompts_of_fractions(columns, batches)
    completions, component = _completions_of_rows(columns, batches)
    if completions and prompts:
        group, rest = divmod(completions, prompts.value)
        if rest == 0 and 2 <= group <= _GROUPS:
            why = f"{completions} completions a batch for {prompts.value} prompts, by their grids"
            add("group_size", Setting(group, "inferred", why))
    add("prompts_per_step", prompts)
    if completions and "group_size" in known:
        share, rest = divmod(completions, int(known["group_size"]))
        if rest == 0 and share >= 1:
            why = (
                f"'{component}' is a whole number of 1/{completions}: {completions} completions a "
                f"batch, {known['group_size']:g} a prompt"
            )
            add("prompts_per_step", Setting(share, "inferred", why))
    add("reward_std_kind", _kind_of_spread(columns, component == "reward", completions))
    return replace(parsed, settings={**parsed.settings, **found})


def group_of_advantages(largest: np.ndarray) -> Setting | None:
    """Find G from the largest advantage of each row.

    Parameters
    ----------
    largest
        Shape (rows,), of advantages standardised within their group.

    Returns
    -------
    Setting or None
        None unless several rows share a maximum that some whole G explains: a lone success has
        ``(G - 1) / sqrt(G)``, and nothing in a group of zeros and ones exceeds it.
    """
    largest = largest[np.isfinite(largest)]
    if len(largest) < _ROWS:
        return None
    top = float(largest.max())
    if top <= 0 or int((np.abs(largest - top) < 2e-3).sum()) < 3:
        return None
    exact = ((top + math.sqrt(top**2 + 4)) / 2) ** 2
    group = round(exact)
    # Printed with three decimals; the derivative of G by the maximum is about 2 sqrt(G).
    if not 2 <= group <= _GROUPS or abs(exact - group) > 2e-3 * 2 * math.sqrt(group):
        return None
    why = f"the largest advantage of several rows is {top:.4g} = (G - 1) / sqrt(G)"
    return Setting(group, "inferred", why)


def grid(values: np.ndarray, top: float = 1.0) -> int | None:
    """Find the smallest N of which all values are whole Nths.

    Parameters
    ----------
    values
        Shape (rows,), between 0 and ``top``.
    top
        The value of one whole.

    Returns
    -------
    int or None
        None where there are too few different values, or they fit no grid that is coarse next to
        their precision.
    """
    shares = values[np.isfinite(values)] / top
    different = np.unique(shares)
    if len(shares) < _ROWS or len(different) < 3:
        return None
    error = _rounding(values[np.isfinite(values)]) / top
    # On a grid as fine as the rounding anything fits; leave a wide margin.
    finest = int(min(_FINEST_GRID, 0.02 / error))
    for n in range(2, finest + 1):
        scaled = different * n
        if np.abs(scaled - np.round(scaled)).max() <= max(1.5 * n * error, 1e-9):
            # Few values fit a coarse grid by chance: (2 n error)^values of them.
            return n if len(different) * math.log(max(2 * n * error, 1e-12)) < -7 else None
    return None


def _rounding(values: np.ndarray) -> float:
    """Return half a unit of the last decimal that the values show; single precision at best."""
    text = [f"{value:.7g}" for value in values]
    decimals = max(
        (len(t.partition(".")[2]) if "e" not in t else 7 for t in text if t not in ("0", "1")),
        default=7,
    )
    largest = float(np.abs(values).max(initial=1.0))
    if decimals >= 7:
        return 1e-7 * max(1.0, largest)
    # Halves, quarters and eighths are exact however few decimals they show.
    return 0.5 * 10.0**-decimals if decimals >= 3 else 1e-7 * max(1.0, largest)


def _numbers(column: pd.Series) -> np.ndarray:
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return column.to_numpy(dtype=float, na_value=np.nan)
    return np.array([number_or_nan(cell) for cell in column], dtype=float)


def _batches_per_row(columns: Mapping[str, np.ndarray], known: Mapping[str, Any]) -> int:
    """Return how many rollout batches a row averages; 0 where that varies."""
    if known.get("row_average") != "window" or "step" not in columns:
        return 1
    spacings = np.diff(columns["step"][np.isfinite(columns["step"])])
    spacings = spacings[spacings > 0]
    if spacings.size == 0 or np.mean(spacings == np.median(spacings)) < 0.9:
        return 0
    updates = int(np.median(spacings)) * int(known.get("updates_per_step", 1))
    return max(1, updates // int(known.get("refresh_interval", 1)))


def _prompts_of_fractions(columns: Mapping[str, np.ndarray], batches: int) -> Setting | None:
    fractions = columns.get("zero_std_fraction")
    if fractions is None or not batches:
        return None
    parts = grid(fractions)
    if parts is None or parts % batches or parts // batches < 2:
        return None
    why = f"fractions of prompts without contrast are whole numbers of 1/{parts}"
    if batches > 1:
        why += f", over {batches} batches a row"
    return Setting(parts // batches, "inferred", why)


def _completions_of_rows(columns: Mapping[str, np.ndarray], batches: int) -> tuple[int | None, str]:
    """Find the completions of one batch from a component that is 0 or one fixed value."""
    best: tuple[int | None, str] = (None, "")
    for name, values in columns.items():
        if not batches or not (name == "reward" or str(name).startswith("rewards/")):
            continue
        if str(name).endswith("/std"):
            continue
        own = values[np.isfinite(values)]
        top = float(own.max())
        # A maximum that is hit again and again is the value of a success.
        top = top if top > 0 and (own == top).sum() >= 3 and top in (0.5, 1, 2, 3, 5) else 1.0
        if own.min() < 0 or own.max() > top:
            continue
        parts = grid(own, top)
        if (
            parts is None
            or parts % batches
            or (best[0] is not None and parts // batches <= best[0])
        ):
            continue
        best = (parts // batches, str(name))
    return best


def _kind_of_spread(
    columns: Mapping[str, np.ndarray], binary: bool, completions: int | None
) -> Setting | None:
    """Tell a spread within groups from one over the whole batch."""
    spread = columns.get("reward_std")
    if spread is None:
        return None
    pooled = [
        name for name in columns if str(name).startswith("rewards/") and name.endswith("/std")
    ]
    if len(pooled) == 1 and len([n for n in columns if str(n).startswith("rewards/")]) == 2:
        other = columns[pooled[0]]
        both = np.isfinite(other) & np.isfinite(spread) & (other > 0)
        if both.sum() >= _ROWS:
            same = np.mean(np.abs(spread[both] / other[both] - 1) < 0.01)
            if same > 0.95:
                return Setting("pooled", "inferred", f"equal to '{pooled[0]}', which is pooled")
            if same < 0.5:
                why = f"differs from '{pooled[0]}', which is pooled"
                return Setting("within_group", "inferred", why)
    if not binary or not completions or completions < 2:
        return None
    mean = columns["reward"]
    whole = np.sqrt(np.clip(mean * (1 - mean) * completions / (completions - 1), 0, None))
    usable = np.isfinite(whole) & np.isfinite(spread) & (whole > 0)
    if usable.sum() < _ROWS:
        return None
    ratio = spread[usable] / whole[usable]
    if np.mean(np.abs(ratio - 1) < 0.03) > 0.9:
        return Setting("pooled", "inferred", "equal to sqrt(m (1 - m)) of rewards that are 0 or 1")
    if np.median(ratio) < 0.93:
        return Setting("within_group", "inferred", "smaller than sqrt(m (1 - m)) of all rewards")
    return None
