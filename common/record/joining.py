"""The join of the workers' timestamps with the events on the ps: a row for each logged round.

The n-th event of a worker, not counting those in which it only takes its slot, is its n-th round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ..server.trace import ROUND, UNKNOWN
from .event_log import KIND, MICROSECONDS, VERSION, WORKER
from .releases import JOIN, Releases
from .round_log import ARRIVED, BEGUN, NUMBER, READY, RELEASED, REPLIED, Shares, TimeTotals
from .round_log import WORKER as WHO
from .stamp_file import StampReader


class Join:
    """Joins the rounds of a run, one chunk of events at a time.

    Args:
        releases: release rule of the gate.
        stamps: timestamps of each worker.
        before: rounds of each worker before the first logged event, [W].
        collective: workers reduce their messages among themselves, and only worker 0 has events. A message then counts
            as arrived when it is ready, and is released when the last one is ready; this needs `one_clock`.
        one_clock: all workers share one clock.

    Attributes:
        waited: number of known waits, without the first of each worker; `seconds` is their sum.
        spent: sums of the rounds, without the first of each worker.
    """

    def __init__(
        self,
        releases: Releases,
        stamps: Sequence[StampReader],
        before: Sequence[int],
        collective: bool = False,
        one_clock: bool = True,
    ):
        self.releases, self.stamps, self.collective, self.one_clock = releases, stamps, collective, one_clock
        self.first, self.next = [int(n) for n in before], [int(n) for n in before]
        self.waited, self.seconds, self.spent = 0, 0.0, TimeTotals()

    def rows(self, chunks: Iterable[np.ndarray], version: int) -> Iterator[np.ndarray]:
        """Yield rows [n, len(ROUND)] of the events in `chunks`, [n, len(RECORD)]; the center ends at that version."""
        for events in chunks:
            yield self._joined(*self.releases.add(events))
        yield self._joined(*self.releases.end(version))

    @property
    def waiting(self) -> float | None:
        """Mean wait in seconds; None if no wait is known."""
        return self.seconds / self.waited if self.waited else None

    @property
    def shares(self) -> Shares | None:
        """Shares of the rounds; None if the timestamps of a worker are missing."""
        return self.spent.shares if all(stamps.path for stamps in self.stamps) else None

    def _joined(self, events: np.ndarray, released: np.ndarray) -> np.ndarray:
        rounds = events[:, KIND] != JOIN
        events, released = events[rounds], released[rounds]
        rows = np.full((len(events), len(ROUND)), UNKNOWN, np.int64)
        rows[:, WHO], rows[:, ARRIVED], rows[:, RELEASED] = events[:, WORKER], events[:, MICROSECONDS], released
        for worker in np.unique(events[:, WORKER]):
            mine = np.flatnonzero(events[:, WORKER] == worker)
            rows[mine, NUMBER] = self.next[worker] + np.arange(len(mine))
            moments = self.stamps[worker].read(self.next[worker], len(mine))
            rows[mine[:, None], [BEGUN, READY, REPLIED]] = moments
            self.next[worker] += len(mine)
        if self.one_clock:
            # A restore wakes a worker that waits at the barrier; it got no reply, and waits again. A reply before the
            # release is such a wake-up: mark its time as unknown.
            told = np.where(rows[:, REPLIED] == UNKNOWN, rows[:, RELEASED], rows[:, REPLIED])
            called_back = rows[:, RELEASED] > np.maximum(rows[:, ARRIVED], told)
            rows[called_back, REPLIED] = UNKNOWN
        if self.collective:
            rows[:, ARRIVED], rows[:, RELEASED] = self._met(events[:, VERSION], rows[:, READY])
        self._add_up(rows)
        return rows

    def _met(self, versions: np.ndarray, ready: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, without a ps, when each message was ready, and when the last one of its version was."""
        if not self.one_clock or not len(ready):
            return np.full_like(ready, UNKNOWN), np.full_like(ready, UNKNOWN)
        starts = np.flatnonzero(np.diff(versions, prepend=versions[0] - 1))
        known, last = np.minimum.reduceat(ready, starts) != UNKNOWN, np.maximum.reduceat(ready, starts)
        together = np.diff(np.append(starts, len(ready)))
        return ready, np.repeat(np.where(known, last, UNKNOWN), together)

    def _add_up(self, rows: np.ndarray) -> None:
        fresh = rows[:, NUMBER] > np.array(self.first)[rows[:, WHO]]
        self.spent.add(rows[fresh])
        known = rows[fresh & (rows[:, ARRIVED] != UNKNOWN) & (rows[:, RELEASED] != UNKNOWN)]
        self.waited += len(known)
        self.seconds += float((known[:, RELEASED] - known[:, ARRIVED]).sum()) / 1e6
