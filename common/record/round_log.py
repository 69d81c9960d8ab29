"""The timestamps of all rounds of a run, and the shares of compute, waiting and communication.

A round computes (from `begun` to `computed`), waits for other workers (from `arrived` to `released`), and spends the
rest until the reply (`replied`) on communication: transfer of message and reply, and the work of the ps. What of these
happens while the worker computes counts as computing, see `server.trace.spent`. Between its reply and the next round a
worker gets its next data and reports its progress. Timestamps of one row are of two clocks, that of the worker and that
of the ps, and can only be compared if the clocks agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..record_format import read_arrays, whole_columns
from ..server.trace import ROUND, UNKNOWN, spent
from .array_files import save_columns

FILE = "rounds.npz"

WORKER, NUMBER, BEGUN, READY, COMPUTED, ARRIVED, RELEASED, REPLIED = range(len(ROUND))

NO_ROUNDS = np.empty((0, len(ROUND)), np.int64)

ENOUGH_ROUNDS = 100  # of all workers: fewer rounds are mostly start-up

ENOUGH_SECONDS = 10.0  # summed over all workers: advice does not pay in a shorter run

MUCH = 0.5  # share of a round from which advice is given

LITTLE = 0.25  # share that the advice aims at

NEVER = np.iinfo(np.int64).max

LONGEST = 20  # times the period of the run: a longer period would harm the loss per step

ADVICE = {
    "communication": {None: "larger batches, or an algorithm with a longer period, would help"},
    "waiting": {
        "slack": "a larger slack or an asynchronous algorithm would help",
        "backup_workers": "backup workers or an asynchronous algorithm would help",
        None: "an asynchronous algorithm would help",
    },
    "between": {None: "steps are short: larger batches, or local steps between two messages, would help"},
}

NAMES = {
    "waiting": "waiting for the slowest worker", "communication": "communication", "between": "between two rounds",
}  # fmt: skip


@dataclass(frozen=True)
class Shares:
    """The mean time of a worker for a round, and its shares of compute, waiting, communication and the rest.

    Attributes:
        rounds: number of rounds in the mean.
        seconds: from the beginning of a round to that of the next.
        compute: share of arithmetic.
        waiting: share of waiting for other workers; None if it is unknown, and then part of `communication`.
        communication: share of the rest up to the reply.
        between: share between the reply and the next round; None if it is unknown, and then part of `compute`.
    """

    rounds: int
    seconds: float
    compute: float
    waiting: float | None
    communication: float
    between: float | None = 0.0

    @classmethod
    def of(
        cls, rounds: int, compute: float, exchange: float, waiting: float | None, between: float | None
    ) -> Shares | None:
        """Build the shares from mean seconds: computing, from there to the reply, waiting within that, and between."""
        seconds = compute + exchange + (between or 0.0)
        if not rounds or seconds <= 0:
            return None
        others, after = (None if part is None else part / seconds for part in (waiting, between))
        return cls(rounds, seconds, compute / seconds, others, (exchange - (waiting or 0.0)) / seconds, after)

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the shares in the form of result.json."""
        return {name: None if value is None else round(value, 6) for name, value in vars(self).items()}

    def in_words(self, config: Mapping[str, Any]) -> str | None:
        """Return one sentence on what would make rounds shorter, given the configuration of the run.

        None if no share is large, if the rounds are too few to judge, or if the run is too short to matter.
        """
        matters = self.rounds >= ENOUGH_ROUNDS and self.rounds * self.seconds >= ENOUGH_SECONDS
        if not matters or self.waiting is None:
            return None
        hyperparameters = config["hyperparameters"]
        for cause, name in NAMES.items():
            if (part := getattr(self, cause) or 0.0) >= MUCH:
                advice = next(text for knob, text in ADVICE[cause].items() if knob is None or knob in hyperparameters)
                if cause == "communication" and isinstance(period := hyperparameters.get("communication_period"), int):
                    advice = self._longer(period)
                return f"{part:.0%} of the workers' time is {name}: {advice}"
        return None

    def _longer(self, period: int) -> str:
        """Advise a longer period: more local steps in a round, at the same communication."""
        rest = 1 - self.communication
        times = min(LONGEST, math.ceil(self.communication * (1 - LITTLE) / (LITTLE * rest)) if rest else LONGEST)
        left = self.communication / (self.communication + rest * times)
        return f"communication_period={times * period} would make that about {left:.0%}"


def save_rounds(path: Path, rows: np.ndarray) -> None:
    """Write rounds, [n, len(ROUND)], as arrays, one for each column of `ROUND`; raises `CannotWrite`."""
    save_columns(path, ROUND, len(rows), lambda: [np.asarray(rows, "<i8")])


