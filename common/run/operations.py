"""All that a session of a run ever runs or feeds, each with a name that a type checker knows.

The graph builds these once; the facades of `calls` run them. Nobody else uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..contract.rounds import Event


class Operation(NamedTuple):
    """What a session runs: `fetches`, given values for the placeholders in `inputs`; both may be nested."""

    fetches: Any
    inputs: Any = ()


def traced(build: Any, *arguments: Any) -> Any:
    """What `build` makes, as one function of the graph: it runs in the order in which it is written."""
    import tensorflow as tf

    return tf.function(build, autograph=False)(*arguments)


class GlobalOps:
    """What is done to the global variables, by whoever it is.

    Args:
        ps: the `ParameterServer` of the graph.
        sees_waiting: it can be seen on the ps who waits for whom.
    """

    def __init__(self, ps: Any, sees_waiting: bool):
        import tensorflow as tf

        from ..engine.ops import turnstile

        with tf.device(ps.devices[0]):
            # Which worker calls is fed with every call: as a constant of each worker's own graph it would mean that
            # no worker can use another's.
            self.index = tf.compat.v1.placeholder_with_default(-1, [], name="index")
            evict = tf.group(*ps.close_slots(tf.equal(tf.range(ps.num_workers), self.index)))
            set_finished = tf.raw_ops.ResourceScatterUpdate(
                resource=ps.finished.handle, indices=self.index, updates=True
            )
            of_restoration, events = (tf.compat.v1.placeholder(tf.int64, []) for _ in range(2))
        self.incarnation = ps.passport

        # What several of them look at.
        self.version = Operation(ps.read_version())
        self.ready = Operation(ps.ready.read_value())
        self.roll = Operation((ps.finished.read_value(), ps.active.read_value()))
        self.folded = Operation(ps.folded.read_value())
        self.stopping = Operation(ps.is_ending())
        self.recorded = Operation(ps.records.size())
        self.restoration = Operation(ps.restored[0])
        self.incarnations = Operation(traced(ps.standing))
        gate = ps.scheme.gate
        self.arrived = Operation(gate.arrived(ps) if sees_waiting else ())
        self.awaited = Operation(gate.awaited(ps) if sees_waiting else ())

        # The life of a run, from one signal to the next.
        self.announce_state = Operation(ps.initialized.enqueue(True))
        self.await_state = Operation(turnstile(ps.initialized))
        self.start = Operation(ps.go.enqueue(True))
        self.await_start = Operation(turnstile(ps.go))
        self.set_finished = Operation(set_finished)
        present = ps.count(ps.active | ps.finished)
        self.shut_down = Operation((present, ps.over.enqueue_many([tf.ones([ps.num_workers], tf.bool)])))
        self.await_shutdown = Operation(ps.over.dequeue())
        self.depart = Operation(ps.left.enqueue(True))
        self.chief_departs = Operation(tf.group(ps.left.enqueue(True), ps.chief_left.enqueue(True)))
        self.departed = Operation((ps.left.size(), ps.chief_left.size()))
        self.end_ps = Operation(tf.group(*(queue.enqueue(True) for queue in ps.ends)))
        self.await_ps_end = Operation(ps.ends[0].dequeue())

        # What the evaluator does.
        self.present = Operation(present)
        self.evict = Operation(evict, self.index)
        self.stop = Operation(traced(ps.stop))
        self.wake = Operation(traced(ps.wake_all))
        self.snapshot = Operation({**traced(ps.snapshot), "refused": ps.refused.read_value()})
        self.drain = Operation(traced(ps.drain))
        self.acknowledge = Operation(traced(ps.confirm, of_restoration, events), (of_restoration, events))

        # What the chief does to keep the state.
        restoring = ps.restoring()
        self.new_values = _by_variable({name: op for name, op in restoring.items() if name.startswith("new/")})
        self.alive = Operation(restoring["alive"])
        self.clean = Operation(traced(ps.whole))
        self.acknowledged = Operation(ps.drained.read_value())
        self.initialize = Operation(ps.initialize, (ps.initial_center, ps.initial_state, ps.restoration))
        self.values = Operation(traced(ps.values))
        self.shut = Operation(restoring["shut"])
        self.restore = Operation(restoring["restore"], (self.new_values, ps.restoration))
        self.call_back = Operation(restoring["recall"])
        self.open = Operation(restoring["open"])


class WorkerOps:
    """What one worker does besides.

    Args:
        worker: dense or sparse, with its slot on the ps.
        ps: the global variables.
        fed: placeholders of what `initialize` is given.
        batch_size: rows of a batch.
        counts: how many rounds a call may hold.
        sees_waiting: it can be seen on the ps who waits for whom.
    """

    def __init__(self, worker: Any, ps: Any, fed: Any, batch_size: int, counts: set[int], sees_waiting: bool):
        import tensorflow as tf

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
        self.rounds: Mapping[tuple[Event, int], Operation] = {}
        for count in sorted(counts):
            rows = tf.compat.v1.placeholder(tf.int32, [count, None, batch_size])
            for event in sorted(ps.scheme.events):
                self.rounds[event, count] = Operation(traced(worker.rounds, rows, event), rows)


def _by_variable(operations: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Operations on slices, `prefix/name/0`, `prefix/name/1`, ..., by the name of the variable."""
    found: dict[str, list[Any]] = {}
    for key, operation in operations.items():
        found.setdefault(key.split("/")[1], []).append(operation)
    return found
