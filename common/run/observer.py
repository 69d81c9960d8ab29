"""The observer: what the evaluator sees of the center, and what comes out of it on the test data."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ..problems.models import batched
from ..record.event_log import Tally
from ..record.tensorboard import Summaries
from ..reports import Report
from ..waiting import paced
from .calls import ObserverCalls
from .figures import Figures
from .record_reader import RecordReader
from .results import load

FOLLOW_SECONDS = 0.05  # a look at the ps costs it about a millisecond

EVALUATION_SHARE = 10  # the pause between two evaluations is ten times an evaluation: a tenth of one core at most

EVALUATION_BATCH = 512

LONGEST_PAUSE_SECONDS = 30.0  # between two evaluations of a long run that could do more

LATER_EVALUATIONS = 60

Snapshot = dict[str, Any]  # see `ObserverCalls.snapshot`


class Observer:
    """Looks at the center from outside and evaluates it, now or at the end of the run.

    Attributes:
        metrics: of the newest evaluation: version, examples, bytes, staleness, and Keras' of the test data.
        seen: what the record held at the newest look.
    """

    def __init__(self, calls: ObserverCalls, reader: RecordReader, report: Report):
        self.calls, self.reader, self.report = calls, reader, report
        self.graph, self.job = calls.graph, calls.graph.job
        self.test = self.job.test  # as a data set of batches
        if self.test is not None:
            self.test = self.test() if callable(self.test) else batched(self.test, EVALUATION_BATCH)
        self.figures = Figures(self.job, self.graph.model.size, self.graph.model.state_size)
        self.seen = Tally(self.job.cluster.workers)
        self.metrics: dict[str, Any] = {}
        self.path: list[tuple[float, dict[str, Any], Snapshot]] = []  # when, figures, center: not evaluated yet
        self.gap = FOLLOW_SECONDS  # between two looks that are evaluated later
        self.due, self.cost = 0.0, float("inf")  # the first look is at where it starts, and slow
        self.summaries = Summaries(self.job.run_dir / "tb") if self.job.options.tensorboard else None

    def begin(self) -> None:
        """The training begins. If evaluations wait for its end, the path begins with what the workers began with."""
        self.began = time.monotonic()
        if self.job.evaluate_later:
            center, state = self.graph.initial
            origin = {"version": 0, "examples": 0, "bytes_pushed": 0, "bytes_pulled": 0}
            self.path.append((self.began, origin, {"center": center, "state": state}))

    def observe_if_due(self) -> bool:
        """Observe if it is time to."""
        if (before := time.monotonic()) < self.due:
            return False
        self.observe()
        now = time.monotonic()
        self.cost = min(self.cost, now - before) if self.due else self.cost
        self.due = now + self._pause(now - self.began)
        return True

    def _pause(self, elapsed: float) -> float:
        """Seconds to the next evaluation: the longer the run, the rarer, so that a long one has not too many."""
        if self.job.evaluate_later:
            return self.gap
        share = EVALUATION_SHARE * self.cost if self.cost < float("inf") else 0
        return max(self.job.evaluate_seconds, share, paced(elapsed, LONGEST_PAUSE_SECONDS))

    def observe(self, last: bool = False) -> Snapshot:
        """Read center and record; evaluate and report, now or at the end."""
        snapshot = self.calls.snapshot()
        self.seen = self.reader.drain()
        figures = {"version": int(snapshot["at"]), **self.figures.of(self.seen)}
        self.path.append((time.monotonic(), figures, snapshot))
        if len(self.path) > 2 * LATER_EVALUATIONS:
            del self.path[1:-1:2]
            self.gap *= 2
        if last or not self.job.evaluate_later:
            self._catch_up()
        return snapshot

    def _catch_up(self) -> None:
        """Evaluate and report what has been seen, or an even choice if it is much; first and last are among it."""
        chosen = np.unique(np.linspace(0, len(self.path) - 1, min(len(self.path), LATER_EVALUATIONS)).round())
        for when, figures, snapshot in (self.path[int(i)] for i in chosen):
            self.metrics = figures | self.evaluate(snapshot)
            self.report(event="center", when=when, **self.metrics)
            if self.summaries:
                self.summaries.write(self.metrics)
        self.path.clear()

    def evaluate(self, snapshot: Snapshot | None = None) -> dict[str, float]:
        """Keras' metrics on the test data: of a snapshot, or of the model as it is."""
        if self.test is None:
            return {}
        if snapshot is not None:
            load(self.graph.model, snapshot)
        return self.graph.model.measure(self.test)
