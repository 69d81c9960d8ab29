"""The waits of a worker at a barrier, and its reaction if the set is not completed in time."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..cluster.restart_rule import RestartRule
from ..errors import WaitTimeout
from ..lazy import tf
from ..reports import Report
from .worker_calls import Done, WorkerCalls

LOOK_SECONDS = 0.5  # between two polls of the workers that have arrived


class GivenUp(WaitTimeout):
    """A wait that ends the run."""


class BarrierWait:
    """The waits of one worker for the others; the rule of restarts says whether missing ones may be restarted."""

    def __init__(self, calls: WorkerCalls, rule: RestartRule, report: Report):
        self.index, self.calls, self.rule, self.report = calls.index, calls, rule, report
        self.got_on()

    def got_on(self) -> None:
        """Note that a set was completed: the next one may time out once, while a worker is being restarted."""
        self.may_be_restarted = True

    def handle_timeout(self) -> bool:
        """Evict the absent workers after a timeout, or report them; return True if another wait may help."""
        evicted, arrived, awaited = self.calls.evict_absent(), self.calls.arrived(), self.calls.awaited()
        for k in np.flatnonzero(evicted):
            self.report(event="evicted", worker=int(k))
        if evicted.any() or not arrived[self.index]:  # this worker is not at the gate: the set was completed meanwhile
            return True
        if not (self.rule.recovers and self.may_be_restarted):
            return False
        self.may_be_restarted = False
        for k in np.flatnonzero(awaited):
            self.report(event="silent", worker=int(k))  # for the supervisor, which restarts tasks
        return True

    def first(self, call: Callable[[], Done]) -> Done:
        """Run the first call of rounds without a time limit, as the time of local steps is not known yet.

        Only the wait at the barrier has a limit. For instance worker 0 compiles for 50 s, arrives, and waits 60 s: then
        it names worker 1. A call cannot be cancelled, so giving up ends the run.

        Raises:
            GivenUp: this worker has arrived, and others have not; or the ps does not answer.
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
                unanswered += not self.calls.coordination.in_process  # in one process, local steps delay the answer
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
        """Return which workers have arrived, [W] booleans; None if the ps has not answered."""
        try:
            return self.calls.arrived()
        except tf.errors.DeadlineExceededError:
            return None

    def _given_up(self, what: str) -> GivenUp:
        return GivenUp(f"worker {self.index} waited {self.calls.wait_seconds:g} s {what}")


def _in_thread(call: Callable[[], Any]) -> queue.SimpleQueue[tuple[Any, Exception | None]]:
    """Run a call in a thread; return the queue that receives its result, or its exception."""
    answer: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put((call(), None))
        except Exception as error:
            answer.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    return answer
