"""Reading logs: do the raw public logs read as their tidy tables, and how quickly?

    python benchmarks/readers.py

1. Every raw log of the folder ``../shared/runs/raw`` (elsewhere: ``--runs`` or the variable
   BAYES_GRPO_RUNS; the logs are not part of this repository) is read, and its rewards are compared
   with the tidy table of the same name, which somebody else made of it.  Skipped, with a line that
   says so, where the folder is missing.
2. A console log of 100 MB, most of it not metrics, made here, is read: megabytes a second, and the
   memory that the process took in addition.

Written to benchmarks/results: ``readers.md``.  Exit status 1 if a log does not read, or its rewards
differ from the tidy ones by more than 1e-6.
"""

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from reporting import RESULTS, circumstances, table, write_text

from bayes_grpo import InputError, read_run, read_runs
from bayes_grpo.run import Run

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-6
MEGABYTES = 100
REPEATS = 5

# Raw files whose tidy table has another name.
OTHER_NAMES = {"scratch-countdown-20250820194252-grpo": "scratch-countdown-20250820194252-gspo"}


def main() -> int:
    """Run both parts and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    runs = os.environ.get("BAYES_GRPO_RUNS", str(ROOT.parent / "shared" / "runs"))
    parser.add_argument("--runs", type=Path, default=Path(runs))
    folder = parser.parse_args().runs
    parts = [f"# Reading logs\n\n{circumstances()}\n"]
    wrong = 0
    if (folder / "raw").is_dir():
        rows = [_read(file, folder / "tidy") for file in sorted((folder / "raw").iterdir())]
        wrong = sum(row["largest difference"] == "-" for row in rows)
        wrong += sum(
            float(row["largest difference"]) > TOLERANCE
            for row in rows
            if row["largest difference"] != "-"
        )
        parts.append(f"{len(rows) - wrong} of {len(rows)} raw logs read as their tidy tables.\n")
        parts.append(table(rows))
    else:
        parts.append(f"The public logs are not in {folder.name}: part 1 was skipped.")
    parts.append("\n" + _speed())
    text = "\n".join(parts) + "\n"
    print(text)
    write_text(RESULTS / "readers.md", text)
    return 1 if wrong else 0


def _read(file: Path, tidy: Path) -> dict[str, Any]:
    row: dict[str, Any] = {"log": file.name[:52], "trainer": "", "runs": 0, "rows": 0}
    told = {"read or inferred": "", "largest difference": "-"}
    try:
        runs = read_runs(file)
    except InputError as error:
        return row | told | {"read or inferred": str(error).partition(": ")[2][:80]}
    expected = pd.read_csv(tidy / f"{OTHER_NAMES.get(file.stem, file.stem)}.csv")
    differences = [_difference(run, expected) for run in runs]
    run = runs[int(np.argmin(differences))]
    names = [n for n in run.settings if run.settings[n].provenance in ("read", "inferred")]
    shown = ("group_size", "prompts_per_step", "max_steps", "kl_weight", "reward_std_kind")
    told["read or inferred"] = ", ".join(
        f"{name} {getattr(run.settings, name)}" for name in shown if name in names
    )
    told["largest difference"] = f"{min(differences):.1g}"
    return row | {
        "trainer": run.settings.trainer or "-",
        "runs": len(runs),
        "rows": len(run),
        **told,
    }


def _difference(run: Run, expected: pd.DataFrame) -> float:
    """Largest difference of the rewards, by step; also where the tidy table counts on."""
    own = run.table.set_index("step")["reward"]
    tidy = expected.set_index("step")["reward"]
    last = tidy.tail(len(own)).set_axis(own.index[-len(tidy) :])
    found = []
    for other in (tidy[~tidy.index.duplicated()], last):
        both = own.index.intersection(other.index)
        found.append(float(np.nanmax(np.abs(own[both] - other[both]))) if len(both) else np.inf)
    return min(found)


def _speed() -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "console.log"
        rows = _write_console(path)
        size = path.stat().st_size / 1e6
        read_run(path)  # imports
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        seconds = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            run = read_run(path)
            seconds.append(time.perf_counter() - begin)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    if len(run) != rows:
        raise SystemExit(f"the console log has {rows} rows, {len(run)} were read")
    speed = size / statistics.median(seconds)
    return (
        f"A console log of {size:.0f} MB with {rows} rows of metrics: {speed:.0f} MB/s (median of "
        f"{REPEATS}, best {size / min(seconds):.0f}); peak memory of the process {after:.0f} MB "
        f"({after - before:.0f} MB more than after a first reading)."
    )


def _write_console(path: Path) -> int:
    """Write a log as TRL prints it: workers' chatter, progress bars, a dict a step."""
    chatter = "".join(
        f"INFO 12-01 10:20:{second:02d} worker: {second} running requests, 0 waiting, cache {k} %\n"
        for second in range(60)
        for k in (10, 35, 70)
    )
    rng = np.random.default_rng(0)
    k = written = 0
    with path.open("w") as file:
        while written < MEGABYTES * 1e6:
            k += 1
            row = {"loss": 0.01, "reward": round(float(rng.random()), 4), "reward_std": 0.2}
            row |= {"learning_rate": 1e-6, "completions/mean_length": 210.5, "epoch": k / 1000}
            bar = f" {k % 100}%|##    | {k}/20000 [02:22<12:51,  4.65s/it]\n"
            written += file.write(chatter + bar + repr(row) + "\n")
    return k


if __name__ == "__main__":
    sys.exit(main())
