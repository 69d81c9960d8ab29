"""Bounded waits: each ends with what has come, or with the name of what has not."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .errors import WaitTimeout

POLL_SECONDS = 0.01

CONNECT_SECONDS = 2.0

LOOK_SECONDS = 1.0  # between two looks for signs of life

QUIET_SECONDS = 3.0  # processes speak every second: after so much silence, their CPU time is looked at

PACE = 1000  # reports in each e-fold of the time


def paced(elapsed: float, most: float) -> float:
    """Seconds to the next of many reports: a thousandth of the time that has passed, so that they get rarer."""
    return min(elapsed / PACE, most)


def wait_until(
    condition: Callable[[], bool], seconds: float, missing: Callable[[], str], poll: float = POLL_SECONDS
) -> None:
    """Poll until the condition holds; `WaitTimeout` with what is missing after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise WaitTimeout(f"waited {seconds:g} s for {missing()}")
        time.sleep(poll)


def absent(flags: np.ndarray) -> str:
    """The workers whose flag is not set, by name."""
    return ", ".join(f"worker {k}" for k in np.flatnonzero(~np.asarray(flags)))


def reachable(host: str) -> bool:
    """True if somebody listens at `host:port`."""
    name, port = host.rsplit(":", 1)
    try:
        socket.create_connection((name.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


class LifeSigns:
    """How long nothing has been heard from each of some processes. A message counts, and CPU time that was used.

    A process that is busy in native code may be silent for long: it is not taken for one that is stopped. Only time in
    which this process itself runs counts: whoever was suspended has heard nobody, and must not complain.

    Args:
        clock: seconds.
        cpu: CPU time that a process has used, given its pid; None if that is not known.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[int], float | None] = lambda pid: cpu_seconds(pid),
    ):
        self.clock, self.cpu = clock, cpu
        self.now = 0.0
        self.looked = clock()
        self.last: dict[str, float] = {}
        self.pids: dict[str, int] = {}
        self.used: dict[str, float | None] = {}

    def expect(self, name: str, pid: int | None = None) -> None:
        """From now on, something should be heard from that process."""
        self.last[name] = self.now
        self.used.pop(name, None)
        self.pids.pop(name, None)
        if pid is not None:
            self.pids[name] = pid

    def forget(self, name: str) -> None:
        """Nothing more is expected."""
        self.last.pop(name, None)

    def heard(self, name: str) -> None:
        """A message has come."""
        if name in self.last:
            self.last[name] = self.now

    def look(self) -> None:
        """To be called now and then, more often than every `LOOK_SECONDS` unless this process is suspended."""
        now = self.clock()
        self.now += min(now - self.looked, LOOK_SECONDS)
        self.looked = now
        for name in self.silent(QUIET_SECONDS):
            pid = self.pids.get(name)
            used = None if pid is None else self.cpu(pid)
            if used is not None and used != self.used.setdefault(name, used):
                self.used[name] = used
                self.heard(name)

    def silent(self, seconds: float) -> dict[str, float]:
        """Those that have been silent for longer than that, and for how long."""
        return {name: self.now - last for name, last in self.last.items() if self.now - last > seconds}


def cpu_seconds(pid: int) -> float | None:
    """The CPU time that a process has used; None if it is gone, or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None
