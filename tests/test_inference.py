"""Settings from arithmetic: what follows, and what must not be read into noise."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_grpo.readers.inference import grid, group_of_advantages, infer
from bayes_grpo.readers.protocol import Parsed
from bayes_grpo.settings import Setting


def batches(rng, rows, prompts, group, average=1):
    """Rewards 0 or 1, shape (rows, average, prompts, group), with prompts of unequal difficulty."""
    level = rng.beta(1.0, 1.0, (rows, average, prompts, 1))
    return (rng.random((rows, average, prompts, group)) < level).astype(float)


def logged(rewards, decimals=6):
    means = rewards.mean(axis=(1, 2, 3))
    within = rewards.std(axis=3, ddof=1)
    table = pd.DataFrame({"step": np.arange(1, len(rewards) + 1) * rewards.shape[1]})
    table["reward"] = means.round(decimals)
    table["reward_std"] = within.mean(axis=(1, 2))
    table["zero_std_fraction"] = (within == 0).mean(axis=(1, 2)).round(decimals)
    return table


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 16), st.sampled_from([2, 4, 8, 16]), st.integers(0, 10_000))
def test_group_and_prompts_from_the_grids(prompts, group, seed):
    table = logged(batches(np.random.default_rng(seed), 60, prompts, group))
    found = infer(Parsed(table), {}).settings
    # Every answer must be a divisor or the truth; with 60 rows it is nearly always the truth.
    if "prompts_per_step" in found:
        assert prompts % found["prompts_per_step"].value == 0
    if "group_size" in found:
        assert found["group_size"].value * found["prompts_per_step"].value == prompts * group
    assert all(setting.provenance == "inferred" for setting in found.values())


@pytest.mark.parametrize(("prompts", "group", "average"), [(4, 8, 1), (2, 4, 5), (16, 8, 1)])
def test_typical_logs_are_exact(prompts, group, average):
    right = 0
    for seed in range(20):
        table = logged(batches(np.random.default_rng(seed), 60, prompts, group, average))
        window = {"row_average": Setting("window", "read")} if average > 1 else {}
        found = infer(Parsed(table, window), {}).settings
        values = {name: found[name].value for name in ("group_size", "prompts_per_step")}
        right += values == {"group_size": group, "prompts_per_step": prompts}
    assert right >= 19


def test_prompts_follow_from_a_given_group_size():
    rewards = batches(np.random.default_rng(1), 60, 1, 8, 1)
    table = pd.DataFrame({"step": range(60), "reward": rewards.mean(axis=(1, 2, 3))})
    assert "prompts_per_step" not in infer(Parsed(table), {}).settings
    found = infer(Parsed(table), {"group_size": 2}).settings
    assert found["prompts_per_step"].value == 4
    assert "whole number of 1/8" in found["prompts_per_step"].why


def test_what_was_read_is_left_alone():
    table = logged(batches(np.random.default_rng(2), 60, 4, 8))
    read = {"group_size": Setting(3, "read"), "prompts_per_step": Setting(5, "read")}
    found = infer(Parsed(table, read), {}).settings
    assert (found["group_size"].value, found["prompts_per_step"].value) == (3, 5)
    assert "prompts_per_step" not in infer(Parsed(table), {"prompts_per_step": 7}).settings


@pytest.mark.parametrize("group", [2, 3, 4, 5, 8, 12, 16, 32, 64])
def test_a_lone_success_gives_the_group_size_away(group):
    rng = np.random.default_rng(group)
    top = (group - 1) / np.sqrt(group)
    largest = np.where(rng.random(50) < 0.3, top, rng.uniform(0, 0.9 * top, 50)).round(3)
    assert group_of_advantages(largest).value == group


def test_other_advantages_give_nothing_away():
    rng = np.random.default_rng(0)
    assert group_of_advantages(rng.uniform(2, 7, 200).round(3)) is None
    assert group_of_advantages(np.full(50, 2.6)) is None  # between G = 8 and G = 9
    assert group_of_advantages(np.array([2.475] * 5)) is None  # too few rows


def test_noise_lies_on_no_grid():
    rng = np.random.default_rng(3)
    for decimals in (3, 4, 6, 12):
        assert grid(rng.random(40).round(decimals)) is None
    assert grid(np.zeros(40)) is None
    assert grid(rng.integers(0, 65, 80) / 64) == 64
    assert grid((rng.integers(0, 25, 80) / 24).round(4)) == 24


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 100_000), st.sampled_from([3, 4, 5, 8]))
def test_noise_is_never_taken_for_completions(seed, decimals):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"step": range(40), "reward": rng.beta(2, 2, 40).round(decimals)})
    assert infer(Parsed(table), {"group_size": 2}).settings == {}


@pytest.mark.parametrize(("prompts", "group"), [(4, 8), (16, 4), (8, 16)])
def test_the_meaning_of_the_spread(prompts, group):
    rewards = batches(np.random.default_rng(5), 60, prompts, group)
    within = logged(rewards)
    assert infer(Parsed(within), {}).settings["reward_std_kind"].value == "within_group"
    flat = rewards.reshape(60, -1)
    pooled = within.assign(reward_std=flat.std(axis=1, ddof=1))
    assert infer(Parsed(pooled), {}).settings["reward_std_kind"].value == "pooled"
    own = pooled.assign(**{"rewards/f": pooled["reward"], "rewards/f/std": pooled["reward_std"]})
    assert infer(Parsed(own), {}).settings["reward_std_kind"].value == "pooled"
    apart = own.assign(reward_std=within["reward_std"])
    assert infer(Parsed(apart), {}).settings["reward_std_kind"].value == "within_group"


def test_one_completion_more_or_less_is_no_tolerance():
    # Rewards beyond 0 and 1 are no counts of successes.
    rng = np.random.default_rng(6)
    table = pd.DataFrame({"step": range(60), "reward": rng.integers(-8, 9, 60) / 8})
    assert infer(Parsed(table), {"group_size": 2}).settings == {}
