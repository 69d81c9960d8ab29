"""All workers stand still, each between two rounds, while the chief reads the state for a checkpoint.

The chief asks for a copy of the local state of each. Workers that meet in each round, or may not be far ahead of each
other, come to a meeting ahead of them first; others lay a copy down at the end of a call. There they wait until the
chief has read all copies and what is on the ps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..engine.asked import NONE
from .local_state import Keeping
from .state_calls import Heard, Standing, StateCalls

PAUSE_SECONDS, PAUSE_SHARE = 1.0, 0.05  # that workers wait for one in a long call, and of the time since it was so last

LOOK_SECONDS, LOOK_SHARE = 0.01, 0.05  # between two looks at where they are, and of the time that they take

HEALTH_SECONDS = 0.25  # between two looks whether the state is to be repaired meanwhile


class Standstill:
    """Brings the workers to a standstill.

    Args:
        keeping: what is kept, and where workers meet.
        patience: seconds that workers which meet may make no round.
    """

    def __init__(self, keeping: Keeping, patience: Callable[[], float]):
        self.keeping, self.patience = keeping, patience
        self.ended = time.monotonic()  # the last one

    @contextmanager
    def of(self, calls: StateCalls, is_fine: Callable[[StateCalls], bool]) -> Iterator[bool]:
        """Let the workers stand still in here, if they need to; yields True if the state may be read.

        It may not if the run is being stopped, if the state is to be repaired first (not `is_fine`), or if workers that
        write to the center without the lock have not come.
        """
        if not self.keeping.stops:
            yield True
            return
        try:
            self._ask(calls)
            if stands := self._stands(calls, is_fine):
                yield stands
                calls.forget_copies()
            else:
                yield False
        finally:
            calls.ask(NONE)
            self.ended = time.monotonic()

    def _ask(self, calls: StateCalls) -> None:
        """Ask for a copy, at a meeting that no worker can have passed when it hears of it.

        That is after the call that it is in and the next one, which may begin before it has heard.
        """
        if not self.keeping.meets:
            calls.ask(time.time_ns())
            return
        meeting, now = NONE, calls.ask(NONE)
        while meeting < (earliest := self._farthest(now) + 2 * int(now.stretch.max())):
            meeting = earliest + (earliest - meeting if meeting != NONE else 0)  # they are fast: leave them more
            now = calls.ask(meeting)

    def _farthest(self, now: Heard) -> int:
        return now.version if self.keeping.meets == "version" else int(now.rounds.max())

    def _stands(self, calls: StateCalls, is_fine: Callable[[StateCalls], bool]) -> bool:
        """Wait until all stand, or for as long as the others may be kept waiting."""
        patient = self.keeping.meets or self.keeping.waits_for_all
        began = moved = looked = time.monotonic()
        pause, rounds = max(PAUSE_SECONDS, PAUSE_SHARE * (began - self.ended)), -1
        while True:
            now = calls.standing()
            moment = time.monotonic()
            if not now.goes_on or self._all_stand(now):
                return bool(now.goes_on)
            if moment - looked > HEALTH_SECONDS:
                looked = moment
                if not is_fine(calls):
                    return False
            if now.rounds.sum() != rounds:
                rounds, moved = now.rounds.sum(), moment
            if moment - (moved if patient else began) > (self.patience() if patient else pause):
                return not self.keeping.waits_for_all
            time.sleep(min(max(LOOK_SECONDS, LOOK_SHARE * (moment - began)), HEALTH_SECONDS))

    def _all_stand(self, now: Standing) -> bool:
        """One that meets no others begins anew as long as it has no round on record: it may be in its first."""
        return bool((now.stands if self.keeping.meets else now.stands | (now.rounds == 0)).all())
