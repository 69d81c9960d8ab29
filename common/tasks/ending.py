"""The end of a run: early stopping, the result and its files, and the shutdown of workers and ps tasks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np

from ..errors import WaitTimeout
from ..lazy import tf
from ..reports import Report
from ..sync import losses
from ..waiting import POLL_SECONDS, awake
from .calls import ObserverCalls
from .interruption import reason_to_stop
from .job import Job
from .observer import Observer, Snapshot
from .recorder import RecordReader
from .results import check_finite, result_of, unwritten, write_center, write_initial, write_model
from .round_record import RoundRecord

END_SECONDS = 5.0  # time limit for workers to leave

BESIDES = ("at", "refused")  # in a snapshot, besides the arrays of center.npz

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
        self.interruption = observer.interruption
        self.kept: Snapshot = {}  # the last one whose center was written ...
        self.missing: list[str] = []  # the reasons for which the center could not be read
        self.graph, self.rounds = calls.graph, RoundRecord(job)
        self.stopped = False
        self.at_once = False  # the workers continue after a stop: without a ps the launcher ends them
        self.stopped_workers = 0  # workers that were removed from the active set, and still have to leave

    def stop_if_wanted(self) -> bool:
        """End the run early if there is a reason to: the ps refuses messages, and the workers leave.

        Returns:
            True if the run ends, or has been interrupted.
        """
        if self.stopped:
            return True
        if self.interruption.noticed():
            if not self.kept:
                self.stopped_workers = self.calls.present()
                self._keep(self.calls.snapshot())
            if self.job.leaves:
                return False  # until the launcher ends this task: the others continue the run
            if self.calls.is_stopped() or not self.interruption.awaits_chief():
                self._stop(self.interruption.signal)
            return True
        if self.graph.sync.uses_ps or self.job.script:
            reason = reason_to_stop(self.job, self.calls.version, self.observer.metrics)
            if reason is not None:
                self._stop(reason)
        return self.stopped

    def _stop(self, reason: str) -> None:
        self.stopped = True
        self.stopped_workers = self.stopped_workers or self.calls.present()
        if self.graph.sync.uses_ps:
            self.calls.stop()
        else:
            self.at_once = not self.calls.is_stopped()  # by the chief, after a round of all workers
        self.report(event="stopped", reason=reason)

    def keep_last(self, snapshot: Snapshot) -> None:
        """Write the center of the end before its evaluations, which may take longer than a scheduler waits."""
        if np.isfinite(snapshot["center"]).all():  # else `finish` ends the run
            self._keep(snapshot)

    def _keep(self, snapshot: Snapshot) -> None:
        """Write a center before all else: after a signal, a scheduler may kill all processes before the end."""
        version = int(snapshot["at"])
        check_finite(snapshot["center"], version)
        self.kept, self.missing = snapshot, unwritten(self._writes_of_center(snapshot))
        self.observer.figures.learn(self.calls)
        figures = self.observer.figures.of(self.reader.drain(), version)
        figures |= self.observer.figures.losses
        self.report(event="kept", version=version, **figures)  # a second signal may leave no later result

    def finish(self, snapshot: Snapshot) -> None:
        """Write the results, let the workers leave, report the result, end the ps tasks.

        Raises:
            Diverged: the center is not finite.
        """
        if self.interruption.noticed() and not self.stopped and self.calls.is_stopped():
            self._stop(self.interruption.signal)  # the chief has stopped the run
        metrics, tally = self.observer.metrics, self.observer.tally
        check_finite(snapshot["center"], metrics["version"])
        self.observer.figures.learn(self.calls)
        refused = snapshot["refused"]
        lost = self.calls.lost_workers()
        # Read the rounds from the ps, as the record in this task may have a gap.
        rounds_applied = self.calls.rounds_applied() - losses.away(lost)
        missing = self._write_results(snapshot, rounds_applied, self.calls.ends())
        if not self.at_once:
            self._shut_down()
        if self.job.scheme.sync.most_left_out(self.job.cluster.workers):
            for worker, number in enumerate(refused):
                if number:
                    self.report(event="left_out", worker=worker, number=int(number))
        self.report(
            event="result",
            **self.observer.figures.steps_made(rounds_applied),
            **self.observer.figures.losses,
            lost_workers=losses.described(lost),
            refused={str(k): int(n) for k, n in enumerate(refused) if n},
            **result_of(tally, self.rounds.spent, missing, metrics),
        )
        if self.job.script is None or not self.job.ps:  # a script may join another run on the same ps tasks
            self.calls.end_ps()

    def _write_results(self, snapshot: Snapshot, rounds_applied: np.ndarray, ends: np.ndarray) -> list[str]:
        """Write center, model, rounds and trace; return the reasons for which some could not be written."""
        folder = self.rounds.folder
        if self.kept is not snapshot:
            self.missing = unwritten(self._writes_of_center(snapshot))
        writes = [lambda: self.reader.read(lambda log: self.rounds.write(log, rounds_applied, ends))]
        if self.rounds.every_round:
            writes.append(lambda: self.reader.read(lambda log: log.save(folder / "trace.npz")))
            writes.append(lambda: write_initial(folder, self.observer.initial[0]))
        return self.missing + unwritten(writes)

    def _writes_of_center(self, snapshot: Snapshot) -> list[Callable[[], None]]:
        """Return the functions that write center and Keras model."""
        folder, model = self.rounds.folder, self.graph.model
        arrays = {name: value for name, value in snapshot.items() if name not in BESIDES}
        writes = [lambda: write_center(folder, arrays)]
        if model.model is not None:
            writes.append(lambda: write_model(folder, model, arrays))
        return writes

    def _shut_down(self) -> None:
        """Let the workers leave, as the result is on disk. Errors do not matter: a restoration calls workers back."""
        with contextlib.suppress(tf.errors.OpError, WaitTimeout):
            expected = max(self.calls.shut_down(), self.stopped_workers)
            soon = limit_with_chief = awake.now() + END_SECONDS
            if not (self.interruption.signal or (self.stopped and self.job.script)):
                limit_with_chief = awake.now() + CHIEF_WAITS * self.calls.wait_seconds

            def waits() -> bool:
                """Return True while workers have yet to leave; the chief needs longer, for its last checkpoint."""
                departed, chief = self.calls.departed()
                return departed < expected and awake.now() < (soon if chief else limit_with_chief)

            while waits():
                self.reader.drain()  # the chief's last checkpoint waits until its events are on disk
                time.sleep(POLL_SECONDS)
