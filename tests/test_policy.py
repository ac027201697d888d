"""The small neural policy: exact drift, derivatives, staleness, the factorial data set."""

import importlib.util
import itertools
import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
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
from bayes_grpo.simulate.grpo import Loss
from bayes_grpo.simulate.network import Reference, log_policy, parameter_count, pretrain
from bayes_grpo.simulate.policy import PolicyRun, add_command, policy, simulate_policy
from bayes_grpo.simulate.task import arithmetic_task
from bayes_grpo.simulate.training import Design, Hyper, History, train_many

DATA = Path(__file__).resolve().parents[1] / "data"
SMALL = {"embedding": 6, "hidden": 12}


@pytest.fixture(scope="module")
def problem():
    """A small problem in double precision, away from its start."""
    with float64():
        task = arithmetic_task(1, modulus=5)
        reference = pretrain(task, 1, **SMALL)
        shift = jax.random.normal(jax.random.key(3), reference.parameters.shape)
        yield Problem(task, reference, 0.4), reference.parameters + 0.05 * shift


@pytest.fixture(scope="module")
def single():
    """The same in single precision, as runs are trained."""
    task = arithmetic_task(1, modulus=5)
    return task, pretrain(task, 1, **SMALL)


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
    many = grpo.expected_gain(chance[1:3], 400, Loss())
    assert np.allclose(many, grpo.expected_gain(chance[1:3], None, Loss()), rtol=0.01)


@pytest.mark.parametrize("ratio", ["none", "clipped"])
def test_sampled_gradients_average_to_the_exact_one(problem, ratio):
    of, sampler = problem
    task, reference = of.task, of.reference
    design = Design(group_size=4, prompts_per_step=64, loss=Loss(ratio=ratio))

    def sampled(key):
        chosen, batch, logged = training.sampled_batch(design, task, reference, sampler, key)
        model = partial(log_policy, reference.network, prompts=task.prompts[chosen])
        now = reference.parameters if ratio == "clipped" else sampler
        return grpo.gradient(model, now, batch, 0.4, design.loss)[0], logged[0]

    gradients, rewards = jax.jit(jax.vmap(sampled))(jax.random.split(jax.random.key(0), 3000))
    exact = of._replace(loss=design.loss, group_size=4)
    now = reference.parameters if ratio == "clipped" else sampler
    expected = drift(exact, now, sampler, 0.4)
    error = np.std(np.asarray(gradients), axis=0) / math.sqrt(3000)
    z = (np.mean(np.asarray(gradients), axis=0) - expected)[error > 1e-12] / error[error > 1e-12]
    # The components depend on each other: their mean square is 1 only roughly. Epsilon shifts the
    # mean by 1e-4 of itself, far below the error.
    assert np.mean(z**2) < 1.6 and np.abs(z).max() < 5
    chance = bg_expected(of, sampler)
    assert float(rewards.mean()) == pytest.approx(chance, abs=5 * float(rewards.std()) / 54)


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
    found = response_curvature(of, at, time=0.01, learning_rate=1e-3, momentum=0.0, change=-1e-3)
    assert found == pytest.approx(100, rel=0.02)


# Training.


def rows(history):
    return {name: np.asarray(x) for name, x in history._asdict().items()}


def test_refresh_at_every_update_is_on_policy_for_both_patterns(single):
    task, reference = single
    base = {"group_size": 4, "prompts_per_step": 8, "rows": 20, "loss": Loss(ratio="clipped")}
    hold, _ = train_many(Design(**base), task, reference, Hyper(0.5, 0.9, refresh_interval=1))
    lagging = Design(**base, lag_pattern="constant", longest_lag=3)
    constant, _ = train_many(lagging, task, reference, Hyper(0.5, 0.9, lag=0))
    for a, b in zip(hold, constant, strict=True):
        assert np.allclose(a, b, atol=1e-5)
    assert np.all(np.asarray(hold.clip_fraction) == 0)
    late, _ = train_many(lagging, task, reference, Hyper(0.5, 0.9, lag=3))
    assert not np.allclose(late.reward, constant.reward)
    assert np.asarray(late.clip_fraction).max() > 0


