"""slime: rollout, perf, step and eval lines, Megatron's arguments, exports."""

import json

import numpy as np
import pandas as pd
import pytest

from bayes_grpo import InputError, read_run
from bayes_grpo.readers import TRAINERS
from bayes_grpo.readers.trainers import trainer_of

RAY = "\x1b[36m(MegatronTrainRayActor pid=71, ip=10.0.0.2)\x1b[0m "
ARGUMENTS = """\
------------------------ arguments ------------------------
  adam_beta1 ...................................... 0.8
  kl_loss_coef .................................... 0.002
  lr .............................................. 2e-06
  num_rollout ..................................... 40
  use_kl_loss ..................................... True
-------------------- end of arguments ---------------------
"""
COMMAND = """\
+ python3 train.py --n-samples-per-prompt 8 --rollout-batch-size 16 \\
   --num-steps-per-rollout 2 --update-weights-interval 3
"""


def reward(k):
    return 0.125 * (k % 5)


def rollout_line(k):
    row = {"rollout/rewards": 1e-9, "rollout/raw_reward": reward(k), "rollout/log_probs": -0.3}
    return f"{RAY}[2026-09-01 10:00:{k:02d}] data.py:1 - rollout {k}: {row}\n"


def perf_line(k, counts):
    row = {"rollout/response_len/mean": 100.0 + k} | {
        f"rollout/zero_std/count_{value}": n for value, n in counts.items()
    }
    return f"(RolloutManager pid=9) [2026-09-01 10:00:{k:02d}] rollout.py:2 - perf {k}: {row}\n"


def step_line(k, n, at):
    step = k * n + at
    row = {
        "train/loss": 0.1,
        "train/pg_clipfrac": 0.01 * at,
        "train/ppo_kl": 7.0,
        "train/kl_loss": 0.5,
        "train/entropy_loss": 1.0 + at,
        "train/grad_norm": 2.0,
        "train/lr-pg_0": 2e-6,
        "train/step": step,
    }
    return f"{RAY}[2026-09-01 10:00:{k:02d}] model.py:3 - step {step}: {row}\n"


def eval_line(k, value):
    row = {
        "eval/aime": value,
        "eval/aime/response_len/mean": 900.0,
        "eval/aime-truncated_ratio": 0.9,
        "eval/aime-pass@1": 0.8,
    }
    return f"(RolloutManager pid=9) rollout.py:4 - eval {k}: {row}\n"


def console(rollouts=range(6), n=2, head=COMMAND + ARGUMENTS):
    text = head
    for k in rollouts:
        text += perf_line(k, {"0": k % 3, "1.0": 1})
        text += rollout_line(k) + "loading weights | 3/3\n"
        text += "".join(step_line(k, n, at) for at in range(n))
        text += f"{RAY}critic-step {k}: {{'train/critic-loss': 3.0}}\n"
        text += f"perf {k}: {{'perf/train_time': 3.0}}\n"
    return text


def write(path, text):
    path.write_text(text)
    return path


def test_console_joins_what_belongs_to_a_rollout(tmp_path):
    run = read_run(write(tmp_path / "log", console() + eval_line(5, 0.25)))
    table = run.table
    assert run.settings.trainer == "slime"
    assert table["step"].tolist() == list(range(6))
    assert table["reward"].tolist() == [reward(k) for k in range(6)]
    assert table["completion_length"].tolist() == [100.0 + k for k in range(6)]
    assert table["entropy"].tolist() == [1.5] * 6  # the mean over the two training steps
    np.testing.assert_allclose(table["clip_fraction"], 0.005)
    assert table["kl"].tolist() == [0.5] * 6  # not ppo_kl, which compares with the sampler
    np.testing.assert_allclose(table["zero_std_fraction"], [(k % 3 + 1) / 16 for k in range(6)])
    assert table["eval_reward"].dropna().tolist() == [0.25]
    assert table["eval_reward"].iloc[5] == 0.25
    assert any("means over the training steps of a rollout, 2 each" in n for n in run.notes)


def test_settings_and_where_they_come_from(tmp_path):
    settings = read_run(write(tmp_path / "log", console())).settings
    expected = {
        "group_size": 8,
        "prompts_per_step": 16,
        "learning_rate": 2e-6,
        "momentum": 0.8,
        "kl_weight": 0.002,
        "max_steps": 40,
        "updates_per_step": 2,
        "refresh_interval": 6,
    }
    for name, value in expected.items():
        assert settings[name].value == value, name
        assert settings[name].provenance == "read", name
    assert "command line" in settings["group_size"].why
    assert "printed" in settings["momentum"].why
    assert settings.row_average == "single"
    assert settings.reward_filtered is False
    assert settings.reward_std_kind is None


