"""The README: its code runs as shown, its picture and names are there."""

import re
from pathlib import Path

import matplotlib as mpl
import pytest

import bayes_grpo as bg
from bayes_grpo.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_runs_as_shown(tmp_path, monkeypatch, capsys):
    mpl.use("Agg")
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    fit = bg.fit
    # The model whose compiled program other tests use too, with few draws.
    monkeypatch.setattr(
        bg,
        "fit",
        lambda run, model, seed: fit(
            run, "exponential", seed=seed, draws=500, tune=400, progress=False
        ),
    )
    exec(compile(block, "README.md", "exec"), {})
    assert "plateau" in capsys.readouterr().out
    assert bg.load_fit(tmp_path / "out" / "mine.nc").run.settings.group_size == 8
    mpl.pyplot.close("all")


def test_names_are_there():
    for model in bg.available_models():
        assert f"| `{model}` |" in README
    for path in re.findall(r"`((?:bayes_grpo|models|data|tests|benchmarks)/[\w/.]*)`", README):
        assert (ROOT / path).exists(), path
    options = {
        name for command in main.commands.values() for p in command.params for name in p.opts
    }
    for option in re.findall(r"(?<!-)--[a-z][a-z-]+", README):
        assert option in options, option


@pytest.mark.parametrize("picture", re.findall(r"!\[[^]]*\]\(([^)]+)\)", README))
def test_pictures_are_there_and_small(picture):
    assert 10_000 < (ROOT / picture).stat().st_size < 200_000
