"""The end of a run: early stopping, the result and its files, and the shutdown of workers and ps tasks."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

from ..errors import WaitTimeout
from ..lazy import tf
from ..reports import Report
from ..sync import losses
from ..waiting import POLL_SECONDS, awake
from .calls import ObserverCalls
from .job import Job
from .observer import Observer, Snapshot
from .recorder import RecordReader
from .results import check_finite, result_of, unwritten, write_center, write_initial, write_model
from .round_record import RoundRecord

END_SECONDS = 5.0  # time limit for workers to leave

CHIEF_WAITS = 3  # times the limit of a wait: two to read the last state, one until its events are on disk


class Ending:
    """The end of a run, early if there is a reason to stop, and its files.

    Args:
        job: the run.
        calls: the evaluator's calls to the ps.
        observer: the observer, which has the newest evaluation.
        reader: reader of the record.
        report: receives events.
    """

    def __init__(self, job: Job, calls: ObserverCalls, observer: Observer, reader: RecordReader, report: Report):
        self.job, self.calls, self.observer, self.reader, self.report = job, calls, observer, reader, report
        self.graph, self.rounds = calls.graph, RoundRecord(job)
        self.stopped = False
        self.stopped_workers = 0  # workers that were removed from the active set, and still have to leave

    def stop_if_wanted(self) -> None:
        """End the run early if there is a reason to: the ps refuses messages, and the workers leave."""
        if self.stopped or not (self.graph.sync.uses_ps or self.job.script):
            return
        reason = self.job.reason_to_stop(self.calls.version, self.observer.metrics)
        if reason is None:
            return
        self.stopped = True
        self.stopped_workers = self.calls.present()
        if self.graph.sync.uses_ps:
            self.calls.stop()
        self.report(event="stopped", reason=reason)

    @property
    def at_once(self) -> bool:
        """True if the workers continue after a stop: without a parameter server the launcher ends them."""
        return self.stopped and not self.graph.sync.uses_ps

    def finish(self, snapshot: Snapshot) -> None:
        """Write the results, let the workers leave, report the result, end the ps tasks.

        Raises:
            Diverged: the center is not finite.
        """
        metrics, seen = self.observer.metrics, self.observer.seen
        check_finite(snapshot["center"], metrics["version"])
        refused = snapshot.pop("refused")
        lost = self.calls.lost_workers()
        # Read the rounds from the ps, as the record in this task may have a gap.
        rounds_applied = self.calls.rounds_applied() - losses.away(lost)
        arrays = {name: value for name, value in snapshot.items() if name != "at"}
        missing = self._write_results(arrays, rounds_applied, self.calls.ends())
        if not self.at_once:
            self._shut_down()
        if self.job.scheme.most_hostile(self.job.cluster.workers):
            for worker, number in enumerate(refused):
                if number:
                    self.report(event="left_out", worker=worker, number=int(number))
        self.report(
            event="result",
            **self.observer.figures.steps_made(rounds_applied),
            lost_workers=losses.described(lost),
            refused={str(k): int(n) for k, n in enumerate(refused) if n},
            **result_of(seen, self.rounds.spent, missing, metrics),
        )
        if self.job.script is None or not self.job.ps:  # a script may join another run on the same ps tasks
            self.calls.end_ps()

    def _write_results(self, arrays: dict[str, Any], rounds_applied: np.ndarray, ends: np.ndarray) -> list[str]:
        """Write center, model, rounds and trace; return the reasons for which some could not be written."""
        folder = self.rounds.folder
        writes = [
            lambda: write_center(folder, arrays),
            lambda: self.reader.read(lambda log: self.rounds.write(log, rounds_applied, ends)),
        ]
        if self.graph.model.model is not None:
            writes.append(lambda: write_model(folder, self.graph.model, arrays))
        if self.rounds.every_round:
            writes.append(lambda: self.reader.read(lambda log: log.save(folder / "trace.npz")))
            writes.append(lambda: write_initial(folder, self.observer.initial[0]))
        return unwritten(writes)

    def _shut_down(self) -> None:
        """Let the workers leave, as the result is on disk. Errors do not matter: a restoration calls workers back."""
        with contextlib.suppress(tf.errors.OpError, WaitTimeout):
            expected = max(self.calls.shut_down(), self.stopped_workers)
            soon = late = awake.now() + END_SECONDS
            if not (self.stopped and self.job.script):
                late = awake.now() + CHIEF_WAITS * self.calls.wait_seconds

            def waits() -> bool:
                """Return True while workers have yet to leave; the chief needs longer, for its last checkpoint."""
                departed, chief = self.calls.departed()
                return departed < expected and awake.now() < (soon if chief else late)

            while waits():
                self.reader.drain()  # the chief's last checkpoint waits until its events are on disk
                time.sleep(POLL_SECONDS)
