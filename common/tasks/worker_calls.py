"""The calls of a worker: its requests to the parameter server, and its rounds. Each call has a time limit."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import WaitTimeout
from ..lazy import tf
from ..server.answers import LAST, NEVER, Joined
from ..server.failures import is_refusal
from ..server.trace import UNKNOWN
from ..waiting import absent, awake, wait_until
from .calls import Calls, Connect
from .graph import TaskGraph
from .job import CHIEF
from .local_layout import Layout, as_bytes, from_bytes, in_buckets, whole_vectors
from .requests import SLOW, LossRequests, StreamRequests, WorkerRequests, name_of_rounds

End = tuple[int, int]  # `computed` and `replied` of a round, see `server.trace`

NO_END: End = (UNKNOWN, UNKNOWN)

Before = tuple[int, int, int, int]  # rounds and local steps that a worker has done, and the `End` of its last round

NEW: Before = (0, 0, *NO_END)

UNLIMITED_MS = 10**10  # 0 would be the limit of the session

FIRST_INCARNATION = 2  # smaller numbers mean that a slot is free, or tell the condition of the state


class Done(NamedTuple):
    """The results of the rounds of one call, one element each."""

    losses: np.ndarray  # mean loss of each round
    steps: np.ndarray  # number of steps of each round that were not dropped
    end: End  # of the last round, in microseconds since 1970


class WorkerCalls(Calls, WorkerRequests, StreamRequests, LossRequests):
    """The calls of a worker. Each call carries the number of the worker and its incarnation.

    Attributes:
        longest: seconds of the longest call of rounds.
        listens: True if each call of rounds also reads the request of the chief for copies of local states.
        asked: the request that the last call has read; see `server.asked`.
        is_last: True if the run ends after that request.
        slack: factor on the limit of a call of rounds.
        script_state: the state of an optimizer of a script, which goes with the local state; see `launch.own_state`.
    """

    slack = 1

    script_state: Any = None

    def __init__(self, session: Any, graph: TaskGraph, index: int, wait_seconds: float, connect: Connect | None = None):
        self.index, self.sync = index, graph.sync
        self.longest, self.listens = 0.0, False
        self._heed(NEVER)
        super().__init__(session, graph, wait_seconds, connect)
        self.operations = graph.operations | graph.of_workers[index]
        self._incarnate(0)

    def _incarnate(self, number: int) -> None:
        """Take a new incarnation number, and feed it with each call from now on."""
        self.incarnation, (index, incarnation) = number, self.graph.identity
        self.identity = {index: self.index, incarnation: np.array([number, 1], np.int64)}

    def _use(self, session: Any) -> None:
        super()._use(session)
        self._callables: dict[tuple[str, int], Callable[..., Done]] = {}  # each made at its first use

    def prepare(self, data: Sequence[np.ndarray]) -> None:
        """Make the local variables; `data` are the arrays of this worker's shard."""
        self._prepare(list(data), list(self.graph.frozen))

    # Before and after the rounds.

    def join(self, recorded: bool = True) -> Joined:
        """Take the slot: messages of its former owner are refused, and the local variables start from the center.

        `recorded`: log the join in the trace, if the center has updates already. The join of all workers after the
        warm-up of worker 0 is part of the algorithm and is not logged.
        """
        # A new number even if the call fails: the ps may have executed it all the same.
        self._incarnate(secrets.randbits(62) + FIRST_INCARNATION)
        joined = self._join(recorded)
        self._heed(joined.asked)
        return joined

    @property
    def patience(self) -> float:
        """Seconds that this worker waits for others at a barrier."""
        return self.wait_seconds + 2 * self.longest

    def await_start(self) -> None:
        """Block until all workers have joined once: the chief polls, and then signals the others."""
        if self.index != CHIEF:
            return self._wait(self._await_start, lambda: absent(self.ready()))
        wait_until(lambda: bool(self.ready().all()), self.wait_seconds, lambda: absent(self.ready()))
        self.start()

    def await_shutdown(self, restoration: int) -> bool:
        """Block until the evaluator has the result; return False if the state was restored after this worker joined.

        Then the worker has rounds to repeat. `restoration` is the number of the state that it joined.
        """
        while True:
            try:
                if self._await_shutdown():
                    return True
                if self.restoration() != restoration:  # else the signal is from before this worker joined
                    return False
            except tf.errors.DeadlineExceededError:
                self.version()  # raises if the ps is lost

    def depart(self) -> None:
        """Report that this worker makes no further calls."""
        self._depart(self.index == CHIEF)

    def await_ps_end(self) -> bool:
        """Block until this task, a ps, may end; return False if the signal has not come within the limit of a call."""
        try:
            return self._await_ps_end()
        except tf.errors.DeadlineExceededError:
            return False

    # Copies of the local state; see `local_state`.

    def write_copy(self, rounds: int, keeps: bool = True) -> None:
        """Write a copy of the local state after `rounds` to the first ps or worker 0, empty unless `keeps`."""
        of_script = self.script_state.arrays() if keeps and self.script_state is not None else {}
        self._write_copy(rounds, as_bytes({**whole_vectors(self._local()), **of_script}) if keeps else b"")

    def restore_copy(self, layout: Layout) -> None:
        """Restore the local state from its copy, unless the chief has deleted the copies since this worker joined."""
        _, copy = self.copy_of(self.index)
        if copy:
            state = from_bytes(copy)
            self._set_local(in_buckets(layout.typed(state), self.local_places))
            if self.script_state is not None:
                self.script_state.restored(state)

    @property
    def local_places(self) -> dict[str, list[Any]]:
        """The placeholders of the local state, by name, in buckets."""
        return self.operations["_set_local"].inputs[0]

    def announce_rounds(self, rounds: int) -> None:
        """Announce calls of this number of rounds before the first of them."""
        self._heed(self._announce_rounds(rounds))

    def read_asked(self) -> int:
        """Read and return the present request of the chief."""
        self._heed(self._read_asked())
        return self.asked

    def _heed(self, request: int) -> None:
        """Note the present request of the chief."""
        self.is_last = request >= LAST
        self.asked = request - LAST if self.is_last else request

    # Rounds.

    def rounds(self, kind: str, batches: np.ndarray, before: Before = NEW) -> Done:
        """Run rounds in one call, which ends with its rounds: for the limit of the wait see `worker_recovery`.

        Args:
            kind: their kind.
            batches: rows of the shard, [rounds, steps, batch size].
            before: rounds and local steps that this worker has done, and the end of its last round.
        """
        options, began = tf.compat.v1.RunOptions(timeout_in_ms=UNLIMITED_MS), awake.now()
        try:
            return self._callable(kind, len(batches))(batches, before, options)
        finally:
            self.longest = max(self.longest, awake.now() - began)

    @property
    def limit(self) -> float:
        """Seconds that a call of rounds may take, after that of earlier calls.

        At a barrier the limit detects a lost worker. A call that waits for no other worker may be slow, so its limit
        is longer.
        """
        return (self.slack if self.sync.waits else SLOW) * self.patience

    def too_late(self) -> WaitTimeout:
        """Return the error for a call of rounds that has reached its limit; it names the missing tasks."""
        missing = self.missing() if self.graph.sees_waiting else ""
        missing = missing or ("the ps" if self.sync.uses_ps else "another worker")
        where = "at the barrier " if self.sync.waits else ""
        return WaitTimeout(f"worker {self.index} waited {self.limit:.0f} s {where}for {missing}")

    def _callable(self, kind: str, count: int) -> Callable[..., Done]:
        """Return a function that runs `count` rounds, given the batches, the counts before them, and run options."""
        if (kind, count) in self._callables:
            return self._callables[kind, count]
        fetches, inputs = self.operations[name_of_rounds(kind, count)]
        request = [self.operations["_read_asked"].fetches] if self.listens else []  # read in parallel with the rounds
        feeds = [*inputs, *self.graph.identity]
        run = self.session.make_callable([*fetches, *request], feeds, accept_options=True)

        def call(batches: np.ndarray, before: Before, options: Any) -> Done:
            fed = batches, np.array(before, np.int64), *self.identity.values()
            results, end, *request = run(*fed, options=options)
            self._heed(int(request[0]) if request else NEVER)
            return Done(results[:, 0], results[:, 1], tuple(end.tolist()))

        self._callables[kind, count] = call
        return call

    def refuse(self) -> bool:
        """Drop a message that was not finite, and count its round as done; return False if this slot was taken over."""
        try:
            self._refuse()
        except tf.errors.InvalidArgumentError as error:
            if not is_refusal(error):
                raise
            return False
        return True

    def is_owner(self) -> bool:
        """Return True if this incarnation still has the slot, and the state is clean."""
        incarnations = self.incarnations()
        return incarnations[self.index] == self.incarnation and incarnations[-1] == 1

    def missing(self) -> str:
        """Return the names of the workers that this worker and the others wait for."""
        awaited = self.awaited()
        awaited[self.index] = False
        return absent(~awaited)
