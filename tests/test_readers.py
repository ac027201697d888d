"""Readers: files of every known shape, damaged ones, and public logs where they are at hand."""

import json
import os
import string
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bayes_grpo import InputError, load_example, read_run, read_runs
from bayes_grpo.readers import FORMATS, SkippedLogWarning
from bayes_grpo.resources import data_dir

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = Path(os.environ.get("BAYES_GRPO_RUNS", ROOT.parent / "shared" / "runs"))
needs_public_logs = pytest.mark.skipif(
    not PUBLIC.is_dir(),
    reason=f"public logs are not in {PUBLIC}: set BAYES_GRPO_RUNS to their folder",
)
reuse_tmp_path = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def refused(match, path, **given):
    with pytest.raises(InputError, match=match) as caught:
        read_run(path, **given)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))


def state(history, **fields):
    return {"global_step": 3, "log_history": history, "max_steps": 100, **fields}


def train_row(step, reward, **more):
    return {"step": step, "epoch": step / 10, "loss": 0.0, "reward": reward, **more}


# --- TRL ----------------------------------------------------------------------------------------


def test_trainer_state_under_any_name(tmp_path):
    history = [
        train_row(5, 0.1, frac_reward_zero_std=0.5, learning_rate=1e-6),
        train_row(10, "0.25", frac_reward_zero_std=0.25, learning_rate="2e-06"),
        {"step": 10, "eval_loss": 0.0, "eval_reward": 0.4, "completions/mean_length": 999},
        train_row(15, None, kl=0.1),
        {"step": 15, "train_runtime": 3.0, "train_loss": 0.1, "total_flos": 0},
    ]
    run = read_run(write(tmp_path / "notes.txt", state(history, logging_steps=5)))
    assert run.name == "notes"
    assert run.table["step"].tolist() == [5, 10, 15]
    assert run.table["reward"].tolist()[:2] == [0.1, 0.25]
    assert run.table["zero_std_fraction"].tolist()[:2] == [0.5, 0.25]
    assert run.table["eval_reward"].tolist()[1] == 0.4
    assert "completion_length" not in run.table  # only the evaluation had one
    assert run.table["updates"].tolist() == [5, 5, 5]
    assert run.table["generations"].tolist() == [5, 5, 0]
    assert run.settings["row_average"].provenance == "read"
    assert run.settings["max_steps"].value == 100
    assert run.settings.learning_rate == 2e-6


def test_settings_by_hand_win_over_the_log(tmp_path):
    path = write(tmp_path / "a", state([train_row(1, 0.1), train_row(2, 0.2)]))
    run = read_run(path, max_steps=7, row_average="single")
    assert run.settings["max_steps"].provenance == run.settings["row_average"].provenance == "given"
    assert run.settings.max_steps == 7


def test_evaluations_between_rows_make_no_rows_of_their_own(tmp_path):
    history = [
        {"step": 0, "eval_reward": 0.05},
        train_row(10, 0.1),
        train_row(20, 0.2),
        {"step": 25, "eval_reward": 0.3},
        train_row(30, 0.3),
        {"step": 35, "eval_reward": 0.5},
    ]
    run = read_run(write(tmp_path / "a", state(history)))
    assert run.table["step"].tolist() == [10, 20, 30]
    assert run.table["updates"].tolist() == [10, 10, 10]
    assert run.table["eval_reward"].tolist()[::2] == [0.05, 0.5]
    assert "3 evaluations between two logged steps" in run.notes[0]


@pytest.mark.parametrize(
    ("key", "column"),
    [
        ("completion_length", "completion_length"),
        ("completions/mean_length", "completion_length"),
        ("clip_ratio", "clip_fraction"),
        ("clip_ratio/region_mean", "clip_fraction"),
        ("frac_reward_zero_std", "zero_std_fraction"),
    ],
)
def test_keys_of_all_generations(tmp_path, key, column):
    history = [train_row(k, k / 10, **{key: 0.5}) for k in (1, 2)]
    assert read_run(write(tmp_path / "a", state(history))).table[column].tolist() == [0.5, 0.5]


def test_steps_between_generations_have_no_reward(tmp_path):
    # num_iterations = 2, logging every step: the reward key is absent, not zero.
    rows = [train_row(k, k / 10) for k in (1, 2, 3, 4)]
    for row in rows[1::2]:
        del row["reward"]
    run = read_run(write(tmp_path / "a", state(rows)), refresh_interval=2)
    assert run.table["reward"].isna().tolist() == [False, True, False, True]
    assert run.table["generations"].tolist() == [1, 0, 1, 0]


