"""A worker's share of the data of a script: every W-th example or batch, if the order is the same on all workers.

Data that each worker has shuffled for itself have other orders, so that shares overlap, and some examples are in none.
Such data are refused. Augmentation may differ between workers, so that only examples that two workers have in common
are compared: they must have the same places. Of a `tf.data.Dataset`, whose elements TensorFlow reads, the seeds of
`shuffle` and `sample_from_datasets` and the arrays in memory are compared; its first elements are read only if
functions may decide the order, as in an interleave or a generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..data.agreement import IN_ORDER, is_drawn_later, is_unordered, parts_of
from ..data.places import first_rows, out_of_place, rows_of
from ..errors import UserError
from ..lazy import tf

MOST_EXAMPLES, MOST_BYTES = 1 << 14, 1 << 25  # first examples and first bytes of arrays that are compared
BATCHES = 64  # first batches of other data that are compared
CALLS = 8  # first calls of `shard` whose data are compared

# Leaves numbers under a name; returns those of all workers so far.
Exchange = Callable[[str, Sequence[int]], Mapping[int, Sequence[float]]]


class Sharding:
    """The shares of the data of one join.

    Args:
        index: number of this worker.
        num_workers: number of workers, W.
        exchange: leaves numbers of this worker under a name, and returns those of the workers that have left some.
    """

    def __init__(self, index: int, num_workers: int, exchange: Exchange):
        self.index, self.num_workers, self.exchange, self.calls = index, num_workers, exchange, 0
        self.began = 0  # steps of this worker before its first call: more than none if it was restarted or resumed

    def shard(self, data: Any, done: int = 0) -> Any:
        """Return the share of this worker, which has made `done` steps, see `JoinedWorker.shard`."""
        self.began = self.began if self.calls else done
        self.calls += 1
        if isinstance(data, tf.data.Dataset):
            self._check_dataset(data)
            return data.shard(self.num_workers, self.index)
        if isinstance(data, tuple | dict) or hasattr(data, "__array__"):
            leaves = tf.nest.flatten(data)
            if self.calls <= CALLS:
                self._check_places(_first_of(leaves), self.calls)
            return tf.nest.map_structure(lambda array: array[self.index :: self.num_workers], data)
        try:
            elements = iter(data)  # also of what has __getitem__ alone, such as a Dataset of PyTorch
        except TypeError:
            takes = "a tf.data.Dataset, arrays, or another iterable"
            raise UserError(f"worker.shard takes {takes}. Received: {type(data).__name__}") from None
        return self._of_stream(elements)

    def _of_stream(self, elements: Iterator[Any]) -> Iterator[Any]:
        """Yield the share of other data; its first W elements are compared before one is used, then twice as many."""
        call, due = self.calls, self.num_workers
        rows: list[int] = []
        buffer: list[Any] = []
        for number, element in enumerate(elements):
            if number < max(BATCHES, self.num_workers) and call <= CALLS and len(rows) < MOST_EXAMPLES:
                rows += rows_of(tf.nest.flatten(element))
                if number + 1 == due:
                    self._check_places(rows, call)
                    due *= 2
            if number % self.num_workers == self.index:
                buffer.append(element)
            if number + 1 >= self.num_workers:
                yield from buffer
                buffer = []
        yield from buffer

    def _check_dataset(self, dataset: Any) -> None:
        if self.num_workers > 1 and is_unordered(dataset):
            raise UserError(f"{UNEQUAL} {IN_ORDER}")
        self._check_seeds(seeds_of(dataset))
        if self.num_workers > 1 and self.calls <= CALLS:
            drawn = is_drawn_later(dataset)
            rows = first_rows(map(tf.nest.flatten, dataset)) if drawn else _rows_in_memory(dataset)
            self._check_places(rows, self.calls)

    def _check_seeds(self, seeds: Sequence[int]) -> None:
        if self.num_workers > 1 and None in seeds:
            raise UserError(f"{UNEQUAL} {REMEDY}. Received: a shuffle without a seed")
        if self.num_workers > 1 and self.calls <= CALLS:
            for other, other_seeds in self._of_others(f"seeds-{self.calls}", seeds).items():
                if list(other_seeds) != list(seeds):
                    raise UserError(f"{UNEQUAL} {REMEDY}. Received: other seeds on worker {other}")

    def _check_places(self, rows: Sequence[int], call: int) -> None:
        if self.num_workers > 1:
            for other, other_rows in self._of_others(f"rows-{call}", rows).items():
                if out_of_place(rows, other_rows):
                    raise UserError(f"{UNEQUAL} {REMEDY}. Received: another order on worker {other}")

    def _of_others(self, name: str, numbers: Sequence[int]) -> Mapping[int, Sequence[float]]:
        """Leave numbers, and return those of workers that began at as many steps: they read the same pass of the data.

        A script may seed each pass by its number, so that a restarted worker begins with another one than at first.
        """
        return self.exchange(f"{name}-from-{self.began}", numbers)


UNEQUAL = "worker.shard needs data in the same order on all workers, or examples are used twice and others never:"

REMEDY = (
    "give shuffle a seed, which is the same on all (shuffle(n, seed=0) of tf.data, numpy.random.default_rng(0), "
    "generator=torch.Generator().manual_seed(0) of a DataLoader), or shuffle after shard"
)


def _rows_in_memory(dataset: Any) -> list[int]:
    """Return checksums of the first examples of the arrays that a data set is made of.

    Those of one length belong together, so that noise, which may differ, has no places.
    """
    by_length: dict[int, list[Any]] = {}
    for tensor in (tensor for part in parts_of(dataset) for tensor in getattr(part, "_tensors", ())):
        if tensor.shape:
            by_length.setdefault(len(tensor), []).append(tensor)
    return [row for tensors in by_length.values() for row in _first_of(tensors)]


def _first_of(leaves: Sequence[Any]) -> list[int]:
    """Return checksums of the first examples of arrays."""
    size = 1 + sum(getattr(leaf, "nbytes", 0) for leaf in leaves) // max(1, len(leaves[0]))
    return rows_of([leaf[: min(MOST_EXAMPLES, MOST_BYTES // size)] for leaf in leaves])


def seeds_of(dataset: Any, mixes: bool = False) -> list[Any]:
    """Return the seeds that decide the order of a data set; None for one that TensorFlow draws anew each time."""
    kind, found = type(dataset).__name__, []
    if "Shuffle" in kind or (mixes and "Random" in kind):
        pair = [int(getattr(dataset, name, 0)) for name in ("_seed", "_seed2")]
        found = pair if any(pair) else [None]
    parts = dataset._inputs()
    mixing = mixes or "DirectedInterleave" in kind
    return found + [seed for part in parts for seed in seeds_of(part, mixing)]
