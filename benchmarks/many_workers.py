"""What many workers take to start, work for a moment and end, and what their processes hold meanwhile."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from ..algorithms import Downpour
from ..common.cluster.cluster import Cluster
from ..common.data.models import ModelRecipe
from ..common.data.recipes import digits
from ..common.launch.client import keep_warm
from ..common.launch.launcher import launch
from ..common.tasks.job import Job, make_job
from ..common.tasks.options import RunOptions

WORKERS = (8, 16, 32, 64)  # workers

ROUNDS = 50
BATCH = 16
WAIT_SECONDS = 180.0  # many processes share few cores


def digits_job(folder: Path, workers: int, steps: int, batch_size: int) -> Job:
    """Return a job of DOWNPOUR on the digits data, without evaluation."""
    data = digits()
    return make_job(
        Downpour(),
        ModelRecipe.named("mlp", data.train[0].shape[1:], 10, seed=0),
        data.train,
        None,
        Cluster.local(workers, wait_seconds=WAIT_SECONDS),
        RunOptions(steps=steps, batch_size=batch_size, run_dir=folder),
    )


def measure_workers(workers: int) -> dict[str, Any]:
    """Measure a whole run of that many workers, beyond the import.

    Returns:
        its `seconds`, and `cpu_seconds` of all tasks; and when each worker has done its first round: `threads` and
        `descriptors` of the median worker and of the ps, private `megabytes` of the median worker, of the ps, and of
        all tasks together (None where the kernel does not tell).
    """
    pids: dict[str, int] = {}
    begun, found, server = 0, {}, 0

    def on_event(event: dict[str, Any]) -> None:
        nonlocal begun, found, server
        if event["event"] == "started":
            pids.update(event["pids"])
            server = parent_of(pids["ps-0"])
        begun += event["event"] == "first_update"
        if begun == workers and not found:
            found = held(pids)

    with tempfile.TemporaryDirectory(prefix="distsgd-benchmark-") as folder, keep_warm():
        began = time.monotonic()
        launch(digits_job(Path(folder), workers, ROUNDS * Downpour().period, BATCH), on_event)
        seconds = time.monotonic() - began
        cpu = ended_seconds(server)
    return {"workers": workers, "seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2)} | found


def held(pids: dict[str, int]) -> dict[str, Any]:
    """Return the resources that the tasks of a run hold: of the median worker, and of the ps."""
    workers = [pid for name, pid in pids.items() if name.startswith("worker")]
    found: dict[str, Any] = {}
    for kind, folder in (("threads", "task"), ("descriptors", "fd")):
        count = {pid: len(os.listdir(f"/proc/{pid}/{folder}")) for pid in [*workers, pids["ps-0"]]}
        found[kind] = [median(count[pid] for pid in workers), count[pids["ps-0"]]]
    memory = {pid: (private_bytes(pid) or 0) / 1e6 for pid in pids.values()}
    of_worker = median(memory[pid] for pid in workers)
    found["megabytes"] = (
        [round(of_worker), round(memory[pids["ps-0"]]), round(sum(memory.values()))] if of_worker else None
    )
    return found


def private_bytes(pid: int) -> int | None:
    """Return private bytes of a process, clean and dirty."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended, or is not ours to read
        return None
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_") and "Huge" not in line)


def descriptors(pid: int) -> tuple[int, dict[int, int]]:
    """Return how many file descriptors a process has, and the bytes of each segment of shared memory among them."""
    number, shared = 0, {}
    with contextlib.suppress(OSError):  # it has ended, or is not ours to read
        for path in Path(f"/proc/{pid}/fd").iterdir():
            number += 1
            with contextlib.suppress(OSError):  # closed meanwhile
                if path.readlink().name.startswith("memfd:distsgd"):
                    status = path.stat()
                    shared[status.st_ino] = status.st_size
    return number, shared


def _stat(pid: int) -> list[str]:
    """Return the kernel's figures of a process, from its state on; see proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def parent_of(pid: int) -> int:
    """Return the process that has started this one."""
    return int(_stat(pid)[1])


def ended_seconds(pid: int) -> float:
    """Return CPU time of all children of a process that have ended, user and system, in seconds."""
    user, system = _stat(pid)[13:15]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
