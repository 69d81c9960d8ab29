"""All operations and inputs that a session of a run uses, each with a name that a type checker knows.

The graph builds them once; only the facades of `calls` run them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..contract.rounds import Event
from ..lazy import tf

# Operations of the evaluator and the chief alone. The graph of the other workers does not have them: with them it takes
# longer to load, and each kind of call takes longer to prepare.
OF_KEEPERS = frozenset(
    [
        "evict",
        "pieces",
        "forget_look",
        "stop",
        "wake",
        "snapshot",
        "drain",
        "snapshots",
        "acknowledge",
        "new_values",
        "alive",
        "clean",
        "initialize",
        "values",
        "shut",
        "restore",
        "call_back",
        "open",
        "clear_snapshots",
        "ask",
        "standing",
        "put_back",
        "forget_copies",
    ]
)


class Operation(NamedTuple):
    """A call of a session: it runs `fetches`, given values for the placeholders in `inputs`; both may be nested."""

    fetches: Any
    inputs: Any = ()


def traced(build: Any, *arguments: Any) -> Any:
    """Trace `build` as one function of the graph, so that its stateful operations run in program order."""
    return tf.function(build, autograph=False)(*arguments)


class GlobalOps:
    """Operations on the global variables, for all roles.

    Args:
        ps: the `ParameterServer` of the graph.
        sees_waiting: the ps knows which workers wait for which.
    """

    def __init__(self, ps: Any, sees_waiting: bool):
        with tf.device(ps.devices[0]):
            # The number of the calling worker is fed with every call. As a constant it would make the graph of each
            # worker different, and workers could not share one.
            self.index = tf.compat.v1.placeholder_with_default(-1, [], name="index")
        self.incarnation = ps.transactions.incarnation
        self._reads(ps)
        self._waits(ps, sees_waiting)
        self._signals(ps)
        self._observes(ps)
        self._keeps(ps)
        self._copies(ps)

    def _reads(self, ps: Any) -> None:
        """Build the reads that tasks of several roles make."""
        self.version = Operation(ps.read_version())
        self.ready = Operation(ps.membership.ready.read_value())
        self.roll = Operation((ps.finished.read_value(), ps.active.read_value()))
        self.present = Operation(ps.count(ps.active | ps.finished))
        self.folded = Operation(ps.folded.read_value())
        self.stopping = Operation(ps.is_ending())
        self.recorded = Operation(ps.journal.records.size())
        self.acknowledged = Operation(ps.journal.acknowledged.read_value())
        self.restoration = Operation(ps.journal.restored[0])
        self.incarnations = Operation(traced(ps.transactions.read_incarnations))

    def _waits(self, ps: Any, sees_waiting: bool) -> None:
        """Build the reads of the gate: which workers have arrived, and which are awaited."""
        gate = ps.scheme.gate
        self.arrived = Operation(gate.arrived(ps) if sees_waiting else ())
        self.awaited = Operation(gate.awaited(ps) if sees_waiting else ())

    def _signals(self, ps: Any) -> None:
        """Build the signals between tasks, from the start of a run to its end."""
        from ..messages.ops import turnstile

        members = ps.membership
        with tf.device(ps.devices[0]):
            set_finished = tf.raw_ops.ResourceScatterUpdate(
                resource=ps.finished.handle, indices=self.index, updates=True
            )
        end = members.shutdown_signal.enqueue_many([tf.ones([ps.num_workers], tf.bool)])
        self.announce_state = Operation(members.state_ready.enqueue(True))
        self.await_state = Operation(turnstile(members.state_ready))
        self.start = Operation(members.start_signal.enqueue(True))
        self.await_start = Operation(turnstile(members.start_signal))
        self.set_finished = Operation(set_finished)
        self.shut_down = Operation((self.present.fetches, end))
        self.await_shutdown = Operation(members.shutdown_signal.dequeue())
        self.depart = Operation(members.departed.enqueue(True))
        self.chief_departs = Operation(tf.group(members.departed.enqueue(True), members.chief_departed.enqueue(True)))
        self.departed = Operation((members.departed.size(), members.chief_departed.size()))
        self.end_ps = Operation(tf.group(*(queue.enqueue(True) for queue in members.ps_shutdown)))
        self.await_ps_end = Operation(members.ps_shutdown[0].dequeue())

    def _observes(self, ps: Any) -> None:
        """Build the operations of the evaluator."""
        with tf.device(ps.devices[0]):
            evict = tf.group(*ps.close_slots(tf.equal(tf.range(ps.num_workers), self.index)))
            known = tuple(tf.compat.v1.placeholder(tf.int64, []) for _ in ("restoration", "events"))
        self.evict = Operation(evict, self.index)
        self.stop = Operation(traced(ps.membership.stop))
        self.wake = Operation(traced(ps.wake_all))
        self.snapshot = Operation({**traced(ps.snapshot), "refused": ps.journal.refused.read_value()})
        self.pieces = [Operation(piece) for piece in ps.look.pieces()]
        self.forget_look = Operation(ps.look.forget())
        self.drain = Operation(traced(ps.journal.drain))
        snapshots = ps.center.snapshots
        self.snapshots = Operation(snapshots.read() if snapshots else ())
        self.acknowledge = Operation(traced(ps.journal.acknowledge, *known), known)

    def _keeps(self, ps: Any) -> None:
        """Build the operations by which the chief saves and restores the state."""
        persistence, restoration = ps.persistence, ps.journal.restoration
        self.new_values = persistence.new_values()
        self.alive = Operation(persistence.alive())
        self.clean = Operation(traced(ps.check_clean))
        self.initialize = Operation(ps.initialize, (ps.center.initial, ps.initial_state, restoration))
        self.values = Operation(traced(persistence.values))
        self.shut = Operation(traced(persistence.shut))
        self.restore = Operation(persistence.restore(self.new_values), (self.new_values, restoration))
        self.call_back = Operation(ps.call_back())
        self.open = Operation(persistence.open())
        snapshots = ps.center.snapshots
        self.clear_snapshots = [Operation(task) for task in snapshots.clear()] if snapshots else []

    def _copies(self, ps: Any) -> None:
        """Build the operations on copies of the workers' local states, for checkpoints."""
        copies = ps.copies
        with tf.device(ps.devices[0]):
            worker, number = (tf.compat.v1.placeholder(kind, []) for kind in (tf.int32, tf.int64))
            rounds, all_copies = (tf.compat.v1.placeholder(kind, [ps.num_workers]) for kind in (tf.int64, tf.string))
        self.asked = Operation(copies.asked.read_value())
        self.ask = Operation(copies.ask(number), number)
        self.standing = Operation(traced(copies.standing))
        self.read_copy = Operation(traced(copies.read, worker), worker)
        self.put_back = Operation(traced(copies.put_back, rounds, all_copies), (rounds, all_copies))
        self.forget_copies = Operation(traced(copies.forget))


