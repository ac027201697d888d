"""What the commands of the terminal do once their arguments are read."""

import textwrap
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayes_grpo import outlook
from bayes_grpo.compilation import keep_compiled
from bayes_grpo.complaint import complain
from bayes_grpo.convergence import ConvergenceWarning
from bayes_grpo.errors import InputError
from bayes_grpo.export import (
    as_numbers,
    forecast_table,
    write_picture,
    write_results,
    write_table,
)
from bayes_grpo.fit import Fit, fit, load_fit
from bayes_grpo.model import Model, load_model
from bayes_grpo.readers import read_runs
from bayes_grpo.run import CautionWarning, Run
from bayes_grpo.settings import Settings
from bayes_grpo.terminal import (
    WIDTH,
    Report,
    check_folder,
    columns,
    warnings_as_lines,
    writing,
)

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


def fit_one(run: Run, folder: Path, plan: Plan, report: Report, brief: bool) -> None:
    """Fit a run, write its files and say what came out; an `InputError` is reported."""
    keep_compiled()
    if not brief:
        _introduce(run, plan, report)
    try:
        done = fit_quietly(run, plan, plan.horizon, report)
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
        report.say(f"{run.name}: {outlook.in_brief(done)}, {done.convergence} -> {folder}")
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
    return fit_quietly(read_one(source, plan), plan, None, report)


def read_one(source: str, plan: Plan) -> Run:
    """Read the one run of a log; raises `InputError`."""
    with warnings_as_lines():
        runs = read_runs([source], **plan.settings)
    if len(runs) > 1:
        raise InputError(f"{source}: holds {len(runs)} runs, expected one: name one log")
    return runs[0]


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
        if item.provenance == "default" and item.value not in (None, False)
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


def fit_quietly(run: Run, plan: Plan, horizon: int | None, report: Report) -> Fit:
    """Fit a run; what is wrong with it is said by the commands, in words of their own."""
    with warnings.catch_warnings():
        for said in (ConvergenceWarning, CautionWarning):  # in words of our own
            warnings.simplefilter("ignore", said)
        return fit(run, plan.model, horizon=horizon, progress=report.progress, **plan.sampling)
