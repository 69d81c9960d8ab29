"""The commands beside those that train: explain, evaluate, what a checkout has besides, and measurements."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...algorithms import SCHEMES
from ..errors import UserError, positive
from ..problems.data import quiet
from ..record.latest import named
from ..run.follow import follow
from ..spec import nearest
from . import flags
from .explain import explain
from .flags import Parser
from .imports import is_of

MEASUREMENTS = {
    "benchmark": "convergence",
    "throughput": "throughput",
    "large": "large",
    "collisions": "collisions",
    "stragglers": "stragglers",
    "validate-simulation": "validation",
    "claims": "claims",
    "soak": "soak",
    "endurance": "endurance",
}  # command: module


def explanation(files: Sequence[Path], arguments: list[str]) -> int:
    """What an algorithm does; `files` were imported."""
    parser = Parser("run.sh explain", "Equations, origin, departures, limits and hyperparameters of an algorithm.")
    parser.add_argument("algorithm", help=", ".join(SCHEMES))
    name = parser.values(arguments).algorithm
    if name not in SCHEMES:
        raise UserError(f"unknown algorithm {name!r}. {nearest(name, SCHEMES)}")
    explain(SCHEMES[name], [file for file in files if is_of(SCHEMES[name], file)])
    return 0


def use_tensorflow_here() -> None:
    """For commands that build a model in this process: Keras on TensorFlow, which keeps to itself."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def import_tensorflow() -> None:
    """The same, and imports them, for commands that train in this process: what they print then is no progress."""
    use_tensorflow_here()
    with quiet():  # no lazy import: what they print comes at the import itself
        import keras  # noqa: F401
        import tensorflow  # noqa: F401


def evaluate(arguments: list[str]) -> int:
    """Follow a run by its checkpoints."""
    about = "Measure the checkpoints of a run as they appear."
    parser = Parser("run.sh evaluate", about, usage="run.sh evaluate run_dir [options]")
    parser.add_argument(
        "run_dir", type=flags.plain(Path), help="of the chief, or latest; it may be under way, or ended"
    )
    parser.add_argument(
        "--wait-seconds",
        type=flags.plain(float),
        default=600.0,
        metavar="X",
        help="for the next checkpoint (default: 600)",
    )
    options = parser.values(arguments)
    positive(wait_seconds=options.wait_seconds)

    run_dir = named(options.run_dir)
    import_tensorflow()

    def show(line: dict[str, Any]) -> None:
        print("  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items()), flush=True)  # noqa: T201

    def warn(message: str) -> None:
        print(f"warning: {message}", file=sys.stderr, flush=True)  # noqa: T201

    if run_dir.is_file():
        raise UserError(f"{run_dir} is a file: give the run directory")
    if not run_dir.is_dir():
        print(f"{run_dir} is not there yet; waits up to {options.wait_seconds:g} s for it", file=sys.stderr)  # noqa: T201
    follow(run_dir, options.wait_seconds, show, warn)
    return 0


def test(arguments: list[str]) -> int:
    """The test suite of the checkout."""
    return subprocess.call([sys.executable, "-m", "pytest", *arguments], cwd=_checkout())


def mutants(arguments: list[str]) -> int:
    """Make one fault at a time in a copy of the checkout, and check that a test fails."""
    return subprocess.call([sys.executable, str(_checkout() / "tests" / "mutants.py"), *arguments])


def _checkout() -> Path:
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / "tests").is_dir():
        raise UserError("the tests are part of the source checkout, which this installation is not")
    return root


def measurement(module: str) -> Callable[[list[str]], int]:
    """The command of a module of `benchmarks`."""
    return lambda arguments: importlib.import_module(f"...benchmarks.{module}", __package__).main(arguments)
