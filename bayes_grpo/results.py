"""Draws put into ArviZ's form: named groups, named dimensions, and how to make the fit again."""

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr

from bayes_grpo.model import Model, Program
from bayes_grpo.posterior import Levels, Paths
from bayes_grpo.reduction import curvature, oscillation_period, temperature
from bayes_grpo.run import Run
from bayes_grpo.sampler import Draws
from bayes_grpo.timeline import Timeline
from bayes_grpo.trajectory import LEVELS, damping_ratio

FORMAT = 1
"""Version of the layout of a saved fit."""

SUMMARY = {
    "plateau": "reward",
    "reward_now": "reward",
    "initial_reward": "reward",
    "relaxation_time": "updates",
    "damping_ratio": "1",
    "initial_success": "1",
    "kl_weight": "1",
    "decay_exponent": "1",
    "steepness": "1",
    "true_positive_rate": "1",
    "false_positive_rate": "1",
    "curvature": "1 / learning rate",
    "temperature": "reward^2 / learning rate^2",
    "fluctuation_sd": "reward",
    "drift_sd": "reward",
    "sampling_sd": "reward",
}
"""Quantities of the summary table, in its order, with their units."""


def assemble(
    run: Run,
    model: Model,
    program: Program,
    timeline: Timeline,
    drawn: Draws,
    levels: Levels,
    paths: Paths,
    thin: int,
) -> xr.DataTree:
    """Build the data tree of a fit.

    Parameters
    ----------
    run, model, program, timeline
        What was fitted.
    drawn, levels, paths
        From `bayes_grpo.sampler.sample` and `bayes_grpo.posterior.levels_and_paths`.
    thin
        Curves were kept for every ``thin``-th draw.

    Returns
    -------
    xarray.DataTree
    """
    steps = run.table["step"].to_numpy()[timeline.rows]
    # Padding stands before the run, so that its ticks are counted from the end.
    at = timeline.row_tick - len(timeline.ticks.reward)
    chains, draws = levels.plateau.shape
    whole = {"chain": np.arange(chains), "draw": np.arange(draws)}
    some = {"chain": np.arange(chains), "draw": np.arange(draws)[::thin]}

    def per_draw(variables: dict[str, np.ndarray]) -> xr.Dataset:
        return xr.Dataset({n: (("chain", "draw"), v) for n, v in variables.items()}, coords=whole)

    def per_row(variables: dict[str, Any]) -> xr.Dataset:
        return xr.Dataset(
            {n: (("chain", "draw", "step"), v[..., at]) for n, v in variables.items()},
            coords={**some, "step": steps},
        )

    posterior = per_draw(quantities(run, program, levels))
    posterior["end_state"] = (("chain", "draw", "state"), levels.end)
    tree = xr.DataTree.from_dict(
        {
            "posterior": posterior,
            "smoothed": per_row({"reward": within_bounds(paths.latent, run)}),
            "posterior_predictive": per_row({"reward": within_bounds(paths.replicate, run)}),
            "log_likelihood": per_row({"reward": paths.log_likelihood}),
            "log_prior": per_draw(log_prior(model, program, timeline, drawn.values, levels)),
            "sample_stats": per_draw(drawn.stats),
            "prior_units": per_draw(drawn.values),
            **logged_rows(run, timeline),
        }
    )
    tree.attrs.update(provenance(run, model))
    return tree


def logged_rows(run: Run, timeline: Timeline) -> dict[str, xr.Dataset]:
    """Build the groups ``observed_data`` and ``constant_data``: what was logged, and when."""
    rows = run.table.iloc[timeline.rows]
    coords = {"step": rows["step"].to_numpy()}
    rates = timeline.ticks.learning_rate[timeline.row_tick]
    return {
        "observed_data": xr.Dataset({"reward": ("step", rows["reward"].to_numpy())}, coords=coords),
        "constant_data": xr.Dataset(
            {
                "updates": ("step", timeline.row_updates),
                "generations": ("step", rows["generations"].to_numpy()),
                "relative_learning_rate": ("step", rates),
            },
            coords=coords,
        ),
    }


