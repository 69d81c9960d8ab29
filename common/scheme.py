"""The contract of an algorithm: the questions that every module of `algorithms/` answers.

A worker repeats **rounds**. One round is: `communication_period` local steps, each on a fresh batch;
a message; the server's update and reply, one atomic event; what the worker does with the reply.

    local_step      what does a worker do alone?
    message         what does it push?
    gate            who waits for whom?
    server_update   how does the server merge a message, and what does it answer?
    adopt           what does the worker do with the reply?

Vectors have shape [P], the number of trainable parameters (on the server: the slice of one ps task, so
rules are elementwise). The functions are traced once into a TensorFlow graph, in which reads and writes of a
variable happen in the order in which they are written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from .gates import Async, Gate

Tensor = Any  # a tf.Tensor or tf.Variable; TensorFlow ships no types


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Defaults: plain data flow, no state of its own, asynchronous.

    `worker` has: `params` (variable [P]), `gradient` (of the last step, [P]; only if the period is one),
    `steps` (of this round), and the scheme's local variables by name. `server` has: `center` (variable),
    `num_workers`, and the scheme's global variables by name.
    """

    name: ClassVar[str]  # the command: `bash run.sh <name>`
    idea: ClassVar[str]  # one line for the catalogue
    paper: ClassVar[str]  # authors and year
    exchange_first: ClassVar[bool] = False  # elastic schemes exchange before the first step of a period

    @property
    def gate(self) -> Gate:
        """Who waits for whom."""
        return Async()

    @property
    def period(self) -> int:
        """Local steps of a round."""
        return getattr(self, "communication_period", 1)

    def local_variables(self, params: Tensor) -> Mapping[str, Tensor]:
        """Initial values of further variables on the worker, by name; `params` is the initial center."""
        return {}

    def global_variables(self, center: Tensor) -> Mapping[str, Tensor]:
        """Initial values of further variables beside the center, by name; `center` is its initial value."""
        return {}

    def local_step(self, worker: Any, gradient: Tensor) -> None:
        """One step alone: update `worker.params` and the local variables. Default: nothing, the gradient is pushed."""

    def message(self, worker: Any) -> Tensor:
        """What is pushed, [P]."""
        return worker.gradient

    def server_update(self, server: Any, message: Tensor, staleness: Tensor) -> Tensor:
        """Merge one message into the center, inside the lock; returns the reply.

        `staleness` is the number of updates since this worker's last pull, a float scalar.
        """
        raise NotImplementedError(f"{type(self).__name__} has no server_update")

    def adopt(self, worker: Any, reply: Tensor) -> None:
        """Use the reply. Default: the worker goes on from the center."""
        worker.params.assign(reply)
