"""The threads of a worker that bring it the messages of the others, and notice the loss of one; see `messages.carried`.

They run where a run without a parameter server may continue without some of its workers.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..cluster.restart_rule import REPAIR_WAITS
from ..errors import TaskLost
from ..lazy import tf
from ..reports import Report
from ..sync.losses import NEVER
from .plan import Plan
from .requests import carrying, marking
from .worker_calls import UNLIMITED_MS, WorkerCalls


class Carriers:
    """The carriers of one worker, one for each of the others.

    Args:
        calls: calls of the worker.
        plan: rounds of each worker.
        report: receives events.
    """

    def __init__(self, calls: WorkerCalls, plan: Plan, report: Report):
        self.calls, self.plan, self.report = calls, plan, report
        self.sync: Any = plan.scheme.sync  # a `Gossip`
        self.index, self.lost = calls.index, frozenset[int]()
        calls.slack = REPAIR_WAITS  # the launcher kills a stopped worker first, and the others then continue

    def start(self, rounds: int) -> None:
        """Start the threads; the worker has done so many rounds."""
        for k in range(self.plan.workers):
            if k != self.index:
                threading.Thread(target=self._carry, args=(k, rounds), daemon=True).start()

    def _carry(self, of: int, missed: int) -> None:
        """Carry messages of a worker until it is lost, then report the loss; `missed` is the round of the next one."""
        try:
            while True:
                number = self.calls.run(self.calls.operations[carrying(of)], seconds=UNLIMITED_MS / 1000)
                missed = int(number) + 1
        except (tf.errors.OpError, RuntimeError):
            pass  # the worker is lost, or has left after its last round
        try:
            continues, is_first = self.calls.lose(of, missed)
        except (tf.errors.OpError, RuntimeError):
            return  # worker 0 is lost, which ends the run, or this worker has left
        if is_first:
            self.report(event="evicted", worker=of)
        if continues:
            self.calls.run(self.calls.operations[marking(of)], seconds=self.calls.wait_seconds)

    def begin(self, rounds: int, count: int) -> int:
        """Announce the next rounds after so many; return how many of them the next call may make.

        All rounds of a call have the same links: those without the workers that are out then.

        Raises:
            TaskLost: the others continue without this worker.
        """
        last = len(self.plan.rounds(self.index))
        out_from = self.calls.begin_rounds(min(rounds + count, last))
        if out_from[self.index] < NEVER:
            raise TaskLost(f"worker {self.index} did not answer, and the others continue without it")
        lost = frozenset(np.flatnonzero(out_from <= rounds).tolist())
        if lost != self.lost:
            self.calls.set_links(self.sync.rows(self.index, self.plan.workers, lost))
            self.lost = lost
        return min(count, int(out_from[out_from > rounds].min()) - rounds)
