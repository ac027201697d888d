"""Console logs: lines of metrics between everything else that a training prints."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.readers.config_text import from_text
from bayes_grpo.readers.lines import blocks, cleaned, marked, marked_lines
from bayes_grpo.readers.protocol import Console, Records, Row, Trainer
from bayes_grpo.readers.records import missing
from bayes_grpo.readers.text import is_binary
from bayes_grpo.readers.translate import canonical

# Enough to tell the trainer; a piece of a log starts and ends anywhere.
_PIECE = 1 << 16
_PIECES = 16

# Configurations are printed before the first metrics; more than this is not looked at.
_PREAMBLE = 2_000_000

_ROWS_AT_ONCE = 2000


class ConsoleLog:
    """Reads what a training printed, for every trainer that says how it prints.

    Parameters
    ----------
    trainers
        Asked in this order; the first that finds rewards in the log reads it.
    """

    name = "console log"
    looks_for = "lines of metrics with a reward"

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self._trainers = [trainer for trainer in trainers if trainer.console is not None]

    def sniff(self, path: Path, head: str) -> bool:
        """Look for rewards in pieces of the file, and then in all of it."""
        return not is_binary(head) and self._trainer(path, head) is not None

    def read(self, path: Path) -> list[Records]:
        """Read the file; a counter that starts anew is sorted out later."""
        trainer = self._trainer(path, "")
        if trainer is None or trainer.console is None:
            raise InputError(f"found no {self.looks_for}")
        lines = marked_lines(path, trainer.console.marks, trainer.console.closed)
        table = _table(trainer.console.rows(lines))
        if trainer.name == "" and "step" in table.columns:
            # Other lines with numbers are no steps of the training.
            table = table[~missing(table["step"])].reset_index(drop=True)
        config = from_text(_preamble(path, trainer.console), "the log")
        return [Records(table, config, trainer=trainer)]

    def of_text(self, text: str) -> Records | None:
        """Read text that stands inside another file, such as the output of a notebook's cell.

        Parameters
        ----------
        text
            The output.

        Returns
        -------
        Records or None
            None if no trainer finds rewards in it.
        """
        for trainer in self._trainers:
            if trainer.console and _rewarded(rows := list(_rows(text, trainer.console)), trainer):
                return Records(_table(iter(rows)), from_text(text, "the log"), trainer=trainer)
        return None

    def _trainer(self, path: Path, head: str) -> Trainer | None:
        pieces = [head, *_excerpts(path)] if head else _excerpts(path)
        for piece in pieces:
            if found := self._trainer_of(piece):
                return found
        if path.stat().st_size <= _PIECE * _PIECES:
            return None
        for block in blocks(path):
            if found := self._trainer_of(block.decode("utf-8", errors="replace")):
                return found
        return None

    def _trainer_of(self, text: str) -> Trainer | None:
        for trainer in self._trainers:
            if trainer.console and _rewarded(_rows(text, trainer.console), trainer):
                return trainer
        return None


def _rewarded(rows: Iterator[Row] | list[Row], trainer: Trainer) -> bool:
    """Tell whether a second row with a reward turns up: one may be anything."""
    count = 0
    for row in rows:
        frame, _ = canonical(pd.DataFrame([row], dtype=object), trainer)
        count += "reward" in frame.columns and not missing(frame["reward"]).all()
        if count > 1:
            return True
    return False


def _rows(text: str, console: Console) -> Iterator[Row]:
    marks = [mark.encode() for mark in console.marks]
    return console.rows(map(cleaned, marked(text.encode("utf-8", "surrogatepass"), marks)))


def _excerpts(path: Path) -> list[str]:
    """Return pieces from all over a file: all of it if it is small."""
    size = path.stat().st_size
    wide = next(blocks(path), b"")[:_PIECE]
    with path.open("rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            return [wide.decode("utf-8", errors="replace")]
        if size <= _PIECE * _PIECES:
            file.seek(0)
            return [file.read().decode("utf-8", errors="replace")]
        pieces = []
        for at in range(_PIECES):
            file.seek(at * (size - _PIECE) // (_PIECES - 1))
            lines = file.read(_PIECE).split(b"\n")[1:-1]
            pieces.append(b"\n".join([*lines, b""]).decode("utf-8", errors="replace"))
    return pieces


def _preamble(path: Path, console: Console) -> str:
    """Return the text before the first row of metrics, where configurations are printed.

    A row that takes several lines may leave its own lines in the text.
    """
    marks = [mark.encode() for mark in console.marks]
    kept: list[bytes] = []
    ends: list[int] = []

    def lines() -> Iterator[str]:
        for block in blocks(path):
            kept.append(block)
            ends.append(0)
            for line in marked(block, marks):
                ends[-1] = max(block.find(line, ends[-1]), ends[-1])
                yield cleaned(line)
            ends[-1] = len(block)
            if sum(ends) > _PREAMBLE:
                return

    next(console.rows(lines()), None)
    kept = [block[:end] for block, end in zip(kept, ends, strict=True)]
    text = b"".join(kept)[:_PREAMBLE]
    return "\n".join(cleaned(line) for line in text.split(b"\n"))


def _table(rows: Iterator[Row]) -> pd.DataFrame:
    """Collect rows; numbers are packed as they come, so that a long log stays small."""
    packed: list[pd.DataFrame] = []
    waiting: list[Row] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) == _ROWS_AT_ONCE:
            packed.append(_packed(waiting))
            waiting = []
    if waiting or not packed:
        packed.append(_packed(waiting))
    return packed[0] if len(packed) == 1 else pd.concat(packed, ignore_index=True)


def _packed(rows: list[Row]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, dtype=object)
    for name in frame.columns:
        try:
            frame[name] = pd.to_numeric(frame[name])
        except (ValueError, TypeError):
            continue  # text, kept as it is: the checks of the table name it
    return frame
