"""Membership in a run over several machines: a task arrives, sends heartbeats, learns how the run ended, and leaves.

Runs that one launcher has started do not need it. Tasks that were started one by one, each on its machine, find each
other in the tables of `rendezvous`, on the first ps (without a ps: on worker 0). `arrival`, `Heartbeat` and `departure`
are the three parts of a membership; `restart_rule` has the rule for tasks that may be lost or restarted.

An owner that was only slow finds that another process owns its task, and ends. If the first task itself is restarted,
with empty tables, every task registers again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from ..errors import KINDS, DistsgdError, TaskFailed, TaskLost, UserError, WaitTimeout, first_line
from ..reports import Report, name_of
from ..server.failures import is_absence, is_refusal
from ..waiting import awake
from .arrival import RETRY_SECONDS, Arrival, RunIsOver
from .departure import LINGER_SECONDS, Departure, Outbox
from .failure_detector import FailureDetector
from .member import Member
from .rendezvous import CALL_SECONDS, EVICTED, Rendezvous, key_of, under_way
from .task_spec import CHIEF_TASK

HEARTBEAT_SECONDS = 0.5


class Heartbeat:
    """A thread that raises this task's number at the first task periodically; no operation in it waits for long.

    Attributes:
        all_arrived: True once every task has registered: from then on, a task without any heartbeat is silent, too.
        silent: on the first task, workers that were silent for too long, and that a run without a ps leaves out.
        result_is_safe: True once the evaluator has the result, which failures of other tasks cannot change.
    """

    def __init__(self, member: Member, outbox: Outbox, departure: Departure, rendezvous: Rendezvous):
        self.member, self.outbox, self.departure, self.rendezvous = member, outbox, departure, rendezvous
        self.all_arrived = self.result_is_safe = False
        self.number, self.silent = 0, set[int]()
        self.contact = awake.now()
        self.numbers: dict[int, int | None] = {}  # read by the first task: the last heartbeat of each
        self.detector = FailureDetector(member.patience_seconds)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self.departure.ended.is_set():
            self.outbox.wake.wait(HEARTBEAT_SECONDS)
            self.outbox.wake.clear()
            try:
                outcome = self._beat()
                self.contact = awake.now()
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
            for name, value in list(rendezvous.posts.items()):
                rendezvous.post(name, member.owner, value)
        own_name = member.named(member.task)
        if owner == EVICTED:
            self.departure.end_process(
                TaskLost(f"{own_name} was silent for so long that the others continue without it"), again=True
            )
        if owner != member.owner:
            self.departure.evicted = True
            self.departure.end_process(
                TaskLost(f"{own_name} was silent for so long that another process has taken its place")
            )
        if member.is_evaluator:
            for event in rendezvous.take_reports():
                self._take_down(event)
        return outcome

    def _take_down(self, event: dict[str, Any]) -> None:
        """Report an event of a task on another machine, with its times converted to the clock of this machine."""
        if name_of(event) == "finished":
            shift = time.monotonic() - event["sent"]
            event |= {name: event[name] + shift for name in ("started", "ended")}
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
        quiet = set(self.detector.silent())
        silent = [key for key in sorted(quiet) if is_needed(tasks[key])]
        for key in quiet.difference(silent) if self.member.restarts.loses_without_ps else ():
            self.rendezvous.evict(key)  # it ends when it is heard again
            self.silent.add(tasks[key][1])
        if silent:
            names = ", ".join(map(self.member.named, silent))
            error = TaskLost(f"no word from {names} for {self.member.patience_seconds:g} s")
            self.departure.conclude(self.rendezvous, error, tasks[silent[0]])

    def _is_without_contact(self, error: ConnectionError) -> None:
        """End this task if its heartbeats have failed for too long."""
        limit = self.member.patience_seconds
        if awake.now() - self.contact > limit and not self.result_is_safe:
            first = self.member.named(0)
            self.departure.end_process(TaskLost(f"no word from {first} for {limit:g} s: {error}"))

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


class Membership:
    """The membership of one task, from its arrival to its departure.

    Attributes:
        earlier_step_targets: step targets of the runs that this one resumes; after the arrival, those of the chief.
    """

    def __init__(self, member: Member, report: Report):
        self.member = member
        self.outbox = Outbox(member, report)
        self.departure = Departure(member, self.outbox)
        self.earlier_step_targets = member.earlier_step_targets
        self.rendezvous: Rendezvous
        self.heartbeat: Heartbeat

    def arrive(self) -> None:
        """Find the first task, check that all run the same, register, wait for the others.

        Raises:
            WaitTimeout: tasks were missing for too long; the message names them.
            UserError: this task runs something else than the others, or has an owner that is alive.
        """
        arrival = Arrival(self.member, self.member.patience_seconds)
        self.rendezvous = arrival.find_rendezvous()
        try:
            came_back = arrival.register()
            self.departure.rendezvous = self.rendezvous
            self.heartbeat = Heartbeat(self.member, self.outbox, self.departure, self.rendezvous)
            specs = arrival.await_others()
        except RunIsOver as late:
            self._come_too_late(late)
        if (came_back or under_way(specs)) and not self.member.spec.evaluates:  # the evaluator's own program reports it
            self.report(event="restarted", reason="it came back")
        self.heartbeat.all_arrived = True
        chief = self.member.tasks.index(CHIEF_TASK)
        if chief in specs:  # the chief alone has the targets, in its run directory
            self.earlier_step_targets = specs[chief]["earlier_step_targets"]

    def _come_too_late(self, error: RunIsOver) -> NoReturn:
        """Raise the failure that ended the run; if the run ended well without this task, end this process well, too."""
        outcome = error.outcome
        if outcome["kind"]:
            raise KINDS[outcome["kind"]](outcome["message"]) from None
        if self.member.spec.evaluates:
            raise UserError("this run is over") from None
        self.departure.rendezvous = self.rendezvous
        self.departure.deregister()
        os._exit(0)

    def report(self, **event: Any) -> None:
        """Report an event to the launcher of this machine, and to the evaluator if it is on another one."""
        self.outbox.report(**event)
        if event["event"] == "silent" and self.member.restarts.recovers:  # the worker may hang in a call: evict it
            with contextlib.suppress(ConnectionError):
                self.rendezvous.evict(self.member.tasks.index(("worker", event["worker"])))

    def post(self, name: str, value: Mapping[str, Any]) -> None:
        """Leave a value for all tasks under a name, unless it has one, after the reports of this task."""
        while self.outbox.lines and not self.departure.ended.is_set():
            self.outbox.wake.set()
            time.sleep(RETRY_SECONDS)
        self._retry(lambda: self.rendezvous.post(name, self.member.owner, value))

    def posted(self, name: str) -> dict[str, Any] | None:
        """Return the value under a name; None if no task has left one."""
        return self._retry(lambda: self.rendezvous.specs().get(key_of(name)))

    def _retry(self, call: Callable[[], Any]) -> Any:
        return Arrival(self.member, self.member.patience_seconds).retry(call)

    def succeed(self) -> None:
        """Wait, after this task's own work, until the evaluator announces that all tasks are done."""
        if self.member.is_evaluator:
            self.heartbeat.result_is_safe = True
            try:
                self._retry(lambda: self.departure.conclude(self.rendezvous, None, self.member.task))
            except WaitTimeout:
                self.departure.ended.set()
        self.departure.ended.wait()
        self.departure.succeed()

    def lose_a_peer(self, error: Exception) -> DistsgdError | None:
        """Return the failure for a call that lost its peer; None if this task is to be started again."""
        if self.member.restarts.recovers:  # the program of this task starts it again
            self.departure.await_cause()
            self.departure.pause()
            return None
        absent = self.departure.absent_peers()  # before other tasks leave for the same reason
        self.departure.await_cause()
        lost = TaskLost(f"{self.member.named(self.member.task)} lost {absent or f'a peer: {first_line(error)}'}")
        self.departure.fail(lost)
        return lost


def announce_death(member: Member) -> None:
    """End the run on all machines because `member`, a task of this machine, was killed and cannot report it."""
    with contextlib.suppress(ConnectionError):
        rendezvous = Arrival(member, CALL_SECONDS).find_rendezvous()
        departure = Departure(member, Outbox(member, lambda **event: None))
        departure.conclude(rendezvous, TaskLost(f"{member.named(member.task)} was killed"), member.task)


@contextmanager
def membership(member: Member, report: Report) -> Iterator[Membership]:
    """Take part in a run over several machines, and notify the others of how this task ended."""
    own_membership = Membership(member, report)
    threading.Thread(target=own_membership.departure.await_stop, daemon=True).start()
    try:
        own_membership.arrive()
        yield own_membership
        own_membership.succeed()
    except DistsgdError as error:
        if error.ends_run:
            own_membership.departure.fail(error)
        else:
            own_membership.departure.pause()
        raise
    except Exception as error:
        if is_absence(error) or is_refusal(error):
            if lost := own_membership.lose_a_peer(error):
                raise lost from error
            raise
        name = member.named(member.task)
        own_membership.departure.fail(TaskFailed(f"{name} raised {type(error).__name__}: {first_line(error)}"))
        raise
