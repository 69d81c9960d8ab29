"""Bounded waits: each ends when its condition holds, or with an error that names what is missing."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import numpy as np

from .errors import WaitTimeout

POLL_SECONDS = 0.01

CONNECT_SECONDS = 2.0

PACE = 1000  # reports in each e-folding of the time


def paced(elapsed: float, most: float) -> float:
    """Return the seconds until the next report: a thousandth of the elapsed time, so that reports get rarer."""
    return min(elapsed / PACE, most)


def wait_until(
    condition: Callable[[], bool], seconds: float, missing: Callable[[], str], poll: float = POLL_SECONDS
) -> None:
    """Poll until the condition holds; raise `WaitTimeout`, naming what is missing, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
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
