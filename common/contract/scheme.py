"""The contract of an algorithm: the questions that every module of `algorithms/` answers.

A worker repeats **rounds**. One round is: `communication_period` local steps, each on a fresh batch;
a message; the server's update and reply, one atomic event; what the worker does with the reply.

    gradient_point  where does a worker take its gradients?
    local_step      what does it do alone?
    message         what does it push?
    gate            who waits for whom?
    server_update   how does the server merge a message, and what does it answer?
    adopt           what does the worker do with the reply?

Vectors have shape [P], the number of trainable parameters (on the server: the slice of one ps task, so
rules are elementwise). The functions are traced once into a TensorFlow graph, in which reads and writes of a
variable happen in the order in which they are written here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from ..gates.asynchronous import Async
from ..gates.gate import Gate
from .rounds import Event, Rounds

Tensor = Any  # a tf.Tensor or tf.Variable; TensorFlow ships no types

if TYPE_CHECKING:
    Rate = float | Callable[[Any], Any]  # a learning rate, or a schedule (`keras.optimizers.schedules`) of local steps
else:
    Rate = float  # what the command line takes: of a union with a function it would make no flag at all


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Defaults: plain data flow, no state of its own, asynchronous.

    `worker` has: `params` (variable [P]), `gradient` (of the last step, [P]; only if the period is one),
    `steps` (of this round, a float), `index`, `num_workers`, and the scheme's local variables by name.
    `server` has: `center` (variable), `num_workers`, the scheme's global variables by name, and `anchor` (the center
    that the sender of this message pulled last) if the scheme `keeps_anchors`.
    """

    name: ClassVar[str]  # the command: `bash run.sh <name>`
    idea: ClassVar[str]  # one line for the catalogue
    paper: ClassVar[str]  # authors and year
    exchange_first: ClassVar[bool] = False  # elastic schemes exchange before the first step of a period
    keeps_anchors: ClassVar[bool] = False  # one more center for each worker on the ps
    sparse: ClassVar[bool] = False  # on a sparse problem, pushes gradients on the coordinates of the batch alone
    default_towers: ClassVar[int] = 1  # devices that share the batches of a worker, unless the user says how many

    @property
    def gate(self) -> Gate:
        """Who waits for whom."""
        return Async()

    @property
    def period(self) -> int:
        """Local steps of a round."""
        return getattr(self, "communication_period", 1)

    @property
    def events(self) -> frozenset[Event]:
        """How rounds may end."""
        return frozenset({"exchange"})

    def rounds(self, steps: int, done: int = 0) -> Rounds:
        """The rounds of a worker that does so many local steps: their steps, and how each ends.

        `done`: local steps of the run that this one resumes; its last round may have been shorter than a period.
        """
        return Rounds.even(steps, self.period)

    @property
    def warmup_updates(self) -> int:
        """Updates that worker 0 makes alone before the others start."""
        return getattr(self, "warm_start", 0)

    def at(self, step: Tensor) -> Scheme:
        """This scheme, with every learning-rate schedule replaced by its value after so many local steps."""
        schedules = {f.name: value for f in fields(self) if callable(value := getattr(self, f.name))}
        now = copy.copy(self) if schedules else self
        for name, schedule in schedules.items():
            object.__setattr__(now, name, schedule(step))
        return now

    @property
    def scheduled(self) -> bool:
        """True if a learning rate is a schedule."""
        return any(callable(getattr(self, f.name)) for f in fields(self))

    def check(self, workers: int) -> None:
        """Raise `UserError` if this cannot work with so many workers."""
        self.gate.check(workers)

    def local_variables(self, params: Tensor) -> Mapping[str, Tensor]:
        """Initial values of further variables on the worker, by name; `params` is the initial center."""
        return {}

    def global_variables(self, center: Tensor) -> Mapping[str, Tensor]:
        """Initial values of further variables beside the center, by name; `center` is its initial value."""
        return {}

    def gradient_point(self, worker: Any) -> Tensor:
        """Where the gradient of the next step is taken, [P]. Default: the worker's parameters."""
        return worker.params.read_value()

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
