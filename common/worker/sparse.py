"""A worker of a sparse problem, without a copy of the center: it reads and writes only the coordinates of its batch."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ..contract.rounds import Event
from ..contract.scheme import Scheme
from ..lazy import tf
from ..server.answers import Joined
from ..server.parameter_server import ParameterServer
from ..sync.store import Message, WorkerSlot
from .replica import Shard
from .timing import RoundTimer, moment


class SparseWorker:
    """A worker without local variables: each round reads the coordinates of its batch, and pushes their gradient."""

    def __init__(self, scheme: Scheme, ps: ParameterServer, slot: WorkerSlot, device: str, source: Shard):
        self.scheme, self.ps, self.device, self.source = scheme, ps, device, source
        self.slot = replace(slot, encoder=ps.center.encoder("codec"))
        self.initialize, self.fed = source.initialize, (source.fed, [])
        self.view: Any = SimpleNamespace(index=slot.index, num_workers=ps.num_workers)
        self.local: Any = dict  # no local state

    def start(self, recorded: Any) -> Joined:
        """Take a slot, without a pull; returns the results of `join`."""
        _, _, joined = self.ps.join(self.slot, recorded)
        return joined

    def rounds(self, rows: Any, event: Event, before: Any) -> Any:
        """Build several rounds of one step into one call; returns the same as `DenseWorker.rounds`.

        A round begins when its coordinates have been read. Its reply is taken to arrive when the next round begins,
        because waiting for the acknowledgement of its push would cost time. Only the last round waits for it.
        """
        del event
        with tf.device(self.device):
            number = rows.shape[0]
            losses, replied = [], before[2]
            for r in range(number):
                self.view.round = self.view.step = before[0] + r
                loss, replied = self.round(rows[r, 0], replied if r == 0 else None, last=r == number - 1)
                losses.append(loss)
            return tf.stack([tf.stack([loss, 1.0]) for loss in losses]), replied

    def round(self, rows: Any, before: Any, last: bool) -> tuple[Any, Any]:
        """Read x_v for all v in the batch, and push their gradient.

        Args:
            rows: the batch.
            before: the time of the last reply; None for the beginning of this round.
            last: wait for the acknowledgement.

        Returns:
            the loss, and the time of the acknowledgement, if `last`.
        """
        indices, values, y = self.source.batch(rows)
        flat = tf.reshape(indices, [-1])
        x = tf.reshape(self.scheme.sync.gather(self.ps, self.slot, flat), tf.shape(values))
        begun = moment([x])
        timer = RoundTimer(begun, begun if before is None else before)
        with tf.control_dependencies([timer.begun]):
            x = tf.identity(x)
        loss, gradient = logistic_gradient(x, values, y)
        self.view.gradient = tf.IndexedSlices(tf.reshape(gradient, [-1]), flat)
        message = timer.send(Message(self.scheme.message(self.view)))
        with timer.reply() if last else contextlib.nullcontext():
            self.scheme.sync.push(self.ps, self.slot.with_times(timer.times), message)
        return loss, timer.replied


def logistic_gradient(x: Any, values: Any, y: Any) -> tuple[Any, Any]:
    """Return the mean logistic loss of a batch, and its gradient for each entry.

    Args:
        x: the parameters at the entries, [batch, entries].
        values: the entries, [batch, entries].
        y: labels 0 or 1, [batch].
    """
    logits, y = tf.reduce_sum(x * values, 1), tf.cast(y, x.dtype)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, logits))
    slope = (tf.sigmoid(logits) - y) / tf.cast(tf.shape(y)[0], x.dtype)
    return loss, slope[:, None] * values
