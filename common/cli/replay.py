"""`bash run.sh replay RUN_DIR`: did the run do what the paper's equations say?"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from ...algorithms import SCHEMES
from ..proof.replay import replay
from ..record.latest import named
from .commands import use_tensorflow_here
from .flags import Parser, plain


def main(arguments: list[str]) -> int:
    """Show how far the run is from the equations; 0 if they agree, 1 if not."""
    about = "Execute the record of a run in NumPy, by the paper's equations, and compare the centers."
    parser = Parser("run.sh replay", about, usage="run.sh replay run_dir")
    parser.add_argument("run_dir", type=plain(Path), help="of a run that has ended, or latest; it is only read")
    run_dir = named(parser.values(arguments).run_dir)

    use_tensorflow_here()
    began = time.monotonic()
    with Console(stderr=True).status("replaying ..."):  # on a terminal
        verdict = replay(run_dir, SCHEMES)
    run = verdict.run
    lines = {
        "run": run_dir,
        "algorithm": f"{run.scheme.name}, {run.workers} worker{'s' * (run.workers > 1)}, {run.steps} local steps each",
        "events": f"{len(run.order)} on record, {run.result['updates']} updates of the center",
        "replay": f"in NumPy, float64, the recorded order, {time.monotonic() - began:.1f} s",
        "relative error": f"{verdict.error:.1e} of the center, {len(run.center)} parameters "
        f"(limit {verdict.limit:.0e})",
        "verdict": "the run did what the paper's equations say"
        if verdict.agrees
        else f"the run DIFFERS from the paper's equations{': ' * bool(verdict.reason)}{verdict.reason}",
    }
    width = max(map(len, lines))
    for name, value in lines.items():
        print(f"{name:<{width}}  {value}")  # noqa: T201
    return 0 if verdict.agrees else 1
