"""From what a file holds to a run: canonical names, evaluations in their place, settings."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo.columns import CANONICAL, candidates
from bayes_grpo.readers.config import Config
from bayes_grpo.readers.plain import settings_in_columns
from bayes_grpo.readers.protocol import Adjusted, Known, Parsed, Records, Trainer, spelled
from bayes_grpo.readers.records import missing, number_or_nan, training_rows
from bayes_grpo.settings import Setting
from bayes_grpo.table import require_reward

# rewards/<function>/mean is one component of the reward; its spread keeps its own name.
_COMPONENT = re.compile(r"(?:train/)?(rewards/.+?)(?:/mean)?")


def translate(
    records: Records, trainer: Trainer, config: Config, given: Mapping[str, Any] | None = None
) -> Parsed:
    """Give records their canonical names and find the settings of their run.

    Parameters
    ----------
    records
        As a format read them.
    trainer
        Whose records they are.
    config
        Everything configured: in the file, and beside it.
    given
        Settings given by hand, which columns may be derived from.

    Returns
    -------
    Parsed
        Settings from the file win over those of the configuration, and these over the trainer's
        defaults, which are marked so.

    Raises
    ------
    InputError
        If there is no reward.
    """
    rows, notes = training_rows(records.table, lambda frame: canonical(frame, trainer))
    settings: dict[str, Setting] = {
        name: Setting(value, "default", why) for name, (value, why) in trainer.defaults.items()
    }
    if trainer.name:
        settings["trainer"] = Setting(trainer.name, "read", "the form of the log and its names")
    settings |= trainer.settings(config)
    repeated, varying = settings_in_columns(records.table)
    settings |= repeated
    adjusted = Adjusted(rows)
    if trainer.adjust is not None:
        by_hand = {name: Setting(value, "given") for name, value in (given or {}).items()}
        known = Known(config, {**settings, **records.settings, **by_hand})
        adjusted = trainer.adjust(rows, known)
    settings |= adjusted.settings
    settings |= records.settings
    window = "row_average" in settings and settings["row_average"].value == "window"
    table, joined = join_evaluations(adjusted.table, window)
    require_reward(table)
    said = (*records.notes, *notes, *varying, *adjusted.notes, *joined)
    return Parsed(table, settings, said, records.label)


def canonical(frame: pd.DataFrame, trainer: Trainer) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Give columns their canonical names, the reward included.

    Parameters
    ----------
    frame
        Any table; columns without a single value are passed over.
    trainer
        Whose names are tried before those that all trainers share.

    Returns
    -------
    frame : pandas.DataFrame
        The same rows. Components of the reward are called ``rewards/<function>``.
    notes : tuple of str
        Which column the reward was taken from, and of several evaluations, which one.
    """
    filled = [name for name in frame.columns if not missing(frame[name]).all()]
    renames: dict[Any, str] = {}
    notes = []
    for name in CANONICAL:
        # A reward that is empty in every row is worth an error of its own, not a missing column.
        found = _sources(filled, name, trainer) or _sources(frame.columns, name, trainer)
        found = [column for column in found if column not in renames]
        if not found or found[0] == name:
            continue
        renames[found[0]] = name
        if name == "reward" or (name == "eval_reward" and found[1:]):
            others = ", ".join(f"'{other}'" for other in found[1:])
            notes.append(
                f"{name} taken from column '{found[0]}'" + (f", not {others}" if others else "")
            )
    for column in frame.columns:
        component = _COMPONENT.fullmatch(spelled(column))
        if (
            component
            and column not in renames
            and not spelled(column).endswith(("/std", "/mean/std"))
        ):
            renames[column] = component.group(1)
    # A column left under a name that another one was chosen for would be there twice.
    taken = set(renames.values())
    replaced = [name for name in frame.columns if name in taken and renames.get(name) != name]
    renamed = frame.drop(columns=replaced).rename(columns=renames)
    return renamed.loc[:, ~renamed.columns.duplicated()], tuple(notes)


def _sources(columns: Iterable[Any], name: str, trainer: Trainer) -> list[Any]:
    """Return the columns that may hold a quantity, the trainer's own names first."""
    columns = list(columns)
    own = [
        column
        for pattern in trainer.columns.get(name, ())
        for column in columns
        if re.fullmatch(pattern, spelled(column))
    ]
    return list(dict.fromkeys([*own, *candidates(columns, name)]))


def join_evaluations(table: pd.DataFrame, window: bool) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Put the result of an evaluation that has a row of its own on a training row.

    Parameters
    ----------
    table
        Rows with canonical names.
    window
        Whether a row averages everything since the row before. Then an evaluation between two
        logged steps goes onto the later one: a row of its own would cut that one's window in two.

    Returns
    -------
    table : pandas.DataFrame
        Rows that have an evaluation but neither a reward nor anything of training have given it to
        the row of the same step, or as said above.
    notes : tuple of str
        How many had no row of the same step.
    """
    if not {"step", "reward", "eval_reward"} <= set(table.columns):
        return table, ()
    of_training = [
        name
        for name in ("reward", "reward_std", "kl", "entropy", "grad_norm", "loss")
        if name in table.columns
    ]
    evaluated = ~missing(table["eval_reward"])
    trained = ~pd.concat([missing(table[name]) for name in of_training], axis=1).all(axis=1)
    alone = (evaluated & ~trained).to_numpy(copy=True)
    if not alone.any() or alone.all():
        return table, ()
    if not window:
        trained_steps = set(table.loc[~alone, "step"].map(number_or_nan))
        alone &= table["step"].map(number_or_nan).isin(trained_steps).to_numpy()
    rows = table[~alone].copy()
    positions = np.flatnonzero(~alone)
    steps = rows["step"].map(number_or_nan).to_numpy(dtype=float)
    places: dict[float, list[int]] = {}
    for k, step in enumerate(steps):
        places.setdefault(step, []).append(k)
    column = rows["eval_reward"].astype(object).tolist()
    moved = 0
    for at in np.flatnonzero(alone):
        step, result = number_or_nan(table["step"].iloc[at]), table["eval_reward"].iloc[at]
        same = places.get(step, [])
        if same:  # the nearest one: a counter may start anew
            chosen = min(same, key=lambda k: abs(int(positions[k]) - int(at)))
        else:
            chosen = min(int(np.searchsorted(positions, at)), len(rows) - 1)
            moved += 1
        column[chosen] = result
    note = f"{moved} evaluations between two logged steps were put on the later one"
    return rows.assign(eval_reward=column).reset_index(drop=True), ((note,) if moved else ())
