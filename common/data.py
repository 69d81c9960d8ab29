"""Data: named data sets, the shard of each worker, and which examples make up a batch.

A batch is a function of (seed, worker, step), so that a recorded run can be replayed exactly.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import UserError
from .sparse import libsvm, sparse
from .spec import parse


@dataclass(frozen=True)
class Dataset:
    """Arrays whose first axis counts examples; x and y may be nested (tuples, dicts) as Keras takes them."""

    train: tuple[Any, ...]  # (x, y) or (x, y, sample_weight)
    test: tuple[Any, ...]
    classes: int
    features: int = 0  # of a sparse problem: x is (indices, values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return (self.features,) if self.features else self.train[0].shape[1:]


def digits() -> Dataset:
    """UCI handwritten digits, bundled with scikit-learn: 1437 training and 360 test images of 8x8."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(x))  # the split is part of the data set: always the same
    train, test = order[:1437], order[1437:]
    return Dataset((x[train], y[train]), (x[test], y[test]), classes=10)


def synthetic(*, examples: int = 8192, features: int = 32, classes: int = 10, noise: float = 0.5) -> Dataset:
    """Gaussian clusters, two to a class, around unit vectors; 1/4 as many test examples are added."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((2 * classes, features))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    total = examples + max(1, examples // 4)
    cluster = rng.integers(2 * classes, size=total)
    x = centers[cluster] + noise * rng.standard_normal((total, features)) / np.sqrt(features)
    x, y = x.astype(np.float32), (cluster % classes).astype(np.int32)
    return Dataset((x[:examples], y[:examples]), (x[examples:], y[examples:]), classes=classes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what TensorFlow's libraries print at import off the terminal."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _keras(name: str) -> Dataset:
    with _quiet():
        import keras

    try:
        (x, y), (x_test, y_test) = getattr(keras.datasets, name).load_data()
    except Exception as error:  # urllib and ssl raise many kinds
        raise UserError(
            f"data set {name} is not in the Keras cache and could not be downloaded "
            f"({str(error).splitlines()[0]}). Run once with network access, copy its file into "
            f"~/.keras/datasets, or use --dataset digits"
        ) from None
    channels = [np.asarray(a, np.float32).reshape(*a.shape[:3], -1) / 255 for a in (x, x_test)]
    labels = [np.asarray(a, np.int32).reshape(-1) for a in (y, y_test)]
    return Dataset((channels[0], labels[0]), (channels[1], labels[1]), classes=10)


def mnist() -> Dataset:
    """Handwritten digits, 60 000 training and 10 000 test images of 28x28 (needs the network once)."""
    return _keras("mnist")


def fashion_mnist() -> Dataset:
    """Zalando's articles, 60 000 training and 10 000 test images of 28x28 (needs the network once)."""
    return _keras("fashion_mnist")


def cifar10() -> Dataset:
    """CIFAR-10, 50 000 training and 10 000 test images of 32x32x3 (needs the network once)."""
    return _keras("cifar10")


DATASETS: dict[str, Callable[..., Dataset]] = {
    f.__name__: f for f in (digits, synthetic, mnist, fashion_mnist, cifar10, sparse, libsvm)
}


def load(text: str) -> Dataset:
    """The data set of that name, with its options: `digits`, `synthetic:examples=2000,features=50`."""
    name, options = parse("data set", text, DATASETS)
    try:
        return DATASETS[name](**options)
    except UserError:
        raise
    except (MemoryError, OverflowError, ValueError) as error:  # NumPy has many words for too large
        raise UserError(f"data set {text!r} cannot be made: {error}") from None


def leaves(arrays: Any) -> list[Any]:
    """The arrays of nested tuples, lists and dicts, in TensorFlow's order (dicts by sorted key)."""
    if isinstance(arrays, dict):
        return [leaf for key in sorted(arrays) for leaf in leaves(arrays[key])]
    if isinstance(arrays, tuple | list):
        return [leaf for item in arrays for leaf in leaves(item)]
    return [arrays]


def is_arrays(data: Any) -> bool:
    """True for nested NumPy arrays."""
    return all(isinstance(leaf, np.ndarray) for leaf in leaves(data))


def split_off(data: tuple[Any, ...], fraction: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The first examples, and the last `fraction` of them, as Keras splits them."""
    import keras

    examples = num_examples(data)
    at = int(examples * (1 - fraction))
    if not 0 < at < examples:
        raise UserError(f"validation_split must leave examples on both sides. Received: {fraction} of {examples}")
    first, last = (keras.tree.map_structure(lambda a, part=part: a[part], data) for part in np.s_[:at, at:])
    return first, last


def weighted(data: tuple[Any, ...], class_weight: Mapping[int, float]) -> tuple[Any, ...]:
    """The data with the weight of its class for each example: y holds class numbers, or one-hot rows."""
    if len(data) == 3:
        raise UserError("class_weight and sample_weight cannot be used at the same time: multiply them yourself")
    x, y = data
    if not isinstance(y, np.ndarray):
        raise UserError(f"class_weight needs a model with one output. Received: y is a {type(y).__name__}")
    labels = y.reshape(len(y), -1)
    labels = labels.argmax(1) if labels.shape[1] > 1 else np.round(labels[:, 0]).astype(int)
    kinds, where = np.unique(labels, return_inverse=True)
    return x, y, np.array([class_weight.get(int(kind), 1.0) for kind in kinds], np.float32)[where]


def num_examples(arrays: Any) -> int:
    """Length of the first axis, which all arrays must share."""
    lengths = {len(a) for a in leaves(arrays)}
    if len(lengths) != 1:
        raise UserError(f"x and y must hold the same number of examples. Received lengths: {sorted(lengths)}")
    return lengths.pop()


def shard_rows(examples: int, worker: int, workers: int, seed: int) -> np.ndarray:
    """Row numbers of one worker's shard: disjoint from the others', of equal size, shuffled by the seed."""
    size = examples // workers
    return np.random.default_rng([seed, 0]).permutation(examples)[worker * size : (worker + 1) * size]


def batches(shard: int, batch_size: int, worker: int, seed: int, done: int = 0) -> Iterator[np.ndarray]:
    """Endless batches after the first `done`, as positions within the shard, [batch_size] each.

    Every epoch is shuffled anew, by seed, worker and epoch alone: to begin in the middle costs one epoch at most.
    """
    first, step = divmod(done, shard // batch_size)
    for epoch in itertools.count(first):
        order = np.random.default_rng([seed, 1 + worker, epoch]).permutation(shard).astype(np.int32)
        for start in range(step * batch_size, shard - batch_size + 1, batch_size):
            yield order[start : start + batch_size]
        step = 0
