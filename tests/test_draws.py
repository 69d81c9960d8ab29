"""What a data function draws: orders that agree between workers, and noise that does not."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from distsgd.common.data.inputs import sharding
from distsgd.common.data.orders import agreeing, seed_generators

X = np.arange(64, dtype=np.float32)


def dataset(rows=X):
    return tf.data.Dataset.from_tensor_slices(rows)


def shuffled_after_a_seed():
    tf.random.set_seed(5)
    return dataset().shuffle(64, reshuffle_each_iteration=True)


def permuted(order):
    return lambda: dataset(tf.gather(X, order()))


def mixed():
    parts = [dataset(X[i::4]) for i in range(4)]
    return tf.data.Dataset.sample_from_datasets(parts).shuffle(8)


def interleaved():
    starts = tf.data.Dataset.range(0, 64, 8).shuffle(8)
    return starts.interleave(lambda i: tf.data.Dataset.range(i, i + 8).shuffle(8), cycle_length=3)


def drawn(make, workers=4, seed=0, epochs=1):
    """The numbers of each worker, as its task would read them."""
    found = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for k in range(workers):
            with agreeing(seed, k):
                own = sharding(make)(tf.distribute.InputContext(workers, k, workers))
            iterator = tf.compat.v1.data.make_initializable_iterator(own.batch(64).repeat(epochs))
            session.run(iterator.initializer)
            batch = iterator.get_next()
            found.append(np.concatenate([session.run(batch) for _ in range(epochs)]))
    return found


@pytest.mark.parametrize(
    "make",
    [
        lambda: dataset().shuffle(64),
        shuffled_after_a_seed,
        lambda: dataset().shuffle(64, seed=3),
        mixed,
        interleaved,
        permuted(lambda: np.random.permutation(64)),
        permuted(lambda: random.sample(range(64), 64)),
        permuted(lambda: tf.random.shuffle(tf.range(64))),
    ],
)
@pytest.mark.rotating("others")
def test_an_order_is_one_for_all_workers_and_follows_from_the_seed(make):
    first, again, other = drawn(make, epochs=2), drawn(make, epochs=2), drawn(make, seed=1)
    for epoch in range(2):
        visits = np.concatenate([rows[16 * epoch : 16 * (epoch + 1)] for rows in first]).astype(int)
        np.testing.assert_array_equal(np.bincount(visits, minlength=64), np.ones(64))
    np.testing.assert_array_equal(first, again)
    assert sorted(np.concatenate(other)) == sorted(X)


def test_files_are_listed_in_one_order(tmp_path):
    for i in range(12):
        (tmp_path / f"{i}").touch()
    files = drawn(lambda: tf.data.Dataset.list_files(str(tmp_path / "*")))
    assert len(set(np.concatenate(files).tolist())) == 12


def test_noise_is_each_workers_own_and_follows_from_seed_and_worker():
    def noisy():
        own = tf.random.normal([])  # of the call: one for all
        return dataset(np.zeros(64, "f")).map(lambda x: tf.stack([x + tf.random.normal([]), own]))

    first, again, other = drawn(noisy), drawn(noisy), drawn(noisy, seed=1)
    np.testing.assert_array_equal(first, again)
    noise, of_calls = np.array(first)[..., 0], np.array(first)[..., 1]
    assert len(np.unique(np.concatenate([noise.ravel(), np.array(other)[..., 0].ravel()]))) == 2 * 64
    assert len(np.unique(of_calls)) == 1


def test_numbers_of_keras_are_of_the_call_or_of_each_element_as_those_of_tensorflow():
    def noisy():
        order = tf.argsort(keras.random.uniform([64]))
        return dataset(tf.gather(X, order)).map(lambda x: tf.stack([x, keras.random.normal([])]))

    first, again = np.array(drawn(noisy)), np.array(drawn(noisy))
    np.testing.assert_array_equal(first, again)
    assert sorted(first[..., 0].ravel()) == sorted(X)
    assert len(np.unique(first[..., 1])) == 64


def test_a_call_leaves_the_generators_of_the_program_as_they_were():
    seed = context.global_seed()  # other tests may have set it
    np.random.seed(3)
    random.seed(3)
    expected = np.random.rand(), random.random()
    np.random.seed(3)
    random.seed(3)
    with tf.Graph().as_default() as graph, agreeing(0, 0):
        tf.random.set_seed(1)
        assert (np.random.rand(), random.random()) != expected
    assert (np.random.rand(), random.random(), graph.seed) == (*expected, None)
    assert context.global_seed() == seed


def test_tasks_draw_other_numbers_that_follow_from_the_seed():
    def first(seed, task):
        seed_generators(seed, task)
        return np.random.rand(), random.random()

    before = np.random.get_state(), random.getstate()
    drawn = [first(seed, task) for seed in (0, 1) for task in ("worker-0", "worker-1", "ps-0")]
    assert first(0, "worker-0") == drawn[0]
    assert len({number for pair in drawn for number in pair}) == 12
    np.random.set_state(before[0])
    random.setstate(before[1])
