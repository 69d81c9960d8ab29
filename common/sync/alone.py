"""The synchronization rule of one worker, which exchanges nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UserError
from .store import Store, Tensor, WorkerSlot
from .synchronization import Synchronization


@dataclass(frozen=True)
class Alone(Synchronization):
    """One worker without a ps: its parameters are the center, and nothing is exchanged."""

    kind = "alone"
    simulated = True
    label = "one process"

    def check(self, workers: int) -> None:
        """Raise `UserError` unless the run has exactly one worker."""
        if workers != 1:
            raise UserError(f"this algorithm runs in one process: use --workers 1. Received: workers={workers}")

    def mean(self, ps: Store, slot: WorkerSlot, vector: Tensor) -> Tensor:
        """Return the worker's own `vector`."""
        return vector

    def traffic(self, workers: int) -> tuple[float, float]:
        """Return zero vectors in both directions."""
        return 0, 0
