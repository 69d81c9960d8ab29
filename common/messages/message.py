"""Messages, as schemes make and see them: a vector [P], and the scalars that the scheme names (`Scheme.scalars`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ..errors import UserError
from ..lazy import tf
from ..sync.store import Message, Tensor


def as_message(name: str, scalars: tuple[str, ...], made: Any) -> Message:
    """Return the result of `Scheme.message` as a `Message`.

    Args:
        name: name of the scheme.
        scalars: names of the scheme's scalars.
        made: a vector [P]; with scalars a vector and a mapping of each name to a number.

    Raises:
        UserError: the message does not have exactly these scalars.
    """
    vector, beside = made if isinstance(made, tuple) else (made, {})
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
