"""A read-only snapshot of the center for a client.

A tensor that a client fetches through a socket is copied several times, on the ps and on the client. So a large center
is kept as a snapshot on the ps and fetched chunk by chunk, unless ps and client share memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..messages.transport import Transport

CHUNK_FLOATS = 1 << 22  # 16 MB: what a client fetches at once


class CenterReader:
    """A snapshot of all slices at one version.

    Args:
        slices: slices of the center.
        sizes: their sizes. If one is large, all are assigned to `snapshots`, which share the memory of the
            center until its next update.
        transport: transport to the client. With shared memory there are no `snapshots`.
    """

    def __init__(self, slices: Sequence[Any], sizes: Sequence[int], transport: Transport):
        self.slices, self.sizes, self.transport = slices, sizes, transport
        self.names = ["center"] if slices[0].average is None else ["center", "average"]
        in_chunks = max(sizes) > CHUNK_FLOATS and not transport.shared
        self.snapshots = [self._nothing(part) for part in slices] if in_chunks else []

    def _nothing(self, part: Any) -> dict[str, Any]:
        with tf.device(part.device):
            return {
                name: tf.Variable(tf.zeros([0]), shape=[None], name=f"read_{name}_{part.index}") for name in self.names
            }

    def read(self) -> dict[str, list[Any]]:
        """Take a snapshot; return the slices of the center, and of its `average` if any, or nothing if it is stored."""
        found: dict[str, list[Any]] = {name: [] for name in self.names}
        for part in self.slices:
            with tf.device(part.device):
                for name in self.names:
                    now = getattr(part, name).read_value()
                    found[name].append(self.transport.send(now))
                    if self.snapshots:
                        self.snapshots[part.index][name].assign(now)
        return {} if self.snapshots else found

    def chunks(self) -> list[dict[str, Any]]:
        """Return the chunks of `snapshots`, to be fetched in sequence."""
        return [
            {name: variable.read_value()[first : first + CHUNK_FLOATS] for name, variable in snapshot.items()}
            for snapshot, size in zip(self.snapshots, self.sizes, strict=False)
            for first in range(0, size, CHUNK_FLOATS)
        ]

    def release(self) -> Any:
        """Empty `snapshots`, after they were fetched."""
        return tf.group(*(variable.assign(tf.zeros([0])) for row in self.snapshots for variable in row.values()))
