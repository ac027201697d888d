"""Stability of a fit: truth recovered from simulated runs, limits that hold, honest warnings."""

import json
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bayes_grpo as bg
from bayes_grpo import commands, reduction
from bayes_grpo.cli import main
from bayes_grpo.convergence import Convergence
from bayes_grpo.limits import limits
from bayes_grpo.precision import float64
from bayes_grpo.statespace import System, Ticks, draw_noise, simulate
from bayes_grpo.trajectory import OSCILLATOR, constant_lag

mpl.use("Agg")

LAG, MOMENTUM, STALENESS = 2, 0.8, 0.6


def simulated(trajectory, rows, sd, **params):
    """Rewards of a run of a trajectory that starts at .2 and heads for .7, one update a row."""
    with float64():
        one = jnp.ones(rows)
        ticks = Ticks(one, one, one, one, one, 0 * one, one, 0 * one, {})
        levels = {"initial_reward": 0.2, "initial_reward_sd": 0.0}
        levels |= {"plateau": 0.7, "plateau_sd": 0.0, "updates_per_tick": 1.0}
        full = trajectory.derive({**levels, **params})
        system = System(
            trajectory.start,
            trajectory.advance,
            trajectory.observe,
            lambda params, tick: (),
            lambda params, tick: jnp.asarray(sd**2),
        )
        noise = draw_noise(system, full, ticks, jax.random.key(3))
        return np.asarray(simulate(system, full, ticks, noise)[1])


def fitted(rewards, model, **given_settings):
    table = pd.DataFrame({"step": np.arange(1, len(rewards) + 1), "reward": rewards})
    run = bg.Run.from_table(table, name="simulated", max_steps=len(rewards) + 1, **given_settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bg.ConvergenceWarning)
        return bg.fit(run, model, chains=1, draws=400, tune=250, progress=False)


@pytest.fixture(scope="module")
def swinging():
    rewards = simulated(OSCILLATOR, 60, 0.02, relaxation_time=6.0, damping_ratio=0.3)
    return fitted(rewards, "oscillator", momentum=0.9)


@pytest.fixture(scope="module")
def lagging():
    tau = LAG / STALENESS
    rewards = simulated(
        constant_lag(LAG), 60, 0.02, relaxation_time=tau, optimizer_momentum=MOMENTUM
    )
    return fitted(rewards, "closed_form", momentum=MOMENTUM, lag=LAG, learning_rate=1e-6)


def under(fit, **changes):
    """The same posterior under other settings."""
    return replace(fit, run=replace(fit.run, settings=fit.run.settings.replace(**changes)))


# --- truth ---------------------------------------------------------------------------------------


def test_a_swinging_run_is_seen_to_swing(swinging):
    answer = bg.stability(swinging)
    assert answer.p_oscillatory > 0.95
    assert not answer.tautology
    assert "tautology" not in answer.notes
    low, high = np.quantile(answer.curve_damping, (0.025, 0.975))
    assert low < 0.3 < high


def test_the_lag_of_a_lagging_run_is_found_out(lagging):
    answer = bg.stability(lagging)
    low, high = np.quantile(answer.staleness, (0.005, 0.995))
    assert low < STALENESS < high
    assert high - low < 0.3
    assert answer.p_oscillatory > 0.95
    assert answer.p_unstable < 0.05
    assert not answer.tautology
    # The longest lag that is stable with this curvature, from the truth.
    pull = STALENESS * (1 - MOMENTUM) / LAG
    true = max(n for n in range(50) if reduction.divergence_pull(MOMENTUM, n, "constant") > pull)
    assert abs(answer.limits.loc[("constant", "stable"), "longest"] - true) <= 2


def test_an_overdamped_run_is_no_comfort(small_fit):
    answer = bg.stability(small_fit)
    assert answer.p_oscillatory < 0.1
    assert answer.p_unstable == 0
    assert answer.tautology
    assert "has no lag" in answer.notes["tautology"]
    assert "TAUTOLOGY" in repr(answer) and "no evidence" not in answer.in_words()
    stale = bg.stability(under(small_fit, refresh_interval=4))
    assert "measured at this lag" in stale.notes["tautology"]


def test_a_measured_curvature_takes_the_warning_away(small_fit):
    fit = under(small_fit, lag=10)
    pull = reduction.divergence_pull(0.9, 10, "constant")
    border = float(pull / (fit.run.settings.learning_rate * 0.1))
    answer = bg.stability(fit, curvature=(border, 0.1 * border))
    assert not answer.tautology and "tautology" not in answer.notes
    assert answer.curvature.mean() == pytest.approx(border, rel=1e-3)
    assert answer.curvature.std() == pytest.approx(0.1 * border, rel=1e-2)
    # Half of it and a bit less, since the lognormal's median lies below its mean.
    assert 0.45 < answer.p_unstable < 0.5
    draws = np.linspace(0.5, 2.5, 101) * border
    assert bg.stability(fit, curvature=draws).p_unstable == pytest.approx(np.mean(draws > border))
    assert bg.stability(fit, curvature=(2 * border, 0)).p_unstable == 1


