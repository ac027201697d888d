"""Logs of simulated runs: JSON lines that `bayes_grpo.read_run` reads.

The first line says what was trained and with which settings, every other one is a training row:

    {"type": "config", "trainer": "bayes_grpo", "group_size": 8, "momentum": 0.9, ...}
    {"type": "train", "step": 1, "reward": 0.51, "reward_std": 0.42, ...}
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.files import write_whole
from bayes_grpo.settings import Settings

TRAINER = "bayes_grpo"
"""Name under which the first line of a simulated log says who wrote it."""


def write_log(
    table: pd.DataFrame, path: str | os.PathLike[str], settings: Mapping[str, Any] | None = None
) -> Path:
    """Write a simulated run as a log.

    Parameters
    ----------
    table
        One row a step: ``step``, ``reward`` and any other numbers.
    path
        File to write, usually ``.jsonl``; one of that name is replaced at once or not at all.
    settings
        Values by the names of `bayes_grpo.Settings`; those that are None are left out.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If the table lacks a column, or a setting is unknown or out of range.
    """
    for column in ("step", "reward"):
        if column not in table.columns:
            raise InputError(f"{path}: the table has no column '{column}': expected one")
    known = {name: value for name, value in (settings or {}).items() if value is not None}
    Settings(known)
    records: list[dict[str, Any]] = [{"type": "config", "trainer": TRAINER, **known}]
    records += ({"type": "train", **row} for row in table.to_dict("records"))
    lines = [json.dumps({key: _plain(value) for key, value in r.items()}) for r in records]
    text = "\n".join(lines) + "\n"
    return write_whole(Path(path), lambda at: at.write_text(text, encoding="utf-8"))


def _plain(value: Any) -> Any:
    """Turn a cell into what JSON knows; it has no NaN."""
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
