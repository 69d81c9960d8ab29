"""The times at which the gate released each worker, computed from the events on the ps.

Releases are not logged: they follow from the arrivals and from the rule of the gate. Evictions and the ends of workers
are not among the events, so a wait that ends because another worker was evicted or has finished seems to end with the
last message before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..server.trace import EVENTS, RECORD, UNKNOWN
from ..sync.gate import Gate
from ..virtual_time.release import Lead
from .event_log import ACCEPTED, KIND, MICROSECONDS, VERSION, WORKER

JOIN = EVENTS.index("join")

HELD = 1 << 17  # most events that are held back because an earlier one is not settled

Settled = tuple[np.ndarray, np.ndarray]  # events in order, [n, len(RECORD)]; release time of each, [n]


class Releases:
    """The base class, and the rule without waiting: each message is released when it arrives."""

    def add(self, events: np.ndarray) -> Settled:
        """Add events, [n, len(RECORD)]; returns those, in order, whose release time is settled now."""
        return events, events[:, MICROSECONDS].copy()

    def end(self, version: int) -> Settled:
        """End the events, with the center at that version; returns the events that were held back."""
        del version
        return _nothing()


class UnknownReleases(Releases):
    """The rule of a gate with waiting of an unknown kind: all release times are unknown."""

    def add(self, events: np.ndarray) -> Settled:
        """Return the events with unknown release times."""
        return events, np.full(len(events), UNKNOWN, np.int64)


class ReleasesOfSets(Releases):
    """The rule of a barrier: the last message of a version releases all of them. A dropped one does not wait."""

    def __init__(self):
        self.held, _ = _nothing()

    def add(self, events: np.ndarray) -> Settled:
        """Add events; a set of messages is settled when the next one has begun."""
        events = np.concatenate([self.held, events])
        newest = events[:, VERSION].max(initial=-1)
        waiting = np.flatnonzero((events[:, ACCEPTED] != 0) & (events[:, VERSION] == newest))
        cut = int(waiting[0]) if len(waiting) else len(events)
        settled, self.held = events[:cut], events[cut:]
        return settled, self._released(settled)

    def end(self, version: int) -> Settled:
        """End the events; the last set was complete if the version is past it, else its release is unknown."""
        left, released = self.held, self._released(self.held)
        released[(left[:, ACCEPTED] != 0) & (left[:, VERSION] >= version)] = UNKNOWN
        return left, released

    def _released(self, events: np.ndarray) -> np.ndarray:
        released = events[:, MICROSECONDS].copy()
        accepted = events[:, ACCEPTED] != 0
        versions = events[accepted, VERSION]
        released[accepted] = released[accepted][np.searchsorted(versions, versions, "right") - 1]
        return released


class ReleasesByLead(Releases):
    """The rule of bounded staleness: a worker waits if it is too many rounds ahead of the slowest unfinished one.

    `Lead` applies the rule to the arrivals.

    Args:
        gate: gate with a `lead`.
        before: rounds of each worker before the first event, [W].
        rounds: total rounds of each worker, [W].
    """

    def __init__(self, gate: Gate, before: Sequence[int], rounds: Sequence[int]):
        self.done, self.rounds = [int(n) for n in before], [int(n) for n in rounds]
        unfinished = [n for n, number in zip(self.done, self.rounds, strict=True) if n < number]
        self.lead = Lead(gate, len(self.done), unfinished)
        self.waiting: dict[int, int] = {}  # worker -> index of its event among the held ones
        self.held, self.released = _nothing()

    def add(self, events: np.ndarray) -> Settled:
        """Add events; they are settled up to the first worker that still waits."""
        start = len(self.held)
        self.held = np.concatenate([self.held, events])
        self.released = np.concatenate([self.released, events[:, MICROSECONDS]])
        columns = events[:, [WORKER, MICROSECONDS, KIND]].tolist()
        for i, (worker, now, event) in enumerate(columns, start):
            if event != JOIN:
                self._arrive(i, worker, now)
        if len(self.held) > HELD:
            self._give_up(max(0, len(self.held) - HELD))
        return self._cut(min(self.waiting.values(), default=len(self.held)))

    def end(self, version: int) -> Settled:
        """End the events; a worker that still waits was released by an eviction or an end, at an unknown time."""
        del version
        self._give_up(len(self.held))
        return self._cut(len(self.held))

    def _arrive(self, i: int, worker: int, now: int) -> None:
        if worker in self.waiting:
            self._let_go(worker)
        self.waiting[worker] = i
        self.done[worker] += 1
        done, number = self.done[worker], self.rounds[worker]
        if done <= number:
            self.lead.counted(done)
        free = [*self.lead.arrive(worker, done), *(self.lead.leave(done) if done == number else ())]
        for k in free:
            self.released[self.waiting.pop(k)] = now

    def _let_go(self, worker: int) -> None:
        """Mark the release of a waiting worker as unknown: its cause is not among the events."""
        self.released[self.waiting.pop(worker)] = UNKNOWN
        self.lead.withdraw(worker)

    def _give_up(self, end: int) -> None:
        for worker in [k for k, i in self.waiting.items() if i < end]:
            self._let_go(worker)

    def _cut(self, end: int) -> Settled:
        settled = self.held[:end], self.released[:end]
        self.held, self.released = self.held[end:], self.released[end:]
        self.waiting = {worker: i - end for worker, i in self.waiting.items()}
        return settled


def releases_of(gate: Gate, before: Sequence[int], rounds: Sequence[int]) -> Releases:
    """Return the rule of a gate; `before` and `rounds` are those of `ReleasesByLead`."""
    if gate.set_size(len(rounds)) is not None:
        return ReleasesOfSets()
    if gate.lead is not None:
        return ReleasesByLead(gate, before, rounds)
    return UnknownReleases() if gate.waits else Releases()


def _nothing() -> Settled:
    return np.zeros((0, len(RECORD)), np.int64), np.zeros(0, np.int64)
