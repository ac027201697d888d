"""What a statement on stability rests on, in sentences: printed wherever the numbers are."""

import numpy as np

from bayes_grpo.fit import Fit
from bayes_grpo.outlook import Interval, number
from bayes_grpo.settings import Settings

PRIOR_DOMINATED = 0.8
"""Spread of a log damping ratio over that of its prior from which on the prior has spoken."""

IMPORTANCE_RATIOS = (
    "assumes that the loss takes its gradient at the stale policy (clipped or first-order "
    "surrogates); with unclipped importance ratios the mean gradient is unbiased, the lag does not "
    "enter the mean force, and these thresholds do not apply"
)

ELSEWHERE = (
    "It takes a curvature measured otherwise (several learning rates or refresh intervals, a "
    "perturbation): give it as curvature=(mean, sd), --curvature MEAN SD"
)

TAUTOLOGY = (
    "no oscillation is clearly visible, so the curvature is read off a relaxation time that was "
    "itself measured at this lag: an overdamped curve reads as staleness < 1 whatever the truth, "
    f"and the margin is no evidence. {ELSEWHERE}"
)

ON_POLICY_TAUTOLOGY = (
    "no oscillation is clearly visible and this run has no lag, so nothing in it shows what lag "
    "does: an overdamped curve reads as staleness < 1 whatever the truth, and the limits only "
    f"extrapolate a linear theory from one relaxation time. {ELSEWHERE}"
)


def caveats(
    fit: Fit,
    *,
    tautology: bool,
    measured: bool,
    curve_damping: np.ndarray | None,
    implied_damping: np.ndarray,
) -> dict[str, str]:
    """What has to be said beside the numbers of `bayes_grpo.stability`.

    Parameters
    ----------
    fit
        The fit.
    tautology
        Whether the margin follows from the way the curvature was found.
    measured
        Whether the curvature was given.
    curve_damping
        Draws of the damping ratio of the curve itself; None for a model without one.
    implied_damping
        Draws of the damping ratio that curvature, momentum and lag imply.

    Returns
    -------
    dict
        Sentence by subject, the most important first.
    """
    settings = fit.run.settings
    found = {}
    if tautology:
        found["tautology"] = TAUTOLOGY if _largest_lag(settings) > 0 else ON_POLICY_TAUTOLOGY
    if assumed := _defaults(settings):
        found["settings"] = assumed
    found["importance_ratios"] = IMPORTANCE_RATIOS
    found["necessary"] = _necessary(settings)
    if not measured:
        found["model"] = _model(fit)
    if curve_damping is not None and (words := _damping(fit, curve_damping, implied_damping)):
        found["damping"] = words
    rates = fit.idata["constant_data"]["relative_learning_rate"].to_numpy()
    if rates[-1] < 0.98 * rates.max():
        found["schedule"] = (
            "staleness is at the peak learning rate; the log ends at "
            f"{100 * rates[-1] / rates.max():.0f} % of it, and staleness falls with the rate"
        )
    return found


def _defaults(settings: Settings) -> str:
    lag = "lag" if settings.lag_pattern == "constant" else "refresh_interval"
    names = ("momentum", "momentum_convention", "lag_pattern", lag)
    defaults = [
        f"{name}={settings[name].value}" for name in names if settings[name].provenance == "default"
    ]
    words = []
    if defaults:
        words.append(
            f"the log does not tell {', '.join(defaults)}: defaults, and the answer is about them; "
            "give the run's own"
        )
    if settings["learning_rate"].provenance == "default":
        words.append("the learning rate is not known: curvature and rates are relative to it")
    return "; ".join(words)


def _largest_lag(settings: Settings) -> int:
    """Updates by which the oldest rollouts are behind."""
    if settings.lag_pattern == "constant":
        return int(settings.lag)
    return int(settings.refresh_interval) - 1


def _necessary(settings: Settings) -> str:
    words = (
        "necessary, not sufficient: asynchronous runs of 1-3B models with AdamW collapse at "
        "(lag in updates) x (learning rate) of about 1.6e-06 (arXiv 2607.01083), probably far "
        "below a staleness of 1, and limits far from the run's own settings extrapolate a linear "
        "theory"
    )
    lag = _largest_lag(settings)
    if settings["learning_rate"].provenance == "default" or lag == 0:
        return words
    return f"{words}; this run's largest is {number(lag * settings.learning_rate)}"


def _model(fit: Fit) -> str:
    relaxation = "the curvature follows from the relaxation time, by the run's settings"
    if fit.model.priors["relaxation_time"].fixed:
        return f"relaxation_time is fixed in the model's file: {relaxation}, not from the data"
    if fit.model.trajectory == "exponential":
        return f"{relaxation}; so do both probabilities: the exponential itself cannot oscillate"
    if fit.model.trajectory == "oscillator":
        return (
            f"{relaxation}, and so do P(unstable) and all limits (a fitted oscillator never "
            "diverges); P(oscillatory) is of the curve itself, whose inertia is free of them. With "
            "a lag, 'closed_form' is exact"
        )
    return f"{relaxation}, and so do both probabilities"


def _damping(fit: Fit, curve: np.ndarray, implied: np.ndarray) -> str:
    prior = fit.model.priors["damping_ratio"]
    words = []
    if prior.fixed:
        words.append("damping_ratio is fixed in the model's file: P(oscillatory) is assumed")
    elif prior.distribution == "LogNormal" and prior.above is None:
        share = float(np.std(np.log(curve)) / prior.arguments["sd_log"])
        if share > PRIOR_DOMINATED:
            words.append(
                "the log hardly tells the damping ratio (spread "
                f"{100 * share:.0f} % of its prior's): P(oscillatory) is mostly the prior"
            )
    shown, meant = Interval.of(curve), Interval.of(implied)
    if shown.low > meant.high or meant.low > shown.high:
        words.append(
            f"the curve's damping ratio is {shown}, but curvature, momentum and lag imply {meant}: "
            "they do not explain the shape of this curve"
        )
    return "; ".join(words)
