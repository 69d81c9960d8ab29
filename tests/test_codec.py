"""Codecs give back what they are given, and the bytes in the results are those that travel."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import EFSGD, SignSGDMV, SyncSGD
from distsgd.common import Cluster, train
from distsgd.common.contract import Codec, Coordinates, Signs
from runs import DIGITS

SIZE = 37


def there_and_back(codec, vector):
    """The vector after its travel, and the bytes of what travelled."""
    wire = codec.encode(tf.constant(vector, tf.float32))
    size = sum(int(np.prod(tensor.shape)) * tensor.dtype.size for tensor in wire)
    return codec.decode(wire, len(vector)).numpy(), size


def signs(size):
    return np.random.default_rng(0).integers(-1, 2, size).astype(np.float32)


@pytest.mark.parametrize("size", [1, 4, SIZE])
def test_signs_come_back_as_they_were_in_two_bits_each(size):
    vector = signs(size)
    back, travelled = there_and_back(Signs(), vector)
    np.testing.assert_array_equal(back, vector)
    assert travelled == Signs().bytes(size) == (size + 3) // 4


@pytest.mark.parametrize("most", [1, 5, SIZE])
def test_the_elements_that_are_not_zero_come_back_where_they_were(most):
    vector = np.zeros(SIZE, np.float32)
    rng = np.random.default_rng(1)
    vector[rng.choice(SIZE, most, replace=False)] = rng.normal(size=most)
    back, travelled = there_and_back(Coordinates(most / SIZE), vector)
    np.testing.assert_array_equal(back, vector)
    assert travelled == Coordinates(most / SIZE).bytes(SIZE) == 8 * most


def test_without_a_codec_a_vector_travels_as_it_is():
    vector = np.random.default_rng(2).normal(size=SIZE).astype(np.float32)
    back, travelled = there_and_back(Codec(), vector)
    np.testing.assert_array_equal(back, vector)
    assert travelled == Codec().bytes(SIZE) == 4 * SIZE


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", [Codec(), Coordinates(1.0), Signs()], ids=lambda codec: type(codec).__name__)
def test_what_is_not_finite_does_not_come_back_as_finite(codec, bad):
    vector = signs(SIZE)
    vector[11] = bad
    back, _ = there_and_back(codec, vector)
    assert not np.isfinite(back[11])
    np.testing.assert_array_equal(np.delete(back, 11), np.delete(vector, 11))


@pytest.mark.parametrize(
    ("scheme", "message", "reply"),
    [(SyncSGD(), 4.0, 4.0), (SignSGDMV(), 0.25, 0.25), (EFSGD(share=0.1), 0.8, 4.0)],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_result_counts_the_bytes_that_travel(tmp_path, scheme, message, reply):
    rounds, workers = 6, 2
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    cluster = Cluster.local(workers=workers, ps=2, backend="threads")
    result = train(model, DIGITS.train, scheme, cluster=cluster, steps=rounds, run_dir=tmp_path, verbose=False)
    size = model.count_params()
    assert json.loads((tmp_path / "result.json").read_text())["bytes_pushed"] == result.metrics["bytes_pushed"]
    assert result.metrics["bytes_pushed"] == pytest.approx(workers * rounds * message * size, rel=0.01)
    pulled = workers * rounds * reply * size + workers * 4 * size  # the last are the center that each began with
    assert result.metrics["bytes_pulled"] == pytest.approx(pulled, rel=0.01)
