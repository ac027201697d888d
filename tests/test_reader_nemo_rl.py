"""NeMo RL: blocks of bullets on its console, exports, and its configuration."""

import json

import pandas as pd
import pytest

from bayes_grpo import read_run, read_runs

REWARDS = [0.25, 0.5, 0.375, 0.625]
BAR = "=" * 25

PRINTED = """Final config:
{'grpo': {'async_grpo': {'enabled': False, 'max_trajectory_age_steps': 1},
          'max_num_epochs': 1,
          'max_num_steps': 500,
          'num_generations_per_prompt': 8,
          'num_prompts_per_step': 16},
 'loss_fn': {'reference_policy_kl_penalty': 0.01},
 'policy': {'megatron_cfg': {'enabled': False,
                             'optimizer': {'adam_beta1': 0.7, 'lr': 1.0}},
            'optimizer': {'kwargs': {'betas': [0.8, 0.999], 'lr': 5e-06}},
            'train_global_batch_size': 64}}
"""


def block(k, reward, total=4, inner=""):
    rewards = reward if isinstance(reward, str) else f"  • Avg Reward: {reward:.4f}\n"
    return (
        f"\n{BAR} Step {k}/{total} {BAR}\n▶ Preparing batch...\n{inner}"
        "▶ Training policy...\n\n📊 Training Results:\n"
        f"  • Loss: -0.0012\n  • Generation KL Error: 0.0004\n{rewards}"
        f"  • Mean Generation Length: {100 + k:.4f}\n\n⏱️  Timing:\n  • Total step time: 12.00s\n"
    )


def validation(step, accuracy):
    return (
        f"▶ Starting validation at step {step}...\n\n📊 Validation Results:\n"
        f"    • Accuracy: {accuracy:.4f}\n    • Average response length: 90.0 tokens\n"
        "    • Samples processed: 256\n"
    )


def console(rewards=REWARDS, total=None):
    total = total or len(rewards)
    return "".join(block(k, reward, total) for k, reward in enumerate(rewards, 1))


def read(tmp_path, text, name="log.txt", **given):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return read_run(tmp_path / name, **given)


def test_console(tmp_path):
    run = read(tmp_path, console(total=1000))
    assert run.table["step"].tolist() == [1, 2, 3, 4]
    assert run.table["reward"].tolist() == REWARDS
    assert run.table["completion_length"].tolist() == [101, 102, 103, 104]
    assert (run.table["loss"] == -0.0012).all()
    assert (run.table["gen_kl_error"] == 0.0004).all()
    assert "kl" not in run.table  # that error is between trainer and sampler, not from a reference
    s = run.settings
    assert (s.trainer, s.row_average, s.max_steps) == ("NeMo RL", "single", 1000)
    assert (s.group_size, s.prompts_per_step) == (16, 32)
    assert s["group_size"].provenance == s["prompts_per_step"].provenance == "default"
    assert "NeMo RL's default" in s["group_size"].why


def test_validation_stands_inside_the_block_of_its_step(tmp_path):
    text = validation(0, 0.1) + block(1, 0.25) + block(2, 0.5, inner=validation(2, 0.4))
    text += block(3, 0.375) + block(4, 0.625, inner=validation(4, 0.7))
    run = read(tmp_path, text)
    assert run.table["step"].tolist() == [0, 1, 2, 3, 4]
    assert run.table["eval_reward"].dropna().tolist() == [0.1, 0.4, 0.7]
    assert run.table["eval_reward"].tolist()[::2] == [0.1, 0.4, 0.7]
    assert run.table["reward"].tolist()[1:] == REWARDS
    assert run.table["generations"].tolist() == [0, 1, 1, 1, 1]


