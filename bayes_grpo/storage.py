"""Fits on disk: one netCDF file holds the posterior, the run, its settings and the model file."""

import json
import os
import tempfile
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from bayes_grpo.errors import InputError
from bayes_grpo.fit import Fit
from bayes_grpo.model import parse_model
from bayes_grpo.results import FORMAT
from bayes_grpo.run import Run
from bayes_grpo.settings import Settings
from bayes_grpo.table import COUNTS


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


def save_fit(fit: Fit, path: str | Path) -> Path:
    """Write a fit; see `Fit.save`."""
    tree = fit.idata.copy()
    texts = {"table": fit.run.table.to_csv(index=False)}
    tree["run"] = xr.DataTree(xr.Dataset({name: ((), text) for name, text in texts.items()}))
    return write_whole(path, lambda at: tree.to_netcdf(at, engine="h5netcdf"))


def load_fit(path: str | Path) -> Fit:
    """Read a fit that `Fit.save` wrote.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Fit
        Equal to the one saved: same posterior, same forecasts.

    Raises
    ------
    InputError
        No such file; not a saved fit; written by a newer version of the package.
    """
    try:
        tree = xr.open_datatree(path, engine="h5netcdf").load()
        tree.close()
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
    return Fit(run, model, tree, int(attributes["horizon"]), int(attributes["seed"]))


def _exact_table(text: str) -> pd.DataFrame:
    """Read a run's table back, every number as it was: pandas' own parser may be off by a bit."""
    cells = pd.read_csv(StringIO(text), dtype=str, keep_default_na=False)
    columns = {}
    for name in cells:
        whole = name in ("step", *COUNTS)
        values = [int(cell) if whole else float(cell or "nan") for cell in cells[name]]
        columns[name] = np.array(values, dtype=np.int64 if whole else np.float64)
    return pd.DataFrame(columns)
