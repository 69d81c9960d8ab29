"""Whether the events of a record are those that its synchronization rule allows, for own algorithms, too.

The parameter server decides as a graph what a message does; here the `Sequencer`, in whole numbers, gets the recorded
events one by one, and must know version, staleness and acceptance of each beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..contract.scheme import Scheme
from ..errors import UserError
from ..record_format import BETWEEN_SERVERS, EVENTS
from ..sequencer import Effect, Sequencer
from ..sync.asynchronous import Unlocked
from ..sync.release import SetOfMessages

JOIN = EVENTS.index("join")


def departure_of(
    scheme: Scheme, workers: int, trace: Mapping[str, np.ndarray], result: Mapping[str, Any], sparse: bool
) -> str | None:
    """Return the first event of a record that the rule does not allow, and why; "" if there is none.

    None if that is unknown: without a parameter server or its lock, with a rule that `Sequencer` does not know, in a
    run whose state was restored on the way, in one that was resumed if workers may have left before that, which the
    others would have waited for, and after a message that was dropped in time: it may not be finite.

    Args:
        scheme: the algorithm.
        workers: number of workers, W.
        trace: the columns of `RECORD`.
        result: content of result.json.
        sparse: True if the model may be sparse.
    """
    faults = result["recovery"]
    resumed = faults.get("resumed_from")  # a run that did not end is restored to where it is resumed from
    restored = [resumed is None or entry.get("version") != resumed for entry in faults.get("restored", ())]
    lost = any(restored) or faults.get("refused") or (resumed is not None and _may_leave(scheme, workers, trace))
    if not scheme.sync.uses_ps or not scheme.sync.exchanges or isinstance(scheme.sync, Unlocked) or lost:
        return None
    try:
        return OrderOfEvents(scheme, workers, trace, sparse, evicted=faults["evicted"]).departure()
    except UserError:  # how workers wait is unknown
        return None


def _may_leave(scheme: Scheme, workers: int, trace: Mapping[str, np.ndarray]) -> bool:
    """Return True if it matters to the others when a worker ends, and workers may have ended at different times."""
    sync = scheme.sync
    if sync.meets(workers):
        sent = np.isin(trace["event"], [EVENTS.index("exchange"), EVENTS.index("push")])
        return len({*np.bincount(trace["worker"][sent], minlength=workers).tolist()}) > 1
    return sync.set_size(workers) is not None or sync.lead is not None or sync.warm_start > 0


class OrderOfEvents:
    """The events of a record, passed to a `Sequencer` one by one.

    When a worker has left, or a time of grace was over, is not recorded: it follows from a set that was closed with
    fewer messages, or from a worker that did not wait. A worker that was lost joins before its next message.

    Args:
        scheme: the algorithm.
        workers: number of workers, W.
        trace: the columns of `RECORD`.
        reads_later: True if workers read the center by themselves, at some time after their release.
        note: receives the effects of the sequencer, and the events that it does not know, with their worker.
        evicted: workers without which the run has continued, at some time.
    """

    def __init__(
        self,
        scheme: Scheme,
        workers: int,
        trace: Mapping[str, np.ndarray],
        reads_later: bool,
        note: Callable[[str, int], None] = lambda what, worker: None,
        evicted: Collection[int] = (),
    ):
        self.effects: list[Effect] = []
        self.note, self.evicted = note, evicted
        self.rule = Sequencer(scheme, workers, self._effect)
        self.gathers = reads_later
        # A worker without which a set may be complete takes the lock a second time to read.
        self.reads_later = reads_later or (scheme.sync.waits and not scheme.sync.meets(workers))
        self.exact = not isinstance(scheme.sync, Unlocked)  # without a lock, recorded versions are approximate
        names = ("version", "worker", "staleness", "accepted", "event")
        self.rows: Sequence[tuple[int, ...]] = list(zip(*(trace[name].tolist() for name in names), strict=True))
        self.left: list[list[int]] = [[] for _ in range(workers)]  # rows of each worker to come, the next one last
        for i, (_, worker, _, _, event) in reversed([*enumerate(self.rows)]):
            if event < BETWEEN_SERVERS:
                self.left[worker].append(i)
        self.last = dict.fromkeys(range(workers), -1)  # the last row of each worker that the others wait for

    def departure(self) -> str | None:
        """Return the first row that the rule does not allow, and why; "" if there is none, None if that is unknown."""
        for i, (version, worker, staleness, accepted, event) in enumerate(self.rows):
            if event >= BETWEEN_SERVERS:
                self.note(EVENTS[event], worker)
                continue
            if self.exact:
                self._advance(i, version, worker)
                reason = self._refusal(version, worker, None if event == JOIN else version - staleness)
                if reason:
                    return f"row {i}: {reason}"
            self.left[worker].pop()
            self._enter(worker, i)
            if event == JOIN:
                self.note("join", worker)
                self.rule.join(worker)
                continue
            taken = self._takes(worker, EVENTS[event])
            if self.gathers and EVENTS[event] == "push":
                self.note("reply", worker)
            if taken and not accepted:  # perhaps it was not finite, and its place in a set is not recorded
                return None
            if accepted and not taken:
                return f"row {i}: the message of worker {worker} came too late to be taken"
        return ""

    def end(self, rounds: Sequence[int]) -> None:
        """Let a time of grace end, and the workers leave that have made so many rounds."""
        waiting = self.rule.waiting
        if isinstance(waiting, SetOfMessages) and self.rule.sync.grace and waiting.enough:
            self.rule.end_grace()
        for worker, number in enumerate(rounds):
            if worker in self.last and worker not in self.rule.waiting.arrived and self.rule.recorded[worker] >= number:
                self.rule.leave(worker)

    def reads_next(self, worker: int) -> int:
        """Return the version of the center that a worker reads before its next message; 0 if it sends none."""
        rows = self.left[worker]
        version, _, staleness, _, event = self.rows[rows[-1]] if rows else (0, 0, 0, 0, JOIN)
        return version - staleness if self.exact and event != JOIN else 0

    def _refusal(self, version: int, worker: int, pulled: int | None) -> str:
        """Return why no event of this worker can follow at this version, after it had pulled that one; "" if it can.

        None for a worker that joins: it may have pulled any, and may wait.
        """
        rule = self.rule
        if version != rule.version:
            return f"the center had version {rule.version}, recorded is {version}"
        if pulled is None:
            return ""
        if worker in rule.waiting.arrived or worker in rule.held_back:
            return f"worker {worker} had to wait"
        is_first = rule.sync.warm_start > 0 and self.last.get(worker) == -1  # it reads once it has noticed the start
        if (self.reads_later or is_first) and rule.pulled[worker] <= pulled <= version:
            rule.pulled[worker] = pulled
        if rule.pulled[worker] != pulled:
            return f"worker {worker} had version {rule.pulled[worker]} of the center, recorded is {pulled}"
        return ""

    def _takes(self, worker: int, event: str) -> bool:
        """Process an event; return True if it is a message that is taken."""
        self.effects.clear()
        {"exchange": self.rule.exchange, "push": self.rule.push, "pull": self.rule.pull}[event](worker)
        return any(effect in ("merge", "add") for effect in self.effects)

    def _effect(self, effect: Effect, worker: int, _: int) -> None:
        self.effects.append(effect)
        self.note(effect, worker)

    def _enter(self, worker: int, i: int) -> None:
        """Let the others wait for a worker that has row i, if it had left."""
        if worker not in self.last:
            self.rule.enter(worker)
        self.last[worker] = i

    def _advance(self, i: int, version: int, worker: int) -> None:
        """Let workers leave that have no more rows or were lost, and end a time of grace, if row i needs it."""
        rule, scheme = self.rule, self.rule.scheme
        joins = self.rows[i][-1] == JOIN
        if worker in rule.held_back and not self.left[0]:
            rule.start_others()
        while rule.version < version or (worker in rule.waiting.arrived and not joins):
            waiting = rule.waiting
            if isinstance(waiting, SetOfMessages) and scheme.sync.grace and waiting.enough and waiting.arrived:
                rule.end_grace()
                continue
            leavers = (k for k in self.last if k not in waiting.arrived and self._is_gone(k))
            leaver = min(leavers, key=self.last.__getitem__, default=None)
            if leaver is None:
                return
            after = self.last.pop(leaver) + 1
            for k in rule.leave(leaver):
                if scheme.sync.lead is not None:  # at some time after the last row of the worker that left
                    rule.pulled[k] = self.rows[after][0]

    def _is_gone(self, worker: int) -> bool:
        rows = self.left[worker]
        return not rows or self.rows[rows[-1]][-1] == JOIN or worker in self.evicted
