"""Arguments of the equations that compress a vector, from the record of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .recorded import Hyperparameters, RecordedRun
from .reference import codecs, synchronous_rules
from .reference.codecs import cosine_coefficients
from .reference.inner_steps import orthogonal
from .reference.sending import Codec
from .with_codec import compressor

Compressor = Callable[[np.ndarray], np.ndarray]


def of_share(run: RecordedRun, scheme: Hyperparameters) -> Compressor:
    """Return the function that keeps the largest elements, or with `compressor: sign` that of scaled signs."""
    if scheme.get("compressor", "topk") == "topk":
        return synchronous_rules.largest(max(1, int(scheme.share * len(run.start))))
    return synchronous_rules.scaled_sign(run.shapes)


def slices(run: RecordedRun) -> list[np.ndarray]:
    """Return the slices of the center on the ps tasks."""
    return np.array_split(run.start, run.ps)


def largest_coefficients(run: RecordedRun, scheme: Hyperparameters) -> Compressor:
    """Return the function to the largest cosine coefficients of chunks; each slice begins a new chunk."""
    return _on_slices(run, lambda part: cosine_coefficients(part, scheme.chunk, scheme.kept))


def of_coefficients(run: RecordedRun, scheme: Hyperparameters) -> Compressor:
    """Return the inverse of the cosine transform of chunks."""
    return _on_slices(run, lambda part: codecs.of_coefficients(part, scheme.chunk))


def _on_slices(run: RecordedRun, change: Compressor) -> Compressor:
    whole = codecs.on_slices(change, [len(part) for part in slices(run)])
    return lambda message: whole(message, 0, 0)


def direction(run: RecordedRun, scheme: Hyperparameters) -> Compressor:
    """Return the direction of a step that `step` names, as a function of the momentum."""
    return {"sign": np.sign, "plain": lambda mean: mean, "muon": steepest(run, scheme)}[scheme.step]


def steepest(run: RecordedRun, scheme: Hyperparameters) -> Compressor:
    """Return the function to the direction of Muon: U Vᵀ of each matrix, scaled, and signs of the other variables."""

    def muon(mean: np.ndarray) -> np.ndarray:
        cuts = np.cumsum([math.prod(shape) for shape in run.shapes])[:-1]
        parts = zip(np.split(mean, cuts), run.shapes, strict=True)
        return np.concatenate([_orthogonal(part, shape) if len(shape) == 2 else np.sign(part) for part, shape in parts])

    return muon


def _orthogonal(part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return 0.2 √max(n, m) O(M) for a matrix M [n, m]."""
    return 0.2 * math.sqrt(max(shape)) * orthogonal(part.reshape(shape)).ravel()


DEMO: dict[str, Any] = {
    **{"beta": "decay", "alpha": "subtraction"},
    **{"largest": largest_coefficients, "inverse": of_coefficients, "direction": direction},
    "senders": lambda run, s: s.mean_over == "senders",
}

SIGNS_OF_ADAM: dict[str, Any] = {
    **{"beta_1": "beta_1", "beta_2": "beta_2"},
    "compress": lambda run, s: synchronous_rules.scaled_sign(run.shapes),
    "compress_mean": lambda run, s: synchronous_rules.scaled_sign([part.shape for part in slices(run)]),
}


def of_messages(run: RecordedRun, scheme: Hyperparameters) -> Codec:
    """Return Q of messages, a function of (u, k, t): the codec that `compressor` names, which keeps no error itself."""
    if scheme.compressor == "float32":
        return lambda message, k, t: message
    return compressor(run, scheme.compressor, memory="yes")


CHOCO: dict[str, Any] = {"gamma": "consensus_rate", "compress": of_messages}


def random_elements(run: RecordedRun, scheme: Hyperparameters) -> Codec:
    """Return Q of random elements, a function of (u, k, t): some of u, times the number of all over theirs."""
    from ..contract.seeded import uniform_numbers  # not at the top: few algorithms are random

    size = len(run.start)
    kept = max(1, int(scheme.share * size))
    drawn = lambda k, t: uniform_numbers(run.seed, size, k, t)  # noqa: E731
    return lambda message, k, t: size / kept * codecs.random_elements(message, drawn(k, t), kept)


DIANA: dict[str, Any] = {
    "alpha": lambda run, s: s.share if s.memory_rate is None else s.memory_rate,
    "compress": random_elements,
}

EF21_MUON: dict[str, Any] = {
    "beta": "momentum",
    "compress": of_share,
    "compress_reply": lambda run, s: synchronous_rules.largest(max(1, int(s.reply_share * len(run.start)))),
    "direction": steepest,
}
