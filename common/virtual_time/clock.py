"""The clock of a run: what happens next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from .resources import NEVER, Shared

Act = Callable[[int, int], None]  # given a worker, and the time

PROGRESS_EVENTS = 4096  # between two calls of `progress`


class Clock:
    """A heap of what happens next to which worker, and things that are shared, which know themselves what is next.

    What is to happen belongs to one life of a worker: it does not happen to the next one. What happens at the same time
    happens by kind and worker; what is shared comes last.

    Args:
        workers: W.
        shared: what workers share, and what happens to whoever gets through.

    Attributes:
        acts: what happens, by kind.
        lives: how often each worker has begun a new one, [W].
    """

    def __init__(self, workers: int, shared: Sequence[tuple[Shared, Act]]):
        self.acts: Sequence[Act] = ()
        self.shared = shared
        self.heap: list[tuple[int, int, int, int]] = []
        self.lives = [0] * workers

    def at(self, time: int, kind: int, worker: int) -> None:
        """Something will happen to a worker in its present life."""
        heappush(self.heap, (time, kind, worker, self.lives[worker]))

    def share(self, thing: Shared, now: int, worker: int, size: float) -> None:
        """A worker begins to use something, in its present life."""
        thing.send(now, worker, size, (worker, self.lives[worker]))

    def run(self, progress: Callable[[int], None]) -> None:
        """All that happens, until nothing is left; `progress` is told now and then how much that was.

        Raises:
            OverflowError: something would happen after `NEVER`.
        """
        heap, shared, acts, lives, happened = self.heap, self.shared, self.acts, self.lives, 0
        while True:
            now, source, act = heap[0][0] if heap else NEVER, None, acts[0]
            for thing, what_follows in shared:
                if thing.next < now:
                    now, source, act = thing.next, thing, what_follows
            if now >= NEVER:
                break
            if source is None:
                now, kind, worker, life = heappop(heap)
                act = acts[kind]
            else:
                worker, life = source.pop()
            if life == lives[worker]:
                act(worker, now)
            happened += 1
            if happened % PROGRESS_EVENTS == 0:
                progress(happened)
        if heap or any(thing.next > NEVER for thing, _ in shared):
            raise OverflowError
