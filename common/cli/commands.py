"""The commands that do not train: evaluate, replay, timeline, test, mutants, docs and the measurements."""

from __future__ import annotations

import gzip
import importlib
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ...algorithms import SCHEMES
from ..arguments import nearest, not_negative, positive
from ..errors import UserError
from ..files import replacing
from ..lazy import require_tensorflow
from ..record.latest import named
from ..record.plot import check_format, save
from ..record.tables import aligned
from ..record_format import read_config
from ..replay.comparison import Verdict
from ..replay.replay import replay
from ..replay.scripted import with_later_joins
from ..tasks.follow import follow
from ..timeline.lanes import read_lanes
from ..timeline.picture import draw
from ..timeline.trace_export import write_trace
from . import flags
from .flags import Parser, plain
from .imports import import_tensorflow, use_tensorflow_here
from .own import check_files, problem_of_run

INSTEAD = "replay a shorter run, or one of a smaller model"  # of one that cannot be decided

VIEWERS = "Open it in Perfetto (https://ui.perfetto.dev; the file stays on your machine) or in chrome://tracing."

NEXT_SECONDS = 600.0  # limit of `evaluate` for the next checkpoint


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """The options of `evaluate`."""

    run_dir: Path
    """Run directory of the chief, or latest; the run may be in progress."""
    wait_seconds: float | None = None
    """Seconds to wait for the next checkpoint; the default is 600. If given, also for a folder that is missing."""
    model: str | None = None
    """The model, as file.py:function, if the run has it from a file."""
    data: str | None = None
    """The data, as file.py:function, if the run has them from a file."""


def evaluate(arguments: list[str]) -> int:
    """Evaluate the checkpoints of a run as they appear; return the exit code."""
    about = "Measure the checkpoints of a run as they appear."
    (options,) = flags.read("run.sh evaluate", about, arguments, {"options": Evaluate}, positional="run_dir")
    seconds = NEXT_SECONDS if options.wait_seconds is None else options.wait_seconds
    positive(wait_seconds=seconds)
    run_dir = named(options.run_dir)
    if run_dir.is_file():
        raise UserError(f"{run_dir} is a file: give the run directory")
    if options.wait_seconds is None and not run_dir.is_dir():
        siblings = [path.name for path in run_dir.parent.iterdir()] if run_dir.parent.is_dir() else []
        otherwise = "To wait until a run makes it, give --wait-seconds 600"
        raise UserError(f"there is no run directory {run_dir}. {nearest(run_dir.name, siblings, otherwise)}")
    check_files(options.model, options.data)
    import_tensorflow()

    def show(line: dict[str, Any]) -> None:
        print("  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items()), flush=True)  # noqa: T201

    def warn(message: str) -> None:
        print(f"warning: {message}", file=sys.stderr, flush=True)  # noqa: T201

    if not run_dir.is_dir():
        print(f"{run_dir} does not exist yet; waits up to {seconds:g} s for it", file=sys.stderr)  # noqa: T201
    find = partial(problem_of_run, run_dir, options.model, options.data)
    follow(run_dir, seconds, find, show, warn)
    return 0


def test(arguments: list[str]) -> int:
    """Run the test suite of the checkout; return its exit code."""
    environment = os.environ.copy()
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile the same modules again
    return subprocess.call([sys.executable, "-m", "pytest", *arguments], cwd=_checkout(), env=environment)


def mutants(arguments: list[str]) -> int:
    """Make one fault at a time in a copy of the checkout, and check that a test fails."""
    return subprocess.call([sys.executable, str(_checkout() / "tests" / "mutants.py"), *arguments])


def docs(arguments: list[str]) -> int:
    """Build the site of the checkout with Sphinx, warnings as errors; return the exit code."""
    Parser("run.sh docs", "Build the site in build/site with Sphinx, warnings as errors.").values(arguments)
    site = _checkout() / "build" / "site"
    print("building the site: one to three minutes", file=sys.stderr, flush=True)  # noqa: T201
    sphinx = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-c", "docs"]
    code = subprocess.call([*sphinx, ".", str(site)], cwd=_checkout())
    if code == 0:
        print(f"the site: {site / 'index.html'}")  # noqa: T201
    return code


def _checkout() -> Path:
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / "tests").is_dir():
        raise UserError("the tests are part of the source checkout, which this installation is not")
    return root


def measure(module: str, arguments: list[str]) -> int:
    """Execute a module of `benchmarks`; return the exit code."""
    require_tensorflow()
    return importlib.import_module(f"...benchmarks.{module}", __package__).main(arguments)


