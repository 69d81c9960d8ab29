"""The departure of a task of several machines from a run, and its reports to the evaluator until then."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from ..errors import DistsgdError, TaskLost
from ..reports import FAULTS, Report, name_of
from ..signals import leaving
from ..waiting import awake, reachable
from .arrival import RETRY_SECONDS
from .member import Member
from .rendezvous import CALL_SECONDS, DEREGISTERED, OUTCOME, Rendezvous

LINGER_SECONDS = 5.0  # for the other tasks to read how the run ended, before the first task ends with the tables

CAUSE_SECONDS = 3.0  # for the cause to become known, after a peer was lost

CLOSING_SECONDS = 2.0  # for a killed process to release its address after its connections; before other tasks leave

RELAYED = ("listening", "arithmetic", "ready", "first_update", "worker", "figures", "finished", *FAULTS)


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
        if not self.member.spec.evaluates and name_of(event) in RELAYED:
            with self._adding:
                self.lines.append(json.dumps({"task": self.member.name, **event}))
            if name_of(event) == "finished":
                self.wake.set()

    def sent(self, count: int) -> None:
        """Drop the first `count` lines, which have been sent."""
        with self._adding:
            del self.lines[:count]


class Departure:
    """The ways in which a task leaves a run; of several threads that want to end it, the first one does.

    Attributes:
        rendezvous: set when the task has registered; before that, no other task needs to be notified.
        ended: set when it is known how the run ended, or no other task needs to be notified.
        gone: set when this task has left without a failure.
        evicted: True if another process owns the task; that process then reports on it.
    """

    def __init__(self, member: Member, outbox: Outbox):
        self.member, self.outbox = member, outbox
        self.rendezvous: Rendezvous | None = None
        self.ended, self.gone = threading.Event(), threading.Event()
        self.evicted = False
        self._last_word = threading.Lock()  # the thread that acquires it ends this task, and never releases it

    def conclude(self, rendezvous: Rendezvous, error: DistsgdError | None, task: tuple[str, int]) -> None:
        """Publish how the run ended, and because of which task, unless another task has done so."""
        outcome = {
            "task": f"{task[0]}-{task[1]}",
            "kind": "" if error is None else type(error).__name__,
            "message": str(error or ""),
        }
        rendezvous.claim(OUTCOME, self.member.owner, outcome)
        self.outbox.wake.set()

    def succeed(self) -> None:
        """Leave a run that ended well."""
        self._last_word.acquire()  # another thread may be ending this process for a reason of its own
        self.gone.set()
        self.deregister()

    def fail(self, error: DistsgdError) -> None:
        """Tell the others why this task has failed, if it has registered: that ends the run."""
        if self.rendezvous is None:
            return
        self._last_word.acquire()
        self.ended.set()
        with contextlib.suppress(ConnectionError):
            self.conclude(self.rendezvous, error, self.member.task)
        self.deregister()

    def pause(self) -> None:
        """Leave a run that continues without this task, or waits for it to be started again."""
        if self.rendezvous is None:
            return
        self._last_word.acquire()
        self.ended.set()
        self.deregister(linger=False)  # messages that a ps applied while it lingered would be lost with it

    def end_process(self, error: DistsgdError, task: str | None = None, again: bool = False) -> NoReturn:
        """End this process because of another task, perhaps to be started `again`; its main thread may hang."""
        self._last_word.acquire()
        event = {"event": "error", "kind": type(error).__name__, "message": str(error), "consequence": again}
        self.outbox.local_report(**event, **({"task": task} if task else {}))
        self.deregister()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)

    def await_stop(self) -> NoReturn:
        """Wait until the launcher stops this task, notify the other tasks and end this process."""
        leaving.wait()
        if self.member.restarts.recovers:
            self.pause()
        else:
            self.fail(TaskLost(f"the program of {self.member.named(self.member.task)} was stopped"))
        os._exit(128 + signal.SIGTERM)

    def absent_peers(self) -> str:
        """Return the names of the tasks that do not listen any more at their addresses; empty if all listen.

        A killed process loses its connections, one of which was to this task, before its address: so retry for a while.
        """
        deadline = awake.now() + CLOSING_SECONDS
        while not (absent := self._unreachable()) and awake.now() < deadline:
            time.sleep(RETRY_SECONDS)
        return absent

    def _unreachable(self) -> str:
        addresses = [self.member.spec.addresses.of(*task) for task in self.member.tasks]
        with ThreadPoolExecutor(len(addresses)) as pool:  # a host that is cut off does not answer before the time limit
            answers = list(pool.map(lambda address: not address or reachable(address), addresses))
        return ", ".join(self.member.named(key) for key, answered in enumerate(answers) if not answered)

    def await_cause(self) -> None:
        """Wait for the reason of a lost peer to become known: the heartbeat then ends this process with that reason."""
        if self.ended.wait(CAUSE_SECONDS):
            time.sleep(LINGER_SECONDS + CALL_SECONDS)

    def deregister(self, linger: bool = True) -> None:
        """Deregister this task; the first task leaves last, for the others to read in its tables how the run ended."""
        if self.evicted or self.rendezvous is None:
            return
        with contextlib.suppress(ConnectionError):
            self.rendezvous.raise_heartbeat(self.member.key, DEREGISTERED, self.outbox.lines)
            deadline = awake.now() + LINGER_SECONDS
            while linger and self.member.is_host and awake.now() < deadline:
                heartbeats, awaited = self.rendezvous.heartbeats(), {key for key in self.rendezvous.specs() if key >= 0}
                if self.member.restarts.recovers:  # restarted tasks may still have to register
                    awaited |= set(range(len(self.member.tasks)))
                if all(heartbeats.get(key) == DEREGISTERED for key in awaited):
                    return
                time.sleep(RETRY_SECONDS)
