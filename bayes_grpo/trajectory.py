"""Mean curves: how the expected reward moves when nothing is random.

A `Trajectory` is one part of a model.  It names the parameters that need a prior, turns the run's
learning rates into per-tick responses, and gives the linear recursion that `bayes_grpo.statespace`
runs.  Its state always holds the plateau, so that a drifting plateau is followed as the physics
says, and the first reward and the plateau start from Gaussian priors that the filter integrates
out exactly.

Recursion (heavy ball about a fixed point; the reduction of "Predictable GRPO", arXiv 2606.30789,
in its exact discrete form), one optimizer update:

    v' = momentum v - pull (R_stale - plateau),    R' = R + v'

with ``pull`` the stiffness, learning rate times curvature times the step factor of the momentum
convention, and ``relaxation_time = (1 - momentum) / pull`` in updates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from bayes_grpo.errors import InputError
from bayes_grpo.statespace import Params, Scalar, State, Ticks, independent

MAX_LAG = 64
"""Longest constant lag, in updates: each one is a state."""

LEVELS = ("plateau", "initial_reward")
"""Parameters that start the state; a Normal prior on them is integrated out exactly."""

type Shape = Callable[[Params, Array], Array]

type Responses = Callable[[np.ndarray, float], dict[str, np.ndarray]]


def no_responses(learning_rate: np.ndarray, momentum: float) -> dict[str, np.ndarray]:
    """Per-tick responses of a recursion that needs none beyond the tick's learning rate."""
    del learning_rate, momentum
    return {}


@dataclass(frozen=True)
class Trajectory:
    """A mean curve as a linear recursion whose state holds the reward and the plateau.

    Parameters
    ----------
    name
        Name in model files.
    parameters
        Parameters that need a prior, besides ``plateau`` and ``initial_reward``.
    size
        Number of state variables.
    plateau_index
        Where the state holds the plateau.
    one_update_ticks
        Whether a tick must be a single optimizer update (else: one refresh interval).
    derive
        ``derive(params) -> params`` with the coefficients of the recursion added: ``momentum`` and
        ``pull`` (both per tick step of the recursion).
    start, advance, observe
        As in `bayes_grpo.statespace.System`.
    shocks
        ``shocks(params, tick)``: noise loadings of a unit random force at the reference rate.
    responses
        ``responses(learning_rate, momentum)`` of shape (ticks, updates per tick): per-tick numbers
        computed once from the schedule.
    step_is_update
        Whether ``momentum`` and ``pull`` are those of one optimizer update (else: of one tick).
    levels
        Which of `LEVELS` need a prior; the others follow from the parameters.
    integrated
        Which of those are linear in the state, so that a Normal prior can be integrated out.
    shape
        ``shape(params, time)``: share of the way to the plateau that is left at accumulated
        learning rates ``time``, in relaxation times, shape (ticks,); None: the state says so.
    needs_bounds
        Whether ``derive`` asks for the range of the reward, ``reward_low`` and ``reward_high``.
    """

    name: str
    parameters: tuple[str, ...]
    size: int
    plateau_index: int
    one_update_ticks: bool
    derive: Callable[[Params], dict[str, Any]]
    start: Callable[[Params], tuple[State, tuple[State, ...]]]
    advance: Callable[[Params, Ticks, Sequence[Scalar]], State]
    observe: Callable[[Params, Ticks, Sequence[Scalar]], Scalar]
    shocks: Callable[[Params, Ticks], Sequence[State]]
    responses: Responses = no_responses
    step_is_update: bool = False
    levels: tuple[str, ...] = LEVELS
    integrated: tuple[str, ...] = LEVELS
    shape: Shape | None = None
    needs_bounds: bool = False

    @property
    def relaxes(self) -> bool:
        """Whether there is a plateau that the reward comes closer to."""
        return "relaxation_time" in self.parameters

    def timed(self, params: Params, ticks: Ticks) -> Ticks:
        """Add to the ticks what the mean curve says at their accumulated learning rate.

        Parameters
        ----------
        params
            From ``derive``.
        ticks
            The run's ticks; ``elapsed`` is read.

        Returns
        -------
        Ticks
            With ``response["left"]``, shape (ticks,), if the curve has a `shape`.
        """
        if self.shape is None:
            return ticks
        left = self.shape(params, params["pull"] * jnp.asarray(ticks.elapsed))
        return ticks._replace(response={**ticks.response, "left": left})

    def updates_per_step(self, updates_per_tick: int) -> int:
        """Optimizer updates of one step of the recursion that momentum and pull belong to."""
        return 1 if self.step_is_update else updates_per_tick


