"""Logs whose step counter runs back: resumed, restarted, concatenated, or out of order."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.readers.protocol import Parsed
from bayes_grpo.readers.records import missing, number_or_nan

Segments = Literal["auto", "split", "merge", "last"]
"""What to do with the pieces of a log; see `segmented`."""

# A start that was given up within a few rows is no run of its own.
_ABANDONED_ROWS = 10
_ABANDONED_SHARE = 0.1

# More turns than this share of the rows, and the rows are out of order, not resumed.
_SHUFFLED = 0.2
_MOST_PIECES = 50


@dataclass(frozen=True)
class _Piece:
    start: int
    end: int
    first: float
    last: float

    def __len__(self) -> int:
        return self.end - self.start


def check_segments(segments: str) -> None:
    """Refuse an unknown way of treating the pieces of a log; raises `InputError`."""
    if segments not in get_args(Segments):
        expected = ", ".join(repr(way) for way in get_args(Segments))
        raise InputError(f"segments is {segments!r}: expected one of {expected}")


def segmented(parsed: Parsed, segments: Segments = "auto") -> list[Parsed]:
    """Sort out a log whose step counter runs back.

    Parameters
    ----------
    parsed
        Rows with canonical names, in the order of the log.
    segments
        ``"auto"``: a counter that goes back to where the log began is another run; starts that were
        given up within a few rows are left out. A counter that goes back to a later step is a
        training resumed from a checkpoint: its rows replace those that they repeat. ``"split"``:
        every piece is a run. ``"merge"``: later rows replace earlier ones of the same and later
        steps, whatever they are. ``"last"``: only the last piece.

    Returns
    -------
    list of Parsed
        One or more runs, with notes on what was done.

    Raises
    ------
    InputError
        If the steps run back so often, with repeats, that there is no telling their order.
    """
    if "step" not in parsed.table.columns or parsed.table.empty:
        return [parsed]
    table = parsed.table.reset_index(drop=True)
    steps = table["step"].map(number_or_nan).to_numpy(dtype=float)
    pieces = _pieces(steps)
    if len(pieces) == 1:
        return [parsed]
    if ordered := _in_order(table, steps, pieces):
        return [replace(parsed, table=ordered[0], notes=(*parsed.notes, ordered[1]))]
    if len(pieces) > _MOST_PIECES or len(pieces) > max(3, _SHUFFLED * len(table)):
        turn = pieces[1].start
        raise InputError(
            f"row {turn + 1}, column 'step': the step runs back from {steps[turn - 1]:g} to "
            f"{steps[turn]:g}, and {len(pieces) - 1} times in all, with repeated steps: expected "
            "the rows of a training in their order; sort them, or drop the column to have them "
            "numbered"
        )
    if segments == "last":
        kept = pieces[-1]
        note = (
            f"the step counter runs back {len(pieces) - 1} times: only the last piece was kept, "
            f"{len(kept)} of {len(table)} rows"
        )
        return [_part(parsed, table.iloc[kept.start : kept.end], note)]
    if segments == "merge":
        return [_merged(parsed, table, steps, pieces)]
    if segments == "split":
        return _split(parsed, table, steps, [[piece] for piece in pieces])
    groups: list[list[_Piece]] = []
    for piece in pieces:
        if not groups or piece.first <= groups[-1][0].first:
            groups.append([piece])  # back to the beginning: another training
        else:
            groups[-1].append(piece)
    return _split(parsed, table, steps, groups)


def _pieces(steps: np.ndarray) -> list[_Piece]:
    """Cut where the step falls; a missing step belongs to the piece it stands in."""
    known = np.flatnonzero(~np.isnan(steps))
    if known.size == 0:
        return [_Piece(0, len(steps), np.nan, np.nan)]
    turns = known[1:][np.diff(steps[known]) < 0]
    edges = [0, *turns.tolist(), len(steps)]
    pieces = []
    for start, end in pairwise(edges):
        own = steps[start:end][~np.isnan(steps[start:end])]
        pieces.append(_Piece(start, end, float(own[0]), float(own[-1])))
    return pieces


def _in_order(
    table: pd.DataFrame, steps: np.ndarray, pieces: list[_Piece]
) -> tuple[pd.DataFrame, str] | None:
    """Sort rows whose order is beyond doubt: parts that do not overlap, or shuffled steps."""
    if np.isnan(steps).any():
        return None
    spans = sorted(pieces, key=lambda piece: piece.first)
    apart = all(a.last < b.first for a, b in pairwise(spans))
    distinct = len(np.unique(steps)) == len(steps)
    if not apart and not (distinct and len(pieces) > max(3, _SHUFFLED * len(steps))):
        return None
    what = "parts of the log" if apart and len(pieces) < len(steps) / 2 else "rows"
    note = f"the {what} were not in the order of their steps: sorted"
    return table.iloc[np.argsort(steps, kind="stable")].reset_index(drop=True), note


def _merged(parsed: Parsed, table: pd.DataFrame, steps: np.ndarray, pieces: list[_Piece]) -> Parsed:
    keep = np.ones(len(table), dtype=bool)
    for piece in pieces[1:]:
        earlier = np.arange(len(table)) < piece.start
        keep &= ~(earlier & (steps >= piece.first))
    replaced = int((~keep).sum())
    resumed = ", ".join(f"{piece.first:g}" for piece in pieces[1:][:5])
    more = ", ..." if len(pieces) > 6 else ""
    note = (
        f"the training was resumed at step {resumed}{more}: {replaced} earlier rows of the same "
        "and later steps were replaced"
    )
    return _part(parsed, table[keep], note)


def _split(
    parsed: Parsed, table: pd.DataFrame, steps: np.ndarray, groups: list[list[_Piece]]
) -> list[Parsed]:
    sizes = [sum(map(len, group)) for group in groups]
    longest = max(sizes)
    runs, given_up = [], []
    for at, (group, size) in enumerate(zip(groups, sizes, strict=True), 1):
        start, end = group[0].start, group[-1].end
        rewards = table["reward"].iloc[start:end]
        several = len(set(rewards[~missing(rewards)].map(number_or_nan))) > 1
        if size < max(2, min(_ABANDONED_ROWS, _ABANDONED_SHARE * longest)) or not several:
            given_up.append(str(size))
            continue
        part = replace(
            parsed, label=" ".join(filter(None, (parsed.label, f"part {at}"))), notes=parsed.notes
        )
        rows, own = table.iloc[start:end], steps[start:end]
        if len(group) > 1:
            shifted = [replace(p, start=p.start - start, end=p.end - start) for p in group]
            runs.append(_merged(part, rows.reset_index(drop=True), own, shifted))
        else:
            runs.append(_part(part, rows))
    if not runs:
        return [parsed]  # nothing to model in any of them: the checks of the table say why
    notes = []
    if len(groups) > 1:
        notes.append(f"the step counter starts anew {len(groups) - 1} times")
    if given_up:
        rows_each = ", ".join(given_up)
        notes.append(f"starts given up after {rows_each} rows, or without two rewards, left out")
    if len(runs) == 1:
        runs = [replace(runs[0], label=parsed.label)]
    return [replace(run, notes=(*run.notes, *notes)) for run in runs]


def _part(parsed: Parsed, rows: pd.DataFrame, *notes: str) -> Parsed:
    return replace(parsed, table=rows.reset_index(drop=True), notes=(*parsed.notes, *notes))
