"""No parameter server: the workers reduce their messages among themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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

    def traffic(self, workers: int) -> tuple[float, float]:
        """In a ring everyone sends (W - 1)/W of a vector twice: to reduce, and to gather."""
        return (workers - 1) / workers, (workers - 1) / workers
