"""What a checkpoint keeps of the global state, and how it is put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from .journal import Journal
from .membership import Membership
from .transaction import CLEAN, DIRTY, Transactions
from .transport import Client


class Persistence:
    """Saves and restores the global state of a run.

    Args:
        saved: what a checkpoint keeps, by name: one variable, or the slices of a vector, one for each ps task.
        devices: one device for each ps task.
        transactions: on the ps.
        journal: whose record goes on from the restored state.
        membership: of the workers.
        client: who saves and restores.
    """

    def __init__(
        self,
        saved: Mapping[str, Sequence[Any]],
        devices: Sequence[str],
        transactions: Transactions,
        journal: Journal,
        membership: Membership,
        client: Client,
    ):
        self.saved, self.devices, self.transactions = saved, devices, transactions
        self.journal, self.membership, self.client = journal, membership, client

    def values(self) -> dict[str, Any]:
        """Everything that a checkpoint keeps, at one moment; the slices of a vector as name/0, name/1, ..."""
        values = {}
        with self.transactions.clean():
            for name, parts in self.saved.items():
                for i, variable in enumerate(parts):
                    with tf.device(variable.device):  # or the lock would be held for a round trip to the chief
                        values[f"{name}/{i}"] = self.client.transport.depart(variable.read_value())
        return {name: self.client.fetch(value) for name, value in values.items()}

    def new_values(self) -> dict[str, list[Any]]:
        """Where saved values are fed: for each name, one place or one for each slice."""
        return {
            name: [self.client.feed(variable.dtype, variable.shape) for variable in parts]
            for name, parts in self.saved.items()
        }

    def shut(self) -> Any:
        """First in a restoration: nobody is admitted from now on, and nothing is under way any more."""
        with self.transactions.lock([]):
            self.transactions.void_all(DIRTY)
        return tf.constant(True)

    def restore(self, new_values: Mapping[str, Sequence[Any]]) -> Any:
        """Then: everything has its saved value, and the record goes on from there."""
        assigns = []
        for name, parts in self.saved.items():
            for variable, new in zip(parts, new_values[name], strict=True):
                with tf.device(variable.device):
                    assigns.append(variable.assign(self.client.transport.arrive(new), read_value=False))
        with self.transactions.lock(assigns) as held, tf.device(self.devices[0]):  # the evaluator may be at the record
            self.membership.stopping.assign(False)
            self.journal.begin_again()
        return tf.group(held.released)

    def open(self) -> Any:
        """Last, when whoever waited has been woken: workers may join."""
        return self.transactions.void_all(CLEAN).op

    def alive(self) -> Any:
        """For each ps task, True if its variables have values."""
        flags = []
        for device in self.devices:
            mine = [part for parts in self.saved.values() for part in parts if part.device == device]
            with tf.device(device):
                known = [tf.raw_ops.VarIsInitializedOp(resource=v.handle) for v in mine]
                flags.append(tf.reduce_all(tf.stack(known)))
        with tf.device(self.devices[0]):
            return tf.stack(flags)
