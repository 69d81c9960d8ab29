"""A look at the center from outside: as it is at one moment, for a client that fetches it.

What a client fetches is copied several times on its way, on the ps and there. A large center is kept as it is at that
moment, and fetched piece by piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

PIECE_FLOATS = 1 << 22  # 16 MB: what a client fetches at once


class Look:
    """The slices at one moment.

    Args:
        slices: of the center.
        sizes: of them. If one is large, all are kept, and share the memory of the center until its next update.
    """

    def __init__(self, slices: Sequence[Any], sizes: Sequence[int]):
        self.slices, self.sizes = slices, sizes
        self.names = ["center"] if slices[0].average is None else ["center", "average"]
        self.kept = [self._nothing(part) for part in slices] if max(sizes) > PIECE_FLOATS else []

    def _nothing(self, part: Any) -> dict[str, Any]:
        with tf.device(part.device):
            return {
                name: tf.Variable(tf.zeros([0]), shape=[None], name=f"look_{name}_{part.index}") for name in self.names
            }

    def take(self) -> dict[str, list[Any]]:
        """The slices of the center, and of its `average` if there is one; nothing if they are kept."""
        found: dict[str, list[Any]] = {name: [] for name in self.names}
        for part in self.slices:
            with tf.device(part.device):
                for name in self.names:
                    found[name].append(getattr(part, name).read_value())
                    if self.kept:
                        self.kept[part.index][name].assign(found[name][-1])
        return {} if self.kept else found

    def pieces(self) -> list[dict[str, Any]]:
        """What is kept, to be fetched one after the other."""
        return [
            {name: variable.read_value()[first : first + PIECE_FLOATS] for name, variable in kept.items()}
            for kept, size in zip(self.kept, self.sizes, strict=False)
            for first in range(0, size, PIECE_FLOATS)
        ]

    def forget(self) -> Any:
        """It has been fetched."""
        return tf.group(*(variable.assign(tf.zeros([0])) for kept in self.kept for variable in kept.values()))
