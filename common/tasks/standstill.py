"""A standstill of all workers, each between two rounds, while the chief reads the state for a checkpoint.

The chief requests a copy of the local state of each worker. Workers with a barrier or a bounded lead first continue to
a common meeting, a version or a number of rounds ahead of all of them; other workers write their copy at the end of a
call. Then each waits until the chief has read all copies and the global state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..server.answers import LAST, NONE, PausedWorkers, Positions
from ..waiting import absent, awake
from .local_state import Keeping
from .state_calls import StateCalls

# Longest wait of the workers for one that is in a long call: seconds, or this share of the time since the last one.
PAUSE_SECONDS, PAUSE_SHARE = 1.0, 0.05

LOOK_SECONDS, LOOK_SHARE = 0.01, 0.05  # between two polls of the workers, or this share of the time so far

HEALTH_SECONDS = 0.25  # between two checks whether the state needs to be restored meanwhile


class Standstill:
    """Control of the standstill by the chief.

    Args:
        keeping: the parts of the local states to save, and the kind of meeting.
        patience: returns the seconds without any new round after which workers that meet are given up.
        position: returns the rounds that worker 0 has done; in gossip the ps counts them only as they are collected.

    Attributes:
        moving: names of the workers that have not stood still in time at the last standstill.
    """

    def __init__(self, keeping: Keeping, patience: Callable[[], float], position: Callable[[], int]):
        self.keeping, self.patience, self.position = keeping, patience, position
        self.ended = awake.now()  # end of the last standstill
        self.moving = ""

    @contextmanager
    def of(
        self, calls: StateCalls, is_fine: Callable[[], bool], most: float = math.inf, last: bool = False
    ) -> Iterator[bool]:
        """Keep the workers at a standstill inside the block, if that is needed; yield True if the state may be read.

        The state must not be read if the run is being stopped, if the state needs to be restored first (not `is_fine`),
        or if workers that write to the center without the lock do not stand still. The workers get `most` seconds.
        The standstill is the `last` one if the run ends after it.
        """
        if not self.keeping.stops:
            yield True
            return
        try:
            self._ask(calls, LAST if last else 0)
            if stands := self._stands(calls, is_fine, most, last):
                yield stands
                calls.forget_copies()
            else:
                yield False
        finally:
            calls.ask_for_copies(NONE)
            self.ended = awake.now()

    def _ask(self, calls: StateCalls, last: int) -> None:
        """Request a copy, at a meeting that no worker can have passed when it reads the request.

        The meeting lies after the present call of a worker and the next one, which may begin before it has read the
        request.
        """
        if not self.keeping.meets:
            calls.ask_for_copies(last + time.time_ns())
            return
        meeting, now = NONE, calls.ask_for_copies(NONE)
        while meeting < (earliest := self._earliest(now)):
            meeting = earliest + (earliest - meeting if meeting != NONE else 0)  # fast workers: leave more rounds
            now = calls.ask_for_copies(meeting)
        if last:
            calls.ask_for_copies(last + meeting)

    def _earliest(self, now: Positions) -> int:
        """Return the earliest meeting that no worker has passed when it reads the request."""
        call = int(now.longest_call.max())
        if self.keeping.gossips:
            farthest = self.position() + call + self.keeping.lag  # worker 0 may be at the end of its call
        else:
            farthest = now.version if self.keeping.meets == "version" else int(now.rounds.max())
        return farthest + 2 * call

    def _stands(self, calls: StateCalls, is_fine: Callable[[], bool], most: float, last: bool) -> bool:
        """Block until all workers stand still, or the time limit has passed; return True if the state may be read."""
        patient = self.keeping.meets or self.keeping.waits_for_all or last
        began = moved = looked = awake.now()
        pause, rounds = max(PAUSE_SECONDS, PAUSE_SHARE * (began - self.ended)), -1
        while True:
            now = calls.paused_workers()
            moment = awake.now()
            self.moving = absent(self._standing(now))
            if not now.continues or not self.moving:
                return bool(now.continues)
            if moment - looked > HEALTH_SECONDS:
                looked = moment
                if not is_fine():
                    return False
            if now.rounds.sum() != rounds:
                rounds, moved = now.rounds.sum(), moment
            limit = self.patience() if patient else pause
            if moment - (moved if patient else began) > limit or moment - began > most:
                return not self.keeping.waits_for_all
            time.sleep(min(max(LOOK_SECONDS, LOOK_SHARE * (moment - began)), HEALTH_SECONDS))

    def _standing(self, now: PausedWorkers) -> Any:
        """Return which workers stand still, [W] booleans.

        Without meetings a worker in its first round counts as standing: with no logged round it has no state to save.
        """
        return now.paused if self.keeping.meets else now.paused | (now.rounds == 0)
