"""The rule of algorithms without a center: each worker averages its message with those of its neighbours alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..lazy import tf
from . import losses
from .collective import Collective
from .store import Message, Store, Tensor, WorkerSlot
from .topology import Topology


class Links(NamedTuple):
    """The links of all workers in consecutive rounds. Each worker hears at most D others in a round.

    A worker that hears fewer has itself, with the weight zero, in the other places.
    """

    others: np.ndarray  # [rounds, W, D], int32
    weights: np.ndarray  # of their messages, [rounds, W, D], float32

    def of(self, worker: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the weights of what a worker hears, and what the others give to what it sends, [rounds, W] each."""
        heard = np.zeros(self.weights.shape[:2], np.float32)
        np.put_along_axis(heard, self.others[:, worker], self.weights[:, worker], 1)
        return heard, np.where(self.others == worker, self.weights, 0).sum(2)


@dataclass(frozen=True)
class Gossip(Collective):
    """A round of gossip: worker i waits for its neighbours j alone, and its reply is Σ W_ij m_j.

    What a codec makes of a message m is s, and the reply m_i + Σ W_ij (s_j − s_i): in the mean over the workers nothing
    is lost, as W is doubly stochastic.

    Messages travel from worker to worker, to neighbours only. Each worker first sends, then receives, and its queues
    are unbounded: no two workers can wait for each other. Without a link between two workers one may be ahead of the
    other by as many rounds as there are links on the shortest path between them.

    No worker has the center. It is the *mean of the workers*, which worker 0 collects after each `every`-th round, and
    after the last: the version of the center is then the number of rounds. With them travel the times of these rounds,
    which worker 0 records in the order of the rounds. Nothing else goes to worker 0. For a moving average of the center
    each worker keeps that of its own parameters, which travels with them: the mean of these is the average of the mean.

    Where a run may continue without some workers (`ps.can_lose`), a round touches no task but the worker's own and that
    of worker 0, so that it does not fail with another: `messages.carried` brings the messages. The message of a lost
    worker is then missing, and its weight is given back to the worker that would have heard it, until the round from
    which on all others have the weights of the graph without it, see `losses`. The mean is that of the others.

    Attributes:
        topology: graph of the workers, see `sync.topology`. Random matchings repeat after 1024 rounds.
    """

    topology: str = "ring"

    kind = "gossip"
    simulated = True
    label = "gossip"

    def check(self, workers: int) -> None:
        """Raise `UserError` if there is no such graph of so many workers."""
        Topology(self.topology).weights(workers)

    def weights(self, workers: int, number: int) -> np.ndarray:
        """Return the mixing matrix of the round of this number, [W, W]."""
        return Topology(self.topology).weights(workers, number)

    def rows(self, worker: int, workers: int, lost: Collection[int] = ()) -> np.ndarray:
        """Return what a worker hears, and what the others give to it, without the lost ones: [2, rounds, W]."""
        if not lost:
            return np.stack(self.links(workers).of(worker))
        graph, others = Topology(self.topology), np.arange(workers) != worker
        matrices = [graph.weights(workers, number, lost) for number in range(graph.cycle(workers))]
        rows = [(matrix[worker] * others, matrix[:, worker] * others) for matrix in matrices]
        return np.array(rows, np.float32).transpose(1, 0, 2)

    def links(self, workers: int) -> Links:
        """Return the links of consecutive rounds, after which they repeat."""
        return _links(self.topology, workers, Topology(self.topology).written())

    def traffic(self, workers: int) -> tuple[float, float]:
        """Return the vectors that a worker sends in a round, and receives: those of its neighbours, in the mean."""
        links = np.count_nonzero(self.weights(workers, 0)) / workers - 1  # each round has as many
        return links, links

    def variables(self, ps: Store) -> Mapping[str, Tensor]:
        """Return the consensus distance of the workers that were collected last, and those of `losses`."""
        return {"consensus": tf.constant(0.0), **losses.variables(ps.num_workers)}

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
        me, mail = slot.index, slot.mail.at(slot.round)
        if ps.can_lose:
            # Without some workers any two others may be linked. With two rounds here, one with all links and one with
            # none, the graph of a round has both cases for each worker, and the variable decides.
            links, heard = mail.links, np.array([[True], [False]]).repeat(ps.num_workers, 1)
            hearing = heard
        else:
            heard, hearing = rows = self.rows(me, ps.num_workers)
            links = tf.constant(rows)
        gets, gives = tf.unstack(links[:, slot.round % links.shape[1]])
        others = [k for k in range(ps.num_workers) if k != me]
        vector = message.vector
        wire, arrived, opened = slot.encoder.in_one_piece(vector)
        sent = mail.with_times(wire, slot.times)
        shared = mail.transport.share(sent) if others else None
        for k in others:
            _if_linked(hearing[:, k] > 0, gives[k], lambda k=k: _then(mail.send, k, shared), lambda: ())
        # Differences, not W_ii m_i: in float32 the weights sum to one only nearly, which would add up over the rounds.
        reply, readies = vector, [slot.times[1]]
        for k in others:

            def receive(k: int = k) -> tuple[Tensor, Tensor]:
                times: list[Tensor] = []
                received = mail.receive(k, wire.shape[0], times, instead=sent)
                return gets[k] * (opened(received) - arrived), times[0][1]

            def silence() -> tuple[Tensor, Tensor]:
                return tf.zeros_like(vector), slot.times[1]

            if heard[:, k].any():
                part, ready = _if_linked(heard[:, k] > 0, gets[k], receive, silence)
                reply, readies = reply + part, [*readies, ready]
        released = tf.reduce_max(tf.stack(readies))  # by the last message of a neighbour
        mail.note(tf.concat([slot.times, [released]], 0))
        return reply

    def replies(self, number: Tensor, messages: Tensor, arrived: Tensor) -> Tensor:
        """Return the replies to the messages of all workers in the round of this number, [W, P], as in `exchange`.

        `arrived` are these messages as they arrive, [W, P].
        """
        links = self.links(messages.shape[0])

        def reply(of_worker: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
            others, weights, vector, sent = of_worker
            return vector + tf.reduce_sum(weights[:, None] * (tf.gather(arrived, others) - sent), 0)

        now = tf.cast(number, tf.int32) % len(links.others)
        of_round = tf.constant(links.others)[now], tf.constant(links.weights)[now]
        return tf.map_fn(reply, (*of_round, messages, arrived), fn_output_signature=tf.float32)

    def every(self, last: int | None, snapshots: tuple[int, int] | None) -> int:
        """Return the number of rounds between two collections.

        Args:
            last: number of rounds of the run; None if it is not known: then every tenth is collected.
            snapshots: rounds between two snapshots, and their number, if any are taken; else a hundredth of the run.
        """
        return max(1, (last or 1000) // 100) if snapshots is None else snapshots[0]

    def collect(self, ps: Store, slot: WorkerSlot, vectors: Tensor, state: Tensor, due: Any = None) -> None:
        """Send this worker's vectors [n] and state [S] to worker 0 if that is `due`; by default after some rounds.

        Worker 0 then writes their mean into the center, the consensus distance, and the record. The vectors are the
        parameters [P], then their moving average [P] if the run has one.
        """
        done, every = slot.round + 1, self.every(ps.last_version, ps.multiples)
        if due is None:
            due = tf.equal(done % every, 0) | tf.equal(done, ps.last_version or -1)
        send = self._gather if slot.index == 0 else self._hand_over
        ps.when(due, lambda: send(ps, slot, vectors, state, done))

    def _hand_over(self, ps: Store, slot: WorkerSlot, vectors: Tensor, state: Tensor, *_: Tensor) -> None:
        slot.mail.at(slot.round).hand_over(0, tf.concat([vectors, state], 0))

    def _gather(self, ps: Store, slot: WorkerSlot, vectors: Tensor, state: Tensor, done: Tensor) -> None:
        mail, version, part = slot.mail, ps.center.read_version(), ps.center.slices[0]
        sizes = [part.center.shape[0], vectors.shape[0] - part.center.shape[0], state.shape[0]]
        of_this_worker = tf.concat([vectors, state], 0), mail.notes(0, done - version), tf.constant(True)
        found = [of_this_worker, *(mail.collected(k, sum(sizes), done - version) for k in range(1, ps.num_workers))]
        vectors, times, present = (tf.stack(parts) for parts in zip(*found, strict=True))
        if ps.can_lose:  # in place of each lost worker, the mean of the others
            among = tf.cast(present, tf.float32)[:, None]
            mean = tf.reduce_sum(vectors * among, 0) / tf.reduce_sum(among)
            vectors = tf.where(present[:, None], vectors, mean)
        workers, averages, states = tf.split(vectors, sizes, 1)
        center = tf.reduce_mean(workers, 0)
        share = tf.cast(ps.slots.count(present), tf.float32) / ps.num_workers
        with tf.control_dependencies([center, times]), ps.transactions.exclusive():
            ps.journal.record_rounds(version, times, present)
            part.center.assign(center)
            if part.average is not None:
                part.average.assign(tf.reduce_mean(averages, 0))
            ps.slots.states.assign(states)
            ps.variables.consensus.assign(consensus(workers) / share)
            losses.keep(ps, present, done)
            ps.center.count_updates(done - version)
            ps.center.after_update(done, None, tf.reduce_mean(states, 0))

    # Lost workers; see `losses`.

    def rejoin(self, ps: Store, slot: WorkerSlot) -> Tensor:
        """Let a worker take its slot, also one that was lost before the run was resumed."""
        losses.rejoin(ps, slot)
        return super().rejoin(ps, slot)

    def lost(self, ps: Store) -> dict[str, Tensor]:
        """Return the variables of `losses` that the record needs."""
        return losses.read(ps)


def consensus(workers: Tensor) -> Tensor:
    """Return the consensus distance of parameters [W, P]: (1/W) Σ |x_i - mean|²."""
    return tf.reduce_mean(tf.reduce_sum((workers - tf.reduce_mean(workers, 0)) ** 2, 1))


@cache
def _links(topology: str, workers: int, written: int | None) -> Links:
    """Return the links of a graph, one matrix after the other: those of all rounds together may have no room."""
    graph, each = Topology(topology), np.arange(workers)
    others, weights = [], []
    for number in range(graph.cycle(workers)):
        matrix = graph.weights(workers, number) * (each[:, None] != each)
        rows, columns = np.nonzero(matrix)
        counts = np.bincount(rows, minlength=workers)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)  # among those of its row
        width = max(1, int(counts.max()))
        others.append(np.tile(each[:, None], width).astype(np.int32))
        weights.append(np.zeros((workers, width), np.float32))
        others[-1][rows, place], weights[-1][rows, place] = columns, matrix[rows, columns]
    return Links(np.array(others), np.array(weights))


def _if_linked(linked: np.ndarray, weight: Tensor, then: Any, otherwise: Any) -> Any:
    """Build `then` in the rounds with a link, `otherwise` in the others; `linked` has a flag for each round."""
    if linked.all():
        return then()
    return tf.cond(weight > 0, then, otherwise) if linked.any() else otherwise()


def _then(action: Any, *values: Any) -> tuple[()]:
    action(*values)
    return ()
