"""The rounds of a worker whose gradients come from a script, see `WorkerLoop`, and their way between the two.

The worker's graph and its script are two threads of a process.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..errors import Interrupted, WaitTimeout
from ..lazy import tf
from .progress import Progress
from .worker_calls import Done
from .worker_loop import AS_MANY, WorkerLoop
from .worker_recovery import is_done

LOOK_SECONDS = 0.5  # between two looks at the workers that have left


class Handoff:
    """The place where the graph leaves the point of the next gradient, and the script the gradient.

    Args:
        size: number of parameters, P.

    Attributes:
        taken: gradients that the graph has taken in the present round.
        stands: True if a signal has interrupted the run, and this join makes no further step.
    """

    script_state: Any = None  # the state of an optimizer of the script, for checkpoints; see `launch.own_state`

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
        self.stands = False

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

    def point(self) -> np.ndarray | None:
        """Wait for the point of the next gradient, and return it, or None once the join `stands`.

        Raises:
            BaseException: the error that has ended the rounds.
        """
        with self._changed:
            self._changed.wait_for(lambda: (self._point is not None and not self._given) or self._ended or self.stands)
            if self.stands:
                return None
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

    def stand(self) -> None:
        """Let the script pass without further steps of this join: one that waits here would keep others from theirs."""
        with self._changed:
            self.stands, self.taken = True, 0
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


class ScriptProgress(Progress):
    """The rounds of a worker, and the figures that its script reports."""

    def __init__(self, *arguments: Any):
        self.figures: dict[str, list[float]] = defaultdict(list)  # since the last report
        super().__init__(*arguments)

    def report_figures(self) -> None:
        """Report the steps, and the mean of each figure since the last report."""
        figures, self.figures = self.figures, defaultdict(list)
        means = {name: float(np.mean(values)) for name, values in figures.items()}
        self.report(event="worker", worker=self.index, steps=self.steps, **means)
        self.losses, self.reported = [], time.monotonic()


class Left(Exception):
    """The script has left its loop between two rounds."""


class ScriptLoop(WorkerLoop):
    """Runs the rounds of one worker, each step with a gradient of the script, until the script leaves its loop.

    Calls have no time limit, because the script may take any time for its steps. Only waits for other workers have one.
    """

    progress_of = ScriptProgress
    progress: ScriptProgress

    def __init__(self, *arguments: Any, handoff: Handoff):
        super().__init__(*arguments)
        self.calls.script_state = handoff.script_state
        self.handoff, self.local.at_last = handoff, handoff.stand

    def begin(self) -> threading.Thread:
        """Run the rounds in a thread; returns the thread."""
        thread = threading.Thread(target=self._run_to_the_end, daemon=True)
        thread.start()
        return thread

    def _run_to_the_end(self) -> None:
        try:
            self.run()
            self.await_end()
        except BaseException as error:  # raised again in the script's thread
            self.handoff.end(error)
        else:
            self.handoff.end(None)

    def _rounds(self, turn: Callable[[], None]) -> None:
        with contextlib.suppress(Left):
            super()._rounds(turn)

    def _finish(self) -> None:
        """Report that all rounds are done; if a signal has stopped the run, the script makes those of other joins."""
        if self.progress.stopping:
            self.handoff.stand()
        super()._finish()

    def _call(self, kind: str, *batches: np.ndarray) -> None:
        """Run one round; raises `Left` if the script has left before its first step."""
        (rows,) = batches
        before = self.progress.rounds, self.progress.steps, *self.progress.end
        number = np.full_like(rows, self.handoff.begin_call())  # in place of rows: the data are the script's
        call = partial(self.calls.rounds, kind, number[None], before)
        try:
            if self.calls.graph.sees_waiting:
                done = self.barrier.first(call)
            elif self.calls.graph.sync.is_collective:
                done = self._together(call)
            else:
                done = call()
        except tf.errors.OutOfRangeError:  # the StopIteration of `Handoff.take`
            raise Left from None
        self.barrier.note_completed()
        self.progress.count(batches, done)
        self.progress.steps -= len(rows) - min(self.handoff.taken, len(rows))
        self.handoff.taken = 0

    def _together(self, call: Callable[[], Done]) -> Done:
        """Run a round without a parameter server, which would never end if another worker had left."""
        waited, done = 0.0, self.barrier.side.begin(call)
        while not is_done(done, LOOK_SECONDS):
            left = np.flatnonzero(self.calls.worker_flags().finished)
            waited = waited + LOOK_SECONDS if len(left) and self.handoff.idle else 0.0
            if waited > self.calls.wait_seconds:
                raise WaitTimeout(
                    f"worker {self.index} waited {waited:.0f} s for worker {left[0]}, which has left its loop{AS_MANY}"
                )
        return done.result()
