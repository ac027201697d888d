"""retrain: its metrics.jsonl and configuration."""

import json

from bayes_grpo import read_run


def records(steps):
    return [
        {
            "step": k,
            "condition": "grpo+none",
            "loss": 0.1,
            "mean_reward": 0.2 + 0.1 * k,
            "correct_rate": 0.9,
            "running_correct_rate": 0.95,
            "reward_uniform_group_rate": 0.25,
            "num_datums": 24,
            "step_time_s": 3.5,
            "group_size": 8,
        }
        for k in steps
    ]


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_metrics(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(records(range(5))) + '{"step": 5, "mean_rew')
    (tmp_path / "config.toml").write_text(
        "[training]\nlr = 4e-5\nbatch_size = 12\ngroup_size = 16\nmax_steps = 70\n"
    )
    run = read_run(path)
    assert run.settings.trainer == "retrain"
    assert run.table["step"].tolist() == list(range(5))
    assert run.table["reward"].tolist() == [0.2 + 0.1 * k for k in range(5)]
    assert run.table["zero_std_fraction"].tolist() == [0.25] * 5
    assert run.settings.group_size == 8  # the rows know best
    assert run.settings.prompts_per_step == 12
    assert run.settings["learning_rate"].value == 4e-5
    assert run.settings["learning_rate"].provenance == "read"
    assert run.settings.max_steps == 70
    assert "'mean_reward', not 'correct_rate'" in " ".join(run.notes)


def test_the_rate_of_correct_answers_stands_in(tmp_path):
    rows = records(range(4))
    for k, row in enumerate(rows):
        del row["mean_reward"]
        row["correct_rate"] = 0.125 * k
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(rows))
    assert read_run(path).table["reward"].tolist() == [0.125 * k for k in range(4)]


def test_a_restart_replaces_repeated_steps(tmp_path):
    again = [row | {"loss": 0.5} for row in records(range(3, 7))]
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines(records(range(5)) + again))
    run = read_run(path)
    assert run.table["step"].tolist() == list(range(7))
    assert run.table["loss"].tolist() == [0.1] * 3 + [0.5] * 4
