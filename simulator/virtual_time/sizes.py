"""The sizes of messages and replies in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...common.contract.scheme import Scheme
from ...common.server.traffic import halves


class Sizes:
    """The bytes of a worker's messages and replies, which may be more in some of its rounds.

    Args:
        scheme: the algorithm.
        message: bytes of a message, or of each vector that a worker sends for it, see `Traffic.vectors`.
        reply: bytes of a reply, with those of the means among these vectors.
        floats: bytes of a message and a reply, or of both, that are sent as floats, see `Scheme.sent_as_floats`.
        before: rounds that each worker has made before.
        rounds: the most rounds that it makes now.

    Attributes:
        means: the given bytes of each vector but the last, which is the message.
    """

    def __init__(
        self,
        scheme: Scheme,
        message: float | Sequence[float],
        reply: float,
        floats: float | Sequence[float],
        before: int,
        rounds: int,
    ):
        vectors: list[float] = np.ravel(message).tolist()
        self.means = vectors[:-1]
        self.of_message = float(sum(vectors))
        self.of_reply = reply
        self.floats = np.broadcast_to(floats, 2).tolist()
        self.count, self.before = scheme.sent_as_floats, before
        self.vary = self.count(before + rounds) > self.count(before)

    def message(self, number: int) -> float:
        """Return the bytes of the message of a worker's round, from 0."""
        return self.floats[0] if self.vary and self.as_floats(number) else self.of_message

    def reply(self, number: int) -> float:
        """Return the bytes of the reply in a worker's round, from 0."""
        return self.floats[1] if self.vary and self.as_floats(number) else self.of_reply

    def of(self, kind: str, number: int) -> float:
        """Return the bytes for which the ps holds its lock in a worker's round that ends with that kind of event."""
        return self.reply(number) if kind == "pull" else self.message(number)

    def reductions(self, number: int, workers: int) -> list[tuple[float, float]]:
        """Return the bytes of each vector that workers reduce in a round, from 0: in both halves of its reduction."""
        means = sum(self.means)
        last = halves(self.message(number) - means, self.reply(number) - means, workers)
        return [*((size, size) for size in self.means), last]

    def as_floats(self, number: int) -> bool:
        """Return True if the message of a worker's round, from 0, is sent as floats."""
        number += self.before
        return self.count(number + 1) > self.count(number)
