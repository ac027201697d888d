"""A variant in five minutes, as the README has it: copy, change a prior, add a ceiling, compare."""

import re
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import bayes_grpo as bg
from bayes_grpo.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALL = ("--chains", "2", "--draws", "400", "--tune", "400", "--quiet")


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """The file that the README's lines make of the copy."""
    (lines,) = re.findall(r"^```toml\n(.*?)^```", README, flags=re.DOTALL | re.M)
    shown = CliRunner().invoke(main, ["models", "exponential"])
    text = shown.output
    for line in lines.splitlines():
        name = line.split(" = ")[0]
        text, count = re.subn(rf"^{name} = .*$", lambda _, line=line: line, text, flags=re.M)
        assert count == 1, name
    path = tmp_path_factory.mktemp("own") / "mine.toml"
    # The one thing that the README says to take out.
    path.write_text("\n".join(x for x in text.splitlines() if not x.startswith("drift_sd")) + "\n")
    return path


# Few draws are enough to see a bound.
@pytest.mark.filterwarnings("ignore::bayes_grpo.convergence.ConvergenceWarning")
def test_the_ceiling_holds_and_the_prior_is_the_new_one(mine):
    run = bg.load_example()
    fit = bg.fit(run, mine, chains=2, draws=400, tune=400, progress=False)
    assert fit.idata["posterior"]["plateau"].max() <= 0.9
    assert "drift_sd" not in fit.idata["posterior"]
    assert fit.model.priors["relaxation_time"].arguments["median"] == 0.1
    assert fit.name == "mine"


def test_it_is_compared_from_the_terminal(mine, tmp_path):
    log, out = str(ROOT / "data" / "gsm8k_like.json"), tmp_path / "out"
    models = f"exponential,{mine}"
    command = ["compare", log, "--models", models, *SMALL, "--out", str(out)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code in (0, 3), done.output
    assert {p.name for p in out.iterdir()} == {"comparison.csv", "forecast.csv", "forecast.png"}
    table = pd.read_csv(out / "comparison.csv", index_col="model")
    assert set(table.index) == {"exponential", "mine"}
    assert table["weight"].sum() == pytest.approx(1)


def test_a_line_left_in_is_named(mine, tmp_path):
    path = tmp_path / "left.toml"
    path.write_text(mine.read_text() + 'drift_sd = { distribution = "HalfNormal", sd = 1.0 }\n')
    done = CliRunner().invoke(main, ["compare", "nowhere.csv", "--models", f"exponential,{path}"])
    assert done.exit_code == 2
    assert "drift_sd" in done.stderr and str(path) in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
