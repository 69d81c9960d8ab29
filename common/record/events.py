"""Threads that deliver events, so that no reporting task waits for a slow disk, terminal, peer or callback."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from ..reports import name_of

PROGRESS = ("worker", "center")  # events of which a late subscriber needs only the newest

ROOM = 1000  # events may wait before progress is thinned

LATE_SECONDS = 5.0

ANNOUNCED_SECONDS = 2.0  # a wait at the end that takes longer is announced

INTERRUPTED_SECONDS = 5.0  # for the waiting events, after Ctrl-C

Event = dict[str, Any]


class Subscriber:
    """A thread that calls `handle(event)` for one event after the other.

    While many events wait, a report of progress replaces an older one of the same worker: memory is bounded, and all
    other events arrive.

    Args:
        handle: function called with each event. If it raises, it is not called again: see `failure`.
        room: number of events that may wait before progress is thinned.
        beat: if given, called whenever no event has come for `beat_seconds`.
        beat_seconds: seconds without an event before `beat` is called.
        on_late: if given, called once, with the seconds that an event has waited, if they are more than `LATE_SECONDS`.
    """

    def __init__(
        self,
        handle: Callable[[Event], None],
        *,
        room: int = ROOM,
        beat: Callable[[], None] | None = None,
        beat_seconds: float = 1.0,
        on_late: Callable[[float], None] | None = None,
    ):
        self.handle, self.room, self.beat, self.on_late = handle, room, beat, on_late
        self.beat_seconds = beat_seconds if beat else None
        self.failure: BaseException | None = None
        self._waiting: dict[Any, tuple[float, Event]] = {}  # (time since it waits, event), in order
        self._busy = self._closed = False
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queue an event for the thread; returns at once."""
        now = time.monotonic()
        delay = 0.0
        with self._changed:
            if self._closed or self.failure is not None:
                return
            key: Any = next(self._numbers)
            if len(self._waiting) >= self.room and (name := name_of(event)) in PROGRESS:
                key = name, event.get("join"), event.get("worker")
            since, _ = self._waiting.get(key, (now, event))
            # A new report of progress keeps the place of the older one in the dictionary. At the end of the queue it
            # would be replaced by the next report before its turn, again and again.
            self._waiting[key] = since, event
            if self.on_late is not None:
                delay = now - next(iter(self._waiting.values()))[0]
            self._changed.notify_all()
        if self.on_late is not None and delay > LATE_SECONDS:
            on_late, self.on_late = self.on_late, None
            on_late(delay)

    def backlog(self) -> int:
        """Return the number of events that are not handled yet."""
        with self._changed:
            return len(self._waiting) + self._busy

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until all events are handled, or `handle` has failed; returns False if that takes over `seconds`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._waiting or self._busy) or self.failure is not None, seconds
            )

    def close(self, seconds: float | None = None) -> bool:
        """Take no more events, and flush those that wait; events not handled after `seconds` are dropped."""
        with self._changed:
            self._closed = True
        done = self.flush(seconds)
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()
        return done

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # for the main thread alone
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed, self.beat_seconds)
                if self._waiting:
                    key = next(iter(self._waiting))
                    _, event = self._waiting.pop(key)
                elif self._closed:
                    return
                else:
                    event = None
                self._busy = event is not None
            try:
                if event is not None:
                    self.handle(event)
                elif self.beat is not None:
                    self.beat()
            except BaseException as error:
                with self._changed:
                    self.failure, self._busy = error, False
                    self._waiting.clear()
                    self._changed.notify_all()
                return


class EventBus:
    """The subscribers of a run, each in a thread of its own; an exception of one of them ends the run.

    As a context manager it waits at its end until all subscribers have handled all events; only Ctrl-C cuts this short.

    Args:
        announce: called, at the end, with a text that names the subscriber being waited for.
    """

    def __init__(self, announce: Callable[[str], None]):
        self.announce = announce
        self.subscribers: dict[Subscriber, Callable[[], str]] = {}  # with the function that names it

    def add(self, handle: Callable[[Event], None], name: Callable[[], str], **options: Any) -> None:
        """Add a subscriber; `options` are those of `Subscriber`."""
        self.subscribers[Subscriber(handle, **options)] = name

    def publish(self, event: Event) -> None:
        """Queue an event for all subscribers; raises the exception of a subscriber that has failed before."""
        self.check()
        if event["event"] != "beat":
            event.setdefault("when", time.monotonic())  # the time of the event, not of its handling
            for subscriber in self.subscribers:
                subscriber.put(event)

    def check(self) -> None:
        """Raise the exception of a subscriber that has failed."""
        for subscriber in self.subscribers:
            if subscriber.failure is not None:
                raise subscriber.failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        for subscriber, name in self.subscribers.items():
            if interrupted:
                subscriber.close(INTERRUPTED_SECONDS)
            elif not subscriber.flush(ANNOUNCED_SECONDS):
                left = subscriber.backlog()
                self.announce(f"waiting for {name()}, which has {left} events to go (Ctrl-C: no longer)")
                subscriber.flush()
            subscriber.close()
        if kind is None:
            self.check()
