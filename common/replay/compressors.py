"""Arguments of the equations that compress a vector, from the record of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .recorded import Hyperparameters, RecordedRun
from .reference import synchronous_rules
from .reference.codecs import cosine_coefficients, on_slices

Compressor = Callable[[np.ndarray], np.ndarray]


def of_share(run: RecordedRun, scheme: Hyperparameters) -> Compressor:
    """Return the function that keeps the largest elements, or with `compressor: sign` that of scaled signs."""
    if scheme.get("compressor", "topk") == "topk":
        return synchronous_rules.largest(max(1, int(scheme.share * len(run.start))))
    return synchronous_rules.scaled_sign(run.shapes)


def slices(run: RecordedRun) -> list[np.ndarray]:
    """Return the slices of the center on the ps tasks."""
    return np.array_split(run.start, run.ps)


def of_chunks(run: RecordedRun, scheme: Hyperparameters) -> Compressor:
    """Return the compressor of `demo`: each slice begins a new chunk."""
    sizes = [len(part) for part in slices(run)]
    compress = on_slices(lambda part: cosine_coefficients(part, scheme.chunk, scheme.kept), sizes)
    return lambda message: compress(message, 0, 0)


SIGNS_OF_ADAM: dict[str, Any] = {
    **{"beta_1": "beta_1", "beta_2": "beta_2"},
    "compress": lambda run, s: synchronous_rules.scaled_sign(run.shapes),
    "compress_mean": lambda run, s: synchronous_rules.scaled_sign([part.shape for part in slices(run)]),
}
