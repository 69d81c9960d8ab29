"""The observer: what the evaluator sees of the center, and what comes out of it on the test data."""

from __future__ import annotations

import time
from typing import Any

from ..files import finite
from ..record.event_log import Tally
from ..reports import Report
from ..waiting import paced
from .calls import ObserverCalls
from .center_path import CenterPath, Moment, even_choice
from .evaluation import Evaluation
from .figures import Figures
from .job import Job
from .milestone_reader import MilestoneReader
from .path_keeper import Cost, PathKeeper
from .record_reader import RecordReader

FOLLOW_SECONDS = 0.05  # a look at the ps costs it about a millisecond

EVALUATION_SHARE = 10  # the pause between two evaluations is ten times an evaluation: a tenth of one core at most

LONGEST_PAUSE_SECONDS = 30.0  # between two evaluations of a long run that could do more

PASSED_BY_DEFAULT, PASSED_AT_MOST = 60, 1000  # centers on the way that are kept, if nothing is said and if it is

UNASKED_FLOATS = 1 << 25  # of all centers that are kept, if nothing is said: 128 MB

ENOUGH = 40  # evaluations during a run make a curve: nothing is kept any more, unless that was asked for

LATER_SECONDS, LATER_SHARE = 5.0, 0.1  # for what was not asked for, after a run: CPU time, or this part of its time

Snapshot = dict[str, Any]  # see `ObserverCalls.snapshot`


class Observer:
    """Looks at the center from outside and evaluates it, now or at the end of the run.

    Args:
        job: whose parts it takes: the test data, when to evaluate, what figures are of.
        calls: what it asks of the ps.
        reader: of the record.
        report: where events go.

    Attributes:
        evaluate: on the test data; `measures` if there are any.
        milestones: centers that the ps sets aside, as long as they are wanted; where it does not, there is `path`.
        metrics: of the newest evaluation: version, examples, bytes, staleness, and Keras' of the test data.
        seen: what the record held at the newest look.
    """

    def __init__(self, job: Job, calls: ObserverCalls, reader: RecordReader, report: Report):
        self.calls, self.reader, self.report = calls, reader, report
        self.initial, model = calls.graph.initial, calls.graph.model
        self.every, self.later, self.seconds = job.options.evaluate_every, job.evaluate_later, job.evaluate_seconds
        self.evaluate, self.measures = Evaluation(model, job.test), job.test is not None
        self.figures = Figures(job.plan, job.traffic(model))
        self.seen = Tally(job.cluster.workers)
        self.metrics: dict[str, Any] = {}
        self.told: dict[str, Any] = {}  # the metrics that were reported last of a center during the run
        multiples, most = calls.graph.multiples, PASSED_BY_DEFAULT if self.every is None else PASSED_AT_MOST
        self.milestones = None if multiples is None else MilestoneReader(calls, reader, self.figures, multiples.every)
        if job.test is None or self.milestones:  # the ps does it better
            most = 0
        size = model.size + model.state_size
        most = most if self.every else min(most, UNASKED_FLOATS // size)
        self.path = CenterPath(self.every or 1, most, size)
        self.evaluated: list[tuple[int, float]] = []  # versions and when that was, as long as centers are kept
        self.keeper = PathKeeper(calls, self.path, self._kept_moment)
        self.due, self.evaluating = 0.0, Cost()  # the first look is at where it starts
        self.summaries = job.files.summaries()

    def begin(self) -> None:
        """The training begins."""
        self.began = time.monotonic()

    def _kept_moment(self, snapshot: Snapshot) -> Moment:
        return self._moment(snapshot, time.monotonic(), self.reader.drain())

    def _moment(self, snapshot: Snapshot, when: float, seen: Tally) -> Moment:
        """The center, if it was looked at, with what the run added up to then."""
        figures = {"version": int(snapshot["at"]), **self.figures.of(seen)}
        if "center" not in snapshot:
            return Moment(when, figures, {})
        evaluated = {"center": snapshot.get("average", snapshot["center"]), "state": snapshot["state"]}
        return Moment(when, figures, evaluated)

    def observe_if_due(self) -> bool:
        """Evaluate the center if it is time to."""
        if self.later or (before := time.monotonic()) < self.due:
            return False
        self.observe()
        now = time.monotonic()
        self.evaluating.add(now - before)
        self.due = now + self._pause(now - self.began)
        return True

    def _pause(self, elapsed: float) -> float:
        """Seconds to the next evaluation: the longer the run, the rarer, so that a long one has not too many."""
        share = EVALUATION_SHARE * self.evaluating.seconds
        return max(self.seconds, share, paced(elapsed, LONGEST_PAUSE_SECONDS))

    def observe(self, last: bool = False) -> Snapshot:
        """Read center and record, evaluate and report; at the end, also what was kept on the way.

        Without test data nobody needs the center on the way, only how far it is.
        """
        snapshot = self.calls.snapshot() if last or self.measures else {"at": self.calls.version()}
        when, self.seen = time.monotonic(), self.reader.drain()
        if not last and int(snapshot["at"]) == self.told.get("version"):
            return snapshot  # no update since: each version is reported once
        moment = self._moment(snapshot, when, self.seen)
        if last:
            self._catch_up(moment)
        self._evaluate(moment, "center")
        if self.path.room or self.milestones:
            self.evaluated.append((moment.version, moment.when))
        if len(self.evaluated) >= ENOUGH and self.every is None:
            self.path.close()
            self.milestones = None
        return snapshot

    def _evaluate(self, moment: Moment, event: str) -> None:
        """Evaluate a center, and report it, unless the last one that was reported is the same."""
        measured = self.evaluate(moment.snapshot)
        self.metrics = moment.figures | measured
        if moment.version == self.told.get("version") and finite(measured).items() <= finite(self.told).items():
            return
        if event == "center":
            self.told = self.metrics
        self.report(event=event, when=moment.when, **self.metrics)
        if self.summaries:
            self.summaries.write(self.metrics)

    def _catch_up(self, end: Moment) -> None:
        """Evaluate the path; if nobody has asked for it, an even choice that takes little time."""
        known = dict(self.evaluated) | {end.version: end.when}
        passed = self.milestones.read(known) if self.milestones else self.path.close()
        moments = [moment for moment in passed if moment.version not in known]
        if self.later:
            moments = [self._origin(), *(moment for moment in moments if moment.version)]
        elif moments and self.every is None:
            moments = even_choice(moments, self._affordable(end))
        for moment in moments:
            self._evaluate(moment, "passed")

    def _origin(self) -> Moment:
        """What the workers began with."""
        center, state = self.initial
        figures = {"version": 0, "examples": 0, "bytes_pushed": 0, "bytes_pulled": 0}
        return Moment(self.began, figures, {"center": center, "state": state})

    def _affordable(self, end: Moment) -> int:
        """Centers that may be evaluated after the run, if nobody has asked for it."""
        began = time.process_time()  # where the machine is busy, an evaluation may seem to take many times as long
        self.evaluate(end.snapshot)
        seconds = max(LATER_SECONDS, LATER_SHARE * (end.when - self.began))
        return int(seconds / (time.process_time() - began))
