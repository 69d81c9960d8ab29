"""The rounds of a worker whose gradients come from a script; see `WorkerLoop`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..contract.rounds import Event
from ..errors import WaitTimeout
from ..lazy import tf
from ..reports import Report
from .calls import Connect
from .graph import TaskGraph
from .handoff import Handoff
from .job import Job
from .progress import Progress
from .worker_calls import Done
from .worker_loop import WorkerLoop
from .worker_recovery import is_done

LOOK_SECONDS = 0.5  # between two looks at the workers that have left


class ScriptProgress(Progress):
    """The rounds of a worker, and the figures that its script reports."""

    def __init__(self, *known: Any):
        self.figures: dict[str, list[float]] = defaultdict(list)  # since the last report
        super().__init__(*known)

    def tell(self) -> None:
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

    def __init__(
        self, job: Job, session: Any, graph: TaskGraph, index: int, report: Report, connect: Connect, handoff: Handoff
    ):
        super().__init__(job, session, graph, index, report, connect)
        self.handoff = handoff

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

    def _call(self, event: Event, *batches: np.ndarray) -> None:
        """Run one round; raises `Left` if the script has left before its first step."""
        (rows,) = batches
        before = self.progress.rounds, self.progress.steps, self.progress.replied
        number = np.full_like(rows, self.handoff.begin_call())  # in place of rows: the data are the script's
        call = partial(self.calls.rounds, event, number[None], before, limited=False)
        try:
            if self.calls.graph.sees_waiting:
                done = self.barrier.first(call)
            elif self.calls.graph.sync.is_collective:
                done = self._together(call)
            else:
                done = call()
        except tf.errors.OutOfRangeError:  # the StopIteration of `Handoff.take`
            raise Left from None
        self.barrier.got_on()
        self.progress.count(batches, done)
        self.progress.steps -= len(rows) - min(self.handoff.taken, len(rows))

    def _together(self, call: Callable[[], Done]) -> Done:
        """Run a round without a parameter server, which would never end if another worker had left."""
        late, done = 0.0, self.barrier.side.begin(call)
        while not is_done(done, LOOK_SECONDS):
            left = np.flatnonzero(self.calls.worker_flags().finished)
            late = late + LOOK_SECONDS if len(left) and self.handoff.idle else 0.0
            if late > self.calls.wait_seconds:
                raise WaitTimeout(
                    f"worker {self.index} waited {late:.0f} s for worker {left[0]}, which has left its loop: without a "
                    "parameter server all workers must make as many steps"
                )
        return done.result()
