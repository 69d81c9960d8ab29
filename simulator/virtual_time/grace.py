"""Times of grace in virtual time: a set with enough messages waits for more, see `sync.barrier`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...common.sync.release import SetOfMessages
from .resources import GRACE, EventQueue
from .simulated_server import SimulatedServer

SECOND = 10**9  # nanoseconds


class Grace:
    """The times of grace of the sets of a run. Times are in nanoseconds.

    Args:
        server: the server.
        workers: W; the events of the server have this number.
        lock: returns the time from which on the ps serves a request of this time.
        release: sends the replies to workers, released at the first of two times and sent at the second.
        queue: the events of the run.

    Attributes:
        version: version of the center when the last time of grace began.
    """

    def __init__(
        self,
        server: SimulatedServer,
        workers: int,
        lock: Callable[[int], int],
        release: Callable[[Sequence[int], int, int], None],
        queue: EventQueue,
    ):
        self.server, self.workers, self.lock, self.release = server, workers, lock, release
        self.length, self.version = round(server.scheme.sync.grace * SECOND), -1
        self.queue = queue
        queue.on(GRACE, self.end)

    def begin(self, now: int) -> None:
        """Begin the time of grace of a set that has enough messages since `now`."""
        version, waiting = self.server.sequencer.version, self.server.sequencer.waiting
        if self.length and self.version < version and isinstance(waiting, SetOfMessages) and waiting.enough:
            self.version = version
            self.queue.lives[self.workers] += 1  # drop the end of the time of a set that was closed before
            self.queue.at(now + self.length, GRACE, self.workers)

    def end(self, _: int, now: int) -> None:
        """Close the set whose time of grace ends, if it is still open."""
        if self.version == self.server.sequencer.version:
            at = self.lock(now)
            self.release(self.server.sequencer.end_grace(), at, at)
