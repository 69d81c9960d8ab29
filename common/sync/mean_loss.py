"""A barrier that keeps the mean losses of its sets, from which workers find the length of their next rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..lazy import tf
from .barrier import Barrier
from .store import Message, Store, Tensor

MOST_BLOCKS = 1 << 10  # of which the losses are kept; the last one takes those of all later sets, and is not read


@dataclass(frozen=True)
class MeanLoss(Barrier):
    """A strict barrier whose messages have the mean loss of their round as the last scalar.

    Attributes:
        block: number of sets of which one mean is kept.
    """

    block: int = 1

    def variables(self, ps: Store) -> Mapping[str, Tensor]:
        """Return the initial losses: of the first set, then of each block."""
        return {**super().variables(ps), "mean_losses": tf.zeros([MOST_BLOCKS])}

    def note_set(self, ps: Store, mean: Message, version: Tensor) -> None:
        """Add the loss of the set that follows this version to that of its block."""
        place = tf.minimum(1 + version // self.block, MOST_BLOCKS - 1)
        loss = mean.scalars[-1]
        found = tf.stack([tf.where(tf.equal(version, 0), loss, 0.0), loss / self.block])
        ps.variables.mean_losses.scatter_add(tf.IndexedSlices(found, tf.stack([0, place])))

    def losses(self, ps: Store) -> dict[str, Tensor]:
        """Return the version of the center, and losses of which those of the blocks before it are complete."""
        with tf.device(ps.devices[0]):
            version = ps.center.read_version()
            with tf.control_dependencies([version]):
                return {"version": version, "losses": ps.variables.mean_losses.read_value()[:-1]}
