"""The end of a run: why it comes early, the result and its files, and the last word to workers and ps tasks."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

from ..errors import Diverged, WaitTimeout
from ..record.callbacks import STOP
from ..record.plot import accuracy_of
from ..reports import Report
from ..waiting import POLL_SECONDS
from .calls import ObserverCalls
from .observer import Observer, Snapshot
from .record_reader import RecordReader
from .results import unwritten, write_center, write_model
from .round_record import RoundRecord

END_SECONDS = 5.0  # for workers to leave

CHIEF_WAITS = 3  # times the limit of a wait: to read the last state (two), and to see that it is on record


class Ending:
    """Ends a run."""

    def __init__(self, calls: ObserverCalls, observer: Observer, reader: RecordReader, report: Report):
        self.calls, self.observer, self.reader, self.report = calls, observer, reader, report
        self.graph, self.job = calls.graph, calls.graph.job
        self.stopped = False
        self.told_to_stop = 0  # workers that are not counted on any more, and still have to leave

    def stop_if_wanted(self) -> None:
        """End the run early: the workers are refused, ask why, and leave."""
        if self.stopped or not self.job.uses_ps or (reason := self._reason_to_stop()) is None:
            return
        self.stopped = True
        self.told_to_stop = self.calls.present()
        self.calls.stop()
        self.report(event="stopped", reason=reason)

    def _reason_to_stop(self) -> str | None:
        version, accuracy = self.job.options.stop_at_version, self.job.options.stop_at_accuracy
        reached = accuracy_of(self.observer.metrics)
        if version is not None and self.calls.version() >= version:
            return f"version {version}"
        if accuracy is not None and reached is not None and reached >= accuracy:
            return f"accuracy {accuracy}"
        return "a callback" if (self.job.run_dir / STOP).exists() else None

    def finish(self, snapshot: Snapshot) -> None:
        """Write what the run produced, let the workers go, report the result, end the ps tasks.

        Raises:
            Diverged: the center is not finite.
        """
        metrics, seen = self.observer.metrics, self.observer.seen
        if not np.isfinite(snapshot["center"]).all():
            raise Diverged(
                f"the center is not finite, at version {metrics['version']}: a step was too long. Try a smaller "
                "learning rate or period"
            )
        refused = snapshot.pop("refused")
        folded = self.calls.recorded_rounds()  # the record here may have a gap
        rounds = RoundRecord(self.job, folded, metrics["version"])
        missing = self._write_results({name: value for name, value in snapshot.items() if name != "at"}, rounds)
        self._shut_down()
        self.report(
            event="result",
            steps=self.observer.figures.steps(folded),
            updates=metrics["version"],
            share_of_updates=seen.shares,
            round=None if rounds.shares is None else rounds.shares.as_dict(),
            waiting_seconds=rounds.waiting,
            dropped=seen.dropped,
            refused={str(k): int(n) for k, n in enumerate(refused) if n},
            staleness_histogram={str(t): n for t, n in sorted(seen.staleness.items())},
            unwritten=missing,
            **metrics,
        )
        self.calls.end_ps()

    def _write_results(self, arrays: dict[str, Any], rounds: RoundRecord) -> list[str]:
        """Center, model, rounds and trace; returns why some of them are not there."""
        run_dir = self.job.run_dir
        writes = [lambda: write_center(run_dir, arrays), lambda: write_model(run_dir, self.graph.model, arrays)]
        writes.append(lambda: self.reader.give(rounds.write))
        if self.job.options.record == "full":
            writes.append(lambda: self.reader.give(lambda log: log.save(run_dir / "trace.npz")))
        return unwritten(writes)

    def _shut_down(self) -> None:
        """The result is safe: the workers may go. A restoration in this very moment would have called them back."""
        import tensorflow as tf

        with contextlib.suppress(tf.errors.OpError, WaitTimeout):
            expected = max(self.calls.shut_down(), self.told_to_stop)
            soon = time.monotonic() + END_SECONDS
            late = time.monotonic() + CHIEF_WAITS * self.calls.wait_seconds

            def waits() -> bool:
                """True while somebody should still leave; the chief takes its last checkpoint along."""
                departed, chief = self.calls.departed()
                return departed < expected and time.monotonic() < (soon if chief else late)

            while waits():
                self.reader.drain()  # the chief's last checkpoint waits for that
                time.sleep(POLL_SECONDS)