def load_rounds(run_dir: Path) -> np.ndarray:
    """Return the rows of rounds.npz of a run, [n, len(ROUND)], see `server.trace`.

    Raises:
        UserError: the file is missing or damaged.
    """
    path = run_dir / FILE
    if not path.exists():
        raise UserError(
            f"{run_dir} has no {FILE}, as the run was recorded with record=off: train again with record=full"
        )
    columns = read_arrays(run_dir, FILE)
    if not whole_columns(columns, ROUND):
        raise UserError(f"{path} is damaged: run it again")
    return np.stack([columns[name] for name in ROUND], 1)


class TimeTotals:
    """The seconds of rounds, added up.

    Args:
        rows: the first rounds to count.
        since: the time at which this start of the run began, in microseconds; earlier rounds do not count.
        one_clock: False if workers are on several machines, whose clocks may differ.

    Attributes:
        rounds: row 0 sums the rounds whose worker timestamps are known, row 1 those of them whose wait is known, too;
            columns are their number, and seconds of compute, exchange and waiting, [2, 4].
        gaps: number of pairs of successive rounds, and the seconds from the reply of the first to the second, [2].
        spans: first and last timestamp of each worker since then, in microseconds.
        is_whole: False if the first rounds are not on record.
    """

    def __init__(self, rows: np.ndarray = NO_ROUNDS, *, since: int = 0, one_clock: bool = True):
        self.rounds, self.gaps, self.is_whole = np.zeros((2, 4)), np.zeros(2), True
        self.since, self.one_clock = since, one_clock
        self.spans: dict[int, tuple[int, int]] = {}
        self._later: dict[int, np.ndarray] = {}  # the first round of each worker among those counted
        self.add(rows)

    def add(self, rows: np.ndarray) -> None:
        """Count rounds, [n, len(ROUND)], that lie before those counted so far.

        The first round of each worker counts for its span only, because it is mostly start-up.
        """
        rows = rows[rows[:, [BEGUN, ARRIVED]].max(1) >= self.since]  # a worker elsewhere may have a slow clock
        now = rows[rows[:, BEGUN] >= self.since]
        now = now[np.lexsort((now[:, NUMBER], now[:, WORKER]))]
        for of_worker in np.split(now, np.flatnonzero(np.diff(now[:, WORKER])) + 1) if len(now) else ():
            self._add_span(int(of_worker[0, WORKER]), of_worker)
        rows = rows[rows[:, NUMBER] > 0]
        complete = rows[(rows[:, [BEGUN, READY, COMPUTED, REPLIED]] != UNKNOWN).all(1)]
        met = complete[(complete[:, [ARRIVED, RELEASED]] != UNKNOWN).all(1)]
        for sums, some in zip(self.rounds, (complete, met), strict=True):
            sums += [len(some), *spent(some).sum(0) / 1e6]

    def _add_span(self, worker: int, rows: np.ndarray) -> None:
        """Count rounds of one worker, in order, [n, len(ROUND)]."""
        begun, replied = self.spans.get(worker, (NEVER, 0))
        first, last = rows[:, BEGUN].min(), rows[:, [BEGUN, READY, COMPUTED, REPLIED]].max()
        self.spans[worker] = min(begun, int(first)), max(replied, int(last))
        row = np.concatenate([rows, self._later.get(worker, NO_ROUNDS)])
        self._later[worker] = rows[:1]
        follows = (row[:-1, REPLIED] != UNKNOWN) & (row[1:, NUMBER] == row[:-1, NUMBER] + 1) & (row[:-1, NUMBER] > 0)
        gaps = np.maximum(row[1:, BEGUN] - row[:-1, REPLIED], 0)[follows]
        self.gaps += [len(gaps), gaps.sum() / 1e6]

    @property
    def seconds(self) -> float | None:
        """Time from the first round to the last reply, or None if it is unknown.

        If workers have clocks of their own, it is the longest time of a worker on its own.
        """
        if not self.spans or not self.is_whole:
            return None
        if self.one_clock:
            begun, replied = zip(*self.spans.values(), strict=True)
            return (max(replied) - min(begun)) / 1e6
        return max(last - first for first, last in self.spans.values()) / 1e6

    @property
    def shares(self) -> Shares | None:
        """Shares of the rounds whose wait is known; else of the others, without `waiting`. None without any round."""
        complete, met = self.rounds
        number, *seconds = met if met[0] else complete
        if not number:
            return None
        compute, exchange, waiting = (float(sum_ / number) for sum_ in seconds)
        between = float(self.gaps[1] / max(1, self.gaps[0]))
        return Shares.of(int(number), compute, exchange, waiting if met[0] else None, between)
