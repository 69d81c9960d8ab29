"""The data sets that NumPy alone reads or generates: the same on every machine, and in a replay without TensorFlow."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..spec import parse

MOST_EXAMPLES, MOST_NUMBERS = 10**7, 10**9  # of generated data: a foreign run directory may ask for any number

ROWS = 1 << 16  # generated examples at once


@dataclass(frozen=True)
class Dataset:
    """Arrays whose first axis counts examples; x and y may be nested (tuples, dicts) as Keras takes them."""

    train: Any  # (x, y) or (x, y, sample_weight); of the user's file also (x,), or a function
    test: Any
    classes: int  # 0 if y does not hold class numbers
    features: int = 0  # of a sparse problem: x is (indices, values)
    text: bool = False  # x and y are numbers of characters, [examples, context] each
    model: str = ""  # the only model for these data, with its options

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return (self.features,) if self.features else self.train[0].shape[1:]

    @property
    def kind(self) -> str:
        """Kind of input that a model must accept: 'text', 'sparse', 'dense', or the name of the only model."""
        return self.model.partition(":")[0] or ("text" if self.text else "sparse" if self.features else "dense")


def check_room(examples: int, numbers: int) -> None:
    """Raise `UserError` if a data set to be generated has too many examples or numbers."""
    for unit, count, most in (("examples", examples, MOST_EXAMPLES), ("numbers", numbers, MOST_NUMBERS)):
        if count > most:
            raise UserError(f"generated data have at most {most} {unit}: ask for fewer. Received: {count} {unit}")


def digits() -> Dataset:
    """Load UCI handwritten digits, bundled with scikit-learn: 1437 training and 360 test images of 8x8."""
    installed = find_spec("sklearn")  # reads the file alone: importing scikit-learn takes ten times as long
    if installed is None or installed.origin is None:
        raise UserError("the data set digits comes with scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(installed.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        raise UserError(f"the data set digits is missing in this scikit-learn: install another. Received: no {path}")
    with gzip.open(path) as file:
        rows = np.loadtxt(file, np.int32, delimiter=",")
    x, y = (rows[:, :-1] / 16).astype(np.float32), rows[:, -1]
    order = np.random.default_rng(0).permutation(len(x))  # the split is part of the data set: a fixed seed
    train, test = order[:1437], order[1437:]
    return Dataset((x[train], y[train]), (x[test], y[test]), classes=10)


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
        x[rows] = centers[cluster[rows]] + noise * rng.standard_normal((len(x[rows]), features)) / np.sqrt(features)
    return Dataset((x[:examples], y[:examples]), (x[examples:], y[examples:]), classes=classes)


def sparse(
    *, examples: int = 8192, features: int = 2048, active: int = 8, collisions: float = 0.0, noise: float = 0.25
) -> Dataset:
    """Generate examples with `active` coordinates each, and 1/4 as many test examples.

    Each coordinate is, with probability `collisions`, one of the first 2 * active, else any other. Labels are drawn
    with the probability that a random logistic model gives them; its logits are divided by `noise`.
    """
    hot = 2 * active
    if features < 2 * hot:
        raise UserError(f"features must be at least 4 * active. Received: features={features}, active={active}")
    if not collisions <= 1:
        raise UserError(f"collisions must be at most 1, as it is a probability. Received: collisions={collisions}")
    total = examples + max(1, examples // 4)
    check_room(total, 2 * total * active + features)
    rng = np.random.default_rng(0)
    indices = np.empty((total, active), np.int32)
    for row, from_hot in zip(indices, rng.binomial(active, collisions, total), strict=True):
        row[:from_hot] = rng.choice(hot, from_hot, replace=False, shuffle=False)
        row[from_hot:] = hot + rng.choice(features - hot, active - from_hot, replace=False, shuffle=False)
    values = rng.choice([-1, 1], indices.shape).astype(np.float32)
    weights = rng.standard_normal(features) / np.sqrt(active)
    logits = (weights[indices] * values).sum(1) / noise
    y = (rng.random(total) < 1 / (1 + np.exp(-logits))).astype(np.int32)
    (train, held_out), x = np.s_[:examples, examples:], (indices, values)
    return Dataset((tuple(a[train] for a in x), y[train]), (tuple(a[held_out] for a in x), y[held_out]), 2, features)


RECIPES: Mapping[str, Callable[..., Dataset]] = {"digits": digits, "synthetic": synthetic, "sparse": sparse}


def make(text: str, recipes: Mapping[str, Callable[..., Dataset]] = RECIPES) -> Dataset:
    """Load or generate a data set by name and options: `digits`, `synthetic:examples=2000,features=50`."""
    name, options = parse("data set", text, recipes)
    try:
        return recipes[name](**options)
    except UserError:
        raise
    except (MemoryError, OverflowError, ValueError) as error:  # NumPy raises all of these for large sizes
        raise UserError(f"data set {text!r} cannot be made: {error}") from None
