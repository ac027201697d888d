"""Fit a model to a run: NUTS, then everything that the posterior says, as ArviZ data."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from bayes_grpo.convergence import Convergence, ConvergenceWarning, assess
from bayes_grpo.errors import InputError
from bayes_grpo.forecasting import (
    QUANTILES,
    Kind,
    forecast_table,
    future_steps,
)
from bayes_grpo.model import Data, Model, Program, bind, load_model, responses_of
from bayes_grpo.posterior import forecast_draws, levels_and_paths
from bayes_grpo.precision import float64
from bayes_grpo.prior_predictive import MAX_SEED, prior_groups
from bayes_grpo.progress import progress_bar
from bayes_grpo.results import SUMMARY, assemble, within_bounds
from bayes_grpo.run import CautionWarning, Run
from bayes_grpo.sampler import Sampling, sample
from bayes_grpo.storage import read_fit, write_fit
from bayes_grpo.summary import summarise
from bayes_grpo.timeline import Timeline, future_ticks

MAX_CELLS = 4_000_000
"""Largest draws times rows of a stored curve; longer runs keep every n-th draw of their curves."""


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """The posterior of one model given one run.

    Parameters
    ----------
    run
        The run.
    model
        The model.
    idata
        `xarray.DataTree` with groups posterior, smoothed (latent reward of each row),
        posterior_predictive, log_likelihood (of each row given those before), log_prior,
        sample_stats, prior_units (sampled parameters as their priors count them),
        observed_data, constant_data, and on request (`with_prior`) prior and prior_predictive;
        its attributes say how to make the fit again.
    horizon
        Planned last step.
    seed
        Seed of the fit.
    """

    run: Run
    model: Model
    idata: xr.DataTree
    horizon: int
    seed: int

    @property
    def name(self) -> str:
        """Name of the model, for titles."""
        return self.model.name

    @property
    def relaxes(self) -> bool:
        """Whether the model has a plateau that the reward comes closer to."""
        return self.bound[0].parts.relaxes

    @cached_property
    def bound(self) -> tuple[Program, Timeline, Data]:
        """Compiled program, clock and data of the fit, from `bayes_grpo.model.bind`."""
        return bind(self.model, self.run, self.horizon)

    @property
    def parameter_draws(self) -> dict[str, np.ndarray]:
        """Draws of the sampled parameters as their priors count them, shape (draws,) each."""
        return {name: v.to_numpy().reshape(-1) for name, v in self.idata["prior_units"].items()}

    @cached_property
    def convergence(self) -> Convergence:
        """Whether the fit may be used."""
        posterior = self.idata["posterior"]
        draws = {name: posterior[name].to_numpy() for name in SUMMARY if name in posterior}
        return assess(draws, self.idata["sample_stats"]["diverging"].to_numpy())

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything that was assumed on the way from the log to the posterior."""
        cautions = (f"caution: {caution}" for caution in self.run.cautions)
        return (*cautions, *self.run.notes, *self.bound[1].notes)

    def summary(self, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> pd.DataFrame:
        """Posterior of the quantities that users ask for.

        Parameters
        ----------
        quantiles
            Of the posterior, each in [0, 1].

        Returns
        -------
        pandas.DataFrame
            One row a quantity, columns mean, sd, the quantiles (``5%`` ...), ess, r_hat, unit.
            Rewards are in the reward's own unit, times in optimizer updates at the peak learning
            rate; ``plateau`` is the one at the end of the log, after its drift.
            ``attrs["convergence"]`` says whether the fit may be used.
        """
        table = summarise(self.idata["posterior"], quantiles)
        table.attrs["convergence"] = str(self.convergence)
        return table

    def forecast(
        self,
        steps: int | Iterable[int] | None = None,
        kind: Kind = "observed",
        quantiles: Sequence[float] = QUANTILES,
    ) -> pd.DataFrame:
        """Distribution of the reward beyond the end of the log.

        Parameters
        ----------
        steps
            How many steps ahead, or the steps themselves; None: to the planned last step.
        kind
            ``"observed"``: the reward that a logged row will show; ``"mean"``: without sampling
            noise.
        quantiles
            Of the distribution, each in [0, 1].

        Returns
        -------
        pandas.DataFrame
            Columns step, mean, sd, and ``q05``, ``q25``, ... for the quantiles; one row a step.
            ``attrs["convergence"]`` says whether the fit may be used.

        Raises
        ------
        InputError
            If a step is not beyond the end of the log, or kind or a quantile is not known.
        """
        wanted = future_steps(self.run, self.horizon, steps)
        table = forecast_table(wanted, self.forecast_draws(wanted), kind, quantiles)
        table.attrs["convergence"] = str(self.convergence)
        return table

    def forecast_draws(self, steps: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws of future rows from the posterior predictive distribution.

        Parameters
        ----------
        steps
            Steps beyond the end of the log, rising.

        Returns
        -------
        mean, observed : ndarray
            Reward without and with sampling noise, shape (draws, steps), kept inside the declared
            reward bounds.
        """
        program, timeline, data = self.bound
        wanted = np.asarray(steps, dtype=np.int64)
        settings, table = self.run.settings, self.run.table
        beyond = (wanted - int(table["step"].iloc[-1])) * settings.updates_per_step
        updates = int(table["updates"].sum()) + beyond
        # A future row is like the typical logged one.
        rewarded = table[table["reward"].notna()]
        generations = float(rewarded["generations"].median())
        width = int(rewarded["updates"].median()) if timeline.windowed else 1
        posterior = self.idata["posterior"]
        ends = posterior["end_state"].to_numpy().reshape(-1, posterior.sizes["state"])
        with float64():
            future = future_ticks(
                timeline,
                responses_of(program.parts, settings.momentum),
                updates,
                width,
                generations,
            )
            mean, observed = forecast_draws(
                program, data, future, self.parameter_draws, ends, self.seed + 1
            )
        return within_bounds(mean, self.run), within_bounds(observed, self.run)

    def with_prior(self, draws: int = 1000) -> "Fit":
        """Add draws from the prior to the fit: what it said before it saw the rewards.

        Parameters
        ----------
        draws
            Number of draws.

        Returns
        -------
        Fit
            The same fit, its ``idata`` with the groups prior and prior_predictive.
        """
        groups = prior_groups(self.run, self.bound, draws, self.seed)
        tree = self.idata.copy()
        for name, group in groups.items():
            tree[name] = xr.DataTree(group)
        return replace(self, idata=tree)

    def save(self, path: str | Path) -> Path:
        """Write the fit to a netCDF file, complete enough to go on working with it.

        Parameters
        ----------
        path
            File to write; one of that name is replaced at once or not at all.

        Returns
        -------
        Path
        """
        return write_fit(self.run, self.idata, path)

    def __repr__(self) -> str:
        posterior = self.idata["posterior"]
        plateau = posterior["plateau"].to_numpy()
        low, mid, high = np.quantile(plateau, (0.05, 0.5, 0.95))
        return (
            f"Fit of '{self.model.name}' to '{self.run.name}': plateau {mid:.3g} "
            f"(90 % {low:.3g} to {high:.3g}), {posterior.sizes['chain']} chains x "
            f"{posterior.sizes['draw']} draws, {self.convergence}"
            + "".join(f"; caution: {caution}" for caution in self.run.cautions)
        )

    def _repr_html_(self) -> str:
        import html

        table = self.summary().to_html(float_format="{:.4g}".format)
        return f"<p>{html.escape(repr(self))}</p>{table}"


def fit(
    run: Run,
    model: str | Path | Model = "oscillator",
    *,
    seed: int = 0,
    horizon: int | None = None,
    chains: int = 4,
    draws: int = 1000,
    tune: int = 1000,
    progress: bool = True,
    target_accept: float = 0.85,
) -> Fit:
    """Fit a model to a run by NUTS.

    Parameters
    ----------
    run
        The run.
    model
        Name of a shipped model, path of a model file, or a model.
    seed
        Seed of everything random.
    horizon
        Planned last step; None: the run's ``max_steps``, else twice the last logged step.
    chains, draws, tune
        Number of chains, and of kept and warm-up iterations of each.
    progress
        Whether to show a progress bar.
    target_accept
        Acceptance probability that NUTS tunes its step size to, in (0, 1).

    Returns
    -------
    Fit
        With a `ConvergenceWarning` if it did not converge, and a `CautionWarning` for everything
        about the run that makes conclusions from it unsafe (`Run.cautions`).

    Raises
    ------
    InputError
        An unusable model file, horizon or number of iterations.
    """
    for name, value, least in (("chains", chains, 1), ("draws", draws, 4), ("tune", tune, 0)):
        if not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{name} is {value!r}: expected a whole number of at least {least}")
    if not isinstance(seed, int | np.integer) or not 0 <= seed < MAX_SEED:
        raise InputError(f"seed is {seed!r}: expected a whole number from 0 to {MAX_SEED - 1}")
    if not 0 < target_accept < 1:
        raise InputError(f"target_accept is {target_accept!r}: expected a number between 0 and 1")
    checked = load_model(model)
    sampling = Sampling(chains, tune, draws, target_accept)
    with float64():
        program, timeline, data = bind(checked, run, horizon)
        if not program.sampled:
            raise InputError(
                f"model '{checked.name}': nothing to sample, as every parameter is fixed or "
                "integrated out: give at least one a prior that is no Normal level"
            )
        with progress_bar(
            chains * (tune + draws), f"{checked.name}: {run.name}", progress
        ) as report:
            drawn = sample(program, data, sampling, seed, report)
        thin = _thinning(chains * draws * len(data.ticks.reward), draws)
        levels, paths = levels_and_paths(program, data, drawn.values, seed, thin)
        idata = assemble(run, checked, program, timeline, drawn, levels, paths, thin)
    idata.attrs.update(sampling=str(sampling), seed=seed, horizon=timeline.planned_step)
    result = Fit(run, checked, idata, int(timeline.planned_step), seed)
    for caution in run.cautions:
        warnings.warn(f"run '{run.name}': {caution}", CautionWarning, stacklevel=2)
    if not result.convergence.converged:
        warnings.warn(f"run '{run.name}': {result.convergence}", ConvergenceWarning, stacklevel=2)
    return result


def load_fit(path: str | Path) -> Fit:
    """Read a fit that `Fit.save` wrote.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Fit
        The one that was saved: same posterior, same forecasts.

    Raises
    ------
    InputError
        No such file; not a saved fit; written by a newer version of the package.
    """
    stored = read_fit(path)
    return Fit(stored.run, stored.model, stored.tree, stored.horizon, stored.seed)


def _thinning(cells: int, draws: int) -> int:
    """Smallest divisor of the number of draws that keeps stored curves below `MAX_CELLS`."""
    divisors = [n for n in range(1, draws + 1) if draws % n == 0]
    return next((n for n in divisors if cells / n <= MAX_CELLS), draws)
