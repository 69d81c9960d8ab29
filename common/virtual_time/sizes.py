"""The sizes of messages and replies in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..contract.scheme import Scheme


class Sizes:
    """The bytes of a worker's messages and replies, which may be more in some of its rounds.

    Args:
        scheme: the algorithm.
        message: bytes of a message, or of each vector that a worker sends for it, see `Traffic.vectors`.
        reply: bytes of a reply.
        floats: bytes of a message and a reply, or of both, that are sent as floats, see `Scheme.sent_as_floats`.

    Attributes:
        vectors: the given bytes of each vector.
    """

    def __init__(self, scheme: Scheme, message: float | Sequence[float], reply: float, floats: float | Sequence[float]):
        self.vectors: list[float] = np.ravel(message).tolist()
        self.of_message = float(sum(self.vectors))
        self.of_reply = reply
        self.floats = np.broadcast_to(floats, 2).tolist()
        self.count = scheme.sent_as_floats
        self.vary = type(scheme).sent_as_floats is not Scheme.sent_as_floats  # a method costs time in each round

    def message(self, number: int) -> float:
        """Return the bytes of the message of a worker's round, from 0."""
        return self.floats[0] if self.vary and self._as_floats(number) else self.of_message

    def reply(self, number: int) -> float:
        """Return the bytes of the reply in a worker's round, from 0."""
        return self.floats[1] if self.vary and self._as_floats(number) else self.of_reply

    def of(self, kind: str, number: int) -> float:
        """Return the bytes for which the ps holds its lock in a worker's round that ends with that kind of event."""
        return self.reply(number) if kind == "pull" else self.message(number)

    def _as_floats(self, number: int) -> bool:
        return self.count(number + 1) > self.count(number)
