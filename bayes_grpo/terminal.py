"""What every command of the terminal shares: where words go, reading logs, places for results.

Nothing here needs JAX, so that commands which fit nothing answer at once.
"""

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click
import pandas as pd

from bayes_grpo.complaint import complain
from bayes_grpo.errors import InputError
from bayes_grpo.files import write_whole
from bayes_grpo.inspection import as_record, describe
from bayes_grpo.plain_json import to_json
from bayes_grpo.readers import read_runs
from bayes_grpo.readers.segments import Segments
from bayes_grpo.run import Run

WIDTH = 96
"""Characters of a line of prose."""


@dataclass
class Report:
    """Where words, numbers and errors go.

    Parameters
    ----------
    as_json
        Numbers for machines on standard output, words on standard error.
    quiet
        No words.
    errors
        Messages of the logs that could not be used.
    doubtful
        Whether a fit did not converge.
    records
        One entry a fit, for JSON.
    """

    as_json: bool = False
    quiet: bool = False
    errors: list[str] = field(default_factory=list)
    doubtful: bool = False
    records: list[dict[str, Any]] = field(default_factory=list)

    def say(self, text: str = "") -> None:
        """Print words."""
        if not self.quiet:
            click.echo(text, err=self.as_json)

    def error(self, message: str) -> None:
        """Print why a log could not be used, in one line, and remember it."""
        self.errors.append(message)
        complain(message)

    def print_json(self, content: Any) -> None:
        """Print numbers, if that was asked for."""
        if self.as_json:
            click.echo(to_json(content))

    @property
    def progress(self) -> bool:
        """Whether a progress bar is wanted, and somebody there to look at it."""
        return not self.quiet and sys.stderr.isatty()


def check_folder(folder: Path) -> None:
    """Refuse a folder for results that cannot be written, before the work is done."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"{existing}: not a folder: results cannot be written to {folder}")
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(
            f"{existing}: cannot be written to: {error.strerror or error}; choose another place "
            "with --out"
        ) from error


def read_all(
    logs: Sequence[str], settings: Mapping[str, Any], report: Report, segments: Segments = "auto"
) -> list[Run]:
    """Read every log that can be read; the others are reported."""
    runs: list[Run] = []
    for log in logs:
        try:
            with warnings_as_lines():
                runs += read_runs([log], segments=segments, **settings)
        except InputError as error:
            report.error(str(error))
        except OSError as error:
            report.error(f"{log}: cannot be read: {error.strerror or error}")
    return runs


def folders(out: Path, runs: Sequence[Run]) -> list[Path]:
    """One folder a run, named after it."""
    taken: set[str] = set()
    found = []
    for run in runs:
        stem = re.sub(r"[^\w.=+-]+", "_", run.name).strip("._") or "run"
        name, copies = stem, 1
        while name.lower() in taken:  # some file systems do not tell A from a
            copies += 1
            name = f"{stem}-{copies}"
        taken.add(name.lower())
        found.append(out / name)
    return found


def inspect_logs(
    logs: Sequence[str],
    settings: Mapping[str, Any],
    segments: Segments,
    to: Path | None,
    report: Report,
) -> None:
    """Describe each run on one screen, and write the tables where asked; raises `InputError`."""
    runs = read_all(logs, settings, report, segments)
    for k, run in enumerate(runs):
        report.say(("\n" if k else "") + describe(run))
        report.records.append(as_record(run))
    if to is not None and runs:
        tables = [run.table.assign(run=run.name) if len(runs) > 1 else run.table for run in runs]
        check_folder(to.parent)
        with writing(to):
            table = pd.concat(tables, ignore_index=True)
            write_whole(to, lambda at: table.to_csv(at, index=False))
        report.say(f"\nwritten to {to}")


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print warnings as one line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            complain(str(warning.message))


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn what the disk refuses into an `InputError` that names the place."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror or error}") from error


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lay rows out in columns; the second, of numbers, to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if k == 1 else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return [lines[0], "  " + "-" * (sum(widths) + 2 * len(widths) - 2), *lines[1:]]