def assemble_prior(
    run: Run, program: Program, timeline: Timeline, levels: Levels, rewards: np.ndarray
) -> dict[str, xr.Dataset]:
    """Build the groups ``prior`` and ``prior_predictive``.

    Parameters
    ----------
    run, program, timeline
        What is to be fitted.
    levels, rewards
        From `bayes_grpo.posterior.prior_draws`.

    Returns
    -------
    dict of xarray.Dataset
    """
    coords = {"chain": np.arange(rewards.shape[0]), "draw": np.arange(rewards.shape[1])}
    found = quantities(run, program, levels)
    at = timeline.row_tick - len(timeline.ticks.reward)
    steps = run.table["step"].to_numpy()[timeline.rows]
    return {
        "prior": xr.Dataset({n: (("chain", "draw"), v) for n, v in found.items()}, coords=coords),
        "prior_predictive": xr.Dataset(
            {"reward": (("chain", "draw", "step"), within_bounds(rewards[..., at], run))},
            coords={**coords, "step": steps},
        ),
    }


def within_bounds(rewards: Any, run: Run) -> np.ndarray:
    """Keep rewards inside the bounds of the run, where it has any.

    The Gaussian model knows no bounds: a draw beyond one says that the reward ends up at it.
    """
    bounds = run.settings.reward_bounds
    return np.asarray(rewards) if bounds is None else np.clip(rewards, *bounds)


def provenance(run: Run, model: Model) -> dict[str, Any]:
    """Attributes that say what a fit was made from and with."""
    packages = ("bayes-grpo", "jax", "numpyro", "arviz", "numpy")
    return {
        "format": FORMAT,
        "run": run.name,
        "source": run.source or "",
        "model": model.name,
        "model_file": model.text,
        "settings": run.settings.to_json(),
        "notes": json.dumps(run.notes),
        "versions": json.dumps(
            {"python": platform.python_version(), **{name: version(name) for name in packages}}
        ),
    }


def quantities(run: Run, program: Program, levels: Levels) -> dict[str, np.ndarray]:
    """Draws of the reported quantities, in natural units.

    Parameters
    ----------
    run, program
        What is fitted.
    levels
        Of each draw.

    Returns
    -------
    dict of ndarray
        Shaped as the draws.
    """
    params = levels.params
    found: dict[str, Any] = {
        "plateau": within_bounds(levels.plateau, run),
        "reward_now": within_bounds(levels.reward_now, run),
        "initial_reward": within_bounds(levels.initial_reward, run),
        "initial_plateau": within_bounds(levels.initial_plateau, run),
    }
    if program.parts.relaxes:
        found |= _dynamics(run, params)
    own = (*program.parts.parameters, "fluctuation_sd", "drift_sd", "sampling_sd")
    return found | {
        name: params[name] for name in own if name in params and name != "damping_ratio"
    }


def _dynamics(run: Run, params: dict[str, Any]) -> dict[str, Any]:
    """Oscillator quantities of a mean curve that relaxes."""
    momentum, pull = params["momentum"], params["pull"]
    per_step = params["updates_per_step"]
    found: dict[str, Any] = {"curvature": curvature(params["relaxation_time"], run.settings)}
    if np.any(momentum > 0):  # without momentum there is no oscillator to speak of
        found["damping_ratio"] = np.asarray(damping_ratio(momentum, pull))
        found["effective_momentum"] = momentum
        found["oscillation_period"] = oscillation_period(momentum, pull) * per_step
    if "shock_sd" in params:
        diffusion = params["shock_sd"] / (1 - momentum) / np.sqrt(per_step)
        found["temperature"] = temperature(diffusion, run.settings)
    return found


def log_prior(
    model: Model,
    program: Program,
    timeline: Timeline,
    values: Mapping[str, np.ndarray],
    levels: Levels,
) -> dict[str, np.ndarray]:
    """Log prior density of each parameter, in the unit of its prior.

    Parameters
    ----------
    model, program, timeline
        What is fitted.
    values
        Draws of the sampled parameters, in the priors' own units.
    levels
        Of each draw.

    Returns
    -------
    dict of ndarray
        Shaped as the draws; fixed parameters are not in it.
    """
    densities: dict[str, Any] = {
        name: model.priors[name].in_unit().log_prob(values[name]) for name in program.sampled
    }
    starts = {"plateau": levels.initial_plateau, "initial_reward": levels.initial_reward}
    for name in LEVELS:
        prior = model.priors.get(name)
        if prior is not None and prior.gaussian and name not in program.sampled:
            mean, sd = prior.moments(timeline.scale)
            densities[name] = -0.5 * ((starts[name] - mean) / sd) ** 2 - np.log(
                sd * np.sqrt(2 * np.pi)
            )
    return {name: np.asarray(density) for name, density in densities.items()}
