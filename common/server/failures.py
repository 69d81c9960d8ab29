"""Classification of TensorFlow's errors: a peer is gone, a message was refused, an operation failed here."""

from __future__ import annotations

import re

from ..errors import WaitTimeout
from ..lazy import tf
from ..messages.segments import GONE


def is_refusal(error: BaseException) -> bool:
    """Return True if the ps refused a message, or a read in a dirty state."""
    return isinstance(error, tf.errors.InvalidArgumentError) and "[refused]" in str(error)


def was_repeated(error: BaseException) -> bool:
    """Return True if TensorFlow's transport delivered a call twice, which the receiver refuses; no peer is gone.

    This happens about once in a million calls, on a busy machine.
    """
    return "request was received twice" in str(error)


def own_failure(error: BaseException) -> str:
    """Return TensorFlow's message if an operation of the worker itself found something missing; else an empty string.

    An example is a missing file of its data, where a retry does not help. TensorFlow's message names the task of an
    operation, and the task for which it was waiting, if any; for several tasks it lists the message of each with its
    code, in any order. In a process without other tasks it names none.
    """
    if not isinstance(error, tf.errors.NotFoundError | tf.errors.FailedPreconditionError):
        return ""
    if "/job:" not in str(error):
        return str(error) if "[[{{node" in str(error) else ""
    prefix = re.compile(r"(NOT_FOUND: |FAILED_PRECONDITION: )?From /job:worker")
    parts = (part for part in _parts(error) if prefix.match(part) and "[[" in part and "remote target" not in part)
    return next(parts, "")


def _parts(error: BaseException) -> list[str]:
    """Return what each task says of a call, the first line naming the task; before that, what names none."""
    return re.split(r"^(?=(?:[A-Z_]+: )?From /job:)", str(error), flags=re.MULTILINE)


def failed_step(error: BaseException, worker: int) -> str:
    """Return in one line that an operation of a step failed, and why; empty if a peer is gone or refuses the message.

    Args:
        error: the error of a call.
        worker: the worker that has made the call; another one may have the operation.
    """
    text = own_failure(error)
    if not text:
        if not isinstance(error, tf.errors.OpError) or is_refusal(error) or is_absence(error) or was_repeated(error):
            return ""
        effect = re.compile("CANCELLED|ABORTED")
        text = next((part for part in _parts(error) if "From /job:" in part and not effect.match(part)), str(error))
    if task := re.match(r".*From /job:worker/replica:0/task:(\d+)", text):
        worker = int(task[1])
    frame = re.compile(
        r"\s(?!\s*\(\d)|$|Graph execution error|Detected at node|Node: |=====|(\S+: )?From /job:|\d+ root"
    )
    lines = (re.sub(r"^\(\d+\) [A-Z_]+: ", "", line.strip()) for line in text.splitlines() if not frame.match(line))
    kind = type(error).__name__
    return f"a step of worker {worker} failed: {next(lines, kind)} ({kind})"


def is_absence(error: BaseException) -> bool:
    """Return True if a peer is gone, has restarted without its variables, or does not answer."""
    if own_failure(error):
        return False
    kinds = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.FailedPreconditionError,
        tf.errors.NotFoundError,
        tf.errors.DeadlineExceededError,
    )
    return isinstance(error, (*kinds, WaitTimeout)) or "reset by peer" in str(error).lower() or GONE in str(error)


def is_late(error: BaseException) -> bool:
    """Return True if a wait timed out; the peer may be alive."""
    return isinstance(error, (tf.errors.DeadlineExceededError, WaitTimeout))
