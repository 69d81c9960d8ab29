"""Measurement of machines from the recorded rounds of a run: times of computing, of messages, and of the lock.

The parts of a recorded round in the model of a platform:

    begun ──▶ ready       computing
    ready ──▶ arrived     the message in transit, and its wait for the lock
    arrived ──▶ released  waiting for other workers, which is no property of the machines
    released ──▶ replied  under the lock, and the reply in transit
    replied ──▶ begun     between two rounds of a real run; zero in virtual time
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...common.contract.rounds import Rounds
from ...common.contract.scheme import Scheme
from ...common.errors import UserError
from ...common.record.round_log import ARRIVED, BEGUN, NUMBER, READY, RELEASED, REPLIED, WORKER, load_rounds
from ...common.record_format import ALONE_STEPS
from ...common.server.trace import UNKNOWN

WARM_UP = 2  # the first rounds of each worker, and those after it was started again, which are left out

LEAST_ROUNDS = 10  # the fewest usable rounds of each worker

OUTLIERS = 99  # percentile at which times are clipped before a spread or a line is fitted

DUST = 1e-6  # relative variance of the bytes in transit below which their number counts as constant

QUEUED = 20  # the fewest messages that waited for the lock from which its time per message is measured

# Quantiles of the transit time: a message counts as having waited for the lock if it was ready earlier than the arrival
# of the previous message by more than the quantile. With low quantiles slow messages are counted by mistake; then the
# gaps between arrivals spread by more than `ALIKE` (upper over lower quartile). Without any waiting the spread would be
# nearly five.
TRANSIT_QUANTILES = 0.9, 0.5, 0.0

ALIKE = 2.5


def rounds_of(scheme: Scheme, targets: Sequence[int], seed: int) -> Rounds:
    """Return the rounds of a worker in a run of that seed; `targets` are the steps of those it resumes, and its own."""
    runs = [(end - start, start) for start, end in itertools.pairwise((0, *targets))]
    if not scheme.sync.exchanges:
        return sum((Rounds.even(steps, ALONE_STEPS) for steps, _ in runs), Rounds())
    return sum((scheme.rounds(steps, done, seed=seed) for steps, done in runs), Rounds())


def read_rounds(run_dir: Path, workers: int) -> np.ndarray:
    """Read the recorded rounds of a run, [n, len(ROUND)].

    Raises:
        UserError: they are missing or damaged.
    """
    rows = load_rounds(run_dir)
    moments = np.where(rows[:, BEGUN:] == UNKNOWN, np.iinfo(np.int64).max, rows[:, BEGUN:])
    of_worker = moments[:, [0, 1, 2, REPLIED - BEGUN]]
    in_order = (np.diff(of_worker) >= 0).all()
    worker = rows[:, WORKER]
    if not (in_order and ((worker >= 0) & (worker < workers) & (rows[:, NUMBER] >= 0)).all()):
        raise UserError(f"the recorded rounds in {run_dir} are damaged: they are not those of {workers} workers")
    return rows


@dataclass(frozen=True)
class RoundTimes:
    """The parts of the rounds of a run, in seconds; a value for each round, [n].

    Attributes:
        rows: the rounds, [n, len(ROUND)].
        steps: number of steps computed in each round.
        events: the event that ended each round: exchange, push, pull.
        compute: time from the beginning of a round to its message.
        up: time of the message in transit and of its wait for the lock.
        down: time under the lock and of the reply in transit.
        between: time until the next round begins.
    """

    rows: np.ndarray
    steps: np.ndarray
    events: np.ndarray
    compute: np.ndarray
    up: np.ndarray
    down: np.ndarray
    between: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, rounds: Rounds) -> RoundTimes:
        """Select the rounds with complete timestamps, after a warm-up and before the first worker had finished."""
        rows = rows[np.lexsort((rows[:, NUMBER], rows[:, WORKER]))]
        planned = list(rounds.first(int(rows[:, NUMBER].max(initial=-1)) + 1))
        rows = rows[rows[:, NUMBER] < len(planned)]
        before, after = np.roll(rows, 1, 0), np.roll(rows, -1, 0)
        selected = (rows >= 0).all(1) & (_since_start(rows, before) >= WARM_UP) & (rows[:, BEGUN] < _first_end(rows))
        consecutive = _follows(rows, after) & (after[:, BEGUN] >= rows[:, REPLIED])
        number = rows[selected, NUMBER]
        steps, events = np.array([n for n, _ in planned]), np.array([event for _, event in planned])
        begun, ready, _, arrived, released, replied = (rows[selected, BEGUN:] / 1e6).T
        between = np.where(consecutive, after[:, BEGUN] - rows[:, REPLIED], 0)[selected] / 1e6
        return cls(
            rows[selected], steps[number], events[number], ready - begun, arrived - ready, replied - released, between
        )

    def need(self, workers: int) -> None:
        """Raise `UserError` if a worker has too few rounds."""
        found = np.bincount(self.rows[:, WORKER], minlength=workers)
        worker = int(found.argmin())
        if found[worker] < LEAST_ROUNDS:
            raise UserError(
                f"too few rounds to fit machines to: each worker needs {LEAST_ROUNDS} complete rounds after the first "
                f"{WARM_UP}. Received: a run in which worker {worker} has {found[worker]} of them"
            )

    def mean(self, values: np.ndarray) -> float:
        """Return the mean over workers of each worker's mean."""
        worker = self.rows[:, WORKER]
        number = np.bincount(worker)
        return float((np.bincount(worker, values)[number > 0] / number[number > 0]).mean())

    def by_worker(self, values: np.ndarray) -> np.ndarray:
        """Return the values of each worker in order, [W, n], cut to the shortest number of all workers."""
        parts = np.split(values, np.flatnonzero(np.diff(self.rows[:, WORKER])) + 1)
        number = min(map(len, parts))
        return np.stack([part[:number] for part in parts])

    @property
    def one_clock(self) -> bool:
        """False if negative times show that workers and ps have different clocks."""
        return bool((self.up >= 0).all() and (self.down >= 0).all())

    def crowd(self, sizes: tuple[float, float]) -> tuple[float, float]:
        """Estimate by how much each other message in transit delays a message.

        Args:
            sizes: bytes of a message, and of a reply; those of size zero are left out.

        Returns:
            seconds for each byte and each other message, from a linear regression; and its standard error.
        """
        groups = []
        for size, nothing, begun, ended in ((sizes[0], "pull", READY, ARRIVED), (sizes[1], "push", RELEASED, REPLIED)):
            moving = (self.events != nothing) & (self.rows[:, ended] > self.rows[:, begun])
            if size and moving.any():
                groups.append(_crowd(size, *self.rows[moving][:, [begun, ended]].T / 1e6))
        if not groups:
            return 0.0, math.inf
        crowd, took = np.concatenate(groups, 1)
        spread = float((crowd**2).sum())
        if spread <= DUST * max(sizes) ** 2 * len(crowd):
            return 0.0, math.inf
        slope = float((took * crowd).sum()) / spread
        return slope, math.sqrt(float(((took - slope * crowd) ** 2).mean()) / spread)

    def service(self) -> float | None:
        """Estimate the seconds that a message holds the lock; None if too few messages have waited for it.

        A message that arrived before the previous one got the lock gets it exactly when the previous one releases it.
        """
        if not self.one_clock:
            return None
        order = np.argsort(self.rows[:, ARRIVED])
        arrived, ready = self.rows[order, ARRIVED] / 1e6, self.rows[order, READY] / 1e6
        for quantile in TRANSIT_QUANTILES:
            transit = np.zeros(len(order))
            for event in np.unique(self.events):
                of_kind = self.events == event
                transit[of_kind] = np.quantile(self.up[of_kind], quantile)
            held = np.diff(arrived)[ready[1:] + transit[order][1:] < arrived[:-1]]
            if len(held) >= QUEUED:
                low, middle, high = np.quantile(held, (0.25, 0.5, 0.75))
                if high <= ALIKE * low:
                    return float(middle)
        return None


