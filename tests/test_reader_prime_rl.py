"""prime-rl: orchestrator's and trainer's files, the keys of 2025 and 2026, the console."""

import json

import pandas as pd
import pytest

from bayes_grpo import InputError, read_run

ORCHESTRATOR = "batch_size = 128\ngroup_size = 16\nmax_off_policy_steps = 4\nmax_steps = 300\n"
TRAINER = "[optim]\nlr = 3e-6\nbetas1 = 0.95\n"


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def reward(k):
    return 0.2 + 0.05 * k


def of_2026(k, agent="/agent"):
    return {
        "step": k,
        "time": 1.7e9 + k,
        f"train/agg/all{agent}/reward/mean": reward(k),
        f"train/agg/effective{agent}/reward/mean": 0.5,
        f"train/math/all{agent}/reward/mean": 0.9,
        f"train/agg/all{agent}/solved_none": 0.25,
        f"train/agg/all{agent}/solved_all": 0.125,
        f"train/agg/all{agent}/num_output_tokens/mean": 300.0,
        "off_policy/mean": 1.75 + 0.1 * (k % 3),
        "off_policy/in_flight/mean": 1.0,
    }


def of_trainer(k):
    return {
        "step": k,
        "loss/mean": 0.0,
        "entropy/all/mean": 0.4 + k,
        "mismatch_kl/all/mean": 0.001,
        "optim/grad_norm": 0.1,
        "optim/lr": 3e-6,
    }


def of_2025(k):
    return {
        "step": k,
        "reward/mean": reward(k),
        "completion_len/mean": 150.0,
        "is_truncated/mean": 0.1,
        "batch/solve_none": 0.5,
        "batch/solve_all": 0.25,
        "batch/effective_batch_size": 0.25,
        "val_reward/mean": 0.375,
    }


@pytest.mark.parametrize("agent", ["/agent", ""])
def test_the_orchestrators_file(tmp_path, agent):
    records = [of_2026(k, agent) for k in range(8)]
    records.insert(5, {"step": 4, "eval/aime/all/agent/avg@16": 0.625, "eval/aime/pass@16": 0.9})
    run = read_run(write(tmp_path / "metrics.jsonl", lines(records)))
    assert run.settings.trainer == "prime-rl"
    assert run.table["step"].tolist() == list(range(8))
    assert run.table["reward"].tolist() == [reward(k) for k in range(8)]  # all that arrived
    assert run.table["zero_std_fraction"].tolist() == [0.375] * 8
    assert run.table["completion_length"].tolist() == [300.0] * 8
    assert run.table["eval_reward"].dropna().tolist() == [0.625]
    assert run.table["eval_reward"].iloc[4] == 0.625
    assert run.settings["lag"].value == 2
    assert run.settings["lag"].provenance == "inferred"
    assert run.settings.updates_per_step == run.settings.refresh_interval == 1
    assert run.settings.reward_filtered is False
    assert "kl" not in run.table


def test_a_reward_without_the_filtered_groups_is_marked(tmp_path):
    records = [of_2026(k) for k in range(6)]
    for k, record in enumerate(records):
        del record["train/agg/all/agent/reward/mean"]
        record["train/agg/effective/agent/reward/mean"] = reward(k)
    run = read_run(write(tmp_path / "metrics.jsonl", lines(records)))
    assert run.table["reward"].tolist() == [reward(k) for k in range(6)]
    assert run.settings["reward_filtered"].value is True
    assert "effective" in run.settings["reward_filtered"].why


def test_the_trainers_file_alone_is_refused(tmp_path):
    path = write(tmp_path / "metrics.jsonl", lines([of_trainer(k) for k in range(5)]))
    with pytest.raises(InputError, match="prime-rl's trainer.*orchestrator's metrics.jsonl"):
        read_run(path)


