"""Plots: they return the axes they were given, show what they draw, and take any valid argument."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection

import bayes_grpo as bg
from bayes_grpo.convergence import Convergence

mpl.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def texts(ax):
    return " ".join(text.get_text() for text in (*ax.texts, ax.title, ax._left_title))


def test_forecast_shows_what_it_draws(small_fit):
    ax = bg.plot_forecast(small_fit)
    ax.figure.canvas.draw()
    left, right = ax.get_xlim()
    low, high = ax.get_ylim()
    bands = [c for c in ax.collections if isinstance(c, PolyCollection)]
    assert len(bands) == 5
    for band in bands:
        x, y = np.concatenate([path.vertices for path in band.get_paths()]).T
        assert left <= x.min() and x.max() <= right
        assert low <= y.min() and y.max() <= high
    assert ax.get_xlabel() == "optimizer step"
    assert ax.get_ylabel() == "reward"
    assert "gsm8k_like: exponential" in texts(ax)
    assert "forecast from step 201" in texts(ax)
    assert "DID NOT CONVERGE" not in texts(ax)
    # The legend stands below the axes.
    legend = ax.get_legend().get_window_extent()
    assert legend.y1 <= ax.get_window_extent().y0


def test_the_plateau_is_at_its_median(small_fit):
    ax = bg.plot_forecast(small_fit)
    (line,) = [x for x in ax.lines if str(x.get_label()).startswith("plateau")]
    median = np.median(small_fit.idata["posterior"]["plateau"])
    np.testing.assert_allclose(line.get_ydata(), median)


def test_a_run_at_its_planned_end_is_forecast_a_quarter_further(small_fit):
    ax = bg.plot_forecast(replace(small_fit, horizon=200))
    (line,) = [x for x in ax.lines if str(x.get_label()).startswith("its forecast")]
    assert line.get_xdata()[-1] == 250


def test_horizon_before_the_end_is_refused(small_fit):
    with pytest.raises(bg.InputError, match="horizon is 200, but the log goes to step 200"):
        bg.plot_forecast(small_fit, horizon=200)
    with pytest.raises(bg.InputError, match="expected 'curve' or 'density'"):
        bg.plot_ppc(small_fit, kind="line")


@pytest.mark.parametrize(
    "plot", [bg.plot_forecast, bg.plot_ppc, bg.plot_residuals, bg.plot_prior_posterior]
)
def test_no_convergence_is_written_in_red(small_fit, plot):
    doubtful = replace(small_fit)
    doubtful.__dict__["convergence"] = Convergence(1.5, 12.0, 0.2)
    ax = plot(doubtful)
    (warning,) = [text for text in ax.texts if "DID NOT CONVERGE" in text.get_text()]
    assert warning.get_color() == "#B00020"


def test_names_are_written_as_they_are(small_fit):
    named = replace(small_fit, run=replace(small_fit.run, name="$x_{ " + "long" * 40))
    ax = bg.plot_forecast(named)
    ax.figure.canvas.draw()  # mathtext would fail here
    assert "$x_{" in texts(ax) and "…" in texts(ax)


@pytest.fixture(scope="module")
def with_prior(small_fit):
    return small_fit.with_prior(1000)


@pytest.fixture(scope="module")
def comparison():
    table = pd.DataFrame(
        {
            "difference": [0.0, 1.2, 30.0],
            "difference_se": [0.0, 1.1, 8.0],
            "weight": [0.6, 0.39, 0.01],
            "converged": [True, True, False],
        },
        index=pd.Index(["exponential", "$oscillator", "a_model_with_quite_a_long_name_indeed"]),
    )
    table.attrs.update(run="gsm8k_like", rows=180, first_step=21)
    return table


def labelled(ax, start):
    (found,) = [x for x in (*ax.lines, *ax.patches) if str(x.get_label()).startswith(start)]
    return found


def test_z_scores_are_drawn_with_the_large_ones_marked(small_fit):
    table = bg.residuals(small_fit)
    ax = bg.plot_residuals(small_fit)
    np.testing.assert_allclose(labelled(ax, "error of a row").get_ydata(), table["z"])
    large = table[np.abs(table["z"]) > 2]
    np.testing.assert_allclose(labelled(ax, "beyond").get_xdata(), large["step"])
    low, high = ax.get_ylim()
    assert low < table["z"].min() and table["z"].max() < high
    worst = table["step"][table["z"].abs().idxmax()]
    assert f"at step {worst}" in texts(ax)
    assert "gsm8k_like: exponential" in texts(ax)


def test_pit_histogram_counts_every_row(small_fit):
    ax = bg.plot_residuals(small_fit, kind="pit")
    (bars,) = [p for p in ax.patches if p.get_label() == "logged rows"]
    counts, edges, _ = bars.get_data()
    assert counts.sum() == 200
    assert (edges[0], edges[-1], len(counts)) == (0, 1, 20)
    assert labelled(ax, "uniform").get_ydata() == pytest.approx([10, 10])
    assert "of 20 bins outside" in texts(ax)


def test_autocorrelation_is_drawn_over_its_bands(small_fit):
    table = bg.residual_autocorrelation(small_fit, 20)
    ax = bg.plot_residuals(small_fit, kind="autocorrelation")
    drawn = np.concatenate([x.get_ydata() for x in ax.lines if "this run" in str(x.get_label())])
    np.testing.assert_allclose(np.sort(drawn), np.sort(table["autocorrelation"]))
    assert len(ax.patches) == 40  # 50 % and 90 % of each lag
    assert f"{(table['p'] < 0.05).sum()} of 20 lags" in texts(ax)


def test_prior_and_posterior_are_densities_over_the_same_axis(with_prior):
    ax = bg.plot_prior_posterior(with_prior)
    bound = []
    for label, group in (("prior", "prior"), ("posterior", "posterior")):
        x, density = labelled(ax, label).get_data()
        draws = with_prior.idata[group]["plateau"].to_numpy()
        inside = np.mean((draws > 0) & (draws < 1))
        assert np.trapezoid(density, x) == pytest.approx(inside, abs=0.02)
        bound.append(1 - inside)
    assert ax.get_xlabel() == "plateau (reward)"
    assert ax.get_xscale() == "linear"
    assert f"{100 * max(bound):.0f} % of the prior beyond the reward's bounds" in texts(ax)
    assert "narrowed the 90 % interval" in texts(ax)


def test_a_long_tailed_quantity_is_drawn_over_its_logarithm(with_prior):
    ax = bg.plot_prior_posterior(with_prior, "temperature")
    assert ax.get_xscale() == "log"
    assert ax.get_ylabel() == "density per decade"
    x, density = labelled(ax, "posterior").get_data()
    assert np.trapezoid(density, np.log10(x)) == pytest.approx(1, abs=0.02)


def test_every_quantity_of_the_summary_has_a_prior_to_plot(with_prior):
    for name in with_prior.summary().index:
        ax = bg.plot_prior_posterior(with_prior, name)
        assert ax.get_xlabel().startswith(name)


def test_unknown_quantities_and_kinds_are_refused(small_fit, with_prior):
    with pytest.raises(bg.InputError, match=r"no quantity 'ceiling' .* it has plateau, reward_now"):
        bg.plot_prior_posterior(with_prior, "ceiling")
    with pytest.raises(bg.InputError, match="expected 'z', 'pit' or 'autocorrelation'"):
        bg.plot_residuals(small_fit, kind="acf")
    with pytest.raises(bg.InputError, match="without difference, difference_se, weight"):
        bg.plot_comparison(pd.DataFrame({"elpd": [1.0]}))
    with pytest.raises(bg.InputError, match="prior predictive of a Run"):
        bg.plot_prior_predictive(small_fit.run)
    for plot in (bg.plot_residuals, bg.plot_prior_posterior):
        with pytest.raises(bg.InputError, match="of a dict: expected a fit"):
            plot({})


def test_a_fixed_quantity_has_no_prior_to_plot(with_prior):
    tree = with_prior.idata.copy()
    fixed = tree["posterior"].to_dataset()
    fixed["sampling_sd"] = 0 * fixed["sampling_sd"] + 0.1
    tree["posterior"] = xr.DataTree(fixed)
    with pytest.raises(bg.InputError, match=r"sampling_sd is fixed in .*, at 0\.1"):
        bg.plot_prior_posterior(replace(with_prior, idata=tree), "sampling_sd")


def test_prior_predictive_of_a_fit_and_of_its_draws_is_the_same_picture(with_prior):
    drawn = bg.prior_predictive(with_prior.run, "exponential")
    for source in (with_prior, drawn):
        ax = bg.plot_prior_predictive(source)
        median = labelled(ax, "logs from the prior").get_ydata()
        rewards = drawn["prior_predictive"]["reward"].to_numpy()[0]
        np.testing.assert_allclose(median, np.median(rewards, axis=0))
        np.testing.assert_allclose(
            labelled(ax, "logged reward").get_ydata(), with_prior.run.table["reward"]
        )
        assert "before the fit" in texts(ax) and "gsm8k_like: exponential" in texts(ax)


def test_comparison_shows_differences_errors_and_weights(comparison):
    ax = bg.plot_comparison(comparison)
    ax.figure.canvas.draw()
    np.testing.assert_allclose(labelled(ax, "difference").get_xdata(), [0, -1.2, -30])
    two, one = (c for c in ax.collections if "standard error" in str(c.get_label()))
    np.testing.assert_allclose(two.get_segments()[1][:, 0], [-3.4, 1.0])
    np.testing.assert_allclose(one.get_segments()[2][:, 0], [-38, -22])
    assert {"weight", "0.60", "0.39", "0.01"} <= {text.get_text() for text in ax.texts}
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names[:2] == ["exponential", "$oscillator"]
    assert names[2].endswith("did not converge") and "…" in names[2]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the best on top
    assert "clearly better than $oscillator (by 1.2 ± 1.1)" in texts(ax)
    assert "exponential is not" in texts(ax)


def test_comparison_of_a_stack_and_of_one_model(small_fit):
    stack = bg.stack([small_fit], start=190)
    ax = bg.plot_comparison(stack)
    assert "gsm8k_like: 1 model" in texts(ax)
    assert "10 rows from step 191 on" in texts(ax)
    with pytest.raises(bg.InputError, match="of a Stack: expected a fit"):
        bg.plot_residuals(stack)


KINDS = (
    *("forecast", "curve", "density", "z", "pit", "autocorrelation"),
    *("plateau", "temperature", "prior", "comparison"),
)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    plot=st.sampled_from(KINDS),
    own=st.booleans(),
    horizon=st.sampled_from([None, 201, 260, 2000]),
    size=st.tuples(st.floats(2, 14), st.floats(2, 9)),
    columns=st.integers(1, 2),
)
def test_any_arguments(small_fit, with_prior, comparison, plot, own, horizon, size, columns):
    ax = plt.subplots(1, columns, figsize=size, squeeze=False)[1][0, -1] if own else None
    if plot == "forecast":
        drawn = bg.plot_forecast(small_fit, ax=ax, horizon=horizon)
    elif plot in ("z", "pit", "autocorrelation"):
        drawn = bg.plot_residuals(small_fit, ax, kind=plot)
    elif plot in ("plateau", "temperature"):
        drawn = bg.plot_prior_posterior(with_prior, plot, ax)
    elif plot == "prior":
        drawn = bg.plot_prior_predictive(with_prior, ax)
    elif plot == "comparison":
        drawn = bg.plot_comparison(comparison, ax)
    else:
        drawn = bg.plot_ppc(small_fit, ax, kind=plot)
    assert isinstance(drawn, mpl.axes.Axes)
    assert ax is None or drawn is ax
    drawn.figure.canvas.draw()
    assert np.isfinite([*drawn.get_xlim(), *drawn.get_ylim()]).all()
    plt.close("all")
