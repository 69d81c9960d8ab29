"""What tasks ask of the global variables, a facade for each role: typed methods, each a call with an end.

A call raises TensorFlow's errors as they are (`engine.failures` tells what they mean); one that waits for somebody
raises `WaitTimeout` with who is missing. W is the number of workers, P that of parameters, S the length of the model's
non-trainable state.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..contract.cut import COPIES
from ..contract.message import SCALARS, cut_off
from ..engine.asked import NONE
from ..engine.failures import is_refusal
from ..errors import WaitTimeout
from ..record.slices import whole
from .feeds import feed_of, whole_of
from .graph import TaskGraph
from .job import CHIEF
from .operations import Operation

STATE_WAITS = 2  # times the limit of a wait, to read all of the state

END_SECONDS = 0.5  # for the ps tasks to hear that the run has ended

Connect = Callable[[float], Any]  # makes a session, given the seconds that it may take

Copies = Mapping[int, tuple[int, bytes]]  # of the local states of workers: after how many rounds, and the copy


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
        import tensorflow as tf

        inputs = zip(tf.nest.flatten(operation.inputs), tf.nest.flatten(values), strict=True)
        seconds = self.wait_seconds if seconds is None else seconds
        options = tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * seconds))
        found = self.session.run(tf.nest.flatten(operation.fetches), self.identity | dict(inputs), options=options)
        return tf.nest.pack_sequence_as(operation.fetches, found)

    def _wait(self, operation: Operation, missing: Callable[[], str]) -> None:
        """Run an operation that waits for others."""
        import tensorflow as tf

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


class StateCalls(Calls):
    """What the chief's state manager asks."""

    def alive(self) -> np.ndarray:
        """For each ps task, True if its variables have values."""
        return self._run(self.ops.alive)

    def is_clean(self) -> bool:
        """True unless an event was cut in the middle, or a restoration is under way."""
        try:
            self._run(self.ops.clean)
        except Exception as error:
            if is_refusal(error):
                return False
            raise
        return True

    def initialize(self, restoration: int) -> None:
        """Make the global variables from the initial model; this beginning has the number `restoration`."""
        center, state = self.graph.initial
        self._run(
            self.ops.initialize, feed_of(self.ops.initialize.inputs[0], center), state, np.array([restoration, 0])
        )

    def announce(self) -> None:
        """Tell the workers that the state is there."""
        self._run(self.ops.announce_state)

    def values(self) -> dict[str, Any]:
        """All that a checkpoint keeps, at one moment, by name: arrays, or `Slices` of them."""
        found = self._run(self.ops.values, seconds=STATE_WAITS * self.wait_seconds)
        values = {name: whole_of([part]) for name, part in found.items()}
        return whole(cut_off(values, self._messages, self._scalars))

    @property
    def variables(self) -> frozenset[str]:
        """The names in `values`."""
        return frozenset([*self.ops.new_values, *(name + SCALARS for name in self._messages)])

    @property
    def _scalars(self) -> int:
        return len(self.graph.scalars)

    @property
    def _messages(self) -> list[str]:
        """Names of what has scalars at the end of each slice: sums of messages at a gate."""
        places, number = self.ops.new_values, self._scalars
        long = [places["center"][0].shape[0] + number]
        vectors = (name for name in places if number and not name.startswith(COPIES))
        return [name for name in vectors if places[name][0].shape == long]

    def ask(self, meeting: int) -> None:
        """Ask all workers for a copy of their local states at that meeting; see `engine.local_copies`."""
        self._run(self.ops.ask, meeting)

    def copied_rounds(self) -> np.ndarray:
        """After how many rounds each worker has laid down a copy, [W]."""
        return self._run(self.ops.copied_rounds)

    def forget_copies(self, flags: np.ndarray) -> None:
        """The copies of the workers in `flags` [W] are not needed any more."""
        self._run(self.ops.forget_copies, flags)

    def _put_back(self, copies: Copies) -> None:
        all_of_them = [copies.get(worker, (NONE, b"")) for worker in range(self.ops.put_back.inputs[0].shape[0])]
        rounds, parts = zip(*all_of_them, strict=True)
        self._run(self.ops.put_back, np.array(rounds), np.array(parts, object))
        self.ask(NONE)

    def restore(self, arrays: Mapping[str, Any], restoration: int, events: int, copies: Copies | None = None) -> None:
        """Put other values in the place of all of it, in steps.

        Nobody is admitted from the first step on. Whoever waits for others is woken, and joins after the last one.

        Args:
            arrays: as `values` returns them.
            restoration: the number of this one.
            events: how many were on record then.
            copies: of the local states of workers.
        """
        self._run(self.ops.shut)
        for forget, alive in zip(self.ops.forget_milestones, self.alive(), strict=False):
            if not alive:
                self._run(forget)
        places = self.ops.new_values
        parts = {
            name: _copied(here, arrays[name])
            if name.startswith(COPIES)
            else feed_of(here, arrays[name], arrays.get(name + SCALARS, ()))
            for name, here in places.items()
        }
        self._run(self.ops.restore, parts, np.array([restoration, events]))
        self._put_back(copies or {})
        self._run(self.ops.call_back)
        self._run(self.ops.open)


class Drained(NamedTuple):
    """The part of the trace that the evaluator has not acknowledged."""

    events: np.ndarray  # [n, len(RECORD)]
    before: int  # events that it has acknowledged
    restoration: int  # of the state, which ...
    length: int  # ... the record began with this number of events


class ObserverCalls(Calls):
    """What the evaluator asks, which is a client of the first ps."""

    _looking = threading.Lock()

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
        with self._looking:
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

    def milestones(self) -> dict[str, np.ndarray]:
        """The centers that were set aside; see `engine.milestones.Milestones.read`."""
        return self._run(self.ops.milestones)

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
        import tensorflow as tf

        with contextlib.suppress(tf.errors.OpError):
            self._run(self.ops.end_ps, seconds=END_SECONDS)


def _copied(places: Sequence[Any], array: Any) -> list[np.ndarray]:
    """The same array for the place of each slice."""
    from ..engine.transport import fed

    return [fed(place, array) for place in places]
