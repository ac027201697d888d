"""Records of several kinds in one file: which are training, and what the others add."""

import re
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo.columns import CANONICAL, candidates

# Columns in which logs say what a record is.
_KINDS = ("type", "record_type", "kind", "event", "split", "phase", "mode", "stage")
_EVALUATION = re.compile(r"(eval|val$|valid|test|held)", re.IGNORECASE)
# Where several kinds have a reward, the batch as sampled comes before what training made of it.
_PREFERRED = ("rollout", "generation", "train")


def training_rows(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Keep one row for each training step of a file that mixes kinds of records.

    Parameters
    ----------
    frame
        All records, with names as the log has them.

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
    kinds = frame[column].map(lambda kind: "" if _missing(kind) else str(kind))
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


def canonical(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Give columns their canonical names, the reward included.

    Parameters
    ----------
    frame
        Any table; columns without a single value are left out first.

    Returns
    -------
    frame : pandas.DataFrame
        The same rows.
    notes : tuple of str
        Which column the reward was taken from.
    """
    empty = [name for name in frame.columns if frame[name].map(_missing).all()]
    filled = frame.drop(columns=empty)
    renames, notes = {}, []
    for name in CANONICAL:
        # A reward that is empty in every row is worth an error of its own, not a missing column.
        found = candidates(filled.columns, name) or candidates(frame.columns, name)
        if not found or found[0] == name:
            continue
        renames[found[0]] = name
        if name == "reward":
            others = ", ".join(f"'{other}'" for other in found[1:])
            notes.append(
                f"reward taken from column '{found[0]}'" + (f", not {others}" if others else "")
            )
    # A column left under a canonical name although another was chosen would be there twice.
    replaced = [new for old, new in renames.items() if new in frame.columns and new != old]
    return frame.drop(columns=replaced).rename(columns=renames), tuple(notes)


def _missing(cell: Any) -> bool:
    return cell is None or cell == "" or (isinstance(cell, float) and cell != cell)


def _has_reward(frame: pd.DataFrame) -> bool:
    return "reward" in frame.columns and not frame["reward"].map(_missing).all()


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
    return frame["step"].map(_number_or_nan).astype(float)


def _number_or_nan(cell: Any) -> float:
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
        if old in other.columns and (new not in rows.columns or rows[new].map(_missing).all())
    }
    if not wanted:
        return rows
    added = other[[*wanted]].map(_number_or_nan).rename(columns=wanted)
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are checked later
        means = added.groupby(_steps(other)).mean()
    kept = rows.drop(columns=[name for name in means.columns if name in rows.columns])
    steps = _steps(rows)
    return kept.assign(**{name: steps.map(means[name]) for name in means.columns})
