"""The clock that closes sets of messages after their time of grace (`sync.barrier.Quorum`), in a thread."""

from __future__ import annotations

import threading

from .calls import ObserverCalls

RETRY_SECONDS = 0.1

LEAVE_SECONDS = 1.0  # limit for a call that is under way at the end; one that hangs ends with the process


class GraceClock:
    """A thread of the evaluator, so that a worker that dies in a time of grace does not leave its set open.

    The time at which it began is on the ps: an evaluator that is started again closes the set at its time.

    Args:
        calls: calls of the evaluator.
    """

    def __init__(self, calls: ObserverCalls):
        self.calls = calls
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> GraceClock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.calls.call_clock()
        self._thread.join(LEAVE_SECONDS)

    def _run(self) -> None:
        waited = -1  # for the set whose time of grace began then
        while not self._over.is_set():
            try:
                if waited < 0:  # the first call of a kind takes long: make it before a set waits for it
                    self.calls.end_grace(0)
                    waited = 0
                began, left = self.calls.grace_left()
                if not began:
                    self.calls.await_quorum()
                elif began != waited:  # wait once: a clock that is set back does not prolong the time
                    self._over.wait(left)
                    waited = began
                else:
                    self.calls.end_grace(began)
            except Exception:  # the evaluator's own calls meet the same error and handle it
                self._over.wait(RETRY_SECONDS)
