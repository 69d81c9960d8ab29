"""The lock of the first ps task and the admission under it, by which each event is applied as a whole or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..messages.ops import clock
from ..sync.store import WorkerSlot

NO_HOLDER, DIRTY, CLEAN = -1, 0, 1  # see `Transactions.incarnations`; the incarnation of a worker is larger

REFUSED = "refused"


@contextmanager
def holding(
    mutex: Any,
    device: str,
    after: Sequence[Any],
    enter: Callable[[], Any] | None = None,
    leave: Callable[[], Any] | None = None,
) -> Iterator[Any]:
    """Hold the lock `mutex` on `device` for what is built inside; see `Transactions.lock`."""
    graph = tf.compat.v1.get_default_graph()
    with tf.control_dependencies(tf.nest.flatten(after, expand_composites=True)), tf.device(device):
        lock = entered = tf.raw_ops.MutexLock(mutex=mutex)
        if enter is not None:
            with tf.control_dependencies([lock]):
                entered = enter()
    held: Any = SimpleNamespace(released=None)
    first = len(graph.get_operations())
    with tf.control_dependencies([entered]):
        yield held
    # The operations that lead to the unlock are all on the device of the lock. On the worker they would hold the lock
    # for a round trip, or for ever if the worker has died.
    with tf.device(device):
        inside = tf.group(*graph.get_operations()[first:])  # one edge for each device, not for each operation
        with tf.control_dependencies([inside]):
            last = [leave()] if leave else []
            with tf.control_dependencies(last):
                held.released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)


class Transactions:
    """Atomic events on the global variables.

    Args:
        device: device of the first ps task.
        num_workers: number of workers, W.
        version: version of the center, for error messages.

    Attributes:
        incarnations: [W + 1], a fencing token for each slot, and as last element `CLEAN` or `DIRTY`. Joining writes a
            new token. Worker 1 is taken for dead and started again; the new process joins with 77; requests of the old
            one (52) are refused.
        incarnation: the caller's incarnation and `CLEAN`, [2]. Fed with every call.
        now: time of the event that is being built, taken under the lock after the admission; None outside of events.
    """

    def __init__(self, device: str, num_workers: int, version: Any):
        self.device, self.num_workers, self.version = device, num_workers, version
        with tf.device(device):
            no_holders = tf.constant([NO_HOLDER] * num_workers + [CLEAN], tf.int64)
            self.incarnations = tf.Variable(no_holders, name="incarnations")
            self.incarnation = tf.compat.v1.placeholder_with_default(
                tf.constant([NO_HOLDER, CLEAN], tf.int64), [2], name="incarnation"
            )
            self.mutex = tf.raw_ops.MutexV2(shared_name="lock", name="lock")
        self.now: Any = None

    @contextmanager
    def lock(
        self, after: Sequence[Any], enter: Callable[[], Any] | None = None, leave: Callable[[], Any] | None = None
    ) -> Iterator[Any]:
        """Run the operations that are built inside the context atomically, once every tensor in `after` is computed.

        The unlock waits for every operation built inside. The lock of a worker that dies is released: the runtime drops
        its step, and with it the lock.

        Args:
            after: tensors to compute before the lock is taken.
            enter: builds the first operation under the lock.
            leave: builds the last operation under the lock.

        Yields:
            an object whose attribute `released` is the unlock, once the context has ended.
        """

        def begin() -> Any:
            # All that is built inside waits for the time, too. A branch of a `tf.cond` waits for what it uses alone, so
            # that the reply to a dropped message could be on its way before the event had its time.
            with tf.control_dependencies([enter() if enter else None]):
                self.now = clock()
            return self.now

        with holding(self.mutex, self.device, after, begin if enter else None, leave) as held:
            yield held
            self.now = None

    def event(
        self, slot: WorkerSlot, after: Sequence[Any], conditions: Callable[[], Sequence[Any]]
    ) -> AbstractContextManager[Any]:
        """Lock for a worker's request, once every tensor in `after` is computed; the request is admitted or refused.

        `conditions` builds further conditions of admission, under the lock.

        If the event is interrupted (a ps dies, the sender's step is dropped), the state is dirty, and no worker is
        admitted until the chief has restored it.
        """
        return self.lock(after, lambda: self.admit(slot, conditions), lambda: self.mark(CLEAN))

    def admit(self, slot: WorkerSlot, conditions: Callable[[], Sequence[Any]]) -> Any:
        """Refuse a request from a former holder of the slot, in a dirty state, or that fails one of the conditions."""
        with tf.device(self.device):
            current = tf.gather(self.incarnations, tf.stack([slot.index, self.num_workers]))  # of the slot; the state
            right = tf.reduce_all(tf.equal(current, slot.incarnation))
            fine = tf.stack([right, *conditions()])
            return tf.raw_ops.Assert(condition=tf.reduce_all(fine), data=[REFUSED, current, fine, self.version])

    def holds(self, slot: WorkerSlot) -> Any:
        """Return True if the caller is the holder of the slot, not a former one; under the lock."""
        with tf.device(self.device):
            return tf.equal(tf.gather(self.incarnations, slot.index), slot.incarnation[0])

    def check(self, conditions: Sequence[Any]) -> Any:
        """Refuse a request that fails one of the conditions.

        Its data has the version, so `tf.function` runs it after earlier operations that write the version.
        """
        with tf.device(self.device):
            fine = tf.stack(conditions)
            return tf.raw_ops.Assert(condition=tf.reduce_all(fine), data=[REFUSED, fine, self.version])

    def exclusive(self, after: Sequence[Any] = ()) -> AbstractContextManager[Any]:
        """Lock for an event that is no worker's message; if interrupted, it leaves a dirty state."""

        def enter() -> Any:
            with tf.control_dependencies([self.check_clean()]):
                return self.mark(DIRTY)

        return self.lock(after, enter, lambda: self.mark(CLEAN))

    def clean(self) -> AbstractContextManager[Any]:
        """Lock for reading; refused if the state is dirty."""
        return self.lock([], self.check_clean)

    def check_clean(self) -> Any:
        """Refuse to continue from a dirty state."""
        clean = tf.equal(self.incarnations[self.num_workers], CLEAN)
        return tf.raw_ops.Assert(condition=clean, data=[REFUSED, self.incarnations.read_value()])

    def mark(self, state: int) -> Any:
        """Mark the state as `DIRTY` or `CLEAN`."""
        tokens, value = self.incarnations.handle, tf.constant(state, tf.int64)
        return tf.raw_ops.ResourceScatterUpdate(resource=tokens, indices=self.num_workers, updates=value)

    def void(self, flags: Any) -> Any:
        """Refuse from now on the holders of the slots in `flags` [W]."""
        with tf.device(self.device):
            voided = tf.concat([flags, [False]], 0)
            return self.incarnations.assign(tf.where(voided, tf.constant(NO_HOLDER, tf.int64), self.incarnations))

    def void_all(self, state: int) -> Any:
        """Refuse all workers until they join again; in a `DIRTY` state they cannot join either."""
        with tf.device(self.device):
            return self.incarnations.assign(tf.constant([*[NO_HOLDER] * self.num_workers, state], tf.int64))

    def read_incarnations(self) -> Any:
        """Read the incarnations under the lock, so between two events."""
        with self.lock([]), tf.device(self.device):
            return self.incarnations.read_value()
