"""Crashes of simulated workers, and workers that join."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UserError
from ..server.trace import UNKNOWN
from .clock import Clock
from .crashes import Failures
from .resources import NEVER
from .server import Books
from .stamps import SimulatedStamps

MOST_CRASHES = 1000  # the most crashes per round

CRASH, BACK = range(2)  # kinds of events: processed before all others of the same time


class ServerLock:
    """The lock of the ps: one holder at a time, first come, first served.

    Attributes:
        free: time at which all requests so far have been served.
    """

    def __init__(self):
        self.free = 0

    def take(self, now: int, service: int = 0) -> int:
        """Hold the lock for `service` nanoseconds as soon as it is free; return when that begins."""
        begun = now if now > self.free else self.free
        self.free = begun + service
        return begun


class Presence:
    """The crashes and returns of the workers of a run.

    Args:
        books: the simulated ps.
        lock: the lock of the ps.
        clock: the event queue of the run.
        stamps: the timestamps of the rounds.
        failures: the times of crashes and returns.
        fetch: function of worker and time: starts the transfer of the center to a worker that has joined.

    Attributes:
        away: workers that do not receive a release by the gate: those that are down, and those that have returned while
            a message of their former life still waits at the gate.
        joining: the latter of these.
    """

    def __init__(
        self,
        books: Books,
        lock: ServerLock,
        clock: Clock,
        stamps: SimulatedStamps,
        failures: Failures,
        fetch: Callable[[int, int], None],
    ):
        self.books, self.lock, self.clock, self.stamps, self.failures = books, lock, clock, stamps, failures
        self.fetch = fetch
        self.away = set[int]()
        self.joining = set[int]()

    def stay(self, worker: int, now: int) -> None:
        """Start a life of a worker: schedule its crash."""
        crash = self.failures.begin(worker, now)
        if crash < NEVER:
            self.clock.at(crash, CRASH, worker)

    def crash(self, worker: int, now: int) -> None:
        """Take a worker down and schedule its return; its present round is lost, unless its message is recorded."""
        if self.books.over:
            return
        if self.books.folded[worker] > self.stamps.logged[worker] and worker not in self.books.waiting.arrived:
            self.stamps.log(worker, UNKNOWN)
        crashes, rounds = self.failures.crashes[worker], self.stamps.logged[worker]
        if crashes >= MOST_CRASHES * (1 + rounds):
            raise UserError(
                f"hardly a round ends between two crashes: let them be rarer. Received: worker {worker} crashed "
                f"{crashes} times in {rounds} rounds"
            )
        self.clock.lives[worker] += 1
        self.joining.discard(worker)
        self.away.add(worker)
        self.clock.at(self.failures.crash(worker, now), BACK, worker)

    def come_back(self, worker: int, now: int) -> None:
        """Start a new life of a worker, and let it join."""
        self.stay(worker, now)
        self.join(worker, now)

    def join(self, worker: int, now: int, recorded: bool = True) -> None:
        """Give a worker its slot; if its last message still waits in a set, it joins again after that set."""
        if self.books.over:
            return
        at = self.lock.take(now)
        if self.books.join(worker, at, recorded):
            self.joining.add(worker)
        else:
            self.away.discard(worker)
            self.fetch(worker, at)

    def miss(self, worker: int, now: int) -> None:
        """Log the round of an absent worker that the gate has released as lost; let the worker join if it is back."""
        self.stamps.log(worker, UNKNOWN)
        if worker in self.joining:
            self.joining.remove(worker)
            self.join(worker, now)
