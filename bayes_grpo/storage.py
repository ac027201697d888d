"""Fits on disk: one netCDF file holds the posterior, the run, its settings and the model file."""

import json
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from bayes_grpo.errors import InputError
from bayes_grpo.files import write_whole
from bayes_grpo.model import Model, parse_model
from bayes_grpo.results import FORMAT
from bayes_grpo.run import Run
from bayes_grpo.settings import Settings
from bayes_grpo.table import COUNTS


@dataclass(frozen=True)
class Stored:
    """What a file holds.

    Parameters
    ----------
    run, model
        The run and the model.
    tree
        The posterior.
    horizon
        Planned last step.
    seed
        Seed of the fit.
    """

    run: Run
    model: Model
    tree: xr.DataTree
    horizon: int
    seed: int


def write_fit(run: Run, tree: xr.DataTree, path: str | Path) -> Path:
    """Write the posterior of a run, with the run.

    Parameters
    ----------
    run
        The run.
    tree
        From `bayes_grpo.results.assemble`.
    path
        File to write; one of that name is replaced at once or not at all.

    Returns
    -------
    Path
    """
    whole = tree.copy()
    # An attribute of HDF5 holds 64 kB, a variable any length.
    whole["run"] = xr.DataTree(xr.Dataset({"table": ((), run.table.to_csv(index=False))}))
    return write_whole(path, lambda at: whole.to_netcdf(at, engine="h5netcdf"))


def read_fit(path: str | Path) -> Stored:
    """Read what `write_fit` wrote.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Stored

    Raises
    ------
    InputError
        No such file; not a saved fit; written by a newer version of the package.
    """
    try:
        with xr.open_datatree(path, engine="h5netcdf") as file:
            tree = file.load()
        attributes = tree.attrs
        form = int(attributes["format"])
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{path}: not a saved fit: {error}") from error
    if form > FORMAT:
        raise InputError(
            f"{path}: saved in format {form}, this version reads up to {FORMAT}: update bayes-grpo"
        )
    table = _exact_table(str(tree["run"]["table"].item()))
    run = Run(
        name=attributes["run"],
        table=table,
        settings=Settings.from_json(attributes["settings"]),
        source=attributes["source"] or None,
        notes=tuple(json.loads(attributes["notes"])),
    )
    model = parse_model(attributes["model_file"], name=attributes["model"], where=str(path))
    del tree["run"]
    return Stored(run, model, tree, int(attributes["horizon"]), int(attributes["seed"]))


def _exact_table(text: str) -> pd.DataFrame:
    """Read a run's table back, every number as it was: pandas' own parser may be off by a bit."""
    cells = pd.read_csv(StringIO(text), dtype=str, keep_default_na=False)
    columns = {}
    for name in cells:
        whole = name in ("step", *COUNTS)
        values = [int(cell) if whole else float(cell or "nan") for cell in cells[name]]
        columns[name] = np.array(values, dtype=np.int64 if whole else np.float64)
    return pd.DataFrame(columns)
