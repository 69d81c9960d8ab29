"""A scheme on machines that are described, in virtual time: what it took to come to a loss.

    found = simulated(AGN, [{"learning_rate": rate} for rate in (0.1, 0.2)], workers=64, gradients=8192, seed=1,
                      platform=Platform(network="one-rack", step_factors="0.58,0.75,1.51,3.33"))
    found[0].to(0.65)       # Reached(examples=..., rounds=..., bytes=..., seconds=...), or None

The order and the arithmetic are those of `--backend simulation` (see docs/simulation.md); the machine that this runs on
is in no result. Runs with the same seed meet the same initial weights, batches and durations. There are always
enough examples that none is seen twice.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithms import SCHEMES, Scheme
from ..common.cluster.cluster import Cluster
from ..common.cluster.platform import Machines, Platform
from ..common.data.models import ModelRecipe
from ..common.data.named import load
from ..common.data.recipes import Dataset
from ..common.errors import Diverged
from ..common.record.event_log import KIND, MICROSECONDS, WORKER, Tally
from ..common.record_format import RECORD
from ..common.server.trace import ends_round
from ..common.tasks.job import CHIEF, Job, make_job
from ..common.tasks.observer import Figures
from ..common.tasks.options import RunOptions
from ..simulator.virtual_time.schedule import EventLoop, EventSchedule
from .copies import Copies, shares_runs, with_values
from .crossing import crossing

EVALUATIONS = 80  # most evaluations of the center in a run
SLACK = 1.1  # factor on the steps that the fastest worker may need
TEST_OF = 4096  # number of examples of the data set from which the test data come


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        dataset: `{examples}` in it becomes as many as are needed.
        model: with parameters alone; its loss is a cross entropy.
        batch_size: examples of a gradient.
        skew: unequal labels of the workers, as in `--skew`; None for none.
    """

    dataset: str = "synthetic:examples={examples},features=20,classes=8,noise=1.5,test=4096"
    model: str = "mlp:hidden=32"
    batch_size: int = 16
    skew: str | None = None


SYNTHETIC = Task()

UNEVEN = Platform(network="one-rack", step_factors="0.58,0.75,1.51,3.33")
"""Machines in a rack, four speeds in turn: a step takes 5.8 to 33 ms, 15.4 in the mean."""


@dataclass(frozen=True)
class Reached:
    """What it took, of all workers together.

    Attributes:
        examples: that were learned from.
        rounds: messages of a worker, in the mean.
        bytes: that were sent, both ways.
        seconds: of virtual time.
    """

    examples: float
    rounds: float
    bytes: float
    seconds: float


