"""What tasks ask of the global variables, a facade for each role: typed methods, each a call with an end.

A call raises TensorFlow's errors as they are (`engine.failures` tells what they mean); one that waits for somebody
raises `WaitTimeout` with who is missing. W is the number of workers, P that of parameters, S the length of the model's
non-trainable state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..errors import WaitTimeout
from ..lazy import tf
from .feeds import whole_of
from .graph import TaskGraph
from .job import CHIEF
from .operations import Operation

STATE_WAITS = 2  # times the limit of a wait, to read all of the state

END_SECONDS = 0.5  # for the ps tasks to hear that the run has ended

Connect = Callable[[float], Any]  # makes a session, given the seconds that it may take


class Roll(NamedTuple):
    """Where the workers are, [W] booleans each."""

    finished: np.ndarray  # it has done all its rounds
    active: np.ndarray  # it is counted on


class Calls:
    """What tasks of all roles ask.

    Args:
        session: where the graph runs.
        graph: of this task.
        wait_seconds: the limit of a call.
        connect: makes a new session; none in a process that has only one.
    """

    def __init__(self, session: Any, graph: TaskGraph, wait_seconds: float, connect: Connect | None = None):
        self.graph, self.ops = graph, graph.ops
        self.connect = connect or (lambda seconds: session)
        self.wait_seconds = wait_seconds
        self.identity: dict[Any, Any] = {}  # fed with each call: who calls
        self._use(session)

    def _use(self, session: Any) -> None:
        self.session = session

    def reconnect(self, seconds: float) -> None:
        """Go on in a new session; raises `WaitTimeout` if there is none after `seconds`."""
        self._use(self.connect(seconds))

    def _run(self, operation: Operation, *values: Any, seconds: float | None = None) -> Any:
        """What the operation fetches, given the values of its inputs."""
        inputs = zip(tf.nest.flatten(operation.inputs), tf.nest.flatten(values), strict=True)
        seconds = self.wait_seconds if seconds is None else seconds
        options = tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * seconds))
        found = self.session.run(tf.nest.flatten(operation.fetches), self.identity | dict(inputs), options=options)
        return tf.nest.pack_sequence_as(operation.fetches, found)

    def _wait(self, operation: Operation, missing: Callable[[], str]) -> None:
        """Run an operation that waits for others."""
        try:
            self._run(operation)
        except tf.errors.DeadlineExceededError:
            raise WaitTimeout(f"waited {self.wait_seconds:g} s for {missing()}") from None

    def await_state(self) -> None:
        """Wait until the chief has made, adopted or restored the state."""
        self._wait(self.ops.await_state, lambda: f"the chief, worker {CHIEF}")

    def version(self) -> int:
        """Updates in the center."""
        return int(self._run(self.ops.version))

    def recorded(self) -> int:
        """Events that the evaluator has not taken over."""
        return int(self._run(self.ops.recorded))

    def recorded_rounds(self) -> np.ndarray:
        """Rounds of each worker that are on record, [W]."""
        return self._run(self.ops.folded)

    def acknowledged(self) -> int:
        """Events that the evaluator has on record."""
        return int(self._run(self.ops.acknowledged))

    def copy_of(self, worker: int) -> tuple[int, bytes]:
        """After how many rounds that worker has laid down a copy of its local state, and the copy."""
        rounds, copy = self._run(self.ops.read_copy, worker, seconds=STATE_WAITS * self.wait_seconds)
        return int(rounds), copy

    def roll(self) -> Roll:
        """Who has done all rounds, and who is counted on, at one moment."""
        return Roll(*self._run(self.ops.roll))


class Drained(NamedTuple):
    """The part of the trace that the evaluator has not acknowledged."""

    events: np.ndarray  # [n, len(RECORD)]
    before: int  # events that it has acknowledged
    restoration: int  # of the state, which ...
    length: int  # ... the record began with this number of events


class ObserverCalls(Calls):
    """What the evaluator asks, which is a client of the first ps."""

    def present(self) -> int:
        """How many workers are counted on, or have finished."""
        return int(self._run(self.ops.present))

    def evict(self, worker: int) -> None:
        """Count on that worker no more; it is refused until it joins again."""
        self._run(self.ops.evict, worker)

    def stop(self) -> None:
        """End the run early: all workers are refused, ask why, and leave."""
        self._run(self.ops.stop)
        self._run(self.ops.wake)

    def snapshot(self) -> dict[str, np.ndarray]:
        """At one moment: the version (`at`), `center` [P], its `average` if there is one, `state` [S].

        With it comes how many messages of each worker were `refused`, [W].
        """
        found = self._run(self.ops.snapshot)
        vectors = {name: whole_of(parts) for name, parts in found.pop("vectors").items()}
        return found | (self._in_pieces() if self.ops.pieces else vectors)

    def _in_pieces(self) -> dict[str, np.ndarray]:
        """The vectors of a large center, which never is there twice."""
        vectors, end = {}, 0
        for operation in self.ops.pieces:
            piece = self._run(operation)
            begin, end = end, end + len(piece["center"])
            for name, values in piece.items():
                vectors.setdefault(name, np.empty(self.graph.model.size, np.float32))[begin:end] = values
        self._run(self.ops.forget_look)
        return vectors

    def snapshots(self) -> dict[str, np.ndarray]:
        """Return the snapshots that the ps has taken; see `engine.snapshots.SnapshotBuffer.read`."""
        return self._run(self.ops.snapshots)

    def drain(self) -> Drained:
        """The part of the trace that is new."""
        new = self._run(self.ops.drain)
        return Drained(new["events"], int(new["before"]), *(int(n) for n in new["restored"]))

    def acknowledge(self, restoration: int, events: int) -> None:
        """`events` of the trace are safe, if the state is still that of this `restoration`."""
        self._run(self.ops.acknowledge, restoration, events)

    def shut_down(self) -> int:
        """The result is safe: all workers may leave; returns how many are present."""
        present, _ = self._run(self.ops.shut_down)
        return int(present)

    def departed(self) -> tuple[int, bool]:
        """How many workers have left, and if the chief is one of them."""
        departed, chief = self._run(self.ops.departed)
        return int(departed), bool(chief)

    def end_ps(self) -> None:
        """The run has ended: the ps tasks may go, perhaps before they have answered."""
        with contextlib.suppress(tf.errors.OpError):
            self._run(self.ops.end_ps, seconds=END_SECONDS)
