"""The requests of the tasks to the parameter server, each declared once, and the answers to them.

A request has a function that builds the tensors of its answer from a part of the graph, the ps or a worker. The type
of an answer is that of the values in a call: with the declarations below `calls.version()` returns an integer. The
parameters of a function are the inputs of a call, and its annotations their types: `calls.acknowledge(7, 200)` feeds
two integers. A request with an underscore is made by the method of `calls` with the same name, which has more to do.

W is the number of workers, P that of parameters, S the length of the model's non-trainable state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

import numpy as np

from ..lazy import tf
from ..server.answers import Drained, Joined, PausedWorkers, Positions, WorkerFlags
from ..sync import losses

Inputs = ParamSpec("Inputs")
Answer = TypeVar("Answer")

KINDS = {"int": "int64", "bool": "bool", "bytes": "string"}  # type of the placeholder of an input

STATE_WAITS = 2  # limit of a call that reads all of the state, in units of the limit of a wait

SLOW = 10  # the same of a call that waits for no other task, and may compute

SKIP_SECONDS = 86400.0  # limit of the call that reads the batches of an earlier start, at most one pass

END_SECONDS = 0.5  # limit of the call that ends the ps tasks

POLL_END_SECONDS = 5.0  # limit of a wait for the end of a task that serves as ps


class Operation(NamedTuple):
    """A call of a session: it runs `fetches`, given values for the placeholders in `inputs`; both may be nested."""

    fetches: Any
    inputs: Any = ()


@dataclass(eq=False)
class Request(Generic[Inputs, Answer]):
    """A request, and the method by which `Calls` make it.

    Attributes:
        build: builds the tensors of the answer, given a part of the graph and the placeholders of the inputs.
        inputs: returns the placeholders that `build` is given, if they are no scalars.
        traced: `build` is traced as one function, so that its stateful operations run in program order.
        under_lock: the inputs of a worker are read under the lock, so they are fed on its task, and come with the
            request. An input that is fed on the worker follows later: if a cut of the network keeps it away, no other
            task gets the lock.
        of_waiting: only made where tasks can read which workers wait; the graphs of other runs do not have it.
        waits: limit of a call, in units of the limit of a wait, unless `seconds` is given.
        seconds: limit of a call.
        once: a call that fails is not repeated, as it may have had an effect that would come twice.
    """

    build: Callable[Concatenate[Any, Inputs], Answer]
    inputs: Callable[[Any], Sequence[Any]] | None = None
    traced: bool = False
    under_lock: bool = False
    of_waiting: bool = False
    waits: float = 1.0
    seconds: float | None = None
    once: bool = False
    name: str = ""

    def __set_name__(self, owner: type, name: str):
        self.name = name

    @property
    def repeats(self) -> bool:
        """True if a call is made again where this task was suspended in it; polls have limits of their own."""
        return not self.once and self.seconds is None

    def __get__(self, calls: Any, owner: type) -> Callable[Inputs, Answer]:
        return partial(calls.make, self)

    def operation(self, part: Any, device: str) -> Operation:
        """Build the request into the current graph, with placeholders on this device, or on that of the lock."""
        declared: Callable[..., Any] = self.build
        with tf.device(part.ps.devices[0] if self.under_lock else device):
            if self.inputs is None:
                kinds = [parameter.annotation for parameter in inspect.signature(declared).parameters.values()][1:]
                inputs = [tf.compat.v1.placeholder(KINDS[kind], []) for kind in kinds]
            else:
                inputs = self.inputs(part)

        def build(*inputs: Any) -> Any:
            return declared(part, *inputs)

        with tf.name_scope(self.name.strip("_")):
            return Operation(traced(build, *inputs) if self.traced else build(*inputs), tuple(inputs))


def request(**options: Any) -> Callable[[Callable[Concatenate[Any, Inputs], Answer]], Request[Inputs, Answer]]:
    """Declare a request by the function that builds it; see `Request` for the options."""
    return lambda build: Request(build, **options)


def answer(kind: type[Answer], build: Callable[[Any], Any], **options: Any) -> Request[[], Answer]:
    """Declare a request without inputs by the type of its answer and a function that builds it."""
    return Request(build, **options)


def traced(build: Any, *arguments: Any) -> Any:
    """Trace `build` as one function, and copy its operations into the graph; see `in_program_order`."""
    from ..messages.ops import in_program_order

    return in_program_order(build, *arguments)


def await_signal(shared: Any) -> Any:
    """Wait for a token and put it back for the next."""
    token = shared.dequeue()
    with tf.control_dependencies([token]):
        return shared.enqueue(token)


class CommonRequests:
    """Requests of tasks of all roles, in the graph of each task."""

    version = answer(int, lambda ps: ps.center.read_version())  # updates in the center
    worker_flags = answer(
        WorkerFlags, lambda ps: WorkerFlags(ps.slots.finished.read_value(), ps.slots.active.read_value())
    )
    # Logged rounds of each worker, [W].
    rounds_applied = answer(np.ndarray, lambda ps: ps.journal.rounds_applied.read_value())
    ends = answer(np.ndarray, lambda ps: ps.journal.ends())  # `released`, `computed`, `replied` of last rounds, [W, 3]
    recorded = answer(int, lambda ps: ps.journal.records.size())  # events that the evaluator has not taken over yet
    acknowledged = answer(int, lambda ps: ps.journal.acknowledged.read_value())  # events that it has written to disk
    losses = answer(dict, lambda ps: ps.scheme.sync.losses(ps))  # of its sets, if rounds follow from them
    restoration = answer(int, lambda ps: ps.journal.restored[0])  # number of this state's initialization or restoration
    stopping = answer(bool, lambda ps: ps.is_ending())  # workers shall leave: the last update was made, or a stop asked
    incarnations = answer(np.ndarray, lambda ps: ps.transactions.read_incarnations(), traced=True)  # [W + 1]
    _read_asked = answer(int, lambda ps: ps.local_copies.asked.read_value())

    @request(traced=True, waits=STATE_WAITS)
    def copy_of(ps: Any, worker: int) -> tuple[int, bytes]:
        """Return the number of rounds in the copy of that worker's local state, and the copy."""
        return ps.local_copies.read(worker)

    # Signals, from the start of a run to its end.

    _await_state = answer(bool, lambda ps: await_signal(ps.slots.state_ready))
    ready = answer(np.ndarray, lambda ps: ps.slots.ready.read_value())  # workers that have joined once, [W]
    start = answer(bool, lambda ps: ps.slots.start_signal.enqueue(True))  # signal that all workers have joined
    _await_start = answer(bool, lambda ps: await_signal(ps.slots.start_signal))
    _await_shutdown = answer(bool, lambda ps: ps.slots.shutdown_signal.dequeue(), once=True)
    _await_ps_end = answer(bool, lambda ps: ps.slots.ps_shutdown[0].dequeue(), seconds=POLL_END_SECONDS)

    @request(once=True)
    def _depart(ps: Any, is_chief: bool) -> None:
        with tf.device(ps.devices[0]):
            chief = tf.fill([tf.cast(is_chief, tf.int32)], True)
        return tf.group(ps.slots.departed.enqueue(True), ps.slots.chief_departed.enqueue_many([chief]))

    # The synchronization rule.

    arrived = answer(np.ndarray, lambda ps: ps.scheme.sync.arrived(ps), of_waiting=True)  # workers that wait, [W]
    awaited = answer(np.ndarray, lambda ps: ps.scheme.sync.awaited(ps), of_waiting=True)  # those they wait for, [W]


