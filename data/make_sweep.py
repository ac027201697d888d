"""Make the factorial data set of this folder: python data/make_sweep.py --work FOLDER.

Small neural policies (bayes_grpo.simulate), trained with GRPO from one shared reference over the
full grid of group size, momentum, refresh interval, learning rate and replicate. README.md says
what is in it.

A cell is one group size, momentum and refresh interval; its runs are trained together, and its
table is written to the work folder under a temporary name and renamed. A second call goes on where
the first one stopped, and when all cells are there, puts them together into sweep.csv.gz: the bytes
are those of a grid that was never interrupted. About 10 minutes on two cores; use nice.
"""

import argparse
import gzip
import io
import itertools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from bayes_grpo.simulate.design import Design, Hyper
from bayes_grpo.simulate.network import Reference, pretrain
from bayes_grpo.simulate.task import Task, arithmetic_task
from bayes_grpo.simulate.training import train_many

FOLDER = Path(__file__).parent
TASK_SEED, REFERENCE_SEED = 0, 0
PROMPTS_PER_STEP, KL_WEIGHT = 32, 0.8
UPDATES_PER_ROW = 16
"""A whole number of refreshes at every interval of the grid."""

# Rounding far below the sampling noise of a row, so that the file stays small.
DECIMALS = {
    "reward": 4,
    "reward_std": 4,
    "zero_std_fraction": 3,
    "kl": 4,
    "entropy": 3,
    "grad_norm": 3,
    "expected_reward": 4,
    "eval_reward": 3,
}


class Grid(NamedTuple):
    """Levels of the factors; every combination is run."""

    group_size: Sequence[int] = (2, 4, 8, 16, 64)
    momentum: Sequence[float] = (0.0, 0.5, 0.9)
    refresh_interval: Sequence[int] = (1, 2, 4, 8, 16)
    learning_rate: Sequence[float] = (0.2, 0.6, 1.8)
    seed: Sequence[int] = (0, 1, 2, 3, 4)
    rows: int = 100


def settings(grid: Grid) -> dict[str, Any]:
    """What all runs share, by the names of bayes_grpo.Settings."""
    return {
        "prompts_per_step": PROMPTS_PER_STEP,
        "momentum_convention": "ema",
        "lag_pattern": "hold",
        "row_average": "window",
        "max_steps": grid.rows * UPDATES_PER_ROW,
        "reward_bounds": [0.0, 1.0],
        "kl_weight": KL_WEIGHT,
    }


def cells(grid: Grid) -> list[tuple[int, float, int]]:
    """Group size, momentum and refresh interval of each cell."""
    return list(itertools.product(grid.group_size, grid.momentum, grid.refresh_interval))


def train_cell(grid: Grid, index: int, task: Task, reference: Reference) -> pd.DataFrame:
    """The rows of all runs of a cell."""
    group_size, momentum, refresh_interval = cells(grid)[index]
    runs = list(itertools.product(grid.learning_rate, grid.seed))
    design = Design(
        group_size=group_size,
        prompts_per_step=PROMPTS_PER_STEP,
        rows=grid.rows,
        updates_per_row=UPDATES_PER_ROW,
    )
    hyper = Hyper(
        learning_rate=np.array([rate for rate, _ in runs]),
        momentum=momentum,
        kl_weight=KL_WEIGHT,
        refresh_interval=refresh_interval,
        # No two runs of the grid share their random numbers.
        seed=np.arange(len(runs)) + index * len(runs),
    )
    history, _ = train_many(design, task, reference, hyper)
    columns = {
        "group_size": group_size,
        "momentum": momentum,
        "refresh_interval": refresh_interval,
        "learning_rate": np.repeat([rate for rate, _ in runs], grid.rows),
        "seed": np.repeat([seed for _, seed in runs], grid.rows),
        "step": np.tile(np.arange(1, grid.rows + 1) * UPDATES_PER_ROW, len(runs)),
    }
    measured = {
        name: np.asarray(getattr(history, name), dtype=float).ravel().round(decimals)
        for name, decimals in DECIMALS.items()
    }
    return pd.DataFrame({**columns, **measured})


def make(grid: Grid, work: Path, limit: int | None = None) -> int:
    """Train the cells that are not there yet; return how many are still missing."""
    work.mkdir(parents=True, exist_ok=True)
    plan = work / "grid.json"
    told = json.dumps({**grid._asdict(), **settings(grid)})
    if plan.is_file() and plan.read_text(encoding="utf-8") != told:
        sys.exit(f"{work} holds cells of another grid: choose another folder")
    _replace(plan, told.encode())
    missing = [i for i in range(len(cells(grid))) if not _cell_file(work, i).is_file()]
    if not missing:
        return 0
    task = arithmetic_task(TASK_SEED)
    reference = pretrain(task, REFERENCE_SEED)
    begin, done = time.perf_counter(), 0
    for done, index in enumerate(missing[:limit], 1):
        table = train_cell(grid, index, task, reference)
        _replace(_cell_file(work, index), table.to_csv(index=False).encode())
        left = (time.perf_counter() - begin) / done * (len(missing) - done)
        print(f"cell {index + 1}/{len(cells(grid))}, {left / 60:.1f} min left", file=sys.stderr)
    return len(missing) - done


def assemble(grid: Grid, work: Path, out: Path) -> None:
    """Put the cells together: a line of settings and of constant columns, then the table."""
    parts = [pd.read_csv(_cell_file(work, i), dtype=str) for i in range(len(cells(grid)))]
    text = io.StringIO()
    told = {"settings": settings(grid), "columns": {"generations": UPDATES_PER_ROW}}
    text.write(f"# {json.dumps(told)}\n")
    pd.concat(parts).to_csv(text, index=False, lineterminator="\n")
    # Without the time of writing in its header, equal contents give equal bytes.
    _replace(out, gzip.compress(text.getvalue().encode(), compresslevel=9, mtime=0))


def _cell_file(work: Path, index: int) -> Path:
    return work / f"cell_{index:03d}.csv"


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def main() -> None:
    """Train what is missing, and put the table together."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder of the finished cells")
    parser.add_argument("--out", type=Path, default=FOLDER / "sweep.csv.gz", help="the table")
    options = parser.parse_args()
    grid = Grid()
    print(f"JAX {jax.__version__} on {jax.default_backend()}", file=sys.stderr)
    make(grid, options.work)
    assemble(grid, options.work, options.out)


if __name__ == "__main__":
    main()
