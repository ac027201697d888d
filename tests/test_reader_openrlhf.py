"""OpenRLHF: the dictionaries on its console, exports, and flags old and new."""

import json

import pandas as pd
import pytest

from bayes_grpo import read_run, read_runs
from bayes_grpo.readers.openrlhf import rows_of_console

RAY = "\x1b[36m(PPOTrainer pid=99)\x1b[0m 2026-01-01 10:00:00 INFO ppo_trainer.py:1] "
REWARDS = [0.25, 0.5, 0.375, 0.625]


def metrics(k, reward):
    return {
        "policy_loss": -0.01 * k,
        "actor_lr": 5e-7,
        "actor_grad_norm": 0.5,
        "ppo_clip_ratio": 0.01,
        "kl": -0.002,
        "reward": reward,
        "group_reward_std": 0.3,
        "response_length": 200.0 + k,
        "entropy_loss": 0.7,
    }


def console(rows=REWARDS, mark="✨ "):
    return "".join(
        f"{RAY}{mark}Global step {k}: {metrics(k, reward)}\n" for k, reward in enumerate(rows, 1)
    )


def read(tmp_path, text, name="log.txt", **given):
    (tmp_path / name).write_text(text)
    return read_run(tmp_path / name, **given)


def test_console(tmp_path):
    run = read(tmp_path, console())
    assert run.table["step"].tolist() == [1, 2, 3, 4]
    assert run.table["reward"].tolist() == REWARDS
    for name, value in [
        ("kl", -0.002),
        ("entropy", 0.7),
        ("clip_fraction", 0.01),
        ("grad_norm", 0.5),
        ("reward_std", 0.3),
        ("learning_rate", 5e-7),
    ]:
        assert (run.table[name] == value).all(), name
    assert run.table["completion_length"].tolist() == [201, 202, 203, 204]
    s = run.settings
    assert (s.trainer, s.reward_std_kind, s.row_average) == ("OpenRLHF", "within_group", "single")
    assert s["momentum"].provenance == "default"
    assert "OpenRLHF's default" in s["momentum"].why
    assert s.reward_filtered is False
    assert "zero_std_fraction" not in run.table


def test_values_that_are_no_plain_numbers():
    row = (
        "Global step 7: {'kl': np.float64(0.5), 'reward': '0.25', 'ret': tensor(1.5, "
        "device='cuda:0'), 'none': None, 'bad': nan, 'generated_samples': ['a } text', 1]}"
    )
    assert list(rows_of_console([row])) == [{"step": 7, "kl": 0.5, "reward": 0.25, "ret": 1.5}]
    odd = "Global step 8: {'reward': 0.5, 'owner': <object at 0x7f>, 'kl': -1e-05}"
    assert list(rows_of_console([odd])) == [{"step": 8, "reward": 0.5, "kl": -1e-05}]


@pytest.mark.parametrize("text", ["Global step 3: saved", "Global step 3: {'loss': 1.0}", "{}"])
def test_lines_that_are_none(text):
    assert list(rows_of_console([text])) == []


@pytest.mark.parametrize(("old", "prefix"), [(False, "eval/"), (True, "")])
def test_evaluations_are_kept_apart(tmp_path, old, prefix):
    result = {f"{prefix}eval_math_pass4": 0.9, f"{prefix}eval_math_pass1": 0.4}
    result |= {f"{prefix}eval_b_pass1": 0.2} | ({} if old else {"eval/global_step": 2})
    line = f"{RAY}✨ Evaluation completed in 0:01:00, global_step 2, eval_metrics: {result}\n"
    run = read(tmp_path, console() + line)
    assert run.table["eval_reward"].tolist()[1] == 0.4
    assert run.table["eval_reward"].notna().sum() == 1
    assert run.table["reward"].tolist() == REWARDS
    assert any("eval_reward taken from column 'eval_math_pass1'" in note for note in run.notes)


