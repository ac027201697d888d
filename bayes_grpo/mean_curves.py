"""The mean curves that model files may name: one entry each, whatever they are made of.

Those with inertia are recursions of their own (`bayes_grpo.trajectory`).  The rivals without are
shapes (`bayes_grpo.shapes`) laid over one first-order recursion: the state is a reward that starts
at the plateau and carries noise and drift, the plateau, and the gap that the run starts with,

    reward = x + gap * left(time),      x' = x - pull (x - plateau)

By superposition this is the exponential model exactly when ``left`` is its geometric decay, so
that variants differ in their mean curve and in nothing else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from bayes_grpo import shapes
from bayes_grpo.fixed_points import aligned_success
from bayes_grpo.settings import Settings
from bayes_grpo.statespace import Params, Scalar, State, Ticks, independent
from bayes_grpo.trajectory import (
    EXPONENTIAL,
    OSCILLATOR,
    Trajectory,
    advance_first_order,
    closed_form,
    derive_first_order,
)

LEAST_SUCCESS = 1e-3
"""Success of the reference policy is kept this far from 0 and 1, where nothing can be learned."""


class Recipe(NamedTuple):
    """Settings of a run that change the recursion itself, not only its numbers.

    Parameters
    ----------
    lag_pattern, lag, group_size
        As in `bayes_grpo.Settings`.
    """

    lag_pattern: str = "hold"
    lag: int = 0
    group_size: int = 8


@dataclass(frozen=True)
class MeanCurve:
    """A mean curve that a model file may name.

    Parameters
    ----------
    build
        Makes the recursion for a run's settings.
    needs
        Fields of `Recipe` that it reads; runs that differ in others share one compiled program.
    """

    build: Callable[[Recipe], Trajectory]
    needs: tuple[str, ...] = ()

    def recipe(self, settings: Settings) -> Recipe:
        """Read what the curve needs from a run's settings; the rest is left at its default."""
        return Recipe(**{name: getattr(settings, name) for name in self.needs})


# --- shapes --------------------------------------------------------------------------------------


def _start_apart(params: Params) -> tuple[State, tuple[State, ...]]:
    """Start of (reward without the first gap, plateau, gap): three sums of two uncertain levels."""
    plateau, initial = params["plateau"], params["initial_reward"]
    plateau_sd, initial_sd = params["plateau_sd"], params["initial_reward_sd"]
    mean = (plateau, plateau, initial - plateau)
    return mean, ((plateau_sd, plateau_sd, -plateau_sd), (0.0, 0.0, initial_sd))


def _advance_apart(params: Params, tick: Ticks, x: Sequence[Scalar]) -> State:
    return (*advance_first_order(params, tick, x[:2]), x[2])


def _observe_apart(params: Params, tick: Ticks, x: Sequence[Scalar]) -> Scalar:
    del params
    return x[0] + tick.response["left"] * x[2]


def shaped(name: str, shape: Callable[..., Array], parameters: tuple[str, ...]) -> Trajectory:
    """Mean curve with a given shape.

    Parameters
    ----------
    name
        Name in model files.
    shape
        ``shape(time, *parameters)``, as in `bayes_grpo.shapes`.
    parameters
        Names of its parameters, besides the relaxation time.

    Returns
    -------
    Trajectory
        State (reward without the first gap, plateau, gap).
    """
    return Trajectory(
        name=name,
        parameters=("relaxation_time", *parameters),
        size=3,
        plateau_index=1,
        one_update_ticks=False,
        derive=derive_first_order,
        start=_start_apart,
        advance=_advance_apart,
        observe=_observe_apart,
        shocks=lambda params, tick: ((tick.learning_rate, 0.0, 0.0),),
        shape=lambda params, time: shape(time, *(params[p] for p in parameters)),
    )


_SHAPED = (
    shaped("power_law", shapes.power_law, ("decay_exponent",)),
    shaped("scalerl", shapes.scalerl, ("steepness",)),
    shaped("logistic", shapes.logistic, ("initial_success",)),
    shaped("rate_or_fate", shapes.rate_or_fate, ("initial_success",)),
    shaped(
        "rate_or_fate_noisy",
        shapes.rate_or_fate_noisy,
        ("initial_success", "true_positive_rate", "false_positive_rate"),
    ),
    shaped(
        "success_amplification",
        shapes.success_amplification,
        ("initial_success", "kl_weight"),
    ),
    shaped(
        "success_amplification_mirror",
        shapes.success_amplification_mirror,
        ("initial_success", "kl_weight"),
    ),
)


# --- alignment: the plateau follows from where the policy starts ----------------------------------


@lru_cache
def alignment(group_size: int) -> Trajectory:
    """Exponential approach of the fixed point that reference, KL weight and group size imply.

    Parameters
    ----------
    group_size
        G, at least 2 (1, which teaches nothing, is taken as 2).

    Returns
    -------
    Trajectory
        As the exponential, its plateau `bayes_grpo.fixed_points.aligned_success` between the
        reward's bounds.
    """

    def derive(params: Params) -> dict[str, Any]:
        low, high = params["reward_low"], params["reward_high"]
        share = (params["initial_reward"] - low) / (high - low)
        reference = jnp.clip(share, LEAST_SUCCESS, 1 - LEAST_SUCCESS)
        success = aligned_success(reference, params["kl_weight"], max(2, group_size))
        plateau = low + (high - low) * success
        return derive_first_order({**params, "plateau": plateau, "plateau_sd": 0.0})

    return Trajectory(
        name="alignment",
        parameters=("relaxation_time", "kl_weight"),
        size=2,
        plateau_index=1,
        one_update_ticks=False,
        derive=derive,
        start=EXPONENTIAL.start,
        advance=EXPONENTIAL.advance,
        observe=EXPONENTIAL.observe,
        shocks=EXPONENTIAL.shocks,
        levels=("initial_reward",),
        integrated=(),
        needs_bounds=True,
    )


# --- no curve at all -----------------------------------------------------------------------------


LOCAL_LEVEL = Trajectory(
    name="local_level",
    parameters=(),
    size=1,
    plateau_index=0,
    one_update_ticks=False,
    derive=lambda params: dict(params),
    start=lambda params: (
        (params["initial_reward"],),
        independent((params["initial_reward_sd"],)),
    ),
    advance=lambda params, tick, x: (x[0],),
    observe=lambda params, tick, x: x[0],
    shocks=lambda params, tick: (),
    levels=("initial_reward",),
    integrated=("initial_reward",),
)
"""A random walk, by the drift of a model file: what every mean curve must beat."""


def _whatever_the_run(trajectory: Trajectory, recipe: Recipe) -> Trajectory:
    del recipe
    return trajectory


MEAN_CURVES: Mapping[str, MeanCurve] = {
    "oscillator": MeanCurve(partial(_whatever_the_run, OSCILLATOR)),
    "exponential": MeanCurve(partial(_whatever_the_run, EXPONENTIAL)),
    "closed_form": MeanCurve(
        lambda recipe: closed_form(recipe.lag_pattern, recipe.lag), ("lag_pattern", "lag")
    ),
    **{curve.name: MeanCurve(partial(_whatever_the_run, curve)) for curve in _SHAPED},
    "alignment": MeanCurve(lambda recipe: alignment(recipe.group_size), ("group_size",)),
    "local_level": MeanCurve(partial(_whatever_the_run, LOCAL_LEVEL)),
}
"""Mean curves by their names in model files."""
