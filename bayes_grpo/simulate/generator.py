"""A model as the generator of runs: rewards drawn from its own state space."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from bayes_grpo.errors import InputError
from bayes_grpo.model import Data, Model, Program, bind, load_model
from bayes_grpo.posterior import levels_of_path, parameters_from_prior
from bayes_grpo.precision import float64
from bayes_grpo.priors import RunScale
from bayes_grpo.results import within_bounds
from bayes_grpo.run import Run
from bayes_grpo.statespace import Noise, noise_shapes, row_means, simulate

_MAX_SEED = 2**32


@dataclass(frozen=True, eq=False)
class Simulated:
    """A run drawn from a model, and the truth that it was drawn from.

    Parameters
    ----------
    run
        The run.
    parameters
        Every parameter of the model in its natural unit.  ``plateau`` is the one at the start; the
        one at the end is ``final_plateau``.
    expected_reward
        Reward of each row without sampling noise, shape (rows,).
    """

    run: Run
    parameters: dict[str, float]
    expected_reward: np.ndarray


def simulate_model(
    model: str | Path | Model = "oscillator",
    parameters: Mapping[str, float] | None = None,
    *,
    n_rows: int = 300,
    seed: int = 0,
    location: float = 0.5,
    spread: float = 0.1,
    learning_rate_schedule: np.ndarray | None = None,
    name: str | None = None,
    **settings: Any,
) -> Simulated:
    """Draw a run from a model, with given parameters or with those that its priors give.

    Parameters
    ----------
    model
        Name of a shipped model, path of a model file, or a model.
    parameters
        Values in natural units (rewards in reward, times in updates), by the names in the model
        file; the others are drawn from their priors.
    n_rows
        Steps of the run, one row each, >= 2; of rows that share a rollout batch only the last is
        kept.
    seed
        Seed of everything random.
    location, spread
        What the priors of levels and of standard deviations are measured in; a fit takes them from
        the rewards.
    learning_rate_schedule
        Learning rate of every row, shape (n_rows,); None: constant.
    name
        Name of the run; None: that of the model.
    **settings
        Settings of the run, such as ``momentum=0.9``; see `bayes_grpo.Settings`.  Unless
        ``max_steps`` is given the plan ends with the log.

    Returns
    -------
    Simulated
        Equal for equal arguments.

    Raises
    ------
    InputError
        If there is no such model, parameter or setting, or a value is out of range.
    """
    checked = load_model(model)
    if not isinstance(n_rows, int | np.integer) or n_rows < 2:
        raise InputError(f"n_rows is {n_rows!r}: expected a whole number of at least 2")
    if not isinstance(seed, int | np.integer) or not 0 <= seed < _MAX_SEED:
        raise InputError(f"seed is {seed!r}: expected a whole number from 0 to {_MAX_SEED - 1}")
    if not (np.isfinite(location) and np.isfinite(spread) and spread > 0):
        raise InputError(
            f"location is {location!r}, spread {spread!r}: expected finite numbers, spread above 0"
        )
    given = _checked_parameters(checked, parameters or {})
    label = name or checked.name
    skeleton = _skeleton(label, int(n_rows), learning_rate_schedule, settings)
    with float64():
        program, timeline, data = bind(checked, skeleton)
        scale = RunScale(
            location, spread, timeline.scale.planned_updates, timeline.scale.row_updates
        )
        data = data._replace(scale=scale)
        at = timeline.row_tick - len(timeline.ticks.reward)
        truth, latent, rewards = _draw(program, data, given, int(seed))
    # Rows that share a rollout batch have one reward between them.
    table = skeleton.table.loc[timeline.rows, _columns_of(skeleton)].copy()
    table["reward"] = within_bounds(rewards[at], skeleton)
    final = {"max_steps": len(skeleton), **settings}
    run = Run.from_table(table, label, **final)
    return Simulated(run, truth, within_bounds(latent[at], skeleton))


def _columns_of(run: Run) -> list[str]:
    return [column for column in ("step", "learning_rate") if column in run.table.columns]


def _checked_parameters(model: Model, parameters: Mapping[str, float]) -> dict[str, float]:
    for parameter, value in parameters.items():
        if parameter not in model.priors:
            raise InputError(
                f"model '{model.name}' has no parameter '{parameter}'; it has "
                f"{', '.join(model.priors)}"
            )
        if isinstance(value, bool | str) or value is None or not np.isfinite(value):
            raise InputError(f"parameter {parameter} is {value!r}: expected a finite number")
        if parameter not in ("plateau", "initial_reward") and value < 0:
            raise InputError(f"parameter {parameter} is {value:g}: expected a number of at least 0")
    return {parameter: float(value) for parameter, value in parameters.items()}


def _skeleton(
    name: str, n_rows: int, schedule: np.ndarray | None, settings: Mapping[str, Any]
) -> Run:
    """Make a run with the clock and the settings; its rewards are placeholders."""
    low, high = settings.get("reward_bounds") or (0.0, 1.0)
    low, high = _inside(low, high)
    table = pd.DataFrame({"step": np.arange(1, n_rows + 1)})
    # No value twice: an end that is hit again and again would be taken for a bound.
    table["reward"] = np.linspace(low, high, n_rows)
    if schedule is not None:
        if np.shape(schedule) != (n_rows,):
            raise InputError(
                f"learning_rate_schedule has shape {np.shape(schedule)}: expected ({n_rows},)"
            )
        table["learning_rate"] = schedule
    return Run.from_table(table, name, **{"max_steps": n_rows, **settings})


def _inside(low: float, high: float) -> tuple[float, float]:
    """Two finite numbers inside bounds of which one or both may be infinite."""
    if np.isfinite(low) and np.isfinite(high):
        return float(low), float(high)
    if np.isfinite(low):
        return float(low), float(low) + 1.0
    return (float(high) - 1.0, float(high)) if np.isfinite(high) else (0.0, 1.0)


def _draw(
    program: Program, data: Data, given: Mapping[str, float], seed: int
) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Truth, and rewards without and with sampling noise of every tick."""
    drawn = parameters_from_prior(program, 1, seed)
    draws = {name: float(values[0]) for name, values in drawn.items()}
    for name, value in given.items():
        prior = program.model.priors[name]
        zero, one = (float(prior.natural(unit, data.scale)) for unit in (0.0, 1.0))
        draws[name] = (value - zero) / (one - zero)
    params = program.params(draws, data)
    rng = np.random.default_rng(seed)
    shapes = noise_shapes(program.system, params, data.ticks)
    noise = Noise(*(rng.standard_normal(shape) for shape in shapes))

    # One compilation instead of one an operation.
    def run() -> tuple[Any, ...]:
        ticks = program.timed(params, data.ticks)
        states, rewards, end = simulate(program.system, params, ticks, noise)
        latent = row_means(program.system, params, ticks, states)
        return levels_of_path(program, ticks, params, states, end), latent, rewards

    levels, latent, rewards = jax.jit(run)()
    truth = {name: float(params[name]) for name in program.model.priors}
    truth |= {
        "plateau": float(levels.initial_plateau),
        "initial_reward": float(levels.initial_reward),
        "final_plateau": float(levels.plateau),
    }
    return truth, np.asarray(latent), np.asarray(rewards)
