"""Checks of a fit: residuals, their autocorrelation, sensitivity, prior predictive, verdicts."""

import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest, norm

import bayes_grpo as bg
from bayes_grpo import sensitivity as sensitivity_function
from bayes_grpo.model import bind
from bayes_grpo.one_step import predict_rows
from bayes_grpo.posterior import levels_and_paths, one_step_ahead, prior_draws
from bayes_grpo.precision import float64
from bayes_grpo.residual_statistics import autocorrelation, mixture, two_sided, verdicts
from bayes_grpo.sensitivity import _log_ratio, given_levels, sense
from bayes_grpo.simulate.generator import simulate_model

QUICK = {"chains": 2, "draws": 500, "tune": 300, "progress": False}
WALK = {"tune": 20}

FIXED = """
trajectory = "local_level"
fluctuation = ["drift"]
measurement = "white"

[priors]
initial_reward = { distribution = "Normal", mean = 0.3, sd = 0.2 }
drift_sd = 0.25
sampling_sd = { distribution = "LogNormal", median = 0.07, sd_log = 1e-9 }
"""
"""All parameters known (NUTS needs one to sample): the posterior of the parameters is a point."""


def quick_fit(run, model, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bg.ConvergenceWarning)
        return bg.fit(run, model, **{**QUICK, **changes})


def model_file(tmp_path_factory, name, text):
    path = tmp_path_factory.mktemp("models") / f"{name}.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def walk_model(tmp_path_factory):
    return model_file(tmp_path_factory, "known_walk", FIXED)


def walk_run(rows, seed=0, missing=()):
    rng = np.random.default_rng(seed)
    level = 0.3 + 0.2 * rng.standard_normal() + np.cumsum(0.025 * rng.standard_normal(rows))
    reward = level + 0.07 * rng.standard_normal(rows)
    reward[list(missing)] = np.nan
    table = pd.DataFrame({"step": np.arange(1, rows + 1), "reward": reward})
    return bg.Run.from_table(table, "walk", max_steps=100, row_average="single")


@pytest.fixture(scope="module")
def walk(walk_model):
    """A run with gaps, and its fit with known parameters."""
    run = walk_run(40, missing=(3, 4, 17, 30))
    return quick_fit(run, walk_model, **WALK)


def dense_predictions(fit):
    """Mean and sd of each row given the rows before it, from the joint normal of all rows."""
    steps = fit.idata["observed_data"]["step"].to_numpy().astype(float)
    reward = fit.idata["observed_data"]["reward"].to_numpy()
    planned = fit.bound[1].scale.planned_updates
    # A batch is sampled before its update: at step n the walk has taken n - 1 moves.
    moves = np.minimum(steps[:, None], steps[None, :]) - 1
    covariance = 0.2**2 + 0.25**2 / planned * moves + 0.07**2 * np.eye(len(steps))
    found = []
    for row in range(len(steps)):
        gain = (
            np.linalg.solve(covariance[:row, :row], covariance[:row, row]) if row else np.zeros(0)
        )
        mean = 0.3 + gain @ (reward[:row] - 0.3)
        found.append((mean, np.sqrt(covariance[row, row] - gain @ covariance[:row, row])))
    return reward, *np.array(found).T


