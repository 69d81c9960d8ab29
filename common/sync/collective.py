"""The rule of algorithms without a parameter server: the workers reduce their messages among themselves."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..lazy import tf
from .barrier import Barrier
from .store import Message, Store, Tensor, WorkerSlot, parts_of

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

    Attributes:
        buckets: number of parts of a message, about equal and cut between the variables of the model, which are reduced
            one by one: each as soon as its gradients are known, from the last variables to the first, as the backward
            pass computes them. Only of a message that is the gradient itself: any other is reduced whole.
    """

    buckets: int = 1

    kind = "collective"
    simulated = True

    def variables(self, ps: Store) -> Mapping[str, Tensor]:
        """Return the variables of a barrier for threads, none for processes."""
        return super().variables(ps) if ps.in_process else {}

    def slice_variables(self, ps: Store, part: Any) -> Mapping[str, Tensor | Message]:
        """Return the variables of a barrier for threads, none for processes."""
        return {"inbox": part.no_message, "reply": part.no_message.vector} if ps.in_process else {}

    def exchange(self, ps: Store, slot: WorkerSlot, message: Message) -> Tensor:
        """Return the mean of all workers' messages."""
        if ps.in_process:
            return super().exchange(ps, slot, message)
        first, *others = buckets_of(message.vector, self.buckets)
        times, slices = [slot.times], []
        for bucket in reversed(others):
            slices = self._reduced(ps, slot, bucket, checked=True) + slices
        mean = tf.concat(self._reduced(ps, slot, first, times, checked=True) + slices, 0)
        if slot.index == 0:
            # Record the round once the whole mean is here. Otherwise the version could count a round that the loss of
            # another worker has stopped.
            with tf.control_dependencies([mean]):
                self._record(ps, slot, tf.stack(times))
        return mean

    def _record(self, ps: Store, slot: WorkerSlot, times: Tensor) -> None:
        """Record the round of all workers; `times` are their times, [W, 4]. The last message releases all of them."""
        version = ps.center.read_version()
        for k in range(ps.num_workers):
            ps.journal.record(version, replace(slot, times=times[k], index=k), 0, accepted=True, locked=False)
        ps.journal.released.assign(tf.fill([ps.num_workers], tf.reduce_max(times[:, 1])))
        ps.center.count_updates(1)

    def is_finite(self, ps: Store, reply: Tensor) -> Tensor:
        """Return True if one element of each slice is finite: its reducer fills a slice that is not finite with NaN."""
        if ps.in_process or ps.num_workers == 1:
            return super().is_finite(ps, reply)
        return tf.reduce_all(tf.math.is_finite([part[0] for part in parts_of(reply) or [reply]]))

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
            ps.slots.states.assign(tf.tile(mean[None], [ps.num_workers, 1]))
        return mean

    def _mean(self, ps: Store, slot: WorkerSlot, vector: Tensor) -> Tensor:
        """Return the mean of the workers' vectors [n]."""
        return tf.ensure_shape(tf.concat(self._reduced(ps, slot, vector), 0), vector.shape)

    def _reduced(
        self, ps: Store, slot: WorkerSlot, vector: Tensor, times: list[Tensor] | None = None, checked: bool = False
    ) -> list[Tensor]:
        """Return the slices of the mean of the workers' vectors; if these are short, some workers reduce none.

        Each worker first sends all slices, then receives, and the queues are unbounded: so no two workers wait for each
        other.

        Args:
            ps: the run, with the number of workers.
            slot: slot of this worker.
            vector: its vector, [n].
            times: a list with the times of its round, [4], which travel to worker 0 with the vector; worker 0 appends
                those of the others, in the order of the workers. None for a vector that brings no times.
            checked: fill a slice of the mean with NaN if one of its elements is not finite.
        """
        number, me, mail = ps.num_workers, slot.index, slot.mail
        if number == 1:
            return [vector]
        slices = {k: vector[part] for k, part in slices_of(vector.shape[0], number).items()}
        for k, part in slices.items():
            if k != me:
                mail.send(k, part, times[0] if times and k == 0 else None)
        means = {}
        if me in slices:
            own_slice = slices[me]
            their_times = times if me == 0 else None
            parts = [own_slice if k == me else mail.receive(k, own_slice.shape[0], their_times) for k in range(number)]
            # `tf.add_n` would begin with an input that it can overwrite, so that equal runs could differ in their bits.
            total = functools.reduce(tf.add, parts)
            fine = tf.math.is_finite(tf.reduce_sum(total)) if checked else True
            means[me] = mail.transport.share(total / tf.where(fine, float(number), math.nan))
            for k in range(number):
                if k != me:
                    mail.send(k, means[me], is_reply=True)
        return [means[k] if k in means else mail.receive(k, part.shape[0], is_reply=True) for k, part in slices.items()]

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


def buckets_of(vector: Tensor, number: int) -> list[Tensor]:
    """Cut a vector into so many buckets of about equal size, between the vectors of which it is the concatenation.

    There are fewer buckets if there are fewer of these vectors, and one if the vector is no concatenation.
    """
    parts = parts_of(vector)
    if number == 1 or not parts:
        return [vector]
    sizes = [part.shape[0] for part in parts]
    found: list[list[Tensor]] = [[] for _ in range(number)]
    for end, size, part in zip(itertools.accumulate(sizes), sizes, parts, strict=True):
        found[int((end - size / 2) * number / sum(sizes))].append(part)
    return [tf.concat(bucket, 0) for bucket in found if bucket]
