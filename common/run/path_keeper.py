"""Keeps the path of the center, in a thread of its own: however long an evaluation takes, the run is followed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .calls import ObserverCalls
from .center_path import CenterPath, Moment

SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.01, 1.0  # between two looks at the version

LOOK_SHARE = 4  # after a look at the center, a pause of four times as long; there are few: see `CenterPath`

PACE_SHARE = 10  # nothing is foreseen for longer than this part of the time that the pace is known for

LEAVE_SECONDS = 1.0  # for a look that is under way at the end; one that is stuck ends with the process


class Cost:
    """What something takes: the least that was seen, as the machine may be busy; the first time does not count."""

    def __init__(self):
        self.times, self.seconds = 0, 0.0  # 0 as long as it is not known

    def add(self, seconds: float) -> None:
        """Once more."""
        self.times += 1
        if self.times > 1:
            self.seconds = seconds if self.times == 2 else min(self.seconds, seconds)


def copied(moment: Moment) -> Moment:
    """Return a moment that may be kept for long: memory that others share is to be free again soon."""
    return replace(moment, snapshot={name: np.array(vector) for name, vector in moment.snapshot.items()})


class PathKeeper:
    """Looks at the version when the next multiple should be there, and has the center kept.

    Args:
        calls: of the evaluator.
        path: where centers are kept.
        moment: what is kept of a snapshot.
    """

    def __init__(self, calls: ObserverCalls, path: CenterPath, moment: Callable[[dict[str, Any]], Moment]):
        self.calls, self.path, self.moment = calls, path, moment
        self.keeping = Cost()
        self.first: float | None = None  # when it was looked for the first time
        self.changed = 0.0, 0  # when another version was seen, and which
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PathKeeper:
        if self.path.room:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_SECONDS)

    def _run(self) -> None:
        with contextlib.suppress(Exception):  # the evaluator meets the same in its own call, and knows what to do
            self.calls.await_state()
            self.calls.version()  # the first call of each kind is slow, and belongs before the training
            self.moment(self.calls.snapshot())
        pause = SHORTEST_PAUSE_SECONDS
        while self.path.room and not self._over.wait(pause):
            pause = LONGEST_PAUSE_SECONDS
            with contextlib.suppress(Exception):
                pause = self.look()

    def look(self) -> float:
        """Keep the center if it has come to the next multiple; returns the seconds to the next look."""
        now = time.monotonic()
        version = self.calls.version()
        pause = SHORTEST_PAUSE_SECONDS
        if self.path.wants(version):
            self.path.keep(copied(self.moment(self.calls.snapshot())))
            self.keeping.add(time.monotonic() - now)
            pause = max(pause, LOOK_SHARE * self.keeping.seconds)
        return max(pause, self.ahead(now, version))

    def ahead(self, now: float, version: int) -> float:
        """Seconds until the next multiple should be there, at the pace of late; at first that is not known."""
        if self.first is None:
            self.first, self.changed = now, (now, version)
        (before, was), seconds = self.changed, 0.0
        if version == was:
            seconds = (now - before) / PACE_SHARE  # what has not moved for long may take longer still
        else:
            self.changed = now, version
        if version > was > 0:
            seconds = (self.path.next - version) * (now - before) / (version - was)
        return min(seconds, (now - self.first) / PACE_SHARE, LONGEST_PAUSE_SECONDS)
