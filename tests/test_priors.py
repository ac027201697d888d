"""Priors: the densities that a model file names, the units they are in, and messages for slips."""

from math import exp, inf, log, nan

import jax
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from bayes_grpo.errors import InputError, ModelFileError
from bayes_grpo.priors import UNITS, Prior, RunScale, parse_prior

# NumPyro itself broadcasts between ranks.
pytestmark = pytest.mark.usefixtures("x64")

SCALE = RunScale(location=0.4, scale=0.25, planned_updates=800.0, row_updates=5.0)


def parsed(entry, name="relaxation_time"):
    return parse_prior(name, entry, "my/model.toml")


# --- densities -----------------------------------------------------------------------------------

DENSITIES = {
    "Normal": ({"mean": 0.3, "sd": 2.0}, scipy.stats.norm(0.3, 2.0)),
    "LogNormal": ({"median": 0.3, "sd_log": 0.7}, scipy.stats.lognorm(0.7, scale=0.3)),
    "HalfNormal": ({"sd": 1.5}, scipy.stats.halfnorm(scale=1.5)),
    "Exponential": ({"mean": 2.5}, scipy.stats.expon(scale=2.5)),
    "Uniform": ({"low": -0.5, "high": 2.0}, scipy.stats.uniform(-0.5, 2.5)),
    "Beta": ({"alpha": 2.0, "beta": 3.5}, scipy.stats.beta(2.0, 3.5)),
    "TruncatedNormal": (
        {"mean": 0.5, "sd": 1.0, "low": 0.0, "high": 2.0},
        scipy.stats.truncnorm(-0.5, 1.5, loc=0.5, scale=1.0),
    ),
}


@pytest.mark.parametrize("kind", DENSITIES)
def test_density(kind):
    arguments, exact = DENSITIES[kind]
    prior = parsed({"distribution": kind, **arguments})
    points = exact.ppf(np.linspace(0.001, 0.999, 41))
    np.testing.assert_allclose(
        jax.jit(prior.in_unit().log_prob)(points), exact.logpdf(points), rtol=1e-9, atol=1e-12
    )
    assert prior.gaussian == (kind == "Normal")
    assert not prior.fixed


@pytest.mark.parametrize(("low", "high"), [(0.0, None), (None, 1.0), (-inf, 1.0), (None, None)])
def test_truncation_on_one_side(low, high):
    bounds = {name: x for name, x in (("low", low), ("high", high)) if x is not None}
    prior = parsed({"distribution": "TruncatedNormal", "mean": 0.5, "sd": 1.0, **bounds})
    below = -inf if low is None else low - 0.5
    above = inf if high is None else high - 0.5
    exact = scipy.stats.truncnorm(below, above, loc=0.5, scale=1.0)
    points = exact.ppf(np.linspace(0.01, 0.99, 15))
    np.testing.assert_allclose(
        jax.jit(prior.in_unit().log_prob)(points), exact.logpdf(points), rtol=1e-9, atol=1e-12
    )


# --- units ---------------------------------------------------------------------------------------

NATURAL = {  # what 2 in each unit is
    "reward": 0.4 + 0.25 * 2,
    "spread": 0.25 * 2,
    "planned": 800 * 2,
    "row": 5 * 2,
    "natural": 2,
}


@pytest.mark.parametrize("unit", UNITS)
def test_units(unit):
    drawn = parsed({"distribution": "LogNormal", "median": 1, "sd_log": 1, "unit": unit})
    assert drawn.natural(2.0, SCALE) == pytest.approx(NATURAL[unit], rel=1e-15)
    fixed = parsed({"distribution": "Fixed", "value": 2, "unit": unit})
    assert fixed.moments(SCALE) == (pytest.approx(NATURAL[unit], rel=1e-15), 0.0)
    assert fixed.fixed
    normal = parsed({"distribution": "Normal", "mean": 2, "sd": 3, "unit": unit})
    mean, sd = normal.moments(SCALE)
    per_unit = {"reward": 0.25, "spread": 0.25, "planned": 800, "row": 5, "natural": 1}[unit]
    assert mean == pytest.approx(NATURAL[unit], rel=1e-15)
    assert sd == pytest.approx(3 * per_unit, rel=1e-15)


def test_the_default_unit_is_natural_and_a_number_fixes():
    assert parsed({"distribution": "HalfNormal", "sd": 1}).unit == "natural"
    prior = parsed(0.75)
    assert prior == Prior("Fixed", {"value": 0.75})
    assert prior.moments(SCALE) == (0.75, 0.0)
    with pytest.raises(ValueError, match="no distribution"):
        prior.in_unit()


@pytest.mark.parametrize("unit", ["planned", "row"])
@pytest.mark.parametrize("above_unit", [None, "row", "planned"])
def test_above_is_a_lower_bound_in_its_own_unit(unit, above_unit):
    entry = {"distribution": "LogNormal", "median": 0.3, "sd_log": 1, "unit": unit, "above": 0.64}
    if above_unit:
        entry["above_unit"] = above_unit
    prior = parsed(entry)
    factor = {"planned": 800, "row": 5}
    bound = 0.64 * factor[above_unit or unit]
    assert prior.natural(0.0, SCALE) == pytest.approx(bound)
    assert prior.natural(0.1, SCALE) == pytest.approx(bound + 0.1 * factor[unit])
    assert not parsed({"distribution": "Normal", "mean": 0, "sd": 1, "above": 0.64}).gaussian


