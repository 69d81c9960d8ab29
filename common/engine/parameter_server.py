"""The parameter server: the global variables of a run, and the atomic events on them.

Every task builds the same description; TensorFlow's runtime shares the variables by name. The flat center [P] is cut
into equal contiguous slices, one for each ps task; version, lock and record live on the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from ..contract.scheme import Scheme
from ..contract.views import Server, check_names
from ..gates.store import Event, Held, WorkerSlot
from .ops import Cut, end_queue, even_sizes, is_finite, queue, when
from .slots import Slot
from .trace import EVENTS, RECORD

NOBODY, TORN, WHOLE = -1, 0, 1  # see `ParameterServer.passes`; the pass of a worker is larger

REFUSED = "refused"


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

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the server has no {name} for this scheme", name=name, obj=self)


class ParameterServer:
    """Global variables and events, built into the current graph.

    Args:
        scheme: the algorithm.
        size: P, the number of trainable parameters.
        state_size: length of the model's non-trainable float state (batch normalisation), as one vector.
        num_workers: W.
        devices: one device for each ps task.
        last_version: rounds of each worker, after which a barrier ends the run; none if the rounds are scripted.
        ema_decay: of the average of the center; no average without it.
        in_process: True if all workers are threads of this process.
        min_workers: a barrier goes on with so many, if the others do not come.
    """

    def __init__(
        self,
        scheme: Scheme,
        *,
        size: int,
        state_size: int,
        num_workers: int,
        devices: Sequence[str],
        last_version: int | None,
        ema_decay: float | None = None,
        in_process: bool = False,
        min_workers: int | None = None,
    ):
        self.scheme, self.ema_decay, self.in_process = scheme, ema_decay, in_process
        self.min_workers = num_workers if min_workers is None else min_workers
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
            # What makes faults harmless: the pass of whoever sits in each slot, and a last 1 while the state is whole;
            # the rounds of each slot that are on record; joins on record; who is counted on.
            self.passes = tf.Variable(tf.constant([NOBODY] * num_workers + [WHOLE], tf.int64), name="passes")
            self.folded = tf.Variable(tf.zeros([num_workers], tf.int64), name="folded")
            self.joins = tf.Variable(tf.constant(0, tf.int64), name="joins")
            self.active = tf.Variable(tf.ones([num_workers], tf.bool), name="active")
            self.stopping = tf.Variable(tf.constant(False), name="stopping")  # somebody wants the run to end now
            self.refused = tf.Variable(tf.zeros([num_workers], tf.int64), name="refused")  # messages with NaN
            # Which beginning or restoration this is, and how long the record was then; how much of the record the
            # evaluator has, and what it has been handed since and perhaps not written yet.
            self.restoration = tf.compat.v1.placeholder(tf.int64, [2], name="restoration")
            self.restored = tf.Variable(self.restoration, name="restored")
            self.drained = tf.Variable(self.restoration[1], name="drained")
            none = tf.zeros([0, len(RECORD)], tf.int64)
            self.handed = tf.Variable(none, shape=[None, len(RECORD)], name="handed")
            self.passport = tf.compat.v1.placeholder_with_default(
                tf.constant([NOBODY, WHOLE], tf.int64), [2], name="passport"
            )
            self.mutex = tf.raw_ops.MutexV2(shared_name="lock", name="lock")
            self.initialized, self.go = queue("initialized"), queue("go")
            self.over, self.left, self.chief_left = queue("over"), queue("left"), queue("chief_left")
            self.records = queue("records", shape=[len(RECORD)], dtype=tf.int64)
            kept = scheme.gate.variables(self)
            self.kept = SimpleNamespace(**{name: tf.Variable(value, name=name) for name, value in kept.items()})
            self.tokens = [queue(f"token_{k}") for k in range(num_workers)] if kept else []
        self.slices = [self._slice(i, part) for i, part in enumerate(tf.split(self.initial_center, self.sizes))]
        self.ends = []
        for index, device in enumerate(self.devices):
            with tf.device(device):
                self.ends.append(end_queue(index))
        variables = tf.compat.v1.global_variables()
        self.initialize = tf.group(*(v.initializer for v in variables))
        self.saved = self._saved(variables)

    def _slice(self, index: int, initial: Any) -> Slice:
        device = self.devices[index]
        with tf.device(device):
            initial = tf.identity(initial)
            center = tf.Variable(initial, name=f"center_{index}")
            slots = {}
            if self.ema_decay is not None:
                slots["average"] = tf.Variable(initial, name=f"average_{index}")
            if self.scheme.keeps_anchors:
                rows = tf.tile(initial[None], [self.num_workers, 1])
                slots["anchors"] = tf.Variable(rows, name=f"anchors_{index}")
            part = Slice(
                index=index,
                device=device,
                initial=initial,
                center=center,
                num_workers=self.num_workers,
                **slots,
            )
            own = self.scheme.global_variables(initial)
            for values in (self.scheme.gate.slice_variables(self, part), own):
                if values is own:
                    self._check_names(own, part)
                for name, value in values.items():
                    setattr(part, name, tf.Variable(value, name=f"{name}_{index}"))
        return part

    def _check_names(self, names: Iterable[str], part: Slice) -> None:
        """None of these global variables of the scheme has the name of something else here, or in a checkpoint."""
        single = {v.name.split(":")[0] for v in tf.compat.v1.global_variables()}
        check_names(
            self.scheme.name, "global", names, single | {*Server.__annotations__, *vars(part), *Slice.__annotations__}
        )

    def _saved(self, variables: Sequence[Any]) -> dict[str, list[Any]]:
        """What a checkpoint keeps, by name: one variable, or the slices of a vector."""
        first = {name: v for name, v in vars(self.slices[0]).items() if isinstance(v, tf.Variable)}
        sliced = {name: [getattr(part, name) for part in self.slices] for name in first}
        known = {id(v) for parts in sliced.values() for v in parts}
        momentary = {id(v) for v in (self.passes, self.restored, self.drained, self.handed, self.stopping)}
        single = {v.name.split(":")[0]: [v] for v in variables if id(v) not in known | momentary}
        return sliced | single

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
    def lock(
        self,
        after: Sequence[Any],
        enter: Callable[[], Any] | None = None,
        leave: Callable[[], Any] | None = None,
    ) -> Iterator[Held]:
        """Whatever is built inside happens atomically, once everything in `after` is there.

        The unlock waits for every operation built inside. `released` of the yielded object is the unlock. `enter`
        builds what comes first under the lock, `leave` what comes last. The lock of a worker that dies is released:
        the runtime drops its step, and with it the lock.
        """
        graph = tf.compat.v1.get_default_graph()
        with tf.control_dependencies(tf.nest.flatten(after, expand_composites=True)), tf.device(self.devices[0]):
            lock = entered = tf.raw_ops.MutexLock(mutex=self.mutex)
            if enter is not None:
                with tf.control_dependencies([lock]):
                    entered = enter()
        held: Any = SimpleNamespace(released=None)
        first = len(graph.get_operations())
        with tf.control_dependencies([entered]):
            yield held
        # All of it on the ps: else the lock would be held for a round trip to the worker, or for ever if that has died.
        with tf.device(self.devices[0]):
            inside = tf.group(*graph.get_operations()[first:])  # one edge for each device, not for each operation
            with tf.control_dependencies([inside]):
                last = [leave()] if leave else []
                with tf.control_dependencies(last):
                    held.released = tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)

    def event(self, slot: WorkerSlot, parts: Sequence[Any] = ()) -> Any:
        """The lock, for what a worker sends, perhaps with a message in `parts`: it is admitted first.

        Should the event be cut in the middle (a ps dies, the sender's step is dropped), the state is not whole, and
        nobody is admitted any more until the chief has restored it.
        """
        checked = parts and self.scheme.gate.uses_ps  # without a ps, workers look at the mean of all messages
        finite = self.each_slice(lambda _, u: is_finite(u), parts) if checked else []
        return self.lock([*parts, *finite], lambda: self.admit(slot, finite), lambda: self._mark(WHOLE))

    def admit(self, slot: WorkerSlot, finite: Sequence[Any] = ()) -> Any:
        """Refuse a message that is not finite, too late, from a slot that is somebody else's, or meets torn state."""
        with tf.device(self.devices[0]):
            here = tf.gather(self.passes, tf.stack([slot.index, self.num_workers]))
            right = tf.reduce_all(tf.equal(here, slot.incarnation))
            fine = tf.reduce_all(tf.stack([right, ~self.scheme.gate.complete(self), *finite]))
            return tf.raw_ops.Assert(condition=fine, data=[REFUSED, here, tf.stack(finite or [True]), self.version])

    def is_ending(self) -> Any:
        """True if workers shall leave: somebody wants the run to end, or its last update has been made."""
        with tf.device(self.devices[0]):
            return self.stopping | self.scheme.gate.complete(self)

    def check_whole(self) -> Any:
        """Refuse to go on from torn state."""
        whole = tf.equal(self.passes[self.num_workers], WHOLE)
        return tf.raw_ops.Assert(condition=whole, data=[REFUSED, self.passes.read_value()])

    def exclusive(self) -> Any:
        """The lock, for an event that is no worker's message; cut in the middle, it leaves torn state behind."""

        def enter() -> Any:
            with tf.control_dependencies([self.check_whole()]):
                return self._mark(TORN)

        return self.lock([], enter, lambda: self._mark(WHOLE))

    def count(self, flags: Any) -> Any:
        """Number of flags that are set."""
        return tf.reduce_sum(tf.cast(flags, tf.int32))

    def when(self, condition: Any, action: Callable[[], None]) -> Any:
        """Do `action` only if `condition` holds; the returned tensor is there when it has been done, or not."""
        return when(condition, action)

    def wake(self, flags: Any) -> None:
        """A token for every worker in `flags` [W]."""
        with tf.device(self.devices[0]):
            numbers = tf.cast(flags, tf.int32)
            for k, tokens in enumerate(self.tokens):
                tokens.enqueue_many([tf.ones([numbers[k]], tf.bool)])

    def write(self, variable: Any, slot: WorkerSlot, value: Any) -> Any:
        """`value` into the row of this worker of a variable [W, ...] on the first ps task."""
        return tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=slot.index, updates=value)

    def only(self, slot: WorkerSlot) -> Any:
        """A flag for each worker: True for this one."""
        return tf.equal(tf.range(self.num_workers), slot.index)

    def close_slots(self, flags: Any) -> list[Any]:
        """Nobody counts on those workers any more; they are refused until they join again."""
        with tf.device(self.devices[0]):
            everybody = tf.concat([flags, [False]], 0)
            void = tf.where(everybody, tf.constant(NOBODY, tf.int64), self.passes)
            gone = self.active.assign(self.active & ~flags)
            with tf.control_dependencies([gone]):  # whoever is refused joins again, and is counted on again
                return [gone, self.passes.assign(void)]

    def _mark(self, state: int) -> Any:
        return tf.raw_ops.ResourceScatterUpdate(
            resource=self.passes.handle, indices=self.num_workers, updates=tf.constant(state, tf.int64)
        )

    def each_slice(self, build: Callable[[Slice, Any], Any], values: Sequence[Any] | None = None) -> list[Any]:
        """`build(slice, value)` on the device of each slice."""
        results = []
        for part, value in zip(self.slices, values or [None] * len(self.slices), strict=True):
            with tf.device(part.device):
                results.append(build(part, value))
        return results

    def fold(self, slot: WorkerSlot, parts: Sequence[Any], event: Event = "exchange", locked: bool = True) -> list[Any]:
        """The whole of an asynchronous update: recorded, merged into every slice, counted; returns the replies."""
        version = self.read_version()
        staleness = self.staleness(version, slot)
        recorded = self.record(version, slot.index, staleness, accepted=True, event=event, locked=locked)
        with tf.control_dependencies([recorded]):
            replies = self.update(parts, staleness, version, slot)
            self.count_updates(1)
        return replies

    def update(self, parts: Sequence[Any], staleness: Any, version: Any, slot: WorkerSlot) -> list[Any]:
        """The scheme's rule on every slice, for a message from that slot; returns the replies."""
        with tf.device(self.devices[0]):
            lateness = tf.cast(staleness, tf.float32)

        def merge(part: Slice, message: Any) -> Any:
            if part.anchors is not None:
                part.anchor = tf.raw_ops.ResourceGather(
                    resource=part.anchors.handle, indices=slot.index, dtype=tf.float32
                )
            reply = self.merge(part, message, lateness, version)
            return reply if isinstance(message, tf.IndexedSlices) else tf.convert_to_tensor(reply)  # nobody reads it

        return self.each_slice(merge, parts)

    def merge(self, part: Slice, message: Any, staleness: Any, version: Any) -> Any:
        """The scheme's rule on one slice, then the average; returns the reply."""
        scheme = self.scheme
        if scheme.scheduled:  # in local steps of the average worker, as on the workers
            steps = tf.cast(version * scheme.period, tf.float32)
            scheme = scheme.at(steps / scheme.gate.updates_per_round(self.num_workers))
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

    def staleness(self, version: Any, slot: WorkerSlot) -> Any:
        """Updates since this worker pulled last, at `version`; without a lock it is an estimate, never below 0."""
        with tf.device(self.devices[0]):
            return tf.maximum(version - self.pulled.read_value()[slot.index], 0)

    def note_pull(self, slot: WorkerSlot) -> None:
        """This worker has the present center."""
        with tf.device(self.devices[0]):
            version = self.version.read_value()
            tf.raw_ops.ResourceScatterUpdate(resource=self.pulled.handle, indices=slot.index, updates=version)
        for part in self.slices:
            if part.anchors is not None:
                with tf.device(part.device):
                    center = part.center.read_value()
                    tf.raw_ops.ResourceScatterUpdate(resource=part.anchors.handle, indices=slot.index, updates=center)

    def record(
        self,
        version: Any,
        worker: Any,
        staleness: Any,
        accepted: Any,
        event: Any = "exchange",
        locked: bool = True,
    ) -> Any:
        """Append one event to the record of the run, and count it.

        Under the lock the state is not whole from here on, until the end of the event: record, counts and center
        agree afterwards, or are restored. To append is the first step that is cancelled when the sender dies.
        """
        with tf.device(self.devices[0]):
            now = tf.cast(tf.timestamp() * 1e6, tf.int64)
            values = [version, worker, staleness, accepted, now, EVENTS.index(event)]
            with tf.control_dependencies([self._mark(TORN)] if locked else []):
                noted = self.records.enqueue(tf.stack([tf.cast(value, tf.int64) for value in values]))
            with tf.control_dependencies([noted]):
                one = tf.constant(1, tf.int64)
                if event == "join":
                    return self.joins.assign_add(one)
                return tf.raw_ops.ResourceScatterAdd(resource=self.folded.handle, indices=worker, updates=one)

    # What tasks do besides rounds.

    def slot(self, worker: int, index: Any) -> Slot:
        """The slot of a worker; `index` is its number as the graph shall see it."""
        with tf.device(self.devices[0]):
            tokens = queue("own_tokens", shared_name=f"token_{worker}")
        return Slot(index, self.devices[0], tokens, self.passport)

    def pull(self, slot: WorkerSlot) -> Any:
        """The center as it is now."""
        with self.event(slot):
            version = self.read_version()
            self.record(version, slot.index, self.staleness(version, slot), accepted=False, event="pull")
            self.note_pull(slot)
            parts = self.each_slice(lambda part, _: part.center.read_value())
        return self.concat(parts)

    def gather(self, slot: WorkerSlot, indices: Any, locked: bool) -> Any:
        """Some coordinates of the center as they are now; under the lock, all at one moment."""
        cut = Cut(indices, self.sizes)
        parts = self.each_slice(lambda _, i: tf.identity(i), cut.indices)
        with self.lock(after=parts) if locked else nullcontext():
            self.note_pull(slot)
            values = self.each_slice(lambda part, i: tf.gather(part.center, i), parts)
        return cut.join(values)

    def join(self, slot: WorkerSlot, recorded: Any) -> tuple[Any, Any, dict[str, Any]]:
        """A worker takes its slot, for the first time or again; whoever sat there before is refused from now on.

        Returns:
            the center, the worker's own state, and: how many of its rounds are on record (`folded`), True if the
            message of the last one still waits at the barrier (`waits`), which restoration this is (`restored`), and
            True if the worker shall leave (`stopping`).
        """
        with self.lock([], self.check_whole, lambda: self._mark(WHOLE)):
            with tf.device(self.devices[0]):
                version = self.read_version()
                for variable, value in (
                    (self.passes, slot.incarnation[0]),
                    (self.active, True),
                    (self.ready, True),
                    (self.finished, False),
                ):
                    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=slot.index, updates=value)
                waits = self.scheme.gate.rejoin(self, slot)
                again = recorded & (version > 0)
                when(again, lambda: self.record(version, slot.index, 0, accepted=False, event="join"))
                state = self.states[slot.index]
                joined = {"folded": self.folded[slot.index], "waits": waits}
                joined |= {"restored": self.restored[0], "stopping": self.is_ending()}
            self.note_pull(slot)
            parts = self.each_slice(lambda part, _: part.center.read_value())
        return self.concat(parts), state, joined

    def refuse(self, slot: WorkerSlot) -> Any:
        """A message that was not finite is dropped for good: its round counts as done."""
        with self.event(slot), tf.device(self.devices[0]):
            self.count_refused(slot, tf.constant(1, tf.int64))
            self.record(self.read_version(), slot.index, 0, accepted=False)
        return tf.constant(True)

    def count_refused(self, slot: WorkerSlot, number: Any) -> None:
        """So many more messages of this worker were not finite."""
        with tf.device(self.devices[0]):
            tf.raw_ops.ResourceScatterAdd(resource=self.refused.handle, indices=slot.index, updates=number)

    def store_state(self, slot: WorkerSlot, state: Any) -> None:
        """Write the worker's non-trainable state, a vector, into its row."""
        with tf.device(self.devices[0]):
            tf.raw_ops.ResourceScatterUpdate(resource=self.states.handle, indices=slot.index, updates=state)

    def snapshot(self) -> dict[str, Any]:
        """At one moment: version (`at`), center, its `average` if there is one, state (the mean over the workers)."""
        with self.lock([], self.check_whole):
            version = self.read_version()
            vectors = {"center": self.each_slice(lambda part, _: part.center.read_value())}
            if self.ema_decay is not None:
                vectors["average"] = self.each_slice(lambda part, _: part.average.read_value())
            with tf.device(self.devices[0]):
                state = tf.reduce_mean(self.states, 0)
        return {"at": version, "state": state} | {name: self.concat(parts) for name, parts in vectors.items()}

    def drain(self) -> dict[str, Any]:
        """The part of the record that the evaluator has not confirmed: one that is lost leaves no gap.

        Returns:
            the `events`, [n, len(RECORD)]; how many are `before` them; whether the state was `restored`.
        """
        with self.lock([]), tf.device(self.devices[0]):
            events = tf.concat([self.handed, self.records.dequeue_many(self.records.size())], 0)
            self.handed.assign(events)
            return {"events": events, "before": self.drained.read_value(), "restored": self.restored.read_value()}

    def confirm(self, restoration: Any, number: Any) -> Any:
        """The evaluator has so many events, if the state has not been restored meanwhile."""
        with self.lock([]), tf.device(self.devices[0]):
            same = tf.equal(self.restored[0], restoration)
            safe = tf.where(same, tf.maximum(number - self.drained, 0), 0)
            self.handed.assign(self.handed[safe:])
            self.drained.assign_add(safe)
        return tf.constant(True)

    # Checkpoints: see `run.state_manager`.

    def stop(self) -> Any:
        """Nobody is counted on any more, and nobody is admitted; who waits is woken to learn it."""
        with self.exclusive(), tf.device(self.devices[0]):
            self.stopping.assign(True)
            self.close_slots(tf.ones([self.num_workers], tf.bool))
        return tf.constant(True)

    def wake_all(self) -> Any:
        """Whoever waits at the gate goes on, whatever it waits for."""
        self.scheme.gate.wake(self)
        return tf.constant(True)

    def whole(self) -> Any:
        """The version, unless the state is torn."""
        with self.lock([], self.check_whole):
            return self.read_version()

    def standing(self) -> Any:
        """The passes, while nobody is in the middle of an event."""
        with self.lock([]), tf.device(self.devices[0]):
            return self.passes.read_value()

    def values(self) -> dict[str, Any]:
        """Everything that a checkpoint keeps, at one moment; the slices of a vector as name/0, name/1, ..."""
        values = {}
        with self.lock([], self.check_whole):
            for name, parts in self.saved.items():
                for i, variable in enumerate(parts):
                    with tf.device(variable.device):  # or the lock would be held for a round trip to the chief
                        values[f"{name}/{i}"] = variable.read_value()
        return values

    def restoring(self) -> dict[str, Any]:
        """The operations of a restoration, in calls: `shut`, `restore`, `recall`, `open`; what is fed is `new/...`."""
        ops: dict[str, Any] = {}
        assigns = []
        for name, parts in self.saved.items():
            for i, variable in enumerate(parts):
                with tf.device(variable.device):
                    ops[f"new/{name}/{i}"] = new = tf.compat.v1.placeholder(variable.dtype, variable.shape)
                    assigns.append(variable.assign(new, read_value=False))
        nobody = [NOBODY] * self.num_workers
        with tf.device(self.devices[0]):
            with self.lock(assigns) as held:  # the evaluator may be at the record
                self.stopping.assign(False)
                self.restored.assign(self.restoration)
                self.drained.assign(self.restoration[1])
                self.handed.assign(tf.zeros([0, len(RECORD)], tf.int64))
                self.records.dequeue_many(self.records.size())
            ops["restore"] = tf.group(held.released)
            back = self.over.enqueue_many([tf.zeros([self.num_workers], tf.bool)])
            awake = tf.function(lambda: self.wake_all(), autograph=False)()
            ops["recall"] = tf.group(self.go.enqueue(True), back, awake)
            ops["shut"] = tf.function(lambda: self._shut(nobody), autograph=False)()
            ops["open"] = self.passes.assign(tf.constant([*nobody, WHOLE], tf.int64)).op
        ops["alive"] = self._alive()
        return ops

    def _shut(self, nobody: Sequence[int]) -> Any:
        """Nobody is admitted from now on, and nothing is under way any more."""
        with self.lock([]), tf.device(self.devices[0]):
            self.passes.assign(tf.constant([*nobody, TORN], tf.int64))
        return tf.constant(True)

    def _alive(self) -> Any:
        """For each ps task, True if its variables have values."""
        flags = []
        for i, device in enumerate(self.devices):
            mine = [parts[i] for parts in self.saved.values() if i < len(parts)]
            with tf.device(device):
                known = [tf.raw_ops.VarIsInitializedOp(resource=v.handle) for v in mine]
                flags.append(tf.reduce_all(tf.stack(known)))
        with tf.device(self.devices[0]):
            return tf.stack(flags)
