"""Readers of training logs: formats of files, and a module for each trainer; see `protocol`."""

import glob
import os
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bayes_grpo.errors import InputError
from bayes_grpo.readers.beside import CONFIG_FILES, configs_beside
from bayes_grpo.readers.console import ConsoleLog
from bayes_grpo.readers.html import HtmlPage, MarkdownPage
from bayes_grpo.readers.inference import infer
from bayes_grpo.readers.notebook import Notebook
from bayes_grpo.readers.plain import PLAIN
from bayes_grpo.readers.protocol import Format, Parsed, Records
from bayes_grpo.readers.segments import Segments, check_segments, segmented
from bayes_grpo.readers.state import TRAINER_STATE
from bayes_grpo.readers.tables import CSV, JSON, JSON_LINES
from bayes_grpo.readers.tensorboard import EVENT_FILES, EVENTS_NAME, is_events_file
from bayes_grpo.readers.text import is_binary, read_head
from bayes_grpo.readers.trainers import TRAINERS, trainer_of
from bayes_grpo.readers.translate import translate
from bayes_grpo.readers.wandb import WandbChart
from bayes_grpo.run import Run
from bayes_grpo.settings import Settings

__all__ = ["FORMATS", "TRAINERS", "SkippedLogWarning", "read_run", "read_runs"]

_CONSOLE = ConsoleLog([*TRAINERS, PLAIN])

# Asked in this order; the first that knows the file reads it. A console log may hold anything, so
# it comes last.
FORMATS: tuple[Format, ...] = (
    TRAINER_STATE,
    EVENT_FILES,
    Notebook(_CONSOLE),
    JSON_LINES,
    JSON,
    HtmlPage(_CONSOLE),
    MarkdownPage(),
    WandbChart(),
    CSV,
    _CONSOLE,
)

_STATE = "trainer_state.json"


class SkippedLogWarning(UserWarning):
    """A file of a folder or pattern could not be read and was left out; the message says why."""


def read_run(path: str | os.PathLike[str], *, segments: Segments = "auto", **settings: Any) -> Run:
    """Read the log of one training run.

    Parameters
    ----------
    path
        A log file of any known format under any name, an output or checkpoint folder of TRL (its
        newest ``trainer_state.json`` is read), or a folder with one log.
    segments
        What to do where the step counter runs back: ``"auto"`` tells resumed trainings (later rows
        win) from further ones (separate runs), ``"split"`` and ``"merge"`` insist on one of the
        two, ``"last"`` keeps the last piece only.
    **settings
        Settings given by hand, such as ``group_size=8``; they win over what the log says. See
        `Settings`.

    Returns
    -------
    Run
        Checked; everything that had to be assumed is in its ``notes``.

    Raises
    ------
    InputError
        If there is no such file, no reader knows it, it holds several runs, or its contents cannot
        be used. The message is one line that names the file and the mend.
    """
    _check_names(settings)
    check_segments(segments)
    path = Path(path)
    if path.is_dir():
        logs = _logs_in(path)
        if len(logs) > 1:
            # A README or a configuration beside the log is no second log.
            logs = [file for file in logs if _is_known(file)] or logs
        if len(logs) > 1:
            raise InputError(
                f"{path}: the folder holds {len(logs)} files, expected one log: name one, "
                "or use read_runs"
            )
        path = logs[0]
    runs = _read_file(path, settings, segments)
    if len(runs) > 1:
        names = ", ".join(f"'{run.name}'" for run in runs[:6]) + (", ..." if len(runs) > 6 else "")
        raise InputError(
            f"{path}: the file holds {len(runs)} runs ({names}), expected one: use read_runs, or "
            "segments='last' if they are restarts of one training"
        )
    return runs[0]


def read_runs(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    segments: Segments = "auto",
    **settings: Any,
) -> list[Run]:
    """Read the logs of several training runs.

    Parameters
    ----------
    paths
        Files, folders and patterns such as ``"logs/*.csv"``, or one of them. A folder is searched
        with all below it; an output folder of TRL counts as one log.
    segments
        What to do where a step counter runs back; as in `read_run`.
    **settings
        Settings given by hand, for all runs; see `Settings`.

    Returns
    -------
    list of Run
        In the order of the paths, sorted within a folder or pattern.

    Raises
    ------
    InputError
        If a file named by its own path cannot be read, or a folder or pattern has no readable log.

    Warns
    -----
    SkippedLogWarning
        For each file of a folder or pattern that cannot be read; it is left out.
    """
    _check_names(settings)
    check_segments(segments)
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    runs: list[Run] = []
    for path in map(Path, paths):
        if path.is_dir():
            runs += _read_all(path, _logs_in(path), settings, segments)
        elif not path.exists() and glob.has_magic(str(path)):
            # pathlib's glob takes no absolute patterns.
            matches = sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207
            files = [file for at in matches for file in (_logs_in(at) if at.is_dir() else [at])]
            if not files:
                raise InputError(f"{path}: no file matches the pattern")
            runs += _read_all(path, files, settings, segments)
        else:
            runs += _read_file(path, settings, segments)
    if not runs:
        raise InputError("no path was given: expected log files, folders or patterns")
    return runs


