"""What a reader of one trainer's logs has to offer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pandas as pd

from bayes_grpo.settings import Setting


@dataclass(frozen=True)
class Parsed:
    """One run as a reader found it, not yet checked.

    Parameters
    ----------
    table
        A row for each logged training step, with canonical column names (`bayes_grpo.columns`)
        where the reader knows them. Cells may still be text.
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


class Reader(Protocol):
    """Reads the logs of one trainer, or of one kind of file.

    A new one is a module of this package that defines an instance, and its line in ``READERS``.
    """

    @property
    def name(self) -> str:
        """Name of the format."""
        ...

    @property
    def looks_for(self) -> str:
        """What `sniff` looks for, in a phrase for the error when no reader knows a file."""
        ...

    def sniff(self, path: Path, head: str) -> bool:
        """Tell by content, never by name, whether the file is this reader's.

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

    def read(self, path: Path) -> list[Parsed]:
        """Read all runs of a file.

        Parameters
        ----------
        path
            A file for which `sniff` returned True.

        Returns
        -------
        list of Parsed
            One or more runs, in the order of the file.

        Raises
        ------
        InputError
            If the file is damaged, or holds no training rows.
        """
        ...
