"""`train` from a script, a notebook cell and a test: any Keras model, any data."""

import json
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest

from distsgd.algorithms import AsyncSGD, Downpour, DownpourEasy, Serial, SyncSGD
from distsgd.common import Cluster, UserError, train
from runs import DIGITS

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


@pytest.mark.parametrize("backend", ["processes", "threads"])
def test_convolution_batch_normalization_and_dropout_train(backend, warm, tmp_path):
    model = convolutional()
    before = model.layers[1].moving_mean.numpy().copy()
    result = train(
        model,
        IMAGES,
        DownpourEasy(communication_period=4),
        cluster=Cluster.local(2, ps=2, backend=backend),
        epochs=12,
        validation_data=TEST_IMAGES,
        run_dir=tmp_path / "run",
        verbose=False,
    )
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


def test_classes_and_functions_of_a_script_or_a_notebook_cell_reach_the_processes(tmp_path):
    """No `if __name__ == "__main__"`, and as in a notebook no file to import from."""
    code = f"RUN = {str(tmp_path / 'run')!r}\n" + textwrap.dedent(SCRIPT)
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert "LOSS" in done.stdout, done.stderr
    first, last = map(float, done.stdout.split("LOSS")[1].split())
    assert last < 0.05 * first


def test_a_function_of_tf_data_feeds_each_worker_its_shard(warm, tmp_path):
    x, y = DIGITS.train

    def batches():
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2000, seed=0).batch(32, drop_remainder=True)

    def test_batches():
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices(DIGITS.test).batch(100)

    from distsgd.common.models import ModelRecipe

    result = train(
        ModelRecipe.named("mlp", (64,), 10, 0).build(),
        batches,
        AsyncSGD(),
        epochs=10,
        validation_data=test_batches,
        run_dir=tmp_path / "run",
        verbose=False,
    )
    assert result.metrics["steps"] == 10 * 2 * (1437 // 32 // 2)
    assert result.metrics["test_accuracy"] > 0.85


def test_models_with_several_inputs_take_nested_arrays(warm, tmp_path):
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    out = keras.layers.Dense(1)(keras.layers.Concatenate()([a, b]))
    model = keras.Model({"a": a, "b": b}, out)
    model.compile(loss="mse")
    rng = np.random.default_rng(0)
    x = {"a": rng.normal(size=(64, 3)).astype("f"), "b": rng.normal(size=(64, 2)).astype("f")}
    y = x["a"].sum(1, keepdims=True)
    result = train(
        model,
        (x, y),
        SyncSGD(learning_rate=0.1),
        epochs=30,
        batch_size=8,
        validation_data=(x, y),
        run_dir=tmp_path / "run",
        verbose=False,
    )
    assert result.metrics["test_loss"] < 0.05
    assert result.metrics["test_accuracy"] is None


def test_the_run_directory_holds_the_record(warm, tmp_path):
    model = convolutional()
    result = train(
        model,
        IMAGES,
        Downpour(),
        steps=20,
        validation_data=TEST_IMAGES,
        run_dir=tmp_path / "run",
        verbose=False,
    )
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
        ({"data": [[1.0], [2.0]]}, "must be \\(x, y\\)"),
        ({"epochs": 0}, "epochs must be at least 1. Received: epochs=0"),
        ({"steps": -1}, "steps must be at least 1"),
        ({"batch_size": 1000}, "batch_size must not be larger than the shard"),
        ({"scheme": Serial(), "cluster": Cluster.local(2)}, "--workers 1"),
        ({"schedule": [0, 1]}, "needs the threads back end"),
        ({"scheme": SyncSGD(backup_workers=2)}, "backup_workers must be fewer"),
    ],
)
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
