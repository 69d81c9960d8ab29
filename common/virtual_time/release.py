"""Who waits for whom at a gate, from what the gate says of itself: nobody, a set of messages, or a lead.

These are the rules of `Async`, `Barrier` and `Bounded` in the engine of graphs, without graphs. Each of them is told of
what happens, and answers who goes on, in ascending order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from ..errors import UserError
from ..sync.gate import Gate


class Waiting:
    """The base, and what holds for gates at which nobody waits.

    Attributes:
        arrived: who waits.
    """

    def __init__(self, gate: Gate, workers: int):
        self.gate, self.workers = gate, workers
        self.arrived: set[int] = set()

    def counted(self, rounds: int) -> None:
        """A worker has that many rounds on record now."""

    def arrive(self, worker: int, rounds: int) -> Sequence[int]:
        """A message of this worker has arrived, which has that many rounds on record now."""
        del rounds
        return (worker,)

    def leave(self, rounds: int) -> Sequence[int]:
        """Nobody counts any more on a worker that has that many rounds on record."""
        del rounds
        return ()


class SetOfMessages(Waiting):
    """Some messages make an update together, and who has sent one of them waits for the others (`Gate.set_size`)."""

    def __init__(self, gate: Gate, workers: int):
        super().__init__(gate, workers)
        self._needs(workers)

    def _needs(self, active: int) -> None:
        self.active, self.needed = active, self.gate.set_size(active) or 1

    def arrive(self, worker: int, rounds: int) -> Sequence[int]:
        """All of the set, if this was the last one that it needed."""
        self.arrived.add(worker)
        return self._close() if len(self.arrived) >= self.needed else ()

    def leave(self, rounds: int) -> Sequence[int]:
        """Without those who are gone, the set may be complete."""
        self._needs(self.active - 1)
        return self._close() if len(self.arrived) >= self.needed else ()

    def _close(self) -> Sequence[int]:
        free, self.arrived = sorted(self.arrived), set()
        return free


class Lead(Waiting):
    """Nobody begins a round more than some rounds ahead of the slowest (`Gate.lead`).

    Args:
        gate: with the lead.
        workers: how many.
        before: rounds on record at the beginning, of each worker that is counted on; none if not given.

    Attributes:
        slowest: rounds on record of the slowest worker that is counted on.
    """

    def __init__(self, gate: Gate, workers: int, before: Sequence[int] | None = None):
        super().__init__(gate, workers)
        self.at = Counter({0: workers} if before is None else before)  # how many have that many rounds on record
        self.slowest, self.lead = min(self.at, default=0), gate.lead or 0
        self.until = defaultdict[int, list[int]](list)  # who waits, by the rounds that the slowest must have

    def counted(self, rounds: int) -> None:
        """One worker more has that many rounds, and one fewer has the number before."""
        self.at[rounds - 1] -= 1
        self.at[rounds] += 1

    def arrive(self, worker: int, rounds: int) -> Sequence[int]:
        """Whoever is near enough to the slowest; it may have been this worker itself."""
        self.arrived.add(worker)
        self.until[max(rounds - self.lead, self.slowest)].append(worker)
        return self._release()

    def leave(self, rounds: int) -> Sequence[int]:
        """The others need not wait for a worker that does no more rounds."""
        self.at[rounds] -= 1
        return self._release()

    def withdraw(self, worker: int) -> None:
        """A worker that waits has been let go by something else."""
        self.arrived.remove(worker)
        for waiting in self.until.values():
            if worker in waiting:
                waiting.remove(worker)

    def _release(self) -> Sequence[int]:
        before, last = self.slowest, max(self.until, default=0)
        while not self.at[self.slowest] and self.slowest < last:
            del self.at[self.slowest]
            self.slowest += 1
        free = sorted(k for until in range(before, self.slowest + 1) for k in self.until.pop(until, ()))
        self.arrived.difference_update(free)
        return free


def waiting_at(gate: Gate, workers: int) -> Waiting:
    """Who waits for whom at this gate.

    Raises:
        UserError: the gate says that workers wait, and not for whom; or it has an exchange of its own.
    """
    if gate.waits and gate.set_size(workers) is None and gate.lead is None:
        raise UserError(
            f"the simulation does not know who waits for whom: give the gate `set_size` or `lead`. "
            f"Received: {type(gate).__name__}"
        )
    if not gate.can_be_simulated():
        raise UserError(
            f"the simulation does not know what an exchange of this gate does: it has methods of its own, and does not "
            f"say `simulated = True` (see docs/contributing.md). Received: {type(gate).__name__}"
        )
    if gate.set_size(workers) is not None:
        return SetOfMessages(gate, workers)
    if gate.lead is not None:
        return Lead(gate, workers)
    return Waiting(gate, workers)
