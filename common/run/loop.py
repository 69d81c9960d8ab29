"""The rounds of one worker, whatever happens to the others meanwhile."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..contract.rounds import Event
from ..errors import WaitTimeout
from ..lazy import tf
from ..reports import Report
from ..waiting import wait_until
from .barrier_wait import BarrierWait
from .calls import Connect
from .graph import TaskGraph
from .job import CHIEF, Job
from .local_state import Keeping, LocalState
from .progress import Progress
from .recovery import WorkerRecovery
from .saving import Saver, identity
from .standstill import Standstill
from .state_calls import StateCalls
from .state_manager import StateManager
from .worker_calls import WorkerCalls

LONG_ROUND_SECONDS = 0.05  # of CPU time: longer rounds gain nothing from being many in a call

LATE_ROUND_SECONDS = 0.25  # from end to end, however little the worker does in it: a call shall not take long, either


class WorkerLoop:
    """Runs the rounds of one worker in a session.

    Args:
        job: whose parts go to those who need them here.
        session: where the graph runs.
        graph: with this worker in it.
        index: of the worker.
        report: where events go.
        connect: makes a new session, given the seconds that it may take; none in a process that has only one.
    """

    def __init__(
        self, job: Job, session: Any, graph: TaskGraph, index: int, report: Report, connect: Connect | None = None
    ):
        self.plan, self.index, self.report = job.plan, index, report
        rule, recovery = job.restarts, job.recovery
        self.calls = WorkerCalls(session, graph, index, rule.wait_seconds, connect)
        stamps = job.files.stamps(index, job.scheme.exchange_first)
        self.progress = Progress(self.calls, self.plan, stamps, recovery.on_nan, report)
        self.barrier = BarrierWait(self.calls, rule, report)
        self.state: StateManager | None = None  # the chief has one
        keeping = Keeping(job, self.calls.mine.set_local.inputs)
        self.local = LocalState(self.calls, self.progress, keeping, job)
        if index == CHIEF:
            about = identity(self.plan, graph.initial)
            saver = Saver(about, job.run_dir, recovery, rule.wait_seconds, report, keeping)
            standstill = Standstill(keeping, lambda: self.calls.patience)
            self.state = StateManager(graph, saver, rule, self.calls.connect, report, standstill)
        self.recovery = WorkerRecovery(self.calls, self.progress, self.barrier, self.local, rule, report)

    def prepare(self) -> None:
        """Local variables; then the chief sees to the global ones."""
        self.calls.initialize(self.plan.shard(self.index))
        self.recovery.persist(self._meet_state)
        if self.state is not None:
            self.state.start()

    def join(self) -> None:
        """Take the slot; a worker whose last message waits for others waits here, until they have begun."""
        self.recovery.persist(self.recovery.join)

    def _meet_state(self) -> None:
        if self.state is not None:
            calls = self.calls
            self.state.claim(StateCalls(calls.session, calls.graph, calls.wait_seconds, calls.connect))
        self.calls.await_state()

    def await_others(self) -> None:
        """All workers start together, so that examples per second mean something."""
        self.recovery.persist(self.calls.await_start)

    def run(self, turn: Callable[[], None] = lambda: None) -> None:
        """All rounds, whatever happens to others meanwhile; before each call, `turn()` may wait."""
        self.progress.begin()
        over = False
        while not over:
            try:
                if not self.progress.stopping:
                    self._rounds(turn)
                self._finish()
                over = self.calls.await_shutdown(self.progress.restoration)
                if not over:  # the state was restored: some rounds are to be done again
                    self.recovery.join()
            except (tf.errors.OpError, WaitTimeout) as error:
                self.recovery.recover(error)
        self._depart()

    def _rounds(self, turn: Callable[[], None]) -> None:
        """The rounds that are left."""
        rounds, first = self.plan.batches(self.index, self.progress.rounds), self.progress.rounds
        most = self.plan.rounds_per_call
        count, tidy = 1, False  # single calls until one of them has been short; the first does not count: it warms up
        while True:
            self.local.between_calls()
            now = self.local.at_most(count)
            if not (chunk := list(itertools.islice(rounds, now))):
                return
            turn()
            if self.progress.rounds == 0 and self.index != CHIEF and self.plan.scheme.warmup_updates:
                self._await_warmup()
            began, used = time.monotonic(), time.process_time()
            batches, (event, *_) = zip(*chunk, strict=True)
            if len(chunk) == count and len(set(map(len, batches))) == 1:
                self._call(event, *batches)
            else:
                for rows in batches:
                    self._call(event, rows)
            if self.progress.rounds == 1:
                self.report(event="first_update", worker=self.index)
            elif self.progress.rounds > first + 1:
                if count < most and is_short(began, used):
                    count, tidy = self.local.stretch_calls(most), False
                elif not tidy:  # this kind of call has been made once
                    give_back_memory()
                    tidy = True
            if self.state is not None and self.state.failure is not None:
                raise self.state.failure

    def _call(self, event: Event, *batches: np.ndarray) -> None:
        """Rounds of the same length in one call; `batches` are their rows, [steps, batch size] each."""
        before = self.progress.rounds, self.progress.steps
        call = partial(self.calls.rounds, event, np.stack(batches), before)
        if self.calls.coordination.sees_waiting and not self.calls.longest:
            done = self.barrier.first(partial(call, limited=False))
        else:
            done = call()
        self.barrier.got_on()
        self.progress.count(batches, done)

    def _await_warmup(self) -> None:
        """Wait while worker 0 trains alone, then start from what it has reached."""

        def over() -> bool:
            return self.calls.version() >= self.plan.scheme.warmup_updates or self.calls.roll().finished[CHIEF]

        def progress() -> bool:
            return over() or self.calls.version() > seen

        seen = -1
        while not over():  # each update of worker 0 earns it more time
            seen = self.calls.version()
            wait_until(progress, self.calls.wait_seconds, lambda: "worker 0, which warms up")
        self.recovery.join(recorded=False)

    def _finish(self) -> None:
        self.local.end()
        self.calls.set_finished()
        if self.calls.coordination.sees_waiting and not self.plan.options.schedule and not self.progress.stopping:
            self.calls.deregister()
        self.progress.tell_end()

    def _depart(self) -> None:
        """The chief writes its last checkpoint when the others have stopped waiting for it."""
        save = self.state.end() if self.state is not None else lambda: None
        with contextlib.suppress(tf.errors.OpError):  # the ps may be gone already
            self.calls.depart()
        save()

    @property
    def saving_seconds(self) -> float:
        """How long the last checkpoint may take; 0 if there is none."""
        return self.state.saving_seconds if self.state is not None else 0.0


def is_short(began: float, used: float) -> bool:
    """True if a call that began then, when the process had used so much CPU time, was short enough for several in one.

    Where many workers share few cores, each is away for most of a round, and it is there that fewer calls help most.
    """
    passed, busy = time.monotonic() - began, time.process_time() - used
    return passed < LATE_ROUND_SECONDS and min(passed, busy) < LONG_ROUND_SECONDS


def give_back_memory() -> None:
    """Give what the runtime has needed to prepare its calls back to the system, where the C library knows how."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
