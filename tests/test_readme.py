"""The README and the notebooks: their code runs as shown, pictures and names are there."""

import json
import re
import textwrap
from pathlib import Path

import click
import matplotlib as mpl
import pytest

import bayes_grpo as bg
from bayes_grpo.cli import main
from bayes_grpo.readers import trainers

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


# Indented blocks belong to a list: the trainer of one's own, which has a test of its own.
SHOWN = {
    "README.md": "\n".join(re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.M)),
    **{p.name: p.read_text(encoding="utf-8") for p in (ROOT / "notebooks").glob("*.py")},
}


@pytest.mark.parametrize("name", SHOWN)
def test_python_runs_as_shown(name, tmp_path, monkeypatch, capsys):
    mpl.use("Agg")
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
    exec(compile(SHOWN[name], name, "exec"), {})
    assert "plateau" in capsys.readouterr().out
    assert bg.load_fit(tmp_path / "out" / "mine.nc").run.settings.group_size == 8
    mpl.pyplot.close("all")


def test_a_trainer_of_ones_own_as_shown(tmp_path, monkeypatch):
    (code,) = re.findall(r"^  ```python\n(.*?)^  ```", README, flags=re.DOTALL | re.M)
    module: dict[str, object] = {}
    exec(compile(textwrap.dedent(code), "mytrainer.py", "exec"), module)
    known = (module["MYTRAINER"], *trainers.TRAINERS)
    monkeypatch.setattr(trainers, "TRAINERS", known)
    rows = [{"step": k, "sampler/score": k / 50, "val/math/score": 0.5} for k in range(1, 20)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "config.yaml").write_text("sampler: {n: 6}\nloss: {beta: 0.01}\n")
    run = bg.read_run(tmp_path / "log.jsonl")
    assert run.table["reward"].tolist() == [k / 50 for k in range(1, 20)]
    assert run.table["eval_reward"].tolist() == [0.5] * 19
    assert (run.settings.trainer, run.settings.group_size) == ("mytrainer", 6)
    assert (run.settings.kl_weight, run.settings.momentum) == (0.01, 0.95)


def _commands(group: click.Group) -> list[click.Command]:
    return [
        c
        for command in group.commands.values()
        for c in (_commands(command) if isinstance(command, click.Group) else [command])
    ]


def test_names_are_there():
    for model in bg.available_models():
        assert f"| `{model}` |" in README
    for path in re.findall(r"`((?:bayes_grpo|models|data|tests|benchmarks)/[\w/.]*)`", README):
        assert (ROOT / path).exists(), path
    options = {name for command in _commands(main) for p in command.params for name in p.opts}
    for option in re.findall(r"(?<!-)--[a-z][a-z-]+", README):
        assert option in options, option


@pytest.mark.parametrize("picture", re.findall(r"!\[[^]]*\]\(([^)]+)\)", README))
def test_pictures_are_there_and_small(picture):
    assert 10_000 < (ROOT / picture).stat().st_size < 200_000
