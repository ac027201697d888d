"""Counters that run back: resumed, restarted, concatenated, shuffled."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayes_grpo import InputError, read_run, read_runs
from bayes_grpo.readers.protocol import Parsed
from bayes_grpo.readers.segments import segmented


def parsed(*pieces):
    """One log of several stretches of (step, reward) rows."""
    rows = [row for piece in pieces for row in piece]
    return Parsed(pd.DataFrame(rows, columns=["step", "reward"]))


def stretch(first, last, level, spacing=1):
    return [(step, level + step / 1000) for step in range(first, last + 1, spacing)]


def steps_of(part):
    return part.table["step"].tolist()


def test_a_counter_that_rises_is_left_alone():
    log = parsed(stretch(1, 20, 0))
    assert segmented(log)[0] is log


def test_a_resumed_training_keeps_its_later_rows():
    log = parsed(stretch(1, 50, 0), stretch(41, 80, 1))
    (run,) = segmented(log)
    assert steps_of(run) == list(range(1, 81))
    np.testing.assert_allclose(run.table["reward"][:40], np.arange(1, 41) / 1000)
    np.testing.assert_allclose(run.table["reward"][40:], 1 + np.arange(41, 81) / 1000)
    assert "resumed at step 41: 10 earlier rows" in run.notes[-1]


def test_rows_beyond_a_resumed_one_belong_to_an_abandoned_branch():
    (run,) = segmented(parsed(stretch(1, 50, 0), stretch(21, 30, 1)))
    assert steps_of(run) == list(range(1, 31))
    assert (run.table["reward"][20:] > 1).all()


def test_a_counter_that_starts_anew_is_another_run():
    log = parsed(stretch(1, 30, 0), stretch(1, 40, 1), stretch(1, 25, 2))
    runs = segmented(log)
    assert [len(run.table) for run in runs] == [30, 40, 25]
    assert [run.label for run in runs] == ["part 1", "part 2", "part 3"]
    assert all("starts anew 2 times" in run.notes[-1] for run in runs)


def test_starts_that_were_given_up_are_left_out():
    (run,) = segmented(parsed(stretch(1, 4, 0), stretch(1, 3, 0), stretch(1, 200, 1)))
    assert steps_of(run) == list(range(1, 201))
    assert (run.label, "after 4, 3 rows" in run.notes[-1]) == ("", True)


def test_a_restart_that_is_itself_resumed():
    log = parsed(stretch(1, 30, 0), stretch(1, 40, 1), stretch(35, 60, 2))
    first, second = segmented(log)
    assert steps_of(first) == list(range(1, 31))
    assert steps_of(second) == list(range(1, 61))
    assert (second.table["reward"][34:] > 2).all()


@pytest.mark.parametrize(
    ("way", "lengths"), [("split", [30, 40]), ("merge", [40]), ("last", [40]), ("auto", [30, 40])]
)
def test_ways_to_insist(way, lengths):
    log = parsed(stretch(1, 30, 0), stretch(1, 40, 1))
    assert [len(run.table) for run in segmented(log, way)] == lengths


def test_parts_in_the_wrong_order_are_sorted():
    log = parsed(stretch(51, 100, 1), stretch(1, 50, 0))
    (run,) = segmented(log)
    assert steps_of(run) == list(range(1, 101))
    assert "parts of the log were not in the order" in run.notes[-1]
    (run,) = segmented(parsed(stretch(1, 30, 0)[::-1]))
    assert steps_of(run) == list(range(1, 31))


@given(st.permutations(list(range(1, 25))))
def test_shuffled_rows_are_sorted_or_refused_or_told_apart_never_wrong(order):
    log = parsed([(step, step / 100) for step in order])
    try:
        runs = segmented(log)
    except InputError as error:
        assert "\n" not in str(error)
        return
    for run in runs:
        assert (np.diff(run.table["step"]) > 0).all()
        np.testing.assert_allclose(run.table["reward"], run.table["step"] / 100)


@given(st.lists(st.integers(1, 12), min_size=30, max_size=60))
def test_shuffled_repeats_have_no_order(steps):
    turns = int((np.diff(steps) < 0).sum())
    if turns <= 15:
        return
    with pytest.raises(InputError, match="with repeated steps"):
        segmented(parsed([(step, step / 100) for step in steps]))


def test_rows_of_one_step_are_no_restart():
    log = parsed([(step, step / 10) for step in (1, 1, 1, 2, 2, 2, 3, 3, 3)])
    assert segmented(log)[0] is log


def test_missing_steps_stay_in_their_piece():
    rows = [*stretch(1, 20, 0), (None, None), *stretch(1, 20, 1)]
    first, second = segmented(parsed(rows))
    assert (len(first.table), len(second.table)) == (21, 20)


def test_files_with_several_trainings(tmp_path):
    text = "step,reward\n" + "".join(f"{s},{r}\n" for s, r in stretch(1, 20, 0) + stretch(1, 30, 1))
    (tmp_path / "log.csv").write_text(text)
    assert [run.name for run in read_runs(tmp_path)] == ["log: part 1", "log: part 2"]
    with pytest.raises(InputError, match=r"holds 2 runs .*read_runs, or segments='last'"):
        read_run(tmp_path / "log.csv")
    assert len(read_run(tmp_path / "log.csv", segments="last")) == 30
    with pytest.raises(InputError, match="segments is 'first': expected one of 'auto'"):
        read_run(tmp_path / "log.csv", segments="first")
