"""The center: the parameters of a run, cut into slices, with the algorithm's global variables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from ..contract.attacks import attacked
from ..contract.scheme import Scheme
from ..contract.seen import of_slices
from ..contract.two_levels import two_levels
from ..hostile import NO_ATTACK, Attack
from ..messages.codec import Codec
from ..messages.cut import joined, with_times, without_times
from ..messages.encoder import Encoder
from ..messages.message import returned
from ..messages.segments import SHARED_BYTES
from ..messages.stand_in import Row
from ..messages.transport import Client, Transport
from ..sync.store import Message, WorkerSlot
from .slices import Slice
from .snapshots import SnapshotBuffer

PLAIN = Codec()


class Center:
    """The flat center [P], cut into contiguous slices; its version is on the device of the first.

    Args:
        scheme: the algorithm.
        sizes: sizes of the slices on each device.
        devices: one for each ps task.
        num_workers: number of workers, W.
        ema_decay: decay of the average of the center; no average without it.
        codec: codec of the messages; the scheme's if not given.
        round_steps: local steps of a round, for learning-rate schedules, or the function from a number of rounds to
            their steps; the scheme's period if not given.
        client: the client that feeds the initial value; by default on the first device, through sockets.
        holder: the device of the worker that has the whole center, if one does; versions are on the first of `devices`.
        shapes: shapes of the model's variables.
        without_decay: positions of those that weight decay leaves as they are.
        servers_apart: see `two_levels`.

    Attributes:
        ps_devices: the given devices, one for each ps task.
        client: the given client.
        initial: placeholders of the initial value of each slice.
        version: number of updates of the center.
        pulled: the version that each worker has pulled last, [W].
        scheduled: True if a learning rate is a schedule.
        snapshots: buffer of snapshots of the center, if any are taken.
        messages: number of accepted messages, if several make an update together.
        apart: False if workers and ps are one process; else the times of a round travel at the end of its message.
        replies_center: True if all replies that have been built are the unchanged center.
        encodes_replies: True if a codec encodes replies.
    """

    snapshots: SnapshotBuffer | None = None
    messages: Any = None
    apart = True

    def __init__(
        self,
        scheme: Scheme,
        sizes: Sequence[Sequence[int]],
        devices: Sequence[str],
        num_workers: int,
        ema_decay: float | None,
        codec: Codec | None = None,
        round_steps: float | Callable[[Any], Any] | None = None,
        client: Client | None = None,
        holder: str | None = None,
        shapes: Sequence[tuple[int, ...]] = (),
        without_decay: Collection[int] = (),
        servers_apart: bool = False,
        attack: Attack = NO_ATTACK,
    ):
        self.ps_devices, self.client = list(devices), client or Client(Transport(), devices[0])
        self.scheme: Any = attacked(two_levels(scheme, servers_apart), attack, num_workers)
        self.codec, self.transport = codec or scheme.codecs()[0], self.client.transport
        self.num_workers, self.ema_decay, self.round_steps = num_workers, ema_decay, round_steps or scheme.period
        self.sizes, self.shapes, self.scheduled = [size for group in sizes for size in group], shapes, scheme.scheduled
        self.device, self.replies_center = devices[0], True  # the device of the versions
        self.encodes_replies = any(type(scheme.codecs(kind)[1]) is not Codec for kind in scheme.kinds)
        self.initial = [self.client.feed(tf.float32, [size]) for size in self.sizes]
        with tf.device(self.device):
            self.version = tf.Variable(tf.constant(0, tf.int64), name="version")
            self.pulled = tf.Variable(tf.zeros([num_workers], tf.int64), name="pulled")
            if scheme.sync.messages_per_update > 1:
                self.messages = tf.Variable(tf.constant(0, tf.int64), name="messages")
        places = zip(devices if holder is None else [holder], sizes, strict=True)
        devices_of = [device for device, group in places for _ in group]
        sizes_sent = [scheme.message_sizes(shapes)[-1]] if shapes and not scheme.sync.uses_ps else self.sizes
        members = of_slices(shapes, without_decay, self.sizes)
        self.slices = [
            self._slice(i, *group)
            for i, group in enumerate(zip(devices_of, self.initial, sizes_sent, members, strict=True))
        ]

    def _slice(self, index: int, device: str, initial: Any, message_size: int, members: Mapping[str, Any]) -> Slice:
        with tf.device(device):
            initial = self.transport.receive(initial)
            return Slice(self.scheme, index, device, initial, members, self.num_workers, self.ema_decay, message_size)

    def add_variables(self, build: Callable[[Slice], Mapping[str, Any]]) -> None:
        """Make variables on the device of each slice, with the names and initial values of `build(slice)`."""
        for part in self.slices:
            with tf.device(part.device):
                part.add_variables(self.scheme.name, build(part))

    @property
    def saved(self) -> dict[str, list[Any]]:
        """Variables for a checkpoint, by name: one variable, or the slices of a vector."""
        of_slices = [part.saved for part in self.slices]
        sliced = {name: [values[name] for values in of_slices] for name in of_slices[0]}
        counted = {} if self.messages is None else {"messages": [self.messages]}
        return sliced | counted | {"version": [self.version], "pulled": [self.pulled]}

    # Vectors and their slices.

    def encoder(self, name: str) -> Encoder:
        """Build the encoder of a worker's messages on the current device; `name` is the prefix of its variables."""
        return Encoder(self.codec, self.sizes, name)

    def receive(self, slot: Any, message: Message) -> tuple[Any, list[Message]]:
        """Encode, send and decode a worker's message.

        Args:
            slot: slot of the sender. Its times travel in the first tensor of the message, which saves a transfer.
            message: the message; if its vector is a list, these are the decoded slices, each on its ps task.

        Returns:
            the slot, with the times as they arrived; the decoded slices, one on each ps task.
        """
        if isinstance(message.vector, list):
            return slot, self.each_slice(lambda _, u: Message(tf.identity(u)), message.vector)
        encoder = slot.encoder or self.encoder("codec")  # a sender that is no worker has no codec variables
        codec = slot.codecs[0] if slot.codecs else self.codec
        wires = [[*wire] for wire in encoder.encode(message.vector, codec)]
        joins_times = self.apart and slot.times is not None and _is_short(wires[0][0])  # else they travel by themselves
        if joins_times:
            wires[0][0] = with_times(wires[0][0], slot.times)
        shared_tensors = [[*map(self.transport.send, wire)] for wire in wires]
        arrived = self.each_slice(lambda _, wire: [*map(self.transport.receive, wire)], shared_tensors)
        if joins_times:
            with tf.device(self.slices[0].device):
                arrived[0][0], times = without_times(arrived[0][0])
            slot = replace(slot, times=times)

        def decode(part: Slice, wire: Sequence[Any]) -> Message:
            scalars = tf.nest.map_structure(tf.identity, message.scalars)  # sends all of them to each ps task
            return Message(codec.decode(wire, self.sizes[part.index]), scalars)

        return slot, self.each_slice(decode, arrived)

    def each_slice(self, build: Callable[[Slice, Any], Any], values: Sequence[Any] | None = None) -> list[Any]:
        """Call `build(slice, value)` on the device of each slice; returns the results."""
        results = []
        for part, value in zip(self.slices, values or [None] * len(self.slices), strict=True):
            with tf.device(part.device):
                results.append(build(part, value))
        return results

    def sent(self, slices: Sequence[Any]) -> list[Any]:
        """Send the slices of a vector, without a codec; returns the argument of `receive` for each."""
        return self.each_slice(lambda _, part: self.transport.send(part), slices)

    def bring(self, slices: Sequence[Any], codec: Codec = PLAIN) -> Any:
        """Send the slices of a vector to the caller's device, encoded by this codec; returns one vector."""
        wires = self.each_slice(lambda _, part: [*map(self.transport.send, codec.encode(part, None))], slices)
        arrived = [[*map(self.transport.receive, wire)] for wire in wires]
        return joined([codec.decode(*pair) for pair in zip(arrived, self.sizes, strict=True)])

    def reply(self, replies: Sequence[Any], slot: Any = None) -> Any:
        """Send the slices of a reply to the caller's device; returns one vector.

        The codec is that of the round of the worker in `slot`, or else the scheme's.
        """
        codecs = None if slot is None else slot.codecs
        return self.bring(replies, codecs[1] if codecs else self.scheme.codecs()[1])

    def read(self, name: str = "center") -> list[Any]:
        """Read the slices of the center, or of its `average`."""
        return self.each_slice(lambda part, _: getattr(part, name).read_value())

    # Versions.

    def read_version(self) -> Any:
        """Read the number of updates of the center."""
        with tf.device(self.device):
            return self.version.read_value()

    def count_message(self, accepted: Any) -> Any:
        """Count a message of an asynchronous update if it is `accepted`; returns True if it completes an update."""
        if self.messages is None:
            return accepted
        with tf.device(self.device):
            messages = self.messages.assign_add(tf.cast(accepted, tf.int64))
            return tf.equal(messages % self.scheme.sync.messages_per_update, 0) & accepted

    def count_updates(self, number: Any) -> Any:
        """Count `number` more updates, and save a snapshot if one is due; returns the version."""
        with tf.device(self.device):
            number = tf.cast(number, tf.int64)
            version = tf.convert_to_tensor(self.version.assign_add(number))
        if self.snapshots is not None and self.scheme.sync.uses_ps:
            self.snapshots.save_if_due(version, moved=number > 0)
        return version

    def staleness(self, version: Any, slot: WorkerSlot) -> Any:
        """Return the updates from this worker's last pull to `version`; without a lock an estimate, at least 0."""
        with tf.device(self.device):
            return tf.maximum(version - Row(self.pulled, slot.index).read_value(), 0)

    def note_pull(self, slot: WorkerSlot, unless: Any = None) -> None:
        """Note that this worker has pulled the current center; if `unless` is true, the noted version stays."""

        def note(variable: Any, value: Any) -> None:
            row = Row(variable, slot.index)
            row.write(value if unless is None else tf.where(unless, row.read_value(), value))

        with tf.device(self.device):
            note(self.pulled, self.version.read_value())
        for part in self.slices:
            if part.pulled_centers is not None:
                with tf.device(part.device):
                    note(part.pulled_centers, part.center.read_value())

    # The algorithm's treatment of messages.

    def apply(
        self, slot: Any, slices: Sequence[Message], staleness: Any, version: Any, accepted: Any, replies: bool = True
    ) -> list[Any]:
        """Merge a message into every slice if it is `accepted`, and count it.

        Args:
            slot: slot of the sender.
            slices: the slices of its message.
            staleness: its staleness, a float scalar.
            version: version of the center before this update, a scalar.
            accepted: True, or a tensor.
            replies: False if the reply is not read; it need not be a tensor then.

        Returns:
            the slices of the reply.
        """
        completes = self.count_message(accepted)

        def merge(part: Slice, message: Message) -> Any:
            reply = self.merge(part, message, staleness, version, slot, completes)
            return tf.convert_to_tensor(reply) if replies else reply

        def merge_if_accepted(part: Slice, message: Message) -> Any:
            merged = tf.cond(accepted, lambda: tf.convert_to_tensor(merge(part, message)), part.center.read_value)
            return tf.identity(merged)  # the identity waits for the update; a control edge from `tf.cond` would not

        merged = self.each_slice(merge if accepted is True else merge_if_accepted, slices)
        self.count_updates(completes)
        return merged

    def merge(
        self,
        part: Slice,
        message: Message,
        staleness: Any,
        version: Any,
        slot: WorkerSlot | None = None,
        completes: Any = True,
    ) -> Any:
        """Apply the scheme's rule to one slice, then update the average; built on the device of the slice.

        Args:
            part: the slice.
            message: the slice of the message.
            staleness: staleness of the message, a float scalar.
            version: version of the center before this update, a scalar.
            slot: slot of the sender; None if the message is the mean of a set.
            completes: False if more messages are needed for an update, see `Async.messages_per_update`.

        Returns:
            the reply, [n]; the variable of the center itself if the scheme replies with the center.
        """
        scheme = self.scheme_at(version)
        server = part.seen_by(slot, message.scalars, completes)
        reply = returned(scheme.name, "server_update", scheme.server_update(server, message.vector, staleness))
        self.replies_center &= reply is part.center
        if scheme.sync.uses_ps:
            part.move_average(version, None if self.messages is None else completes)
        return reply

    def between_servers(self, rule: str, part: Slice, region: WorkerSlot) -> None:
        """Apply the scheme's rule `up` or `down` to one slice, see `two_levels`."""
        server = part.seen_by(region, part.no_message.scalars, completes=False)
        getattr(self.scheme_at(self.read_version()), rule)(server)

    def scheme_at(self, version: Any) -> Any:
        """Return the scheme with its schedules at a version: in local steps of the average worker, as on workers."""
        if not self.scheduled:
            return self.scheme
        number, updates = tf.cast(version, tf.float32), self.scheme.sync.updates_per_round(self.num_workers)
        if callable(self.round_steps):
            return self.scheme.at(self.round_steps(number / updates))
        return self.scheme.at(number * self.round_steps / updates)

    def weighted(self, part: Slice, message: Message, staleness: Any, slot: WorkerSlot) -> Message:
        """Return a slice of a message as a barrier adds it to its sum; the scalars are not weighted."""
        server = part.seen_by(slot, message.scalars, completes=False)
        return Message(self.scheme.weighted(server, message.vector, tf.cast(staleness, tf.float32)), message.scalars)

    def after_update(self, version: Any, clock: Any, state: Any) -> None:
        """Update the average, and save a snapshot if one is due, on the worker that has the center without a ps.

        Args:
            version: version that the center now has, a scalar.
            clock: local steps before this update, in place of the version in `Slice.move_average`; None if the average
                has been set, as the mean of the workers' own.
            state: state of the model, [S].
        """
        if clock is not None:
            self.slices[0].move_average(clock)
        if self.snapshots is not None:
            self.snapshots.save_if_due(version, tf.convert_to_tensor(state))


def _is_short(wire: Any) -> bool:
    """Return True for a vector too short for shared memory. To append the times to a longer one would copy it."""
    size = wire.shape.num_elements() or 0
    return wire.shape.rank == 1 and wire.dtype.size * size < SHARED_BYTES