class StopRequests:
    """Requests of the tasks that may end the run early: the evaluator and the chief."""

    is_stopped = answer(bool, lambda ps: ps.slots.stopping.read_value())  # the run was ended early
    _stop = answer(bool, lambda ps: ps.stop(), traced=True)
    _wake = answer(bool, lambda ps: ps.wake_all(), traced=True)

    def stop(self) -> None:
        """End the run early: the ps refuses all messages, and the workers then ask for the reason and leave."""
        self._stop()
        self._wake()


class ObserverRequests:
    """Requests of the evaluator."""

    # Number of workers that are active or have finished.
    present = answer(int, lambda ps: ps.slots.count(ps.slots.active | ps.slots.finished))
    drain = answer(Drained, lambda ps: ps.journal.drain(), traced=True)
    lost_workers = answer(dict, lambda ps: ps.scheme.sync.lost(ps))
    snapshots = answer(dict, lambda ps: ps.center.snapshots.read() if ps.center.snapshots else {})
    _snapshot = answer(dict, lambda ps: ps.snapshot(), traced=True)
    _end_ps = answer(bool, lambda ps: tf.group(*(q.enqueue(True) for q in ps.slots.ps_shutdown)), seconds=END_SECONDS)

    @request()
    def evict(ps: Any, worker: int) -> None:
        """Remove that worker from the active set; its messages are refused until it joins again."""
        with tf.device(ps.devices[0]):
            return tf.group(*ps.slots.close_slots(tf.equal(tf.range(ps.num_workers, dtype=tf.int64), worker)))

    @request(traced=True)
    def acknowledge(ps: Any, restoration: int, events: int) -> None:
        """Report that `events` of the trace are on disk; no effect if the state was restored after `restoration`."""
        return ps.journal.acknowledge(restoration, events)

    @request(once=True)
    def shut_down(ps: Any) -> int:
        """Let all workers leave, as the result is on disk; return the number of present ones."""
        with tf.control_dependencies([ps.slots.shutdown_signal.enqueue_many([tf.ones([ps.num_workers], tf.bool)])]):
            return ps.slots.count(ps.slots.active | ps.slots.finished)

    @request()
    def departed(ps: Any) -> tuple[int, bool]:
        """Return the number of workers that have left, and True if the chief is one of them."""
        return ps.slots.departed.size(), ps.slots.chief_departed.size() > 0


