"""Exceptions with their exit codes, and checks of arguments.

The exit codes are stable: scripts and schedulers may rely on them (docs/results.md lists them).
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any


class DistsgdError(Exception):
    """An error with an exit code and an outcome of its own."""

    exit_code = 1
    outcome = "failed"


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
    """Ctrl-C (exit code 130) or SIGTERM (143); no `Exception`, so that no handler of failures catches it."""

    outcome = "interrupted"

    def __init__(self, signal_number: int):
        super().__init__(f"interrupted by signal {signal_number}")
        self.exit_code = 128 + signal_number


KINDS = {
    kind.__name__: kind for kind in (UserError, TaskFailed, CannotWrite, Diverged, TaskLost, WaitTimeout)
}  # by the names under which tasks report them


def at_least(minimum: int, **values: int) -> None:
    """Raise `UserError` for the first named value that is not a whole number from `minimum`."""
    for name, value in values.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise UserError(f"{name} must be a whole number. Received: {name}={value!r}")
        if value < minimum:
            raise UserError(f"{name} must be at least {minimum}. Received: {name}={value}")


def at_most(maximum: float, **values: float) -> None:
    """Raise `UserError` for the first named value above `maximum`."""
    for name, value in values.items():
        if value > maximum:
            raise UserError(f"{name} must be at most {maximum:.12g}. Received: {name}={value}")


def positive(**values: Any) -> None:
    """Raise `UserError` for the first named value that is not a finite number above zero (or a schedule)."""
    for name, value in values.items():
        if not callable(value) and not (_is_finite(value) and value > 0):
            raise UserError(f"{name} must be a positive number. Received: {name}={value!r}")


def fraction(**values: float) -> None:
    """Raise `UserError` for the first named value outside [0, 1]."""
    for name, value in values.items():
        if not (_is_finite(value) and 0 <= value <= 1):
            raise UserError(f"{name} must lie between 0 and 1. Received: {name}={value!r}")


def not_negative(**values: float) -> None:
    """Raise `UserError` for the first named value that is not a finite number from zero."""
    for name, value in values.items():
        if not (_is_finite(value) and value >= 0):
            raise UserError(f"{name} must not be negative. Received: {name}={value!r}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, numbers.Real) and math.isfinite(value)


def one_of(known: Sequence[str], **values: str) -> None:
    """Raise `UserError` for the first named value that is not known."""
    for name, value in values.items():
        if value not in known:
            raise UserError(f"{name} must be one of {', '.join(known)}. Received: {name}={value}")


def first_line(message: object) -> str:
    """Return the first line of an error, or of its message, which may be long."""
    return (str(message).splitlines() or [""])[0]


def message_of(error: BaseException | None) -> str | None:
    """Return the message for result.json if the run has failed, else None."""
    if isinstance(error, SystemExit):
        return f"this program was ended by sys.exit({error.code!r})"
    return None if error is None else str(error)
