import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd.common import UserError
from distsgd.common.data import examples
from distsgd.common.data import named as data
from distsgd.common.data.dataset import batches, leaves, num_examples, shard_rows, split_off, weighted
from distsgd.common.data.inputs import count_steps
from distsgd.common.data.skew import distance, labels_of
from distsgd.common.data.text import library, numbered, windows
from distsgd.common.messages.cut import even_sizes
from distsgd.common.replay.reference import gradients
from distsgd.common.spec import parse
from distsgd.common.tasks.options import RunOptions


def test_shards_are_disjoint_equal_and_shuffled():
    shards = shard_rows(np.zeros(103), 4, seed=1)
    assert shards.shape == (4, 25)
    assert len(np.unique(shards)) == 100
    assert not np.array_equal(np.sort(shards[0]), shards[0])


LABELS = np.random.default_rng(7).integers(0, 5, 1003)


def skewed(alpha, workers=4, seed=1):
    return shard_rows((np.zeros(1003), LABELS), workers, seed, f"dirichlet:alpha={alpha}")


@pytest.mark.parametrize("alpha", ["1e-300", "0.1", "1.5", "1e3", "1e300"])
def test_skewed_shards_are_disjoint_of_equal_size_and_the_same_each_time(alpha):
    for workers in (1, 4, 7, 1003):
        shards = skewed(alpha, workers)
        assert shards.shape == (workers, 1003 // workers)
        assert len(np.unique(shards)) == shards.size
        np.testing.assert_array_equal(shards, skewed(alpha, workers))


def test_a_small_alpha_gives_workers_few_labels_and_a_large_one_all():
    far, near = (distance(LABELS, skewed(alpha)) for alpha in (0.1, 1000))
    assert far > 0.5
    assert near < 0.15  # and what the draws of 250 labels add
    counts = np.array([np.bincount(LABELS[rows], minlength=5) for rows in skewed(0.1)])
    assert (np.sort(counts, axis=1)[:, -2:].sum(1) > 0.9 * 250).all()  # two labels are nearly all of each shard
    assert not np.array_equal(skewed(0.1), skewed(0.1, seed=2))


@pytest.mark.parametrize("alpha", ["0.1", "3.0", "1e3"])
def test_the_reference_draws_the_same_skewed_shards_by_itself(alpha):
    for workers in (2, 5, 90):
        mine = gradients.skewed_rows(1, LABELS, workers, float(alpha))
        np.testing.assert_array_equal(mine, skewed(alpha, workers))


def test_labels_are_class_numbers_of_any_type_one_for_each_example():
    for y in (LABELS, LABELS.astype("f")[:, None], LABELS > 2):
        np.testing.assert_array_equal(labels_of((None, y)), np.ravel(y))
    for y, received in (
        (np.eye(3), r"float64 of shape \(3, 3\)"),
        (np.array([0.5, 1.0]), r"float64 of shape \(2,\)"),
        ({"a": LABELS}, "dict"),
    ):
        with pytest.raises(UserError, match=f"skew needs class numbers in y.*Received: {received}"):
            labels_of((None, y))
    with pytest.raises(UserError, match="a data function does its own sharding"):
        labels_of(lambda: None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dirichlet:alpha=0", "alpha of skew dirichlet must be positive"),
        ("dirichlet:alpha=-1", "alpha of skew dirichlet must be positive"),
        ("dirichlet:alpha=inf", "must be positive and finite"),
        ("dirichlet:beta=1", "no option 'beta'"),
        ("diriclet", "Did you mean dirichlet"),
        (0.1, r"skew must be a text in quotes. Received: skew=0\.1"),
    ],
)
def test_a_wrong_skew_is_refused_as_an_option_of_a_run(spec, message):
    with pytest.raises(UserError, match=message):
        RunOptions(skew=spec)


def test_batches_are_a_function_of_seed_worker_and_step():
    def take(n, **where):
        stream = batches(20, 6, **where)
        return [next(stream).tolist() for _ in range(n)]

    assert take(7, worker=1, seed=5) == take(7, worker=1, seed=5)
    assert take(7, worker=1, seed=5) != take(7, worker=2, seed=5)
    epoch = take(3, worker=0, seed=0)
    assert len({row for batch in epoch for row in batch}) == 18  # no example twice in an epoch
    assert take(6, worker=0, seed=0)[3:] != epoch


