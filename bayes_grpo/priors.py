"""Priors as data: what a model file may say about a parameter, and the NumPyro distribution of it.

A prior is written on the scale of the run, so that one file serves rewards in [0, 1] and in
[-50, -1], runs of 60 and of 10,000 steps.  ``unit`` says in what it is measured:

============  ================================================================================
``reward``    levels: ``location + scale * x`` with the run's own location and scale
``spread``    standard deviations of rewards: ``scale * x``
``planned``   times: ``x`` times the run's planned length in updates
``row``       times: ``x`` times the updates between two logged rows
``natural``   the number itself (the default)
============  ================================================================================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, isnan, log
from typing import Any, NamedTuple

# Not `import numpyro.distributions`: after `import arviz` numpyro is a lazy module, which that
# leaves without some of its attributes.
from numpyro import distributions as dist

from bayes_grpo.errors import ModelFileError

UNITS = ("reward", "spread", "planned", "row", "natural")


class RunScale(NamedTuple):
    """What priors are measured in; a JAX pytree of scalars.

    Parameters
    ----------
    location, scale
        Typical level and spread of the logged rewards, in reward.
    planned_updates
        Planned length of the run in optimizer updates.
    row_updates
        Typical number of updates between two logged rows.
    """

    location: float
    scale: float
    planned_updates: float
    row_updates: float

    def affine(self, unit: str) -> tuple[float, float]:
        """Shift and factor that turn a number in ``unit`` into its natural unit."""
        return {
            "reward": (self.location, self.scale),
            "spread": (0.0, self.scale),
            "planned": (0.0, self.planned_updates),
            "row": (0.0, self.row_updates),
            "natural": (0.0, 1.0),
        }[unit]


type _Builder = Callable[..., dist.Distribution]

_DISTRIBUTIONS: Mapping[str, tuple[tuple[str, ...], _Builder]] = {
    "Normal": (("mean", "sd"), lambda mean, sd: dist.Normal(mean, sd)),
    "LogNormal": (("median", "sd_log"), lambda median, sd_log: dist.LogNormal(log(median), sd_log)),
    "HalfNormal": (("sd",), lambda sd: dist.HalfNormal(sd)),
    "Exponential": (("mean",), lambda mean: dist.Exponential(1 / mean)),
    "Uniform": (("low", "high"), lambda low, high: dist.Uniform(low, high)),
    "Beta": (("alpha", "beta"), lambda alpha, beta: dist.Beta(alpha, beta)),
    "TruncatedNormal": (
        ("mean", "sd", "low", "high"),
        lambda mean, sd, low=-inf, high=inf: _truncated(mean, sd, low, high),
    ),
}

_OPTIONAL = {"TruncatedNormal": {"low", "high"}}
_POSITIVE = {"sd", "sd_log", "median", "alpha", "beta"}


def _truncated(mean: float, sd: float, low: float, high: float) -> dist.Distribution:
    return dist.TruncatedNormal(
        mean, sd, low=None if low == -inf else low, high=None if high == inf else high
    )


@dataclass(frozen=True)
class Prior:
    """Prior of one parameter, as written in a model file.

    Parameters
    ----------
    distribution
        One of ``Normal(mean, sd)``, ``LogNormal(median, sd_log)``, ``HalfNormal(sd)``,
        ``Exponential(mean)``, ``Uniform(low, high)``, ``Beta(alpha, beta)``,
        ``TruncatedNormal(mean, sd, low, high)``, or ``Fixed(value)``.
    arguments
        Numbers of the distribution, in ``unit``.
    unit
        See the module's table.
    above
        Number and unit that is added to a draw: a smooth lower bound for a positive parameter.
    """

    distribution: str
    arguments: Mapping[str, float]
    unit: str = "natural"
    above: tuple[float, str] | None = None
    where: str = field(default="", compare=False)

    @property
    def fixed(self) -> bool:
        """Whether the parameter is a given number."""
        return self.distribution == "Fixed"

    @property
    def gaussian(self) -> bool:
        """Whether a linear state with this prior can be integrated out exactly."""
        return self.distribution == "Normal" and self.above is None

    def in_unit(self) -> dist.Distribution:
        """NumPyro distribution of the draw, in ``unit`` and without ``above``."""
        if self.fixed:
            raise ValueError("a fixed parameter has no distribution")
        return _DISTRIBUTIONS[self.distribution][1](**self.arguments)

    def natural(self, draw: Any, scale: RunScale) -> Any:
        """Turn a draw of `in_unit` into the parameter in its natural unit."""
        shift, factor = scale.affine(self.unit)
        if self.above is not None:
            more_shift, more_factor = scale.affine(self.above[1])
            shift = shift + more_shift + more_factor * self.above[0]
        return shift + factor * draw

    def moments(self, scale: RunScale) -> tuple[Any, Any]:
        """Mean and standard deviation in natural units, of a `gaussian` or `fixed` prior."""
        shift, factor = scale.affine(self.unit)
        if self.fixed:
            return shift + factor * self.arguments["value"], 0.0
        return shift + factor * self.arguments["mean"], factor * self.arguments["sd"]


def parse_prior(name: str, entry: Any, where: str) -> Prior:
    """Check one entry of a model file's ``[priors]`` table.

    Parameters
    ----------
    name
        Parameter.
    entry
        What the file says: a table with ``distribution``, its numbers, ``unit``, ``above``,
        ``above_unit``; or a bare number, which fixes the parameter.
    where
        File name, for messages.

    Returns
    -------
    Prior

    Raises
    ------
    ModelFileError
        Unknown distribution, unit or argument; a missing or impossible number.
    """
    at = f"{where}: prior of {name}"
    if isinstance(entry, int | float) and not isinstance(entry, bool):
        return Prior("Fixed", {"value": _number(at, "the value", entry)}, where=where)
    if not isinstance(entry, Mapping):
        raise ModelFileError(
            f"{at}: found {entry!r}, expected a number or a table such as "
            "{distribution = 'Normal', mean = 0, sd = 1}"
        )
    entry = dict(entry)
    kind = entry.pop("distribution", None)
    known = (*_DISTRIBUTIONS, "Fixed")
    if kind not in known:
        raise ModelFileError(f"{at}: unknown distribution {kind!r}; known: {', '.join(known)}")
    unit = entry.pop("unit", "natural")
    above = entry.pop("above", None)
    if above is None and "above_unit" in entry:
        raise ModelFileError(f"{at}: above_unit is the unit of above, which is missing")
    if above is not None:
        above = _number(at, "above", above)
        if kind == "Fixed":
            raise ModelFileError(f"{at}: Fixed has no 'above'; add it to the value")
    above_unit = entry.pop("above_unit", unit)
    for found in (unit, above_unit):
        if found not in UNITS:
            raise ModelFileError(f"{at}: unknown unit {found!r}; known: {', '.join(UNITS)}")
    names = ("value",) if kind == "Fixed" else _DISTRIBUTIONS[kind][0]
    for argument, value in entry.items():
        if argument not in names:
            raise ModelFileError(f"{at}: {kind} has no {argument!r}; it takes {', '.join(names)}")
        _number(at, argument, value, finite=argument not in _OPTIONAL.get(kind, ()))
        positive = argument in _POSITIVE or (kind == "Exponential" and argument == "mean")
        if positive and not value > 0:
            raise ModelFileError(f"{at}: {argument} is {value}, expected a number > 0")
    missing = [n for n in names if n not in entry and n not in _OPTIONAL.get(kind, ())]
    if missing:
        raise ModelFileError(f"{at}: {kind} needs {', '.join(missing)}")
    if "low" in entry and "high" in entry and not entry["low"] < entry["high"]:
        raise ModelFileError(
            f"{at}: low is {entry['low']}, expected less than high = {entry['high']}"
        )
    return Prior(
        kind,
        {k: float(v) for k, v in entry.items()},
        unit,
        None if above is None else (above, above_unit),
        where,
    )


def _number(at: str, what: str, value: Any, finite: bool = True) -> float:
    """Check a number of a model file; TOML knows nan and inf, too."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelFileError(f"{at}: {what} is {value!r}, expected a number")
    if isnan(value) or (finite and not isfinite(value)):
        raise ModelFileError(f"{at}: {what} is {value}, expected a finite number")
    return float(value)
