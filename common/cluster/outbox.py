"""Reports of a task of several machines to its own launcher, and to an evaluator on another machine."""

from __future__ import annotations

import json
import threading
from typing import Any

from ..reports import FAULTS, Report
from .member import Member

RELAYED = ("listening", "ready", "first_update", "worker", "finished", *FAULTS)


class Outbox:
    """Events that the next heartbeat will bring to the evaluator.

    Attributes:
        lines: events as JSON.
        wake: set when the next heartbeat should be sent at once.
        saving_seconds: limit for the last checkpoint of the chief, in seconds.
    """

    def __init__(self, member: Member, local_report: Report):
        self.member, self.local_report = member, local_report
        self.lines: list[str] = []
        self.wake = threading.Event()
        self.saving_seconds = 0.0
        self._adding = threading.Lock()

    def report(self, **event: Any) -> None:
        """Report an event to the launcher of this machine, and to the evaluator if it is on another one."""
        self.local_report(**event)
        if event["event"] == "saving":
            self.saving_seconds = event["seconds"]
        if not self.member.spec.evaluates and event["event"] in RELAYED:
            with self._adding:
                self.lines.append(json.dumps({"task": self.member.name, **event}))
            if event["event"] == "finished":
                self.wake.set()

    def sent(self, count: int) -> None:
        """Drop the first `count` lines, which have been sent."""
        with self._adding:
            del self.lines[:count]
