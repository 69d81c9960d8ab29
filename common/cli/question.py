"""What `advise` is asked: the model, the number of machines, and hyperparameters."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...algorithms import SCHEMES
from ..contract.rounding import Rounding
from ..contract.scheme import Scheme
from ..errors import UserError, at_least, at_most, positive
from .simulate import scheme_of

SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}

MOST_WORKERS = 1000

MOST_STEPS = 2 * 10**6  # of all workers in a round: each is drawn


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be trained, and on how many machines."""

    workers: int = 16
    """Worker tasks."""
    ps: int = 1
    """Parameter server tasks."""
    parameters: str | None = None
    """Parameters of the model, as in 25M; 1M, or with --like those of the run, if not given."""
    communication_period: int | None = None
    """Local steps between two exchanges, for all algorithms that have such a period. Without it, longer ones than the
    defaults are tried where messages take more than half of the time."""
    settings: str = ""
    """Hyperparameters of some algorithms instead of their defaults, as in diloco:communication_period=100."""
    codec: Rounding = "float32"
    """How messages travel; algorithms that have no such choice send what they always do."""
    curvature: float = 1.0
    """The largest of the loss, h: rates are limited by it."""
    seed: int = 0
    """Of what is drawn."""
    like: Path | None = None
    """Machines like those of a recorded run, given its folder; what is said of machines overrides that."""

    def __post_init__(self):
        at_least(1, workers=self.workers, ps=self.ps)
        at_most(MOST_WORKERS, workers=self.workers, ps=self.ps)
        positive(curvature=self.curvature)
        if self.communication_period is not None:
            at_least(1, communication_period=self.communication_period)
        at_least(0, seed=self.seed)
        _ = self.size
        for scheme in self.schemes.values():
            if scheme.period > MOST_STEPS // self.workers:
                raise UserError(
                    f"{scheme.name}: a period must be at most {MOST_STEPS // self.workers} steps with so many workers. "
                    f"Received: {scheme.period} steps, workers={self.workers}"
                )

    @property
    def schemes(self) -> dict[str, Scheme]:
        """The catalogue, with the hyperparameters that are given."""
        texts = [text for text in re.split(r",(?!\w+=)", self.settings) if text.strip()]
        given = {scheme.name: scheme for scheme in map(scheme_of, texts)}
        period = {} if self.communication_period is None else {"communication_period": self.communication_period}
        return {
            name: given[name] if name in given else kind(**period if has_period(kind) else {})
            for name, kind in SCHEMES.items()
        }

    @property
    def size(self) -> int | None:
        """P, if it is given."""
        if self.parameters is None:
            return None
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGBT]?)", self.parameters.strip())
        size = round(float(found[1]) * SUFFIXES[found[2]]) if found else 0
        if not 1 <= size <= 10**12:
            raise UserError(
                f"parameters takes a number with k, M, G, B or T, as in 25M, up to 1e12. Received: {self.parameters!r}"
            )
        return size


def has_period(scheme: Any) -> bool:
    """True if it has a communication period, which is not that of every step."""
    return any(field.name == "communication_period" for field in fields(scheme))
