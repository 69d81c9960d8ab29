"""The center: the parameters of a run, cut into slices, and what an algorithm keeps beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract.checks import check_variables
from ..contract.codec import Codec
from ..contract.cut import cut_into, joined
from ..contract.message import unpacked
from ..contract.scheme import Scheme
from ..errors import UserError
from ..gates.store import WorkerSlot
from .encoder import Encoder
from .milestones import Milestones
from .ops import zeros
from .transport import Client, Transport

OWN = "scheme."  # begins the names of a scheme's variables in a checkpoint: those of engine and gate are free


@dataclass(frozen=True)
class Row:
    """One worker's row of a variable [W, n], read and written like a variable [n] of its own."""

    rows: Any
    index: Any

    def read_value(self) -> Any:
        """The row, [n]."""
        return tf.raw_ops.ResourceGather(resource=self.rows.handle, indices=self.index, dtype=self.rows.dtype)

    def assign(self, value: Any) -> None:
        """Write the row."""
        tf.raw_ops.ResourceScatterUpdate(resource=self.rows.handle, indices=self.index, updates=value)


class ServerView(SimpleNamespace):
    """A slice as `Scheme.server_update` sees it: `contract.views.Server`, and the scheme's variables by name."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the server has no {name} for this scheme", name=name, obj=self)


class Slice(SimpleNamespace):
    """A slice of the center on one ps task. Besides what is below, it has the gate's variables."""

    index: int
    device: str
    center: Any
    initial: Any  # value of the center
    num_workers: int
    own: dict[str, Any]  # the scheme's global variables, by name
    rows: dict[str, Any]  # and its worker rows, variables [W, n]
    average: Any = None  # of the center, for evaluation
    anchors: Any = None  # the center that each worker pulled last, [W, n]
    no_message: Any = None  # a message of zeros as it arrives, [n + m]: this slice, and m scalars

    def seen_by(self, slot: WorkerSlot | None, sent: Any) -> Any:
        """What a scheme sees while a message with these scalars is merged; its worker, if it has one, has its rows.

        Args:
            slot: of that worker; None where the message is the mean of a set.
            sent: the scalars.
        """
        seen = ServerView(center=self.center, num_workers=self.num_workers, sent=sent, sender=None, **self.own)
        if slot is None:
            vars(seen).update(self.rows)
            return seen
        seen.sender = slot.index
        vars(seen).update({name: Row(rows, slot.index) for name, rows in self.rows.items()})
        if self.anchors is not None:
            seen.anchor = Row(self.anchors, slot.index).read_value()
        return seen


