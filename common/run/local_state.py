"""The local state of a worker in checkpoints: what joining does not give back, and how it gets to the chief and back.

The chief asks for copies at a meeting: of workers that meet in each round, one ahead, which all will come to, named by
the version; of others, the next end of a call of each. There a worker lays its copy down on the ps, or on worker 0, and
waits until the chief, between two rounds of its own, has read all copies and what is on the ps. A worker that does not
come in time has rounds on record that are not in its copy: the copy does not count, and its worker begins anew.
"""

from __future__ import annotations

import contextlib
import time

from ..engine.asked import NEVER, NONE
from ..errors import WaitTimeout
from ..waiting import wait_until
from .calls import StateCalls
from .job import Job
from .local_layout import Layout, packed, unpacked
from .progress import Progress
from .saving import Saver
from .worker_calls import WorkerCalls

MOST_BYTES = 1 << 30  # of the copies of all workers

PAUSE_SECONDS, PAUSE_SHARE = 1.0, 0.05  # that workers stand still for a checkpoint, and of the time between two of them


class LocalState:
    """Lays copies of a worker's local state down when the chief asks for them, and takes them up.

    Args:
        calls: of the worker.
        progress: of the worker.
        job: the run.
    """

    def __init__(self, calls: WorkerCalls, progress: Progress, job: Job):
        self.calls, self.progress, workers = calls, progress, job.cluster.workers
        self.layout = Layout.of(calls.mine.set_local.inputs)
        # Without a ps all workers have the parameters that worker 0 has as the center, unless they keep more.
        self.bytes = workers * (self.layout if job.uses_ps else self.layout.besides("params")).bytes
        self.kept = calls.listens = 0 < self.bytes <= MOST_BYTES
        # A worker that waits would keep those from their rounds that meet it: all come to the same meeting first.
        self.in_step = not job.options.schedule and job.scheme.gate.set_size(workers) == workers > 1
        self.ahead = 2 * job.plan.rounds_per_call  # one call that has begun, one that begins before it is known
        recovery = job.recovery
        self.wanted_at_end = recovery.checkpoint_seconds is not None or recovery.checkpoint_steps is not None
        self.pause = max(PAUSE_SECONDS, PAUSE_SHARE * min(recovery.seconds, calls.wait_seconds))
        self.answered = NONE
        self.offset = 0  # the version of the center, where workers meet in each round, less its rounds

    def joined(self, version: int, copied: bool) -> None:
        """The worker has joined: its meetings are counted from here. A copy of the local state is taken up."""
        self.offset = version - self.progress.rounds
        if copied:
            _, copy = self.calls.copy_of(self.calls.index)
            self.calls.set_local(self.layout.typed(unpacked(copy)))

    @property
    def meeting(self) -> int:
        """Where this worker is."""
        return self.progress.rounds + self.offset

    def at_most(self, count: int) -> int:
        """How many rounds the next call may have, of `count`, for the worker to stop where a copy is asked for."""
        ahead = self.calls.asked - self.meeting
        return count if not self.in_step or ahead <= 0 else min(count, ahead)

    def is_asked(self) -> bool:
        """True if this is the moment for a copy."""
        asked = self.calls.asked
        if not self.kept or asked < 0 or asked == self.answered or not self.progress.rounds:
            return False
        return asked == self.meeting if self.in_step else True

    def between_calls(self) -> None:
        """Lay a copy down if this is the moment, and wait until the chief has it."""
        if self.is_asked():
            self.answered = asked = self.calls.asked
            self.lay_down()
            with contextlib.suppress(WaitTimeout):  # then the copy does not count
                wait_until(lambda: self.calls.look_at_asked() != asked, self.patience, str)

    @property
    def patience(self) -> float:
        """Seconds that all wait where they meet: as long as at the barrier."""
        return self.calls.wait_seconds + 2 * self.calls.longest

    def lay_down(self) -> None:
        """Lay a copy down."""
        self.calls.lay_down(self.progress.rounds, packed(self.calls.local()))

    def end(self) -> None:
        """All rounds are done: the last checkpoint may want a copy of what there is now."""
        there = self.kept and self.progress.rounds and not self.progress.stopping
        if there and (self.wanted_at_end or self.calls.look_at_asked() != NEVER):
            self.lay_down()


class ChiefState(LocalState):
    """That of the chief, which asks for copies and saves them.

    Args:
        calls: of the worker.
        progress: of the worker.
        job: the run.
        saver: says when a checkpoint is due.
    """

    def __init__(self, calls: WorkerCalls, progress: Progress, job: Job, saver: Saver):
        super().__init__(calls, progress, job)
        self.saver = saver
        saver.layout = self.layout
        if self.bytes > MOST_BYTES:
            total, most = (number / 2**30 for number in (self.bytes, MOST_BYTES))
            saver.why_missing = f"{total:.3g} GiB of all workers are more than the {most:.3g} GiB that are kept"

    def joined(self, version: int, copied: bool) -> None:
        """The same; and checkpoints are made in its rounds."""
        super().joined(version, copied)
        self.saver.waits_for_copies = self.kept

    def between_calls(self) -> None:
        """Ask for copies if a checkpoint is due, and save it when they are there."""
        if not self.kept:
            return
        if self.saver.due.is_set() and self.calls.asked < 0 and self.progress.rounds:
            self._ask(self.meeting + self.ahead if self.in_step else time.time_ns())
        if self.is_asked():
            self.answered = self.calls.asked
            self._save()

    def _ask(self, meeting: int) -> None:
        self._state_calls().ask(meeting)
        self.calls.asked = meeting

    def _save(self) -> None:
        calls = self._state_calls()
        self.lay_down()

        def there() -> bool:
            roll, rounds = calls.roll(), calls.recorded_rounds()
            return bool((~roll.active | roll.finished | (rounds == 0) | (calls.copied_rounds() == rounds)).all())

        try:
            with contextlib.suppress(WaitTimeout):
                wait_until(there, self.patience if self.in_step else self.pause, str)
            self.saver.save(calls)
            calls.forget_copies(~calls.roll().finished)
        finally:
            self._ask(NONE)

    def end(self) -> None:
        """The same; if others go on, checkpoints are made without the rounds of this one."""
        super().end()
        self.saver.waits_for_copies = False
        if self.kept and self.calls.asked >= 0:
            self._ask(NONE)

    def _state_calls(self) -> StateCalls:
        calls = self.calls
        return StateCalls(calls.session, calls.graph, calls.wait_seconds, calls.connect)
