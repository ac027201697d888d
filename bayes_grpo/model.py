"""A model: a file of ``models/`` read into parts and priors, made into one NumPyro model."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax import Array

from bayes_grpo.errors import ModelFileError
from bayes_grpo.fluctuation import FLUCTUATIONS, shock_sd
from bayes_grpo.mean_curves import MEAN_CURVES, Recipe
from bayes_grpo.measurement import MEASUREMENTS
from bayes_grpo.priors import Prior, RunScale, parse_prior
from bayes_grpo.resources import models_dir
from bayes_grpo.run import Run
from bayes_grpo.statespace import Params, Scalar, State, System, Ticks, log_likelihood
from bayes_grpo.timeline import Timeline, bucket, build_timeline, pad_ticks
from bayes_grpo.trajectory import LEVELS, Trajectory

SHARE_INSIDE = 0.9
"""Share of the logged rewards in [0, 1] from which on these are taken to be their bounds."""


class Data(NamedTuple):
    """What one run brings to a compiled program: a pytree of float64 arrays.

    Parameters
    ----------
    ticks
        Padded ticks, shape (ticks,) each.
    scale
        What the priors are measured in.
    constants
        Known numbers of the recursion: ``optimizer_momentum``, ``updates_per_tick``,
        ``updates_per_step``, the updates of one step of the recursion that ``momentum`` and
        ``pull`` belong to, and for a curve that asks for it the range of the reward,
        ``reward_low`` and ``reward_high``.
    """

    ticks: Ticks
    scale: RunScale
    constants: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Model:
    """A model file, checked.

    Parameters
    ----------
    name
        Name of the model.
    description
        One line on what it assumes.
    trajectory, fluctuation, measurement
        Names of its parts.
    priors
        Prior of every parameter.
    text
        The file itself, kept with a fit so that it can be rebuilt.
    """

    name: str
    description: str
    trajectory: str
    fluctuation: tuple[str, ...]
    measurement: str
    priors: Mapping[str, Prior]
    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and (self.name, self.text) == (other.name, other.text)

    def __hash__(self) -> int:
        return hash((self.name, self.text))


@dataclass(frozen=True, eq=False)
class Program:
    """A model put together for one kind of run: everything that a compiled function depends on.

    Parameters
    ----------
    model
        The model.
    parts
        Its trajectory.
    system
        The state space.
    windowed
        Whether rows average several ticks.
    sampled
        Parameters that NUTS samples.
    """

    model: Model
    parts: Trajectory
    system: System
    windowed: bool
    sampled: tuple[str, ...]

    def params(self, draws: Mapping[str, Any], data: Data) -> dict[str, Any]:
        """All numbers of the recursion from draws of the priors in their own units.

        Parameters
        ----------
        draws
            One number for every parameter of ``sampled``.
        data
            The run.

        Returns
        -------
        dict
            Parameters in natural units, constants, and the coefficients derived from them.
        """
        values: dict[str, Any] = dict(data.constants)
        for name, prior in self.model.priors.items():
            if name in draws:
                values[name] = prior.natural(draws[name], data.scale)
                if name in LEVELS:
                    values[f"{name}_sd"] = 0.0
            elif name in LEVELS:
                values[name], values[f"{name}_sd"] = prior.moments(data.scale)
            else:
                values[name] = jnp.asarray(prior.moments(data.scale)[0])
        values = self.parts.derive(values)
        if "fluctuation_sd" in values:
            values["shock_sd"] = shock_sd(values)
        return values

    def timed(self, params: Params, ticks: Ticks) -> Ticks:
        """Ticks with what the mean curve says at their time; see `Trajectory.timed`."""
        return self.parts.timed(params, ticks)

    def after(self, params: Params, ticks: Ticks) -> Ticks:
        """The tick that follows the last one, as a scalar entry of each field of ``ticks``."""
        last = jax.tree.map(lambda a: jnp.asarray(a)[-1:], ticks)
        last = last._replace(elapsed=last.elapsed + last.learning_rate)
        return jax.tree.map(lambda a: a[0], self.timed(params, last))

    def log_likelihood(self, draws: Mapping[str, Any], data: Data) -> Array:
        """Log density of the logged rewards, the states integrated out.

        Parameters
        ----------
        draws, data
            As for `params`.
        """
        params = self.params(draws, data)
        ticks = self.timed(params, data.ticks)
        return log_likelihood(self.system, params, ticks, windowed=self.windowed)

    def numpyro_model(self, data: Data) -> None:
        """Priors and marginal likelihood as a NumPyro model.

        Parameters
        ----------
        data
            The run.
        """
        draws = {
            name: numpyro.sample(name, self.model.priors[name].in_unit()) for name in self.sampled
        }
        numpyro.factor("log_likelihood", self.log_likelihood(draws, data))


def available_models() -> dict[str, str]:
    """Names of the models that ship with the package, with their descriptions."""
    return {
        path.stem: load_model(path.stem).description for path in sorted(models_dir().glob("*.toml"))
    }


def load_model(model: str | Path | Model) -> Model:
    """Read a model by its name (``"oscillator"``) or from a file (``"my/oscillator.toml"``).

    Parameters
    ----------
    model
        Name, path, or a model, which is returned as it is.

    Returns
    -------
    Model

    Raises
    ------
    ModelFileError
        No such model; the file is not TOML; an unknown part, parameter, distribution or unit.
    """
    if isinstance(model, Model):
        return model
    path = Path(model)
    if path.suffix != ".toml":
        path = models_dir() / f"{model}.toml"
        if not path.is_file():
            known = ", ".join(p.stem for p in sorted(models_dir().glob("*.toml")))
            raise ModelFileError(
                f"no model is called '{model}'; known: {known}; your own is given as a path to a "
                ".toml file"
            )
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelFileError(
            f"{path}: no such model file; 'bayes-grpo models' lists the shipped ones"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: the model file cannot be read: {error}") from error
    return parse_model(text, name=path.stem, where=str(path))


def parse_model(text: str, name: str, where: str) -> Model:
    """Check the text of a model file.

    Parameters
    ----------
    text
        TOML.
    name
        Name of the model.
    where
        File name, for messages.

    Returns
    -------
    Model

    Raises
    ------
    ModelFileError
        As `load_model`.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ModelFileError(f"{where}: not valid TOML: {error}") from error
    known = {"description", "trajectory", "fluctuation", "measurement", "priors"}
    for key in content:
        if key not in known:
            raise ModelFileError(
                f"{where}: unknown entry '{key}'; known: {', '.join(sorted(known))}"
            )
    trajectory = _part(content, "trajectory", MEAN_CURVES, where)
    curve = MEAN_CURVES[trajectory].build(Recipe())
    measurement = _part(content, "measurement", MEASUREMENTS, where)
    fluctuation = content.get("fluctuation", [])
    if not isinstance(fluctuation, list):
        raise ModelFileError(f"{where}: fluctuation is {fluctuation!r}, expected a list of parts")
    for part in fluctuation:
        _known_part("fluctuation", part, FLUCTUATIONS, where)
        if fluctuation.count(part) > 1:
            raise ModelFileError(f"{where}: fluctuation names {part!r} twice")
        if FLUCTUATIONS[part].about_plateau and not curve.relaxes:
            raise ModelFileError(
                f"{where}: fluctuation {part!r} is about a plateau, and trajectory '{trajectory}' "
                "has none: take it out"
            )
    needed = [*curve.levels, *curve.parameters]
    needed += [p for part in fluctuation for p in FLUCTUATIONS[part].parameters]
    needed += MEASUREMENTS[measurement].parameters
    entries = content.get("priors", {})
    if not isinstance(entries, Mapping):
        raise ModelFileError(f"{where}: priors is {entries!r}, expected a table [priors]")
    for parameter in entries:
        if parameter not in needed:
            raise ModelFileError(
                f"{where}: prior of unknown parameter '{parameter}'; its parts have "
                f"{', '.join(needed)}"
            )
    missing = [p for p in needed if p not in entries]
    if missing:
        raise ModelFileError(f"{where}: no prior of {', '.join(missing)}; add it under [priors]")
    return Model(
        name=name,
        description=str(content.get("description", "")),
        trajectory=trajectory,
        fluctuation=tuple(fluctuation),
        measurement=measurement,
        priors={p: parse_prior(p, entries[p], where) for p in needed},
        text=text,
    )


