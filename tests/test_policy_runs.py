"""Training of the small policy as it is run: single precision, logs, the factorial data set."""

import importlib.util
import itertools
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import bayes_grpo as bg
from bayes_grpo.cli import main
from bayes_grpo.cli_simulate import policy
from bayes_grpo.run import Run
from bayes_grpo.simulate.curvature import Problem, drift, on_policy_drift
from bayes_grpo.simulate.design import Design, Hyper
from bayes_grpo.simulate.grpo import Loss
from bayes_grpo.simulate.network import pretrain
from bayes_grpo.simulate.policy import PolicyRun, simulate_policy
from bayes_grpo.simulate.task import arithmetic_task
from bayes_grpo.simulate.training import History, train_many

DATA = Path(__file__).resolve().parents[1] / "data"
SMALL = {"embedding": 6, "hidden": 12}


@pytest.fixture(scope="module")
def single():
    """A small task and its reference."""
    task = arithmetic_task(1, modulus=5)
    return task, pretrain(task, 1, **SMALL)


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


# Logs and the data set.


def test_log_reads_back(tmp_path):
    path = tmp_path / "small.jsonl"
    options = ["--updates", "24", "--updates-per-row", "2", "--modulus", "5", "--refresh-interval",
               "4", "--group-size", "4", "--ratio", "none", "--seed", "7"]  # fmt: skip
    done = CliRunner().invoke(main, ["simulate", "policy", *options, "--out", str(path)])
    assert done.exit_code == 0, done.output
    assert "12 rows written" in done.output
    run = bg.read_run(path)
    table = simulate_policy(
        PolicyRun(
            updates=24,
            updates_per_row=2,
            modulus=5,
            refresh_interval=4,
            group_size=4,
            ratio="none",
            seed=7,
        )
    )
    for name in ("reward", "reward_std", "zero_std_fraction", "kl", "entropy", "grad_norm",
                 "clip_fraction", "learning_rate", "eval_reward", "expected_reward"):  # fmt: skip
        assert np.allclose(run.table[name], table[name], atol=1e-12), name
    assert (run.table["updates"] == 2).all() and (run.table["generations"] == 2).all()


def test_options_of_the_command_are_the_fields_of_a_run():
    from dataclasses import fields

    told = {parameter.name: parameter.default for parameter in policy.params}
    assert next(p for p in policy.params if p.name == "reuse").is_flag
    told["reuse"] = False  # a flag's default is spelled differently by versions of click
    del told["out"]
    assert told == {field.name: field.default for field in fields(PolicyRun)}
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
    grid = module.Grid((2,), (0.0, 0.9), (1, 4), (0.2, 0.6), (0, 1), rows=3)
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
    assert len(runs) == 16 and runs[0].name == "G2 momentum 0 refresh 1 lr 0.2 seed 0"


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
        shared = dict(module.settings(grid))
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


def test_sweep_runs_are_those_of_the_checked_way(sweep):
    """The quick way to a thousand runs gives what `Run.from_table` would."""
    for run in sweep[::150]:
        given = {n: run.settings[n].value for n in run.settings
                 if run.settings[n].provenance == "given"}  # fmt: skip
        again = Run.from_table(run.table, run.name, source=run.source, **given)
        assert again.notes == () and again.settings == run.settings
        pd.testing.assert_frame_equal(again.table, run.table)


def test_wrong_names_find_the_sweep():
    with pytest.raises(bg.InputError, match="no example 'sweeps'.*did you mean 'sweep'"):
        bg.load_example("sweeps")


@pytest.mark.slow
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
        assert np.allclose(
            first["expected_reward"], run.table["expected_reward"].head(2), atol=0.01
        )
