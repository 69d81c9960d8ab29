"""The order of events in virtual time: a heap of what happens next, and the rules of the gates.

A worker computes; its message is ready, and travels; it is folded on the ps, which does one thing after the other; its
gate lets some workers go on; replies travel; and so on. Without a ps, all wait until the last message is ready, and
reduce them together.

The same arguments give the same order, to the bit: times are whole nanoseconds, what happens at the same time happens
by kind and worker, and how long something takes is a function of the seed, the worker and its round alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ..contract.rounds import Rounds
from ..contract.scheme import Scheme
from ..engine.trace import ROUND
from .books import MICROSECOND, Books
from .durations import Durations
from .platform import Platform

CHIEF = 0

UNKNOWN = -1

READY, ARRIVE = range(2)  # kinds of events, in the order in which they happen at the same time

SECOND = 10**9  # nanoseconds

PROGRESS_EVENTS = 4096  # between two calls of `progress`


@dataclass(frozen=True)
class Order:
    """What happens in a run, and when.

    Attributes:
        trace: the events on the ps in order: for each name of `RECORD` a column of integers, [n]; see `engine.trace`.
            Microseconds are of virtual time, since the start.
        rounds: of all workers, [m, len(ROUND)], in microseconds of virtual time.
        seconds: the virtual time of the end.
    """

    trace: Mapping[str, np.ndarray]
    rounds: np.ndarray
    seconds: float


def order(
    scheme: Scheme,
    platform: Platform,
    *,
    workers: int,
    rounds: Rounds,
    seed: int,
    message_bytes: float,
    reply_bytes: float,
    ps: int = 1,
    stop_at_version: int | None = None,
    progress: Callable[[int], None] = lambda events: None,
) -> Order:
    """The order of the events of a run.

    Args:
        scheme: the algorithm; asked for its gate, what it accepts, how long it warms up, and if it exchanges first.
        platform: the machines.
        workers: W.
        rounds: of each worker.
        seed: of all that is drawn.
        message_bytes: of a message.
        reply_bytes: of a reply, and of the center.
        ps: tasks that share the center.
        stop_at_version: ends the run with this update of the center.
        progress: is told now and then how many events have happened.

    Raises:
        UserError: the scheme's gate does not say who waits for whom.
    """
    course = Course(scheme, platform, workers, rounds, seed, stop_at_version)
    course.run(progress)
    return course.order()


class Course:
    """A run in virtual time."""

    def __init__(
        self,
        scheme: Scheme,
        platform: Platform,
        workers: int,
        rounds: Rounds,
        seed: int,
        stop_at_version: int | None = None,
    ):
        self.scheme, self.workers = scheme, workers
        self.steps, self.events = zip(*rounds, strict=True) if len(rounds) else ((), ())
        self.books = Books(scheme, workers, len(rounds), stop_at_version)
        self.compute = Durations(platform, rounds, workers, seed)
        self.heap: list[tuple[int, int, int]] = []
        self.begun, self.ready, self.arrived = [0] * workers, [0] * workers, [0] * workers
        self.together: list[int] = []  # without a ps: whose messages are ready
        self.waiting_for_chief = range(1, workers) if scheme.warmup_updates else range(0)
        self.rows, self.end = array("q"), 0
        self.ready_on = {True: self._reduce, False: self._arrive}[scheme.gate.exchanges and not scheme.gate.uses_ps]
        if not scheme.gate.exchanges:
            self.ready_on = self._step_alone

    def run(self, progress: Callable[[int], None]) -> None:
        """All events, to the end."""
        for worker in range(self.workers):
            if worker not in self.waiting_for_chief:
                self._begin(worker, 0)
        happened = 0
        while self.heap and not self.books.over:
            now, _, worker = heappop(self.heap)
            self.ready[worker] = now
            self.ready_on(worker, now)
            happened += 1
            if happened % PROGRESS_EVENTS == 0:
                progress(happened)

    def order(self) -> Order:
        """What has happened."""
        rows = np.array(self.rows, np.int64).reshape(-1, len(ROUND))
        rows[:, 2:] = np.where(rows[:, 2:] >= 0, rows[:, 2:] // MICROSECOND, UNKNOWN)
        return Order(self.books.trace(), rows, self.end / SECOND)

    # A round.

    def _begin(self, worker: int, now: int) -> None:
        """A worker begins its next round, if there is one."""
        done = self.books.folded[worker]
        self.begun[worker] = now
        if done < len(self.steps):
            before, _ = self._split(worker, done)
            heappush(self.heap, (now + before, READY, worker))
        else:
            self._reply(self.books.leave(worker), now)

    def _split(self, worker: int, done: int) -> tuple[int, int]:
        """How long a worker computes in a round before its message is ready, and after the reply."""
        total = self.compute.of(worker, done)
        before = total // self.steps[done] if self.scheme.exchange_first else total
        return before, total - before

    def _arrive(self, worker: int, now: int) -> None:
        """A message, or a question, is there on the ps."""
        event = self.events[self.books.folded[worker]]
        self.arrived[worker] = now
        free = getattr(self.books, event)(worker, now)
        self._reply(free, now)
        if self.waiting_for_chief and worker == CHIEF:
            self._start_others(now)

    def _reduce(self, worker: int, now: int) -> None:
        """Without a ps: the last message that is ready lets all be reduced together."""
        self.arrived[worker] = now
        self.together.append(worker)
        if len(self.together) == self.workers:
            self.together = []
            self._reply(self.books.reduce(now), now)

    def _step_alone(self, worker: int, now: int) -> None:
        """The one worker that is all there is has done the steps of a round."""
        self.arrived[worker] = now
        self._reply(self.books.step_alone(self.steps[self.books.folded[worker]], now), now)

    def _reply(self, free: Iterable[int], now: int) -> None:
        """Workers go on."""
        for worker in free:
            self._end_round(worker, now, now)

    def _end_round(self, worker: int, released: int, replied: int) -> None:
        done = self.books.folded[worker] - 1
        stamps = self.begun[worker], self.ready[worker], self.arrived[worker], released, replied
        self.rows.extend((worker, done, *stamps))
        _, after = self._split(worker, done)
        self.end = max(self.end, replied + after)
        if not self.books.over:
            self._begin(worker, replied + after)

    def _start_others(self, now: int) -> None:
        """Worker 0 has warmed up: the others start from what it has reached."""
        if self.books.version >= self.scheme.warmup_updates or self.books.folded[CHIEF] == len(self.steps):
            others, self.waiting_for_chief = self.waiting_for_chief, range(0)
            for worker in others:
                self.books.join(worker, now, recorded=False)
                self._begin(worker, now)
