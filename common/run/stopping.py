"""When a run ends early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..record.callbacks import STOP
from ..record.plot import accuracy_of


@dataclass(frozen=True)
class StopRule:
    """What ends a run before its workers have done all their rounds.

    Attributes:
        version: so many updates of the center, if given.
        accuracy: this accuracy on the test data, if given.
        folder: of the run; a callback that wants its end puts a file there.
    """

    version: int | None
    accuracy: float | None
    folder: Path

    def reason(self, version: Callable[[], int], metrics: dict[str, Any]) -> str | None:
        """Why to stop now, if there is a reason.

        Args:
            version: tells that of the center; not called unless it matters.
            metrics: of the newest evaluation.
        """
        reached = accuracy_of(metrics)
        if self.version is not None and version() >= self.version:
            return f"version {self.version}"
        if self.accuracy is not None and reached is not None and reached >= self.accuracy:
            return f"accuracy {self.accuracy}"
        return "a callback" if (self.folder / STOP).exists() else None