def test_bare_history_is_trl_too(tmp_path):
    history = [train_row(k, k / 10, reward_std=0.1) for k in (10, 20)]
    run = read_run(write(tmp_path / "a", history))
    assert run.settings.row_average == "window"


def test_states_of_other_trainers_are_refused(tmp_path):
    sft = [{"step": 1, "loss": 2.0, "learning_rate": 1e-5}]
    refused(
        "no row of 'log_history' has a 'reward' .*learning_rate, loss, step",
        write(tmp_path / "a", state(sft)),
    )
    refused("has 0 rows, none of training", write(tmp_path / "b", state([])))
    refused("'log_history' is not a list of rows", write(tmp_path / "c", state({"a": 1})))


def test_output_folder_gives_its_newest_state(tmp_path):
    for number, end in ((50, 2), (200, 4), (100, 3)):
        rows = [train_row(k, k / 10) for k in range(1, end + 1)]
        write(tmp_path / "mine" / f"checkpoint-{number}" / "trainer_state.json", state(rows))
    write(tmp_path / "mine" / "README.md", "model card")
    run = read_run(tmp_path / "mine")
    assert (run.name, len(run)) == ("mine", 4)
    assert read_run(tmp_path / "mine" / "checkpoint-50").name == "mine"
    assert [r.name for r in read_runs(tmp_path)] == ["mine"]


# --- tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["reward", "train_reward", "Mean Reward", "critic/score/mean"])
def test_csv_separators_and_names(tmp_path, separator, name):
    rows = [["Step", name, "lr"], ["1", '"0.5"', "1e-6"], ["2", "0.75", ""]]
    text = "\r\n".join(separator.join(row) for row in rows)
    run = read_run(write(tmp_path / "log.txt", text))
    assert run.table["reward"].tolist() == [0.5, 0.75]
    assert run.table["step"].tolist() == [1, 2]
    assert run.settings.learning_rate == 1e-6


def test_csv_of_one_column_is_numbered(tmp_path):
    run = read_run(write(tmp_path / "a.csv", "reward\n0.1\n0.2\n0.4\n"))
    assert run.table["step"].tolist() == [1, 2, 3]


def test_csv_with_pandas_index_text_and_line_breaks(tmp_path):
    table = pd.DataFrame({"step": [1, 2, 3], "reward": [0.1, 0.2, 0.3], "text": ["a\nb", "c,", ""]})
    table.to_csv(tmp_path / "a.csv")
    assert read_run(tmp_path / "a.csv").table["reward"].tolist() == [0.1, 0.2, 0.3]


def test_utf16_and_byte_order_marks(tmp_path):
    for encoding in ("utf-16", "utf-8-sig"):
        path = write(tmp_path / encoding, "step,reward\n1,0.1\n2,0.2\n".encode(encoding))
        assert len(read_run(path)) == 2


def test_the_better_of_several_rewards_is_taken_and_said(tmp_path):
    text = "step,critic/rewards/mean,critic/score/mean\n1,9,0.1\n2,9,0.2\n"
    run = read_run(write(tmp_path / "a", text))
    assert run.table["reward"].tolist() == [0.1, 0.2]
    assert "reward taken from column 'critic/score/mean', not 'critic/rewards/mean'" in run.notes


def test_tensorboard_export(tmp_path):
    run = read_run(write(tmp_path / "a", "Wall time,Step,Value\n1.5,1,0.1\n2.5,2,0.2\n"))
    assert run.table["reward"].tolist() == [0.1, 0.2]
    assert "TensorBoard" in run.notes[0]


def test_json_lines_of_several_kinds(tmp_path):
    records = [{"type": "config", "args": {"lr": 1e-5}}]
    for step in range(4):
        if step:
            common = {"grpo_step": step, "group_size": 8.0, "num_questions": 32}
            records.append({"type": "rollout", "reward": step / 10, **common})
            for _ in range(2):
                records.append({
                    "type": "train", "grpo_step": step, "train_reward": 9, "learning_rate": 1e-5,
                    "grad_norm": float(step),
                })  # fmt: skip
        records.append({"type": "eval", "grpo_step": step, "reward": 0.7, "text": "x" * 3000})
    run = read_run(write(tmp_path / "a", lines(*records)))
    assert run.table["step"].tolist() == [1, 2, 3]
    assert run.table["reward"].tolist() == [0.1, 0.2, 0.3]
    assert run.table["grad_norm"].tolist() == [1, 2, 3]
    assert run.table["eval_reward"].tolist() == [0.7, 0.7, 0.7]
    assert (run.table["generations"] == 1).all()
    assert (run.settings.group_size, run.settings.prompts_per_step) == (8, 32)
    assert run.settings["group_size"].provenance == "read"
    assert "rewards taken from the records with type 'rollout'" in run.notes