def replay_run(arguments: list[str]) -> int:
    """Show a run's distance from the equations; return 0 if they agree, 1 if not, 2 if float32 may be the reason.

    Of a script with several joins each is compared, and the worst result returned.
    """
    about = "Verify a run: re-execute its event log in NumPy, by the paper's equations, and compare the centers."
    parser = Parser("run.sh replay", about, usage="run.sh replay run_dir")
    parser.add_argument("run_dir", type=plain(Path), help="Folder of a run that has ended, or latest. It is only read.")
    run_dir = named(parser.values(arguments).run_dir)

    use_tensorflow_here()
    codes = []
    for folder in with_later_joins(run_dir):
        if codes:
            print()  # noqa: T201
        codes.append(_replay_one(folder))
    return 1 if 1 in codes else max(codes)


def _replay_one(run_dir: Path) -> int:
    """Show the distance of one center from the equations; return the code as `replay_run` does."""
    began = time.monotonic()
    with Console(stderr=True).status("replaying ..."):  # shown only on a terminal
        verdict = replay(run_dir, SCHEMES)
    run = verdict.run
    lines = {
        "run": run_dir,
        "algorithm": f"{run.algorithm}, {run.workers} worker{'s' * (run.workers > 1)}, {run.steps} local steps each",
        "events": f"{len(run.order)} recorded, {run.result['updates']} updates of the center"
        + "; versions, staleness and drops are those of the synchronization rule" * verdict.ordered,
        "replay": f"in NumPy, float64, the recorded order, {time.monotonic() - began:.1f} s",
        "relative error": f"{verdict.error:.1e} of the center, {len(run.center)} parameters; {run.factors} explains "
        f"{verdict.limit:.0e}, the center moved by {verdict.moved:.1e}",
        "verdict": _in_words(verdict),
    }
    unchecked = []
    if read_config(run_dir)["record"] == "gradients":
        steps = "local steps" if run.hyperparameters.get("inner_optimizer") == "own" else "gradients"
        lines["checked"] = f"rounds, messages and updates of the servers, executed with the recorded {steps}"
        unchecked.append(f"the {steps} themselves: replay knows neither the loss nor the data of the script")
    if (codec := run.equations.codec) != "float32":
        unchecked.append(f"how {codec} rounds: the rounding of single messages is not recorded")
    if unchecked:
        lines["not checked"] = "; ".join(unchecked)
    print(aligned(lines))  # noqa: T201
    return 0 if verdict.agrees else 1 if verdict.differs else 2


def _in_words(verdict: Verdict) -> str:
    if verdict.agrees and verdict.until:
        return (
            f"the run did what the paper's equations say up to update {verdict.until}, by its test losses; after that, "
            f"{verdict.run.factors} decides signs of values near zero, and largest ones, which explains the distance"
        )
    if verdict.agrees:
        return "the run did what the paper's equations say"
    if verdict.differs:
        return f"the run DIFFERS from the paper's equations{': ' * bool(verdict.reason)}{verdict.reason}"
    instead = {"TF32": "replay a run with --no-tf32"}.get(verdict.run.factors, INSTEAD)
    return (
        f"not decided: {verdict.run.factors} alone explains the difference, but it would hide a wrong factor of 1 % as "
        f"well; {instead}"
    )


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The options of `timeline`."""

    run_dir: tuple[Path, ...]
    """Folder of a run that has ended, or latest; or two folders."""
    output: Path | None = None
    """Path of the trace, compressed if it ends in .json.gz. Default: trace.json in the first folder."""
    picture: Path | None = None
    """Path of an image to draw, too: .png, .svg or .pdf."""
    begin: float = 0.0
    """Seconds since the begin of the run; earlier rounds are left out."""
    end: float | None = None
    """Seconds since the begin of the run; later rounds are left out."""


def timeline(arguments: list[str]) -> int:
    """Write the trace, and with --picture an image; print their paths and notes on missing data."""
    about = "Write a trace of when workers computed, waited, pushed and pulled, for Perfetto or chrome://tracing."
    (options,) = flags.read("run.sh timeline", about, arguments, {"options": Timeline}, positional="run_dir")
    if len(options.run_dir) > 2:
        raise UserError(f"timeline takes one run, or two to compare. Received: {len(options.run_dir)} folders")
    not_negative(begin=options.begin)
    if options.end is not None and not options.end > options.begin:
        raise UserError(f"--end must be later than --begin. Received: {options.begin:g} and {options.end:g} seconds")
    if options.picture:
        check_format("--picture", options.picture)

    folders = [named(folder) for folder in options.run_dir]
    runs = [read_lanes(folder, options.begin, options.end) for folder in folders]
    output = options.output or folders[0] / "trace.json"
    small = output.name.endswith(".json.gz")
    with replacing(output) as file, gzip.open(file, "wb") if small else nullcontext(file) as target:
        write_trace(runs, target)
    print(output, VIEWERS, *(f"{run.name}: {note}" for run in runs for note in run.notes), sep="\n")  # noqa: T201
    if options.picture:
        save(draw(runs, options.begin, options.end), options.picture, dpi=130)
        print(options.picture)  # noqa: T201
    return 0
