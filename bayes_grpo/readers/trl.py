"""TRL's GRPOTrainer (and Unsloth, which wraps it): ``trainer_state.json``, under any name."""

import math
import re
from pathlib import Path
from typing import Any

import pandas as pd

from bayes_grpo.columns import CANONICAL, candidates
from bayes_grpo.errors import InputError
from bayes_grpo.readers.protocol import Parsed
from bayes_grpo.readers.text import opens_with, parse_json, read_text
from bayes_grpo.settings import Setting

# What only the closing row of a training has.
_SUMMARY_KEYS = frozenset({"train_runtime", "train_loss", "total_flos"})


class TrlReader:
    """Reads the trainer state, or its ``log_history`` saved on its own as a JSON list."""

    name = "TRL trainer_state.json"
    looks_for = "a JSON object with 'log_history'"

    def sniff(self, path: Path, head: str) -> bool:
        """Look for ``log_history``, or for a list of rows as the trainer writes them."""
        if opens_with(head, r"\{"):
            return '"log_history"' in head
        keys = ('"step"', '"epoch"', '"reward"', '"reward_std"')
        return opens_with(head, r"\[\s*\{") and all(key in head for key in keys)

    def read(self, path: Path) -> list[Parsed]:
        """Read the one run of the file."""
        state = parse_json(read_text(path))
        fields = state if isinstance(state, dict) else {"log_history": state}
        history = fields.get("log_history")
        if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
            raise InputError("'log_history' is not a list of rows: expected a trainer_state.json")
        train = [row for row in history if _kind(row) == "train"]
        if not train:
            raise InputError(f"'log_history' has {len(history)} rows, none of training: log steps")
        if not any("reward" in row for row in train):
            shown = ", ".join(sorted(train[0])[:12])
            raise InputError(
                f"no row of 'log_history' has a 'reward' (keys of the first: {shown}): expected "
                "the log of a GRPO training, this looks like another trainer's"
            )
        table = _table(train)
        evaluations = [row for row in history if _kind(row) == "eval"]
        table, notes = _join_evaluations(table, evaluations)
        return [Parsed(table, _settings(fields), notes)]


TRL = TrlReader()


def _kind(row: dict[str, Any]) -> str:
    """Decide what a row is before looking at its numbers.

    Evaluation rows exist that carry training keys without a prefix, so one ``eval_`` key makes the
    whole row an evaluation.
    """
    if _SUMMARY_KEYS & row.keys():
        return "summary"
    if any(key.startswith(("eval_", "eval/")) for key in row):
        return "eval"
    return "train" if "loss" in row or "reward" in row else "other"


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    renames = {}
    for name in CANONICAL:
        found = candidates(frame.columns, name)
        if found and found[0] != name:
            renames[found[0]] = name
    return frame.rename(columns=renames)


def _join_evaluations(
    table: pd.DataFrame, evaluations: list[dict[str, Any]]
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Put each evaluation's reward on the training row whose window it falls into.

    A row of its own would cut the window of the training row after it in two.
    """
    rewards = [
        (step, row["eval_reward"])
        for row in evaluations
        if row.get("eval_reward") is not None and (step := _as_step(row.get("step"))) is not None
    ]
    if not rewards or "step" not in table.columns:
        return table, ()
    steps = [_as_step(cell) for cell in table["step"]]
    column: list[Any] = [None] * len(table)
    moved = 0
    for step, reward in rewards:
        later = [at for at, own in enumerate(steps) if own is not None and own >= step]
        at = later[0] if later else len(table) - 1
        # An evaluation at the very step of the row comes last and is the one that stays.
        column[at] = reward
        moved += steps[at] != step
    note = f"{moved} evaluations between two logged steps were put on the later one"
    return table.assign(eval_reward=column), ((note,) if moved else ())


def _as_step(cell: Any) -> float | None:
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return None if math.isnan(cell) else float(cell)
    if isinstance(cell, str) and re.fullmatch(r"\s*\d+(\.0*)?\s*", cell):
        return float(cell)
    return None


def _settings(fields: dict[str, Any]) -> dict[str, Setting]:
    settings = {
        "row_average": Setting("window", "read", "TRL averages everything since the last log")
    }
    planned = _as_step(fields.get("max_steps"))
    # 0 or -1 means that the epochs decide, and that the trainer had not worked out the steps yet.
    if planned is not None and planned >= 1:
        settings["max_steps"] = Setting(int(planned), "read", "max_steps of the trainer state")
    return settings
