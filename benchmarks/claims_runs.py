"""Runs in virtual time without TensorFlow: order from the simulator, arithmetic from the papers' equations.

`simulator/virtual_time` orders the events, as for any simulated run; `common/replay` executes the equations in NumPy in
that order, as it does to replay a run. The replays prove that the modules of the catalogue do the same. A run of a
thousand gradients takes a tenth of a second here, which hundreds of runs for tuning need.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Any

import numpy as np

from ..algorithms import SCHEMES, Scheme
from ..common.cluster.fingerprint import source_digest
from ..common.cluster.platform import Platform
from ..common.contract.schedules import ruled
from ..common.record_format import EVENTS
from ..common.replay.adapters import TRANSCRIPTIONS
from ..common.replay.recorded import Hyperparameters, RecordedRun, Transcription
from ..common.replay.reference.federated_rules import by_turns
from ..common.replay.reference.gradients import Gradient
from ..common.server.traffic import Traffic
from ..simulator.virtual_time.schedule import EventLoop, EventSchedule
from .claims_tasks import task
from .claims_variants import VARIANTS

DECISIVE = (  # sources on which a run depends
    "algorithms", "common/contract", "common/messages", "common/sync", "common/replay/reference",
    "common/replay/recorded.py",
    "common/replay/adapters.py", "common/replay/with_codec.py", "common/cluster/distributions.py",
    "common/cluster/platform.py", "simulator/virtual_time", "common/data/text.py",
    "common/data/models.py", "benchmarks/claims_tasks.py", "benchmarks/claims_runs.py",
    "benchmarks/claims_variants.py",
)  # fmt: skip

POINTS = 50  # at which the center is measured, evenly over a run

HOPELESS = 1e4  # length of a vector of parameters from which no run here has come back


KINDS: dict[str, Any] = {**SCHEMES, **{kind.name: kind for kind in VARIANTS}}

EQUATIONS: dict[str, Transcription] = {
    **TRANSCRIPTIONS,
    **{kind.name: Transcription(execute) for kind, execute in VARIANTS.items()},
}


def traffic_of(scheme: Scheme, workers: int, shapes: Sequence[tuple[int, ...]]) -> Traffic:
    """Return the bytes of the rounds on a model whose variables have these shapes, on one ps."""
    return Traffic(scheme, scheme.codecs()[0], workers, [sum(map(math.prod, shapes))], shapes=shapes)


def message_kilobytes(scheme: Scheme, workers: int, shapes: Sequence[tuple[int, ...]]) -> float:
    """Return the kilobytes of a message on a model of these shapes."""
    return traffic_of(scheme, workers, shapes).message / 1e3


def moved_kilobytes(scheme: Scheme, workers: int, shapes: Sequence[tuple[int, ...]], steps: int) -> float:
    """Return the kilobytes that a worker sends and receives in the rounds of a run, on a model of these shapes."""
    return sum(traffic_of(scheme, workers, shapes).moved(scheme.rounds(steps).kinds())) / 1e3


@dataclass(frozen=True, kw_only=True)
class ClaimRun:
    """A run.

    Attributes:
        scheme: its name.
        settings: hyperparameters.
        workers: W.
        clients: owners of the data, of which W take part in each round; None: each worker owns a shard.
        steps: of each worker, at most.
        updates: of the center, after which the run ends; None: when all steps are done.
        seed: of parameters, examples, batches and durations.
        task: its name.
        batch: examples of a batch.
        platform: fields of `Platform`.
        period_rule: how the period changes over the run, as the flag has it.
    """

    scheme: str
    settings: dict[str, Any]
    workers: int
    steps: int
    seed: int
    updates: int | None = None
    clients: int | None = None
    task: str = "clusters"
    batch: int = 16
    platform: dict[str, Any] = field(default_factory=lambda: {"compute": "lognormal:sigma=0.3"})
    period_rule: str = "constant"

    @property
    def key(self) -> str:
        """Return the key by which the outcome is kept."""
        return f"{sources()} {json.dumps(asdict(self), sort_keys=True)}"

    @property
    def weight(self) -> float:
        """Return the expected duration, compared with other runs."""
        return self.workers * self.steps

    def execute(self) -> dict[str, list[float]]:
        """Run `execute`."""
        return execute(self)


@cache
def sources() -> str:
    """Return a digest of the sources on which runs depend."""
    return source_digest(within=DECISIVE)


class Diverged(Exception):
    """The parameters are not finite any more, or so large that they will not be for long."""


def execute(run: ClaimRun) -> dict[str, list[float]]:
    """Return columns `updates`, `gradients`, `seconds` (virtual), `loss`, `accuracy` of the center during the run.

    A run that diverges has the loss infinity at its end, and nothing else.
    """
    scheme = ruled(KINDS[run.scheme](**run.settings), run.period_rule)
    owners = run.clients or run.workers
    problem = task(run.task, workers=owners, steps=run.steps, batch=run.batch, seed=run.seed)
    schedule, of_worker = _order(run, scheme, len(problem.start)), problem.gradient
    if run.clients:
        of_worker = by_turns(of_worker, run.clients, run.workers, run.seed, scheme.period)

    def gradient(x: np.ndarray, k: int, t: int) -> np.ndarray:
        if not x @ x < HOPELESS**2:
            raise Diverged
        return of_worker(x, k, t)

    try:
        with np.errstate(over="ignore", invalid="ignore"):
            path = centers(
                scheme, schedule.trace, problem.start, gradient, run.workers, run.steps, problem.shapes, run.seed
            )
        if not path[-1] @ path[-1] < HOPELESS**2:
            raise Diverged
    except Diverged:
        return {"updates": [], "gradients": [], "seconds": [], "loss": [], "accuracy": []}
    return _curve(path, schedule, scheme, run.steps, problem.measure)


def centers(
    scheme: Scheme,
    trace: Mapping[str, np.ndarray],
    start: np.ndarray,
    gradient: Gradient,
    workers: int,
    steps: int,
    shapes: Sequence[tuple[int, ...]] = (),
    seed: int = 0,
) -> list[np.ndarray]:
    """Execute the equations of a scheme in the order of a trace; return the center after each event or update.

    Args:
        scheme: the algorithm.
        trace: the columns of `RECORD`.
        start: initial center, [P].
        gradient: gradient of worker k's t-th batch at x, as a function of (x, k, t).
        workers: W.
        steps: local steps of each worker.
        shapes: shapes of the model's variables, if the algorithm needs them.
        seed: of the algorithm's random numbers.
    """
    recorded = RecordedRun(
        algorithm=scheme.name,
        hyperparameters=Hyperparameters({f.name: getattr(scheme, f.name) for f in fields(scheme)}),
        equations=EQUATIONS[scheme.name],
        workers=workers,
        steps=steps,
        start=start,
        trace=dict(trace),
        center=start,
        gradient=gradient,
        result={"updates": int(trace["version"][-1]) + 1, "recovery": {"evicted": []}},
        shapes=shapes,
        seed=seed,
    )
    return recorded.equations.execute(recorded, recorded.hyperparameters)


def _order(run: ClaimRun, scheme: Scheme, parameters: int) -> EventSchedule:
    traffic = Traffic(scheme, scheme.codecs()[0], run.workers, [parameters])
    return EventLoop(
        scheme,
        Platform(**run.platform),
        workers=run.workers,
        rounds=scheme.rounds(run.steps),
        seed=run.seed,
        message_bytes=traffic.message,
        reply_bytes=traffic.reply,
        stop_at_version=run.updates,
    ).run()


def _curve(
    path: list[np.ndarray], schedule: EventSchedule, scheme: Scheme, steps: int, measure: Any
) -> dict[str, list[float]]:
    """Measure the center at some of its versions. A path has a center after each message, or each set of messages."""
    messages = {
        name: values[schedule.trace["event"] != EVENTS.index("join")] for name, values in schedule.trace.items()
    }
    lengths = np.array([length for length, _ in scheme.rounds(steps)])
    number = _number(messages["worker"])
    done = np.cumsum(lengths[number])
    if len(path) == len(messages["version"]):
        at = np.arange(len(path))
    else:  # the last message that counted at version i has made version i + 1
        counted = np.flatnonzero(messages["accepted"])
        at = counted[np.searchsorted(messages["version"][counted], np.arange(len(path)), side="right") - 1]
    some = np.unique(np.linspace(0, len(path) - 1, POINTS).round().astype(int))
    measured = [measure(path[i]) for i in some]
    return {
        "updates": (messages["version"][at[some]] + 1).tolist(),
        "gradients": done[at[some]].tolist(),
        "seconds": (messages["microseconds"][at[some]] / 1e6).tolist(),
        "loss": [round(loss, 5) for loss, _ in measured],
        "accuracy": [round(accuracy, 5) for _, accuracy in measured],
    }


def _number(workers: np.ndarray) -> np.ndarray:
    """Count, for each message, the earlier messages of its worker, [n]."""
    by_worker = np.argsort(workers, kind="stable")
    number = np.empty_like(workers)
    number[by_worker] = np.arange(len(workers)) - np.searchsorted(workers[by_worker], workers[by_worker])
    return number
