"""The factorial data set that comes with the package: many runs in one table."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.run import Run
from bayes_grpo.settings import Settings
from bayes_grpo.table import check_ranges, ordered

FACTORS = ("group_size", "momentum", "refresh_interval", "learning_rate", "seed")
"""Columns that tell the runs apart."""


def read_sweep(path: str | Path, **settings: Any) -> list[Run]:
    """Read a table of many runs: a line of what they share, then the rows of all runs.

    Parameters
    ----------
    path
        Compressed CSV. Its first line is ``# {"settings": {...}, "columns": {...}}``: settings of
        all runs, and columns that are constant. Its columns are `FACTORS`, ``step`` and what was
        logged; the rows of a run are together.
    **settings
        Settings that replace those of all runs.

    Returns
    -------
    list of Run
        In the order of the table, with names such as ``G8 momentum 0.9 refresh 4 lr 0.6 seed 0``.

    Raises
    ------
    InputError
        If the file is not such a table.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        first = file.readline()
        if not first.startswith("# {"):
            raise InputError(f"{path}: the first line is no line of settings: expected '# {{...}}'")
        told = json.loads(first[1:])
        table = pd.read_csv(file).assign(**told["columns"])
    # Run.from_table looks for names, slips and gaps, which takes a minute for a thousand runs: here
    # one whole table is checked, and the columns are those that it would make.
    check_ranges(table)
    if table.isna().any(axis=None):
        raise InputError(f"{path}: a cell is empty: expected a number in every one")
    factors = table[list(FACTORS)]
    starts = np.flatnonzero((factors != factors.shift()).any(axis=1))
    step = table["step"].to_numpy()
    updates = np.diff(step, prepend=0)
    updates[starts] = step[starts]
    logged = ordered(table.drop(columns=list(FACTORS)).assign(updates=updates))
    runs = []
    for levels, begin, end in zip(
        factors.iloc[starts].itertuples(index=False),
        starts,
        [*starts[1:], len(table)],
        strict=True,
    ):
        name = "G{} momentum {:g} refresh {} lr {:g} seed {}".format(*levels)
        of_run = {factor: getattr(levels, factor) for factor in FACTORS if factor != "seed"}
        given = Settings({**told["settings"], **of_run, **settings})
        rows = logged.iloc[begin:end].reset_index(drop=True)
        runs.append(Run(name, rows, given, source=str(path)))
    return runs
