"""Comparison and stacking: densities against quadrature, weights against closed forms."""

import warnings
from functools import cache

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.special import logsumexp
from scipy.stats import kstest, norm

import bayes_grpo as bg
from bayes_grpo.leave_future_out import LEAST_KNOWN, MOST_K, leave_future_out
from bayes_grpo.model import bind, parse_model
from bayes_grpo.posterior import held_back
from bayes_grpo.precision import float64
from bayes_grpo.run import Run
from bayes_grpo.scores import crps
from bayes_grpo.simulate.generator import simulate_model
from bayes_grpo.stacking_weights import stacking_weights

SMALL = {"chains": 2, "draws": 500, "tune": 300, "progress": False}

ONE_FREE = """
trajectory = "{trajectory}"
fluctuation = ["drift"]
measurement = "white"
[priors]
plateau = {{ distribution = "Normal", mean = 0.7, sd = 0.3 }}
initial_reward = {{ distribution = "Normal", mean = 0.2, sd = 0.2 }}
relaxation_time = {{ distribution = "LogNormal", median = 15, sd_log = 1.0 }}
drift_sd = 0.1
sampling_sd = 0.05
"""


def run_of(reward, **settings):
    table = pd.DataFrame({"step": np.arange(1, len(reward) + 1), "reward": reward})
    return Run.from_table(table, "curve", max_steps=2 * len(reward), **settings)


@cache
def run():
    rng = np.random.default_rng(3)
    reward = 0.2 + 0.5 * (1 - np.exp(-np.arange(60) / 18)) + 0.05 * rng.normal(size=60)
    reward[[17, 18, 40]] = np.nan
    return run_of(reward)


