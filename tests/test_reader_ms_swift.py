"""ms-swift: logging.jsonl, args.json, the console."""

import json

import pandas as pd
import pytest

from bayes_grpo import read_run
from bayes_grpo.readers import TRAINERS

ARGUMENTS = {
    "num_generations": 16,
    "per_device_train_batch_size": 4,
    "generation_batch_size": 64,
    "steps_per_generation": 4,
    "gradient_accumulation_steps": 2,
    "num_iterations": 1,
    "learning_rate": 2e-6,
    "adam_beta1": 0.85,
    "beta": 0.04,
    "scale_rewards": "group",
    "max_steps": -1,
}


def train(step, total=300, **more):
    return {
        "loss": 0.0,
        "grad_norm": 0.5,
        "learning_rate": 1e-6,
        "completions/mean_length": 400.0,
        "reward": round(0.1 + step / 1000, 8),
        "reward_std": 0.2,
        "frac_reward_zero_std": 0.25,
        "rewards/Accuracy/mean": 0.1,
        "rewards/Accuracy/std": 0.4,
        "kl": 0.001,
        "entropy/mean": 0.75,
        "entropy/max": 0.9,
        "clip_ratio/region_mean": 0.02,
        "epoch": step / 100,
        "global_step/max_steps": f"{step}/{total}",
        "percentage": f"{100 * step / total:.2f}%",
        "elapsed_time": "1m 3s",
        "remaining_time": "2h 3m",
        "memory(GiB)": 55.33,
        "train_speed(s/it)": 35.87,
    } | more


def held_out(step, total=300):
    return {
        "eval_loss": 0.0,
        "eval_reward": 0.625,
        "eval_runtime": 9.0,
        "completions/mean_length": 999.0,  # lost its prefix
        "reward": 7.0,
        "global_step/max_steps": f"{step}/{total}",
        "elapsed_time": "1m",
    }


CLOSING = [
    {
        "train_runtime": 99.0,
        "train_loss": 0.01,
        "global_step/max_steps": "300/300",
        "elapsed_time": "2h",
    },
    {
        "model_parameter_info": "9M Params",
        "last_model_checkpoint": "/somewhere/checkpoint-300",
        "best_metric": 0.5,
        "global_step": 300,
        "memory": 60.0,
    },
]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def rows_of_training(steps=range(5, 45, 5)):
    rows = [train(step) for step in steps]
    rows.insert(4, held_out(20))
    return rows


def write(path, text):
    path.write_text(text)
    return path


def test_logging_jsonl(tmp_path):
    run = read_run(write(tmp_path / "logging.jsonl", lines(rows_of_training() + CLOSING)))
    assert run.settings.trainer == "ms-swift"
    assert run.table["step"].tolist() == list(range(5, 45, 5))
    assert run.table["reward"].tolist() == [round(0.1 + k / 1000, 8) for k in range(5, 45, 5)]
    assert run.table["completion_length"].tolist() == [400.0] * 8
    assert run.table["entropy"].tolist() == [0.75] * 8
    assert run.table["zero_std_fraction"].tolist() == [0.25] * 8
    assert run.table["clip_fraction"].tolist() == [0.02] * 8
    assert run.table["eval_reward"].dropna().tolist() == [0.625]
    assert run.table["eval_reward"].iloc[3] == 0.625
    assert run.table["updates"].tolist() == [5] * 8
    assert run.table["generations"].tolist() == [5] * 8
    settings = run.settings
    assert settings["max_steps"].value == 300
    assert settings["max_steps"].provenance == "read"
    assert settings.row_average == "window"
    assert settings.reward_std_kind == "within_group"
    assert settings.reward_filtered is False
    assert settings["group_size"].value == 8
    assert "ms-swift's default" in settings["group_size"].why
    assert not [note for note in run.notes if "without numbers" in note]


