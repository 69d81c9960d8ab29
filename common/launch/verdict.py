"""Why a run ended: the first failure, unless it was only a consequence of one that became known later."""

from __future__ import annotations

import math
import time

from ..errors import DistsgdError, TaskFailed

CAUSE_SECONDS = 1.0  # after a failure that may be a consequence, for the cause to show up


class FirstFailure:
    """The failure that counts so far.

    For example, worker 1 says that the ps does not answer any more, and a moment later the ps is reported killed: the
    second is what the user wants to read.

    Attributes:
        failure: None if nothing has gone wrong.
        is_provisional: it may be a consequence of one that is not known yet.
        deadline: when to stop waiting for another.
    """

    def __init__(self):
        self.failure: DistsgdError | None = None
        self.is_provisional = False
        self.deadline = math.inf

    def fail(self, failure: DistsgdError, *, final: bool) -> None:
        """Something has gone wrong; `final` if it is no consequence of something else."""
        replaceable = self.is_provisional and (final or isinstance(self.failure, TaskFailed))
        if self.failure is None or (replaceable and not isinstance(failure, TaskFailed)):
            self.failure, self.is_provisional = failure, not final
            self.deadline = time.monotonic() + (0 if final else CAUSE_SECONDS)
