"""Problems on which the theory of distributed SGD is written, all of them generated.

The quadratic is Nesterov's worst function (*Introductory Lectures on Convex Optimization*, 2004, section 2.1.2), on
which papers on asynchronous SGD compare (Tyurin, Richtárik, arXiv:2305.12387; Maranjyan et al., arXiv:2501.16168):

    f(x) = ½ xᵀA x − bᵀx,   A = ¼ tridiag(−1, 2, −1),   b = ¼ (−1, 0, ..., 0),   x⁰ = (√d, 0, ..., 0)

with the minimum at xᵢ* = i / (d + 1) − 1. An example is a number n; the gradient of its loss is

    A (x − s 1) − b + ξ,   s = n mod M − (M − 1) / 2,   ξᵢ uniform in noise · (−√3, √3)

so that examples n, n + M, ... have a minimum of their own, at x* + s 1, and the noise of one element has the deviation
`noise`. The mean of the losses of all examples is f(x) − f*, up to the mean of ξᵀ(x − x*).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import nearest
from ..contract.seeded import uniform, uniform_numbers
from ..errors import UserError
from ..lazy import keras, tf
from .recipes import Dataset, check_room

LIKE = {  # examples, features, and features of an example that are not zero, of data sets on the page of LIBSVM
    "a9a": (32561, 123, 14),
    "mushrooms": (8124, 112, 21),
    "phishing": (11055, 68, 30),
}

NOISE_SEED = 0  # the noise is a part of the data set

NO_NOISE = -1  # the number of the only test example, whose loss is f(x) - f*


def quadratic(*, dim: int = 1729, noise: float = 0.0, minima: int = 1, examples: int = 65536) -> Dataset:
    """Generate the numbers of examples; the label of an example is the number of its minimum.

    Args:
        dim: number of parameters, d.
        noise: standard deviation of an element of the gradient of one example.
        minima: number of different minima, M; with `skew="sorted"` and as many workers each worker has its own.
        examples: number of examples, a multiple of `minima`; a noise vector is repeated after an epoch.
    """
    check_room(examples, dim + examples)
    if not minima <= examples:
        raise UserError(f"examples must be at least minima. Received: examples={examples}, minima={minima}")
    numbers = np.arange(examples - examples % minima, dtype=np.int32)
    test = np.array([[NO_NOISE]], np.int32), np.zeros(1, np.int32)
    model = f"quadratic:dim={dim},noise={noise!r},minima={minima}"
    return Dataset((numbers[:, None], numbers % minima), test, classes=minima, model=model)


def quadratic_noise(number: int, dim: int) -> np.ndarray:
    """Return ξ of an example for a `noise` of 1, [dim], in NumPy."""
    return np.sqrt(12) * (uniform_numbers(NOISE_SEED, dim, number).astype(np.float64) - 0.5)


def quadratic_model(
    shape: tuple[int, ...], classes: int, *, dim: int = 1729, noise: float = 0.0, minima: int = 1
) -> Any:
    """Build a model whose parameters are x, and whose output for an example is its loss."""
    start = np.sqrt(dim) * np.eye(1, dim)[0]
    minimum = np.arange(1, dim + 1, dtype=np.float32) / np.float32(dim + 1) - 1
    edges = (np.eye(1, dim)[0] + np.eye(1, dim, dim - 1)[0]).astype(np.float32) / 4  # A 1

    class Point(keras.layers.Layer):
        """A point x."""

        def build(self, _: Any) -> None:
            self.x = self.add_weight(shape=(dim,), initializer=lambda shape, dtype: tf.constant(start, dtype))

        def call(self, numbers: Any) -> Any:
            """Return f(x) − f* + (ξ − s A 1)ᵀ(x − x*) for each number, [B, 1] as the numbers."""
            offset, s = self.x - minimum, tf.cast(numbers % minima, tf.float32) - (minima - 1) / 2
            slope = -s * edges + noise * 12**0.5 * (uniform(NOISE_SEED, dim, numbers) - 0.5)
            random = tf.where(numbers >= 0, tf.reduce_sum(slope * offset, 1, keepdims=True), 0.0)
            return tf.reduce_sum(offset * tridiagonal(offset)) / 2 + random

    numbers = keras.Input(shape, dtype="int32")
    return keras.Model(numbers, Point()(numbers))


def tridiagonal(v: Any) -> Any:
    """Return A v, of a tensor [d]."""
    return (2 * v - tf.pad(v[1:], [[0, 1]]) - tf.pad(v[:-1], [[1, 0]])) / 4


def value_of_output(y: Any, output: Any) -> Any:
    """Return the loss of a model whose output is the loss."""
    return output


def least_squares(*, examples: int = 4096, features: int = 64, noise: float = 0.1, condition: float = 1.0) -> Dataset:
    """Generate Gaussian examples x with y = wᵀx + noise · N(0, 1), and 1/4 as many test examples.

    The loss is the mean of (wᵀx − y)²; the true w is Gaussian, of length 1. The variances of the features fall from 1
    to 1 / `condition`.
    """
    total = examples + max(1, examples // 4)
    check_room(total, total * (features + 1))
    if condition < 1:
        raise UserError(f"condition must be at least 1. Received: condition={condition:g}")
    rng = np.random.default_rng(0)
    w = rng.standard_normal(features)
    x = rng.standard_normal((total, features), np.float32)
    x *= np.float32(condition) ** -np.linspace(0, 0.5, features, dtype=np.float32)
    y = (x @ (w / np.linalg.norm(w)) + noise * rng.standard_normal(total)).astype(np.float32)
    return Dataset((x[:examples], y[:examples]), (x[examples:], y[examples:]), classes=0, model="linear")


def linear_model(shape: tuple[int, ...], classes: int) -> Any:
    """Build linear regression without a bias, which begins at zero."""
    return keras.Sequential([keras.Input(shape), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])


def logistic(*, like: str = "a9a", noise: float = 0.25) -> Dataset:
    """Generate examples of the size and sparsity of a data set of LIBSVM, and 1/4 as many test examples.

    Features that are not zero are 1, at random places. Labels are drawn with the probability that a random logistic
    model gives them; its logits are divided by `noise`.
    """
    if like not in LIKE:
        raise UserError(f"data set logistic has no likeness of {like!r}. {nearest(like, LIKE)}")
    examples, features, active = LIKE[like]
    total = examples + examples // 4
    rng = np.random.default_rng(0)
    indices = np.sort(rng.random((total, features)).argpartition(active, 1)[:, :active], 1).astype(np.int32)
    values = np.ones(indices.shape, np.float32)
    weights = rng.standard_normal(features) / np.sqrt(active)
    y = (rng.random(total) < 1 / (1 + np.exp(-weights[indices].sum(1) / noise))).astype(np.int32)
    (train, held_out), x = np.s_[:examples, examples:], (indices, values)
    return Dataset((tuple(a[train] for a in x), y[train]), (tuple(a[held_out] for a in x), y[held_out]), 2, features)