def sums(arrays):
    """A number for each array, which depends on the place of each element."""
    return [np.dot(a.ravel().astype(float), np.arange(a.size) % 97) for a in leaves(arrays)]


@pytest.mark.parametrize(
    ("spec", "sizes", "train", "test"),
    [
        ("digits", (1437, 360), (1344683.81, 308936), (337154.94, 71306)),
        ("synthetic", (8192, 2048), (-36528.99, 1744522), (-7475.87, 433077)),
        ("synthetic:examples=40,features=7,classes=3,noise=0.1,test=4", (40, 4), (-383.11, 825), (18.65, 0)),
        ("mnist1d", (4000, 1000), (-42792.76, 869706), (-14839.71, 216597)),
        ("sparse", (8192, 2048), (3235599098, -8898, 196268), (813332411, -10910, 50530)),
        ("sparse:examples=40,features=64,collisions=0.5", (40, 10), (351359, 38, 495), (80845, 74, 14)),
        ("quadratic:minima=7,examples=100", (98, 1), (299536, 14069), (0, 0)),
        ("least_squares", (4096, 1024), (20817.78, 6057.16), (-2866.51, 4895.33)),
        ("logistic:like=mushrooms", (8124, 2031), (453824151, 8188251, 295043), (113975012, 2046262, 74330)),
    ],
)
def test_a_named_data_set_is_the_same_everywhere_and_each_time(spec, sizes, train, test):
    """What a page reports of it, and what replay is given, would be of another data set else."""
    made = data.load(spec)
    assert (num_examples(made.train), num_examples(made.test)) == sizes
    np.testing.assert_allclose(sums(made.train), train, rtol=1e-4, atol=0.01)
    np.testing.assert_allclose(sums(made.test), test, rtol=1e-4, atol=0.01)
    assert all(a.dtype in (np.float32, np.int32) for a in leaves((made.train, made.test)))


@pytest.mark.parametrize(("workers", "batch_size", "epochs", "steps"), [(1, 6, 1, 3), (1, 20, 2, 2), (3, 4, 5, 5)])
def test_an_epoch_has_no_batch_that_is_not_full(workers, batch_size, epochs, steps):
    arrays = np.zeros((20, 2)), np.zeros(20)
    assert count_steps(arrays, workers, batch_size, epochs, None) == steps
    assert count_steps(arrays, workers, batch_size, epochs, 7) == 7


def test_a_number_may_have_an_exponent_and_a_path_a_comma():
    assert parse("data set", "synthetic:noise=1e-3,examples=5", data.DATASETS)[1] == {"noise": 1e-3, "examples": 5}
    paths = {"path": "a,b-c.svm", "test": "d,e.svm"}
    assert parse("data set", "libsvm:path=a,b-c.svm,test=d,e.svm", data.DATASETS)[1] == paths


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


def test_nested_arrays_are_counted_together():
    nested = {"b": np.zeros((4, 1)), "a": (np.ones(4), np.zeros((4, 2)))}
    assert num_examples((nested, np.zeros(4))) == 4
    assert leaves(nested)[0][0] == 1
    with pytest.raises(UserError, match="same number of examples"):
        num_examples((np.zeros(3), np.zeros(4)))


def test_slices_differ_by_one_at_most():
    assert even_sizes(10, 4) == [3, 3, 2, 2]


def test_a_data_set_that_cannot_be_loaded_names_another(monkeypatch):
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
    classes = np.arange(28).reshape(7, 4) % 3
    for several, positions in [
        (np.eye(3)[classes], (7, 4)),
        (classes[..., None], (7, 4)),
        (np.tile([0, 1, 1], (7, 1)), (7, 3)),
        (classes.reshape(7, 2, 2), (7, 2, 2)),
        (np.eye(3)[classes.reshape(7, 2, 2)], (7, 2, 2)),
    ]:
        with pytest.raises(UserError, match=re.escape(f"for each position, {positions}. Received")):
            weighted((first, several), {1: 2.0})


def test_the_classes_of_mnist1d_are_balanced():
    one = data.load("mnist1d:examples=90,test=30")
    assert (one.train[0].shape, one.test[0].shape, one.classes) == ((90, 40), (30, 40), 10)
    np.testing.assert_array_equal(np.bincount(np.concatenate([one.train[1], one.test[1]])), [12] * 10)


