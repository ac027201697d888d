"""What the benchmarks share: interleaved timing, versions, tables and files that are never half."""

import csv
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("jax", "jaxlib", "numpyro", "tinygp", "dynamax", "numpy")


def interleaved(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call, in rounds over all calls: a busy moment of the machine hits everyone.

    A call must return only when its result is there.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()  # back into the caches after the others
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def median_and_min(seconds: Sequence[float]) -> tuple[float, float]:
    return statistics.median(seconds), min(seconds)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    def save(temporary: Path) -> None:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)

    _replace(path, save)


def write_text(path: Path, text: str) -> None:
    _replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _replace(path: Path, save: Callable[[Path], Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    save(temporary)
    temporary.replace(path)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    padded = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([padded[0], rule, *padded[1:]])


def circumstances() -> str:
    """Versions of what takes part, and how busy the machine was, as a line of text."""
    found = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            found.append(f"{package} not installed")
    cores, load = os.cpu_count(), os.getloadavg()[2]
    found.append(f"{cores} CPU cores, mean load of the last 15 minutes {load:.1f}")
    return ", ".join(found)
