"""The rule of algorithms without a parameter server: the workers reduce their messages among themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..lazy import tf
from .barrier import Barrier
from .store import Message, Store, Tensor, WorkerSlot

ALIGNED = 16  # floats: a slice that begins at a multiple of 64 bytes needs no copy

LEAST = 1 << 15  # floats of a slice: a smaller slice costs as much CPU time to send, and a vector would have more


@dataclass(frozen=True)
class Collective(Barrier):
    """An all-reduce without a ps: every worker gets the mean of all messages, by reduce-scatter and all-gather.

    Worker k adds up the k-th slices of all workers, in the order of the workers, and sends their mean to all: as many
    bytes as in a ring, in two steps instead of 2 (W - 1), and the same bits for all. TensorFlow's own ring between
    processes copies each piece several times on its way. For workers with a GPU each, `_mean` could be replaced by
    `tf.raw_ops.CollectiveReduce` with `communication_hint="nccl"`.

    The parameters of worker 0 are the center, and worker 0 keeps the record. Workers that are threads share their
    memory: there the messages are added up in memory, behind a barrier.
    """

    uses_ps = False
    simulated = True

    def variables(self, ps: Store) -> Mapping[str, Tensor]:
        """Return the variables of a barrier for threads, none for processes."""
        return super().variables(ps) if ps.in_process else {}

    def slice_variables(self, ps: Store, part: Any) -> Mapping[str, Tensor | Message]:
        """Return the variables of a barrier for threads, none for processes."""
        return super().slice_variables(ps, part) if ps.in_process else {}

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Return the mean of all workers' messages."""
        if ps.in_process:
            return super().exchange(ps, slot, message)
        times = [slot.times]
        mean = self._mean(ps, slot, message.vector, times)
        if slot.index == 0:
            with tf.control_dependencies([mean]):
                self._record(ps, slot, tf.stack(times))
        return mean

    def _record(self, ps: Store, slot: WorkerSlot, times: Tensor) -> None:
        """Record the round of all workers; `times` are their times, [W, 3]. The last message releases all of them."""
        version = ps.read_version()
        for k in range(ps.num_workers):
            ps.record(version, slot.with_times(times[k], k), 0, accepted=True, locked=False)
        ps.released.assign(tf.fill([ps.num_workers], tf.reduce_max(times[:, 1])))
        ps.count_updates(1)

    def is_finite(self, ps: Store, reply: Tensor) -> Tensor:
        """Return True if one element of each slice is finite: its reducer fills a slice that is not finite with NaN."""
        if ps.in_process or ps.num_workers == 1:
            return super().is_finite(ps, reply)
        slices = slices_of(reply.shape[0], ps.num_workers).values()
        return tf.reduce_all(tf.math.is_finite([reply[part.start or 0] for part in slices]))

    def mean(self, ps: Store, slot: WorkerSlot, vector: Tensor) -> Tensor:
        """Return the mean of `vector` over all workers, by the same reduction."""
        mean = self._mean(ps, slot, tf.reshape(vector, [-1]))
        return tf.ensure_shape(tf.reshape(mean, tf.shape(vector)), vector.shape)

    def arrived(self, ps: Store) -> Tensor | None:
        """Return the flags of a barrier for threads; None for processes, which share no variable to wait at."""
        return super().arrived(ps) if ps.in_process else None

    def share_state(self, ps: Store, slot: WorkerSlot, state: Tensor) -> Tensor:
        """Return the mean state of the workers; worker 0 writes it into the rows of all."""
        if ps.in_process:
            return super().share_state(ps, slot, state)
        mean = self._mean(ps, slot, state)
        if slot.index == 0:
            ps.states.assign(tf.tile(mean[None], [ps.num_workers, 1]))
        return mean

    def _mean(self, ps: Store, slot: WorkerSlot, vector: Tensor, times: list[Tensor] | None = None) -> Tensor:
        """Return the mean of the workers' vectors [n]; where n is small, some workers have no slice to reduce.

        In an exchange, `times` has the times of this worker's round. Those of the others travel to worker 0 at the end
        of its slice, and are appended to its `times`. A slice of the mean that has an element which is not finite then
        becomes NaN as a whole.
        """
        number, me, mail = ps.num_workers, slot.index, slot.mail
        if number == 1:
            return vector
        slices = {k: vector[part] for k, part in slices_of(vector.shape[0], number).items()}
        for k, part in slices.items():
            if k != me:
                mail.send(k, part, times[0] if times and k == 0 else None)
        means = {}
        if me in slices:
            own = slices[me]
            theirs = times if me == 0 else None
            parts = [own if k == me else mail.receive(k, own.shape[0], theirs) for k in range(number)]
            total = tf.add_n(parts)
            fine = tf.math.is_finite(tf.reduce_sum(total)) if times else True
            means[me] = mail.transport.share(total / tf.where(fine, float(number), math.nan))
            for k in range(number):
                if k != me:
                    mail.send(k, means[me])
        found = [means[k] if k in means else mail.receive(k, part.shape[0]) for k, part in slices.items()]
        return tf.ensure_shape(tf.concat(found, 0), vector.shape)

    def traffic(self, workers: int) -> tuple[float, float]:
        """Return (W - 1)/W vectors for the reduce-scatter and as many for the all-gather, without those of `mean`."""
        return (workers - 1) / workers, (workers - 1) / workers


def slices_of(size: int | None, workers: int) -> dict[int, slice]:
    """Return the slices of a vector [size] by the worker that reduces them, none empty; of unknown size, worker 0's."""
    if size is None:
        return {0: slice(None)}
    each = max(-(-size // workers), LEAST)
    each += -each % ALIGNED
    return {k: slice(k * each, min((k + 1) * each, size)) for k in range(workers) if k * each < size}
