"""Soak: real runs whose tasks are killed and stopped at random, for minutes; each must end right, and replay.

`bash run.sh soak --minutes 5 --seed 1` draws schemes, victims, signals and moments from the seed. After each run the
NumPy reference executes what is on record; the last line counts what was survived. The reference is in `tests/`, so
this needs the source checkout.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..common.errors import UserError
from ..common.hooks import Callback
from ..common.launcher import keep_warm
from ..common.recovery import Recovery

TESTS = Path(__file__).resolve().parent.parent / "tests"
TOLERANCE = 1e-5
WAIT_SECONDS = 10.0
RUN_SECONDS = 180.0  # more than any run may take
WORKERS = 3


class Chaos(threading.Thread, Callback):
    """Hurts the tasks of one run now and then, until told to stop."""

    def __init__(self, rng: random.Random, faults: int, report: Callable[[str], None]):
        super().__init__(daemon=True)
        self.rng, self.faults, self.report = rng, faults, report
        self.events: list[dict[str, Any]] = []
        self.done = threading.Event()
        self.dealt: Counter[str] = Counter()

    def on_event(self, event: dict[str, Any]) -> None:
        """Take note of who is there."""
        self.events.append(event)

    def run(self) -> None:
        """One fault after the other."""
        while not any(event["event"] == "first_update" for event in self.events):
            if self.done.wait(0.05):
                return
        for _ in range(self.faults):
            if self.done.wait(self.rng.uniform(0.3, 2.5)):
                return
            pids = next(event["pids"] for event in reversed(self.events) if event["event"] == "started")
            victim = self.rng.choice(sorted(pids))
            stop = victim.startswith("worker") and self.rng.random() < 0.2
            number = signal.SIGSTOP if stop else signal.SIGKILL
            try:
                os.kill(pids[victim], number)
            except ProcessLookupError:
                continue
            kind = victim.split("-")[0] if victim != "worker-0" else "chief"
            self.dealt[f"{number.name} {kind}"] += 1
            self.report(f"{number.name} to {victim}")


def main(arguments: list[str]) -> int:
    """Run the command line of the soak; 0 if every run ended right."""
    parser = argparse.ArgumentParser(prog="run.sh soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="show each fault")
    options = parser.parse_args(arguments)
    if not TESTS.is_dir():
        raise UserError("the soak replays runs with tests/reference.py, which is part of the source checkout alone")
    sys.path.insert(0, str(TESTS))
    rng = random.Random(options.seed)
    total: Counter[str] = Counter()
    worst, failed = 0.0, 0
    end = time.monotonic() + 60 * options.minutes
    with keep_warm("auto"), tempfile.TemporaryDirectory(prefix="distsgd-soak-") as folder:
        while time.monotonic() < end:
            number = total["runs"]
            outcome = one_run(rng, Path(folder) / str(number), options.verbose)
            total.update(outcome["counts"])
            total["runs"] += 1
            worst = max(worst, outcome["error"])
            failed += not outcome["right"]
            _say(f"{number:3d} {'ok  ' if outcome['right'] else 'WRONG'} {outcome['text']}")
    _say(json.dumps({"seed": options.seed, "failed": failed, "worst_replay_error": worst, **total}))
    return 1 if failed else 0


def one_run(rng: random.Random, run_dir: Path, verbose: bool) -> dict[str, Any]:
    """One run with its faults; says whether it ended right."""
    runs = importlib.import_module("runs")  # of the tests

    from ..algorithms import AEASGD, AsyncSGD, Downpour, SyncSGD

    scheme, steps = rng.choice([(AsyncSGD(), 1500), (SyncSGD(), 800), (AEASGD(), 8000), (Downpour(), 6000)])
    ps, faults = rng.choice([1, 2]), rng.randint(1, 4)
    chaos = Chaos(random.Random(rng.random()), faults, _say if verbose else lambda text: None)
    began = time.monotonic()
    counts: Counter[str] = Counter()
    error, right, text = 0.0, False, ""
    chaos.start()
    try:
        run = runs.record(
            scheme,
            run_dir,
            workers=WORKERS,
            ps=ps,
            steps=steps,
            batch_size=8,
            hidden=(16,),
            wait_seconds=WAIT_SECONDS,
            recovery=Recovery(checkpoint_seconds=0.5, max_restarts=3 * faults),
            callbacks=[chaos],
        )
        error = run.error()
        recovery = run.result["recovery"]
        right = error < TOLERANCE and run.result["steps"] == steps * WORKERS
        counts["restarts"] = sum(recovery["restarts"].values())
        counts["restorations"] = len(recovery["restored"])
        counts["updates"] = run.result["updates"]
        counts["updates lost with a ps"] = recovery["lost_updates"]
        text = f"replay {error:.1e}, {recovery['restarts']}, restored {recovery['restored']}"
    except Exception as problem:
        text = f"{type(problem).__name__}: {problem}"
    finally:
        chaos.done.set()
        chaos.join()
    seconds = time.monotonic() - began
    counts.update(chaos.dealt)
    counts["seconds"] = round(seconds)
    right &= seconds < RUN_SECONDS
    return {
        "right": right,
        "error": error,
        "counts": counts,
        "text": f"{scheme.name:<9} {ps} ps, {seconds:.0f} s, {dict(chaos.dealt)}: {text}",
    }


def _say(text: str) -> None:
    print(text, flush=True)