def test_the_sampler_is_held_or_lags(single):
    """Written out as a loop over updates, with the exact drift."""
    task, reference = single
    loss = Loss(stale_force="reward")
    of = Problem(task, reference, 0.4, loss)
    for pattern, interval, lag in (("hold", 3, 0), ("constant", 1, 2)):
        design = Design(
            group_size=None, exact=True, rows=8, loss=loss, lag_pattern=pattern, longest_lag=lag
        )
        _, state = train_many(
            design, task, reference, Hyper(0.5, 0.8, 0.4, refresh_interval=interval, lag=lag)
        )
        path, velocity = [reference.parameters], jnp.zeros_like(reference.parameters)
        for t in range(8):
            sampler = path[t - t % interval] if pattern == "hold" else path[max(0, t - lag)]
            velocity = 0.8 * velocity + 0.2 * drift(of, path[t], sampler, 0.4)
            path.append(path[t] + 0.5 * velocity)
        assert np.allclose(state.parameters[0], path[-1], atol=2e-5)


def test_optimizers_are_those_of_optax(single):
    optax = pytest.importorskip("optax")
    task, reference = single
    of = Problem(task, reference, 0.4)
    makers = {
        ("sgd", "heavy_ball"): optax.sgd(0.1, momentum=0.9),
        ("adam", "ema"): optax.adam(0.01, b1=0.9, b2=0.999),
    }
    for (optimizer, convention), peer in makers.items():
        design = Design(
            group_size=None, exact=True, rows=5, optimizer=optimizer, momentum_convention=convention
        )
        rate = 0.01 if optimizer == "adam" else 0.1
        _, state = train_many(design, task, reference, Hyper(rate, 0.9, 0.4))
        parameters, moments = reference.parameters, peer.init(reference.parameters)
        for _ in range(5):
            step, moments = peer.update(-on_policy_drift(of, parameters), moments)
            parameters = parameters + step
        assert np.allclose(state.parameters[0], parameters, atol=1e-4)


def test_ema_is_heavy_ball_at_a_smaller_rate(single):
    task, reference = single
    base = {"group_size": None, "exact": True, "rows": 10}
    ema, _ = train_many(Design(**base), task, reference, Hyper(1.0, 0.9))
    heavy, _ = train_many(
        Design(**base, momentum_convention="heavy_ball"), task, reference, Hyper(0.1, 0.9)
    )
    assert np.allclose(ema.expected_reward, heavy.expected_reward, atol=1e-5)


def test_reused_rollouts_are_the_same_until_the_refresh(single):
    task, reference = single
    design = Design(group_size=4, prompts_per_step=8, rows=12, reuse=True)
    history, _ = train_many(design, task, reference, Hyper(0.5, 0.0, refresh_interval=4))
    blocks = np.asarray(history.reward[0]).reshape(3, 4)
    assert np.all(blocks == blocks[:, :1]) and len(set(blocks[:, 0])) > 1


def test_logged_quantities_are_conserved(single):
    task, reference = single
    design = Design(group_size=2, prompts_per_step=16, rows=30)
    history, _ = train_many(design, task, reference, Hyper(0.3, 0.5, seed=jnp.arange(4)))
    logged = rows(history)
    # 16 groups of 2: a group is dead, or has one success and deviation 1 / sqrt(2).
    mixed = 1 - logged["zero_std_fraction"]
    assert np.allclose(logged["reward_std"], mixed / math.sqrt(2), atol=1e-6)
    assert np.allclose(mixed * 16, np.round(mixed * 16), atol=1e-5)
    assert np.allclose(logged["reward"] * 32, np.round(logged["reward"] * 32), atol=1e-4)
    assert (np.abs(logged["reward"] * 2 - 1) <= 1).all()
    assert (logged["kl"] >= -1e-6).all()
    assert (logged["entropy"] <= math.log(5) + 1e-5).all()


