"""GRPO training of the small policy: one compiled scan, mapped over whole grids of runs."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bayes_grpo.simulate.design import Design, Hyper, check_hyper, in_line
from bayes_grpo.simulate.grpo import (
    Surrogate,
    expected_weights,
    gradient,
    group_advantages,
)
from bayes_grpo.simulate.network import Reference, expected_reward, log_policy
from bayes_grpo.simulate.task import Task


class History(NamedTuple):
    """A run as its trainer logs it; each of shape (rows,).

    Parameters
    ----------
    reward, reward_std, zero_std_fraction
        Of the sampled groups: mean; mean standard deviation within a group (``ddof=1``); share of
        groups whose rewards are all equal. With exact updates: the mean over the training prompts,
        and NaN.
    kl, entropy
        Of the current policy at the prompts of the batch, exact over the answers, in nats.
    clip_fraction, grad_norm
        Share of clipped samples; Euclidean norm of the gradient.
    expected_reward, eval_reward
        Exact mean reward of the policy at the end of the row over the training prompts and over
        the held-out ones. The other columns are means over the updates of the row.
    """

    reward: jax.Array
    reward_std: jax.Array
    zero_std_fraction: jax.Array
    kl: jax.Array
    entropy: jax.Array
    clip_fraction: jax.Array
    grad_norm: jax.Array
    expected_reward: jax.Array
    eval_reward: jax.Array


class State(NamedTuple):
    """Where training stands: parameters, sampler, past parameters, optimizer moments, update."""

    parameters: jax.Array
    sampler: jax.Array
    past: jax.Array
    velocity: jax.Array
    square: jax.Array
    update: jax.Array


def initial_state(design: Design, parameters: jax.Array) -> State:
    """Return the state before the first update.

    Parameters
    ----------
    design
        Gives the longest lag.
    parameters
        Shape (parameters,).

    Returns
    -------
    State
    """
    zero = jnp.zeros_like(parameters)
    past = jnp.tile(parameters, (design.longest_lag + 1, 1))
    return State(parameters, parameters, past, zero, zero, jnp.zeros((), jnp.int32))


type Batch = tuple[jax.Array, Surrogate, tuple[jax.Array, jax.Array, jax.Array]]
"""Prompts, surrogate, and (reward, reward_std, zero_std_fraction) of one rollout batch."""


def exact_batch(design: Design, task: Task, reference: Reference, sampler: jax.Array) -> Batch:
    """Return the expectation of all batches: every training prompt, groups summed over."""
    chosen = task.trained
    log_sampler = log_policy(reference.network, sampler, task.prompts[chosen])
    rewards, log_reference = task.rewards[chosen], reference.log_probabilities[chosen]
    share = jnp.exp(log_sampler)
    chance = jnp.sum(share * rewards, axis=-1, keepdims=True)
    weights = expected_weights(log_sampler, rewards, design.group_size, design.loss)
    logged = jnp.mean(chance), jnp.asarray(jnp.nan), jnp.asarray(jnp.nan)
    return chosen, Surrogate(weights, rewards - chance, share, log_sampler, log_reference), logged


def sampled_batch(
    design: Design, task: Task, reference: Reference, sampler: jax.Array, key: jax.Array
) -> Batch:
    """Draw prompts, with replacement, and a group of answers to each."""
    for_prompts, for_answers = jax.random.split(key)
    at = jax.random.randint(for_prompts, (design.prompts_per_step,), 0, len(task.trained))
    chosen = task.trained[at]
    log_sampler = log_policy(reference.network, sampler, task.prompts[chosen])
    rewards, log_reference = task.rewards[chosen], reference.log_probabilities[chosen]
    counts = sample_counts(log_sampler, design.group_size or 0, for_answers)
    share = counts / jnp.sum(counts, axis=-1, keepdims=True)
    advantages, std = group_advantages(counts, rewards, design.loss)
    logged = (
        jnp.mean(jnp.sum(share * rewards, axis=-1)),
        jnp.mean(std),
        jnp.mean((std == 0).astype(std.dtype)),
    )
    surrogate = Surrogate(share * advantages, advantages, share, log_sampler, log_reference)
    return chosen, surrogate, logged


def sample_counts(log_sampler: jax.Array, group_size: int, key: jax.Array) -> jax.Array:
    """Draw how often each answer occurs in a group, by inverting the distribution function.

    Parameters
    ----------
    log_sampler
        Shape (batch, answers).
    group_size
        G.
    key
        Random key.

    Returns
    -------
    jax.Array
        Shape (batch, answers), summing to G over the answers.
    """
    below = jnp.cumsum(jnp.exp(log_sampler), axis=-1)[:, :-1]
    uniform = jax.random.uniform(key, (below.shape[0], group_size), log_sampler.dtype)
    # Draws up to each answer; their differences are the counts, and sum to the group size.
    upto = jnp.sum((uniform[:, :, None] < below[:, None, :]).astype(log_sampler.dtype), axis=1)
    full = jnp.full((below.shape[0], 1), group_size, log_sampler.dtype)
    return jnp.diff(jnp.concatenate([upto, full], axis=1), axis=1, prepend=0.0)


def _optimizer(
    design: Design, hyper: Hyper, state: State, direction: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Parameters, velocity and second moment after an update."""
    mu, eta = hyper.momentum, hyper.learning_rate
    if design.optimizer == "adam":
        count = state.update + 1
        velocity = mu * state.velocity + (1 - mu) * direction
        square = 0.999 * state.square + 0.001 * direction**2
        mean = velocity / (1 - mu**count)
        root = jnp.sqrt(square / (1 - 0.999**count)) + 1e-8
        return state.parameters + eta * mean / root, velocity, square
    weight = 1 - mu if design.momentum_convention == "ema" else 1.0
    velocity = mu * state.velocity + weight * direction
    return state.parameters + eta * velocity, velocity, state.square


