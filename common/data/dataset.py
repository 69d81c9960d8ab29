"""Data as nested arrays: shapes, shards of workers or clients, and batches.

Partial participation: the data belong to more clients than there are workers, which take part by turns (McMahan et al.
2017, federated averaging, with the share C). In each round a random part of all clients trains: each of the W workers
takes its local steps on the shard of the client that is drawn for it. The equations of an algorithm do not change; only
the data of its workers do, from round to round.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..lazy import keras
from .skew import labels_of, parsed


def leaves(arrays: Any) -> list[Any]:
    """Return the arrays of nested tuples, lists and dicts, in TensorFlow's order (dicts by sorted key)."""
    if isinstance(arrays, dict):
        return [leaf for key in sorted(arrays) for leaf in leaves(arrays[key])]
    if isinstance(arrays, tuple | list):
        return [leaf for item in arrays for leaf in leaves(item)]
    return [arrays]


def is_arrays(data: Any) -> bool:
    """Return True for nested NumPy arrays."""
    return all(isinstance(leaf, np.ndarray) for leaf in leaves(data))


def split_off(data: tuple[Any, ...], fraction: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Split data as Keras does: return the first examples, and the last `fraction` of them."""
    examples = num_examples(data)
    at = int(examples * (1 - fraction))
    if not 0 < at < examples:
        raise UserError(f"validation_split must leave examples on both sides. Received: {fraction} of {examples}")
    first, last = (keras.tree.map_structure(lambda a, part=part: a[part], data) for part in np.s_[:at, at:])
    return first, last


def weighted(data: tuple[Any, ...], class_weight: Mapping[int, float]) -> tuple[Any, ...]:
    """Return the data with the weight of its class for each example; y holds class numbers or one-hot rows.

    Raises:
        UserError: an example has more than one class, as a sequence of labels has.
    """
    if len(data) == 3:
        raise UserError("class_weight and sample_weight cannot be used at the same time: multiply them yourself")
    x, y = (*data, None)[:2]
    if not isinstance(y, np.ndarray):
        raise UserError(f"class_weight needs class numbers in y. Received: y is a {type(y).__name__}")
    rows = y.reshape(len(y), -1)
    one_hot = y.ndim > 1 and np.allclose(y.sum(-1), 1) and y.min() >= 0
    if rows.shape[1] > 1 and not (one_hot and y.ndim == 2):
        positions = y.shape[:-1] if one_hot or y.shape[-1] == 1 else y.shape
        raise UserError(
            "class_weight needs one class for each example, a number or a one-hot row: give sample_weight in its place "
            f"for each example, ({len(y)},), or for each position, {positions}. Received: y of shape {y.shape}"
        )
    labels = rows.argmax(1) if rows.shape[1] > 1 else np.round(rows[:, 0]).astype(int)
    kinds, where = np.unique(labels, return_inverse=True)
    return x, y, np.array([class_weight.get(int(kind), 1.0) for kind in kinds], np.float32)[where]


def num_examples(arrays: Any) -> int:
    """Return the length of the first axis; raise `UserError` if the arrays differ in it."""
    lengths = {len(a) for a in leaves(arrays)}
    if len(lengths) != 1:
        raise UserError(f"x and y must hold the same number of examples. Received lengths: {sorted(lengths)}")
    return lengths.pop()


def shard_rows(data: Any, workers: int, seed: int, skew: str | None = None) -> np.ndarray:
    """Return the row numbers of all shards, [workers, examples // workers], as a function of the arguments alone.

    Shards are disjoint and of equal size; remaining examples are unused. All shards of the project are computed here.

    Args:
        data: (x, y) or (x, y, sample_weight), nested arrays; y is only used with a skew.
        workers: number of workers.
        seed: seed of the run.
        skew: rule by which the labels of the workers differ, see `skew`.
    """
    examples, rng = num_examples(data), np.random.default_rng([seed, 0])
    order = rng.permutation(examples)
    if skew is not None:
        rule, options = parsed(skew)
        return rule(labels_of(data), order, workers, rng, **options)
    size = examples // workers
    return order[: workers * size].reshape(workers, size)


def epoch_order(shard: int, worker: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of a worker's examples in an epoch, as positions within its shard, [shard]."""
    return np.random.default_rng([seed, 1 + worker, epoch]).permutation(shard).astype(np.int32)


def batches(shard: int, batch_size: int, worker: int, seed: int, done: int = 0) -> Iterator[np.ndarray]:
    """Yield batches without end, after the first `done`, as positions within the shard, [batch_size] each.

    Each epoch is shuffled by seed, worker and epoch alone, so that a start in the middle shuffles one epoch only.
    """
    first, step = divmod(done, shard // batch_size)
    for epoch in itertools.count(first):
        order = epoch_order(shard, worker, seed, epoch)
        for start in range(step * batch_size, shard - batch_size + 1, batch_size):
            yield order[start : start + batch_size]
        step = 0


def number_of_clients(workers: int, participation: float | None) -> int:
    """Return N, of which `workers` take part in a round; without a share, each worker is a client."""
    return workers if participation is None else max(workers, round(workers / participation))


def drawn_clients(
    clients: int, workers: int, seed: int, lengths: Iterable[Sequence[int]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each round the clients that take part, [workers], and the local steps that each has done before.

    A draw is a function of the seed and the number of the round. All clients of a round are different.

    Args:
        clients: N.
        workers: W.
        seed: seed of the run.
        lengths: local steps of each worker, [W], in each round.
    """
    done = np.zeros(clients, np.int64)
    for number, steps in enumerate(lengths):
        drawn = np.random.default_rng([seed, 0, 1 + number]).permutation(clients)[:workers]
        yield drawn, done[drawn]
        done[drawn] += steps


def client_batches(shard: int, batch_size: int, client: int, seed: int, done: int) -> Iterator[np.ndarray]:
    """Yield the batches of a client, see `batches`, as positions in the shards of all clients."""
    return (client * shard + rows for rows in batches(shard, batch_size, client, seed, done))


def largest_labels(labels: Any) -> list[float | None]:
    """Return the largest label of each of the nested arrays [examples, ...], whatever their type; None if one-hot."""
    return [None if _is_one_hot(leaf) else float(leaf.max()) for leaf in leaves(labels)]


def _is_one_hot(array: np.ndarray) -> bool:
    wide = array.ndim > 1 and array.shape[-1] > 1
    return wide and bool(array.min() >= 0 and array.max() <= 1 and (array.sum(-1) == 1).all())
