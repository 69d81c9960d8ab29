"""The named data sets.

Batches are functions of (seed, worker, step), see `dataset`, so that a recorded run can be replayed exactly.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ..errors import UserError
from ..files import standard_error_to
from ..spec import parse
from .dataset import Dataset, check_room
from .mnist1d import mnist1d
from .sparse_data import libsvm, sparse
from .text import text


def digits() -> Dataset:
    """Load UCI handwritten digits, bundled with scikit-learn: 1437 training and 360 test images of 8x8."""
    installed = find_spec("sklearn")  # importing scikit-learn takes ten times as long as reading the file
    if installed is None or installed.origin is None:
        raise UserError("the data set digits comes with scikit-learn, which is not installed: pip install scikit-learn")
    with gzip.open(Path(installed.origin).parent / "datasets" / "data" / "digits.csv.gz") as file:
        rows = np.loadtxt(file, np.int32, delimiter=",")
    x, y = (rows[:, :-1] / 16).astype(np.float32), rows[:, -1]
    order = np.random.default_rng(0).permutation(len(x))  # the split is part of the data set: a fixed seed
    train, test = order[:1437], order[1437:]
    return Dataset((x[train], y[train]), (x[test], y[test]), classes=10)


ROWS = 1 << 16  # generated examples at once


def synthetic(
    *, examples: int = 8192, features: int = 32, classes: int = 10, noise: float = 0.5, test: int = 0
) -> Dataset:
    """Generate Gaussian clusters, two to a class, around unit vectors; `test` test examples besides, or 1/4 as many."""
    total = examples + (test or max(1, examples // 4))
    check_room(total, (total + 2 * classes) * features)  # including the centers of the clusters
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((2 * classes, features))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    cluster = rng.integers(2 * classes, size=total)
    x, y = np.empty((total, features), np.float32), (cluster % classes).astype(np.int32)
    for rows in (slice(start, start + ROWS) for start in range(0, total, ROWS)):  # temporary arrays are large
        shift = rng.standard_normal((len(cluster[rows]), features))
        x[rows] = centers[cluster[rows]] + noise * shift / np.sqrt(features)
    return Dataset((x[:examples], y[:examples]), (x[examples:], y[examples:]), classes=classes)


def quiet() -> AbstractContextManager[None]:
    """Suppress the messages that TensorFlow's libraries print when they are imported, while the context is open."""
    return standard_error_to(Path(os.devnull))


def _keras(name: str) -> Dataset:
    with quiet():  # not imported lazily, because the import itself prints
        import keras

    try:
        (x, y), (x_test, y_test) = getattr(keras.datasets, name).load_data()
    except Exception as error:  # urllib and ssl raise many kinds of errors
        raise UserError(
            f"data set {name} is not in the Keras cache and could not be downloaded "
            f"({str(error).splitlines()[0]}). Run once with network access, copy its file into "
            f"~/.keras/datasets, or use --dataset digits"
        ) from None
    channels = [np.asarray(a, np.float32).reshape(*a.shape[:3], -1) / 255 for a in (x, x_test)]
    labels = [np.asarray(a, np.int32).reshape(-1) for a in (y, y_test)]
    return Dataset((channels[0], labels[0]), (channels[1], labels[1]), classes=10)


def mnist() -> Dataset:
    """Load handwritten digits, 60 000 training and 10 000 test images of 28x28 (needs the network once)."""
    return _keras("mnist")


def fashion_mnist() -> Dataset:
    """Load Zalando's articles, 60 000 training and 10 000 test images of 28x28 (needs the network once)."""
    return _keras("fashion_mnist")


def cifar10() -> Dataset:
    """Load CIFAR-10, 50 000 training and 10 000 test images of 32x32x3 (needs the network once)."""
    return _keras("cifar10")


DATASETS: dict[str, Callable[..., Dataset]] = {
    f.__name__: f for f in (digits, synthetic, mnist1d, text, mnist, fashion_mnist, cifar10, sparse, libsvm)
}


def load(spec: str) -> Dataset:
    """Load or generate a data set by name and options: `digits`, `synthetic:examples=2000,features=50`."""
    name, options = parse("data set", spec, DATASETS)
    try:
        return DATASETS[name](**options)
    except UserError:
        raise
    except (MemoryError, OverflowError, ValueError) as error:  # NumPy raises all of these for large sizes
        raise UserError(f"data set {spec!r} cannot be made: {error}") from None
