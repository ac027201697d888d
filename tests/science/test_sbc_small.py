"""A small simulation-based calibration, and proof that it sees what it should see.

The study itself is benchmarks/sbc.py; here few simulations decide at a lenient level.  Each fault
is planted where the data come from and not where they are fitted, which is the same as a wrong
likelihood or prior.
"""

import re

import numpy as np
import pytest
import sbc
from rank_statistics import VALUES, judge, null
from sbc import QUANTITIES, failures, make_case, ranks_of, simulation

from bayes_grpo.model import load_model, parse_model

LEVEL = 0.002
"""Chance that a right posterior fails, over all quantities and tests together."""


def ranks(case, source, simulations, seed=1):
    return ranks_of([simulation(case, source, number, seed) for number in range(simulations)])


def with_plateau_sd(model, sd):
    text, found = re.subn(r"(?m)^(plateau = .*sd = )[0-9.]+", rf"\g<1>{sd}", model.text)
    assert found == 1
    return parse_model(text, model.name, "variant")


def with_sampling_variance(case, factor):
    ticks = case.data.ticks
    ticks = ticks._replace(row_variance=factor * ticks.row_variance)
    return case._replace(data=case.data._replace(ticks=ticks))


def with_planned_updates(case, factor):
    scale = case.data.scale
    scale = scale._replace(planned_updates=factor * scale.planned_updates)
    return case._replace(data=case.data._replace(scale=scale))


@pytest.fixture(scope="module")
def case():
    return make_case(load_model("oscillator"))


def test_posterior_of_oscillator_is_calibrated(case):
    assert failures(ranks(case, case, 30), QUANTITIES, LEVEL) == []


def test_wrong_sampling_noise_is_seen(case):
    source = with_sampling_variance(case, 3)
    found = failures(ranks(case, source, 12), QUANTITIES, LEVEL)
    assert "sampling_sd" in found
    assert "log_likelihood" in found


def test_states_that_ignore_the_rewards_are_seen(case, monkeypatch):
    right = sbc.levels_and_paths

    def blind(program, data, *rest):
        ticks = data.ticks._replace(observed=0 * data.ticks.observed)
        return right(program, data._replace(ticks=ticks), *rest)

    monkeypatch.setattr(sbc, "levels_and_paths", blind)
    found = failures(ranks(case, case, 12), QUANTITIES, LEVEL)
    assert "now_gap" in found
    assert "state_fit" in found
    assert "reward_now" not in found  # draws from the prior are calibrated, too


@pytest.mark.slow
def test_wrong_relaxation_times_are_seen(case):
    source = with_planned_updates(case, 2)
    assert "relaxation_time" in failures(ranks(case, source, 60), QUANTITIES, LEVEL)


@pytest.mark.slow
def test_wrong_plateau_prior_is_seen(case):
    source = make_case(with_plateau_sd(load_model("oscillator"), 6.0))
    found = failures(ranks(case, source, 60), QUANTITIES, LEVEL)
    # A far plateau that is taken for a near one makes the approach look slow: seen there first.
    assert {"relaxation_time", "log_likelihood"} <= set(found)


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("model", ["oscillator", "exponential", "closed_form"])
def test_posteriors_are_calibrated(model, window):
    case = make_case(load_model(model), window)
    assert failures(ranks(case, case, 200, seed=2), QUANTITIES, LEVEL) == []


def test_ecdf_band_holds_95_percent_of_uniform_ranks():
    rng = np.random.default_rng(5)
    low, high = null(60).band(0.95)
    histograms = rng.multinomial(60, np.full(VALUES, 1 / VALUES), 4000)
    counts = histograms.cumsum(axis=1)[:, :-1]
    inside = np.all((counts >= low) & (counts <= high), axis=1).mean()
    assert inside == pytest.approx(0.95, abs=0.015)


def test_p_values_of_uniform_ranks_are_uniform_or_larger():
    rng = np.random.default_rng(6)
    verdicts = [judge(rng.integers(0, VALUES, 60)) for _ in range(500)]
    for test in ("chi_square", "ks", "ecdf"):
        p = np.array([getattr(verdict, test) for verdict in verdicts])
        for level in (0.05, 0.2, 0.5):
            assert np.mean(p <= level) < level + 3 * np.sqrt(level * (1 - level) / len(p)), test