def _part(content: Mapping[str, Any], kind: str, known: Mapping[str, Any], where: str) -> str:
    if kind not in content:
        raise ModelFileError(f"{where}: no {kind}; known: {', '.join(known)}")
    return _known_part(kind, content[kind], known, where)


def _known_part(kind: str, part: object, known: Mapping[str, Any], where: str) -> str:
    if not isinstance(part, str) or part not in known:
        raise ModelFileError(f"{where}: unknown {kind} {part!r}; known: {', '.join(known)}")
    return part


@lru_cache(maxsize=128)
def build_program(model: Model, recipe: Recipe, windowed: bool) -> Program:
    """Put a model's parts together.

    Parameters
    ----------
    model
        The model.
    recipe
        Settings of the run that change the recursion.
    windowed
        Whether rows average several ticks.

    Returns
    -------
    Program
        The same object for the same arguments, so that compiled functions are found again.
    """
    trajectory = MEAN_CURVES[model.trajectory].build(recipe)
    sources = [FLUCTUATIONS[name] for name in model.fluctuation]
    measurement = MEASUREMENTS[model.measurement]

    def noise(params: Params, tick: Ticks) -> tuple[State, ...]:
        return tuple(b for source in sources for b in source.noise(trajectory, params, tick))

    def sampling_variance(params: Params, tick: Ticks) -> Scalar:
        return measurement.variance(params, tick)

    system = System(
        trajectory.start, trajectory.advance, trajectory.observe, noise, sampling_variance
    )
    sampled = tuple(
        name
        for name, prior in model.priors.items()
        if not prior.fixed and not (name in trajectory.integrated and prior.gaussian)
    )
    return Program(model, trajectory, system, windowed, sampled)


