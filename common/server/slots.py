"""The workers of a run as known to the ps: their flags, their states, and the queues that wake them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..messages.ops import end_queue, in_program_order, queue
from ..messages.stand_in import Row
from ..sync.store import TOKENS, WorkerSlot, token_of
from .transaction import Transactions


class Slots:
    """The workers of a run.

    Args:
        transactions: lock and admission on the ps.
        devices: one device for each ps task.
        initial_state: initial values of the model's non-trainable variables, [S].
        waits: True if workers wait for others.

    Attributes:
        ready: flags [W] of the workers that have joined.
        active: flags [W] of the workers for which synchronization rules wait.
        finished: flags [W] of the workers that have done all their rounds.
        stopping: True if the run is to end now.
        states: the workers' non-trainable states, [W, S].
        tokens: queues that wake the workers at the synchronization rule, [W]; none if workers do not wait.
        state_ready: a queue with a token once the global state is initialised.
        start_signal: a queue with a token once all workers are ready.
        shutdown_signal: a queue with a token for each worker once the evaluator has the result; a token False instead
            of True means that the state was restored, and that the worker has to join again.
        departed: a queue with a token of each worker that has left.
        chief_departed: a queue with a token once the chief has left.
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
            self.tokens = [queue(token_of(k)) for k in range(number)] if waits else []
        self.ps_shutdown = []
        for index, device in enumerate(devices):
            with tf.device(device):
                self.ps_shutdown.append(end_queue(index))

    @property
    def saved(self) -> dict[str, Any]:
        """Variables for a checkpoint, by name."""
        return {"ready": self.ready, "active": self.active, "finished": self.finished, "states": self.states}

    def slot(self, worker: int, index: Any, mail: Any = None) -> WorkerSlot:
        """Return the slot of a worker; `index` is its number in the graph, `mail` its queues to and from the others."""
        with tf.device(self.device):
            tokens = queue(TOKENS, shared_name=token_of(worker))
        return WorkerSlot(index, self.device, tokens, self.transactions.incarnation, mail=mail)

    def write(self, variable: Any, slot: WorkerSlot, value: Any) -> Any:
        """Write `value` into this worker's row of a variable [W, ...] on the first ps task."""
        return Row(variable, slot.index).write(value)

    def take(self, slot: WorkerSlot) -> None:
        """Give a slot to a new holder, under the lock: mark it active, and refuse its previous holder from now on."""
        with tf.device(self.device):
            self.write(self.transactions.incarnations, slot, slot.incarnation[0])
            self.write(self.active, slot, True)
            self.write(self.ready, slot, True)
            self.write(self.finished, slot, False)

    def close_slots(self, flags: Any) -> list[Any]:
        """Mark the workers in `flags` [W] as inactive, and refuse them until they join again."""
        with tf.device(self.device):
            closed = self.active.assign(self.active & ~flags)
            # Clear `active` before refusing a worker. A refused worker joins again and sets `active`: the other order
            # could clear that flag.
            with tf.control_dependencies([closed]):
                return [closed, self.transactions.void(flags)]

    def stop(self) -> Any:
        """Stop the run and close all slots; the caller then wakes the waiting workers, whose requests are refused.

        Returns:
            the last operation.
        """
        with self.transactions.exclusive() as held, tf.device(self.device):
            self.stopping.assign(True)
            self.close_slots(tf.ones([self.num_workers], tf.bool))
        return held.released

    def wake(self, flags: Any) -> None:
        """Send a token to every worker in `flags` [W]."""
        with tf.device(self.device):
            # One operation partitions the flags into zero or one token for each worker. Several operations for each
            # worker, in each event that may wake workers, took most of the start-up time of 64 workers.
            number = self.num_workers
            cut = tf.dynamic_partition(flags, tf.where(flags, tf.range(number), number), number + 1)
            for queue_, tokens in zip(self.tokens, cut, strict=False):  # the last part is the flags that are False
                queue_.enqueue_many([tokens])

    def call_back(self, wake_all: Callable[[], Any]) -> Any:
        """Wake all waiting workers (for the start, for others, for the end) after a restore, to join again."""
        with tf.device(self.device):
            more = self.shutdown_signal.enqueue_many([tf.zeros([self.num_workers], tf.bool)])
            return tf.group(self.start_signal.enqueue(True), more, in_program_order(wake_all))

    def store_state(self, slot: WorkerSlot, state: Any) -> None:
        """Write the worker's non-trainable state [S] into its row."""
        with tf.device(self.device):
            self.write(self.states, slot, state)

    def only(self, slot: WorkerSlot) -> Any:
        """Return flags [W], True for this worker alone."""
        return tf.equal(tf.range(self.num_workers), slot.index)

    def count(self, flags: Any) -> Any:
        """Return the number of flags that are set."""
        return tf.reduce_sum(tf.cast(flags, tf.int32))
