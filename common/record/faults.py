"""The faults that a run has survived, from its events."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Faults:
    """The faults that a run has survived: restarts, restorations, refusals, evictions, warnings."""

    def __init__(self):
        self.restarts: Counter[str] = Counter()
        self.restored: dict[int, dict[str, int]] = {}  # by the number of the restoration, in order
        self.undone: dict[int, int] = {}  # logged updates that each restoration has undone
        self.lost: list[dict[str, Any]] = []  # events on acknowledged rounds of workers that were lost
        self.resumed: dict[int, bool] = {}  # by restoration, "resumed" events: True if the training had not begun
        self.followed: int | None = None  # the first restoration that the evaluator has seen
        self.under_way = False  # the training has begun
        self.checkpoints = self.version = 0
        self.refused: Counter[str] = Counter()
        self.evicted: list[int] = []
        self.lost_workers: list[dict[str, Any]] = []
        self.warnings: list[str] = []
        self.unsaved: dict[int, str] = {}  # warnings on a version without a checkpoint

    def on_event(self, event: dict[str, Any]) -> None:
        """Record one event; events of different tasks come in any order."""
        kind = event["event"]
        self.under_way |= kind in ("worker", "center", "first_update", "checkpoint")
        if kind == "center":
            self.version = max(self.version, event["version"])
        elif kind == "restarted":
            self.restarts[event["task"]] += 1
        elif kind == "followed":
            self.followed = self.followed or event["restoration"]
        elif kind in ("restored", "resumed"):
            if kind == "resumed":
                self.resumed[event["restoration"]] = not self.under_way
            lost = max(0, self.version - event["version"])
            self.restored[event["restoration"]] = {"version": event["version"], "lost_updates": lost}
            self.version = event["version"]
        elif kind == "undone":
            self.undone[event["restoration"]] = event["updates"]
        elif kind == "lost":
            self.lost.append(event)
        elif kind == "refused":
            self.refused[f"worker {event['worker']}"] += event.get("number", 1)
        elif kind == "left_out":  # at the end, of all messages that were not finite
            self.refused[f"worker {event['worker']}"] = event["number"]
        elif kind == "evicted":
            self.evicted.append(event["worker"])
        elif kind == "result":
            self.lost_workers = event.get("lost_workers", [])
        elif kind == "checkpoint":
            self.checkpoints += 1
            if (unsaved := self.unsaved.pop(event["version"], None)) in self.warnings:  # a later attempt saved it
                self.warnings.remove(unsaved)
        elif kind in ("warning", "not_restarted"):
            self.warnings.append(event.get("message") or f"{event['task']} ({event['reason']}) was not started again")
            if "unsaved" in event:
                self.unsaved[event["unsaved"]] = event["message"]

    @property
    def resumption(self) -> int | None:
        """The number of the restoration at which the run was resumed; None if it began anew.

        A new chief with an empty ps cannot tell it from a restoration in the middle of a run. It is the one before
        which training had not begun; or the evaluator's first, since the event of the chief may come late.
        """
        return next((n for n, is_first in self.resumed.items() if is_first or n == self.followed), None)

    def _restored(self) -> list[dict[str, int]]:
        """Return each restoration with the largest count of lost updates that a task has reported."""
        found, before = [], 0
        for number, entry in self.restored.items():
            lost = 0 if number == self.resumption else entry["lost_updates"]  # updates that were seen came after it
            # A worker that was down between two restorations reports the loss of the first at the second.
            events = [event for event in self.lost if before <= event["before"] < number]
            rounds = [event["rounds"] for event in events]
            # Synchronous workers share their updates: the losses of several are not added.
            acknowledged = max(rounds, default=0) if any(event["together"] for event in events) else sum(rounds)
            cost = max(lost, self.undone.get(number, 0), acknowledged)
            if cost or number != self.resumption:  # a run that resumes at its last version has lost nothing
                found.append(entry | {"lost_updates": cost})
            before = number
        return found

    def summary(self) -> dict[str, Any]:
        """Return the entry of result.json."""
        restored = self._restored()
        return {
            "checkpoints": self.checkpoints,
            "resumed_from": self.restored[self.resumption]["version"] if self.resumption else None,
            "restarts": dict(self.restarts),
            "restored": restored,
            "lost_updates": sum(entry["lost_updates"] for entry in restored),
            "lost_rounds": sum(event["rounds"] for event in self.lost),
            "refused": dict(self.refused),
            "evicted": self.evicted,
            **({"lost_workers": self.lost_workers} if self.lost_workers else {}),
            "warnings": self.warnings,
        }
