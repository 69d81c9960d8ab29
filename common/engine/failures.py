"""What TensorFlow's errors mean: a peer is gone, a message was refused, an operation failed here."""

from __future__ import annotations

import re

from ..errors import WaitTimeout
from ..lazy import tf
from .segments import GONE


def is_refusal(error: BaseException) -> bool:
    """True if the ps refused a message or a look at a dirty state."""
    return isinstance(error, tf.errors.InvalidArgumentError) and "[refused]" in str(error)


def was_repeated(error: BaseException) -> bool:
    """True if TensorFlow's transport has delivered a call twice, which the receiver refuses: nobody is gone.

    Seen about once in a million calls, on a busy machine.
    """
    return "request was received twice" in str(error)


def own_failure(error: BaseException) -> str:
    """What TensorFlow says of an operation of the worker itself that found something missing; empty if there is none.

    A file in its data, for instance: to try again is no help. TensorFlow says which task an operation ran on, and which
    other task it was waiting for, if it was; of several tasks, it lists what each says, in any order, with its code.
    """
    if not isinstance(error, tf.errors.NotFoundError | tf.errors.FailedPreconditionError):
        return ""
    said = re.split(r"^(?=(?:[A-Z_]+: )?From /job:)", str(error), flags=re.MULTILINE)
    own = re.compile(r"(NOT_FOUND: |FAILED_PRECONDITION: )?From /job:worker")
    mine = (part for part in said if own.match(part) and "[[" in part and "remote target" not in part)
    return next(mine, "")


def is_absence(error: BaseException) -> bool:
    """True if a peer is gone, has come back empty, or does not answer."""
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
    """True if somebody was waited for in vain, who may be there."""
    return isinstance(error, (tf.errors.DeadlineExceededError, WaitTimeout))
