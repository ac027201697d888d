"""AReaL: tables in the console, YAML beside, exports."""

import json

import pandas as pd
import pytest

from bayes_grpo import read_run

CONFIG = """\
experiment_name: mine
gconfig: {n_samples: 4, max_new_tokens: 64}
train_dataset: {batch_size: 32}
rollout: {max_head_offpolicyness: 2}
actor:
  ppo_n_minibatches: 2
  kl_ctl: 0.5
  optimizer: {lr: 1.0e-5, beta1: 0.85}
"""


def metrics(k):
    return {
        "ppo_actor/task_reward/avg": 0.1 + 0.05 * k,
        "ppo_actor/final_reward/avg": 9.0,
        "rollout/reward": 0.7,
        "ppo_actor/kl_rewards/avg": -0.02,
        "ppo_actor/update/entropy/avg": 1.5,
        "ppo_actor/seq_len/avg": 120.0,
        "ppo_actor/prompt_len/avg": 20.0,
        "ppo_actor/update/grad_norm": 0.25,
        "ppo_actor/update/lr": 1e-5,
    }


def table(values, columns=2):
    """Draw a grid with box characters: names and numbers take turns, columns are filled first."""
    items = list(values.items())
    height = -(-len(items) // columns)
    rows = [items[at::height] for at in range(height)]
    text = "╒" + "═" * 30 + "╕\n"
    for row in rows:
        cells = [cell for name, value in row for cell in (name, f"{value:.4e}")]
        cells += [""] * (2 * columns - len(cells))
        text += "│ " + " │ ".join(cells) + " │\n├" + "─" * 30 + "┤\n"
    return text + "╘" + "═" * 30 + "╛\n"


def header(k, total=50):
    stamp = f"\x1b[32m20260901-10:00:{k:02d}.001 StatsLogger INFO:\x1b[0m "
    return (
        f"{stamp}Epoch 1/5 Step {k}/10 Train step {k}/{total} done.\n{stamp}Stats (1/1):\n{stamp}\n"
    )


def console(steps, **more):
    return "│ rollout/reward │ 9.9e+00 │\n" + "".join(
        header(k) + table(metrics(k) | more) for k in steps
    )


def write(path, text):
    path.write_text(text)
    return path


def test_console_tables(tmp_path):
    run = read_run(write(tmp_path / "main.log", console(range(1, 7))))
    assert run.settings.trainer == "AReaL"
    assert run.table["step"].tolist() == list(range(1, 7))
    assert run.table["reward"].tolist() == pytest.approx([0.1 + 0.05 * k for k in range(1, 7)])
    assert run.table["completion_length"].tolist() == [100.0] * 6
    assert run.table["entropy"].tolist() == [1.5] * 6
    assert run.table["grad_norm"].tolist() == [0.25] * 6
    assert run.settings.learning_rate == 1e-5
    assert "kl" not in run.table  # the penalty's weight is not known
    assert run.settings["max_steps"].value == 50
    assert run.settings["max_steps"].provenance == "read"
    for name in ("updates_per_step", "refresh_interval"):
        assert run.settings[name].value == 4
        assert "AReaL's default ppo_n_minibatches" in run.settings[name].why
    assert run.settings.lag == 0


def test_settings_of_the_configuration_beside(tmp_path):
    write(tmp_path / "config.yaml", CONFIG)
    run = read_run(write(tmp_path / "main.log", console(range(1, 5))))
    expected = {
        "group_size": 4,
        "prompts_per_step": 32,
        "learning_rate": 1e-5,
        "momentum": 0.85,
        "kl_weight": 0.5,
        "updates_per_step": 2,
        "refresh_interval": 2,
        "lag": 4,  # two steps of two updates
    }
    for name, value in expected.items():
        assert run.settings[name].value == value, name
        assert run.settings[name].provenance == "read", name
    assert "upper bound" in run.settings["lag"].why
    assert run.settings.lag_pattern == "constant"
    assert run.table["kl"].tolist() == pytest.approx([0.04] * 4)
    assert run.settings.reward_filtered is False


def test_overrides_on_the_command_line_win_over_the_file(tmp_path):
    write(tmp_path / "config.yaml", CONFIG)
    head = "python3 -m areal.launcher a.py gconfig.n_samples=16 actor.dynamic_sampling=true\n"
    run = read_run(write(tmp_path / "main.log", head + console(range(1, 5))))
    assert run.settings.group_size == 16
    assert run.settings.reward_filtered is True
    assert run.settings.prompts_per_step == 32


def test_several_tables_of_a_step_are_averaged(tmp_path):
    text = ""
    for k in range(1, 5):
        text += header(k) + table(metrics(k))
        text += table({"ppo_actor/update/grad_norm": 0.75, "ppo_actor/update/loss": 1.0})
    run = read_run(write(tmp_path / "main.log", text))
    assert run.table["grad_norm"].tolist() == [0.5] * 4
    assert run.table["reward"].iloc[0] == pytest.approx(0.15)


def test_a_table_that_is_cut_off_is_left_out(tmp_path):
    text = console(range(1, 6))
    last = table(metrics(9))
    for end in (len(last) // 2, len(last) - 20):
        path = write(tmp_path / "main.log", text + header(6) + last[:end])
        assert read_run(path).table["step"].tolist() == list(range(1, 6))


def test_a_recovered_training_replaces_its_repeated_steps(tmp_path):
    text = console(range(1, 7)) + console(range(5, 9)).replace("1.5000e+00", "2.5000e+00")
    run = read_run(write(tmp_path / "main.log", text))
    assert run.table["step"].tolist() == list(range(1, 9))
    assert run.table["entropy"].tolist() == [1.5] * 4 + [2.5] * 4


def test_evaluations_stay_apart(tmp_path):
    text = console([1, 2]) + console([3], **{"eval-rollout/reward": 0.875}) + console([4])
    run = read_run(write(tmp_path / "main.log", text))
    assert run.table["eval_reward"].dropna().tolist() == [0.875]
    assert run.table["reward"].iloc[2] == pytest.approx(0.25)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("actor", ["ppo_actor", "grpo_actor"])
def test_exported_history(tmp_path, form, actor):
    records = [
        {"_step": k} | {name.replace("ppo_actor", actor): v for name, v in metrics(k).items()}
        for k in range(6)
    ]
    path = tmp_path / "history"
    if form == "csv":
        pd.DataFrame(records).to_csv(path, index=False)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    run = read_run(path)
    assert run.settings.trainer == "AReaL"
    assert run.table["reward"].tolist() == pytest.approx([0.1 + 0.05 * k for k in range(6)])
    assert run.table["completion_length"].tolist() == [100.0] * 6


def test_the_reward_of_rollouts_alone(tmp_path):
    path = write(tmp_path / "a.csv", "Step,rollout/reward\n0,0.1\n1,0.25\n2,0.5\n")
    assert read_run(path).table["reward"].tolist() == [0.1, 0.25, 0.5]