class Center:
    """The flat center [P], cut into contiguous slices; its version is with the first.

    Args:
        scheme: the algorithm.
        sizes: of the slices on each device.
        devices: one for each ps task.
        num_workers: W.
        ema_decay: of the average of the center; no average without it.
        codec: how messages travel; the scheme's if not given.
        round_steps: local steps of a round, for learning rates that change; the scheme's period if not given.
        client: who feeds the first value; it is on the first device, and there are sockets, if not given.
        holder: the device of the worker that has the whole center, if one does; versions are on the first of `devices`.

    Attributes:
        initial: where the first value of each slice is fed.
        version: number of updates that it has had.
        pulled: the version that each worker has pulled last, [W].
        milestones: where centers are set aside, if any are.
    """

    milestones: Milestones | None = None

    def __init__(
        self,
        scheme: Scheme,
        sizes: Sequence[Sequence[int]],
        devices: Sequence[str],
        num_workers: int,
        ema_decay: float | None,
        codec: Codec | None = None,
        round_steps: float | None = None,
        client: Client | None = None,
        holder: str | None = None,
    ):
        client = client or Client(Transport(), devices[0])
        self.scheme, self.codec, self.transport = scheme, codec or scheme.codec, client.transport
        self.num_workers, self.ema_decay, self.round_steps = num_workers, ema_decay, round_steps or scheme.period
        self.sizes = [size for own in sizes for size in own]
        places = devices if holder is None else [holder]
        self.device = devices[0]  # of the versions
        self.devices = [device for device, own in zip(places, sizes, strict=True) for _ in own]  # of each slice
        self.initial = [client.feed(tf.float32, [size]) for size in self.sizes]
        with tf.device(self.device):
            self.version = tf.Variable(tf.constant(0, tf.int64), name="version")
            self.pulled = tf.Variable(tf.zeros([num_workers], tf.int64), name="pulled")
        self.slices = [self._slice(i, part) for i, part in enumerate(self.initial)]

    def _slice(self, index: int, initial: Any) -> Slice:
        device = self.devices[index]
        with tf.device(device):
            initial = self.transport.arrive(initial)
            empty = zeros(self.sizes[index] + len(self.scheme.scalars))
            rows, own = self.scheme.worker_rows(initial), self.scheme.global_variables(initial)
        check_variables(self.scheme.name, {}, own, rows)
        part = Slice(index=index, device=device, initial=initial, num_workers=self.num_workers, no_message=empty)

        def of_each(value: Any) -> Any:
            return tf.tile(value[None], [self.num_workers, 1])

        with tf.device(device):
            part.own = {name: tf.Variable(value, name=f"{OWN}{name}_{index}") for name, value in own.items()}
            part.rows = {name: tf.Variable(of_each(row), name=f"{OWN}{name}_{index}") for name, row in rows.items()}
            kept = {"center": initial}
            if self.ema_decay is not None:
                kept["average"] = initial
            if self.scheme.keeps_anchors:
                kept["anchors"] = of_each(initial)
            self._keep(part, kept)
        return part

    def _keep(self, part: Slice, values: Mapping[str, Any]) -> None:
        with tf.device(part.device):
            for name, value in values.items():
                if hasattr(part, name) and getattr(part, name) is not None:
                    raise UserError(f"{self.scheme.name}: a gate cannot keep {name!r} beside a slice: it is there")
                setattr(part, name, tf.Variable(value, name=f"{name}_{part.index}"))

    def keep(self, build: Callable[[Slice], Mapping[str, Any]]) -> None:
        """Variables beside each slice, with the initial values that `build(slice)` names."""
        for part in self.slices:
            with tf.device(part.device):
                values = build(part)
            self._keep(part, values)

    @property
    def saved(self) -> dict[str, list[Any]]:
        """What a checkpoint keeps, by name: one variable, or the slices of a vector."""
        of_slices = [
            {name: value for name, value in vars(part).items() if isinstance(value, tf.Variable)}
            | {OWN + name: value for name, value in {**part.own, **part.rows}.items()}
            for part in self.slices
        ]
        sliced = {name: [values[name] for values in of_slices] for name in of_slices[0]}
        return sliced | {"version": [self.version], "pulled": [self.pulled]}

    # Vectors and their slices.

    def encoder(self, name: str) -> Encoder:
        """What encodes the messages of a worker, on the present device; `name` begins the names of its variables."""
        return Encoder(self.codec, self.sizes, name)

    def receive(self, slot: Any, message: Any) -> list[Any]:
        """A message of the worker in that slot, in slices that are on their ps tasks; a list is cut already."""
        if isinstance(message, list):
            return self.each_slice(lambda _, u: tf.identity(u), message)
        encoder = slot.encoder or self.encoder("codec")  # of whoever is no worker: it keeps nothing
        scalars = []
        if self.scheme.scalars:
            message, beside = cut_into(message, [sum(self.sizes), len(self.scheme.scalars)])
            scalars = [beside]  # they go to all
        wires = [[*map(self.transport.depart, wire)] for wire in encoder.encode(message)]
        return self.each_slice(lambda part, wire: self._decoded(self.codec, wire, part, scalars), wires)

    def each_slice(self, build: Callable[[Slice, Any], Any], values: Sequence[Any] | None = None) -> list[Any]:
        """`build(slice, value)` on the device of each slice."""
        results = []
        for part, value in zip(self.slices, values or [None] * len(self.slices), strict=True):
            with tf.device(part.device):
                results.append(build(part, value))
        return results

    def bring(self, parts: Sequence[Any]) -> Any:
        """The slices of a vector, as they are, as one vector where the caller is."""
        parcels = self.each_slice(lambda _, part: self.transport.depart(part), parts)
        return joined([*map(self.transport.arrive, parcels)])

    def reply(self, replies: Sequence[Any]) -> Any:
        """The slices of a reply, which travel as the scheme's codec has it, as one vector where the caller is."""
        codec = self.scheme.reply_codec
        wires = self.each_slice(lambda _, reply: [*map(self.transport.depart, codec.encode(reply, None))], replies)
        return joined([self._decoded(codec, *pair) for pair in zip(wires, self.slices, strict=True)])

    def _decoded(self, codec: Codec, wire: Sequence[Any], part: Slice, scalars: Sequence[Any] = ()) -> Any:
        """What has come to the present device as a vector, with the scalars at its end; there when all of it is."""
        vector = codec.decode([*map(self.transport.arrive, wire)], self.sizes[part.index])
        return tf.concat([vector, *scalars], 0) if scalars else vector

    def read(self) -> list[Any]:
        """The slices of the center as they are now."""
        return self.each_slice(lambda part, _: part.center.read_value())

    # Versions.

    def read_version(self) -> Any:
        """Number of updates that the center has had."""
        with tf.device(self.device):
            return self.version.read_value()

    def count_updates(self, number: Any) -> Any:
        """The version after `number` more updates."""
        with tf.device(self.device):
            version = tf.convert_to_tensor(self.version.assign_add(tf.cast(number, tf.int64)))
        if self.milestones is not None and self.scheme.gate.uses_ps:
            self.milestones.pass_by(version)
        return version

    def staleness(self, version: Any, slot: WorkerSlot) -> Any:
        """Updates since this worker pulled last, at `version`; without a lock it is an estimate, never below 0."""
        with tf.device(self.device):
            return tf.maximum(version - Row(self.pulled, slot.index).read_value(), 0)

    def note_pull(self, slot: WorkerSlot) -> None:
        """This worker has the present center."""
        with tf.device(self.device):
            version = self.version.read_value()
            tf.raw_ops.ResourceScatterUpdate(resource=self.pulled.handle, indices=slot.index, updates=version)
        for part in self.slices:
            if part.anchors is not None:
                with tf.device(part.device):
                    Row(part.anchors, slot.index).assign(part.center.read_value())

    # What an algorithm does with messages.

    def merge(self, part: Slice, message: Any, staleness: Any, version: Any, slot: WorkerSlot | None = None) -> Any:
        """The scheme's rule on one slice, then the average; returns the reply. Without a slot it is a set's message."""
        scheme = self.scheme
        if scheme.scheduled:  # in local steps of the average worker, as on the workers
            steps = tf.cast(version, tf.float32) * self.round_steps
            scheme = scheme.at(steps / scheme.gate.updates_per_round(self.num_workers))
        message, sent = unpacked(scheme.scalars, message, self.sizes[part.index])
        reply = scheme.server_update(part.seen_by(slot, sent), message, staleness)
        if scheme.gate.uses_ps:
            self.move_average(part, version)
        return reply

    def weigh(self, part: Slice, message: Any, staleness: Any, slot: WorkerSlot) -> Any:
        """A slice of a message, as it counts in a set; its scalars count as they are."""
        size = self.sizes[part.index]
        vector, sent = unpacked(self.scheme.scalars, message, size)
        weighed = self.scheme.weigh(part.seen_by(slot, sent), vector, tf.cast(staleness, tf.float32))
        return tf.concat([weighed, message[size:]], 0) if self.scheme.scalars else weighed

    def move_average(self, part: Slice, version: Any) -> None:
        """A <- d A + (1 - d) theta, with d = min(decay, (1 + n) / (10 + n)) as TensorFlow's averages have it."""
        if self.ema_decay is not None:
            n = tf.cast(version, tf.float32)
            decay = tf.minimum(self.ema_decay, (1 + n) / (10 + n))
            part.average.assign_sub((1 - decay) * (part.average - part.center))

    def come_to(self, version: Any, clock: Any, state: Any) -> None:
        """Where there is no ps, for the worker that has the center: it has come to `version`, after `clock` updates."""
        self.move_average(self.slices[0], clock)
        if self.milestones is not None:
            self.milestones.pass_by(version, state.read_value())
