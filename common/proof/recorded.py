"""A recorded run: what a transcription executes, and how far the result is from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..contract.cut import even_sizes
from ..contract.scheme import Scheme
from ..engine.trace import EVENTS
from ..errors import UserError
from ..run.plan import ALONE_STEPS
from . import reference

# How messages are rounded off, and replies.
ROUNDINGS = {"bf16": (reference.bf16, reference.bf16), "int8": (reference.int8, reference.whole)}


@dataclass(frozen=True)
class Execution:
    """What the equations of a run come to.

    Attributes:
        center: the last one, [P].
        losses: on the test data, at the versions at which the run has some on record.
    """

    center: np.ndarray
    losses: np.ndarray


@dataclass
class Recorded:
    """A finished run: where it started, what happened in which order, where it ended.

    Attributes:
        steps: local steps of each worker.
        start: the initial center, [P], float64.
        trace: the columns of trace.npz, a row for each event.
        center: at the end of the run, [P].
        gradient: of worker k's t-th batch at x, as a function of (x, k, t).
        result: the content of result.json.
        earlier_step_targets: steps of the runs that this one goes on from.
        sparse: True if workers read and wrote the coordinates of their batch alone.
        codec: how messages were rounded off, on the slices of as many `ps`.
        layers: sizes of the model's variables, which lie one after the other in a vector [P]; none if they are unknown.
        losses: on the test data, by the version of the center; only of schemes that update it all together.
        loss: of a center [P] on the test data.
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
        """The worker of each event."""
        return self.trace["worker"].tolist()

    @property
    def contacts(self) -> list[int]:
        """The worker k of each event, and ~k where worker k was lost and starts anew."""
        return np.where(self.joins, ~self.trace["worker"], self.trace["worker"]).tolist()

    @property
    def reads(self) -> list[tuple[int, int]]:
        """Of each message: its worker, and how many updates were in the center that the worker had read."""
        read = self.trace["version"] - self.trace["staleness"]
        return [(k, int(r)) for k, r, join in zip(self.order, read, self.joins, strict=True) if not join]

    @property
    def joins(self) -> np.ndarray:
        """True for each event that is no message: a worker that was lost starts anew from the center."""
        return self.trace["event"] == EVENTS.index("join")

    @property
    def evicted(self) -> bool:
        """True if the run went on without a worker."""
        return bool(self.result["recovery"]["evicted"])

    def replay(self) -> np.ndarray:
        """The last center by the paper's equations in the recorded order, [P], float64; raises as `execute` does."""
        return self.execute().center

    def execute(self) -> Execution:
        """Execute the paper's equations in the recorded order.

        Raises:
            UserError: its transcription does not know what happened in this run.
            ValueError: the record is not that of a run of this scheme.
        """
        from .transcriptions import TRANSCRIPTIONS

        self._check_before()
        run = self if self.codec == "float32" else replace(self, gradient=self._pushed())
        centers = TRANSCRIPTIONS[self.scheme.name](run, self.scheme)
        self._check_after()
        losses = [self.loss(centers[version - 1]) for version in self.losses] if self.loss else []
        return Execution(centers[-1], np.array(losses))

    def _pushed(self) -> reference.Gradient:
        """What workers push in the place of gradients; it remembers what it has rounded off."""
        push, reply = ROUNDINGS[self.codec]
        return reference.pushed(self.gradient, push, even_sizes(len(self.start), self.ps), self.workers, reply)

    def _check_before(self) -> None:
        """Raise `ValueError` if the record is not as large as it says: no run of it is executed."""
        updates, versions = self.result["updates"], self.trace["version"]
        must(updates > 0 and not self.joins.all(), "a run has messages and updates")
        must(0 <= versions.min() <= versions.max() <= updates, "how many updates there were")
        must(max(self.losses, default=1) <= updates, "how many updates there were")
        if self.scheme.gate.exchanges:
            must(updates <= len(self.order), "how many updates there were")
        if not self.scheme.gate.exchanges:  # an event stands for several steps
            must(updates <= self.steps <= ALONE_STEPS * len(self.order), "how many steps there were")
            if updates < self.steps:
                raise UserError("some steps were not finite and were left out: the reference knows of none")

    def _check_after(self) -> None:
        """Raise `ValueError` if the record has other updates than result.json says."""
        if self.scheme.gate.exchanges and self.scheme.gate.updates_per_round(self.workers) == self.workers:
            messages = ~self.joins & (self.trace["event"] != EVENTS.index("pull"))
            must(self.trace["accepted"][messages].sum() == self.result["updates"], "how many updates there were")

    def error(self) -> float:
        """Distance between the replay and the run, relative to the replay; raises as both do."""
        return distance(self.center, self.replay())


def distance(center: np.ndarray, replayed: np.ndarray) -> float:
    """Between two centers [P], relative to the second, in float64.

    Raises:
        ValueError: one of them is not finite.
    """
    center = center.astype(np.float64)
    for name, vector in (("on record", center), ("of the replay", replayed)):
        if not np.isfinite(vector).all():
            raise ValueError(f"the center {name} is not finite")
    apart, length = np.linalg.norm(replayed - center), np.linalg.norm(replayed)
    return float(apart / length) if apart else 0.0


def must(agrees: Any, what: str) -> None:
    """What the rule says must be what is on record.

    Raises:
        ValueError: it is not.
    """
    if not agrees:
        raise ValueError(f"the rule and the record differ: {what}")
