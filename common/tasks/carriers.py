"""The threads of a worker that bring it the messages of the others, and notice the loss of one; see `messages.carried`.

They run where a run without a parameter server may continue without some of its workers.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np

from ..cluster.restart_rule import REPAIR_WAITS
from ..errors import TaskLost
from ..lazy import tf
from ..reports import Report
from ..sync.losses import NEVER
from .plan import Plan
from .requests import name_of_carrier
from .worker_calls import UNLIMITED_MS, WorkerCalls

WATCH_SECONDS = 1.0


class Carriers:
    """The carriers of one worker, one for each of the others.

    Args:
        calls: calls of the worker.
        plan: rounds of each worker.
        report: receives events.
        silent: workers of which nothing was heard for long: a set that grows; None if one launcher kills such workers.

    Attributes:
        too_few: the error that ends the run on several machines if too few workers are left; then a round fails.
    """

    too_few: TaskLost | None = None

    def __init__(self, calls: WorkerCalls, plan: Plan, report: Report, silent: Collection[int] | None = None):
        self.calls, self.plan, self.report, self.silent = calls, plan, report, silent
        self.sync: Any = plan.scheme.sync  # a `Gossip`
        self.index, self.lost = calls.index, frozenset[int]()
        self.left_out, self.leaving = set[int](), threading.Lock()
        calls.slack = REPAIR_WAITS  # the launcher kills a stopped worker first, and the others then continue

    def start(self, rounds: int) -> None:
        """Start the threads; the worker has done so many rounds."""
        for k in range(self.plan.workers):
            if k != self.index:
                self._run("open", k, rounds)
                threading.Thread(target=self._carry, args=(k,), daemon=True).start()
        if self.silent is not None:
            threading.Thread(target=self._watch, args=(self.silent,), daemon=True).start()

    def _run(self, action: str, of: int, *values: int) -> Any:
        operation = self.calls.operations[name_of_carrier(action, of)]
        return self.calls.run(operation, *values, seconds=self.calls.wait_seconds)

    def _carry(self, of: int) -> None:
        """Carry messages of a worker until it is lost, or has left after its last round."""
        carry = self._carrier(of)
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            while True:
                carry()
        self._leave_out(of)

    def _carrier(self, of: int) -> Callable[[], None]:
        """Return a function that carries a message: it takes a fifth of the CPU time of `Session.run`."""
        options = tf.compat.v1.RunOptions(timeout_in_ms=UNLIMITED_MS)
        operation = self.calls.operations[name_of_carrier("carry", of)]
        return partial(self.calls.session.make_callable(operation.fetches, accept_options=True), options=options)

    def _watch(self, silent: Collection[int]) -> None:
        """Leave out silent workers, of which worker 0 knows, and those that others have lost: no call to them fails."""
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            while True:
                time.sleep(WATCH_SECONDS)
                out = np.flatnonzero(self.calls.out_from() < NEVER).tolist()
                for k in {*out, *silent} - {self.index}:
                    self._leave_out(k)

    def _leave_out(self, of: int) -> None:
        """Carry nothing of a worker from now on, and report its loss."""
        with self.leaving:
            if of in self.left_out:
                return
            self.left_out.add(of)
        with contextlib.suppress(tf.errors.OpError, RuntimeError):  # worker 0 is lost, or this worker has left
            continues, is_first = self.calls.lose(of, int(self._run("leave_out", of)))
            if is_first:
                self.report(event="evicted", worker=of)
            if continues:
                self._run("mark_lost", of)
            elif self.silent is not None and not self.calls.worker_flags().finished[self.index]:
                lost = ", ".join(f"worker {k}" for k in sorted(self.left_out))
                least = self.plan.options.recovery.min_workers
                self.too_few = TaskLost(f"{lost} lost: fewer workers are left than min_workers={least}")
                self._run("close", of)

    def begin(self, rounds: int, count: int) -> int:
        """Announce the next rounds after so many; return how many of them the next call may make.

        All rounds of a call have the same links: those without the workers that are out then.

        Raises:
            TaskLost: the others continue without this worker.
        """
        last = len(self.plan.rounds(self.index))
        out_from = self.calls.begin_rounds(min(rounds + count, last))
        if out_from[self.index] < NEVER:
            left_out = TaskLost(f"worker {self.index} was silent for so long that the others continue without it")
            left_out.ends_run = False
            raise left_out
        lost = frozenset(np.flatnonzero(out_from <= rounds).tolist())
        if lost != self.lost:
            self.calls.set_links(self.sync.rows(self.index, self.plan.workers, lost))
            self.lost = lost
        return min(count, int(out_from[out_from > rounds].min()) - rounds)
