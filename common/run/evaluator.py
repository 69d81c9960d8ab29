"""The evaluator: follows the run from outside, keeps the record, and has the last word on the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..cluster.liveness import LifeSigns
from ..engine.failures import is_absence, is_refusal, was_repeated
from ..engine.trace import RECORD
from ..errors import WaitTimeout
from ..lazy import tf
from ..reports import Report
from .calls import Connect, ObserverCalls
from .ending import Ending
from .graph import TaskGraph
from .job import CHIEF, Job
from .observer import FOLLOW_SECONDS, Observer
from .record_reader import RecordReader
from .round_record import RoundRecord


class Evaluator:
    """Follows a run to its end.

    Args:
        job: whose parts go to those who need them here.
        session: where the graph runs.
        graph: with the Keras model.
        report: where events go.
        connect: makes a new session, given the seconds that it may take; none in a process that has only one.
    """

    def __init__(self, job: Job, session: Any, graph: TaskGraph, report: Report, connect: Connect | None = None):
        self.report, self.rule, self.workers = report, job.restarts, job.cluster.workers
        self.waits, self.warms_up = graph.coordination.waits, bool(job.scheme.warmup_updates)
        self.calls = ObserverCalls(session, graph, self.rule.wait_seconds, connect)
        self.signs = LifeSigns(self.rule.wait_seconds, own_pace=True)
        self._begin_again()
        self.reader = RecordReader(self.calls, job.files.event_log(self.workers), report, self._hear)
        self.observer = Observer(job, self.calls, self.reader, report)
        rounds = RoundRecord(job.files, job.plan, job.coordination, one_clock=job.cluster.task is None)
        self.ending = Ending(self.calls, self.observer, self.reader, rounds, job.stop_rule, report)
        self.failing: float | None = None  # since when calls fail
        self.unrestored: float | None = None  # since when the ps answers that its state is not clean
        self.chief_is_late = False

    def follow(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Evaluate now and then until all workers have finished (or `stopped()`), and once more then."""
        with self.reader:
            self.observer.evaluate()  # the first time is slow, and belongs before the training
            self.calls.await_state()
            self.observer.begin()
            self._follow(stopped)

    def _follow(self, stopped: Callable[[], bool]) -> None:
        while not stopped():
            try:
                roll = self.calls.roll()
                if self.failing:
                    self._begin_again()
                if (roll.finished | ~roll.active).all():
                    return self.ending.finish(self.observer.observe(last=True))
                if not self.observer.observe_if_due() and self.reader.late:
                    self.reader.drain()  # or learn why it cannot be done
                self._look_for_the_silent()
                self.ending.stop_if_wanted()
                self.failing, self.unrestored, self.chief_is_late = None, None, False
            except (tf.errors.OpError, WaitTimeout) as error:
                self._recover(error)
            time.sleep(FOLLOW_SECONDS)

    def _recover(self, error: BaseException) -> None:
        """Wait for state that is being restored; raise what cannot be helped."""
        now = time.monotonic()
        self.failing = self.failing or now
        deadline = self.failing + self.rule.repair_seconds
        hopeless = isinstance(error, WaitTimeout) or not (is_refusal(error) or is_absence(error))
        if not (self.rule.recovers or was_repeated(error)) or now > deadline or hopeless:
            raise error
        if is_refusal(error) or isinstance(error, tf.errors.FailedPreconditionError):  # else it is the ps that is late
            self.unrestored = self.unrestored or now
            if now - self.unrestored > self.calls.wait_seconds and not self.chief_is_late:
                self.chief_is_late = True
                self.report(event="silent", worker=CHIEF)  # it restores the state, unless it has been stopped itself
        if not is_refusal(error):
            self.calls.reconnect(max(1.0, deadline - now))

    def _begin_again(self) -> None:
        """All have time from now on: where the ps was away, nobody could send anything."""
        for k in range(self.workers):
            self.signs.expect(k)

    def _hear(self, events: np.ndarray) -> None:
        """A look at the record has shown new events, [n, len(RECORD)], or none: rounds are signs of life."""
        self.signs.look()
        for k in np.unique(events[:, RECORD.index("worker")]):
            self.signs.heard(int(k))

    def _look_for_the_silent(self) -> None:
        """A worker that has sent nothing for very long: evicted if enough are left, or started again by somebody."""
        if self.waits:  # those who wait at the barrier see to it
            return
        for k, seconds in self.signs.silent().items():
            if k not in self.signs.gaps and self.warms_up:
                continue  # waits for worker 0
            roll = self.calls.roll()
            if roll.finished[k] or not roll.active[k]:
                continue
            self.report(event="silent", worker=k)
            left = int(roll.active.sum()) - 1
            if left >= max(1, self.rule.min_workers or self.workers):
                self.calls.evict(k)
                self.report(event="evicted", worker=k)
            elif not self.rule.recovers or self.signs.complain(k):
                raise WaitTimeout(f"worker {k} has sent nothing for {seconds:.0f} s")
