"""Gates: who waits for whom on the parameter server. A gate builds one exchange, push to reply, into the graph.

An exchange is one atomic event whatever the number of ps tasks. The lock lives on the first ps task and is taken
after the whole message has arrived, so it is never held while a message travels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Event = Literal["exchange", "push", "pull"]  # how a round ends; an exchange is a push and its reply
ParameterServer = Any  # what gates ask of it: `engine.parameter_server`


@dataclass(frozen=True)
class Seat:
    """The place of one worker on the ps: its index, an integer or a scalar on the first ps task, and its tokens."""

    index: Any
    tokens: Any
    passport: Any = None  # [this sitter's pass, 1], on the first ps task; see `ParameterServer.admit`
    collectives: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # the same in every worker's graph


class Gate:
    """Who waits for whom. The defaults: an exchange of one message with the parameter server, for any workers."""

    synchronous: ClassVar[bool] = False
    uses_ps: ClassVar[bool] = True

    def check(self, workers: int) -> None:
        """Raise `UserError` if this gate cannot work with so many workers."""

    def variables(self, ps: ParameterServer) -> None:
        """Make what the gate keeps on the ps."""

    def exchange(self, ps: ParameterServer, seat: Seat, message: Any) -> Any:
        """Push `message` [P] of the worker in that seat and return the reply [P]."""
        raise NotImplementedError(f"{type(self).__name__} exchanges nothing")

    def push(self, ps: ParameterServer, seat: Seat, message: Any) -> None:
        """Push without waiting for a reply; only schemes with such rounds need it."""
        raise NotImplementedError(f"{type(self).__name__} cannot push without a reply")

    def gather(self, ps: ParameterServer, seat: Seat, indices: Any) -> Any:
        """Read some coordinates of the center; only schemes for sparse problems need it."""
        raise NotImplementedError(f"{type(self).__name__} reads the whole center")

    def complete(self, ps: ParameterServer) -> Any:
        """True once the run has made its last update: nobody is admitted any more. Here it ends with its workers."""
        import tensorflow as tf

        return tf.constant(False)

    def rejoin(self, ps: ParameterServer, seat: Seat) -> Any:
        """Under the lock: a worker takes its seat. True if its last message still waits for others there."""
        import tensorflow as tf

        return tf.constant(False)

    def recall(self, ps: ParameterServer) -> list[Any]:
        """Operations that wake whoever waits: the state has been restored."""
        return []

    def share_state(self, ps: ParameterServer, seat: Seat, state: Any) -> Any:
        """Let the evaluator see the worker's non-trainable state [S]; returns what the worker goes on with."""
        ps.store_state(seat, state)
        return state

    def traffic(self, workers: int) -> tuple[float, float]:
        """Vectors that a recorded exchange moves, towards the center and back."""
        del workers
        return 1, 1