# --- limits --------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(
    momentum=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    log_pull=st.floats(-8, 1),
    spread=st.floats(0.01, 1.5),
    level=st.sampled_from([0.01, 0.05, 0.3]),
    at=st.integers(1, 30),
)
def test_limits_are_the_largest_that_hold(momentum, log_pull, spread, level, at):
    pull = np.exp(log_pull + spread * np.random.default_rng(0).standard_normal(800))
    table = limits(pull, momentum, level, 2.0, {"hold": at, "constant": at - 1})
    thresholds = {
        "stable": reduction.divergence_pull, "no oscillation": reduction.oscillation_pull
    }  # fmt: skip
    for (pattern, keeps), row in table.iterrows():

        def failing(n, factor=1.0, pattern=pattern, keeps=keeps):
            return np.mean(factor * pull > thresholds[keeps](momentum, n, pattern))

        least = 0 if pattern == "constant" else 1
        if np.isnan(row["longest"]):
            assert failing(least) >= level
        else:
            n = int(row["longest"])
            assert failing(n) < level <= failing(n + 1)
        assert row["learning_rate"] == pytest.approx(2 * row["relative"])
        assert failing(row["at"], row["relative"] * (1 - 1e-9)) < level
        # One more draw beyond: at the size of this sample, the level is passed.
        assert failing(row["at"], row["relative"] * 1.5) >= failing(row["at"], row["relative"])
        assert failing(row["at"], row["relative"] * (1 + 1e-9)) >= level - 2 / len(pull)
    longest = table["longest"].fillna(-1)
    for pattern in ("hold", "constant"):
        assert longest[pattern, "stable"] >= longest[pattern, "no oscillation"]
    assert longest["hold", "stable"] >= longest["constant", "stable"]


def test_nothing_depends_on_how_learning_rate_and_convention_are_written(small_fit):
    plain = bg.stability(under(small_fit, lag=5))
    for changes in ({"learning_rate": 7e-3}, {"momentum_convention": "heavy_ball"}):
        other = bg.stability(under(small_fit, lag=5, **changes))
        np.testing.assert_allclose(other.staleness, plain.staleness, rtol=1e-9)
        assert other.p_oscillatory == plain.p_oscillatory
        assert other.thresholds == plain.thresholds
        pd.testing.assert_series_equal(other.limits["longest"], plain.limits["longest"])
        pd.testing.assert_series_equal(other.limits["relative"], plain.limits["relative"])


def test_staleness_grows_with_the_interval(small_fit):
    middle = [
        np.median(bg.stability(under(small_fit, refresh_interval=n)).staleness) for n in (1, 2, 8)
    ]
    np.testing.assert_allclose(np.array(middle) / middle[0], [1, 2, 8])
    none = bg.stability(under(small_fit, lag_pattern="constant", lag=0))
    assert none.staleness.max() == 0
    assert np.isnan(none.thresholds["divergence"])
    one = bg.stability(small_fit)
    assert none.p_oscillatory == one.p_oscillatory


# --- what is said --------------------------------------------------------------------------------


def test_notes_name_what_was_assumed(small_fit):
    notes = bg.stability(small_fit).notes
    assert "refresh_interval=1" in notes["settings"]
    assert "momentum=" not in notes["settings"]  # given with the example
    assert "unclipped importance ratios" in notes["importance_ratios"]
    assert "not sufficient" in notes["necessary"]
    assert "cannot oscillate" in notes["model"]
    assert "peak learning rate" in notes["schedule"]
    told = under(
        small_fit, lag=12, lag_pattern="constant", momentum_convention="ema", learning_rate=1e-6
    )
    notes = bg.stability(told).notes
    assert "settings" not in notes
    assert "1.20e-05" in notes["necessary"]


def test_a_curve_that_the_settings_do_not_explain(swinging):
    slow = under(swinging, momentum=0.0)
    assert "do not explain the shape" in bg.stability(slow).notes["damping"]


