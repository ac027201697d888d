"""Files that are written whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_whole(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Write a file under a temporary name beside its place, then rename it.

    Parameters
    ----------
    path
        Final place; its folder is made if need be.
    write
        Called with the temporary path, which has the same suffix.

    Returns
    -------
    Path
        The final place.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{final.stem}-", suffix=final.suffix, dir=final.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)
    return final
