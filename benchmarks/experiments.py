"""An experiment of the benchmark: a run with one or several settings. What it found is kept.

It is kept in a file that is named by a hash of all that the experiment depends on, the sources included.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..common.arguments import with_tuples
from .outcome_files import sources, write
from .virtual import SYNTHETIC, UNEVEN, LearningCurve, simulated


@dataclass(frozen=True)
class Experiment:
    """A run with one or several settings, and all that it depends on."""

    part: str  # main: all of the run; tuning, sweep: until the target is reached
    algorithm: str
    settings: tuple[dict[str, Any], ...]
    workers: int
    seed: int
    gradients: int
    target: float

    @property
    def file(self) -> str:
        """Return the name of the file that keeps the outcome."""
        task = {"task": asdict(SYNTHETIC), "platform": UNEVEN.described()}
        text = json.dumps(asdict(self) | task | {"sources": sources(self.algorithm)}, sort_keys=True)
        return f"{self.part}-{self.algorithm}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    def outcomes(self, cache: Path) -> list[dict[str, Any]]:
        """Return the outcomes of the runs; run them now if they are not kept."""
        path = cache / self.file
        if not path.exists():
            write(path, self.measure())
        return [outcome | {"settings": with_tuples(outcome["settings"])} for outcome in json.loads(path.read_text())]

    def measure(self) -> list[dict[str, Any]]:
        """Return the outcomes of runs with all settings; a search for the best runs only the settings it needs."""
        options: dict[str, Any] = {"workers": self.workers, "seed": self.seed, "gradients": self.gradients}
        until = None if self.part == "main" else self.target
        curves = simulated(self.algorithm, self.settings, until=until, **options)
        return [self._outcome(*pair) for pair in zip(self.settings, curves, strict=True)]

    def _outcome(self, settings: Mapping[str, Any], curve: LearningCurve) -> dict[str, Any]:
        reached, final = curve.to(self.target), curve.final if math.isfinite(curve.final) else None
        outcome = {"settings": dict(settings), "reached": asdict(reached) if reached else None, "final": final}
        return outcome | {"curve": curve.as_dict()} if self.part == "main" else outcome