@given(
    st.floats(-5, 5),
    st.floats(-100, 100),
    st.floats(0.01, 100),
    st.floats(0.1, 50),
    st.sampled_from(UNITS),
)
def test_natural_units_follow_the_run(draw, shift, factor, stretch, unit):
    """Rewards a + b R in k times the time: levels, spreads and times move along, numbers do not."""
    prior = parsed({"distribution": "Uniform", "low": -9, "high": 9, "unit": unit})
    moved = RunScale(
        shift + factor * SCALE.location,
        factor * SCALE.scale,
        stretch * SCALE.planned_updates,
        stretch * SCALE.row_updates,
    )
    here, there = prior.natural(draw, SCALE), prior.natural(draw, moved)
    exact = {
        "reward": shift + factor * here,
        "spread": factor * here,
        "planned": stretch * here,
        "row": stretch * here,
        "natural": here,
    }[unit]
    assert there == pytest.approx(exact, rel=1e-12, abs=1e-12 * (1 + abs(shift) + factor))


def test_lognormal_median_is_a_median():
    prior = parsed({"distribution": "LogNormal", "median": 0.3, "sd_log": 1.0})
    assert float(prior.in_unit().cdf(0.3)) == pytest.approx(0.5)
    assert float(prior.in_unit().cdf(0.3 * exp(1))) == pytest.approx(scipy.stats.norm.cdf(1))
    assert float(prior.in_unit().mean) == pytest.approx(exp(log(0.3) + 0.5))


# --- slips ---------------------------------------------------------------------------------------

NORMAL = {"distribution": "Normal", "mean": 0.0, "sd": 1.0}
SLIPS = {
    "misspelt distribution": (
        {"distribution": "Norml", "mean": 0, "sd": 1},
        "Norml",
        ["Normal", "LogNormal", "Fixed"],
    ),
    "no distribution": ({"mean": 0, "sd": 1}, "None", ["Normal", "LogNormal"]),
    "misspelt argument": ({"distribution": "Normal", "mean": 0, "std": 1}, "std", ["mean", "sd"]),
    "argument of another": (
        {"distribution": "LogNormal", "mean": 0, "sd_log": 1},
        "mean",
        ["median", "sd_log"],
    ),
    "missing argument": ({"distribution": "Normal", "mean": 0}, "needs sd", ["Normal"]),
    "misspelt unit": (NORMAL | {"unit": "rewards"}, "rewards", list(UNITS)),
    "misspelt unit of above": (
        NORMAL | {"above": 1, "above_unit": "steps"},
        "steps",
        list(UNITS),
    ),
    "text for a number": (NORMAL | {"mean": "zero"}, "'zero'", ["mean", "number"]),
    "truth for a number": (NORMAL | {"sd": True}, "True", ["sd", "number"]),
    "text for above": (NORMAL | {"above": "a bit"}, "'a bit'", ["above", "number"]),
    "truth for above": (NORMAL | {"above": True}, "True", ["above", "number"]),
    "a unit of no bound": (NORMAL | {"above_unit": "row"}, "above_unit", ["above"]),
    "sd of zero": (NORMAL | {"sd": 0}, "sd is 0", ["> 0"]),
    "negative sd": (NORMAL | {"sd": -1.5}, "sd is -1.5", ["> 0"]),
    "sd that is no number": (NORMAL | {"sd": nan}, "nan", ["sd"]),
    "infinite sd": (NORMAL | {"sd": inf}, "inf", ["sd"]),
    "mean that is no number": (NORMAL | {"mean": nan}, "nan", ["mean"]),
    "negative median": ({"distribution": "LogNormal", "median": -1, "sd_log": 1}, "-1", ["median"]),
    "mean of an exponential": ({"distribution": "Exponential", "mean": 0}, "mean is 0", ["> 0"]),
    "bounds that cross": (
        {"distribution": "Uniform", "low": 2, "high": 1},
        "low is 2",
        ["high = 1"],
    ),
    "bounds that meet": ({"distribution": "Uniform", "low": 1, "high": 1}, "low is 1", ["high"]),
    "infinite bounds": ({"distribution": "Uniform", "low": -inf, "high": 1}, "-inf", ["low"]),
    "a bound that is no number": (
        {"distribution": "TruncatedNormal", "mean": 0, "sd": 1, "low": nan},
        "nan",
        ["low"],
    ),
    "fixed at no number": (nan, "nan", ["number"]),
    "fixed above something": (
        {"distribution": "Fixed", "value": 2, "above": 1},
        "above",
        ["Fixed"],
    ),
    "a list": ([0, 1], "[0, 1]", ["table", "number"]),
    "text": ("Normal", "'Normal'", ["table", "number"]),
    "truth": (True, "True", ["table", "number"]),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_are_named(slip):
    """The message names file, parameter, what was found, and what is known or expected."""
    entry, found, expected = SLIPS[slip]
    with pytest.raises(ModelFileError) as caught:
        parsed(entry, name="drift_sd")
    message = str(caught.value)
    assert isinstance(caught.value, InputError)
    assert message.startswith("my/model.toml: prior of drift_sd: ")
    assert "\n" not in message
    for part in (found, *expected):
        assert part in message, message


def test_parsing_leaves_the_entry_alone():
    entry = NORMAL | {"unit": "reward"}
    before = dict(entry)
    parsed(entry)
    assert entry == before
