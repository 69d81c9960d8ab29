"""The named data sets.

Batches are functions of (seed, worker, step), see `dataset`, so that a recorded run can be replayed exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import UserError
from ..settings import STANDARD, using
from .mnist1d import mnist1d
from .problems import least_squares, logistic, quadratic
from .recipes import RECIPES, Dataset, make
from .sparse_data import libsvm
from .text import text


def _keras(name: str) -> Dataset:
    import keras

    try:
        with using(STANDARD):  # images are channels_last
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
    **RECIPES,
    **{f.__name__: f for f in (mnist1d, text, mnist, fashion_mnist, cifar10, libsvm)},
    **{f.__name__: f for f in (quadratic, least_squares, logistic)},
}


def load(text: str) -> Dataset:
    """Load or generate a data set by name and options: `digits`, `synthetic:examples=2000,features=50`."""
    return make(text, DATASETS)
