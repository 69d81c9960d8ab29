"""Reasons to end a run early; one is a signal, whose name the launcher leaves in a file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..record.callbacks import STOP
from ..record.plot import accuracy_of
from ..reports import Report
from .job import Job

EVALUATION_SECONDS = 5.0  # for evaluations after the signal: a scheduler may kill all processes half a minute later

CHIEF_SECONDS = 17.0  # for the chief to stop the run between two rounds of all workers


def stop_file(job: Job) -> Path:
    """Return the file that asks for the end of the run: one for all joins of a script."""
    return (job.run_dir.parent if job.prefix else job.run_dir) / STOP


def interruption(job: Job) -> str:
    """Return the name of the signal that has interrupted the run; an empty text if none has."""
    return _asked(job) or ""


def _asked(job: Job) -> str | None:
    """Return what the file holds, the name of a signal, or nothing if a callback made it; None if there is no file."""
    with contextlib.suppress(FileNotFoundError):
        return stop_file(job).read_text()
    return None


def reason_to_stop(job: Job, version: Callable[[], int], metrics: dict[str, Any]) -> str | None:
    """Return the reason to end the run before its workers have done all their rounds, or None.

    Args:
        job: the run.
        version: returns the version of the center; called only if the options limit it.
        metrics: metrics of the newest evaluation.
    """
    last_version, wanted, reached = job.options.stop_at_version, job.options.stop_at_accuracy, accuracy_of(metrics)
    if last_version is not None and version() >= last_version:
        return f"version {last_version}"
    if wanted is not None and reached is not None and reached >= wanted:
        return f"accuracy {wanted}"
    reason = _asked(job)  # once: a signal between two looks at the file would be taken for a callback
    return "a callback" if reason == "" else reason


class Interruption:
    """The interruption of a run, which is reported when it is noticed.

    Args:
        job: the run.
        report: receives the event.

    Attributes:
        signal: name of the signal; empty until it is noticed.
    """

    def __init__(self, job: Job, report: Report):
        self.job, self.report, self.signal = job, report, ""
        self._began = 0.0

    def noticed(self) -> bool:
        """Return True if a signal has interrupted the run."""
        if not self.signal and (signal := interruption(self.job)):
            self.signal, self._began = signal, time.monotonic()
            self.report(event="leaving" if self.job.leaves else "interrupted", signal=signal)
        return bool(self.signal)

    def lasts(self, seconds: float) -> bool:
        """Return True if the run was interrupted so many seconds ago."""
        return self.noticed() and time.monotonic() - self._began > seconds

    def ends_evaluations(self) -> bool:
        """Return True if an evaluation is to be given up."""
        return self.lasts(EVALUATION_SECONDS)

    def awaits_chief(self) -> bool:
        """Return True while the chief may stop the run, after which it saves the last checkpoint."""
        sync, task = self.job.scheme.sync, self.job.cluster.task
        saves = not (sync.in_pairs or sync.in_regions) and (task is None or not task.separate_evaluator)
        return saves and not self.lasts(CHIEF_SECONDS)
