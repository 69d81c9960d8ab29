"""XLA for the gradient of a worker: where a run uses it, and that it changes nothing but the rounding."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import Downpour, Serial
from distsgd.common import Cluster, UserError, train, training
from distsgd.common.data.models import ModelRecipe
from distsgd.common.data.trial import try_out
from distsgd.common.tasks import graph
from distsgd.common.tasks.graph import COMPILED, TaskGraph
from runs import job_of

L = keras.layers


def compiled(*layers, shape=(8, 8, 1), **how):
    model = keras.Sequential([keras.Input(shape), *layers, L.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **how)
    return model


class Alone(keras.layers.Layer):
    """Says that Keras shall not compile it, as some layers of Keras do."""

    def __init__(self, **how):
        super().__init__(**how)
        self.supports_jit = False

    def call(self, x):
        return 2 * x


class Asks(keras.layers.Layer):
    """Calls Python, which XLA cannot compile."""

    def call(self, x):
        return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], tf.float32), x.shape) + x


MODELS = {
    "dense": lambda: compiled(L.Flatten(), L.Dense(8, activation="tanh")),
    "images": lambda: compiled(L.Rescaling(1 / 255), L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU(), L.Flatten()),
    "text": lambda: compiled(L.Embedding(9, 4), L.LSTM(4), shape=(6,)),
}


def batch(name, size=12):
    rng = np.random.default_rng(0)
    x = rng.integers(9, size=(size, 6)) if name == "text" else rng.integers(256, size=(size, 8, 8, 1), dtype=np.uint8)
    return x if name == "text" else x.astype("uint8" if name == "images" else "float32"), rng.integers(3, size=size)


@pytest.mark.parametrize("name", ["dense", "images", "text"])
@pytest.mark.rotating("others")
def test_xla_computes_loss_gradient_state_and_seeds_to_rounding(name):
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    flat = try_out(ModelRecipe.of(model), model, batch(name)).flat(model)
    point = flat.pack() + 0.1, flat.pack_state(), flat.initial_seeds, flat.frozen_values()
    found = [
        tf.nest.flatten(tf.function(flat.gradient, jit_compile=jit, autograph=False)(*point, batch(name)))
        for jit in (True, False)
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.gate
def test_xla_advances_the_seeds_of_dropout_as_usual_and_draws_other_numbers():
    model, x = compiled(L.Flatten(), L.Dropout(0.5)), batch("dense")
    flat = try_out(ModelRecipe.of(model), model, x).flat(model)
    point = flat.pack(), flat.pack_state(), flat.initial_seeds, flat.frozen_values()
    found = [tf.function(flat.gradient, jit_compile=jit, autograph=False)(*point, x) for jit in (True, True, False)]
    losses, seeds = [float(loss) for loss, *_ in found], [np.array(seeds) for *_, seeds in found]
    np.testing.assert_array_equal(seeds[0], seeds[2])
    assert losses[0] == losses[1] != losses[2]


def test_a_worker_compiles_the_graph_of_the_evaluator_if_it_has_a_gpu(monkeypatch, tmp_path):
    job = job_of(Downpour(), 2, backend="processes", model="mlp:hidden=4", steps=4, run_dir=tmp_path)
    job.graph_file = tmp_path / "worker.graph"
    TaskGraph(job, [0]).export(job.graph_file)
    marks = {}
    for gpu in True, False:
        monkeypatch.setattr(graph, "has_gpu", lambda gpu=gpu: gpu)
        definition = TaskGraph.load(job, 1, job.graph_file).graph.as_graph_def()
        parts = [*graph._nodes(definition), *definition.library.function]
        marks[gpu] = [name for part in parts for name in part.attr if name in (COMPILED, "_noinline")]
    assert COMPILED in marks[True]
    assert marks[False] == []


@pytest.mark.parametrize("gpu", [False, True])
def test_auto_compiles_on_a_gpu_the_models_that_keras_compiles_there(gpu, monkeypatch, tmp_path):
    devices = [SimpleNamespace(device_type="GPU")] * gpu
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: devices)
    for model, why in (
        (compiled(L.Flatten()), ""),
        (compiled(L.Flatten(), jit_compile=True), ""),
        (compiled(L.Flatten(), jit_compile=False), "it is compiled with jit_compile=False" * gpu),
        (compiled(Alone(name="alone"), L.Flatten()), "Keras does not compile layer alone with XLA"),
    ):
        recipe = ModelRecipe.of(model)
        assert recipe.without_xla == why
        assert model.jit_compile == (not why) or not gpu
        job = job_of(Downpour(), model=recipe, data=batch("dense"), batch_size=4, run_dir=tmp_path)
        assert [job.compiles(False), job.compiles(True)] == [False, not why]


@pytest.mark.gate
def test_a_model_that_xla_cannot_compile_is_refused_or_trains_without(monkeypatch, tmp_path):
    how = {
        "cluster": Cluster.local(1, backend="threads"),
        "steps": 2,
        "batch_size": 4,
        "verbose": False,
        "probe": False,
    }
    model, data = compiled(Asks(), L.Flatten()), batch("dense")
    with pytest.raises(UserError, match=r"^XLA cannot compile the model: it has no PyFunc\. Leave jit out, or change"):
        train(model, data, Serial(), jit="on", run_dir=tmp_path / "on", **how)
    monkeypatch.setattr(training, "gpus", lambda: ["0"])
    result = train(model, data, Serial(), run_dir=tmp_path / "auto", **how).metrics
    warned = "XLA cannot compile the model: it has no PyFunc. Workers compute without XLA"
    assert (result["recovery"]["warnings"], result["arithmetic"]["xla"]) == ([warned], False)


def test_a_simulation_does_not_compile():
    how = {"cluster": Cluster.local(2, backend="simulation"), "batch_size": 4, "verbose": False}
    with pytest.raises(UserError, match=r"at once, without XLA: leave jit out\. Received: jit='on'"):
        train(MODELS["dense"](), batch("dense"), Downpour(), jit="on", **how)
