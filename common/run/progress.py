"""How far a worker has come, and what it tells about it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import CannotWrite, Diverged
from ..record.stamp_file import StampWriter
from ..reports import Report
from ..waiting import paced
from .options import OnNan
from .plan import Plan
from .worker_calls import Done, Joined, WorkerCalls

REPORT_SECONDS = 0.1  # between two reports at first ...

LONGEST_REPORT_SECONDS = 2.0  # ... and in a long run


class Progress:
    """The rounds that a worker has done.

    Args:
        calls: of the worker.
        plan: what there is to do.
        stamps: keeps the moments of the rounds.
        on_nan: what follows from a loss or a gradient that is not finite.
        report: where events go.

    Attributes:
        rounds: that are done, and on record as far as the worker knows.
        steps: local steps in them.
        restoration: of the state that it has joined.
        stopping: the run is to end now.
        started, ended: when the rounds began, and when the last one ended, in seconds of this process's clock.
    """

    def __init__(self, calls: WorkerCalls, plan: Plan, stamps: StampWriter, on_nan: OnNan, report: Report):
        self.index, self.calls, self.report = calls.index, calls, report
        self.plan, self.stamps, self.on_nan = plan, stamps, on_nan
        self.rounds = self.steps = self.restoration = 0
        self.stopping = False
        self.losses: list[float] = []  # since the last report
        self.begin()

    def begin(self) -> None:
        """The clock of the rounds starts."""
        self.started = self.ended = self.reported = time.monotonic()

    def joined(self, now: Joined) -> None:
        """Go on from what is on record; rounds that were acknowledged before, and then lost with a ps, are reported."""
        if (lost := self.rounds - now.rounds) > 0:
            updates = self.plan.scheme.gate.updates_per_round(self.plan.workers)
            together = updates == 1  # all have lost the same ones
            self.report(event="lost", worker=self.index, rounds=lost, together=together, before=self.restoration)
        self.restoration, self.stopping = now.restoration, now.stopping
        self._at(now.rounds)
        with self._warning():
            self.stamps.go_back(now.rounds)
        if self.plan.scheme.scheduled or not self.calls.coordination.uses_ps:
            self.calls.set_clock(self.steps)

    def stopped(self, rounds: int) -> None:
        """The run ended in the middle of a call, of which some rounds are on record: `rounds` in all."""
        self.stopping = True
        if rounds > self.rounds:
            self.ended = time.monotonic()
        self._at(rounds)

    def _at(self, rounds: int) -> None:
        self.rounds, self.steps = rounds, self.plan.rounds(self.index).steps(rounds)

    def count(self, batches: Sequence[np.ndarray], done: Done) -> None:
        """Count the rounds of a call, and report now and then.

        Args:
            batches: of each round, [steps, batch size].
            done: what they have come to.

        Raises:
            Diverged: one of them is not finite, and that ends the run.
        """
        self.ended = time.monotonic()
        losses, steps, stamps = done
        with self._warning():
            self.stamps.add(self.rounds, stamps)
        self.rounds += len(batches)
        self.steps += sum(map(len, batches))
        finite, left_out = np.isfinite(losses), np.array([len(rows) for rows in batches]) - steps
        if self.on_nan == "stop" and (left_out.any() or not finite.all()):
            raise self._diverged(losses, left_out)
        if number := int(left_out.sum()):
            self.report(event="refused", worker=self.index, number=number)
        self.losses.extend(losses[finite].tolist())
        now = time.monotonic()
        if now - self.reported > max(REPORT_SECONDS, paced(now - self.started, LONGEST_REPORT_SECONDS)):
            self.tell()

    @contextlib.contextmanager
    def _warning(self) -> Iterator[None]:
        """A full disk ends no run because of its stamps."""
        try:
            yield
        except CannotWrite as error:
            message = f"{error}: the moments of worker {self.index}'s rounds from here on are not on the disk"
            self.report(event="warning", message=message)

    def _diverged(self, losses: np.ndarray, left_out: np.ndarray) -> Diverged:
        bad = int(np.flatnonzero(~np.isfinite(losses) | (left_out > 0))[0])
        loss, who = losses[bad], f"worker {self.index}"
        what = f"a gradient of {who} was not finite" if np.isfinite(loss) else f"the loss of {who} became {loss}"
        return Diverged(
            f"{what} in its round {self.rounds - len(losses) + bad}, at version {self.calls.version()} of the center: "
            "try a smaller learning rate or period"
        )

    def tell(self) -> None:
        """Report the mean loss since the last report."""
        if self.losses:
            self.report(event="worker", worker=self.index, steps=self.steps, loss=float(np.mean(self.losses)))
        self.losses, self.reported = [], time.monotonic()

    def tell_end(self) -> None:
        """Report that all rounds are done."""
        self.tell()
        self.report(
            event="finished",
            worker=self.index,
            steps=self.steps,
            rounds=self.rounds,
            started=self.started,
            ended=self.ended,
            sent=time.monotonic(),
            timed=self.stamps.timed,
            compute_seconds=self.stamps.compute,
            exchange_seconds=self.stamps.exchange,
        )