@pytest.mark.rotating
def test_mnist1d_is_as_hard_for_a_linear_model_as_in_the_paper():
    """32 % of its test examples; that a network does better is measured, and stands in the docstring."""
    from sklearn.linear_model import LogisticRegression

    made = data.load("mnist1d")
    assert 0.28 < LogisticRegression(max_iter=500).fit(*made.train).score(*made.test) < 0.36


def test_characters_are_numbered_and_what_is_no_ascii_is_one_other_each():
    np.testing.assert_array_equal(numbered("\n a~\t\r\x00é漢".encode()), [1, 2, 67, 96, 0, 0, 0, 0, 0])
    assert numbered(b"").shape == (0,)


def test_the_labels_of_text_are_its_own_next_characters():
    x, y = windows(np.arange(20, dtype=np.int32), 6)
    np.testing.assert_array_equal(x, np.arange(18).reshape(3, 6))
    np.testing.assert_array_equal(y, x + 1)
    assert np.shares_memory(x, y)


def test_training_text_shares_no_file_with_its_test_and_keeps_its_order():
    made, again = (data.load("text:context=32,characters=20000") for _ in range(2))
    np.testing.assert_array_equal(made.train[0], again.train[0])
    assert (made.train[0].shape, made.test[0].shape, made.kind) == ((624, 32), (78, 32), "text")
    assert made.train[0].max() < made.classes
    lines = [set("".join(chr(i + 30) for i in part.ravel()).split("\x1f")) for part in (made.train[0], made.test[0])]
    assert len([line for line in lines[0] & lines[1] if len(line) > 40]) == 0


def test_the_order_of_files_depends_on_their_names_alone(tmp_path):
    ignored = "b/test/d.py", "site-packages/e.py", "_sysconfigdata_x.py", "f.txt"
    for name in ("a.py", "b/c.py", *ignored, "g.py", "b/h.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    names = [path.relative_to(tmp_path).as_posix() for path in library(tmp_path)]
    assert sorted(names) == ["a.py", "b/c.py", "b/h.py", "g.py"]
    (tmp_path / "g.py").unlink()
    assert [path.relative_to(tmp_path).as_posix() for path in library(tmp_path)] == [n for n in names if n != "g.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text:context=100,characters=100", r"needs more characters than its context\. Received: 100 characters"),
        ("text:characters=2000000000", r"characters must be at most \d+, .*Received: characters=2000000000"),
    ],
)
def test_text_that_cannot_be_made_is_refused_in_one_line(text, message):
    with pytest.raises(UserError, match=message):
        data.load(text)


X, Y = np.random.default_rng(0).normal(size=(64, 4)).astype("f"), np.arange(64, dtype="f")[:, None]


class Frame:
    """As a frame of pandas: no array, but it has one."""

    def __init__(self, array):
        self.array = array

    def to_numpy(self):
        return self.array


class Part(keras.utils.PyDataset):
    """Eight batches of eight examples, or batches without an end."""

    def __init__(self, endless=False):
        super().__init__()
        self.endless = endless

    @property
    def num_batches(self):
        return None if self.endless else 8

    def __getitem__(self, i):
        return X[8 * (i % 8) :][:8], Y[8 * (i % 8) :][:8]


def slices(*more):
    return tf.data.Dataset.from_tensor_slices((X, Y, *more))


def generated(number=8):
    return (Part()[i] for i in range(number))


def linear():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (lambda: [X, Y], None),
        (lambda: (tf.constant(X), tf.Variable(Y)), None),
        (lambda: (X.tolist(), Y.tolist()), None),
        (lambda: (Frame(X), Frame(Y)), None),
        (lambda: slices(), None),
        (lambda: slices().batch(12), 12),
        (lambda: Part(), 8),
        (lambda: generated(), 8),
        (lambda: slices().batch(8).map(lambda x, y: (x, y)).filter(lambda x, y: True), 8),
    ],
)
def test_data_of_each_kind_are_read_as_the_same_arrays(data, size):
    arrays, batch = examples.read(data(), "data", linear())
    assert batch == size
    for found, wanted in zip(arrays, (X, Y), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, wanted)


