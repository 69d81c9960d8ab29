"""A run as every task sees it: what is trained, how, on which cluster, and the rounds that each worker does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..cluster.cluster import Cluster
from ..cluster.restarts import RestartRule
from ..contract.rounds import Event, Rounds
from ..contract.scheme import Scheme
from ..problems.dataset import batches, leaves, num_examples, shard_rows
from ..problems.models import ModelRecipe
from ..record.run_directory import RecordMode
from .options import Recovery

CHIEF = 0

ROUNDS_PER_CALL = 8  # a call costs some RPCs of its own; unrolling rounds in it doubles the throughput at period 1

LONG_RUN_ROUNDS = 500  # shorter runs do not earn back the time that the larger graph takes

REPAIR_WAITS = 3  # times the limit of an ordinary wait

ALONE_STEPS = 64  # steps of a call without a ps


@dataclass
class Job:
    """A run, as every task sees it."""

    scheme: Scheme
    recipe: ModelRecipe
    train: Any  # nested arrays, or a function of a tf.distribute.InputContext that returns a tf.data.Dataset
    test: Any
    cluster: Cluster
    batch_size: int
    seed: int
    steps: int  # local steps of each worker
    run_dir: Path | None = None
    evaluate_seconds: float = 0.1  # between two evaluations of the center
    evaluate_later: bool = False  # only keep the path of the center during the run, and evaluate it afterwards
    schedule: Sequence[int] = ()  # threads only: whose round comes next
    graph_file: Path | None = None  # where the evaluator leaves a graph for the workers of this machine
    clip_norm: float | None = None  # gradients are clipped to this norm of the whole vector
    l2: float = 0.0  # adds l2/2 |x|^2 to the loss
    ema_decay: float | None = None  # an exponential moving average of the center is evaluated instead of the center
    identity: Mapping[str, Any] = field(default_factory=dict)  # what tasks on several machines must have in common
    stop_at_version: int | None = None
    stop_at_accuracy: float | None = None
    tensorboard: bool = False
    record: RecordMode = "full"  # whether each event is kept, or only what they add up to
    legs: Sequence[int] = ()  # steps of the runs that this one goes on from, if they were fewer
    recovery: Recovery = field(default_factory=Recovery)
    program: str = ""  # which program has started this task, among those of several machines

    @property
    def rounds_per_call(self) -> int:
        """How many rounds a call may hold."""
        short = self.alone or self.schedule or self.steps < LONG_RUN_ROUNDS * self.scheme.period
        return 1 if short or len(self.scheme.events) > 1 else ROUNDS_PER_CALL

    @property
    def shared_graph(self) -> Path | None:
        """Where the workers' graph is, unless each has its own: because of a data function, or to meet without a ps."""
        own = callable(self.train) or not (self.uses_ps or self.alone)
        return None if own else self.graph_file

    @property
    def waits(self) -> bool:
        """True if workers wait for each other's messages."""
        return self.scheme.gate.waits

    @property
    def sees_waiting(self) -> bool:
        """True if it can be seen who waits: on a ps, or in the memory of all threads."""
        return self.waits and (self.uses_ps or self.cluster.backend == "threads")

    @property
    def alone(self) -> bool:
        """True if one worker is all there is."""
        return not self.scheme.gate.exchanges

    @property
    def uses_ps(self) -> bool:
        """True if there is a parameter server; without one, worker 0 holds the center and the record."""
        return self.scheme.gate.uses_ps

    @property
    def sparse(self) -> bool:
        """True if workers read and push the coordinates of their batch alone; else vectors are dense."""
        dense = self.l2 or self.clip_norm is not None or self.ema_decay is not None or self.towers > 1
        return self.recipe.sparse and self.scheme.sparse and not dense

    @property
    def recovers(self) -> bool:
        """True if dead tasks are started again."""
        return self.restarts.recovers

    @property
    def restarts(self) -> RestartRule:
        """Which tasks come back, and which may be lost."""
        recovery = self.recovery
        return RestartRule(self.uses_ps, self.alone, recovery.max_restarts, recovery.min_workers)

    @property
    def repair_seconds(self) -> float:
        """The limit of a wait for what is being repaired: who has to do it may be silent, too."""
        return REPAIR_WAITS * self.cluster.wait_seconds

    @property
    def towers(self) -> int:
        """Devices that share the batches of a worker."""
        return self.cluster.towers or self.scheme.default_towers

    def rounds(self, worker: int) -> Rounds:
        """The rounds of a worker: how many local steps, and how each ends."""
        if self.schedule:
            number = self.schedule.count(worker)
            return self.scheme.rounds((number + 1) * self.scheme.period).first(
                number
            )  # none is the last: none is short
        legs = itertools.pairwise((0, *self.legs, self.steps))
        return sum((self._leg(end - start, start) for start, end in legs), Rounds())

    def _leg(self, steps: int, done: int) -> Rounds:
        return Rounds.even(steps, ALONE_STEPS) if self.alone else self.scheme.rounds(steps, done)


def shard(job: Job, worker: int) -> list[np.ndarray]:
    """The arrays that a worker trains on."""
    if callable(job.train):
        return []
    rows = shard_rows(num_examples(job.train), worker, job.cluster.workers, job.seed)
    return [array[rows] for array in leaves(job.train)]


def plan(job: Job, worker: int, done: int = 0) -> Iterator[tuple[np.ndarray, Event]]:
    """The rounds of a worker after the first `done`: their batches, [steps, batch size] rows, and how each ends."""
    rounds = job.rounds(worker)
    if callable(job.train):
        stream: Iterator[np.ndarray] = itertools.repeat(np.zeros(job.batch_size, np.int32))
    else:
        shard = num_examples(job.train) // job.cluster.workers
        stream = batches(shard, job.batch_size, worker, job.seed, rounds.steps(done))
    for steps, event in rounds.after(done):
        yield np.stack(list(itertools.islice(stream, steps))), event
