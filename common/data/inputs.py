"""Checks of the user's data before a run: arrays, or a function that returns a `tf.data.Dataset`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..arguments import fraction
from ..errors import UserError
from ..lazy import keras, tf
from .dataset import leaves, num_examples, split_off, weighted
from .examples import kind_of
from .models import plain
from .orders import agreeing
from .suspects import diagnostic_batch
from .trial import described

UNEVEN = 0.9  # of all examples of an epoch: if not more of them are used, or used once, a line says so

DataFunction = Callable[..., Any]  # without argument or of a tf.distribute.InputContext, returns a tf.data.Dataset


def prepared(data: Any, validation: Any, split: float, class_weight: Mapping[int, float] | None) -> tuple[Any, Any]:
    """Return training and validation data, split and weighted as by Keras' `fit`.

    Raises:
        UserError: the data are of another kind, or do not permit a split or class weights.
    """
    fraction(validation_split=split)
    if not isinstance(class_weight, Mapping | None):
        raise UserError(f"class_weight must be a dict, as in {{0: 2.0, 1: 1.0}}. Received: {class_weight!r}")
    if callable(data):
        if split or class_weight:
            raise UserError("validation_split and class_weight need arrays: a data function can do both itself")
        return data, validation
    if split and validation is None:
        data, validation = split_off(data, split)
    return weighted(data, class_weight) if class_weight else data, validation


def count_steps(data: Any, owners: int, batch_size: int, epochs: int, steps: int | None, owner: str = "worker") -> int:
    """Return the local steps on the longest shard: `steps` if given, else those of the epochs.

    Args:
        data: nested arrays, or the batches of each worker from a data function, see `shares`.
        owners: number of shards: workers that share the data, or clients.
        batch_size: examples of a step.
        epochs: passes over the data.
        steps: local steps, which replace `epochs`.
        owner: "worker" or "client", for the error.

    Raises:
        UserError: a shard is smaller than a batch, or the length of a `tf.data.Dataset` is not known.
    """
    if isinstance(data, list):
        if steps is None and min(data) < 0:
            raise UserError("the length of the tf.data.Dataset is not known: give steps=, local steps of each worker")
        return steps or epochs * max(data)
    examples = num_examples(data)
    shard = examples // owners
    if batch_size > shard:
        raise UserError(
            f"batch_size must not be larger than the shard of a {owner}, {shard} examples "
            f"({examples} for {owners} {owner}s). Received: batch_size={batch_size}"
        )
    return steps or epochs * (shard // batch_size)


def shares(make: DataFunction, workers: int) -> list[int]:
    """Return the number of batches in the share of each worker; it is negative if it is not known, or has no end.

    Raises:
        UserError: a share is empty, or the function fails.
    """
    if isinstance(make, Sharded):  # one call tells all shares
        batches = int(_dataset(make.whole).cardinality())
        found = [batches if batches < 0 else len(range(k, batches, workers)) for k in range(workers)]
    else:
        found = [int(_dataset(make, workers, k).cardinality()) for k in range(workers)]
    if 0 in found:
        raise UserError(
            f"the data function has no batch for worker {found.index(0)} of {workers}: give more data, smaller batches "
            f"or fewer workers. Received batches: {in_short(found)}"
        )
    return found


def in_short(numbers: Sequence[int], most: int = 8) -> str:
    """Return the numbers of all workers in words; of many the smallest and the largest."""
    are_few = len(numbers) <= most
    return ", ".join(map(str, numbers)) if are_few else f"{min(numbers)} to {max(numbers)} of {len(numbers)} workers"


def uneven(data: Any, owners: int, batch_size: int, together: bool = False) -> str:
    """Return a line on examples that an epoch leaves out or uses twice, if they are a tenth or more; else nothing.

    Args:
        data: nested arrays, or the batches of each worker from a data function, see `shares`.
        owners: number of shards.
        batch_size: examples of a step.
        together: True if all workers make as many steps, so that shorter shares begin anew.
    """
    if isinstance(data, list):
        if min(data) < 0 or min(data) > UNEVEN * max(data):
            return ""
        then = "their steps are as many, so that shorter ones begin anew" if together else "each worker makes its own"
        return f"the shares of the workers differ: {in_short(data)} batches an epoch; {then}"
    examples = num_examples(data)
    if (used := owners * (examples // owners // batch_size) * batch_size) > UNEVEN * examples:
        return ""
    return (
        f"an epoch uses {used} of {examples} examples, others in each: a worker has {examples // owners}, in "
        f"batches of {batch_size}. Another batch_size uses more"
    )


class Sharded:
    """A data function of an InputContext, of one without arguments: each worker takes its share of the batches."""

    def __init__(self, whole: Callable[[], Any]):
        self.whole = whole

    def __call__(self, context: Any) -> Any:
        """Return the share of a worker."""
        return _checked(self.whole()).shard(context.num_input_pipelines, context.input_pipeline_id)

    def __str__(self) -> str:
        """Return the name of the function, by which tasks on several machines compare it."""
        return getattr(self.whole, "__qualname__", type(self.whole).__qualname__)


def sharding(make: DataFunction) -> Callable[[Any], Any]:
    """Return a data function of an InputContext; shard the data of a function without arguments."""
    return make if inspect.signature(make).parameters else Sharded(make)


def first_batches(train: Any, test: Any, size: int, workers: int) -> tuple[Any, Any]:
    """Return a batch of the training data, and one of the validation data or None, to try the model on.

    Args:
        train: nested arrays, or a data function of an InputContext.
        test: nested arrays, a data function without arguments, or None.
        size: examples of a batch.
        workers: number of workers that share the data.

    Raises:
        UserError: a data function raises an error, returns another type, caches into one file on several workers, or
            cannot be called in the graph of a worker.
    """
    if callable(train):
        make, train = train, _dataset(train, workers)
        _check_cache_files(train, make, workers)
        _check_in_graph(make, workers)
    test = _dataset(test) if callable(test) else test
    return _batch(train, size), None if test is None else _batch(test, size)


def build_on(data: Any, model: Any, workers: int) -> None:
    """Build a Keras model without an `Input` for the shapes of these data, as Keras' `fit` does.

    Args:
        data: nested arrays, or a data function.
        model: Keras model; one that is built stays as it is.
        workers: number of workers that share the data.

    Raises:
        UserError: the model does not take the data.
    """
    if not isinstance(model, keras.Model) or model.built:
        return
    batch, _ = first_batches(sharding(data) if callable(data) else data, None, 1, workers)
    try:
        if isinstance(model, keras.Sequential) and hasattr(batch[0], "shape"):
            model.build((None, *batch[0].shape[1:]))  # a call would give its input a batch size
        else:
            model(batch[0])
    except Exception as error:
        raise UserError(
            f"the model does not take a batch of data: {plain(error)}. Received: {described(batch)}"
        ) from None


def sizes_vary(train: Any, workers: int) -> bool:
    """Return True if batches of a data function may have several sizes, such as the last one without `drop_remainder`.

    Args:
        train: nested arrays, whose batches have one size, or a data function of an InputContext.
        workers: number of workers that share the data.
    """
    return callable(train) and any(spec.shape[0] is None for spec in leaves(_dataset(train, workers).element_spec))


def _batch(data: Any, size: int) -> Any:
    """Return the first `size` examples of a data set's first batch; of arrays, those of `diagnostic_batch`."""
    if isinstance(data, tuple):
        return diagnostic_batch(data, size)
    try:
        batch = next(iter(data), None)
    except Exception as error:
        raise UserError(f"the first batch of the data function cannot be read: {plain(error)}") from None
    if not (isinstance(batch, tuple) and len(batch) in (1, 2, 3)):
        raise UserError(
            "the data function must return a tf.data.Dataset of (x,), (x, y) or (x, y, sample_weight). Received: "
            f"{'no batch' if batch is None else type(batch).__name__}"
        )
    if kinds := sorted({kind_of(leaf) for leaf in leaves(batch) if not isinstance(leaf, tf.Tensor)}):
        raise UserError(
            "the data function must return a tf.data.Dataset of dense tensors, as after .padded_batch(32). Received: "
            f"{', '.join(kinds)}"
        )
    lengths = {leaf.shape[0] if len(leaf.shape) else None for leaf in leaves(batch)}
    if None in lengths or len(lengths) > 1:
        raise UserError(
            "the data function must return a tf.data.Dataset of batches, as after .batch(32). Received elements of "
            f"{described(batch)}"
        )
    return keras.tree.map_structure(lambda leaf: leaf[:size], batch)


