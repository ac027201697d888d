"""The command line: exit statuses, one line for bad input, whole files or none, valid JSON."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner

import bayes_grpo as bg
from bayes_grpo import commands
from bayes_grpo.cli import main
from bayes_grpo.compilation import keep_compiled
from bayes_grpo.resources import data_dir, models_dir

LOG = str(data_dir() / "gsm8k_like.json")
GOOD = "step,reward\n1,0.1\n2,0.3\n3,0.2\n4,0.4\n"
FILES = {"fit.nc", "summary.csv", "forecast.csv", "forecast.png"}
# As the shared fit, so that its compiled programs are used again.
SMALL = ("--model", "exponential", "--draws", "500", "--tune", "400")


def run(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture(autouse=True)
def no_cache_on_disk(monkeypatch):
    monkeypatch.setattr(commands, "keep_compiled", lambda: None)


@pytest.fixture
def quick(monkeypatch, small_fit):
    """Commands that find the shared fit instead of sampling."""
    monkeypatch.setattr(commands, "fit", lambda run, model, **sampling: small_fit)
    return small_fit


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def write(path, text):
    path.write_text(text)
    return path


def one_line(result, *parts):
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("bayes-grpo: ")
    for part in parts:
        assert part in lines[0]


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "the file is empty"),
        ('{"log_history": [', "broken JSON"),
        ('{"a": 1}', "no column 'reward'"),
        ("step,loss\n1,0.1\n2,0.2\n", "no column 'reward'"),
        ("step,reward\n1,nan\n2,nan\n", "reward"),
        ("step,reward\n1,0.5\n", "reward"),
        ("step,reward\n1,0.5\n2,0.5\n3,0.5\n", "reward"),
        ("step,reward\n" + "1,0.1\n2,0.2\n1,0.3\n" * 9, "the step runs back"),
    ],
)
def test_bad_log(tmp_path, out, content, says):
    path = write(tmp_path / "log.txt", content)
    one_line(run("fit", path, "--out", out), str(path), says)
    one_line(run("forecast", path), str(path), says)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--group-size", 0], "group_size is 0"),
        (["--group-size", "many"], "--group-size"),
        (["--momentum", 1.5], "momentum is 1.5"),
        (["--learning-rate", -1], "learning_rate is -1"),
        (["--refresh-interval", 0], "refresh_interval is 0"),
        (["--reward-bounds", 1, 0], "reward_bounds"),
        (["--reward-bounds", 0, 0.5], "outside the reward_bounds"),
        (["--max-steps", 10], "max_steps is 10"),
        (["--horizon", 10], "horizon is 10"),
        (["--row-average", "sum"], "--row-average"),
        (["--draws", 1], "--draws"),
        (["--chains", 0], "--chains"),
        (["--groupsize", 8], "--groupsize"),
        (["--model", "osscillator"], "no model is called 'osscillator'"),
    ],
)
def test_bad_option(out, options, says):
    one_line(run("fit", LOG, "--out", out, *options), says)
    assert not out.exists()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"exponential"', '"exponentail"', "unknown trajectory 'exponentail'"),
        ('["process", "drift"]', '["process", "dritf"]', "unknown fluctuation 'dritf'"),
        ("relaxation_time =", "relaxation_tme =", "relaxation_tme"),
        ("LogNormal", "LogNormale", "LogNormale"),
        ("measurement =", "measurment =", "measurment"),
        ("[priors]", "[priors", "not valid TOML"),
    ],
)
def test_bad_model_file(tmp_path, out, old, new, says):
    text = (models_dir() / "exponential.toml").read_text()
    path = write(tmp_path / "mine.toml", text.replace(old, new))
    one_line(run("fit", LOG, "--model", path, "--out", out), str(path), says)
    assert not out.exists()


def test_places_that_cannot_be_written(tmp_path, quick):
    file = write(tmp_path / "file", "")
    one_line(run("fit", LOG, "--out", file), str(file))
    one_line(run("fit", LOG, "--out", file / "below"), str(file))
    one_line(run("forecast", LOG, "--out", tmp_path / "a.pdf"), "a.pdf", ".csv or .png")
    one_line(run("forecast", LOG, "--out", file / "a.csv"), str(file))


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission(tmp_path, quick):
    tmp_path.chmod(0o500)
    one_line(run("fit", LOG, "--out", tmp_path / "out"), str(tmp_path))


def test_unknown_command_and_missing_log():
    one_line(run("fti"), "fti")
    one_line(run("fit"), "LOG")


# --- what is written ----------------------------------------------------------------------------


def test_fit_writes_everything(out):
    result = run("fit", LOG, *SMALL, "--group-size", 8, "--prompts-per-step", 8, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert {path.name for path in out.iterdir()} == FILES
    for expected in ("plateau", "90 % interval", "defaults", "The reward is", "converged (r_hat"):
        assert expected in result.stdout
    loaded = bg.load_fit(out / "fit.nc")
    summary = pd.read_csv(out / "summary.csv", index_col=0)
    assert summary["converged"].all()
    assert summary.loc["plateau", "50%"] == pytest.approx(loaded.summary().loc["plateau", "50%"])
    forecast = pd.read_csv(out / "forecast.csv")
    assert forecast["step"].iloc[[0, -1]].tolist() == [201, 300]
    assert (forecast["q05"] < forecast["mean_q05"]).all()
    assert (out / "forecast.png").read_bytes().startswith(b"\x89PNG")

    # The saved fit answers as the log does, and refuses what can no longer be changed.
    result = run("forecast", out / "fit.nc", "--horizon", 320, "--kind", "mean")
    assert result.exit_code == 0, result.output
    assert "320" in result.stdout
    one_line(run("forecast", out / "fit.nc", "--group-size", 4), "--group-size")
    one_line(run("forecast", out / "fit.nc", "--horizon", 100), "horizon is 100")
    one_line(run("fit", out / "fit.nc", "--out", out / "b"), "fit.nc", "binary")


def test_json_is_all_there_is_on_stdout(out, quick):
    result = run("fit", LOG, "--json", "--out", out)
    content = json.loads(result.stdout, parse_constant=pytest.fail)
    (record,) = content["runs"]
    assert content["errors"] == []
    assert record["converged"] is True
    assert record["summary"]["plateau"]["unit"] == "reward"
    assert len(record["forecast"]["step"]) == len(record["forecast"]["mean_q50"]) == 100
    assert record["in_words"].startswith("The reward is")
    assert set(record["files"]) == FILES
    assert "plateau" in result.stderr
    quiet = run("fit", LOG, "--json", "--quiet", "--out", out)
    assert quiet.stderr == ""
    json.loads(quiet.stdout)

    result = run("forecast", LOG, "--json", "--out", out / "f.csv")
    assert json.loads(result.stdout)["kind"] == "observed"
    assert list(pd.read_csv(out / "f.csv"))[:3] == ["step", "mean", "sd"]
    assert run("forecast", LOG, "--out", out / "f.png", "--quiet").output == ""
    assert (out / "f.png").stat().st_size > 10_000
    assert "oscillator" in json.loads(run("models", "--json").stdout)


def test_json_with_errors(tmp_path, quick, out):
    result = run("fit", tmp_path / "nowhere", "--json", "--out", out)
    assert result.exit_code == 2
    content = json.loads(result.stdout)
    assert content["runs"] == []
    assert "nowhere" in content["errors"][0]


def test_no_convergence_is_status_3_and_marked(out):
    result = run("fit", LOG, "--model", "exponential", "--tune", 400, "--draws", 10, "--out", out)
    assert result.exit_code == 3, result.output
    assert "DID NOT CONVERGE" in result.stdout
    assert {path.name for path in out.iterdir()} == FILES
    for name in ("summary.csv", "forecast.csv"):
        assert not pd.read_csv(out / name)["converged"].any()
    assert (
        "DID NOT CONVERGE"
        in xr.open_datatree(out / "fit.nc", engine="h5netcdf").attrs["convergence"]
    )
    assert run("forecast", out / "fit.nc").exit_code == 3


@pytest.mark.parametrize(
    ("error", "status"), [(OSError(errno.ENOSPC, "No space left on device"), 2),
                          (KeyboardInterrupt(), 130)],
)  # fmt: skip
def test_an_interrupted_write_leaves_what_was_there(monkeypatch, out, quick, error, status):
    def cut_off(self, path, **options):
        Path(path).write_bytes(b"half")
        raise error

    out.mkdir()
    old = write(out / "fit.nc", "from before")
    monkeypatch.setattr(xr.DataTree, "to_netcdf", cut_off)
    result = run("fit", LOG, "--out", out)
    assert result.exit_code == status
    assert result.stderr.splitlines()[-1].startswith("bayes-grpo: ")
    assert old.read_text() == "from before"
    assert [path.name for path in out.iterdir()] == ["fit.nc"]


def test_ctrl_c_while_sampling(monkeypatch, out):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "fit", interrupt)
    result = run("fit", LOG, "--out", out)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "bayes-grpo: interrupted"
    assert not out.exists()


# --- several logs -------------------------------------------------------------------------------


def test_several_logs(tmp_path, quick, out):
    good = [write(tmp_path / name, GOOD) for name in ("a.csv", "b c.csv")]
    (tmp_path / "deep").mkdir()
    again = write(tmp_path / "deep" / "A.csv", GOOD)
    result = run("fit", *good, again, "--out", out)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == ["A-2", "a", "b_c"]
    assert all({p.name for p in folder.iterdir()} == FILES for folder in out.iterdir())
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["a", "b c", "A"]


def test_a_bad_log_among_several(tmp_path, quick, out):
    bad, good = write(tmp_path / "bad.csv", "step,reward\n"), write(tmp_path / "good.csv", GOOD)
    result = run("fit", bad, good, tmp_path / "nowhere", "--out", out)
    assert result.exit_code == 2
    first, second = result.stderr.splitlines()
    assert str(bad) in first
    assert "nowhere" in second
    assert [path.name for path in out.iterdir()] == ["good"]


def test_files_of_a_folder_that_are_no_logs_are_said(tmp_path, quick, out):
    write(tmp_path / "a.csv", GOOD)
    write(tmp_path / "notes.yaml", "lr: 1\n")
    result = run("fit", tmp_path, "--out", out)
    assert result.exit_code == 0
    assert "notes.yaml" in result.stderr
    assert {path.name for path in out.iterdir()} == FILES


# --- the rest -----------------------------------------------------------------------------------


def test_models():
    assert [line.split()[0] for line in run("models").stdout.splitlines()] == list(
        bg.available_models()
    )
    assert run("models", "exponential").stdout == (models_dir() / "exponential.toml").read_text()
    one_line(run("models", "exponentail"), "exponentail")


def test_help_is_light():
    code = (
        "import sys\n"
        "from bayes_grpo.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'jax', 'numpyro', 'arviz_stats', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for args in (["--help"], ["fit", "--help"], ["forecast", "-h"], ["--version"], []):
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_compiled_programs_are_kept(tmp_path):
    code = (
        "from bayes_grpo.compilation import keep_compiled\n"
        "import jax\n"
        "print(keep_compiled())\n"
        "jax.jit(lambda x: x + 1)(1.0)\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    env["XDG_CACHE_HOME"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert Path(done.stdout.strip()) == tmp_path / "bayes-grpo" / "jax", done.stderr
    assert any((tmp_path / "bayes-grpo" / "jax").iterdir())


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(write(tmp_path / "file", "")))
    assert keep_compiled() is None


def test_words_follow_the_posterior(small_fit):
    from bayes_grpo.outlook import count, in_words, number

    words = in_words(small_fit)
    median = np.median(small_fit.idata["posterior"]["plateau"])
    assert number(float(median)) in words
    assert "the learning rate runs out first" in words  # it falls to 0 at step 301
    assert [number(x) for x in (0, 0.75678, -12.345, 12345.6, 1.234e-6, 2e9, float("nan"))] == [
        "0", "0.757", "-12.3", "12,300", "1.23e-06", "2.00e+09", "nan",
    ]  # fmt: skip
    assert [count(x) for x in (0.2, 9.96, 84.4, 1234, 2.5e6)] == [
        "1", "10", "84", "1,200", "2,500,000",
    ]  # fmt: skip
