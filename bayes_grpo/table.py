"""From a raw table of a log to the checked table of a run: pure functions, one rule each."""

import math
import re

import numpy as np
import pandas as pd

from bayes_grpo.columns import CANONICAL, candidates, look_alikes
from bayes_grpo.errors import InputError

COUNTS = ("updates", "generations")

HITS = 3
"""Rows that must hit 0 or 1 exactly before it is taken as a bound of the reward."""

# Above these a number is a slip, and arithmetic with it would overflow.
_LARGEST_STEP = 2.0**53
_LARGEST_REWARD = 1e100

# Ways in which logs write that there is no number.
_BLANKS = frozenset({"", "nan", "none", "null", "na", "n/a", "<na>", "-"})


def rename_known(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Give the columns other than the reward their canonical names.

    The reward is left alone: where a log has several, the choice is the caller's.

    Parameters
    ----------
    frame
        Table with names as some logger spells them.

    Returns
    -------
    frame : pandas.DataFrame
        The same rows.
    notes : tuple of str
        What was renamed.

    Raises
    ------
    InputError
        If two columns have one name.
    """
    renames = {}
    for name in CANONICAL:
        found = candidates(frame.columns, name)
        if name != "reward" and found and found[0] != name:
            renames[found[0]] = name
    notes = tuple(f"column '{old}' read as {new}" for old, new in renames.items())
    frame = frame.rename(columns=renames).rename(columns=str)
    doubled = frame.columns[frame.columns.duplicated()]
    if len(doubled):
        raise InputError(f"two columns are called '{doubled[0]}': expected one, rename or drop one")
    return frame, notes


def require_reward(frame: pd.DataFrame) -> None:
    """Check that there is a reward.

    Parameters
    ----------
    frame
        Table with canonical names.

    Raises
    ------
    InputError
        If it has no column ``reward``; names the columns found and those that look like it.
    """
    if "reward" in frame.columns:
        return
    found = [str(column) for column in frame.columns]
    shown = ", ".join(found[:20]) + (", ..." if len(found) > 20 else "") if found else "none"
    near = look_alikes(frame.columns)
    hint = (
        f"'{near[0]}' looks like it: rename it to 'reward'" if near else "rename yours to 'reward'"
    )
    raise InputError(f"no column 'reward' (columns found: {shown}); {hint}")


def to_numbers(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Turn every column into float64.

    Numbers written as text are read; so are the usual ways of writing "no number".

    Parameters
    ----------
    frame
        Table with canonical names.

    Returns
    -------
    frame : pandas.DataFrame
        Numeric columns only. A column that is empty in every row is as good as absent and is left
        out, unless it is the reward.
    notes : tuple of str
        Which of the other columns were left out because they hold no numbers.

    Raises
    ------
    InputError
        If a cell of a canonical column is not a number; names its column and row.
    """
    columns: dict[str, np.ndarray] = {}
    dropped = []
    for name in frame.columns:
        values, bad = _numbers(frame[name])
        if bad is None:
            if name == "reward" or not np.isnan(values).all():
                columns[name] = values
        elif name in (*CANONICAL, *COUNTS):
            cell = frame[name].iloc[bad]
            raise InputError(
                f"row {bad + 1}, column '{name}': found {_shown(cell)}, expected a number; "
                "correct or blank the cell"
            )
        else:
            dropped.append(name)
    notes = (f"columns without numbers left out: {', '.join(dropped)}",) if dropped else ()
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame))), notes


