"""The rule of algorithms without a center: each worker averages its message with those of its neighbours alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..lazy import tf
from .collective import Collective
from .store import Message, Store, Tensor, WorkerSlot
from .topology import DRAWN, Topology


@dataclass(frozen=True)
class Gossip(Collective):
    """A round of gossip: worker i waits for its neighbours j alone, and its reply is Σ W_ij m_j.

    Messages travel from worker to worker, to neighbours only. Each worker first sends, then receives, and its queues
    are unbounded: no two workers can wait for each other. Without a link between two workers one may be ahead of the
    other by as many rounds as there are links on the shortest path between them.

    No worker has the center. It is the *mean of the workers*, which worker 0 collects after each `every`-th round, and
    after the last: the version of the center is then the number of rounds. With them travel the times of these rounds,
    which worker 0 records in the order of the rounds. Nothing else goes to worker 0.

    Attributes:
        topology: graph of the workers, see `sync.topology`. Random matchings repeat after 1024 rounds.
    """

    topology: str = "ring"

    gossips = True
    simulated = True
    label = "gossip"

    def check(self, workers: int) -> None:
        """Raise `UserError` if there is no such graph of so many workers."""
        Topology(self.topology).weights(workers)

    def weights(self, workers: int) -> np.ndarray:
        """Return the mixing matrices of consecutive rounds, [rounds, W, W], float32, after which they repeat."""
        return _weights(self.topology, workers)

    def traffic(self, workers: int) -> tuple[float, float]:
        """Return the vectors that a worker sends in a round, and receives: those of its neighbours, in the mean."""
        links = np.count_nonzero(self.weights(workers)) / len(self.weights(workers)) / workers - 1
        return links, links

    def variables(self, ps: Store) -> Mapping[str, Tensor]:
        """Return the consensus distance of the workers that were collected last."""
        return {"consensus": tf.constant(0.0)}

    def slice_variables(self, ps: Store, part: Any) -> Mapping[str, Tensor | Message]:
        """Return no variables."""
        return {}

    def arrived(self, ps: Store) -> Tensor | None:
        """Return None: workers share no variable to wait at."""
        return None

    def is_finite(self, ps: Store, reply: Tensor) -> Tensor:
        """Return True if the reply is finite: each worker has its own."""
        return tf.reduce_all(tf.math.is_finite(reply))

    def mean(self, ps: Store, slot: WorkerSlot, vector: Tensor) -> Tensor:
        """Refuse: a mean over all workers would need messages of all."""
        return super(Collective, self).mean(ps, slot, vector)

    def share_state(self, ps: Store, slot: WorkerSlot, state: Tensor) -> Tensor:
        """Return the worker's own state; it is stored with the parameters, see `collect`."""
        return state

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Return the mean of the neighbours' messages and its own, weighted by the matrix of this round."""
        weights = tf.constant(self.weights(ps.num_workers))
        linked = self.weights(ps.num_workers) > 0  # [rounds, W, W]
        now, me, mail = weights[slot.round % len(linked)], slot.index, slot.mail
        others = [k for k in range(ps.num_workers) if k != me]
        shared = mail.transport.share(mail.with_times(message.vector, slot.times)) if others else None
        for k in others:
            _if_linked(linked[:, k, me], now[k, me], lambda k=k: _then(mail.send, k, shared), lambda: ())
        own = message.vector
        # Differences, not W_ii m_i: in float32 the weights sum to one only nearly, which would add up over the rounds.
        reply, readies = own, [slot.times[1]]
        for k in others:

            def heard(k: int = k) -> tuple[Tensor, Tensor]:
                times: list[Tensor] = []
                theirs = mail.receive(k, own.shape[0], times)
                return now[me, k] * (theirs - own), times[0][1]

            def silence() -> tuple[Tensor, Tensor]:
                return tf.zeros_like(own), slot.times[1]

            if linked[:, me, k].any():
                part, ready = _if_linked(linked[:, me, k], now[me, k], heard, silence)
                reply, readies = reply + part, [*readies, ready]
        released = tf.reduce_max(tf.stack(readies))  # by the last message of a neighbour
        mail.note(tf.concat([slot.times, [released]], 0))
        return reply

    def replies(self, number: Tensor, messages: Tensor) -> Tensor:
        """Return the replies to the messages of all workers in the round of this number, [W, P], as in `exchange`."""
        weights = tf.constant(self.weights(messages.shape[0]))

        def reply(one: tuple[Tensor, Tensor]) -> Tensor:
            return one[1] + tf.reduce_sum(one[0][:, None] * (messages - one[1]), 0)

        now = weights[tf.cast(number, tf.int32) % weights.shape[0]]
        return tf.map_fn(reply, (now, messages), fn_output_signature=tf.float32)

    def every(self, last: int | None, snapshots: tuple[int, int] | None) -> int:
        """Return the number of rounds between two collections.

        Args:
            last: number of rounds of the run; None if it is not known: then every round is collected.
            snapshots: rounds between two snapshots, and their number, if any are taken; else a hundredth of the run.
        """
        if last is None or snapshots is None:
            return max(1, (last or 1) // 100)
        return snapshots[0]

    def collect(self, ps: Store, slot: WorkerSlot, params: Tensor, state: Tensor, clock: Tensor) -> None:
        """Send this worker's parameters [P] and state [S] to worker 0 if that is due after this round.

        Worker 0 then writes their mean into the center, the consensus distance, and the record.
        """
        done, snapshots = slot.round + 1, ps.center.snapshots
        every = self.every(ps.last_version, snapshots and snapshots.multiples)
        due = tf.equal(done % every, 0) | tf.equal(done, ps.last_version or -1)
        send = self._gather if slot.index == 0 else self._hand_over
        ps.when(due, lambda: send(ps, slot, params, state, clock, done))

    def _hand_over(self, ps: Store, slot: WorkerSlot, params: Tensor, state: Tensor, *_: Tensor) -> None:
        slot.mail.send(0, tf.concat([params, state], 0))
        slot.mail.send_notes(0)

    def _gather(self, ps: Store, slot: WorkerSlot, params: Tensor, state: Tensor, clock: Tensor, done: Tensor) -> None:
        others, size = range(1, ps.num_workers), params.shape[0] + state.shape[0]
        vectors = [tf.concat([params, state], 0), *(slot.mail.receive(k, size) for k in others)]
        version = ps.read_version()
        times = tf.stack([slot.mail.notes(k, done - version) for k in range(ps.num_workers)])
        workers, states = tf.split(tf.stack(vectors), [params.shape[0], state.shape[0]], 1)
        center = tf.reduce_mean(workers, 0)
        with tf.control_dependencies([center, times]), ps.exclusive():
            ps.journal.record_rounds(version, times)
            ps.slices[0].center.assign(center)
            ps.states.assign(states)
            ps.variables.consensus.assign(consensus(workers))
            ps.count_updates(done - version)
            ps.center.come_to(done, clock, tf.reduce_mean(states, 0))


def consensus(workers: Tensor) -> Tensor:
    """Return the consensus distance of parameters [W, P]: (1/W) Σ |x_i - mean|²."""
    return tf.reduce_mean(tf.reduce_sum((workers - tf.reduce_mean(workers, 0)) ** 2, 1))


@cache
def _weights(topology: str, workers: int) -> np.ndarray:
    graph = Topology(topology)
    period = graph.period(workers) or DRAWN
    return np.array([graph.weights(workers, number) for number in range(period)], np.float32)


def _if_linked(linked: np.ndarray, weight: Tensor, then: Any, otherwise: Any) -> Any:
    """Build `then` in the rounds with a link, `otherwise` in the others; `linked` has a flag for each round."""
    if linked.all():
        return then()
    return tf.cond(weight > 0, then, otherwise) if linked.any() else otherwise()


def _then(action: Any, *values: Any) -> tuple[()]:
    action(*values)
    return ()
