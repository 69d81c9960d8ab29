"""How a task of several machines comes into a run: it finds the others, checks that all run the same, and registers."""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..errors import UserError, WaitTimeout
from .fingerprint import differences
from .member import Member
from .rendezvous import CALL_SECONDS, DEREGISTERED, EVICTED, OUTCOME, Rendezvous, under_way

RETRY_SECONDS = 0.1

STILL_SECONDS = 5.0  # a heartbeat that stands still for that long is that of a task that is gone


class RunIsOver(Exception):
    """The run has ended before this task came; `outcome` says how."""

    def __init__(self, outcome: Mapping[str, Any]):
        super().__init__(outcome["message"])
        self.outcome = outcome


class Arrival:
    """One task on its way into the run, for a bounded time.

    All of it raises `WaitTimeout`, with the names of those who are missing, when the time is over.
    """

    def __init__(self, member: Member, seconds: float):
        self.member, self.seconds = member, seconds
        self.deadline = time.monotonic() + seconds
        self.rendezvous: Rendezvous

    def find_rendezvous(self) -> Rendezvous:
        """Until the first task accepts connections; its name may be unknown for a while, too."""
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
        """Own the task; True if it comes back into a run, instead of another process that owned it.

        A task is owned once. In a run that survives faults it can be owned again, once its owner is gone: because it
        was evicted, or has deregistered, or because the same program starts it again, or its heartbeat stands still.

        Raises:
            UserError: this task runs something else than the first one, or has an owner that is there.
            RunIsOver: the run has ended.
        """
        member = self.member
        if not member.is_host:
            self.compare(self._await_specs([0])[0], 0)
        instead_of, heartbeat, since = "", None, time.monotonic()
        while True:
            claim = functools.partial(
                self.rendezvous.claim, member.key, member.owner, member.registration(), instead_of
            )
            owner, there = self.retry(claim)
            if owner == member.owner:
                return bool(instead_of)
            last, heartbeat = heartbeat, self.retry(self.rendezvous.heartbeats).get(member.key, 0)
            stands_still = time.monotonic() - since > STILL_SECONDS
            if owner != EVICTED and (not member.restarts.tolerates or last not in (None, heartbeat)):
                raise UserError(
                    f"{member.named(member.task)} is there already ({there['where']}): each task of a cluster is "
                    "started once"
                )
            same_program = there["program"] == member.program
            if owner == EVICTED or same_program or heartbeat == DEREGISTERED or stands_still:
                instead_of = owner
            else:
                time.sleep(RETRY_SECONDS)

    def await_others(self) -> dict[int, dict[str, Any]]:
        """Until all have registered, unless the run is under way; returns their specs.

        Raises:
            UserError: this task has come back with tables that are empty, and runs something else than the others.
            RunIsOver: the run has ended.
        """
        everybody = range(len(self.member.tasks))
        specs = self._await_specs(everybody, at_first=True)
        if self.member.is_host and under_way(specs):  # else the others have compared
            for key in specs.keys() & everybody:
                self.compare(specs[key], key)
        return specs

    def compare(self, spec: Mapping[str, Any], key: int) -> None:
        """Raise `UserError` if another task runs something else, and leave a note for those who wait for this one."""
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
        """Until those have registered, or `at_first` only: unless the run is under way; returns all specs."""
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
        """Wait a moment before the next attempt; `WaitTimeout` when there was time enough."""
        if time.monotonic() > self.deadline:
            names = ", ".join(map(self.member.named, missing))
            raise WaitTimeout(f"waited {self.seconds:g} s for {names}{why}")
        time.sleep(RETRY_SECONDS)
