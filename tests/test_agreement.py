"""A data function whose order differs between its calls is refused before the start; noise that differs is not."""

import os
import random
import secrets
import time
import uuid

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd import AsyncSGD, Cluster, UserError, train
from distsgd.common.cluster.fingerprint import data_digest
from distsgd.common.data import agreement
from distsgd.common.data.agreement import check_order
from distsgd.common.data.inputs import first_batches, sharding

X = np.arange(64, dtype=np.float32)
AT_IMPORT = np.random.default_rng(7)


def dataset(rows=X):
    return tf.data.Dataset.from_tensor_slices(rows).batch(4)


def generated(order):
    def rows():
        yield from X[order()]

    return lambda: tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec([], tf.float32)).batch(4)


def noisy():
    rng = np.random.default_rng()
    return dataset().map(lambda x: x + tf.numpy_function(lambda: np.float32(rng.normal()), [], tf.float32))


def flipped():
    rows = (x * random.choice([1, -1]) for x in X)
    return tf.data.Dataset.from_generator(lambda: rows, output_signature=tf.TensorSpec([], tf.float32)).batch(4)


def of_the_module():
    return tf.data.Dataset.from_generator(lambda: X[AT_IMPORT.permutation(64)], tf.float32, []).batch(4)


def indexed(order):
    return tf.data.Dataset.range(64).map(lambda i: tf.gather(X, tf.gather(order, i))).batch(4)


REFUSED = {
    "default_rng": lambda: dataset(np.random.default_rng().permutation(X)),
    "RandomState": lambda: dataset(np.random.RandomState().permutation(X)),
    "Random": lambda: dataset(np.array(random.Random().sample(X.tolist(), 64), "f")),
    "secrets": lambda: dataset(np.array(sorted(X, key=lambda _: secrets.randbits(32)))),
    "uuid": lambda: dataset(np.array(sorted(X, key=lambda _: uuid.uuid4()))),
    "a permutation in a generator": generated(lambda: np.random.permutation(64)),
    "the process in a generator": generated(lambda: np.random.RandomState(os.getpid()).permutation(64)),
    "default_rng in a generator": generated(lambda: np.random.default_rng().permutation(64)),
    "the process": lambda: dataset(np.random.RandomState(os.getpid()).permutation(X)),
    "the time": lambda: dataset(np.array(random.Random(int(time.time())).sample(X.tolist(), 64), "f")),
    "a seed of the time": lambda: dataset().shuffle(16, seed=int(time.time())),
    "the graph's seed of the time": lambda: tf.random.set_seed(int(time.time())) or dataset().shuffle(16),
    "an index by the time": lambda: indexed(random.Random(time.time_ns()).sample(range(64), 64)),
    "a filter": lambda: dataset().unbatch().filter(lambda x: tf.random.uniform([]) < 0.7).batch(4),
}

TAKEN = {
    "a seed": lambda: dataset(np.random.default_rng(0).permutation(X)),
    "a seed in a generator": generated(lambda: np.random.default_rng(0).permutation(64)),
    "NumPy's own generator in the call": lambda: dataset(np.random.permutation(X)),
    "shuffle": lambda: dataset().shuffle(16),
    "noise of a generator without a seed": noisy,
    "noise of the process": lambda: dataset(X + np.random.RandomState(os.getpid()).normal(size=64)),
    "texts": lambda: dataset(sorted({f"file {x:g}" for x in X})),
    "half of the examples flipped": flipped,
    "a filter by value": lambda: dataset().unbatch().filter(lambda x: x < 50).batch(4),
    "interleave": lambda: tf.data.Dataset.range(4).interleave(lambda i: tf.data.Dataset.range(i, i + 9).batch(3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_order_that_differs_between_calls_is_refused(name):
    with pytest.raises(UserError, match=r"default_rng\(seed=0\).*tf.distribute.InputContext"):
        check_order(REFUSED[name], 0, in_process=False)


@pytest.mark.parametrize("name", TAKEN)
def test_an_order_that_agrees_and_noise_that_differs_are_taken(name):
    states = np.random.get_state()[1].tolist(), random.getstate()
    check_order(TAKEN[name], 0, in_process=False)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states


def test_processes_have_copies_of_a_generator_of_the_module_and_threads_share_it():
    check_order(of_the_module, 0, in_process=False)
    with pytest.raises(UserError, match="anew in each call"):
        check_order(of_the_module, 0, in_process=True)


def test_data_are_read_only_if_their_order_may_differ(monkeypatch):
    monkeypatch.setattr(agreement, "_first_rows", lambda *_: pytest.fail("read"))
    check_order(lambda: dataset().shuffle(8).map(lambda x: x + tf.random.normal([])), 0, in_process=False)


def test_machines_compare_a_data_function_by_its_name():
    assert data_digest(sharding(of_the_module)) == data_digest(sharding(of_the_module)) != data_digest(sharding(noisy))


def test_train_refuses_before_the_start():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse")

    def make():
        rows = np.random.default_rng().permutation(X)[:, None]
        return tf.data.Dataset.from_tensor_slices((rows, rows)).batch(4)

    with pytest.raises(UserError, match="orders or chooses its examples anew"):
        train(model, make, AsyncSGD(), cluster=Cluster.local(2), batch_size=4, verbose=False)


OUTSIDE = tf.constant(2.0)

WITHOUT_GRAPH = {
    "a number of a tensor": lambda: dataset(X * tf.constant(1.0).numpy()),
    "a pass over a data set": lambda: dataset([float(x) for x in tf.data.Dataset.range(8)]),
    "a tensor from outside": lambda: dataset().map(lambda x: x * OUTSIDE),
    "a lookup": lambda: dataset().map(keras.layers.IntegerLookup(vocabulary=[1, 2])),
    "a generator of TensorFlow": lambda: dataset(tf.random.Generator.from_seed(0).uniform([64])),
}


@pytest.mark.parametrize("name", WITHOUT_GRAPH)
def test_a_function_that_the_graph_of_a_worker_cannot_hold_is_refused(name):
    with pytest.raises(UserError, match=r"cannot be called in a worker.*give the Dataset itself"):
        first_batches(sharding(lambda: WITHOUT_GRAPH[name]().map(lambda x: (x, x))), None, 4, 2)
