"""Records of several kinds in one file: which are training, and what the others add."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo.columns import CANONICAL

# Columns in which logs say what a record is.
_KINDS = ("type", "record_type", "kind", "event", "split", "phase", "mode", "stage")
_EVALUATION = re.compile(r"(eval|val$|valid|test|held)", re.IGNORECASE)
# Where several kinds have a reward, the batch as sampled comes before what training made of it.
_PREFERRED = ("rollout", "generation", "train")


Renamed = tuple[pd.DataFrame, tuple[str, ...]]
"""Rows with canonical names, and notes on the choice of columns."""


def training_rows(frame: pd.DataFrame, canonical: Callable[[pd.DataFrame], Renamed]) -> Renamed:
    """Keep one row for each training step of a file that mixes kinds of records.

    Parameters
    ----------
    frame
        All records, with names as the log has them.
    canonical
        Gives the columns of some records their canonical names.

    Returns
    -------
    frame : pandas.DataFrame
        The training rows with canonical names. Where kinds of records share their steps, one kind
        gives the rows and the others add columns: the mean over the records of a step.
    notes : tuple of str
        What was chosen.
    """
    column = next((name for name in _KINDS if name in frame.columns), None)
    if column is None:
        return canonical(frame)
    kinds = frame[column].map(lambda kind: "" if _is_missing(kind) else str(kind))
    if kinds.nunique() < 2:
        return canonical(frame)
    parts = {str(kind): part for kind, part in frame.groupby(kinds, sort=False)}
    held_out = {kind for kind in parts if _EVALUATION.match(kind)}
    rewarded = {
        kind: canonical(part)[0]
        for kind, part in parts.items()
        if kind not in held_out and _has_reward(canonical(part)[0])
    }
    if not rewarded:
        return canonical(frame)
    if not _share_steps(list(rewarded.values())):
        # Kinds that follow one another are phases of one training.
        rows, notes = canonical(frame[kinds.isin(list(rewarded))])
        main = set(rewarded)
    else:
        chosen = _preferred(rewarded)
        rows, notes = canonical(parts[chosen])
        main = {chosen}
        notes = (f"rewards taken from the records with {column} '{chosen}'", *notes)
    for kind, part in parts.items():
        if kind not in main:
            rows = _with_columns(rows, canonical(part)[0], held_out=kind in held_out)
    return rows, notes


def without_prefix(frame: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """Take what a logger put in front of the names off again.

    Parameters
    ----------
    frame
        Any table.
    prefix
        For example ``"train/"``.

    Returns
    -------
    pandas.DataFrame
        The same rows. A name that is there without the prefix already keeps it.
    """
    renames = {
        name: str(name).removeprefix(prefix)
        for name in frame.columns
        if str(name).startswith(prefix)
    }
    taken = set(frame.columns)
    return frame.rename(columns={old: new for old, new in renames.items() if new not in taken})


def missing(column: pd.Series) -> pd.Series:
    """Tell which cells of a column hold nothing.

    Parameters
    ----------
    column
        Numbers, text or both.

    Returns
    -------
    pandas.Series of bool
        True for None, NaN and empty text.
    """
    if pd.api.types.is_numeric_dtype(column):
        return column.isna()
    return column.map(_is_missing).astype(bool)


def _is_missing(cell: Any) -> bool:
    return cell is None or cell is pd.NA or cell == "" or (isinstance(cell, float) and cell != cell)


def _has_reward(frame: pd.DataFrame) -> bool:
    return "reward" in frame.columns and not missing(frame["reward"]).all()


def _share_steps(frames: list[pd.DataFrame]) -> bool:
    seen: set[float] = set()
    for frame in frames:
        steps = set(_steps(frame)) if "step" in frame.columns else set()
        if seen & steps:
            return True
        seen |= steps
    return False


def _steps(frame: pd.DataFrame) -> pd.Series:
    """Return steps as numbers, for matching only; what is no number matches nothing."""
    return frame["step"].map(number_or_nan).astype(float)


def number_or_nan(cell: Any) -> float:
    """Return a cell as a number; NaN, which matches nothing, if it is none."""
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _preferred(rewarded: dict[str, pd.DataFrame]) -> str:
    for word in _PREFERRED:
        for kind in rewarded:
            if word in kind.lower():
                return kind
    return max(rewarded, key=lambda kind: len(rewarded[kind]))


def _with_columns(rows: pd.DataFrame, other: pd.DataFrame, held_out: bool) -> pd.DataFrame:
    """Add the quantities of another kind of record that the rows lack, by step."""
    if "step" not in rows.columns or "step" not in other.columns:
        return rows
    if held_out:
        # Its own reward is the run's evaluation, whatever else it calls so.
        source = "reward" if _has_reward(other) else "eval_reward"
        wanted = {source: "eval_reward"}
    else:
        wanted = {name: name for name in CANONICAL if name not in ("step", "reward")}
    wanted = {
        old: new
        for old, new in wanted.items()
        if old in other.columns and (new not in rows.columns or missing(rows[new]).all())
    }
    if not wanted:
        return rows
    added = other[[*wanted]].map(number_or_nan).rename(columns=wanted)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are checked later
        means = added.groupby(_steps(other)).mean()
    kept = rows.drop(columns=[name for name in means.columns if name in rows.columns])
    steps = _steps(rows)
    return kept.assign(**{name: steps.map(means[name]) for name in means.columns})
