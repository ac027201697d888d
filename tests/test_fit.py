"""A whole fit: is the posterior right, is it reproducible, does it survive the disk."""

import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import bayes_grpo as bg
from bayes_grpo.model import bind
from bayes_grpo.precision import float64
from bayes_grpo.results import SUMMARY
from bayes_grpo.statespace import log_likelihood

SMALL = {"chains": 2, "draws": 250, "tune": 250, "progress": False}
GROUPS = (
    "posterior",
    "smoothed",
    "posterior_predictive",
    "log_likelihood",
    "log_prior",
    "sample_stats",
    "observed_data",
    "constant_data",
)


def saturating_rewards(rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    curve = 0.7 - 0.5 * np.exp(-np.arange(rows) / 20)
    return curve + 0.05 * rng.standard_normal(rows)


def table(rewards: np.ndarray, spacing: int = 1) -> pd.DataFrame:
    return pd.DataFrame({"step": spacing * np.arange(1, len(rewards) + 1), "reward": rewards})


def quick_fit(run: bg.Run, model: str = "oscillator", **changes) -> bg.Fit:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bg.ConvergenceWarning)
        return bg.fit(run, model, **{**SMALL, **changes})


@pytest.fixture(scope="module")
def run() -> bg.Run:
    return bg.Run.from_table(table(saturating_rewards(60)), name="curve", max_steps=100)


@pytest.fixture(scope="module")
def fitted(run) -> bg.Fit:
    return quick_fit(run)


def test_public_function_and_module_of_one_name_coexist():
    import bayes_grpo.fit as by_path

    assert callable(bg.fit)
    assert bg.fit is by_path


def test_summary_has_every_quantity_with_its_columns(fitted):
    summary = fitted.summary()
    own = {"plateau", "reward_now", "curvature", "temperature", *fitted.model.priors}
    assert list(summary.index) == [name for name in SUMMARY if name in own]
    assert list(summary.columns) == ["mean", "sd", "5%", "50%", "95%", "ess", "r_hat", "unit"]
    assert np.isfinite(summary.drop(columns="unit").to_numpy(dtype=float)).all()
    assert (summary["5%"] < summary["50%"]).all()
    assert (summary["50%"] < summary["95%"]).all()


def test_the_data_tree_has_named_groups_and_dimensions(fitted, run):
    tree = fitted.idata
    assert set(GROUPS) <= set(tree.children)
    for group in ("smoothed", "posterior_predictive", "log_likelihood"):
        assert tree[group]["reward"].dims == ("chain", "draw", "step")
    assert tree["observed_data"]["reward"].to_numpy() == pytest.approx(run.table["reward"])
    assert all(v.dtype != np.float32 for g in GROUPS for v in tree[g].to_dataset().values())
    for attribute in ("versions", "seed", "model_file", "settings", "sampling"):
        assert attribute in tree.attrs


def test_posterior_agrees_with_importance_sampling_from_the_prior(run):
    """NUTS with integrated levels against brute force: same posterior, no sampler in common."""
    fit = quick_fit(run, "exponential", draws=1000, tune=500)
    with float64():
        program, _, data = bind(fit.model, run, fit.horizon)
        keys = jax.random.split(jax.random.key(1), len(program.sampled))
        prior = {
            name: fit.model.priors[name].in_unit().sample(key, (60_000,))
            for name, key in zip(program.sampled, keys, strict=True)
        }

        def density(draw):
            params = program.params(draw, data)
            return log_likelihood(program.system, params, data.ticks, windowed=False)

        log_weight = np.asarray(jax.jit(jax.vmap(density))(prior))
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    effective = 1 / np.sum(weight**2)
    assert effective > 300
    for name in program.sampled:
        reference = np.log(np.asarray(prior[name]))
        mean = weight @ reference
        sd = np.sqrt(weight @ (reference - mean) ** 2)
        draws = np.log(fit.idata["prior_units"][name].to_numpy().ravel())
        assert draws.mean() == pytest.approx(mean, abs=5 * sd / np.sqrt(effective))
        assert draws.std() == pytest.approx(sd, rel=0.25)


def test_log_likelihood_rows_add_up_to_the_marginal_likelihood(fitted):
    with float64():
        program, _, data = bind(fitted.model, fitted.run, fitted.horizon)
        draw = {n: jnp.asarray(v[1, 7].item()) for n, v in fitted.idata["prior_units"].items()}
        total = log_likelihood(
            program.system, program.params(draw, data), data.ticks, windowed=program.windowed
        )
    rows = fitted.idata["log_likelihood"]["reward"][1, 7].to_numpy()
    assert rows.sum() == pytest.approx(float(total), rel=1e-10)


