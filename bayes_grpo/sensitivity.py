"""How far a posterior moves when its prior, or its likelihood, counts a little more or less.

Power-scaling (Kallioinen et al. 2024, arXiv 2107.14054): prior or likelihood is raised to a power
near 1, the draws are reweighted instead of made anew, and what counts is how far the distribution
of a quantity moves for it.

A fit has its states integrated out, so that its log likelihood is of the parameters alone.  But a
reported plateau or reward is a draw given all rows: it has seen more of the rows than its
parameters tell.  Reweighted by them alone it would seem to ignore the data.  So the likelihood
that is scaled here is given the parameters, the levels at the start and the levels at the end; of
the Gaussian states between these it is exact.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import xarray as xr
from jax import Array

from bayes_grpo.errors import InputError
from bayes_grpo.fit import Fit
from bayes_grpo.model import Data, Program
from bayes_grpo.one_step import one_fit
from bayes_grpo.posterior import Levels, levels_and_paths
from bayes_grpo.precision import float64
from bayes_grpo.results import SUMMARY, log_prior, quantities
from bayes_grpo.statespace import filter_run
from bayes_grpo.trajectory import LEVELS

THRESHOLD = 0.05
"""Sensitivity from which on it counts, as in ArviZ."""

CELLS = 2_000_000
"""Draws times ticks that are worked on: bounds the memory that long runs need."""

FINE = "✓"
CONFLICT = "potential prior-data conflict"
STRONG = "potential strong prior / weak likelihood"


def sensitivity(fit: Fit) -> pd.DataFrame:
    """Sensitivity of the summary to the prior and to the likelihood, by power-scaling.

    Parameters
    ----------
    fit
        The fit; a stack has no one prior.

    Returns
    -------
    pandas.DataFrame
        One row a quantity of the summary that is not fixed. ``prior``, ``likelihood``: how far it
        moves, from `arviz_stats.psense`; above 0.05 it counts. ``diagnosis``, in ArviZ's words:
        ``"✓"`` where the prior does not matter; ``"potential strong prior / weak likelihood"``
        where it does and the data do not, early in a run the honest state of things;
        ``"potential prior-data conflict"`` where both do, which says that the answer is a
        compromise between them. All priors are scaled together.

    Raises
    ------
    InputError
        If it is not a fit, or all parameters are fixed.

    Notes
    -----
    `arviz_stats.psense_summary` takes ``fit.idata`` too, but finds too little sensitivity to the
    likelihood in plateau and rewards; see the module.
    """
    one_fit(fit, "sensitivity")
    table = sense(*_scaled(fit))
    table.attrs["convergence"] = str(fit.convergence)
    return table


def sense(
    reported: Mapping[str, np.ndarray], prior: np.ndarray, likelihood: np.ndarray
) -> pd.DataFrame:
    """Put sensitivities into a table.

    Parameters
    ----------
    reported
        Draws of the quantities, shape (chains, draws) each; constants are left out.
    prior, likelihood
        Log prior and log likelihood of each draw, shape (chains, draws).

    Returns
    -------
    pandas.DataFrame
        Columns prior, likelihood, diagnosis; see `sensitivity`.
    """
    dims = ("chain", "draw")
    varying = {name: (dims, values) for name, values in reported.items() if np.ptp(values) > 0}
    tree = xr.DataTree.from_dict(
        {
            "posterior": xr.Dataset(varying),
            "log_prior": xr.Dataset({"all": (dims, prior)}),
            "log_likelihood": xr.Dataset({"all": (dims, likelihood)}),
        }
    )
    found = {group: arviz_stats.psense(tree, group=group) for group in ("prior", "likelihood")}  # type: ignore[attr-defined]
    table = pd.DataFrame(
        {group: {name: float(sensed[name]) for name in varying} for group, sensed in found.items()},
        index=list(varying),
    )
    table["diagnosis"] = [
        FINE if p < THRESHOLD else CONFLICT if data >= THRESHOLD else STRONG
        for p, data in zip(table["prior"], table["likelihood"], strict=True)
    ]
    table.index.name = "quantity"
    return table


def _scaled(fit: Fit) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Draws of the reported quantities, log prior and log likelihood, (chains, draws) each."""
    program, timeline, data = fit.bound
    units = {name: values.to_numpy() for name, values in fit.idata["prior_units"].items()}
    if not units or not len(fit.idata["log_prior"].data_vars):
        raise InputError(f"model '{fit.name}' has no prior to scale: all its parameters are fixed")
    chains, draws = next(iter(units.values())).shape
    thin = max(1, -(-chains * draws * len(data.ticks.reward) // CELLS))
    units = {name: values[:, ::thin] for name, values in units.items()}
    with float64():
        # The draws of the levels that the fit reports; it keeps them within the reward's bounds.
        levels, _ = levels_and_paths(program, data, units, fit.seed)
        prior = sum(log_prior(fit.model, program, timeline, units, levels).values())
        likelihood = given_levels(program, data, units, levels)
        found = quantities(fit.run, program, levels)
    reported = {name: np.asarray(found[name]) for name in SUMMARY if name in found}
    return reported, np.asarray(prior), likelihood


def given_levels(
    program: Program, data: Data, draws: Mapping[str, np.ndarray], levels: Levels
) -> np.ndarray:
    """Log density of all rewards given parameters and levels, up to a constant.

    Parameters
    ----------
    program, data
        From `bayes_grpo.model.bind`.
    draws
        Draws in the priors' own units, shape (chains, draws) each.
    levels
        Their levels.

    Returns
    -------
    ndarray
        Shape (chains, draws).
    """
    shape = np.shape(levels.plateau)
    starts = {"plateau": levels.initial_plateau, "initial_reward": levels.initial_reward}
    every = dict(draws)
    for name in LEVELS:
        prior = program.model.priors.get(name)
        if prior is not None and prior.gaussian and name not in program.sampled:
            zero, one = (prior.natural(unit, data.scale) for unit in (0.0, 1.0))
            every[name] = (np.asarray(starts[name]) - zero) / (one - zero)
    flat = {name: np.reshape(values, -1) for name, values in every.items()}
    density, known, blind = jax.tree.map(np.asarray, _compiled(program)(data, flat))
    end = np.stack([np.ravel(levels.reward_now), np.ravel(levels.plateau)], axis=-1)
    # p(rows | end) = p(rows) p(end | rows) / p(end), all given parameters and start.
    return (density + _log_ratio(end, known, blind)).reshape(shape)


@lru_cache(maxsize=16)
def _compiled(program: Program) -> Any:
    def one(data: Data, draw: Mapping[str, Array]) -> tuple[Array, Any, Any]:
        params = program.params(draw, data)
        ticks = program.timed(params, data.ticks)
        after = program.after(params, ticks)

        def end(observed: Any) -> tuple[tuple[Array, Array], Array]:
            seen = ticks._replace(observed=observed)
            found = filter_run(program.system, params, seen, windowed=program.windowed)
            basis = jnp.eye(len(found.state_mean))
            reward = [program.system.observe(params, after, tuple(axis)) for axis in basis]
            both = jnp.stack([jnp.stack(reward), basis[program.parts.plateau_index]])
            moments = both @ found.state_mean, both @ found.state_covariance @ both.T
            return moments, jnp.sum(found.log_density)

        known, density = end(ticks.observed)
        blind, _ = end(jnp.zeros_like(ticks.observed))
        return density, known, blind

    return jax.jit(jax.vmap(one, in_axes=(None, 0)))


def _log_ratio(
    at: np.ndarray,
    known: tuple[np.ndarray, np.ndarray],
    blind: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """Log of N(at; known) / N(at; blind) in the directions in which it is uncertain.

    Parameters
    ----------
    at
        Shape (draws, size).
    known, blind
        Mean and covariance with and without the rows, shapes (draws, size) and
        (draws, size, size); the second may be singular, and the first then is in its range.

    Returns
    -------
    ndarray
        Shape (draws,).
    """
    scale, axes = np.linalg.eigh(blind[1])
    free = scale > 1e-9 * np.maximum(scale[:, -1:], 1e-300)
    # In units of what is uncertain without the rows; a certain direction stays at 0, with sd 1.
    root = np.where(free, 1 / np.sqrt(np.where(free, scale, 1.0)), 0.0)
    white = root[:, :, None] * axes.transpose(0, 2, 1)
    fill = np.where(free, 0.0, 1.0)[:, :, None] * np.eye(scale.shape[1])
    covariance = white @ known[1] @ white.transpose(0, 2, 1) + fill
    off = np.einsum("nij,nj->ni", white, at - known[0])
    before = np.einsum("nij,nj->ni", white, at - blind[0])
    inside = np.einsum("ni,ni->n", off, np.linalg.solve(covariance, off[..., None])[..., 0])
    _, log_volume = np.linalg.slogdet(covariance)
    return np.asarray(0.5 * (np.sum(before**2, axis=1) - inside - log_volume))
