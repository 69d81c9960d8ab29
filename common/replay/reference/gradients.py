"""What all transcriptions share: batches and gradients of models, written by hand.

A `Gradient` g(x, k, t) is that of worker k's t-th batch at x: a function, so the same transcription serves a neural
network on recorded batches, a quadratic, or a list of gradients.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

import numpy as np

Gradient = Callable[[np.ndarray, int, int], np.ndarray]

GradientOnRows = Callable[[np.ndarray, np.ndarray], np.ndarray]  # of (parameters [P], rows of the data)


def rows(seed: int, k: int, examples: int, workers: int) -> np.ndarray:
    """Return the shard of worker k: the k-th of W equal parts of a permutation of all examples; the rest is unused."""
    size = examples // workers
    return np.random.default_rng([seed, 0]).permutation(examples)[k * size : (k + 1) * size]


def skewed_rows(seed: int, labels: np.ndarray, workers: int, alpha: float) -> list[np.ndarray]:
    """Return the shards of all workers, of equal size, with unequal labels by Hsu et al. (2019).

    The examples of each label lie in the order of the permutation. One after the other, each worker draws
    q ~ Dirichlet(alpha p), p the frequency of each label, then a multinomial count of each label, and takes these from
    the front. If a label is used up, missing examples are drawn again from the others, by q, or by their remaining
    numbers if q is zero for all of them. With alpha = 0 the shards are equal parts of the examples sorted by label.
    """
    rng = np.random.default_rng([seed, 0])
    permutation = rng.permutation(len(labels))
    queues = {label: [row for row in permutation if labels[row] == label] for label in sorted(set(labels.tolist()))}
    if alpha == 0:
        return np.split(np.concatenate([*queues.values()])[: len(labels) // workers * workers], workers)
    p, shards = np.array([len(queue) for queue in queues.values()]) / len(labels), []
    for _ in range(workers):
        q, shard = rng.dirichlet(alpha * p), [[] for _ in queues]
        while missing := len(labels) // workers - sum(map(len, shard)):
            weights = np.array([q_i if queue else 0.0 for q_i, queue in zip(q, queues.values(), strict=True)])
            weights = weights if weights.any() else np.array([float(len(queue)) for queue in queues.values()])
            draw = rng.multinomial(missing, weights / weights.sum())
            for part, queue, count in zip(shard, queues.values(), draw, strict=True):
                part += queue[:count]
                del queue[:count]
        shards.append(np.array([row for part in shard for row in part]))
    return shards


@functools.cache
def epoch(seed: int, k: int, number: int, shard: int) -> np.ndarray:
    """Return the order of the examples of worker k's shard in that epoch."""
    return np.random.default_rng([seed, 1 + k, number]).permutation(shard)


