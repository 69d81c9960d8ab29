"""The restarts of the tasks that one launcher has started: how many are left, and which are due when."""

from __future__ import annotations

import math
import time
from collections import Counter

from ..cluster.restart_rule import RestartRule

PAUSE_SECONDS = 1.0  # before a task is started for the third time; then twice as long each time

LONGEST_PAUSE_SECONDS = 30.0

STEADY_SECONDS = 60.0  # a task that has lived for that long is not one that dies at its start


class Restarts:
    """Counts restarts, and says when each is due.

    Args:
        rule: who may be started again, and how long the others wait for it.
    """

    def __init__(self, rule: RestartRule):
        self.rule = rule
        self.number = 0  # that were decided
        self.due: dict[str, tuple[float, str]] = {}  # those that are still to come: when, and why
        self._began: dict[str, float] = {}  # when a task was started again last
        self._in_a_row: Counter[str] = Counter()  # restarts of a task that never lived for long

    @property
    def left(self) -> int:
        """How many more there may be."""
        return self.rule.max_restarts - self.number

    @property
    def possible(self) -> bool:
        """True if a task that dies now is started again."""
        return self.rule.can_restart(self.number)

    @property
    def soonest(self) -> float:
        """When the next one is due, as `time.monotonic` says; infinite if none is."""
        return min((when for when, _ in self.due.values()), default=math.inf)

    def age(self, task: str) -> float:
        """Seconds since a task was started again; infinite if it never was."""
        return time.monotonic() - self._began.get(task, -math.inf)

    def schedule(self, task: str, reason: str) -> None:
        """Start that task again, after a pause if it dies again and again."""
        self.number += 1
        if self.age(task) > STEADY_SECONDS:
            self._in_a_row[task] = 0
        self.due[task] = time.monotonic() + pause(self._in_a_row[task], self.rule.wait_seconds), reason
        self._in_a_row[task] += 1

    def take(self) -> list[tuple[str, str]]:
        """Those whose time has come, and why they are started; each is given away once."""
        now = time.monotonic()
        ready = [(task, reason) for task, (when, reason) in self.due.items() if now >= when]
        for task, _ in ready:
            del self.due[task]
            self._began[task] = now
        return ready


def pause(restarts: int, wait_seconds: float) -> float:
    """Seconds before a task is started again that was started again `restarts` times in a row.

    The first time is at once; later the cause may need time to go away, but those who wait for the task do not wait
    for ever.
    """
    if restarts == 0:
        return 0.0
    return min(PAUSE_SECONDS * 2.0 ** (restarts - 1), LONGEST_PAUSE_SECONDS, wait_seconds / 2)
