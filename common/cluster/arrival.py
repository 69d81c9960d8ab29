"""The arrival of a task of several machines: it finds the others, checks that all run the same, and registers."""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import UserError, WaitTimeout
from ..waiting import awake
from .fingerprint import differences
from .member import Member
from .rendezvous import CALL_SECONDS, DEREGISTERED, EVICTED, OUTCOME, Rendezvous, under_way

RETRY_SECONDS = 0.1

STILL_SECONDS = 5.0  # a task is gone if its heartbeat has not changed for that long


class RunIsOver(Exception):
    """The run ended before this task arrived; `outcome` describes how."""

    def __init__(self, outcome: Mapping[str, Any]):
        super().__init__(outcome["message"])
        self.outcome = outcome


class Arrival:
    """One task on its way into the run, for a bounded time.

    All methods raise `WaitTimeout`, with the names of the missing tasks, when the time is over.
    """

    def __init__(self, member: Member, seconds: float):
        self.member, self.seconds = member, seconds
        self.deadline = awake.now() + seconds
        self.rendezvous: Rendezvous

    def find_rendezvous(self) -> Rendezvous:
        """Block until the first task accepts connections; its host name may be unknown for a while, too."""
        first = self.member.tasks[0]
        address = self.member.spec.addresses.of(*first)
        host, port = address.rsplit(":", 1)
        while True:
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=CALL_SECONDS).close()
                break
            except OSError as error:
                self._pause([0], f" ({error.strerror or error})")
        self.rendezvous = Rendezvous(address, first)
        return self.rendezvous

    def register(self) -> bool:
        """Own the task; returns True if this process replaces another one that owned it.

        A task has one owner. In a run that survives faults it can get another once its owner is gone: if the owner was
        evicted or has deregistered, if the same program starts the task again, or if its heartbeat stands still.

        Raises:
            UserError: this task runs something else than the first one, or has an owner that is alive.
            RunIsOver: the run has ended.
        """
        member = self.member
        if not member.is_host:
            self.compare(self._await_specs([0])[0], 0)
        instead_of, heartbeat, since = "", None, awake.now()
        while True:
            claim = functools.partial(
                self.rendezvous.claim, member.key, member.owner, member.registration(), instead_of
            )
            owner, entry = self.retry(claim)
            if owner == member.owner:
                return bool(instead_of)
            last, heartbeat = heartbeat, self.retry(self.rendezvous.heartbeats).get(member.key, 0)
            stands_still = awake.now() - since > STILL_SECONDS
            if owner != EVICTED and (not member.restarts.tolerates or last not in (None, heartbeat)):
                raise UserError(
                    f"{member.named(member.task)} is running already ({entry['where']}): each task of a cluster is "
                    "started once"
                )
            same_program = entry["program"] == member.program
            if owner == EVICTED or same_program or heartbeat == DEREGISTERED or stands_still:
                instead_of = owner
            else:
                time.sleep(RETRY_SECONDS)

    def await_others(self) -> dict[int, dict[str, Any]]:
        """Block until all tasks have registered, unless the run is under way; returns their specs.

        Raises:
            UserError: this task was restarted with empty tables, and runs something else than the others.
            RunIsOver: the run has ended.
        """
        keys = range(len(self.member.tasks))
        specs = self._await_specs(keys, at_first=True)
        if self.member.is_host and under_way(specs):  # at the start of a run, the others compare
            for key in specs.keys() & keys:
                self.compare(specs[key], key)
        return specs

    def compare(self, spec: Mapping[str, Any], key: int) -> None:
        """Raise `UserError` if another task runs something else, and leave a note for tasks that wait for this one."""
        member = self.member
        if different := differences(member.identity, spec["identity"], member.named(key)):
            text = f"{member.named(member.task)} does not run the same as the others: {different}"
            with contextlib.suppress(ConnectionError):
                self.rendezvous.claim(OUTCOME - 1 - member.key, member.owner, {"refused": text})
            raise UserError(text)

    def retry(self, call: Callable[[], Any]) -> Any:
        """Call the first task until it answers."""
        while True:
            try:
                return call()
            except ConnectionError as error:
                self._pause([0], f", which does not answer as one of this cluster ({error})")

    def _await_specs(self, wanted: Collection[int], at_first: bool = False) -> dict[int, dict[str, Any]]:
        """Block until the `wanted` tasks have registered; with `at_first` not in a run under way. Returns all specs."""
        while True:
            specs = self.retry(self.rendezvous.specs)
            if OUTCOME in specs:
                raise RunIsOver(specs[OUTCOME])
            missing = [key for key in wanted if key not in specs]
            if not missing or (at_first and under_way(specs)):
                return specs
            refused = [specs[OUTCOME - 1 - key]["refused"] for key in missing if OUTCOME - 1 - key in specs]
            self._pause(missing, "".join(f". Refused: {text}" for text in refused))

    def _pause(self, missing: Collection[int], why: str = "") -> None:
        """Wait a moment before the next attempt; raises `WaitTimeout` after the deadline."""
        if awake.now() > self.deadline:
            names = ", ".join(map(self.member.named, missing))
            raise WaitTimeout(f"waited {self.seconds:g} s for {names}{why}")
        time.sleep(RETRY_SECONDS)
