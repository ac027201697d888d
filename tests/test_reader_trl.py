"""TRL: console logs, configurations, and what follows from its own rules."""

import json

import numpy as np
import pytest

from bayes_grpo import InputError, read_run, read_runs

KEYS = {"loss": 0.01, "grad_norm": 0.3, "learning_rate": 1e-6, "reward_std": 0.2}


def printed(k, spacing=1, text=False, **more):
    row = {**KEYS, "reward": round(0.1 + k / 500, 4), "epoch": round(k * spacing / 900, 6), **more}
    if text:
        row = {key: f"{value:.4g}" for key, value in row.items()}
    return repr(row)


def bar(step, total=200, end="\n"):
    return f" {100 * step // total}%|##        | {step}/{total} [02:22<12:51,  4.65s/it]{end}"


def console(tmp_path, *lines, name="train.log"):
    path = tmp_path / name
    path.write_bytes(
        "".join(line if line.endswith("\n") else line + "\n" for line in lines).encode()
    )
    return path


def test_steps_from_bars_between_the_rows(tmp_path):
    lines = ["Loading checkpoint shards: 100%|###| 2/2 [00:00<00:00, 130.45it/s]"]
    for k in range(1, 31):
        lines += [bar(step) for step in range(5 * k - 4, 5 * k + 1)]
        lines.append(printed(k, 5))
    run = read_run(console(tmp_path, *lines))
    assert run.table["step"].tolist() == list(range(5, 151, 5))
    assert run.settings.max_steps == 200
    assert (run.settings.trainer, run.settings.row_average) == ("TRL", "window")
    assert (run.table["generations"] == 5).all()


def test_bars_on_the_same_line_and_numbers_as_text(tmp_path):
    lines = [bar(k, end="\r") + "   " + printed(k, text=True) for k in range(1, 21)]
    run = read_run(console(tmp_path, *lines))
    assert run.table["step"].tolist() == list(range(1, 21))
    np.testing.assert_allclose(run.table["reward"], 0.1 + np.arange(1, 21) / 500, atol=1e-4)


def test_buffered_output_comes_after_all_bars(tmp_path):
    lines = [bar(step) for step in range(1, 201)]
    lines += [printed(k, 10) for k in range(1, 21)]
    run = read_run(console(tmp_path, *lines))
    assert run.table["step"].tolist() == list(range(10, 201, 10))
    assert "20 rows for the 200 steps of the progress bar" in " ".join(run.notes)


def test_steps_from_the_closing_row(tmp_path):
    closing = repr({"train_runtime": 915.6, "train_steps_per_second": 0.218, "train_loss": 0.1})
    run = read_run(console(tmp_path, *(printed(k, 5) for k in range(1, 41)), closing))
    assert run.table["step"].tolist() == list(range(5, 201, 5))
    assert len(run) == 40


def test_nothing_tells_the_steps(tmp_path):
    run = read_run(console(tmp_path, *(printed(k) for k in range(1, 8))))
    assert run.table["step"].tolist() == list(range(1, 8))
    assert "if logging_steps was n, pass updates_per_step=n" in " ".join(run.notes)


def test_a_resumed_console_log_goes_on_at_its_checkpoint(tmp_path):
    first = [printed(k) for k in range(1, 31)]
    second = [printed(k, reward=0.9 + k / 1000) for k in range(21, 41)]
    run = read_run(console(tmp_path, *first, "Resuming from checkpoint-20", *second))
    assert run.table["step"].tolist() == list(range(1, 41))
    assert (run.table["reward"][20:] > 0.9).all()
    assert "resumed at step 21" in " ".join(run.notes)


def test_evaluations_on_the_console_are_no_rows(tmp_path):
    lines = [printed(k) for k in range(1, 11)]
    lines.insert(5, repr({"eval_loss": 0.1, "eval_reward": 0.5, "eval_runtime": 3.0, "epoch": 0.1,
                          "completions/mean_length": 999, "num_tokens": 1.0}))  # fmt: skip
    run = read_run(console(tmp_path, *lines))
    assert len(run) == 10
    assert "completion_length" not in run.table