def momentum_and_pull(relaxation_time: Scalar, damping: Scalar) -> tuple[Scalar, Scalar]:
    """Recursion with a given relaxation time and damping ratio.

    Parameters
    ----------
    relaxation_time
        In steps of the recursion, > 0.
    damping
        Damping ratio of the continuous oscillator, > 0; 1 is critical as the step goes to 0.

    Returns
    -------
    momentum, pull : Scalar
        With ``(1 - momentum) / pull == relaxation_time`` exactly, and `damping_ratio` of the pair
        equal to ``damping`` capped by the time step: ``1 / ratio^2 = 1 / damping^2 + 1 /
        relaxation_time``.  At most the cap, a recursion without any memory of its velocity.
    """
    root = relaxation_time / (relaxation_time + 2 * damping**2)
    momentum = root**2
    return momentum, (1 - momentum) / relaxation_time


def damping_ratio(momentum: Scalar, pull: Scalar) -> Scalar:
    """Exact damping ratio of the discrete recursion: below 1 it oscillates.

    The roots of ``z^2 - (1 + momentum - pull) z + momentum`` meet at ``pull = (1 -
    sqrt(momentum))^2``; the ratio is 1 there and tends to
    ``(1 - momentum) / (2 sqrt(pull))``, the continuous one, for small steps.
    """
    return (1 - jnp.sqrt(momentum)) / jnp.sqrt(pull)


def stationary_variance(momentum: Scalar, pull: Scalar) -> Scalar:
    """Stationary variance of the reward under a unit random force, without lag."""
    return (1 + momentum) / ((1 - momentum) * pull * (2 * (1 + momentum) - pull))


def _at_rest(velocities: int) -> Callable[[Params], tuple[State, tuple[State, ...]]]:
    """Start of a state (reward, velocities, plateau): at rest, reward and plateau uncertain."""
    rest = (0.0,) * velocities

    def start(params: Params) -> tuple[State, tuple[State, ...]]:
        mean = (params["initial_reward"], *rest, params["plateau"])
        return mean, independent((params["initial_reward_sd"], *rest, params["plateau_sd"]))

    return start


# --- free mass ---------------------------------------------------------------------------------


def _derive_free(params: Params) -> dict[str, Any]:
    steps = params["relaxation_time"] / params["updates_per_tick"]
    momentum, pull = momentum_and_pull(steps, params["damping_ratio"])
    return {**params, "momentum": momentum, "pull": pull}


def _advance_second_order(params: Params, tick: Ticks, x: Sequence[Scalar]) -> State:
    reward, velocity, plateau = x
    velocity = params["momentum"] * velocity - params["pull"] * tick.learning_rate * (
        reward - plateau
    )
    return reward + velocity, velocity, plateau


def _first(params: Params, tick: Ticks, x: Sequence[Scalar]) -> Scalar:
    del params, tick
    return x[0]


OSCILLATOR = Trajectory(
    name="oscillator",
    parameters=("relaxation_time", "damping_ratio"),
    size=3,
    plateau_index=2,
    one_update_ticks=False,
    derive=_derive_free,
    start=_at_rest(velocities=1),
    advance=_advance_second_order,
    observe=_first,
    shocks=lambda params, tick: ((tick.learning_rate, tick.learning_rate, 0.0),),
)


# --- overdamped limit --------------------------------------------------------------------------


def derive_first_order(params: Params) -> dict[str, Any]:
    """Add the coefficients of a recursion without inertia: no momentum, a pull of 1 / steps."""
    steps = params["relaxation_time"] / params["updates_per_tick"]
    return {**params, "momentum": jnp.zeros_like(steps), "pull": 1 / steps}


def advance_first_order(params: Params, tick: Ticks, x: Sequence[Scalar]) -> State:
    """One tick of a reward that its plateau pulls, without inertia."""
    reward, plateau = x
    return reward - params["pull"] * tick.learning_rate * (reward - plateau), plateau


EXPONENTIAL = Trajectory(
    name="exponential",
    parameters=("relaxation_time",),
    size=2,
    plateau_index=1,
    one_update_ticks=False,
    derive=derive_first_order,
    start=_at_rest(velocities=0),
    advance=advance_first_order,
    observe=_first,
    shocks=lambda params, tick: ((tick.learning_rate, 0.0),),
)


# --- closed form: momentum and refresh interval known, curvature free -----------------------------


