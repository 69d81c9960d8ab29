"""What a message does and who continues, in whole numbers: one `Sequencer` for `Group`, `Optimizer` and virtual time.

The parameter server builds the same rules as a graph (`server.center` and the rules in `sync`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from .contract.scheme import Scheme
from .sync.release import SetOfMessages, waiting_at

Effect = Literal["merge", "drop", "add", "close", "read", "reply", "start"]


class Sequencer:
    """The synchronization of a run. An event returns the workers that continue, each of which has the newest center.

    Args:
        scheme: the algorithm.
        workers: number of workers, W.
        do: function of an effect, its worker, and 1 if a merged message completes an update, else 0. The sequencer
            calls this function before the version counts the effect. A message is merged, dropped, or added to a set;
            a worker closes a set, reads the center, gets its reply (the newest center), or starts from the center after
            the warm start.

    Attributes:
        version: number of updates of the center.
        pulled: version of the center that each worker has, [W].
        recorded: number of recorded rounds of each worker, [W].
        waiting: the rule by which workers wait.
        in_sets: True if messages make updates together.
        held_back: workers that wait for the end of the warm start.

    Raises:
        UserError: it is unknown which workers wait under the scheme's synchronization rule.
    """

    def __init__(self, scheme: Scheme, workers: int, do: Callable[[Effect, int, int], None]):
        self.scheme, self.workers, self.do = scheme, workers, do
        self.waiting = waiting_at(scheme.sync, workers)
        self.in_sets = isinstance(self.waiting, SetOfMessages)
        self.sync = scheme.sync
        self.version = self.messages = 0
        self.pulled, self.recorded = [0] * workers, [0] * workers
        self.held_back = range(1, workers) if scheme.sync.warm_start else range(0)

    def staleness(self, worker: int) -> int:
        """Return the number of updates of the center since the worker's center."""
        return self.version - self.pulled[worker]

    def exchange(self, worker: int) -> Sequence[int]:
        """Process a message that needs a reply."""
        if self.in_sets and not self.sync.accepts(self.staleness(worker)):
            self._record("drop", worker)  # the set of its version was complete without it
            return self.reply((worker,))
        if self.in_sets:
            self._record("add", worker)
        else:
            self._merge(worker)
        return self._release(self.waiting.arrive(worker, self.recorded[worker]), worker)

    def push(self, worker: int) -> Sequence[int]:
        """Process a message that needs no reply; the worker continues without the center."""
        self._merge(worker)
        return (worker,)

    def pull(self, worker: int) -> Sequence[int]:
        """Send the center to a worker, as an event at the end of a round."""
        self._record("read", worker)
        return self.reply((worker,))

    def leave(self, worker: int) -> Sequence[int]:
        """Remove a worker that has done all its rounds, or is lost: the others no longer wait for it."""
        return self._release(self.waiting.leave(self.recorded[worker]), worker)

    def enter(self, worker: int) -> None:
        """Wait again for a worker that had left."""
        self.waiting.enter(self.recorded[worker])

    def end_grace(self) -> Sequence[int]:
        """Close the set that has waited for more messages than it needs."""
        assert isinstance(self.waiting, SetOfMessages)  # noqa: S101
        free = self.waiting.end_grace()
        return self._release(free, free[-1])

    def step_alone(self, steps: int = 1) -> None:
        """Process a round of the only worker, whose parameters are the center: each of its steps is an update."""
        self.recorded[0] += 1
        self.count(steps)
        self.reply((0,))

    def reply(self, workers: Sequence[int]) -> Sequence[int]:
        """Note that these workers get the newest center, and return them."""
        for worker in workers:
            self.pulled[worker] = self.version
            self.do("reply", worker, 0)
        return workers

    def join(self, worker: int) -> None:
        """Let a worker start anew from the newest center."""
        self.pulled[worker] = self.version

    def count(self, updates: int) -> None:
        """Count updates of the center; the last of the warm start starts the other workers."""
        self.version += updates
        if self.held_back and self.version >= self.sync.warm_start:
            self.start_others()

    def start_others(self) -> None:
        """Let the workers that have waited for the warm start begin at the newest center."""
        others, self.held_back = self.held_back, range(0)
        for worker in others:
            self.join(worker)
            self.do("start", worker, 0)

    def _record(self, effect: Effect, worker: int, completes: int = 0) -> None:
        self.do(effect, worker, completes)
        self.recorded[worker] = rounds = self.recorded[worker] + 1
        self.waiting.counted(rounds)

    def _merge(self, worker: int) -> None:
        """Merge a message when it arrives, unless it is too stale; K messages make an update."""
        if not self.sync.accepts(self.staleness(worker)):
            self._record("drop", worker)
            return
        self.messages += 1
        completes = int(self.messages % self.sync.messages_per_update == 0)
        self._record("merge", worker, completes)
        self.count(completes)

    def _release(self, free: Sequence[int], last: int) -> Sequence[int]:
        """Release workers; if messages make updates together, the `last` one closes the set first."""
        if free and self.in_sets:
            self.do("close", last, 0)
            self.count(1)
        return self.reply(free)