def test_shifted_and_scaled_rewards_shift_and_scale_the_posterior(run, fitted):
    moved = bg.Run.from_table(table(-40 + 13 * saturating_rewards(60)), name="moved", max_steps=100)
    there = quick_fit(moved).idata["posterior"]
    here = fitted.idata["posterior"]
    # Exact in exact arithmetic; NUTS amplifies rounding, so distributions are compared.
    for name, shift, scale in (("plateau", -40, 13), ("sampling_sd", 0, 13), ("drift_sd", 0, 13)):
        a = shift + scale * here[name].to_numpy()
        b = there[name].to_numpy()
        assert np.median(b) == pytest.approx(np.median(a), abs=0.25 * a.std())
    assert np.median(there["relaxation_time"]) == pytest.approx(
        np.median(here["relaxation_time"]), rel=0.2
    )


def test_time_is_counted_in_updates_not_rows(run, fitted):
    slow = bg.Run.from_table(
        table(saturating_rewards(60), spacing=5), name="slow", max_steps=500, row_average="single"
    )
    ratio = np.median(quick_fit(slow).idata["posterior"]["relaxation_time"]) / np.median(
        fitted.idata["posterior"]["relaxation_time"]
    )
    assert ratio == pytest.approx(5, rel=0.25)


def test_same_seed_same_posterior_other_seed_another(run, fitted):
    again = quick_fit(run)
    other = quick_fit(run, seed=1)
    plateau = fitted.idata["posterior"]["plateau"].to_numpy()
    assert np.array_equal(again.idata["posterior"]["plateau"].to_numpy(), plateau)
    assert not np.array_equal(other.idata["posterior"]["plateau"].to_numpy(), plateau)


def test_saved_and_loaded_fit_is_the_same(fitted, tmp_path):
    path = fitted.save(tmp_path / "deep" / "fit.nc")
    loaded = bg.load_fit(path)
    assert [p.name for p in path.parent.iterdir()] == ["fit.nc"]
    pd.testing.assert_frame_equal(loaded.summary(), fitted.summary())
    pd.testing.assert_frame_equal(loaded.forecast(), fitted.forecast())
    pd.testing.assert_frame_equal(loaded.run.table, fitted.run.table)
    assert loaded.run.settings == fitted.run.settings
    assert loaded.model == fitted.model
    assert loaded.notes == fitted.notes


def test_a_file_that_is_no_fit_is_refused(tmp_path):
    broken = tmp_path / "fit.nc"
    broken.write_text("not a fit")
    for path in (broken, tmp_path / "missing.nc"):
        with pytest.raises(bg.InputError, match=str(path)):
            bg.load_fit(path)


def test_forecast_columns_bands_and_kinds(fitted):
    observed = fitted.forecast()
    mean = fitted.forecast(kind="mean")
    assert list(observed.columns) == ["step", "mean", "sd", "q05", "q25", "q50", "q75", "q95"]
    assert observed["step"].iloc[0] == 61
    assert observed["step"].iloc[-1] == 100
    bands = observed[["q05", "q25", "q50", "q75", "q95"]].to_numpy()
    assert (np.diff(bands, axis=1) > 0).all()
    noise = fitted.summary().loc["sampling_sd", "mean"]
    assert observed["sd"].to_numpy() ** 2 == pytest.approx(
        mean["sd"].to_numpy() ** 2 + noise**2, rel=0.35
    )
    assert list(fitted.forecast([70, 90], quantiles=[0.025, 0.5]).columns)[3:] == ["q02.5", "q50"]
    assert list(fitted.forecast(3)["step"]) == [61, 62, 63]


@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": [60]},
        {"steps": [80, 70]},
        {"steps": []},
        {"steps": 0},
        {"steps": [70.5]},
        {"kind": "median"},
        {"quantiles": [1.5]},
    ],
)
def test_impossible_forecasts_are_refused(fitted, arguments):
    with pytest.raises(bg.InputError):
        fitted.forecast(**arguments)


def test_everything_on_the_reward_scale_respects_declared_bounds():
    rewards = np.clip(saturating_rewards(60) + 0.28, 0, 1)
    bounded = bg.Run.from_table(table(rewards), name="bounded", reward_bounds=(0, 1))
    fit = quick_fit(bounded)
    tree = fit.idata
    for rewards in (
        *fit.forecast_draws(np.arange(61, 80)),
        tree["posterior"]["plateau"],
        tree["smoothed"]["reward"],
        tree["posterior_predictive"]["reward"],
    ):
        assert rewards.min() >= 0
        assert rewards.max() <= 1
    assert (tree["posterior_predictive"]["reward"] == 1).any()


