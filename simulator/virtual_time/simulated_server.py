"""The simulated parameter server, without arithmetic: versions, releases of workers, and the event log.

The rules are those of `server.parameter_server.ParameterServer`. Each event is passed with its worker and time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np

from ...common.contract.scheme import Scheme
from ...common.record_format import EVENTS, RECORD
from ...common.sequencer import Effect, Sequencer
from ...common.server.trace import ROUND, UNKNOWN
from .program import ROUNDS, Actions

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
        start: starts a worker after the warm start.
        last_version: most rounds of a worker, after which a barrier ends the run; None if the order is scripted.
        stop_at_version: version that ends the run with any synchronization rule.

    Attributes:
        sequencer: decides what a message does, and who continues.
        actions: what is to be computed.

    Raises:
        UserError: the scheme's synchronization rule has no rule that can be simulated.
    """

    def __init__(
        self,
        scheme: Scheme,
        workers: int,
        start: Callable[[int], None],
        last_version: int | None = None,
        stop_at_version: int | None = None,
    ):
        self.scheme, self.workers, self.start = scheme, workers, start
        self.sequencer = sequencer = Sequencer(scheme, workers, self._note)
        self.actions = Actions(scheme.sync, workers)
        ends = [stop_at_version, last_version if sequencer.in_sets and scheme.sync.late == "drop" else None]
        self.last = min((end for end in ends if end is not None), default=None)
        self.event, self.now = EXCHANGE, 0  # of the event that is being processed
        self.mixed = 0  # the latest time at which a round of gossip has ended
        self.rows = array("q")

    @property
    def over(self) -> bool:
        """True after the last update: later messages are refused, and are not recorded."""
        return self.last is not None and self.sequencer.version >= self.last

    def trace(self) -> dict[str, np.ndarray]:
        """Return the recorded events in order: columns [n], for each name of `RECORD`."""
        rows = np.array(self.rows, np.int64).reshape(-1, len(RECORD))
        return {name: rows[:, i].copy() for i, name in enumerate(RECORD)}

    def exchange(self, worker: int, now: int) -> Sequence[int]:
        """Process a message that needs a reply."""
        self.event, self.now = EXCHANGE, now
        return self.sequencer.exchange(worker)

    def push(self, worker: int, now: int) -> Sequence[int]:
        """Process a message that needs no reply."""
        self.event, self.now = PUSH, now
        return self.sequencer.push(worker)

    def pull(self, worker: int, now: int) -> Sequence[int]:
        """Send the center to a worker."""
        self.event, self.now = PULL, now
        return self.sequencer.pull(worker)

    def reduce(self, now: int) -> Sequence[int]:
        """Record a message of each worker; reduced among themselves, they make one update."""
        *others, last = range(self.workers)
        for worker in others:
            self.exchange(worker, now)
        return self.exchange(last, now)

    def gossip(self, worker: int, now: int) -> None:
        """Count a round of a worker that has its neighbours' messages; record the round once all workers have done it.

        The center, their mean, has its update then.
        """
        self.sequencer.recorded[worker] += 1
        self.mixed = max(self.mixed, now)
        if min(self.sequencer.recorded) > self.sequencer.version:
            for k in range(self.workers):
                self._record(k, 0, True, self.mixed, EXCHANGE)
                self.actions.note("add", k)
            self.actions.note("close", worker)
            self.sequencer.count(1)
            self.sequencer.reply(range(self.workers))

    def between_servers(self, event: int, region: int, now: int) -> None:
        """Record the arrival of a message between a region's server and the global one, which counts for no worker."""
        self._record(region, 0, False, now, event)
        self.actions.note(EVENTS[event], region)

    def step_alone(self, steps: int, now: int) -> None:
        """Record a round of a single worker, which exchanges nothing: each of its steps is an update."""
        self._record(0, 0, True, now, EXCHANGE)
        self.actions.note("alone", 0)
        self.sequencer.step_alone(steps)

    def join(self, worker: int, now: int, log: bool = True) -> bool:
        """Give a worker its slot and the present center; return True if its last message still waits for others."""
        if log and self.sequencer.version > 0:
            self._record(worker, 0, False, now, JOIN)
            self.actions.note("join", worker)
        self.sequencer.join(worker)
        return worker in self.sequencer.waiting.arrived

    def _note(self, effect: Effect, worker: int, _: int) -> None:
        """Record an effect of a message or a pull; start a worker after the warm start."""
        if effect in ROUNDS:
            self._record(worker, self.sequencer.staleness(worker), effect in ("merge", "add"), self.now, self.event)
        self.actions.note(effect, worker)
        if effect == "start":
            self.start(worker)

    def _record(self, worker: int, staleness: int, accepted: bool, now: int, event: int) -> None:
        self.rows.extend((self.sequencer.version, worker, staleness, accepted, now // MICROSECOND, event))
