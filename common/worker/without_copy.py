"""Workers without a copy of the center: each of their steps reads the center and pushes a gradient."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract.scheme import Scheme
from ..server.answers import Joined
from ..server.parameter_server import ParameterServer
from ..sync.store import Message, WorkerSlot
from .replica import Replica, Shard
from .timing import RoundTimer, moment


class WithoutCopy:
    """A worker without local variables, whose rounds are one step each.

    Args:
        scheme: the algorithm.
        ps: the global variables.
        slot: the worker's slot on the ps.
        device: its device.
    """

    def __init__(self, scheme: Scheme, ps: ParameterServer, slot: WorkerSlot, device: str):
        self.scheme, self.ps, self.slot, self.device = scheme, ps, slot, device
        self.view: Any = SimpleNamespace(index=slot.index, num_workers=ps.num_workers)

    def local(self) -> dict[str, list[Any]]:
        """Return the local state to save."""
        return {}

    def start(self, recorded: Any) -> Joined:
        """Take a slot, without a pull; returns the results of `join`."""
        return self.ps.join(self.slot, recorded)[2]

    def rounds(self, rows: Any, kind: str, before: Any) -> Any:
        """Build several rounds into one call; returns the same as `DenseWorker.rounds`."""
        with tf.device(self.device):
            losses, end = [], before[2:]
            for r in range(rows.shape[0]):
                self.view.kind, self.view.round, self.view.step = kind, *[before[0] + r] * 2
                loss, end = self.round(rows[r, 0], end, r == 0, r == rows.shape[0] - 1)
                losses.append(loss)
            return tf.stack([tf.stack([loss, 1.0]) for loss in losses]), end

    def round(self, rows: Any, before: Any, first: bool, last: bool) -> tuple[Any, Any]:
        """Build one step.

        Args:
            rows: the batch, [batch size].
            before: the end of the round before, [2].
            first: True in the first round of a call.
            last: True in the last round of a call.

        Returns:
            the loss, and the end of the round, [2].
        """
        raise NotImplementedError


class InPlaceWorker(WithoutCopy):
    """A worker that shares memory with the center, and takes gradients at the center itself.

    The center is cut into the variables of the model, so neither they nor their gradients are concatenated. The worker
    reads the center's own memory, not a copy. If an update comes while a worker still reads a variable, TensorFlow
    copies the variable first (copy-on-write). So each variable is read at one version; two variables may be of
    different versions.
    """

    def __init__(self, scheme: Scheme, replica: Replica, ps: ParameterServer, slot: WorkerSlot):
        super().__init__(scheme, ps, slot, replica.devices[0])
        self.replica, self.initialize, self.fed = replica, replica.initialize, replica.fed

    def local(self) -> dict[str, list[Any]]:
        """Return the model's own state and random seeds."""
        return self.replica.local

    def start(self, recorded: Any) -> Joined:
        """Take a slot and the model's state, without a pull; returns the results of `join`."""
        with tf.device(self.device):
            _, state, joined = self.ps.join(self.slot, recorded)
            self.replica.state.assign(state)
        return joined

    def round(self, rows: Any, before: Any, first: bool, last: bool) -> tuple[Any, Any]:
        """Build one step. The reply, the center itself, is not used."""
        sync, state, timer = self.scheme.sync, self.replica.state, RoundTimer(moment() if first else before[1], before)
        with tf.control_dependencies([timer.begun]):
            parts = self.ps.center.read()
        loss, self.view.gradient = self.replica.gradient(parts, rows)
        message = timer.send(Message(self.scheme.message(self.view)))
        with timer.reply():
            sync.exchange(self.ps, replace(self.slot, times=timer.times), message)
        if self.replica.model.state_size:
            state.assign(sync.share_state(self.ps, self.slot, state.read_value()))
        return loss, timer.end


class SparseWorker(WithoutCopy):
    """A worker of a sparse problem: it reads and writes only the coordinates of its batch.

    Args:
        scheme, ps, slot, device: see `WithoutCopy`.
        source: source of its batches.
        gradient: `logistic_gradient` as a function of the graph.
    """

    def __init__(
        self, scheme: Scheme, ps: ParameterServer, slot: WorkerSlot, device: str, source: Shard, gradient: Any
    ):
        super().__init__(scheme, ps, replace(slot, encoder=ps.center.encoder("codec")), device)
        self.source, self.initialize, self.fed = source, source.initialize, (source.fed, [])
        self._gradient_function = gradient

    def round(self, rows: Any, before: Any, first: bool, last: bool) -> tuple[Any, Any]:
        """Read x_v for all v in the batch, and push their gradient.

        A round begins when its coordinates have been read. Its reply is taken to arrive when the next round begins,
        because waiting for the acknowledgement of its push would cost time. Only the last round waits for it.
        """
        indices, values, y = self.source.batch(rows)
        flat = tf.reshape(indices, [-1])
        x = tf.reshape(self.scheme.sync.gather(self.ps, self.slot, flat), tf.shape(values))
        begun = moment([x])
        timer = RoundTimer(begun, before if first else tf.stack([before[0], begun]))
        with tf.control_dependencies([timer.begun]):
            x = tf.identity(x)
        loss, gradient = self._gradient_function(x, values, y)
        self.view.gradient = tf.IndexedSlices(tf.reshape(gradient, [-1]), flat)
        message = timer.send(Message(self.scheme.message(self.view)))
        with timer.reply() if last else contextlib.nullcontext():
            self.scheme.sync.push(self.ps, replace(self.slot, times=timer.times), message)
        return loss, timer.end


def logistic_gradient(x: Any, values: Any, y: Any) -> tuple[Any, Any]:
    """Return the mean logistic loss of a batch, and its gradient for each entry.

    Args:
        x: the parameters at the entries, [batch, entries].
        values: the entries, [batch, entries].
        y: labels 0 or 1, [batch].

    Returns:
        the loss, a scalar; the gradient, [batch, entries].
    """
    logits, y = tf.reduce_sum(x * values, 1), tf.cast(y, x.dtype)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, logits))
    slope = (tf.sigmoid(logits) - y) / tf.cast(tf.shape(y)[0], x.dtype)
    return loss, slope[:, None] * values
