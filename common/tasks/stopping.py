"""Early stopping of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..record.callbacks import STOP
from ..record.plot import accuracy_of


@dataclass(frozen=True)
class StopRule:
    """The conditions that end a run before its workers have done all their rounds.

    Attributes:
        version: number of updates of the center, or None.
        accuracy: accuracy on the test data, or None.
        folder: folder of the run; a callback requests the end of the run by a file there.
    """

    version: int | None
    accuracy: float | None
    folder: Path

    def reason(self, version: Callable[[], int], metrics: dict[str, Any]) -> str | None:
        """Return the reason to stop now, or None.

        Args:
            version: returns the version of the center; called only if the rule has a version.
            metrics: metrics of the newest evaluation.
        """
        reached = accuracy_of(metrics)
        if self.version is not None and version() >= self.version:
            return f"version {self.version}"
        if self.accuracy is not None and reached is not None and reached >= self.accuracy:
            return f"accuracy {self.accuracy}"
        return "a callback" if (self.folder / STOP).exists() else None
