"""Check of a run against the paper's equations: `bash run.sh replay RUN_DIR`."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from ...algorithms import SCHEMES
from ..record.latest import named
from ..replay.replay import Verdict, replay
from .commands import use_tensorflow_here
from .flags import Parser, plain


def main(arguments: list[str]) -> int:
    """Show a run's distance from the equations; return 0 if they agree, 1 if not, 2 if float32 may be the reason."""
    about = "Verify a run: re-execute its event log in NumPy, by the paper's equations, and compare the centers."
    parser = Parser("run.sh replay", about, usage="run.sh replay run_dir")
    parser.add_argument("run_dir", type=plain(Path), help="directory of a run that has ended, or latest; only read")
    run_dir = named(parser.values(arguments).run_dir)

    use_tensorflow_here()
    began = time.monotonic()
    with Console(stderr=True).status("replaying ..."):  # shown only on a terminal
        verdict = replay(run_dir, SCHEMES)
    run = verdict.run
    lines = {
        "run": run_dir,
        "algorithm": f"{run.scheme.name}, {run.workers} worker{'s' * (run.workers > 1)}, {run.steps} local steps each",
        "events": f"{len(run.order)} recorded, {run.result['updates']} updates of the center",
        "replay": f"in NumPy, float64, the recorded order, {time.monotonic() - began:.1f} s",
        "relative error": f"{verdict.error:.1e} of the center, {len(run.center)} parameters; float32 explains "
        f"{verdict.limit:.0e}, the center moved by {verdict.moved:.1e}",
        "verdict": _in_words(verdict),
    }
    if run.codec != "float32":
        lines["not checked"] = f"how {run.codec} rounds: the rounding of single messages is not recorded"
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")  # noqa: T201
    return 0 if verdict.agrees else 1 if verdict.differs else 2


def _in_words(verdict: Verdict) -> str:
    if verdict.agrees and verdict.until:
        return (
            f"the run did what the paper's equations say up to update {verdict.until}, by its test losses; after that, "
            "float32 decides signs of gradients near zero, which explains the distance"
        )
    if verdict.agrees:
        return "the run did what the paper's equations say"
    if verdict.differs:
        return f"the run DIFFERS from the paper's equations{': ' * bool(verdict.reason)}{verdict.reason}"
    return (
        "not decided: float32 alone explains the difference, but it would hide a wrong factor of 1 % as well; "
        "replay a shorter run, or one of a smaller model"
    )