def test_residuals_are_those_of_the_joint_normal_distribution(walk):
    reward, mean, sd = dense_predictions(walk)
    table = bg.residuals(walk)
    assert list(table.columns) == ["step", "reward", "mean", "sd", "z", "pit"]
    assert len(table) == 36 and 5 not in set(table["step"])
    np.testing.assert_allclose(table["reward"], reward)
    np.testing.assert_allclose(table["mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(table["sd"], sd, rtol=1e-6)
    np.testing.assert_allclose(table["z"], (reward - mean) / sd, atol=1e-6)
    np.testing.assert_allclose(table["pit"], norm.cdf((reward - mean) / sd), atol=1e-6)
    assert table.attrs["convergence"] == str(walk.convergence)


def test_mixture_has_the_moments_and_the_probability_of_its_parts():
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=(7, 3)), rng.uniform(0.5, 2, size=(7, 3))
    reward = np.array([-1.0, 0.2, 3.0])
    found = mixture(mean, sd, reward)
    draws = (mean + sd * rng.standard_normal((200_000, 7, 3))).reshape(-1, 3)
    np.testing.assert_allclose(found.mean, draws.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(found.sd, draws.std(axis=0), rtol=0.01)
    np.testing.assert_allclose(found.pit, (draws < reward).mean(axis=0), atol=0.005)
    np.testing.assert_allclose(found.z, (reward - found.mean) / found.sd)


@pytest.mark.parametrize("row_average", ["single", "window"])
def test_one_step_errors_of_simulated_runs_are_independent_standard_normals(row_average):
    """Whole runs from the prior, filtered with their own parameters: white, whatever the draw."""
    table = pd.DataFrame({"step": 3 * np.arange(1, 61), "reward": np.linspace(0.2, 0.7, 60)})
    table.loc[[5, 6, 20], "reward"] = np.nan
    run = bg.Run.from_table(table, "grid", max_steps=200, row_average=row_average)
    with float64():
        program, timeline, data = bind(bg.load_model("oscillator"), run)
        draws, _, rewards = prior_draws(program, data, 150, 3)
        at = timeline.row_tick - len(timeline.ticks.reward)
        z = []
        for number in range(150):
            seen = data._replace(ticks=data.ticks._replace(reward=rewards[0, number]))
            one = {name: values[0, number : number + 1] for name, values in draws.items()}
            mean, variance, _ = one_step_ahead(program, seen, one)
            z.append((rewards[0, number] - mean[0])[at] / np.sqrt(variance[0, at]))
    z = np.array(z)
    assert z.shape == (150, 57)
    assert kstest(norm.cdf(z).ravel(), "uniform").pvalue > 0.01
    found, _ = autocorrelation(z, timeline.rows, 60, 6)
    white = np.random.default_rng(0).standard_normal(z.shape)
    expected, _ = autocorrelation(white, timeline.rows, 60, 6)
    np.testing.assert_allclose(found.mean(axis=0), expected.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(found.std(axis=0), expected.std(axis=0), rtol=0.2)


def test_autocorrelation_of_series_with_gaps_by_hand():
    rng = np.random.default_rng(1)
    place = np.array([0, 1, 2, 5, 6, 7, 8, 11])
    values = rng.standard_normal((2, 8))
    found, pairs = autocorrelation(values, place, 12, 4)
    centred = values - values.mean(axis=1, keepdims=True)
    where = {p: i for i, p in enumerate(place)}
    for lag in range(1, 5):
        both = [(where[p], where[p + lag]) for p in place if p + lag in where]
        assert pairs[lag - 1] == len(both)
        for one, series in zip(found, centred, strict=True):
            if len(both) >= 3:
                mean = np.mean([series[i] * series[j] for i, j in both])
                assert one[lag - 1] == pytest.approx(mean / np.mean(series**2))
            else:
                assert np.isnan(one[lag - 1])


def test_two_sided_p_is_uniform_under_the_truth_and_small_at_the_ends():
    rng = np.random.default_rng(2)
    p = two_sided(rng.standard_normal((999, 400)), rng.standard_normal(400)[None])
    assert kstest(p, "uniform").pvalue > 0.01
    assert two_sided(np.arange(99.0)[:, None], np.array([[200.0]])) == pytest.approx([0.02])


NO_PROCESS = 'fluctuation = ["process", "drift"]'


@pytest.fixture(scope="module")
def smooth_model(tmp_path_factory):
    """The exponential without random dynamics: nothing but a curve and white noise."""
    text = bg.load_model("exponential").text.replace(NO_PROCESS, "fluctuation = []")
    lines = [x for x in text.splitlines() if not x.startswith(("fluctuation_sd", "drift_sd"))]
    return model_file(tmp_path_factory, "smooth", "\n".join(lines))


def curve_run(noise, name="curve"):
    reward = 0.7 - 0.5 * np.exp(-np.arange(len(noise)) / 25) + 0.05 * noise
    table = pd.DataFrame({"step": np.arange(1, len(noise) + 1), "reward": reward})
    return bg.Run.from_table(table, name, max_steps=150)


@pytest.fixture(scope="module")
def smooth_fit(smooth_model):
    return quick_fit(curve_run(np.random.default_rng(5).standard_normal(120)), smooth_model)


@pytest.fixture(scope="module")
def red_fit(smooth_model):
    """The same with noise of memory 0.6, which the model does not know."""
    shocks = 0.8 * np.random.default_rng(5).standard_normal(120)
    noise = np.zeros(120)
    for row in range(1, 120):
        noise[row] = 0.6 * noise[row - 1] + shocks[row]
    return quick_fit(curve_run(noise, "red"), smooth_model)


def test_autocorrelation_finds_noise_with_memory_and_nothing_else(smooth_fit, red_fit):
    white = bg.residual_autocorrelation(smooth_fit, 10)
    red = bg.residual_autocorrelation(red_fit, 10)
    assert list(white["lag"]) == list(range(1, 11))
    assert list(white["pairs"]) == list(range(119, 109, -1))
    assert red["p"].iloc[0] < 0.01 and red["autocorrelation"].iloc[0] > red["q95"].iloc[0]
    assert white["p"].iloc[0] > 0.05
    bands = white[["q05", "q25", "q50", "q75", "q95"]].to_numpy()
    assert (np.diff(bands, axis=1) > 0).all()
    assert bands[:, 4] == pytest.approx(1.645 / np.sqrt(120), rel=0.25)
    again = bg.residual_autocorrelation(smooth_fit, 10)
    pd.testing.assert_frame_equal(white, again)


def test_check_says_what_is_wrong(smooth_fit, red_fit):
    white, red = bg.check(smooth_fit), bg.check(red_fit)
    names = ["inside50", "inside90", "pit_uniform", "mean_z", "sd_z", "lag1_p", "largest_z"]
    assert list(white.index) == [*names, "prior_sensitivity"]
    assert list(white.columns) == ["value", "low", "high", "verdict"]
    assert (white["verdict"].iloc[:-1] == "as expected").all()
    assert red.loc["lag1_p", "verdict"] == "errors run in a row"
    assert white.attrs["convergence"] == str(smooth_fit.convergence)


def test_an_outlier_is_named_with_its_step(smooth_fit):
    table = smooth_fit.run.table.copy()
    table.loc[70, "reward"] += 0.6
    marked = replace(smooth_fit, run=replace(smooth_fit.run, table=table))
    verdict = bg.check(marked).loc["largest_z", "verdict"]
    assert verdict == "outlier at step 71"


def test_verdicts_of_wrong_errors():
    rng = np.random.default_rng(0)
    z = rng.standard_normal(400)
    steps = np.arange(400)

    def words(z):
        rows = verdicts(z, norm.cdf(z), steps)
        return {name: text for name, value, low, high, text in rows if not low <= value <= high}

    assert words(z) == {}
    wide = words(2 * z)
    assert wide["inside90"] == wide["inside50"] == "bands too narrow"
    assert wide["sd_z"] == "errors larger than predicted"
    assert wide["largest_z"].startswith("outlier at step")
    narrow = words(z / 3)
    assert narrow["inside50"] == "bands too wide"
    assert narrow["sd_z"] == "errors smaller than predicted"
    assert narrow["largest_z"] == "errors too small throughout"
    assert words(z + 0.5)["mean_z"] == "rewards above what is predicted"


def test_verdicts_of_true_models_are_as_expected_as_often_as_they_say():
    rng = np.random.default_rng(3)
    counts: dict[str, int] = {}
    for _ in range(400):
        z = rng.standard_normal(80)
        for name, value, low, high, _ in verdicts(z, norm.cdf(z), np.arange(80)):
            counts[name] = counts.get(name, 0) + (not low <= value <= high)
    for name, count in counts.items():
        assert 2 <= count <= 36, name  # 20 expected, less where values are discrete


def test_pits_of_runs_that_the_model_made_are_uniform(walk_model):
    """40 runs of a walk, each predicted with the parameters that made it."""
    run = walk_run(40)
    fit = quick_fit(run, walk_model, **WALK)
    pits = []
    for seed in range(40):
        made = replace(fit, run=walk_run(40, seed))
        pits.append(bg.residuals(made)["pit"])
    assert kstest(np.concatenate(pits), "uniform").pvalue > 0.01


def test_autocorrelation_respects_missing_rows(walk):
    table = bg.residual_autocorrelation(walk, 3)
    there = np.ones(40, dtype=bool)
    there[[3, 4, 17, 30]] = False
    assert list(table["pairs"]) == [int(np.sum(there[:-k] & there[k:])) for k in (1, 2, 3)]


def test_rows_without_neighbours_have_no_autocorrelation(walk_model):
    run = walk_run(40, missing=range(1, 40, 2))
    fit = quick_fit(run, walk_model, **WALK)
    table = bg.residual_autocorrelation(fit, 2)
    assert np.isnan(table["p"].iloc[0]) and np.isnan(table["autocorrelation"].iloc[0])
    assert np.isfinite(table["p"].iloc[1])
    assert bg.check(fit).loc["lag1_p", "verdict"] == "unknown: no neighbouring rows"


@pytest.mark.parametrize("lags", [0, 38, 1.5, -1])
def test_impossible_lags_are_refused(walk, lags):
    with pytest.raises(bg.InputError, match="expected a whole number from 1 to 37"):
        bg.residual_autocorrelation(walk, lags)


@pytest.mark.parametrize(
    "ask", [bg.residuals, bg.residual_autocorrelation, bg.check, sensitivity_function]
)
def test_what_is_no_fit_is_refused(ask):
    with pytest.raises(bg.InputError, match="of a list: expected a fit"):
        ask([])


# Sensitivity


def normal_posterior(prior_sd, rows, seed=0):
    """Draws of a normal mean with known noise, their log prior and log likelihood."""
    precision = 1 / prior_sd**2 + rows
    mean = rows * 1.0 / precision
    mu = mean + np.random.default_rng(seed).standard_normal((4, 1000)) / np.sqrt(precision)
    return (
        {"mu": mu, "fixed": np.ones((4, 1000))},
        -0.5 * (mu / prior_sd) ** 2,
        -0.5 * rows * (mu - 1) ** 2,
    )


def test_sensitivity_says_who_decides():
    table = pd.concat(
        {
            "data": sense(*normal_posterior(3.0, 50)),
            "prior": sense(*normal_posterior(0.05, 2)),
            "both": sense(*normal_posterior(0.2, 25)),
        }
    ).droplevel(1)
    assert list(table.columns) == ["prior", "likelihood", "diagnosis"]
    assert len(table) == 3  # what is fixed is left out
    assert table.loc["data", "diagnosis"] == "✓"
    assert table.loc["prior", "diagnosis"] == "potential strong prior / weak likelihood"
    assert table.loc["both", "diagnosis"] == "potential prior-data conflict"


def test_log_ratio_of_normals_also_in_certain_directions():
    from scipy.stats import multivariate_normal

    rng = np.random.default_rng(0)
    root = rng.standard_normal((2, 2))
    prior = root @ root.T
    post = np.linalg.inv(np.linalg.inv(prior) + np.diag([3.0, 5.0]))
    mean, before, at = rng.standard_normal((3, 2))
    expected = multivariate_normal(mean, post).logpdf(at) - multivariate_normal(
        before, prior
    ).logpdf(at)
    found = _log_ratio(at[None], (mean[None], post[None]), (before[None], prior[None]))
    assert found == pytest.approx([expected])
    # Twice the same number, as in a random walk, whose reward is its plateau.
    ones = np.ones((1, 2, 2))
    twice = _log_ratio(
        np.full((1, 2), 0.4),
        (np.full((1, 2), 0.3), 0.2**2 * ones),
        (np.full((1, 2), 0.1), 0.7**2 * ones),
    )
    assert twice == pytest.approx([norm(0.3, 0.2).logpdf(0.4) - norm(0.1, 0.7).logpdf(0.4)])
    # Nothing uncertain: nothing to say.
    zero = np.zeros((1, 2, 2))
    assert _log_ratio(at[None], (at[None], zero), (at[None], zero)) == pytest.approx([0.0])


@pytest.mark.parametrize("model", ["oscillator", "local_level", "logistic"])
def test_likelihood_given_levels_averages_to_the_likelihood(model):
    """p(rows) is the mean of p(rows | levels) over levels drawn from the prior."""
    run = bg.load_example().head(6)
    with float64():
        program, _, data = bind(bg.load_model(model), run)
        draws, _, _ = prior_draws(program, data, 1, 2)
        same = {name: np.repeat(values, 10_000, axis=1) for name, values in draws.items()}
        blind = data._replace(
            ticks=data.ticks._replace(observed=np.zeros_like(data.ticks.observed))
        )
        levels, _ = levels_and_paths(program, blind, same, 0)
        given = given_levels(program, data, same, levels)
        one = {name: values[0] for name, values in draws.items()}
        exact = one_step_ahead(program, data, one)[2].sum()
    weight = np.exp(given - given.max())
    error = weight.std() / weight.mean() / np.sqrt(weight.size)
    assert error < 0.15
    assert np.log(weight.mean()) + given.max() == pytest.approx(exact, abs=4 * error)


def test_many_rows_decide_and_few_with_a_narrow_prior_do_not(smooth_fit, smooth_model, tmp_path):
    run = smooth_fit.run
    line = next(
        part for part in bg.load_model(smooth_model).text.splitlines() if part.startswith("plateau")
    )
    narrow = tmp_path / "narrow.toml"
    narrow.write_text(
        bg.load_model(smooth_model).text.replace(
            line, 'plateau = { distribution = "Normal", mean = 2.0, sd = 0.1, unit = "reward" }'
        )
    )
    many = bg.sensitivity(smooth_fit)
    few = bg.sensitivity(quick_fit(run.head(12), str(narrow)))
    assert many.loc["plateau", "prior"] < 0.05 < many.loc["plateau", "likelihood"]
    assert many.loc["plateau", "diagnosis"] == "✓"
    assert few.loc["plateau", "prior"] > 0.05 > few.loc["plateau", "likelihood"]
    assert few.loc["plateau", "diagnosis"] == "potential strong prior / weak likelihood"


def test_levels_that_only_states_know_are_decided_by_the_rows(walk_model):
    """The reward now of a walk is a draw given its rows; its parameters are known."""
    fit = quick_fit(walk_run(40), walk_model, **WALK)
    table = bg.sensitivity(fit)
    assert table.loc["reward_now", "likelihood"] > 0.05
    assert table.loc["reward_now", "prior"] < 0.05
    assert "drift_sd" not in table.index  # fixed


def test_thinned_and_plain_draws_say_the_same(small_fit, monkeypatch):
    from bayes_grpo import sensitivity as function  # the function of that name

    module = sys.modules["bayes_grpo.sensitivity"]
    whole = function(small_fit)
    ticks = len(small_fit.bound[2].ticks.reward)
    monkeypatch.setattr(module, "CELLS", 4 * 500 * ticks // 2)
    half = function(small_fit)
    assert list(half.index) == list(whole.index) == list(small_fit.summary().index)
    for column in ("prior", "likelihood"):
        np.testing.assert_allclose(half[column], whole[column], atol=0.06, rtol=0.5)


# Prior predictive


def test_prior_predictive_is_that_of_a_fit(smooth_fit):
    before = bg.prior_predictive(smooth_fit.run, smooth_fit.model, draws=50)
    of_fit = smooth_fit.with_prior(50).idata
    for group in ("prior", "prior_predictive", "observed_data", "constant_data"):
        assert before[group].to_dataset().identical(of_fit[group].to_dataset()), group
    assert before.attrs["run"] == "curve" and before.attrs["model"] == "smooth"
    assert before["prior_predictive"]["reward"].shape == (1, 50, 120)


def test_prior_predictive_reads_of_the_rewards_only_centre_and_spread():
    run = bg.load_example()
    table = run.table.copy()
    table["reward"] = table["reward"].to_numpy()[::-1]
    turned = replace(run, table=table)
    scaled = replace(run, table=run.table.assign(reward=run.table["reward"] / 2 + 0.1))
    a, b, c = (
        bg.prior_predictive(r, "exponential", draws=300)["prior_predictive"]["reward"].to_numpy()
        for r in (run, turned, scaled)
    )
    np.testing.assert_allclose(b, a, rtol=1e-9, atol=1e-12)
    inside = (a > 0) & (a < 1) & (c > 0) & (c < 1)  # the bounds of the reward stay
    np.testing.assert_allclose(c[inside], a[inside] / 2 + 0.1, rtol=1e-6)


@pytest.mark.parametrize(
    "arguments", [{"draws": 0}, {"draws": 2.5}, {"seed": -1}, {"horizon": 3}, {"model": "none"}]
)
def test_impossible_priors_are_refused(arguments):
    with pytest.raises(bg.InputError):
        bg.prior_predictive(bg.load_example(), **arguments)


def test_simulated_run_of_a_model_passes_its_own_checks():
    made = simulate_model(
        "exponential", {"plateau": 0.7, "initial_reward": 0.2}, n_rows=200, seed=4
    )
    table = bg.check(quick_fit(made.run, "exponential", chains=4, tune=400))
    failed = table[(table["verdict"] != "as expected") & (table.index != "prior_sensitivity")]
    assert len(failed) <= 1


def test_predictions_leave_out_rows_without_reward(walk):
    rows = predict_rows(walk, walk.parameter_draws)
    assert rows.mean.shape == rows.sd.shape == rows.log_density.shape == (1000, 36)
    log_likelihood = walk.idata["log_likelihood"]["reward"].to_numpy().reshape(-1, 36)
    np.testing.assert_allclose(rows.log_density, log_likelihood, rtol=1e-6)


def test_arviz_may_be_imported_first():
    """It makes numpyro a lazy module, of which a submodule must not be imported first."""
    script = (
        "import arviz, bayes_grpo as bg; bg.fit; import numpyro; numpyro.distributions.distribution"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)
