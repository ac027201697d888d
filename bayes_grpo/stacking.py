"""A stack of models: one forecast from several fits of a run, weighted by how well they predict."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import xarray as xr

from bayes_grpo.comparison import Scored, score_fits
from bayes_grpo.convergence import Convergence
from bayes_grpo.fit import Fit
from bayes_grpo.forecasting import QUANTILES, Kind, forecast_table, future_steps
from bayes_grpo.outlook import Interval, last_forecast_step
from bayes_grpo.run import Run
from bayes_grpo.summary import summarise

DRAWS = 4000
"""Draws of the mixture."""

SHARED = ("plateau", "reward_now", "initial_reward")
"""Quantities that mean the same in every model."""


@dataclass(frozen=True, eq=False, repr=False)
class Stack:
    """A mixture of fits of one run: forecasts, plots and summarises as a `Fit` does.

    Parameters
    ----------
    scored
        The fits, their scores and weights.
    """

    scored: Scored

    @property
    def fits(self) -> tuple[Fit, ...]:
        """What is mixed."""
        return self.scored.fits

    @property
    def weights(self) -> pd.Series:
        """Weight of each model, the largest first."""
        weights = pd.Series(self.scored.weights, index=list(self.scored.names), name="weight")
        return weights.sort_values(ascending=False)

    @property
    def comparison(self) -> pd.DataFrame:
        """The table of `bayes_grpo.compare` that the weights come from."""
        return self.scored.table()

    @property
    def run(self) -> Run:
        """The run that all were fitted to."""
        return self.fits[0].run

    @property
    def horizon(self) -> int:
        """Planned last step."""
        return self.fits[0].horizon

    @property
    def seed(self) -> int:
        """Seed of the first fit, and of how draws are mixed."""
        return self.fits[0].seed

    @property
    def name(self) -> str:
        """Name for titles."""
        return f"stack of {len(self.fits)} models"

    @property
    def relaxes(self) -> bool:
        """Whether most of the weight is on models with a plateau."""
        with_plateau = [fit.relaxes for fit in self.fits]
        return bool(self.scored.weights @ np.array(with_plateau, dtype=float) > 0.5)

    @property
    def notes(self) -> tuple[str, ...]:
        """Everything that any of the fits assumed."""
        return tuple(dict.fromkeys(note for fit in self.fits for note in fit.notes))

    @cached_property
    def convergence(self) -> Convergence:
        """The worst of the fits that have at least a hundredth of the weight."""
        counted = zip(self.fits, self.scored.weights, strict=True)
        found = [fit.convergence for fit, weight in counted if weight >= 0.01]
        return Convergence(
            max(c.r_hat for c in found), min(c.ess for c in found), max(c.divergent for c in found)
        )

    def summary(self, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> pd.DataFrame:
        """Distribution of the quantities that all models share.

        Parameters
        ----------
        quantiles
            Each in [0, 1].

        Returns
        -------
        pandas.DataFrame
            As `Fit.summary`, without what tells chains apart: ess and r_hat are those of the fits.
        """
        table = summarise(self.idata["posterior"], quantiles).drop(columns=["ess", "r_hat"])
        table.attrs["convergence"] = str(self.convergence)
        return table

    def forecast(
        self,
        steps: int | Iterable[int] | None = None,
        kind: Kind = "observed",
        quantiles: Sequence[float] = QUANTILES,
    ) -> pd.DataFrame:
        """Distribution of the reward beyond the end of the log; see `Fit.forecast`."""
        wanted = future_steps(self.run, self.horizon, steps)
        table = forecast_table(wanted, self.forecast_draws(wanted), kind, quantiles)
        table.attrs["convergence"] = str(self.convergence)
        return table

    def forecast_draws(self, steps: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws of future rows: from each fit as many as its weight says; see `Fit.forecast_draws`.

        Parameters
        ----------
        steps
            Steps beyond the end of the log, rising.

        Returns
        -------
        mean, observed : ndarray
            Reward without and with sampling noise, shape (draws, steps).
        """
        parts = []
        for fit, chosen in zip(self.fits, self._chosen, strict=True):
            if len(chosen):
                mean, observed = fit.forecast_draws(steps)
                parts.append((mean[chosen], observed[chosen]))
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    @cached_property
    def _chosen(self) -> list[np.ndarray]:
        """Which draws of each fit are in the mixture: weights in whole draws, none repeated."""
        rng = np.random.default_rng(self.seed)
        sizes = [fit.idata["posterior"].sizes for fit in self.fits]
        available = np.array([size["chain"] * size["draw"] for size in sizes])
        weights = self.scored.weights
        total = int(min(DRAWS, np.min(available / np.maximum(weights, 1e-12))))
        exact = weights * total
        counts = np.floor(exact).astype(int)
        short = total - counts.sum()
        counts[np.argsort(exact - counts)[::-1][:short]] += 1  # largest remainders
        counts = np.minimum(counts, available)
        pairs = zip(available, counts, strict=True)
        return [np.sort(rng.choice(many, count, replace=False)) for many, count in pairs]

    @cached_property
    def idata(self) -> xr.DataTree:
        """Groups posterior, smoothed and posterior_predictive of the mixture, in one chain."""
        groups: dict[str, xr.Dataset] = {
            "posterior": xr.Dataset(
                {name: (("chain", "draw"), self._mixed("posterior", name)[None]) for name in SHARED}
            )
        }
        steps = self.fits[0].idata["observed_data"]["step"]
        for group in ("smoothed", "posterior_predictive"):
            draws = self._mixed(group, "reward")
            groups[group] = xr.Dataset(
                {"reward": (("chain", "draw", "step"), draws[None])}, coords={"step": steps}
            )
        for group in ("observed_data", "constant_data"):
            groups[group] = self.fits[0].idata[group].to_dataset()
        return xr.DataTree.from_dict(groups)

    def _mixed(self, group: str, name: str) -> np.ndarray:
        """Draws of a variable; curves of long runs are stored thinned, and so chosen thinned."""
        parts = []
        for fit, chosen in zip(self.fits, self._chosen, strict=True):
            values = fit.idata[group][name]
            flat = values.to_numpy().reshape(-1, *values.shape[2:])
            whole = fit.idata["posterior"].sizes
            thin = whole["chain"] * whole["draw"] // len(flat)
            parts.append(flat[chosen // thin])
        return np.concatenate(parts)

    def in_words(self) -> str:
        """Say in two sentences where the reward is heading, and what the mixture is made of."""
        end = last_forecast_step(self)
        now = Interval.of(self.idata["posterior"]["reward_now"].to_numpy())
        then = Interval.of(self.forecast_draws([end])[0])
        made = ", ".join(f"{name} {100 * w:.0f} %" for name, w in self.weights.items() if w >= 0.01)
        return (
            f"The reward is {now} now; the forecast for step {end} is {then}. The models' weights: "
            f"{made}."
        )

    def __repr__(self) -> str:
        made = ", ".join(f"{name} {weight:.2f}" for name, weight in self.weights.items())
        return f"Stack of {len(self.fits)} fits to '{self.run.name}': {made}; {self.convergence}"

    def _repr_html_(self) -> str:
        import html

        table = self.comparison.to_html(float_format="{:.4g}".format)
        return f"<p>{html.escape(repr(self))}</p>{table}"


def stack(fits: Sequence[Fit], *, start: int | None = None, ahead: int = 1, seed: int = 0) -> Stack:
    """Mix fits of one run, weighted by how well each predicts rows that it has not seen.

    Parameters
    ----------
    fits, start, ahead, seed
        As for `bayes_grpo.compare`.

    Returns
    -------
    Stack
        Its forecast is the mixture of the fits' forecasts; ``comparison`` is the table of
        `compare`, ``weights`` the posterior mean of the weights (near equal where the models
        predict alike).

    Raises
    ------
    InputError
        If there is no fit, the fits are of different runs, or rows are too few.
    """
    return Stack(score_fits(fits, start=start, ahead=ahead, seed=seed))
