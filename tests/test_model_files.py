"""Model files: shipped ones work on any run, slips are named, scale and clock do not matter."""

import tomllib
from functools import cache
from math import log

import jax
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from bayes_grpo.errors import InputError, ModelFileError
from bayes_grpo.fit import fit
from bayes_grpo.mean_curves import MEAN_CURVES, Recipe
from bayes_grpo.model import available_models, bind, load_model, parse_model
from bayes_grpo.resources import models_dir
from bayes_grpo.run import Run
from bayes_grpo.simulate.generator import simulate_model

pytestmark = pytest.mark.usefixtures("x64")

SHIPPED = sorted(path.stem for path in models_dir().glob("*.toml"))


@cache
def compiled(program):
    return jax.jit(program.log_likelihood)


@cache
def compiled_over_draws(program):
    return jax.jit(jax.vmap(jax.value_and_grad(program.log_likelihood), in_axes=(0, None)))


def likelihood(model, run, draws):
    program, _, data = bind(model, run)
    return float(compiled(program)(draws, data))


def prior_draws(program, count, seed=0):
    keys = jax.random.split(jax.random.key(seed), len(program.sampled))
    return {
        name: program.model.priors[name].in_unit().sample(key, (count,))
        for name, key in zip(program.sampled, keys, strict=True)
    }


def curve(count=40, seed=0):
    rng = np.random.default_rng(seed)
    rise = 0.2 + 0.6 * (1 - np.exp(-np.arange(count) / 12))
    return rise + 0.04 * rng.normal(size=count)


# --- shipped models ------------------------------------------------------------------------------


def test_models_are_shipped():
    assert {"oscillator", "closed_form", "exponential"} <= set(SHIPPED)
    described = available_models()
    assert sorted(described) == SHIPPED
    assert all(described.values())


KINDS_OF_RUN = (
    {},
    {"refresh_interval": 8},  # eight rows a batch
    {"refresh_interval": 4, "updates_per_step": 4},
    {"lag": 1},
    {"momentum": 0.0, "max_steps": 4000},
)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_likelihood_is_finite_wherever_the_prior_goes(name):
    for given_settings in KINDS_OF_RUN:
        table = pd.DataFrame({"step": np.arange(1, 41), "reward": curve()})
        program, _, data = bind(load_model(name), Run.from_table(table, **given_settings))
        draws = prior_draws(program, 1000)
        values, gradients = compiled_over_draws(program)(draws, data)
        assert np.all(np.isfinite(values)), given_settings
        for parameter, slopes in gradients.items():
            assert np.all(np.isfinite(slopes)), (parameter, given_settings)
            assert np.ptp(slopes) > 0, (parameter, given_settings)  # every parameter has a say


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_is_found_by_name_and_by_path(name, tmp_path):
    model = load_model(name)
    copy = tmp_path / f"{name}.toml"
    copy.write_text(model.text)
    assert load_model(copy) == model == load_model(str(copy))
    assert load_model(model) is model
    assert hash(load_model(copy)) == hash(model)
    renamed = tmp_path / "other.toml"
    renamed.write_text(model.text)
    assert load_model(renamed) != model


@pytest.mark.parametrize("name", SHIPPED)
def test_each_parameter_of_a_shipped_file_may_be_fixed(name):
    """Fixing a parameter where a draw would be is the same likelihood."""
    model = load_model(name)
    run = Run.from_table(pd.DataFrame({"reward": curve()}), max_steps=200)
    program, _, data = bind(model, run)
    draws = dict.fromkeys(program.sampled, 0.5)
    params = program.params(draws, data)
    content = tomllib.loads(model.text)
    lines = [f"{key} = {value!r}" for key, value in content.items() if key != "priors"]
    lines.append("[priors]")
    lines += [f"{n} = {float(params[n])!r}" for n in program.sampled]
    for level in ("plateau", "initial_reward"):
        if level in model.priors and level not in program.sampled:
            mean, sd = params[level], params[f"{level}_sd"]
            lines.append(f'{level} = {{ distribution = "Normal", mean = {mean!r}, sd = {sd!r} }}')
    fixed = parse_model("\n".join(lines), "fixed", "fixed.toml")
    assert bind(fixed, run)[0].sampled == ()
    assert likelihood(fixed, run, {}) == pytest.approx(likelihood(model, run, draws), rel=1e-10)


