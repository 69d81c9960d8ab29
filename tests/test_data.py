import numpy as np
import pytest

from distsgd.common import UserError
from distsgd.common.engine.ops import even_sizes
from distsgd.common.problems import data
from distsgd.common.problems.dataset import batches, leaves, num_examples, shard_rows, split_off, weighted
from distsgd.common.spec import parse


def test_shards_are_disjoint_equal_and_shuffled():
    shards = [shard_rows(103, k, 4, seed=1) for k in range(4)]
    assert [len(s) for s in shards] == [25] * 4
    assert len(np.unique(np.concatenate(shards))) == 100
    assert not np.array_equal(np.sort(shards[0]), shards[0])


def test_batches_are_a_function_of_seed_worker_and_step():
    def take(n, **where):
        stream = batches(20, 6, **where)
        return [next(stream).tolist() for _ in range(n)]

    assert take(7, worker=1, seed=5) == take(7, worker=1, seed=5)
    assert take(7, worker=1, seed=5) != take(7, worker=2, seed=5)
    epoch = take(3, worker=0, seed=0)
    assert len({row for batch in epoch for row in batch}) == 18  # no example twice in an epoch
    assert take(6, worker=0, seed=0)[3:] != epoch


def test_digits_is_split_the_same_way_every_time():
    one, two = data.load("digits"), data.load("digits")
    np.testing.assert_array_equal(one.train[0], two.train[0])
    assert one.train[0].shape == (1437, 64)
    assert one.test[0].shape == (360, 64)


def test_a_number_may_have_an_exponent_and_a_path_a_comma():
    assert parse("data set", "synthetic:noise=1e-3,examples=5", data.DATASETS)[1] == {"noise": 1e-3, "examples": 5}
    paths = {"path": "a,b-c.svm", "test": "d,e.svm"}
    assert parse("data set", "libsvm:path=a,b-c.svm,test=d,e.svm", data.DATASETS)[1] == paths


def test_synthetic_takes_its_sizes_as_options():
    made = data.load("synthetic:examples=100,features=7,classes=3")
    assert made.train[0].shape == (100, 7)
    assert set(made.train[1]) == {0, 1, 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digit", "Did you mean digits"),
        ("digits:size=3", "it has none"),
        ("synthetic:feature=3", "its options: examples, features"),
        ("synthetic:features=many", "takes a whole number"),
        ("synthetic:features=3-4", "takes a whole number. Received: '3-4'"),
        ("synthetic:noise=nan", "positive and finite"),
        ("synthetic:features=-3", "number|positive"),
    ],
)
def test_a_wrong_data_set_is_named_with_what_would_be_right(text, message):
    with pytest.raises(UserError, match=message):
        data.load(text)


def test_a_model_may_have_a_list_of_sizes():
    from distsgd.common.problems.models import MODELS

    assert parse("model", "mlp:hidden=64-32", MODELS) == ("mlp", {"hidden": (64, 32)})


def test_nested_arrays_are_counted_together():
    nested = {"b": np.zeros((4, 1)), "a": (np.ones(4), np.zeros((4, 2)))}
    assert num_examples((nested, np.zeros(4))) == 4
    assert leaves(nested)[0][0] == 1
    with pytest.raises(UserError, match="same number of examples"):
        num_examples((np.zeros(3), np.zeros(4)))


def test_slices_differ_by_one_at_most():
    assert even_sizes(10, 4) == [3, 3, 2, 2]


def test_a_data_set_that_is_not_cached_says_what_to_do(monkeypatch):
    import keras

    def offline(*_):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(keras.datasets.mnist, "load_data", offline)
    with pytest.raises(UserError, match=r"Network is unreachable.*--dataset digits"):
        data.load("mnist")


def test_the_validation_split_is_the_end_and_class_weights_go_to_examples():
    x, y = {"a": np.arange(10)}, np.array([[0], [1], [2], [1], [0], [1], [2], [1], [0], [0]])
    (first, labels), (last, _) = split_off((x, y), 0.25)
    np.testing.assert_array_equal(first["a"], np.arange(7))
    np.testing.assert_array_equal(last["a"], np.arange(7, 10))
    for form in (labels, labels[:, 0], np.eye(3)[labels[:, 0]]):
        np.testing.assert_array_equal(weighted((first, form), {0: 5.0, 2: 0.5})[2], [5, 1, 0.5, 1, 5, 1, 0.5])
