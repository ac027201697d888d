"""Logs of no trainer in particular: lines of pairs, configuration records, odd tables."""

import json

import numpy as np
import pytest

from bayes_grpo import InputError, read_run, read_runs


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


REWARDS = [round(0.1 + k / 100, 4) for k in range(1, 13)]

LINES = {
    "counter in brackets": "Epoch:[1/1]({k}/500), Reward: {r}, KL_ref: -0.0010, LR: 0.00000030",
    "commas and steps": "12:53:02-INFO >> Iter: 1/1, Step: {k}/500, Loss: -0.0, Avg Reward: {r}",
    "equals signs": "[2026-01-02 10:11:12] step={k} reward={r} kl=0.01 grad_norm=1e-3",
    "bars": "step {k} | loss 0.1 | mean_reward: {r} | entropy: 0.5",
    "hash": "Update #{k}: reward = {r}, reward_std = 0.1",
    "nothing else": "step: {k} reward: {r}",
}


@pytest.mark.parametrize("form", LINES)
def test_lines_of_pairs(tmp_path, form):
    text = [LINES[form].format(k=k, r=r) for k, r in enumerate(REWARDS, 1)]
    run = read_run(write(tmp_path / "log", "starting at 10:00", *text, "done in 12:01"))
    assert run.table["reward"].tolist() == REWARDS
    assert run.table["step"].tolist() == list(range(1, 13))
    if "/500" in LINES[form]:
        assert run.settings.max_steps == 500


def test_the_same_value_printed_twice_and_samples_between(tmp_path):
    text = []
    for k, r in enumerate(REWARDS, 1):
        text += [
            f"INFO >> Average Reward: {r}",
            "Question: a train leaves at 12:30, step 2: reward yourself. #### 5",
            f"[DEBUG] gen[3] reward={r - 3}",
            f"INFO >> Iter: 1/1, Step: {k}/12, Loss: 0.0, Avg Reward: {r}",
        ]
    assert read_run(write(tmp_path / "log", *text)).table["reward"].tolist() == REWARDS


def test_epochs_continue_the_counter(tmp_path):
    text = [
        f"Epoch:[{e}/2]({k}/6), Reward: {e + k / 10}, LR: 1e-6" for e in (1, 2) for k in range(1, 7)
    ]
    run = read_run(write(tmp_path / "log", *text))
    assert run.table["step"].tolist() == list(range(1, 13))
    assert run.settings.max_steps == 12


def test_a_configuration_record_sets_what_it_names(tmp_path):
    config = {
        "type": "config",
        "trainer": "mine",
        "group_size": 4,
        "prompts_per_step": 32,
        "momentum": 0.5,
        "momentum_convention": "heavy_ball",
        "learning_rate": 0.1,
        "refresh_interval": 4,
        "lag_pattern": "hold",
        "kl_weight": 0.2,
        "reward_bounds": [0.0, 1.0],
        "row_average": "single",
    }
    rows = [{"type": "train", "step": k, "reward": r} for k, r in enumerate(REWARDS, 1)]
    run = read_run(write(tmp_path / "log", *map(json.dumps, [config, *rows])))
    for name in config.keys() - {"type", "reward_bounds"}:
        assert getattr(run.settings, name) == config[name]
        assert run.settings[name].provenance == "read"
    assert run.settings.reward_bounds == (0.0, 1.0)


def test_a_configuration_of_ones_own_loop(tmp_path):
    config = {"type": "config", "args": {"lr": 1e-5, "num_generations": 6, "steps": 400}}
    rows = [{"type": "log", "step": k, "mean_reward": r} for k, r in enumerate(REWARDS, 1)]
    run = read_run(write(tmp_path / "log", *map(json.dumps, [config, *rows])))
    assert (run.settings.group_size, run.settings.learning_rate) == (6, 1e-5)


def test_a_configuration_with_absurd_values_is_passed_over(tmp_path):
    config = {"type": "config", "group_size": -1, "momentum": 7, "lag_pattern": "sideways"}
    rows = [{"step": k, "reward": r} for k, r in enumerate(REWARDS, 1)]
    run = read_run(write(tmp_path / "log", *map(json.dumps, [config, *rows])))
    assert {run.settings[n].provenance for n in ("group_size", "momentum", "lag_pattern")} == {
        "default"
    }


def test_curves_inside_records(tmp_path):
    records = [
        {"seed": s, "lr": 1e-5, "reward_curve": [[4 * k, r + s] for k, r in enumerate(REWARDS, 1)]}
        for s in (0, 7)
    ]
    runs = read_runs(write(tmp_path / "log", *map(json.dumps, records)))
    assert [run.name for run in runs] == ["log: record 1, seed 0", "log: record 2, seed 7"]
    assert runs[1].table["reward"].tolist() == [r + 7 for r in REWARDS]
    assert runs[0].table["step"].tolist() == list(range(4, 49, 4))
    assert runs[0].settings.learning_rate == 1e-5


@pytest.mark.parametrize("form", ["list", "lines", "csv"])
def test_cut_anywhere_the_first_rows_remain(tmp_path, form):
    rows = [{"step": k, "reward": r} for k, r in enumerate(REWARDS, 1)]
    text = {
        "list": json.dumps(rows, indent=1),
        "lines": "".join(json.dumps(row) + "\n" for row in rows),
        "csv": "step,reward\n" + "".join(f"{row['step']},{row['reward']}\n" for row in rows),
    }[form]
    path = tmp_path / "log"
    read = 0
    for end in range(len(text)):
        path.write_text(text[:end])
        try:
            run = read_run(path)
        except InputError as error:
            assert "\n" not in str(error)
            continue
        read += 1
        n = len(run)
        assert run.table["step"].tolist() == list(range(1, n + 1))
        # A number at the very end of a CSV may be cut and still be one.
        sure = n - (form == "csv" and not text[:end].endswith("\n"))
        np.testing.assert_array_equal(run.table["reward"][:sure], REWARDS[:sure])
    assert read > 50


def test_the_evaluation_set_has_a_size(tmp_path):
    records = []
    for k, r in enumerate(REWARDS, 1):
        records.append({"type": "train", "step": k, "reward": r})
        records.append({"type": "eval", "step": k, "reward": r / 2, "num_examples": 1024})
    run = read_run(write(tmp_path / "log", *map(json.dumps, records)))
    assert run.settings.eval_size == 1024
    np.testing.assert_allclose(run.table["eval_reward"], np.array(REWARDS) / 2)
