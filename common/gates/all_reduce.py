"""No parameter server: the workers reduce their messages among themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from .barrier import Barrier
from .store import Store, Tensor, WorkerSlot


@dataclass(frozen=True)
class AllReduce(Barrier):
    """No ps: every worker gets the mean of all messages from TensorFlow's ring all-reduce.

    The center is the parameters of worker 0, which keeps the record too. As threads, the workers have one memory: there
    the reduction is a sum in it, behind a barrier.
    """

    uses_ps = False

    def variables(self, ps: Store) -> Mapping[str, Tensor]:
        """What a barrier needs, for threads."""
        return super().variables(ps) if ps.in_process else {}

    def slice_variables(self, ps: Store, part: Any) -> Mapping[str, Tensor]:
        """The same."""
        return super().slice_variables(ps, part) if ps.in_process else {}

    def exchange(self, ps: Store, slot: WorkerSlot, message: Tensor) -> Tensor:
        """The mean message."""
        import tensorflow as tf

        if ps.in_process:
            return super().exchange(ps, slot, message)
        mean = self._mean(ps, slot, message)
        if slot.index == 0:
            with tf.control_dependencies([mean]):
                for k in range(ps.num_workers):
                    ps.record(ps.read_version(), k, 0, accepted=True, locked=False)
                ps.count_updates(1)
        return mean

    def mean(self, ps: Store, slot: WorkerSlot, vector: Tensor) -> Tensor:
        """The same reduction. As threads, worker 0 adds up, in the order of the workers, and tells the others."""
        import tensorflow as tf

        shape = tf.shape(vector)
        mean = (self._mean_of_threads if ps.in_process else self._mean)(ps, slot, tf.reshape(vector, [-1]))
        return tf.ensure_shape(tf.reshape(mean, shape), vector.shape)

    def arrived(self, ps: Store) -> Tensor | None:
        """Threads alone can be seen to wait."""
        return super().arrived(ps) if ps.in_process else None

    def share_state(self, ps: Store, slot: WorkerSlot, state: Tensor) -> Tensor:
        """The mean over the workers; nobody but worker 0 may touch its variables in the middle of a reduction."""
        import tensorflow as tf

        if ps.in_process:
            return super().share_state(ps, slot, state)
        mean = self._mean(ps, slot, state)
        if slot.index == 0:
            ps.states.assign(tf.tile(mean[None], [ps.num_workers, 1]))
        return mean

    def _mean(self, ps: Store, slot: WorkerSlot, vector: Any) -> Any:
        import tensorflow as tf

        if ps.num_workers == 1:
            return vector
        return tf.raw_ops.CollectiveReduce(
            input=vector,
            group_size=ps.num_workers,
            group_key=1,
            instance_key=next(slot.collectives),
            merge_op="Add",
            final_op="Div",
            subdiv_offsets=[0],
            communication_hint="ring",
        )

    def _mean_of_threads(self, ps: Store, slot: WorkerSlot, vector: Any) -> Any:
        """Each queue has one writer and one reader, so no round can take what is of another."""
        import tensorflow as tf

        if ps.min_workers < ps.num_workers:  # who was given up, and comes again, would bring what is of an old round
            raise UserError(
                f"worker.mean needs all workers: leave min_workers out. Received: min_workers={ps.min_workers}"
            )

        def queue(name: str, k: int) -> Any:
            return tf.queue.FIFOQueue(-1, [vector.dtype], shared_name=f"mean_{name}_{k}")

        with tf.device(ps.devices[0]):
            if slot.index:
                with tf.control_dependencies([queue("of", slot.index).enqueue([vector])]):
                    return queue("for", slot.index).dequeue()
            others = range(1, ps.num_workers)
            mean = tf.add_n([vector, *(queue("of", k).dequeue() for k in others)]) / ps.num_workers
            with tf.control_dependencies([queue("for", k).enqueue([mean]) for k in others]):
                return tf.identity(mean)

    def traffic(self, workers: int) -> tuple[float, float]:
        """In a ring everyone sends (W - 1)/W of a vector twice: to reduce, and to gather. Without `mean`."""
        return (workers - 1) / workers, (workers - 1) / workers