def block_responses(learning_rate: np.ndarray, momentum: float) -> dict[str, np.ndarray]:
    """Response of a block of updates that share one sampling policy (hold and refresh).

    Parameters
    ----------
    learning_rate
        Relative learning rate of every update, shape (ticks, updates per tick).
    momentum
        Heavy-ball momentum of one update.

    Returns
    -------
    dict of ndarray
        Shape (ticks,) each.  ``velocity_kept``: what is left of the velocity; ``coasted``: how far
        a unit velocity carries the reward; ``velocity_push``, ``reward_push``: end velocity and
        displacement under a unit force, for any schedule;
        ``noise_reward``, ``noise_shared``, ``noise_velocity``: Cholesky factor of the covariance of
        (displacement, end velocity) under unit white forces.
    """
    ticks, updates = learning_rate.shape
    left = np.arange(updates)[::-1]
    velocity_weight = momentum**left
    reward_weight = np.cumsum(momentum ** np.arange(updates))[::-1]
    power = learning_rate**2
    rr = power @ reward_weight**2
    rv = power @ (reward_weight * velocity_weight)
    vv = power @ velocity_weight**2
    noise_reward = np.sqrt(rr)
    noise_shared = np.divide(rv, noise_reward, out=np.zeros(ticks), where=noise_reward > 0)
    return {
        "velocity_kept": np.full(ticks, momentum**updates),
        "coasted": np.full(ticks, momentum * reward_weight[0]),
        "velocity_push": learning_rate @ velocity_weight,
        "reward_push": learning_rate @ reward_weight,
        "noise_reward": noise_reward,
        "noise_shared": noise_shared,
        "noise_velocity": np.sqrt(np.clip(vv - noise_shared**2, 0, None)),
    }


def _derive_closed(params: Params) -> dict[str, Any]:
    momentum = params["optimizer_momentum"]
    return {**params, "momentum": momentum, "pull": (1 - momentum) / params["relaxation_time"]}


def _advance_block(params: Params, tick: Ticks, x: Sequence[Scalar]) -> State:
    reward, velocity, plateau = x
    gap = params["pull"] * (reward - plateau)
    block = tick.response
    return (
        reward + block["coasted"] * velocity - block["reward_push"] * gap,
        block["velocity_kept"] * velocity - block["velocity_push"] * gap,
        plateau,
    )


def _block_shocks(params: Params, tick: Ticks) -> Sequence[State]:
    del params
    block = tick.response
    return (
        (block["noise_reward"], block["noise_shared"], 0.0),
        (0.0, block["noise_velocity"], 0.0),
    )


HOLD_AND_REFRESH = Trajectory(
    name="closed_form",
    parameters=("relaxation_time",),
    size=3,
    plateau_index=2,
    one_update_ticks=False,
    derive=_derive_closed,
    start=_at_rest(velocities=1),
    advance=_advance_block,
    observe=_first,
    shocks=_block_shocks,
    responses=block_responses,
    step_is_update=True,
)


def constant_lag(lag: int) -> Trajectory:
    """Closed form when every update uses rollouts of the policy ``lag`` updates ago.

    The state holds the displacements of the last ``lag`` updates (the velocity is the last one)
    instead of the last rewards: they start at zero, so that the first reward stays one independent
    entry.  The logged reward is that of the rollouts that the update uses.

    Parameters
    ----------
    lag
        In optimizer updates, >= 0.

    Raises
    ------
    InputError
        If the lag is longer than `MAX_LAG`.

    Returns
    -------
    Trajectory
        State (reward, velocity, plateau, displacement of the second last, third last, ... update).
    """
    if lag > MAX_LAG:
        raise InputError(f"setting lag is {lag}: the closed form follows at most {MAX_LAG} updates")
    older = max(lag - 1, 0)

    def start(params: Params) -> tuple[State, tuple[State, ...]]:
        rest = (0.0,) * older
        mean = (params["initial_reward"], 0.0, params["plateau"], *rest)
        sds = (params["initial_reward_sd"], 0.0, params["plateau_sd"], *rest)
        return mean, independent(sds)

    def observe(params: Params, tick: Ticks, x: Sequence[Scalar]) -> Scalar:
        del params, tick
        stale = x[0]
        for displacement in (x[1], *x[3:])[:lag]:
            stale = stale - displacement
        return stale

    def advance(params: Params, tick: Ticks, x: Sequence[Scalar]) -> State:
        reward, velocity, plateau = x[:3]
        gap = observe(params, tick, x) - plateau
        moved = params["momentum"] * velocity - params["pull"] * tick.learning_rate * gap
        return (reward + moved, moved, plateau, *(velocity, *x[3:])[:older])

    def shocks(params: Params, tick: Ticks) -> Sequence[State]:
        del params
        return ((tick.learning_rate, tick.learning_rate, 0.0, *(0.0,) * older),)

    return Trajectory(
        name="closed_form",
        parameters=("relaxation_time",),
        size=3 + older,
        plateau_index=2,
        one_update_ticks=True,
        derive=_derive_closed,
        start=start,
        advance=advance,
        observe=observe,
        shocks=shocks,
        step_is_update=True,
    )


def closed_form(lag_pattern: str, lag: int) -> Trajectory:
    """Closed-form trajectory for a run's lag pattern (``hold`` or ``constant``)."""
    return constant_lag(lag) if lag_pattern == "constant" else HOLD_AND_REFRESH
