"""`train` from a script, a notebook cell and a test: any Keras model, any data."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import AsyncSGD, Downpour, DownpourEasy, Serial, SyncSGD
from distsgd.common import Callback, Cluster, Recovery, UserError, train
from distsgd.common.data.inputs import prepared
from distsgd.common.data.models import ModelRecipe
from distsgd.common.launch.run import in_common
from distsgd.common.tasks.job import make_job
from distsgd.common.tasks.options import RunOptions
from runs import DIGITS, ONES

IMAGES = (DIGITS.train[0].reshape(-1, 8, 8, 1), DIGITS.train[1])
TEST_IMAGES = (DIGITS.test[0].reshape(-1, 8, 8, 1), DIGITS.test[1])


def convolutional():
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 3, use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"])
    return model


@pytest.mark.rotating
def test_convolution_batch_normalization_and_dropout_train(tmp_path):
    model = convolutional()
    before = model.layers[1].moving_mean.numpy().copy()
    result = train(
        model, IMAGES, DownpourEasy(communication_period=4), cluster=Cluster.local(2, ps=2, backend="threads"),
        epochs=12, validation_data=TEST_IMAGES, run_dir=tmp_path / "run", verbose=False,
    )  # fmt: skip
    assert result.model is model
    assert result.metrics["test_accuracy"] > 0.9
    assert result.metrics["test_accuracy"] == pytest.approx(result.history["test_accuracy"][-1])
    assert not np.allclose(model.layers[1].moving_mean.numpy(), before)
    evaluated = model.evaluate(*TEST_IMAGES, verbose=0, return_dict=True)
    assert evaluated["accuracy"] == pytest.approx(result.metrics["test_accuracy"], abs=1e-6)
    model.save(tmp_path / "mine.keras")
    for file in (tmp_path / "mine.keras", result.run_dir / "model.keras"):
        again = keras.saving.load_model(file, compile=False)
        np.testing.assert_allclose(again(TEST_IMAGES[0][:9]), model(TEST_IMAGES[0][:9]), atol=1e-5)


SCRIPT = """
    import keras, numpy as np
    from dataclasses import dataclass
    from distsgd.algorithms import AsyncSGD
    from distsgd.common import Cluster, train

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        def call(self, x):
            return x * self.scale

    def squared(y, p):
        return keras.ops.mean((y - p) ** 2, axis=-1)

    @dataclass(frozen=True, kw_only=True)
    class Halved(AsyncSGD):
        name = "halved"
        def server_update(self, server, message, staleness):
            server.center.assign_sub(0.5 * self.learning_rate * message)
            return server.center

    model = keras.Sequential([keras.Input((3,)), Scale(), keras.layers.Dense(1)])
    model.compile(loss=squared)
    x = np.random.default_rng(0).normal(size=(256, 3)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5]], "float32")
    result = train(model, (x, y), Halved(), cluster=Cluster.local(workers=2), epochs=20,
                   validation_data=(x, y), run_dir=RUN, verbose=False)
    print("LOSS", result.history["test_loss"][0], result.history["test_loss"][-1])
