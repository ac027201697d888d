"""The bandit against its closed forms, its own mean, and everything that must not matter."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

import bayes_grpo as bg
from bayes_grpo.cli import main
from bayes_grpo.precision import float64
from bayes_grpo.simulate import (
    Bandit,
    curvature,
    simulate_bandit,
    simulate_model,
    write_log,
)
from bayes_grpo.simulate.bandit_update import COLUMNS
from bayes_grpo.simulate.equilibrium import reward_gain

STALE = {"ratio": "none", "stale_force": "all"}


def exact(**changes):
    """A bandit with the theory's force: evaluated at the sampler as a whole."""
    return Bandit(**{**STALE, **changes})


def logit(p):
    return np.log(p / (1 - p))


def drift(logits, **changes):
    """Change of the logits in one update of a fresh bandit, per unit learning rate."""
    bandit = Bandit(learning_rate=1.0, momentum=0.0, initial_logits=logits, **changes)
    return simulate_bandit(bandit, 1, record=("reward",)).logits - np.asarray(logits)


def plain_update(logits, success, reference, kl_weight, normalisation):
    """The force of the module's head, written out arm by arm and reward by reward."""
    policy = np.exp(logits) / np.exp(logits).sum()
    target = np.exp(reference) / np.exp(reference).sum()
    p = policy @ success
    scale = 1 / np.sqrt(p * (1 - p)) if normalisation == "std" else 1.0
    force = np.zeros_like(policy)
    for arm, chance in enumerate(policy):
        score = np.eye(len(policy))[arm] - policy
        mean_advantage = success[arm] * (1 - p) * scale - (1 - success[arm]) * p * scale
        force += chance * mean_advantage * score
        force -= kl_weight * chance * np.log(chance / target[arm]) * score
    return force


# --- fixed points and curvature -------------------------------------------------------------------


@pytest.mark.parametrize("reference", [-1.0, 0.0, 0.7])
@pytest.mark.parametrize("kl_weight", [1.7, 3.0])
def test_two_arms_settle_where_the_closed_form_says_std(reference, kl_weight):
    def gap(p):
        return logit(p) - reference - 1 / (kl_weight * np.sqrt(p * (1 - p)))

    start = 1 / (1 + np.exp(-reference))
    grid = np.linspace(start + 1e-9, 0.97, 4000)
    first = np.flatnonzero(gap(grid) > 0)
    bandit = exact(kl_weight=kl_weight, reference_logits=(reference, 0.0))
    if first.size == 0:
        with pytest.raises(bg.InputError, match="too small for an interior fixed point"):
            curvature(bandit)
        return
    p = brentq(gap, grid[first[0] - 1], grid[first[0]], xtol=1e-14)
    q, root = 1 - p, np.sqrt(p * (1 - p))
    end = curvature(bandit)
    np.testing.assert_allclose(end.plateau, p, rtol=1e-10)
    # Two logits, one an arm: twice the curvature of a policy with one logit.
    expected = 2 * (kl_weight * p * q - root * (2 * p - 1) / 2)
    np.testing.assert_allclose(end.curvature, expected, rtol=1e-9)
    np.testing.assert_allclose(end.stale_curvature, expected, rtol=1e-9)


@pytest.mark.parametrize("kl_weight", [0.2, 1.0])
def test_two_arms_settle_where_the_closed_form_says_mean(kl_weight):
    end = curvature(exact(kl_weight=kl_weight, normalisation="mean", reference_logits=(-0.5, 0)))
    np.testing.assert_allclose(logit(end.plateau), -0.5 + 1 / kl_weight, rtol=1e-10)
    expected = 2 * kl_weight * end.plateau * (1 - end.plateau)
    np.testing.assert_allclose(end.curvature, expected, rtol=1e-9)


