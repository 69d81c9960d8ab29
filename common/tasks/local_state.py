"""The local state of a worker in checkpoints: the variables that a join does not restore, and their copies.

On request a worker writes a copy to the ps, or to worker 0, and stands still until the copy has been saved; see
`standstill`. A worker that misses the deadline has logged rounds that are not in its copy: the copy is not used, and a
resumed run begins with new local state for that worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, Literal

from ..errors import WaitTimeout
from ..server.answers import NEVER, NONE
from ..sync.gossip import Gossip
from ..sync.topology import Topology
from ..waiting import wait_until
from .interruption import interruption
from .job import Job
from .local_layout import Layout
from .progress import Progress
from .worker_calls import WorkerCalls

MOST_BYTES = 1 << 30  # limit of the copies of all workers together


class Keeping:
    """The parts of the local states that checkpoints keep, and the meetings of the workers for that.

    Args:
        job: the run.
        places: placeholders for the local state of a worker, by name.

    Attributes:
        layout: layout of the local state of a worker.
        scheme: the algorithm.
        bytes: size of the local states of all workers.
        keeps: the local states are kept: they are neither empty nor too large.
        without_checkpoints: no checkpoint can be written.
        stops: workers stand still while the state is read: for their copies; and without a ps, as they write to the
            center without the lock.
        waits_for_all: the state is read only if all workers stand still; if not, also after a time limit.
        gossips: the center is the mean of the workers, which they bring up to date where they meet.
        meets: the number at which workers stand still together: the version, if each update has messages of all of
            them; the rounds of a worker, if the lead of workers is bounded. A worker at a standstill would block those
            that wait for it, so all reach the same number first. Empty otherwise: each stops at the end of a call.
    """

    meets: Literal["version", "rounds", ""] = ""

    def __init__(self, job: Job, places: Any):
        workers, sync = job.cluster.workers, job.scheme.sync
        self.layout = Layout.of(places)
        # Without a ps and gossip the parameters of all workers equal the center on worker 0: these need no copy.
        kept_layout = self.layout if job.ps or sync.gossips else self.layout.besides("params")
        # The state of a script's optimizer goes with it; its size is not known yet.
        self.bytes = workers * (kept_layout.bytes + (job.script is not None and job.recipe.keeps_state))
        self.workers, self.sync, self.gossips = workers, sync, sync.gossips
        self.scheme = job.scheme
        # In pairs, others change the parameters of a worker also while it stands still; so do messages between servers.
        self.without_checkpoints = sync.in_pairs or sync.in_regions
        self.keeps = 0 < self.bytes <= MOST_BYTES and not self.without_checkpoints
        self.stops = (self.keeps or not job.ps) and not self.without_checkpoints
        self.waits_for_all = not job.ps
        if workers > 1 and not job.options.schedule:
            self.meets = "version" if sync.meets(workers) else "rounds" if sync.lead is not None else ""

    @property
    def cleared(self) -> list[str]:
        """Names of the local state that becomes zero when a worker is lost, see `Scheme.cleared`."""
        return [*self.scheme.cleared, *(name for name in self.layout.parts if name.startswith("codec."))]

    @cached_property
    def lag(self) -> int:
        """Rounds by which a worker may be ahead of worker 0, which alone asks: a graph of many takes seconds."""
        if not isinstance(self.sync, Gossip):
            return 0
        # In random pairs a worker may be ahead by more than W rounds.
        return max(self.workers, Topology(self.sync.topology).lead(self.workers))

    @property
    def why_not(self) -> str:
        """The reason why nothing is kept, if the local states are too large; else empty."""
        total, limit = (number / 2**30 for number in (self.bytes, MOST_BYTES))
        too_large = f"{total:.3g} GiB of all workers are more than the {limit:.3g} GiB that are kept"
        return too_large if self.bytes > MOST_BYTES else ""


class LocalState:
    """Copies of a worker's local state: it writes them when the chief requests them, and restores from them.

    Args:
        calls: calls of the worker.
        progress: progress of the worker.
        keeping: the parts of the local states that are kept.
        job: the run.

    Attributes:
        at_last: called while this worker stands still, if the run ends there.
        ended: the run has ended there.
    """

    def __init__(self, calls: WorkerCalls, progress: Progress, keeping: Keeping, job: Job):
        self.calls, self.progress, self.keeping = calls, progress, keeping
        calls.listens = keeping.stops
        numbers, recovery = set(map(len, job.plan.all_rounds)), job.options.recovery
        others_continue = job.cluster.workers > 1 and (keeping.meets != "version" or len(numbers) > 1)
        at_end = recovery.checkpoint_seconds is not None or recovery.checkpoint_steps is not None
        self.wanted_at_end = others_continue or at_end  # a checkpoint may be read after this worker's last round
        self.at_last: Callable[[], None] = lambda: None
        self.ended = False
        self.interrupted = partial(interruption, job)
        self.answered = NONE  # the last request that this worker has answered
        self.offset = 0  # the version (if workers meet at one) minus the rounds of this worker

    def joined(self, version: int, copied: bool) -> None:
        """Count meetings from the joined version, and restore the local state if it was copied."""
        self.answered = NONE  # after a restoration the chief may request the same meeting again
        self.offset = version - self.progress.rounds if self.keeping.meets == "version" else 0
        if copied and self.keeping.keeps:
            self.calls.restore_copy(self.keeping.layout)

    @property
    def meeting(self) -> int:
        """The number of the meeting that this worker has reached."""
        return self.progress.rounds + self.offset

    def announce_rounds(self, rounds: int) -> None:
        """Announce calls of this number of rounds before the first of them."""
        if self.keeping.stops and self.keeping.meets:
            self.calls.announce_rounds(rounds)

    def at_most(self, count: int) -> int:
        """Return the rounds of the next call, `count` at most, so that it does not pass the requested meeting."""
        ahead = self.calls.asked - self.meeting
        return min(count, ahead) if self.keeping.meets and ahead > 0 else count

    def is_asked(self) -> bool:
        """Return True if the chief has requested a copy now."""
        request = self.calls.asked
        if not self.keeping.stops or request < 0 or request == self.answered:
            return False
        return request == self.meeting if self.keeping.meets else True

    def pause_if_asked(self) -> None:
        """Write a copy if the chief has requested one now, and block until it has been saved."""
        if not self.is_asked():
            return
        self.answered = request = self.calls.asked
        if self.keeping.gossips:
            self.calls.collect(self.progress.rounds)
        self.write_copy()

        def is_saved() -> bool:
            saved = self.calls.read_asked() != request
            if self.calls.is_last and not saved:
                self.ended = True
                self.at_last()
            return saved

        with contextlib.suppress(WaitTimeout):  # later rounds then make the copy invalid, which the chief detects
            wait_until(is_saved, self.calls.patience, str)

    def write_copy(self) -> None:
        """Write a copy of the local state."""
        self.calls.write_copy(self.progress.rounds, self.keeping.keeps)

    def end(self) -> None:
        """Write a copy after the last round, if later checkpoints may need one."""
        if not self.keeping.keeps or self.progress.stopping:
            return
        if self.wanted_at_end or self.interrupted() or self.calls.read_asked() != NEVER:
            self.write_copy()