def drop_dead(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Leave out quantities that the trainer names but does not compute.

    Parameters
    ----------
    frame
        Table of float64.

    Returns
    -------
    frame : pandas.DataFrame
        Without those canonical columns that are exactly 0 in every row, where 0 means "not
        computed": an entropy, a length or a gradient norm of 0 cannot be, and a divergence of 0
        throughout is one without a reference policy.
    notes : tuple of str
        Which were left out.
    """
    dead = [
        name
        for name in ("kl", "entropy", "completion_length", "grad_norm")
        if name in frame.columns and len(frame) > 2 and (frame[name].dropna() == 0).all()
    ]
    notes = tuple(f"{name} is 0 in every row (not computed?): column left out" for name in dead)
    return frame.drop(columns=dead), notes


def number_steps(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Check the steps; number the rows where there are none.

    Parameters
    ----------
    frame
        Table of float64.

    Returns
    -------
    frame : pandas.DataFrame
        With whole, never decreasing steps. Rows with neither step nor reward are left out.
    notes : tuple of str
        Assumptions made.

    Raises
    ------
    InputError
        If a step is missing, not finite, not whole or negative, or if the steps run backwards.
    """
    if "step" not in frame.columns:
        numbered = frame.assign(step=np.arange(1.0, len(frame) + 1))
        return numbered, (f"no step column: the rows were numbered 1 to {len(frame)}",)
    notes: tuple[str, ...] = ()
    idle = frame["step"].isna() & frame["reward"].isna()
    if idle.any():
        frame = frame[~idle]  # keeps its index: messages go on naming the original row
        notes = (f"{int(idle.sum())} rows with neither step nor reward left out",)
    steps = frame["step"].to_numpy()
    for wrong, expected in (
        (~np.isfinite(steps), "a number"),
        (steps != np.floor(steps), "a whole number (drop the column to have the rows numbered)"),
        (steps < 0, "0 or more"),
        (steps > _LARGEST_STEP, "a step counter"),
    ):
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InputError(
                f"row {frame.index[at] + 1}, column 'step': found {steps[at]:g}, "
                f"expected {expected}"
            )
    back = np.diff(steps) < 0
    if back.any():
        at = int(np.argmax(back))
        raise InputError(
            f"row {frame.index[at + 1] + 1}, column 'step': the step runs back from {steps[at]:g} "
            f"to {steps[at + 1]:g}, expected rising steps; the log looks resumed or concatenated, "
            "split it into one table a run"
        )
    return frame, notes


def check_ranges(frame: pd.DataFrame) -> None:
    """Check the columns that enter the model for impossible values.

    Parameters
    ----------
    frame
        Table of float64; its index gives the row in messages.

    Raises
    ------
    InputError
        If a reward is infinite, a learning rate or spread negative or infinite, or a fraction
        outside 0 to 1.
    """
    limits = {
        "reward": (-_LARGEST_REWARD, _LARGEST_REWARD, "a finite number"),
        "learning_rate": (0.0, math.inf, "a finite number of at least 0"),
        "reward_std": (0.0, math.inf, "a finite number of at least 0"),
        "zero_std_fraction": (0.0, 1.0, "a fraction between 0 and 1"),
    }
    for name, (low, high, expected) in limits.items():
        if name not in frame.columns:
            continue
        values = frame[name].to_numpy()
        # Only a fraction can be rounded out of its range; a learning rate may be far smaller.
        rounding = 1e-6 if math.isfinite(high) else 0.0
        wrong = np.isinf(values) | (values < low - rounding) | (values > high + rounding)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise InputError(
                f"row {frame.index[at] + 1}, column '{name}': found {values[at]:g}, "
                f"expected {expected}; correct or blank the cell"
            )


def merge_equal_steps(frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray, tuple[str, ...]]:
    """Average the rows that share a step, which are micro-batches of it.

    Parameters
    ----------
    frame
        Table of float64 with never decreasing steps.

    Returns
    -------
    frame : pandas.DataFrame
        One row a step; a mean leaves out what is missing.
    batches : numpy.ndarray of int, shape (rows,)
        Rows with a reward that each row was made of.
    notes : tuple of str
        How many rows were merged.
    """
    grouped = frame.groupby("step", sort=False)
    batches = grouped["reward"].count().to_numpy()
    if frame["step"].is_unique:
        return frame.reset_index(drop=True), batches, ()
    # A companion column may hold infinities or absurd values; they are its own affair.
    with np.errstate(over="ignore", invalid="ignore"):
        merged = grouped.mean()
    for name, how in (("updates", "max"), ("generations", "sum")):
        if name in frame.columns:
            merged[name] = grouped[name].agg(how)
    note = (
        f"{len(frame)} rows have {len(merged)} different steps: rows of one step were averaged, "
        "each with a reward counted as one rollout batch"
    )
    return merged.reset_index(), batches, (note,)


def check_reward_varies(reward: np.ndarray) -> None:
    """Check that there is something to model.

    Parameters
    ----------
    reward
        Shape (rows,), NaN where missing.

    Raises
    ------
    InputError
        If fewer than two rows have a reward, or all have the same.
    """
    present = reward[~np.isnan(reward)]
    if present.size == 0:
        raise InputError("column 'reward' is empty in every row: expected at least 2 rewards")
    if present.size == 1:
        raise InputError("only 1 row has a reward: expected at least 2, log more steps")
    if np.ptp(present) == 0:
        raise InputError(
            f"the reward is {present[0]:g} in all of the {present.size} rows that have one: a "
            "constant reward gives no learning signal and nothing to model"
        )


def natural_bounds(reward: np.ndarray) -> tuple[float, float] | None:
    """Find the bounds that rewards give away by hitting them exactly, again and again.

    Parameters
    ----------
    reward
        Shape (rows,), NaN where missing.

    Returns
    -------
    tuple of float or None
        0 as the lower bound where at least `HITS` rewards are exactly 0 and none is below, 1 as the
        upper one where as many are exactly 1 and none is above, else infinite; None without either.
    """
    present = reward[~np.isnan(reward)]
    low = 0.0 if np.min(present) == 0 and np.sum(present == 0) >= HITS else -math.inf
    high = 1.0 if np.max(present) == 1 and np.sum(present == 1) >= HITS else math.inf
    return None if math.isinf(low) and math.isinf(high) else (low, high)


def add_counts(
    frame: pd.DataFrame,
    batches: np.ndarray,
    *,
    updates_per_step: int,
    refresh_interval: int,
    row_average: str,
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Add what each row stands for: `Run` states the rules.

    Parameters
    ----------
    frame
        Table with rising steps.
    batches
        Shape (rows,): rows of the log with a reward that each row was made of.
    updates_per_step, refresh_interval, row_average
        The settings of these names.

    Returns
    -------
    frame : pandas.DataFrame
        With whole-number columns ``updates`` and ``generations``; those it had already are kept.
    notes : tuple of str
        Assumptions made.

    Raises
    ------
    InputError
        If counts given in the table are not whole, or too small.
    """
    frame, notes = frame.copy(), []
    steps = frame["step"].to_numpy().astype(np.int64)
    frame["step"] = steps
    spacing = max(1, round(float(np.median(np.diff(steps)))))
    if "updates" not in frame.columns:
        # A counter that starts at 0 is read as one that starts at 1, so that no row stands for
        # nothing. One that starts late is a log whose beginning is cut off.
        first = 1 if steps[0] == 0 else min(int(steps[0]), spacing)
        if steps[0] > spacing:
            notes.append(f"the log starts at step {steps[0]}: what came before is not modelled")
        frame["updates"] = np.diff(steps, prepend=steps[0] - first) * updates_per_step
    elif len(frame) > 4 and (np.diff(frame["updates"]) > 0).all():
        raise InputError(
            "column 'updates' rises in every row like a counter: expected the optimizer updates "
            "between one row and the next; rename it ('step' if it counts the steps)"
        )
    frame["updates"] = _counts(frame, "updates", lowest=1)
    if "generations" not in frame.columns:
        in_window = np.maximum(1, frame["updates"].to_numpy() // refresh_interval)
        frame["generations"] = batches * (in_window if row_average == "window" else 1)
    frame["generations"] = _counts(frame, "generations", lowest=0)
    empty = frame["reward"].notna() & (frame["generations"] == 0)
    if empty.any():
        raise InputError(
            f"step {steps[int(np.argmax(empty))]}, column 'generations': found 0 for a row with a "
            "reward, expected at least 1"
        )
    return frame, tuple(notes)


def ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Put the canonical columns first and the counts last.

    Parameters
    ----------
    frame
        Any table of a run.

    Returns
    -------
    pandas.DataFrame
        The same columns in the order of the documentation.
    """
    first = [name for name in CANONICAL if name in frame.columns]
    others = [name for name in frame.columns if name not in (*CANONICAL, *COUNTS)]
    return frame[[*first, *others, *COUNTS]]


def _counts(frame: pd.DataFrame, name: str, lowest: int) -> np.ndarray:
    values = frame[name].to_numpy(dtype=float)
    wrong = ~((values == np.floor(values)) & (values >= lowest) & (values <= _LARGEST_STEP))
    if wrong.any():
        at = int(np.argmax(wrong))
        raise InputError(
            f"step {frame['step'].iloc[at]}, column '{name}': found {values[at]:g}, expected a "
            f"whole number of at least {lowest}; correct it, or drop the column to have it derived"
        )
    return values.astype(np.int64)


def _numbers(column: pd.Series) -> tuple[np.ndarray, int | None]:
    """Return the column as float64, and the position of the first cell that is no number."""
    if pd.api.types.is_bool_dtype(column) or (
        pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column)
    ):
        return column.to_numpy(dtype=float, na_value=np.nan), None
    values = np.full(len(column), np.nan)
    for at, cell in enumerate(column):
        number = _number(cell)
        if number is None:
            return values, at
        values[at] = number
    return values, None


def _number(cell: object) -> float | None:
    if cell is None or cell is pd.NA or cell is pd.NaT:
        return math.nan
    if isinstance(cell, str):
        text = cell.strip().strip("\"'")
        if text.lower() in _BLANKS:
            return math.nan
        # How NumPy 2 prints a scalar inside a dict: np.float64(0.25).
        wrapped = re.fullmatch(r"(?:np|numpy)\.\w+\((.*)\)", text)
        cell = wrapped.group(1) if wrapped else text
    if not isinstance(cell, str | int | float | np.number | np.bool_):
        return None
    try:
        return float(cell)
    except (ValueError, OverflowError):
        return None


def _shown(cell: object) -> str:
    text = repr(cell)
    return text if len(text) <= 40 else f"{text[:37]}..."
