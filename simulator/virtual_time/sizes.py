"""The sizes of messages and replies in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...common.server.traffic import halves


class Sizes:
    """The bytes of a worker's messages and replies.

    Args:
        message: bytes of a message, or of each vector that a worker sends for it, see `Traffic.vectors`.
        reply: bytes of a reply, with those of the means among these vectors.
        apart: bytes of message and reply in rounds of the kinds that have others, see `Traffic.apart`.

    Attributes:
        means: the given bytes of each vector but the last, which is the message.
    """

    def __init__(self, message: float | Sequence[float], reply: float, apart: Mapping[str, tuple[float, float]]):
        vectors: list[float] = np.ravel(message).tolist()
        self.means = vectors[:-1]
        self.usual, self.apart = (float(sum(vectors)), reply), apart

    def message(self, kind: str = "") -> float:
        """Return the bytes of a message in a round of this kind."""
        return self.apart.get(kind, self.usual)[0]

    def reply(self, kind: str = "") -> float:
        """Return the bytes of a reply in a round of this kind."""
        return self.apart.get(kind, self.usual)[1]

    def reductions(self, workers: int) -> list[tuple[float, float]]:
        """Return the bytes of each vector that workers reduce in a round: in both halves of its reduction."""
        means = sum(self.means)
        last = halves(self.message() - means, self.reply() - means, workers)
        return [*((size, size) for size in self.means), last]
