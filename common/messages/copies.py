"""The parameters of all workers, each on the task of its worker, with a lock: for workers that average in pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from .stand_in import StandIn
from .transport import Transport


class Copy(StandIn):
    """The parameters of a worker on its device, shared by name with the graph of that worker.

    Args:
        name: name of the variable.
        size: P.
        device: device of the variable.
    """

    def __init__(self, name: str, size: int, device: str):
        self.device = device
        with tf.init_scope(), tf.device(device):
            container = tf.compat.v1.get_default_graph()._container
            self.handle = tf.raw_ops.VarHandleOp(
                dtype=tf.float32, shape=[size], shared_name=name, container=container or ""
            )
        self.size = size

    def read_value(self) -> Any:
        """Return the parameters [P], on their device."""
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=tf.float32)
            return tf.ensure_shape(value, [self.size])

    def assign(self, value: Any) -> Any:
        """Replace the parameters."""
        with tf.device(self.device):
            return tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)


class Copies:
    """What one worker sees of the parameters of all.

    Args:
        devices: device of the parameters of each worker, [W].
        cpus: device of the lock of each worker, [W].
        transport: transport between the workers.
        size: P.
        holding: context of the operations under a lock, see `server.transaction`.
    """

    def __init__(
        self,
        devices: Sequence[str],
        cpus: Sequence[str],
        transport: Transport,
        size: int,
        holding: Callable[..., AbstractContextManager[Any]],
    ):
        self.devices, self.cpus, self.transport, self.size, self.holding = devices, cpus, transport, size, holding
        self.copies: dict[int, Copy] = {}
        self.mutexes: dict[int, Any] = {}

    def __getitem__(self, worker: int) -> Copy:
        """Return the parameters of a worker."""
        if worker not in self.copies:
            self.copies[worker] = Copy(f"worker_{worker}_params", self.size, self.devices[worker])
        return self.copies[worker]

    def lock(self, worker: int, after: Sequence[Any]) -> AbstractContextManager[Any]:
        """Hold the lock of a worker's parameters, once every tensor in `after` is computed."""
        if worker not in self.mutexes:
            with tf.init_scope(), tf.device(self.cpus[worker]):
                name = f"copy_{worker}"
                self.mutexes[worker] = tf.raw_ops.MutexV2(shared_name=name, name=name)
        return self.holding(self.mutexes[worker], self.cpus[worker], after)

    def moved(self, vector: Any, device: str) -> Any:
        """Return a vector, which is on the current device, as it arrives on another."""
        sent = self.transport.send(vector)
        with tf.device(device):
            return self.transport.receive(sent)
