"""The failure detector: signs of life of tasks, and the one rule for silences that are too long.

| observer       | observed              | sign of life        | interval          | too long: more than               |
|----------------|-----------------------|---------------------|-------------------|-----------------------------------|
| launcher       | processes it started  | a message, CPU time | every second      | a wait                            |
| the first task | tasks of all machines | a heartbeat         | twice a second    | a wait; three if tasks come back  |
| evaluator      | workers of all kinds  | a recorded round    | their own pace    | a wait, and twice the longest gap |
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

POLL_SECONDS = 1.0  # between two polls for signs of life

QUIET_SECONDS = 3.0  # processes send every second: after a silence of this length, their CPU time is read

FIRST_WAITS = 10  # additional waits for the first sign of a task whose pace is not known yet


class FailureDetector:
    """The length of the silence of each observed task, and the tasks whose silence is too long.

    Only time in which this process itself polls counts: a process that was suspended has received no signs of life, and
    must not complain. A process of this machine that is busy in native code may send nothing for long: the CPU time
    that it uses is a sign of life, too. A worker that sends only after each round has its own pace, a second or an
    hour: if worker 1 has sent every 5 s, it is silent after a wait and 10 s.

    Args:
        wait_seconds: the limit of a wait.
        own_pace: True if the observed tasks have a pace of their own; otherwise signs come about every second.
        clock: returns the time in seconds.
        cpu: returns the CPU time that a process has used, given its pid; None if that is not known.

    Attributes:
        gaps: the longest silence of each task so far, in seconds; missing before its first sign.
    """

    def __init__(
        self,
        wait_seconds: float,
        *,
        own_pace: bool = False,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[int], float | None] = lambda pid: cpu_seconds(pid),
    ):
        self.wait_seconds, self.own_pace, self.clock, self.cpu = wait_seconds, own_pace, clock, cpu
        self.now = 0.0
        self.polled = clock()
        self.last: dict[Any, float] = {}
        self.gaps: dict[Any, float] = {}
        self.complaints: Counter[Any] = Counter()  # since the last sign
        self.pids: dict[Any, int] = {}
        self.used: dict[Any, float | None] = {}

    def expect(self, name: Hashable, pid: int | None = None) -> None:
        """Expect signs of life of a task from now on; with a `pid` the task is a process of this machine."""
        self.last[name] = self.now
        for table in (self.complaints, self.used, self.pids):
            table.pop(name, None)
        if pid is not None:
            self.pids[name] = pid

    def forget(self, name: Hashable) -> None:
        """Expect no more signs of life of a task."""
        self.last.pop(name, None)

    def heard(self, name: Hashable) -> None:
        """Note a sign of life of a task."""
        if name in self.last:
            self.gaps[name] = max(self.gaps.get(name, 0.0), self.now - self.last[name])
            self.last[name] = self.now
            self.complaints.pop(name, None)

    def poll(self) -> None:
        """Advance the clock and read CPU times; to be called more often than every `POLL_SECONDS`."""
        now = self.clock()
        self.now += min(now - self.polled, POLL_SECONDS)
        self.polled = now
        for name in self.quiet(QUIET_SECONDS):
            pid = self.pids.get(name)
            used = None if pid is None else self.cpu(pid)
            if used is not None and used != self.used.setdefault(name, used):
                self.used[name] = used
                self.heard(name)

    def quiet(self, seconds: float) -> dict[Any, float]:
        """Return the tasks without a sign of life for longer than `seconds`, each with the seconds of its silence."""
        return {name: self.now - last for name, last in self.last.items() if self.now - last > seconds}

    def silent(self) -> dict[Any, float]:
        """Return the tasks silent for too long, with their seconds; each complaint adds the limit once more."""
        quiet = self.quiet(self.wait_seconds)
        return {name: seconds for name, seconds in quiet.items() if seconds > self._limit(name)}

    def _limit(self, name: Hashable) -> float:
        slack = 2 * self.gaps[name] if name in self.gaps else FIRST_WAITS * self.wait_seconds
        return (1 + self.complaints[name]) * (self.wait_seconds + self.own_pace * slack)

    def complain(self, name: Hashable) -> bool:
        """Count a complaint about a task; returns True if it is not the first since the task's last sign of life."""
        self.complaints[name] += 1
        return self.complaints[name] > 1


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time that a process has used; None if the process is gone, or the system does not provide it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