def test_zero_std_fraction_is_that_of_the_chances(problem):
    of, at = problem
    design = Design(group_size=4, prompts_per_step=64)

    def fraction(key):
        return training.sampled_batch(design, of.task, of.reference, at, key)[2][2]

    found = jax.jit(jax.vmap(fraction))(jax.random.split(jax.random.key(5), 2000))
    kept = of.task.trained
    chances = jnp.exp(log_policy(of.reference.network, at, of.task.prompts[kept]))
    rho = np.asarray(jnp.sum(chances * of.task.rewards[kept], axis=-1))
    expected = np.mean(rho**4 + (1 - rho) ** 4)
    assert float(found.mean()) == pytest.approx(expected, abs=5 * float(found.std()) / 44)


def test_windows_average_and_seeds_reproduce(single):
    task, reference = single
    hyper = Hyper(0.5, 0.9, refresh_interval=2, seed=jnp.array([3, 4]))
    base = {"group_size": 4, "prompts_per_step": 8}
    each, _ = train_many(Design(**base, rows=12), task, reference, hyper)
    again, _ = train_many(Design(**base, rows=12), task, reference, hyper)
    for a, b in zip(each, again, strict=True):
        assert np.array_equal(a, b)
    assert not np.array_equal(each.reward[0], each.reward[1])
    window, _ = train_many(Design(**base, rows=3, updates_per_row=4), task, reference, hyper)
    at_end = {"expected_reward", "eval_reward"}
    for name in History._fields:
        fine = np.asarray(getattr(each, name)).reshape(2, 3, 4)
        expected = fine[:, :, -1] if name in at_end else fine.mean(axis=2)
        assert np.allclose(getattr(window, name), expected, atol=1e-4), name


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


# Logs and the data set.


def test_log_reads_back(tmp_path):
    import click

    group = click.Group("simulate")
    add_command(group)
    path = tmp_path / "small.jsonl"
    options = ["--updates", "24", "--updates-per-row", "2", "--modulus", "5", "--refresh-interval",
               "4", "--group-size", "4", "--ratio", "none", "--seed", "7"]  # fmt: skip
    done = CliRunner().invoke(group, ["policy", *options, "--out", str(path)])
    assert done.exit_code == 0, done.output
    assert "12 rows written" in done.output
    run = bg.read_run(path)
    table = simulate_policy(
        PolicyRun(updates=24, updates_per_row=2, modulus=5, refresh_interval=4, group_size=4,
                  ratio="none", seed=7)  # fmt: skip
    )
    for name in ("reward", "reward_std", "zero_std_fraction", "kl", "entropy", "grad_norm",
                 "clip_fraction", "learning_rate", "eval_reward", "expected_reward"):  # fmt: skip
        assert np.allclose(run.table[name], table[name], atol=1e-12), name
    assert (run.table["updates"] == 2).all() and (run.table["generations"] == 2).all()


def test_options_of_the_command_are_the_fields_of_a_run():
    from dataclasses import fields

    names = {parameter.name for parameter in policy.params} - {"out"}
    assert names == {field.name for field in fields(PolicyRun)}
    assert set(PolicyRun().settings()) <= set(bg.Settings.names())


