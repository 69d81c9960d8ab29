"""When each rule lets workers wait, in plain Python: never, until a set is complete, or beyond a bounded lead.

These are the rules that `Async`, `Barrier` and `Bounded` build as graphs. Virtual time and `Group` use them. Each
receives the events of a run, and returns the released workers, in ascending order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ..errors import UserError
from .synchronization import Synchronization


class Waiting:
    """The rule under which no worker waits, and the base of the others.

    Attributes:
        arrived: workers that wait.
    """

    def __init__(self, sync: Synchronization, workers: int):
        self.sync, self.workers = sync, workers
        self.arrived: set[int] = set()

    def counted(self, rounds: int) -> None:
        """Notice that a worker now has that many recorded rounds."""

    def arrive(self, worker: int, rounds: int) -> Sequence[int]:
        """Process a message of a worker that now has that many recorded rounds; return the released workers."""
        return (worker,)

    def leave(self, rounds: int) -> Sequence[int]:
        """Remove a worker with that many recorded rounds; return the workers that this releases."""
        return ()

    def enter(self, rounds: int) -> None:
        """Wait again for a worker that had left, with that many recorded rounds."""


class SetOfMessages(Waiting):
    """The rule of barriers: a worker waits until the set of messages is complete (`Synchronization.set_size`).

    With a time of grace it has then those of all active workers, or `end_grace` closes it.
    """

    def __init__(self, sync: Synchronization, workers: int):
        super().__init__(sync, workers)
        self._needs(workers)

    def _needs(self, active: int) -> None:
        """Set the number of active workers, and the messages that a set of them needs."""
        self.active, self.needed = active, self.sync.set_size(active) or 1

    def arrive(self, worker: int, rounds: int) -> Sequence[int]:
        """Return all workers of the set if this message completes it."""
        self.arrived.add(worker)
        return self._closed()

    def leave(self, rounds: int) -> Sequence[int]:
        """Return all workers of the set if it is complete without the worker that leaves."""
        self._needs(self.active - 1)
        return self._closed()

    def enter(self, rounds: int) -> None:
        """Wait again for a worker that had left: sets need its message."""
        self._needs(self.active + 1)

    @property
    def enough(self) -> bool:
        """True if the set needs no more messages."""
        return len(self.arrived) >= self.needed

    def end_grace(self) -> Sequence[int]:
        """Close the set, and return its workers."""
        free, self.arrived = sorted(self.arrived), set()
        return free

    def _closed(self) -> Sequence[int]:
        awaited = max(self.active, self.needed) if self.sync.grace else self.needed
        return self.end_grace() if len(self.arrived) >= awaited else ()


class Lead(Waiting):
    """The rule of bounded staleness: no worker begins a round too far ahead of the slowest (`Synchronization.lead`).

    Args:
        sync: the rule, with the lead.
        workers: W.

    Attributes:
        slowest: recorded rounds of the slowest active worker.
    """

    def __init__(self, sync: Synchronization, workers: int):
        super().__init__(sync, workers)
        self.at = Counter({0: workers})  # number of workers by their recorded rounds
        self.slowest, self.lead = 0, sync.lead or 0
        self.until = defaultdict[int, list[int]](list)  # waiting workers by the rounds that the slowest must reach

    def counted(self, rounds: int) -> None:
        """Move a worker from the previous number of rounds to this one."""
        self.at[rounds - 1] -= 1
        self.at[rounds] += 1

    def arrive(self, worker: int, rounds: int) -> Sequence[int]:
        """Return the workers that are now near enough to the slowest, which may have been this worker."""
        self.arrived.add(worker)
        self.until[max(rounds - self.lead, self.slowest)].append(worker)
        return self._release()

    def leave(self, rounds: int) -> Sequence[int]:
        """Remove a worker that does no more rounds; return the workers that no longer wait for it."""
        self.at[rounds] -= 1
        return self._release()

    def enter(self, rounds: int) -> None:
        """Wait again for a worker that had left, which may now be the slowest."""
        self.at[rounds] += 1
        self.slowest = min(self.slowest, rounds)

    def _release(self) -> Sequence[int]:
        before, last = self.slowest, max(self.until, default=0)
        while not self.at[self.slowest] and self.slowest < last:
            del self.at[self.slowest]
            self.slowest += 1
        free = sorted(k for until in range(before, self.slowest + 1) for k in self.until.pop(until, ()))
        self.arrived.difference_update(free)
        return free


def waiting_at(sync: Synchronization, workers: int) -> Waiting:
    """Return how workers wait under a synchronization rule.

    Raises:
        UserError: the rule lets workers wait without `set_size` or `lead`, or has an exchange of its own.
    """
    if sync.waits and sync.set_size(workers) is None and sync.lead is None:
        raise UserError(
            f"the simulation and Group do not know which workers wait: give the rule `set_size` or `lead`. "
            f"Received: {type(sync).__name__}"
        )
    if not sync.simulated:
        raise UserError(
            f"{type(sync).__name__} overrides methods that a simulation and a Group do not call. If they mean the same "
            "as those of its base, set `simulated = True` (docs/scheme.md); else train on processes or threads"
        )
    if sync.set_size(workers) is not None:
        return SetOfMessages(sync, workers)
    if sync.lead is not None:
        return Lead(sync, workers)
    return Waiting(sync, workers)
