"""The end of a run: why it comes early, the result and its files, and the last word to workers and ps tasks."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

from ..errors import Diverged, WaitTimeout
from ..lazy import tf
from ..reports import Report
from ..waiting import POLL_SECONDS
from .calls import ObserverCalls
from .observer import Observer, Snapshot
from .record_reader import RecordReader
from .results import unwritten, write_center, write_model
from .round_record import RoundRecord
from .stopping import StopRule

END_SECONDS = 5.0  # for workers to leave

CHIEF_WAITS = 3  # times the limit of a wait: to read the last state (two), and to see that it is on record


class Ending:
    """Ends a run, early if the rule says so, and writes its files."""

    def __init__(
        self,
        calls: ObserverCalls,
        observer: Observer,
        reader: RecordReader,
        rounds: RoundRecord,
        rule: StopRule,
        report: Report,
    ):
        self.calls, self.observer, self.reader, self.report = calls, observer, reader, report
        self.graph, self.rounds, self.rule = calls.graph, rounds, rule
        self.stopped = False
        self.told_to_stop = 0  # workers that are not counted on any more, and still have to leave

    def stop_if_wanted(self) -> None:
        """End the run early: the workers are refused, ask why, and leave."""
        if self.stopped or not self.graph.coordination.uses_ps:
            return
        reason = self.rule.reason(self.calls.version, self.observer.metrics)
        if reason is None:
            return
        self.stopped = True
        self.told_to_stop = self.calls.present()
        self.calls.stop()
        self.report(event="stopped", reason=reason)

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
        missing = self._write_results({name: value for name, value in snapshot.items() if name != "at"}, folded)
        self._shut_down()
        self.report(
            event="result",
            steps=self.observer.figures.steps(folded),
            updates=metrics["version"],
            share_of_updates=seen.shares,
            round=None if self.rounds.shares is None else self.rounds.shares.as_dict(),
            waiting_seconds=self.rounds.waiting,
            dropped=seen.dropped,
            refused={str(k): int(n) for k, n in enumerate(refused) if n},
            staleness_histogram={str(t): n for t, n in sorted(seen.staleness.items())},
            unwritten=missing,
            **metrics,
        )
        self.calls.end_ps()

    def _write_results(self, arrays: dict[str, Any], folded: np.ndarray) -> list[str]:
        """Center, model, rounds and trace; returns why some of them are not there."""
        files, version = self.rounds.files, self.observer.metrics["version"]
        writes = [
            lambda: write_center(files.folder, arrays),
            lambda: write_model(files.folder, self.graph.model, arrays),
            lambda: self.reader.give(lambda log: self.rounds.write(log, folded, version)),
        ]
        if files.every_round:
            writes.append(lambda: self.reader.give(lambda log: log.save(files.folder / "trace.npz")))
        return unwritten(writes)

    def _shut_down(self) -> None:
        """The result is safe: the workers may go. A restoration in this very moment would have called them back."""
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
