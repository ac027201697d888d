"""What readers are made of: formats of files, and trainers with their own names for things.

A `Format` knows how a kind of file is laid out (JSON lines, CSV, a console log) and returns its
`Records` under the names the log uses. A `Trainer` knows what those names mean, and how its
configuration translates into `Settings`. So each format serves all trainers, and a new trainer is
one small module that defines a `Trainer`, and its line in `bayes_grpo.readers.trainers`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from bayes_grpo.readers.config import Config
from bayes_grpo.settings import Setting

Row = dict[str, Any]
"""One record of a log under the log's own names; values may still be text."""


@dataclass(frozen=True)
class Console:
    """How a trainer prints its metrics.

    Parameters
    ----------
    marks
        Literal pieces of text; a line with none of them is skipped without being looked at, which
        is what makes large logs quick. Every line that `rows` needs must have one.
    rows
        Turns the marked lines, in order and without colours and Ray's prefix, into rows. A row of
        an evaluation is a row of its own.
    closed
        Whether a row shows by itself that it is complete, as a dict with its closing brace does.
        If not, an unfinished last line is left out.
    """

    marks: tuple[str, ...]
    rows: Callable[[Iterable[str]], Iterator[Row]]
    closed: bool = False


@dataclass(frozen=True)
class Trainer:
    """What the logs of one trainer mean.

    Parameters
    ----------
    name
        As its authors write it.
    signature
        Regular expressions; a column that one of them matches in full tells the trainer. Columns
        are compared as `spelled` returns them.
    columns
        For each canonical column (`bayes_grpo.columns.CANONICAL`) the names it has here, the best
        source first, as regular expressions matched in full. Names that all trainers share need not
        be repeated (`bayes_grpo.columns.SYNONYMS`).
    settings
        Translates a configuration; see `Config`.
    defaults
        What holds where neither the log nor a configuration tells: name -> (value, why).
    adjust
        Derives columns and settings that need more than a name (a fraction from two counts, a lag
        from a staleness in steps). Takes the rows with canonical names, and what is known so far;
        the settings that it returns win over that.
    console
        How it prints; None if it does not.
    beside
        Adds to the records of a file what the trainer left in other files; takes the path of the
        file.
    """

    name: str
    signature: tuple[str, ...] = ()
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    settings: Callable[[Config], dict[str, Setting]] = lambda config: {}
    defaults: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    adjust: "Adjust | None" = None
    console: Console | None = None
    beside: Callable[[Path, "Records"], "Records"] | None = None

    def recognises(self, columns: Iterable[object]) -> bool:
        """Tell whether columns have this trainer's signature."""
        pattern = "|".join(f"(?:{own})" for own in self.signature)
        return bool(pattern) and any(re.fullmatch(pattern, spelled(name)) for name in columns)


@dataclass(frozen=True)
class Known:
    """What is known of a run before its rows are adjusted.

    Parameters
    ----------
    config
        Everything configured, in the log and beside it.
    settings
        Settings so far, those given by hand included.
    """

    config: Config = field(default_factory=Config)
    settings: Mapping[str, Setting] = field(default_factory=dict)


@dataclass(frozen=True)
class Adjusted:
    """What `Trainer.adjust` returns.

    Parameters
    ----------
    table
        The rows, with canonical names.
    settings
        Settings that the rows tell.
    notes
        What was done, in words.
    """

    table: pd.DataFrame
    settings: Mapping[str, Setting] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Adjust = Callable[[pd.DataFrame, Known], Adjusted]


def in_turn(*steps: Adjust) -> Adjust:
    """Make one adjustment of several, each of which sees what those before it found.

    Parameters
    ----------
    *steps
        Each as `Trainer.adjust`.

    Returns
    -------
    callable
        Later settings win.
    """

    def adjust(table: pd.DataFrame, known: Known) -> Adjusted:
        found: dict[str, Setting] = {}
        notes: tuple[str, ...] = ()
        for step in steps:
            done = step(table, Known(known.config, {**known.settings, **found}))
            table, notes = done.table, (*notes, *done.notes)
            found |= done.settings
        return Adjusted(table, found, notes)

    return adjust


@dataclass(frozen=True)
class Records:
    """What a file holds, under the names it uses.

    Parameters
    ----------
    table
        A row for each record.
    config
        The configuration that the file itself tells.
    settings
        Settings that the form of the file tells.
    notes
        What was done so far, in words.
    label
        Tells runs of one file apart; empty where the file holds only one.
    trainer
        The trainer, where the form of the file tells it; else its columns do.
    """

    table: pd.DataFrame
    config: Config = field(default_factory=Config)
    settings: Mapping[str, Setting] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    label: str = ""
    trainer: Trainer | None = None


@dataclass(frozen=True)
class Parsed:
    """One run as a reader found it, not yet checked.

    Parameters
    ----------
    table
        A row for each logged training step, with canonical column names. Cells may still be text.
    settings
        Settings read from the log or inferred from it.
    notes
        Assumptions the reader made, in words.
    label
        Tells runs of one file apart; empty where the file holds only one.
    """

    table: pd.DataFrame
    settings: Mapping[str, Setting] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    label: str = ""


class Format(Protocol):
    """Reads one kind of file."""

    @property
    def name(self) -> str:
        """Name of the format."""
        ...

    @property
    def looks_for(self) -> str:
        """What `sniff` looks for, in a phrase for the error when no format fits a file."""
        ...

    def sniff(self, path: Path, head: str) -> bool:
        """Tell by content, never by name, whether the file has this format.

        Parameters
        ----------
        path
            The file, for formats whose beginning does not tell.
        head
            Its beginning as text; a binary file shows as text with NUL characters.

        Returns
        -------
        bool
            True if `read` should be called.
        """
        ...

    def read(self, path: Path) -> list[Records]:
        """Read all runs of a file.

        Parameters
        ----------
        path
            A file for which `sniff` returned True.

        Returns
        -------
        list of Records
            One or more runs, in the order of the file.

        Raises
        ------
        InputError
            If the file is damaged, or holds no rows.
        """
        ...


def spelled(column: object) -> str:
    """Return a column's name in one spelling: lower case, no blanks around slashes.

    Parameters
    ----------
    column
        As the log has it, for example ``"completions / mean_length"``.

    Returns
    -------
    str
        For example ``"completions/mean_length"``.
    """
    return re.sub(r"\s*/\s*", "/", str(column).strip().lower())
