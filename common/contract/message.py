"""A message as it leaves a worker: a vector [P], and beside it the scalars that its scheme names (`Scheme.scalars`).

To gates it is one vector [P + m], the scalars at its end: a barrier adds them up and divides them as it does the rest.
On the parameter server each slice of it has all of them at its end, for each slice of the center merges on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ..errors import UserError
from ..gates.store import Tensor
from ..lazy import tf

SCALARS = ".scalars"  # of a message that is kept, in a checkpoint


def packed(name: str, scalars: tuple[str, ...], message: Any) -> Tensor:
    """What `Scheme.message` returned, as one vector [P + m].

    Args:
        name: of the scheme.
        scalars: that it names.
        message: a vector [P]; with scalars a vector and a mapping of each name to a number.

    Raises:
        UserError: it is not what the scheme says that it sends.
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
    """Values of slices, `name/0`, `name/1`, ..., where messages of these names lose their scalars to `name.scalars/0`.

    All slices have the same scalars; with other slices a run could not go on from vectors that have them in between.
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
    """The vector [size] of a message, or of a slice of it, and its scalars."""
    if not scalars:
        return message, Sent()
    return message[:size], Sent(**{name: message[size + i] for i, name in enumerate(scalars)})