def test_a_weak_kl_penalty_leaves_no_fixed_point():
    # s sqrt(p q) has its largest value 0.6627 at s = 2.3994: the edge is at 1 / 0.6627.
    edge = 1 / 0.66274
    assert curvature(exact(kl_weight=edge * 1.001)).plateau < 0.92
    with pytest.raises(bg.InputError, match="too small"):
        curvature(exact(kl_weight=edge * 0.999))


@pytest.mark.parametrize(
    ("changes", "split"),
    [
        ({"ratio": "none", "stale_force": "all"}, lambda b, r, t: b - r * t / 2),
        ({"ratio": "none", "stale_force": "reward"}, lambda b, r, t: r * t / 2),
        ({"ratio": "unclipped", "stale_force": "reward"}, lambda b, r, t: -r * t / 2),
        ({"ratio": "clipped", "stale_force": "reward"}, lambda b, r, t: -r * t / 2),
    ],
)
def test_the_stale_part_of_the_curvature(changes, split):
    end = curvature(Bandit(kl_weight=2.0, **changes))
    p, root = end.plateau, np.sqrt(end.plateau * (1 - end.plateau))
    expected = 2 * split(2.0 * root**2, root, 2 * p - 1)
    np.testing.assert_allclose(end.stale_curvature, expected, rtol=1e-9)


CASES = [
    {"normalisation": "std", "kl_weight": 2.0},
    {"normalisation": "mean", "kl_weight": 0.6, "success": (0.9, 0.3)},
    {"normalisation": "std", "kl_weight": 1.2, "success": (0.9, 0.5, 0.1)},
    {
        "normalisation": "mean",
        "kl_weight": 0.4,
        "success": (0.8, 0.8, 0.4, 0.1),
        "reference_logits": (0.5, 0.0, 1.0, -0.5),
    },
]


