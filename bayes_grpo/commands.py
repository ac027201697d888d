"""What the commands of the terminal do once their arguments are read."""

import re
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from bayes_grpo import outlook
from bayes_grpo.compilation import keep_compiled
from bayes_grpo.complaint import complain
from bayes_grpo.convergence import ConvergenceWarning
from bayes_grpo.errors import InputError
from bayes_grpo.export import (
    as_numbers,
    forecast_table,
    to_json,
    write_picture,
    write_results,
    write_table,
)
from bayes_grpo.fit import Fit, fit, load_fit
from bayes_grpo.model import Model, load_model
from bayes_grpo.readers import read_runs
from bayes_grpo.run import Run
from bayes_grpo.settings import Settings

WIDTH = 96
"""Characters of a line of prose."""

_HDF5 = b"\x89HDF"


@dataclass(frozen=True)
class Plan:
    """How to read and fit, checked before any log is opened.

    Parameters
    ----------
    settings
        Settings given by hand.
    model
        The model.
    horizon
        Last step, if given.
    sampling
        ``seed``, ``chains``, ``draws`` and ``tune``.
    """

    settings: Mapping[str, Any]
    model: Model
    horizon: int | None
    sampling: Mapping[str, int]

    @classmethod
    def checked(
        cls,
        settings: Mapping[str, Any],
        model: str,
        horizon: int | None,
        sampling: Mapping[str, int],
    ) -> "Plan":
        """Check the settings and read the model file; raises `InputError`."""
        Settings(settings)
        return cls(settings, load_model(model), horizon, sampling)


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


def read_all(logs: Sequence[str], settings: Mapping[str, Any], report: Report) -> list[Run]:
    """Read every log that can be read; the others are reported."""
    runs: list[Run] = []
    for log in logs:
        try:
            with _warnings_as_lines():
                runs += read_runs([log], **settings)
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


def fit_one(run: Run, folder: Path, plan: Plan, report: Report, brief: bool) -> None:
    """Fit a run, write its files and say what came out; an `InputError` is reported."""
    keep_compiled()
    if not brief:
        _introduce(run, plan, report)
    try:
        done = _fit(run, plan, plan.horizon, report)
        with writing(folder):
            files = write_results(done, folder, plan.horizon)
    except InputError as error:
        report.error(str(error.at(run.source or run.name)))
        return
    report.doubtful |= not done.convergence.converged
    if report.quiet and not done.convergence.converged:
        complain(f"{run.name}: {done.convergence}")
    if report.as_json:
        numbers = as_numbers(done, forecast_table(done, plan.horizon))
        report.records.append({**numbers, "files": files})
    if brief:
        steps = outlook.settling_steps(done)
        report.say(
            f"{run.name}: plateau {outlook.plateau(done)}, 95 % of the way in "
            f"{outlook.count(steps.median)} steps, {done.convergence} -> {folder}"
        )
        return
    report.say("\n".join(describe(done)))
    report.say(f"\nwritten to {folder}: {', '.join(files)}")


def fit_or_load(source: str, plan: Plan, given: Sequence[str], report: Report) -> Fit:
    """Load a saved fit, or fit a log; raises `InputError`."""
    keep_compiled()
    path = Path(source)
    try:
        with path.open("rb") as file:
            saved = file.read(len(_HDF5)) == _HDF5
    except OSError:
        saved = False  # a folder, or nothing: the readers know what to say
    if saved:
        if given:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise InputError(f"{path}: a saved fit keeps its settings: leave out {options}")
        return load_fit(path)
    with _warnings_as_lines():
        runs = read_runs([source], **plan.settings)
    if len(runs) > 1:
        raise InputError(f"{source}: holds {len(runs)} runs, expected one: name one log")
    return _fit(runs[0], plan, None, report)


def write_forecast(
    done: Fit, out: Path | None, kind: str, horizon: int | None, report: Report
) -> None:
    """Print a forecast, and write it where asked."""
    last = int(done.run.table["step"].iloc[-1])
    table = done.forecast(outlook.last_forecast_step(done, horizon) - last, kind=kind)  # type: ignore[arg-type]
    if out is not None:
        check_folder(out.parent)
        with writing(out):
            if out.suffix == ".png":
                write_picture(done, out, horizon)
            else:
                write_table(done, table, out)
    report.print_json({**as_numbers(done, table), "kind": kind})
    if report.as_json:
        return
    what = "logged rows" if kind == "observed" else "reward without sampling noise"
    report.say(f"{done.run.name}, {done.model.name}: forecast of the {what}")
    report.say("\n".join(columns(_forecast_rows(table))))
    report.say(f"\n{_paragraph(done)}\n\n{_sampling_line(done)}")
    if out is not None:
        report.say(f"written to {out}")


def describe(done: Fit) -> list[str]:
    """Lines on a fit: assumptions, table, sentences, convergence."""
    lines = ["", "Assumed on the way:"]
    for note in (*done.notes, *_defaults(done.run)):
        lines += textwrap.wrap(note, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    rows = [("quantity", "median", "90 % interval", "unit")]
    for name, row in done.summary().iterrows():
        between = f"{outlook.number(row['5%'])} to {outlook.number(row['95%'])}"
        unit = "" if row["unit"] == "1" else row["unit"]
        rows.append((str(name), outlook.number(row["50%"]), between, unit))
    return [*lines, "", *columns(rows), "", _paragraph(done), "", _sampling_line(done)]


def _paragraph(done: Fit) -> str:
    return textwrap.fill(outlook.in_words(done), WIDTH)


def _sampling_line(done: Fit) -> str:
    sizes = done.idata["posterior"].sizes
    return f"sampling: {sizes['chain']} chains x {sizes['draw']} draws, {done.convergence}"


def _introduce(run: Run, plan: Plan, report: Report) -> None:
    report.say(repr(run).partition("\n  note:")[0])
    report.say(f"  model: {plan.model.name} ({plan.model.description})")


def _defaults(run: Run) -> list[str]:
    items = {name: run.settings[name] for name in run.settings}
    defaults = [
        f"{name}={item.value}"
        for name, item in items.items()
        if item.provenance == "default" and item.value is not None
    ]
    if not defaults:
        return []
    return [f"defaults, as the log does not tell: {', '.join(defaults)}"]


def _forecast_rows(table: Any, most: int = 12) -> list[tuple[str, ...]]:
    picked = table.iloc[:: -(-len(table) // most)]
    if picked["step"].iloc[-1] != table["step"].iloc[-1]:
        picked = table.iloc[[*picked.index, len(table) - 1]]
    rows: list[tuple[str, ...]] = [("step", "median", "50 % interval", "90 % interval")]
    for _, row in picked.iterrows():
        low, lower, middle, upper, high = (
            outlook.number(row[q]) for q in ("q05", "q25", "q50", "q75", "q95")
        )
        rows.append((f"{row['step']:.0f}", middle, f"{lower} to {upper}", f"{low} to {high}"))
    return rows


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


def _fit(run: Run, plan: Plan, horizon: int | None, report: Report) -> Fit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # said in words of our own
        return fit(run, plan.model, horizon=horizon, progress=report.progress, **plan.sampling)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            complain(str(warning.message))


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn an error of the file system into an `InputError` that names the place."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror or error}") from error