@dataclass
class LearningCurve:
    """How a run went: what was seen of it, look by look.

    Attributes:
        examples, rounds, bytes, seconds: as in `Reached`, from 0 on.
        loss, accuracy: on the test data; NaN from where the run has diverged.
        staleness: of the messages, in the mean.
        updates: of the center.
    """

    examples: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    staleness: float = 0.0
    updates: int = 0

    def to(self, target: float) -> Reached | None:
        """Return the expense to a loss, interpolated between two evaluations; None if that was not reached."""
        point = crossing(self.loss, target)
        return point and Reached(*map(point.of, (self.examples, self.rounds, self.bytes, self.seconds)))

    @property
    def final(self) -> float:
        """Return the last loss; infinite if the run has diverged."""
        return self.loss[-1] if self.loss and math.isfinite(self.loss[-1]) else math.inf

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON: those that are not finite are None."""
        return asdict(self) | {
            k: [v if math.isfinite(v) else None for v in getattr(self, k)] for k in ("loss", "accuracy")
        }


def simulated(
    algorithm: str | type[Scheme],
    settings: Sequence[Mapping[str, Any]] = ({},),
    *,
    workers: int = 4,
    seed: int = 0,
    gradients: int = 4096,
    platform: Platform = UNEVEN,
    task: Task = SYNTHETIC,
    until: float | None = None,
    patience: float = 1.5,
    evaluations: int = EVALUATIONS,
) -> list[LearningCurve]:
    """Train in virtual time, once with each of some settings.

    Args:
        algorithm: or its name.
        settings: hyperparameters. Those in which settings differ must be numbers; these runs share their operations.
        workers: W; one, if one is all that the algorithm has.
        seed: of initial weights, batches and durations.
        gradients: batches of `task.batch_size` examples that all workers together learn from.
        platform: the machines.
        task: what is trained.
        until: a loss; the runs end early when one of them has been there for a while, or all have.
        patience: how long that is: this times the virtual time that the first needed.
        evaluations: of the center, at most, evenly in virtual time.

    Returns:
        a curve for each of the settings, in their order.

    Raises:
        UserError: of settings, machines or workers that cannot be.
    """
    kind = SCHEMES[algorithm] if isinstance(algorithm, str) else algorithm
    schemes = [kind(**dict(setting)) for setting in settings]
    arguments = (workers, seed, gradients, platform, task)
    groups = [schemes] if all(map(shares_runs, schemes)) else [[scheme] for scheme in schemes]
    found: list[LearningCurve] = []
    for group in groups:
        try:
            found += _Run(group, *arguments).follow(until, patience, evaluations)
        except Diverged:  # each for itself: the others may be well
            found += [_Run([s], *arguments).follow(until, patience, evaluations, fails=True)[0] for s in group]
    return found


def needed_steps(scheme: Scheme, workers: int, gradients: int, platform: Platform, seed: int) -> int:
    """Return the local steps that each worker may have to do until all together have done enough.

    In asynchronous algorithms the fastest workers do more than their share.
    """
    devices, sync = scheme.default_devices_per_worker, scheme.sync
    number = 1 if not sync.exchanges else workers
    even = math.ceil(gradients / (number * devices))
    if number > 1 and sync.set_size(workers) is None and sync.lead is None:
        speeds = 1 / Machines(platform).step_factors(workers, seed)
        even = math.ceil(min(number, SLACK * number * speeds.max() / speeds.sum()) * even)
    return math.ceil(even / scheme.period) * scheme.period


@lru_cache(maxsize=3)
def _data(dataset: str) -> Dataset:
    return load(dataset)


class _Run:
    """A run with some settings at once: its order, its arithmetic, what is seen of it."""

    def __init__(
        self, schemes: Sequence[Scheme], workers: int, seed: int, gradients: int, platform: Platform, task: Task
    ):
        from ..simulator.execution.arithmetic import Arithmetic

        first = schemes[0]
        workers = workers if first.sync.exchanges else 1
        devices = first.default_devices_per_worker
        steps = needed_steps(first, workers, gradients, platform, seed)
        examples = steps * workers * task.batch_size * devices
        examples = 2 ** math.ceil(math.log2(examples))  # few different data sets: they are kept
        data = _data(task.dataset.format(examples=examples))
        cluster = Cluster.local(workers, backend="simulation", platform=platform)
        recipe = ModelRecipe.named(task.model, data.train[0].shape[1:], data.classes, seed)
        with tempfile.TemporaryDirectory(prefix="distsgd-benchmark-") as folder:
            batch_size = task.batch_size * devices
            options = RunOptions(steps=steps, batch_size=batch_size, seed=seed, run_dir=Path(folder), skew=task.skew)
            self.job = make_job(first, recipe, data.train, None, cluster, options)
        model = recipe.flat()
        self.figures = Figures(self.job.plan, self.job.traffic(model))
        self.schedule = self._order(self.job, platform)
        self.events = np.stack([self.schedule.trace[name] for name in RECORD], 1)
        self.end = self._enough(gradients // devices)
        self.job.scheme = with_values(schemes, model.size)
        self.model = Copies(model, len(schemes))
        self.test = _data(task.dataset.format(examples=TEST_OF)).test  # the same, however many examples there are
        self.arithmetic = Arithmetic(self.job, self.schedule.trace, self.schedule.actions, self.model)  # pyright: ignore[reportArgumentType]

    def _order(self, job: Job, platform: Platform) -> EventSchedule:
        traffic = self.figures.traffic
        return EventLoop(
            job.scheme,
            platform,
            workers=job.cluster.workers,
            rounds=job.plan.rounds(CHIEF),
            seed=job.options.seed,
            message_bytes=traffic.message,
            reply_bytes=traffic.codec.reads[1] if traffic.codec.reads else traffic.reply,
            apart=traffic.apart,
        ).run()

    def _enough(self, steps: int) -> int:
        """Return how many events it takes until all workers together have done so many local steps."""
        done, lengths = np.zeros(self.job.cluster.workers, np.int64), [n for n, _ in self.job.plan.rounds(CHIEF)]
        total = 0
        ends = ends_round(self.events[:, KIND]).tolist()
        for i, worker in enumerate(self.events[:, WORKER].tolist()):
            if total >= steps:
                return i
            if ends[i] and done[worker] < len(lengths):
                total += lengths[done[worker]]
                done[worker] += 1
        return len(self.events)

    def follow(self, until: float | None, patience: float, number: int, fails: bool = False) -> list[LearningCurve]:
        """Evaluate at all points; with `fails`, a run that diverges just ends."""
        curves = [LearningCurve() for _ in range(self.model.number)]
        tally = Tally(self.job.cluster.workers)
        self._evaluate(curves, tally, 0.0)
        try:
            for events, seconds in self._points(number):
                self.arithmetic.run(events)
                tally.add(self.events[tally.events : events])
                self._evaluate(curves, tally, seconds)
                if until is not None and _settled(curves, until, patience):
                    break
        except Diverged:
            if not fails:
                raise
            for curve in curves:
                curve.loss[-1] = curve.accuracy[-1] = math.nan
        finally:
            self.arithmetic.close()
        return curves

    def _points(self, number: int) -> Iterator[tuple[int, float]]:
        from ..simulator.execution.virtual_run import evaluation_points

        events = self.events[: self.end]
        seconds = self.schedule.seconds if self.end == len(self.events) else float(events[-1, MICROSECONDS]) / 1e6
        return evaluation_points(events, seconds, number)

    def _evaluate(self, curves: Sequence[LearningCurve], tally: Tally, seconds: float) -> None:
        snapshot = self.arithmetic.snapshot()
        figures = self.figures.of(tally, int(snapshot["at"]))
        rounds = float(tally.rounds.sum() - tally.dropped) / len(tally.rounds)
        losses, accuracies = self.model.measure(snapshot["center"], self.test)
        for i, curve in enumerate(curves):
            curve.examples.append(float(figures["examples"]))
            curve.rounds.append(rounds)
            curve.bytes.append(float(figures["bytes_pushed"] + figures["bytes_pulled"]))
            curve.seconds.append(round(seconds, 6))
            curve.loss.append(round(float(losses[i]), 5))
            curve.accuracy.append(round(float(accuracies[i]), 5))
            curve.staleness, curve.updates = tally.staleness_mean, int(snapshot["at"])


def _settled(curves: Sequence[LearningCurve], until: float, patience: float) -> bool:
    """Return True if the first run that reached the target has stayed there for a while, or all have reached it."""
    times = [reached.seconds for curve in curves if (reached := curve.to(until))]
    return bool(times) and (len(times) == len(curves) or curves[0].seconds[-1] >= patience * min(times))
