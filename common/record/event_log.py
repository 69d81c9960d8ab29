"""The events of a run, fetched from the ps: appended to a file and added up, in bounded memory."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..files import flush, open_in_place, replacing, write_json, writing
from ..record_format import EVENTS, RECORD, Kind, checked, list_of, open_to_read, read_json, whole
from ..server.trace import ROW, UNKNOWN, ends_round
from .array_files import save_columns

VERSION, WORKER, STALENESS, ACCEPTED, MICROSECONDS, KIND, RELEASED, BEGUN, READY, COMPUTED, REPLIED = range(len(ROW))

COUNT = whole(-1, 2**63 - 1)

STALENESS_COUNTS: Kind = (
    f"an object, each {COUNT[0]}",
    lambda value: isinstance(value, dict) and all(map(COUNT[1], value.values())),
)

TALLY: Mapping[str, Kind] = {
    "events": COUNT, "dropped": COUNT, "staleness_sum": COUNT, "staleness_max": COUNT, "version": COUNT,
    "rounds": list_of(COUNT), "accepted": list_of(COUNT), "kinds": list_of(COUNT), "staleness": STALENESS_COUNTS,
}  # fmt: skip

FILE, COUNTS = "events.bin", "counts.json"

ROW_BYTES = 8 * len(ROW)

CHUNK = 1 << 17  # events in memory at once: 10 MB

MOST_EVENTS = 1 << 60

EXACT = 1 << 12  # each staleness below this has a count of its own

DIGITS = 8  # larger ones share a count if they agree in so many first binary digits, within one per cent

KEEP = 1 << 19  # newest events that the file keeps with record=off, so that a restoration can go back exactly


class Tally:
    """The totals of events.

    Attributes:
        events: their number.
        version: the largest version of an event, -1 before the first.
        rounds: rounds of each worker, [W].
        accepted: accepted messages of each worker, [W].
        kinds: events of each kind, in the order of `EVENTS`.
        dropped: messages that were not accepted.
        staleness: accepted messages by staleness; see `rounded_down`.
        staleness_sum: exact sum over the accepted messages; `staleness_max` is exact, too.
    """

    def __init__(self, workers: int):
        self.events = self.dropped = self.staleness_sum = self.staleness_max = 0
        self.version = -1
        self.rounds, self.accepted = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        self.kinds = np.zeros(len(EVENTS), np.int64)
        self.staleness: Counter[int] = Counter()

    def add(self, events: np.ndarray, times: int = 1) -> None:
        """Count events, [n, len(ROW)]; with -1 take them out again, but for the largest version and staleness."""
        if not len(events):
            return
        kind, accepted = events[:, KIND], events[:, ACCEPTED] != 0
        rounds, pulls = ends_round(kind), kind == EVENTS.index("pull")
        self.events += times * len(events)
        self.rounds += times * np.bincount(events[rounds, WORKER], minlength=len(self.rounds))[: len(self.rounds)]
        self.kinds += times * np.bincount(kind, minlength=len(self.kinds))[: len(self.kinds)]
        self.dropped += times * int(np.count_nonzero(rounds & ~(accepted | pulls)))
        self.accepted += times * np.bincount(events[accepted, WORKER], minlength=len(self.rounds))[: len(self.rounds)]
        staleness = events[accepted, STALENESS]
        self.staleness_sum += times * int(staleness.sum())
        values, counts = np.unique(rounded_down(staleness), return_counts=True)
        self.staleness.update(dict(zip(values.tolist(), (times * counts).tolist(), strict=True)))
        if times > 0:
            self.version = max(self.version, int(events[:, VERSION].max()))
            self.staleness_max = max(self.staleness_max, int(staleness.max(initial=0)))

    @property
    def staleness_mean(self) -> float:
        """Mean staleness of the accepted messages; 0 without any."""
        return self.staleness_sum / max(1, self.staleness.total())

    @property
    def shares(self) -> list[float]:
        """Share of each worker in the accepted messages, [W]."""
        return (self.accepted / max(1, self.accepted.sum())).round(6).tolist()

    def write(self, path: Path) -> None:
        """Write the totals as JSON, atomically; raises `CannotWrite`."""
        arrays = {name: value.tolist() for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        write_json(path, vars(self) | arrays)

    @classmethod
    def read(cls, path: Path, workers: int) -> Tally:
        """Read the file of `write`; zero totals if it is missing."""
        tally = cls(workers)
        if path.exists():
            found = checked(path, read_json(path), TALLY)
            for name, usual in vars(tally).items():
                value = np.array(found[name], np.int64) if isinstance(usual, np.ndarray) else found[name]
                if np.shape(value) != np.shape(usual):
                    raise UserError(f"{path} is damaged: it is not of {workers} workers")
                setattr(tally, name, value)
            tally.staleness = Counter({int(value): count for value, count in found["staleness"].items()})
        return tally


def rounded_down(staleness: np.ndarray) -> np.ndarray:
    """Keep the first binary digits of large values, so that a histogram has few bins; small values are unchanged."""
    if staleness.max(initial=0) < EXACT:
        return staleness
    shift = np.where(staleness < EXACT, 0, np.frexp(staleness)[1] - DIGITS)
    return staleness >> shift << shift


class EventLog:
    """The events in a file that outlives this process, and their totals.

    The first row of the file holds the number of the restoration that it belongs to, and the number of events that were
    removed from its beginning: 0, unless only the last `keep` to 2 `keep` events are kept. The totals of removed events
    are in counts.json.
    """

    def __init__(self, run_dir: Path, workers: int, keep: int | None = None):
        self.path, self.counts, self.workers, self.keep = run_dir / FILE, run_dir / COUNTS, workers, keep
        self.restoration = self.first = self.length = 0
        try:
            self._read_head()
            self._count()
        except (OSError, ValueError):  # the file is missing or damaged: start with an empty one
            self.restoration, self.first, self.length = 0, 0, 0
            self.counts.unlink(missing_ok=True)
            self._replace(np.zeros((0, len(ROW)), np.int64))
            self._count()

    def __len__(self) -> int:
        return self.length

    def chunks(self, start: int = 0, end: int | None = None, backwards: bool = False) -> Iterator[np.ndarray]:
        """Yield the kept events from `start` on as arrays [n, len(ROW)] of bounded size, the last first if wanted."""
        last = self.length if end is None else end
        for at in range(max(start, self.first), last, CHUNK)[:: -1 if backwards else 1]:
            yield self._rows(at - self.first, min(last, at + CHUNK) - self.first)

    def tallies(self, versions: Sequence[int]) -> list[tuple[Tally, int]]:
        """Return what `before` does for each of these versions, which are in order."""
        tally, last = Tally(self.workers) if self.first == 0 else Tally.read(self.counts, self.workers), UNKNOWN
        found, left = [], list(versions)
        for events in self.chunks():
            while left and len(later := np.flatnonzero(events[:, VERSION] >= left[0])):
                tally.add(earlier := events[: later[0]])
                last = int(earlier[-1, MICROSECONDS]) if len(earlier) else last
                found.append((copy.deepcopy(tally), last))
                events, left = events[later[0] :], left[1:]
            tally.add(events)
            last = int(events[-1, MICROSECONDS]) if len(events) else last
        return found + [(tally, last)] * len(left)

    def before(self, version: int) -> tuple[Tally, int]:
        """Return the totals of the events before a recent version, and the time of the last of them, in microseconds.

        The time is `UNKNOWN` if there is none. The largest staleness is that of all events.
        """
        tally = copy.deepcopy(self.tally)
        for events in self.chunks(backwards=True):
            is_later = events[:, VERSION] >= version
            tally.add(events[is_later], -1)
            if not is_later.all():
                return tally, int(events[~is_later, MICROSECONDS][-1])
        return tally, UNKNOWN

    def append(self, events: np.ndarray) -> None:
        """Append new events. After an error nothing has been added."""
        self._write(self.length - self.first, events)
        self.length += len(events)
        self.tally.add(events)
        if self.keep is not None and self.length - self.first > 2 * self.keep:
            self._shorten(self.length - self.keep)

    def truncate(self, restoration: int, length: int) -> tuple[int, int]:
        """Remove all but the first `length` events.

        Returns:
            the number of updates that this undoes, and of undone events that stay in the totals, because their rows
            were removed before.
        """
        version = self.tally.version
        counted = max(0, self.first - length)
        self.length = min(length, self.length)
        if counted:
            self.first = length
            base = Tally.read(self.counts, self.workers) if length else Tally(self.workers)
            base.events = length
            base.write(self.counts)
        with writing(self.path), open_in_place(self.path, "r+b") as file:  # before the head names the new restoration
            file.truncate((1 + self.length - self.first) * ROW_BYTES)
        self.restoration = restoration
        self._write(-1, self._head())
        self._count()
        return version - self.tally.version, counted if length else 0

    def save(self, path: Path) -> None:
        """Write the events as arrays, one for each column of `RECORD`; see `save_columns`."""
        save_columns(path, RECORD, self.length - self.first, self.chunks)

    def _read_head(self) -> None:
        """Read the head of the file; raises `OSError`, or `ValueError` if the file is no log of events."""
        with open_to_read(self.path) as file:
            rows = os.fstat(file.fileno()).st_size // ROW_BYTES
        if not rows:
            raise ValueError("it has no head")
        self.restoration, self.first, *_ = self._rows(-1, 0)[0].tolist()
        if not 0 <= self.first <= MOST_EVENTS:
            raise ValueError("its head is none")
        self.length = rows - 1 + self.first

    def _count(self) -> None:
        """Compute the totals: removed events from counts.json, then the kept ones; raises as `_read_head` does."""
        self.tally = Tally(self.workers) if self.keep is None else Tally.read(self.counts, self.workers)
        if self.tally.events > self.first:  # a process was killed between counting and removing them: remove them now
            self._forget(self.tally.events)
        for events in self.chunks():
            for column, end in ((WORKER, self.workers), (KIND, len(EVENTS))):
                if not ((events[:, column] >= 0) & (events[:, column] < end)).all():
                    raise ValueError(f"it has events with {RECORD[column]} above {end - 1}, or below 0")
            self.tally.add(events)

    def _shorten(self, first: int) -> None:
        """Move the events before that number into counts.json, and remove their rows."""
        base = Tally.read(self.counts, self.workers)
        for events in self.chunks(base.events, first):
            base.add(events)
        base.write(self.counts)
        self._forget(first)

    def _forget(self, first: int) -> None:
        rest = np.concatenate([np.zeros((0, len(ROW)), np.int64), *self.chunks(first)])
        self.first = first
        self._replace(rest)

    def _head(self) -> np.ndarray:
        return np.array([[self.restoration, self.first, *[0] * (len(ROW) - 2)]], np.int64)

    def _replace(self, events: np.ndarray) -> None:
        with replacing(self.path) as file:  # a process that is killed here leaves the old file
            file.write(np.concatenate([self._head(), events]).tobytes())

    def _rows(self, start: int, end: int) -> np.ndarray:
        """Read rows of the file; the first kept event is row 0."""
        with open_to_read(self.path) as file:
            file.seek((1 + start) * ROW_BYTES)
            return np.frombuffer(file.read((end - start) * ROW_BYTES), np.int64).reshape(-1, len(ROW))

    def _write(self, row: int, events: np.ndarray) -> None:
        with writing(self.path), open_in_place(self.path, "r+b") as file:
            file.seek((1 + row) * ROW_BYTES)
            file.write(np.ascontiguousarray(events, np.int64).tobytes())
            flush(file)
