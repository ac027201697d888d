"""Plots: they return the axes they were given, show what they draw, and take any valid argument."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
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


@pytest.mark.parametrize("plot", [bg.plot_forecast, bg.plot_ppc])
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


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    plot=st.sampled_from(["forecast", "curve", "density"]),
    own=st.booleans(),
    horizon=st.sampled_from([None, 201, 260, 2000]),
    size=st.tuples(st.floats(2, 14), st.floats(2, 9)),
    columns=st.integers(1, 2),
)
def test_any_arguments(small_fit, plot, own, horizon, size, columns):
    ax = plt.subplots(1, columns, figsize=size, squeeze=False)[1][0, -1] if own else None
    if plot == "forecast":
        drawn = bg.plot_forecast(small_fit, ax=ax, horizon=horizon)
    else:
        drawn = bg.plot_ppc(small_fit, ax, kind=plot)
    assert isinstance(drawn, mpl.axes.Axes)
    assert ax is None or drawn is ax
    drawn.figure.canvas.draw()
    assert np.isfinite([*drawn.get_xlim(), *drawn.get_ylim()]).all()
    plt.close("all")