def test_dynamic_filtering(tmp_path):
    # OpenRLHF logs it in percent.
    rows = [metrics(k, r) | {"dynamic_filtering_pass_rate": 80.0} for k, r in enumerate(REWARDS)]
    text = "".join(f"Global step {k}: {row}\n" for k, row in enumerate(rows, 1))
    run = read(tmp_path, text)
    assert run.table["zero_std_fraction"].tolist() == pytest.approx([0.2] * 4)
    assert run.settings.reward_filtered is True
    fractions = read(tmp_path, text.replace("80.0", "0.8"))
    assert fractions.table["zero_std_fraction"].tolist() == pytest.approx([0.2] * 4)


NEW = (
    "openrlhf.cli.train_ppo_ray --rollout.n_samples_per_prompt 8 --rollout.batch_size 64 "
    "--train.batch_size 128 --train.max_epochs 2 --actor.adam.lr 5e-7 --actor.adam.betas 0.8 0.95 "
    "--algo.kl.init_coef 1e-3 --algo.advantage.estimator group_norm "
    "--train.async_enable --train.async_queue_size 2\n"
)
OLD = (
    "openrlhf.cli.train_ppo_ray --n_samples_per_prompt 8 --rollout_batch_size 64 "
    "--train_batch_size 128 --max_epochs 2 --actor_learning_rate 5e-7 --adam_betas 0.8 0.95 "
    "--init_kl_coef 1e-3 --advantage_estimator group_norm --async_train --async_queue_size 2\n"
)


@pytest.mark.parametrize("command", [NEW, OLD])
def test_flags(tmp_path, command):
    run = read(tmp_path, command + console())
    s = run.settings
    assert (s.group_size, s.prompts_per_step, s.momentum, s.kl_weight) == (8, 64, 0.8, 1e-3)
    assert (s.updates_per_step, s.refresh_interval) == (8, 8)
    assert "64 x 8 / 128 x 2" in s["refresh_interval"].why
    assert (s.lag, s.lag_pattern) == (16, "constant")
    assert s["lag"].provenance == "inferred"
    assert s["group_size"].provenance == "read"
    assert not any("GRPO" in note for note in run.notes)


def test_a_synchronous_run_has_no_lag_and_other_estimators_are_said(tmp_path):
    command = NEW.replace("--train.async_enable ", "").replace("group_norm", "reinforce")
    run = read(tmp_path, command + console())
    assert run.settings.lag == 0
    assert any("estimator = reinforce" in note for note in run.notes)


def test_exports_of_weights_and_biases(tmp_path):
    rows = [metrics(k, r) | {"global_step": k} for k, r in enumerate(REWARDS, 1)]
    records = [{f"train/{name}": value for name, value in row.items()} for row in rows]
    evaluated = {"eval/eval_math_pass1": 0.4, "eval/global_step": 2}
    text = "".join(json.dumps(r) + "\n" for r in [*records[:2], evaluated, *records[2:]])
    first = read(tmp_path, console() + f"global_step 2, eval_metrics: {evaluated}\n")
    second = read(tmp_path, text, "a.jsonl")
    pd.testing.assert_frame_equal(second.table, first.table, check_like=True)
    assert second.settings == first.settings
    pd.DataFrame(records).to_csv(tmp_path / "a.csv", index=False)
    third = read_run(tmp_path / "a.csv")
    pd.testing.assert_frame_equal(
        third.table, first.table.drop(columns="eval_reward"), check_like=True
    )


def test_truncation_and_restart(tmp_path):
    text = console()
    cut = text[: text.rindex("'response_length'")]
    assert read(tmp_path, cut).table["reward"].tolist() == REWARDS[:-1]
    assert len(read(tmp_path, text[:-1])) == 4  # the closing brace shows that the row is whole
    long = [0.1 + 0.01 * k for k in range(30)]
    (tmp_path / "twice").write_text(console(long) + console(long, mark=""))
    assert [len(run) for run in read_runs(tmp_path / "twice")] == [30, 30]
