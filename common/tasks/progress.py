"""The progress of a worker, and its reports."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from ..errors import Diverged
from ..reports import Report
from ..server.answers import Joined
from ..waiting import paced
from .options import OnNan
from .plan import Plan
from .worker_calls import NO_END, Done, WorkerCalls

REPORT_SECONDS = 0.1  # between two reports at the start of a run

LONGEST_REPORT_SECONDS = 2.0  # between two reports at most, in a long run


class Progress:
    """The rounds that a worker has done.

    Args:
        calls: calls of the worker.
        plan: rounds of each worker.
        on_nan: reaction to a loss or a gradient that is not finite.
        report: receives events.

    Attributes:
        rounds: number of rounds that are done, and logged as far as the worker knows.
        steps: number of local steps in them.
        restoration: number of the restoration of the state that the worker has joined.
        end: `computed` and `replied` of the last round, or `UNKNOWN` each; see `server.trace`.
        stopping: the run ends now.
        first: number of local steps that were done when the first round began.
        started, ended: times at which the worker prepared its first round and ended its last, on `time.monotonic`.
        prepared: the first of them in microseconds since 1970, as in the record of rounds.
    """

    def __init__(self, calls: WorkerCalls, plan: Plan, on_nan: OnNan, report: Report):
        self.index, self.calls, self.report = calls.index, calls, report
        self.plan, self.on_nan, self.end = plan, on_nan, NO_END
        self.rounds = self.steps = self.restoration = 0
        self.stopping = False
        self.losses: list[float] = []  # since the last report
        self.begin()

    def begin(self) -> None:
        """Start the clock of the rounds."""
        self.first = self.steps
        self.started = self.ended = self.reported = time.monotonic()
        self.prepared = time.time_ns() // 1000

    def joined(self, now: Joined) -> None:
        """Continue after the last logged round; report rounds that were acknowledged and then lost with a ps."""
        if (lost := self.rounds - now.rounds) > 0:
            updates = self.plan.scheme.sync.updates_per_round(self.plan.workers)
            together = updates == 1  # all workers have lost the same rounds
            self.report(event="lost", worker=self.index, rounds=lost, together=together, before=self.restoration)
        self.restoration, self.stopping = now.restoration, now.stopping
        self.plan.learn(self.calls)
        self._at(now.rounds)
        if self.plan.scheme.scheduled or not self.calls.graph.sync.uses_ps:
            self.calls.set_clock(self.steps)

    def stopped(self, rounds: int) -> None:
        """Count `rounds` as done in all, after the run ended in the middle of a call with some rounds logged."""
        self.stopping = True
        if rounds > self.rounds:
            self.ended = time.monotonic()
        self._at(rounds)

    def _at(self, rounds: int) -> None:
        """Set the number of rounds done, from outside of a call."""
        # The last round may have no reply: a restoration wakes a worker at the barrier. So its times are not known.
        self.end = NO_END
        self.rounds, self.steps = rounds, self.plan.rounds(self.index).steps(rounds)

    def count(self, batches: Sequence[np.ndarray], done: Done) -> None:
        """Count the rounds of a call, and report the loss if a report is due.

        Args:
            batches: rows of each round, [steps, batch size].
            done: results of the rounds.

        Raises:
            Diverged: a loss or a gradient is not finite, and that ends the run.
        """
        self.ended = time.monotonic()
        losses, steps, self.end = done
        self.rounds += len(batches)
        self.steps += sum(map(len, batches))
        finite, left_out = np.isfinite(losses), np.array([len(rows) for rows in batches]) - steps
        # A scheme that leaves out hostile messages does so with those of a worker whose loss is not finite.
        tolerates_none = self.plan.scheme.sync.most_left_out(self.plan.workers) == 0
        if self.on_nan == "stop" and (left_out.any() or (tolerates_none and not finite.all())):
            raise self._diverged(losses, left_out)
        if number := int(left_out.sum()):
            self.report(event="refused", worker=self.index, number=number)
        self.losses.extend(losses[finite].tolist())
        now = time.monotonic()
        if now - self.reported > max(REPORT_SECONDS, paced(now - self.started, LONGEST_REPORT_SECONDS)):
            self.report_figures()

    def _diverged(self, losses: np.ndarray, left_out: np.ndarray) -> Diverged:
        bad = int(np.flatnonzero(~np.isfinite(losses) | (left_out > 0))[0])
        loss, worker = losses[bad], f"worker {self.index}"
        text = f"a gradient of {worker} was not finite" if np.isfinite(loss) else f"the loss of {worker} became {loss}"
        return Diverged(
            f"{text} in its round {self.rounds - len(losses) + bad}, at version {self.calls.version()} of the center: "
            "try a smaller learning rate or period (docs/not-converging.md)"
        )

    def report_figures(self) -> None:
        """Report the mean loss since the last report."""
        if self.losses:
            self.report(event="worker", worker=self.index, steps=self.steps, loss=float(np.mean(self.losses)))
        self.losses, self.reported = [], time.monotonic()

    def report_end(self) -> None:
        """Report that all rounds are done."""
        self.report_figures()
        self.report(
            event="finished",
            worker=self.index,
            steps=self.steps,
            first=self.first,
            rounds=self.rounds,
            started=self.started,
            prepared=self.prepared,
            ended=self.ended,
            sent=time.monotonic(),
        )
