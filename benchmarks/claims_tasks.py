"""The problems on which the papers' claims are measured: data without an end, and their gradients.

All is NumPy but for the text, whose gradients are Keras'.

clusters    the main benchmark's: 16 noisy Gaussian clusters in 8 classes, a tanh network 20-32-8
stretched   the same, its features scaled from 1 down to 1/100: badly conditioned
wide        the same, a tanh network 20-128-128-8 (20,232 parameters): larger matrices
shards      the same as clusters, but each worker, or client, has 160 examples, and sees them again and again
dirichlet   the same, with unequal labels: `--skew dirichlet:alpha=0.1`
digits      1437 images of 8x8, a tanh network 64-32-10: few examples, seen again and again
rare        sparse logistic regression, two examples seldom have a coordinate in common
certain     the same, they nearly always have
words       the same, two of its four coordinates are of 8 frequent ones
text        characters of Python's standard library, a small transformer (20,097 parameters)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..common.cli.imports import import_tensorflow
from ..common.data.models import ModelRecipe
from ..common.data.named import load
from ..common.data.text import KINDS
from ..common.lazy import tf
from ..common.replay.reference import gradients
from ..common.worker.flat_model import unpack

FEATURES, CLASSES, HIDDEN, NOISE = 20, 8, 32, 1.5

SHARD = 160  # examples of a worker or client that has its own

TEST = 2048  # examples that are not trained on

TEST_SEED = 10**6

CONTEXT, LANGUAGE_TEST = 32, 512  # characters of an example; examples of the test text
TRANSFORMER = "transformer:layers=1,width=32,heads=2"

SPARSE = "sparse:examples=16384,features=1024,active=4,noise=1"


@dataclass(frozen=True)
class Task:
    """A problem for some workers.

    Attributes:
        start: parameters, [P].
        gradient: of worker k's t-th batch at x, as a function of (x, k, t).
        measure: test loss and test accuracy (NaN if there is none) at x.
        shapes: shapes of the model's variables, which lie one after the other; none where no algorithm asks for them.
    """

    start: np.ndarray
    gradient: gradients.Gradient
    measure: Callable[[np.ndarray], tuple[float, float]]
    shapes: Sequence[tuple[int, ...]] = ()


def task(name: str, *, workers: int, steps: int, batch: int, seed: int) -> Task:
    """Return the problem of that name; the seed decides on initial parameters, examples and batches.

    Args:
        name: one of the above.
        workers: W.
        steps: the most that a worker does. A worker never sees an example of `clusters`, `stretched` or `wide` twice.
        batch: examples of each batch.
        seed: of all that is drawn.
    """
    return TASKS[name](workers, steps, batch, seed)


def _endless(scales: np.ndarray, *hidden: int) -> Callable[[int, int, int, int], Task]:
    def make(workers: int, steps: int, batch: int, seed: int) -> Task:
        sizes = [FEATURES, *hidden, CLASSES]
        x, y = _clusters(workers * steps * batch, seed)
        on_rows = gradients.mlp_gradient(x * scales, y, sizes)

        def gradient(params: np.ndarray, k: int, t: int) -> np.ndarray:
            first = (k * steps + t) * batch
            return on_rows(params, np.arange(first, first + batch))

        test, labels = _clusters(TEST, TEST_SEED)
        shapes = [shape for n, m in itertools.pairwise(sizes) for shape in ((n, m), (m,))]
        return Task(_initial(sizes, seed), gradient, _classification(test * scales, labels, sizes), shapes)

    return make


def _shards(alpha: float | None) -> Callable[[int, int, int, int], Task]:
    def make(workers: int, steps: int, batch: int, seed: int) -> Task:
        del steps
        sizes = [FEATURES, HIDDEN, CLASSES]
        x, y = _clusters(workers * SHARD, seed)
        on_rows, skew = gradients.mlp_gradient(x, y, sizes), None if alpha is None else (y, alpha)
        gradient = gradients.batch_gradient(
            on_rows, examples=len(x), workers=workers, seed=seed, batch_size=batch, skew=skew
        )
        return Task(_initial(sizes, seed), gradient, _classification(*_clusters(TEST, TEST_SEED), sizes))

    return make


def _clusters(examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Make clusters as `synthetic` does, but for the seed of the examples."""
    centers = np.random.default_rng(0).standard_normal((2 * CLASSES, FEATURES))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    rng = np.random.default_rng([seed, 7])
    cluster = rng.integers(2 * CLASSES, size=examples)
    shift = rng.standard_normal((examples, FEATURES), dtype=np.float32)
    return centers[cluster] + NOISE / np.sqrt(FEATURES) * shift, cluster % CLASSES