class WorkerOps:
    """Operations of one worker, in addition to the global ones.

    Args:
        worker: dense or sparse worker, with its slot on the ps.
        ps: the global variables.
        fed: placeholders of the inputs of `initialize`.
        batch_size: rows of a batch.
        counts: possible numbers of rounds in a call.
        sees_waiting: the ps knows which workers wait for which.
    """

    def __init__(self, worker: Any, ps: Any, fed: Any, batch_size: int, counts: set[int], sees_waiting: bool):
        slot, gate = worker.slot, ps.scheme.gate
        with tf.device(ps.devices[0]):
            recorded = tf.compat.v1.placeholder_with_default(True, [])
        with tf.device(worker.device):
            steps = tf.compat.v1.placeholder(tf.int64, [])
            set_clock = worker.clock.assign(steps).op if hasattr(worker, "clock") else tf.no_op()
        self.initialize = Operation(worker.initialize, fed)
        self.set_clock = Operation(set_clock, steps)
        self.join = Operation(traced(worker.start, recorded), recorded)
        self.refuse = Operation(traced(ps.refuse, slot))
        self.evict_absent = self.deregister = self.await_token = Operation(())
        if sees_waiting:
            self.evict_absent = Operation(traced(gate.evict, ps, slot))
            self.deregister = Operation(traced(gate.deregister, ps, slot))
            self.await_token = Operation(slot.sleep())
        with tf.device(worker.device):
            done, copy = tf.compat.v1.placeholder(tf.int64, []), tf.compat.v1.placeholder(tf.string, [])
        self.lay_down = Operation(traced(ps.copies.lay_down, slot, done, copy), (done, copy))
        self.stretch = Operation(traced(ps.copies.stretch_calls, slot, done), done)
        self.rounds: Mapping[tuple[Event, int], Operation] = {}
        for count in sorted(counts):
            rows = tf.compat.v1.placeholder(tf.int32, [count, None, batch_size])
            before = tf.compat.v1.placeholder(tf.int64, [2])
            for event in sorted(ps.scheme.events):
                self.rounds[event, count] = Operation(traced(worker.rounds, rows, event, before), (rows, before))
        local = worker.local()
        self.local = Operation(tf.nest.map_structure(lambda variable: variable.read_value(), local))
        with tf.device(worker.device):
            fed = tf.nest.map_structure(lambda v: tf.compat.v1.placeholder(v.dtype, v.shape), local)
            assigns = tf.nest.map_structure(lambda variable, value: variable.assign(value).op, local, fed)
        self.set_local = Operation(assigns, fed)
