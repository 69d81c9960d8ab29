"""The synchronization rule of bounded staleness: messages are applied one by one, and workers too far ahead block."""

from __future__ import annotations

from dataclasses import dataclass

from ..arguments import at_least
from ..lazy import tf
from .store import Message, Store, Tensor, WorkerSlot
from .synchronization import Synchronization


@dataclass(frozen=True)
class Bounded(Synchronization):
    """Each message is applied when it arrives; no worker begins a round more than `slack` rounds ahead of the slowest.

    With a slack of 1, a worker with 5 recorded rounds continues as soon as all workers have 4. It continues from the
    newest center. The others wait for a worker that rejoins after an eviction until it has caught up.
    """

    slack: int = 1
    waits = True
    label = "bounded"

    @property
    def lead(self) -> int:
        """The slack, in rounds."""
        return self.slack

    def check(self, workers: int) -> None:
        """Raise `UserError` if the slack is negative."""
        at_least(0, slack=self.slack)

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Apply the message, wait until the slowest worker is within the slack, read the center."""
        slot, slices = ps.center.receive(slot, message)
        with ps.event(slot, slices) as pushed:
            ps.apply(slot, slices)
            # Set this worker's flag before the release reads it. Otherwise a worker near enough would get no token.
            with tf.device(ps.devices[0]), tf.control_dependencies([ps.slots.write(ps.variables.arrived, slot, True)]):
                self.release(ps)
        token = slot.sleep(after=[pushed.released])
        with ps.transactions.lock(after=[token]):
            ps.center.note_pull(slot)
            replies = ps.center.each_slice(lambda part, _: part.center.read_value())
        return ps.center.reply(replies, slot)

    def awaited(self, ps: Store) -> Tensor:
        """Return flags [W] of the workers that are too far behind a waiting worker."""
        rounds, arrived = ps.journal.rounds_applied.read_value(), ps.variables.arrived.read_value()
        return ps.slots.active & (rounds + self.lead < tf.reduce_max(tf.where(arrived, rounds, 0)))

    def release(self, ps: Store) -> None:
        """Wake the waiting workers that are within the slack of the slowest."""
        rounds, arrived = ps.journal.rounds_applied.read_value(), ps.variables.arrived.read_value()
        slowest = tf.reduce_min(tf.where(ps.slots.active & ~ps.slots.finished, rounds, rounds.dtype.max))
        free = arrived & (rounds - self.lead <= slowest)
        with tf.control_dependencies([ps.variables.arrived.assign(arrived & ~free)]):
            ps.wake(free)