def test_arguments_beside(tmp_path):
    write(tmp_path / "args.json", json.dumps(ARGUMENTS))
    path = write(tmp_path / "logging.jsonl", lines(rows_of_training()))
    settings = read_run(path).settings
    expected = {
        "group_size": 16,
        "prompts_per_step": 4,
        "learning_rate": 2e-6,
        "momentum": 0.85,
        "kl_weight": 0.04,
        "refresh_interval": 2,
    }
    for name, value in expected.items():
        assert settings[name].value == value, name
        assert settings[name].provenance == "read", name
        assert settings[name].why
    assert settings.max_steps == 300  # the arguments have -1, the rows know
    write(tmp_path / "args.json", json.dumps(ARGUMENTS | {"scale_rewards": "batch"}))
    assert read_run(path).settings.reward_std_kind == "pooled"


def test_steps_between_generations_have_no_reward(tmp_path):
    rows = [train(step) for step in range(1, 9)]
    for row in rows[1::2]:
        for name in ("reward", "reward_std", "frac_reward_zero_std"):
            del row[name]
    run = read_run(write(tmp_path / "logging.jsonl", lines(rows)), refresh_interval=2)
    assert run.table["reward"].isna().tolist() == [False, True] * 4


def test_a_cut_last_line_is_left_out(tmp_path):
    text = lines(rows_of_training()) + json.dumps(train(45))[:60]
    run = read_run(write(tmp_path / "logging.jsonl", text))
    assert run.table["step"].tolist() == list(range(5, 45, 5))
    assert any("cut off" in note for note in run.notes)


def test_a_resumed_training_replaces_its_repeated_steps(tmp_path):
    again = [train(step, total=400, grad_norm=0.75) for step in range(30, 60, 5)]
    run = read_run(write(tmp_path / "logging.jsonl", lines(rows_of_training() + again)))
    assert run.table["step"].tolist() == list(range(5, 60, 5))
    assert run.table["grad_norm"].tolist() == [0.5] * 5 + [0.75] * 6
    assert run.settings.max_steps == 400


def test_older_speed_and_the_last_row_with_text(tmp_path):
    rows = [train(step) for step in range(1, 7)]
    for row in rows:
        row["train_speed(iter/s)"] = row.pop("train_speed(s/it)")
    run = read_run(write(tmp_path / "a", lines(rows)))
    assert run.settings.trainer == "ms-swift"


def test_console(tmp_path):
    text = "run sh: `swift rlhf --rlhf_type grpo --num_generations 4 --beta 0.02`\n"
    for row in rows_of_training():
        step = row["global_step/max_steps"].partition("/")[0]
        text += f"Train:  10%|#         | {step}/300 [01:03<2:03:00, 35.9s/it]{row}\n"
    run = read_run(write(tmp_path / "a.log", text + str(CLOSING[0]) + "\n" + str(train(45))[:50]))
    assert run.settings.trainer == "ms-swift"
    assert run.table["step"].tolist() == list(range(5, 45, 5))
    assert run.table["eval_reward"].iloc[3] == 0.625
    assert run.table["completion_length"].tolist() == [400.0] * 8
    assert run.settings["group_size"].value == 4
    assert run.settings["kl_weight"].value == 0.02


def test_numbers_printed_as_text(tmp_path):
    text = "".join(
        str({k: str(v) if isinstance(v, float) else v for k, v in train(step).items()}) + "\n"
        for step in range(1, 7)
    )
    run = read_run(write(tmp_path / "a.log", text))
    assert run.table["reward"].tolist() == pytest.approx([0.1 + k / 1000 for k in range(1, 7)])


def test_exported_csv(tmp_path):
    path = tmp_path / "a.csv"
    pd.DataFrame(rows_of_training()).to_csv(path, index=False)
    run = read_run(path)
    assert run.settings.trainer == "ms-swift"
    assert run.table["step"].tolist() == list(range(5, 45, 5))
    assert run.table["reward"].max() < 1
    assert run.table["eval_reward"].iloc[3] == 0.625


def test_it_is_asked_before_trl():
    names = [trainer.name for trainer in TRAINERS]
    assert names.index("ms-swift") < names.index("TRL")
