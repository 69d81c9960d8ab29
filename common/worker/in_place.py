"""A worker that shares memory with the center: it takes gradients at the center, and has no parameters of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract.rounds import Event
from ..contract.scheme import Scheme
from ..server.answers import Joined
from ..server.parameter_server import ParameterServer
from ..sync.store import Message, WorkerSlot
from .replica import Replica
from .timing import RoundTimer, moment


class InPlaceWorker:
    """A worker without local variables: each of its steps reads the center and pushes the gradient.

    The center is cut into the variables of the model, so neither they nor their gradients are concatenated. The worker
    reads the center's own memory, not a copy. If an update comes while a worker still reads a variable, TensorFlow
    copies the variable first (copy-on-write). So each variable is read at one version; two variables may be of
    different versions.
    """

    def __init__(
        self, scheme: Scheme, replica: Replica, ps: ParameterServer, slot: WorkerSlot, name: str, seed: int = 0
    ):
        self.scheme, self.replica, self.ps, self.slot, self.device = scheme, replica, ps, slot, replica.devices[0]
        del name, seed  # used by workers with local variables
        self.initialize, self.fed = replica.initialize, replica.fed
        self.view: Any = SimpleNamespace(index=slot.index, num_workers=ps.num_workers)
        self.local = lambda: replica.local

    def start(self, recorded: Any) -> Joined:
        """Take a slot, without a pull; returns the results of `join`."""
        with tf.device(self.device):
            _, state, joined = self.ps.join(self.slot, recorded)
            self.replica.state.assign(state)
        return joined

    def rounds(self, rows: Any, event: Event, before: Any) -> Any:
        """Build several rounds of one step into one call; returns the same as `DenseWorker.rounds`."""
        del event
        with tf.device(self.device):
            losses, now, replied = [], moment(), before[2]
            for r in range(rows.shape[0]):
                timer = RoundTimer(now, replied)
                self.view.round = self.view.step = before[0] + r
                losses.append(self.round(rows[r, 0], timer))
                now = replied = timer.replied
            return tf.stack([tf.stack([loss, 1.0]) for loss in losses]), replied

    def round(self, rows: Any, timer: RoundTimer) -> Any:
        """Build one step on one batch, [batch size]; returns its loss. The reply, the center itself, is not used."""
        sync, state = self.scheme.sync, self.replica.state
        with tf.control_dependencies([timer.begun]):
            parts = self.ps.center.read()
        loss, self.view.gradient = self.replica.gradient(parts, rows)
        message = timer.send(Message(self.scheme.message(self.view)))
        with timer.reply():
            sync.exchange(self.ps, self.slot.with_times(timer.times), message)
        if self.replica.model.state_size:
            state.assign(sync.share_state(self.ps, self.slot, state.read_value()))
        return loss