class GraceRequests:
    """Requests of the clock that closes sets after their time of grace; see `sync.barrier`."""

    grace_left = answer(tuple[int, float], lambda ps: ps.scheme.sync.grace_left(ps))
    _await_quorum = answer(bool, lambda ps: ps.quorums.dequeue(), seconds=POLL_END_SECONDS)
    _call_clock = answer(bool, lambda ps: ps.quorums.enqueue(True), seconds=END_SECONDS)

    @request(traced=True)
    def end_grace(ps: Any, began: int) -> bool:
        """Close the set whose time of grace has begun at `began`."""
        return ps.scheme.sync.end_grace(ps, began)


class RegionRequests:
    """Requests of the evaluator to one region, see `server.region`."""

    serve = answer(bool, lambda region: region.serve(), traced=True, waits=STATE_WAITS, once=True)
    tell = answer(bool, lambda region: region.tell(), once=True)


class StateRequests:
    """Requests of the chief's state manager."""

    alive = answer(np.ndarray, lambda ps: ps.persistence.alive())  # ps tasks of which all variables have values
    announce_state = answer(bool, lambda ps: ps.slots.state_ready.enqueue(True))  # signal that the state is ready
    paused_workers = answer(PausedWorkers, lambda ps: ps.local_copies.paused_workers(), traced=True)
    forget_copies = answer(bool, lambda ps: ps.local_copies.forget(), traced=True)
    _check_clean = answer(int, lambda ps: ps.check_clean(), traced=True)
    _values = answer(dict, lambda ps: ps.persistence.values(), traced=True, waits=STATE_WAITS)
    _shut = answer(bool, lambda ps: ps.persistence.shut(), traced=True)
    _clear_snapshots = answer(list, lambda ps: ps.center.snapshots.clear() if ps.center.snapshots else [])
    _call_back = answer(bool, lambda ps: ps.slots.call_back(ps.wake_all))
    _open = answer(bool, lambda ps: ps.persistence.open())

    @request()
    def ask_for_copies(ps: Any, meeting: int) -> Positions:
        """Request a copy of the local state of all workers at that meeting; see `server.local_copies`."""
        return ps.local_copies.ask(meeting)

    @request(inputs=lambda ps: (ps.center.initial, ps.initial_state, ps.journal.restoration))
    def _initialize(ps: Any, center: Any, state: Any, restoration: Any) -> None:
        return ps.initialize

    @request(inputs=lambda ps: (ps.persistence.new_values(), ps.journal.restoration))
    def _restore(ps: Any, values: Any, restoration: Any) -> None:
        return ps.persistence.restore(values)

    @request(inputs=lambda ps: [_place(kind, [ps.num_workers]) for kind in (tf.int64, tf.string)], traced=True)
    def _put_back(ps: Any, rounds: Any, copies: Any) -> None:
        return ps.local_copies.put_back(rounds, copies)


