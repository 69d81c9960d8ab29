"""The simulated parameter server, without arithmetic: versions, releases of workers, and the event log.

The rules are those of `server.parameter_server.ParameterServer`. Each event is passed with its worker and time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from ...common.contract.scheme import Scheme
from ...common.record_format import EVENTS, RECORD
from ...common.server.trace import ROUND, UNKNOWN
from ...common.sync.release import SetOfMessages, waiting_at

EXCHANGE, PUSH, PULL, JOIN, UP, DOWN = range(len(EVENTS))

MICROSECOND = 1000  # nanoseconds


class RoundTimings:
    """The timestamps of the present round of each worker, [W] each, and the rows of finished rounds.

    Attributes:
        begun, ready, computed, arrived, released: see `server.trace`; in nanoseconds.
        logged: number of finished rounds of each worker.
    """

    def __init__(self, workers: int):
        self.begun, self.ready, self.computed, self.arrived, self.released = ([0] * workers for _ in range(5))
        self.logged = [0] * workers
        self.rows = array("q")

    def log(self, worker: int, replied: int) -> None:
        """Log a finished round; `replied` is the time of its reply, or `UNKNOWN` if the worker never gets one."""
        computed = UNKNOWN if replied == UNKNOWN else self.computed[worker]  # the next message would bring both
        moments = self.begun[worker], self.ready[worker], computed, self.arrived[worker], self.released[worker]
        self.rows.extend((worker, self.logged[worker], *moments, replied))
        self.logged[worker] += 1

    def rounds(self) -> np.ndarray:
        """Return all finished rounds, [m, len(ROUND)], in microseconds."""
        rows = np.array(self.rows, np.int64).reshape(-1, len(ROUND))
        rows[:, 2:] = np.where(rows[:, 2:] >= 0, rows[:, 2:] // MICROSECOND, UNKNOWN)
        return rows


class SimulatedServer:
    """The parameter server of a run. Times are in nanoseconds; events return the released workers, in ascending order.

    Args:
        scheme: the algorithm.
        workers: W.
        last_version: most rounds of a worker, after which a barrier ends the run; None if the order is scripted.
        stop_at_version: version that ends the run with any synchronization rule.

    Attributes:
        version: number of updates of the center.
        messages: number of messages that were accepted one by one.
        recorded: number of recorded rounds of each worker, [W].
        over: True after the last update: later messages are refused, and are not recorded.

    Raises:
        UserError: the scheme's synchronization rule has no rule that can be simulated.
    """

    def __init__(
        self, scheme: Scheme, workers: int, last_version: int | None = None, stop_at_version: int | None = None
    ):
        self.scheme, self.workers = scheme, workers
        self.waiting = waiting_at(scheme.sync, workers)
        self.in_sets = isinstance(self.waiting, SetOfMessages)
        self.may_drop = type(scheme).accepts is not Scheme.accepts
        ends = [stop_at_version, last_version if self.in_sets and scheme.sync.late == "drop" else None]
        self.last = min((end for end in ends if end is not None), default=None)
        self.version, self.messages, self.over = 0, 0, False
        self.pulled, self.recorded = [0] * workers, [0] * workers
        self.mixed = 0  # the latest time at which a round of gossip has ended
        self.rows = array("q")

    def trace(self) -> dict[str, np.ndarray]:
        """Return the recorded events in order: columns [n], for each name of `RECORD`."""
        rows = np.array(self.rows, np.int64).reshape(-1, len(RECORD))
        return {name: rows[:, i].copy() for i, name in enumerate(RECORD)}

    # Events.

    def exchange(self, worker: int, now: int) -> Sequence[int]:
        """Process a message that needs a reply."""
        staleness = self.version - self.pulled[worker]
        if not self.in_sets:
            self._apply(worker, staleness, EXCHANGE, now)
        else:
            counts = staleness == 0 or self.scheme.sync.late == "count"
            self._record(worker, staleness, counts, EXCHANGE, now)
            if not counts:  # dropped: the worker continues at once
                return self._with_center((worker,))
        return self._release(self.waiting.arrive(worker, self.recorded[worker]))

    def push(self, worker: int, now: int) -> Sequence[int]:
        """Process a message that needs no reply."""
        self._apply(worker, self.version - self.pulled[worker], PUSH, now)
        return (worker,)

    def pull(self, worker: int, now: int) -> Sequence[int]:
        """Send the center to a worker."""
        self._record(worker, self.version - self.pulled[worker], False, PULL, now)
        return self._with_center((worker,))

    def reduce(self, now: int) -> Sequence[int]:
        """Record a message of each worker; reduced among themselves, they make one update."""
        for worker in range(self.workers):
            self._record(worker, 0, True, EXCHANGE, now)
        self._count(1)
        return self._with_center(range(self.workers))

    def gossip(self, worker: int, now: int) -> None:
        """Count a round of a worker that has its neighbours' messages; record the round once all workers have done it.

        The center, their mean, has its update then.
        """
        self.recorded[worker] += 1
        self.mixed = max(self.mixed, now)
        if min(self.recorded) > self.version:
            for k in range(self.workers):
                self.rows.extend((self.version, k, 0, True, self.mixed // MICROSECOND, EXCHANGE))
            self._count(1)

    def between_servers(self, event: int, region: int, now: int) -> None:
        """Record the arrival of a message between a region's server and the global one, which counts for no worker."""
        self.rows.extend((self.version, region, 0, False, now // MICROSECOND, event))

    def step_alone(self, steps: int, now: int) -> Sequence[int]:
        """Record a round of a single worker, which exchanges nothing: each of its steps is an update."""
        self._record(0, 0, True, EXCHANGE, now)
        self._count(steps)
        return self._with_center((0,))

    def join(self, worker: int, now: int, log: bool = True) -> bool:
        """Give a worker its slot and the present center; return True if its last message still waits for others."""
        if log and self.version > 0:
            self.rows.extend((self.version, worker, 0, False, now // MICROSECOND, JOIN))
        self._with_center((worker,))
        return worker in self.waiting.arrived

    def leave(self, worker: int) -> Sequence[int]:
        """Remove a worker that has done all its rounds: the others no longer wait for it."""
        return self._release(self.waiting.leave(self.recorded[worker]))

    def end_grace(self) -> Sequence[int]:
        """Close the set that has waited for more messages than it needs."""
        assert isinstance(self.waiting, SetOfMessages)  # noqa: S101
        return self._release(self.waiting.end_grace())

    # Parts of events.

    def _record(self, worker: int, staleness: int, accepted: bool, event: int, now: int) -> None:
        self.rows.extend((self.version, worker, staleness, accepted, now // MICROSECOND, event))
        self.recorded[worker] = rounds = self.recorded[worker] + 1
        self.waiting.counted(rounds)

    def _apply(self, worker: int, staleness: int, event: int, now: int) -> None:
        accepted = not self.may_drop or bool(self.scheme.accepts(float(staleness)))
        self._record(worker, staleness, accepted, event, now)
        if accepted:
            self.messages += 1
            self._count(self.messages % self.scheme.messages_per_update == 0)

    def _release(self, free: Sequence[int]) -> Sequence[int]:
        """Return the released workers with the center; if messages make updates together, count the update first."""
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
