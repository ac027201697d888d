"""SkyRL: dictionaries over several lines of its console, exports, and overrides."""

import json
import pprint

import pandas as pd
import pytest

from bayes_grpo import read_run, read_runs

RAY = "\x1b[36m(skyrl_entrypoint pid=7)\x1b[0m "
HEADER = "2026-01-01 10:00:00.000 | INFO     | skyrl_train.utils.tracking:log:98 - Step {}: \n"
REWARDS = [0.25, 0.5, 0.375, 0.625]


def metrics(k, reward):
    return {
        "generate/avg_num_tokens": 300.0 + k,
        "loss/avg_final_rewards": 0.0,
        "policy/grad_norm": 0.125,
        "policy/loss_metrics/clip_ratio": 0.0625,
        "policy/policy_entropy": 0.5,
        "policy/policy_kl": -0.001,
        "policy/policy_lr": 1e-3,
        "reward/avg_pass_at_8": 0.75,
        "reward/avg_raw_reward": reward,
        "timing/step": 12.5,
        "trainer/epoch": 0,
        "trainer/global_step": k,
    }


def block(k, values, prefix=RAY):
    shown = {n: f"{v:.4f}" if isinstance(v, float) else v for n, v in values.items()}
    text = HEADER.format(k) + pprint.pformat(shown) + "\n"
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def console(rewards=REWARDS, **more):
    noise = RAY + "Step 3 of something else, 'reward' and all\n"
    return noise.join(block(k, metrics(k, r) | more) for k, r in enumerate(rewards, 1))


def read(tmp_path, text, name="log.txt", **given):
    (tmp_path / name).write_text(text)
    return read_run(tmp_path / name, **given)


def test_console(tmp_path):
    run = read(tmp_path, console())
    assert run.table["step"].tolist() == [1, 2, 3, 4]
    assert run.table["reward"].tolist() == REWARDS
    assert run.table["completion_length"].tolist() == [301, 302, 303, 304]
    for name, value in [
        ("kl", -0.001),
        ("entropy", 0.5),
        ("clip_fraction", 0.0625),
        ("grad_norm", 0.125),
        ("learning_rate", 1e-3),
    ]:
        assert (run.table[name] == value).all(), name
    s = run.settings
    assert (s.trainer, s.row_average, s.lag, s.reward_filtered) == ("SkyRL", "single", 0, False)
    assert s.group_size == 8
    assert "avg_pass_at_8" in s["group_size"].why
    assert (s.prompts_per_step, s["prompts_per_step"].provenance) == (1024, "default")
    assert "SkyRL's default" in s["prompts_per_step"].why


def test_default_group_where_no_name_tells_it(tmp_path):
    run = read(tmp_path, console().replace("avg_pass_at_8", "avg_pass_at_n"))
    assert (run.settings.group_size, run.settings["group_size"].provenance) == (5, "default")


def test_evaluations_have_blocks_of_their_own(tmp_path):
    scores = {"eval/all/avg_score": 0.3, "eval/all/pass_at_1": 0.4}  # pprint puts it on one line
    text = block(0, scores) + console() + block(3, scores | {"eval/all/avg_score": 0.6})
    run = read(tmp_path, text)
    assert run.table["step"].tolist() == [0, 1, 2, 3, 4]
    assert run.table["eval_reward"].tolist()[::3] == [0.3, 0.6]
    assert run.table["reward"].tolist()[1:] == REWARDS
    assert run.table["generations"].tolist() == [0, 1, 1, 1, 1]


COMMAND = (
    "+ uv run -m skyrl_train.entrypoints.main_base generator.n_samples_per_prompt=4 "
    "trainer.train_batch_size=64 trainer.policy_mini_batch_size=32 "
    "trainer.update_epochs_per_batch=2 trainer.policy.optimizer_config.lr=2e-6 "
    "'trainer.policy.optimizer_config.adam_betas=[0.8,0.99]' trainer.algorithm.use_kl_loss=true "
    "trainer.algorithm.kl_loss_coef=0.005\n"
)


def test_overrides(tmp_path):
    s = read(tmp_path, COMMAND + console()).settings
    assert (s.group_size, s.prompts_per_step, s.momentum) == (4, 64, 0.8)
    assert (s.updates_per_step, s.refresh_interval, s.kl_weight) == (4, 4, 0.005)
    assert s.learning_rate == 2e-6  # the console rounds it away
    for name in ("group_size", "refresh_interval", "momentum", "kl_weight"):
        assert s[name].provenance == "read"
    assert "command line in the log" in s["group_size"].why
    without = COMMAND.replace("use_kl_loss=true", "use_kl_loss=false")
    assert read(tmp_path, without + console()).settings.kl_weight == 0


@pytest.mark.parametrize("name", ["filtered", "groups"])
def test_counts_of_groups_without_contrast(tmp_path, name):
    more = {f"reward/num_zero_variance_{name}": 16}
    run = read(tmp_path, COMMAND + console(**more))
    assert run.table["zero_std_fraction"].tolist() == [0.25] * 4
    # Their losses are masked, but their rewards are in the mean.
    assert run.settings.reward_filtered is False
    unknown = read(tmp_path, console(**more))
    assert "zero_std_fraction" not in unknown.table
    assert any("prompts of a step are not known" in note for note in unknown.notes)


@pytest.mark.parametrize(
    ("kind", "filtered"), [("filter", True), ("replace", True), ("null", False)]
)
def test_dynamic_sampling(tmp_path, kind, filtered):
    command = COMMAND[:-1] + f" trainer.algorithm.dynamic_sampling.type={kind}\n"
    assert read(tmp_path, command + console()).settings.reward_filtered is filtered


def test_staleness_is_a_lag(tmp_path):
    stale = {"async/staleness_mean": 1.5, "async/staleness_max": 3}
    s = read(tmp_path, COMMAND + console(**stale)).settings
    assert (s.lag, s.lag_pattern, s["lag"].provenance) == (6, "constant", "inferred")
    assert "x 4 updates a step" in s["lag"].why
    bound = COMMAND[:-1] + " trainer.fully_async.max_staleness_steps=3\n"
    assert read(tmp_path, bound + console()).settings.lag == 12
    assert read(tmp_path, COMMAND + console(**{"async/staleness_mean": 0.0})).settings.lag == 0


def test_exports(tmp_path):
    rows = [metrics(k, r) for k, r in enumerate(REWARDS, 1)]
    first = read(tmp_path, console())
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    for name in ("a.jsonl", "a.csv"):
        run = read_run(tmp_path / name)
        shared = [n for n in run.table.columns if n in first.table.columns]
        assert {"reward", "kl", "entropy", "clip_fraction", "grad_norm"} <= set(shared)
        pd.testing.assert_frame_equal(run.table[shared], first.table[shared])
        assert run.settings == first.settings


def test_truncation_and_restart(tmp_path):
    text = console()
    for end, rows in [("'policy/policy_entropy'", 3), ("'trainer/epoch'", 4)]:
        cut = text[: text.rindex(end) + 12]
        assert read(tmp_path, cut).table["reward"].tolist() == REWARDS[:rows], end
    long = [0.1 + 0.01 * k for k in range(30)]
    (tmp_path / "twice").write_text(console(long) + console(long))
    assert [len(run) for run in read_runs(tmp_path / "twice")] == [30, 30]