def _check_in_graph(make: DataFunction, workers: int) -> None:
    """Raise `UserError` if a data function needs values or variables that the graph of a worker does not have."""
    with tf.Graph().as_default() as graph, agreeing(0, 0):
        try:
            make(tf.distribute.InputContext(workers, 0, workers))
            reason = ""
        except Exception as error:
            reason = plain(error).rstrip(".")
            if "EagerTensor" in reason:
                reason = "it uses a tensor, a layer or a data set that was made outside of it"
    if not reason and any(op.type == "VarHandleOp" or "HashTable" in op.type for op in graph.get_operations()):
        reason = "nothing initializes the variables or tables that it makes, as of a layer, a lookup or a generator"
    if reason:
        raise UserError(
            f"the data function cannot be called in a worker, which builds a graph of it: {reason}. Compute there with "
            "NumPy and with operations in map, put layers into the model, or give the Dataset itself, which is read "
            "once into memory"
        )


def _check_cache_files(dataset: Any, make: DataFunction, workers: int) -> None:
    """Raise `UserError` if two workers would write the same file: TensorFlow then fails in the middle of the run."""
    files = _cache_files(dataset)
    if workers > 1 and files and (shared := files & _cache_files(_dataset(make, workers, 1))):
        raise UserError(
            "workers would write the same cache file: leave the name out, .cache(), to cache in memory, or let the "
            "function take a tf.distribute.InputContext, and put its input_pipeline_id into the name. Received: "
            f"cache({min(shared)!r})"
        )


def _cache_files(dataset: Any) -> set[str]:
    """Return the names of the files in which a data set, and those that it is made of, cache their elements."""
    file_name = dataset._filename.numpy().decode() if type(dataset).__name__ == "CacheDataset" else ""
    return {file_name} - {""} | {name for part in dataset._inputs() for name in _cache_files(part)}


def _dataset(make: DataFunction, workers: int | None = None, worker: int = 0) -> Any:
    """Call a data function: for a worker, or for the evaluation if `workers` is not given."""
    try:
        return _checked(make(tf.distribute.InputContext(workers, worker, workers)) if workers else make())
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the data function fails: {plain(error)}") from None


def _checked(dataset: Any) -> Any:
    if not isinstance(dataset, tf.data.Dataset):
        raise UserError(
            f"the data function must return a tf.data.Dataset: give arrays themselves, without a function. Received: "
            f"{kind_of(dataset)}"
        )
    return dataset
