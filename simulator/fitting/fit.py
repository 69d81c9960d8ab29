"""`fit`: a platform fitted to the machines of a recorded run.

The recorded times contain the workers' waits for the lock and for cores, which are no properties of the machines. So
the recorded run itself is simulated on the fitted platform, and the platform is corrected until the simulated rounds
are as long as the recorded ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.filesize import decimal

from ...common.arguments import nearest, with_tuples
from ...common.cluster.distributions import RecordedSteps
from ...common.cluster.platform import Machines, Platform
from ...common.contract.adapting import adapts
from ...common.contract.checks import rounds_differ
from ...common.contract.rounding import rounded
from ...common.contract.schedules import schedule_of
from ...common.contract.scheme import Scheme
from ...common.errors import UserError
from ...common.files import replacing
from ...common.messages.cut import even_sizes
from ...common.record.cpu import CPU
from ...common.record.round_log import NUMBER, WORKER
from ...common.record_format import MOST_STEPS, read_arrays, read_config, read_result, whole, without_script
from ...common.server.traffic import Traffic
from ..virtual_time.durations import WorkerPlan
from ..virtual_time.schedule import EventLoop
from .calibration import OUTLIERS, RoundTimes, core_seconds, read_rounds, rounds_of

CORRECTIONS = 3  # number of corrections with constant latencies, and again with their fitted variation

CROWDED_CORRECTIONS = 8  # the same if messages wait for the card of the ps, which is hard to separate from latency

MOST_CORRECTED = 2.0  # the largest factor of one correction of the card

LEAST_SHARE = 0.02  # the smallest fraction of a step that is not spent on shared cores

LEAST_ROUNDS, MESSAGES = 30, 2000  # simulated rounds: the fewest of each worker, and the number of all together

DIFFERENT = 0.1  # relative difference of message sizes that separates bandwidth from latency

SURE = 4  # standard errors by which more messages in transit must take longer

UNDISTURBED = 10  # percentile of transit times that counts as free of waiting

ALIKE = 0.1  # numbers of parameters that differ by no more have messages of the same size

SPREAD = 10, 50, 90  # percentiles of step times to show

UNCORRELATED = 0.1  # correlation of rounds that counts as none

BLOCK = 10  # length of a block, in multiples of the lag at which the correlation vanishes

LEAST_BLOCKS = 4  # the fewest blocks of the recorded rounds

STEPS, PLATFORM = "steps.npy", "machines.toml"


@dataclass(frozen=True)
class FittedMachines:
    """Machines fitted to a run. Times are in seconds.

    Attributes:
        run: the recorded run.
        steps: mean time of a step in each round in order, [W, n], without its time on shared cores.
        period: steps of a round.
        latency: mean latency of a message, one way; `latency_sigma` is its variation.
        rate: bytes per second of a worker's link.
        card: bytes per second of the network card of each ps task; infinite if messages did not queue for it.
        service: time of a message under the lock of the ps; None if unknown.
    """

    run: Recording
    steps: np.ndarray
    period: int
    latency: float = 0.0
    latency_sigma: float = 0.0
    rate: float = math.inf
    service: float | None = None
    card: float = math.inf

    @property
    def step(self) -> float:
        """Mean time of a step, without its time on shared cores."""
        return float(self.steps.mean())

    @property
    def block(self) -> int:
        """Number of consecutive rounds that are drawn together, which keeps their correlation."""
        return block_of(self.steps)

    @property
    def _times(self) -> np.ndarray:
        """Times of single steps, scaled to a worker of mean speed; equal within a round, [W, n]."""
        return np.repeat(self.steps / self._factors[:, None], self.period, 1)

    @property
    def _factors(self) -> np.ndarray:
        """Mean step time of each worker as a multiple of the mean of all, [W]."""
        return self.steps.mean(1) / self.step

    def with_parameters(self, number: int) -> FittedMachines:
        """Return the same machines for a model of that size.

        If the run had messages of one size and no queue at a card, the share of the bytes in the latency is unknown:
        the whole latency then counts as time of the bytes.
        """
        if not self.hides_bytes(number) or not math.isinf(self.card):
            return self
        sync, workers = self.run.scheme.sync, self.run.workers
        copies = 1 if sync.uses_ps else sync.traffic(workers)[0] if sync.gossips else (workers - 1) / workers
        return replace(self, latency=0.0, latency_sigma=0.0, rate=copies * self.run.sizes[0] / self.latency)

    def hides_bytes(self, number: int) -> bool:
        """Return True if the latency includes the time of bytes, and a model of that size has more or fewer of them."""
        alike = abs(number - self.run.parameters) <= ALIKE * self.run.parameters
        return self.run.scheme.sync.exchanges and math.isinf(self.rate) and self.latency > 0 and not alike

    def machines(self) -> Machines:
        """Return the machines in numbers."""
        machines = Machines(Platform(**self._fields()))
        machines.model = RecordedSteps(self._times / self.step, self.block * self.period)
        return machines

    def _fields(self) -> dict[str, Any]:
        """Return the fields of `Platform`, except the model of steps."""
        fields: dict[str, Any] = {
            "step_ms": round(1e3 * self.step, 6),
            "step_factors": ",".join(f"{factor:.6g}" for factor in self._factors),
            "latency": f"{1e9 * self.latency:.0f}ns",
            "latency_sigma": round(self.latency_sigma, 6),
            "service": f"{1e9 * (self.service or 0.0):.0f}ns",
        }
        if not math.isinf(self.rate):
            fields |= dict.fromkeys(("uplink", "downlink"), f"{self.rate:.0f}B")
        if not math.isinf(self.card):
            fields["ps_link"] = f"{self.card:.0f}B"
        if self.run.cores is not None:
            fields |= {"cores": self.run.cores, "core_ms": round(1e3 * self.run.core, 6)}
        return fields

    def write(self, folder: Path) -> Path:
        """Write the platform and its step times to a folder; return the path for `--network`.

        Raises:
            CannotWrite: the disk is full, or the folder is not writable.
        """
        times = folder.resolve() / STEPS
        with replacing(times) as file:
            np.save(file, self._times)
        fields = self._fields() | {"compute": f"recorded:path={times},block={self.block * self.period}"}
        with replacing(folder / PLATFORM) as file:
            # Strings and numbers of JSON are also those of TOML.
            lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in fields.items())
            file.write("".join(lines).encode())
        return folder / PLATFORM

    def in_words(self) -> list[str]:
        """Describe the fit in a few lines."""
        low, middle, high = np.percentile(1e3 * self.steps, SPREAD)
        run, sync, speeds = self.run, self.run.scheme.sync, self._factors
        lines = [
            f"fitted to {len(run.times.rows):,} rounds of {run.scheme.name}: {counted(run.workers, 'worker')}, "
            f"{counted(self.period, 'step')} a round",
            f"a step          {middle:.3g} ms in the median, 10 to 90 % {low:.3g} to {high:.3g}, workers "
            f"{speeds.min():.2f} to {speeds.max():.2f} of the mean; drawn in blocks of {counted(self.block, 'round')}",
        ]
        if run.cores is not None:
            lines.append(f"cores           {run.cores}, shared by all; a step takes {1e3 * run.core:.3g} ms of one")
        if sync.exchanges:
            rate = f"and {8e-6 * self.rate:.3g} Mbit/s"
            if math.isinf(self.rate):
                size = decimal(int(run.sizes[0]))
                rate = f"its {size} included: with one size their share is unknown (--latency, --uplink, --downlink)"
            spread = f", sigma {self.latency_sigma:.2g}" if self.latency_sigma else ""
            lines.append(f"a message       {1e3 * self.latency:.3g} ms each way{spread}, {rate}")
        if sync.uses_ps:
            held = "too few messages waited to measure it: none is assumed (--service)"
            if self.service is not None:
                held = f"{1e3 * self.service:.3g} ms a message"
            lines.append(f"under the lock  {held}")
        card = "no message waited for it: taken as unlimited, so more workers may look too fast (--ps-link)"
        if not math.isinf(self.card):
            card = f"{8e-6 * self.card:.3g} Mbit/s, shared by all messages: more of them take longer"
        lines.append(f"card of the ps  {card}")
        return [*lines, *self._unknown()]

    def _unknown(self) -> list[str]:
        """Describe the quantities that the record does not determine, and the remedies."""
        longest = 1e3 * float(self.steps.max())
        lines = [
            f"rare steps longer than the longest recorded one, {longest:.3g} ms: they would make more workers wait"
        ]
        if self.period > 1:
            lines.append(f"the variation of steps within a round of {self.period}: take a run of period 1")
        if not self.run.scheme.sync.uses_ps:
            lines.append("card and lock of a ps, as the run had none: taken as ideal (--ps-link, --service)")
        return [f"not known        {line}" for line in lines]


def counted(number: int, unit: str) -> str:
    """Format a count, as in `1 step`, `2 steps`."""
    return f"{number} {unit}{'s' * (number != 1)}"


def block_of(values: np.ndarray) -> int:
    """Return the number of consecutive values, [W, n], that a block needs to keep most of their correlation."""
    number = values.shape[1]
    deviations = values - values.mean(1, keepdims=True)
    variance = (deviations**2).sum()
    lag = 1
    while lag < number // LEAST_BLOCKS and variance > 0:
        if (deviations[:, lag:] * deviations[:, :-lag]).sum() < UNCORRELATED * variance:
            break
        lag += 1
    return max(1, min(1 if lag == 1 else BLOCK * lag, number // LEAST_BLOCKS))


def fit(run_dir: Path, schemes: Mapping[str, type[Scheme]]) -> FittedMachines:
    """Fit machines to a recorded run, real or simulated.

    Args:
        run_dir: the directory of a run that has ended.
        schemes: the catalogue, by name.

    Raises:
        UserError: the run is not enough for a fit; the message has the reason.
    """
    return Recording.read(run_dir, schemes).fitted()


def scheme_of(config: Mapping[str, Any], schemes: Mapping[str, type[Scheme]]) -> Scheme:
    """Build the algorithm of a run; schedules of rates that have no name, and take no time, are left out."""
    name, kind = config["algorithm"], schemes.get(config["algorithm"])
    if kind is None:
        raise UserError(f"the run is of {name}, which is not known here: --import its file. {nearest(name, schemes)}")
    given = with_tuples(without_script(config["hyperparameters"]))
    rates = {key: schedule_of(value) for key, value in given.items() if key.endswith("rate") and isinstance(value, str)}
    given = {key: rates.get(key, value) for key, value in given.items() if rates.get(key, value) is not None}
    return rounded(kind(**given), config["codec"])


def steps_of(run_dir: Path, config: Mapping[str, Any]) -> int:
    """Return the steps of a worker; those of a script, which decides when to leave, are counted at its end."""
    if "steps_per_worker" in config:
        return config["steps_per_worker"]
    return max(1, read_result(run_dir, {"steps": whole(0, MOST_STEPS)})["steps"] // config["workers"])


@dataclass(frozen=True)
class Recording:
    """A recorded run.

    Attributes:
        scheme, workers, ps: the algorithm and the numbers of tasks; `steps` of each worker; `parameters` of the model.
        sizes: bytes of a message, and of a reply.
        times: the parts of its rounds.
        cores: number of cores of its machine, or None if their use is not recorded.
        core: CPU seconds of a step.
    """

    scheme: Scheme
    workers: int
    ps: int
    steps: int
    sizes: tuple[float, float]
    times: RoundTimes
    cores: int | None
    core: float
    parameters: int
    seed: int

    @classmethod
    def read(cls, run_dir: Path, schemes: Mapping[str, type[Scheme]]) -> Recording:
        """Read the run of a folder."""
        config = read_config(run_dir)
        scheme, workers, steps = scheme_of(config, schemes), config["workers"], steps_of(run_dir, config)
        targets = *config.get("earlier_step_targets", ()), steps
        rows, rounds = read_rounds(run_dir, workers), rounds_of(scheme, targets, seed := config.get("seed", 0))
        apart = scheme.overlap or scheme.sync.buckets > 1 or scheme.takes_means or scheme.sync.in_pairs
        if apart or adapts(scheme) or rounds_differ(scheme, workers, steps):
            needed = (
                "rounds that are the same for all workers and known before the run, without pairs, steps after the "
                "message, buckets or means"
            )
            raise UserError(f"a fit needs {needed}. Received: a run of {scheme.name}")
        times = RoundTimes.of(rows, rounds)
        times.need(workers)
        arrays, ps = read_arrays(run_dir, "center.npz"), max(1, config["ps"])
        traffic = Traffic(
            scheme, scheme.codecs()[0], workers, even_sizes(len(arrays["center"]), ps), len(arrays["state"])
        )
        cpu = read_result(run_dir, CPU).get("cpu") if (run_dir / "result.json").is_file() else None
        core = core_seconds(cpu, rows, rounds)
        cores = cpu["cores"] if cpu and core else None
        sizes = traffic.message, traffic.reply
        return cls(scheme, workers, ps, steps, sizes, times, cores, core or 0.0, len(arrays["center"]), seed)

    @property
    def latencies(self) -> int:
        """Number of latencies in a round."""
        if not self.scheme.sync.exchanges or (self.workers == 1 and self.scheme.sync.is_collective):
            return 0
        return 1 if self.scheme.sync.gossips else 2

    @property
    def compute(self) -> np.ndarray:
        """Seconds of a step in each round; without a ps, the time between two rounds is part of it."""
        times = self.times
        if self.scheme.sync.uses_ps:
            return times.compute / times.steps
        alone = 0.0 if self.latencies else times.up + times.down
        return (times.compute + times.between + alone) / times.steps

    @property
    def exchange(self) -> np.ndarray:
        """Seconds that message and reply of each round were in transit, waited for the lock, and held it."""
        times = self.times
        if not self.latencies:
            return np.zeros(len(times.up))
        return times.down if self.scheme.sync.is_collective else times.up + times.down + times.between

    def fitted(self) -> FittedMachines:
        """Return machines on which the rounds of a simulated run are like the recorded ones."""
        times = self.times
        steps, period = times.by_worker(self.compute), max(1, round(float(np.median(times.steps))))
        steps = np.maximum(steps - self.core, LEAST_SHARE * steps)
        lock, guesses = times.service() if self.scheme.sync.uses_ps and self.workers > 1 else None, []
        for service in (None,) if lock is None else (None, lock):
            latency, rate, held = self._links(service)
            guess = FittedMachines(self, steps, period, latency, rate=rate, service=held)
            guesses.append(self._corrected(guess, CORRECTIONS))
        found, simulated = min(guesses, key=lambda guess: self._difference(guess[1]))
        queue_at = ""
        if queue := self._queue(simulated.times.crowd(self.sizes)[0]):
            guesses = {"card": replace(found, card=1 / queue / self.ps)}
            if not found.service:
                guesses["service"] = replace(found, service=queue * self.sizes[0])
            tried = {name: self._corrected(guess, CROWDED_CORRECTIONS, name) for name, guess in guesses.items()}
            queue_at = min(tried, key=lambda name: self._difference(tried[name][1]))
            found, simulated = tried[queue_at]
        found = replace(found, latency_sigma=self._sigma(found.latency, simulated))
        return self._corrected(found, CROWDED_CORRECTIONS if queue_at else CORRECTIONS, queue_at)[0]

    def _difference(self, simulated: Recording) -> float:
        """Return by how many seconds the messages of a simulated run differ, and their delays by other messages.

        Messages and replies are compared separately, because replies do not wait for the lock.
        """
        real, times, (message, reply) = self.times, simulated.times, self.sizes
        seconds = abs(times.mean(times.up) - real.mean(real.up))
        for size, sizes in ((message, (message, 0.0)), (reply, (0.0, reply))):
            seconds += size * abs(times.crowd(sizes)[0] - real.crowd(sizes)[0])
        return seconds

    def _corrected(
        self, found: FittedMachines, corrections: int, queue_at: str = ""
    ) -> tuple[FittedMachines, Recording]:
        """Correct machines until their rounds are as long as the recorded ones; return them and the last simulated run.

        Args:
            found: a first guess.
            corrections: number of corrections.
            queue_at: the resource that messages wait for, to be corrected too: card or service; "" for none.
        """
        measured, simulated = self.times.by_worker(self.compute), self
        compute, exchange = float(measured.mean()), self.times.mean(self.exchange)
        for _ in range(corrections):
            simulated, shared = self._simulated(found)
            took = simulated.times.mean(simulated.exchange)
            too_long = took - exchange + found.period * (found.step + shared - compute)
            if queue_at:
                by, card, service = self._speed_up(simulated), found.card, found.service or 0.0
                transit = took - self.latencies * found.latency  # this part of the transit time changes by the factor
                too_long += transit * (1 / by - 1)
                found = replace(found, card=card * by) if queue_at == "card" else replace(found, service=service / by)
            if self.latencies:
                found = replace(found, latency=max(0.0, found.latency - too_long / self.latencies))
            found = replace(found, steps=np.maximum(measured - shared, LEAST_SHARE * measured))
        return found, simulated

    def _speed_up(self, simulated: Recording) -> float:
        """Return the factor on the speed of card or lock, limited by `MOST_CORRECTED`.

        It is the root of the error, because waits react more than in proportion to the speed.
        """
        by = simulated.times.crowd(self.sizes)[0] / self.times.crowd(self.sizes)[0]
        return min(max(math.sqrt(max(by, 0.0)), 1 / MOST_CORRECTED), MOST_CORRECTED)

    def _queue(self, known_delay: float) -> float | None:
        """Return the delay per byte and other message in transit, beyond `known_delay`, in seconds.

        None if the delay is not significant, or a small part of an exchange: then no message waited for others.
        """
        if not self.latencies or self.scheme.sync.is_collective or self.workers == 1 or not self.times.one_clock:
            return None
        slope, error = self.times.crowd(self.sizes)
        more = slope - known_delay
        longer = more * max(self.sizes) * self.latencies
        return more if more > SURE * error and longer > LEAST_SHARE * self.times.mean(self.exchange) else None

    def _links(self, service: float | None) -> tuple[float, float, float | None]:
        """Return first guesses of latency, bandwidth and time under the lock.

        Only messages of different sizes separate them; otherwise all of the time is latency.
        """
        if not self.latencies:
            return 0.0, math.inf, service
        times = self.times
        if not self.scheme.sync.is_collective and times.one_clock:
            rows, seconds = self._transits()
            sizes = rows[:, 1]
            fixed = 0.0 if service is None and np.linalg.matrix_rank(rows) < 3 else service
            columns = rows if fixed is None else rows[:, :2]
            if np.linalg.matrix_rank(columns) == columns.shape[1] and np.ptp(sizes) > DIFFERENT * sizes.max():
                latency, slope, *held = np.linalg.lstsq(columns, seconds - rows[:, 2] * (fixed or 0.0))[0].tolist()
                if slope > 0 and latency >= 0:
                    return latency, 1 / slope, max(0.0, held[0]) if held else service
        return max(0.0, (times.mean(self.exchange) - (service or 0.0)) / self.latencies), math.inf, service

    def _transits(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the transit times of undisturbed messages and replies of each kind of event, for a linear regression.

        Returns:
            rows [n, 3]: number of latencies, bytes, number of times under the lock (1 for replies); and seconds, [n].
        """
        rows, seconds = [], []
        for event in np.unique(self.times.events):
            of_kind = self.times.events == event
            rows += [[1, 0 if event == "pull" else self.sizes[0], 0], [1, 0 if event == "push" else self.sizes[1], 1]]
            seconds += [np.percentile(some[of_kind], UNDISTURBED) for some in (self.times.up, self.times.down)]
        return np.array(rows, float), np.array(seconds)

    def _simulated(self, found: FittedMachines) -> tuple[Recording, float]:
        """Simulate the same run on these machines; return it, and the seconds of a step on shared cores with waits."""
        machines, workers = found.machines(), self.workers
        rounds = rounds_of(self.scheme, [self.steps], self.seed).first(max(LEAST_ROUNDS, MESSAGES // workers))
        options = {"message_bytes": self.sizes[0], "reply_bytes": self.sizes[1], "ps": self.ps}
        schedule = EventLoop(self.scheme, machines, workers=workers, rounds=rounds, seed=0, **options).run()
        times = RoundTimes.of(schedule.rounds, rounds)
        plan = WorkerPlan(machines, rounds, workers, 0)
        alone = [plan.total(*row) for row in times.rows[:, [WORKER, NUMBER]].tolist()]
        return replace(self, times=times), times.mean((times.compute - np.array(alone) / 1e9) / times.steps)

    def _sigma(self, latency: float, simulated: Recording) -> float:
        """Fit the variation of latencies to that of exchanges; the simulated run has constant latencies."""
        if self.scheme.sync.is_collective or not self.latencies or latency <= 0:
            return 0.0
        clipped = (np.minimum(some, np.percentile(some, OUTLIERS)) for some in (self.exchange, simulated.exchange))
        measured, constant = (float(times.var()) for times in clipped)
        return math.sqrt(math.log1p(max(0.0, measured - constant) / 2 / latency**2))