@pytest.mark.parametrize("changes", CASES)
def test_curvature_by_differences_of_the_simulated_drift(changes):
    end = curvature(exact(**changes))
    theta = np.log(end.policy)
    np.testing.assert_allclose(drift(theta, **STALE, **changes), 0, atol=1e-12)
    h = 1e-5
    steps = h * np.concatenate([np.eye(len(theta)), -np.eye(len(theta))])
    ahead, behind = np.split(drift(theta + steps, **STALE, **changes), 2)
    jacobian = (ahead - behind).T / (2 * h)
    rates = np.sort(-np.linalg.eigvals(jacobian).real)
    common = np.argmin(np.abs(rates))  # the common level of the logits does not move
    np.testing.assert_allclose(np.delete(rates, common), end.modes, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("changes", CASES[:3])
def test_the_reward_relaxes_at_the_rate_of_the_curvature(changes):
    # A rate is the same in reward space as in logit space.
    end = curvature(exact(**changes))
    below = np.zeros(len(end.policy))
    below[0] = -0.02
    bandit = exact(
        **changes,
        momentum=0.0,
        learning_rate=0.02 / end.curvature,
        initial_logits=np.log(end.policy) + below,
    )
    gap = simulate_bandit(bandit, 700)["eval_reward"] - end.plateau
    # Late enough that stiffer modes are gone, early enough that digits are left.
    np.testing.assert_allclose(1 - gap[650] / gap[649], 0.02, rtol=2e-3)


def test_the_softest_mode_that_moves_the_reward_counts():
    # Two equally good arms: what moves between them does not show in the reward.
    changes = {"normalisation": "mean", "kl_weight": 0.5, "success": (1.0, 1.0, 0.0)}
    end = curvature(exact(**changes))
    two = curvature(
        exact(
            normalisation="mean",
            kl_weight=0.5,
            success=(1.0, 0.0),
            reference_logits=(np.log(2), 0.0),
        )
    )
    np.testing.assert_allclose(end.plateau, two.plateau, rtol=1e-10)
    assert not np.isclose(end.curvature, end.modes).all()
    p, q = end.plateau, 1 - end.plateau
    # The good arms share one push: together they move half as fast as one arm would.
    np.testing.assert_allclose(end.curvature, 0.5 * p * q * (1 / 2 + 1), rtol=1e-9)


# --- the update itself ----------------------------------------------------------------------------


@given(
    st.lists(st.floats(-3, 3), min_size=3, max_size=3),
    st.lists(st.floats(0.02, 0.98), min_size=3, max_size=3),
    st.sampled_from(["std", "mean"]),
)
@settings(max_examples=25)
def test_one_update_is_the_gradient_written_out(logits, success, normalisation):
    reference = (0.3, 0.0, -0.6)
    found = drift(
        logits,
        success=success,
        reference_logits=reference,
        kl_weight=0.7,
        normalisation=normalisation,
    )
    expected = plain_update(
        np.array(logits), np.array(success), np.array(reference), 0.7, normalisation
    )
    np.testing.assert_allclose(found, expected, atol=1e-12)
    # Nothing moves the common level of the logits: probabilities keep their sum.
    assert abs(found.sum()) < 1e-12


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_optimizers_are_the_textbook_ones(optimizer):
    bandit = Bandit(learning_rate=0.1, momentum=0.8, optimizer=optimizer, beta2=0.95)
    found = simulate_bandit(bandit, 6).logits
    theta, first, second = np.zeros(2), np.zeros(2), np.zeros(2)
    for update in range(1, 7):
        force = plain_update(theta, np.array([1.0, 0.0]), np.zeros(2), 2.0, "std")
        if optimizer == "sgd":
            first = 0.8 * first + force
            theta = theta + 0.1 * first
        else:
            first = 0.8 * first + 0.2 * force
            second = 0.95 * second + 0.05 * force**2
            root = np.sqrt(second / (1 - 0.95**update)) + 1e-8
            theta = theta + 0.1 * first / (1 - 0.8**update) / root
    np.testing.assert_allclose(found, theta, rtol=1e-10)


@pytest.mark.parametrize("pattern", ["hold", "constant"])
def test_a_stale_force_is_that_of_the_policy_that_sampled(pattern):
    n, updates = 3, 10
    bandit = exact(learning_rate=0.3, momentum=0.5, lag_pattern=pattern, refresh_interval=n, lag=n)
    found = simulate_bandit(bandit, updates)
    theta, velocity, past, rewards = np.zeros(2), np.zeros(2), [], []
    for update in range(updates):
        past.append(theta)
        old = past[update - update % n] if pattern == "hold" else past[max(update - n, 0)]
        force = plain_update(old, np.array([1.0, 0.0]), np.zeros(2), 2.0, "std")
        rewards.append(1 / (1 + np.exp(old[1] - old[0])))
        velocity = 0.5 * velocity + force
        theta = theta + 0.3 * velocity
    np.testing.assert_allclose(found.logits, theta, rtol=1e-10)
    np.testing.assert_allclose(found["reward"], rewards, rtol=1e-10)


def test_clipping_ignores_what_the_clipped_surrogate_ignores():
    # Good arm far above its old probability, bad arm far below: no reward force is left.
    common = {"learning_rate": 2.0, "momentum": 0.0, "refresh_interval": 2, "kl_weight": 0.0}
    unclipped = simulate_bandit(Bandit(ratio="unclipped", **common), 2)
    clipped = simulate_bandit(Bandit(ratio="clipped", clip=0.2, **common), 2)
    after_one = simulate_bandit(Bandit(ratio="clipped", **common), 1).logits
    np.testing.assert_array_equal(clipped.logits, after_one)
    np.testing.assert_allclose(clipped["clip_fraction"], [0.0, 1.0])
    assert (unclipped.logits[0] > after_one[0] + 0.1).all()
    wide = simulate_bandit(Bandit(ratio="clipped", clip=50.0, **common), 2)
    np.testing.assert_array_equal(wide.logits, unclipped.logits)


def test_diverging_runs_stay_numbers():
    bandit = Bandit(learning_rate=1e4, momentum=0.9, refresh_interval=4, kl_weight=3.0)
    found = simulate_bandit(bandit, 200)
    assert all(np.isfinite(found[name]).all() for name in COLUMNS)


# --- what must not matter -------------------------------------------------------------------------


@pytest.mark.parametrize("group_size", [None, 4])
def test_a_batch_is_its_settings_one_by_one(group_size):
    rng = np.random.default_rng(0)
    common = {"group_size": group_size, "prompts_per_step": 2, "ratio": "unclipped"}
    rates, held = np.array([0.01, 0.1, 0.5]), np.array([1, 2, 5])
    starts, seeds = rng.normal(size=(3, 3)), np.array([5, 6, 5])
    success = (0.9, 0.4, 0.2)
    together = simulate_bandit(
        Bandit(
            learning_rate=rates,
            refresh_interval=held,
            initial_logits=starts,
            success=success,
            **common,
        ),
        30,
        seeds,
    )
    for i in range(3):
        alone = simulate_bandit(
            Bandit(
                learning_rate=rates[i],
                refresh_interval=held[i],
                initial_logits=starts[i],
                success=success,
                **common,
            ),
            30,
            int(seeds[i]),
        )
        np.testing.assert_allclose(together.logits[i], alone.logits, rtol=1e-12)
        for name in COLUMNS:
            np.testing.assert_allclose(together[name][i], alone[name], rtol=1e-12, atol=1e-14)


def test_batches_broadcast_to_any_shape():
    bandit = Bandit(learning_rate=np.array([[0.1], [0.2]]), momentum=np.array([0.0, 0.5, 0.9]))
    found = simulate_bandit(bandit, 5, record=("eval_reward",))
    assert bandit.shape == (2, 3)
    assert found["eval_reward"].shape == (2, 3, 5)
    one = simulate_bandit(Bandit(learning_rate=0.2, momentum=0.5), 5)
    np.testing.assert_allclose(found["eval_reward"][1, 1], one["eval_reward"], rtol=1e-12)


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 0, 2)])
def test_names_of_arms_do_not_matter(order):
    order = list(order)
    success, reference = np.array([0.9, 0.5, 0.1]), np.array([0.0, 1.0, -1.0])
    plain = exact(success=success, reference_logits=reference, refresh_interval=2)
    moved = exact(success=success[order], reference_logits=reference[order], refresh_interval=2)
    a, b = simulate_bandit(plain, 50), simulate_bandit(moved, 50)
    np.testing.assert_allclose(a["reward"], b["reward"], rtol=1e-10)
    np.testing.assert_allclose(a.logits[order], b.logits, rtol=1e-10)
    np.testing.assert_allclose(curvature(plain).curvature, curvature(moved).curvature, rtol=1e-9)


