"""Bad examples are named before the start, with their index and the worker that would train on them."""

import keras
import numpy as np
import pytest

from distsgd import Cluster, SyncSGD, UserError, train
from distsgd.common.data import suspects
from distsgd.common.data.dataset import shard_rows

RNG = np.random.default_rng(0)


def compiled(*layers, loss="sparse_categorical_crossentropy", shape=(4,)):
    model = keras.Sequential([keras.Input(shape), *layers])
    model.compile(loss=loss)
    return model


def classifier():
    return compiled(keras.layers.Dense(3, activation="softmax"))


def good(examples=40):
    return RNG.normal(size=(examples, 4)).astype("f"), RNG.integers(0, 3, examples)


def with_bad(place, value, dtype=None):
    x, y = good()
    y = y.astype(dtype or y.dtype)
    (x if np.ndim(place) else y)[place] = value
    return x, y


def refusal(model, data, **options):
    """Return the error of a run whose third of three workers has the bad examples, whichever these are."""
    cluster = Cluster.local(3, backend="threads")
    with pytest.raises(UserError) as error:
        train(model, data, SyncSGD(), cluster=cluster, batch_size=8, verbose=False, **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (((17, 2), np.nan), "x of data holds NaN"),
        (((17, 0), np.inf), "x of data holds NaN or infinite"),
        ((17, 3), "does not take a batch of data: "),
        ((17, -1), "does not take a batch of data: "),
        ((17, 9, "f"), "does not take a batch of data: "),
        ((17, 1.5, "f"), "the loss takes a class as a whole number. Received: 1.5 in example 17 of data (worker "),
    ],
    ids=["NaN feature", "infinite feature", "class too large", "class below zero", "class in floats", "no class"],
)
def test_the_example_and_the_worker_of_a_bad_one_are_named(bad, why):
    data = with_bad(*bad)
    (worker,) = (k for k, rows in enumerate(shard_rows(data, 3, 0)) if 17 in rows)
    told = refusal(classifier(), data)
    assert why in told
    assert told.endswith(f" in example 17 of data (worker {worker})"), told


@pytest.mark.parametrize(
    ("loss", "labels", "found"),
    [
        ("sparse_categorical_crossentropy", np.array([0, 2.5], "f"), (1, 2.5)),
        (keras.losses.SparseCategoricalCrossentropy(), np.array([[0, 1], [0.25, 1]], "f"), (1, 0.25)),
        ("sparse_categorical_crossentropy", np.array([0, 2.0], "f"), None),
        ("sparse_categorical_crossentropy", np.array([0, 2]), None),
        ("mse", np.array([0, 2.5], "f"), None),
        ({"a": "mse", "b": "sparse_categorical_crossentropy"}, {"b": np.array([0.5]), "a": np.array([1.5])}, (0, 0.5)),
        (["mse", "sparse_categorical_crossentropy"], np.array([0.5]), None),
    ],
    ids=["name", "object", "whole-floats", "integers", "other-loss", "of-outputs", "without-its-labels"],
)
def test_a_label_between_two_classes_is_found_where_the_loss_takes_classes(loss, labels, found):
    """Keras and TensorFlow cut it off in silence."""
    assert suspects.between_classes(loss, labels) == found


def test_a_label_that_is_not_a_number_is_named_and_so_is_one_of_the_validation_data():
    x, y = good()
    target = y.astype("f")
    target[23] = np.nan
    regression = compiled(keras.layers.Dense(1), loss="mse")
    assert "example 23 of data (worker " in refusal(regression, (x, target))
    assert refusal(regression, (x, y), validation_data=(x, target)).endswith("example 23 of validation_data")


def test_a_model_that_takes_no_example_at_all_names_none():
    assert "The fault" not in refusal(compiled(keras.layers.Dense(3), shape=(5,)), with_bad((17, 2), np.nan))


def test_arrays_in_memory_are_looked_through_and_mapped_ones_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(suspects, "BLOCK_BYTES", 64)
    monkeypatch.setattr(suspects, "BLOCKS", 4)
    array = np.ones((1000, 4), "f")
    array[[500, 999], 1] = np.nan, np.inf
    np.save(tmp_path / "x.npy", array)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert suspects.suspects((array,)) == [500]
    assert suspects.suspects((mapped,)) == [999]
    read = list(suspects._looked_through(mapped))
    assert [first for first, _ in read] == [0, 332, 664, 996]
    assert sum(block.nbytes for _, block in read) == 4 * 64


def test_labels_have_the_extreme_ones_of_all_blocks():
    labels = np.array([3, 1, 4, 1, 5, 9, 2, 6])
    assert suspects.suspects((np.zeros((8, 1)), labels)) == [5, 1]
    assert suspects.suspects((np.zeros((8, 1)), labels.astype("f"))) == [5, 1]
    assert suspects.suspects((labels.astype("f"),)) == []
