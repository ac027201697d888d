"""The built wheel, installed into an environment of its own, away from the checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Everything a user needs: the models and examples of the package itself, and a fit.
USE = """
import sys
from pathlib import Path
import bayes_grpo as bg
from bayes_grpo.resources import data_dir, models_dir

package = Path(bg.__file__).parent
assert package.is_relative_to(sys.argv[1]), package
assert models_dir() == package / "_models" and data_dir() == package / "_data"
assert {"closed_form", "exponential", "oscillator", "local_level"} <= set(bg.available_models())
run = bg.load_example("plain_table")
fit = bg.fit(run.head(40), "exponential", chains=1, tune=50, draws=50, progress=False)
assert fit.summary().loc["plateau", "sd"] > 0
print("used")
"""


def checked(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    checked(sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_carries_what_the_package_needs_and_no_more(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for folder, bundled in (("models", "_models"), ("data", "_data")):
        for file in (ROOT / folder).iterdir():
            if file.is_file():
                assert f"bayes_grpo/{bundled}/{file.name}" in names
    for module in (ROOT / "bayes_grpo").rglob("*.py"):
        assert str(module.relative_to(ROOT)) in names
    assert "bayes_grpo/py.typed" in names
    others = {name.split("/")[0] for name in names} - {"bayes_grpo"}
    assert all(name.endswith(".dist-info") for name in others), others


def test_wheel_works_where_it_is_installed(wheel, tmp_path):
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    site = Path(
        checked(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    checked(
        sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index",
        "--quiet", wheel,
    )  # fmt: skip
    # The dependencies are those of this environment. An editable copy of the package in it is not
    # seen: path files of a folder that is itself added by one are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    used = checked(python, "-W", "ignore", "-c", USE, home, cwd=tmp_path, env=env)
    assert used.strip() == "used"
    script = python.with_name("bayes-grpo")
    assert "oscillator" in checked(script, "models", cwd=tmp_path, env=env)