def test_without_arguments_the_steps_are_counted_and_the_counts_left_out(tmp_path):
    path = write(tmp_path / "log", console(head=""))
    run = read_run(path)
    assert run.settings["updates_per_step"].value == 2
    assert run.settings["refresh_interval"].value == 2
    assert run.settings["momentum"].provenance == "default"
    assert "slime's default" in run.settings["momentum"].why
    assert "zero_std_fraction" not in run.table
    assert any("pass prompts_per_step" in note for note in run.notes)
    assert read_run(path, prompts_per_step=16).table["zero_std_fraction"].tolist()[2] == 3 / 16
    assert any(
        "more than prompts_per_step = 2" in n for n in read_run(path, prompts_per_step=2).notes
    )


def test_steps_from_the_batch_sizes_and_filtering(tmp_path):
    head = (
        "--n-samples-per-prompt 8 --rollout-batch-size 16 --global-batch-size 32 "
        "--dynamic-sampling-filter-path slime.filters.nonzero_std --kl-coef 0.1\n"
    )
    text = head + "".join(rollout_line(k) for k in range(4))
    settings = read_run(write(tmp_path / "log", text)).settings
    assert settings.updates_per_step == settings.refresh_interval == 4
    assert "16 x 8 / 32" in settings["updates_per_step"].why
    assert settings.reward_filtered is True
    assert settings.kl_weight == 0.1


def test_a_cut_last_line_is_left_out(tmp_path):
    text = console()
    cut = text + rollout_line(6)[:-20]
    assert len(read_run(write(tmp_path / "log", cut))) == 6
    closed = text + rollout_line(6).rstrip("\n")  # shows by itself that it is whole
    assert len(read_run(write(tmp_path / "log", closed))) == 7


def test_the_last_rollout_may_still_be_trained_on(tmp_path):
    text = console() + perf_line(6, {"0": 0}) + rollout_line(6) + step_line(6, 2, 0)
    text += perf_line(7, {"0": 2})  # sampled ahead, no more
    run = read_run(write(tmp_path / "log", text))
    assert run.table["step"].tolist() == list(range(7))
    assert run.table["entropy"].iloc[6] == 1.0
    assert run.settings.updates_per_step == 2


def test_a_resumed_training_replaces_its_repeated_rollouts(tmp_path):
    again = console(range(4, 8), head="").replace(
        "'train/entropy_loss': 1.0", "'train/entropy_loss': 3.0"
    )
    run = read_run(write(tmp_path / "log", console() + again))
    assert run.table["step"].tolist() == list(range(8))
    assert run.table["entropy"].tolist() == [1.5] * 4 + [2.5] * 4  # no mixture of both
    assert any("resumed at step 4" in note for note in run.notes)


def history(by_training_step=False):
    records = []
    for k in range(5):
        step = 2 * k if by_training_step else k
        records.append({"rollout/step": step, "rollout/response_len/mean": 50.0})
        records.append({"rollout/step": step, "rollout/raw_reward": reward(k)})
        for at in range(2):
            train = {"train/step": 2 * k + at, "train/grad_norm": 1.0 + at, "train/lr-pg_0": 1e-6}
            records.append(train)
        records.append({"rollout/step": step, "perf/step_time": 3.0})
        if k == 3:
            records.append({"eval/step": step, "eval/aime": 0.5})
    return [{"_step": at} | record for at, record in enumerate(records)]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("by_training_step", [False, True])
def test_exported_history(tmp_path, form, by_training_step):
    records = history(by_training_step)
    path = tmp_path / "history"
    if form == "csv":
        pd.DataFrame(records).to_csv(path, index=False)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    run = read_run(path)
    spacing = 2 if by_training_step else 1
    assert run.settings.trainer == "slime"
    assert run.table["step"].tolist() == [spacing * k for k in range(5)]
    assert run.table["reward"].tolist() == [reward(k) for k in range(5)]
    assert run.table["grad_norm"].tolist() == [1.5] * 5
    assert run.table["completion_length"].tolist() == [50.0] * 5
    assert run.table["eval_reward"].tolist()[3] == 0.5
    assert run.settings.updates_per_step == 2 // spacing
    assert run.settings.refresh_interval == 2
    assert run.table["updates"].tolist()[1:] == [2] * 4


def test_the_normalised_reward_is_refused(tmp_path):
    path = write(tmp_path / "a.csv", "rollout/step,rollout/rewards\n0,0.0\n1,1e-9\n2,0.0\n")
    with pytest.raises(InputError, match="normalisation within its group.*rollout/raw_reward"):
        read_run(path)


def test_it_is_asked_before_trl():
    assert trainer_of(["rollout/raw_reward"]).name == "slime"
    names = [trainer.name for trainer in TRAINERS]
    assert names.index("slime") < names.index("TRL")
