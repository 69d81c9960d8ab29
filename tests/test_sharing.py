"""worker.shard refuses data that come in other orders on the workers of a script, however they were shuffled."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from distsgd import UserError
from distsgd.common.data.agreement import check_order
from distsgd.common.data.places import out_of_place, rows_of
from distsgd.common.launch.shards import Sharding, seeds_of

X = np.arange(96, dtype=np.float32)


def shares_of(make, workers=3):
    """Return the share of each worker, read one after the other; `make` returns the data of a worker."""
    board = {}

    def exchange_of(k):
        def exchange(name, numbers):
            board[name, k] = list(numbers)
            return {other: left for (key, other), left in board.items() if key == name and other != k}

        return exchange

    made = [Sharding(k, workers, exchange_of(k)).shard(make(k)) for k in range(workers)]
    found = [iter([]) if own is None else iter(own) for own in made]
    rounds = itertools.zip_longest(*found)  # in turn, as workers do
    return [[np.asarray(e) for e in own if e is not None] for own in zip(*rounds, strict=True)]


def batches(order, noise=0.0):
    return [X[rows] + noise for rows in np.split(np.asarray(order), 24)]


def permuted(seed):
    return np.random.default_rng(seed).permutation(96)


class Loader:
    """As a DataLoader: it draws another order in each pass."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        return iter(batches(self.rng.permutation(96)))


class Indexed:
    """As a Dataset of PyTorch: it has `__getitem__` alone."""

    def __init__(self, seed):
        self.batches = batches(permuted(seed))

    def __getitem__(self, i):
        return self.batches[i]


def dataset(**options):
    return tf.data.Dataset.from_tensor_slices(X).shuffle(96, **options).batch(4)


def of_generator(rows):
    return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=tf.TensorSpec([], tf.int64)).batch(4)


SHUFFLED = {
    "arrays": lambda seed: X[permuted(seed)],
    "lists": lambda seed: batches(permuted(seed)),
    "generators": lambda seed: (batch for batch in batches(permuted(seed))),
    "loaders": Loader,
    "data sets of PyTorch": Indexed,
    "texts": lambda seed: [f"example {i}" for i in permuted(seed)],
    "texts in batches": lambda seed: [["of", f"{i}"] for i in permuted(seed)],
    "arrays of a data set": lambda seed: tf.data.Dataset.from_tensor_slices(X[permuted(seed)]).batch(4),
    "names of a data set": lambda seed: tf.data.Dataset.from_tensor_slices([f"{i}.png" for i in permuted(seed)]),
    "generators of a data set": lambda seed: of_generator(permuted(seed)),
    "a data set in an interleave": lambda seed: tf.data.Dataset.range(6).interleave(
        lambda i: tf.data.Dataset.range(16 * i, 16 * i + 16).shuffle(16, seed=seed)
    ),
    "pairs": lambda seed: [(batch, np.zeros(4)) for batch in batches(permuted(seed))],
}


@pytest.mark.parametrize("kind", SHUFFLED)
def test_data_that_each_worker_shuffles_for_itself_are_refused_before_one_is_used(kind):
    with pytest.raises(UserError, match=r"same order on all workers.*seed.*Received: another order on worker"):
        shares_of(lambda k: SHUFFLED[kind](k))


def test_what_cannot_be_iterated_over_is_refused():
    with pytest.raises(UserError, match=r"worker.shard takes a tf.data.Dataset, arrays.* Received: int"):
        shares_of(lambda k: 3)


@pytest.mark.parametrize("kind", [kind for kind in SHUFFLED if not kind.startswith(("pairs", "text", "name"))])
def test_data_in_one_order_are_shared_out_each_example_once(kind):
    found = shares_of(lambda k: SHUFFLED[kind](0))
    assert sorted(np.concatenate([np.ravel(e) for own in found for e in own])) == X.tolist()


@pytest.mark.parametrize("make", [lambda seed: X[permuted(seed)], lambda seed: dataset(seed=1 + seed)])
def test_a_worker_that_continues_in_a_later_pass_is_compared_with_those_that_continue_there(make):
    """A script seeds each pass by its number, of which a restarted worker begins with another one than at first."""
    board = {}

    def passes(k, done, *seeds):
        def exchange(name, numbers):
            board[name, k] = list(numbers)
            return {other: left for (key, other), left in board.items() if key == name and other != k}

        sharding = Sharding(k, 2, exchange)
        return [list(sharding.shard(make(seed), done + n)) for n, seed in enumerate(seeds)]

    passes(0, 0, 0, 1, 2)
    passes(1, 0, 0, 1)
    passes(1, 15, 2, 3)  # it was killed in its second pass, and was started again
    for k in (0, 1):
        passes(k, 24, 4, 5)  # the run was resumed
    with pytest.raises(UserError, match=r"Received: (another order|other seeds) on worker 0"):
        passes(1, 24, 6)


def test_the_seeds_of_a_data_set_of_tensorflow_are_compared():
    tf.random.set_seed(None)  # of an earlier test
    with pytest.raises(UserError, match="Received: a shuffle without a seed"):
        shares_of(lambda k: dataset())
    with pytest.raises(UserError, match="Received: other seeds on worker"):
        shares_of(lambda k: dataset(seed=k))
    found = shares_of(lambda k: dataset(seed=3))
    assert sorted(np.concatenate([np.ravel(e) for own in found for e in own])) == X.tolist()
    parts = [tf.data.Dataset.range(3), tf.data.Dataset.range(4)]
    assert None in seeds_of(tf.data.Dataset.sample_from_datasets(parts).map(lambda x: x))
    noise = tf.data.Dataset.zip((parts[0], tf.data.Dataset.random()))
    assert seeds_of(noise) == []  # noise may differ
    assert shares_of(lambda k: dataset(), workers=1)


def as_ready():
    return tf.data.Dataset.from_tensor_slices(X).map(lambda x: x, num_parallel_calls=2, deterministic=False)


def test_elements_that_come_as_soon_as_they_are_ready_have_no_order():
    options = tf.data.Options()
    options.deterministic = False
    for made in (as_ready(), dataset(seed=3).with_options(options)):
        with pytest.raises(UserError, match=r"same order on all workers.*after the shard. Received: deterministic"):
            shares_of(lambda k, made=made: made)
    with pytest.raises(UserError, match=r"in an order of its own.*Received: deterministic=False"):
        check_order(as_ready, 0, in_process=True)


def test_augmentation_may_differ_between_workers():
    signs = lambda k: permuted(k)[:24] % 2 * 2 - 1.0  # noqa: E731
    flipped = lambda k: [batch * s for batch, s in zip(batches(range(96)), signs(k), strict=True)]  # noqa: E731
    assert len(shares_of(flipped)) == 3
    assert len(shares_of(lambda k: batches(range(96), noise=0.1 * k))) == 3
    assert len(shares_of(lambda k: [["a", "b"]] * 6)) == 3
    drawn = lambda k: tf.data.Dataset.from_tensor_slices(permuted(k) % 97)  # noqa: E731
    assert len(shares_of(lambda k: tf.data.Dataset.zip((dataset(seed=3).unbatch(), drawn(k))))) == 3


def test_only_examples_that_occur_once_in_both_have_places():
    assert out_of_place([1, 2, 3], [2, 1, 4])
    assert not out_of_place([1, 2, 3], [1, 2, 3, 5])
    assert not out_of_place([1, 1, 3], [1, 3, 3])
    assert out_of_place([7, 5], [5])
    assert rows_of([np.zeros((2, 3)), np.zeros(3)]) == []
    assert len(set(rows_of([np.eye(3), np.zeros(3)]))) == 3
