"""The input of `advise`: the model, the number of machines, and hyperparameters."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...algorithms import SCHEMES
from ..arguments import at_least, at_most, positive
from ..contract.rounding import Rounding
from ..contract.scheme import Scheme
from ..errors import UserError
from .simulate import scheme_of

SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}

MOST_WORKERS = 1000

MOST_STEPS = 2 * 10**6  # of all workers in a round: the time of each is drawn


@dataclass(frozen=True, kw_only=True)
class Question:
    """The model to train, the number of machines, and hyperparameters."""

    workers: int = 16
    """Number of worker tasks."""
    ps: int = 1
    """Number of parameter server tasks."""
    parameters: str | None = None
    """Number of parameters of the model, as in 25M. Default: 1M, or with --like that of the run."""
    communication_period: int | None = None
    """Local steps between two exchanges, for all algorithms with such a period. Default: that of each algorithm, and
    longer ones if messages take more than half of the time."""
    settings: str = ""
    """Hyperparameters of some algorithms instead of their defaults, as in diloco:communication_period=100."""
    codec: Rounding = "float32"
    """Number format of messages; algorithms with a codec of their own keep it."""
    curvature: float = 1.0
    """Largest curvature of the loss, h, which limits the learning rates."""
    seed: int = 0
    """Random seed of the simulated times."""
    like: Path | None = None
    """Folder of a recorded run: predict for machines fitted to its rounds. Flags of machines override the fit."""

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
        """The catalogue, with the given hyperparameters."""
        texts = [text for text in re.split(r",(?!\w+=)", self.settings) if text.strip()]
        given = {scheme.name: scheme for scheme in map(scheme_of, texts)}
        period = {} if self.communication_period is None else {"communication_period": self.communication_period}
        return {
            name: given[name] if name in given else kind(**period if has_period(kind) else {})
            for name, kind in SCHEMES.items()
        }

    @property
    def size(self) -> int | None:
        """Number of parameters P; None if not given."""
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
    """Return True if the algorithm has the hyperparameter `communication_period`."""
    return any(field.name == "communication_period" for field in fields(scheme))
