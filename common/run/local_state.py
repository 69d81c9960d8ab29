"""The local state of a worker in checkpoints: what joining does not give back, and how it gets to the chief and back.

A worker that is asked for a copy lays it down on the ps, or on worker 0, and stands still until it has been saved; see
`standstill`. A worker that does not come in time has rounds on record that are not in its copy: the copy does not
count, and its worker begins anew.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal

from ..engine.asked import NEVER, NONE
from ..errors import WaitTimeout
from ..waiting import wait_until
from .job import Job
from .local_layout import Layout
from .progress import Progress
from .worker_calls import WorkerCalls

MOST_BYTES = 1 << 30  # of the copies of all workers


class Keeping:
    """What is kept of the local states, and where workers stand still for that.

    Args:
        job: the run.
        places: where a worker is fed its local state, by name.

    Attributes:
        layout: of the local state of a worker.
        bytes: of all workers.
        keeps: there is something to keep, and it is not too large.
        stops: workers stand still while the state is read: for their copies; and without a ps, where they write to the
            center without the lock.
        meets: at which number of what they come to a standstill: of the version, where all make each update together;
            of their own rounds, where none may be far ahead. A worker that stands would keep those from their rounds
            that wait for it, so all come to the same number first. Else empty: each stands at the end of a call.
    """

    meets: Literal["version", "rounds", ""] = ""

    def __init__(self, job: Job, places: Any):
        workers, gate = job.cluster.workers, job.scheme.gate
        self.layout = Layout.of(places)
        # Without a ps all workers have the parameters that worker 0 has as the center, unless they keep more.
        self.bytes = workers * (self.layout if job.uses_ps else self.layout.besides("params")).bytes
        self.keeps = 0 < self.bytes <= MOST_BYTES
        self.stops = self.keeps or not job.uses_ps
        self.waits_for_all = not job.uses_ps
        if workers > 1 and not job.options.schedule:
            together = gate.set_size(workers) == workers
            self.meets = "version" if together else "rounds" if gate.lead is not None else ""

    @property
    def why_not(self) -> str:
        """Why nothing is kept; empty if that is not because of its size."""
        total, most = (number / 2**30 for number in (self.bytes, MOST_BYTES))
        too_large = f"{total:.3g} GiB of all workers are more than the {most:.3g} GiB that are kept"
        return too_large if self.bytes > MOST_BYTES else ""


class LocalState:
    """Lays copies of a worker's local state down when the chief asks for them, and takes them up.

    Args:
        calls: of the worker.
        progress: of the worker.
        keeping: what is kept.
        job: the run.
    """

    def __init__(self, calls: WorkerCalls, progress: Progress, keeping: Keeping, job: Job):
        self.calls, self.progress, self.keeping = calls, progress, keeping
        calls.listens = keeping.stops
        numbers, recovery = set(map(len, job.plan.all_rounds)), job.recovery
        others_go_on = job.cluster.workers > 1 and (keeping.meets != "version" or len(numbers) > 1)
        at_end = recovery.checkpoint_seconds is not None or recovery.checkpoint_steps is not None
        self.wanted_at_end = others_go_on or at_end
        self.answered = NONE
        self.offset = 0  # the number at which all meet, less the rounds of this worker

    def joined(self, version: int, copied: bool) -> None:
        """The worker has joined: its meetings are counted from here. A copy of the local state is taken up."""
        self.answered = NONE  # a restoration goes back to before a meeting that is asked for again
        self.offset = version - self.progress.rounds if self.keeping.meets == "version" else 0
        if copied and self.keeping.keeps:
            self.calls.take_up(self.keeping.layout)

    @property
    def meeting(self) -> int:
        """Where this worker is."""
        return self.progress.rounds + self.offset

    def stretch_calls(self, rounds: int) -> int:
        """Say before calls of so many rounds that there will be such; returns that number."""
        if self.keeping.stops and self.keeping.meets:
            self.calls.stretch(rounds)
        return rounds

    def at_most(self, count: int) -> int:
        """How many rounds the next call may have, of `count`, for the worker to stop where a copy is asked for."""
        ahead = self.calls.asked - self.meeting
        return min(count, ahead) if self.keeping.meets and ahead > 0 else count

    def is_asked(self) -> bool:
        """True if this is the moment for a copy."""
        asked = self.calls.asked
        if not self.keeping.stops or asked < 0 or asked == self.answered:
            return False
        return asked == self.meeting if self.keeping.meets else True

    def between_calls(self) -> None:
        """Lay a copy down if this is the moment, and wait until it has been saved."""
        if self.is_asked():
            self.answered = asked = self.calls.asked
            self.lay_down()
            with contextlib.suppress(WaitTimeout):  # then the copy does not count
                wait_until(lambda: self.calls.look_at_asked() != asked, self.calls.patience, str)

    def lay_down(self) -> None:
        """Lay a copy down."""
        self.calls.lay_down(self.progress.rounds, self.keeping.keeps)

    def end(self) -> None:
        """All rounds are done: later checkpoints may want a copy of what there is now."""
        if not self.keeping.keeps or self.progress.stopping:
            return
        if self.wanted_at_end or self.calls.look_at_asked() != NEVER:
            self.lay_down()
