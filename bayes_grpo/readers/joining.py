"""Records that belong together: what was logged of one rollout, brought onto one row."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.readers.protocol import Records
from bayes_grpo.readers.records import missing, number_or_nan
from bayes_grpo.readers.text import parse_json_lines, read_text

DROPPED = -1
"""Owner of a record that belongs to no row."""


def owners_by_step(table: pd.DataFrame) -> np.ndarray:
    """Assign records without a reward to the nearest row with one that has the same step.

    Parameters
    ----------
    table
        Records with canonical names, in the order of the log.

    Returns
    -------
    numpy.ndarray of int, shape (records,)
        Position of the owning row: a record's own where it has a reward or an evaluation, or where
        no row has its step.
    """
    owners = np.arange(len(table))
    if not {"step", "reward"} <= set(table.columns):
        return owners
    steps = table["step"].map(number_or_nan).to_numpy(dtype=float)
    rewarded = ~missing(table["reward"]).to_numpy()
    kept = rewarded.copy()
    if "eval_reward" in table.columns:
        kept |= ~missing(table["eval_reward"]).to_numpy()
    places: dict[float, list[int]] = {}
    for at in np.flatnonzero(rewarded):
        places.setdefault(steps[at], []).append(int(at))
    for at in np.flatnonzero(~kept):
        same = places.get(steps[at], [])
        if same:  # the nearest one: a counter may start anew
            owners[at] = min(same, key=lambda place: abs(place - int(at)))
    return owners


def gathered(table: pd.DataFrame, owners: np.ndarray) -> pd.DataFrame:
    """Bring records onto the rows that own them.

    Parameters
    ----------
    table
        Records with canonical names.
    owners
        Shape (records,): position of the row that each belongs to, or `DROPPED`.

    Returns
    -------
    pandas.DataFrame
        One row for each owner, in their order. What it has itself stays as it is; what it lacks is
        the mean over its records.
    """
    kept = owners != DROPPED
    rows = np.unique(owners[kept])
    own = table.iloc[rows].reset_index(drop=True)
    others = kept & (owners != np.arange(len(table)))
    if not others.any():
        return own
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are checked later
        numbers = table[others].map(number_or_nan).astype(float)
        means = numbers.groupby(owners[others]).mean().reindex(rows).reset_index(drop=True)
    filled = {}
    for name in own.columns:
        lacking = missing(own[name])
        mean = means[name]
        usable = lacking & mean.notna()
        if usable.any():
            filled[name] = own[name].astype(object).where(~usable, mean.astype(object))
    return own.assign(**filled)


def with_file_beside(
    path: Path, records: Records, wanted: Callable[[pd.DataFrame], bool]
) -> Records:
    """Add columns of JSON lines under the same name, in the folder above or one beside.

    Parameters
    ----------
    path
        Of the file that was read.
    records
        As read from it.
    wanted
        Tells by its columns whether a file is the one to add.

    Returns
    -------
    Records
        With the columns that the records lack, by step, and a note on them; as they are if there is
        no such file.
    """
    table = records.table
    if path.suffix != ".jsonl" or "step" not in table.columns:
        return records
    folder = path.resolve().parent
    for place in [folder.parent / path.name, *sorted(folder.parent.glob(f"*/{path.name}"))]:
        if place.parent == folder or not place.is_file():
            continue
        shown = f"{place.parent.name}/{place.name}"
        try:
            other = pd.DataFrame(parse_json_lines(read_text(place))[0], dtype=object)
        except InputError as error:
            note = f"the metrics beside, in {shown}, were not used: {error}"
            return replace(records, notes=(*records.notes, note))
        own = [name for name in other.columns if name not in table.columns]
        if "step" not in other.columns or not wanted(other[own]):
            continue
        # A restarted process appends to its file: the later row of a step holds.
        numbers = other[own].map(number_or_nan).groupby(other["step"].map(number_or_nan)).last()
        steps = table["step"].map(number_or_nan)
        added = {name: steps.map(numbers[name]) for name in own if numbers[name].notna().any()}
        note = f"joined by step with the metrics beside, in {shown}"
        return replace(records, table=table.assign(**added), notes=(*records.notes, note))
    return records
