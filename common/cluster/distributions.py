"""Counter-based random numbers, and distributions of step times: the values of `--compute NAME:key=value,...`.

A random number is a function of the seed, its purpose, the worker and an index, so another worker or another algorithm
does not change it. The function is SplitMix64 (Steele, Lea, Flood, *Fast splittable pseudorandom number generators*,
OOPSLA 2014), its output function applied to seed, purpose and worker one after the other, and its counter to the index.

Each model of step times draws the steps of all workers; its multiples have the mean 1, so that models can be compared:

    constant        always 1
    exponential     exponential
    shifted         a constant part, `fixed`, and an exponential part
    lognormal       exp(sigma z - sigma²/2), z normal
    pareto          x (1 - u)^(-1/shape) with x = (shape - 1)/shape: heavy tails for shapes near 1
    phases          two states: slow steps take `slow` times as long as the others; `probability` is the share of slow
                    steps, `length` the mean number of them in a row (no length, or a short one: each step by itself)
    recorded        measured times: `path` is a .npy file with times of steps, [n], or [workers, n] (used in turn);
                    drawn in blocks of `block` consecutive steps, which keeps their correlation

Steps of one worker are independent except in `phases` and `recorded`; steps of different workers always are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..arguments import at_most, below_one
from ..contract.seeded import GAMMA, mixed_bits
from ..errors import UserError
from ..spec import parse

MOST_SIGMA = 4.0  # the largest sigma of a lognormal: half of its values are below 0.03 % of the mean

Draw = Callable[[np.ndarray], np.ndarray]  # uniform numbers [W, n] for indices [n]

PURPOSES = ("step", "speed", "link", "message", "reply", "crash", "repair", "reduction", "gossip", "start")


def uniforms(seed: int, purpose: str, workers: Sequence[int] | np.ndarray, indices: Any) -> np.ndarray:
    """Return numbers in (0, 1), [workers, indices]; `purpose` is one of `PURPOSES`."""
    purposes = np.array([[1 + PURPOSES.index(purpose)]], np.uint64)
    key = mixed_bits(np.array([[seed]], np.uint64) + np.uint64(GAMMA) * purposes)
    key = mixed_bits(key + np.uint64(GAMMA) * (np.asarray(workers, np.uint64)[:, None] + np.uint64(1)))
    bits = mixed_bits(key + np.uint64(GAMMA) * (np.asarray(indices, np.uint64)[None] + np.uint64(1)))
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def lognormal_factors(u: np.ndarray, sigma: float) -> np.ndarray:
    """Return the values with mean 1 of a lognormal distribution, by uniform numbers."""
    from scipy.special import ndtri  # the import takes a tenth of a second, which the other models save

    return np.exp(sigma * ndtri(u) - sigma**2 / 2)


def exponential_time(seed: int, purpose: str, worker: int, index: int, mean: int) -> int:
    """Return an exponential time in whole nanoseconds."""
    u = uniforms(seed, purpose, [worker], [index])[0, 0]
    return max(1, round(-mean * math.log1p(-u)))


class Blocks:
    """A table of random numbers that is drawn in blocks of columns, at their first use.

    Args:
        size: number of columns of a block.
        draw: returns the columns of a slice, [rows, size]; called for one block after the other.
    """

    def __init__(self, size: int, draw: Callable[[slice], np.ndarray]):
        self.size, self.draw = size, draw
        self.blocks: list[np.ndarray] = []

    def item(self, row: int, column: int) -> int:
        """Return the number in a row and column."""
        block, column = divmod(column, self.size)
        while block >= len(self.blocks):
            first = len(self.blocks) * self.size
            self.blocks.append(self.draw(slice(first, first + self.size)))
        return self.blocks[block].item(row, column)


@dataclass(frozen=True)
class Independent:
    """Independent steps: `quantile` maps a uniform number to a multiple."""

    quantile: Callable[[np.ndarray], np.ndarray]

    def multiples(self, draw: Draw, first: int, number: int, before: Any) -> tuple[np.ndarray, Any]:
        """Draw steps `first`, `first` + 1, ... of all workers, as multiples of the mean.

        Args:
            draw: uniform numbers by index.
            first: index of the first step.
            number: number of steps.
            before: the state that was returned with the steps before these; None at the beginning.

        Returns:
            the multiples, [W, number], and the state for the next steps.
        """
        return self.quantile(draw(np.arange(first, first + number))), None


class Constant:
    """Equal steps, for which nothing is drawn."""

    def multiples(self, draw: Draw, first: int, number: int, before: Any) -> tuple[np.ndarray, Any]:
        """Return steps as `Independent` does, in one row for all workers."""
        return np.ones((1, number)), None


@dataclass(frozen=True)
class Phases:
    """Two states; a worker leaves each with a fixed probability at each step.

    At each step a uniform number u sets the state: slow if u < `enter`, fast if u ≥ 1 - `leave`, else unchanged. So the
    state is that of the last step with such a u, which is found without a loop.
    """

    slow: float
    probability: float
    length: float

    def multiples(self, draw: Draw, first: int, number: int, before: Any) -> tuple[np.ndarray, Any]:
        """Draw steps, see `Independent`; the state is a mask of the slow workers."""
        u = draw(np.arange(first, first + number))
        leave = min(1 / self.length, 1 - self.probability)
        enter = leave * self.probability / (1 - self.probability)
        slow, says = u < enter, (u < enter) | (u >= 1 - leave)
        said_at = np.maximum.accumulate(np.where(says, np.arange(number), -1), 1)
        before = u[:, :1] < self.probability if before is None else before
        slow = np.where(said_at >= 0, np.take_along_axis(slow, np.maximum(said_at, 0), 1), before)
        fast = 1 / (1 + self.probability * (self.slow - 1))
        return np.where(slow, self.slow * fast, fast), slow[:, -1:]


@dataclass(frozen=True)
class RecordedSteps:
    """Blocks of measured step times."""

    values: np.ndarray  # [rows, n]
    block: int

    def multiples(self, draw: Draw, first: int, number: int, before: Any) -> tuple[np.ndarray, Any]:
        """Draw steps, see `Independent`: a block begins anywhere in a worker's measured steps, and wraps around."""
        steps = np.arange(first, first + number)
        u = draw(steps // self.block * self.block)  # the same number for all steps of a block
        at = (u * self.values.shape[1]).astype(np.int64) + steps % self.block
        rows = np.arange(len(u))[:, None] % len(self.values)
        return self.values[rows, at % self.values.shape[1]], None


Model = Constant | Independent | Phases | RecordedSteps


def constant() -> Model:
    """Build a model of equal steps."""
    return Constant()


def exponential() -> Model:
    """Build a model of exponential steps."""
    return Independent(lambda u: -np.log1p(-u))


def shifted(*, fixed: float = 0.5) -> Model:
    """Build a model of exponential steps that take at least `fixed`."""
    below_one(fixed=fixed)
    return Independent(lambda u: fixed - (1 - fixed) * np.log1p(-u))


def lognormal(*, sigma: float = 0.6) -> Model:
    """Build a model of lognormal steps."""
    at_most(MOST_SIGMA, sigma=sigma)
    return Independent(lambda u: lognormal_factors(u, sigma))


def pareto(*, shape: float = 2.5) -> Model:
    """Build a model of Pareto steps, with a heavy tail."""
    if shape <= 1:
        raise UserError(f"pareto needs a shape above 1, or the mean is infinite. Received: shape={shape:g}")
    return Independent(lambda u: (shape - 1) / shape * (1 - u) ** (-1 / shape))


def phases(*, slow: float = 10.0, probability: float = 0.02, length: float = 1.0) -> Model:
    """Build a model of steps that are sometimes slow, for `length` steps in the mean."""
    below_one(probability=probability)
    if slow < 1 or length < 1:
        raise UserError(f"phases needs slow and length of 1 at least. Received: slow={slow:g}, length={length:g}")
    return Phases(slow, probability, length)


def recorded(*, path: str = "", block: int = 32) -> Model:
    """Build a model of steps from a file of measured times."""
    try:
        values = np.atleast_2d(np.load(Path(path), allow_pickle=False)).astype(np.float64)
    except (OSError, ValueError) as error:
        raise UserError(f"recorded needs the path of a .npy file of numbers. Received: path={path} ({error})") from None
    if values.ndim != 2 or not values.size or not (np.isfinite(values).all() and (values > 0).all()):
        raise UserError(f"recorded needs positive times, [n] or [workers, n]. Received: {path}, {values.shape}")
    return RecordedSteps(values / values.mean(), block)


MODELS: dict[str, Callable[..., Model]] = {
    made.__name__: made for made in (constant, exponential, shifted, lognormal, pareto, phases, recorded)
}


def model(text: str) -> Model:
    """Build the model that `name:key=value,...` describes.

    Raises:
        UserError: the name is unknown, or a value is impossible.
    """
    name, options = parse("model of compute", text, MODELS)
    return MODELS[name](**options)
