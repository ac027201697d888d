"""Tables that notebooks show: as saved HTML, or pasted as Markdown."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd

from bayes_grpo.columns import candidates
from bayes_grpo.errors import InputError
from bayes_grpo.readers.console import ConsoleLog
from bayes_grpo.readers.protocol import Records
from bayes_grpo.readers.text import is_binary, opens_with, read_text
from bayes_grpo.settings import Setting

# Nothing that people look at is nested deeper; a cell longer than this is no number.
_DEEPEST = 40
_LONGEST_CELL = 2000

# [100/100 1:30:34, Epoch 0/1] under the progress bar of a Hugging Face trainer.
_PROGRESS = re.compile(r"\[\s*\d+/(\d{1,15})\s+(?:\d+:)?\d+:\d+")

_RULE = re.compile(r"\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*$|\s*\|\s*:?-{2,}:?\s*\|\s*$")


class HtmlPage:
    """Reads the tables with a reward of an HTML page, else what its preformatted text prints.

    Parameters
    ----------
    console
        Reads console output.
    """

    name = "HTML table"
    looks_for = "a table with a reward column"

    def __init__(self, console: ConsoleLog) -> None:
        self._console = console

    def sniff(self, path: Path, head: str) -> bool:
        """Look for the beginning of a page or of a piece of one."""
        if is_binary(head) or opens_with(head, r"[\[{]"):
            return False
        return opens_with(head, r"<(?!<)[!?a-zA-Z]") or "<table" in head.lower()

    def read(self, path: Path) -> list[Records]:
        """Read the runs of the file."""
        records = records_of_html(read_text(path), self._console)
        if not records:
            raise InputError(
                f"found no {self.looks_for.removeprefix('a ')} in the page: expected the log of a "
                "training"
            )
        return records


class MarkdownPage:
    """Reads Markdown tables with a reward, wherever they stand in a text."""

    name = "Markdown table"
    looks_for = "a table with a reward column"

    def sniff(self, path: Path, head: str) -> bool:
        """Look for a header line over a rule, with a reward in it."""
        return not is_binary(head) and any(
            candidates(header, "reward") for header, _ in _markdown_tables(head)
        )

    def read(self, path: Path) -> list[Records]:
        """Read the runs of the file."""
        found = []
        for header, rows in _markdown_tables(read_text(path)):
            if candidates(header, "reward") and rows:
                found.append(Records(pd.DataFrame(rows, columns=header, dtype=object)))
        if not found:
            raise InputError(f"found no {self.looks_for.removeprefix('a ')} with rows under it")
        return _labelled(found)


def records_of_html(text: str, console: ConsoleLog) -> list[Records]:
    """Find the training logs of an HTML page.

    Parameters
    ----------
    text
        The page, or a piece of one; it may be cut off.
    console
        Reads preformatted text, if no table has a reward.

    Returns
    -------
    list of Records
        Empty if there is none.
    """
    page = _Page()
    page.feed(_without_comments(text))
    page.close()
    found = []
    for rows in page.tables:
        header = _distinct(rows[0]) if rows else []
        body = [row for row in rows[1:] if len(row) == len(header)]
        if candidates(header, "reward") and body:
            found.append(Records(pd.DataFrame(body, columns=header, dtype=object)))
    if not found and (printed := console.of_text("".join(page.printed))) is not None:
        found = [printed]
    totals = [int(total) for total in _PROGRESS.findall(text)]
    if len(found) == 1 and totals:
        planned = Setting(max(totals), "read", "the progress bar over the table")
        found = [Records(**{**vars(found[0]), "settings": {"max_steps": planned}})]
    return _labelled(found)


def _without_comments(text: str) -> str:
    """Drop comments, and read each ``<`` after the last ``>`` as text: no tag can end there.

    The parser of older Python versions searches the rest of the page again for every comment or
    tag that is never closed, which takes minutes on a hostile page.
    """
    last = text.rfind(">") + 1
    text = text[:last] + text[last:].replace("<", "&lt;")
    kept, at = [], 0
    while (begin := text.find("<!--", at)) >= 0:
        kept.append(text[at:begin])
        end = text.find("-->", begin + 4)
        if end < 0:
            return "".join(kept)
        at = end + 3
    return "".join((*kept, text[at:]))


def _labelled(found: list[Records]) -> list[Records]:
    if len(found) == 1:
        return found
    return [
        Records(**{**vars(records), "label": f"table {at}"}) for at, records in enumerate(found, 1)
    ]


def _distinct(header: list[str]) -> list[str]:
    """Give columns without a name, or with one that is taken, a name of their own."""
    names: list[str] = []
    for at, name in enumerate(header):
        names.append(name if name and name not in names else f"{name or 'column'} {at + 1}")
    return names


class _Page(HTMLParser):
    """Collects tables and preformatted text. Nothing is fetched, expanded or run."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[list[list[str]]] = []
        self.printed: list[str] = []
        self._open: list[list[list[str]]] = []
        self._rows: list[list[str] | None] = []
        self._cells: list[list[str] | None] = []
        self._preformatted = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "table" and len(self._open) < _DEEPEST:
            table: list[list[str]] = []
            self.tables.append(table)
            self._open.append(table)
            self._rows.append(None)
            self._cells.append(None)
        elif tag == "pre":
            self._preformatted += 1
        elif self._open and tag == "tr":
            self._end_row()
            self._rows[-1] = []
        elif self._open and tag in ("td", "th"):
            self._end_cell()
            self._cells[-1] = []

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._preformatted = max(0, self._preformatted - 1)
            self.printed.append("\n")
        elif self._open and tag in ("td", "th"):
            self._end_cell()
        elif self._open and tag == "tr":
            self._end_row()
        elif self._open and tag == "table":
            self._end_row()
            for stack in (self._open, self._rows, self._cells):
                stack.pop()

    def handle_data(self, data: str) -> None:
        if self._preformatted:
            self.printed.append(data)
        elif self._cells and (cell := self._cells[-1]) is not None:
            cell.append(data[:_LONGEST_CELL])

    def _end_cell(self) -> None:
        cell = self._cells[-1]
        if cell is not None and (row := self._rows[-1]) is not None:
            row.append("".join(cell).strip())
        self._cells[-1] = None

    def _end_row(self) -> None:
        """Close a row; one that the end of a cut file leaves open is never closed."""
        self._end_cell()
        if row := self._rows[-1]:
            self._open[-1].append(row)
        self._rows[-1] = None


def _markdown_tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    lines = text.split("\n")
    whole = lines if text.endswith("\n") else [*lines[:-1], ""] if len(lines) > 1 else lines
    unfinished = lines[-1] if not text.endswith("\n") else ""
    tables = []
    for at in range(1, len(whole)):
        if "-" not in whole[at] or not _RULE.match(whole[at]) or "|" not in whole[at - 1]:
            continue
        header = _distinct(_cells(whole[at - 1]))
        rows = []
        for line in whole[at + 1 :]:
            if "|" not in line:
                break
            cells = _cells(line)
            if len(cells) == len(header):
                rows.append(cells)
        # A last line with its closing bar is whole even without a line end.
        if unfinished.rstrip().endswith("|") and len(_cells(unfinished)) == len(header):
            rows.append(_cells(unfinished))
        tables.append((header, rows))
    return tables


def _cells(line: str) -> list[str]:
    return [cell.strip().strip("*`") for cell in line.strip().strip("|").split("|")]
