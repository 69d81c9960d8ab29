"""The reason why a run ended: its first failure, unless that was a consequence of one that became known later."""

from __future__ import annotations

import math
import time

from ..errors import DistsgdError, TaskFailed

CAUSE_SECONDS = 1.0  # for the cause to become known, after a failure that may be a consequence


class FirstFailure:
    """The failure that counts so far.

    For example, worker 1 reports that the ps does not answer any more, and a moment later the ps is reported killed:
    the second failure is the one for the user.

    Attributes:
        failure: None if no failure was reported.
        is_provisional: True if `failure` may be the consequence of one that is not known yet.
        deadline: the time at which to stop waiting for another failure.
    """

    def __init__(self):
        self.failure: DistsgdError | None = None
        self.is_provisional = False
        self.deadline = math.inf

    def fail(self, failure: DistsgdError, *, final: bool) -> None:
        """Take note of a failure; `final` if it is not the consequence of another one."""
        replaceable = self.is_provisional and (final or isinstance(self.failure, TaskFailed))
        if self.failure is None or (replaceable and not isinstance(failure, TaskFailed)):
            self.failure, self.is_provisional = failure, not final
            self.deadline = time.monotonic() + (0 if final else CAUSE_SECONDS)
