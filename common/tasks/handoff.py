"""Points and gradients on their way between a worker's graph and its script, which are two threads of a process."""

from __future__ import annotations

import signal
import threading

import numpy as np

from ..errors import Interrupted


class Handoff:
    """The place where the graph leaves the point of the next gradient, and the script the gradient.

    Args:
        size: number of parameters, P.

    Attributes:
        taken: gradients that the graph has taken in the present round.
    """

    def __init__(self, size: int):
        self._changed = threading.Condition()
        self._point: np.ndarray | None = None  # until the graph has taken its gradient
        self._given: list[tuple[np.ndarray, np.float32, bool]] = []  # for the present point, if known; see `take`
        self._number = self._shown = 0  # of the present point, and of the one that the script has read last
        self._call = 0  # number of the newest call of the graph
        self._nothing = np.zeros(size, np.float32)
        self._over = False
        self._failure: BaseException | None = None
        self._ended = False
        self.taken = 0

    def begin_call(self) -> int:
        """Begin a call of the graph, and return its number; calls that a recovery has abandoned get no more gradients.

        A call cannot be cancelled. The call of round 7 computes while the ps is lost; the worker joins again, and
        repeats round 7. Without the numbers, the next `take` of the old call would displace that of the new one.
        """
        with self._changed:
            self._call, self._point = self._call + 1, None
            self._changed.notify_all()
            return self._call

    def take(self, point: np.ndarray, may_end: bool, call: int) -> tuple[np.ndarray, np.float32, bool, bool]:
        """Show a point to the script and wait for its gradient; called by the graph, see `Parameters.take`."""
        with self._changed:
            if call == self._call:
                self._point, self._given, self._number = point, [], self._number + 1
                self.taken = self.taken if may_end else 0
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._given or self._over or self._call != call)
            if call != self._call:
                raise RuntimeError("a recovery has abandoned this call")
            if self._given:
                self._point, self.taken = None, self.taken + 1
                return *self._given.pop(), True
        if not may_end:
            raise StopIteration
        return self._nothing, np.float32(0), False, False

    @property
    def idle(self) -> bool:
        """True if the script is not asked for a gradient: the graph computes, or waits for other workers."""
        return self._point is None

    def point(self) -> np.ndarray:
        """Wait for the point of the next gradient, and return it; raises the error that has ended the rounds."""
        with self._changed:
            self._changed.wait_for(lambda: (self._point is not None and not self._given) or self._ended)
            self.check()
            if self._ended:
                raise Interrupted(signal.SIGINT)  # the run was stopped
            self._shown = self._number
            return np.asarray(self._point)

    def give(self, gradient: np.ndarray, loss: float, is_point: bool = False) -> None:
        """Leave a gradient for the graph, unless a recovery has moved the worker to another point meanwhile.

        `is_point`: the vector is the point after the local step, which the optimizer of the script has made.
        """
        with self._changed:
            if self._point is not None and self._number == self._shown:
                self._given = [(gradient, np.float32(loss), is_point)]
                self._changed.notify_all()

    def leave(self) -> None:
        """End the present round before its next step, and further rounds before their first."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def end(self, error: BaseException | None) -> None:
        """Note that there are no further rounds, because of an error if there is one."""
        with self._changed:
            self._failure, self._ended = error, True
            self._changed.notify_all()

    def check(self) -> None:
        """Raise the error that has ended the rounds, if one has."""
        if self._failure is not None:
            raise self._failure
