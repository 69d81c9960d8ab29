"""Operations on the global variables, as typed methods of a facade for each role. Each call has a time limit.

A call raises TensorFlow's errors as they are (`server.failures` classifies them); a call that waits for other tasks
raises `WaitTimeout`, which names the missing ones. W is the number of workers, P that of parameters, S the length of
the model's non-trainable state.
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

END_SECONDS = 0.5  # limit of the call that ends the ps tasks

Connect = Callable[[float], Any]  # makes a session, given the seconds that it may take


class Roll(NamedTuple):
    """The status of the workers, [W] booleans each."""

    finished: np.ndarray  # the worker has done all its rounds
    active: np.ndarray  # the worker is in the active set


class Calls:
    """The calls that tasks of all roles make.

    Args:
        session: the session that runs the graph.
        graph: the graph of this task.
        wait_seconds: limit of a call.
        connect: makes a new session; None in a process that has only one.
    """

    def __init__(self, session: Any, graph: TaskGraph, wait_seconds: float, connect: Connect | None = None):
        self.graph, self.ops = graph, graph.ops
        self.connect = connect or (lambda seconds: session)
        self.wait_seconds = wait_seconds
        self.identity: dict[Any, Any] = {}  # number and incarnation of the calling worker, fed with each call
        self._use(session)

    def _use(self, session: Any) -> None:
        self.session = session

    def reconnect(self, seconds: float) -> None:
        """Replace the session by a new one; raises `WaitTimeout` if that fails for `seconds`."""
        self._use(self.connect(seconds))

    def _run(self, operation: Operation, *values: Any, seconds: float | None = None) -> Any:
        """Run an operation, given the values of its inputs, and return what it fetches."""
        inputs = zip(tf.nest.flatten(operation.inputs), tf.nest.flatten(values), strict=True)
        seconds = self.wait_seconds if seconds is None else seconds
        options = tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * seconds))
        found = self.session.run(tf.nest.flatten(operation.fetches), self.identity | dict(inputs), options=options)
        return tf.nest.pack_sequence_as(operation.fetches, found)

    def _wait(self, operation: Operation, missing: Callable[[], str]) -> None:
        """Run an operation that waits for other tasks."""
        try:
            self._run(operation)
        except tf.errors.DeadlineExceededError:
            raise WaitTimeout(f"waited {self.wait_seconds:g} s for {missing()}") from None

    def await_state(self) -> None:
        """Block until the chief has initialized, adopted or restored the state."""
        self._wait(self.ops.await_state, lambda: f"the chief, worker {CHIEF}")

    def version(self) -> int:
        """Return the number of updates in the center."""
        return int(self._run(self.ops.version))

    def recorded(self) -> int:
        """Return the number of events that the evaluator has not taken over yet."""
        return int(self._run(self.ops.recorded))

    def recorded_rounds(self) -> np.ndarray:
        """Return the number of logged rounds of each worker, [W]."""
        return self._run(self.ops.folded)

    def acknowledged(self) -> int:
        """Return the number of events that the evaluator has written to disk."""
        return int(self._run(self.ops.acknowledged))

    def copy_of(self, worker: int) -> tuple[int, bytes]:
        """Return the newest copy of that worker's local state, after the number of rounds at which it was taken."""
        rounds, copy = self._run(self.ops.read_copy, worker, seconds=STATE_WAITS * self.wait_seconds)
        return int(rounds), copy

    def roll(self) -> Roll:
        """Return which workers have finished, and which are active, read atomically."""
        return Roll(*self._run(self.ops.roll))


class Drained(NamedTuple):
    """The part of the trace that the evaluator has not acknowledged."""

    events: np.ndarray  # [n, len(RECORD)]
    before: int  # number of acknowledged events
    restoration: int  # number of the last restoration of the state ...
    length: int  # ... and of events in the trace at that time


class ObserverCalls(Calls):
    """The calls of the evaluator, which is a client of the first ps."""

    def present(self) -> int:
        """Return the number of workers that are active or have finished."""
        return int(self._run(self.ops.present))

    def evict(self, worker: int) -> None:
        """Remove that worker from the active set; its messages are refused until it joins again."""
        self._run(self.ops.evict, worker)

    def stop(self) -> None:
        """End the run early: the ps refuses all messages, and the workers then ask for the reason and leave."""
        self._run(self.ops.stop)
        self._run(self.ops.wake)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return an atomic snapshot: the version (`at`), `center` [P], its `average` if it has one, `state` [S].

        It also has the number of messages of each worker that were `refused`, [W].
        """
        found = self._run(self.ops.snapshot)
        vectors = {name: whole_of(parts) for name, parts in found.pop("vectors").items()}
        return found | (self._in_pieces() if self.ops.pieces else vectors)

    def _in_pieces(self) -> dict[str, np.ndarray]:
        """Return the vectors of a large center, fetched in pieces so that no second whole copy is in memory."""
        vectors, end = {}, 0
        for operation in self.ops.pieces:
            piece = self._run(operation)
            begin, end = end, end + len(piece["center"])
            for name, values in piece.items():
                vectors.setdefault(name, np.empty(self.graph.model.size, np.float32))[begin:end] = values
        self._run(self.ops.forget_look)
        return vectors

    def snapshots(self) -> dict[str, np.ndarray]:
        """Return the snapshots that the ps has taken; see `server.snapshots.SnapshotBuffer.read`."""
        return self._run(self.ops.snapshots)

    def drain(self) -> Drained:
        """Return the new part of the trace."""
        new = self._run(self.ops.drain)
        return Drained(new["events"], int(new["before"]), *(int(n) for n in new["restored"]))

    def acknowledge(self, restoration: int, events: int) -> None:
        """Report that `events` of the trace are on disk; no effect if the state was restored after `restoration`."""
        self._run(self.ops.acknowledge, restoration, events)

    def shut_down(self) -> int:
        """Let all workers leave, as the result is on disk; return the number of present ones."""
        present, _ = self._run(self.ops.shut_down)
        return int(present)

    def departed(self) -> tuple[int, bool]:
        """Return the number of workers that have left, and True if the chief is one of them."""
        departed, chief = self._run(self.ops.departed)
        return int(departed), bool(chief)

    def end_ps(self) -> None:
        """End the ps tasks, which may exit before they answer."""
        with contextlib.suppress(tf.errors.OpError):
            self._run(self.ops.end_ps, seconds=END_SECONDS)
