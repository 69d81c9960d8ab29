"""The test data, and what a center comes to on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine.flat_model import FlatModel
from ..problems.models import batched
from .results import load

BATCH = 512  # examples


class Evaluation:
    """Measures a model on the test data, by its Keras metrics.

    Args:
        model: with the Keras model.
        data: nested arrays, a function that returns a data set of batches, or None: then nothing is measured.
    """

    def __init__(self, model: FlatModel, data: Any):
        self.model = model
        self.batches = data() if callable(data) else None if data is None else batched(data, BATCH)

    def __call__(self, snapshot: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Each metric: of a snapshot of the center, or of the model as it is; none without test data."""
        if self.batches is None:
            return {}
        if snapshot is not None:
            load(self.model, snapshot)
        return self.model.measure(self.batches)
