"""What a model says of a run before it has seen the rewards: whole logs drawn from its prior."""

from pathlib import Path

import numpy as np
import xarray as xr

from bayes_grpo.errors import InputError
from bayes_grpo.model import Data, Model, Program, bind, load_model
from bayes_grpo.posterior import prior_draws
from bayes_grpo.precision import float64
from bayes_grpo.results import assemble_prior, logged_rows, provenance
from bayes_grpo.run import Run
from bayes_grpo.timeline import Timeline

MAX_SEED = 2**32
"""Seeds that every random generator in use takes lie below."""


def prior_groups(
    run: Run, bound: tuple[Program, Timeline, Data], draws: int, seed: int
) -> dict[str, xr.Dataset]:
    """Draw the groups ``prior`` and ``prior_predictive``.

    Parameters
    ----------
    run
        The run.
    bound
        From `bayes_grpo.model.bind`.
    draws
        Number of draws.
    seed
        Seed of everything random.

    Returns
    -------
    dict of xarray.Dataset

    Raises
    ------
    InputError
        If the number of draws or the seed is out of range.
    """
    if not isinstance(draws, int | np.integer) or draws < 1:
        raise InputError(f"draws is {draws!r}: expected a whole number of at least 1")
    if not isinstance(seed, int | np.integer) or not 0 <= seed < MAX_SEED:
        raise InputError(f"seed is {seed!r}: expected a whole number from 0 to {MAX_SEED - 1}")
    program, timeline, data = bound
    with float64():
        _, levels, rewards = prior_draws(program, data, int(draws), int(seed))
        return assemble_prior(run, program, timeline, levels, rewards)


def prior_predictive(
    run: Run,
    model: str | Path | Model = "oscillator",
    *,
    draws: int = 1000,
    seed: int = 0,
    horizon: int | None = None,
) -> xr.DataTree:
    """Draw whole logs from the prior of a model, for the clock and the settings of a run.

    Of the logged rewards only their median and spread are read, in which priors are measured (and
    their range, by a model that needs bounds of the reward that nobody declared).

    Parameters
    ----------
    run
        The run.
    model
        Name of a shipped model, path of a model file, or a model.
    draws
        Number of logs.
    seed
        Seed of everything random.
    horizon
        Planned last step; None: the run's ``max_steps``, else twice the last logged step.

    Returns
    -------
    xarray.DataTree
        Groups prior (the quantities of a fit's posterior), prior_predictive (logged rewards),
        observed_data and constant_data, as `bayes_grpo.Fit.with_prior` adds to a fit.

    Raises
    ------
    InputError
        An unusable model file, horizon, seed or number of draws.
    """
    checked = load_model(model)
    with float64():
        bound = bind(checked, run, horizon)
    tree = xr.DataTree.from_dict(
        {**prior_groups(run, bound, draws, seed), **logged_rows(run, bound[1])}
    )
    tree.attrs.update(provenance(run, checked))
    tree.attrs.update(seed=seed, horizon=bound[1].planned_step)
    return tree
