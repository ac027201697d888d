"""ms-swift: TRL's trainer with its own ``logging.jsonl`` and console."""

import re
from collections.abc import Iterable, Iterator

import pandas as pd

from bayes_grpo.columns import CANONICAL
from bayes_grpo.readers import trl
from bayes_grpo.readers.config_text import literal
from bayes_grpo.readers.protocol import Adjusted, Console, Known, Row, Trainer, spelled
from bayes_grpo.readers.records import missing
from bayes_grpo.settings import Setting

_COUNTER = "global_step/max_steps"
_REACHED = re.compile(r"\s*(\d{1,15})\s*/\s*(\d{1,15})\s*")
# Text that repeats the counter and the clock.
_CLOCK = ("elapsed_time", "remaining_time", "percentage")
_EVALUATION = ("eval_", "eval/")


def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
    """Read the counter, tell evaluations from training, and drop the closing rows.

    Parameters
    ----------
    table
        Rows with canonical names.
    known
        What is known so far.

    Returns
    -------
    Adjusted
    """
    found = {
        "row_average": Setting("window", "read", "ms-swift averages everything since the last log")
    }
    counter = next((name for name in table.columns if spelled(name) == _COUNTER), None)
    if counter is None:
        table, of_steps = trl.with_steps(table)
        return Adjusted(table, {**found, **of_steps.settings}, of_steps.notes)
    reached = [_REACHED.fullmatch(str(cell)) for cell in table[counter]]
    # The rows at the end tell how long the training took, and where its checkpoints are.
    closing = pd.Series([match is None for match in reached], index=table.index)
    if "train_runtime" in table.columns:
        closing |= ~missing(table["train_runtime"])
    steps = [int(match.group(1)) if match else None for match in reached]
    rows = table.assign(step=steps)
    evaluations = [
        name for name in rows.columns if name == "eval_reward" or str(name).startswith(_EVALUATION)
    ]
    if evaluations:
        # One eval_ key makes the whole row an evaluation: others in it have lost their prefix.
        held_out = ~pd.concat([missing(rows[n]) for n in evaluations], axis=1).all(axis=1)
        kept = {"step", counter, *evaluations}
        training = [name for name in rows.columns if name not in kept]
        rows[training] = rows[training].astype(object).mask(held_out, None)
    rows = rows[~closing].reset_index(drop=True)
    dropped = [name for name in rows.columns if name == counter or spelled(name) in _CLOCK]
    empty = [n for n in rows.columns if n not in CANONICAL and missing(rows[n]).all()]
    planned = [int(match.group(2)) for match in reached if match and int(match.group(2)) > 0]
    if planned:
        found["max_steps"] = Setting(planned[-1], "read", f"the last '{counter}'")
    return Adjusted(rows.drop(columns=list(dict.fromkeys([*dropped, *empty]))), found)


def rows_of_console(lines: Iterable[str]) -> Iterator[Row]:
    """Read the dictionaries that ms-swift prints.

    Parameters
    ----------
    lines
        Marked lines; a progress bar may stand before or behind a dictionary.

    Yields
    ------
    dict
        A row each.
    """
    for line in lines:
        start, end = line.find("{'"), line.rfind("}")
        row = literal(line[start : end + 1]) if 0 <= start < end else None
        if isinstance(row, dict) and _COUNTER in row:
            yield row


MS_SWIFT = Trainer(
    name="ms-swift",
    signature=(re.escape(_COUNTER), r"train_speed\((s/it|iter/s)\)"),
    columns=trl.COLUMNS,
    settings=trl.settings,
    defaults={
        "group_size": (8, "not in the log: ms-swift's default num_generations"),
        "momentum": (0.9, "not in the log: ms-swift's default adam_beta1"),
        "refresh_interval": (1, "not in the log: ms-swift's default, on-policy"),
        "reward_std_kind": ("within_group", "ms-swift's, unless scale_rewards is 'batch'"),
    },
    adjust=adjust,
    console=Console(marks=(f"'{_COUNTER}'",), rows=rows_of_console, closed=True),
)
