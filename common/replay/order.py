"""Whether the events of a record are those that its synchronization rule allows, for own algorithms, too.

The parameter server decides as a graph what a message does; here the `Sequencer`, in whole numbers, gets the recorded
events one by one, and must know version, staleness and acceptance of each beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..contract.scheme import Scheme
from ..errors import UserError
from ..record_format import EVENTS
from ..sequencer import Effect, Sequencer
from ..sync.asynchronous import Unlocked
from ..sync.release import SetOfMessages


def departure_of(
    scheme: Scheme, workers: int, trace: Mapping[str, np.ndarray], result: Mapping[str, Any], sparse: bool
) -> str | None:
    """Return the first event of a record that the rule does not allow, and why; "" if there is none.

    None if that is unknown: without a parameter server or its lock, with a rule that `Sequencer` does not know, in a
    run that was resumed or has lost a worker, and after a message that was dropped in time: it may not be finite.

    Args:
        scheme: the algorithm.
        workers: number of workers, W.
        trace: the columns of `RECORD`.
        result: content of result.json.
        sparse: True if the model may be sparse.
    """
    faults = result["recovery"]
    lost = any(faults.get(name) for name in ("restarts", "evicted", "restored", "resumed_from", "refused"))
    if not scheme.sync.uses_ps or not scheme.sync.exchanges or isinstance(scheme.sync, Unlocked) or lost:
        return None
    try:
        return OrderOfEvents(scheme, workers, trace, sparse).departure()
    except UserError:  # how workers wait is unknown
        return None


class OrderOfEvents:
    """The events of a record, passed to a `Sequencer` one by one.

    When a worker has left, or a time of grace was over, is not recorded: it follows from a set that was closed with
    fewer messages.

    Args:
        scheme: the algorithm.
        workers: number of workers, W.
        trace: the columns of `RECORD`.
        reads_later: True if workers read the center by themselves, at some time after their release.
    """

    def __init__(self, scheme: Scheme, workers: int, trace: Mapping[str, np.ndarray], reads_later: bool):
        self.effects: list[Effect] = []
        self.rule = Sequencer(scheme, workers, lambda effect, *_: self.effects.append(effect))
        # A worker without which a set may be complete takes the lock a second time to read.
        self.reads_later = reads_later or (scheme.sync.waits and not scheme.sync.meets(workers))
        names = ("version", "worker", "staleness", "accepted", "event")
        self.rows: Sequence[tuple[int, ...]] = list(zip(*(trace[name].tolist() for name in names), strict=True))
        self.last = dict.fromkeys(range(workers), -1) | {row[1]: i for i, row in enumerate(self.rows)}

    def departure(self) -> str | None:
        """Return the first row that the rule does not allow, and why; "" if there is none, None if that is unknown."""
        for i, (version, worker, staleness, accepted, event) in enumerate(self.rows):
            if EVENTS[event] in ("up", "down"):
                continue
            if EVENTS[event] == "join":
                return None
            self._advance(i, version, worker)
            reason = self._refusal(version, worker, version - staleness)
            if reason:
                return f"row {i}: {reason}"
            taken = self._takes(worker, EVENTS[event])
            if taken and not accepted:  # perhaps it was not finite, and its place in a set is not recorded
                return None
            if accepted and not taken:
                return f"row {i}: the message of worker {worker} came too late to be taken"
        return ""

    def _refusal(self, version: int, worker: int, pulled: int) -> str:
        """Return why no event of this worker can follow at this version, after it had pulled that one; "" if it can."""
        rule = self.rule
        if version != rule.version:
            return f"the center had version {rule.version}, recorded is {version}"
        if worker in rule.waiting.arrived or worker in rule.held_back:
            return f"worker {worker} had to wait"
        if self.reads_later and rule.pulled[worker] <= pulled <= version:
            rule.pulled[worker] = pulled
        if rule.pulled[worker] != pulled:
            return f"worker {worker} had version {rule.pulled[worker]} of the center, recorded is {pulled}"
        return ""

    def _takes(self, worker: int, event: str) -> bool:
        """Process an event; return True if it is a message that is taken."""
        self.effects.clear()
        {"exchange": self.rule.exchange, "push": self.rule.push, "pull": self.rule.pull}[event](worker)
        return any(effect in ("merge", "add") for effect in self.effects)

    def _advance(self, i: int, version: int, worker: int) -> None:
        """Let workers leave that have no more rows, and end a time of grace, if row i needs it."""
        rule, scheme = self.rule, self.rule.scheme
        if worker in rule.held_back and self.last.get(0, -1) < i:
            rule.start_others()
        while rule.version < version or worker in rule.waiting.arrived:
            waiting = rule.waiting
            if isinstance(waiting, SetOfMessages) and scheme.sync.grace and waiting.enough and waiting.arrived:
                rule.end_grace()
                continue
            gone = (k for k, last in self.last.items() if last < i and k not in waiting.arrived)
            leaver = min(gone, key=self.last.__getitem__, default=None)
            if leaver is None:
                return
            after = self.last.pop(leaver) + 1
            for k in rule.leave(leaver):
                if scheme.sync.lead is not None:  # at some time after the last row of the worker that left
                    rule.pulled[k] = self.rows[after][0]
