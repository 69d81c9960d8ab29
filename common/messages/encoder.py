"""The worker's side of a codec, which cuts and encodes messages and holds the codec's variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from .codec import Codec
from .one_piece import as_one, as_tensors
from .ops import zeros


class Encoder:
    """Encodes the messages of one worker; built on its device.

    Args:
        codec: the codec of the messages.
        sizes: sizes of the slices of the center.
        name: prefix of the names of the codec's variables.

    Attributes:
        variables: the codec's variables for each slice, by name.
        worker: the worker as its scheme sees it; None if the sender is no worker.
    """

    worker: Any = None

    def __init__(self, codec: Codec, sizes: Sequence[int], name: str):
        self.codec, self.sizes = codec, sizes
        self.variables = [
            SimpleNamespace(**{key: tf.Variable(value, name=f"{name}_{key}_{i}") for key, value in first.items()})
            for i, first in enumerate(self._first())
        ]

    def _first(self) -> list[Any]:
        """Return the initial values of the codec's variables for each slice, by name."""
        return [self.codec.local_variables(zeros(size)) for size in self.sizes]

    def begin_again(self) -> None:
        """Reset the codec's variables to their initial values, when a worker joins."""
        if self.codec.remembers:
            for local, first in zip(self.variables, self._first(), strict=True):
                for name, value in first.items():
                    getattr(local, name).assign(value)

    @property
    def local(self) -> dict[str, list[Any]]:
        """The codec's variables by name, one for each slice."""
        return {name: [getattr(local, name) for local in self.variables] for name in vars(self.variables[0])}

    def encode(self, message: Any, codec: Codec) -> list[Any]:
        """Return the encoded slices of a message, a list of tensors for each slice.

        `codec` is that of the worker, whose variables these are, or another one without variables.
        """
        return [*codec.send(message, self.sizes, self.variables, self.worker)]

    def in_one_piece(self, message: Any) -> tuple[Any, Any, Callable[[Any], Any]]:
        """Encode a message for other workers.

        Returns:
            the vector that travels; the message as it arrives; and the function that returns a worker's message of the
            same round as it arrives, given the vector that has travelled.
        """
        (wire,), size = self.encode(message, self.codec), message.shape[0]

        def arrived(vector: Any) -> Any:
            return self.codec.decode(as_tensors(vector, wire), size)

        return as_one(wire), self.codec.decode(wire, size), arrived
