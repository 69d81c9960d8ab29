"""The event queue of a simulated run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from .resources import NEVER, Shared

Act = Callable[[int, int], None]  # called with a worker and the time

PROGRESS_EVENTS = 4096  # between two calls of `progress`


class Clock:
    """A heap of future events, and shared resources, each of which knows its own next event.

    An event belongs to one life of a worker, and is dropped if the worker has crashed since. Events at the same time
    are ordered by kind and worker; those of shared resources are last.

    Args:
        workers: W.
        shared: shared resources, and the function to call when a worker's use of each ends.

    Attributes:
        acts: the function to call for an event, by its kind.
        lives: number of lives that each worker has ended, [W].
    """

    def __init__(self, workers: int, shared: Sequence[tuple[Shared, Act]]):
        self.acts: Sequence[Act] = ()
        self.shared = shared
        self.heap: list[tuple[int, int, int, int]] = []
        self.lives = [0] * workers

    def at(self, time: int, kind: int, worker: int) -> None:
        """Schedule an event of a worker in its present life."""
        heappush(self.heap, (time, kind, worker, self.lives[worker]))

    def share(self, thing: Shared, now: int, worker: int, size: float) -> None:
        """Start a worker's use of a shared resource, in its present life."""
        thing.send(now, worker, size, (worker, self.lives[worker]))

    def run(self, progress: Callable[[int], None]) -> None:
        """Process all events in order of time; `progress` receives their number every `PROGRESS_EVENTS` events.

        Raises:
            OverflowError: an event would be later than `NEVER`.
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
