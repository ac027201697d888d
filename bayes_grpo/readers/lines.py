"""Lines of console logs: found in bounded memory, freed of colours and prefixes."""

import codecs
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bayes_grpo.errors import InputError

BLOCK = 1 << 22
"""Bytes looked at in one go."""

# A line beyond this is no line of metrics; what hangs over is cut off.
_LONGEST = 1 << 20

_COLOUR = re.compile(r"\x1b?\[[0-9;]*m|\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
# (TaskRunner pid=123, ip=10.0.0.1) as Ray puts it before every line of a worker.
_RAY = re.compile(r"^\s*\([\w.<>: ]{1,80}? pid=\d+(?:, ip=[\d.a-f:]+)?\)\s?")
_REPEATED = re.compile(r"\s*\[repeated \d+x across [^\]]*\].*$")


def blocks(path: Path) -> Iterator[bytes]:
    """Read a file in blocks that end with a line.

    Parameters
    ----------
    path
        An existing file, in UTF-8 or, as Windows shells redirect to, UTF-16.

    Yields
    ------
    bytes
        UTF-8. Only the last may end within a line.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(3)
            wide = start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            file.seek(3 if start == codecs.BOM_UTF8 else 0)
            decoder = codecs.getincrementaldecoder("utf-16")(errors="replace") if wide else None
            rest = b""
            while piece := file.read(BLOCK):
                if decoder is not None:
                    piece = decoder.decode(piece).encode("utf-8")
                block = rest + piece
                end = block.rfind(b"\n") + 1
                if end == 0 and len(block) > 2 * _LONGEST:
                    end = len(block)  # no line at all: do not hoard it
                if end:
                    yield block[:end]
                rest = block[end:]
            if rest:
                yield rest
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from error


def marked(block: bytes, marks: Sequence[bytes]) -> Iterator[bytes]:
    """Return the lines of a block that have one of several marks, in order.

    Parameters
    ----------
    block
        Whole lines.
    marks
        Literal pieces of a line.

    Yields
    ------
    bytes
        Each line once, with its line end if it has one. Of a line that a progress bar rewrote
        (carriage returns), each state is a line.
    """
    lines: dict[int, int] = {}
    for mark in marks:
        at = block.find(mark)
        while at >= 0:
            start = block.rfind(b"\n", 0, at) + 1
            end = block.find(b"\n", at) + 1 or len(block)
            lines[start] = end
            at = block.find(mark, end)
    for start in sorted(lines):
        line = block[start : lines[start]]
        if b"\r" not in line[:-2]:
            yield line
            continue
        for state in re.split(rb"\r(?!\n)", line):
            if any(mark in state for mark in marks):
                yield state


def marked_lines(path: Path, marks: Sequence[str], closed: bool) -> Iterator[str]:
    """Return the lines of a file that have one of several marks, cleaned.

    Parameters
    ----------
    path
        An existing file.
    marks
        Literal pieces of a line.
    closed
        Whether to include a last line without a line end.

    Yields
    ------
    str
        See `cleaned`.
    """
    wanted = [mark.encode() for mark in marks]
    for block in blocks(path):
        for line in marked(block, wanted):
            if closed or line.endswith((b"\n", b"\r")) or not block.endswith(line):
                yield cleaned(line)


def cleaned(line: bytes | str) -> str:
    """Free a line of colours, of Ray's prefix and of its line end.

    Parameters
    ----------
    line
        As the log has it.

    Returns
    -------
    str
    """
    text = line[:_LONGEST].decode("utf-8", errors="replace") if isinstance(line, bytes) else line
    text = text.rstrip("\r\n")
    if "[" in text:
        text = _REPEATED.sub("", _COLOUR.sub("", text))
    return _RAY.sub("", text)
