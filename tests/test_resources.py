"""The folders and examples that ship with the package."""

import subprocess
import sys

import numpy as np
import pytest

import bayes_grpo as bg
from bayes_grpo import resources
from bayes_grpo.errors import BayesGrpoError


def test_bundled_folders_are_there():
    assert (resources.models_dir() / "README.md").is_file()
    assert (resources.data_dir() / "gsm8k_like.json").is_file()


def test_installed_wheel_carries_the_folders_beside_its_code(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "bayes_grpo"
    (package / "_models").mkdir(parents=True)
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert resources.models_dir() == package / "_models"
    with pytest.raises(BayesGrpoError, match="install bayes-grpo again"):
        resources.data_dir()


def test_gsm8k_like_is_what_the_readme_says():
    run = bg.load_example("gsm8k_like")
    assert len(run) == 200
    assert run.settings.max_steps == 300
    assert run.settings["max_steps"].provenance == "read"
    assert run.settings.group_size == 8
    assert run.settings.learning_rate == pytest.approx(1e-6)
    table = run.table
    # Real rollouts: the reward is k / 64, the fraction of dead groups k / 8.
    for column, unit in (("reward", 64), ("zero_std_fraction", 8)):
        scaled = table[column] * unit
        assert np.allclose(scaled, scaled.round())
    assert table["reward"].head(20).mean() < 0.3
    assert 0.5 < table["reward"].tail(20).mean() < 0.8
    assert table["learning_rate"].iloc[0] == 0  # warm-up begins at 0
    assert (table["updates"] == 1).all()
    assert (table["generations"] == 1).all()


def test_plain_table_overshoots_its_plateau():
    run = bg.load_example("plain_table", group_size=4)
    assert run.settings.group_size == 4
    smooth = run.table["reward"].rolling(10).mean()
    assert smooth.max() > 0.65
    assert smooth.tail(50).mean() == pytest.approx(0.55, abs=0.08)


def test_unknown_example_lists_the_names():
    with pytest.raises(bg.InputError, match=r"did you mean 'gsm8k_like'\? Examples are: .*plain"):
        bg.load_example("gsm8k")


def test_import_is_light():
    code = (
        "import sys, bayes_grpo; bayes_grpo.__version__; "
        "heavy = {'jax', 'numpyro', 'arviz', 'pandas', 'matplotlib'} & set(sys.modules); "
        "assert not heavy, heavy; "
        "bayes_grpo.Run; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_resolve():
    for name in bg.__all__:
        assert getattr(bg, name) is not None
    assert set(bg.__all__) <= set(dir(bg))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = bg.nonsense
