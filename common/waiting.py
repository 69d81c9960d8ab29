"""Bounded waits: each ends when its condition holds, or with an error that names what is missing.

The limits of waits are on the clock `awake`. It stands while its process is suspended, as by Slurm, `docker pause` or
SIGSTOP: a task that wakes has waited no longer than before, and lets the others wake up, too.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from .errors import WaitTimeout

POLL_SECONDS = 0.01

CONNECT_SECONDS = 2.0

STEP_SECONDS = 2.0  # of the clock between two looks at most: a longer time is one in which the process did not run

LOOK_SECONDS = 0.5  # between two looks of the clock's thread

PACE = 1000  # reports in each e-folding of the time


def paced(elapsed: float, limit: float) -> float:
    """Return the seconds until the next report: a thousandth of the elapsed time, so that reports get rarer."""
    return min(elapsed / PACE, limit)


class AwakeClock:
    """A clock that stands while its process is suspended: between two looks it advances by `STEP_SECONDS` at most.

    A thread looks while a block of `looking` lasts, so that a wait of any length may be measured. Without it the clock
    is an ordinary one.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock = clock
        self._seen = clock(), 0.0  # time and awake time of the last look; replaced as a whole, so no lock is needed
        self._threads: list[threading.Thread] = []

    def now(self) -> float:
        """Return the seconds for which the process has been awake; only differences mean something."""
        at, awake = self._seen
        passed = self.clock() - at
        # After a fork the child has no thread.
        return awake + (min(passed, STEP_SECONDS) if any(t.is_alive() for t in self._threads) else passed)

    def look(self) -> None:
        """Advance the clock."""
        at, awake = self._seen
        now = self.clock()
        self._seen = now, awake + min(now - at, STEP_SECONDS)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look regularly, in a thread, until the end of the block."""
        self._seen = self.clock(), self.now()
        over = threading.Event()
        thread = threading.Thread(target=self._look_until, args=(over,), daemon=True)
        thread.start()
        self._threads.append(thread)
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._threads.remove(thread)

    def _look_until(self, over: threading.Event) -> None:
        while not over.wait(LOOK_SECONDS):
            self.look()


awake = AwakeClock()


def wait_until(
    condition: Callable[[], bool], seconds: float, missing: Callable[[], str], poll: float = POLL_SECONDS
) -> None:
    """Poll until the condition holds; raise `WaitTimeout`, naming what is missing, after `seconds`."""
    deadline = awake.now() + seconds
    while not condition():
        if awake.now() > deadline:
            raise WaitTimeout(f"waited {seconds:g} s for {missing()}")
        time.sleep(poll)


def absent(flags: np.ndarray) -> str:
    """Return the names of the workers whose flag is not set."""
    return ", ".join(f"worker {k}" for k in np.flatnonzero(~np.asarray(flags)))


def reachable(host: str) -> bool:
    """Return True if a process listens at `host:port`."""
    name, port = host.rsplit(":", 1)
    try:
        socket.create_connection((name.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True
