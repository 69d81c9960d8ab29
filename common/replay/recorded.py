"""A recorded run: the input of a transcription, and the distance of its result from the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..contract.scheme import Scheme
from ..errors import UserError
from ..messages.cut import even_sizes
from ..server.trace import EVENTS
from ..tasks.plan import ALONE_STEPS
from . import reference

# By codec: the rounding of messages, and that of replies.
ROUNDINGS = {"bf16": (reference.bf16, reference.bf16), "int8": (reference.int8, reference.whole)}


@dataclass(frozen=True)
class Execution:
    """The result of the equations of a run.

    Attributes:
        center: the last center, [P].
        losses: losses on the test data, at the versions of the recorded losses.
    """

    center: np.ndarray
    losses: np.ndarray


@dataclass
class RecordedRun:
    """A finished run: its initial center, its events in order, and its final center.

    Attributes:
        scheme: the algorithm with its hyperparameters.
        workers: number of workers.
        steps: local steps of each worker.
        start: initial center, [P], float64.
        trace: the columns of trace.npz, a row for each event.
        center: final center, [P].
        gradient: gradient of worker k's t-th batch at x, as a function of (x, k, t).
        result: content of result.json.
        earlier_step_targets: steps of the runs from which this one was resumed.
        sparse: True if workers read and wrote only the coordinates of their batch.
        codec: rounding of messages, which is applied to each slice of the center.
        ps: number of slices of the center.
        layers: sizes of the model's variables, in the order of a vector [P]; empty if they are unknown.
        losses: recorded test losses, by the version of the center; only of schemes whose workers update it together.
        loss: test loss as a function of a center [P].
    """

    scheme: Scheme
    workers: int
    steps: int
    start: np.ndarray
    trace: dict[str, np.ndarray]
    center: np.ndarray
    gradient: reference.Gradient
    result: Mapping[str, Any]
    earlier_step_targets: Sequence[int] = ()
    sparse: bool = False
    codec: str = "float32"
    ps: int = 1
    layers: Sequence[int] = ()
    losses: Mapping[int, float] = field(default_factory=dict)
    loss: Callable[[np.ndarray], float] | None = None

    @property
    def order(self) -> list[int]:
        """Worker of each event."""
        return self.trace["worker"].tolist()

    @property
    def contacts(self) -> list[int]:
        """Worker k of each event, and ~k for an event at which a lost worker k starts anew."""
        return np.where(self.joins, ~self.trace["worker"], self.trace["worker"]).tolist()

    @property
    def reads(self) -> list[tuple[int, int]]:
        """Worker of each message, and the number of updates in the center that it had read."""
        read = self.trace["version"] - self.trace["staleness"]
        return [(k, int(r)) for k, r, join in zip(self.order, read, self.joins, strict=True) if not join]

    @property
    def joins(self) -> np.ndarray:
        """Mask of the events that are no messages, at which a lost worker starts anew from the center."""
        return self.trace["event"] == EVENTS.index("join")

    @property
    def evicted(self) -> bool:
        """True if the run continued without a worker."""
        return bool(self.result["recovery"]["evicted"])

    def replay(self) -> np.ndarray:
        """Return the last center of the equations in the recorded order, [P], float64; raises as `execute` does."""
        return self.execute().center

    def execute(self) -> Execution:
        """Execute the paper's equations in the recorded order.

        Raises:
            UserError: the transcription does not cover an event of this run.
            ValueError: a run of this scheme cannot have this record.
        """
        from .adapters import TRANSCRIPTIONS

        self._check_before()
        run = self if self.codec == "float32" else replace(self, gradient=self._pushed())
        centers = TRANSCRIPTIONS[self.scheme.name](run, self.scheme)
        self._check_after()
        losses = [self.loss(centers[version - 1]) for version in self.losses] if self.loss else []
        return Execution(centers[-1], np.array(losses))

    def _pushed(self) -> reference.Gradient:
        """Return the rounded gradients that workers push; the function keeps the rounding errors (error feedback)."""
        push, reply = ROUNDINGS[self.codec]
        return reference.pushed(self.gradient, push, even_sizes(len(self.start), self.ps), self.workers, reply)

    def _check_before(self) -> None:
        """Raise `ValueError` if the sizes in the record contradict each other, before any equation is executed."""
        updates, versions = self.result["updates"], self.trace["version"]
        must(updates > 0 and not self.joins.all(), "a run has messages and updates")
        must(0 <= versions.min() <= versions.max() <= updates, "how many updates there were")
        must(max(self.losses, default=1) <= updates, "how many updates there were")
        if self.scheme.gate.exchanges:
            must(updates <= len(self.order), "how many updates there were")
        if not self.scheme.gate.exchanges:  # an event covers several steps
            must(updates <= self.steps <= ALONE_STEPS * len(self.order), "how many steps there were")
            if updates < self.steps:
                raise UserError("some steps were not finite and were left out: the reference knows of none")

    def _check_after(self) -> None:
        """Raise `ValueError` if the trace and result.json differ in the number of updates."""
        if self.scheme.gate.exchanges and self.scheme.gate.updates_per_round(self.workers) == self.workers:
            messages = ~self.joins & (self.trace["event"] != EVENTS.index("pull"))
            must(self.trace["accepted"][messages].sum() == self.result["updates"], "how many updates there were")

    def error(self) -> float:
        """Return the distance between replay and run, relative to the replay; raises as `replay` and `distance` do."""
        return distance(self.center, self.replay())


def distance(center: np.ndarray, replayed: np.ndarray) -> float:
    """Return the distance between two centers [P], relative to the second, in float64.

    Raises:
        ValueError: one of them is not finite.
    """
    center = center.astype(np.float64)
    for name, vector in (("of the run", center), ("of the replay", replayed)):
        if not np.isfinite(vector).all():
            raise ValueError(f"the center {name} is not finite")
    apart, length = np.linalg.norm(replayed - center), np.linalg.norm(replayed)
    return float(apart / length) if apart else 0.0


def must(agrees: Any, what: str) -> None:
    """Raise an error unless the rule agrees with the record.

    Raises:
        ValueError: they differ in `what`.
    """
    if not agrees:
        raise ValueError(f"the rule and the record differ: {what}")
