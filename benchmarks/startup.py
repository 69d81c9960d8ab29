"""How long a run takes to start, what a worker costs in memory, and how long 8 and 64 workers take."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from ..algorithms import Downpour
from ..common.cluster.cluster import Cluster
from ..common.errors import DistsgdError
from ..common.launch.client import keep_warm
from ..common.launch.launcher import launch
from ..common.problems.data import digits
from ..common.problems.models import ModelRecipe
from ..common.run.job import Job, make_job
from ..common.run.options import RunOptions

FEW, MANY = 8, 64  # workers
MANY_ROUNDS = 50
MANY_BATCH = 16
WAIT_SECONDS = 180.0  # 64 processes share few cores


def measure_startup(console: Console) -> dict[str, Any]:
    """All of it, shown and as a dictionary."""
    found: dict[str, Any] = first_update() | {"import_to_first_update_seconds": after_import()}
    console.print(
        f"\n[bold]start[/]\ncold `downpour`: first update {found['first_update_seconds']:.2f} s after the "
        f"run began, "
        f"{found['command_to_first_update_seconds']:.2f} s after the command, "
        f"{found['import_to_first_update_seconds']:.2f} s after TensorFlow's import",
        soft_wrap=True,
    )
    found["worker_private_mb"] = memory = private_megabytes()
    console.print("private memory of a worker process: " + (f"{memory:.0f} MB" if memory else "not readable"))
    found |= {"few_workers_seconds": seconds_of(FEW), "many_workers_seconds": seconds_of(MANY)}
    console.print(
        f"{FEW} workers, {MANY_ROUNDS} rounds each of downpour on digits: {found['few_workers_seconds']:.1f} s beyond "
        f"the import; {MANY} workers: {found['many_workers_seconds']:.1f} s",
        soft_wrap=True,
    )
    return found


def first_update() -> dict[str, float]:
    """Seconds to the first update of `distsgd downpour`, with nothing running beforehand."""
    with tempfile.TemporaryDirectory(prefix="distsgd-benchmark-") as folder:
        command = [
            sys.executable,
            "-m",
            "distsgd.common.cli.main",
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


def digits_job(folder: Path, workers: int, steps: int, batch_size: int) -> Job:
    """DOWNPOUR on the digits data, without evaluation."""
    data = digits()
    return make_job(
        Downpour(),
        ModelRecipe.named("mlp", data.train[0].shape[1:], 10, seed=0),
        data.train,
        None,
        Cluster.local(workers, wait_seconds=WAIT_SECONDS),
        RunOptions(steps=steps, batch_size=batch_size, run_dir=folder),
    )


def private_megabytes() -> float | None:
    """Memory that a worker process does not share, while it trains; None where the kernel does not tell."""
    pids: dict[str, int] = {}
    seen: list[float] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "started":
            pids.update(event["pids"])
        elif event["event"] == "worker":
            bytes_ = private_bytes(pids[f"worker-{event['worker']}"])
            seen.extend([bytes_ / 1e6] if bytes_ else [])

    with tempfile.TemporaryDirectory(prefix="distsgd-benchmark-") as folder, keep_warm():
        launch(digits_job(Path(folder), 2, steps=8000, batch_size=32), on_event)
    return round(median(seen), 1) if seen else None


def private_bytes(pid: int) -> int | None:
    """Private pages of a process, clean and dirty."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended, or is not ours to read
        return None
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_") and "Huge" not in line)


def after_import() -> float:
    """Seconds from the end of TensorFlow's import to the first update, in a cold run."""
    when: dict[str, float] = {}

    def on_event(event: dict[str, Any]) -> None:
        when.setdefault(event["event"], time.monotonic())

    with tempfile.TemporaryDirectory(prefix="distsgd-benchmark-") as folder:
        launch(digits_job(Path(folder), 2, steps=100, batch_size=32), on_event)
    return round(when["first_update"] - when["network"], 3)  # its network is told of when the fork server is ready


def seconds_of(workers: int) -> float:
    """Wall seconds of a whole run, beyond the import."""
    with tempfile.TemporaryDirectory(prefix="distsgd-benchmark-") as folder, keep_warm():
        began = time.monotonic()
        job = digits_job(Path(folder), workers, MANY_ROUNDS * Downpour().period, MANY_BATCH)
        launch(job, lambda event: None)
        return round(time.monotonic() - began, 3)
