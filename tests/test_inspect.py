"""`bayes-grpo inspect`: what a log holds, on one screen."""

import json
import re

import pandas as pd
import pytest
from click.testing import CliRunner

from bayes_grpo import Run, load_example, read_run
from bayes_grpo.cli import main
from bayes_grpo.inspection import describe, missing_setting
from bayes_grpo.resources import data_dir


def inspect(*arguments):
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


@pytest.fixture
def log(tmp_path):
    rows = "".join(f"{k},{k / 50},{0.0},{k % 5 / 4}\n" for k in range(1, 31))
    path = tmp_path / "mine.csv"
    path.write_text("step,reward,entropy,frac_reward_zero_std\n" + rows)
    return path


def test_one_screen(log):
    done = inspect(log, "--group-size", 8)
    assert done.exit_code == 0
    text = done.stdout
    assert "mine\n  log" in text
    assert "trainer  TRL" in text
    assert "30, 30 with a reward, steps 1 to 30, 1 apart, each one rollout batch" in text
    assert re.search(r"group_size +8 +given +set by hand", text)
    assert "note: entropy is 0 in every row (not computed?): column left out" in text
    assert "missed most: max_steps (--max-steps)" in text
    assert len(text.splitlines()) < 50


def test_means_of_both_ends(log):
    line = next(line for line in inspect(log).stdout.splitlines() if line.startswith("  reward "))
    assert line.split() == ["reward", "30", "0.04", "0.58"]


def test_the_setting_that_is_missed_most():
    table = pd.DataFrame({"step": [1, 2], "reward": [0.1, 0.2]})
    known = {}
    names = []
    values = {"learning_rate": 1e-6, "momentum": 0.9, "max_steps": 9}
    while (missing := missing_setting(Run.from_table(table, **known))) is not None:
        names.append(missing[0])
        known[missing[0]] = values.get(missing[0], 2)
    assert names[:3] == ["group_size", "prompts_per_step", "max_steps"]
    assert sorted(names) == sorted(known)
    assert "missed most" not in describe(Run.from_table(table, **known))


def test_the_table_as_it_was_understood(log, tmp_path):
    table = tmp_path / "out" / "table.csv"
    assert inspect(log, "--to", table).exit_code == 0
    pd.testing.assert_frame_equal(pd.read_csv(table), read_run(log).table)
    again = read_run(table)
    pd.testing.assert_frame_equal(again.table, read_run(log).table)
    assert inspect(log, "--to", tmp_path / "table.xls").exit_code == 2


def test_several_runs_in_one_table(tmp_path):
    rows = "step,reward\n" + "".join(f"{k},{k / 50}\n" for k in [*range(1, 21), *range(1, 31)])
    (tmp_path / "two.csv").write_text(rows)
    out = tmp_path / "table.csv"
    done = inspect(tmp_path / "two.csv", "--to", out)
    assert done.exit_code == 0
    assert "two: part 1" in done.stdout
    assert pd.read_csv(out).groupby("run").size().tolist() == [20, 30]
    assert "30, 30 with" in inspect(tmp_path / "two.csv", "--segments", "last").stdout


def test_numbers_for_machines(log, tmp_path):
    (tmp_path / "bad.txt").write_text("nothing\n")
    done = inspect(log, tmp_path / "bad.txt", "--json")
    assert done.exit_code == 2
    content = json.loads(done.stdout)
    (run,) = content["runs"]
    assert (run["trainer"], run["rows"], run["missing_setting"]) == ("TRL", 30, "group_size")
    assert run["settings"]["prompts_per_step"] == {
        "value": 4,
        "provenance": "inferred",
        "why": "fractions of prompts without contrast are whole numbers of 1/4",
    }
    assert "no reader knows this format" in content["errors"][0]


def test_a_filtered_reward_is_a_caution_everywhere(log):
    run = read_run(log, reward_filtered=True)
    assert "caution: the reward is the mean of a filtered batch (set by hand)" in describe(run)
    assert "caution" in repr(run)
    assert "caution" in run._repr_html_()
    assert read_run(log).cautions == ()


def test_examples_are_described():
    text = describe(load_example())
    assert str(data_dir() / "gsm8k_like.json") in text
