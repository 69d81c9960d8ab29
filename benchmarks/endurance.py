"""Measure the memory of a run at full speed, and the size of its folder, as time passes.

`bash run.sh endurance --minutes 10` prints private memory and file descriptors of every process, the memory that they
share and the size of the run directory each minute, at the end a straight line through the second half: what grows
shows there. A model with vectors of a megabyte (`--model mlp:hidden=1024-512`) has them in shared memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..common.arguments import check_known, positive
from ..common.cli.flags import Parser
from ..common.cluster.cluster import Cluster
from ..common.data.models import ModelRecipe
from ..common.data.named import load
from ..common.errors import UserError
from ..common.launch.run import run
from ..common.record.callbacks import Callback
from ..common.sources import docstring
from ..common.tasks.job import describe, make_job
from ..common.tasks.options import RunOptions
from .many_workers import descriptors, parent_of, private_bytes

STEPS = 10**9  # of each worker, more than it makes: time ends the run
LINES = 5  # least number of lines, however short the run is
SAMPLES_PER_LINE = 12
DESCRIPTORS_LIMIT = 16  # most descriptors by which a process may grow in the second half of a run
GROWTH_LIMIT = 60.0  # MB in an hour; allocators alone may grow by as much in the first hour
MODEL = "mlp:hidden=16"


def main(arguments: list[str]) -> int:
    """Run the command line; 0 if no process grows."""
    parser = Parser("run.sh endurance", docstring(sys.modules[__name__]).partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="Minutes of the run. (default: 10)")
    parser.add_argument("--scheme", default="async_sgd", metavar="NAME", help="Algorithm. (default: async_sgd)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="Number of worker tasks. (default: 2)")
    parser.add_argument("--ps", type=int, default=1, metavar="N", help="Number of parameter server tasks. (default: 1)")
    parser.add_argument("--model", default=MODEL, metavar="NAME", help=f"Model. (default: {MODEL})")
    parser.add_argument(
        "--record", default="full", metavar="HOW", help="Record of rounds: full or off. (default: full)"
    )
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="Folder for the results; the default is a temporary one."
    )
    options = parser.values(arguments)
    positive(minutes=options.minutes)
    with contextlib.ExitStack() as stack:
        folder = options.run_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distsgd-endurance-")))
        watch, result = endure(options, folder / "run" if options.run_dir is None else folder)
    for line in watch.verdict():
        _say(line)
    _say(json.dumps({"updates": result["updates"], "record": result["record"], **watch.summary()}))
    return 1 if watch.growing() else 0


def endure(options: argparse.Namespace, run_dir: Path) -> tuple[Watch, dict[str, Any]]:
    """Run, and return what was measured."""
    from ..algorithms import SCHEMES

    check_known("algorithm", options.scheme, known=SCHEMES)
    scheme, data = SCHEMES[options.scheme](), load("digits")
    if not scheme.sync.uses_ps:
        raise UserError(f"{options.scheme} has no parameter server, so it cannot be ended by time. Take async_sgd")
    job = make_job(
        scheme,
        ModelRecipe.named(options.model, data.shape, data.classes, seed=0),
        data.train,
        data.test,
        Cluster.local(options.workers, ps=options.ps),
        RunOptions(steps=STEPS, batch_size=16, run_dir=run_dir, record=options.record),
    )
    watch = Watch(run_dir, 60 * options.minutes)
    try:
        record, error = run(job, describe(job, "digits", options.model), verbose=False, callbacks=[watch])
        result = record.finish(error)
    finally:
        watch.end()
    if error is not None:
        raise error
    return watch, result


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment.

    Attributes:
        seconds: since the first update.
        version: of the center.
        folder: bytes of the run directory.
        memory: private bytes of each process.
        shared: bytes that they share.
        descriptors: of each process.
    """

    seconds: float
    version: int
    folder: int
    memory: dict[str, int] = field(default_factory=dict)
    shared: int = 0
    descriptors: dict[str, int] = field(default_factory=dict)


