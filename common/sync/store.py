"""The interfaces through which a synchronization rule uses the parameter server, and the slot of one worker on it.

`server.parameter_server` implements the interfaces for TensorFlow's processes and threads; another engine can serve the
same synchronization rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol

from ..lazy import tf

Event = Literal["exchange", "push", "pull"]  # how a round ends; an exchange is a push and its reply

Tensor = Any  # a tf.Tensor or tf.Variable; TensorFlow ships no types


class Message(NamedTuple):
    """A message of a worker, or a slice of it on one ps task.

    `tf.nest.map_structure` applies a function to both parts.
    """

    vector: Tensor  # [P], or [n] of a slice
    scalars: Tensor = ()  # the numbers that the scheme names, [m], whole with each slice; () if it names none


class Held(Protocol):
    """A lock that is held.

    Attributes:
        released: a tensor that is ready once the lock is free again; None while the block is open.
    """

    released: Tensor


@dataclass(frozen=True)
class WorkerSlot:
    """The slot of one worker on the ps, held by the process that joined last as this worker.

    Attributes:
        index: number of the worker, an integer or a scalar on the first ps task.
        device: device of the first ps task.
        tokens: the queue of the worker's tokens on that device.
        incarnation: incarnation of the holder, [2]: its number, given when it joined, and a 1. Others are refused.
        encoder: encoder of the holder's messages, see `messages.encoder`; None for a sender that is no worker.
        mail: queues to and from the other workers, see `messages.channels`; for rules without a parameter server.
        times: times of the round whose message is sent, [3], see `server.trace`; None outside of rounds.
    """

    index: Any
    device: str
    tokens: Any
    incarnation: Tensor
    encoder: Any = None
    mail: Any = None
    times: Tensor = None

    def with_times(self, times: Tensor, index: Any = None) -> WorkerSlot:
        """Return this slot, or that of worker `index`, in a round with these `times`."""
        return replace(self, times=times, index=self.index if index is None else index)

    def sleep(self, after: Sequence[Tensor] = ()) -> Tensor:
        """Wait for a token; returns it. Never called under the lock."""
        with tf.control_dependencies(after), tf.device(self.device):
            return self.tokens.dequeue()

    def wake(self, condition: Tensor) -> None:
        """Send a token to this worker if the scalar `condition` holds."""
        with tf.device(self.device):
            self.tokens.enqueue_many([tf.ones([tf.cast(condition, tf.int32)], tf.bool)])

    def forget_tokens(self) -> Tensor:
        """Delete the tokens that the worker has not taken."""
        with tf.device(self.device):
            return self.tokens.dequeue_many(self.tokens.size())


class Store(Protocol):
    """The global variables of a run, and events on them. The center [P] is cut into slices, one for each ps task.

    Operations on the first ps task are built in `with tf.device(ps.devices[0])`, operations on each slice in
    `each_slice`.

    Attributes:
        num_workers: W.
        min_workers: the number of workers with which a synchronization rule continues if the others do not come.
        last_version: rounds of the worker with the most, after which a barrier ends the run; None if they are scripted.
        in_process: True if all workers are threads of this process.
        devices: one device for each ps task; version, lock, record and all [W] variables are on the first.
        slices: of the center, with `index`, `device`, `center`, `initial` (its first value), `no_message` (zeros like
            the slices that `receive` returns), the scheme's global variables, and the synchronization rule's
            `slice_variables`.
        kept: the synchronization rule's `variables`, as attributes.
        active: flags [W] of the workers whose messages the synchronization rule expects.
        finished: flags [W] of the workers that have done all their rounds.
        rounds_applied: recorded rounds of each worker, [W].
        states: the workers' non-trainable states, [W, S].
        released: times at which the synchronization rule has released the last message of each worker, [W], if it
            `waits`.
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
    rounds_applied: Tensor
    states: Tensor
    released: Tensor

    # The operations of an event, in the order in which synchronization rules use them.

    def receive(self, slot: WorkerSlot, message: Message) -> tuple[WorkerSlot, list[Message]]:
        """Return the slot with the times of the round, and the message as slices; both have arrived on the ps tasks.

        Called before the lock, not under it. The codec encodes the vector on its way. A synchronization rule that adds
        up or divides messages does the same to their scalars.
        """
        ...

    def event(self, slot: WorkerSlot, slices: Sequence[Message] = ()) -> AbstractContextManager[Held]:
        """Build all operations inside as one atomic event of this worker, which may bring a message in `slices`.

        A message is refused if it is not finite, comes after the last update, or is not from the holder of the slot.
        """
        ...

    def check(self, slices: Sequence[Message]) -> Tensor:
        """Refuse a message that is not finite, where no `event` does; returns a tensor that the update must follow."""
        ...

    def exclusive(self) -> AbstractContextManager[Held]:
        """Build all operations inside as one atomic event that is no worker's message."""
        ...

    def lock(self, after: Sequence[Any]) -> AbstractContextManager[Held]:
        """Build reads that see one consistent state, once all tensors in `after` are ready."""
        ...

    def each_slice(self, build: Callable[[Any, Any], Any], values: Sequence[Any] | None = None) -> list[Any]:
        """Return `build(slice, value)` for each slice, built on its device."""
        ...

    def share(self, reply: Tensor) -> Tensor:
        """Return a slice of a reply for several workers: the same object, or a copy in memory that all of them read."""
        ...

    def reply(self, replies: Sequence[Tensor]) -> Tensor:
        """Return a reply as one vector [P] on the caller's device; its slices travel encoded by the scheme's codec."""
        ...

    # The center.

    def read_version(self) -> Tensor:
        """Return the number of updates that the center has had, a scalar."""
        ...

    def staleness(self, version: Tensor, slot: WorkerSlot) -> Tensor:
        """Return the updates between this worker's last pull and `version`, a scalar; without a lock an estimate."""
        ...

    def note_pull(self, slot: WorkerSlot) -> None:
        """Record that this worker has pulled the present center."""
        ...

    def apply(
        self, slot: WorkerSlot, slices: Sequence[Message], event: Event = "exchange", locked: bool = True
    ) -> list[Tensor]:
        """Make an asynchronous update: record it, merge it into every slice, count it; returns the replies."""
        ...

    def weighted(self, part: Any, message: Message, staleness: Tensor, slot: WorkerSlot) -> Message:
        """Return a slice of this worker's message with the weight that the scheme gives it in a set."""
        ...

    def merge(
        self,
        part: Any,
        message: Message,
        staleness: Tensor,
        version: Tensor,
        slot: WorkerSlot | None = None,
        completes: Any = True,
    ) -> Tensor:
        """Apply the scheme's rule to one slice, for a message of the worker in `slot` or of a set; returns the reply.

        `completes` is False if this message does not complete the update yet.
        """
        ...

    def count_updates(self, number: Any) -> Tensor:
        """Add `number` updates to the version, and return it."""
        ...

    def gather(self, slot: WorkerSlot, indices: Tensor, locked: bool) -> Tensor:
        """Return some coordinates of the present center; if `locked`, all of one version."""
        ...

    # The record and the workers.

    def record(
        self,
        version: Tensor,
        slot: WorkerSlot,
        staleness: Any,
        accepted: Any,
        event: Any = "exchange",
        locked: bool = True,
    ) -> Tensor:
        """Append one event of the worker in `slot` to the record; returns a tensor that is ready when that is done."""
        ...

    def wake(self, flags: Tensor) -> None:
        """Send a token to every worker in `flags` [W]; in an event, these workers are released at its time."""
        ...

    def close_slots(self, flags: Tensor) -> Any:
        """Make the workers in `flags` [W] inactive; they are refused until they join again."""
        ...

    def write(self, variable: Tensor, slot: WorkerSlot, value: Any) -> Tensor:
        """Write `value` into this worker's row of a variable [W, ...] on the first ps task; returns the write."""
        ...

    def store_state(self, slot: WorkerSlot, state: Tensor) -> None:
        """Write the worker's non-trainable state [S] into its row of `states`."""
        ...

    # Helper functions.

    def when(self, condition: Tensor, action: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None) -> Tensor:
        """Run `action` if the scalar `condition` holds, else `otherwise`; returns a tensor that is ready afterwards."""
        ...

    def only(self, slot: WorkerSlot) -> Tensor:
        """Return flags [W] that are True for this worker alone."""
        ...

    def count(self, flags: Tensor) -> Tensor:
        """Return the number of flags that are set, a scalar."""
        ...