def test_phases_that_follow_one_another_are_one_run(tmp_path):
    records = [{"phase": "ab"[k > 2], "step": k, "reward": k / 10} for k in range(1, 6)]
    assert len(read_run(write(tmp_path / "a", lines(*records)))) == 5


def test_first_rows_without_reward_and_nested_metrics(tmp_path):
    records = [{"step": k, "metrics": {"mean_reward": None if k == 0 else k}} for k in range(4)]
    run = read_run(write(tmp_path / "a", lines(*records)))
    assert run.table["generations"].tolist() == [0, 1, 1, 1]


def test_json_lists_and_columns(tmp_path):
    rows = [{"step": k, "reward": k / 10} for k in (1, 2, 3)]
    columns = {"step": [1, 2, 3], "reward": [0.1, 0.2, 0.3], "name": "x"}
    for content in (rows, columns, json.dumps(columns, indent=1), json.dumps(columns) + "\n"):
        assert len(read_run(write(tmp_path / "a", content))) == 3


def test_a_first_line_longer_than_the_head(tmp_path):
    records = [{"text": "x" * 100_000, "step": k, "reward": k / 10} for k in (1, 2, 3)]
    assert len(read_run(write(tmp_path / "a", lines(*records)))) == 3


def test_group_size_that_varies_is_not_read(tmp_path):
    text = "step,reward,group_size\n1,0.1,4\n2,0.2,2\n"
    run = read_run(write(tmp_path / "a", text))
    assert run.settings["group_size"].provenance == "default"
    assert "column 'group_size' varies (2, 4): not taken for group_size" in run.notes


# --- damage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "file is empty"),
        (" \n\n", "file is empty"),
        (b"\x00\x01\x02\xff" * 50, "a binary file"),
        ("hello world\nthis is a log\n", "no reader knows this format .tried trainer_state"),
        ("<html><table></table></html>", "found no table with a reward column"),
        ('{"step": 1,\n "log_history": [\n', "line 3, column 1: broken JSON"),
        ('{"step": 1, "reward": 0.1}\n{"step": 2, "rew\n{"step": 3}\n', "line 2: broken JSON"),
        ('{"step": 1, "reward": 0.1}\n[2]\n', "line 2: found list"),
        ("step,reward\n1,0.1\n2,0.2\n3,0.3,x\n", "line 4: found 3 cells, expected 2"),
        ("step,reward\n1,0.1\n2,0,2\n3,0.3\n4,0.4\n", "line 3: found 3 cells"),
        ("step;reward\n1;0,1\n2;0,2\n", "row 1, column 'reward': found '0,1', expected a number"),
        ("step,score_train\n1,0.1\n2,0.2\n", "no column 'reward' .*'score_train' looks like it"),
        ("step,loss\n1,0.1\n2,0.2\n", r"no column 'reward' \(columns found: step, loss\)"),
        (
            "step,reward\n" + "1,0.1\n2,0.2\n1,0.1\n" * 9,
            "row 3, column 'step': the step runs back .* with repeated steps",
        ),
        ("[]", "no column 'reward'"),
        ('{"a": 1}', "no column 'reward'"),
        ('{\n"a": [1, 2],\n"b": [1]}', "no table in it"),
        ("[" * 100_000, "no reader knows"),
        ('{"a":' + "[" * 100_000, "nested too deep|broken JSON"),
    ],
)
def test_damaged_files(tmp_path, content, match):
    refused(match, write(tmp_path / "log", content))


def test_a_cut_last_line_is_left_out_and_said(tmp_path):
    text = '{"step": 1, "reward": 0.1}\n{"step": 2, "reward": 0.2}\n{"step": 3, "rew'
    run = read_run(write(tmp_path / "a", text))
    assert len(run) == 2
    assert run.notes == ("line 3, the last, is cut off: left out",)