def test_between_other_output_colours_and_damage(tmp_path):
    lines = []
    for k in range(1, 21):
        lines += [
            f"(TaskRunner pid={k}, ip=10.0.0.1) some 'reward' text {{'not': a dict}}",
            "\x1b[36m(main pid=7)\x1b[0m " + printed(k),
            "{'reward': __import__('os').system('true')}",
            "{'reward': 0.5, 'loss': " + "[" * 500,
        ]
    run = read_run(console(tmp_path, *lines))
    assert run.table["reward"].tolist() == [round(0.1 + k / 500, 4) for k in range(1, 21)]


def test_numpy_scalars_none_and_nan(tmp_path):
    lines = [f"{{'loss': 0.1, 'reward': np.float64({k / 10}), 'kl': None, 'grad_norm': nan}}"
             for k in range(1, 8)]  # fmt: skip
    run = read_run(console(tmp_path, *lines))
    np.testing.assert_allclose(run.table["reward"], np.arange(1, 8) / 10)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_encodings_and_line_ends(tmp_path, encoding, newline):
    text = newline.join(["é – start", *(printed(k) for k in range(1, 9)), ""])
    path = tmp_path / "log"
    path.write_bytes(text.encode(encoding))
    assert len(read_run(path)) == 8


def test_metrics_after_megabytes_of_other_text(tmp_path):
    noise = "tokens and more tokens\n" * 200_000
    path = tmp_path / "log"
    path.write_text(noise + "".join(printed(k) + "\n" for k in range(1, 9)) + noise)
    assert len(read_run(path)) == 8


# --- truncation ---------------------------------------------------------------------------------


def whole_or_refused(path, full):
    """A cut file gives the first rows of the whole one, or one clear line."""
    try:
        run = read_run(path)
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert len(run) <= len(full)
    assert run.table["step"].tolist() == full.table["step"].tolist()[: len(run)]
    rewards = full.table["reward"].tolist()[: len(run)]
    np.testing.assert_allclose(run.table["reward"], rewards)


def test_a_console_log_cut_anywhere(tmp_path):
    text = "start\n" + "".join(printed(k) + "\n" for k in range(1, 9))
    full = read_run(console(tmp_path, text))
    path = tmp_path / "cut"
    for end in range(1, len(text), 7):
        path.write_text(text[:end])
        whole_or_refused(path, full)


def test_a_trainer_state_cut_anywhere(tmp_path):
    rows = [{"step": k, "loss": 0.1, "reward": k / 10, "epoch": 0.1 * k} for k in range(1, 9)]
    text = json.dumps(
        {"epoch": 1.0, "global_step": 8, "log_history": rows, "max_steps": 40}, indent=1
    )
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    full = read_run(path)
    read = 0
    for end in range(1, len(text), 3):
        path.write_text(text[:end])
        whole_or_refused(path, full)
        try:
            read += len(read_run(path)) > 2
        except InputError:
            continue
    assert read > 100


# --- configuration ------------------------------------------------------------------------------

CONFIG = {
    "num_generations": 8,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "steps_per_generation": 16,
    "num_iterations": 2,
    "learning_rate": 3e-6,
    "beta": 0.04,
    "adam_beta1": 0.95,
    "max_steps": 500,
}
EXPECTED = {
    "group_size": 8,
    "prompts_per_step": 8,  # 4 x 16 completions a generation, over 8
    "refresh_interval": 4,  # 16 x 2 / 8
    "learning_rate": 3e-6,
    "kl_weight": 0.04,
    "momentum": 0.95,
    "max_steps": 500,
}
ROWS = [printed(k, **{"completions/mean_length": 100}) for k in range(1, 9)]


def check(run, **changed):
    expected = {**EXPECTED, **changed}
    assert {name: run.settings[name].value for name in expected} == expected
    assert all(run.settings[n].provenance in ("read", "inferred") for n in expected)