def test_unknown_horizons_and_numbers_are_refused(run):
    for arguments in ({"horizon": 10}, {"draws": 0}, {"chains": 0}, {"target_accept": 1.0}):
        with pytest.raises(bg.InputError):
            bg.fit(run, progress=False, **arguments)


def test_a_fit_that_did_not_converge_says_so_everywhere(run):
    with pytest.warns(bg.ConvergenceWarning, match="claim nothing"):
        fit = bg.fit(run, chains=2, draws=10, tune=10, progress=False)
    assert not fit.convergence.converged
    assert "DID NOT CONVERGE" in repr(fit)
    assert "DID NOT CONVERGE" in fit.summary().attrs["convergence"]
    assert "DID NOT CONVERGE" in fit._repr_html_()


def test_a_filtered_reward_is_a_caution_that_every_fit_repeats(run):
    from bayes_grpo.export import as_numbers, forecast_table
    from bayes_grpo.outlook import in_words

    filtered = bg.Run.from_table(run.table, "curve", max_steps=100, reward_filtered=True)
    with pytest.warns(bg.CautionWarning, match="filtered batch .*its plateau says nothing"):
        fit = quick_fit(filtered, draws=20, tune=20)
    assert fit.notes[0].startswith("caution: the reward is the mean of a filtered batch")
    assert "caution" in repr(fit)
    assert "Caution: the reward is the mean of a filtered batch" in in_words(fit)
    assert len(as_numbers(fit, forecast_table(fit))["cautions"]) == 1
    assert not any("caution" in note for note in quick_fit(run, draws=20, tune=20).notes)


def test_a_prior_that_is_not_normal_is_sampled_and_obeyed(run, tmp_path):
    """A ceiling on the plateau, written as a user would: copy the file, change one line."""
    text = bg.load_model("oscillator").text
    line = next(part for part in text.splitlines() if part.startswith("plateau"))
    ceiling = 'plateau = { distribution = "Uniform", low = 0.0, high = 0.6 }'
    path = tmp_path / "ceiling.toml"
    path.write_text(text.replace(line, ceiling))
    fit = quick_fit(run, str(path), draws=400)
    assert "plateau" in fit.idata["prior_units"]
    assert fit.idata["posterior"]["initial_plateau"].max() <= 0.6
    assert fit.model.name == "ceiling"


def test_settings_of_jax_are_left_alone_and_do_not_matter(tmp_path):
    """The same posterior in a process of float32 and in one of float64, which stay as they are."""
    script = """
import sys, jax, numpy as np, pandas as pd
jax.config.update("jax_enable_x64", sys.argv[1] == "x64")
import bayes_grpo as bg
y = 0.7 - 0.5 * np.exp(-np.arange(40) / 20) + 0.05 * np.random.default_rng(0).standard_normal(40)
run = bg.Run.from_table(pd.DataFrame({"step": np.arange(1, 41), "reward": y}))
fit = bg.fit(run, "exponential", chains=1, draws=40, tune=60, progress=False)
assert jax.config.jax_enable_x64 is (sys.argv[1] == "x64")
assert jax.numpy.zeros(1).dtype == ("float64" if sys.argv[1] == "x64" else "float32")
print(repr(fit.idata["posterior"]["plateau"].to_numpy().sum()))
"""
    printed = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", script, precision],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for precision in ("x32", "x64")
    ]
    assert printed[0] == printed[1]


def test_prior_on_request_is_the_prior_of_the_model_file(fitted, run):
    with_prior = fitted.with_prior(4000)
    prior = with_prior.idata["prior"]
    scale = run.table["reward"].std(ddof=0)
    centre = run.table["reward"].median()
    start = prior["initial_reward"].to_numpy()
    assert start.mean() == pytest.approx(centre, abs=0.2 * scale)
    assert start.std() == pytest.approx(2 * scale, rel=0.05)
    ratio = np.log(prior["sampling_sd"].to_numpy() / scale)
    assert np.median(ratio) == pytest.approx(np.log(0.7), abs=0.06)
    assert with_prior.idata["prior_predictive"]["reward"].shape == (1, 4000, len(run))
    assert "prior" not in fitted.idata.children
