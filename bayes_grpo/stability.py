"""How far a run is from oscillating and diverging, and how stale its sampler may be.

The posterior of the curvature is held against the exact thresholds of `bayes_grpo.spectrum`.
Where that says nothing, because the curvature was read off a run that shows no oscillation, the
answer says so.
"""

import html
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from bayes_grpo import spectrum
from bayes_grpo.caveats import caveats
from bayes_grpo.convergence import Convergence
from bayes_grpo.errors import InputError
from bayes_grpo.fit import Fit
from bayes_grpo.limits import limits
from bayes_grpo.outlook import Interval, number
from bayes_grpo.reduction import curvature as curvature_of
from bayes_grpo.reduction import staleness, stiffness
from bayes_grpo.settings import Settings

CURVES = ("oscillator", "exponential", "closed_form")
"""Trajectories with a stiffness: a relaxation time that curvature and learning rate set."""

SWING = 0.7
"""Damping ratio below which the reward overshoots by at least 5 % of its way to the plateau."""

SURE = 0.95
"""Posterior probability from which on an oscillation counts as visible."""

POINTS = 4000
"""Quantiles that stand for a curvature given as mean and standard deviation."""

FEWEST_DRAWS = 10
"""Fewest values that are taken for draws of a curvature."""


@dataclass(frozen=True, eq=False, repr=False)
class Stability:
    """Posterior of the staleness of a run, and how stale its sampler may become.

    Parameters
    ----------
    run, model
        Names of the run and of the fitted model.
    settings
        Settings of the run.
    level
        Probability below which a failure is accepted, in (0, 1).
    curvature
        Draws of K, per unit learning rate, shape (draws,).
    curve_damping
        Draws of the damping ratio that the curve itself shows; None for a model without one.
    measured
        Whether the curvature was measured independently of this fit.
    tautology
        Whether the curvature comes from a run that shows no clear oscillation, so that its
        staleness is below 1 whatever the truth.
    notes
        What was assumed, by subject: ``tautology`` where it applies, ``importance_ratios``,
        ``necessary``, and where they apply ``settings``, ``schedule``, ``damping``, ``model``.
    convergence
        Convergence of the fit.
    """

    run: str
    model: str
    settings: Settings
    level: float
    curvature: np.ndarray
    curve_damping: np.ndarray | None
    measured: bool
    tautology: bool
    notes: Mapping[str, str]
    convergence: Convergence

    @property
    def lag_pattern(self) -> str:
        """``"hold"`` or ``"constant"``."""
        return str(self.settings.lag_pattern)

    @property
    def refresh_interval(self) -> int:
        """K_ref in optimizer updates: the refresh interval under hold, the lag under constant."""
        s = self.settings
        return int(s.lag if s.lag_pattern == "constant" else s.refresh_interval)

    @cached_property
    def pull(self) -> np.ndarray:
        """Draws of the stiffness of one update at the peak learning rate."""
        s = self.settings
        return np.asarray(
            stiffness(s.learning_rate, self.curvature, s.momentum, s.momentum_convention)
        )

    @cached_property
    def staleness(self) -> np.ndarray:
        """Draws of Lambda at the peak learning rate."""
        s = self.settings
        return np.asarray(
            staleness(
                s.learning_rate,
                self.curvature,
                s.momentum,
                self.refresh_interval,
                s.momentum_convention,
            )
        )

    @property
    def implied_damping(self) -> np.ndarray:
        """Draws of the damping ratio that curvature, momentum and lag imply."""
        return np.asarray(
            spectrum.exact_damping_ratio(
                self.settings.momentum, self.pull, self.refresh_interval, self.settings.lag_pattern
            )
        )

    @property
    def p_oscillatory(self) -> float:
        """Probability that the mean reward overshoots and swings.

        What the curve itself shows, if the model has a damping ratio of its own and no curvature
        was given; else what curvature, momentum and lag imply.
        """
        if self.measured or self.curve_damping is None:
            return self.p_implied_oscillatory
        return float(np.mean(self.curve_damping < 1))

    @property
    def p_implied_oscillatory(self) -> float:
        """Probability that curvature, momentum and lag together imply an oscillation."""
        return float(np.mean(self.implied_damping < 1))

    @property
    def p_unstable(self) -> float:
        """Probability that the mean reward diverges, by the exact threshold."""
        s = self.settings
        end = spectrum.divergence_pull(s.momentum, self.refresh_interval, s.lag_pattern)
        return float(np.mean(self.pull > end))

    @property
    def p_beyond_rule(self) -> float:
        """Probability that staleness exceeds 1, the leading-order rule of arXiv 2606.30789."""
        return float(np.mean(self.staleness > 1))

    @property
    def thresholds(self) -> dict[str, float]:
        """Staleness at which the run starts to oscillate and to diverge; NaN without lag."""
        if self.refresh_interval == 0:
            return {"oscillation": float("nan"), "divergence": float("nan"), "leading_order": 1.0}
        where = (self.settings.momentum, self.refresh_interval, self.settings.lag_pattern)
        return {
            "oscillation": float(spectrum.oscillation_staleness(*where)),
            "divergence": float(spectrum.divergence_staleness(*where)),
            "leading_order": 1.0,
        }

    @cached_property
    def limits(self) -> pd.DataFrame:
        """Largest refresh interval or lag, and largest learning rate, that keep to the level.

        Returns
        -------
        pandas.DataFrame
            Indexed by ``lag_pattern`` and ``keeps`` (``"stable"``: P(diverges) < level; ``"no
            oscillation"``: P(oscillates) < level).  ``longest``: largest refresh interval (hold) or
            lag (constant) in updates at the run's peak learning rate, NaN if none; ``at``: the
            interval or lag, that of the run, at which ``learning_rate`` is the largest peak
            learning rate, and ``relative`` that over the run's.
        """
        s, interval = self.settings, self.refresh_interval
        # A run of the other pattern is asked at the same number of updates.
        at = dict.fromkeys(spectrum.PATTERNS, max(1, interval)) | {self.lag_pattern: interval}
        return limits(self.pull, s.momentum, self.level, s.learning_rate, at)

    def summary(self) -> pd.DataFrame:
        """Posterior of staleness and stability.

        Returns
        -------
        pandas.DataFrame
            Indexed by quantity, columns mean, sd, 5%, 50%, 95%, unit.  ``damping_ratio`` is the one
            of the curve, ``implied_damping_ratio`` that of curvature, momentum and lag.  A
            probability or a threshold is a single number and stands under mean.
            ``attrs["convergence"]`` says whether the fit may be used, ``attrs["notes"]`` what was
            assumed.
        """
        draws = {
            "staleness": (self.staleness, "1"),
            "curvature": (self.curvature, "1 / learning rate"),
            "implied_damping_ratio": (self.implied_damping, "1"),
        }
        if self.curve_damping is not None:
            draws["damping_ratio"] = (self.curve_damping, "1")
        rows: dict[str, dict[str, Any]] = {}
        for name, (values, unit) in draws.items():
            low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
            rows[name] = {
                "mean": values.mean(), "sd": values.std(),
                "5%": low, "50%": middle, "95%": high, "unit": unit,
            }  # fmt: skip
        for name, value in (
            ("p_oscillatory", self.p_oscillatory),
            ("p_implied_oscillatory", self.p_implied_oscillatory),
            ("p_unstable", self.p_unstable),
            ("p_beyond_leading_order", self.p_beyond_rule),
        ):
            rows[name] = {"mean": value, "unit": "probability"}
        for name, value in self.thresholds.items():
            rows[f"{name}_staleness"] = {"mean": value, "unit": "1"}
        table = pd.DataFrame.from_dict(rows, orient="index")
        table.index.name = "quantity"
        table.attrs.update(convergence=str(self.convergence), notes=dict(self.notes))
        return table

    def in_words(self) -> str:
        """Say in a few sentences how stale the run is and how stale it may become."""
        sentences = [
            f"At the peak learning rate {self._interval_in_words()} makes a staleness of "
            f"{Interval.of(self.staleness)}."
        ]
        if self.refresh_interval > 0:
            t = self.thresholds
            sentences.append(
                f"Exactly, the mean reward oscillates beyond {number(t['oscillation'])} and "
                f"diverges beyond {number(t['divergence'])} (leading order: 1)."
            )
        sentences.append(
            f"P(oscillatory) = {self.p_oscillatory:.2f}, P(unstable) = {self.p_unstable:.2f}."
        )
        return " ".join(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Everything that is printed, as numbers and words."""
        names = ("learning_rate", "momentum", "momentum_convention", "lag_pattern")
        return {
            "run": self.run,
            "model": self.model,
            "level": self.level,
            "curvature_from": "measured independently" if self.measured else "this fit",
            "tautology": self.tautology,
            "p_oscillatory": self.p_oscillatory,
            "p_implied_oscillatory": self.p_implied_oscillatory,
            "p_unstable": self.p_unstable,
            "p_beyond_leading_order": self.p_beyond_rule,
            "thresholds": self.thresholds,
            "summary": self.summary().to_dict(orient="index"),
            "limits": self.limits.reset_index().to_dict(orient="records"),
            "in_words": self.in_words(),
            "notes": dict(self.notes),
            "settings": {
                name: {"value": item.value, "provenance": item.provenance}
                for name in (*names, "refresh_interval", "lag")
                for item in [self.settings[name]]
            },
            "converged": self.convergence.converged,
            "convergence": str(self.convergence),
        }

    def __repr__(self) -> str:
        lines = [f"Stability of '{self.run}' ({self.model}): {self.in_words()}"]
        if not self.convergence.converged:
            lines.append(str(self.convergence))
        if self.tautology:
            lines.append(f"TAUTOLOGY: {self.notes['tautology']}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<p>{html.escape(line)}</p>" for line in repr(self).splitlines())
        tables = (
            self.summary().to_html(float_format="{:.4g}".format, na_rep=""),
            self.limits.to_html(float_format="{:.4g}".format, na_rep="none"),
        )
        items = "".join(
            f"<li>{html.escape(text)}</li>" for name, text in self.notes.items()
            if name != "tautology"
        )  # fmt: skip
        return f"{head}{''.join(tables)}<ul>{items}</ul>"

    def _interval_in_words(self) -> str:
        updates = self.refresh_interval
        many = "update" if updates == 1 else "updates"
        if self.lag_pattern == "constant":
            return f"a constant lag of {updates} {many}"
        return f"a refresh interval of {updates} {many}"


def stability(fit: Fit, *, level: float = 0.05, curvature: Any = None) -> Stability:
    """Hold the curvature of a run against the exact limits of stale sampling.

    The curvature is read off the relaxation time.  That is exact for `closed_form`, which has the
    lag in its likelihood.  The oscillator and the exponential know no lag, but see rewards of the
    stale policy: started at rest, their deviations from the plateau add up to the relaxation time
    without lag, ``(1 - momentum) / pull``, under any lag, and that is what those curves measure.

    Parameters
    ----------
    fit
        The fit.
    level
        Probability below which a failure is accepted, in (0, 1).
    curvature
        K per unit learning rate, measured independently of this fit (several learning rates or
        refresh intervals, a perturbation, a model of the task): a pair (mean, standard deviation),
        taken as lognormal, or at least ten draws.  It replaces what the fit says.

    Returns
    -------
    Stability

    Raises
    ------
    InputError
        If the model has no stiffness and no curvature is given, or an argument is out of range.
    """
    if not isinstance(level, float | int) or not 0 < level < 1:
        raise InputError(f"level is {level!r}: expected a number between 0 and 1")
    posterior = fit.idata["posterior"]
    own = (
        posterior["damping_ratio"].to_numpy().reshape(-1)
        if fit.model.trajectory == "oscillator" and "damping_ratio" in posterior
        else None
    )
    measured = curvature is not None
    draws = _given_curvature(curvature) if measured else _fitted_curvature(fit)
    answer = Stability(
        run=fit.run.name,
        model=fit.model.name,
        settings=fit.run.settings,
        level=float(level),
        curvature=draws,
        curve_damping=own,
        measured=measured,
        tautology=False,
        notes={},
        convergence=fit.convergence,
    )
    implied = answer.implied_damping
    shown = implied if own is None else own
    visible = fit.model.trajectory != "exponential" and float(np.mean(shown < SWING)) >= SURE
    tautology = not measured and not visible
    notes = caveats(
        fit,
        tautology=tautology,
        measured=measured,
        curve_damping=own,
        implied_damping=implied,
    )
    return replace(answer, tautology=tautology, notes=notes)


def _fitted_curvature(fit: Fit) -> np.ndarray:
    """Curvature from the relaxation time; raises `InputError` where the curve has none."""
    posterior, settings = fit.idata["posterior"], fit.run.settings
    if fit.model.trajectory not in CURVES or "relaxation_time" not in posterior:
        raise InputError(
            f"model '{fit.model.name}': its mean curve '{fit.model.trajectory}' has no stiffness "
            f"to judge stability by; fit one of {', '.join(CURVES)}, or give a curvature"
        )
    return np.asarray(curvature_of(posterior["relaxation_time"].to_numpy().reshape(-1), settings))


def _given_curvature(given: Any) -> np.ndarray:
    expected = (
        f"expected (mean, standard deviation) with mean > 0 and sd >= 0, or at least "
        f"{FEWEST_DRAWS} draws, all finite and > 0"
    )
    try:
        values = np.asarray(given, dtype=float).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InputError(f"curvature is {given!r}: {expected}") from error
    if values.size >= FEWEST_DRAWS and np.all(np.isfinite(values) & (values > 0)):
        return values
    if values.size != 2 or not np.all(np.isfinite(values)) or values[0] <= 0 or values[1] < 0:
        raise InputError(f"curvature is {_short(given)}: {expected}")
    mean, sd = values
    variance = log(1 + (sd / mean) ** 2)
    quantile = NormalDist().inv_cdf
    scores = np.array([quantile((i + 0.5) / POINTS) for i in range(POINTS)])
    return np.asarray(mean * np.exp(np.sqrt(variance) * scores - variance / 2))


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
