"""Plain tables of any trainer: CSV, JSON lines, JSON lists and columns."""

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from bayes_grpo.columns import normalise
from bayes_grpo.errors import InputError
from bayes_grpo.readers.protocol import Parsed
from bayes_grpo.readers.records import training_rows
from bayes_grpo.readers.text import (
    is_binary,
    opens_with,
    parse_json,
    parse_json_lines,
    read_text,
)
from bayes_grpo.settings import Setting
from bayes_grpo.table import require_reward

_SEPARATORS = (",", "\t", ";", "|")

# Settings that some logs repeat in every row: names of the column, and what they set.
_SETTING_COLUMNS: dict[str, tuple[str, ...]] = {
    "group_size": ("group_size",),
    "num_generations": ("group_size",),
    "num_questions": ("prompts_per_step",),
    "num_groups": ("prompts_per_step",),
    "num_prompts": ("prompts_per_step",),
    "prompts_per_step": ("prompts_per_step",),
    "kl_coef": ("kl_weight",),
    "max_steps": ("max_steps",),
    "total_steps": ("max_steps",),
    # A step is one rollout, used for this many updates before the next is sampled.
    "optimizer_updates_per_rollout_batch": ("updates_per_step", "refresh_interval"),
}


class CsvReader:
    """Reads a table with a header line; the separator is found out."""

    name = "CSV"
    looks_for = "a header line with the same separator as the lines below it"

    def sniff(self, path: Path, head: str) -> bool:
        """Try the separators on the first lines."""
        return not is_binary(head) and _separator(head) is not None

    def read(self, path: Path) -> list[Parsed]:
        """Read the one run of the file."""
        text = read_text(path)
        separator = _separator(text)
        if separator is None:
            raise InputError(f"not a table: expected {self.looks_for}")
        return [_parsed(pd.DataFrame(_rows(text, separator), dtype=object), ())]


class JsonLinesReader:
    """Reads one JSON object a line, of one or several kinds of records."""

    name = "JSON lines"
    looks_for = "one JSON object a line"

    def sniff(self, path: Path, head: str) -> bool:
        """Look at the first line, which can be longer than the head."""
        if is_binary(head) or not opens_with(head, r"\{\s*\""):
            return False
        text = head.lstrip()
        if "\n" not in text:
            text = read_text(path).lstrip()
        return text.partition("\n")[0].rstrip().endswith("}")

    def read(self, path: Path) -> list[Parsed]:
        """Read the one run of the file."""
        records, notes = parse_json_lines(read_text(path))
        if len(records) == 1 and (frame := _columns(records[0])) is not None:
            return [_parsed(frame, notes)]
        return [_parsed(pd.DataFrame([_flat(record) for record in records], dtype=object), notes)]


class JsonReader:
    """Reads a JSON list of rows, or an object of equally long columns."""

    name = "JSON"
    looks_for = "a JSON list of objects or an object of lists"

    def sniff(self, path: Path, head: str) -> bool:
        """Look at how the file begins."""
        return not is_binary(head) and opens_with(head, r"\[\s*(\{|\])|\{\s*(\"|\})")

    def read(self, path: Path) -> list[Parsed]:
        """Read the one run of the file."""
        data = parse_json(read_text(path))
        if isinstance(data, list) and all(isinstance(row, dict) for row in data):
            return [_parsed(pd.DataFrame([_flat(row) for row in data], dtype=object), ())]
        frame = _columns(data)
        if frame is None:
            raise InputError(f"no table in it: expected {self.looks_for}, all of one length")
        return [_parsed(frame, ())]


CSV, JSON_LINES, JSON = CsvReader(), JsonLinesReader(), JsonReader()


def _parsed(frame: pd.DataFrame, notes: tuple[str, ...]) -> Parsed:
    frame, tensorboard = _tensorboard_tag(frame)
    rows, chosen = training_rows(frame)
    require_reward(rows)
    settings, varying = _settings(frame)
    return Parsed(rows, settings, (*notes, *tensorboard, *chosen, *varying))


