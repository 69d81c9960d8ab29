"""The time of cores that the tasks of a run have used while all of its workers were at their rounds.

Start-up takes more of it than many a run, so the count goes from when all workers have got going (each has told of its
rounds a few times) to the end of the first one. Who shares the cores of a machine with others slows them: that is what
a simulation has to know.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from ..cluster.liveness import cpu_seconds

REPORTS = 4  # of a worker: the rounds of the first two are single, the next ones are prepared for many in one call


class CpuRecord:
    """Reads the clocks of the tasks on this machine, told by the events of a run.

    Args:
        workers: W.
        cpu: CPU time that a process has used, given its pid; None if that is not known.
    """

    def __init__(self, workers: int, cpu: Callable[[int], float | None] = cpu_seconds):
        self.awaited, self.cpu = dict.fromkeys(range(workers), REPORTS), cpu
        self.pids: dict[str, int] = {}
        self.begun: tuple[float, dict[str, float]] | None = None
        self.seconds: dict[str, float] | None = None
        self.ended = 0.0

    def on_event(self, event: dict[str, Any]) -> None:
        """Take note of one event."""
        kind = event["event"]
        if kind == "started":
            if any(self.pids.get(task, pid) != pid for task, pid in event["pids"].items()):
                self.begun = None  # who is started again has another clock
            self.pids = dict(event["pids"])
        elif kind == "worker" and self.pids and event["worker"] in self.awaited:
            self.awaited[event["worker"]] -= 1
            self.awaited = {worker: reports for worker, reports in self.awaited.items() if reports > 0}
            if not self.awaited:
                self.begun = time.time(), self._read()
        elif kind == "finished" and self.begun is not None and self.seconds is None:
            before, self.ended = self.begun[1], time.time()
            self.seconds = {task: used - before[task] for task, used in self._read().items() if task in before}

    def _read(self) -> dict[str, float]:
        used = {task: self.cpu(pid) for task, pid in self.pids.items()}
        return {task: seconds for task, seconds in used.items() if seconds is not None}

    def summary(self) -> dict[str, Any] | None:
        """As it stands in result.json; None if it is not known, as in a run in virtual time.

        `cores` of this machine that the run may use; `seconds` of a core that each task here has used between `begun`
        and `ended`, microseconds since 1970.
        """
        if self.begun is None or not self.seconds:
            return None
        return {
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "begun": round(1e6 * self.begun[0]),
            "ended": round(1e6 * self.ended),
            "seconds": {task: round(seconds, 3) for task, seconds in sorted(self.seconds.items())},
        }
