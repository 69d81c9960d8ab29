"""What a gate may ask of the parameter server, and of the place of one worker on it.

Nothing in here is an engine: the one of TensorFlow's processes and threads is `server.parameter_server`, and another
one, in virtual time, can serve the same gates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

Event = Literal["exchange", "push", "pull"]  # how a round ends; an exchange is a push and its reply

Tensor = Any  # a tf.Tensor or tf.Variable; TensorFlow ships no types


class Held(Protocol):
    """A lock that is held.

    Attributes:
        released: there once the lock is free again; None while the block is open.
    """

    released: Tensor


class Mail(Protocol):
    """Vectors that workers send to each other. Between two of them, the order alone says which is which."""

    def send(self, to: int, vector: Tensor) -> None:
        """The next vector that worker `to` has from this one."""
        ...

    def receive(self, of: int, size: int | None) -> Tensor:
        """The next vector [size] that worker `of` has sent to this one."""
        ...


class WorkerSlot(Protocol):
    """The slot of one worker on the ps: whoever joins as this worker holds it."""

    @property
    def index(self) -> Any:
        """Number of the worker, an integer or a scalar on the first ps task."""
        ...

    @property
    def incarnation(self) -> Tensor:
        """Who holds the slot, [2]: the number that joining gave to it, and a 1. Others are refused."""
        ...

    @property
    def mail(self) -> Mail:
        """Between whoever holds the slot and the other workers; for gates without a parameter server."""
        ...

    def sleep(self, after: Sequence[Tensor] = ()) -> Tensor:
        """Wait for a token; returns what is there when it has come. Never under the lock."""
        ...

    def wake(self, condition: Tensor) -> None:
        """A token for this worker, if the scalar `condition` holds."""
        ...

    def forget_tokens(self) -> Tensor:
        """Tokens that nobody has taken are void; returns what is there when they are."""
        ...


class Store(Protocol):
    """The global variables of a run, and events on them. The center [P] is cut into slices, one for each ps task.

    What is built on the first ps task stands in `with tf.device(ps.devices[0])`; what is built for each slice, in
    `each_slice`.

    Attributes:
        num_workers: W.
        min_workers: a gate goes on with this number of workers, if the others do not come.
        last_version: rounds of the worker with the most, after which a barrier ends the run; None if they are scripted.
        in_process: True if all workers are threads of this process.
        devices: one device for each ps task; version, lock, record and all [W] variables are on the first.
        slices: of the center, with `index`, `device`, `center`, `initial` (its first value), `no_message` (zeros, as
            long as what `receive` returns), the scheme's global variables, and what the gate's `slice_variables` names.
        kept: what the gate's `variables` names, as attributes.
        active: flags [W] of who is counted on.
        finished: flags [W] of who has done all its rounds.
        folded: rounds of each worker that are on record, [W].
        states: the workers' non-trainable states, [W, S].
    """

    num_workers: int
    min_workers: int
    last_version: int | None
    in_process: bool
    devices: list[str]
    slices: list[Any]
    kept: Any
    active: Tensor
    finished: Tensor
    folded: Tensor
    states: Tensor

    # An event, in the order in which gates use its pieces.

    def receive(self, slot: WorkerSlot, message: Tensor) -> list[Tensor]:
        """The message of a worker, in slices that have arrived on their ps tasks. Before the lock, not under it.

        It travels as the codec has it. The scalars of a scheme that sends some are at the end of each slice: what a
        gate adds up or divides, it does to them, too.
        """
        ...

    def event(self, slot: WorkerSlot, parts: Sequence[Tensor] = ()) -> AbstractContextManager[Held]:
        """All that is built inside is one atomic event that this worker causes, perhaps with a message in `parts`.

        A message that is not finite, is late after the last update, or is not of whoever holds the slot, is refused.
        """
        ...

    def check(self, parts: Sequence[Tensor]) -> Tensor:
        """Refuse a message that is not finite, where no `event` does; returns a tensor on which to order the update."""
        ...

    def exclusive(self) -> AbstractContextManager[Held]:
        """All that is built inside is one atomic event that is no worker's message."""
        ...

    def lock(self, after: Sequence[Tensor]) -> AbstractContextManager[Held]:
        """All that is built inside reads one moment, once everything in `after` is there."""
        ...

    def each_slice(self, build: Callable[[Any, Any], Any], values: Sequence[Any] | None = None) -> list[Any]:
        """`build(slice, value)` on the device of each slice."""
        ...

    def share(self, reply: Tensor) -> Tensor:
        """A slice of a reply as it is to be kept for several workers: the same object, or where all of them read it."""
        ...

    def reply(self, replies: Sequence[Tensor]) -> Tensor:
        """The slices of a reply, which travel as the scheme's codec has it, as one vector [P] where the caller is."""
        ...

    # The center.

    def read_version(self) -> Tensor:
        """Number of updates that the center has had, a scalar."""
        ...

    def staleness(self, version: Tensor, slot: WorkerSlot) -> Tensor:
        """Updates since this worker pulled last, at `version`, a scalar; without a lock an estimate."""
        ...

    def note_pull(self, slot: WorkerSlot) -> None:
        """This worker has the present center."""
        ...

    def fold(
        self, slot: WorkerSlot, parts: Sequence[Tensor], event: Event = "exchange", locked: bool = True
    ) -> list[Tensor]:
        """The whole of an asynchronous update: recorded, merged into every slice, counted; returns the replies."""
        ...

    def weigh(self, part: Any, message: Tensor, staleness: Tensor, slot: WorkerSlot) -> Tensor:
        """A slice of a message of this worker, as the scheme wants it to count in a set."""
        ...

    def merge(
        self,
        part: Any,
        message: Tensor,
        staleness: Tensor,
        version: Tensor,
        slot: WorkerSlot | None = None,
        completes: Any = True,
    ) -> Tensor:
        """The scheme's rule on one slice, for a message of the worker in that slot, or of a set; returns the reply.

        `completes` is False if the update is not made with this message yet.
        """
        ...

    def count_updates(self, number: Any) -> Tensor:
        """The version after `number` more updates."""
        ...

    def gather(self, slot: WorkerSlot, indices: Tensor, locked: bool) -> Tensor:
        """Some coordinates of the center as they are now; under the lock, all of one moment."""
        ...

    # The record and the workers.

    def record(
        self, version: Tensor, worker: Any, staleness: Any, accepted: Any, event: Any = "exchange", locked: bool = True
    ) -> Tensor:
        """Append one event of `worker` (its index) to the record of the run; returns what is there when it has been."""
        ...

    def wake(self, flags: Tensor) -> None:
        """A token for every worker in `flags` [W]."""
        ...

    def close_slots(self, flags: Tensor) -> Any:
        """Nobody counts on the workers in `flags` [W] any more; they are refused until they join again."""
        ...

    def write(self, variable: Tensor, slot: WorkerSlot, value: Any) -> Tensor:
        """`value` into the row of this worker of a variable [W, ...] on the first ps task; returns what follows."""
        ...

    def store_state(self, slot: WorkerSlot, state: Tensor) -> None:
        """Write the worker's non-trainable state [S] into its row of `states`."""
        ...

    # Small pieces.

    def when(self, condition: Tensor, action: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None) -> Tensor:
        """Do `action` if the scalar `condition` holds, else `otherwise`; returns what is there when that is done."""
        ...

    def only(self, slot: WorkerSlot) -> Tensor:
        """Flags [W]: True for this worker."""
        ...

    def count(self, flags: Tensor) -> Tensor:
        """Number of flags that are set, a scalar."""
        ...
