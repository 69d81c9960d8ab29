"""The evaluator: a task that follows the run, keeps the record, and writes the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from ..cluster.failure_detector import FailureDetector
from ..errors import WaitTimeout
from ..lazy import tf
from ..record_format import RECORD
from ..reports import Report
from ..server.failures import is_absence, is_refusal, was_repeated
from ..waiting import awake
from .calls import Connect, ObserverCalls
from .curvature import probe
from .ending import Ending
from .grace_clock import GraceClock
from .graph import TaskGraph
from .job import CHIEF, Job
from .observer import FOLLOW_SECONDS, Observer
from .recorder import RecordReader
from .uplinks import Uplinks


class Evaluator:
    """The task that follows a run to its end.

    Args:
        job: the run.
        session: the session that runs the graph.
        graph: the graph, with the Keras model.
        report: receives events.
        connect: makes a new session, given the seconds that it may take; None in a process that has only one.
    """

    def __init__(self, job: Job, session: Any, graph: TaskGraph, report: Report, connect: Connect | None = None):
        self.report, self.rule, self.workers = report, job.restarts, job.cluster.workers
        # A script may take any time for its steps; if its process does not run, the launcher notices.
        self.others_notice = graph.sync.waits or job.script is not None
        self.warms_up = bool(job.scheme.sync.warm_start)
        self.calls = ObserverCalls(session, graph, self.rule.wait_seconds, connect)
        self.detector = FailureDetector(self.rule.wait_seconds, own_pace=True)
        self._begin_again()
        self.reader = RecordReader(self.calls, job.event_log(), report, self._hear)
        self.clock: Any = GraceClock(self.calls) if graph.sync.grace else nullcontext()
        self.uplinks = Uplinks(self.calls, job.regions)
        self.observer = Observer(job, self.calls, self.reader, report)
        self.ending = Ending(job, self.calls, self.observer, self.reader, report)
        self.probe = partial(probe, job, graph.model, report)
        self.failing: float | None = None  # time of the first of consecutive failed calls
        self.unrestored: float | None = None  # time since which the ps answers that its state is not clean
        self.chief_is_late = False

    def follow(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Evaluate repeatedly until all workers have finished (or `stopped()`), and once more then."""
        with self.reader, self.clock:
            self.observer.warm_up()
            self.probe()
            self.calls.await_state()
            self.observer.begin()
            self.report(event="observing")
            self.uplinks.start()
            try:
                self._follow(stopped)
            finally:
                self.uplinks.end()

    def _follow(self, stopped: Callable[[], bool]) -> None:
        while not stopped():
            self.uplinks.check()  # not repeated: a message that was interrupted is lost
            try:
                workers = self.calls.worker_flags()
                if self.failing:
                    self._begin_again()
                if self.ending.at_once or (workers.finished | ~workers.active).all():
                    self.uplinks.finish()
                    return self.ending.finish(self.observer.observe(last=True, keep=self.ending.keep_last))
                if not self.ending.stop_if_wanted():
                    if not self.observer.observe_if_due() and self.reader.is_overdue:
                        self.reader.drain()  # raises the error that stops the reader's thread
                    self._look_for_the_silent()
                self.failing, self.unrestored, self.chief_is_late = None, None, False
            except (tf.errors.OpError, WaitTimeout) as error:
                self._recover(error)
            time.sleep(FOLLOW_SECONDS)

    def _recover(self, error: BaseException) -> None:
        """Wait while the state is being restored; re-raise errors from which the run cannot recover."""
        now = awake.now()
        self.failing = self.failing or now
        deadline = self.failing + self.rule.repair_seconds
        hopeless = isinstance(error, WaitTimeout) or not (is_refusal(error) or is_absence(error))
        if not (self.rule.recovers or was_repeated(error)) or now > deadline or hopeless:
            raise error
        if is_refusal(error) or isinstance(error, tf.errors.FailedPreconditionError):  # otherwise the ps is late
            self.unrestored = self.unrestored or now
            if now - self.unrestored > self.calls.wait_seconds and not self.chief_is_late:
                self.chief_is_late = True
                self.report(event="silent", worker=CHIEF)  # the chief restores the state, so it may have stopped
        if not is_refusal(error):
            self.calls.reconnect(max(1.0, deadline - now))

    def _begin_again(self) -> None:
        """Restart the time limit of all workers: while the ps was away, none could send a message."""
        for k in range(self.workers):
            self.detector.expect(k)

    def _hear(self, events: np.ndarray) -> None:
        """Note a sign of life of each worker with a round among the new events, [n, len(ROW)]."""
        self.detector.poll()
        for k in np.unique(events[:, RECORD.index("worker")]):
            self.detector.heard(int(k))

    def _look_for_the_silent(self) -> None:
        """Report workers that have sent nothing for very long, and evict them if enough others are left."""
        if self.others_notice:  # the workers that wait at the barrier do
            return
        for k, seconds in self.detector.silent().items():
            if k not in self.detector.gaps and self.warms_up:
                continue  # this worker still waits for the warm-up of worker 0
            workers = self.calls.worker_flags()
            if workers.finished[k] or not workers.active[k]:
                continue
            self.report(event="silent", worker=k)
            left = int(workers.active.sum()) - 1
            if left >= max(1, self.rule.min_workers or self.workers):
                self.calls.evict(k)
                self.report(event="evicted", worker=k)
            elif not self.rule.recovers or self.detector.complain(k):
                raise WaitTimeout(f"worker {k} has sent nothing for {seconds:.0f} s")
