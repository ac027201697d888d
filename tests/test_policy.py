"""The small neural policy: exact drift, derivatives, curvature, stability."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bayes_grpo as bg
from bayes_grpo.precision import float64
from bayes_grpo.simulate import grpo, training
from bayes_grpo.simulate.curvature import (
    Problem,
    drift,
    jacobians,
    lanczos,
    on_policy_drift,
    response_curvature,
    reward_gradient,
    top_curvature,
)
from bayes_grpo.simulate.design import Design, Hyper
from bayes_grpo.simulate.grpo import Loss
from bayes_grpo.simulate.network import Reference, log_policy, parameter_count, pretrain
from bayes_grpo.simulate.policy import PolicyRun
from bayes_grpo.simulate.task import arithmetic_task
from bayes_grpo.simulate.training import train_many

SMALL = {"embedding": 6, "hidden": 12}


@pytest.fixture(scope="module")
def problem():
    """A small problem in double precision, away from its start."""
    with float64():
        task = arithmetic_task(1, modulus=5)
        reference = pretrain(task, 1, **SMALL)
        shift = jax.random.normal(jax.random.key(3), reference.parameters.shape)
        yield Problem(task, reference, 0.4), reference.parameters + 0.05 * shift


def test_task_is_arithmetic_of_unequal_difficulty():
    task = arithmetic_task(2, modulus=7)
    for (a, op, b), answer in zip(np.asarray(task.prompts), np.asarray(task.answers), strict=True):
        assert answer == [a + b, a - b, a * b][op] % 7
    solvable = np.asarray(task.rewards).sum(axis=1)
    assert set(solvable) == {0.0, 1.0}
    assert np.sum(solvable == 0) == round(0.1 * 3 * 49)
    parts = [np.asarray(task.trained), np.asarray(task.held_out)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(147))
    reference = pretrain(task, **SMALL)
    right = np.exp(
        np.asarray(reference.log_probabilities)[np.arange(147), np.asarray(task.answers)]
    )
    assert 0.35 <= right.mean() < 0.42  # stops at the first step that reaches it
    assert np.quantile(right, 0.9) > 0.7 and np.quantile(right, 0.1) < 0.1


def test_slips_are_named():
    with pytest.raises(bg.InputError, match="modulus is 2: expected 3"):
        arithmetic_task(modulus=2)
    with pytest.raises(bg.InputError, match="unsolvable is 1"):
        arithmetic_task(unsolvable=1)
    with pytest.raises(bg.InputError, match="reaches an accuracy of .*, not 1"):
        pretrain(arithmetic_task(modulus=3), accuracy=1.0)
    with pytest.raises(bg.InputError, match="group_size is 1"):
        Design(group_size=1)
    with pytest.raises(bg.InputError, match="lag is 3 and refresh_interval 2"):
        PolicyRun(lag=3, refresh_interval=2)
    with pytest.raises(bg.InputError, match="updates is 5 and updates_per_row 4"):
        PolicyRun(updates=5, updates_per_row=4)


# The update.


@given(
    st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(lambda c: sum(c) > 1),
    st.sampled_from([0, 1]),
)
def test_advantages_are_those_of_the_group(counts, ddof):
    rewards = np.array([0.0, 1.0, 0.0, 1.0])
    samples = np.repeat(rewards, counts)
    loss = Loss(ddof=ddof)
    with float64():
        found, std = grpo.group_advantages(
            jnp.asarray([counts], float), jnp.asarray(rewards[None]), loss
        )
    spread = samples.std(ddof=ddof)
    expected = (rewards - samples.mean()) / (spread + grpo.EPSILON)
    assert np.allclose(found[0], 0.0 if samples.std() == 0 else expected, atol=1e-12)
    assert float(std[0]) == pytest.approx(samples.std(ddof=1), abs=1e-12)
    # Over the group they have mean 0 and, unless it is dead, mean square 1 up to epsilon.
    of_samples = np.repeat(np.asarray(found[0]), counts)
    assert abs(of_samples.sum()) < 1e-9
    if samples.std() > 0:
        ratio = (samples.std() / (spread + grpo.EPSILON)) ** 2
        assert np.mean(of_samples**2) == pytest.approx(ratio)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("normalisation", ["std", "mean"])
def test_expected_weights_are_the_mean_over_all_groups(normalisation, ddof, x64):
    """Every group of 4 answers out of 3, weighted by its probability."""
    chances = np.array([0.5, 0.3, 0.2])
    rewards = np.array([0.0, 1.0, 0.0])
    loss = Loss(normalisation=normalisation, ddof=ddof)
    mean = np.zeros(3)
    for group in itertools.product(range(3), repeat=4):
        counts = np.bincount(group, minlength=3)
        probability = np.prod(chances[list(group)])
        advantages, _ = grpo.group_advantages(
            jnp.asarray(counts[None], float), jnp.asarray(rewards[None]), loss
        )
        mean += probability * counts / 4 * np.asarray(advantages[0])
    found = grpo.expected_weights(
        jnp.log(jnp.asarray(chances))[None], jnp.asarray(rewards)[None], 4, loss
    )[0]
    # The closed form knows no epsilon.
    assert np.allclose(found, mean, rtol=3 * grpo.EPSILON, atol=1e-12)


def test_drift_factors_are_those_of_the_identity():
    for group_size, row in {
        4: (0.808, 0.712, 0.507), 8: (0.928, 0.877, 0.698), 16: (0.967, 0.952, 0.854)
    }.items():  # fmt: skip
        found = [grpo.drift_factor(p, group_size) for p in (0.5, 0.75, 0.9)]
        assert np.allclose(found, row, atol=6e-4)
    assert grpo.drift_factor(0.3, 2, ddof=1) == pytest.approx(math.sqrt(0.21) / math.sqrt(2))


def test_gain_is_finite_at_the_ends_and_tends_to_infinite_groups(x64):
    chance = jnp.array([0.0, 0.2, 0.7, 1.0])
    gain = grpo.expected_gain(chance, 8, Loss())
    assert np.isfinite(np.asarray(gain)).all()
    many = grpo.expected_gain(chance[1:3], 100, Loss())
    assert np.allclose(many, grpo.expected_gain(chance[1:3], None, Loss()), rtol=0.02)


@pytest.mark.parametrize("ratio", ["none", "clipped"])
def test_sampled_gradients_average_to_the_exact_one(problem, ratio):
    of, sampler = problem
    task, reference = of.task, of.reference
    design = Design(group_size=4, prompts_per_step=16, loss=Loss(ratio=ratio))

    def sampled(key):
        chosen, batch, logged = training.sampled_batch(design, task, reference, sampler, key)
        model = partial(log_policy, reference.network, prompts=task.prompts[chosen])
        now = reference.parameters if ratio == "clipped" else sampler
        return grpo.gradient(model, now, batch, 0.4, design.loss)[0], logged[0]

    gradients, rewards = jax.jit(jax.vmap(sampled))(jax.random.split(jax.random.key(0), 1500))
    exact = of._replace(loss=design.loss, group_size=4)
    now = reference.parameters if ratio == "clipped" else sampler
    expected = drift(exact, now, sampler, 0.4)
    error = np.std(np.asarray(gradients), axis=0) / math.sqrt(1500)
    z = (np.mean(np.asarray(gradients), axis=0) - expected)[error > 1e-12] / error[error > 1e-12]
    # The components depend on each other: their mean square is 1 only roughly. Epsilon shifts the
    # mean by 1e-4 of itself, far below the error.
    assert np.mean(z**2) < 1.6 and np.abs(z).max() < 5
    chance = bg_expected(of, sampler)
    assert float(rewards.mean()) == pytest.approx(chance, abs=5 * float(rewards.std()) / 38)


def bg_expected(of, parameters):
    from bayes_grpo.simulate.network import expected_reward

    return float(expected_reward(of.reference, of.task, parameters, of.task.trained))


@pytest.mark.parametrize("normalisation", ["std", "mean"])
def test_on_policy_drift_is_the_gradient_of_its_potential(problem, normalisation):
    of, at = problem
    of = of._replace(loss=Loss(normalisation=normalisation))
    task, reference = of.task, of.reference
    kept = task.trained
    solvable = jnp.sum(task.rewards[kept], axis=-1) > 0

    def potential(parameters):
        log_now = log_policy(reference.network, parameters, task.prompts[kept])
        rho = jnp.sum(jnp.exp(log_now) * task.rewards[kept], axis=-1)
        # Twice the arc sine of the root has the derivative 1 / sqrt(rho (1 - rho)).
        inside = jnp.where(solvable, rho, 0.5)
        utility = 2 * jnp.arcsin(jnp.sqrt(inside)) if normalisation == "std" else inside
        kl = jnp.sum(jnp.exp(log_now) * (log_now - reference.log_probabilities[kept]), axis=-1)
        return jnp.mean(jnp.where(solvable, utility, 0.0) - of.kl_weight * kl)

    assert np.allclose(on_policy_drift(of, at), jax.grad(potential)(at), atol=1e-12)


def test_surrogates_agree_on_policy_and_differ_off_policy(problem):
    of, at = problem
    start = of.reference.parameters
    losses = [
        Loss(ratio=ratio, stale_force=stale)
        for ratio in ("none", "unclipped", "clipped")
        for stale in ("all", "reward")
    ]
    on = [drift(of._replace(loss=loss), at, at, 0.4) for loss in losses]
    assert all(np.allclose(on[0], other, atol=1e-12) for other in on[1:])
    off = [np.asarray(drift(of._replace(loss=loss), at, start, 0.4)) for loss in losses]
    for a, b in itertools.combinations(off, 2):
        assert np.abs(a - b).max() > 1e-6


def test_unclipped_mean_only_force_is_not_stale(problem):
    """With importance ratios and without std the reward force is that of the current policy."""
    of, at = problem
    loss = Loss(normalisation="mean", ratio="unclipped", stale_force="reward")
    of = of._replace(loss=loss)
    stale = drift(of, at, of.reference.parameters, 0.4)
    assert np.allclose(stale, on_policy_drift(of, at), atol=1e-12)


# Curvature.


def test_jacobian_products_are_the_finite_differences(problem):
    of, at = problem
    direction = jax.random.normal(jax.random.key(8), at.shape)
    direction /= jnp.linalg.norm(direction)
    h = 1e-5
    maps = jacobians(of, at)
    whole = (on_policy_drift(of, at + h * direction) - on_policy_drift(of, at - h * direction)) / (
        2 * h
    )
    assert np.allclose(-maps.whole(direction), whole, atol=1e-8)
    plus, minus = (drift(of, at, at + s * h * direction, of.kl_weight) for s in (1, -1))
    assert np.allclose(-maps.stale(direction), (plus - minus) / (2 * h), atol=1e-8)
    parts = maps.stale(direction) + maps.fresh(direction)
    assert np.allclose(maps.whole(direction), parts, atol=1e-12)


def test_lanczos_finds_the_spectrum_of_the_full_matrix(problem):
    of, at = problem
    size = parameter_count(of.reference.network)
    product = jacobians(of, at).whole
    matrix = np.asarray(jax.vmap(product)(jnp.eye(size)))
    assert np.allclose(matrix, matrix.T, atol=1e-12)
    values, vectors = np.linalg.eigh(matrix)
    top, mode = top_curvature(of, at)
    assert top == pytest.approx(values[-1], rel=1e-8)
    assert abs(mode @ vectors[:, -1]) == pytest.approx(1, abs=1e-6)
    gradient = np.asarray(reward_gradient(of, at))
    spectrum = lanczos(product, jnp.asarray(gradient), 40)
    weight = (vectors.T @ gradient / np.linalg.norm(gradient)) ** 2
    assert spectrum.weight.sum() == pytest.approx(1)
    assert spectrum.weight @ spectrum.curvature == pytest.approx(weight @ values)
    assert spectrum.weight @ spectrum.curvature**2 == pytest.approx(weight @ values**2)


def test_response_over_a_short_time_sees_no_relaxation(problem):
    """As time -> 0 the shift is velocity times time, whatever the curvature: K = 1 / time."""
    of, at = problem
    found = response_curvature(of, at, time=1e-3, learning_rate=1e-4, momentum=0.0, change=-1e-3)
    assert found == pytest.approx(1000, rel=0.01)


def test_zero_std_fraction_is_that_of_the_chances(problem):
    of, at = problem
    design = Design(group_size=4, prompts_per_step=16)

    def fraction(key):
        return training.sampled_batch(design, of.task, of.reference, at, key)[2][2]

    found = jax.jit(jax.vmap(fraction))(jax.random.split(jax.random.key(5), 2000))
    kept = of.task.trained
    chances = jnp.exp(log_policy(of.reference.network, at, of.task.prompts[kept]))
    rho = np.asarray(jnp.sum(chances * of.task.rewards[kept], axis=-1))
    expected = np.mean(rho**4 + (1 - rho) ** 4)
    assert float(found.mean()) == pytest.approx(expected, abs=5 * float(found.std()) / 44)


def test_staleness_destabilises_the_top_mode_where_the_block_map_says(problem):
    """Displaced along the top mode at rest: shrinks just below Lambda = 2, grows just above."""
    of, _ = problem
    task, reference = of.task, of.reference
    # The reference is its own optimum once no prompt pays: rest without training.
    task = task._replace(rewards=jnp.zeros_like(task.rewards))
    of = of._replace(task=task)
    top, mode = top_curvature(of, reference.parameters)
    moved = Reference(
        reference.network, reference.parameters + 1e-4 * mode, reference.log_probabilities
    )
    for staleness, grows in ((1.9, False), (2.1, True)):
        rate = staleness / (top * 8)
        design = Design(group_size=None, exact=True, rows=1, updates_per_row=160)
        _, state = train_many(design, task, moved, Hyper(rate, 0.0, 0.4, refresh_interval=8))
        left = abs(float((state.parameters[0] - reference.parameters) @ mode)) / 1e-4
        expected = abs(1 - staleness) ** 20
        assert left == pytest.approx(expected, rel=0.1)
        assert (left > 1) == grows
