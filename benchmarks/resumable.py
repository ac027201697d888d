"""Long benchmarks that can be stopped: every finished item is a line of a partial file."""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROGRESS_LINES = 10
"""Seconds between two progress lines where the output is not a terminal."""


class Partial:
    """Results so far, one JSON object a line; the first line holds what they depend on.

    Parameters
    ----------
    path
        The partial file.
    settings
        What the results depend on: results of other settings are not mixed in.
    resume
        Whether to go on with what is there; else the file starts empty.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], resume: bool) -> None:
        self.path = path
        self.items: list[dict[str, Any]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if resume and path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            found, *items = [json.loads(line) for line in lines if line.endswith("}")]
            if found != settings:
                differ = [key for key in settings if found.get(key) != settings[key]]
                sys.exit(
                    f"{path.name} holds results of another {' and '.join(differ)}: run without "
                    "--resume to start anew"
                )
            self.items = items
        # Written anew, so that a line cut off by a crash does not run into the next one.
        self._write("w", settings, *self.items)

    def add(self, item: dict[str, Any]) -> None:
        self.items.append(item)
        self._write("a", item)

    def done(self) -> None:
        """Forget the partial file: the results are written."""
        self.path.unlink(missing_ok=True)

    def _write(self, mode: str, *items: Mapping[str, Any]) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            for item in items:
                file.write(json.dumps(item) + "\n")


class Progress:
    """A line on standard error: how far, and how long still."""

    def __init__(self, total: int, label: str) -> None:
        self.total, self.label, self.count = total, label, 0
        self.begin = self.shown = time.perf_counter()

    def step(self, text: str) -> None:
        self.count += 1
        now = time.perf_counter()
        left = (now - self.begin) / self.count * (self.total - self.count)
        line = f"{self.label} {self.count}/{self.total}, {left / 60:.1f} min left: {text}"
        if sys.stderr.isatty():
            end = "\n" if self.count == self.total else ""
            print(f"\r\x1b[K{line[:120]}", end=end, file=sys.stderr, flush=True)
        elif self.count == self.total or now - self.shown > PROGRESS_LINES:
            self.shown = now
            print(line, file=sys.stderr, flush=True)
