"""`bayes-grpo compare`: numbers for machines, words for people, one line for what is wrong."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bayes_grpo.cli import main

LOG = str(Path(__file__).resolve().parents[1] / "data" / "gsm8k_like.json")
SMALL = ("--chains", "2", "--draws", "300", "--tune", "300")
TWO = ("--models", "exponential, local_level")


def compare(*arguments):
    return CliRunner().invoke(main, ["compare", *arguments])


@pytest.fixture(scope="module")
def record():
    done = compare(LOG, *TWO, *SMALL, "--json", "--horizon", "260")
    assert done.exit_code in (0, 3), done.stderr
    return json.loads(done.stdout)


def test_numbers_for_machines(record):
    assert set(record["comparison"]) == {"exponential", "local_level"}
    assert sum(record["weights"].values()) == pytest.approx(1)
    assert record["scored"]["rows"] == 180 and record["scored"]["first_step"] == 21
    assert record["forecast"]["step"][-1] == 260
    best = max(record["comparison"].values(), key=lambda row: row["elpd"])
    assert best["difference"] == 0
    assert record["in_words"].startswith("exponential predicts best")


def test_words_for_people_say_the_same(record):
    done = compare(LOG, *TWO, *SMALL, "--horizon", "260")
    lines = done.stdout.splitlines()
    assert "180 rows from step 21 on" in lines[0]
    order = [line.split()[0] for line in lines[3:5]]
    assert order == ["exponential", "local_level"]
    behind = record["comparison"]["local_level"]["difference"]
    assert f"{behind:.1f} (" in lines[4]
    assert "forecast for step 260" in " ".join(lines)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((LOG, "--models", "expnential,local_level"), "'expnential'"),
        ((LOG, "--models", " , "), "--models"),
        ((LOG, *TWO, *SMALL, "--start", "200"), "too few"),
        ((LOG, *TWO, *SMALL, "--ahead", "0"), "--ahead"),
        (("nowhere.csv", *TWO), "nowhere.csv"),
        ((LOG, *TWO, "--horizon", "20"), "horizon is 20"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, named):
    done = compare(*arguments)
    assert done.exit_code == 2, done.output
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.output


def test_stability_of_a_random_walk_is_refused(tmp_path):
    done = CliRunner().invoke(main, ["stability", LOG, "--model", "local_level", *SMALL])
    assert done.exit_code == 2
    assert "no stiffness" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
