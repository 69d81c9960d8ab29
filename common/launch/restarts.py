"""The restarts of the tasks that one launcher has started: the number left, and the time when each is due."""

from __future__ import annotations

import math
import time
from collections import Counter

from ..cluster.restart_rule import RestartRule

PAUSE_SECONDS = 1.0  # before a task is started for the third time; doubled before each further start

LONGEST_PAUSE_SECONDS = 30.0

STEADY_SECONDS = 60.0  # a task that has lived for that long does not count as dying at its start


class Restarts:
    """A counter of restarts, with the time when each is due.

    Args:
        rule: the rule for lost tasks, and for the time that the others wait for a restart.
    """

    def __init__(self, rule: RestartRule):
        self.rule = rule
        self.number = 0  # of restarts decided so far
        self.due: dict[str, tuple[float, str]] = {}  # time and reason of each restart that has not been made yet
        self._began: dict[str, float] = {}  # time of each task's last restart
        self._in_a_row: Counter[str] = Counter()  # restarts of a task that never lived for long

    @property
    def left(self) -> int:
        """The number of restarts that are left."""
        return self.rule.max_restarts - self.number

    @property
    def possible(self) -> bool:
        """True if a task that dies now is started again."""
        return self.rule.can_restart(self.number)

    @property
    def soonest(self) -> float:
        """The time of the next restart, on the clock of `time.monotonic`; infinite if none is due."""
        return min((when for when, _ in self.due.values()), default=math.inf)

    def age(self, task: str) -> float:
        """Return the seconds since a task was started again; infinite if it never was."""
        return time.monotonic() - self._began.get(task, -math.inf)

    def schedule(self, task: str, reason: str) -> None:
        """Schedule a restart of a task, after a pause if the task dies again and again."""
        self.number += 1
        if self.age(task) > STEADY_SECONDS:
            self._in_a_row[task] = 0
        self.due[task] = time.monotonic() + pause(self._in_a_row[task], self.rule.wait_seconds), reason
        self._in_a_row[task] += 1

    def take(self) -> list[tuple[str, str]]:
        """Remove and return the tasks whose restart is due, each with its reason."""
        now = time.monotonic()
        ready = [(task, reason) for task, (when, reason) in self.due.items() if now >= when]
        for task, _ in ready:
            del self.due[task]
            self._began[task] = now
        return ready


def pause(restarts: int, wait_seconds: float) -> float:
    """Return the seconds before the next restart of a task that was restarted `restarts` times in a row.

    The first restart is immediate. Before later ones the cause may need time to disappear, but the pause is bounded,
    as other tasks wait for this one.
    """
    if restarts == 0:
        return 0.0
    return min(PAUSE_SECONDS * 2.0 ** (restarts - 1), LONGEST_PAUSE_SECONDS, wait_seconds / 2)
