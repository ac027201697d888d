"""TensorBoard event files, where the package tensorboard is installed."""

import builtins
import json

import pytest
from sample_logs import REWARDS, ROWS

from bayes_grpo import InputError, read_run, read_runs

pytest.importorskip("tensorboard", reason="pip install 'bayes-grpo[tensorboard]'")
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def scalar(step, tag, value):
    entry = summary_pb2.Summary.Value(tag=tag, simple_value=value)
    return event_pb2.Event(
        step=step, wall_time=1.0 + step, summary=summary_pb2.Summary(value=[entry])
    )


def text(tag, content):
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[content.encode()])
    tensor.tensor_shape.dim.add().size = 1
    metadata = summary_pb2.SummaryMetadata()
    metadata.plugin_data.plugin_name = "text"
    entry = summary_pb2.Summary.Value(tag=tag, tensor=tensor, metadata=metadata)
    return event_pb2.Event(step=0, wall_time=1.0, summary=summary_pb2.Summary(value=[entry]))


def events(folder, *written, suffix=""):
    writer = EventFileWriter(str(folder), filename_suffix=suffix)
    for event in written:
        writer.add_event(event)
    writer.close()
    return sorted(folder.iterdir())


def training(first=1, last=ROWS, shift=0.0):
    for k in range(first, last + 1):
        yield scalar(k, "train/reward", REWARDS[k - 1] + shift)
        yield scalar(k, "train/frac_reward_zero_std", 0.25)
        yield scalar(k, "train/learning_rate", 1e-6)
        if k % 5 == 0:
            yield scalar(k, "eval/reward", 0.5)


ARGUMENTS = json.dumps({"num_generations": 4, "beta": 0.5, "adam_beta1": 0.8})


def test_a_folder_of_a_training(tmp_path):
    events(tmp_path / "runs" / "Jan01_host", text("args/text_summary", ARGUMENTS), *training())
    run = read_run(tmp_path)
    assert run.table["step"].tolist() == list(range(1, ROWS + 1))
    assert run.table["reward"].tolist() == pytest.approx(REWARDS, rel=1e-6)
    assert run.table["eval_reward"].dropna().tolist() == [0.5, 0.5]
    assert (run.settings.trainer, run.settings.row_average) == ("TRL", "window")
    assert (run.settings.group_size, run.settings.kl_weight) == (4, 0.5)
    assert "text 'args' in the event file" in run.settings["group_size"].why


def test_restarts_in_one_folder_are_one_log(tmp_path):
    events(tmp_path, *training(1, 9), suffix=".a")
    events(tmp_path, *training(6, ROWS, shift=1.0), suffix=".b")
    (run,) = read_runs(tmp_path)
    assert run.table["step"].tolist() == list(range(1, ROWS + 1))
    assert (run.table["reward"][5:] > 1).all()
    assert any("2 event files" in note for note in run.notes)
    assert any("resumed at step 6" in note for note in run.notes)


def test_runs_in_folders_of_their_own(tmp_path):
    for name in ("one", "two"):
        events(tmp_path / name, *training())
    assert len(read_runs(tmp_path)) == 2


def test_cut_and_damaged_files_are_read_up_to_the_damage(tmp_path):
    (file,) = events(tmp_path / "whole", *training())
    data = file.read_bytes()
    longest = 0
    for end in range(60, len(data), 61):
        for at, changed in enumerate((data[:end], data[:end] + b"\xff" * 40 + data[end + 40 :])):
            folder = tmp_path / f"{end}-{at}"
            folder.mkdir()
            (folder / file.name).write_bytes(changed)
            try:
                run = read_run(folder)
            except InputError as error:
                assert "\n" not in str(error)
                continue
            n = len(run)
            longest = max(longest, n)
            assert run.table["step"].tolist() == list(range(1, n + 1))
    assert longest >= ROWS - 1


def test_without_the_package_the_error_says_what_to_install(tmp_path, monkeypatch):
    (file,) = events(tmp_path, *training())
    real = builtins.__import__

    def importing(name, *rest, **more):
        if name.startswith("tensorboard"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(InputError, match=r"pip install 'bayes-grpo\[tensorboard\]'"):
        read_run(file)
