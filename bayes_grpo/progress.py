"""One progress bar for a fit, in a terminal and in a notebook."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Lock
from typing import Any


def _bar_class() -> Any:
    # The notebook bar needs ipywidgets; without them the text bar is still readable there.
    if find_spec("ipywidgets") is not None and "ipykernel" in sys.modules:
        from tqdm.notebook import tqdm
    else:
        from tqdm import tqdm
    return tqdm


@contextmanager
def progress_bar(total: int, label: str, show: bool) -> Iterator[Callable[[int], None]]:
    """Show progress on standard error.

    Parameters
    ----------
    total
        Iterations in all.
    label
        What is going on.
    show
        Whether to show anything.

    Yields
    ------
    Callable
        To be called, from any thread, with the number of iterations done since the last call.
    """
    lock = Lock()
    with _bar_class()(total=total, desc=label, unit="draw", disable=not show, leave=False) as bar:

        def report(iterations: int) -> None:
            with lock:
                bar.update(iterations)

        yield report
