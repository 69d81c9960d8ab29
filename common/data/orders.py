"""The random numbers of a data function: orders are equal on all workers, and what is drawn for an element is not.

Each worker calls the function and takes its share of the data set. If each of them shuffled for itself, the shares
would overlap, and some examples would be in none. So what the call draws follows from the run's seed alone: the seeds
of `shuffle`, `list_files` and `sample_from_datasets`, a permutation by `numpy.random`, `random` or `tf.random`. What a
function of the data set draws later, as an augmentation in `map` does, follows from seed and worker.

TensorFlow gives an operation its seed when it is made, so that the call decides both.
"""

from __future__ import annotations

import contextlib
import importlib
import random
import threading
import zlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..lazy import tf
from ..messages.torch_tensors import seed_torch

_drawing: ContextVar[Draws | None] = ContextVar("the call of a data function", default=None)
_patching = threading.Lock()


class Draws:
    """The seeds of the operations that one call of a data function makes.

    Args:
        seed: seed of the run.
        worker: index of the worker.
    """

    def __init__(self, seed: int, worker: int):
        self.seed, self.worker, self.count, self.in_order = seed, worker, 0, False

    def seeds(self, graph: Any) -> tuple[int, int]:
        """Return the two seeds of an operation to which the function gives none."""
        self.count += 1
        of_element = graph.building_function and not self.in_order
        key = [self.seed, graph.seed or 0, self.count, *([self.worker + 1] if of_element else [])]
        first, second = np.random.SeedSequence(key).generate_state(2) >> 1  # not negative as int32
        return int(first) or 1, int(second)


class DrawnSeeds:
    """The seeds of `keras.random` without a seed: drawn by TensorFlow, in the call or for each element.

    Keras' own generator is a variable of the program, which no graph can use.
    """

    def next(self, ordered: bool = True) -> Any:
        """Return the next seed, as `keras.random.SeedGenerator` does."""
        return tf.random.uniform([2], maxval=np.iinfo(np.int32).max, dtype=tf.int32)


@contextlib.contextmanager
def agreeing(seed: int, worker: int) -> Iterator[None]:
    """Call a data function inside this context, in a graph: see the module.

    The states of `numpy.random` and `random`, and the seed of the graph, are then those that they were.

    Args:
        seed: seed of the run.
        worker: index of the worker.
    """
    _patch()
    graph = tf.compat.v1.get_default_graph()
    before = np.random.get_state(), random.getstate(), graph.seed
    graph.seed = None
    seed_generators(seed, "data function")
    token = _drawing.set(Draws(seed, worker))
    try:
        yield
    finally:
        _drawing.reset(token)
        np.random.set_state(before[0])
        random.setstate(before[1])
        graph.seed = before[2]


def seed_generators(seed: int, owner: str) -> None:
    """Seed `numpy.random`, `random`, and PyTorch if it is imported, with the run's seed and a name.

    A fork has the generators of its parent: without this, all workers would draw the same numbers.
    """
    state = np.random.SeedSequence([seed, zlib.crc32(owner.encode())]).generate_state(8)
    np.random.seed(state[:4])
    random.seed(state[4:].tobytes())
    seed_torch(int(state[0]))


def _patch() -> None:
    """Let TensorFlow ask `Draws` for seeds inside of `agreeing`, and only there."""
    from tensorflow.python.data.util import random_seed as of_data
    from tensorflow.python.framework import random_seed as of_operations

    of_keras: Any = importlib.import_module("keras.src.random.seed_generator")
    with _patching:
        if hasattr(of_operations.get_seed, "distsgd"):
            return
        usual, usual_of_data = of_operations.get_seed, of_data.get_seed

        def get_seed(op_seed: Any) -> tuple[Any, Any]:
            draws = _drawing.get()
            if draws is None or op_seed is not None:
                return usual(op_seed)
            return draws.seeds(tf.compat.v1.get_default_graph())

        def get_seed_of_data(seed: Any) -> tuple[Any, Any]:
            draws = _drawing.get()
            if draws is None:
                return usual_of_data(seed)
            draws.in_order, before = True, draws.in_order
            try:
                return usual_of_data(seed)
            finally:
                draws.in_order = before

        usual_of_keras = of_keras.global_seed_generator
        of_keras.global_seed_generator = lambda: usual_of_keras() if _drawing.get() is None else DrawnSeeds()
        get_seed.distsgd = True  # type: ignore[attr-defined]
        of_operations.get_seed, of_data.get_seed = get_seed, get_seed_of_data