@cache
def fitted(trajectory="exponential"):
    model = parse_model(ONE_FREE.format(trajectory=trajectory), trajectory, "one_free.toml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bg.fit(run(), model, seed=1, progress=False)


@cache
def by_quadrature(ahead=1):
    """Log predictive density of every row by a fine grid over the one free parameter."""
    fit = fitted()
    program, timeline, data = fit.bound
    log_tau = np.linspace(np.log(15) - 5, np.log(15) + 5, 4001)
    with float64():
        draws = {"relaxation_time": np.exp(log_tau)}
        log_weight = norm(np.log(15), 1).logpdf(log_tau)
        cumulative = []
        density = jax.jit(jax.vmap(program.log_likelihood, in_axes=({"relaxation_time": 0}, None)))
        for known in range(len(timeline.rows) + 1):
            total = np.asarray(density(draws, held_back(data, timeline, known)))
            cumulative.append(logsumexp(log_weight + total))
    cumulative = np.array(cumulative)
    return cumulative[ahead:] - cumulative[:-ahead]


# --- predictive densities ------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [1, 5])
def test_predictive_densities_are_those_of_quadrature(ahead):
    """Posterior, importance weights and refits together, where the exact answer is known."""
    score = leave_future_out(fitted(), ahead=ahead)
    exact = by_quadrature(ahead)[score.known :]
    assert score.known == LEAST_KNOWN
    assert len(score.log_density) == len(exact) == 57 - LEAST_KNOWN - ahead + 1
    off = score.log_density - exact
    assert np.abs(off).mean() < 0.03 * ahead
    assert np.abs(off).max() < 0.4  # one row lies far in the tail of what is predicted
    assert off.sum() == pytest.approx(0, abs=0.8 * ahead)
    assert score.pareto_k.max() <= MOST_K
    assert set(score.steps) <= set(run().table["step"])
    # Missing rows are not scored.
    assert not {18, 19, 41} & set(score.steps)


def test_refits_are_needed_and_used_for_the_early_rows():
    """Few rows say little: the posterior of all of them is too narrow to be reweighted to that."""
    score = leave_future_out(fitted(), start=2)
    assert score.refits >= 1
    assert np.abs(score.log_density - by_quadrature()[2:]).mean() < 0.03


def test_held_back_rows_are_rows_that_were_never_logged():
    fit = fitted()
    program, timeline, data = fit.bound
    for known in (5, 30):
        last = int(run().table["step"].iloc[timeline.rows[known - 1]])
        _, _, short = bind(fit.model, run().until(last), fit.horizon)
        short = short._replace(scale=data.scale)
        draw = {"relaxation_time": 11.0}
        with float64():
            masked = float(program.log_likelihood(draw, held_back(data, timeline, known)))
            assert masked == pytest.approx(float(program.log_likelihood(draw, short)), rel=1e-10)


def test_predictions_of_the_models_own_runs_are_calibrated():
    """Probability integral transforms over many simulated runs are uniform, z-scores standard."""
    model = parse_model(ONE_FREE.format(trajectory="exponential"), "own", "own.toml")
    pits, z = [], []
    for seed in range(12):
        own = simulate_model(model, {"relaxation_time": 15.0}, n_rows=60, seed=seed).run
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            score = leave_future_out(bg.fit(own, model, seed=seed, **SMALL))
        pits.append(score.pit)
        z.append(score.z)
    assert kstest(np.concatenate(pits), "uniform").pvalue > 1e-3
    assert np.concatenate(z).std() == pytest.approx(1, abs=0.12)


def test_rows_and_arguments_that_cannot_be_scored():
    for arguments, named in (
        ({"start": 57}, "too few"),
        ({"start": 1}, "start is 1"),
        ({"ahead": 0}, "ahead is 0"),
        ({"start": 2.5}, "start is 2.5"),
    ):
        with pytest.raises(bg.InputError, match=named):
            leave_future_out(fitted(), **arguments)


# --- scores --------------------------------------------------------------------------------------


def test_crps_of_normal_draws_is_the_closed_form():
    rng = np.random.default_rng(0)
    found = np.array([-0.3, 0.0, 1.7])
    draws = rng.normal(0.2, 0.8, (40_000, 3))
    z = (found - 0.2) / 0.8
    exact = 0.8 * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    np.testing.assert_allclose(crps(draws, found), exact, atol=0.01)
    equal = np.full_like(draws, 1 / len(draws))
    np.testing.assert_allclose(crps(draws, found, equal), exact, atol=0.01)


def test_weighted_crps_is_that_of_repeated_draws():
    rng = np.random.default_rng(1)
    draws, times = rng.normal(size=(30, 2)), rng.integers(1, 6, 30)
    repeated = np.repeat(draws, times, axis=0)
    pairs = np.abs(repeated[:, None] - repeated[None]).mean(axis=(0, 1))
    exact = np.abs(repeated - 0.4).mean(axis=0) - pairs / 2
    weights = np.repeat((times / times.sum())[:, None], 2, axis=1)
    np.testing.assert_allclose(crps(draws, np.full(2, 0.4), weights), exact, rtol=1e-12)


# --- weights -------------------------------------------------------------------------------------


def test_weights_of_two_models_are_those_of_quadrature():
    rng = np.random.default_rng(2)
    density = rng.normal(size=(40, 2)) * [0.7, 0.7] + [0.15, 0.0]
    w = np.linspace(0, 1, 20_001)[1:-1]
    log_posterior = np.logaddexp(density[:, :1] + np.log(w), density[:, 1:] + np.log1p(-w)).sum(
        axis=0
    )
    posterior = np.exp(log_posterior - log_posterior.max())
    exact = (w * posterior).sum() / posterior.sum()
    assert abs(exact - 0.5) > 0.05
    np.testing.assert_allclose(stacking_weights(density), [exact, 1 - exact], atol=0.02)


@pytest.mark.parametrize("models", [2, 5])
def test_models_that_predict_alike_share_the_weight(models):
    density = np.repeat(np.random.default_rng(0).normal(size=(100, 1)), models, axis=1)
    np.testing.assert_allclose(stacking_weights(density), np.full(models, 1 / models), atol=0.03)


def test_a_model_that_is_always_worse_keeps_the_prior_s_share():
    """n rows that only one model explains: the weight is Beta(n + 1, 1)."""
    density = np.column_stack([np.zeros(50), np.full(50, -80.0)])
    assert stacking_weights(density)[0] == pytest.approx(51 / 52, abs=0.004)


def test_neither_order_nor_a_common_factor_matters():
    density = np.random.default_rng(5).normal(size=(30, 3))
    plain = stacking_weights(density)
    np.testing.assert_allclose(stacking_weights(density[:, ::-1])[::-1], plain, atol=0.03)
    scaled = density + 700.0 * np.arange(30)[:, None]
    np.testing.assert_allclose(stacking_weights(scaled), plain, atol=0.03)
    assert stacking_weights(density[:, :1]) == [1.0]


# --- compare and stack ---------------------------------------------------------------------------


@cache
def three():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(
            bg.fit(run(), name, seed=2, **SMALL)
            for name in ("exponential", "rate_or_fate", "local_level")
        )


@cache
def mixture():
    return bg.stack(three())


def test_the_table_has_the_best_first_and_paired_differences():
    table = bg.compare(three())
    assert list(table["elpd"]) == sorted(table["elpd"], reverse=True)
    assert table["difference"].iloc[0] == 0 and table["difference_se"].iloc[0] == 0
    np.testing.assert_allclose(table["difference"], table["elpd"].iloc[0] - table["elpd"])
    assert table["weight"].sum() == pytest.approx(1)
    assert table.index.name == "model" and "local_level" in table.index
    for name in ("inside50", "inside90"):
        assert table[name].between(0, 1).all()
    assert table.attrs["rows"] == 57 - LEAST_KNOWN
    pd.testing.assert_frame_equal(table, mixture().comparison)


def test_a_fit_compared_with_itself_is_no_better():
    table = bg.compare([fitted(), fitted()])
    assert list(table.index) == ["exponential", "exponential (2)"]
    assert table["difference"].abs().max() == 0
    np.testing.assert_allclose(table["weight"], 0.5, atol=0.03)


def test_the_stack_is_the_mixture_of_its_fits():
    stack, steps = mixture(), np.array([70, 100])
    mean, observed = stack.forecast_draws(steps)
    weights = stack.weights
    parts = {fit.model.name: fit.forecast_draws(steps) for fit in three()}
    for found, which in ((mean, 0), (observed, 1)):
        exact = sum(weights[name] * draws[which].mean(axis=0) for name, draws in parts.items())
        square = sum(weights[n] * (d[which] ** 2).mean(axis=0) for n, d in parts.items())
        sd = np.sqrt(square - exact**2)
        np.testing.assert_allclose(found.mean(axis=0), exact, atol=5 * sd.max() / len(found) ** 0.5)
        np.testing.assert_allclose(found.std(axis=0), sd, rtol=0.12)
    table = stack.forecast(steps)
    assert list(table["step"]) == [70, 100]
    assert (table["q05"] < table["q95"]).all()
    assert list(stack.summary().index) == ["plateau", "reward_now", "initial_reward"]
    assert "stack" in stack.name and "exponential" in repr(stack)


def test_a_stack_of_one_is_that_fit():
    stack = bg.stack([three()[0]])
    ours, theirs = stack.forecast(20), three()[0].forecast(20)
    pd.testing.assert_frame_equal(ours, theirs)


def test_what_cannot_be_compared_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = bg.fit(run().head(40), "local_level", **SMALL)
        longer = bg.fit(run(), "local_level", horizon=500, **SMALL)
    for fits, named in (
        ([], "no fits"),
        ([three()[0], other], "different data"),
        ([three()[0], longer], "planned lengths"),
        ([three()[0], "oscillator"], "str"),
    ):
        with pytest.raises(bg.InputError, match=named):
            bg.compare(fits)
        with pytest.raises(bg.InputError, match=named):
            bg.stack(fits)
