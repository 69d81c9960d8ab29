"""What the rounds of a run say of its machines: computing, messages on their way, the lock.

A round on record, and where its time goes in the model of a platform:

    begun ──▶ ready       computing
    ready ──▶ arrived     the message on its way, and its wait for the lock
    arrived ──▶ released  waiting for other workers, which is no property of the machines
    released ──▶ replied  under the lock, and the reply on its way
    replied ──▶ begun     between two rounds of a real run; in virtual time there is nothing

With `exchange_first` a real worker computes the rest of a round after the reply, so the time from the reply to the next
message belongs to as many steps as the round before had; virtual time has it so too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..contract.rounds import Rounds
from ..contract.scheme import Scheme
from ..errors import UserError
from ..record.round_log import ARRIVED, BEGUN, NUMBER, READY, RELEASED, REPLIED, WORKER, RoundLog
from ..server.trace import UNKNOWN
from ..tasks.plan import ALONE_STEPS

WARM_UP = 2  # rounds of each worker that do not count

LEAST_ROUNDS = 10  # of each worker

OUTLIERS = 99  # percentile: what is longer counts as long as that where a spread or a line is fitted

DUST = 1e-6  # of the bytes that are on their way: a crowd that always is the same

QUEUED = 20  # messages that have waited for the lock, to say how long it is held

# Quantiles of ways: who was ready by that much earlier than the one before arrived has waited for the lock: surely, or
# perhaps, if its way was just a slow one. Then the times between the two differ by more than `ALIKE` (upper quartile by
# lower quartile): between messages of which none waits it would be nearly five.
WAYS = 0.9, 0.5, 0.0

ALIKE = 2.5


def rounds_of(scheme: Scheme, steps: int) -> Rounds:
    """The rounds of a worker that does that many steps."""
    return scheme.rounds(steps) if scheme.gate.exchanges else Rounds.even(steps, ALONE_STEPS)


def read_rounds(run_dir: Path, workers: int) -> np.ndarray:
    """The rounds of a run, [n, len(ROUND)].

    Raises:
        UserError: they are not there, or cannot be.
    """
    rows = RoundLog.load(run_dir).rows
    moments = np.where(rows[:, BEGUN:] == UNKNOWN, np.iinfo(np.int64).max, rows[:, BEGUN:])
    in_order = (moments[:, 0] <= moments[:, 1]).all() and (moments[:, 1] <= moments[:, REPLIED - BEGUN]).all()
    who = rows[:, WORKER]
    if not (in_order and ((who >= 0) & (who < workers) & (rows[:, NUMBER] >= 0)).all()):
        raise UserError(f"the rounds on record in {run_dir} are damaged: they are not those of {workers} workers")
    return rows


@dataclass(frozen=True)
class RoundTimes:
    """What the rounds of a run were spent on, in seconds; a value for each round, [n].

    Attributes:
        rows: the rounds, [n, len(ROUND)].
        steps: that each computed.
        events: how each ended: exchange, push, pull.
        compute: from its beginning to its message.
        up: the message on its way, and its wait for the lock.
        down: under the lock, and the reply on its way.
        between: until the next round begins.
    """

    rows: np.ndarray
    steps: np.ndarray
    events: np.ndarray
    compute: np.ndarray
    up: np.ndarray
    down: np.ndarray
    between: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray, rounds: Rounds, exchange_first: bool) -> RoundTimes:
        """From the rounds of a run: those in which all workers were at work, and of which all is known."""
        rows = rows[np.lexsort((rows[:, NUMBER], rows[:, WORKER]))]
        told = list(rounds.first(int(rows[:, NUMBER].max(initial=-1)) + 1))
        rows = rows[rows[:, NUMBER] < len(told)]
        before, after = np.roll(rows, 1, 0), np.roll(rows, -1, 0)
        known = (rows >= 0).all(1) & (rows[:, NUMBER] >= WARM_UP) & (rows[:, BEGUN] < _first_end(rows))
        goes_on = _follows(rows, after) & (after[:, BEGUN] >= rows[:, REPLIED])
        if exchange_first:
            known &= _follows(before, rows) & (rows[:, BEGUN] == before[:, REPLIED])
        number = rows[known, NUMBER]
        steps, events = np.array([n for n, _ in told]), np.array([event for _, event in told])
        begun, ready, arrived, released, replied = (rows[known, BEGUN:] / 1e6).T
        between = np.where(goes_on, after[:, BEGUN] - rows[:, REPLIED], 0)[known] / 1e6
        return cls(
            rows[known],
            steps[number - exchange_first],
            events[number],
            ready - begun,
            arrived - ready,
            replied - released,
            between,
        )

    def need(self, workers: int) -> None:
        """Raise `UserError` if there are too few to say anything."""
        found = np.bincount(self.rows[:, WORKER], minlength=workers)
        least = int(found.argmin())
        if found[least] < LEAST_ROUNDS:
            raise UserError(
                f"too few rounds to say what the machines are like: {LEAST_ROUNDS} of each worker, of which all "
                f"is known, after the first {WARM_UP}, are the least. Received: {found[least]} of worker {least}"
            )

    def mean(self, values: np.ndarray) -> float:
        """The mean over workers of each worker's mean."""
        who = self.rows[:, WORKER]
        number = np.bincount(who)
        return float((np.bincount(who, values)[number > 0] / number[number > 0]).mean())

    def by_worker(self, values: np.ndarray) -> np.ndarray:
        """The values of each worker in order, [W, n]: as many as there are of all of them."""
        parts = np.split(values, np.flatnonzero(np.diff(self.rows[:, WORKER])) + 1)
        number = min(map(len, parts))
        return np.stack([part[:number] for part in parts])

    @property
    def one_clock(self) -> bool:
        """False if workers and ps have clocks of their own, as far as that can be seen."""
        return bool((self.up >= 0).all() and (self.down >= 0).all())

    def crowd(self, sizes: tuple[float, float]) -> tuple[float, float]:
        """By how much messages are longer for each other one that is on its way at the same time.

        Args:
            sizes: bytes of a message, and of a reply; those without any are not looked at.

        Returns:
            seconds for each byte and message, by a straight line through all of them; and the standard error of that.
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
        """Seconds that a message holds the lock; None if no more than a few have ever waited for it.

        Of those that were there when the one before got the lock, each got it when that one left it.
        """
        if not self.one_clock:
            return None
        order = np.argsort(self.rows[:, ARRIVED])
        arrived, ready = self.rows[order, ARRIVED] / 1e6, self.rows[order, READY] / 1e6
        for way in WAYS:
            ways = np.zeros(len(order))
            for event in np.unique(self.events):
                mine = self.events == event
                ways[mine] = np.quantile(self.up[mine], way)
            held = np.diff(arrived)[ready[1:] + ways[order][1:] < arrived[:-1]]
            if len(held) >= QUEUED:
                low, middle, high = np.quantile(held, (0.25, 0.5, 0.75))
                if high <= ALIKE * low:
                    return float(middle)
        return None


def _crowd(size: float, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The bytes of a message times how many are on their way with it, and its seconds, [2, n].

    Both are deviations from the mean.
    """
    moments = np.sort(np.concatenate([begin, end]))
    there = np.searchsorted(np.sort(begin), moments, "right") - np.searchsorted(np.sort(end), moments, "right")
    sums = np.concatenate([[0.0], np.cumsum(there[:-1] * np.diff(moments))])
    crowd = (np.interp(end, moments, sums) - np.interp(begin, moments, sums)) / (end - begin)
    took = np.minimum(end - begin, np.percentile(end - begin, OUTLIERS))
    return np.stack([size * (crowd - crowd.mean()), took - took.mean()])


def _follows(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """True where a round is the next one of the same worker."""
    return (one[:, WORKER] == other[:, WORKER]) & (one[:, NUMBER] + 1 == other[:, NUMBER])


def _first_end(rows: np.ndarray) -> int:
    """When the first worker had no more to do."""
    ends = [rows[rows[:, WORKER] == k, REPLIED].max() for k in np.unique(rows[:, WORKER])]
    return min(ends, default=0)


def core_seconds(cpu: dict[str, Any] | None, rows: np.ndarray, rounds: Rounds) -> float | None:
    """Seconds of a core that a step takes in all tasks that work for it; None if that is not on record.

    Args:
        cpu: what result.json says.
        rows: the rounds of all workers, [n, len(ROUND)].
        rounds: of each worker.
    """
    if not cpu:
        return None
    begun = rows[:, BEGUN]
    numbers = rows[(begun >= cpu["begun"]) & (begun < cpu["ended"]), NUMBER]
    steps = np.array([n for n, _ in rounds.first(int(numbers.max(initial=0)) + 1)])[numbers].sum()
    used = sum(seconds for task, seconds in cpu["seconds"].items() if not task.startswith("evaluator"))
    return float(used / steps) if steps and used > 0 else None