@pytest.mark.parametrize("group_size", [None, 8])
def test_without_lag_staleness_has_nothing_to_say(group_size):
    kinds = [
        ("hold", "clipped", "reward"),
        ("hold", "none", "all"),
        ("constant", "unclipped", "reward"),
        ("constant", "none", "all"),
    ]
    if group_size is not None:
        kinds = [kinds[0], kinds[-1]]
    names = ("lag_pattern", "ratio", "stale_force")
    first, *others = (
        simulate_bandit(
            Bandit(group_size=group_size, **dict(zip(names, kind, strict=True))),
            40,
            3,
            record=("reward",),
        )
        for kind in kinds
    )
    for other in others:
        np.testing.assert_allclose(other.logits, first.logits, rtol=1e-10)
        np.testing.assert_allclose(other["reward"], first["reward"], rtol=1e-10)


def test_importance_ratios_take_lag_out_of_the_mean():
    common = {"learning_rate": 0.2, "momentum": 0.5, "normalisation": "mean", "kl_weight": 0.3}
    fresh = simulate_bandit(Bandit(**common), 60)["eval_reward"]
    held = {"refresh_interval": 8, **common}
    weighted = simulate_bandit(Bandit(ratio="unclipped", **held), 60)["eval_reward"]
    first_order = simulate_bandit(Bandit(ratio="none", **held), 60)["eval_reward"]
    np.testing.assert_allclose(weighted, fresh, rtol=1e-10)
    assert np.abs(first_order - fresh).max() > 0.01
    # With std normalisation the stale standard deviation is left.
    std = {**common, "normalisation": "std", "kl_weight": 2.0}
    stale_std = simulate_bandit(Bandit(ratio="unclipped", refresh_interval=8, **std), 60)
    gap = np.abs(stale_std["eval_reward"] - simulate_bandit(Bandit(**std), 60)["eval_reward"])
    assert gap.max() > 1e-3


