"""The CPU time of the tasks of a run while all of its workers were computing rounds.

Start-up may take more CPU time than the run, so the count begins when each worker has reported its rounds a few times,
and ends with the first worker that finishes. A simulation needs these figures, because tasks that share the cores of a
machine slow each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..cluster.failure_detector import cpu_seconds
from ..record_format import NUMBER, TASKS, Kind, or_null
from ..system import usable_cores

REPORTS = 4  # of each worker before the count: two of single rounds, then start-up of calls of many rounds


def _is_cpu(value: Any) -> bool:
    kinds = {"cores": TASKS, "begun": NUMBER, "ended": NUMBER}
    if not isinstance(value, dict) or not all(name in value and fits(value[name]) for name, (_, fits) in kinds.items()):
        return False
    return isinstance(value.get("seconds"), dict) and all(map(NUMBER[1], value["seconds"].values()))


CPU: Mapping[str, Kind] = {"cpu": or_null(("an object of cores, timestamps and seconds", _is_cpu))}  # in result.json


class CpuRecord:
    """Reads the CPU clocks of the tasks on this machine at certain events of a run.

    Args:
        workers: number of workers.
        cpu: function from a pid to the CPU time of the process in seconds; None if it is unknown.
    """

    def __init__(self, workers: int, cpu: Callable[[int], float | None] = cpu_seconds):
        self.awaited, self.cpu = dict.fromkeys(range(workers), REPORTS), cpu
        self.pids: dict[str, int] = {}
        self.begun: tuple[float, dict[str, float]] | None = None
        self.seconds: dict[str, float] | None = None
        self.ended = 0.0

    def on_event(self, event: dict[str, Any]) -> None:
        """Record one event."""
        kind = event["event"]
        if kind == "started":
            if any(self.pids.get(task, pid) != pid for task, pid in event["pids"].items()):
                self.begun = None  # the new process of a restarted task has another CPU clock
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
        """Return the entry of result.json; None if it is unknown, as in a run in virtual time.

        `cores` is the number of cores that the run may use here; `seconds` is the CPU time of each task here between
        `begun` and `ended`, which are microseconds since 1970.
        """
        if self.begun is None or not self.seconds:
            return None
        return {
            "cores": usable_cores(),
            "begun": round(1e6 * self.begun[0]),
            "ended": round(1e6 * self.ended),
            "seconds": {task: round(seconds, 3) for task, seconds in sorted(self.seconds.items())},
        }
