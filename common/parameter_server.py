"""The parameter server: the global variables of a run, and the atomic events on them.

Every task builds the same description; TensorFlow's runtime shares the variables by name. The flat center [P] is cut
into equal contiguous slices, one for each ps task; version, lock and record live on the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from .record import EVENTS, RECORD
from .scheme import Event, Scheme
from .sparse import Cut


class Slice(SimpleNamespace):
    """What `Scheme.server_update` sees: `center`, the scheme's global variables, `num_workers`, perhaps `anchor`."""

    index: int
    device: str
    center: Any
    initial: Any
    num_workers: int
    average: Any = None  # of the center, for evaluation
    anchors: Any = None  # the center that each worker pulled last, a row per worker
    anchor: Any = None  # the row of the present sender


def even_sizes(size: int, parts: int) -> list[int]:
    """Sizes of `parts` contiguous slices of a vector of `size`, different by one at most."""
    return [size // parts + (i < size % parts) for i in range(parts)]


def queue(name: str, shared_name: str | None = None, shape: Sequence[int] = (), dtype: Any = tf.bool) -> Any:
    """An unbounded queue on the present device, shared by name among the tasks."""
    return tf.queue.FIFOQueue(-1, [dtype], [list(shape)], shared_name=shared_name or name, name=name)


def end_queue(index: int) -> Any:
    """Where a ps task waits for the end of the run."""
    return queue(f"end_{index}")


@dataclass(frozen=True)
class Seat:
    """The place of one worker on the ps: its index, an integer or a scalar on the first ps task, and its tokens."""

    index: Any
    tokens: Any
    collectives: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # the same in every worker's graph


class ParameterServer:
    """Global variables and events, built into the current graph.

    Args:
        scheme: the algorithm.
        size: P, the number of trainable parameters.
        state_size: length of the model's non-trainable float state (batch normalisation), as one vector.
        num_workers: W.
        devices: one device for each ps task.
        last_version: rounds of each worker; a barrier with backup workers makes so many updates.
        ema_decay: of the average of the center; no average without it.
        in_process: True if all workers are threads of this process.
    """

    arrived: Any
    tokens: list[Any]

    def __init__(
        self,
        scheme: Scheme,
        *,
        size: int,
        state_size: int,
        num_workers: int,
        devices: Sequence[str],
        last_version: int,
        ema_decay: float | None = None,
        in_process: bool = False,
    ):
        self.scheme, self.ema_decay, self.in_process = scheme, ema_decay, in_process
        self.last_version = last_version
        self.num_workers = num_workers
        self.devices = list(devices)
        self.sizes = even_sizes(size, len(self.devices))
        # Fed by the chief once; everything that starts from the model starts from these.
        self.initial_center = tf.compat.v1.placeholder(tf.float32, [size], name="initial_center")
        self.initial_state = tf.compat.v1.placeholder(tf.float32, [state_size], name="initial_state")
        with tf.device(self.devices[0]):
            self.version = tf.Variable(tf.constant(0, tf.int64), name="version")
            self.pulled = tf.Variable(tf.zeros([num_workers], tf.int64), name="pulled")
            self.ready = tf.Variable(tf.zeros([num_workers], tf.bool), name="ready")
            self.finished = tf.Variable(tf.zeros([num_workers], tf.bool), name="finished")
            self.states = tf.Variable(
                tf.tile(self.initial_state[None], [num_workers, 1]), name="states"
            )  # a row per worker
            self.mutex = tf.raw_ops.MutexV2(shared_name="lock", name="lock")
            self.initialized, self.go = queue("initialized"), queue("go")
            self.records = queue("records", shape=[len(RECORD)], dtype=tf.int64)
        self.slices = [self._slice(i, part) for i, part in enumerate(tf.split(self.initial_center, self.sizes))]
        self.ends = []
        for index, device in enumerate(self.devices):
            with tf.device(device):
                self.ends.append(end_queue(index))
        scheme.gate.variables(self)
        self.initialize = tf.group(*(v.initializer for v in tf.compat.v1.global_variables()))

    def _slice(self, index: int, initial: Any) -> Slice:
        device = self.devices[index]
        with tf.device(device):
            initial = tf.identity(initial)
            center = tf.Variable(initial, name=f"center_{index}")
            slots = {
                name: tf.Variable(value, name=f"{name}_{index}")
                for name, value in self.scheme.global_variables(initial).items()
            }
            if self.ema_decay is not None:
                slots["average"] = tf.Variable(initial, name=f"average_{index}")
            if self.scheme.keeps_anchors:
                rows = tf.tile(initial[None], [self.num_workers, 1])
                slots["anchors"] = tf.Variable(rows, name=f"anchors_{index}")
        return Slice(
            index=index,
            device=device,
            initial=initial,
            center=center,
            num_workers=self.num_workers,
            **slots,
        )

    # Pieces of an event, in the order in which gates use them.

    def receive(self, message: Any) -> list[Any]:
        """The message, cut into slices that have arrived on their ps tasks."""
        if isinstance(message, tf.IndexedSlices):
            cut = Cut(message.indices, self.sizes)
            pairs = zip(cut.cut(message.values), cut.indices, strict=True)
            parts = [tf.IndexedSlices(values, indices) for values, indices in pairs]
        else:
            parts = tf.split(message, self.sizes) if len(self.slices) > 1 else [message]
        return self.each_slice(lambda _, u: tf.identity(u), parts)

    @contextmanager
    def lock(self, after: Sequence[Any]) -> Iterator[SimpleNamespace]:
        """Whatever is built inside happens atomically, once everything in `after` is there.

        The unlock waits for every operation built inside. `released` of the yielded object is the unlock.
        """
        graph = tf.compat.v1.get_default_graph()
        arrived = tf.nest.flatten(after, expand_composites=True)
        with tf.control_dependencies(arrived), tf.device(self.devices[0]):
            lock = tf.raw_ops.MutexLock(mutex=self.mutex)
        held = SimpleNamespace(released=None)
        first = len(graph.get_operations())
        with tf.control_dependencies([lock]):
            yield held
        inside = tf.group(*graph.get_operations()[first:])  # one edge back for each device, not for each operation
        with tf.control_dependencies([inside]), tf.device(self.devices[0]):
            held.released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def each_slice(self, build: Callable[[Slice, Any], Any], values: Sequence[Any] | None = None) -> list[Any]:
        """`build(slice, value)` on the device of each slice."""
        results = []
        for part, value in zip(self.slices, values or [None] * len(self.slices), strict=True):
            with tf.device(part.device):
                results.append(build(part, value))
        return results

    def update(self, parts: Sequence[Any], staleness: Any, version: Any, seat: Seat) -> list[Any]:
        """The scheme's rule on every slice, for a message from that seat; returns the replies."""
        lateness = tf.cast(staleness, tf.float32)

        def merge(part: Slice, message: Any) -> Any:
            if part.anchors is not None:
                part.anchor = tf.raw_ops.ResourceGather(
                    resource=part.anchors.handle, indices=seat.index, dtype=tf.float32
                )
            reply = self.merge(part, message, lateness, version)
            return reply if isinstance(message, tf.IndexedSlices) else tf.convert_to_tensor(reply)  # nobody reads it

        return self.each_slice(merge, parts)

    def merge(self, part: Slice, message: Any, staleness: Any, version: Any) -> Any:
        """The scheme's rule on one slice, then the average; returns the reply."""
        scheme = self.scheme
        if scheme.scheduled:  # in local steps of the average worker, as on the workers
            steps = tf.cast(version, tf.float32) * scheme.period
            scheme = scheme.at(steps if scheme.gate.synchronous else steps / self.num_workers)
        reply = scheme.server_update(part, message, staleness)
        if scheme.gate.uses_ps:
            self.move_average(part, version)
        return reply

    def move_average(self, part: Slice, version: Any) -> None:
        """A <- d A + (1 - d) theta, with d = min(decay, (1 + n) / (10 + n)) as TensorFlow's averages have it."""
        if self.ema_decay is not None:
            n = tf.cast(version, tf.float32)
            decay = tf.minimum(self.ema_decay, (1 + n) / (10 + n))
            part.average.assign_sub((1 - decay) * (part.average - part.center))

    def concat(self, replies: Sequence[Any]) -> Any:
        """The slices of a reply as one vector, where the caller is."""
        return tf.concat(replies, 0) if len(replies) > 1 else replies[0]

    def read_version(self) -> Any:
        """Number of updates folded into the center so far."""
        with tf.device(self.devices[0]):
            return self.version.read_value()

    def count_updates(self, number: Any) -> Any:
        """The version after `number` more updates."""
        with tf.device(self.devices[0]):
            return tf.convert_to_tensor(self.version.assign_add(tf.cast(number, tf.int64)))

    def staleness(self, version: Any, seat: Seat) -> Any:
        """Updates since this worker pulled last, at `version`; without a lock it is an estimate, never below 0."""
        with tf.device(self.devices[0]):
            return tf.maximum(version - self.pulled.read_value()[seat.index], 0)

    def note_pull(self, seat: Seat) -> None:
        """This worker has the present center."""
        with tf.device(self.devices[0]):
            version = self.version.read_value()
            tf.raw_ops.ResourceScatterUpdate(resource=self.pulled.handle, indices=seat.index, updates=version)
        for part in self.slices:
            if part.anchors is not None:
                with tf.device(part.device):
                    center = part.center.read_value()
                    tf.raw_ops.ResourceScatterUpdate(resource=part.anchors.handle, indices=seat.index, updates=center)

    def record(self, version: Any, seat: Seat, staleness: Any, accepted: Any, event: Event = "exchange") -> Any:
        """Append one event to the record of the run."""
        with tf.device(self.devices[0]):
            now = tf.cast(tf.timestamp() * 1e6, tf.int64)
            values = [version, seat.index, staleness, accepted, now, EVENTS.index(event)]
            return self.records.enqueue(tf.stack([tf.cast(value, tf.int64) for value in values]))

    # What tasks do besides rounds.

    def seat(self, worker: int, index: Any) -> Seat:
        """The seat of a worker; `index` is its number as the graph shall see it."""
        with tf.device(self.devices[0]):
            return Seat(index, queue("own_tokens", shared_name=f"token_{worker}"))

    def pull(self, seat: Seat, recorded: bool = False) -> Any:
        """The center as it is now."""
        with self.lock(after=[]):
            if recorded:
                version = self.read_version()
                self.record(version, seat, self.staleness(version, seat), accepted=False, event="pull")
            self.note_pull(seat)
            parts = self.each_slice(lambda part, _: part.center.read_value())
        return self.concat(parts)

    def gather(self, seat: Seat, indices: Any, locked: bool) -> Any:
        """Some coordinates of the center as they are now; under the lock, all at one moment."""
        cut = Cut(indices, self.sizes)
        parts = self.each_slice(lambda _, i: tf.identity(i), cut.indices)
        with self.lock(after=parts) if locked else nullcontext():
            self.note_pull(seat)
            values = self.each_slice(lambda part, i: tf.gather(part.center, i), parts)
        return cut.join(values)

    def store_state(self, seat: Seat, state: Any) -> None:
        """Write the worker's non-trainable state, a vector, into its row."""
        with tf.device(self.devices[0]):
            tf.raw_ops.ResourceScatterUpdate(resource=self.states.handle, indices=seat.index, updates=state)

    def snapshot(self) -> dict[str, Any]:
        """At one moment: version (`at`), center, its `average` if there is one, state (the mean over the workers)."""
        with self.lock(after=[]):
            version = self.read_version()
            vectors = {"center": self.each_slice(lambda part, _: part.center.read_value())}
            if self.ema_decay is not None:
                vectors["average"] = self.each_slice(lambda part, _: part.average.read_value())
            with tf.device(self.devices[0]):
                state = tf.reduce_mean(self.states, 0)
        return {"at": version, "state": state} | {name: self.concat(parts) for name, parts in vectors.items()}

    def drain(self) -> Any:
        """The events recorded since the last call, [n, len(RECORD)]."""
        with tf.device(self.devices[0]):
            return self.records.dequeue_many(self.records.size())
