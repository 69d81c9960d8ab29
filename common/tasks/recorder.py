"""The record reader: moves the events from the ps to disk, in a thread."""

from __future__ import annotations

import contextlib
import copy
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..record.event_log import EventLog, Tally
from ..reports import Report
from .calls import ObserverCalls

DRAIN_SECONDS = 0.5  # between two reads of the trace

LATE_SECONDS = 2.0

LEAVE_SECONDS = 1.0  # limit for a read that is under way at the end; one that hangs ends with the process


class RecordReader:
    """A thread that moves events from the ps to disk, so that they do not pile up there during long evaluations.

    Args:
        calls: calls of the evaluator.
        log: the events on disk.
        report: receives events.
        note: called with the result of each read, [n, len(ROW)] events, n perhaps 0.

    Attributes:
        ago: offset from the clock of the events to `time.monotonic`, as the quickest read has shown it.
    """

    def __init__(self, calls: ObserverCalls, log: EventLog, report: Report, note: Callable[[np.ndarray], None]):
        self.calls, self.log, self.report, self.note = calls, log, report, note
        self.ago = math.inf
        self.lacking = 0  # number of events in a file that was lost
        self.followed = False  # the first restoration number has been reported
        self._lock = threading.Lock()
        self._drained = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._drain_now_and_then, daemon=True)

    def __enter__(self) -> RecordReader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LEAVE_SECONDS)

    def _drain_now_and_then(self) -> None:
        while not self._over.wait(DRAIN_SECONDS):
            with contextlib.suppress(Exception):  # the evaluator's own calls meet the same error and handle it
                self.drain()

    @property
    def is_overdue(self) -> bool:
        """True if no read has succeeded for long."""
        return time.monotonic() - self._drained > LATE_SECONDS

    def drain(self) -> Tally:
        """Read new events from the ps, append them to disk, then acknowledge them; return the totals of all events."""
        with self._lock:
            new = self.calls.drain()
            self.ago = min(self.ago, time.monotonic() - new.now / 1e6)
            if not self.followed:
                self.followed = True
                self.report(event="followed", restoration=new.restoration)
            if new.restoration != self.log.restoration:
                self._undo(new.restoration, new.length)
            written = len(self.log) + self.lacking
            if new.before > written:
                self.lacking += new.before - written
                self.report(event="warning", message=f"the record lacks {self.lacking} events: its file was lost")
            if len(new.events):
                fresh = new.events[max(0, written - new.before) :]  # a lost evaluator may have written some already
                self.log.append(fresh)
                self.calls.acknowledge(new.restoration, new.before + len(new.events))
            self.note(new.events)
            self._drained = time.monotonic()
            return copy.deepcopy(self.log.tally)

    def read(self, action: Callable[[EventLog], Any]) -> Any:
        """Return the result of `action` on all events; none are added meanwhile."""
        with self._lock:
            return action(self.log)

    def _undo(self, restoration: int, length: int) -> None:
        """Delete the events that a restoration has undone, or that another run has left in the same folder."""
        undone, counted = self.log.truncate(restoration, length)
        self.lacking = 0
        if undone:
            self.report(event="undone", updates=undone, restoration=restoration)
        if counted:
            message = f"the record is off: {counted} events that were undone remain in the counts of this run"
            self.report(event="warning", message=message)