def test_a_seed_makes_the_run():
    bandit = Bandit(group_size=4, learning_rate=np.full(3, 0.05))
    first, again = simulate_bandit(bandit, 20, 7), simulate_bandit(bandit, 20, 7)
    other = simulate_bandit(bandit, 20, 8)
    for name in COLUMNS:
        np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first["reward"], other["reward"])
    # Equal settings of one batch are different runs.
    assert not np.array_equal(first["reward"][0], first["reward"][1])


# --- sampled updates ------------------------------------------------------------------------------


@pytest.mark.parametrize(("normalisation", "group_size"), [("std", 8), ("mean", 2)])
def test_sampled_updates_have_the_finite_group_mean(normalisation, group_size):
    success, count = np.array([0.9, 0.5, 0.2]), 4000
    logits = np.array([0.8, 0.0, -0.3])
    bandit = Bandit(
        learning_rate=np.ones(count),
        momentum=0.0,
        kl_weight=0.0,
        success=success,
        initial_logits=logits,
        normalisation=normalisation,
        group_size=group_size,
        prompts_per_step=16,
    )
    steps = simulate_bandit(bandit, 1, record=("reward",)).logits - logits
    policy = np.exp(logits) / np.exp(logits).sum()
    p = policy @ success
    solved = np.arange(group_size + 1)
    chance = stats.binom.pmf(solved, group_size, p)
    variance = solved / group_size * (1 - solved / group_size)
    spread = np.sqrt(variance) if normalisation == "std" else variance
    gain = (chance * spread).sum() / (p * (1 - p))
    expected = gain * policy * (success - p)
    error = steps.std(axis=0) / np.sqrt(count)
    assert (np.abs(steps.mean(axis=0) - expected) < 4 * error).all()
    assert (error < 0.05 * np.abs(expected).max()).all()  # else the line above says nothing
    with float64():
        found = float(reward_gain(p, normalisation, group_size))
    np.testing.assert_allclose(found, gain, rtol=1e-10)


def test_small_groups_learn_more_slowly_by_the_known_factors():
    table = {4: (0.808, 0.712, 0.507), 8: (0.928, 0.877, 0.698), 16: (0.967, 0.952, 0.854)}
    with float64():
        for group_size, factors in table.items():
            for p, factor in zip((0.5, 0.75, 0.9), factors, strict=True):
                ratio = reward_gain(p, "std", group_size) / reward_gain(p, "std", None)
                assert abs(float(ratio) - factor) < 6e-4


def test_large_groups_follow_the_exact_drift():
    common = {"learning_rate": 0.1, "success": (0.95, 0.3, 0.1), "refresh_interval": 3}
    exact_run = simulate_bandit(Bandit(**common), 40)
    sampled = simulate_bandit(Bandit(group_size=4000, prompts_per_step=50, **common), 40)
    for name in ("reward", "reward_std", "kl", "entropy", "clip_fraction", "eval_reward"):
        np.testing.assert_allclose(sampled[name], exact_run[name], atol=0.01)
    assert (sampled["zero_std_fraction"] == 0).all()