"""


@pytest.mark.rotating
def test_classes_and_functions_of_a_script_or_notebook_reach_the_processes(tmp_path):
    """No `if __name__ == "__main__"`, and as in a notebook no file to import from."""
    code = f"RUN = {str(tmp_path / 'run')!r}\n" + textwrap.dedent(SCRIPT)
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert "LOSS" in done.stdout, done.stderr
    first, last = map(float, done.stdout.split("LOSS")[1].split())
    assert last < 0.05 * first


@pytest.mark.rotating
def test_a_function_of_tf_data_feeds_each_worker_its_shard(warm, tmp_path):
    x, y = DIGITS.train

    def batches():
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2000).batch(32, drop_remainder=True)

    def test_batches():
        import matplotlib
        import sklearn
        import tensorflow as tf

        assert matplotlib, "the fork server hides it from Keras alone"
        assert sklearn, "the fork server hides it from Keras alone"
        return tf.data.Dataset.from_tensor_slices(DIGITS.test).batch(100)

    result = train(
        ModelRecipe.named("mlp", (64,), 10, 0).build(), batches, AsyncSGD(), epochs=10, validation_data=test_batches,
        run_dir=tmp_path / "run", verbose=False,
    )  # fmt: skip
    assert result.metrics["steps"] == 10 * 2 * (1437 // 32 // 2)
    assert result.metrics["test_accuracy"] > 0.85


@pytest.mark.rotating
def test_models_with_several_inputs_take_nested_arrays(tmp_path):
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    out = keras.layers.Dense(1)(keras.layers.Concatenate()([a, b]))
    model = keras.Model({"a": a, "b": b}, out)
    model.compile(loss="mse")
    rng = np.random.default_rng(0)
    x = {"a": rng.normal(size=(64, 3)).astype("f"), "b": rng.normal(size=(64, 2)).astype("f")}
    y = x["a"].sum(1, keepdims=True)
    result = train(
        model, (x, y), SyncSGD(learning_rate=0.1), cluster=Cluster.local(2, backend="threads"), epochs=30, batch_size=8,
        validation_data=(x, y), run_dir=tmp_path / "run", verbose=False,
    )  # fmt: skip
    assert result.metrics["test_loss"] < 0.05
    assert result.metrics["test_accuracy"] is None


@pytest.mark.gate
def test_the_run_directory_holds_the_record(warm, tmp_path):
    model = convolutional()
    result = train(
        model, IMAGES, Downpour(), steps=20, validation_data=TEST_IMAGES, run_dir=tmp_path / "run", verbose=False,
    )  # fmt: skip
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names >= {
        "config.json", "metrics.jsonl", "result.json", "plot.png", "trace.npz", "center.npz", "model.keras", "logs",
    }  # fmt: skip
    assert {p.name for p in (tmp_path / "run" / "logs").iterdir()} == {
        "ps-0.log", "worker-0.log", "worker-1.log", "evaluator-0.log",
    }  # fmt: skip
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result.metrics
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} == {"worker", "center"}
    flat = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    state = 16  # batch normalisation's two averages of 8 channels
    assert result.metrics["bytes_pushed"] == 2 * 4 * 4 * (flat + state)
    with pytest.raises(UserError, match="already holds a run"):
        train(model, IMAGES, Downpour(), steps=20, run_dir=tmp_path / "run", verbose=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": (IMAGES[0], IMAGES[1][:5])}, "same number of examples"),
        ({"data": "digits"}, r"data must be \(x, y\), .*a tf.data.Dataset, .* Received: str"),
        ({"data": (IMAGES[0], object())}, r"data must be \(x, y\), .* Received: object"),
        ({"data": (*IMAGES, None, 1)}, "Received: a tuple of 4"),
        ({"data": IMAGES[0]}, "the loss of the model compares with labels: give data=\\(x, y\\)"),
        ({"data": (IMAGES[0].astype(object), IMAGES[1])}, "data must hold numbers.*Received: object"),
        ({"data": (np.zeros((0, 8, 8, 1)), np.zeros(0))}, "must hold examples"),
        ({"data": (IMAGES[0][:, :7], IMAGES[1])}, r"a batch of data: .* x float32 \(32, 7, 8, 1\), y int32 \(32,\)"),
        ({"data": (IMAGES[0].astype(str), IMAGES[1])}, "does not take a batch of data"),
        ({"data": (IMAGES[0], np.r_[IMAGES[1][1:], 10])}, "label value of 10 which is outside the valid range"),
        ({"data": (np.r_[IMAGES[0][1:], np.full((1, 8, 8, 1), np.nan)], IMAGES[1])}, "x of data holds NaN"),
        ({"data": lambda: 1 / 0}, "the data function fails: ZeroDivisionError"),
        (
            {"data": lambda: tf.data.Dataset.from_tensor_slices(IMAGES).batch(4).cache("a").prefetch(1)},
            r"input_pipeline_id into the name\. Received: cache\('a'\)$",
        ),
        (
            {"data": lambda: 3},
            "must return a tf.data.Dataset: give arrays themselves, without a function. Received: int",
        ),
        ({"data": lambda: tf.data.Dataset.from_tensors(1.0).repeat(9)}, "must return .* of \\(x,\\), \\(x, y\\) or"),
        (
            {"data": lambda: tf.data.TFRecordDataset("missing"), "steps": 3},
            "first batch .* cannot be read: NotFoundError",
        ),
        ({"validation_data": (IMAGES[0], IMAGES[1][:5])}, "same number of examples"),
        ({"validation_data": (IMAGES[0][:, :7], IMAGES[1])}, "does not take a batch of validation_data"),
        ({"validation_data": IMAGES[0]}, "with labels: give validation_data=\\(x, y\\)"),
        ({"validation_split": 1.0}, "must leave examples on both sides"),
        ({"validation_split": -1}, "between 0 and 1"),
        ({"class_weight": {0: 2.0}, "data": (*IMAGES, np.ones(1437))}, "class_weight and sample_weight"),
        ({"class_weight": {0: 2.0}, "data": lambda: None}, "need arrays"),
        ({"class_weight": np.ones(2)}, r"class_weight must be a dict, as in \{0: 2.0"),
        ({"codec": 8}, "codec must be a text in quotes. Received: codec=8"),
        ({"run_dir": 5}, "run_dir must be a path, a text in quotes. Received: run_dir=5"),
        ({"epochs": 0}, "epochs must be at least 1. Received: epochs=0"),
        ({"epochs": 1.5}, "epochs must be a whole number. Received: epochs=1.5"),
        ({"steps": -1}, "steps must be at least 1"),
        ({"batch_size": 1000}, "batch_size must not be larger than the shard"),
        ({"scheme": Serial(), "cluster": Cluster.local(2)}, "--workers 1"),
        ({"scheme": "downpour"}, "must be an algorithm such as Downpour.*Received: 'downpour'"),
        ({"scheme": Downpour}, r"write Downpour\(\)"),
        ({"data": IMAGES[0], "scheme": IMAGES[1]}, r"\(x, y\), Downpour\(\)\)\. Received: ndarray"),
        ({"cluster": 4}, r"cluster=Cluster.local\(workers=4\). Received: 4"),
        ({"recovery": {"max_restarts": 3}}, "recovery must be a Recovery"),
        (
            {"callbacks": [keras.callbacks.ReduceLROnPlateau()]},
            "ReduceLROnPlateau needs .* give the algorithm a schedule",
        ),
        ({"callbacks": [keras.callbacks.BackupAndRestore("b")]}, "BackupAndRestore needs .* use run_dir"),
        ({"callbacks": [keras.callbacks.SwapEMAWeights()]}, "SwapEMAWeights needs .* use ema_decay"),
        ({"callbacks": [keras.callbacks.TerminateOnNaN()]}, "TerminateOnNaN needs .* use recovery"),
        ({"callbacks": print}, "callbacks must be a list"),
        ({"l2": "0.1"}, "l2 must not be negative. Received: l2='0.1'"),
        ({"model": IMAGES}, "must be a Keras model. Received: tuple"),
        ({"schedule": [0, 1]}, "needs the threads back end"),
        ({"scheme": SyncSGD(backup_workers=2)}, "backup_workers must be fewer"),
    ],
)
@pytest.mark.rotating("others")
def test_bad_input_is_refused_before_anything_starts(change, message, tmp_path):
    arguments = {
        "model": convolutional(),
        "data": IMAGES,
        "scheme": AsyncSGD(),
        "run_dir": tmp_path / "run",
    } | change
    with pytest.raises(UserError, match=message):
        train(arguments.pop("model"), arguments.pop("data"), arguments.pop("scheme"), verbose=False, **arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cluster.local(4.0),
        lambda: Downpour(learning_rate="0.1"),
        lambda: Downpour(learning_rate="cosine"),
        lambda: Downpour(communication_period=2.5),
        lambda: Recovery(max_restarts="5"),
        lambda: Cluster.local(2, wait_seconds="9"),
    ],
)
def test_a_value_that_is_no_number_is_refused_by_name(make):
    with pytest.raises(UserError, match=r"\w+ must be a (positive|whole) number. Received: \w+="):
        make()


class Losses(Callback):
    """The losses that each worker reports."""

    def __init__(self):
        self.of = {}

    def on_train_batch_end(self, batch, logs):
        self.of.setdefault(logs["worker"], []).append(logs["loss"])


DTYPES = ["bool", "int8", "int32", "uint32", "float16", "bfloat16", "float32", "float64"]
TARGET = 1.0  # a global that the lambdas below need


@keras.saving.register_keras_serializable("tests")
class Tables(keras.layers.Layer):
    """The mean of one frozen table of each dtype, all of them ones."""

    def build(self, shape):
        self.tables = [
            self.add_weight(shape=(9,), dtype=dtype, initializer="ones", trainable=False, name=f"table_{dtype}")
            for dtype in DTYPES
        ]

    def call(self, x):
        means = [keras.ops.mean(keras.ops.cast(table, "float32")) for table in self.tables]
        return 0 * x[:, :1] + sum(means) / len(means)


def two_headed():
    """One output that learns, with batch normalisation; one that is right only if all frozen tables are."""
    x = keras.Input((4,), name="x")
    learnt = keras.layers.BatchNormalization(name="norm", momentum=0.8)(x)
    learnt = keras.layers.Dense(1, name="learnt")(keras.layers.Dense(4, trainable=False, name="frozen")(learnt))
    model = keras.Model(x, [learnt, Tables(name="tables")(x)])
    model.compile(
        loss={"learnt": lambda y, p: keras.ops.square(y - p), "tables": lambda y, p: keras.ops.abs(p - TARGET)},
        metrics={"tables": [lambda y, p: keras.ops.abs(p - TARGET)]},
    )
    return model


@pytest.mark.rotating
def test_frozen_layers_are_the_same_everywhere_and_are_not_sent(warm, tmp_path):
    """Also two outputs with a lambda for each loss, and weights of the validation examples."""
    model, losses = two_headed(), Losses()
    rng = np.random.default_rng(0)
    x = rng.normal(5, 1, size=(256, 4)).astype("f")
    y = [np.zeros((256, 1), "f"), np.zeros((256, 1), "f")]
    before = [np.asarray(v.value) for v in model.get_layer("frozen").weights]
    result = train(
        model, (x, y), AsyncSGD(learning_rate=0.02), cluster=Cluster.local(3, devices_per_worker=2),
        steps=40, batch_size=16, validation_data=(x, y, [np.ones(256, "f"), np.ones(256, "f")]), callbacks=[losses],
        run_dir=tmp_path / "run", verbose=False,
    )  # fmt: skip
    assert sorted(losses.of) == [0, 1, 2]
    assert max(worker[-1] for worker in losses.of.values()) < 1  # a table that is off by one on some worker adds 1
    assert result.history["test_tables_loss"][-1] == 0
    trainable, statistics = 4 + 4 + 4 + 1, 4 + 4
    assert result.metrics["bytes_pushed"] == 4 * (trainable + statistics) * result.metrics["updates"]
    np.testing.assert_allclose(model.get_layer("norm").moving_mean, x.mean(0), atol=0.2)
    for one, other in zip(before, model.get_layer("frozen").weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_class_weights_are_for_training_and_validation_data_beat_a_split():
    x, y = np.arange(8.0), np.arange(8) % 2
    (_, _, weight), validation = prepared((x, y), None, 0.25, {1: 3.0})
    np.testing.assert_array_equal(weight, [1, 3, 1, 3, 1, 3])
    assert [part.tolist() for part in validation] == [[6, 7], [0, 1]]
    data, validation = prepared((x, y), (x, y), 0.25, None)
    assert len(data[0]) == len(validation[0]) == 8


def test_machines_with_other_frozen_weights_differ():
    """The chief sends what trains; what is frozen is each program's own."""
    one, same, other = (two_headed() for _ in range(3))
    same.set_weights(one.get_weights())
    data, options = (
        (ONES[0], [ONES[1]] * 2),
        {"epochs": 1, "steps": 1, "batch_size": 1, "seed": 0, "run_dir": Path("run")},
    )
    job = make_job(AsyncSGD(), ModelRecipe.of(one), data, None, Cluster.local(), RunOptions(**options))
    assert in_common(job, one) == in_common(job, same)
    different = {key for key, value in in_common(job, one).items() if in_common(job, other)[key] != value}
    assert different == {"weights that do not train"}


def test_machines_with_other_data_of_the_same_name_differ():
    """A file, or the text of another Python, need not be the same everywhere."""
    options, recipe = RunOptions(steps=1, batch_size=1, run_dir=Path("run")), ModelRecipe.named("softmax", (1,), 2, 0)
    one, same, other = (
        in_common(make_job(AsyncSGD(), recipe, data, None, Cluster.local(), options), None)
        for data in (ONES, (ONES[0].copy(), ONES[1]), (ONES[0] + 1, ONES[1]))
    )
    assert one == same
    assert {key for key, value in one.items() if other[key] != value} == {"data"}