class WorkerRequests:
    """Requests that each worker has of its own."""

    _refuse = answer(bool, lambda worker: worker.ps.refuse(worker.slot), traced=True, once=True)
    _local = answer(dict, lambda worker: tf.nest.map_structure(lambda v: v.read_value(), worker.local()), waits=SLOW)

    @request(inputs=lambda worker: worker.fed)
    def _prepare(worker: Any, data: Any, frozen: Any) -> None:
        return worker.initialize

    @request(traced=True, under_lock=True, once=True)
    def _join(worker: Any, recorded: bool) -> Joined:
        return worker.start(recorded)

    @request()
    def set_clock(worker: Any, steps: int) -> None:
        """Set the clock of learning-rate schedules to this number of local `steps`."""
        with tf.device(worker.device):
            return worker.clock.assign(steps).op if hasattr(worker, "clock") else tf.no_op()

    @request(traced=True, waits=SLOW, once=True)
    def collect(worker: Any, rounds: int) -> bool:
        """Bring the mean of workers that gossip up to date after the last round; this worker has made so many."""
        if worker.scheme.sync.gossips:
            worker.collect(rounds)
        return tf.constant(True)

    @request(under_lock=True)
    def set_finished(worker: Any, computed: int, replied: int) -> None:
        """Mark this worker as finished: it has done all its rounds; these are times of the last, see `server.trace`."""
        return worker.ps.finish(worker.slot, [computed, replied])

    @request(
        inputs=lambda worker: [tf.nest.map_structure(lambda v: _place(v.dtype, v.shape), worker.local())], waits=SLOW
    )
    def _set_local(worker: Any, values: Any) -> None:
        with tf.device(worker.device):
            assigns = tf.nest.map_structure(lambda variable, value: variable.assign(value).op, worker.local(), values)
            return tf.group(*tf.nest.flatten(assigns))

    @request(traced=True, under_lock=True, waits=SLOW)
    def _write_copy(worker: Any, rounds: int, copy: bytes) -> None:
        return worker.ps.local_copies.write_copy(worker.slot, rounds, copy)

    @request(traced=True)
    def _announce_rounds(worker: Any, rounds: int) -> int:
        return worker.ps.local_copies.announce_rounds(worker.slot, rounds)

    # The synchronization rule: block until it releases the last message; evict the workers that this one waits for, if
    # enough are left; leave, as all rounds are done. The last two return the workers no longer awaited, [W].

    await_token = answer(bool, lambda worker: worker.slot.sleep(), of_waiting=True, once=True)
    evict_absent = answer(
        np.ndarray, lambda worker: worker.scheme.sync.evict(worker.ps, worker.slot), traced=True, of_waiting=True
    )
    deregister = answer(
        np.ndarray, lambda worker: worker.scheme.sync.deregister(worker.ps, worker.slot), traced=True, of_waiting=True
    )


class StreamRequests:
    """The request of a worker whose data are a function."""

    @request(traced=True, seconds=SKIP_SECONDS)
    def skip_batches(source: Any, batches: int) -> int:
        """Read and drop what `batches` have used of a pass over the data; return its length, else -1 or -2."""
        return source.skip(batches)


class LossRequests:
    """Requests of a worker of a run that may continue without some of its workers, without a ps; see `sync.losses`."""

    @request(traced=True, under_lock=True)
    def begin_rounds(worker: Any, end: int) -> np.ndarray:
        """Announce the rounds before the one of that number; return the round from which on each worker is out, [W]."""
        return losses.begin(worker.ps, worker.slot, end)

    out_from = answer(np.ndarray, lambda worker: losses.out_from(worker.ps))  # see `begin_rounds`, [W]

    @request(traced=True, under_lock=True, once=True)
    def lose(worker: Any, of: int, missed: int) -> tuple[bool, bool]:
        """Report the loss of a worker; return True if the run continues, and if this is the first report of it."""
        return losses.lose(worker.ps, worker.slot, of, missed)

    @request(inputs=lambda worker: [_place(tf.float32, worker.slot.mail.links.shape)])
    def set_links(worker: Any, links: Any) -> None:
        """Set the weights of the worker's links, [2, rounds, W], see `Gossip.rows`, and clear what a loss clears."""
        cleared = [getattr(view, name) for view in worker.views for name in worker.scheme.cleared]
        cleared += [part for parts in worker.encoder.local.values() for part in parts]
        with tf.device(worker.device):
            return tf.group(
                worker.slot.mail.links.assign(links), *(each.assign(tf.zeros_like(each)) for each in cleared)
            )


OF_PS = (CommonRequests, StopRequests, ObserverRequests, StateRequests)

# The requests of nearly every run. A graph has them from the start: once a session has made a call, each operation that
# is built makes it read the whole graph again.
OF_EVERY_RUN = (
    *("version", "worker_flags", "rounds_applied", "ends", "recorded", "_read_asked", "_await_state", "ready", "start"),
    *("_await_start", "_await_shutdown", "_depart", "arrived", "drain", "lost_workers", "_snapshot", "_end_ps"),
    *("acknowledge", "shut_down", "departed", "alive", "announce_state", "ask_for_copies", "_initialize"),
    *("_local", "_prepare", "_join", "set_finished", "_set_local", "_write_copy"),
)