def test_inputs_in_lists_and_dicts_keep_their_structure():
    for x in ([X, Y], {"b": X, "a": Y}):
        for given in (
            (x, Y, None),
            tf.data.Dataset.from_tensor_slices((x if isinstance(x, dict) else (X, Y), Y)).batch(7),
        ):
            (found, y), _ = examples.read(given, "data")
            np.testing.assert_array_equal(y, Y)
            for part, wanted in zip(leaves(found), leaves(x), strict=True):
                np.testing.assert_array_equal(part, wanted)
            assert isinstance(found, dict) == isinstance(x, dict)
    assert [part.shape for part in examples.read((X, None), "data")[0]] == [(64, 4)]
    assert [part.shape for part in examples.read(slices(Y).batch(5), "data")[0]] == [(64, 4), (64, 1), (64, 1)]


def test_a_generator_may_write_each_batch_into_the_same_arrays():
    def batches():
        x, y = np.zeros((2, 4)), np.zeros((2, 1))
        for number in range(3):
            x[:], y[:] = number, number
            yield x, y

    (x, y), _ = examples.read(batches(), "data")
    assert x[:, 0].tolist() == y[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_of_data_without_an_end_the_steps_of_all_workers_are_read():
    for given, size in (
        (Part(endless=True), 8),
        (slices().repeat().batch(8), 8),
        (generated(20), 8),
        (slices().repeat(), 32),
    ):
        (x, _), _ = examples.read(given, "data", linear(), steps=3)
        assert len(x) == 3 * size
    assert len(examples.read(slices().repeat().batch(8), "data", linear(), batch_size=20, steps=3)[0][0]) == 60
    assert len(examples.read(slices().batch(8), "data", linear(), steps=3)[0][0]) == 64  # its length is known


def failing():
    yield X[:8], Y[:8]
    raise OSError("no such image")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: slices().repeat(), "data never ends: give steps, the local"),
        (lambda: Part(endless=True), "data never ends: give steps, the local"),
        (lambda: ((X[:1], Y[:1]) for _ in iter(int, 1)), "data had no end after 100 batches: give steps, the local"),
        (lambda: failing(), "data cannot be read: OSError: no such image"),
        (lambda: iter([(X[:2], Y[:2]), (X[:2, :3], Y[:2])]), "data must yield batches of one shape"),
        (lambda: iter([(X[:2], Y[:2]), (X[:2],)]), "data must yield batches of one shape"),
        (lambda: iter([]), "must hold examples. Received: no batch"),
        (lambda: ([[1], [2, 3]], Y), "data cannot be read as an array: ValueError"),
        (lambda: (keras.Input((4,)), Y), "data cannot be read as an array: ValueError: A KerasTensor is symbolic"),
        (lambda: (tf.sparse.eye(3), Y), "data must hold dense arrays. Received: tensorflow.SparseTensor"),
        (
            lambda: iter([(np.zeros(3), 1.0)]),
            r"as after dataset.batch\(32\). Received: x float32 \(3,\), y float32",
        ),
        (lambda: (3, 4), r"the examples along the first axis.*Received: x int64 \(\), y int64 \(\)"),
    ],
)
def test_data_that_cannot_be_read_are_refused_in_one_line(data, message, monkeypatch):
    monkeypatch.setattr(examples, "MOST_BATCHES", 100)
    with pytest.raises(UserError, match=message):
        examples.read(data(), "data", linear())


def test_wide_floats_are_read_as_those_of_fit_and_mapped_ones_stay_in_their_file(tmp_path):
    np.save(tmp_path / "x.npy", X.astype("d"))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for wide in (X.astype("d"), X.tolist(), tf.constant(X, tf.float64), X.astype(np.longdouble)):
        (x, y), _ = examples.read((wide, [*range(64)]), "data")
        assert (x.dtype, y.dtype) == (np.float32, np.int64)
        np.testing.assert_array_equal(x, X)
    assert examples.read(mapped[3:], "data")[0][0].base is not None
    assert examples.read(X.astype("e"), "data")[0][0].dtype == np.float16


def test_data_larger_than_a_share_of_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(examples, "MEMORY_SHARE", 10**18)
    with pytest.raises(UserError, match=r"give a function that returns a tf\.data\.Dataset, which each worker reads"):
        examples.read(slices().batch(8), "data")