def _crowd(size: float, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the bytes of each message times the messages in transit with it, and its seconds, [2, n].

    Both are deviations from the mean.
    """
    moments = np.sort(np.concatenate([begin, end]))
    moving = np.searchsorted(np.sort(begin), moments, "right") - np.searchsorted(np.sort(end), moments, "right")
    sums = np.concatenate([[0.0], np.cumsum(moving[:-1] * np.diff(moments))])
    crowd = (np.interp(end, moments, sums) - np.interp(begin, moments, sums)) / (end - begin)
    took = np.minimum(end - begin, np.percentile(end - begin, OUTLIERS))
    return np.stack([size * (crowd - crowd.mean()), took - took.mean()])


def _follows(rows: np.ndarray, next_rows: np.ndarray) -> np.ndarray:
    """Return True where a round is the next one of the same worker."""
    return (rows[:, WORKER] == next_rows[:, WORKER]) & (rows[:, NUMBER] + 1 == next_rows[:, NUMBER])


def _since_start(rows: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return the number of rounds that the worker had done since it was started, at first or again.

    No worker knows when the last reply before its start came.
    """
    begins = ~_follows(before, rows) | (before[:, REPLIED] == UNKNOWN)
    number = np.arange(len(rows))
    return number - np.maximum.accumulate(np.where(begins, number, 0))


def _first_end(rows: np.ndarray) -> int:
    """Return the time at which the first worker had finished its rounds."""
    ends = [rows[rows[:, WORKER] == k, REPLIED].max() for k in np.unique(rows[:, WORKER])]
    return min(ends, default=0)


def core_seconds(cpu: dict[str, Any] | None, rows: np.ndarray, rounds: Rounds) -> float | None:
    """Return the CPU seconds of a step, in all tasks but the evaluator; None if they are not recorded.

    Args:
        cpu: the entry `cpu` of result.json.
        rows: the rounds of all workers, [n, len(ROUND)].
        rounds: the rounds of each worker.
    """
    if not cpu:
        return None
    begun = rows[:, BEGUN]
    numbers = rows[(begun >= cpu["begun"]) & (begun < cpu["ended"]), NUMBER]
    steps = np.array([n for n, _ in rounds.first(int(numbers.max(initial=0)) + 1)])[numbers].sum()
    used = sum(seconds for task, seconds in cpu["seconds"].items() if not task.startswith("evaluator"))
    return float(used / steps) if steps and used > 0 else None
