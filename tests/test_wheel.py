"""The wheel of this checkout, in fresh environments: with the dependencies of this one, and without TensorFlow."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.rotating

ROOT = Path(__file__).resolve().parent.parent
LIGHT = ("numpy", "rich", "cloudpickle", "argcomplete")  # all that the commands without TensorFlow need


def succeeds(*command, cwd=ROOT):
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fresh(python, folder):
    """Create an environment; return the folder of its programs."""
    succeeds(python, "-m", "venv", folder)
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy of the source: setuptools leaves files there."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("algorithms", "benchmarks", "common", "simulator"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    programs = fresh(sys.executable, folder / "builder")
    succeeds(programs / "pip", "wheel", "--no-deps", "--wheel-dir", folder, folder / "source")
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_trains_and_replays_without_the_checkout(wheel, tmp_path):
    """It is all that is installed there: a .pth file adds the dependencies of this environment."""
    programs = fresh(sys.executable, tmp_path / "fresh")
    succeeds(programs / "pip", "install", "--no-deps", wheel)
    packages = sysconfig.get_path("purelib", vars={"base": str(tmp_path / "fresh")})
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    where = succeeds(programs / "python", "-c", "import distsgd; print(distsgd.__file__)", cwd=tmp_path)
    assert where.startswith(packages)
    explained = succeeds(programs / "distsgd", "explain", "downpour", cwd=tmp_path)
    assert explained.endswith("To run it: distsgd downpour\n")
    succeeds(programs / "distsgd", "downpour", "--epochs", "1", "--run-dir", "run", cwd=tmp_path)
    replayed = succeeds(programs / "distsgd", "replay", "run", cwd=tmp_path)
    assert "the run did what the paper's equations say" in replayed


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_works_without_tensorflow(version, wheel, tmp_path):
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"Python {version} is not installed")
    programs = fresh(python, tmp_path / "fresh")
    succeeds(programs / "pip", "install", *LIGHT)
    succeeds(programs / "pip", "install", "--no-deps", wheel)
    assert "To run it" in succeeds(programs / "distsgd", "explain", "agn")
    assert "Take sync_sgd" in succeeds(programs / "distsgd", "advise", "--workers", "4")
    code = "from distsgd import DiLoCo, Platform, forecast; forecast(DiLoCo(), Platform(), workers=4, parameters=1000)"
    succeeds(programs / "python", "-c", code, cwd=tmp_path)
    absent = subprocess.run([programs / "distsgd", "downpour"], capture_output=True, text=True, cwd=tmp_path)
    assert absent.returncode == 2
    assert absent.stderr.startswith("error: not installed in this environment: tensorflow, keras.")
