"""How a task of several machines leaves a run, and how all of them learn how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from ..errors import DistsgdError, TaskLost
from ..waiting import reachable
from .arrival import RETRY_SECONDS
from .member import Member
from .outbox import Outbox
from .rendezvous import CALL_SECONDS, DEREGISTERED, OUTCOME, Rendezvous

LINGER_SECONDS = 5.0  # for the others to learn how the run ended, before the first task leaves with the tables

CAUSE_SECONDS = 3.0  # for the cause to become known, after a peer was lost

CLOSING_SECONDS = 2.0  # for a process that was killed to let go of its address, too; before others go


class Departure:
    """The ways out of a run; of the threads of a task that want to end it, the first one does.

    Attributes:
        rendezvous: set when the task has registered; without it, there is nobody to tell.
        ended: set when it is known how the run ended, or nobody needs to be told.
        gone: set when this task has left in peace.
        evicted: another process owns the task: what is told of it is that one's business.
    """

    def __init__(self, member: Member, outbox: Outbox):
        self.member, self.outbox = member, outbox
        self.rendezvous: Rendezvous | None = None
        self.ended, self.gone = threading.Event(), threading.Event()
        self.evicted = False
        self._last_word = threading.Lock()  # whoever has it decides how this task ends; it is not given back

    def conclude(self, rendezvous: Rendezvous, error: DistsgdError | None, task: tuple[str, int]) -> None:
        """Say how the run ended, and because of which task, if nobody has."""
        outcome = {
            "task": f"{task[0]}-{task[1]}",
            "kind": "" if error is None else type(error).__name__,
            "message": str(error or ""),
        }
        rendezvous.claim(OUTCOME, self.member.owner, outcome)
        self.outbox.wake.set()

    def succeed(self) -> None:
        """The run ended well: leave."""
        self._last_word.acquire()  # another thread may be ending this process for a reason of its own
        self.gone.set()
        self.deregister()

    def fail(self, error: DistsgdError) -> None:
        """Tell the others why this task has failed, if it is one of them: that ends the run."""
        if self.rendezvous is None:
            return
        self._last_word.acquire()
        self.ended.set()
        with contextlib.suppress(ConnectionError):
            self.conclude(self.rendezvous, error, self.member.task)
        self.deregister()

    def pause(self) -> None:
        """Leave a run that waits for this task to be started again."""
        if self.rendezvous is None:
            return
        self._last_word.acquire()
        self.ended.set()
        self.deregister(linger=False)  # a ps that stayed for a while would only lose what is folded meanwhile

    def end_process(self, error: DistsgdError, task: str | None = None, again: bool = False) -> NoReturn:
        """End this process for a reason that lies elsewhere, perhaps to begin `again`; its main thread may hang."""
        self._last_word.acquire()
        event = {"event": "error", "kind": type(error).__name__, "message": str(error), "consequence": again}
        self.outbox.local_report(**event, **({"task": task} if task else {}))
        self.deregister()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.exit_code)

    def await_sigterm(self) -> NoReturn:
        """End this process when it is told to, and say so to the others."""
        signal.sigwait({signal.SIGTERM})
        if self.member.restarts.recovers:
            self.pause()
        else:
            self.fail(TaskLost(f"the program of {self.member.named(self.member.task)} was stopped"))
        os._exit(128 + signal.SIGTERM)

    def absent_peers(self) -> str:
        """Those who do not listen any more at their addresses, by name; empty if all go on doing so.

        A process that was killed may have lost its connections, one of which was to this task, but not yet its address.
        """
        deadline = time.monotonic() + CLOSING_SECONDS
        while not (absent := self._unreachable()) and time.monotonic() < deadline:
            time.sleep(RETRY_SECONDS)
        return absent

    def _unreachable(self) -> str:
        addresses = [self.member.spec.addresses.of(*task) for task in self.member.tasks]
        with ThreadPoolExecutor(len(addresses)) as pool:  # who is cut off does not answer at all, which takes its time
            there = list(pool.map(lambda address: not address or reachable(address), addresses))
        return ", ".join(self.member.named(key) for key, is_there in enumerate(there) if not is_there)

    def await_cause(self) -> None:
        """After a peer was lost: if the reason becomes known, this process ends with it."""
        if self.ended.wait(CAUSE_SECONDS):
            time.sleep(LINGER_SECONDS + CALL_SECONDS)

    def deregister(self, linger: bool = True) -> None:
        """Say good-bye; the first task leaves last, for the others to learn from its tables how the run ended."""
        if self.evicted or self.rendezvous is None:
            return
        with contextlib.suppress(ConnectionError):
            self.rendezvous.raise_heartbeat(self.member.key, DEREGISTERED, self.outbox.lines)
            deadline = time.monotonic() + LINGER_SECONDS
            while linger and self.member.is_host and time.monotonic() < deadline:
                heartbeats, here = self.rendezvous.heartbeats(), {key for key in self.rendezvous.specs() if key >= 0}
                if self.member.restarts.recovers:  # some may still have to register again
                    here |= set(range(len(self.member.tasks)))
                if all(heartbeats.get(key) == DEREGISTERED for key in here):
                    return
                time.sleep(RETRY_SECONDS)