@pytest.mark.parametrize("trainer", ["trainer/metrics.jsonl", "metrics.jsonl"])
def test_the_trainers_file_beside_is_joined(tmp_path, trainer):
    path = tmp_path / "run_default" / "metrics.jsonl"
    write(path, lines([of_2026(k) for k in range(6)]))
    restarted = [of_trainer(k) for k in range(4)] + [
        of_trainer(k) | {"optim/grad_norm": 0.5} for k in range(2, 5)
    ]
    write(tmp_path / trainer, lines(restarted))
    write(tmp_path / "another" / "metrics.jsonl", lines([of_2026(k) for k in range(3)]))
    run = read_run(path)
    assert run.table["entropy"].tolist()[:5] == [0.4 + k for k in range(5)]
    assert run.table["entropy"].isna().tolist() == [False] * 5 + [True]
    assert run.table["grad_norm"].tolist()[:5] == [0.1, 0.1, 0.5, 0.5, 0.5]
    assert run.settings.learning_rate == 3e-6
    assert any("joined by step with the metrics beside" in note for note in run.notes)


def test_a_broken_file_beside_is_no_reason_to_refuse(tmp_path):
    path = write(tmp_path / "run_default" / "metrics.jsonl", lines([of_2026(k) for k in range(6)]))
    write(tmp_path / "trainer" / "metrics.jsonl", "{broken\n{}\n")
    run = read_run(path)
    assert any("were not used" in note for note in run.notes)
    assert "entropy" not in run.table


def test_toml_beside(tmp_path):
    path = tmp_path / "run_default" / "metrics.jsonl"
    records = [{n: v for n, v in of_2026(k).items() if "off_policy" not in n} for k in range(6)]
    write(path, lines(records))
    write(tmp_path / "run_default" / "orch.toml", ORCHESTRATOR)
    write(tmp_path / "configs" / "trainer.toml", TRAINER)
    settings = read_run(path).settings
    expected = {
        "group_size": 16,
        "prompts_per_step": 8,
        "lag": 4,
        "max_steps": 300,
        "learning_rate": 3e-6,
        "momentum": 0.95,
    }
    for name, value in expected.items():
        assert settings[name].value == value, name
        assert settings[name].provenance == "read", name
    assert "upper bound" in settings["lag"].why
    assert "128 / 16" in settings["prompts_per_step"].why


def test_defaults_say_so(tmp_path):
    records = [{n: v for n, v in of_2026(k).items() if "off_policy" not in n} for k in range(6)]
    settings = read_run(write(tmp_path / "metrics.jsonl", lines(records))).settings
    assert settings["lag"].value == 8
    assert settings["lag"].provenance == "default"
    assert "prime-rl's default max_off_policy_steps" in settings["lag"].why


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_the_keys_of_2025(tmp_path, form):
    records = [of_2025(k) for k in range(6)]
    if form == "csv":
        path = tmp_path / "history.csv"
        pd.DataFrame(records).rename(columns={"step": "_step"}).to_csv(path, index=False)
    else:
        path = write(tmp_path / "metrics.jsonl", lines(records))
    run = read_run(path)
    assert run.settings.trainer == "prime-rl"
    assert run.table["reward"].tolist() == pytest.approx([reward(k) for k in range(6)])
    assert run.table["zero_std_fraction"].tolist() == [0.75] * 6
    assert run.table["completion_length"].tolist() == [150.0] * 6
    assert run.table["eval_reward"].tolist() == [0.375] * 6
    assert run.settings.lag == 1
    assert "max_async_level in 2025" in run.settings["lag"].why


def test_settings_of_2025(tmp_path):
    path = write(tmp_path / "metrics.jsonl", lines([of_2025(k) for k in range(6)]))
    write(
        tmp_path / "rl.toml",
        "[orchestrator]\nbatch_size = 64\nrollouts_per_example = 8\nmax_async_level = 2\n"
        "max_off_policy_steps = 8\n[orchestrator.buffer]\nonline_difficulty_filtering = true\n"
        "[trainer.optim]\nlr = 1e-6\n",
    )
    settings = read_run(path).settings
    assert (settings.group_size, settings.prompts_per_step, settings.lag) == (8, 8, 2)
    assert settings.learning_rate == 1e-6
    assert settings.reward_filtered is True


