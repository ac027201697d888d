"""Plain tables of any trainer: CSV, JSON lines, JSON lists and columns."""

import csv
import io
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from bayes_grpo.columns import normalise
from bayes_grpo.errors import InputError
from bayes_grpo.readers.config import Config
from bayes_grpo.readers.protocol import Records
from bayes_grpo.readers.text import (
    is_binary,
    opens_with,
    parse_json,
    parse_json_lines,
    read_text,
    whole_rows,
)

_SEPARATORS = (",", "\t", ";", "|")

# How logs mark the record of their configuration.
_CONFIGURATIONS = ("config", "configuration", "args", "hparams", "hyperparameters", "settings")

# Longer text in a record is a sample, not a number.
_LONGEST_TEXT = 200


class CsvReader:
    """Reads a table with a header line; the separator is found out."""

    name = "CSV"
    looks_for = "a header line with the same separator as the lines below it"

    def sniff(self, path: Path, head: str) -> bool:
        """Try the separators on the first lines."""
        return not is_binary(head) and _separator(head) is not None

    def read(self, path: Path) -> list[Records]:
        """Read the one run of the file."""
        text = read_text(path)
        separator = _separator(text)
        if separator is None:
            raise InputError(f"not a table: expected {self.looks_for}")
        rows, notes = csv_rows(text, separator)
        frame, of_export = _tensorboard_tag(pd.DataFrame(rows, dtype=object))
        return [Records(frame, notes=(*notes, *of_export))]


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

    def read(self, path: Path) -> list[Records]:
        """Read the one run of the file."""
        records, notes = parse_json_lines(read_text(path))
        if len(records) == 1 and (frame := _columns(records[0])) is not None:
            return [Records(frame, notes=notes)]
        return _curves(records, notes) or [of_rows(records, notes)]


class JsonReader:
    """Reads a JSON list of rows, or an object of equally long columns."""

    name = "JSON"
    looks_for = "a JSON list of objects or an object of lists"

    def sniff(self, path: Path, head: str) -> bool:
        """Look at how the file begins."""
        return not is_binary(head) and opens_with(head, r"\[\s*(\{|\])|\{\s*(\"|\})")

    def read(self, path: Path) -> list[Records]:
        """Read the one run of the file."""
        text = read_text(path)
        notes: tuple[str, ...] = ()
        try:
            data = parse_json(text)
        except InputError:
            data, notes = whole_rows(text, r"\s*\[")
            if not data:
                raise
        if isinstance(data, list) and all(isinstance(row, dict) for row in data):
            return [of_rows(data, notes)]
        if isinstance(data, dict) and (curves := _curves([data], ())):
            return curves
        frame = _columns(data)
        if frame is None:
            raise InputError(f"no table in it: expected {self.looks_for}, all of one length")
        return [Records(frame)]


CSV, JSON_LINES, JSON = CsvReader(), JsonLinesReader(), JsonReader()


def of_rows(rows: list[dict[str, Any]], notes: tuple[str, ...]) -> Records:
    """Make records of JSON objects.

    Parameters
    ----------
    rows
        The objects, nested or not.
    notes
        What was done so far.

    Returns
    -------
    Records
        A record of the configuration among them is kept apart.
    """
    config = Config()
    kept = []
    for row in rows:
        if _is_configuration(row):
            config = Config.of(row, "the configuration record").over(config)
        else:
            kept.append(flat(row))
    return Records(pd.DataFrame(kept or [{}], dtype=object), config, notes=notes)


def _is_configuration(row: dict[str, Any]) -> bool:
    return any(str(row.get(key)).lower() in _CONFIGURATIONS for key in ("type", "event", "kind"))


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


def csv_rows(text: str, separator: str) -> tuple[list[dict[str, str]], tuple[str, ...]]:
    """Read the rows under a header line.

    Parameters
    ----------
    text
        The file.
    separator
        Between the cells.

    Returns
    -------
    rows : list of dict
        Cells are text. Columns without a name are left out.
    notes : tuple of str
        Says so if an unfinished last line was left out.

    Raises
    ------
    InputError
        If a line has more or fewer cells than the header; names it.
    """
    lines = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    header: list[str] | None = None
    rows: list[dict[str, str]] = []
    last = text.count("\n") + 1
    try:
        for row in lines:
            if not any(cell.strip() for cell in row):
                continue
            if header is None:
                header = [name.strip() for name in row]
                continue
            if len(row) != len(header):
                if lines.line_num == last and rows and len(row) < len(header):
                    return rows, (f"line {last}, the last, is cut off: left out",)
                raise InputError(
                    f"line {lines.line_num}: found {len(row)} cells, expected {len(header)} as in "
                    "the header; correct or remove the line"
                )
            rows.append({name: cell for name, cell in zip(header, row, strict=True) if name})
    except csv.Error as error:
        raise InputError(f"line {lines.line_num}: not CSV ({error}); correct the line") from error
    return rows, ()


def flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Bring nested objects to one level.

    Parameters
    ----------
    record
        A JSON object.
    prefix
        Put before every key.

    Returns
    -------
    dict
        Nested keys joined by ``/``. Sampled text beyond what a number needs is left out.
    """
    level: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            level |= flat(value, f"{prefix}{key}/")
        elif not isinstance(value, str) or len(value) <= _LONGEST_TEXT:
            level[f"{prefix}{key}"] = value
    return level


def _curves(records: list[dict[str, Any]], notes: tuple[str, ...]) -> list[Records]:
    """Read records that each hold a whole run as ``reward_curve: [[step, reward], ...]``."""
    found = []
    for at, record in enumerate(records, 1):
        name = next((key for key, value in record.items() if _is_curve(key, value)), None)
        if name is None:
            return []
        seed = record.get("seed")
        label = "" if len(records) == 1 else f"record {at}"
        if label and seed is not None:
            label += f", seed {seed}"
        frame = pd.DataFrame(record[name], columns=["step", "reward"], dtype=object)
        found.append(
            Records(
                frame,
                Config.of({k: v for k, v in record.items() if k != name}, "the record"),
                notes=(*notes, f"reward taken from the curve '{name}'"),
                label=label,
            )
        )
    return found


def _is_curve(key: str, value: Any) -> bool:
    return (
        "reward" in key.lower()
        and isinstance(value, list)
        and len(value) > 1
        and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    )


def _columns(data: Any) -> pd.DataFrame | None:
    """Read an object whose values are columns of one length; None if it is not."""
    if not isinstance(data, dict):
        return None
    columns = {name: value for name, value in flat(data).items() if isinstance(value, list)}
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
