"""Who comes and goes: crashes, and workers that join."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import UserError
from ..server.trace import UNKNOWN
from .clock import Clock
from .crashes import Failures
from .resources import NEVER
from .server import Books
from .stamps import SimulatedStamps

MOST_CRASHES = 1000  # for each round

CRASH, BACK = range(2)  # kinds of events: the first ones at a time


class ServerLock:
    """The lock of the ps: one at a time, first come, first served.

    Attributes:
        free: when nobody holds it any more that has asked for it by now.
    """

    def __init__(self):
        self.free = 0

    def take(self, now: int, service: int = 0) -> int:
        """Hold it as soon as it is free, for some time; returns when that begins."""
        begun = now if now > self.free else self.free
        self.free = begun + service
        return begun


class Presence:
    """The workers of a run as they come and go.

    Args:
        books: of the ps.
        lock: of the ps.
        clock: of the run.
        stamps: of the rounds.
        failures: when workers crash.
        fetch: lets the center travel to a worker that has joined, from some time on.

    Attributes:
        away: who does not hear that it may go on: it is down, or waits at the gate for a message of its former life.
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
        """A worker is there until it crashes."""
        crash = self.failures.begin(worker, now)
        if crash < NEVER:
            self.clock.at(crash, CRASH, worker)

    def crash(self, worker: int, now: int) -> None:
        """The round in flight is lost, unless its message is on record."""
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
        """A worker is there again."""
        self.stay(worker, now)
        self.join(worker, now)

    def join(self, worker: int, now: int, recorded: bool = True) -> None:
        """A worker takes its slot; if its last message still waits in a set, it joins once more after that."""
        if self.books.over:
            return
        at = self.lock.take(now)
        if self.books.join(worker, at, recorded):
            self.joining.add(worker)
        else:
            self.away.discard(worker)
            self.fetch(worker, at)

    def miss(self, worker: int, now: int) -> None:
        """A worker that is away is let go."""
        self.stamps.log(worker, UNKNOWN)
        if worker in self.joining:
            self.joining.remove(worker)
            self.join(worker, now)
