"""Signals that ask a program to end: the first one ends a run in order, with its results; a second one ends it at once.

The terminal sends SIGINT for Ctrl-C, and SIGHUP when it is closed. Kubernetes and `kill` send SIGTERM, Slurm the signal
of its `--signal`, most often SIGUSR1, some time before it ends a job.

Many senders reach all processes of a run at once: its launcher, which ends the run, and its tasks, which leave that to
the launcher.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Self

from .errors import DistsgdError, Interrupted


def numbers_of(names: Collection[str]) -> tuple[int, ...]:
    """Return the numbers of the signals of these names that the system has."""
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


USUAL = numbers_of(("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"))

FURTHER = ("SIGUSR2", "SIGXCPU", "SIGQUIT", "SIGALRM", "SIGPWR")  # that an option may add

SAME_SECONDS = 0.5  # for which a signal counts as the same one: `timeout` sends it to a process and to its group

ONCE = numbers_of(("SIGHUP",))  # the shell and the kernel each send one when a terminal is closed

LEAVE = numbers_of(("SIGURG",))  # from the launcher to a task on one of several machines; the default is to ignore it

leaving = threading.Event()  # in a task: set once it has received `LEAVE`


def interrupt(number: int, frame: FrameType | None = None) -> NoReturn:
    """Raise `Interrupted`: the handler of the command line outside of a run."""
    raise Interrupted(number)


def handle(handler: Any, numbers: Collection[int]) -> dict[int, Any]:
    """Set the handler of each of these signals that still has a usual one; return the handlers before.

    A signal that is ignored, as SIGHUP by `nohup`, or that has a handler of the user's program, keeps it. Only the main
    thread can set handlers: in another one nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    usual = (signal.SIG_DFL, signal.default_int_handler, interrupt)
    before = {number: signal.getsignal(number) for number in numbers}
    before = {number: previous for number, previous in before.items() if previous in usual}
    for number in before:
        signal.signal(number, handler)
    return before


@contextmanager
def added(further: Collection[int]) -> Iterator[None]:
    """Let `further` signals raise `Interrupted` inside the block, but in a run, which has its own handler."""
    before = handle(interrupt, further)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopSignals:
    """The handler of the signals during a run, as a context.

    Before the run has begun there is nothing to keep: a signal raises `Interrupted` at once. Then the first signal asks
    the run to end, and returns; a second one raises. Once the run has ended, a signal is only noted.

    Args:
        further: numbers of signals besides the usual ones.
        ask: asks the run to end, given the name of the signal; raises `DistsgdError` if it cannot.

    Attributes:
        number: number of the first signal; None if there was none.
        begun: True once a run that ends has results.
        over: True once the run has ended.
    """

    def __init__(self, further: Collection[int], ask: Callable[[str], None]):
        self.numbers, self.ask = (*USUAL, *further), ask
        self.number: int | None = None
        self.begun = self.over = False
        self.handled = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = handle(self._handle, self.numbers)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise `Interrupted` if there was a signal."""
        if self.number is not None:
            raise Interrupted(self.number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now, first = time.monotonic(), self.number is None
        if not first and number == self.number and (number in ONCE or now - self.handled < SAME_SECONDS):
            return
        if first:
            self.number, self.handled = number, now
        if self.over:
            return
        if first and self.begun:
            with contextlib.suppress(DistsgdError):
                return self.ask(signal.Signals(number).name)
        raise Interrupted(self.number or number)


@contextmanager
def held() -> Iterator[list[int]]:
    """Hold back signals inside the block, which is short and must not be cut: the first is handled at its end.

    Outside of a run it is raised there. The block gets the list of their numbers, and may clear it.
    """
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    before, other = handle(note, USUAL), _handled_here()
    for number in other:
        signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in (before | other).items():
            signal.signal(number, handler)
    for number in noted[:1]:
        other.get(number, interrupt)(number, None)


def _handled_here() -> dict[int, Any]:
    """Return the handlers of `StopSignals` and of `added` signals that this thread may replace."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in (*USUAL, *numbers_of(FURTHER))}
    return {
        number: handler
        for number, handler in handlers.items()
        if handler is interrupt or getattr(handler, "__func__", None) is StopSignals._handle
    }


@contextmanager
def blocked() -> Iterator[None]:
    """Block the usual signals in this thread: a process that it starts is to ignore them before one can end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, USUAL)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore(further: Collection[int] = ()) -> None:
    """Ignore the usual signals and `further` ones, in the fork server, and so in the tasks that it starts."""
    for number in (*USUAL, *further):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, USUAL)


def report_terminations(report: Callable[[], None]) -> None:
    """Call `report()` in a thread at each SIGTERM of this task, which continues; at `LEAVE` set `leaving`.

    Python's handler in C writes the number of a signal into a pipe, which wakes the thread also while the main thread
    is in a long call. SIGTERM ends a process that the task forks, as usual.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)

    def note(number: int, frame: FrameType | None) -> None:
        """Tell the thread once more: a script may have another file descriptor for signals."""
        with contextlib.suppress(BlockingIOError):
            os.write(write, bytes([number]))

    def watch() -> None:
        while True:
            for number in os.read(read, 64):
                if number in LEAVE:
                    leaving.set()
                elif number == signal.SIGTERM and signal.getsignal(number) is note:
                    report()

    def forget() -> None:
        if signal.getsignal(signal.SIGTERM) is note:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)

    for number in (signal.SIGTERM, *LEAVE):
        signal.signal(number, note)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=forget)
    threading.Thread(target=watch, daemon=True).start()