def requests_of(*kinds: type) -> dict[str, Request]:
    """Return the requests that these classes declare, by name."""
    return {name: value for kind in kinds for name, value in vars(kind).items() if isinstance(value, Request)}


Builds = Mapping[str, Callable[[], Operation]]  # functions that build operations, by name


class LazyOperations(Mapping[str, Operation]):
    """Operations of a graph by name, each of them built when it is first asked for: a run needs half of them.

    Args:
        graph: the graph.
        lock: that of the graph, held while an operation is built, as several threads may ask.
        builds: functions that build the operations.
        built: operations that have been built.
    """

    def __init__(self, graph: Any, lock: Any, builds: Builds, built: Mapping[str, Operation] = {}):
        self._graph, self._lock, self._builds, self._built = graph, lock, builds, dict(built)

    def build_usual(self) -> None:
        """Build the operations of `OF_EVERY_RUN`."""
        for name in OF_EVERY_RUN:
            if name in self._builds:
                self[name]

    def __getitem__(self, name: str) -> Operation:
        from ..messages.ops import building

        with self._lock:
            if name not in self._built:
                with building(self._graph):
                    self._built[name] = self._builds[name]()
            return self._built[name]

    def copied(self, copy: Callable[[Operation], Operation]) -> LazyOperations:
        """Return copies of the operations: of those built already now, of the others when they are asked for."""
        builds = {name: lambda name=name: copy(self[name]) for name in self}
        return LazyOperations(
            self._graph, self._lock, builds, {name: copy(operation) for name, operation in self._built.items()}
        )

    def __iter__(self) -> Iterator[str]:
        return iter([*self._builds, *(self._built.keys() - self._builds)])

    def __len__(self) -> int:
        return len(self._builds.keys() | self._built)

    def __or__(self, other: LazyOperations) -> LazyOperations:
        """Return the operations of both."""
        both = {name: partial(each.__getitem__, name) for each in (self, other) for name in each}
        return LazyOperations(self._graph, self._lock, both)


def operations_of(kinds: Sequence[type], part: Any, device: str, sees_waiting: bool) -> Builds:
    """Return functions that build the requests of these classes, by name; without `sees_waiting` not all of them."""
    requests = requests_of(*kinds).items()
    return {
        name: partial(asked_for.operation, part, device)
        for name, asked_for in requests
        if sees_waiting or not asked_for.of_waiting
    }


def rounds_of(worker: Any, batch_size: int, counts: set[int]) -> dict[str, Operation]:
    """Build the rounds of a worker, for each kind and each number of rounds in a call."""
    operations = {}
    for count in sorted(counts):
        rows, before = _place(tf.int32, [count, None, batch_size]), _place(tf.int64, [4])
        for kind in worker.scheme.kinds:
            rounds = Operation(traced(worker.rounds, rows, kind, before), (rows, before))
            operations[name_of_rounds(kind, count)] = rounds
    return operations


def regions_of(ps: Any) -> dict[str, Operation]:
    """Build the requests to each region, each named by `name_of_carrier`; messages shall not wait for that later."""
    return {
        name_of_carrier(name, r): declared.operation(region, region.device)
        for r, region in enumerate(ps.regions)
        for name, declared in requests_of(RegionRequests).items()
    }


def carriers_of(worker: Any, workers: int) -> dict[str, Operation]:
    """Build the operations of `messages.carried` for each other worker, each named by `name_of_carrier`."""
    mail, number = worker.slot.mail, _place(tf.int64, [])
    operations = {}
    for k in range(workers):
        if k != worker.slot.index:
            operations[name_of_carrier("open", k)] = Operation(mail.open(k, number), number)
            for action in (mail.carry, mail.leave_out, mail.mark_lost, mail.close):
                operations[name_of_carrier(action.__name__, k)] = Operation(action(k))
    return operations


def name_of_carrier(action: str, number: int) -> str:
    """Return the name of the operation that calls this method for that worker (`CarriedChannels`) or region."""
    return f"{action}_{number}"


def name_of_rounds(kind: str, count: int) -> str:
    """Return the name of the operation that makes `count` rounds of this kind."""
    return f"rounds_{kind}_{count}"


def _place(kind: Any, shape: Any) -> Any:
    return tf.compat.v1.placeholder(kind, shape)
