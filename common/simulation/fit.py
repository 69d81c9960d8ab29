"""`fit`: a platform like the machines of a recorded run.

What cannot be read off a round is found by simulating the recorded run itself: what workers have waited for the lock
and for cores is part of what was measured, and no property of the machines. So the platform is corrected until it has
the rounds that are on record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..contract.rounding import rounded
from ..contract.scheme import Scheme
from ..errors import UserError
from ..files import with_tuples
from ..messages.cut import even_sizes
from ..record.arrays import read_arrays
from ..record.content import read_config, read_result
from ..record.round_log import NUMBER, WORKER
from ..server.traffic import Traffic
from ..spec import nearest
from ..virtual_time.durations import Durations
from ..virtual_time.order import order
from .calibration import OUTLIERS, RoundTimes, core_seconds, read_rounds, rounds_of
from .likeness import Likeness

CORRECTIONS = 3  # with constant latencies, and as many once it is known how they vary

CROWDED_CORRECTIONS = 8  # where messages wait for the card of the ps, which must be told from their latency

MOST_CORRECTED = 2.0  # by which a correction of the card multiplies or divides at the most

LEAST_SHARE = 0.02  # of a step, that is no matter of cores

LEAST_ROUNDS, MESSAGES = 30, 2000  # of each worker, and of all together, that are simulated at a time

DIFFERENT = 0.1  # sizes that differ by this part tell bandwidth and latency apart

SURE = 4  # standard errors by which messages must be longer where there are more of them

UNDISTURBED = 10  # percentile of messages that waited for nothing


def fit(run_dir: Path, schemes: Mapping[str, type[Scheme]]) -> Likeness:
    """Machines like those of a recorded run, real or simulated.

    Args:
        run_dir: of a run that has ended.
        schemes: the catalogue, by name.

    Raises:
        UserError: the run does not say what its machines are like, and why.
    """
    return Recording.read(run_dir, schemes).fitted()


def scheme_of(config: Mapping[str, Any], schemes: Mapping[str, type[Scheme]]) -> Scheme:
    """The algorithm of a run, with the hyperparameters that can be read again: a schedule of rates takes no time."""
    name, kind = config["algorithm"], schemes.get(config["algorithm"])
    if kind is None:
        raise UserError(f"the run is of {name}, which is not known here: --import its file. {nearest(name, schemes)}")
    usual = kind()
    given = {
        key: value
        for key, value in with_tuples(config["hyperparameters"]).items()
        if not (isinstance(value, str) and not isinstance(getattr(usual, key, None), str))
    }
    return rounded(kind(**given), config["codec"])


@dataclass(frozen=True)
class Recording:
    """A run as it is on record.

    Attributes:
        scheme, workers, ps: of the run; `steps` of each worker; `parameters` of its model.
        sizes: bytes of a message, and of a reply.
        spent: what its rounds were spent on.
        cores: of its machine, or None if it is not known how they were used.
        core: seconds that a step took one of them.
    """

    scheme: Scheme
    workers: int
    ps: int
    steps: int
    sizes: tuple[float, float]
    spent: RoundTimes
    cores: int | None
    core: float
    parameters: int

    @classmethod
    def read(cls, run_dir: Path, schemes: Mapping[str, type[Scheme]]) -> Recording:
        """The run of a folder."""
        config = read_config(run_dir)
        scheme, workers, steps = scheme_of(config, schemes), config["workers"], config["steps_per_worker"]
        rows, rounds = read_rounds(run_dir, workers), rounds_of(scheme, steps)
        if any(scheme.rounds(steps, 0, worker) != scheme.rounds(steps) for worker in range(workers)):
            raise UserError(f"a fit needs rounds that are the same for all workers. Received: a run of {scheme.name}")
        spent = RoundTimes.of(rows, rounds, scheme.exchange_first)
        spent.need(workers)
        arrays, ps = read_arrays(run_dir, "center.npz"), max(1, config["ps"])
        traffic = Traffic(scheme, scheme.codec, workers, even_sizes(len(arrays["center"]), ps), len(arrays["state"]))
        cpu = read_result(run_dir).get("cpu") if (run_dir / "result.json").is_file() else None
        core = core_seconds(cpu, rows, rounds)
        cores = cpu["cores"] if cpu and core else None
        sizes = traffic.message, traffic.reply
        return cls(scheme, workers, ps, steps, sizes, spent, cores, core or 0.0, len(arrays["center"]))

    @property
    def is_collective(self) -> bool:
        """Workers reduce their messages among themselves."""
        return self.scheme.gate.exchanges and not self.scheme.gate.uses_ps

    @property
    def latencies(self) -> int:
        """How many there are in a round."""
        if not self.scheme.gate.exchanges or (self.workers == 1 and self.is_collective):
            return 0
        return 2

    @property
    def compute(self) -> np.ndarray:
        """Seconds of a step, of each round; without a ps, what is between two rounds is part of it."""
        spent = self.spent
        if self.scheme.gate.uses_ps:
            return spent.compute / spent.steps
        alone = 0.0 if self.latencies else spent.up + spent.down
        return (spent.compute + spent.between + alone) / spent.steps

    @property
    def exchange(self) -> np.ndarray:
        """Seconds that message and reply of each round were on their way, waited for the lock, and held it."""
        spent = self.spent
        if not self.latencies:
            return np.zeros(len(spent.up))
        return spent.down if self.is_collective else spent.up + spent.down + spent.between

    def fitted(self) -> Likeness:
        """Machines on which there are such rounds."""
        spent = self.spent
        steps, period = spent.by_worker(self.compute), max(1, round(float(np.median(spent.steps))))
        steps = np.maximum(steps - self.core, LEAST_SHARE * steps)
        lock, guesses = spent.service() if self.scheme.gate.uses_ps and self.workers > 1 else None, []
        for service in (None,) if lock is None else (None, lock):
            latency, rate, held = self._links(service)
            guess = Likeness(
                self.scheme, self.workers, len(spent.rows), steps, period, self.cores, self.core, latency, 0.0, rate,
                held, parameters=self.parameters, size=self.sizes[0],
            )  # fmt: skip
            guesses.append(self._corrected(guess, CORRECTIONS))
        found, again = min(guesses, key=lambda guess: self._unlike(guess[1]))
        waits = ""
        if queue := self._queue(again.spent.crowd(self.sizes)[0]):
            guesses = {"card": replace(found, card=1 / queue / self.ps)}
            if not found.service:
                guesses["service"] = replace(found, service=queue * self.sizes[0])
            tried = {name: self._corrected(guess, CROWDED_CORRECTIONS, name) for name, guess in guesses.items()}
            waits = min(tried, key=lambda name: self._unlike(tried[name][1]))
            found, again = tried[waits]
        found = replace(found, latency_sigma=self._sigma(found.latency, again))
        return self._corrected(found, CROWDED_CORRECTIONS if waits else CORRECTIONS, waits)[0]

    def _unlike(self, again: Recording) -> float:
        """By how many seconds ways of a simulated run differ, and in a crowd: at a lock, replies do not wait."""
        spent, there, (message, reply) = self.spent, again.spent, self.sizes
        found = abs(there.mean(there.up) - spent.mean(spent.up))
        for one, way in ((message, (message, 0.0)), (reply, (0.0, reply))):
            found += one * abs(there.crowd(way)[0] - spent.crowd(way)[0])
        return found

    def _corrected(self, found: Likeness, times: int, waits: str = "") -> tuple[Likeness, Recording]:
        """Machines with rounds that are as long as those on record; and the last run that was simulated.

        Args:
            found: a first guess.
            times: that it is corrected.
            waits: what messages wait for, to be corrected too: card or service.
        """
        measured, again = self.spent.by_worker(self.compute), self
        compute, exchange = float(measured.mean()), self.spent.mean(self.exchange)
        for _ in range(times):
            again, shared = self._simulated(found)
            took = again.spent.mean(again.exchange)
            too_long = took - exchange + found.period * (found.step + shared - compute)
            if waits:
                by, card, service = self._faster(again), found.card, found.service or 0.0
                too_long += (took - self.latencies * found.latency) * (1 / by - 1)  # what is no latency changes by that
                found = replace(found, card=card * by) if waits == "card" else replace(found, service=service / by)
            if self.latencies:
                found = replace(found, latency=max(0.0, found.latency - too_long / self.latencies))
            found = replace(found, steps=np.maximum(measured - shared, LEAST_SHARE * measured))
        return found, again

    def _faster(self, again: Recording) -> float:
        """How many times as fast card or lock must be; waits grow by more than they slow down, so by the root of it."""
        by = again.spent.crowd(self.sizes)[0] / self.spent.crowd(self.sizes)[0]
        return min(max(math.sqrt(max(by, 0.0)), 1 / MOST_CORRECTED), MOST_CORRECTED)

    def _queue(self, known: float) -> float | None:
        """Seconds for each byte and each message that is on its way at the same time, beyond those that are known.

        None if that may be chance, or no more than a small part of an exchange: no worker has waited for the others.
        """
        if not self.latencies or self.is_collective or self.workers == 1 or not self.spent.one_clock:
            return None
        slope, error = self.spent.crowd(self.sizes)
        more = slope - known
        longer = more * max(self.sizes) * self.latencies
        return more if more > SURE * error and longer > LEAST_SHARE * self.spent.mean(self.exchange) else None

    def _links(self, service: float | None) -> tuple[float, float, float | None]:
        """Latency, bandwidth and time under the lock, as far as messages of different sizes tell them apart.

        The latency is the first guess.
        """
        if not self.latencies:
            return 0.0, math.inf, service
        spent = self.spent
        if not self.is_collective and spent.one_clock:
            ways, seconds = self._ways()
            known = 0.0 if service is None and np.linalg.matrix_rank(ways) < 3 else service
            columns = ways if known is None else ways[:, :2]
            if np.linalg.matrix_rank(columns) == columns.shape[1] and np.ptp(ways[:, 1]) > DIFFERENT * ways[:, 1].max():
                latency, slope, *held = np.linalg.lstsq(columns, seconds - ways[:, 2] * (known or 0.0))[0].tolist()
                if slope > 0 and latency >= 0:
                    return latency, 1 / slope, max(0.0, held[0]) if held else service
        return max(0.0, (spent.mean(self.exchange) - (service or 0.0)) / self.latencies), math.inf, service

    def _ways(self) -> tuple[np.ndarray, np.ndarray]:
        """Messages that waited for nothing, and replies, of each kind of event.

        Returns:
            [n, 3], of each: one latency, its bytes, one time under the lock if it is a reply; and its seconds, [n].
        """
        ways, seconds = [], []
        for event in np.unique(self.spent.events):
            mine = self.spent.events == event
            ways += [[1, 0 if event == "pull" else self.sizes[0], 0], [1, 0 if event == "push" else self.sizes[1], 1]]
            seconds += [np.percentile(some[mine], UNDISTURBED) for some in (self.spent.up, self.spent.down)]
        return np.array(ways, float), np.array(seconds)

    def _simulated(self, found: Likeness) -> tuple[Recording, float]:
        """The same run on the machines that were found; and seconds that a step takes there of cores, or waits."""
        machines, workers, first = found.machines(), self.workers, self.scheme.exchange_first
        rounds = rounds_of(self.scheme, self.steps).first(max(LEAST_ROUNDS, MESSAGES // workers))
        message, reply = self.sizes
        there = order(
            self.scheme, machines, workers=workers, rounds=rounds, seed=0, message_bytes=message, reply_bytes=reply,
            ps=self.ps,
        )  # fmt: skip
        spent = RoundTimes.of(there.rounds, rounds, first)
        durations = Durations(machines, rounds, workers, 0, first)
        alone = [durations.until_message(*row) for row in spent.rows[:, [WORKER, NUMBER]].tolist()]
        return replace(self, spent=spent), spent.mean((spent.compute - np.array(alone) / 1e9) / spent.steps)

    def _sigma(self, latency: float, again: Recording) -> float:
        """How latencies vary, so that round trips vary as they do; `again` is the run with constant ones."""
        if self.is_collective or not self.latencies or latency <= 0:
            return 0.0
        measured, there = (
            float(np.minimum(some, np.percentile(some, OUTLIERS)).var()) for some in (self.exchange, again.exchange)
        )
        return math.sqrt(math.log1p(max(0.0, measured - there) / 2 / latency**2))
