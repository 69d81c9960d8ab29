"""Gradients of the replayed problems, written by hand: functions of (parameters [P], rows of the data)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

GradientOnRows = Callable[[np.ndarray, np.ndarray], np.ndarray]


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
            parts = [(activations[i].T @ delta).ravel(), delta.sum(axis=0), *parts]
            if i:
                delta = (delta @ layers[i][0].T) * (1 - activations[i] ** 2)
        return np.concatenate(parts)

    return gradient


def mlp_loss(x: np.ndarray, y: np.ndarray, sizes: Sequence[int]) -> Callable[[np.ndarray], float]:
    """Return the loss of `mlp_gradient` on all rows."""

    def loss(params: np.ndarray) -> float:
        logits = _activations(_layers(params, sizes), x)[-1]
        logits = logits - logits.max(axis=1, keepdims=True)
        return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]))

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
        z = activations[-1] @ w + b
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
