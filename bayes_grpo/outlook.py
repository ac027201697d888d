"""What a fit says about the future of its run, in plain words for plots, terminals and reports."""

import math
from dataclasses import dataclass

import numpy as np

from bayes_grpo.errors import InputError
from bayes_grpo.fit import Fit
from bayes_grpo.forecasting import Forecaster
from bayes_grpo.posterior import settling_draws
from bayes_grpo.precision import float64
from bayes_grpo.reduction import settling_time

BEYOND = 0.25
"""Length of the forecast, relative to the log, of a run that has reached its planned last step."""

SURE = 0.95
"""Posterior probability from which on a direction is stated without its probability."""

PROBABLE = 0.8
"""Posterior probability from which on a direction is called probable."""

REACHED = 0.9
"""Share of the way to the plateau from which on the end of the schedule is no news."""


@dataclass(frozen=True)
class Interval:
    """Median and central 90 % interval of a posterior quantity.

    Parameters
    ----------
    median, low, high
        Quantiles 50 %, 5 % and 95 %.
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, draws: np.ndarray) -> "Interval":
        """Take the quantiles of draws, any shape."""
        low, median, high = np.quantile(np.asarray(draws, dtype=float), (0.05, 0.5, 0.95))
        return cls(float(median), float(low), float(high))

    def __str__(self) -> str:
        return f"{number(self.median)} (90 %: {number(self.low)} to {number(self.high)})"


def number(value: float, digits: int = 3) -> str:
    """Write a number for people: some significant digits, powers of ten only where they help.

    Parameters
    ----------
    value
        Any number.
    digits
        Significant digits.

    Returns
    -------
    str
        Such as ``0.757``, ``-12.3``, ``12,300``, ``1.23e-06``.
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)))
    if exponent >= 6 or exponent < -4:
        return f"{rounded:.{digits - 1}e}"
    return f"{rounded:,.{max(0, digits - 1 - exponent)}f}"


def count(value: float) -> str:
    """Write a number of steps: two significant digits, never less than one step."""
    return f"{max(1, round(float(f'{value:.1e}'))):,}"


def last_forecast_step(fit: Forecaster, horizon: int | None = None) -> int:
    """Last step of a forecast.

    Parameters
    ----------
    fit
        The fit.
    horizon
        The step, if the caller names one.

    Returns
    -------
    int
        The horizon, else the planned last step; a quarter beyond the log if that is reached.

    Raises
    ------
    InputError
        If the horizon is not beyond the end of the log.
    """
    steps = fit.run.table["step"]
    last = int(steps.iloc[-1])
    if horizon is not None:
        if horizon <= last:
            raise InputError(
                f"run '{fit.run.name}': horizon is {horizon}, but the log goes to step {last}: "
                "give a later step"
            )
        return int(horizon)
    if fit.horizon > last:
        return fit.horizon
    return last + max(1, math.ceil(BEYOND * (last - int(steps.iloc[0]) + 1)))


def plateau(fit: Forecaster) -> Interval:
    """Level that the reward is heading for."""
    return Interval.of(fit.idata["posterior"]["plateau"].to_numpy())


def relaxation_steps(fit: Forecaster) -> Interval:
    """Relaxation time in logged steps, at the peak learning rate."""
    updates = fit.idata["posterior"]["relaxation_time"].to_numpy()
    return Interval.of(updates / fit.run.settings.updates_per_step)


def settling_steps(fit: Fit) -> Interval:
    """Steps that 95 % of the way to the plateau takes, at the peak learning rate."""
    posterior = fit.idata["posterior"]
    program, _, data = fit.bound
    if program.parts.shape is not None:
        with float64():
            updates = settling_draws(program, data, fit.parameter_draws)
    else:
        damping = posterior["damping_ratio"].to_numpy() if "damping_ratio" in posterior else np.inf
        updates = settling_time(posterior["relaxation_time"].to_numpy(), damping)
    return Interval.of(updates / fit.run.settings.updates_per_step)


def in_words(fit: Fit) -> str:
    """Say in two or three sentences where the reward is heading, and when it gets there.

    Parameters
    ----------
    fit
        The fit.

    Returns
    -------
    str
    """
    sentences = [_where(fit), _when(fit), _end_of_schedule(fit)] if fit.relaxes else [_walk(fit)]
    sentences = [sentence for sentence in sentences if sentence]
    sentences += [f"Caution: {caution}." for caution in fit.run.cautions]
    return " ".join(sentences)


def in_brief(fit: Fit) -> str:
    """Say in half a line where the reward is heading."""
    if not fit.relaxes:
        return f"level {plateau(fit)}, no plateau"
    steps = count(settling_steps(fit).median)
    return f"plateau {plateau(fit)}, 95 % of the way in {steps} steps"


def _gain(fit: Fit) -> np.ndarray:
    posterior = fit.idata["posterior"]
    return posterior["plateau"].to_numpy() - posterior["reward_now"].to_numpy()


def _walk(fit: Fit) -> str:
    now = Interval.of(fit.idata["posterior"]["reward_now"].to_numpy())
    return f"The reward is {now} now. This model has no plateau: it goes on from where it is."


def _where(fit: Fit) -> str:
    now = number(float(np.median(fit.idata["posterior"]["reward_now"])))
    level = plateau(fit)
    rising = float(np.mean(_gain(fit) > 0))
    likelier = max(rising, 1 - rising)
    towards = "heading for" if rising > 0.5 else "falling towards"
    if likelier >= SURE:
        return f"The reward is {now} now and is {towards} {level}."
    move = "rise" if rising > 0.5 else "fall"
    if likelier >= PROBABLE:
        return (
            f"The reward is {now} now and is probably {towards} {level}; the chance of a further "
            f"{move} is {100 * likelier:.0f} %."
        )
    return (
        f"The reward is {now} now and may have levelled off: its plateau is {level}, and the "
        f"chance of a further {move} is {100 * likelier:.0f} %."
    )


def _when(fit: Fit) -> str:
    steps = settling_steps(fit)
    what = "gain" if float(np.mean(_gain(fit) > 0)) > 0.5 else "way"
    at_peak = " at the peak learning rate" if _rate_is_falling(fit) else ""
    return (
        f"95 % of the remaining {what} takes about {count(steps.median)} steps{at_peak} "
        f"(90 %: {count(steps.low)} to {count(steps.high)})."
    )


def _rate_is_falling(fit: Fit) -> bool:
    rates = fit.idata["constant_data"]["relative_learning_rate"].to_numpy()
    return bool(rates[-1] < 0.98 * rates.max())


def _end_of_schedule(fit: Fit) -> str:
    """Say so where a falling learning rate ends the run before the plateau is reached."""
    if not _rate_is_falling(fit):
        return ""
    last = int(fit.run.table["step"].iloc[-1])
    end = last_forecast_step(fit)
    at_end = Interval.of(fit.forecast_draws([end])[0])
    gap = float(np.median(_gain(fit)))
    now = float(np.median(fit.idata["posterior"]["reward_now"]))
    if gap == 0 or (at_end.median - now) / gap > REACHED:
        return ""
    if fit.horizon <= last:
        return (
            "But the run is at its planned end and its learning rate has fallen: going on as it "
            f"is, the forecast for step {end} is {at_end}, short of the plateau; only a higher "
            "rate would bring the rest."
        )
    return (
        f"But the learning rate runs out first: at the planned last step {fit.horizon} the "
        f"forecast is {at_end}, short of the plateau."
    )
