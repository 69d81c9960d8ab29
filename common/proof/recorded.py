"""A finished run, as its transcription executes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract.scheme import Scheme
from ..engine.trace import EVENTS
from . import reference


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
        layers: sizes of the model's variables, which lie one after the other in a vector [P]; none if they are unknown.
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
    layers: Sequence[int] = ()

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
        recovery = self.result["recovery"]
        return bool(recovery.get("evicted", recovery.get("expelled")))  # as it was called before

    def replay(self) -> np.ndarray:
        """The last center by the paper's equations in the recorded order, [P], float64.

        Raises:
            UserError: its transcription does not know what happened in this run.
            ValueError: the record is not that of a run of this scheme.
        """
        from .transcriptions import TRANSCRIPTIONS

        return TRANSCRIPTIONS[self.scheme.name](self, self.scheme)[-1]

    def error(self) -> float:
        """Relative distance between the replay and the run."""
        return float(np.linalg.norm(self.replay() - self.center) / np.linalg.norm(self.center))
