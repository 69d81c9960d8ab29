"""Save and restore of the global state for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ..messages.transport import Client
from .journal import Journal
from .slots import Slots
from .transaction import CLEAN, DIRTY, Transactions


@dataclass(frozen=True)
class Persistence:
    """Operations that save and restore the global state of a run.

    Args:
        saved: variables for a checkpoint, by name: one variable, or the slices of a vector, one for each ps task.
        devices: one device for each ps task.
        transactions: lock and admission on the ps.
        journal: the event log, which continues from the restored state.
        slots: the workers as known to the ps.
        client: the client that saves and restores.
    """

    saved: Mapping[str, Sequence[Any]]
    devices: Sequence[str]
    transactions: Transactions
    journal: Journal
    slots: Slots
    client: Client

    def values(self) -> dict[str, Any]:
        """Read all values for a checkpoint under one lock; the slices of a vector are name/0, name/1, ..."""
        values = {}
        with self.transactions.clean():
            for name, slices in self.saved.items():
                for i, variable in enumerate(slices):
                    # Read on the variable's device: a read on the chief would hold the lock for a round trip.
                    with tf.device(variable.device):
                        values[f"{name}/{i}"] = self.client.transport.send(variable.read_value())
        return {name: self.client.fetch(value) for name, value in values.items()}

    def new_values(self) -> dict[str, list[Any]]:
        """Make placeholders of saved values: for each name, one or one for each slice."""
        return {
            name: [self.client.feed(variable.dtype, variable.shape) for variable in slices]
            for name, slices in self.saved.items()
        }

    def shut(self) -> Any:
        """Begin a restoration: wait for the current event, and admit no worker from now on."""
        with self.transactions.lock([]):
            self.transactions.void_all(DIRTY)
        return tf.constant(True)

    def restore(self, new_values: Mapping[str, Sequence[Any]]) -> Any:
        """Assign the saved values, and continue the log from them; the second step of a restoration, after `shut`."""
        assigns = []
        for name, slices in self.saved.items():
            for variable, new in zip(slices, new_values[name], strict=True):
                with tf.device(variable.device):
                    assigns.append(variable.assign(self.client.transport.receive(new), read_value=False))
        # The evaluator may drain the log meanwhile. The lock shows it the old log or the new one, not a mixture.
        with self.transactions.lock(assigns) as held, tf.device(self.devices[0]):
            self.slots.stopping.assign(False)
            self.journal.begin_again()
        return tf.group(held.released)

    def open(self) -> Any:
        """End a restoration, after all waiting workers were woken: workers may join."""
        return self.transactions.void_all(CLEAN).op

    def alive(self) -> Any:
        """Return True for each ps task whose variables are initialised."""
        flags = []
        for device in self.devices:
            parts = [part for slices in self.saved.values() for part in slices if part.device == device]
            with tf.device(device):
                initialized = [tf.raw_ops.VarIsInitializedOp(resource=v.handle) for v in parts]
                flags.append(tf.reduce_all(tf.stack(initialized)))
        with tf.device(self.devices[0]):
            return tf.stack(flags)
