"""Notebooks: the training log is in the output of a cell, the configuration in the code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.readers.config import Config
from bayes_grpo.readers.config_text import from_source_code
from bayes_grpo.readers.console import ConsoleLog
from bayes_grpo.readers.html import records_of_html
from bayes_grpo.readers.protocol import Records, Trainer
from bayes_grpo.readers.records import number_or_nan
from bayes_grpo.readers.text import opens_with, parse_json, read_text
from bayes_grpo.readers.trainers import trainer_of
from bayes_grpo.readers.translate import canonical


class Notebook:
    """Reads the outputs of a Jupyter notebook.

    Parameters
    ----------
    console
        Reads what cells printed.
    """

    name = "notebook"
    looks_for = "a cell whose output has a reward"

    def __init__(self, console: ConsoleLog) -> None:
        self._console = console

    def sniff(self, path: Path, head: str) -> bool:
        """Look for cells."""
        return opens_with(head, r"\{") and '"cells"' in head and '"cell_type"' in head

    def read(self, path: Path) -> list[Records]:
        """Read the runs of the file; one that is shown twice counts once."""
        notebook = parse_json(read_text(path))
        cells = notebook.get("cells") if isinstance(notebook, dict) else None
        if not isinstance(cells, list):
            raise InputError("'cells' is not a list: expected a notebook")
        found: list[Records] = []
        config = Config()
        for number, cell in enumerate(cells, 1):
            if not isinstance(cell, dict) or cell.get("cell_type") != "code":
                continue
            code = from_source_code(_joined(cell.get("source")), f"the code of cell {number}")
            config = code.over(config)  # the nearer cell wins
            outputs = cell.get("outputs")
            for records in self._of_outputs(outputs if isinstance(outputs, list) else []):
                own = replace(records, config=records.config.over(config), label=f"cell {number}")
                found = _without_twins([*found, own])
        if not found:
            raise InputError(
                f"found no {self.looks_for.removeprefix('a ')}: run the notebook and save it with "
                "its outputs"
            )
        return [replace(found[0], label="")] if len(found) == 1 else found

    def _of_outputs(self, outputs: list[Any]) -> list[Records]:
        found: list[Records] = []
        printed = ""
        for output in outputs:
            if not isinstance(output, dict):
                continue
            data = output.get("data")
            data = data if isinstance(data, dict) else {}
            found += records_of_html(_joined(data.get("text/html")), self._console)
            # A stream comes in many pieces, which may break within a line.
            printed += _joined(output.get("text"))
            if "text/html" not in data:
                printed += _joined(data.get("text/plain"))
        if (records := self._console.of_text(printed)) is not None:
            found.append(records)
        return found


def _joined(text: Any) -> str:
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""


def _without_twins(found: list[Records]) -> list[Records]:
    """Keep the fuller of two records of one training, shown as a table and as text."""
    *others, last = found
    for at, other in enumerate(others):
        if _same(_rewards(other), _rewards(last)):
            fuller = max(other, last, key=lambda records: records.table.size)
            return [*others[:at], replace(fuller, label=other.label), *others[at + 1 :]]
    return found


def _rewards(records: Records) -> np.ndarray:
    trainer: Trainer = records.trainer or trainer_of(records.table.columns)
    frame, _ = canonical(records.table, trainer)
    column = frame["reward"] if "reward" in frame.columns else pd.Series(dtype=float)
    values = column.map(number_or_nan).to_numpy(dtype=float)
    return values[np.isfinite(values)]


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    shared = min(len(one), len(other))
    scale = max(1e-12, float(np.abs(one).max(initial=0)))
    # Printed with four significant digits in one place and six decimals in the other.
    return shared > 1 and bool(np.all(np.abs(one[:shared] - other[:shared]) <= 1e-3 * scale))