def test_what_a_row_records_is_what_groups_of_coins_show():
    count, group_size, p = 3000, 4, 0.7
    bandit = Bandit(
        learning_rate=np.full(count, 1e-9),
        initial_logits=(logit(p), 0.0),
        group_size=group_size,
        prompts_per_step=4,
    )
    row = simulate_bandit(bandit, 1)
    solved = np.arange(group_size + 1)
    chance = stats.binom.pmf(solved, group_size, p)
    spread = np.sqrt(solved / group_size * (1 - solved / group_size))
    for name, expected in (
        ("reward", p),
        ("reward_std", chance @ spread),
        ("zero_std_fraction", chance[0] + chance[-1]),
    ):
        values = row[name][:, 0]
        assert abs(values.mean() - expected) < 4 * values.std() / np.sqrt(count)
    np.testing.assert_allclose(row["reward"][:, 0].var(), p * (1 - p) / 16, rtol=0.15)
    np.testing.assert_allclose(row["entropy"][:, 0], stats.entropy([p, 1 - p]), rtol=1e-12)
    np.testing.assert_allclose(row["kl"][:, 0], stats.entropy([p, 1 - p], [0.5, 0.5]), rtol=1e-9)
    np.testing.assert_allclose(row["eval_reward"][:, 0], p, rtol=1e-12)


def test_impossible_rewards_never_come():
    bandit = Bandit(
        learning_rate=np.full(200, 0.1), success=(0.0, 1.0), group_size=16, initial_logits=(40, 0)
    )
    assert (simulate_bandit(bandit, 5)["reward"] == 0).all()


# --- the boundary ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "momentum", "n", "boundary"),
    [
        # Closed forms: |1 - a n| = 1; z^2 - z + a = 0; 2 (1 + mu) / (1 - mu) on-policy.
        ("hold", 0.0, 4, 2.0),
        ("constant", 0.0, 1, 1.0),
        ("hold", 0.5, 1, 6.0),
        ("constant", 0.0, 2, 1.2360679774997896),  # 2 (2 sin(pi / 10)): z^3 - z^2 + a = 0
    ],
)
def test_divergence_starts_where_the_linear_theory_says(pattern, momentum, n, boundary):
    end = curvature(exact(normalisation="mean", kl_weight=1.0))
    staleness = boundary * np.array([0.985, 1.015])
    bandit = exact(
        normalisation="mean",
        kl_weight=1.0,
        momentum=momentum,
        learning_rate=staleness * (1 - momentum) / (end.curvature * n),
        lag_pattern=pattern,
        refresh_interval=n,
        lag=n,
        initial_logits=np.log(end.policy) - np.array([1e-5, 0.0]),
    )
    gap = np.abs(simulate_bandit(bandit, 1600)["eval_reward"] - end.plateau)
    early, late = gap[:, 400:800].max(axis=1), gap[:, 1200:].max(axis=1)
    assert late[0] < early[0] or late[0] < 1e-14  # decayed to the last digit
    assert late[1] > early[1] or late[1] > 1e-3  # grown to a cycle


# --- logs, models as generators, and the terminal -------------------------------------------------


def test_a_log_reads_as_the_run_that_was_simulated(tmp_path):
    bandit = Bandit(group_size=4, prompts_per_step=3, refresh_interval=2)
    table = simulate_bandit(bandit, 25, 1).table()
    path = write_log(table, tmp_path / "bandit.jsonl", {**bandit.settings(), "max_steps": 50})
    first = json.loads(path.read_text().splitlines()[0])
    assert (first["type"], first["trainer"]) == ("config", "bayes_grpo")
    run = bg.read_run(path)
    for name in table.columns:
        np.testing.assert_array_equal(run.table[name], table[name])
    assert [file.name for file in tmp_path.iterdir()] == ["bandit.jsonl"]


