"""Saving of checkpoints: when one is written, and when it is valid."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import WaitTimeout, first_line
from ..record import checkpoint
from ..reports import Report
from ..server.answers import NONE
from ..server.failures import is_absence, is_late, is_refusal
from ..waiting import awake
from .local_layout import from_bytes
from .local_state import Keeping
from .options import Recovery
from .plan import Plan
from .state_calls import StateCalls

# The last checkpoint at the end of a run may take the longest of these times.
FIRST_SAVE_SECONDS = 60.0

SAVE_PATIENCE = 10  # times the longest write so far

SLOW_DISK = 1e6  # its size at so many bytes per second

LOOK_SECONDS = 0.02  # between two polls of the events that the evaluator has logged


class Saver:
    """The saver of checkpoints, periodic and at the end. A thread writes them; a failure to write ends no run.

    A checkpoint is published only when the trace of the run up to it is on the disk. It is discarded if the state was
    restored between its reading and its publication: it would hold updates that the run has undone.

    Args:
        about: values that must be equal in a run that resumes from a checkpoint.
        run_dir: folder with the checkpoints.
        recovery: options of checkpoints.
        wait_seconds: limit of a wait.
        report: receives events.
        keeping: the part of the workers' local states to save.

    Attributes:
        saving_seconds: seconds that the last checkpoint may take; 0 if none is written.
    """

    def __init__(
        self,
        about: Mapping[str, Any],
        run_dir: Path,
        recovery: Recovery,
        wait_seconds: float,
        report: Report,
        keeping: Keeping,
    ):
        self.about, self.run_dir, self.recovery, self.wait_seconds = about, run_dir, recovery, wait_seconds
        self.report, self.keeping = report, keeping
        self.saved_at, self.version = time.monotonic(), -1  # of the last checkpoint, saved or restored
        self.saving_seconds = 0.0
        self.longest = 0.0  # seconds of the slowest write so far
        self.restorations = 0
        self.publishing = threading.Lock()  # excludes restorations during a publication
        self.writer: threading.Thread | None = None  # one at a time
        self.interrupted = False  # the last checkpoint is that of an interrupted run
        self.reported_failure = False  # of the last checkpoint
        self.reported_missing: list[int] = []  # workers whose local state was not in the last checkpoint

    def void(self) -> None:
        """Invalidate checkpoints that were read but not published yet: the state is about to be restored."""
        with self.publishing:
            self.restorations += 1

    def restored(self, version: int) -> None:
        """Note that the state is now that of the checkpoint of this version."""
        self.saved_at, self.version = time.monotonic(), version

    def is_due(self, connect: Callable[[], StateCalls]) -> bool:
        """Return True if it is time to save, and the center has changed since the last checkpoint."""
        if self.keeping.without_checkpoints:
            return False
        by_time = time.monotonic() - self.saved_at >= self.recovery.seconds
        every = self.recovery.checkpoint_steps
        if not (by_time or every) or (self.writer is not None and self.writer.is_alive()):
            return False
        now = connect().version()
        return now > max(self.version, 0) and (by_time or now >= max(self.version, 0) + (every or 0))

    def save(self, calls: StateCalls) -> None:
        """Save the present state; a failure to read it is only reported, but the errors of a lost ps are raised."""
        self.saved_at = time.monotonic()
        restorations = self.restorations
        try:
            state = self._state(calls)
        except Exception as error:
            if is_absence(error) and not is_late(error):
                raise
            return self._complain(f"a version after {max(self.version, 0)}", error)
        if restorations == self.restorations:
            self.restored(state.version)
        self.writer = threading.Thread(target=self.write, args=(state, calls, restorations), daemon=True)
        self.writer.start()

    def save_first(self, calls: StateCalls) -> None:
        """Save the initial state, as a task may be lost at once; block for half of a wait at most."""
        self.save(calls)
        if self.writer is not None:
            self.writer.join(self.wait_seconds / 2)

    def save_last(self, connect: Callable[[], StateCalls], wanted: bool = False) -> Callable[[], None]:
        """Read the last state, if a checkpoint of it is requested; return a function that writes it without the ps.

        It is also `wanted` of a script that has left its loop after a signal.
        """
        if self.interrupted and self.writer is not None:
            return self.writer.join
        is_enabled = self.recovery.checkpoint_seconds is not None or self.recovery.checkpoint_steps is not None
        if self.interrupted or not (is_enabled or wanted or self.version >= 0):
            return lambda: None
        return self._begin_last(connect)

    def save_interrupted(self, calls: StateCalls) -> None:
        """Save the state of a run that a signal has interrupted, in place of `save_last`; the caller has stopped it."""
        self.interrupted = True
        write = self._begin_last(lambda: calls)
        self.writer = threading.Thread(target=write, daemon=True)
        self.writer.start()

    def _begin_last(self, connect: Callable[[], StateCalls]) -> Callable[[], None]:
        try:
            calls = connect()
            state = self._state(calls, last=True)
            self.await_record(calls, state.events)
        except Exception as error:
            self._complain("the end", error)
            return lambda: None
        busy = self.writer if self.writer is not None and self.writer.is_alive() else None
        size = sum(array.nbytes for array in state.arrays.values())
        seconds = max(FIRST_SAVE_SECONDS, SAVE_PATIENCE * self.longest, size / SLOW_DISK)
        self.saving_seconds = seconds * (1 + (busy is not None))
        self.report(event="saving", version=state.version, seconds=self.saving_seconds)

        def write() -> None:
            if busy is not None:
                busy.join()
            self.write(state)

        return write

    def _state(self, calls: StateCalls, last: bool = False) -> checkpoint.Checkpoint:
        """Read the global state, and the copies of local states after the same rounds."""
        values, missing, keeping = calls.values(), [], self.keeping
        arrays = dict(values)
        for worker, rounds in enumerate(values["rounds_applied"] if keeping.bytes else ()):
            copied, copy = calls.copy_of(worker) if rounds and keeping.keeps else (NONE, b"")
            if copied == rounds:
                arrays |= {checkpoint.local_name(worker, name): part for name, part in from_bytes(copy).items()}
            elif rounds:
                missing.append(worker)
        if missing and missing != self.reported_missing and (keeping.why_not or not last):
            why = keeping.why_not or "they did not come in time"
            message = f"{self.without(int(values['version']), missing)}: {why}. A resumed run begins with it anew"
            self.report(event="warning", message=message)
        self.reported_missing = missing
        return checkpoint.Checkpoint(arrays, dict(self.about))

    def without(self, version: int, workers: Sequence[int]) -> str:
        """Return the message that the local state of these workers is not in a checkpoint."""
        owners = "all workers" if len(workers) == self.about["workers"] else ", ".join(f"worker {k}" for k in workers)
        return (
            f"the checkpoint of version {version} is without the local state ({self.keeping.layout.names}) of {owners}"
        )

    def write(
        self, state: checkpoint.Checkpoint, calls: StateCalls | None = None, restorations: int | None = None
    ) -> None:
        """Write a checkpoint.

        Args:
            state: its content.
            calls: used to wait until the trace up to it is on the disk; None if that is already so.
            restorations: number of restorations when the state was read; after another one it is discarded.
        """
        try:
            with self._written(state) as part:
                counts = calls is None or self.await_record(calls, state.events)
                with self.publishing:  # no restoration can begin between the check and the publication
                    if not counts or restorations not in (None, self.restorations):
                        return checkpoint.discard(part)
                    checkpoint.publish(part, self.recovery.keep_checkpoints)
        except Exception as error:  # a full disk ends no run
            return self._complain(f"version {state.version}", error, unsaved=state.version)
        self.reported_failure = False
        self.report(event="checkpoint", version=state.version)

    @contextmanager
    def _written(self, state: checkpoint.Checkpoint) -> Iterator[Path]:
        """Yield a complete checkpoint under a temporary name; discard it if the block raises."""
        began = time.monotonic()
        part = checkpoint.write(self.run_dir, state)
        self.longest = max(self.longest, time.monotonic() - began)
        try:
            yield part
        except Exception:
            checkpoint.discard(part)
            raise

    def await_record(self, calls: StateCalls, events: int) -> bool:
        """Block until the evaluator has logged that many events; return False if the state was lost meanwhile."""
        deadline = awake.now() + self.wait_seconds
        while calls.acknowledged() < events:
            if not calls.alive().all():
                return False
            if awake.now() > deadline:
                raise WaitTimeout(f"the evaluator has not logged its events for {self.wait_seconds:g} s")
            time.sleep(LOOK_SECONDS)
        return True

    def _complain(self, subject: str, error: Exception, **version: int) -> None:
        """Report a missing checkpoint, unless the one before failed, too, or a peer was lost, which others report."""
        lost = is_refusal(error) or (is_absence(error) and not is_late(error))
        if not (self.reported_failure or lost):
            self.reported_failure = True
            self.report(event="warning", message=f"no checkpoint of {subject}: {first_line(error)}", **version)


def identity(plan: Plan, initial: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    """Return the values of plan, center and state that must be equal in a run that resumes from a checkpoint."""
    center, state = initial
    return {
        "algorithm": plan.scheme.name,
        "parameters": len(center),
        "state": len(state),
        "workers": plan.workers,
        "batch_size": plan.options.batch_size,
        "seed": plan.options.seed,
        "skew": plan.options.skew,
        "participation": plan.options.participation,
    }