def test_missing_paths_and_folders(tmp_path):
    refused("no such file", tmp_path / "nowhere.json")
    refused("the folder holds no log", tmp_path)
    write(tmp_path / "a.csv", "step,reward\n1,0.1\n2,0.2\n")
    write(tmp_path / "README.md", "# My run")
    assert len(read_run(tmp_path)) == 2
    write(tmp_path / "b.csv", "step,reward\n1,0.1\n2,0.2\n")
    refused("the folder holds 2 files, expected one log: .*read_runs", tmp_path)


def test_wrong_settings_are_refused_before_any_file(tmp_path):
    with pytest.raises(InputError, match="no setting 'groups'"):
        read_run(tmp_path / "nowhere", groups=3)
    with pytest.raises(InputError, match="^setting group_size is 0"):
        read_runs(tmp_path / "nowhere", group_size=0)


# --- several runs -------------------------------------------------------------------------------


def test_read_runs_takes_files_folders_and_patterns(tmp_path):
    for name in ("b", "a"):
        write(tmp_path / "logs" / f"{name}.csv", "step,reward\n1,0.1\n2,0.2\n")
    write(tmp_path / "logs" / "deep" / "c.jsonl", lines(*[{"reward": k} for k in range(3)]))
    write(tmp_path / "logs" / ".hidden", "no log")
    folder = tmp_path / "logs"
    assert [run.name for run in read_runs(folder, group_size=4)] == ["a", "b", "c"]
    assert read_runs(folder, group_size=4)[0].settings.group_size == 4
    assert [run.name for run in read_runs(str(folder / "*.csv"))] == ["a", "b"]
    assert [run.name for run in read_runs([folder / "b.csv", folder / "a.csv"])] == ["b", "a"]
    with pytest.raises(InputError, match="no file matches"):
        read_runs(str(folder / "*.log"))
    with pytest.raises(InputError, match="no path was given"):
        read_runs([])


def test_files_of_a_folder_that_are_no_logs_are_left_out_aloud(tmp_path):
    write(tmp_path / "a.csv", "step,reward\n1,0.1\n2,0.2\n")
    bad = write(tmp_path / "notes.txt", "lr: 1e-6\n")
    with pytest.warns(SkippedLogWarning, match=r"left out: .*notes.txt: no reader knows"):
        assert len(read_runs(tmp_path)) == 1
    with pytest.raises(InputError, match="no reader knows"):
        read_runs([tmp_path / "a.csv", bad])
    (tmp_path / "a.csv").unlink()
    with pytest.warns(SkippedLogWarning), pytest.raises(InputError, match="none of its 1 files"):
        read_runs(tmp_path)


# --- properties ---------------------------------------------------------------------------------

numbers = st.floats(-100, 100, allow_subnormal=False)


@st.composite
def tables(draw):
    n = draw(st.integers(3, 12))
    steps = np.cumsum(draw(st.lists(st.integers(1, 20), min_size=n, max_size=n)))
    rewards = draw(st.lists(st.none() | numbers, min_size=n, max_size=n))
    rewards[:2] = [0.25, 0.5]
    table = pd.DataFrame({"step": steps, "reward": pd.Series(rewards, dtype=float)})
    for name in draw(st.sets(st.sampled_from(["kl", "entropy", "grad_norm", "my own"]))):
        table[name] = draw(st.lists(numbers, min_size=n, max_size=n))
    return table


@reuse_tmp_path
@given(table=tables())
def test_every_format_gives_the_same_run(tmp_path, table):
    rows = [
        {k: (None if v != v else v) for k, v in row.items()} for row in table.to_dict("records")
    ]
    history = [{"loss": 0.0, "epoch": 0.1, **row} for row in rows]
    table.to_csv(tmp_path / "csv", index=False)
    files = [
        tmp_path / "csv",
        write(tmp_path / "jsonl", lines(*rows)),
        write(tmp_path / "json", rows),
        write(tmp_path / "columns", {name: list(c) for name, c in table.astype(object).items()}),
        write(tmp_path / "state", state(history)),
    ]
    given_settings = {"row_average": "window", "max_steps": 1000}
    first, *others = (read_run(file, **given_settings) for file in files)
    assert first.table["step"].tolist() == table["step"].tolist()
    np.testing.assert_array_equal(first.table["reward"], table["reward"])
    for other in others:
        theirs = other.table.drop(columns=["loss", "epoch"], errors="ignore")
        pd.testing.assert_frame_equal(theirs, first.table, check_like=True)
        values = {name: other.settings[name].value for name in other.settings if name != "trainer"}
        assert values == {name: first.settings[name].value for name in values}


