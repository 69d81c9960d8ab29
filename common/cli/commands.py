"""The commands that do not train: explain, evaluate, test, mutants and the measurements of `benchmarks`."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...algorithms import SCHEMES
from ..data.named import quiet
from ..errors import UserError, positive
from ..record.latest import named
from ..spec import nearest
from ..tasks.follow import follow
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
    """Explain an algorithm of the catalogue or of the imported `files`; return the exit code."""
    parser = Parser("run.sh explain", "Equations, origin, departures, limits and hyperparameters of an algorithm.")
    parser.add_argument("algorithm", help=", ".join(SCHEMES))
    name = parser.values(arguments).algorithm
    if name not in SCHEMES:
        raise UserError(f"unknown algorithm {name!r}. {nearest(name, SCHEMES)}")
    explain(SCHEMES[name], [file for file in files if is_of(SCHEMES[name], file)])
    return 0


def use_tensorflow_here() -> None:
    """Select Keras' TensorFlow back end and silence TensorFlow's log, for commands that build a model here."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def import_tensorflow() -> None:
    """Import Keras and TensorFlow silently, for commands that train here: their messages would disturb the output."""
    use_tensorflow_here()
    with quiet():  # imported here and not on first use, because they print when they are imported
        import keras  # noqa: F401
        import tensorflow  # noqa: F401


def evaluate(arguments: list[str]) -> int:
    """Evaluate the checkpoints of a run as they appear; return the exit code."""
    about = "Measure the checkpoints of a run as they appear."
    parser = Parser("run.sh evaluate", about, usage="run.sh evaluate run_dir [options]")
    parser.add_argument(
        "run_dir", type=flags.plain(Path), help="run directory of the chief, or latest; the run may be in progress"
    )
    parser.add_argument(
        "--wait-seconds",
        type=flags.plain(float),
        default=600.0,
        metavar="X",
        help="seconds to wait for the next checkpoint (default: 600)",
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
        print(f"{run_dir} does not exist yet; waits up to {options.wait_seconds:g} s for it", file=sys.stderr)  # noqa: T201
    follow(run_dir, options.wait_seconds, show, warn)
    return 0


def test(arguments: list[str]) -> int:
    """Run the test suite of the checkout; return its exit code."""
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
    """Return the command of a module of `benchmarks`."""
    return lambda arguments: importlib.import_module(f"...benchmarks.{module}", __package__).main(arguments)