def test_levels_are_integrated_out_exactly_and_only_where_normal():
    """Quadrature over a level that is sampled gives the likelihood that integrates it out."""
    run = Run.from_table(pd.DataFrame({"reward": curve()}))
    normal = 'distribution = "Normal", mean = 0.3, sd = 1.2'
    old = next(line for line in GOOD.splitlines() if line.startswith("plateau"))
    levels = {
        name: parse_model(
            GOOD.replace(old, f'plateau = {{ {prior}, unit = "reward" }}'), name, "levels.toml"
        )
        for name, prior in {
            "normal": normal,
            "above": f"{normal}, above = 0",
            "uniform": 'distribution = "Uniform", low = -3, high = 3',
        }.items()
    }
    sampled = {name: bind(model, run)[0].sampled for name, model in levels.items()}
    assert "plateau" not in sampled["normal"]
    assert "plateau" in sampled["above"]
    program, _, data = bind(levels["uniform"], run)
    assert "plateau" in program.sampled
    x = 0.3 + 1.2 * np.linspace(-8, 8, 2001)
    draws = {name: np.full(len(x), 0.4) for name in program.sampled} | {"plateau": x}
    values = np.asarray(compiled_over_draws(program)(draws, data)[0])
    values = values + scipy.stats.norm(0.3, 1.2).logpdf(x) + log(x[1] - x[0])
    integral = values.max() + log(np.exp(values - values.max()).sum())
    exact = likelihood(levels["normal"], run, dict.fromkeys(sampled["normal"], 0.4))
    assert exact == pytest.approx(integral, rel=1e-9)


# --- scale and clock -----------------------------------------------------------------------------

FREE = [name for name in SHIPPED if load_model(name).trajectory != "closed_form"]


@pytest.mark.parametrize("name", SHIPPED)
@given(
    st.floats(-100, 100),
    st.floats(0.01, 100),
    st.sampled_from(["single", "window"]),
)
@settings(max_examples=10)
def test_rewards_on_another_scale(name, shift, factor, row_average):
    """Rewards a + b R have a density smaller by the factor b each, and nothing else changes."""
    model = load_model(name)
    reward = curve(20)
    reward[[3, 11]] = np.nan
    # Without bounds a fixed point takes rewards in [0, 1] for success rates, others not.
    bounded = MEAN_CURVES[model.trajectory].build(Recipe()).needs_bounds
    rows = np.isfinite(reward).sum()
    step = np.arange(1, 21) * 2

    def value(shift, factor):
        table = pd.DataFrame({"step": step, "reward": shift + factor * reward})
        bounds = (shift - factor, shift + 2 * factor) if bounded else None
        run = Run.from_table(table, row_average=row_average, max_steps=100, reward_bounds=bounds)
        return likelihood(model, run, dict.fromkeys(bind(model, run)[0].sampled, 0.4))

    moved = value(shift, factor)
    assert moved == pytest.approx(value(0.0, 1.0) - rows * log(factor), rel=1e-8, abs=1e-7)


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize("stretch", [2, 7])
def test_a_slower_clock(name, stretch):
    """Batches of k updates, all times in updates k times as long: the same likelihood."""
    model = load_model(name)
    step = np.array([1, 2, 4, 5, 9, 10, 12, 20, 21, 22])
    rate = np.linspace(1, 0.1, 10)

    def value(steps, learning_rate, **given_settings):
        table = pd.DataFrame({"step": steps, "reward": curve(10), "learning_rate": learning_rate})
        run = Run.from_table(table, **given_settings)
        return likelihood(model, run, dict.fromkeys(bind(model, run)[0].sampled, 0.4))

    plain = value(step, rate * 0 + 1, max_steps=50)
    by_updates = value(
        stretch * step, rate * 0 + 1, refresh_interval=stretch, max_steps=50 * stretch
    )
    assert by_updates == pytest.approx(plain, rel=1e-11)
    by_steps = value(
        step, rate * 0 + 1, refresh_interval=stretch, updates_per_step=stretch, max_steps=50
    )
    assert by_steps == pytest.approx(plain, rel=1e-11)
    assert abs(value(step, rate * 0 + 1, max_steps=500) - plain) > 1e-3
    # A random walk does not know the learning rate; every other curve does.
    assert (abs(value(step, rate, max_steps=50) - plain) > 1e-3) == (name != "local_level")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_peak_rate_of_any_size(name):
    """Only the shape of the schedule counts."""
    model = load_model(name)

    def value(peak):
        table = pd.DataFrame({"reward": curve(30), "learning_rate": peak * np.linspace(1, 0.1, 30)})
        run = Run.from_table(table)
        return likelihood(model, run, dict.fromkeys(bind(model, run)[0].sampled, 0.4))

    assert value(3e-6) == pytest.approx(value(1.0), rel=1e-11)


