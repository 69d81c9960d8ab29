"""The rounds of a run on the clocks of those who made them: what a round was spent on.

A round is computing (from `begun` to `ready`), waiting for others (from `arrived` to `released`), and for the rest,
until the reply is there (`replied`), communication: message and reply on their way, and the work of the ps. Each part
is a difference of two moments on one clock, so it is right where the clocks of several machines differ; what stands in
one row cannot be compared there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.trace import ROUND, UNKNOWN
from ..errors import UserError
from .arrays import read_arrays, whole_columns
from .columns import save_columns

FILE = "rounds.npz"

WORKER, NUMBER, BEGUN, READY, ARRIVED, RELEASED, REPLIED = range(len(ROUND))

ENOUGH_ROUNDS = 100  # of all workers: fewer are mostly start-up

ENOUGH_SECONDS = 10.0  # of all workers together: there is nothing to gain in a shorter run

MUCH = 0.5  # a part of a round that is worth a sentence

LITTLE = 0.25  # the part that advice aims at

LONGEST = 20  # times the period of the run: beyond that the loss per step suffers first

ADVICE = {
    "communication": {None: "larger batches, or an algorithm with a longer period, would help"},
    "waiting": {
        "slack": "a larger slack or an asynchronous algorithm would help",
        "backup_workers": "backup workers or an asynchronous algorithm would help",
        None: "an asynchronous algorithm would help",
    },
}


@dataclass(frozen=True)
class Shares:
    """What a round is spent on, in the mean over the rounds of all workers.

    Attributes:
        rounds: that this is the mean of.
        seconds: of a round, from its beginning to its reply.
        compute: the part of it that is arithmetic.
        waiting: the part that is waiting for other workers; None if it is not known, and part of `communication`.
        communication: the rest.
    """

    rounds: int
    seconds: float
    compute: float
    waiting: float | None
    communication: float

    @classmethod
    def of(cls, rounds: int, compute: float, exchange: float, waiting: float | None) -> Shares | None:
        """From the mean seconds of a round to its message, from there to the reply, and of waiting within that.

        Where no moments are kept, the means are of different rounds: those before a worker's last start count for
        waiting alone. If somebody waited long then, it is not known what waiting is part of these rounds.
        """
        if waiting is not None and waiting > exchange:
            waiting = None
        seconds = compute + exchange
        if not rounds or seconds <= 0:
            return None
        others = waiting or 0.0
        part = None if waiting is None else waiting / seconds
        return cls(rounds, seconds, compute / seconds, part, (exchange - others) / seconds)

    def as_dict(self) -> dict[str, float | int | None]:
        """As it stands in result.json."""
        return {name: None if value is None else round(value, 6) for name, value in vars(self).items()}

    def in_words(self, hyperparameters: Mapping[str, Any]) -> str | None:
        """Return one sentence on what would make rounds shorter, given the hyperparameters of the run.

        None if there is nothing to say, if there are too few rounds to say it, or if the run is so short that it does
        not matter.
        """
        if self.rounds < ENOUGH_ROUNDS or self.rounds * self.seconds < ENOUGH_SECONDS or self.waiting is None:
            return None
        for what, name in (("waiting", "waiting for the slowest worker"), ("communication", "communication")):
            if (part := getattr(self, what)) >= MUCH:
                advice = next(text for knob, text in ADVICE[what].items() if knob is None or knob in hyperparameters)
                if what == "communication" and hyperparameters.get("communication_period"):
                    advice = self._longer(hyperparameters["communication_period"])
                return f"{part:.0%} of a round is {name}: {advice}"
        return None

    def _longer(self, period: int) -> str:
        """Return the advice to take more local steps in a round, which leaves its communication as it is."""
        rest = 1 - self.communication
        times = min(LONGEST, math.ceil(self.communication * (1 - LITTLE) / (LITTLE * rest)) if rest else LONGEST)
        left = self.communication / (self.communication + rest * times)
        return f"communication_period={times * period} would make that about {left:.0%}"


@dataclass(frozen=True)
class RoundLog:
    """The rounds of all workers.

    Attributes:
        rows: [n, len(ROUND)], see `engine.trace`.
    """

    rows: np.ndarray

    def save(self, path: Path) -> None:
        """Write the rows as arrays, one for each column of `ROUND`; raises `CannotWrite`."""
        save_columns(path, ROUND, len(self.rows), lambda: [np.asarray(self.rows, "<i8")])

    @classmethod
    def load(cls, run_dir: Path) -> RoundLog:
        """The rounds of the run in a folder.

        Raises:
            UserError: there is no such file, or it is damaged.
        """
        path = run_dir / FILE
        if not path.exists():
            raise UserError(f"{run_dir} has no {FILE}: the rounds of a run with --record off are not on record")
        columns = read_arrays(run_dir, FILE)
        if not whole_columns(columns, ROUND):
            raise UserError(f"{path} is damaged: run it again")
        return cls(np.stack([columns[name] for name in ROUND], 1))

    def shares(self, worker: int | None = None) -> Shares | None:
        """What rounds were spent on, of all workers or of one: those that are wholly known, but for the first of each.

        The first of a worker is mostly start-up. None if there are no others.
        """
        rows = self.rows if worker is None else self.rows[self.rows[:, WORKER] == worker]
        spent = Spent()
        spent.add(rows[rows[:, NUMBER] > 0])
        return spent.shares


class Spent:
    """What rounds were spent on, added up.

    Attributes:
        rounds: of which the worker's moments are known, and those among them of which it is known how long they waited;
            of both how many there are, and seconds of compute, exchange and waiting, [2, 4].
    """

    def __init__(self):
        self.rounds = np.zeros((2, 4))

    def add(self, rows: np.ndarray) -> None:
        """Count rounds, [n, len(ROUND)]."""
        known = rows[(rows[:, [BEGUN, READY, REPLIED]] != UNKNOWN).all(1)]
        met = known[(known[:, [ARRIVED, RELEASED]] != UNKNOWN).all(1)]
        for sums, some in zip(self.rounds, (known, met), strict=True):
            ends = some[:, [READY, REPLIED, RELEASED]] - some[:, [BEGUN, READY, ARRIVED]]
            sums += [len(some), *ends.sum(0) / 1e6]

    @property
    def shares(self) -> Shares | None:
        """Of the rounds of which all is known; if there are none, waiting is not known. None without any."""
        known, met = self.rounds
        number, *seconds = met if met[0] else known
        if not number:
            return None
        compute, exchange, waiting = (float(sum_ / number) for sum_ in seconds)
        return Shares.of(int(number), compute, exchange, waiting if met[0] else None)
