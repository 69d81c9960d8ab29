"""The rule of asynchronous gossip: two neighbours at a time average their parameters, and no worker waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..lazy import tf
from .gossip import consensus
from .store import Message, Store, Tensor, WorkerSlot
from .synchronization import Synchronization
from .topology import Topology


@dataclass(frozen=True)
class Pairs(Synchronization):
    """At the end of a round, a worker and one of its neighbours both take the mean of their parameters.

    Each worker's parameters, its *copy*, are in its own process, with a lock. The workers are in two classes
    (`topology.classes`). Those of the second class begin averages: worker i sends its copy to the neighbour j that it
    has drawn; under the lock of j, the copy of j becomes the mean, which is the reply. Those of the first class answer
    only, also while they compute; at the end of their own rounds the reply is their own copy as it is then.

    No other worker changes the copy of one that begins averages, so that a pair always has the same mean at the same
    place in the order of events. A worker holds one lock of a copy at a time, and none while parameters travel: there
    is no circle in which workers could wait for each other, whatever the graph.

    Each round is an event. Worker 0 numbers and records them, under the lock of the copy: a few bytes, and no
    parameters. The center is the mean of the copies, which worker 0 reads after each `every`-th of its rounds,
    and after the last round of all workers: until then each worker continues to answer.

    Attributes:
        topology: graph of the workers, see `sync.topology`; neighbours are drawn with its weights.
    """

    topology: str = "ring"

    kind = "pairs"
    simulated = True

    def check(self, workers: int) -> None:
        """Raise `UserError` if there is no such graph of so many workers."""
        self.peers(workers)

    def peers(self, workers: int) -> np.ndarray:
        """Return the worker with which each averages in a round, or itself, [rounds, W]; rounds repeat after that."""
        return Topology(self.topology).peers(workers)

    def peer(self, workers: int, worker: Any, number: Any) -> Tensor:
        """Return the worker with which `worker` averages in its round of this number, or itself, a tensor."""
        peers = self.peers(workers)
        now = tf.cast(number, tf.int32) % len(peers)
        return tf.gather_nd(tf.constant(peers), tf.stack([now, tf.cast(worker, tf.int32)]))

    def traffic(self, workers: int) -> tuple[float, float]:
        """Return the vectors that a worker sends in a round, and receives, in the mean."""
        begin = float(np.mean(self.peers(workers)[0] != np.arange(workers)))
        return begin, begin

    def every(self, last: int | None) -> int:
        """Return the number of rounds of worker 0 between two reads of all copies: a hundredth of its rounds, or 10."""
        return max(1, (last or 1000) // 100)

    # The operations of a worker.

    def variables(self, ps: Store) -> Mapping[str, Tensor]:
        """Return the consensus distance of the copies that were read last."""
        return {"consensus": tf.constant(0.0)}

    def meet(self, ps: Store, slot: WorkerSlot, message: Message, use: Callable[[Tensor], None]) -> None:
        """Record a round, and average with the peer of this round; `use` builds what the worker does with the reply.

        The worker uses its own parameters under its lock: others may change them until then.
        """
        copies, me = slot.mail, slot.index
        peers = sorted({int(k) for k in self.peers(ps.num_workers)[:, me]})
        if peers == [me]:
            with copies.lock(me, [message, slot.times]):
                self._record(ps, slot)
                use(copies[me].read_value())
            return
        number = self.peer(ps.num_workers, me, slot.round)
        which = tf.reduce_sum(tf.cast(tf.constant(peers) < number, tf.int32))
        build = [lambda k=k: self._average(ps, slot, message.vector, k) for k in peers]
        use(build[0]() if len(peers) == 1 else tf.switch_case(which, build))

    def _average(self, ps: Store, slot: WorkerSlot, vector: Tensor, peer: int) -> Tensor:
        """Average with a peer, under its lock; return the mean as it arrives here."""
        copies, me = slot.mail, slot.index
        other = copies[peer]
        sent = copies.moved(vector, other.device)
        with copies.lock(peer, [sent, slot.times]), tf.device(other.device):
            self._record(ps, slot)
            mean = (other.read_value() + sent) / 2
            other.assign(mean)
        with tf.device(other.device):
            return copies.moved(mean, copies[me].device)

    def _record(self, ps: Store, slot: WorkerSlot) -> None:
        """Record a round under its number; the staleness is the number of rounds since the last one of this worker."""
        with ps.event(slot), tf.device(ps.devices[0]):
            number = tf.reduce_sum(ps.journal.rounds_applied.read_value())
            staleness = ps.center.staleness(number, slot)
            with tf.control_dependencies([ps.journal.record(number, slot, staleness, accepted=True)]):
                ps.slots.write(ps.center.pulled, slot, number + 1)

    def read_copies(self, ps: Store, slot: WorkerSlot) -> None:
        """Read all copies on worker 0: their mean is the center, and its version the number of recorded rounds."""
        copies, found = slot.mail, []
        for k in range(ps.num_workers):
            with tf.device(copies[k].device):
                found.append(copies.moved(copies[k].read_value(), copies[slot.index].device))
        workers = tf.stack(found)
        center = tf.reduce_mean(workers, 0)
        with tf.control_dependencies([center]), ps.transactions.exclusive(), tf.device(ps.devices[0]):
            ps.center.slices[0].center.assign(center)
            ps.variables.consensus.assign(consensus(workers))
            ps.center.count_updates(tf.reduce_sum(ps.journal.rounds_applied.read_value()) - ps.center.read_version())
