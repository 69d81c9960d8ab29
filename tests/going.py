"""Runs in a thread of this process, whose tasks can be hurt meanwhile."""

import json
import os
import threading
from pathlib import Path

from conftest import children
from distsgd.common.replay.order import departure_of
from runs import LASTING, record, updates_logged, wait_until

TOLERANCE = 1e-5
SMALL = {"hidden": (16,), "batch_size": 8}


def log_path(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def task_log(pid: int) -> str:
    return Path(log_path(pid)).name


class Going:
    """A recorded run that has made so many updates."""

    def __init__(self, scheme, run_dir: Path, updates: int = 60, **options):
        self.scheme, self.run_dir, self.outcome = scheme, run_dir, None
        self.thread = threading.Thread(target=self._run, args=(scheme, SMALL | options), daemon=True)
        self.thread.start()
        wait_until(lambda: self.trains(updates) or not self.thread.is_alive())

    def _run(self, scheme, options):
        try:
            self.outcome = record(scheme, self.run_dir, **options)
        except Exception as error:
            self.outcome = error

    def trains(self, updates: int) -> bool:
        return updates_logged(self.run_dir) >= updates

    def pid(self, task: str) -> int:
        """Return the pid of the process of that task."""
        pids = [pid for pid in children() if task_log(pid) == f"{task}.log"]
        assert pids, f"no {task} to hurt: {self.outcome}"
        assert Path(f"/proc/{pids[0]}/comm").read_text() == f"{task}\n"
        return pids[0]

    def send(self, task: str, number: int) -> None:
        os.kill(self.pid(task), number)

    def end(self):
        self.thread.join(400)
        assert not self.thread.is_alive()
        return self.outcome

    def survived(self):
        """Return the recovery figures of a run that must have survived its faults, replay included."""
        run = self.end()
        assert not isinstance(run, Exception), run
        assert run.error() < TOLERANCE
        departure = departure_of(self.scheme, run.workers, run.trace, run.result, run.sparse)
        assert departure == (None if run.result["recovery"]["restored"] else "")
        assert run.result["steps"] == sum(self.scheme.rounds(run.steps, 0, k).steps() for k in range(run.workers))
        return run.result["recovery"]


class Lasting(Going):
    """A run that leaves the cores to others and lasts until a fault ends it."""

    def __init__(self, scheme, run_dir: Path, **options):
        super().__init__(scheme, run_dir, **LASTING | {"workers": 2} | options)
        assert self.thread.is_alive(), f"the run ended before it trained: {self.outcome!r}"

    def trains(self, updates: int) -> bool:
        path = self.run_dir / "metrics.jsonl"
        return path.exists() and "worker" in path.read_text()

    @property
    def result(self):
        path = self.run_dir / "result.json"
        return json.loads(path.read_text()) if path.exists() else {}