def test_summary_and_dictionary(small_fit, swinging):
    answer = bg.stability(small_fit, level=0.1)
    table = answer.summary()
    assert list(table.columns) == ["mean", "sd", "5%", "50%", "95%", "unit"]
    assert table.loc["p_unstable", "mean"] == answer.p_unstable
    assert table.loc["divergence_staleness", "mean"] == pytest.approx(38)
    assert "damping_ratio" not in table.index
    assert "damping_ratio" in bg.stability(swinging).summary().index
    content = answer.to_dict()
    assert content["level"] == 0.1
    assert content["settings"]["momentum"] == {"value": 0.9, "provenance": "given"}
    assert len(content["limits"]) == 4
    page = answer._repr_html_()
    assert "TAUTOLOGY" in page and "importance ratios" in page
    doubtful = replace(answer, convergence=Convergence(1.5, 12.0, 0.2))
    assert "DID NOT CONVERGE" in repr(doubtful)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"level": 0}, "level is 0"),
        ({"level": 1.0}, "level is 1.0"),
        ({"level": "few"}, "level is 'few'"),
        ({"curvature": 3.0}, "curvature is 3.0"),
        ({"curvature": (-1, 1)}, "mean > 0"),
        ({"curvature": (1, np.nan)}, "finite"),
        ({"curvature": [1.0, 2.0, 3.0]}, "at least 10 draws"),
        ({"curvature": np.linspace(-1, 1, 20)}, "curvature is array"),
        ({"curvature": "high"}, "curvature is 'high'"),
    ],
)
def test_refusals(small_fit, options, says):
    with pytest.raises(bg.InputError, match=says):
        bg.stability(small_fit, **options)


def test_a_curve_without_stiffness_needs_a_curvature(small_fit):
    other = replace(small_fit, model=replace(small_fit.model, trajectory="power_law"))
    with pytest.raises(bg.InputError, match=r"'power_law' has no stiffness"):
        bg.stability(other)
    assert bg.stability(other, curvature=(1e4, 1e3)).p_unstable == 0


# --- picture and terminal ------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6)
@given(
    lag=st.sampled_from([None, "hold", "constant"]),
    interval=st.sampled_from([1, 3, 64, 20_000]),
    momentum=st.sampled_from([0.0, 0.9, 0.999]),
    factor=st.floats(1e-4, 1e4),
    size=st.tuples(st.floats(3, 12), st.floats(3, 8)),
)
def test_any_diagram(small_fit, lag, interval, momentum, factor, size):
    fit = under(small_fit, refresh_interval=interval, momentum=momentum)
    answer = bg.stability(fit, curvature=(1e4 * factor, 2e3 * factor))
    own = plt.subplots(figsize=size)[1]
    ax = bg.plot_stability(answer, own, lag=lag)
    assert ax is own
    ax.figure.canvas.draw()
    assert np.isfinite([*ax.get_xlim(), *ax.get_ylim()]).all()
    assert ax.get_xlim()[1] > interval
    assert ax.get_ylim()[0] < 1 < ax.get_ylim()[1]
    plt.close("all")


def test_the_diagram_shows_the_exact_borders(small_fit):
    answer = bg.stability(under(small_fit, lag=4))
    ax = bg.plot_stability(answer)
    assert ax.get_xlabel() == "constant lag (optimizer updates)"
    (line,) = [x for x in ax.lines if str(x.get_label()).startswith("diverges")]
    n, border = line.get_xdata(), line.get_ydata()
    middle = np.median(answer.pull)
    np.testing.assert_allclose(border, reduction.divergence_pull(0.9, n, "constant") / middle)
    words = " ".join(text.get_text() for text in ax.texts)
    for name in ("overdamped", "oscillatory", "unstable", "NO EVIDENCE OF A MARGIN"):
        assert name in words
    plt.close("all")
    assert bg.plot_stability(small_fit).get_xlabel().startswith("refresh interval")
    plt.close("all")


@pytest.fixture
def saved(monkeypatch, small_fit, tmp_path):
    monkeypatch.setattr(commands, "keep_compiled", lambda: None)
    return small_fit.save(tmp_path / "fit.nc")


def invoke(*args):
    return CliRunner().invoke(main, ["stability", *map(str, args)])


def test_the_command(saved, tmp_path):
    result = invoke(saved, "--out", tmp_path / "a.png")
    assert result.exit_code == 0, result.output
    for expected in ("NO EVIDENCE OF A MARGIN", "P(unstable)", "constant lag", "importance ratios"):
        assert expected in result.stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

    result = invoke(saved, "--json", "--curvature", 2e4, 1e3, "--out", tmp_path / "a.json")
    content = json.loads(result.stdout, parse_constant=pytest.fail)
    assert content["tautology"] is False
    assert content == json.loads((tmp_path / "a.json").read_text())
    assert invoke(saved, "--quiet", "--out", tmp_path / "a.csv").output == ""
    table = pd.read_csv(tmp_path / "a.csv", index_col=0)
    assert table.loc["oscillation_staleness", "mean"] == pytest.approx(0.0263, abs=1e-4)
    assert table["converged"].all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--level", 2], "--level is 2"),
        (["--curvature", -1, 1], "curvature is (-1.0, 1.0)"),
        (["--momentum", 0.5], "leave out --momentum"),
        (["--out", "a.pdf"], ".png, .csv or .json"),
    ],
)
def test_the_command_refuses(saved, options, says):
    result = invoke(saved, *options)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert says in line
