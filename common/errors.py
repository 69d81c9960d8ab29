"""Exceptions with their exit codes, which are stable: scripts and schedulers rely on them (see docs/results.md)."""

from __future__ import annotations

import signal


class DistsgdError(Exception):
    """An error with an exit code and an outcome of its own."""

    exit_code = 1
    outcome = "failed"
    ends_run = True  # False if the other tasks continue


class UserError(DistsgdError, ValueError):
    """Invalid input. The message says in one line what is wrong, what was received and what to do. No task started."""

    exit_code = 2
    outcome = "rejected"


class TaskFailed(DistsgdError):
    """A task of the cluster raised an exception."""


class CannotWrite(DistsgdError):
    """A file cannot be written; most often the disk is full."""


class Diverged(DistsgdError):
    """The loss of a worker became NaN or infinite."""

    exit_code = 3
    outcome = "diverged"


class TaskLost(DistsgdError):
    """A task of the cluster was killed or vanished."""

    exit_code = 4
    outcome = "lost"


class WaitTimeout(DistsgdError):
    """A wait for other tasks took longer than allowed; the message names the missing ones."""

    exit_code = 5
    outcome = "timeout"


class Interrupted(KeyboardInterrupt):
    """A signal: Ctrl-C (exit code 130), SIGTERM (143), ...; no `Exception`, so that no handler of failures catches it.

    Attributes:
        signal: name of the signal.
    """

    outcome = "interrupted"

    def __init__(self, signal_number: int):
        self.signal = signal.Signals(signal_number).name
        super().__init__(f"interrupted by {self.signal}")
        self.exit_code = 128 + signal_number


# By the names under which tasks report them.
KINDS = {kind.__name__: kind for kind in (UserError, TaskFailed, CannotWrite, Diverged, TaskLost, WaitTimeout)}


def first_line(message: object) -> str:
    """Return the first line of an error, or of its message, which may be long; the kind of an error without one."""
    return (str(message).splitlines() or [type(message).__name__ if isinstance(message, Exception) else ""])[0]
