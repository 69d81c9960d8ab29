"""Late computations in virtual time: they end at the moment of the update which makes them late."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from ...common.contract.scheme import Scheme
from .resources import CANCEL, COMPUTED, REPLY, Act, EventQueue
from .simulated_server import RoundTimings, SimulatedServer

IDLE = -1


class Cancelling:
    """The computations that can be stopped, see `Synchronization.cancel_late`. Times are in nanoseconds.

    Args:
        scheme: the algorithm, which says which messages are dropped.
        server: the record.
        timings: the timestamps of the rounds.
        lock: returns the time from which on the ps serves a request of this time.
        ready: sends the message of a worker that has computed it.
        queue: the events of the run.

    Attributes:
        until: end of the present computation of each worker, or `IDLE`, [W].
        begun: a heap of the begun computations: the version of the center that they began with, and the worker.
    """

    def __init__(
        self,
        scheme: Scheme,
        server: SimulatedServer,
        timings: RoundTimings,
        lock: Callable[[int], int],
        ready: Act,
        queue: EventQueue,
    ):
        self.sync, self.server, self.timings, self.lock, self.ready = scheme.sync, server, timings, lock, ready
        self.active, self.queue = self.sync.cancel_late, queue
        if self.active:
            queue.on(COMPUTED, self.computed)
            queue.on(CANCEL, self.stop)
        self.until = [IDLE] * server.workers
        self.begun: list[tuple[int, int]] = []

    def begin(self, worker: int, now: int, until: int) -> None:
        """Begin a computation; the center may have become too old on its way to the worker."""
        if self.active:
            self.until[worker] = until
            heappush(self.begun, (self.server.sequencer.pulled[worker], worker))
            self.stop_late(now)

    def computed(self, worker: int, now: int) -> None:
        """End the computation of a worker, unless it has been stopped."""
        if self.until[worker] == now:
            self.until[worker] = IDLE
            self.ready(worker, now)

    def crash(self, worker: int) -> None:
        """End the computation of a worker that is down."""
        self.until[worker] = IDLE

    def stop_late(self, at: int) -> None:
        """Schedule the end, at this time, of the computations that have become late."""
        while self.begun:
            version, worker = self.begun[0]
            present = self.server.sequencer.pulled[worker] == version
            if present and self.sync.accepts(self.server.sequencer.version - version):
                break
            heappop(self.begun)
            if present:
                self.queue.at(at, CANCEL, worker)

    def stop(self, worker: int, now: int) -> None:
        """Stop the computation of a worker if its message would be dropped, and send the newest center."""
        would_drop = not self.sync.accepts(self.server.sequencer.staleness(worker))
        if self.server.over or self.until[worker] == IDLE or not would_drop:
            return
        if now < self.timings.begun[worker]:  # the center that is too old is on its way to the worker
            self.queue.at(self.timings.begun[worker], CANCEL, worker)
            return
        self.until[worker] = IDLE
        self.timings.ready[worker] = self.timings.computed[worker] = now
        self.timings.arrived[worker] = self.timings.released[worker] = at = self.lock(now)
        self.server.pull(worker, at)
        self.queue.at(at, REPLY, worker)
