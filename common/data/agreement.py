"""A check before the start that a data function without parameters has one order on all workers.

`orders` lets most of what a function draws agree. It cannot for a generator of random numbers that the call makes
without a seed, for a call whose arrays follow from the process, the time or chance (threads, a set of objects), and for
an order or a choice that is drawn while the data are read, in a generator, a filter or an interleave. Only then are the
first examples read twice, as two workers would: those that both have must have the same places. Noise that differs is
no fault.
"""

from __future__ import annotations

import contextlib
import copy
import os
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import numpy as np
from numpy.random import bit_generator

from ..errors import UserError
from ..lazy import keras, tf
from .orders import agreeing, seed_generators
from .places import first_rows, out_of_place

LIBRARIES = "tensorflow", "keras", "tempfile"  # that make generators of their own

IN_ORDER = "leave deterministic=False out, or use it after the shard. Received: deterministic=False"

LATER = 61  # seconds that a worker begins after another, in this check

DRAWN_LATER = "FlatMap", "Interleave", "Filter", "Generator"  # kinds of data sets whose functions may decide an order


def check_order(make: Callable[[], Any], seed: int, in_process: bool) -> None:
    """Raise `UserError` if two workers would read the data of a function in other orders.

    Args:
        make: the data function, without parameters.
        seed: seed of the run.
        in_process: True if the workers share the generators that the user's modules have; others have copies of them.
    """
    generators = [] if in_process else _generators(make)
    before = [copy.deepcopy(_state(generator)) for generator in generators]
    calls = []
    with _unseeded() as draws:
        for worker in range(2):
            _set_states(generators, before)
            with tf.Graph().as_default(), _in_process(worker), agreeing(seed, worker):
                calls.append(make())
    if is_unordered(calls[0]):
        raise UserError(f"each worker would read the data of the function in an order of its own: {IN_ORDER}")
    if not draws and not is_drawn_later(calls[0]) and _decided(calls[0]) == _decided(calls[1]):
        return
    rows, called = [], [copy.deepcopy(_state(generator)) for generator in generators]
    for worker, dataset in enumerate(calls):
        _set_states(generators, called)
        with _in_process(worker):
            rows.append(_first_rows(dataset, seed, worker))
    if out_of_place(*rows):
        raise UserError(
            "the data function orders or chooses its examples anew in each call, so that workers would use some "
            "twice and others never: give its generator a seed, as in numpy.random.default_rng(seed=0), draw "
            "orders in the call, or let it take a tf.distribute.InputContext and shard before it shuffles"
        )


def parts_of(dataset: Any) -> Iterator[Any]:
    """Yield a `tf.data.Dataset` and those that it is made of."""
    yield dataset
    for part in dataset._inputs():
        yield from parts_of(part)


def is_drawn_later(dataset: Any) -> bool:
    """Return True if functions may decide the order of a data set while it is read."""
    return any(kind in type(part).__name__ for part in parts_of(dataset) for kind in DRAWN_LATER)


def is_unordered(dataset: Any) -> bool:
    """Return True if the elements of a data set come as soon as they are ready."""
    return dataset._options_attr.deterministic is False or any(
        getattr(part, "_deterministic", "") == "false" for part in parts_of(dataset)
    )


def _decided(dataset: Any) -> list[int]:
    """Return checksums of the constants that a call in a graph has made: arrays, and the seeds of shuffles."""
    functions = [wrapper.function.graph for part in parts_of(dataset) for wrapper in part._functions()]
    ops = [op for graph in (dataset._variant_tensor.graph, *functions) for op in graph.get_operations()]
    arrays = [np.asarray(tf.get_static_value(op.outputs[0])) for op in ops if op.type == "Const"]
    return [zlib.crc32(repr(a.tolist()).encode() if a.dtype.hasobject else a.tobytes()) for a in arrays]


def _first_rows(dataset: Any, seed: int, worker: int) -> list[int]:
    """Return checksums of the first examples of a data set in a graph, with the noise of that worker."""
    states = np.random.get_state(), random.getstate()
    seed_generators(seed, f"worker-{worker}")
    try:
        with dataset._variant_tensor.graph.as_default(), tf.compat.v1.Session() as session:
            return first_rows(_batches(dataset, session))
    except Exception:  # a batch that cannot be read has an error of its own, in the trial or in the run
        return []
    finally:
        np.random.set_state(states[0])
        random.setstate(states[1])


def _batches(dataset: Any, session: Any) -> Iterator[list[Any]]:
    """Yield the batches of a data set in the graph of a session, each as a list of arrays."""
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    session.run(iterator.initializer)
    batch = keras.tree.flatten(iterator.get_next())
    with contextlib.suppress(tf.errors.OutOfRangeError):
        while True:
            yield session.run(batch)


@contextlib.contextmanager
def _in_process(worker: int) -> Iterator[None]:
    """Call what follows as in the process of a worker, which has another number and starts at another time."""
    number, now, now_ns = os.getpid, time.time, time.time_ns
    os.getpid = lambda: number() + worker
    time.time = lambda: now() + worker * LATER
    time.time_ns = lambda: now_ns() + worker * LATER * 10**9
    try:
        yield
    finally:
        os.getpid, time.time, time.time_ns = number, now, now_ns


@contextlib.contextmanager
def _unseeded() -> Iterator[list[int]]:
    """Note in a list each draw of the system's random bits inside of the context, as for a generator without a seed.

    `secrets`, `random.SystemRandom` and `uuid4` draw all of theirs from there.
    """
    draws: list[int] = []
    draw, seed, bits = bit_generator.randbits, random.Random.seed, os.urandom  # pyright: ignore[reportAttributeAccessIssue]

    def randbits(number: int) -> int:
        draws.append(number)
        return draw(number)

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        if a is None and _caller() not in LIBRARIES:
            draws.append(0)
        seed(self, a, version)

    def urandom(size: int, /) -> bytes:
        if _caller() not in LIBRARIES:
            draws.append(size)
        return bits(size)

    bit_generator.randbits, random.Random.seed = randbits, seeded  # type: ignore[method-assign,attr-defined]
    os.urandom = random._urandom = urandom  # type: ignore[attr-defined]
    try:
        yield draws
    finally:
        bit_generator.randbits, random.Random.seed = draw, seed  # type: ignore[method-assign,attr-defined]
        os.urandom = random._urandom = bits  # type: ignore[attr-defined]


def _caller() -> str:
    """Return the package of the code that makes a generator of `random`."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "random":
        frame = frame.f_back
    return frame.f_globals.get("__name__", "").partition(".")[0]


def _generators(make: Any) -> list[Any]:
    """Return the generators of random numbers that a function names, of its module or of a function around it."""
    code = getattr(make, "__code__", None)
    if code is None:
        return []
    found = [make.__globals__.get(name) for name in _names(code)]
    found += [cell.cell_contents for cell in make.__closure__ or ()]
    kinds = np.random.Generator, np.random.RandomState, random.Random
    return [value for value in found if isinstance(value, kinds)]


def _names(code: CodeType) -> set[str]:
    """Return the names that a function and those inside of it use."""
    inner = (_names(const) for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*inner)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate()


def _set_states(generators: list[Any], states: list[Any]) -> None:
    for generator, state in zip(generators, states, strict=True):
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = state
        elif isinstance(generator, np.random.RandomState):
            generator.set_state(state)
        else:
            generator.setstate(state)