def bind(model: Model, run: Run, horizon: int | None = None) -> tuple[Program, Timeline, Data]:
    """Bring a model and a run together.

    Parameters
    ----------
    model, run
        What to fit to what.
    horizon
        Planned last step; None: see `bayes_grpo.timeline.build_timeline`.

    Returns
    -------
    program : Program
    timeline : Timeline
    data : Data
        Padded to a length that runs share.
    """
    settings = run.settings
    curve = MEAN_CURVES[model.trajectory]
    recipe = curve.recipe(settings)
    trajectory = curve.build(recipe)
    timeline = build_timeline(
        run,
        responses_of(trajectory, settings.momentum),
        one_update_ticks=trajectory.one_update_ticks,
        horizon=horizon,
    )
    constants = {
        "optimizer_momentum": settings.momentum,
        "updates_per_tick": float(timeline.updates_per_tick),
        "updates_per_step": float(trajectory.updates_per_step(timeline.updates_per_tick)),
    }
    if trajectory.needs_bounds:
        low, high, note = _reward_range(run)
        constants |= {"reward_low": low, "reward_high": high}
        timeline = replace(timeline, notes=(*timeline.notes, *note))
    program = build_program(model, recipe, timeline.windowed)
    data = Data(
        pad_ticks(timeline.ticks, bucket(len(timeline.ticks.reward))), timeline.scale, constants
    )
    return program, timeline, data


def _reward_range(run: Run) -> tuple[float, float, tuple[str, ...]]:
    """Lowest and highest reward, and what was assumed where the run does not tell."""
    if run.settings.reward_bounds is not None:
        low, high = run.settings.reward_bounds
        if np.isfinite(low) and np.isfinite(high):
            return float(low), float(high), ()
    reward = run.table["reward"].dropna().to_numpy()
    if np.mean((reward >= 0) & (reward <= 1)) >= SHARE_INSIDE:
        return 0.0, 1.0, ("reward bounds unknown: taken as 0 and 1 for the fixed point",)
    low, high = float(reward.min()), float(reward.max())
    note = f"reward bounds unknown: taken as {low:.4g} and {high:.4g}, the logged ones"
    return low, high, (note,)


def responses_of(
    trajectory: Trajectory, momentum: float
) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Per-tick responses of a trajectory at the run's momentum, as a function of learning rates."""
    return lambda rates: trajectory.responses(rates, momentum)