def update(
    design: Design,
    task: Task,
    reference: Reference,
    hyper: Hyper,
    state: State,
) -> tuple[State, tuple[jax.Array, ...]]:
    """One optimizer update.

    Parameters
    ----------
    design, task, reference, hyper
        The run.
    state
        Before the update.

    Returns
    -------
    state : State
        After it.
    logged : tuple of jax.Array
        The first seven entries of `History`, scalars.
    """
    if design.lag_pattern == "hold":
        fresh = state.update % hyper.refresh_interval == 0
        sampler, past = jnp.where(fresh, state.parameters, state.sampler), state.past
        block = state.update // hyper.refresh_interval
    else:
        slots = design.longest_lag + 1
        past = state.past.at[state.update % slots].set(state.parameters)
        sampler, block = past[(state.update - hyper.lag) % slots], state.update
    number = block if design.reuse else state.update
    if design.exact:
        chosen, batch, logged = exact_batch(design, task, reference, sampler)
    else:
        key = jax.random.fold_in(jax.random.key(hyper.seed), number)
        chosen, batch, logged = sampled_batch(design, task, reference, sampler, key)
    policy = partial(log_policy, reference.network, prompts=task.prompts[chosen])
    direction, log_now, clipped = gradient(
        policy, state.parameters, batch, hyper.kl_weight, design.loss
    )
    kl = jnp.mean(jnp.sum(jnp.exp(log_now) * (log_now - batch.log_reference), axis=-1))
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_now) * log_now, axis=-1))
    parameters, velocity, square = _optimizer(design, hyper, state, direction)
    after = State(parameters, sampler, past, velocity, square, state.update + 1)
    return after, (*logged, kl, entropy, clipped, jnp.linalg.norm(direction))


def train(
    design: Design,
    task: Task,
    reference: Reference,
    hyper: Hyper,
    state: State | None = None,
) -> tuple[History, State]:
    """Train one policy; to be compiled and mapped with `train_many`.

    Parameters
    ----------
    design, task, reference
        What, on what, from where.
    hyper
        Scalars.
    state
        Where to start; else at the reference.

    Returns
    -------
    history : History
    state : State
        At the end.
    """
    begin = initial_state(design, reference.parameters) if state is None else state

    def row(carry: State, _: None) -> tuple[State, History]:
        after, logged = jax.lax.scan(
            lambda s, _: update(design, task, reference, hyper, s),
            carry,
            length=design.updates_per_row,
        )
        means = jax.tree.map(jnp.mean, logged)
        at_end = (
            expected_reward(reference, task, after.parameters, kept)
            if len(kept)
            else jnp.asarray(jnp.nan)
            for kept in (task.trained, task.held_out)
        )
        return after, History(*means, *at_end)

    end, history = jax.lax.scan(row, begin, length=design.rows)
    return history, end


def train_many(
    design: Design, task: Task, reference: Reference, hyper: Hyper
) -> tuple[History, State]:
    """Train many policies at once from one reference.

    Parameters
    ----------
    design, task, reference
        Shared by all.
    hyper
        Scalars or arrays of one length; scalars are shared.

    Returns
    -------
    history : History
        Each of shape (runs, rows).
    state : State
        At the end, each with the runs in front.

    Raises
    ------
    InputError
        If a number is out of range, or arrays differ in length.
    """
    check_hyper(design, hyper)
    return _compiled(design)(task, reference, in_line(hyper))


@partial(jax.jit, static_argnums=(0, 2))
def _run(
    design: Design, task: Task, network: Any, reference: Any, hyper: Hyper
) -> tuple[History, State]:
    whole = Reference(network, *reference)
    return jax.vmap(lambda one: train(design, task, whole, one))(hyper)


def _compiled(design: Design) -> Callable[[Task, Reference, Hyper], tuple[History, State]]:
    def call(task: Task, reference: Reference, hyper: Hyper) -> tuple[History, State]:
        # The network holds sizes, not arrays: part of the program.
        return _run(
            design,
            task,
            reference.network,
            (reference.parameters, reference.log_probabilities),
            hyper,
        )

    return call