class Watch(Callback):
    """Looks at the processes of a run now and then, and ends it when its time is over."""

    def __init__(self, run_dir: Path, seconds: float):
        self.run_dir, self.seconds = run_dir, seconds
        self.every = min(60.0, seconds / LINES) / SAMPLES_PER_LINE
        self.samples: list[Sample] = []
        self.pids: dict[str, int] = {}
        self.version = 0
        self.began: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_now_and_then, daemon=True)

    def on_event(self, event: dict[str, Any]) -> None:
        """Record the tasks that run, and the progress of the run."""
        if event["event"] == "started":
            self.pids.update(processes(event))
        elif event["event"] == "center":
            self.version = event["version"]
        elif event["event"] == "first_update" and self.began is None:
            self.began = time.monotonic()
            self._thread.start()

    def end(self) -> None:
        """Stop measuring."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look_now_and_then(self) -> None:
        began = time.monotonic()
        while not self._over.wait(self.every):
            seconds = time.monotonic() - began
            memory = {name: private_bytes(pid) for name, pid in dict(self.pids).items()}
            readable = {name: number for name, number in memory.items() if number is not None}
            held = {name: descriptors(pid) for name, pid in dict(self.pids).items() if name in readable}
            shared = sum({name: size for _, segments in held.values() for name, size in segments.items()}.values())
            numbers = {name: number for name, (number, _) in held.items()}
            self.samples.append(Sample(seconds, self.version, _size(self.run_dir), readable, shared, numbers))
            if len(self.samples) % SAMPLES_PER_LINE == 0:
                _say(_line(self.samples[-SAMPLES_PER_LINE], self.samples[-1]))
            if seconds >= self.seconds:
                self.stop_training = True  # seen with the next event
                return

    @property
    def second_half(self) -> list[Sample]:
        """Return the samples without the start."""
        return self.samples[len(self.samples) // 2 :] or [Sample(0.0, 0, 0)]

    def growth(self) -> dict[str, float]:
        """Return MB an hour of each process, by a straight line through the second half."""
        found = {}
        for name in self.second_half[-1].memory:
            points = [(s.seconds / 3600, s.memory[name] / 1e6) for s in self.second_half if name in s.memory]
            hours, megabytes = zip(*points, strict=True)
            found[name] = float(np.polyfit(hours, megabytes, 1)[0]) if len(points) > 1 else 0.0
        return found

    def growing(self) -> list[str]:
        """Return the processes that need more and more memory, or file descriptors."""
        first, last = self.second_half[0].descriptors, self.second_half[-1].descriptors
        more = {name for name, number in last.items() if number > first.get(name, number) + DESCRIPTORS_LIMIT}
        return [name for name, slope in self.growth().items() if slope > GROWTH_LIMIT or name in more]

    def bytes_per_million(self) -> float:
        """Return bytes of the run directory for a million updates, in the second half."""
        first, last = self.second_half[0], self.second_half[-1]
        return 1e6 * (last.folder - first.folder) / max(1, last.version - first.version)

    def summary(self) -> dict[str, Any]:
        """Return the results for programs."""
        return {
            "mb_per_hour": {name: round(slope, 2) for name, slope in self.growth().items()},
            "folder_bytes_per_million_updates": round(self.bytes_per_million()),
            "shared_mb": round(self.second_half[-1].shared / 1e6, 1),
            "descriptors": self.second_half[-1].descriptors,
            "growing": self.growing(),
        }

    def verdict(self) -> list[str]:
        """Return the results for people."""
        first, last = self.second_half[0], self.second_half[-1]
        lines = ["", f"{'process':<14}{'MB at half':>12}{'at the end':>12}{'MB an hour':>12}{'a day adds':>12}"]
        for name, slope in self.growth().items():
            before, after = (s.memory.get(name, 0) / 1e6 for s in (first, last))
            lines.append(f"{name:<14}{before:>12.1f}{after:>12.1f}{slope:>12.2f}{24 * slope:>9.0f} MB")
        numbers = ", ".join(f"{name} {first.descriptors.get(name, 0)} {n}" for name, n in last.descriptors.items())
        lines.append(f"file descriptors at half and at the end: {numbers}")
        lines.append(f"shared memory: {first.shared / 1e6:.1f} MB at half, {last.shared / 1e6:.1f} at the end")
        rate = (last.version - first.version) / max(1e-9, last.seconds - first.seconds)
        folder = self.bytes_per_million()
        lines.append(
            f"run directory: {folder / 1e6:.2f} MB per million updates; "
            f"at {rate:.0f} updates/s a day adds {folder * rate * 86400 / 1e15:.2f} GB"
        )
        growing = ", ".join(self.growing())
        lines.append(f"growing: {growing}" if growing else "no process grows")
        return lines


def _line(before: Sample, now: Sample) -> str:
    rate = (now.version - before.version) / max(1e-9, now.seconds - before.seconds)
    memory = "  ".join(
        f"{name} {number / 1e6:.1f} ({now.descriptors.get(name, 0)} fd)" for name, number in now.memory.items()
    )
    shared = f"shared {now.shared / 1e6:.1f}  folder {now.folder / 1e6:.1f}"
    return f"{now.seconds / 60:6.1f} min  version {now.version}, {rate:.0f}/s  MB: {memory}  {shared}"


def _size(folder: Path) -> int:
    """Return the bytes of all files below."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it has been replaced meanwhile
            total += path.stat().st_size
    return total


def processes(started: dict[str, Any]) -> dict[str, int]:
    """Return all processes of a run, given the event that lists the started ones."""
    return {"launcher": os.getpid(), "fork server": parent_of(next(iter(started["pids"].values())))} | started["pids"]


def _say(text: str) -> None:
    print(text, flush=True)