huge = st.sampled_from([1e16, 9e307, -1e300])
cells = st.none() | huge | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=4)
values = (
    cells | st.lists(cells, max_size=3) | st.dictionaries(st.text(max_size=3), cells, max_size=2)
)
keys = st.sampled_from(
    ["step", "reward", "train_reward", "type", "lr", "kl", "eval_reward", "group_size", "loss", "x"]
)
records = st.dictionaries(keys, values, max_size=6)


def read_or_refuse(path):
    """Read, or raise one clear line: nothing else may come out."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            run = read_run(path)
        except InputError as error:
            assert "\n" not in str(error)
            assert str(path) in str(error)
        else:
            assert np.isfinite(run.table["reward"].dropna()).all()
            assert (run.table["updates"] >= 1).all()
            assert (run.table["step"].diff().dropna() > 0).all()


@reuse_tmp_path
@given(rows=st.lists(records, min_size=1, max_size=6), kind=st.sampled_from("lsj"))
def test_strange_records_are_read_or_refused(tmp_path, rows, kind):
    content = {"l": lines(*rows), "s": state(rows), "j": rows}[kind]
    read_or_refuse(write(tmp_path / "a", content))


@reuse_tmp_path
@given(data=st.binary(max_size=200) | st.text(string.printable + "é\0", max_size=200))
def test_strange_bytes_are_read_or_refused(tmp_path, data):
    read_or_refuse(write(tmp_path / "a", data))


@reuse_tmp_path
@given(
    header=st.lists(keys, min_size=1, max_size=4),
    rows=st.lists(st.lists(st.text(string.digits + '.,-"n\n', max_size=5), max_size=5), max_size=6),
)
def test_strange_csv_is_read_or_refused(tmp_path, header, rows):
    text = "\n".join(",".join(row) for row in [header, *rows])
    read_or_refuse(write(tmp_path / "a", text))


def test_readers_say_what_they_look_for():
    assert len({reader.name for reader in FORMATS}) == len(FORMATS)
    assert all(reader.looks_for for reader in FORMATS)


def test_examples_are_read_by_content(tmp_path):
    copy = write(tmp_path / "no-suffix", (data_dir() / "gsm8k_like.json").read_text())
    pd.testing.assert_frame_equal(read_run(copy).table, load_example("gsm8k_like").table)


# --- public logs --------------------------------------------------------------------------------


@needs_public_logs
def test_every_tidy_public_run_is_read_or_refused():
    files = sorted((PUBLIC / "tidy").glob("*.csv"))
    assert len(files) >= 100
    read = 0
    for file in files:
        try:
            run = read_run(file)
        except InputError as error:
            assert "\n" not in str(error)
            continue
        read += 1
        raw = pd.read_csv(file)
        if len(run) < len(raw):  # a start that was given up within a few rows
            assert any("starts given up" in note for note in run.notes)
            raw = raw.tail(len(run))
        np.testing.assert_array_equal(run.table["reward"], raw["reward"])
        np.testing.assert_array_equal(run.table["step"], raw["step"])
    assert read >= len(files) - 2


# Raw files whose tidy table has another name, or counts on over restarts.
OTHER_NAMES = {"scratch-countdown-20250820194252-grpo": "scratch-countdown-20250820194252-gspo"}


@needs_public_logs
@pytest.mark.parametrize(
    "name", sorted(file.name for file in (PUBLIC / "raw").iterdir()) if PUBLIC.is_dir() else []
)
def test_every_raw_public_log_is_read_as_its_tidy_form(name):
    file = PUBLIC / "raw" / name
    runs = read_runs(file)
    table = pd.read_csv(PUBLIC / "tidy" / f"{OTHER_NAMES.get(file.stem, file.stem)}.csv")
    tidy = table.set_index("step")["reward"]
    distances = []
    for run in runs:
        own = run.table.set_index("step")["reward"]
        # Long raw files are cut at their end; where starts were given up, the tidy one counts on.
        last = tidy.tail(len(own)).set_axis(own.index[-len(tidy) :])
        for other in (tidy[~tidy.index.duplicated()], last):
            both = own.index.intersection(other.index)
            assert len(both) >= 16
            distances.append(np.nanmax(np.abs(own[both] - other[both])))
    assert min(distances) <= 1e-6
