"""When each worker need not wait any more, from the events on the ps alone.

Nobody writes that down: it follows from who has arrived when, and from what the gate says of itself. What is not in the
record is not known here either: a wait that ends because somebody is evicted, or has done all its rounds, seems to end
with the last message before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engine.trace import EVENTS, RECORD, UNKNOWN
from ..gates.gate import Gate
from ..virtual_time.waiting import Lead
from .event_log import ACCEPTED, KIND, MICROSECONDS, VERSION, WORKER

JOIN = EVENTS.index("join")

HELD = 1 << 17  # events that may wait for one to be settled

Settled = tuple[np.ndarray, np.ndarray]  # events in order, [n, len(RECORD)]; when each was released, [n]


class Releases:
    """The base, and what holds where nobody waits: whoever has arrived goes on."""

    def add(self, events: np.ndarray) -> Settled:
        """Take more events, [n, len(RECORD)]; returns those, in order, of which all is settled now."""
        return events, events[:, MICROSECONDS].copy()

    def end(self, version: int) -> Settled:
        """There are no more events, and the center is at that version; returns those that were left."""
        del version
        return _nothing()


class UnknownReleases(Releases):
    """A gate that does not say for whom workers wait there."""

    def add(self, events: np.ndarray) -> Settled:
        """Nothing is known."""
        return events, np.full(len(events), UNKNOWN, np.int64)


class ReleasesOfSets(Releases):
    """Messages that make an update together: the last one of a version lets all go. A dropped one waits for nobody."""

    def __init__(self):
        self.held, _ = _nothing()

    def add(self, events: np.ndarray) -> Settled:
        """Sets are settled when the next one has begun."""
        events = np.concatenate([self.held, events])
        newest = events[:, VERSION].max(initial=-1)
        waiting = np.flatnonzero((events[:, ACCEPTED] != 0) & (events[:, VERSION] == newest))
        cut = int(waiting[0]) if len(waiting) else len(events)
        settled, self.held = events[:cut], events[cut:]
        return settled, self._released(settled)

    def end(self, version: int) -> Settled:
        """The last set was complete if the version is past it."""
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
    """Nobody goes on more than some rounds ahead of the slowest worker that has more to do: see `Lead`, which is told.

    Args:
        gate: with the lead.
        before: rounds of each worker before the first event, [W].
        rounds: of each worker in all, [W].
    """

    def __init__(self, gate: Gate, before: Sequence[int], rounds: Sequence[int]):
        self.done, self.rounds = [int(n) for n in before], [int(n) for n in rounds]
        unfinished = [n for n, number in zip(self.done, self.rounds, strict=True) if n < number]
        self.lead = Lead(gate, len(self.done), unfinished)
        self.waiting: dict[int, int] = {}  # worker -> which of the events that are held is its
        self.held, self.released = _nothing()

    def add(self, events: np.ndarray) -> Settled:
        """Events are settled up to the first worker that still waits."""
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
        """Whoever waits still was let go by something that is not in the record."""
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
        """Nobody knows when it went on: what let it go is not in the record."""
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
    """The rule of this gate; `before` and `rounds` of each worker, see `ReleasesByLead`."""
    if gate.set_size(len(rounds)) is not None:
        return ReleasesOfSets()
    if gate.lead is not None:
        return ReleasesByLead(gate, before, rounds)
    return UnknownReleases() if gate.waits else Releases()


def _nothing() -> Settled:
    return np.zeros((0, len(RECORD)), np.int64), np.zeros(0, np.int64)