def _separator(text: str) -> str | None:
    """Return the separator under which the first lines are a table, or None."""
    for separator in _SEPARATORS:
        lines = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
        try:
            rows = [row for row in islice(lines, 9) if any(cell.strip() for cell in row)]
        except csv.Error:
            continue
        if len(rows) > 2 and not text.endswith("\n"):
            rows.pop()  # the beginning of a file may end within a line
        if len(rows) < 2:
            continue
        header, *rest = rows
        fitting = [row for row in rest if len(row) == len(header)]
        # A ragged line further down is an error to report, not a reason to take it for prose.
        table = len(rest[0]) == len(header) and 2 * len(fitting) > len(rest)
        numeric = any(_is_number(cell) for row in fitting for cell in row)
        # One column of numbers under a name needs no separator: any will do.
        wide = len(header) > 1 or all(_is_number(cell) for row in rest for cell in row)
        if table and numeric and wide and _is_header([name.strip() for name in header]):
            return separator
    return None


def _is_header(names: list[str]) -> bool:
    named = [name for name in names if name]
    # pandas writes its index under an empty name: one is allowed.
    return (
        len(named) >= max(1, len(names) - 1)
        and len(set(named)) == len(named)
        and not any(_is_number(name) for name in named)
        and all(len(name) < 200 and "{" not in name for name in named)
    )


def _is_number(text: str) -> bool:
    try:
        float(text.strip().strip('"'))
    except ValueError:
        return False
    return True


def _rows(text: str, separator: str) -> Iterator[dict[str, str | None]]:
    lines = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    header: list[str] | None = None
    try:
        for row in lines:
            if not any(cell.strip() for cell in row):
                continue
            if header is None:
                header = [name.strip() for name in row]
                continue
            if len(row) != len(header):
                raise InputError(
                    f"line {lines.line_num}: found {len(row)} cells, expected {len(header)} as in "
                    "the header; correct or remove the line"
                )
            yield {name: cell for name, cell in zip(header, row, strict=True) if name}
    except csv.Error as error:
        raise InputError(f"line {lines.line_num}: not CSV ({error}); correct the line") from error


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Bring nested objects to one level, their keys joined by '/'."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _columns(data: Any) -> pd.DataFrame | None:
    """Read an object whose values are columns of one length; None if it is not."""
    if not isinstance(data, dict):
        return None
    columns = {name: value for name, value in _flat(data).items() if isinstance(value, list)}
    if not columns or len({len(column) for column in columns.values()}) != 1:
        return None
    return pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in columns.items()})


def _tensorboard_tag(frame: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Take the value of a TensorBoard export for the reward: the file does not say its tag."""
    if {normalise(name) for name in frame.columns} != {"wall_time", "step", "value"}:
        return frame, ()
    renames = {name: "reward" for name in frame.columns if normalise(name) == "value"}
    note = "TensorBoard export: its one tag, which the file does not name, is taken for the reward"
    return frame.rename(columns=renames), (note,)


def _settings(frame: pd.DataFrame) -> tuple[dict[str, Setting], tuple[str, ...]]:
    settings: dict[str, Setting] = {}
    notes = []
    for column in frame.columns:
        names = _SETTING_COLUMNS.get(normalise(column), ())
        if not names:
            continue
        values = sorted(set(_finite(frame[column])))
        if len(values) == 1 and (values[0] > 0 or names == ("kl_weight",)):
            for name in names:
                settings.setdefault(name, Setting(values[0], "read", f"column '{column}'"))
        elif len(values) > 1:
            shown = ", ".join(f"{value:g}" for value in values[:5])
            notes.append(f"column '{column}' varies ({shown}): not taken for {names[0]}")
    return settings, tuple(notes)


def _finite(cells: Iterable[Any]) -> Iterator[float]:
    for cell in cells:
        if isinstance(cell, bool):
            continue
        try:
            number = float(cell)
        except (TypeError, ValueError):
            continue  # blank in this record
        if abs(number) < float("inf"):
            yield number