def test_steps_are_counted_over_the_epochs(tmp_path):
    one = f"\n{BAR} Epoch 1/3 {BAR}\n" + console(REWARDS, total=4)
    two = f"\n{BAR} Epoch 2/3 {BAR}\n" + console([0.5, 0.75], total=4)
    run = read(tmp_path, one + two)
    assert run.table["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.table["reward"].tolist() == [*REWARDS, 0.5, 0.75]
    assert run.settings.max_steps == 12


def test_dynamic_sampling(tmp_path):
    both = "  • Avg Filtered Reward: 0.5000\n  • Avg Total Reward: {:.4f}\n"
    # A batch that does not fill up prints its header again.
    again = f"\n{BAR} Step 1/4 {BAR}\n"
    text = again + "".join(block(k, both.format(r)) for k, r in enumerate(REWARDS, 1))
    run = read(tmp_path, text)
    assert run.table["reward"].tolist() == REWARDS
    assert (run.table["filtered_reward"] == 0.5).all()
    assert run.settings.reward_filtered is False
    assert any("before prompts were taken out" in note for note in run.notes)


def test_only_a_filtered_reward_is_marked(tmp_path):
    rows = [
        {"step": k, "train/filtered_reward": r, "train/gen_kl_error": 0.1}
        for k, r in enumerate(REWARDS, 1)
    ]
    run = read(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    assert run.table["reward"].tolist() == REWARDS
    assert run.settings.reward_filtered is True


def test_printed_configuration(tmp_path):
    s = read(tmp_path, PRINTED + console(total=1000)).settings
    assert (s.group_size, s.prompts_per_step, s.kl_weight, s.momentum) == (8, 16, 0.01, 0.8)
    assert (s.updates_per_step, s.refresh_interval, s.learning_rate) == (2, 2, 5e-6)
    assert "16 x 8 / 64" in s["refresh_interval"].why
    assert s.max_steps == 500
    for name in ("group_size", "momentum", "refresh_interval", "learning_rate", "kl_weight"):
        assert s[name].provenance == "read"
    assert s.lag == 0
    megatron = PRINTED.replace("{'enabled': False,\n  ", "{'enabled': True,\n  ")
    s = read(tmp_path, megatron + console()).settings
    assert (s.learning_rate, s.momentum) == (1.0, 0.7)


def test_overrides_and_configuration_beside(tmp_path):
    overrides = "Overrides: ['grpo.num_generations_per_prompt=4', 'grpo.num_prompts_per_step=10']\n"
    s = read(tmp_path, overrides + console()).settings
    assert (s.group_size, s.prompts_per_step) == (4, 10)
    assert "command line in the log" in s["group_size"].why
    (tmp_path / "config.yaml").write_text("grpo: {value: {num_generations_per_prompt: 12}}\n")
    assert read(tmp_path, console()).settings.group_size == 12


def test_asynchronous_sampling_is_a_lag(tmp_path):
    stats = (
        "✅ Sampled 16 trajectory groups from buffer (avg age: 0.75 steps)\n"
        "  📊 Rewards stats: min=0.0000, max=1.0000, mean=0.4000, std=0.4899\n"
    )
    text = "".join(block(k, r, inner=stats) for k, r in enumerate(REWARDS, 1))
    run = read(tmp_path, PRINTED.replace("'enabled': False, 'max", "'enabled': True, 'max") + text)
    s = run.settings
    assert (s.lag, s.lag_pattern, s["lag"].provenance) == (2, "constant", "inferred")
    assert (run.table["reward_std"] == 0.4899).all()
    assert s.reward_std_kind == "pooled"
    bound = PRINTED.replace("False, 'max_trajectory_age_steps': 1", "True, "
                            "'max_trajectory_age_steps': 3")  # fmt: skip
    assert read(tmp_path, bound + console()).settings.lag == 6


def exported(k, reward):
    return {
        "train/reward": reward,
        "train/loss": 0.0,
        "train/kl_penalty": 0.002,
        "train/approx_entropy": 0.5,
        "train/mean_gen_tokens_per_sample": 100.0 + k,
        "train/grad_norm": 0.25,
        "train/lr": 5e-6,
        "train/baseline_reward/pct_0": 12.5,
        "train/baseline_reward/pct_1": 25.0,
        "train/baseline_reward/pct_mixed": 62.5,
        "step": k,
    }


def test_exports(tmp_path):
    rows = [exported(k, r) for k, r in enumerate(REWARDS, 1)]
    evaluated = {"validation/accuracy": 0.75, "step": 2}
    lines = "".join(json.dumps(row) + "\n" for row in [*rows[:2], evaluated, *rows[2:]])
    run = read(tmp_path, lines, "a.jsonl")
    assert run.table["reward"].tolist() == REWARDS
    assert run.table["eval_reward"].tolist()[1] == 0.75
    for name, value in [
        ("kl", 0.002),
        ("entropy", 0.5),
        ("zero_std_fraction", 0.375),
        ("grad_norm", 0.25),
        ("learning_rate", 5e-6),
    ]:
        assert (run.table[name] == value).all(), name
    assert run.table["completion_length"].tolist() == [101, 102, 103, 104]
    pd.DataFrame(rows).to_csv(tmp_path / "a.csv", index=False)
    again = read_run(tmp_path / "a.csv")
    pd.testing.assert_frame_equal(
        again.table, run.table.drop(columns="eval_reward"), check_like=True
    )
    assert again.settings == run.settings
    assert any("zero_std_fraction is baseline_reward/pct_0" in note for note in again.notes)


def test_truncation_and_restart(tmp_path):
    text = console()
    for end, rows in [("  • Mean Generation", 3), ("  • Total step", 4)]:
        assert (
            read(tmp_path, text[: text.rindex(end) + 22]).table["reward"].tolist()
            == (REWARDS[:rows])
        ), end
    long = [0.1 + 0.01 * k for k in range(30)]
    (tmp_path / "twice").write_text(console(long) + console(long), encoding="utf-8")
    assert [len(run) for run in read_runs(tmp_path / "twice")] == [30, 30]


@pytest.mark.parametrize("text", ["• Avg Reward: 0.5\n" * 5, f"{BAR} Step 1/2 {BAR}\n" * 3])
def test_bullets_and_headers_alone_are_no_blocks(text):
    from bayes_grpo.readers.nemo_rl import rows_of_console

    assert list(rows_of_console(text.splitlines())) == []