def batch(seed: int, k: int, t: int, shard: int, size: int) -> np.ndarray:
    """Return worker k's t-th batch, as positions in its shard; an incomplete batch at the end of an epoch is unused."""
    number, place = divmod(t, shard // size)
    return epoch(seed, k, number, shard)[place * size : (place + 1) * size]


def batch_gradient(
    on_rows: GradientOnRows,
    *,
    examples: int,
    workers: int,
    seed: int,
    batch_size: int,
    skew: tuple[np.ndarray, float] | None = None,
) -> Gradient:
    """Return the gradient of worker k's t-th batch at x, as a function of (x, k, t).

    With `skew`, a pair of labels and alpha, the shards have unequal labels.
    """
    if skew is None:
        shards = rows(seed, 0, examples, 1)[: examples // workers * workers].reshape(workers, -1)
    else:
        shards = skewed_rows(seed, skew[0], workers, skew[1])
    return lambda x, k, t: on_rows(x, shards[k][batch(seed, k, t, len(shards[k]), batch_size)])


_factor_bits: ContextVar[int | None] = ContextVar("bits of mantissa of factors", default=None)


@contextlib.contextmanager
def rounded_factors(bits: int | None) -> Iterator[None]:
    """Let `product` round its factors to so many bits of mantissa inside the context; None leaves them as they are."""
    token = _factor_bits.set(bits)
    try:
        yield
    finally:
        _factor_bits.reset(token)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a b. A GPU may round the factors of a product of matrices, but not sums, nor products of elements."""
    bits = _factor_bits.get()
    return a @ b if bits is None else with_mantissa(a, bits) @ with_mantissa(b, bits)


def with_mantissa(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Return numbers rounded to so many of float32's 23 bits of mantissa: to the nearest, to even in the middle."""
    words, dropped = np.asarray(numbers, np.float32).view(np.uint32), np.uint32(23 - bits)
    half_less_one, one = np.uint32((1 << dropped - 1) - 1), np.uint32(1)
    rounded = (words + half_less_one + ((words >> dropped) & one)) >> dropped << dropped
    return np.where(np.isfinite(numbers), rounded.view(np.float32), numbers).astype(numbers.dtype)


def mlp_gradient(x: np.ndarray, y: np.ndarray, sizes: Sequence[int]) -> GradientOnRows:
    """Return the gradient of the mean softmax cross-entropy of a tanh network, a function of parameters and rows.

    The flat vector holds W_1, b_1, W_2, b_2, ... with W_i of shape [in, out]. Computes in the precision of the vector.
    """

    def gradient(params: np.ndarray, rows: np.ndarray) -> np.ndarray:
        layers = _layers(params, sizes)
        activations = _activations(layers, x[rows])
        logits = activations[-1] - activations[-1].max(axis=1, keepdims=True)
        delta = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        delta[np.arange(len(rows)), y[rows]] -= 1
        delta /= len(rows)
        parts: list[np.ndarray] = []
        for i in range(len(layers) - 1, -1, -1):
            parts = [product(activations[i].T, delta).ravel(), delta.sum(axis=0), *parts]
            if i:
                delta = product(delta, layers[i][0].T) * (1 - activations[i] ** 2)
        return np.concatenate(parts)

    return gradient


def mlp_loss(x: np.ndarray, y: np.ndarray, sizes: Sequence[int]) -> Callable[[np.ndarray], float]:
    """Return the loss of `mlp_gradient` on all rows."""

    def loss(params: np.ndarray) -> float:
        logits = _activations(_layers(params, sizes), x)[-1]
        return float(np.mean(np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(y)), y]))

    return loss


def _layers(params: np.ndarray, sizes: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return W and b of each layer."""
    layers, start = [], 0
    for n, m in itertools.pairwise(sizes):
        layers.append((params[start : start + n * m].reshape(n, m), params[start + n * m : start + n * m + m]))
        start += n * m + m
    return layers


def _activations(layers: Sequence[tuple[np.ndarray, np.ndarray]], x: np.ndarray) -> list[np.ndarray]:
    """Return the activations of each layer, from the data to the logits."""
    activations = [x.astype(layers[0][0].dtype)]
    for i, (w, b) in enumerate(layers):
        z = product(activations[-1], w) + b
        activations.append(z if i == len(layers) - 1 else np.tanh(z))
    return activations


def sparse_logistic_gradient(indices: np.ndarray, values: np.ndarray, y: np.ndarray) -> GradientOnRows:
    """Return the gradient of the mean logistic loss log(1 + exp(-s z)), s = ±1, z = Σ values x[indices], on rows."""

    def gradient(params: np.ndarray, rows: np.ndarray) -> np.ndarray:
        g = np.zeros_like(params)
        for row in rows:
            sign = 2.0 * y[row] - 1
            z = sum(v * params[i] for i, v in zip(indices[row], values[row].astype(np.float64), strict=True))
            for i, v in zip(indices[row], values[row].astype(np.float64), strict=True):
                g[i] -= sign * v / (1 + np.exp(sign * z)) / len(rows)
        return g

    return gradient


def regularized(gradient: GradientOnRows, l2: float, clip_norm: float | None) -> GradientOnRows:
    """Return the gradient of the loss + l2/2 |x|², scaled down to norm `clip_norm` if it is longer."""

    def changed(params: np.ndarray, rows: np.ndarray) -> np.ndarray:
        g = gradient(params, rows) + l2 * params
        length = np.linalg.norm(g)
        return g if clip_norm is None or length <= clip_norm else g * (clip_norm / length)

    return changed
