"""``trainer_state.json`` of Hugging Face trainers, under any name."""

import re
from pathlib import Path
from typing import Any

import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.readers.protocol import Records
from bayes_grpo.readers.text import opens_with, parse_json, read_text, whole_rows
from bayes_grpo.readers.trainers import trainer_of
from bayes_grpo.readers.trl import TRL
from bayes_grpo.settings import Setting

# What only the closing row of a training has.
_SUMMARY_KEYS = frozenset({"train_runtime", "train_loss", "total_flos"})


class TrainerState:
    """Reads the trainer state, or its ``log_history`` saved on its own as a JSON list."""

    name = "trainer_state.json"
    looks_for = "a JSON object with 'log_history'"

    def sniff(self, path: Path, head: str) -> bool:
        """Look for ``log_history``, or for a list of rows as the trainer writes them."""
        if opens_with(head, r"\{"):
            return '"log_history"' in head
        keys = ('"step"', '"epoch"', '"reward"', '"reward_std"')
        return opens_with(head, r"\[\s*\{") and all(key in head for key in keys)

    def read(self, path: Path) -> list[Records]:
        """Read the one run of the file."""
        text = read_text(path)
        notes: tuple[str, ...] = ()
        try:
            state: Any = parse_json(text)
        except InputError:
            rows, notes = whole_rows(text, r"[^\[]*\"log_history\"\s*:\s*\[|\s*\[")
            if not rows:
                raise
            state = {"log_history": rows, **_fields(text)}
        fields = state if isinstance(state, dict) else {"log_history": state}
        history = fields.get("log_history")
        if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
            raise InputError("'log_history' is not a list of rows: expected a trainer_state.json")
        rows = history_rows(history)
        if not any("reward" in row for row in rows):
            shown = ", ".join(sorted(rows[0])[:12])
            raise InputError(
                f"no row of 'log_history' has a 'reward' (keys of the first: {shown}): expected "
                "the log of a GRPO training, this looks like another trainer's"
            )
        table = pd.DataFrame(rows, dtype=object)
        trainer = trainer_of(table.columns, otherwise=TRL)
        return [Records(table, settings=_settings(fields), notes=notes, trainer=trainer)]


TRAINER_STATE = TrainerState()


def history_rows(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort out the rows that Hugging Face trainers log.

    Parameters
    ----------
    history
        All rows, as logged.

    Returns
    -------
    list of dict
        Training rows as they are; evaluations with nothing but their step and ``eval`` keys. The
        closing summary is left out.

    Raises
    ------
    InputError
        If there is no training row.
    """
    kinds = [_kind(row) for row in history]
    if "train" not in kinds:
        raise InputError(f"'log_history' has {len(history)} rows, none of training: log steps")
    rows = []
    for row, kind in zip(history, kinds, strict=True):
        if kind == "train":
            rows.append(row)
        elif kind == "eval":
            rows.append(
                {k: v for k, v in row.items() if k == "step" or k.startswith(("eval_", "eval/"))}
            )
    return rows


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


def _fields(text: str) -> dict[str, Any]:
    planned = re.search(r"\"max_steps\"\s*:\s*(\d{1,15}(?!\d))", text)
    return {"max_steps": int(planned.group(1))} if planned else {}


def _settings(fields: dict[str, Any]) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    # 0 or -1 means that the epochs decide, and that the trainer had not worked out the steps yet.
    planned = fields.get("max_steps")
    if isinstance(planned, str) and planned.strip().isdigit():
        planned = int(planned)
    if isinstance(planned, int | float) and not isinstance(planned, bool) and planned >= 1:
        settings["max_steps"] = Setting(int(planned), "read", "max_steps of the trainer state")
    return settings
