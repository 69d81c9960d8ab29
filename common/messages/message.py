"""Messages, as schemes make and see them: a vector [P], and the scalars that the scheme names (`Scheme.scalars`).

A message may need means over all workers (`worker.mean`). Where one process has all workers, it builds the messages of
all up to their first mean; then again, with the first mean known, up to their second; and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ..errors import UserError
from ..lazy import tf
from ..sync.store import Message, Tensor


def returned(name: str, rule: str, value: Any) -> Any:
    """Return the value that a rule of the scheme has returned; `UserError` if it has ended without a `return`."""
    if value is None:
        raise UserError(f"{name}: {rule} must return a vector, and returns None: end it with return")
    return value


def as_message(name: str, scalars: tuple[str, ...], result: Any) -> Message:
    """Return the result of `Scheme.message` as a `Message`.

    Args:
        name: name of the scheme.
        scalars: names of the scheme's scalars.
        result: a vector [P]; with scalars a vector and a mapping of each name to a number.

    Raises:
        UserError: there is no message, or it does not have exactly these scalars.
    """
    vector, beside = result if isinstance(result, tuple) else (returned(name, "message", result), {})
    if not isinstance(beside, Mapping) or set(beside) != set(scalars):
        sent = ", ".join(map(str, beside)) or "none"
        raise UserError(f"{name}: a message must bring the scalars {', '.join(scalars) or 'none'}. Received: {sent}")
    numbers = [tf.reshape(tf.cast(beside[scalar], tf.float32), []) for scalar in scalars]
    return Message(tf.convert_to_tensor(vector), tf.stack(numbers) if scalars else ())


class Sent(SimpleNamespace):
    """The scalars of a message, as attributes."""

    def __getattr__(self, name: str) -> Any:
        named = ", ".join(vars(self)) or "none"
        raise AttributeError(f"no scalar {name} is sent: name it in `scalars`. It has: {named}", name=name, obj=self)


def sent_by(scalars: tuple[str, ...], values: Tensor) -> Sent:
    """Return the scalars of a message, [m], by their names."""
    return Sent(**{name: values[i] for i, name in enumerate(scalars)})


def declared_means(name: str, sizes: Sequence[int], mean: Callable[[Tensor], Tensor]) -> Callable[[Any], Tensor]:
    """Return the function `worker.mean` of one message, which checks that the scheme has declared each vector.

    Args:
        name: name of the scheme.
        sizes: elements of the vectors of which a message takes the means, in their order, then of the message.
        mean: function that takes the mean of a float32 tensor.
    """
    declared, lengths = [*sizes][:-1], []

    def checked(vector: Any) -> Tensor:
        """Return the mean; raises `UserError` if the scheme has not declared a vector of this size here."""
        vector = tf.cast(vector, tf.float32)
        lengths.append(int(vector.shape.num_elements()))
        if lengths != declared[: len(lengths)]:
            raise UserError(
                f"{name}: Scheme.message_sizes must return the elements of each worker.mean, then of the message. "
                f"Received: means of {lengths} elements, where {declared} are declared"
            )
        return mean(vector)

    return checked


class MeanUnknown(Exception):
    """A message needs the mean of a vector over all workers."""

    def __init__(self, vector: Tensor):
        self.vector = vector


def known_means(means: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that returns these means in turn, and raises `MeanUnknown` where another is asked for."""
    left = iter(means)

    def mean(vector: Tensor) -> Tensor:
        for value in left:
            return value
        raise MeanUnknown(vector)

    return mean
