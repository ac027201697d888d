"""open-instruct: panels in the console, its arguments, exports."""

import json
import textwrap

import pandas as pd
import pytest

from bayes_grpo import read_run

COMMAND = (
    "python open_instruct/grpo_fast.py --beta 0.01 --num_samples_per_prompt_rollout 8 "
    "--num_unique_prompts_rollout 32 --num_mini_batches 2 --num_epochs 3 --async_steps 4 "
    "--learning_rate 5e-7 --total_episodes 25600\n"
)
PRINTED = """\
[
    Args(
        exp_name='mine',
        num_samples_per_prompt_rollout=16,
        num_unique_prompts_rollout=4,
        filter_zero_std_samples=False,
        beta=0.0,
        learning_rate=1e-06,
    ),
    ModelConfig(model_name_or_path='m', gradient_checkpointing=True),
]
"""


def metrics(k):
    return {
        "loss": {"policy_avg": "-1.20e-03", "total_avg": "0.02"},
        "objective": {"kl_avg": "5.00e-03", "kl2_avg": "9.00", "a_rather_long_name_reward": "0.70"},
        "optim": {"grad_norm": "0.25"},
        "other": {
            "episode": str(128 * k),
            "training_step": str(k),
            "epoch": "0.02",
            "scores": f"{0.3 + 0.05 * k:.2f}",
            "lr": "1.00e-06",
            "real_batch_size_ratio": "0.75",
            "unsolved_batch_size_ratio": "0.90",
        },
        "policy": {"clipfrac_avg": "0.01", "entropy_avg": "0.55"},
        "val": {"sequence_lengths": "321.00", "stop_rate": "0.98"},
    }


def panel(groups, width=64):
    """Draw a box with two columns; cells too long for theirs go on in the next line."""
    first = max(map(len, groups)) + 2
    text = "╭" + " Metrics ".center(width, "─") + "╮\n"
    for category, values in groups.items():
        cell = " | ".join(f"{name}: {value}" for name, value in values.items())
        for at, piece in enumerate(textwrap.wrap(cell, width - first - 5)):
            text += f"│  {(category if at == 0 else ''):<{first}}{piece:<{width - first - 2}}│\n"
    return text + "╰" + "─" * width + "╯\n"


SAMPLES = "┏━━━━━━━━┓\n┃ prompt ┃\n┡━━━━━━━━┩\n│ scores: 9.0 │\n└────────┘\n"


def console(steps, width=64, **more):
    text = ""
    for k in steps:
        groups = {name: values | more.get(name, {}) for name, values in metrics(k).items()}
        text += f"(main pid=3) INFO step {k}\n" + panel(groups, width) + SAMPLES
    return text


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize("width", [48, 64, 300])
def test_console_panels(tmp_path, width):
    run = read_run(write(tmp_path / "a.log", console(range(1, 8), width)))
    assert run.settings.trainer == "open-instruct"
    assert run.table["step"].tolist() == list(range(1, 8))
    assert run.table["reward"].tolist() == pytest.approx([0.3 + 0.05 * k for k in range(1, 8)])
    assert run.table["kl"].tolist() == [0.005] * 7
    assert run.table["entropy"].tolist() == [0.55] * 7
    assert run.table["completion_length"].tolist() == [321.0] * 7
    assert run.table["clip_fraction"].tolist() == [0.01] * 7
    assert run.table["grad_norm"].tolist() == [0.25] * 7
    assert run.table["zero_std_fraction"].tolist() == [0.25] * 7
    assert run.settings.learning_rate == 1e-6


def test_defaults_and_why(tmp_path):
    settings = read_run(write(tmp_path / "a.log", console(range(1, 6)))).settings
    expected = {
        "group_size": 4,
        "prompts_per_step": 16,
        "kl_weight": 0.05,
        "momentum": 0.9,
        "lag": 8,
        "reward_filtered": True,
    }
    for name, value in expected.items():
        assert settings[name].value == value, name
        assert settings[name].provenance == "default", name
        assert "open-instruct" in settings[name].why, name
    assert "prompts without contrast" in settings["reward_filtered"].why


def test_settings_of_the_command_line(tmp_path):
    settings = read_run(write(tmp_path / "a.log", COMMAND + console(range(1, 6)))).settings
    expected = {
        "group_size": 8,
        "prompts_per_step": 32,
        "kl_weight": 0.01,
        "updates_per_step": 6,
        "refresh_interval": 6,
        "lag": 24,  # four steps of six updates
        "learning_rate": 5e-7,
        "max_steps": 100,
    }
    for name, value in expected.items():
        assert settings[name].value == value, name
        assert settings[name].provenance == "read", name
    assert settings.reward_filtered is True


def test_printed_arguments_win_over_the_command_line(tmp_path):
    settings = read_run(
        write(tmp_path / "a.log", COMMAND + PRINTED + console(range(1, 6)))
    ).settings
    assert (settings.group_size, settings.prompts_per_step) == (16, 4)
    assert settings.kl_weight == 0.0
    assert settings["reward_filtered"].value is False
    assert settings["reward_filtered"].provenance == "read"
    assert settings.lag == 24


def test_evaluations_have_a_panel_of_their_own(tmp_path):
    held_out = panel({"eval": {"scores": "0.62", "sequence_lengths": "900.00"}})
    text = console(range(1, 4)) + held_out + console(range(4, 7))
    run = read_run(write(tmp_path / "a.log", text))
    assert run.table["step"].tolist() == list(range(1, 7))
    assert run.table["eval_reward"].dropna().tolist() == [0.62]
    assert run.table["eval_reward"].iloc[2] == 0.62
    assert run.table["completion_length"].tolist() == [321.0] * 6


def test_a_panel_that_is_cut_off_is_left_out(tmp_path):
    last = panel(metrics(6))
    text = console(range(1, 6))
    for end in (len(last) // 3, len(last) - 70):
        run = read_run(write(tmp_path / "a.log", text + last[:end]))
        assert run.table["step"].tolist() == list(range(1, 6))
    # Another process may take its place.
    run = read_run(write(tmp_path / "a.log", text + last[: len(last) // 3] + console([6, 7])))
    assert run.table["step"].tolist() == list(range(1, 8))


def test_a_resumed_training_replaces_its_repeated_steps(tmp_path):
    text = console(range(1, 7)) + console(range(5, 9), optim={"grad_norm": "0.50"})
    run = read_run(write(tmp_path / "a.log", text))
    assert run.table["step"].tolist() == list(range(1, 9))
    assert run.table["grad_norm"].tolist() == [0.25] * 4 + [0.5] * 4


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_exported_history(tmp_path, form):
    records = []
    for k in range(1, 7):
        flat = {"_step": k}
        for category, values in metrics(k).items():
            for name, value in values.items():
                flat[name if category == "other" else f"{category}/{name}"] = float(value)
        records.append(flat)
    records.append({"_step": 6, "training_step": 6, "eval/scores": 0.5})
    path = tmp_path / "history"
    if form == "csv":
        pd.DataFrame(records).to_csv(path, index=False)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    run = read_run(path)
    assert run.settings.trainer == "open-instruct"
    assert run.settings.reward_filtered is True
    assert run.table["step"].tolist() == list(range(1, 7))
    assert run.table["zero_std_fraction"].tolist() == [0.25] * 6
    assert run.table["eval_reward"].iloc[5] == 0.5
