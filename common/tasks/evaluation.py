"""The evaluation of a center on the test data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.models import batched
from ..worker.flat_model import FlatModel
from .results import load

BATCH = 512  # examples


@dataclass(frozen=True)
class EvaluationPoint:
    """A center at one time of the run.

    Attributes:
        when: time on the clock `time.monotonic`.
        figures: figures of the run at that time, `version` included.
        snapshot: the vectors to evaluate, `center` [P] and `state` [S]; empty without test data.
    """

    when: float
    figures: dict[str, Any]
    snapshot: Mapping[str, np.ndarray]

    @property
    def version(self) -> int:
        """Number of updates in the center."""
        return self.figures["version"]


class Evaluation:
    """The evaluation of a model on the test data, by its Keras metrics.

    Args:
        model: the flat model, with the Keras model.
        data: nested arrays, a function that returns a data set of batches, or None for no evaluation.
    """

    def __init__(self, model: FlatModel, data: Any):
        self.model = model
        self.batches = data() if callable(data) else None if data is None else batched(data, BATCH)

    def __call__(self, snapshot: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Return the metrics of a snapshot of the center, or of the model as it is; empty without test data."""
        if self.batches is None:
            return {}
        if snapshot is not None:
            load(self.model, snapshot)
        return self.model.measure(self.batches)