def _digits(workers: int, steps: int, batch: int, seed: int) -> Task:
    del steps
    data = load("digits")
    (x, y), (test, labels) = data.train, data.test
    sizes = [64, HIDDEN, data.classes]
    on_rows = gradients.mlp_gradient(x.reshape(len(x), -1), y, sizes)
    gradient = gradients.batch_gradient(on_rows, examples=len(x), workers=workers, seed=seed, batch_size=batch)
    return Task(_initial(sizes, seed), gradient, _classification(test.reshape(len(test), -1), labels, sizes))


def _sparse(options: str) -> Callable[[int, int, int, int], Task]:
    def make(workers: int, steps: int, batch: int, seed: int) -> Task:
        del steps
        (indices, values), y = _sparse_data(options)
        on_rows = gradients.sparse_logistic_gradient(indices, values, y)
        gradient = gradients.batch_gradient(on_rows, examples=len(y), workers=workers, seed=seed, batch_size=batch)

        def measure(params: np.ndarray) -> tuple[float, float]:
            """Measure on the training data: Hogwild's claim is about them."""
            logits = (params[indices] * values).sum(1)
            return float(np.logaddexp(0, np.where(y == 1, -logits, logits)).mean()), np.nan

        return Task(np.zeros(1024), gradient, measure)

    return make


def _text(workers: int, steps: int, batch: int, seed: int) -> Task:
    """Make the text problem: no example is seen twice; which worker gets which is drawn."""
    examples = workers * steps * batch
    data = load(f"text:context={CONTEXT},characters={max(examples, 8 * LANGUAGE_TEST) * CONTEXT + 1}")
    (x, y), (test, labels) = data.train, (part[:LANGUAGE_TEST] for part in data.test)
    order = np.random.default_rng([seed, 7]).permutation(len(x))
    value, slope = _transformer()

    def gradient(params: np.ndarray, k: int, t: int) -> np.ndarray:
        first = (k * steps + t) * batch
        rows = order[first : first + batch]
        return slope(params, x[rows], y[rows])

    model = _transformer_recipe(seed).flat()
    return Task(model.pack(), gradient, lambda params: (value(params, test, labels), np.nan), model.shapes)


def _transformer_recipe(seed: int) -> ModelRecipe:
    return ModelRecipe.named(TRANSFORMER, (CONTEXT,), KINDS, seed)


@cache
def _transformer() -> tuple[Callable[..., float], Callable[..., np.ndarray]]:
    """Compute loss and gradient at (params, x, y), of Keras' model on one core: processes have a run each."""
    import_tensorflow()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model = _transformer_recipe(0).flat()

    @tf.function(autograph=False, reduce_retracing=True)
    def both(params: Any, x: Any, y: Any) -> Any:
        value, parts, *_ = model.gradient(params, model.pack_state(), [], [], (x, y))
        return value, tf.concat(parts, 0)

    @tf.function(autograph=False)
    def loss(params: Any, x: Any, y: Any) -> Any:
        return model.model.loss(y, model.model.stateless_call(unpack(params, model.shapes), [], x, training=False)[0])

    def slope(params: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return both(params.astype(np.float32), x, y)[1].numpy().astype(np.float64)

    return lambda params, x, y: float(loss(params.astype(np.float32), x, y)), slope


@cache
def _sparse_data(options: str) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    return load(SPARSE + options).train


def _initial(sizes: list[int], seed: int) -> np.ndarray:
    """Draw weights as Glorot and Bengio do, uniformly; biases are zero."""
    rng, parts = np.random.default_rng([seed, 8]), []
    for n, m in itertools.pairwise(sizes):
        limit = np.sqrt(6 / (n + m))
        parts += [rng.uniform(-limit, limit, n * m), np.zeros(m)]
    return np.concatenate(parts)


def _classification(x: np.ndarray, y: np.ndarray, sizes: list[int]) -> Callable[[np.ndarray], tuple[float, float]]:
    """Return mean cross-entropy and accuracy of a tanh network."""

    def measure(params: np.ndarray) -> tuple[float, float]:
        out, start = x, 0
        for i, (n, m) in enumerate(shapes := list(itertools.pairwise(sizes))):
            weights, start = params[start : start + n * m].reshape(n, m), start + n * m
            out, start = out @ weights + params[start : start + m], start + m
            out = out if i == len(shapes) - 1 else np.tanh(out)
        top = out.max(1)
        losses = top + np.log(np.exp(out - top[:, None]).sum(1)) - out[np.arange(len(y)), y]
        return float(losses.mean()), float((out.argmax(1) == y).mean())

    return measure


TASKS: dict[str, Callable[[int, int, int, int], Task]] = {
    "clusters": _endless(np.ones(FEATURES), HIDDEN),
    "stretched": _endless(10 ** -np.linspace(0, 2, FEATURES), HIDDEN),
    "wide": _endless(np.ones(FEATURES), 128, 128),
    "shards": _shards(None),
    "dirichlet": _shards(0.1),
    "digits": _digits,
    "rare": _sparse(""),
    "certain": _sparse(",collisions=1"),
    "words": _sparse(",collisions=0.5"),
    "text": _text,
}