def test_settings_of_a_log_read_back(tmp_path):
    bandit = Bandit(group_size=4, prompts_per_step=3, refresh_interval=2, momentum=0.7)
    table = simulate_bandit(bandit, 25, 1).table()
    path = write_log(table, tmp_path / "bandit.jsonl", {**bandit.settings(), "max_steps": 50})
    found = bg.read_run(path).settings
    for name, value in {**bandit.settings(), "max_steps": 50}.items():
        expected = tuple(value) if name == "reward_bounds" else value
        assert (name, getattr(found, name)) == (name, expected)
        assert found[name].provenance == "read"


def test_a_log_is_whole_or_not_there(tmp_path):
    table = simulate_bandit(Bandit(), 5).table()
    with pytest.raises(bg.InputError, match="group_size"):
        write_log(table, tmp_path / "x.jsonl", {"group_size": 0})
    with pytest.raises(bg.InputError, match="no column 'reward'"):
        write_log(table.drop(columns="reward"), tmp_path / "x.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_missing_numbers_are_missing_in_the_log(tmp_path):
    table = simulate_bandit(Bandit(), 5).table()
    table.loc[2, "reward_std"] = np.nan
    path = write_log(table, tmp_path / "x.jsonl")
    assert "NaN" not in path.read_text()
    assert np.isnan(bg.read_run(path).table["reward_std"][2])


def test_a_model_without_noise_draws_its_mean_curve():
    quiet = {"fluctuation_sd": 0.0, "drift_sd": 0.0, "sampling_sd": 0.0}
    found = simulate_model(
        "exponential",
        {"plateau": 0.8, "initial_reward": 0.2, "relaxation_time": 20.0, **quiet},
        n_rows=60,
    )
    expected = 0.8 - 0.6 * (1 - 1 / 20) ** np.arange(60)
    np.testing.assert_allclose(found.run.table["reward"], expected, rtol=1e-10)
    np.testing.assert_allclose(found.expected_reward, expected, rtol=1e-10)
    assert found.parameters["plateau"] == pytest.approx(0.8)


def test_a_model_draws_what_it_is_told_and_the_rest_from_its_priors():
    told = {"plateau": 0.7, "sampling_sd": 0.03, "relaxation_time": 25.0}
    draw = lambda seed: simulate_model("oscillator", told, n_rows=400, seed=seed)  # noqa: E731
    first, again, other = draw(1), draw(1), draw(2)
    np.testing.assert_array_equal(first.run.table["reward"], again.run.table["reward"])
    assert first.parameters == again.parameters
    for name, value in told.items():
        assert first.parameters[name] == pytest.approx(value)
    assert first.parameters["damping_ratio"] != other.parameters["damping_ratio"]
    residual = first.run.table["reward"] - first.expected_reward
    # A standard deviation of 400 numbers is known to 3.5 %.
    assert abs(residual.std() / 0.03 - 1) < 0.15


def test_a_model_keeps_the_settings_of_its_run():
    found = simulate_model(
        "closed_form",
        {"plateau": 0.95, "sampling_sd": 0.2, "relaxation_time": 10.0},
        n_rows=80,
        momentum=0.5,
        refresh_interval=2,
        reward_bounds=(0.0, 1.0),
        max_steps=200,
    ).run
    assert (found.settings.momentum, found.settings.refresh_interval) == (0.5, 2)
    assert found.settings.max_steps == 200
    assert found.table["reward"].between(0, 1).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"momentum": 1.0}, "momentum is 1: expected numbers from 0 below 1"),
        ({"success": (0.5, 1.2)}, "success is 1.2"),
        ({"success": (0.5,)}, "one number per arm|nothing"),
        ({"refresh_interval": 1.5}, "refresh_interval is 1.5: expected whole numbers from 1"),
        ({"ratio": "clip"}, "expected one of none, unclipped, clipped"),
        ({"initial_logits": (0.0, 0.0, 0.0)}, "expected 2 logits"),
        ({"learning_rate": np.ones(2), "momentum": np.zeros(3)}, "broadcast"),
        ({"group_size": 1}, "group_size is 1"),
    ],
)
def test_impossible_bandits_are_refused(changes, message):
    with pytest.raises(bg.InputError, match=message):
        Bandit(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adam"}, "'adam'"),
        ({"success": (0.5, 0.5)}, "nothing can be learned"),
        ({"learning_rate": np.ones(2)}, "one bandit at a time"),
        ({"kl_weight": 0.0}, "too small"),
    ],
)
def test_bandits_without_a_curvature_say_why(changes, message):
    with pytest.raises(bg.InputError, match=message):
        curvature(Bandit(**changes))


