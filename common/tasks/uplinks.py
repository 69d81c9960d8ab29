"""The messages between the servers of regions and the global one (`server.region`), each region's in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from ..waiting import wait_until
from .calls import ObserverCalls, RegionCalls

TELL_SECONDS = 0.5  # between two times at which a region brings its record, if it has no message


class Uplinks:
    """Threads of the evaluator: one lets the servers of each region serve, another tells them to from time to time.

    The vectors travel between the ps tasks alone, and no worker waits for them.

    Args:
        calls: calls of the evaluator.
        regions: number of regions with ps tasks of their own; 0 for runs without.
    """

    def __init__(self, calls: ObserverCalls, regions: int):
        self.regions = [RegionCalls(calls, r) for r in range(regions)]
        self.seconds = calls.wait_seconds
        self.failure: BaseException | None = None
        self._over = threading.Event()
        tasks = [partial(self._repeat, region.serve) for region in self.regions]
        if regions:
            tasks.append(partial(self._repeat, self._tell))
        self._threads = [threading.Thread(target=task, daemon=True) for task in tasks]

    def start(self) -> None:
        """Start the threads; the state has to be initialized."""
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise the error that has ended a thread, if one has."""
        if self.failure is not None:
            raise self.failure

    def finish(self) -> None:
        """End the threads after the last message of all workers, and bring the rest of the record.

        Raises:
            WaitTimeout: a message between servers takes too long.
        """
        self.end()
        for region in self.regions:
            region.tell()
        for thread in self._threads:
            wait_until(lambda t=thread: not t.is_alive(), self.seconds, lambda: "a message between servers of regions")
        self.check()
        for region in self.regions:  # once more: a message of workers may have come after its last call
            region.tell()
            region.serve()

    def end(self) -> None:
        """Let the threads end after their present call."""
        self._over.set()

    def _tell(self) -> None:
        for region in self.regions:
            region.tell()
        self._over.wait(TELL_SECONDS)

    def _repeat(self, task: Callable[[], object]) -> None:
        try:
            while not self._over.is_set():
                task()
        except Exception as error:
            self.failure = error
