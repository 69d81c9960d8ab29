"""The heartbeat of a task of several machines: a thread that shows that it is alive, and reads how the run ends."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from ..errors import KINDS, TaskLost
from .departure import LINGER_SECONDS, Departure, Outbox
from .failure_detector import FailureDetector
from .member import Member
from .rendezvous import EVICTED, Rendezvous
from .task_spec import CHIEF_TASK

HEARTBEAT_SECONDS = 0.5


class Heartbeat:
    """A thread that raises this task's number at the first task periodically; no operation in it waits for long.

    Attributes:
        all_arrived: True once every task has registered: from then on, a task without any heartbeat is silent, too.
        result_is_safe: True once the evaluator has the result, which failures of other tasks cannot change.
    """

    def __init__(self, member: Member, outbox: Outbox, departure: Departure, rendezvous: Rendezvous):
        self.member, self.outbox, self.departure, self.rendezvous = member, outbox, departure, rendezvous
        self.all_arrived = self.result_is_safe = False
        self.number = 0
        self.contact = time.monotonic()
        self.numbers: dict[int, int | None] = {}  # read by the first task: the last heartbeat of each
        self.detector = FailureDetector(member.patience_seconds)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self.departure.ended.is_set():
            self.outbox.wake.wait(HEARTBEAT_SECONDS)
            self.outbox.wake.clear()
            try:
                outcome = self._beat()
                self.contact = time.monotonic()
                if self.member.is_host and not outcome:
                    self._look_for_the_silent()
            except ConnectionError as error:
                self._is_without_contact(error)
                continue
            if outcome:
                self.departure.ended.set()
                if outcome["kind"]:
                    self.departure.end_process(KINDS[outcome["kind"]](outcome["message"]), outcome["task"])
                self._let_go()

    def _beat(self) -> dict[str, Any] | None:
        """Send one heartbeat with the waiting reports; returns how the run ended, None if it has not."""
        member, rendezvous = self.member, self.rendezvous
        self.number += 1
        lines = list(self.outbox.lines)
        outcome, owner = rendezvous.raise_heartbeat(member.key, self.number, lines)
        self.outbox.sent(len(lines))
        if not owner:  # the first task was restarted, with empty tables
            owner, _ = rendezvous.claim(member.key, member.owner, member.registration() | {"again": True})
        who = member.named(member.task)
        if owner == EVICTED:
            self.departure.end_process(TaskLost(f"{who} has sent no message for long"), again=True)
        if owner != member.owner:
            self.departure.evicted = True
            self.departure.end_process(TaskLost(f"{who} was not heard for long, and another process has its place"))
        if member.is_evaluator:
            for event in rendezvous.take_reports():
                self._take_down(event)
        return outcome

    def _take_down(self, event: dict[str, Any]) -> None:
        """Report an event of a task on another machine, with its times converted to the clock of this machine."""
        if event["event"] == "finished":
            late = time.monotonic() - event["sent"]
            event |= {name: event[name] + late for name in ("started", "ended")}
        self.outbox.local_report(**event)

    def _look_for_the_silent(self) -> None:
        """End the run if a task that it needs has been silent for too long; called on the first task."""
        self.detector.poll()
        heartbeats: dict[int, int | None] = dict(self.rendezvous.heartbeats())
        if self.all_arrived:  # a task without any heartbeat counts as silent from now on
            heartbeats = dict.fromkeys(range(len(self.member.tasks))) | heartbeats
        for key, number in heartbeats.items():
            if key not in self.numbers:
                self.detector.expect(key)
            elif number != self.numbers[key]:
                self.detector.heard(key)
            self.numbers[key] = number
        tasks, is_needed = self.member.tasks, self.member.restarts.is_needed
        silent = [key for key in self.detector.silent() if is_needed(tasks[key])]
        if silent:
            names = ", ".join(map(self.member.named, silent))
            error = TaskLost(f"nothing heard from {names} for {self.member.patience_seconds:g} s")
            self.departure.conclude(self.rendezvous, error, tasks[silent[0]])

    def _is_without_contact(self, error: ConnectionError) -> None:
        """End this task if its heartbeats have failed for too long."""
        limit = self.member.patience_seconds
        if time.monotonic() - self.contact > limit and not self.result_is_safe:
            first = self.member.named(0)
            self.departure.end_process(TaskLost(f"nothing heard from {first} for {limit:g} s: {error}"))

    def _let_go(self) -> None:
        """End this worker after a run that ended well: a restarted worker may wait for a token that will never come."""
        if self.member.task[0] != "worker":
            return
        patience = LINGER_SECONDS
        if self.member.task == CHIEF_TASK:
            patience = max(self.member.restarts.wait_seconds, self.outbox.saving_seconds)
        if not self.departure.gone.wait(patience):
            self.departure.deregister()
            os._exit(0)
