"""verl: console lines of all its versions, the file logger, exports, and its configuration."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_grpo import read_run, read_runs
from bayes_grpo.readers import TRAINERS
from bayes_grpo.readers.lines import cleaned
from bayes_grpo.readers.verl import rows_of_console

RAY = "\x1b[36m(TaskRunner pid=4711, ip=10.0.0.2)\x1b[0m "
SCORES = [0.125, 0.25, 0.1875, 0.4375, 0.5]

PRINTED = """{'actor_rollout_ref': {'actor': {'kl_loss_coef': 0.002,
                                 'optim': {'betas': [0.8, 0.999],
                                           'lr': 2e-06},
                                 'ppo_epochs': 2,
                                 'ppo_mini_batch_size': 32,
                                 'use_kl_loss': True},
                       'rollout': {'n': 4}},
 'algorithm': {'adv_estimator': 'grpo',
               'kl_ctrl': {'kl_coef': 0.5},
               'use_kl_in_reward': False},
 'data': {'train_batch_size': 64},
 'trainer': {'total_training_steps': None}}
"""


def metrics(k, score):
    return {
        "training/global_step": k,
        "actor/entropy": 0.5 - k / 100,
        "actor/kl_loss": 1e-5 * k,
        "actor/pg_loss": -0.01 * k,
        "actor/pg_clipfrac": 0.001,
        "actor/grad_norm": 0.25,
        "actor/lr": 1e-6,
        "critic/score/mean": score,
        "critic/rewards/mean": score - 0.1,
        "response_length/mean": 100.0 + k,
    }


def line(k, values, prefix=RAY):
    return prefix + " - ".join([f"step:{k}", *(f"{n}:{v}" for n, v in values.items())]) + "\n"


def console(prefix=RAY):
    return "".join(line(k, metrics(k, score), prefix) for k, score in enumerate(SCORES, 1))


def read(tmp_path, text, name="log.txt", **given):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return read_run(path, **given)


def test_console_line_with_everything_odd():
    text = (
        RAY + "Training Progress: 3%|3 | 3/100 [00:01<00:02]step:12 - training/global_step:12 - "
        "actor/pg_loss:-0.003 - actor/kl_loss:-2.5e-05 - actor/lr(1e-4):0.010 - "
        "critic/score/mean:np.float64(0.35) - critic/score/max:np.float32(1.0) - "
        "val-core/math - hard/acc/mean@8:0.25 - perf/name:none - timing_s/gen:nan"
    )
    (row,) = rows_of_console([cleaned(text)])
    assert np.isnan(row.pop("timing_s/gen"))
    assert row == {
        "step": 12,
        "training/global_step": 12,
        "actor/pg_loss": -0.003,
        "actor/kl_loss": -2.5e-05,
        "actor/lr(1e-4)": 0.010,
        "critic/score/mean": 0.35,
        "critic/score/max": 1.0,
        "val-core/math - hard/acc/mean@8": 0.25,
    }


@pytest.mark.parametrize(
    "text",
    [
        "global_step:12 - actor/lr:1",  # another counter
        "step:12 - reward:0.5 - loss:0.1",  # a loop of one's own
        "a sampled text with step:3 in it",
    ],
)
def test_lines_that_are_not_verls(text):
    assert list(rows_of_console([text])) == []


def test_console_with_rays_prefix_and_printed_configuration(tmp_path):
    config = "".join(RAY + part + "\n" for part in PRINTED.splitlines())
    text = config + RAY + "Total training steps: 435\n" + console()
    run = read(tmp_path, text)
    assert run.table["step"].tolist() == [1, 2, 3, 4, 5]
    assert run.table["reward"].tolist() == SCORES
    assert run.table["kl"].tolist() == pytest.approx([1e-5 * k for k in range(1, 6)])
    assert run.table["entropy"].tolist()[0] == 0.49
    assert run.table["completion_length"].tolist()[-1] == 105
    assert run.table["clip_fraction"].tolist()[0] == 0.001
    assert (run.table["grad_norm"] == 0.25).all()
    s = run.settings
    assert (s.trainer, s.group_size, s.prompts_per_step, s.momentum) == ("verl", 4, 64, 0.8)
    assert (s.updates_per_step, s.refresh_interval, s.kl_weight) == (4, 4, 0.002)
    assert (s.learning_rate, s.max_steps, s.row_average) == (2e-6, 435, "single")
    for name in ("group_size", "momentum", "kl_weight", "refresh_interval", "learning_rate"):
        assert s[name].provenance == "read"
    assert "printed in the log" in s["group_size"].why
    assert "64 / 32 x 2" in s["refresh_interval"].why
    assert (run.table["updates"] == 4).all()
    assert (run.table["generations"] == 1).all()
    assert "reward taken from column 'critic/score/mean', not 'critic/rewards/mean'" in run.notes
    assert not any("GRPO" in note for note in run.notes)


def test_every_source_gives_the_same_table(tmp_path):
    rows = [metrics(k, score) for k, score in enumerate(SCORES, 1)]
    filed = "".join(json.dumps({"step": k, "data": row}) + "\n" for k, row in enumerate(rows, 1))
    exported = "".join(json.dumps({"_step": 9, **row}) + "\n" for row in rows)
    first = read(tmp_path, console())
    pd.DataFrame(rows).to_csv(tmp_path / "export.csv", index=False)
    others = [
        read(tmp_path, filed, "filed.jsonl"),
        read(tmp_path, exported, "exported.jsonl"),
        read_run(tmp_path / "export.csv"),
    ]
    for other in others:
        assert other.settings == first.settings
        shared = [name for name in first.table.columns if name != "training/global_step"]
        pd.testing.assert_frame_equal(other.table[shared], first.table[shared])
        assert not any(name.startswith("data/") for name in other.table.columns)
    assert first.settings["momentum"].why == "not in the log: verl's default actor.optim.betas"
    assert first.settings["group_size"].provenance == "default"


def test_validation_has_lines_of_its_own(tmp_path):
    text = line(0, {"val-core/org/set/acc/mean@8": 0.1, "val-core/b/acc/mean@8": 0.6})
    text += console()
    text += line(5, {"val-core/org/set/acc/mean@8": 0.3, "val-core/b/acc/mean@8": 0.7})
    run = read(tmp_path, text)
    assert run.table["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert run.table["generations"].tolist() == [0, 1, 1, 1, 1, 1]
    assert run.table["reward"].tolist()[1:] == SCORES
    assert run.table["eval_reward"].tolist()[::5] == [0.1, 0.3]
    assert "val-core/b/acc/mean@8" in run.table
    chosen = "eval_reward taken from column 'val-core/org/set/acc/mean@8', not "
    assert any(note.startswith(chosen) for note in run.notes)


@pytest.mark.parametrize(
    "key",
    [
        "val/test_score/openai/gsm8k",
        "val-core/a/reward/mean@1/mean",
        "val-core/a/acc/mean@16",
        "val/success_rate",
    ],
)
def test_validation_keys_of_all_versions(tmp_path, key):
    text = console() + line(3, {key: 0.375, "val-aux/a/acc/best@8/mean": 1.0})
    run = read(tmp_path, text)
    assert run.table["eval_reward"].tolist()[2] == 0.375
    assert run.table["reward"].tolist() == SCORES


def test_three_decimals_and_a_scaled_learning_rate(tmp_path):
    rows = [
        {"actor/entropy_loss": "0.461", "actor/lr(1e-4)": "0.010", "critic/score/mean": f"{s:.3f}"}
        for s in SCORES
    ]
    run = read(tmp_path, "".join(line(k, row, "") for k, row in enumerate(rows)))
    assert run.table["step"].tolist() == [0, 1, 2, 3, 4]
    assert run.settings.learning_rate == pytest.approx(1e-6)
    assert run.settings["learning_rate"].provenance == "read"
    assert (run.table["entropy"] == 0.461).all()


def test_a_learning_rate_printed_as_zero_is_not_read(tmp_path):
    text = console().replace("actor/lr:1e-06", "actor/lr:0.000")
    run = read(tmp_path, text)
    assert run.settings.learning_rate == 1e-6
    assert run.settings["learning_rate"].provenance == "default"
    assert "verl's default" in run.settings["learning_rate"].why


def test_overrides_on_the_command_line(tmp_path):
    command = (
        "+ python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo "
        "data.train_batch_size=100 actor_rollout_ref.actor.ppo_mini_batch_size=40 "
        "actor_rollout_ref.rollout.n=16 'actor_rollout_ref.actor.optim.betas=[0.7,0.95]' "
        "actor_rollout_ref.actor.use_kl_loss=False algorithm.use_kl_in_reward=False "
        "+algorithm.filter_groups.enable=True trainer.total_training_steps=77\n"
    )
    run = read(tmp_path, command + console())
    s = run.settings
    assert (s.group_size, s.prompts_per_step, s.max_steps, s.momentum) == (16, 100, 77, 0.7)
    assert s.refresh_interval == 3  # two mini-batches of 40 prompts and one of 20
    assert s.kl_weight == 0
    assert s.reward_filtered is True
    assert "command line in the log" in s["group_size"].why


def test_kl_in_the_reward_and_asynchronous_sampling(tmp_path):
    command = (
        "python3 -m verl.trainer.main_ppo algorithm.use_kl_in_reward=True "
        "algorithm.kl_ctrl.kl_coef=0.01 trainer.v1.trainer_mode=separate_async "
        "trainer.v1.sampler.max_off_policy_threshold=8\n"
    )
    s = read(tmp_path, command + console()).settings
    assert (s.kl_weight, s.lag, s.lag_pattern) == (0.01, 8, "constant")
    assert s["lag"].provenance == "inferred"
    synchronous = command.replace("separate_async", "sync")
    assert read(tmp_path, synchronous + console()).settings.lag == 0


def test_hydras_file_beside_the_log(tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(
        "actor_rollout_ref:\n  rollout: {n: 6}\n  actor: {ppo_mini_batch_size: 8}\n"
        "data: {train_batch_size: 8}\nalgorithm: {adv_estimator: grpo}\n"
    )
    s = read(tmp_path, console()).settings
    assert (s.group_size, s.prompts_per_step, s.refresh_interval) == (6, 8, 1)


def test_what_is_not_grpo_is_said(tmp_path):
    printed = PRINTED.replace("'grpo'", "'gae'")
    run = read(tmp_path, printed + console())
    assert any("adv_estimator = gae" in note and "not GRPO" in note for note in run.notes)
    critic = console().replace("actor/pg_loss", "critic/vf_loss")
    assert any("this is PPO" in note for note in read(tmp_path, critic).notes)


def test_group_size_of_verl_agent(tmp_path):
    command = "main_ppo env.rollout.n=8 actor_rollout_ref.rollout.n=1 data.train_batch_size=16\n"
    rows = [{"episode/reward/mean": s, "episode/success_rate": s / 10} for s in SCORES]
    text = command + "".join(line(k, row) for k, row in enumerate(rows, 1))
    run = read(tmp_path, text)
    assert run.settings.group_size == 8
    assert run.table["reward"].tolist() == SCORES


pieces = st.sampled_from(
    [
        "step:1 - actor/a:", "Step 1: ", "{'reward/a': ", "'reward': ", "Global step 2: {", "}",
        "= Step 1/2 =====", "=====", "• Loss: ", "• Accuracy: ", "(avg age: ", " steps)", " - ",
        "Rewards stats: std=", "Mean Generation Length: 5", "eval_metrics: {", "np.float64(", ")",
        "9" * 5000, "1e999", "nan", "-", ".", "None", "Total training steps: ", "'",
        "global_step 1, ",
    ]
)  # fmt: skip


@settings(deadline=None)
@given(
    lines=st.lists(st.lists(pieces, max_size=5).map("".join), max_size=6),
    trainer=st.sampled_from([trainer for trainer in TRAINERS if trainer.console]),
)
def test_strange_lines_are_read_or_passed_over(lines, trainer):
    for row in trainer.console.rows(lines):
        assert all(isinstance(name, str) for name in row)


def test_an_unfinished_last_line_is_left_out(tmp_path):
    whole = console()
    assert len(read(tmp_path, whole[:-1])) == 4  # its last number may be cut
    cut = whole[: whole.rindex("critic/score/mean") + 19]
    assert read(tmp_path, cut).table["reward"].tolist() == SCORES[:-1]


def test_restarts(tmp_path):
    rising = [(k, 0.1 + 0.01 * k) for k in range(1, 31)]
    text = "".join(line(k, metrics(k, s)) for k, s in rising)
    resumed = "".join(line(k, metrics(k, s + 0.05)) for k, s in rising[20:])
    run = read(tmp_path, text + resumed)
    assert run.table["step"].tolist() == list(range(1, 31))
    assert run.table["reward"].iloc[25] == pytest.approx(0.1 + 0.26 + 0.05)
    (tmp_path / "twice.log").write_text(text + text)
    assert [len(part) for part in read_runs(tmp_path / "twice.log")] == [30, 30]
