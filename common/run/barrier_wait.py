"""What a worker does at a barrier that nobody completes."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..cluster.restarts import RestartRule
from ..errors import WaitTimeout
from ..lazy import tf
from ..reports import Report
from .worker_calls import Done, WorkerCalls

LOOK_SECONDS = 0.5  # between two looks at who has arrived


class GivenUp(WaitTimeout):
    """A wait that ends the run."""


class BarrierWait:
    """The waits of one worker for the others; the rule says if one that does not come may be started again."""

    def __init__(self, calls: WorkerCalls, rule: RestartRule, report: Report):
        self.index, self.calls, self.rule, self.report = calls.index, calls, rule, report
        self.got_on()

    def got_on(self) -> None:
        """A set has been completed: the next one may wait in vain once for a worker that is being started again."""
        self.may_be_restarted = True

    def handle_timeout(self) -> bool:
        """After a wait in vain: evict the absent, or report them; True if waiting may help now."""
        evicted, arrived, awaited = self.calls.evict_absent(), self.calls.arrived(), self.calls.awaited()
        for k in np.flatnonzero(evicted):
            self.report(event="evicted", worker=int(k))
        if evicted.any() or not arrived[self.index]:  # if not, the set has been completed in this very moment
            return True
        if not (self.rule.recovers and self.may_be_restarted):
            return False
        self.may_be_restarted = False
        for k in np.flatnonzero(awaited):
            self.report(event="silent", worker=int(k))  # for whoever starts tasks again
        return True

    def first(self, call: Callable[[], Done]) -> Done:
        """The first call of all, which has no limit: it is not known yet how long local steps take.

        Only the wait at the barrier has one. Worker 0 compiles for 50 s, arrives, and waits 60 s: then it names worker
        1. A call cannot be cancelled, so giving up ends the run.

        Raises:
            GivenUp: this worker has arrived, others have not, or the ps does not answer.
        """
        answer = _in_thread(call)
        look, arrived_at, unanswered = min(LOOK_SECONDS, self.calls.wait_seconds / 4), None, 0
        while True:
            with contextlib.suppress(queue.Empty):
                done, error = answer.get(timeout=look)
                if error is not None:
                    raise error
                return done
            arrived, now = self._arrived(), time.monotonic()
            if arrived is None:
                unanswered += not self.calls.coordination.in_process  # there, the local steps are in the way
                if unanswered >= self.rule.patience:
                    raise self._given_up("for the ps")
                continue
            unanswered = 0
            if not arrived[self.index]:
                arrived_at = None
            elif arrived_at is None:
                arrived_at = now
            elif now - arrived_at > self.calls.wait_seconds:
                arrived_at = now
                if not self.handle_timeout():
                    raise self._given_up(f"at the barrier for {self.calls.missing()}")

    def _arrived(self) -> np.ndarray | None:
        """Who has arrived, [W]; None if the ps has not answered."""
        try:
            return self.calls.arrived()
        except tf.errors.DeadlineExceededError:
            return None

    def _given_up(self, what: str) -> GivenUp:
        return GivenUp(f"worker {self.index} waited {self.calls.wait_seconds:g} s {what}")


def _in_thread(call: Callable[[], Any]) -> queue.SimpleQueue[tuple[Any, Exception | None]]:
    """Where the result of the call will be, or what it has raised."""
    answer: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put((call(), None))
        except Exception as error:
            answer.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    return answer
