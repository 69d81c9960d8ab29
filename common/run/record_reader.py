"""The record reader: takes the events over from the ps, in a thread of its own."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Callable

import numpy as np

from ..record.event_log import EventLog, Tally
from ..reports import Report
from .calls import ObserverCalls

DRAIN_SECONDS = 0.5  # between two looks at the record

LATE_SECONDS = 2.0

LEAVE_SECONDS = 1.0  # for a look that is under way at the end; one that is stuck ends with the process


class RecordReader:
    """Takes the events over from the ps, in a thread of its own: however long an evaluation takes, none wait there.

    Args:
        calls: of the evaluator.
        log: the events on disk.
        report: where events go.
        note: is given what each look has found, [n, len(RECORD)] events, or none.
    """

    def __init__(self, calls: ObserverCalls, log: EventLog, report: Report, note: Callable[[np.ndarray], None]):
        self.calls, self.log, self.report, self.note = calls, log, report, note
        self.lacking = 0  # events that were in a file which was lost
        self.followed = False  # the restoration that was met first has been told
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
            with contextlib.suppress(Exception):  # the evaluator meets the same in its own call, and knows what to do
                self.drain()

    @property
    def late(self) -> bool:
        """True if nothing could be taken over for long."""
        return time.monotonic() - self._drained > LATE_SECONDS

    def drain(self) -> Tally:
        """Take over what is new, write it, and only then let the ps forget it; returns what all add up to."""
        with self._lock:
            new = self.calls.drain()
            if not self.followed:
                self.followed = True
                self.report(event="followed", restoration=new.restoration)
            if new.restoration != self.log.restoration:
                self._go_back(new.restoration, new.length)
            written = len(self.log) + self.lacking
            if new.before > written:
                self.lacking += new.before - written
                self.report(event="warning", message=f"the record lacks {self.lacking} events: its file was lost")
            if len(new.events):
                fresh = new.events[max(0, written - new.before) :]  # without those that a lost evaluator has written
                self.log.append(fresh)
                self.calls.acknowledge(new.restoration, new.before + len(new.events))
            self.note(new.events)
            self._drained = time.monotonic()
            return copy.deepcopy(self.log.tally)

    def give(self, action: Callable[[EventLog], None]) -> None:
        """Give all events to `action`; none are added meanwhile."""
        with self._lock:
            action(self.log)

    def _go_back(self, restoration: int, length: int) -> None:
        """Forget what a restoration has undone, or what another run has left in the same folder."""
        undone, counted = self.log.truncate(restoration, length)
        self.lacking = 0
        if undone:
            self.report(event="undone", updates=undone, restoration=restoration)
        if counted:
            message = f"the record is off: {counted} events that were undone remain in the counts of this run"
            self.report(event="warning", message=message)
