"""The loop of one worker: its rounds, with recovery from faults of other tasks."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from ..errors import WaitTimeout
from ..lazy import tf
from ..reports import Report
from ..waiting import absent, wait_until
from .calls import Connect
from .carriers import Carriers
from .checkpointing import Saver, identity
from .graph import TaskGraph
from .interruption import interruption
from .job import CHIEF, Job
from .local_state import Keeping, LocalState
from .progress import Progress
from .standstill import Standstill
from .state_calls import StateCalls
from .state_manager import StateManager
from .worker_calls import WorkerCalls
from .worker_recovery import BarrierWait, WorkerRecovery

LONG_ROUND_SECONDS = 0.05  # of CPU time: to put several longer rounds in a call saves nothing

LATE_ROUND_SECONDS = 0.25  # of elapsed time, waits included: longer rounds would make a call of several take long

AS_MANY = ": without a parameter server all workers must make as many steps"


class WorkerLoop:
    """Runs the rounds of one worker in a session.

    Args:
        job: the run.
        session: the session that runs the graph.
        graph: the graph, with this worker in it.
        index: number of the worker.
        report: receives events.
        connect: makes a new session, given the seconds that it may take; None if this session lasts for the run.
        silent: workers on other machines of which nothing was heard for long, see `Carriers`.
    """

    progress_of = Progress

    def __init__(
        self,
        job: Job,
        session: Any,
        graph: TaskGraph,
        index: int,
        report: Report,
        connect: Connect | None = None,
        silent: Collection[int] | None = None,
    ):
        self.plan, self.index, self.report = job.plan, index, report
        self.reads = callable(job.train) and job.script is None  # its data are a function, not those of a script
        rule, recovery = job.restarts, job.options.recovery
        self.calls = WorkerCalls(session, graph, index, rule.wait_seconds, connect)
        self.progress = self.progress_of(self.calls, self.plan, recovery.on_nan, report)
        self.barrier = BarrierWait(self.calls, rule, report)
        self.state: StateManager | None = None  # only the chief has one
        keeping = Keeping(job, self.calls.local_places)
        self.local = LocalState(self.calls, self.progress, keeping, job)
        if index == CHIEF:
            about = identity(self.plan, graph.initial)
            saver = Saver(about, job.run_dir, recovery, rule.wait_seconds, report, keeping)
            standstill = Standstill(keeping, lambda: self.calls.patience, lambda: self.local.meeting)
            signal = partial(interruption, job)
            endless = job.plan.is_endless
            self.state = StateManager(
                graph, saver, rule, self.calls.connect, report, standstill, signal, job.leaves, endless
            )
        self.carriers = Carriers(self.calls, self.plan, report, silent) if graph.can_lose else None
        self.recovery = WorkerRecovery(self.calls, self.progress, self.barrier, self.local, rule, report)

    def prepare(self) -> None:
        """Initialize the local variables; then the chief adopts, restores or initializes the global ones."""
        self.calls.prepare(self.plan.shard(self.index))
        self.recovery.persist(self._await_state)
        if self.state is not None:
            self.state.start()

    def join(self) -> None:
        """Take the slot; while the last message of this worker is in an incomplete set, block.

        The batches of an earlier start are read first, so that those of its last pass come once.
        """
        self.recovery.persist(self.recovery.join)
        if self.reads and self.progress.steps:
            length = self.calls.skip_batches(self.progress.steps)
            if length < 0 and self.index == CHIEF:
                unknown = "the length of the data is not known: they are read from the beginning once more"
                self.report(event="warning", message=unknown)

    def _await_state(self) -> None:
        """Block until the global state is ready; the chief makes it ready."""
        if self.state is not None:
            calls = self.calls
            self.state.claim(StateCalls(calls.session, calls.graph, calls.wait_seconds, calls.connect))
        self.calls.await_state()

    def await_others(self) -> None:
        """Block until all workers start together, so that the rate in examples per second is meaningful."""
        self.recovery.persist(self.calls.await_start)

    def run(self, turn: Callable[[], None] = lambda: None) -> None:
        """Run all rounds, with recovery from faults of other tasks; before each call, `turn()` may block."""
        self.progress.begin()
        if self.carriers is not None:
            self.carriers.start(self.progress.rounds)
        over = False
        with contextlib.closing(self.barrier.side):
            while not over:
                try:
                    if not self.progress.stopping:
                        self._rounds(turn)
                    self._finish()
                    over = self.calls.await_shutdown(self.progress.restoration)
                    if not over:  # the state was restored, which undid some rounds
                        self.recovery.join()
                except (tf.errors.OpError, WaitTimeout) as error:
                    if self.carriers is not None and self.carriers.too_few is not None:
                        raise self.carriers.too_few from None
                    self.recovery.recover(error)
            self._depart()

    def _rounds(self, turn: Callable[[], None]) -> None:
        """Run the remaining rounds.

        At first each call has one round. Once a call was short, each has `rounds_per_call`. The first call is not
        measured: it warms up.
        """
        rounds, first = self.plan.batches(self.index, self.progress.rounds), self.progress.rounds
        limit = self.plan.rounds_per_call
        count, trimmed = 1, False  # rounds in a call; True after the heap was trimmed for calls of this length
        while chunk := list(itertools.islice(rounds, self._allowed(count))):
            turn()
            if self.progress.rounds == 0 and self.index != CHIEF and self.plan.scheme.sync.warm_start:
                self._await_warmup()
            began, used = time.monotonic(), time.process_time()
            if len(chunk) == count and len({(len(rows), kind) for rows, kind in chunk}) == 1:
                self._call(chunk[0][1], *(rows for rows, _ in chunk))
            else:  # the graph has no call of these rounds together
                for rows, kind in chunk:
                    self._call(kind, rows)
            if self.progress.rounds == 1:
                self.report(event="first_update", worker=self.index)
            elif self.progress.rounds > first + 1:
                if count < limit and is_short(began, used):
                    self.local.announce_rounds(limit)
                    count, trimmed = limit, False
                elif not trimmed:  # to prepare a kind of call takes memory, which is free after its first call
                    give_back_memory()
                    trimmed = True
            if self.state is not None and self.state.failure is not None:
                raise self.state.failure

    def _allowed(self, count: int) -> int:
        """Return how many of the next `count` rounds the next call may make, after a pause if the chief asks for it."""
        self.local.pause_if_asked()
        if self.local.ended:
            self.progress.stopping = True
            return 0
        count = self.plan.within_block(self.local.at_most(count), self.progress.rounds, self.calls)
        return count if self.carriers is None else self.carriers.begin(self.progress.rounds, count)

    def _call(self, kind: str, *batches: np.ndarray) -> None:
        """Run rounds of the same kind and length in one call; `batches` are their rows, [steps, batch size] each."""
        before = self.progress.rounds, self.progress.steps, *self.progress.end
        call = partial(self.calls.rounds, kind, np.stack(batches), before)
        if not self.calls.graph.sync.exchanges:
            done = call()
        elif self.calls.graph.sees_waiting and not self.calls.longest:
            done = self.barrier.first(call)
        else:
            done = self.barrier.later(call)
        self.barrier.note_completed()
        self.progress.count(batches, done)

    def _await_warmup(self) -> None:
        """Block while worker 0 trains alone, then start from the center that it has reached."""
        calls, updates = self.calls, self.plan.scheme.sync.warm_start
        self._await(
            lambda: calls.version() >= updates or calls.worker_flags().finished[CHIEF],
            calls.version,
            lambda: "worker 0, which warms up",
        )
        self.recovery.join(recorded=False)

    def _await_last_rounds(self) -> None:
        """Block until the others have done their rounds: pairs average until then, others have sent their vectors."""

        def finished() -> np.ndarray:
            flags = self.calls.worker_flags().finished
            flags[CHIEF] = True  # this worker
            return flags

        why = "" if self.calls.graph.sync.in_pairs else AS_MANY
        self._await(
            lambda: bool(finished().all()),
            lambda: self.calls.rounds_applied().tolist(),
            lambda: absent(finished()) + why,
        )

    def _await(self, is_over: Callable[[], bool], position: Callable[[], Any], missing: Callable[[], str]) -> None:
        """Block until `is_over()`; each change of `position()` restarts the time limit."""
        last_position = None

        def may_continue() -> bool:
            return is_over() or position() != last_position

        while not is_over():
            last_position = position()
            wait_until(may_continue, round(self.calls.patience), missing)

    def _finish(self) -> None:
        """Report that all rounds are done: the others no longer wait for this worker."""
        sync = self.calls.graph.sync
        if sync.in_pairs or (sync.gossips and self.plan.is_endless and not self.progress.stopping):
            if self.index == CHIEF:
                self._await_last_rounds()
            self.calls.collect(self.progress.rounds)
        self.local.end()
        self.calls.set_finished(*self.progress.end)
        if self.calls.graph.sees_waiting and not self.plan.options.schedule and not self.progress.stopping:
            self.calls.deregister()
        self.progress.report_end()

    def _depart(self) -> None:
        """Leave the run; the chief then writes its last checkpoint, for which no other task waits."""
        save = self.state.end() if self.state is not None else lambda: None
        with contextlib.suppress(tf.errors.OpError):  # the ps may be gone already
            self.calls.depart()
        save()

    def await_end(self) -> None:
        """Block until this task may end: without a ps, worker 0 has the bookkeeping variables."""
        if not self.calls.graph.sync.uses_ps and self.index == CHIEF:
            while not self.calls.await_ps_end():
                pass  # if the evaluator ends, the launcher or the membership ends this task

    @property
    def saving_seconds(self) -> float:
        """Seconds that the last checkpoint may take; 0 if none is written."""
        return self.state.saver.saving_seconds if self.state is not None else 0.0


def is_short(began: float, used: float) -> bool:
    """Return True if a call was so short that several rounds should share a call.

    With many workers on few cores a worker is off the CPU for most of a round, and there fewer calls help most. So a
    round may be short in CPU time alone.

    Args:
        began: time at which the call began, on the clock `time.monotonic`.
        used: CPU seconds of the process at that time.
    """
    passed, busy = time.monotonic() - began, time.process_time() - used
    return passed < LATE_ROUND_SECONDS and min(passed, busy) < LONG_ROUND_SECONDS


def give_back_memory() -> None:
    """Return the free memory of the heap to the system, if the C library has `malloc_trim`."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
