"""The workers of a run as the ps knows them: who is there, who is counted on, how each is told to go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..gates.store import WorkerSlot
from .encoder import Encoder
from .ops import end_queue, queue
from .transaction import Transactions


@dataclass(frozen=True)
class Slot:
    """The slot of one worker on the ps: whoever joins as this worker holds it. See `gates.store.WorkerSlot`.

    Attributes:
        index: number of the worker, an integer or a scalar on the first ps task.
        device: of the first ps task.
        tokens: the queue of its tokens there.
        incarnation: of whoever holds it, [2]; see `Transactions`.
        encoder: of the messages of whoever holds it.
        mail: to and from the other workers.
    """

    index: Any
    device: str
    tokens: Any
    incarnation: Any
    encoder: Encoder | None = None
    mail: Any = None

    def sleep(self, after: Sequence[Any] = ()) -> Any:
        """Wait for a token; returns it."""
        with tf.control_dependencies(after), tf.device(self.device):
            return self.tokens.dequeue()

    def wake(self, condition: Any) -> None:
        """A token for this worker, if the condition holds."""
        with tf.device(self.device):
            self.tokens.enqueue_many([tf.ones([tf.cast(condition, tf.int32)], tf.bool)])

    def forget_tokens(self) -> Any:
        """Tokens that nobody has taken are void."""
        with tf.device(self.device):
            return self.tokens.dequeue_many(self.tokens.size())


class Membership:
    """The workers of a run.

    Args:
        transactions: on the ps.
        devices: one device for each ps task.
        initial_state: of the model's non-trainable variables, [S].
        waits: True if workers wait at the gate.

    Attributes:
        ready: flags [W] of who has joined.
        active: flags [W] of who is counted on.
        finished: flags [W] of who has done all its rounds.
        stopping: True if somebody wants the run to end now.
        states: the workers' non-trainable states, [W, S].
        state_ready: a queue with a token once the global state is there.
        start_signal: with a token once all workers are ready.
        shutdown_signal: with a token for each worker once the evaluator has the result; False instead of True says that
            the state was restored, and that there is more to do.
        departed: with a token of each worker that has gone; `chief_departed`, of the chief.
        ps_shutdown: for each ps task a queue with a token when the run has ended.
    """

    def __init__(self, transactions: Transactions, devices: Sequence[str], initial_state: Any, waits: bool):
        self.transactions, self.device = transactions, transactions.device
        self.num_workers = number = transactions.num_workers
        with tf.device(self.device):
            self.ready = tf.Variable(tf.zeros([number], tf.bool), name="ready")
            self.active = tf.Variable(tf.ones([number], tf.bool), name="active")
            self.finished = tf.Variable(tf.zeros([number], tf.bool), name="finished")
            self.stopping = tf.Variable(tf.constant(False), name="stopping")
            self.states = tf.Variable(tf.tile(initial_state[None], [number, 1]), name="states")
            self.state_ready, self.start_signal = queue("state_ready"), queue("start_signal")
            self.shutdown_signal = queue("shutdown_signal")
            self.departed, self.chief_departed = queue("departed"), queue("chief_departed")
            self.tokens = [queue(f"token_{k}") for k in range(number)] if waits else []
        self.ps_shutdown = []
        for index, device in enumerate(devices):
            with tf.device(device):
                self.ps_shutdown.append(end_queue(index))

    @property
    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps, by name."""
        return {"ready": self.ready, "active": self.active, "finished": self.finished, "states": self.states}

    def slot(self, worker: int, index: Any, mail: Any = None) -> Slot:
        """The slot of a worker; `index` is its number as the graph shall see it, `mail` is to and from others."""
        with tf.device(self.device):
            tokens = queue("own_tokens", shared_name=f"token_{worker}")
        return Slot(index, self.device, tokens, self.transactions.incarnation, mail=mail)

    def write(self, variable: Any, slot: WorkerSlot, value: Any) -> Any:
        """`value` into the row of this worker of a variable [W, ...] on the first ps task."""
        return tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=slot.index, updates=value)

    def take(self, slot: WorkerSlot) -> None:
        """Under the lock: whoever held the slot is refused from now on, and its new holder is counted on."""
        with tf.device(self.device):
            self.write(self.transactions.incarnations, slot, slot.incarnation[0])
            self.write(self.active, slot, True)
            self.write(self.ready, slot, True)
            self.write(self.finished, slot, False)

    def close_slots(self, flags: Any) -> list[Any]:
        """Nobody counts on the workers in `flags` [W] any more; they are refused until they join again."""
        with tf.device(self.device):
            gone = self.active.assign(self.active & ~flags)
            with tf.control_dependencies([gone]):  # whoever is refused joins again, and is counted on again
                return [gone, self.transactions.void(flags)]

    def stop(self) -> Any:
        """Nobody is counted on any more, and nobody is admitted; who waits is woken to learn it."""
        with self.transactions.exclusive(), tf.device(self.device):
            self.stopping.assign(True)
            self.close_slots(tf.ones([self.num_workers], tf.bool))
        return tf.constant(True)

    def wake(self, flags: Any) -> None:
        """A token for every worker in `flags` [W]."""
        with tf.device(self.device):
            # One operation cuts the flags into none or one for each worker: with a few for each, in each event that may
            # wake, building the graph of 64 workers took longer than all else at their start.
            number = self.num_workers
            cut = tf.dynamic_partition(flags, tf.where(flags, tf.range(number), number), number + 1)
            for queue_, tokens in zip(self.tokens, cut, strict=False):  # the last part is those who sleep on
                queue_.enqueue_many([tokens])

    def call_back(self, wake_all: Callable[[], Any]) -> Any:
        """The state was restored: whoever waits, for the start, at the gate or for the end, goes on and joins again."""
        with tf.device(self.device):
            more = self.shutdown_signal.enqueue_many([tf.zeros([self.num_workers], tf.bool)])
            return tf.group(self.start_signal.enqueue(True), more, tf.function(wake_all, autograph=False)())

    def store_state(self, slot: WorkerSlot, state: Any) -> None:
        """Write the worker's non-trainable state [S] into its row."""
        with tf.device(self.device):
            self.write(self.states, slot, state)

    def only(self, slot: WorkerSlot) -> Any:
        """Flags [W]: True for this worker."""
        return tf.equal(tf.range(self.num_workers), slot.index)

    def count(self, flags: Any) -> Any:
        """Number of flags that are set."""
        return tf.reduce_sum(tf.cast(flags, tf.int32))
