"""What a worker asks of the global variables, and its rounds: each is a call with an end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..contract.rounds import Event
from ..engine.asked import NEVER
from ..engine.failures import is_refusal
from ..errors import WaitTimeout
from ..lazy import tf
from ..waiting import absent, wait_until
from .calls import Connect
from .graph import TaskGraph
from .job import CHIEF
from .local_calls import SLOW, LocalCalls

FIRST_INCARNATION = 2  # smaller numbers say that a slot is nobody's, or how the state is


class Joined(NamedTuple):
    """What a worker is told when it joins."""

    rounds: int  # of its slot that are on record
    waits: bool  # the message of the last one is in a set that is not complete yet
    restoration: int  # which beginning or restoration of the state this is
    stopping: bool  # the run is to end now
    copied: bool  # there is a copy of its local state after these rounds
    version: int  # updates in the center


class Done(NamedTuple):
    """What rounds of one call have come to, one element each."""

    losses: np.ndarray  # their mean losses
    steps: np.ndarray  # how many of their steps count
    stamps: np.ndarray  # when each has begun, had its message ready, had its reply: seconds since 1970, [3, rounds]


class WorkerCalls(LocalCalls):
    """What a worker asks. Each call says which worker it is, and in which of its incarnations."""

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
        self._callables: dict[tuple[Event, int], Callable[..., Done]] = {}  # made when they are used

    def initialize(self, data: Sequence[np.ndarray]) -> None:
        """Make the local variables; `data` are the arrays of this worker's shard."""
        self._run(self.mine.initialize, list(data), list(self.graph.frozen))

    # Before and after the rounds.

    def join(self, recorded: bool = True) -> Joined:
        """Take the slot: messages of its former owner are refused, and the local variables start from the center.

        `recorded`: whether the trace tells it, if there have been updates already. A join that all workers make, after
        worker 0 has warmed up, is part of the rule and not of the trace.
        """
        self._incarnate(secrets.randbits(62) + FIRST_INCARNATION)  # also if this fails: it may have been heard
        joined = self._run(self.mine.join, recorded)
        self.asked = int(joined["asked"])
        told = ("folded", "waits", "restored", "stopping", "copied", "version")
        return Joined(*(joined[name].item() for name in told))

    def set_clock(self, steps: int) -> None:
        """Learning-rate schedules go on after this number of local `steps`."""
        self._run(self.mine.set_clock, steps)

    @property
    def patience(self) -> float:
        """Seconds that this worker waits for others where all meet."""
        return self.wait_seconds + 2 * self.longest

    def await_start(self) -> None:
        """Wait until all have joined once: the chief looks, and says so to the others."""
        if self.index != CHIEF:
            return self._wait(self.ops.await_start, lambda: absent(self._ready()))
        wait_until(lambda: bool(self._ready().all()), self.wait_seconds, lambda: absent(self._ready()))
        self._run(self.ops.start)

    def _ready(self) -> np.ndarray:
        return self._run(self.ops.ready)

    def set_finished(self) -> None:
        """This worker has done all its rounds."""
        self._run(self.ops.set_finished)

    def await_shutdown(self, restoration: int) -> bool:
        """Wait until the evaluator has the result; False if the state joined as `restoration` is not the present one.

        Then there is more to do.
        """
        while True:
            try:
                if self._run(self.ops.await_shutdown):
                    return True
                if self._run(self.ops.restoration) != restoration:  # else the signal is from before this worker joined
                    return False
            except tf.errors.DeadlineExceededError:
                self.version()  # is the ps still there?

    def depart(self) -> None:
        """This worker asks for nothing any more."""
        self._run(self.ops.chief_departs if self.index == CHIEF else self.ops.depart)

    def await_ps_end(self, seconds: float) -> bool:
        """Wait for the end of the ps, which this task is itself; False if it has not come in that time."""
        try:
            self._run(self.ops.await_ps_end, seconds=seconds)
        except tf.errors.DeadlineExceededError:
            return False
        return True

    # Rounds.

    def rounds(self, event: Event, batches: np.ndarray, before: tuple[int, int] = (0, 0), limited: bool = True) -> Done:
        """Run rounds in one call.

        Args:
            event: how each of them ends.
            batches: rows of the shard, [rounds, steps, batch size].
            before: rounds and local steps that this worker has done.
            limited: it may take no longer than others did, and a wait. If not, see `barrier_wait`.

        Raises:
            WaitTimeout: with who is missing.
        """
        # Others decide how long a barrier takes; a call that waits for nobody may be slow, but not for ever.
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
        """A function of the batches, what was done before, and the options of a call that runs `count` rounds."""
        if (event, count) in self._callables:
            return self._callables[event, count]
        fetches, inputs = self.mine.rounds[event, count]
        asked = [self.ops.asked.fetches] if self.listens else []  # beside the rounds, which do not wait for it
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
        """Drop a message that was not finite for good: its round counts as done. False if the slot is another's now."""
        try:
            self._run(self.mine.refuse)
        except tf.errors.InvalidArgumentError as error:
            if not is_refusal(error):
                raise
            return False
        return True

    def is_owner(self) -> bool:
        """True if the slot is still that of this incarnation, and the state is clean."""
        incarnations = self._run(self.ops.incarnations)
        return incarnations[self.index] == self.incarnation and incarnations[-1] == 1

    def stopping(self) -> bool:
        """True if workers shall leave: somebody wants the run to end, or its last update has been made."""
        return bool(self._run(self.ops.stopping))

    # The gate, where `coordination.sees_waiting`.

    def arrived(self) -> np.ndarray:
        """True for the workers that wait at the gate, [W]."""
        return self._run(self.ops.arrived)

    def awaited(self) -> np.ndarray:
        """True for the workers that the others wait for, [W]."""
        return self._run(self.ops.awaited)

    def missing(self) -> str:
        """The names of those that this worker and the others wait for."""
        awaited = self.awaited()
        awaited[self.index] = False
        return absent(~awaited)

    def await_token(self) -> None:
        """Wait until the last message of this slot waits for nobody any more."""
        self._run(self.mine.await_token)

    def evict_absent(self) -> np.ndarray:
        """Go on without those that this worker waits for, if enough are left; returns who was evicted, [W]."""
        return self._run(self.mine.evict_absent)

    def deregister(self) -> None:
        """This worker has done all its rounds: nobody waits for it any more."""
        self._run(self.mine.deregister)
