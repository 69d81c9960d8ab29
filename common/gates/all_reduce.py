"""No parameter server: the workers reduce their messages among themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .barrier import Barrier
from .gate import Gate, ParameterServer, Seat


@dataclass(frozen=True)
class AllReduce(Barrier):
    """No ps: every worker gets the mean of all messages from TensorFlow's ring all-reduce.

    The center is the parameters of worker 0, which keeps the record too. As threads, the workers have one memory: there
    the reduction is a sum in it, behind a barrier.
    """

    uses_ps = False

    def variables(self, ps: ParameterServer) -> None:
        """What a barrier needs, for threads."""
        if ps.in_process:
            super().variables(ps)

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """The mean message."""
        import tensorflow as tf

        if ps.in_process:
            return super().exchange(ps, seat, message)
        mean = self._mean(ps, seat, message)
        if seat.index == 0:
            with tf.control_dependencies([mean]):
                for k in range(ps.num_workers):
                    ps.record(ps.read_version(), replace(seat, index=k), 0, accepted=True, locked=False)
                ps.count_updates(1)
        return mean

    def rejoin(self, ps: ParameterServer, seat: Seat) -> Any:
        """As at a barrier for threads; nobody waits on the center elsewhere."""
        return super().rejoin(ps, seat) if ps.in_process else Gate.rejoin(self, ps, seat)

    def recall(self, ps: ParameterServer) -> list[Any]:
        """Threads wait for tokens."""
        return super().recall(ps) if ps.in_process else []

    def share_state(self, ps: ParameterServer, seat: Seat, state: Any) -> Any:
        """The mean over the workers; nobody but worker 0 may touch its variables in the middle of a reduction."""
        import tensorflow as tf

        if ps.in_process:
            return super().share_state(ps, seat, state)
        mean = self._mean(ps, seat, state)
        if seat.index == 0:
            ps.states.assign(tf.tile(mean[None], [ps.num_workers, 1]))
        return mean

    def _mean(self, ps: ParameterServer, seat: Seat, vector: Any) -> Any:
        import tensorflow as tf

        if ps.num_workers == 1:
            return vector
        return tf.raw_ops.CollectiveReduce(
            input=vector,
            group_size=ps.num_workers,
            group_key=1,
            instance_key=next(seat.collectives),
            merge_op="Add",
            final_op="Div",
            subdiv_offsets=[0],
            communication_hint="ring",
        )

    def traffic(self, workers: int) -> tuple[float, float]:
        """In a ring everyone sends (W - 1)/W of a vector twice: to reduce, and to gather."""
        return (workers - 1) / workers, (workers - 1) / workers
