"""How long a run takes to start, what a worker costs in memory, and what many workers take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from ..common.errors import DistsgdError
from ..common.launch.client import keep_warm
from ..common.launch.launcher import launch
from .many_workers import ROUNDS, WORKERS, digits_job, measure_workers, private_bytes
from .systems import told_by

QUICK = ("--help", "--version", "list", "runs", "explain downpour")  # commands that should answer at once

LINES = ("distsgd ", "distsgd downpour --")  # that a shell completes

TRIES = 5


def measure_startup(console: Console) -> dict[str, Any]:
    """Measure all of it; show it, and return it as a dictionary."""
    found: dict[str, Any] = {"times_of_numpy": quick_commands()}
    for command, times in found["times_of_numpy"].items():
        console.print(f"{command}: {times:.1f} times the CPU time of python -c 'import numpy'")
    found |= first_update() | {"import_to_first_update_seconds": after_import()}
    console.print(
        f"\n[bold]start[/]\ncold `downpour`: first update {found['first_update_seconds']:.2f} s after the "
        f"run began, "
        f"{found['command_to_first_update_seconds']:.2f} s after the command, "
        f"{found['import_to_first_update_seconds']:.2f} s after TensorFlow's import",
        soft_wrap=True,
    )
    found["worker_private_mb"] = memory = private_megabytes()
    console.print("private memory of a worker process: " + (f"{memory:.0f} MB" if memory else "not readable"))
    found["many_workers"] = []
    for workers in WORKERS:
        measured = measure_workers(workers)
        found["many_workers"].append(measured | {"bare": bare(workers)})
        console.print(
            f"{workers} workers, {ROUNDS} rounds each of downpour: {measured['seconds']:.1f} s beyond the import, "
            f"{measured['cpu_seconds']:.1f} s of CPU time; with nothing but TensorFlow "
            f"{found['many_workers'][-1]['bare']['seconds']:.1f} s",
            soft_wrap=True,
        )
    return found


def bare(workers: int) -> dict[str, float]:
    """Return seconds, and CPU seconds, of as many processes with an idle server of TensorFlow."""
    return told_by([sys.executable, "-m", "distsgd.benchmarks.bare", str(workers)], "bare TensorFlow", 0)


def quick_commands() -> dict[str, float]:
    """Return the CPU time of each command that trains nothing, as a multiple of that of importing NumPy."""
    program = [sys.executable, "-m", "distsgd"]
    numpy = _least_seconds([sys.executable, "-c", "import numpy"])
    found = {name: _least_seconds([*program, *name.split()]) for name in QUICK}
    for line in LINES:
        variables = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
        found[f"{line}<Tab>"] = _least_seconds(program, **variables)
    return {name: round(seconds / numpy, 2) for name, seconds in found.items()}


def _least_seconds(command: Sequence[str], **environment: str) -> float:
    """Return the least CPU time of a process in several tries, which other programs disturb least."""
    tries = []
    for _ in range(TRIES):
        before = os.times()
        with tempfile.TemporaryDirectory(prefix="distsgd-benchmark-") as folder:
            Path(folder, "runs").mkdir()
            subprocess.run(command, cwd=folder, env=os.environ | environment, capture_output=True, check=False)
        after = os.times()
        tries.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(tries)


def first_update() -> dict[str, float]:
    """Return seconds to the first update of `distsgd downpour`, with nothing running beforehand."""
    with tempfile.TemporaryDirectory(prefix="distsgd-benchmark-") as folder:
        command = [
            sys.executable,
            "-m",
            "distsgd",
            "downpour",
            "--json",
            "--run-dir",
            f"{folder}/run",
        ]
        began = time.monotonic()
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        ended = time.monotonic()
        if done.returncode:
            raise DistsgdError(f"downpour ended with code {done.returncode}: {done.stderr.strip()}")
    result = json.loads(done.stdout.splitlines()[-1])
    # The run's own clock starts after the imports of the command line.
    before = ended - began - result["seconds_total"]
    return {
        "first_update_seconds": result["seconds_to_first_update"],
        "command_to_first_update_seconds": round(before + result["seconds_to_first_update"], 3),
        "cold_run_seconds": round(ended - began, 3),
    }


def private_megabytes() -> float | None:
    """Return the private memory of a worker process during training; None where the kernel does not tell."""
    pids: dict[str, int] = {}
    megabytes: list[float] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            pids.update(event["pids"])
        elif event["event"] == "worker":
            bytes_ = private_bytes(pids[f"worker-{event['worker']}"])
            megabytes.extend([bytes_ / 1e6] if bytes_ else [])

    with tempfile.TemporaryDirectory(prefix="distsgd-benchmark-") as folder, keep_warm():
        launch(digits_job(Path(folder), 2, steps=8000, batch_size=32), on_event)
    return round(median(megabytes), 1) if megabytes else None


def after_import() -> float:
    """Return seconds from the end of TensorFlow's import to the first update, in a cold run."""
    when: dict[str, float] = {}

    def on_event(event: dict[str, Any]) -> None:
        when.setdefault(event["event"], time.monotonic())

    with tempfile.TemporaryDirectory(prefix="distsgd-benchmark-") as folder:
        launch(digits_job(Path(folder), 2, steps=100, batch_size=32), on_event)
    return round(when["first_update"] - when["network"], 3)  # its network is told of when the fork server is ready