@pytest.mark.parametrize("form", ["object", "lines", "flags", "equals", "dictionary", "namespace"])
def test_configurations_in_the_log(tmp_path, form):
    items = CONFIG.items()
    text = {
        "object": "GRPOConfig(" + ", ".join(f"{k}={v!r}" for k, v in items) + ")",
        "lines": "training_args = GRPOConfig(\n"
        + "".join(f"    {k} = {v!r},  # {k}\n" for k, v in items)
        + ")",
        "flags": "+ accelerate launch train.py " + " ".join(f"--{k} {v}" for k, v in items),
        "equals": "python train.py " + " ".join(f"--{k.replace('_', '-')}={v}" for k, v in items),
        "dictionary": "{" + ",\n ".join(f"{k!r}: {v!r}" for k, v in items) + "}",
        "namespace": "Namespace(" + ", ".join(f"{k}={v!r}" for k, v in items) + ")",
    }[form]
    check(read_run(console(tmp_path, text, *ROWS)))


@pytest.mark.parametrize("name", ["args.json", "config.yaml", "config.json"])
def test_configurations_beside_the_log(tmp_path, name):
    if name == "config.yaml":  # as Weights & Biases writes it
        text = "_wandb:\n  value: {}\n" + "".join(
            f"{k}:\n  value: {v}\n" for k, v in CONFIG.items()
        )
    else:
        text = json.dumps(CONFIG)
    (tmp_path / name).write_text(text)
    run = read_run(console(tmp_path, *ROWS))
    check(run)
    assert name in run.settings["group_size"].why
    assert len(read_runs(tmp_path, group_size=2)) == 1


def test_a_checkpoint_finds_the_configuration_of_its_training(tmp_path):
    (tmp_path / "args.json").write_text(json.dumps(CONFIG))
    folder = tmp_path / "checkpoint-8"
    folder.mkdir()
    rows = [{"step": k, "loss": 0.1, "reward": k / 10} for k in range(1, 9)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    assert read_run(tmp_path).settings.refresh_interval == 4


def test_the_log_wins_over_its_neighbour_and_hand_over_both(tmp_path):
    (tmp_path / "args.json").write_text(json.dumps({**CONFIG, "num_generations": 16}))
    path = console(tmp_path, "--num_generations 4", *ROWS)
    assert read_run(path).settings.group_size == 4
    run = read_run(path, group_size=2)
    assert (run.settings.group_size, run.settings["group_size"].provenance) == (2, "given")


@pytest.mark.parametrize(
    "text", ["a: [", "{" * 3000, "a: &a [x]\n" + "b: *a\n" * 500, "\x00\xff", "- 1\n", ""]
)
def test_a_damaged_neighbour_is_no_reason_to_refuse_a_log(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    run = read_run(console(tmp_path, *ROWS))
    assert run.settings["group_size"].provenance == "default"


def test_a_neighbour_cannot_execute_anything(tmp_path):
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    (tmp_path / "config.yaml").write_text("num_generations: !!python/object/apply:os.getpid []\n")
    run = read_run(console(tmp_path, *ROWS))
    assert run.settings["group_size"].provenance == "default"
    assert any("config.yaml" in note for note in run.notes)


def test_defaults_are_marked_as_the_trainers(tmp_path):
    run = read_run(console(tmp_path, *ROWS))
    assert run.settings["group_size"].provenance == "default"
    assert "TRL's default" in run.settings["group_size"].why


def test_no_divergence_is_logged_without_its_weight(tmp_path):
    rows = [printed(k, num_tokens=9.0, **{"clip_ratio/region_mean": 0.0}) for k in range(1, 9)]
    run = read_run(console(tmp_path, *rows))
    assert (run.settings.kl_weight, run.settings["kl_weight"].provenance) == (0.0, "inferred")
    rows = [
        printed(k, num_tokens=9.0, kl=0.1, **{"clip_ratio/region_mean": 0}) for k in range(1, 9)
    ]
    assert read_run(console(tmp_path, *rows)).settings["kl_weight"].provenance == "default"


def test_components_of_both_generations(tmp_path):
    rows = [printed(k, **{"rewards/fmt/mean": 0.5, "rewards/fmt/std": 0.1}) for k in range(1, 9)]
    run = read_run(console(tmp_path, *rows))
    assert run.components == ("rewards/fmt",)
    old = [printed(k, **{"rewards/fmt": 0.5, "completion_length": 7}) for k in range(1, 9)]
    assert read_run(console(tmp_path, *old)).components == ("rewards/fmt",)
