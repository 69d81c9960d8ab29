"""The operating system: what Linux, macOS, Windows and their file systems do not have in common.

A name that a system lacks is `None` here, so that each module can be imported everywhere.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from typing import Any


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


fcntl, resource = _module("fcntl"), _module("resource")  # Windows has neither


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> float:
    """Return the size of the machine's memory; infinity if the system does not tell it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return math.inf


def free_bytes() -> float:
    """Return the memory that programs can still take without swapping; infinity if the system does not tell it."""
    try:
        with open("/proc/meminfo") as file:
            return 1024 * next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return math.inf


def lock(handle: int, wait: bool = False) -> bool:
    """Lock a file until `unlock`, or until the last process with this handle ends.

    Args:
        handle: descriptor of the file.
        wait: True to wait for a process that has locked the file.

    Returns:
        False if the file system has no locks (Lustre without the option flock, autofs, NFS without lockd, ...).

    Raises:
        BlockingIOError: another process has locked the file, without `wait`.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except (OSError, AttributeError):  # `fcntl` is None on Windows
        return False
    return True


def unlock(handle: int) -> None:
    """Unlock a file, also for child processes that have a copy of the handle; a file system may have no locks."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.flock(handle, fcntl.LOCK_UN)
