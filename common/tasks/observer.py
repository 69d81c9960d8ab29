"""Evaluations of the center during the run and of snapshots after it, with the figures of the run at each of them."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract.adapting import adapts
from ..data.models import batched
from ..errors import UserError
from ..files import finite
from ..lazy import keras
from ..record import checkpoint
from ..record.callbacks import STOP
from ..record.event_log import Tally
from ..record.plot import accuracy_of
from ..record_format import EVENTS
from ..reports import Report
from ..server.trace import UNKNOWN
from ..server.traffic import Traffic
from ..waiting import paced
from ..worker.flat_model import FlatModel
from .calls import ObserverCalls
from .interruption import Interruption
from .job import Job
from .plan import Plan
from .recorder import RecordReader
from .results import hand_over, load

FOLLOW_SECONDS = 0.05  # between two polls of the ps, each of which costs the ps about a millisecond

EVALUATION_SHARE = 10  # a pause is ten times as long as an evaluation, so evaluations take a tenth of a core at most

LONGEST_PAUSE_SECONDS = 30.0  # between two evaluations of a long run, even if more would be affordable

ENOUGH = 40  # evaluations during a run that make a curve: without `evaluate_every` no snapshots are evaluated then

LATER_SECONDS, LATER_SHARE = 5.0, 0.1  # CPU time for snapshots without `evaluate_every`, or this share of the run

WARM_UP_BATCHES = 10  # of the test data, before the training

SHORT_SECONDS = 2.0  # for evaluations during a training that is shorter

Snapshot = dict[str, Any]  # see `ObserverCalls.snapshot`

BATCH = 512  # examples

NEWEST = 1 << 62  # beyond all versions


class Figures:
    """Figures of a run, computed from the totals of its events.

    Args:
        plan: rounds of each worker.
        traffic: bytes that events move.
    """

    def __init__(self, plan: Plan, traffic: Traffic):
        self.plan, self.traffic = plan, traffic
        self.expect()

    def expect(self) -> None:
        """Take over the rounds of the plan, which the losses of the run may have changed."""
        plans = self.plan.all_rounds
        self.plans = plans[:1] if all(each is plans[0] for each in plans) else plans

    def learn(self, calls: ObserverCalls) -> None:
        """Take over the losses that the ps has kept, if the rounds follow from them."""
        if adapts(self.plan.scheme):
            self.plan.learn(calls)
            self.expect()

    @property
    def losses(self) -> dict[str, list[float]]:
        """The losses from which the rounds follow, by their name in result.json; nothing if they follow from none."""
        return {"losses": self.plan.losses} if adapts(self.plan.scheme) else {}

    def of(self, tally: Tally, version: int) -> dict[str, Any]:
        """Return the figures of the run up to a version."""
        # A worker that exchanges nothing makes a version with each step, many of them in a round.
        steps = self.steps(tally.rounds) if self.plan.scheme.sync.exchanges else version
        return {
            **({} if self.plan.is_endless else {"examples": self.plan.options.batch_size * steps}),
            **self._bytes(tally),
            "staleness_mean": tally.staleness_mean,
            "staleness_max": tally.staleness_max,
        }

    def steps_made(self, rounds: np.ndarray) -> dict[str, int]:
        """Return the local steps of all workers, given the rounds of each; nothing if scripts may cut rounds short."""
        return {} if self.plan.is_endless else {"steps": self.steps(rounds)}

    def steps(self, rounds: np.ndarray) -> int:
        """Return the local steps of all workers, given the rounds of each, [W]."""
        if len(self.plans) > 1:
            return sum(plan.steps(int(n)) for plan, n in zip(self.plans, rounds, strict=True))
        (plan,) = self.plans  # the same for all workers
        return sum(
            plan.steps(int(n)) * int(times) for n, times in zip(*np.unique(rounds, return_counts=True), strict=True)
        )

    def _kinds(self, rounds: np.ndarray) -> Counter[str]:
        """Return the rounds of each kind that all workers have made, given the rounds of each, [W]."""
        plans = self.plans * (len(rounds) // len(self.plans))
        return sum((plan.kinds(int(n)) for plan, n in zip(plans, rounds, strict=True)), Counter())

    def _bytes(self, tally: Tally) -> dict[str, int]:
        """Return the bytes that workers have pushed and pulled so far."""
        number: Counter[str] = Counter(dict(zip(EVENTS, tally.kinds.tolist(), strict=True)))
        if self.plan.scheme.sends_in_turn:  # then events do not tell the kinds of rounds
            number = Counter(join=number["join"]) + self._kinds(tally.rounds)
        pushed, pulled = self.traffic.moved(number)
        begun = self.plan.workers * self.traffic.center if self.plan.scheme.sync.uses_ps else 0
        return {"bytes_pushed": int(pushed), "bytes_pulled": int(begun + pulled)}


def distance_of(found: Mapping[str, Any], row: Any = ()) -> dict[str, float]:
    """Return the consensus distance by its name, (1/W) Σ |x_i - mean|²; nothing of workers that do not gossip.

    Args:
        found: a snapshot, or all snapshots.
        row: the index of one of all.
    """
    return {"consensus": float(found["consensus"][row])} if "consensus" in found else {}


@dataclass
class Expense:
    """The time of evaluations, which together shall not last longer than the training.

    Attributes:
        seconds: duration of one evaluation: an estimate from before the training, then the shortest during it.
        spent: duration of all evaluations during the training.
        number: number of these.
    """

    seconds: float = 0.0
    spent: float = 0.0
    number: int = 0

    def add(self, seconds: float) -> None:
        """Add an evaluation. The first is slow, and the others may be, if the machine is busy."""
        self.spent, self.number = self.spent + seconds, self.number + 1
        if self.number > 1:
            self.seconds = seconds if self.number == 2 else min(self.seconds, seconds)

    def allows_another(self, trained: float) -> bool:
        """Return True if an evaluation may begin after so many seconds of training: time is left for the last one."""
        return self.spent + 2 * self.seconds <= max(trained, SHORT_SECONDS)

    def left(self, trained: float) -> float:
        """Return how many evaluations there is time for, after so many seconds of training."""
        return max(LATER_SECONDS, trained - self.spent) / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class EvaluationPoint:
    """A center at one time of the run.

    Attributes:
        when: time on the clock `time.monotonic`.
        figures: figures of the run at that time, `version` included.
        snapshot: the vectors to evaluate, `center` [P] and `state` [S]; empty without test data.
    """

    when: float
    figures: dict[str, Any]
    snapshot: Mapping[str, np.ndarray]

    @property
    def version(self) -> int:
        """Number of updates in the center."""
        return self.figures["version"]


def until(is_given_up: Callable[[], bool]) -> Any:
    """Return a Keras callback that ends an evaluation after the first batch at which `is_given_up()`."""

    class Until(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            if is_given_up():
                self.model.stop_evaluating = True

    return Until()


class Evaluation:
    """The evaluation of a model on the test data, by its Keras metrics.

    Args:
        model: the flat model, with the Keras model.
        data: nested arrays, a function that returns a data set of batches, or None for no evaluation.
        accuracy: True if the run needs an accuracy, as it may stop at one.
        is_given_up: returns True if an evaluation is to end at its next batch, without metrics.
    """

    def __init__(
        self, model: FlatModel, data: Any, accuracy: bool = False, is_given_up: Callable[[], bool] | None = None
    ):
        self.model, self.accuracy, self.is_given_up = model, accuracy, is_given_up
        self.batches = data() if callable(data) else None if data is None else batched(data, BATCH)

    def __call__(self, snapshot: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the metrics of a snapshot of the center, or of the model as it is; empty without test data or time.

        Raises:
            UserError: there is no accuracy, and the run needs one.
        """
        if snapshot is not None and self.batches is not None:
            load(self.model, snapshot)
        return self._measured(self.batches)

    def warm_up(self) -> float:
        """Evaluate a batch, as the first time is slow, then some; return the estimated seconds of an evaluation.

        Raises:
            UserError: there is no accuracy, and the run needs one.
        """
        batches: Any = self.batches
        if batches is None or (number := int(batches.cardinality())) <= 0:  # none, or their number is not known
            self._measured(batches)
            return 0.0
        self._measured(batches.take(1))
        began, some = time.monotonic(), min(number, WARM_UP_BATCHES)
        self._measured(batches.take(some))
        return number / some * (time.monotonic() - began)

    def _measured(self, batches: Any) -> dict[str, float]:
        if batches is None or self.is_given_up is None:
            found = {} if batches is None else self.model.measure(batches)
        else:
            found = self.model.measure(batches, [until(self.is_given_up)])
            if self.is_given_up():
                return {}
        if self.accuracy and accuracy_of(found) is None:
            raise UserError("stop_at_accuracy needs test data, and a model with an accuracy: leave it out")
        return found


