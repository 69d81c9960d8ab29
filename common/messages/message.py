"""The layout of a message: a vector [P], followed by the scalars that its scheme names (`Scheme.scalars`).

Gates see one vector [P + m] with the scalars at its end, so a barrier takes their mean with that of the vector. On the
parameter server each slice of the message has all scalars at its end, because each slice of the center merges on its
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ..errors import UserError
from ..lazy import tf
from ..sync.store import Tensor

SCALARS = ".scalars"  # in a checkpoint, suffix of the name of a kept message's scalars


def packed(name: str, scalars: tuple[str, ...], message: Any) -> Tensor:
    """Return the result of `Scheme.message` as one vector [P + m].

    Args:
        name: name of the scheme.
        scalars: names of the scheme's scalars.
        message: a vector [P]; with scalars a vector and a mapping of each name to a number.

    Raises:
        UserError: the message does not have exactly these scalars.
    """
    vector, beside = message if isinstance(message, tuple) else (message, {})
    if not isinstance(beside, Mapping) or set(beside) != set(scalars):
        sent = ", ".join(map(str, beside)) or "none"
        raise UserError(f"{name}: a message must bring the scalars {', '.join(scalars) or 'none'}. Received: {sent}")
    vector = tf.convert_to_tensor(vector)
    if not scalars:
        return vector
    numbers = [tf.reshape(tf.cast(beside[scalar], tf.float32), []) for scalar in scalars]
    return tf.concat([vector, tf.stack(numbers)], 0)


def cut_off(slices: Mapping[str, Any], names: Sequence[str], number: int) -> dict[str, Any]:
    """Move the scalars of messages with these names from their slices, `name/0`, `name/1`, ..., to `name.scalars/0`.

    All slices have the same scalars. If they stayed in the slices, a run with another number of slices could not resume
    from the concatenated vectors.
    """
    apart = dict(slices)
    for name in names:
        apart |= {key: value[:-number] for key, value in slices.items() if key.rpartition("/")[0] == name}
        apart[f"{name}{SCALARS}/0"] = slices[f"{name}/0"][-number:]
    return apart


class Sent(SimpleNamespace):
    """The scalars of a message, as attributes."""

    def __getattr__(self, name: str) -> Any:
        named = ", ".join(vars(self)) or "none"
        raise AttributeError(f"no scalar {name} is sent: name it in `scalars`. It has: {named}", name=name, obj=self)


def unpacked(scalars: tuple[str, ...], message: Any, size: int) -> tuple[Tensor, Sent]:
    """Split a message, or a slice of it, into its vector [size] and its scalars."""
    if not scalars:
        return message, Sent()
    return message[:size], Sent(**{name: message[size + i] for i, name in enumerate(scalars)})