def make_sweep():
    spec = importlib.util.spec_from_file_location("make_sweep", DATA / "make_sweep.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_interrupted_grid_resumes_to_the_same_bytes(tmp_path, monkeypatch):
    module = make_sweep()
    monkeypatch.setattr(module, "arithmetic_task", lambda seed: arithmetic_task(seed, modulus=3))
    monkeypatch.setattr(
        module, "pretrain", lambda task, seed: pretrain(task, seed, accuracy=0.5, **SMALL)
    )
    grid = module.Grid((2, 4), (0.9,), (1, 4), (0.2, 0.6), (0, 1), rows=3)
    whole, halted = tmp_path / "whole", tmp_path / "halted"
    assert module.make(grid, whole) == 0
    assert module.make(grid, halted, limit=1) == 3
    (halted / "cell_001.csv.tmp").write_text("half a li")
    kept = (halted / "cell_000.csv").stat().st_mtime_ns
    assert module.make(grid, halted) == 0
    assert (halted / "cell_000.csv").stat().st_mtime_ns == kept
    for folder in (whole, halted):
        module.assemble(grid, folder, folder / "sweep.csv.gz")
    written = (whole / "sweep.csv.gz").read_bytes()
    assert written == (halted / "sweep.csv.gz").read_bytes()
    with pytest.raises(SystemExit, match="another grid"):
        module.make(grid._replace(rows=4), halted)
    from bayes_grpo.sweep import read_sweep

    runs = read_sweep(whole / "sweep.csv.gz")
    assert len(runs) == 16 and runs[0].name == "G2 momentum 0.9 refresh 1 lr 0.2 seed 0"


@pytest.fixture(scope="module")
def sweep():
    return bg.load_example("sweep")


def test_sweep_is_the_full_grid(sweep):
    module = make_sweep()
    grid = module.Grid()
    levels = [
        (r.settings.group_size, r.settings.momentum, r.settings.refresh_interval,
         r.settings.learning_rate, int(r.name.split()[-1]))
        for r in sweep
    ]  # fmt: skip
    assert levels == list(itertools.product(*grid[:5]))
    assert len({run.name for run in sweep}) == 1125
    for run in sweep:
        assert len(run) == 100 and run.table["step"].iloc[-1] == 1600
        shared = {name: value for name, value in module.settings(grid).items()}
        shared["reward_bounds"] = (0.0, 1.0)
        assert all(getattr(run.settings, name) == value for name, value in shared.items())
        assert run.settings["group_size"].provenance == "given"
        assert (run.table["updates"] == 16).all() and (run.table["generations"] == 16).all()
        assert run.table[["reward", "expected_reward", "zero_std_fraction"]].notna().all(axis=None)


def test_sweep_logs_what_was_sampled(sweep):
    """Rewards scatter around the exact expectation as 512 prompts of G rollouts must."""
    table = pd.concat(
        [r.table.assign(G=r.settings.group_size) for r in sweep if r.settings.learning_rate == 0.2
         and r.settings.refresh_interval == 1 and r.settings.momentum == 0.0]
    )  # fmt: skip
    late = table[table["step"] > 1200]
    assert (late["reward"] - late["expected_reward"]).abs().max() < 0.1
    # Whole counts of rewarded rollouts, up to the rounding of the file.
    counts = late["reward"] * 512 * late["G"]
    few = late["G"] == 2
    assert np.abs(counts - counts.round())[few].max() < 0.06
    # Groups of two: deviation 1 / sqrt(2) in every group that is not dead.
    two = table[table["G"] == 2]
    assert np.allclose(two["reward_std"], (1 - two["zero_std_fraction"]) / math.sqrt(2), atol=5e-4)


def test_sweep_settings_can_be_replaced():
    with pytest.raises(bg.InputError, match="no example 'sweeps'.*did you mean 'sweep'"):
        bg.load_example("sweeps")


def test_the_first_cell_can_be_made_again(sweep):
    """Same seeds, same code: the first rows of the committed table, up to rounding and chaos."""
    module = make_sweep()
    task = arithmetic_task(module.TASK_SEED)
    reference = pretrain(task, module.REFERENCE_SEED)
    grid = module.Grid()._replace(rows=2)
    again = module.train_cell(grid, 0, task, reference)
    for i, run in enumerate(sweep[:15]):
        first = again.iloc[2 * i : 2 * i + 2]
        assert np.allclose(first["reward"], run.table["reward"].head(2), atol=0.02)
        assert np.allclose(first["expected_reward"], run.table["expected_reward"].head(2), atol=0.01)
