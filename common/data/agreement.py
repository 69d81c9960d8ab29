"""A check before the start that a data function without parameters has one order on all workers.

`orders` lets most of what a function draws agree. It cannot for a generator of random numbers that the call makes
without a seed, and for an order or a choice that is drawn while the data are read, in a generator, a filter or an
interleave. Only then are the first examples read twice, as two workers would: those that both have must have the same
places. Noise that differs is no fault.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import numpy as np
from numpy.random import bit_generator

from ..errors import UserError
from ..lazy import keras
from .orders import agreeing, seed_generators
from .places import out_of_place, rows_of

MOST_EXAMPLES, MOST_BYTES = 1 << 9, 1 << 24  # that are read

LIBRARIES = "tensorflow", "keras", "tempfile"  # that make generators of their own

DRAWN_LATER = "FlatMap", "Interleave", "Filter", "Generator"  # kinds of data sets whose functions may decide an order


def check_order(make: Callable[[], Any], seed: int, in_process: bool) -> None:
    """Raise `UserError` if two workers would read the data of a function in other orders.

    Args:
        make: the data function, without parameters.
        seed: seed of the run.
        in_process: True if the workers share the generators that the user's modules have; others have copies of them.
    """
    generators = {} if in_process else _generators(make)
    before = {name: copy.deepcopy(_state(own)) for name, own in generators.items()}
    with _unseeded() as made, agreeing(seed, 0):
        dataset = make()
    if not made and not any(kind in type(part).__name__ for part in _parts(dataset) for kind in DRAWN_LATER):
        return
    first = _first_rows(dataset, seed, 0)
    for name, own in generators.items():
        _set_state(own, before[name])
    with agreeing(seed, 1):
        dataset = make()
    if out_of_place(first, _first_rows(dataset, seed, 1)):
        raise UserError(
            "the data function has another order or choice of examples in each call, so that workers would use some "
            "twice and others never: give its generator a seed, as in numpy.random.default_rng(seed=0), draw orders in "
            "the call, or let it take a tf.distribute.InputContext and shard before it shuffles"
        )


def _parts(dataset: Any) -> Iterator[Any]:
    """Yield a data set and those that it is made of."""
    yield dataset
    for part in dataset._inputs():
        yield from _parts(part)


def _first_rows(dataset: Any, seed: int, worker: int) -> list[int]:
    """Return checksums of the first examples, with the noise of that worker."""
    states, rows, size = (np.random.get_state(), random.getstate()), [], 0
    seed_generators(seed, f"worker-{worker}")
    try:
        for batch in dataset:
            leaves = [np.asarray(leaf) for leaf in keras.tree.flatten(batch)]
            rows += rows_of(leaves)
            size += sum(leaf.nbytes for leaf in leaves)
            if len(rows) >= MOST_EXAMPLES or size >= MOST_BYTES:
                break
    except Exception:  # a batch that cannot be read has an error of its own, in the trial or in the run
        return []
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])
    return rows


@contextlib.contextmanager
def _unseeded() -> Iterator[list[int]]:
    """Note in a list each draw of the system's random bits inside of the context, as for a generator without a seed.

    `secrets`, `random.SystemRandom` and `uuid4` draw all of theirs from there.
    """
    made: list[int] = []
    draw, seed, bits = bit_generator.randbits, random.Random.seed, os.urandom  # pyright: ignore[reportAttributeAccessIssue]

    def randbits(number: int) -> int:
        made.append(number)
        return draw(number)

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and _caller() not in LIBRARIES:
            made.append(0)
        seed(self, a, version)

    def urandom(size: int, /) -> bytes:
        if _caller() not in LIBRARIES:
            made.append(size)
        return bits(size)

    bit_generator.randbits, random.Random.seed = randbits, seeded  # type: ignore[method-assign,attr-defined]
    os.urandom = random._urandom = urandom  # type: ignore[attr-defined]
    try:
        yield made
    finally:
        bit_generator.randbits, random.Random.seed = draw, seed  # type: ignore[method-assign,attr-defined]
        os.urandom = random._urandom = bits  # type: ignore[attr-defined]


def _caller() -> str:
    """Return the package of the code that makes a generator of `random`."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "random":
        frame = frame.f_back
    return frame.f_globals.get("__name__", "").partition(".")[0]


def _generators(make: Any) -> dict[str, Any]:
    """Return the generators of random numbers that a function names, of its module or of a function around it."""
    code = getattr(make, "__code__", None)
    if code is None:
        return {}
    found = {name: make.__globals__.get(name) for name in _names(code)}
    cells = zip(code.co_freevars, make.__closure__ or (), strict=True)
    found |= {name: cell.cell_contents for name, cell in cells}
    kinds = np.random.Generator, np.random.RandomState, random.Random
    return {name: own for name, own in found.items() if isinstance(own, kinds)}


def _names(code: CodeType) -> set[str]:
    """Return the names that a function and those inside of it use."""
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)