def console(steps, loguru="\x1b[32m16:43:{k:02d}\x1b[0m \x1b[1mSUCCESS\x1b[0m "):
    text = "16:42:00    INFO Starting orchestrator loop (max_steps=20)\n"
    for k in steps:
        text += "Generating rollouts (train):  25%|##        | 32/128 [00:05<00:15,  6.1it/s]\n"
        text += loguru.format(k=k) + (
            f"Step {k} | Time: 5.23s | Reward: {reward(k):.4f} | Val. Reward: 0.5 | "
            "Throughput: 3500.7 tokens/s | Seq. Length: 142.7 tokens/sample | Async Level: 1 | "
            "Max. Off-Policy Level: 3\n"
        )
        text += f"16:43:{k:02d}   DEBUG Micro Step 0/4 | Loss: 3.0 | Entropy: 9.0\n"
        text += loguru.format(k=k) + (
            f"Step {k} | Time: 2.96s | Loss: -0.0019 | Entropy: 0.{k}5 | Mismatch KL: 0.0010 | "
            "Grad. Norm: 0.0500 | LR: 2.00e-06 | Throughput: 100.0 tokens/s | Peak Mem.: 9.0 GiB\n"
        )
    return text


@pytest.mark.parametrize("loguru", ["\x1b[32m16:43:{k:02d}\x1b[0m \x1b[1mSUCCESS\x1b[0m ", ""])
def test_console(tmp_path, loguru):
    run = read_run(write(tmp_path / "a.log", console(range(7), loguru)))
    assert run.settings.trainer == "prime-rl"
    assert run.table["step"].tolist() == list(range(7))
    assert run.table["reward"].tolist() == pytest.approx([reward(k) for k in range(7)])
    assert run.table["eval_reward"].tolist() == [0.5] * 7
    assert run.table["entropy"].tolist() == pytest.approx([k / 10 + 0.05 for k in range(7)])
    assert run.table["grad_norm"].tolist() == [0.05] * 7
    assert run.settings.learning_rate == 2e-6
    assert run.settings["lag"].value == 1
    assert run.settings["lag"].provenance == "inferred"


def test_console_without_colons(tmp_path):
    text = "".join(
        f"10:00:0{k} SUCCESS Step {k} | 12s | Reward {reward(k)} | Lag 1\n" for k in range(6)
    )
    run = read_run(write(tmp_path / "a.log", text))
    assert run.settings.trainer == "prime-rl"
    assert run.table["reward"].tolist() == pytest.approx([reward(k) for k in range(6)])


def test_a_cut_last_line_is_left_out(tmp_path):
    whole = console(range(6))
    cut = whole + "16:50:00 SUCCESS Step 6 | Time: 5.23s | Reward: 0.4"
    assert len(read_run(write(tmp_path / "a.log", cut))) == 6


def test_a_resumed_run_replaces_its_repeated_steps(tmp_path):
    text = console(range(6)) + console(range(4, 8)).replace("Norm: 0.0500", "Norm: 0.2500")
    run = read_run(write(tmp_path / "a.log", text))
    assert run.table["step"].tolist() == list(range(8))
    assert run.table["grad_norm"].tolist() == [0.05] * 4 + [0.25] * 4


def test_lines_of_other_loops_are_not_taken_for_it(tmp_path):
    text = "".join(f"Step {k} | Time: 3s | Reward: {reward(k)} | Loss: 0.1\n" for k in range(6))
    run = read_run(write(tmp_path / "a.log", text))
    assert run.settings.trainer is None
    assert run.settings.lag == 0
