"""The calls of a worker: operations on the global variables, and its rounds. Each call has a time limit."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..contract.rounds import Event
from ..errors import WaitTimeout
from ..lazy import tf
from ..server.asked import NEVER
from ..server.failures import is_refusal
from ..waiting import absent, wait_until
from .calls import Connect
from .graph import TaskGraph
from .job import CHIEF
from .local_calls import SLOW, LocalCalls

FIRST_INCARNATION = 2  # smaller numbers mean that a slot is free, or tell the condition of the state


class Joined(NamedTuple):
    """The answer that a worker receives when it joins."""

    rounds: int  # logged rounds of its slot
    waits: bool  # the message of the last round is in a set that is not complete yet
    restoration: int  # number of this initialization or restoration of the state
    stopping: bool  # the run ends now
    copied: bool  # a copy of its local state after these rounds exists
    version: int  # updates in the center


class Done(NamedTuple):
    """The results of the rounds of one call, one element each."""

    losses: np.ndarray  # mean loss of each round
    steps: np.ndarray  # number of steps of each round that count
    stamps: np.ndarray  # times of the begin, the finished message and the reply: seconds since 1970, [3, rounds]


class WorkerCalls(LocalCalls):
    """The calls of a worker. Each call carries the number of the worker and its incarnation."""

    def __init__(self, session: Any, graph: TaskGraph, index: int, wait_seconds: float, connect: Connect | None = None):
        self.coordination = graph.coordination
        self.longest = 0.0  # seconds of the longest call of rounds
        super().__init__(session, graph, index, wait_seconds, connect)
        self._incarnate(0)

    def _incarnate(self, number: int) -> None:
        self.incarnation = number
        self.identity = {self.ops.index: self.index, self.ops.incarnation: np.array([number, 1], np.int64)}

    def _use(self, session: Any) -> None:
        super()._use(session)
        self._callables: dict[tuple[Event, int], Callable[..., Done]] = {}  # each made at its first use

    def initialize(self, data: Sequence[np.ndarray]) -> None:
        """Make the local variables; `data` are the arrays of this worker's shard."""
        self._run(self.mine.initialize, list(data), list(self.graph.frozen))

    # Before and after the rounds.

    def join(self, recorded: bool = True) -> Joined:
        """Take the slot: messages of its former owner are refused, and the local variables start from the center.

        `recorded`: log the join in the trace, if the center has updates already. The join of all workers after the
        warm-up of worker 0 is part of the algorithm and is not logged.
        """
        # A new number even if the call fails: the ps may have executed it all the same.
        self._incarnate(secrets.randbits(62) + FIRST_INCARNATION)
        joined = self._run(self.mine.join, recorded)
        self.asked = int(joined["asked"])
        told = ("folded", "waits", "restored", "stopping", "copied", "version")
        return Joined(*(joined[name].item() for name in told))

    def set_clock(self, steps: int) -> None:
        """Set the clock of learning-rate schedules to this number of local `steps`."""
        self._run(self.mine.set_clock, steps)

    @property
    def patience(self) -> float:
        """Seconds that this worker waits for others at a barrier."""
        return self.wait_seconds + 2 * self.longest

    def await_start(self) -> None:
        """Block until all workers have joined once: the chief polls, and then signals the others."""
        if self.index != CHIEF:
            return self._wait(self.ops.await_start, lambda: absent(self._ready()))
        wait_until(lambda: bool(self._ready().all()), self.wait_seconds, lambda: absent(self._ready()))
        self._run(self.ops.start)

    def _ready(self) -> np.ndarray:
        return self._run(self.ops.ready)

    def set_finished(self) -> None:
        """Mark this worker as finished: it has done all its rounds."""
        self._run(self.ops.set_finished)

    def await_shutdown(self, restoration: int) -> bool:
        """Block until the evaluator has the result; return False if the state was restored after this worker joined.

        Then the worker has rounds to repeat. `restoration` is the number of the state that it joined.
        """
        while True:
            try:
                if self._run(self.ops.await_shutdown):
                    return True
                if self._run(self.ops.restoration) != restoration:  # else the signal is from before this worker joined
                    return False
            except tf.errors.DeadlineExceededError:
                self.version()  # raises if the ps is lost

    def depart(self) -> None:
        """Report that this worker makes no further calls."""
        self._run(self.ops.chief_departs if self.index == CHIEF else self.ops.depart)

    def await_ps_end(self, seconds: float) -> bool:
        """Block until this task, a ps, may end; return False if the signal has not come after `seconds`."""
        try:
            self._run(self.ops.await_ps_end, seconds=seconds)
        except tf.errors.DeadlineExceededError:
            return False
        return True

    # Rounds.

    def rounds(self, event: Event, batches: np.ndarray, before: tuple[int, int] = (0, 0), limited: bool = True) -> Done:
        """Run rounds in one call.

        Args:
            event: the event that ends each of them.
            batches: rows of the shard, [rounds, steps, batch size].
            before: rounds and local steps that this worker has done.
            limited: limit the call to the time that earlier calls took, and a wait. If not, see `barrier_wait`.

        Raises:
            WaitTimeout: the limit has passed; the message names the missing tasks.
        """
        # At a barrier the limit detects a lost worker. A call that waits for no other worker may be slow, so its limit
        # is longer.
        seconds = (1 if self.coordination.waits else SLOW) * self.patience
        options = tf.compat.v1.RunOptions(timeout_in_ms=round(1000 * seconds) if limited else 0)
        began = time.monotonic()
        try:
            return self._callable(event, len(batches))(batches, before, options)
        except tf.errors.DeadlineExceededError:
            missing = (self.missing() if self.coordination.sees_waiting else "") or self._other()
            where = "at the barrier " if self.coordination.waits else ""
            raise WaitTimeout(f"worker {self.index} waited {seconds:.0f} s {where}for {missing}") from None
        finally:
            self.longest = max(self.longest, time.monotonic() - began)

    def _callable(self, event: Event, count: int) -> Callable[..., Done]:
        """Return a function that runs `count` rounds, given the batches, the counts before them, and run options."""
        if (event, count) in self._callables:
            return self._callables[event, count]
        fetches, inputs = self.mine.rounds[event, count]
        asked = [self.ops.asked.fetches] if self.listens else []  # read in parallel with the rounds
        feeds = [*inputs, self.ops.index, self.ops.incarnation]
        run = self.session.make_callable([*fetches, *asked], feeds, accept_options=True)

        def call(batches: np.ndarray, before: tuple[int, int], options: Any) -> Done:
            results, stamps, *asked = run(batches, np.array(before, np.int64), *self.identity.values(), options=options)
            self.asked = int(asked[0]) if asked else NEVER
            return Done(results[:, 0], results[:, 1], stamps.T)

        self._callables[event, count] = call
        return call

    def _other(self) -> str:
        return "the ps" if self.coordination.uses_ps else "another worker"

    def refuse(self) -> bool:
        """Drop a message that was not finite, and count its round as done; return False if this slot was taken over."""
        try:
            self._run(self.mine.refuse)
        except tf.errors.InvalidArgumentError as error:
            if not is_refusal(error):
                raise
            return False
        return True

    def is_owner(self) -> bool:
        """Return True if this incarnation still has the slot, and the state is clean."""
        incarnations = self._run(self.ops.incarnations)
        return incarnations[self.index] == self.incarnation and incarnations[-1] == 1

    def stopping(self) -> bool:
        """Return True if workers shall leave: the run is being stopped, or its last update has been made."""
        return bool(self._run(self.ops.stopping))

    # The gate, where `coordination.sees_waiting`.

    def arrived(self) -> np.ndarray:
        """Return which workers wait at the gate, [W] booleans."""
        return self._run(self.ops.arrived)

    def awaited(self) -> np.ndarray:
        """Return which workers the others wait for, [W] booleans."""
        return self._run(self.ops.awaited)

    def missing(self) -> str:
        """Return the names of the workers that this worker and the others wait for."""
        awaited = self.awaited()
        awaited[self.index] = False
        return absent(~awaited)

    def await_token(self) -> None:
        """Block until the gate releases the last message of this slot."""
        self._run(self.mine.await_token)

    def evict_absent(self) -> np.ndarray:
        """Evict the workers that this worker waits for, if enough are left; return which were evicted, [W] booleans."""
        return self._run(self.mine.evict_absent)

    def deregister(self) -> None:
        """Leave the gate: this worker has done all its rounds, and the others need not wait for it."""
        self._run(self.mine.deregister)
