"""Weights & Biases: charts, histories, local folders."""

import json

import numpy as np
import pytest
from sample_logs import REWARDS, ROWS

from bayes_grpo import InputError, read_run, read_runs


def chart(*runs, metric="train/reward", axis="train/global_step", edge=0.0, x=None):
    names = []
    for run in runs:
        for name in (f"{run} - {metric}", f"{run} - _step"):
            names += [name, f"{name}__MIN", f"{name}__MAX"]
    lines = [[axis, *names]]
    for k, r in enumerate(REWARDS, 1):
        cells = []
        for at, _ in enumerate(runs):
            cells += [r + at, r + at - edge, r + at + edge, 54 * k, 54 * k, 54 * k]
        lines.append([x[k - 1] if x else k, *cells])
    return "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_chart_of_one_run(tmp_path):
    run = read_run(write(tmp_path / "wandb_export.csv", chart("calm-sun-3")))
    assert run.name == "wandb_export"
    assert run.table["reward"].tolist() == REWARDS
    assert run.table["step"].tolist() == list(range(1, ROWS + 1))


def test_several_runs_side_by_side_with_dashes_in_their_names(tmp_path):
    names = ["qwen - lr 1e-6 - seed 0", "qwen - lr 1e-6 - seed 1"]
    runs = read_runs(write(tmp_path / "c.csv", chart(*names)))
    assert [run.name for run in runs] == [f"c: {name}" for name in names]
    np.testing.assert_allclose(runs[1].table["reward"], np.array(REWARDS) + 1)


def test_runs_of_different_length_leave_cells_empty(tmp_path):
    rows = [["Step", "a - reward", "b - reward"]]
    rows += [[k, r if k % 2 else "", r + 1] for k, r in enumerate(REWARDS, 1)]
    text = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    one, other = read_runs(write(tmp_path / "c.csv", text))
    assert one.table["step"].tolist() == list(range(1, ROWS + 1, 2))
    assert len(other) == ROWS


def test_buckets_and_relative_time_are_noted(tmp_path):
    run = read_run(write(tmp_path / "c.csv", chart("a", edge=0.1)))
    assert any("a subsample, not means" in note for note in run.notes)
    minutes = [f"{7.5 * k}" for k in range(ROWS)]
    text = chart("a", axis="Relative Time (Process)", x=minutes)
    run = read_run(write(tmp_path / "c.csv", text))
    assert run.table["step"].tolist() == list(range(1, ROWS + 1))
    assert any("counts no steps" in note for note in run.notes)


def test_a_chart_of_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match="shows 'train/kl', expected a reward"):
        read_run(write(tmp_path / "c.csv", chart("a", metric="train/kl")))


@pytest.mark.parametrize("metric", ["critic/score/mean", "train/reward_mean_all", "my_reward"])
def test_names_of_the_reward(tmp_path, metric):
    run = read_run(write(tmp_path / "c.csv", chart("a", metric=metric)))
    assert run.table["reward"].tolist() == REWARDS


def test_smoothed_curves_are_suspected(tmp_path):
    rng = np.random.default_rng(0)
    noisy = 0.5 + 0.1 * rng.standard_normal(200)
    smooth = noisy.copy()
    for k in range(1, 200):
        smooth[k] = 0.97 * smooth[k - 1] + 0.03 * noisy[k]
    for values, suspected in ((noisy, False), (smooth, True)):
        lines = ['"Step","a - reward"', *(f'"{k}","{v}"' for k, v in enumerate(values))]
        run = read_run(write(tmp_path / "c.csv", "\n".join(lines)))
        assert any("very smooth" in note for note in run.notes) == suspected


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_histories_merge_what_was_logged_apart(tmp_path, form):
    records = []
    for k, r in enumerate(REWARDS, 1):
        common = {"train/global_step": k, "_runtime": 9.5 * k, "_timestamp": 1.7e9 + k}
        records.append({"_step": 2 * k, **common, "train/reward": r, "train/kl": None})
        records.append({"_step": 2 * k + 1, **common, "train/reward": None, "train/kl": 0.1})
    if form == "csv":
        names = list(records[0])
        lines = [",".join(names)]
        lines += [",".join("" if row[n] is None else str(row[n]) for n in names) for row in records]
        text = "\n".join(lines) + "\n"
    else:
        text = "".join(json.dumps(row) + "\n" for row in records)
    run = read_run(write(tmp_path / "history", text))
    assert run.table["step"].tolist() == list(range(1, ROWS + 1))
    assert run.table["reward"].tolist() == REWARDS
    assert run.table["kl"].tolist() == [0.1] * ROWS
    assert (run.table["generations"] == 1).all()


def test_a_local_folder(tmp_path):
    files = tmp_path / "wandb" / "run-20260101_000000-abc" / "files"
    rows = [{"loss": 0.1, "reward": r, "completions/mean_length": 9.0} for r in REWARDS]
    write(files / "output.log", "\n".join(map(repr, rows)) + "\n")
    write(files / "config.yaml", "num_generations:\n  desc: null\n  value: 4\n")
    write(files / "wandb-summary.json", json.dumps({"reward": 0.5, "_step": 14}))
    write(files / "wandb-metadata.json", json.dumps({"args": ["--beta", "0.25", "--x"]}))
    run = read_run(tmp_path / "wandb")
    assert run.table["reward"].tolist() == REWARDS
    assert (run.settings.group_size, run.settings.kl_weight) == (4, 0.25)
