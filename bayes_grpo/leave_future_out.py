"""How well a model would have predicted each row from the rows before it.

The states are integrated out, so that the density of a row given the rows before it and the
parameters is exact; what is left is to average it over the posterior of the parameters given those
rows alone.  That posterior is the one of a nearby fit, reweighted: Pareto-smoothed importance
sampling (Vehtari et al. 2024), whose shape ``k`` says when the fit is too far away, and then the
model is fitted again to the rows so far (Bürkner, Gabry & Vehtari 2020, arXiv 1902.06281).  A
refit only masks rows: it shares the compiled program of the fit.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from arviz_stats.base.array import array_stats
from scipy.special import logsumexp
from scipy.stats import norm

from bayes_grpo.errors import InputError
from bayes_grpo.fit import Fit
from bayes_grpo.one_step import affordable, predict_rows
from bayes_grpo.posterior import held_back
from bayes_grpo.precision import float64
from bayes_grpo.sampler import Sampling, sample
from bayes_grpo.scores import crps

MOST_K = 0.7
"""Pareto k above which importance weights are not used."""

LEAST_EFFICIENCY = 0.2
"""Share of the draws that must be left, in effect, after weighting: k alone lets the density of a
run wander by more than what separates its models."""

LEAST_KNOWN = 8
"""Rows that the first prediction knows at least."""


@dataclass(frozen=True, eq=False)
class LeaveFutureOut:
    """Predictions of the later rows of a run, each from the rows before it.

    Parameters
    ----------
    steps
        Step of each scored row, shape (rows,).
    log_density
        Log predictive density of the ``ahead`` rows that begin there, shape (rows,).
    crps
        Continuous ranked probability score of each row, in reward, shape (rows,).
    pit
        Predictive probability of a smaller reward than the logged one, shape (rows,).
    z
        Logged reward minus the predictive mean, over the predictive sd, shape (rows,).
    pareto_k
        Of the importance weights that gave each prediction, shape (rows,); 0 right after a fit.
    refits
        How many times the model was fitted again.
    known
        Rows that the first prediction knows.
    ahead
        Rows that a density is of.
    """

    steps: np.ndarray
    log_density: np.ndarray
    crps: np.ndarray
    pit: np.ndarray
    z: np.ndarray
    pareto_k: np.ndarray
    refits: int
    known: int
    ahead: int

    def inside(self, level: float) -> float:
        """Share of the rows inside the central band of a probability, such as 0.9."""
        return float(np.mean(np.abs(self.pit - 0.5) <= level / 2))


class _Anchor(NamedTuple):
    """Draws from the posterior given some first rows, and what they predict of every row.

    ``mean``, ``sd`` and ``density`` (log density given the rows before) have shape (draws, rows),
    ``before`` (log density of all rows before) shape (draws, rows + 1).
    """

    known: int
    mean: np.ndarray
    sd: np.ndarray
    density: np.ndarray
    before: np.ndarray


class _Row(NamedTuple):
    """Scores of one row, as in `LeaveFutureOut`."""

    log_density: float
    crps: float
    pit: float
    z: float
    pareto_k: float


def leave_future_out(
    fit: Fit, *, start: int | None = None, ahead: int = 1, seed: int = 0
) -> LeaveFutureOut:
    """Score the rows of a run, each predicted from the rows before it.

    Parameters
    ----------
    fit
        The fit.
    start
        Rows that the first prediction knows; None: a tenth of the rewarded rows, at least 8.
    ahead
        Rows that each density is of: with M, the joint density of a row and the M - 1 after it,
        the product of exact one-step-ahead terms of a draw.
    seed
        Of the refits and of the draws that the CRPS is taken of.

    Returns
    -------
    LeaveFutureOut
        The scale of the priors and the planned length stay those of the whole log.

    Raises
    ------
    InputError
        If there are too few rows, or start or ahead is out of range.
    """
    timeline = fit.bound[1]
    count = len(timeline.rows)
    first = _first_row(fit, count, start, ahead)
    reward = np.asarray(timeline.ticks.reward)[timeline.row_tick]
    random = np.random.default_rng(seed)
    scored: dict[int, _Row] = {}

    def use(anchor: _Anchor, rows: range) -> int:
        """Score rows in their order while the weights allow it; the first that was not scored."""
        for row in rows:
            log_weight, k = _weights(anchor, row)
            if k > MOST_K or _efficiency(log_weight) < LEAST_EFFICIENCY:
                return row
            scored[row] = _score(anchor, row, ahead, log_weight, k, reward[row], random)
        return rows.stop

    refits = 0
    with float64():
        # Back from the fit to all rows as far as it reaches, then forward from refits to there.
        whole = _anchor(fit, fit.parameter_draws, count)
        missing = use(whole, range(count - ahead, first - 1, -1))
        at = first
        while at <= missing:
            refits += 1
            at = use(_anchor(fit, _refit(fit, at, seed + refits), at), range(at, missing + 1))
    rows = sorted(scored)
    columns = {name: np.array([getattr(scored[r], name) for r in rows]) for name in _Row._fields}
    steps = fit.run.table["step"].to_numpy()[timeline.rows]
    return LeaveFutureOut(steps[rows], **columns, refits=refits, known=first, ahead=ahead)


def _first_row(fit: Fit, count: int, start: int | None, ahead: int) -> int:
    """Check the arguments, and choose what the first prediction knows."""
    first = max(LEAST_KNOWN, count // 10) if start is None else start
    where = f"run '{fit.run.name}'"
    for name, value, least in (("start", first, 2), ("ahead", ahead, 1)):
        if not isinstance(value, int | np.integer) or value < least:
            raise InputError(f"{where}: {name} is {value!r}: expected a whole number >= {least}")
    if first + ahead > count:
        raise InputError(
            f"{where}: {count} rewarded rows are too few to score {ahead} ahead of the first "
            f"{first}: expected at least {first + ahead}"
        )
    return int(first)


def _anchor(fit: Fit, draws: dict[str, np.ndarray], known: int) -> _Anchor:
    total = len(next(iter(draws.values())))
    chosen = np.linspace(0, total - 1, affordable(fit, total)).round().astype(int)
    rows = predict_rows(fit, {name: values[chosen] for name, values in draws.items()})
    density = rows.log_density
    before = np.concatenate([np.zeros((len(density), 1)), np.cumsum(density, axis=1)], axis=1)
    return _Anchor(known, rows.mean, rows.sd, density, before)


def _refit(fit: Fit, known: int, seed: int) -> dict[str, np.ndarray]:
    """Draws given the first rows only, by the sampling of the fit."""
    program, timeline, data = fit.bound
    sampling = Sampling.from_text(str(fit.idata.attrs["sampling"]))
    values = sample(program, held_back(data, timeline, known), sampling, seed).values
    return {name: draws.reshape(-1) for name, draws in values.items()}


def _weights(anchor: _Anchor, row: int) -> tuple[np.ndarray, float]:
    """Log weights that turn an anchor's draws into those given all rows before ``row``, and k."""
    log_ratio = anchor.before[:, row] - anchor.before[:, anchor.known]
    if row == anchor.known:
        k = 0.0
    else:
        log_ratio, k = array_stats.psislw(-log_ratio)
    return log_ratio - logsumexp(log_ratio), float(k)


def _efficiency(log_weight: np.ndarray) -> float:
    """Effective share of weighted draws."""
    return float(np.exp(-logsumexp(2 * log_weight)) / len(log_weight))


def _score(
    anchor: _Anchor,
    row: int,
    ahead: int,
    log_weight: np.ndarray,
    k: float,
    reward: float,
    random: np.random.Generator,
) -> _Row:
    weight = np.exp(log_weight)
    mean, sd = anchor.mean[:, row], anchor.sd[:, row]
    middle = weight @ mean
    spread = np.sqrt(weight @ (sd**2 + (mean - middle) ** 2))
    draws = mean + sd * random.standard_normal(len(mean))
    return _Row(
        log_density=float(logsumexp(log_weight + anchor.density[:, row : row + ahead].sum(axis=1))),
        crps=float(crps(draws[:, None], np.array([reward]), weight[:, None])[0]),
        pit=float(weight @ norm.cdf((reward - mean) / sd)),
        z=float((reward - middle) / spread),
        pareto_k=k,
    )
