"""The parameter server without its arithmetic: versions, who goes on when, and what is on record.

The rules are those of `ParameterServer` in the engine of graphs. Nothing here knows how long anything takes: whoever
calls says who is next, and when that is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from ..contract.scheme import Scheme
from ..server.trace import EVENTS, RECORD
from .release import SetOfMessages, waiting_at
from .stamps import MICROSECOND

EXCHANGE, PUSH, PULL, JOIN = (EVENTS.index(name) for name in ("exchange", "push", "pull", "join"))


class Books:
    """The parameter server of a run. Times are in nanoseconds; an event returns who goes on, in ascending order.

    Args:
        scheme: the algorithm.
        workers: W.
        last_version: rounds of the worker with the most, after which a barrier ends the run; None if they are scripted.
        stop_at_version: the run ends with this update, whatever the gate.

    Attributes:
        version: updates of the center.
        messages: that were accepted one by one.
        folded: rounds of each worker that are on record, [W].
        over: True after the last update: what comes then is refused, and is not on record.

    Raises:
        UserError: the scheme's gate does not say who waits for whom.
    """

    def __init__(
        self, scheme: Scheme, workers: int, last_version: int | None = None, stop_at_version: int | None = None
    ):
        self.scheme, self.workers = scheme, workers
        self.waiting = waiting_at(scheme.gate, workers)
        self.in_sets = isinstance(self.waiting, SetOfMessages)
        self.picky = type(scheme).accepts is not Scheme.accepts
        ends = [stop_at_version, last_version if self.in_sets else None]
        self.last = min((end for end in ends if end is not None), default=None)
        self.version, self.messages, self.over = 0, 0, False
        self.pulled, self.folded = [0] * workers, [0] * workers
        self.rows = array("q")

    def trace(self) -> dict[str, np.ndarray]:
        """The events on record in order: columns [n], for each name of `RECORD`."""
        rows = np.array(self.rows, np.int64).reshape(-1, len(RECORD))
        return {name: rows[:, i].copy() for i, name in enumerate(RECORD)}

    # Events.

    def exchange(self, worker: int, now: int) -> Sequence[int]:
        """A message that wants a reply has arrived."""
        staleness = self.version - self.pulled[worker]
        if not self.in_sets:
            self._fold(worker, staleness, EXCHANGE, now)
        else:
            self._record(worker, staleness, staleness == 0, EXCHANGE, now)
            if staleness:  # dropped: the worker goes on at once
                return self._with_center((worker,))
        return self._let_go(self.waiting.arrive(worker, self.folded[worker]))

    def push(self, worker: int, now: int) -> Sequence[int]:
        """A message that wants no reply has arrived."""
        self._fold(worker, self.version - self.pulled[worker], PUSH, now)
        return (worker,)

    def pull(self, worker: int, now: int) -> Sequence[int]:
        """A worker reads the center."""
        self._record(worker, self.version - self.pulled[worker], False, PULL, now)
        return self._with_center((worker,))

    def reduce(self, now: int) -> Sequence[int]:
        """All workers have reduced their messages among themselves: each is on record, and they are one update."""
        for worker in range(self.workers):
            self._record(worker, 0, True, EXCHANGE, now)
        self._count(1)
        return self._with_center(range(self.workers))

    def step_alone(self, steps: int, now: int) -> Sequence[int]:
        """The one worker that is all there is has made a number of steps: each is an update."""
        self._record(0, 0, True, EXCHANGE, now)
        self._count(steps)
        return self._with_center((0,))

    def join(self, worker: int, now: int, recorded: bool = True) -> bool:
        """A worker takes its slot, with the present center; True if its last message still waits at the gate."""
        if recorded and self.version > 0:
            self.rows.extend((self.version, worker, 0, False, now // MICROSECOND, JOIN))
        self._with_center((worker,))
        return worker in self.waiting.arrived

    def leave(self, worker: int) -> Sequence[int]:
        """A worker has done all its rounds: nobody counts on it any more."""
        return self._let_go(self.waiting.leave(self.folded[worker]))

    # What they are made of.

    def _record(self, worker: int, staleness: int, accepted: bool, event: int, now: int) -> None:
        self.rows.extend((self.version, worker, staleness, accepted, now // MICROSECOND, event))
        self.folded[worker] = rounds = self.folded[worker] + 1
        self.waiting.counted(rounds)

    def _fold(self, worker: int, staleness: int, event: int, now: int) -> None:
        accepted = not self.picky or bool(self.scheme.accepts(float(staleness)))
        self._record(worker, staleness, accepted, event, now)
        if accepted:
            self.messages += 1
            self._count(self.messages % self.scheme.messages_per_update == 0)

    def _let_go(self, free: Sequence[int]) -> Sequence[int]:
        """Who goes on; where messages make an update together, that is because it has been made."""
        if free and self.in_sets:
            self._count(1)
        return self._with_center(free)

    def _with_center(self, workers: Sequence[int]) -> Sequence[int]:
        for worker in workers:
            self.pulled[worker] = self.version
        return workers

    def _count(self, updates: int) -> None:
        self.version += updates
        self.over = self.last is not None and self.version >= self.last
