"""Text and JSON of log files, with errors that name the line."""

import codecs
import json
import re
from pathlib import Path
from typing import Any

from bayes_grpo.errors import InputError

HEAD_BYTES = 65_536

_TOO_LONG = "a whole number of thousands of digits"


def read_head(path: Path) -> str:
    """Return the beginning of a file as text.

    Parameters
    ----------
    path
        An existing file.

    Returns
    -------
    str
        At most `HEAD_BYTES` bytes, decoded; undecodable bytes become U+FFFD.

    Raises
    ------
    InputError
        If the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            return _decoded(file.read(HEAD_BYTES))
    except OSError as error:
        raise InputError(f"cannot be opened: {error.strerror}") from error


def read_text(path: Path) -> str:
    """Return a file as text.

    Parameters
    ----------
    path
        An existing file.

    Returns
    -------
    str
        UTF-8 or UTF-16 (what a Windows shell redirects to) decoded, byte order mark removed.

    Raises
    ------
    InputError
        If the file cannot be opened.
    """
    try:
        return _decoded(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot be opened: {error.strerror}") from error


def parse_json(text: str) -> Any:
    """Parse JSON text.

    Parameters
    ----------
    text
        One JSON value.

    Returns
    -------
    object
        As `json.loads`; NaN and Infinity are accepted.

    Raises
    ------
    InputError
        If it is broken; names line and column.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"line {error.lineno}, column {error.colno}: broken JSON ({error.msg}); "
            "the file may have been cut off while it was written, expected a complete one"
        ) from error
    except RecursionError as error:
        raise InputError("JSON nested too deep: expected a log") from error
    except ValueError as error:  # Python's bound on the digits of a whole number
        raise InputError(f"{_TOO_LONG}: expected a log") from error


def whole_rows(text: str, start: str) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Read the rows of a JSON list before the place where the file is cut off.

    Parameters
    ----------
    text
        Of a file that is no complete JSON.
    start
        Regular expression for everything up to the bracket that opens the list.

    Returns
    -------
    rows : list of dict
        None where the file is broken in its middle: the error of the whole file is clearer then.
    notes : tuple of str
        Says how many rows were read.
    """
    opening = re.match(start, text)
    if opening is None:
        return [], ()
    rows: list[dict[str, Any]] = []
    decoder, at = json.JSONDecoder(), opening.end()
    while ahead := re.compile(r"[\s,]*(?=\{)").match(text, at):
        try:
            row, at = decoder.raw_decode(text, ahead.end())
        except (ValueError, RecursionError):
            break
        rows.append(row)
    rest = text[at:].lstrip(" \t\n,")
    if rest and not rest.startswith("]") and re.search(r"\}\s*[,\]]", rest):
        return [], ()
    return rows, (f"the file is cut off: its first {len(rows)} whole rows were read",)


def parse_json_lines(text: str) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Parse a file with one JSON object a line.

    Parameters
    ----------
    text
        The lines; blank ones are skipped. A broken last line is what a killed process leaves
        behind: it is dropped, with a note.

    Returns
    -------
    records : list of dict
        In the order of the file.
    notes : tuple of str
        Says so if the last line was dropped.

    Raises
    ------
    InputError
        If another line is broken or is not an object; names it.
    """
    lines = [(at, line) for at, line in enumerate(text.split("\n"), 1) if line.strip()]
    records: list[dict[str, Any]] = []
    for at, line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            if at == lines[-1][0] and records:
                return records, (f"line {at}, the last, is cut off: left out",)
            raise InputError(
                f"line {at}: broken JSON ({error.msg}), expected one object a line; "
                "correct or remove the line"
            ) from error
        except RecursionError as error:
            raise InputError(f"line {at}: JSON nested too deep, expected a log row") from error
        except ValueError as error:  # Python's bound on the digits of a whole number
            raise InputError(f"line {at}: {_TOO_LONG}, expected a log row") from error
        if not isinstance(record, dict):
            raise InputError(
                f"line {at}: found {type(record).__name__}, expected one JSON object a line"
            )
        records.append(record)
    return records, ()


def is_binary(head: str) -> bool:
    """Tell whether the beginning of a file is not text.

    Parameters
    ----------
    head
        From `read_head`.

    Returns
    -------
    bool
        True if it holds NUL characters, or mostly undecodable ones.
    """
    return "\0" in head or head.count("�") > 0.1 * len(head)


def opens_with(head: str, pattern: str) -> bool:
    """Tell whether text begins with a pattern, blanks aside.

    Parameters
    ----------
    head
        From `read_head`.
    pattern
        Regular expression.

    Returns
    -------
    bool
        True if it matches at the first character that is not blank.
    """
    return re.match(pattern, head.lstrip()) is not None


def _decoded(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