class Observer:
    """The evaluation of the center in a task of its own, during the run and at its end.

    Args:
        job: the run: its test data, the times of evaluations, and the plan from which figures are computed.
        calls: the evaluator's calls to the ps.
        reader: reader of the record.
        report: receives events.

    Attributes:
        interruption: the interruption by a signal, after which little time is left for evaluations.
        evaluate: the evaluation on the test data.
        metrics: of the newest evaluation: version, examples, bytes, staleness, and Keras' metrics of the test data.
        seen: totals of the record at the newest evaluation.
    """

    def __init__(self, job: Job, calls: ObserverCalls, reader: RecordReader, report: Report):
        self.calls, self.reader, self.report, self.interruption = calls, reader, report, Interruption(job, report)
        self.initial, model = calls.graph.initial, calls.graph.model
        self.every, self.later, self.seconds = job.options.evaluate_every, job.evaluate_later, job.evaluate_seconds
        accuracy = job.options.stop_at_accuracy is not None
        self.evaluate = Evaluation(model, job.test, accuracy, self.interruption.ends_evaluations)
        self.measures = job.test is not None or job.shows_centers
        self.shown = job.run_dir if job.shows_centers else None  # folder in which Keras' callbacks find the centers
        self.figures = Figures(job.plan, job.traffic(model))
        self.one_clock, self.gossips = job.cluster.task is None, job.scheme.sync.gossips
        # Earlier events of a run that is resumed are of another start, whose time ended before this one's.
        resumes = checkpoint.found(job.run_dir) or (not self.one_clock and reader.read(len))
        self.since = time.monotonic() if resumes else -math.inf
        self.tally = Tally(job.cluster.workers)
        self.metrics: dict[str, Any] = {}
        self.reported: dict[str, Any] = {}  # the last reported metrics of a center during the run
        self.multiples = calls.graph.multiples  # the versions of which the ps takes snapshots, or None
        # Updates between two snapshots that Keras' callbacks see: these are evaluated in the run, and nothing else.
        self.shows_every = self.every if self.shown is not None and self.multiples else None
        self.looked = -1  # version at the last search for such snapshots
        self.evaluated: dict[int, float] = {}  # time of the evaluation by version
        self.due, self.expense = 0.0, Expense()  # the first evaluation is due at once
        self.said_rarer = False  # that multiples of `evaluate_every` are left out
        self.summaries = job.summaries()

    def warm_up(self) -> None:
        """Prepare the evaluation, which takes time at first; say if it takes long."""
        self.expense.seconds = seconds = self.evaluate.warm_up()
        if 2 * seconds > LATER_SECONDS:
            text = f"an evaluation of the validation data takes about {seconds:.0f} s: there are as many as fit into"
            self.report(event="limits", message=f"{text} the time of the training; give fewer data for more of them")

    def begin(self) -> None:
        """Note that the training begins."""
        self.began = time.monotonic()
        self.ago = self.began - time.time()  # offset from the clock of the events on this machine to `time.monotonic`

    def observe_if_due(self) -> bool:
        """Evaluate the center if the pause is over, or if `evaluate_every` requests this version."""
        if every := self.shows_every:
            version = self.calls.version()
            return version // every > self.looked // every and self._show_snapshots(version)
        before, is_wanted = time.monotonic(), self._is_wanted()
        if self.later or not (before >= self.due or is_wanted):
            return False
        if not self.expense.allows_another(before - self.began):
            if is_wanted and not self.said_rarer:
                self.said_rarer = True
                text = f"evaluations would last longer than the training, {self.expense.seconds:.1f} s each"
                self.report(event="warning", message=f"{text}: some multiples of evaluate_every are left out")
            return False
        self.observe()
        now = time.monotonic()
        self.expense.add(now - before)
        pause = paced(now - self.began, LONGEST_PAUSE_SECONDS)  # longer pauses in a long run, which has enough points
        self.due = now + max(self.seconds, EVALUATION_SHARE * self.expense.seconds, pause)
        return True

    def _is_wanted(self) -> bool:
        """Return True for the first version at or after a multiple of which the ps takes no snapshot."""
        if self.every is None or self.multiples or not self.measures:
            return False
        newest = max(self.evaluated, default=-1)
        return self.calls.version() // self.every > newest // self.every

    def _show_snapshots(self, newest: int, last: bool = False) -> bool:
        """Evaluate and report, in order, the new snapshots, until a callback stops the run; True if there were any."""
        self.looked, self.tally = newest, self.reader.drain()
        evaluated = self.evaluated | {newest: time.monotonic()}
        points = [point for point in self.snapshots(evaluated) if point.version > max(self.evaluated, default=-1)]
        for point in self._in_time(points, time.monotonic()) if last else points:
            if (self.shown is not None and (self.shown / STOP).exists()) or self.interruption.noticed():
                break
            before = time.monotonic()
            self._evaluate(point, "center")
            self.expense.add(time.monotonic() - before)
            self.evaluated[point.version] = point.when
        return bool(points)

    def observe(self, last: bool = False, keep: Callable[[Snapshot], object] | None = None) -> Snapshot:
        """Read the center and the record, evaluate and report; at the end, evaluate the snapshots first.

        Without test data only the version is read. `keep` gets what was read before it is evaluated.
        """
        snapshot = self.calls.snapshot() if last or self.measures else {"at": self.calls.version()}
        when, self.tally = time.monotonic(), self.reader.drain()
        if keep is not None:
            keep(snapshot)
        if not last and int(snapshot["at"]) == self.reported.get("version"):
            return snapshot  # no update since the last report: each version is reported once
        self.figures.learn(self.calls)
        tally, made_at = self._made(int(snapshot["at"]), when)
        point = self._point(snapshot, self.tally if last else tally, made_at)
        if last and self.shows_every:
            self._show_snapshots(point.version, last=True)
        elif last:
            self._evaluate_snapshots(point)
        self._evaluate(point, "center")
        self.evaluated[point.version] = point.when
        return snapshot

    def _made(self, version: int, now: float) -> tuple[Tally, float]:
        """Return the totals of the events before a version that was seen now, and the time at which it was made.

        Messages of a set that makes the next version do not count yet. Workers that gossip have versions of their own.
        """
        tally, last = self.reader.read(lambda log: log.before(NEWEST if self.gossips else version))
        made_at = self._time_of(last, now if version else self.began)
        return self.tally if self.gossips else tally, min(now, made_at)

    def _time_of(self, microseconds: int, otherwise: float) -> float:
        """Return the time of an event here; `otherwise` if it is not known, or of another start."""
        when = microseconds / 1e6 + (self.ago if self.one_clock else self.reader.ago)
        return when if microseconds != UNKNOWN and when >= self.since else otherwise

    def _point(self, snapshot: Snapshot, tally: Tally, when: float) -> EvaluationPoint:
        version = int(snapshot["at"])
        figures = {"version": version, **self.figures.of(tally, version), **distance_of(snapshot)}
        if "center" not in snapshot:
            return EvaluationPoint(when, figures, {})
        center = snapshot.get("average", snapshot["center"])
        return EvaluationPoint(when, figures, {"center": center, "state": snapshot["state"]})

    def _evaluate(self, point: EvaluationPoint, event: str) -> None:
        """Evaluate a center, and report it, unless the last report has the same version and metrics."""
        measured = self.evaluate(point.snapshot)
        if point.version == self.reported.get("version") and finite(measured).items() <= finite(self.reported).items():
            self.metrics = self.reported | point.figures  # the evaluation of the same center may have been given up
            return
        self.metrics = point.figures | measured
        if event == "center":
            self.reported = self.metrics
        values = {"event": event, "when": point.when, **self.metrics}
        shown = self.shown if event == "center" else None
        hand_over(shown, point.snapshot, self.report, self.interruption.noticed, **values)
        if self.summaries:
            self.summaries.write(self.metrics)

    def _evaluate_snapshots(self, end: EvaluationPoint) -> None:
        """Evaluate all snapshots; without `evaluate_every`, an evenly spaced choice of them that takes little time."""
        evaluated = self.evaluated | {end.version: end.when}
        enough = self.every is None and len(self.evaluated) >= ENOUGH
        points = [] if enough or not self.measures else self.snapshots(evaluated)
        points = [point for point in points if point.version not in evaluated]
        if self.later:
            points = [self._origin(), *(point for point in points if point.version)]
        elif self.interruption.noticed():
            points = []
        elif points and self.every is None:
            affordable = self._affordable(end)
            points = points[:: -(-len(points) // affordable)] if affordable else []
        else:
            points = self._in_time(points, time.monotonic())
        for point in points:
            if self.interruption.noticed():
                break
            self._evaluate(point, "passed")

    def _in_time(self, points: list[EvaluationPoint], ended: float) -> list[EvaluationPoint]:
        """Return the snapshots, or an evenly spaced choice of them if all would take longer than the training."""
        trained = ended - self.began
        every = -(-len(points) // max(1, int(self.expense.left(trained))))
        if every <= 1:
            return points
        rest = f"all would take {len(points) * self.expense.seconds:.0f} s, longer than the training ({trained:.0f} s)"
        some = points[::every]
        text = f"{len(some)} of {len(points)} snapshots of the center are evaluated: {rest}"
        self.report(event="warning", message=text)
        return some

    def snapshots(self, evaluated: Mapping[int, float]) -> list[EvaluationPoint]:
        """Return the snapshots that the ps has taken.

        Args:
            evaluated: time of the evaluation by version, the last one included: a snapshot lies between two.
        """
        if self.multiples is None:
            return []
        every, asked_at, arrays = self.multiples.every, time.monotonic(), self.calls.snapshots()
        ago = asked_at - float(arrays["now"])  # offset from the clock of the ps to the clock of this task
        rows = [i for i, passed in enumerate(arrays["passed"]) if passed > 0 and i * every <= max(evaluated)]
        versions = [i * every for i in rows]
        tallies = self.reader.read(lambda log: log.tallies(versions))
        points = []
        for row, version, (tally, last) in zip(rows, versions, tallies, strict=True):
            when = self._time_of(last, arrays["passed"][row] + ago)
            when = max([when, *(when for other, when in evaluated.items() if other < version)])
            when = min([when, *(when for other, when in evaluated.items() if other > version)])
            figures = {"version": version, **self.figures.of(tally, version), **distance_of(arrays, row)}
            vectors = {"center": arrays["centers"][row], "state": arrays["states"][row]}
            points.append(EvaluationPoint(float(when), figures, vectors))
        return points

    def _origin(self) -> EvaluationPoint:
        """Return the parameters that the workers began with."""
        center, state = self.initial
        figures = {"version": 0, "examples": 0, "bytes_pushed": 0, "bytes_pulled": 0}
        return EvaluationPoint(self.began, figures, {"center": center, "state": state})

    def _affordable(self, end: EvaluationPoint) -> int:
        """Return how many snapshots may be evaluated without `evaluate_every`."""
        began = time.process_time()  # CPU time: on a busy machine the elapsed time may be many times as long
        self.evaluate(end.snapshot)
        allowed = max(LATER_SECONDS, LATER_SHARE * (end.when - self.began))
        return int(allowed / (time.process_time() - began))