def _check_names(settings: dict[str, Any]) -> None:
    # A wrong setting is the caller's slip, not the fault of the first file it is applied to.
    Settings(settings)


def _read_all(
    origin: Path, files: Sequence[Path], settings: dict[str, Any], segments: Segments
) -> list[Run]:
    runs: list[Run] = []
    reason = ""
    for file in files:
        try:
            runs += _read_file(file, settings, segments)
        except InputError as error:
            reason = str(error)
            warnings.warn(f"left out: {error}", SkippedLogWarning, stacklevel=3)
    if not runs:
        raise InputError(f"{origin}: none of its {len(files)} files is a readable log ({reason})")
    return runs


def _logs_in(folder: Path) -> list[Path]:
    """Return the files of a folder that may be logs; never empty."""
    if (state := _newest_state(folder)) is not None:
        return [state]
    files: list[Path] = []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_file() and entry.name not in CONFIG_FILES:
            files.append(entry)
        elif entry.is_dir():
            files += _logs_in_or_none(entry)
    if not files:
        raise InputError(f"{folder}: the folder holds no log: expected files, or the output of TRL")
    return _one_of_events(files)


def _one_of_events(files: list[Path]) -> list[Path]:
    """Keep one event file of each folder: its reader takes those beside it, too."""
    kept: list[Path] = []
    folders: set[Path] = set()
    for file in files:
        events = EVENTS_NAME in file.name and is_events_file(file)
        if not events or file.parent not in folders:
            kept.append(file)
        if events:
            folders.add(file.parent)
    return kept


def _logs_in_or_none(folder: Path) -> list[Path]:
    try:
        return _logs_in(folder)
    except InputError:
        return []  # an empty folder among others is no fault


def _newest_state(folder: Path) -> Path | None:
    """Return the trainer state that goes furthest, in the folder itself or its checkpoints."""
    checkpoints = []
    for state in folder.glob(f"checkpoint-*/{_STATE}"):
        if number := re.fullmatch(r"checkpoint-(\d{1,15})", state.parent.name):
            checkpoints.append((int(number.group(1)), state))
    if (folder / _STATE).is_file():
        return folder / _STATE  # written at the end of the training, or the folder is a checkpoint
    return max(checkpoints)[1] if checkpoints else None


def _read_file(path: Path, settings: dict[str, Any], segments: Segments) -> list[Run]:
    try:
        if not path.exists():
            raise InputError("no such file or folder: check the path")
        head = read_head(path)
        if not head.strip():
            raise InputError("the file is empty: expected a training log")
        runs = []
        for records in _format(path, head).read(path):
            for parsed in _parsed(path, records, segments, settings):
                run = Run.from_table(
                    parsed.table,
                    _name(path, parsed.label),
                    source=str(path),
                    read=parsed.settings,
                    notes=parsed.notes,
                    **settings,
                )
                runs.append(run)
        return runs
    except InputError as error:
        raise error.at(str(path)) from error.__cause__


def _parsed(
    path: Path, records: Records, segments: Segments, given: dict[str, Any]
) -> list[Parsed]:
    trainer = records.trainer or trainer_of(records.table.columns)
    if trainer.beside is not None:
        records = trainer.beside(path, records)
    beside, unread = configs_beside(path)
    parsed = translate(records, trainer, records.config.over(beside), given)
    parsed = replace(parsed, notes=(*parsed.notes, *unread))
    return [infer(part, given) for part in segmented(parsed, segments)]


def _is_known(path: Path) -> bool:
    head = read_head(path)
    return any(known.sniff(path, head) for known in FORMATS)


def _format(path: Path, head: str) -> Format:
    for known in FORMATS:
        if known.sniff(path, head):
            return known
    if is_binary(head):
        raise InputError("a binary file: expected a training log as text")
    tried = ", ".join(known.name for known in FORMATS)
    raise InputError(
        f"no reader knows this format (tried {tried}): expected the log of a training, with a "
        "reward in each row"
    )


def _name(path: Path, label: str) -> str:
    """Name a run after its file; a trainer state, after the folder of the training."""
    stem = path.stem
    if path.name == _STATE:
        parents = [p for p in path.resolve().parents if not re.match(r"checkpoint-\d+$", p.name)]
        stem = parents[0].name or stem
    return f"{stem}: {label}" if label else stem
