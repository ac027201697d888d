"""What moves the reward besides its mean curve: process noise, and slow drift of the plateau.

Each part gives noise loadings of the state.  A model file lists the parts it wants; both are on
the reward's own scale, so that their priors can be read:

``process``
    Noise of the gradient.  ``fluctuation_sd`` is the stationary standard deviation that it gives
    the reward at the reference learning rate (without lag), whatever the relaxation time.
``drift``
    A random walk of the plateau.  ``drift_sd`` is the standard deviation of the plateau's change
    over the planned length of the run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax.numpy as jnp

from bayes_grpo.statespace import Params, Scalar, State, Ticks
from bayes_grpo.trajectory import Trajectory, stationary_variance


@dataclass(frozen=True)
class Fluctuation:
    """A source of randomness in the state.

    Parameters
    ----------
    name
        Name in model files.
    parameters
        Parameters that need a prior.
    noise
        ``noise(trajectory, params, tick)``: noise loadings, one vector over the state each.
    about_plateau
        Whether it needs a plateau that pulls the reward back.
    """

    name: str
    parameters: tuple[str, ...]
    noise: Callable[[Trajectory, Params, Ticks], Sequence[State]]
    about_plateau: bool = False


def shock_sd(params: Params) -> Scalar:
    """Standard deviation of the random force per step of the recursion at the reference rate."""
    return params["fluctuation_sd"] / jnp.sqrt(
        stationary_variance(params["momentum"], params["pull"])
    )


def _process(trajectory: Trajectory, params: Params, tick: Ticks) -> Sequence[State]:
    return tuple(
        tuple(0.0 if isinstance(b, float) else params["shock_sd"] * b for b in loading)
        for loading in trajectory.shocks(params, tick)
    )


def _drift(trajectory: Trajectory, params: Params, tick: Ticks) -> Sequence[State]:
    step = params["drift_sd"] * tick.root_time
    return (tuple(step if i == trajectory.plateau_index else 0.0 for i in range(trajectory.size)),)


FLUCTUATIONS: Mapping[str, Fluctuation] = {
    "process": Fluctuation("process", ("fluctuation_sd",), _process, about_plateau=True),
    "drift": Fluctuation("drift", ("drift_sd",), _drift),
}
"""Sources of randomness by their names in model files."""