def test_a_model_without_anything_to_sample_says_so_and_still_simulates():
    fixed = "\n".join(
        line if "=" not in line or line.split(" =")[0] in KEPT else f"{line.split(' =')[0]} = 3.0"
        for line in GOOD.splitlines()
    )
    model = parse_model(fixed, "fixed", "fixed.toml")
    run = Run.from_table(pd.DataFrame({"reward": curve()}))
    with pytest.raises(InputError, match="nothing to sample"):
        fit(run, model)
    made = simulate_model(model, n_rows=30, seed=1)
    assert np.isfinite(made.run.table["reward"]).all()
    assert made.parameters["sampling_sd"] == 3.0


# --- slips ---------------------------------------------------------------------------------------

GOOD = """\
description = "a variant"
trajectory = "exponential"
fluctuation = ["process"]
measurement = "white"
[priors]
plateau = { distribution = "Normal", mean = 0, sd = 2, unit = "reward" }
initial_reward = 0.1
relaxation_time = { distribution = "LogNormal", median = 0.3, sd_log = 1, unit = "planned" }
fluctuation_sd = { distribution = "HalfNormal", sd = 0.2, unit = "spread" }
sampling_sd = { distribution = "HalfNormal", sd = 0.7, unit = "spread" }
"""

KEPT = ("description", "trajectory", "fluctuation", "measurement")

SLIPS = {  # what is replaced, by what, and what the message must name
    "unknown trajectory": ('"exponential"', '"expnential"', ["'expnential'", "oscillator"]),
    "no trajectory": ('trajectory = "exponential"\n', "", ["no trajectory", "oscillator"]),
    "no measurement": ('measurement = "white"\n', "", ["no measurement", "white"]),
    "unknown measurement": ('"white"', '"pink"', ["'pink'", "white"]),
    "unknown fluctuation": ('["process"]', '["procces"]', ["'procces'", "process", "drift"]),
    "fluctuation as text": ('["process"]', '"process"', ["fluctuation", "list"]),
    "a number as fluctuation": ('["process"]', "[3]", ["3", "process"]),
    "a list as trajectory": ('"exponential"', '["exponential"]', ["trajectory", "oscillator"]),
    "fluctuation twice": ('["process"]', '["process", "process"]', ["process", "twice"]),
    "unknown entry": ("description", "descripton", ["'descripton'", "description", "trajectory"]),
    "misspelt parameter": (
        "relaxation_time",
        "relaxation_tme",
        ["'relaxation_tme'", "relaxation_time", "sampling_sd"],
    ),
    "parameter of another part": (
        "[priors]",
        "[priors]\ndrift_sd = 0.1",
        ["'drift_sd'", "fluctuation_sd"],
    ),
    "missing prior": ("initial_reward = 0.1\n", "", ["no prior of initial_reward", "[priors]"]),
    "prior with a slip": ("sd = 0.7", "sd = -0.7", ["prior of sampling_sd", "sd is -0.7", "> 0"]),
    "prior in an unknown unit": ('"planned"', '"plan"', ["relaxation_time", "'plan'", "planned"]),
    "broken TOML": ("mean = 0,", "mean = ,", ["not valid TOML", "line 6"]),
    "priors as text": ("[priors]\n", "priors = '''\n", ["not valid TOML"]),
}


def test_the_good_file_is_good():
    model = parse_model(GOOD, "good", "good.toml")
    assert model.description == "a variant"
    assert model.fluctuation == ("process",)
    run = Run.from_table(pd.DataFrame({"reward": curve()}))
    assert bind(model, run)[0].sampled == ("relaxation_time", "fluctuation_sd", "sampling_sd")


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_are_named(slip, tmp_path):
    """The message is one line that names the file, what was found and what is known."""
    old, new, named = SLIPS[slip]
    assert old in GOOD
    path = tmp_path / "variant.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ModelFileError) as caught:
        load_model(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for part in named:
        assert part in message, message


@pytest.mark.parametrize("priors", ["3", '"Normal"', "[1, 2]"])
def test_priors_that_are_no_table(priors):
    text = GOOD.split("[priors]")[0] + f"priors = {priors}\n"
    with pytest.raises(ModelFileError, match=r"^odd\.toml: priors .*\[priors\]"):
        parse_model(text, "odd", "odd.toml")


def test_no_such_model(tmp_path):
    with pytest.raises(ModelFileError) as caught:
        load_model("oscilator")
    for part in ("'oscilator'", *SHIPPED, ".toml"):
        assert part in str(caught.value)
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(ModelFileError, match=str(path)):
            load_model(path if path.suffix else path / "absent.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelFileError, match="cannot be read"):
        load_model(binary)
