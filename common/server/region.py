"""The server of a region, on a ps task of its own, and the messages between it and the global server.

Each server has a lock of its own, and none is held during a transfer, so no worker waits for the links between regions:

    a worker's message      travels to the region; under its lock: record, `server_update`; the reply travels back
    `up`                    the region's message and record travel to the first ps; under the lock of the first ps:
                            append the record, record `up`, merge the message; the reply travels back, and is
                            kept
    `down`                  under the region's lock: record `down`, let the region use the reply

The evaluator calls `Region.serve` for the last two, again and again (`tasks.uplinks`). The record of the run is on the
first ps, and the events of a region arrive there in their order, before the `up` that needs them. So the record has an
order in which the equations give the same numbers. The version counts the messages of workers in it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract.regions import Regions
from ..contract.views import Server
from ..messages.cut import TIMES
from ..messages.message import returned, sent_by
from ..messages.ops import clock, is_finite, queue, when
from ..messages.stand_in import Row, StandIn
from ..record_format import EVENTS
from ..sync.store import Message, WorkerSlot
from .center import Center
from .journal import Journal
from .slices import OWN
from .trace import ROW, UNKNOWN
from .transaction import REFUSED, holding


class RegionView(Server):
    """The view of a server that has the row of its region alone."""

    def row(self, name: str, index: Any) -> Any:
        """Return the variable of the region."""
        return vars(self)[name]


class Travelling(StandIn):
    """The stand-in for the variable `transit`, while its value is on another task."""

    def __init__(self, value: Any):
        self.content = value

    def read_value(self) -> Any:
        """Return the present value."""
        return self.content

    def assign(self, value: Any) -> Any:
        """Replace the value."""
        self.content = tf.convert_to_tensor(value)
        return self.content


class Region:
    """The server of one region.

    Args:
        number: number r of the region, from 0.
        device: device of its ps task.
        center: the center, whose device is that of the global server.
        journal: the record of the run, on that device.
        share: prepares a reply for its transport, see `sync.store`.

    Attributes:
        variables: those of the scheme that are the region's, by name.
        messages: number of messages of its workers.
        pulled: that number at the last reply to each worker, [W].
        since: messages of its workers since the last merge.
        answered: True if the reply of the global server is there.
        closed: True once the run was stopped: messages are refused.
        rows: a queue of the events that have not been collected.
        news: a queue with a token when the region may have to send or to merge.
    """

    def __init__(self, number: int, device: str, center: Center, journal: Journal, share: Callable[[Any], Any]):
        self.number, self.device, self.scheme, self.share = number, device, center.scheme, share
        self.center, self.journal, self.transactions = center, journal, journal.transactions
        (self.part,) = center.slices
        self.regions: Regions = self.scheme.regions
        self.channel = copy.copy(center)  # receives messages and sends replies as the center does
        self.channel.slices = [SimpleNamespace(index=0, device=device)]  # pyright: ignore[reportAttributeAccessIssue]
        zero = tf.constant(0, tf.int64)
        with tf.device(device):
            self.variables = {
                name: tf.Variable(tf.identity(rows[number]), name=f"{OWN}{name}_of_{number}")
                for name, rows in self.part.of_regions.items()
            }
            self.messages, self.since = (
                tf.Variable(zero, name=f"{name}_of_{number}") for name in ("messages", "since")
            )
            self.pulled = tf.Variable(tf.zeros([center.num_workers], tf.int64), name=f"pulled_of_{number}")
            self.answered, self.closed = (
                tf.Variable(tf.constant(False), name=f"{name}_{number}") for name in ("answered", "closed")
            )
            self.mutex = tf.raw_ops.MutexV2(shared_name=f"lock_{number}", name=f"lock_{number}")
            self.rows = queue(f"rows_{number}", shape=[len(ROW)], dtype=tf.int64)
            self.news = queue(f"news_{number}")

    @property
    def saved(self) -> dict[str, Any]:
        """Variables of the region by name."""
        counts = {"messages": self.messages, "since": self.since, "pulled": self.pulled, "answered": self.answered}
        return {OWN + name: variable for name, variable in self.variables.items()} | counts

    # A message of a worker.

    def exchange(self, slot: WorkerSlot, message: Message) -> Any:
        """Push a message of a worker of this region; returns the reply, [P]."""
        slot, (arrived,) = self.channel.receive(slot, message)
        with tf.device(self.device):
            finite, times = is_finite(arrived), tf.identity(slot.times)

        def admit() -> Any:
            fine = tf.stack([finite, ~self.closed.read_value()])
            return tf.raw_ops.Assert(condition=tf.reduce_all(fine), data=[REFUSED, fine])

        with holding(self.mutex, self.device, [arrived, finite, times], admit), tf.device(self.device):
            before = Row(self.pulled, slot.index)
            staleness = self.messages.read_value() - before.read_value()
            with tf.control_dependencies([self._record("exchange", slot.index, staleness, True, times)]):
                reply = self._merge(slot, arrived, staleness)
            before.write(self.messages.assign_add(1))
            since = self.since.assign_add(1)
            due = tf.equal(since, self.regions.every) | tf.equal(since, self.regions.every + self.regions.delay)
            self.news.enqueue_many([tf.ones([tf.cast(due, tf.int32)], tf.bool)])
            # Copy the reply under the lock, as `Async.exchange` does.
            reply = self.share(reply)
        return self.channel.reply([reply])

    def _merge(self, slot: WorkerSlot, message: Message, staleness: Any) -> Any:
        """Apply the scheme's rule to a message of a worker; returns the reply."""
        sent = sent_by(self.scheme.scalars, message.scalars)
        view = self._view({"sender": slot.index, "sent": sent}, self.variables)
        reply = self._scheme().server_update(view, message.vector, tf.cast(staleness, tf.float32))
        return tf.convert_to_tensor(returned(self.scheme.name, "server_update", reply))

    def _scheme(self) -> Any:
        """Return the scheme with its schedules at this time, about: the region knows no version of the center."""
        return self.center.scheme_at(self.messages.read_value() * self.regions.number)

    def close(self) -> Any:
        """Refuse all messages from now on; returns the operation."""
        with holding(self.mutex, self.device, []) as held:
            self.closed.assign(True)
        return held.released

    # The messages between the region and the global server.

    def tell(self) -> Any:
        """Let the region serve, also if it has no message to send."""
        return self.news.enqueue(True)

    def serve(self) -> Any:
        """Wait for news of the region; then bring its record to the run's, its message up, and the reply back.

        All tasks have begun this request before the news is there, so message and reply take the time of their travel
        alone. A region without a message sends a vector without elements. One caller makes these requests, one after
        the other.
        """
        transport, size = self.center.transport, self.part.initial.shape[0]
        with tf.device(self.device):
            news = self.news.dequeue()
        with holding(self.mutex, self.device, [news]), tf.device(self.device):
            self.news.dequeue_many(self.news.size())
            self._merge_reply()
            sends = (self.since >= self.regions.every) & ~self.answered.read_value()
            rows = self.rows.dequeue_many(self.rows.size())
            message = self.variables["transit"].read_value()[: size * tf.cast(sends, tf.int32)]
        with tf.device(self.device):
            sent = transport.send(message)
        with tf.device(self.center.device):
            rows, sends_there, arrived = tf.identity(rows), tf.identity(sends), transport.receive(sent)
        with self.transactions.exclusive([rows, sends_there, arrived]), tf.device(self.center.device):
            version = self.center.count_updates(self.journal.record_of_region(rows, self.center.read_version()))
            reply = tf.cond(sends_there, lambda: self._up(arrived, version), lambda: tf.identity(arrived))
        with tf.device(self.center.device):
            reply.set_shape(message.shape)
            sent = transport.send(tf.identity(reply))
        with tf.device(self.device):
            arrived = transport.receive(sent)
        with holding(self.mutex, self.device, [arrived]) as held, tf.device(self.device):
            when(sends, lambda: self._keep(arrived))
            self._merge_reply()
        with tf.control_dependencies([held.released]):
            return tf.identity(True)

    def _up(self, message: Any, version: Any) -> Any:
        """Merge the region's message into the global model, as an event of its own; returns the reply."""
        transit = Travelling(tf.reshape(message, self.part.initial.shape))
        event = {"center": self.part.center, "sender": self.number, "sent": None}
        with tf.control_dependencies([self._record("up", self.number, 0, False, version=version)]):
            view = self._view(event, {**self.variables, **self.part.global_variables, "transit": transit})
            self.center.scheme_at(version).up(view)
            return tf.identity(transit.content)

    def _keep(self, reply: Any) -> None:
        """Keep the reply of the global server."""
        self.variables["transit"].assign(tf.reshape(reply, self.part.initial.shape))
        self.answered.assign(True)

    def _merge_reply(self) -> None:
        """Let the region use the reply of the global server, if it is there and enough messages have come since."""

        def merge() -> None:
            with tf.control_dependencies([self._record("down", self.number, 0, False)]):
                self._scheme().down(self._view({"sender": self.number, "sent": None}, self.variables))
            self.since.assign(tf.constant(0, tf.int64))
            self.answered.assign(False)

        when(self.answered.read_value() & (self.since >= self.regions.every + self.regions.delay), merge)

    def _view(self, event: Mapping[str, Any], variables: Mapping[str, Any]) -> RegionView:
        constants = {"num_workers": self.center.num_workers, "completes": tf.constant(True), **self.part.constants}
        return RegionView(**constants, **event, **variables)

    def _record(
        self, event: str, worker: Any, staleness: Any, accepted: bool, times: Any = None, version: Any = None
    ) -> Any:
        """Append one event, on the current device; with a version to the record of the run, else to the region's."""
        times = tf.fill([TIMES], tf.constant(UNKNOWN, tf.int64)) if times is None else times
        values = [0 if version is None else version, worker, staleness, accepted, clock(), EVENTS.index(event), UNKNOWN]
        row = tf.concat([tf.stack([tf.cast(value, tf.int64) for value in values]), times], 0)
        return (self.rows if version is None else self.journal.records).enqueue(row)


def regions_of(center: Center, journal: Journal, share: Callable[[Any], Any]) -> list[Region]:
    """Return the servers of regions that have ps tasks of their own, all but the first; none in other runs."""
    if not center.scheme.sync.in_regions:
        return []
    center.replies_center = False
    return [Region(r, device, center, journal, share) for r, device in enumerate(center.ps_devices[1:])]
