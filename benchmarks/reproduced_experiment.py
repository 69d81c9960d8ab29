"""An experiment of a paper, the network of several, and the path of the center in virtual time and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..common.cluster.platform import Platform
from ..common.contract import Scheme
from ..common.data.recipes import make
from ..common.replay.reference.gradients import Gradient, batch_gradient, mlp_gradient, mlp_loss
from ..simulator.virtual_time.schedule import EventLoop
from .claims_runs import centers

Numbers = Mapping[str, Any]  # by name: a number, or a list of numbers


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper.

    Attributes:
        name: its name on the command line.
        schemes: the algorithms of the catalogue that it is about.
        source: the paper, the place in it, and the settings.
        expected: the result that the paper states, or that follows from its equations in closed form.
        measure: returns our numbers, by name.
        ours: a format of these numbers.
        agrees: returns True if they agree with the expected ones.
        draw: returns a figure like that of the paper; None if it has none.
    """

    name: str
    schemes: str
    source: str
    expected: str
    measure: Callable[[], Numbers]
    ours: str
    agrees: Callable[[Numbers], bool]
    draw: Callable[[Numbers], Any] | None = None


class Task(NamedTuple):
    """A network with one hidden layer on digits: its start, its gradients on shards of workers, and its losses."""

    start: np.ndarray
    gradient: Gradient
    loss: Callable[[np.ndarray], float]
    test_loss: Callable[[np.ndarray], float]
    tensors: list[int]  # elements of kernels and biases, in their order
    examples: int


def on_digits(hidden: int, workers: int, batch_size: int, seed: int = 0) -> Task:
    """Return the task with so many hidden units; the seed decides on start, shards and batches."""
    digits = make("digits")
    train, test = ((x.reshape(len(x), -1), y) for x, y in (digits.train, digits.test))
    examples, size = train[0].shape
    sizes = [size, hidden, 10]
    tensors = [number for n, m in pairwise(sizes) for number in (n * m, m)]
    shards = {"examples": examples, "workers": workers, "seed": seed, "batch_size": batch_size}
    return Task(
        np.random.default_rng(seed).standard_normal(sum(tensors)) * size**-0.5,
        batch_gradient(mlp_gradient(*train, sizes), **shards),
        mlp_loss(*train, sizes),
        mlp_loss(*test, sizes),
        tensors,
        examples,
    )


def path(
    scheme: Scheme, start: np.ndarray, gradient: Gradient, *, workers: int, steps: int, seed: int = 0, **platform: str
) -> np.ndarray:
    """Return the center after each update in virtual time, [updates, P], while all workers have rounds left."""
    machines, rounds = Platform(**platform), scheme.rounds(steps, seed=seed)  # pyright: ignore[reportArgumentType]
    times: dict[str, Any] = {"message_bytes": 0, "reply_bytes": 0}
    loop = EventLoop(scheme, machines, workers=workers, rounds=rounds, seed=seed, stop_at_version=steps, **times)
    return np.array(centers(scheme, loop.run().trace, start, gradient, workers, steps, seed=seed))
