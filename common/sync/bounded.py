"""Bounded staleness: nobody waits for a set, but nobody runs far ahead."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import at_least
from ..lazy import tf
from .gate import Gate
from .store import Store, Tensor, WorkerSlot


@dataclass(frozen=True)
class Bounded(Gate):
    """Each message is folded when it arrives; nobody begins a round more than `slack` rounds ahead of the slowest.

    With a slack of 1, a worker that has 5 rounds on record goes on as soon as everybody has 4. It goes on from the
    newest center, whoever has written it. A worker that comes back after it was evicted is waited for until it has
    caught up.
    """

    slack: int = 1
    waits = True
    simulated = True
    label = "bounded"

    @property
    def lead(self) -> int:
        """The slack."""
        return self.slack

    def check(self, workers: int) -> None:
        """The slack counts rounds."""
        at_least(0, slack=self.slack)

    def exchange(self, ps: Store, slot: WorkerSlot, message: Tensor) -> Tensor:
        """Fold; wait until the slowest is near enough; read the center."""
        parts = ps.receive(slot, message)
        with ps.event(slot, parts) as pushed:
            ps.fold(slot, parts)
            with tf.device(ps.devices[0]), tf.control_dependencies([ps.write(ps.kept.arrived, slot, True)]):
                self.release(ps)
        token = slot.sleep(after=[pushed.released])
        with ps.lock(after=[token]):
            ps.note_pull(slot)
            replies = ps.each_slice(lambda part, _: part.center.read_value())
        return ps.reply(replies)

    def awaited(self, ps: Store) -> Tensor:
        """Those too far behind somebody who waits."""
        rounds, arrived = ps.folded.read_value(), ps.kept.arrived.read_value()
        return ps.active & (rounds + self.lead < tf.reduce_max(tf.where(arrived, rounds, 0)))

    def release(self, ps: Store) -> None:
        """Whoever waits and is near enough goes on."""
        rounds, arrived = ps.folded.read_value(), ps.kept.arrived.read_value()
        slowest = tf.reduce_min(tf.where(ps.active & ~ps.finished, rounds, rounds.dtype.max))
        free = arrived & (rounds - self.lead <= slowest)
        with tf.control_dependencies([ps.kept.arrived.assign(arrived & ~free)]):
            ps.wake(free)
