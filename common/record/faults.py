"""The faults that a run has survived, as its reports tell of them."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Faults:
    """What went wrong in a run and was survived."""

    def __init__(self):
        self.restarts: Counter[str] = Counter()
        self.restored: dict[int, dict[str, int]] = {}  # by number, in order
        self.undone: dict[int, int] = {}  # updates that were on record, by restoration
        self.lost: list[dict[str, Any]] = []  # rounds of workers that had been acknowledged
        self.resumed: dict[int, bool] = {}  # by restoration, what a chief calls so: True if nothing had happened yet
        self.followed: int | None = None  # the beginning or restoration that the evaluator has met first
        self.under_way = False  # the training has begun
        self.checkpoints = self.version = 0
        self.refused: Counter[str] = Counter()
        self.evicted: list[int] = []
        self.warnings: list[str] = []
        self.unsaved: dict[int, str] = {}  # warnings that there is no checkpoint of a version

    def on_event(self, event: dict[str, Any]) -> None:
        """Take note of one event; those of different tasks come in any order."""
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
            seen = max(0, self.version - event["version"])
            self.restored[event["restoration"]] = {"version": event["version"], "lost_updates": seen}
            self.version = event["version"]
        elif kind == "undone":
            self.undone[event["restoration"]] = event["updates"]
        elif kind == "lost":
            self.lost.append(event)
        elif kind == "refused":
            self.refused[f"worker {event['worker']}"] += event.get("number", 1)
        elif kind == "evicted":
            self.evicted.append(event["worker"])
        elif kind == "checkpoint":
            self.checkpoints += 1
            if (unsaved := self.unsaved.pop(event["version"], None)) in self.warnings:  # it was possible later
                self.warnings.remove(unsaved)
        elif kind in ("warning", "not_restarted"):
            self.warnings.append(event.get("message") or f"{event['task']} ({event['reason']}) was not started again")
            if "unsaved" in event:
                self.unsaved[event["unsaved"]] = event["message"]

    @property
    def resumption(self) -> int | None:
        """The number of the restoration that the run has begun with.

        A new chief with an empty ps cannot tell this from one in the middle of a run. It is this one if nothing had
        happened before, or, since the chief may be heard late, if the evaluator has met no earlier one.
        """
        return next((n for n, is_first in self.resumed.items() if is_first or n == self.followed), None)

    def _restored(self) -> list[dict[str, int]]:
        """Each restoration, with the least number of updates that it has cost: nobody alone has seen all of them."""
        found, before = [], 0
        for number, entry in self.restored.items():
            seen = 0 if number == self.resumption else entry["lost_updates"]  # what was seen first came after it
            # A worker that was not there between two restorations tells at the second what the first has cost.
            mine = [event for event in self.lost if before <= event["before"] < number]
            rounds = [event["rounds"] for event in mine]
            # Rounds of synchronous workers are the same updates.
            acknowledged = max(rounds, default=0) if any(event["together"] for event in mine) else sum(rounds)
            cost = max(seen, self.undone.get(number, 0), acknowledged)
            if cost or number != self.resumption:  # a run that goes on from where it stopped has lost nothing
                found.append(entry | {"lost_updates": cost})
            before = number
        return found

    def summary(self) -> dict[str, Any]:
        """For result.json."""
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
            "warnings": self.warnings,
        }
