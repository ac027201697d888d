"""TensorBoard event files, read by tensorboard's own reader (optional extra ``tensorboard``)."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.readers.config import Config
from bayes_grpo.readers.protocol import Records

_MARK = "brain.Event:"

EVENTS_NAME = "tfevents"
"""What the name of every event file has in it."""


class EventFiles:
    """Reads the event files of a folder as one log: further files are restarts."""

    name = "TensorBoard events"
    looks_for = "a first record that says 'brain.Event'"

    def sniff(self, path: Path, head: str) -> bool:
        """Look at the first record."""
        return _MARK in head[:100]

    def read(self, path: Path) -> list[Records]:
        """Read the file and those beside it, in the order of their names, which begin with time."""
        loader, to_array = _reader()
        rows: list[dict[str, Any]] = []
        config, notes = Config(), []
        files = sorted(
            file for file in path.parent.iterdir() if file == path or is_events_file(file)
        )
        for file in files:
            steps: dict[int, dict[str, Any]] = {}
            try:
                for event in loader(str(file)).Load():
                    for value in event.summary.value:
                        if not value.HasField("tensor"):
                            continue
                        cell = to_array(value.tensor)
                        if cell.dtype.kind in "fiu" and cell.size == 1:
                            row = steps.setdefault(int(event.step), {"step": int(event.step)})
                            row[value.tag] = float(cell.reshape(-1)[0])
                        elif value.tag.startswith(("args", "model_config")) and cell.size == 1:
                            config = _arguments(cell.reshape(-1)[0], value.tag).over(config)
            except (ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
                notes.append(f"'{file.name}' was read up to a damaged record ({error})")
            rows += [steps[step] for step in sorted(steps)]
        if not rows:
            raise InputError("no scalars in the event file: expected the log of a training")
        if len(files) > 1:
            notes.append(f"{len(files)} event files of the folder were read as one log")
        return [Records(pd.DataFrame(rows, dtype=object), config, notes=tuple(notes))]


EVENT_FILES = EventFiles()


def is_events_file(file: Path) -> bool:
    """Tell whether a file begins as an event file does.

    Parameters
    ----------
    file
        Any path.

    Returns
    -------
    bool
    """
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return _MARK in opened.read(100).decode("latin-1")


def _reader() -> tuple[Any, Any]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise InputError(
            "a TensorBoard event file: reading it needs the package tensorboard; "
            "pip install 'bayes-grpo[tensorboard]'"
        ) from error
    return EventFileLoader, make_ndarray


def _arguments(text: Any, tag: str) -> Config:
    """Read the arguments that Hugging Face trainers write as a text in JSON."""
    try:
        data = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return Config()
    source = f"text '{tag.partition('/')[0]}' in the event file"
    return Config.of(data, source) if isinstance(data, dict) else Config()
