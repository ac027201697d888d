"""Charts of Weights & Biases exported as CSV: one metric, several runs side by side."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo.columns import candidates, look_alikes, normalise
from bayes_grpo.errors import InputError
from bayes_grpo.readers.protocol import Records
from bayes_grpo.readers.records import missing, number_or_nan
from bayes_grpo.readers.tables import csv_rows
from bayes_grpo.readers.text import is_binary, read_text

_EDGES = ("__MIN", "__MAX")

# Lag-1 correlation of the deviations from a slow trend, above which smoothing is likely.
_SMOOTH = 0.9


class WandbChart:
    """Reads the CSV that the menu of a chart exports."""

    name = "W&B chart CSV"
    looks_for = "columns called '<run> - <metric>'"

    def sniff(self, path: Path, head: str) -> bool:
        """Look for a run and a metric in the name of every column but the first."""
        if is_binary(head) or " - " not in head.partition("\n")[0]:
            return False
        lines = csv.reader(io.StringIO("\n".join(head.splitlines()[:2])))
        try:
            rows = list(lines)
        except csv.Error:
            return False
        if len(rows) < 2 or len(rows[0]) < 2 or len(rows[0]) != len(rows[1]):
            return False
        header, points = rows[0][1:], rows[1][1:]
        # Console logs have dashes and commas, too: but not a line of nothing but numbers below.
        return all(" - " in name for name in header) and not any(
            cell.strip() and np.isnan(number_or_nan(cell)) for cell in points
        )

    def read(self, path: Path) -> list[Records]:
        """Read the runs of the file."""
        rows, notes = csv_rows(read_text(path), ",")
        if not rows:
            raise InputError("the chart has no rows: expected a point in each line")
        frame = pd.DataFrame(rows, dtype=object)
        found = []
        for run, columns in _by_run(frame.columns[1:]).items():
            table, of_run = _table(frame, run, columns)
            if len(table):
                found.append(Records(table, notes=(*notes, *of_run), label=run))
        if not found:
            raise InputError("the chart has no points: every cell is empty")
        return [Records(**{**vars(found[0]), "label": ""})] if len(found) == 1 else found


def _by_run(columns: Any) -> dict[str, dict[str, str]]:
    """Sort columns by run: run -> metric -> column. Names of runs may contain " - "."""
    runs: dict[str, dict[str, str]] = {}
    for column in columns:
        run, _, metric = str(column).rpartition(" - ")
        runs.setdefault(run, {})[metric] = column
    return runs


def _table(
    frame: pd.DataFrame, run: str, columns: dict[str, str]
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    metrics = {
        metric: column
        for metric, column in columns.items()
        if not metric.endswith(_EDGES) and normalise(metric) != "_step"
    }
    rewards = candidates(metrics, "reward") or [
        metric for metric in look_alikes(metrics) if metric in metrics
    ]
    if not rewards:
        shown = ", ".join(f"'{metric}'" for metric in metrics) or "none"
        raise InputError(
            f"run '{run}': the chart shows {shown}, expected a reward: export the chart of the "
            "reward"
        )
    metric = str(rewards[0])
    values = frame[columns[metric]]
    filled = ~missing(values)
    table = pd.DataFrame({"reward": values[filled]})
    notes = [] if metric == "reward" else [f"reward taken from '{metric}' of the chart"]
    axis = str(frame.columns[0])
    if re.search(r"time|date", axis, re.IGNORECASE):
        notes.append(f"the chart is drawn over '{axis}', which counts no steps: rows were numbered")
    else:
        table.insert(0, "step", frame.loc[filled, axis])
    numbers = values[filled].map(number_or_nan).to_numpy(dtype=float)
    edges = [columns.get(metric + edge) for edge in _EDGES]
    if all(edges):
        spread = [frame.loc[filled, e].map(number_or_nan).to_numpy(dtype=float) for e in edges]
        if np.nanmax(np.abs(spread[1] - spread[0]), initial=0) > 0:
            notes.append(
                "the chart has buckets of several points and shows the last of each: a subsample, "
                "not means"
            )
    if _is_smooth(numbers):
        notes.append(
            "the curve is very smooth: if smoothing was on when the chart was exported, its noise "
            "is not that of the log; export again without"
        )
    return table.reset_index(drop=True), tuple(notes)


def _is_smooth(values: np.ndarray) -> bool:
    """Tell whether neighbouring deviations from a slow trend are nearly the same."""
    values = values[np.isfinite(values)]
    if len(values) < 30:
        return False
    window = (len(values) // 3) | 1
    padded = np.pad(values, window // 2, mode="edge")
    residual = values - np.convolve(padded, np.ones(window) / window, mode="valid")
    centred = residual - residual.mean()
    power = float(np.sum(centred**2))
    return power > 0 and float(np.sum(centred[1:] * centred[:-1])) / power > _SMOOTH