def terminal(*args):
    return CliRunner().invoke(main, ["simulate", *(str(arg) for arg in args)])


def test_the_terminal_simulates_a_bandit(tmp_path):
    out = tmp_path / "b.jsonl"
    options = ("--updates", 30, "--kl-weight", 1.0, "--normalisation", "mean", "--group-size", 4)
    result = terminal("bandit", *options, "--success", "0.9,0.1", "--seed", 3, "--out", out)
    assert result.exit_code == 0, result.output
    bandit = Bandit(
        success=(0.9, 0.1), kl_weight=1.0, normalisation="mean", group_size=4, prompts_per_step=16
    )
    expected = simulate_bandit(bandit, 30, 3)
    np.testing.assert_array_equal(bg.read_run(out).table["reward"], expected["reward"])
    end = curvature(bandit)
    assert f"plateau {end.plateau:.4g}, curvature {end.curvature:.4g}" in result.output


def test_the_terminal_simulates_a_model(tmp_path):
    out = tmp_path / "m.jsonl"
    chosen = ("--set", "plateau=0.8", "--set", "momentum=0.5", "--rows", 40, "--seed", 2)
    result = terminal("model", "--model", "closed_form", *chosen, "--out", out)
    assert result.exit_code == 0, result.output
    expected = simulate_model("closed_form", {"plateau": 0.8}, n_rows=40, seed=2, momentum=0.5)
    np.testing.assert_array_equal(bg.read_run(out).table["reward"], expected.run.table["reward"])
    assert "plateau 0.8" in result.output


@pytest.mark.parametrize(
    "args",
    [
        ("bandit", "--success", "1,x"),
        ("bandit", "--momentum", "2"),
        ("bandit", "--lag", "2", "--refresh-interval", "2"),
        ("bandit", "--seed", "-1"),
        ("model", "--set", "plateau"),
        ("model", "--set", "plataeu=1"),
        ("model", "--set", "relaxation_time=fast"),
        ("model", "--set", "group_size=0"),
        ("model", "--model", "nothing"),
    ],
)
def test_the_terminal_refuses_in_one_line(args, tmp_path):
    result = terminal(*args, "--out", tmp_path / "x.jsonl")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_bandits_end_at_their_closed_form():
    runs = {name: bg.load_example(f"bandit_{name}") for name in ("overdamped", "oscillating")}
    for run in runs.values():
        truth = curvature(Bandit(momentum=run.settings.momentum, kl_weight=2.0, group_size=8))
        assert run.table["eval_reward"].iloc[-60:].mean() == pytest.approx(truth.plateau, abs=0.01)
        assert run.settings.kl_weight == 2.0 and run.settings.group_size == 8
    peak = {name: run.table["eval_reward"].max() - truth.plateau for name, run in runs.items()}
    assert peak["overdamped"] < 0.02 < 0.05 < peak["oscillating"]
    stale = bg.load_example("bandit_stale").settings
    threshold = bg.reduction.divergence_staleness(0.0, stale.refresh_interval)
    ratio = stale.learning_rate * truth.curvature * stale.refresh_interval / threshold
    assert 0.9 < ratio < 1
