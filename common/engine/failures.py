"""What TensorFlow's errors mean: a peer is gone, a message was refused, an operation failed here."""

from __future__ import annotations

from ..errors import WaitTimeout


def is_refusal(error: BaseException) -> bool:
    """True if the ps refused a message or a look at a dirty state."""
    import tensorflow as tf

    return isinstance(error, tf.errors.InvalidArgumentError) and "[refused]" in str(error)


def was_repeated(error: BaseException) -> bool:
    """True if TensorFlow's transport has delivered a call twice, which the receiver refuses: nobody is gone.

    Seen about once in a million calls, on a busy machine.
    """
    return "request was received twice" in str(error)


def is_own(error: BaseException) -> bool:
    """True if an operation of the worker itself found something missing, for instance a file in its data.

    TensorFlow says which task an operation ran on, and which other task it was waiting for, if it was.
    """
    import tensorflow as tf

    text = str(error)
    here = "From /job:worker" in text and "[[" in text and "remote target" not in text
    return here and isinstance(error, tf.errors.NotFoundError | tf.errors.FailedPreconditionError)


def is_absence(error: BaseException) -> bool:
    """True if a peer is gone, has come back empty, or does not answer."""
    import tensorflow as tf

    if is_own(error):
        return False
    kinds = (
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.FailedPreconditionError,
        tf.errors.NotFoundError,
        tf.errors.DeadlineExceededError,
    )
    return isinstance(error, (*kinds, WaitTimeout)) or "reset by peer" in str(error).lower()


def is_late(error: BaseException) -> bool:
    """True if somebody was waited for in vain, who may be there."""
    import tensorflow as tf

    return isinstance(error, (tf.errors.DeadlineExceededError, WaitTimeout))
