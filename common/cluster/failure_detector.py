"""Who has been silent for too long: signs of life, and the one rule that judges their absence.

| who looks      | at whom               | sign of life        | it comes          | too long: more than               |
|----------------|-----------------------|---------------------|-------------------|-----------------------------------|
| launcher       | processes it started  | a message, CPU time | every second      | a wait                            |
| the first task | tasks of all machines | a heartbeat         | twice a second    | a wait; three if tasks come back  |
| evaluator      | workers, wherever     | a round on record   | at their own pace | a wait, and twice the longest gap |
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

LOOK_SECONDS = 1.0  # between two looks for signs of life

QUIET_SECONDS = 3.0  # processes speak every second: after so much silence, their CPU time is looked at

FIRST_WAITS = 10  # more waits for the first sign of somebody whose pace is not known yet


class LifeSigns:
    """How long nothing has been heard from each of some tasks, and for which of them that is too long.

    Only time in which this process itself looks counts: whoever was suspended has heard nobody, and must not complain.
    A process of this machine that is busy in native code may say nothing for long: the CPU time that it uses is a sign
    of life, too. Whoever sends something only when a round is done has its own pace, a second or an hour. Worker 1 sent
    every 5 s, so it is silent after a wait and 10 s.

    Args:
        wait_seconds: the limit of a wait.
        own_pace: those who are looked at have a pace of their own; else signs come often, each second or so.
        clock: seconds.
        cpu: CPU time that a process has used, given its pid; None if that is not known.

    Attributes:
        gaps: the longest silence of each so far, in seconds; it is not there before the first sign.
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
        self.looked = clock()
        self.last: dict[Any, float] = {}
        self.gaps: dict[Any, float] = {}
        self.complaints: Counter[Any] = Counter()  # since the last sign
        self.pids: dict[Any, int] = {}
        self.used: dict[Any, float | None] = {}

    def expect(self, name: Hashable, pid: int | None = None) -> None:
        """From now on, something should be heard from that task, which is a process of this machine if it has a pid."""
        self.last[name] = self.now
        for known in (self.complaints, self.used, self.pids):
            known.pop(name, None)
        if pid is not None:
            self.pids[name] = pid

    def forget(self, name: Hashable) -> None:
        """Nothing more is expected."""
        self.last.pop(name, None)

    def heard(self, name: Hashable) -> None:
        """A sign of life has come."""
        if name in self.last:
            self.gaps[name] = max(self.gaps.get(name, 0.0), self.now - self.last[name])
            self.last[name] = self.now
            self.complaints.pop(name, None)

    def look(self) -> None:
        """To be called now and then, more often than every `LOOK_SECONDS` unless this process is suspended."""
        now = self.clock()
        self.now += min(now - self.looked, LOOK_SECONDS)
        self.looked = now
        for name in self.quiet(QUIET_SECONDS):
            pid = self.pids.get(name)
            used = None if pid is None else self.cpu(pid)
            if used is not None and used != self.used.setdefault(name, used):
                self.used[name] = used
                self.heard(name)

    def quiet(self, seconds: float) -> dict[Any, float]:
        """Those from whom nothing has been heard for longer than that, and for how long."""
        return {name: self.now - last for name, last in self.last.items() if self.now - last > seconds}

    def silent(self) -> dict[Any, float]:
        """Those that have been silent for too long, and for how long; after a complaint they have as long again."""
        quiet = self.quiet(self.wait_seconds)
        return {name: seconds for name, seconds in quiet.items() if seconds > self._limit(name)}

    def _limit(self, name: Hashable) -> float:
        slack = 2 * self.gaps[name] if name in self.gaps else FIRST_WAITS * self.wait_seconds
        return (1 + self.complaints[name]) * (self.wait_seconds + self.own_pace * slack)

    def complain(self, name: Hashable) -> bool:
        """Count a complaint of that task; True if it is not the first since its last sign of life."""
        self.complaints[name] += 1
        return self.complaints[name] > 1


def cpu_seconds(pid: int) -> float | None:
    """The CPU time that a process has used; None if it is gone, or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
