"""Models and metrics of Keras in `train`: to the number what Keras computes, or one line before the start."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import Serial, SyncSGD
from distsgd.common import Cluster, Recovery, UserError, train
from distsgd.common.data.dataset import batches, shard_rows
from distsgd.common.record.summary import summary_rows
from distsgd.common.worker.flat_model import unused_optimizer

STEPS, BATCH, RATE, SEED = 3, 8, 0.1, 3
LAYERS = keras.layers


def compiled(inputs, outputs, **options):
    model = keras.Model(inputs, outputs)
    model.compile(**{"loss": "mse", **options})
    return model


def masked_embedding():
    x = keras.Input((6,), dtype="int32")
    inner = LAYERS.Embedding(5, 4, mask_zero=True)(x)  # the loss of each position: those of zeros count nothing
    return compiled(x, LAYERS.Dense(1)(LAYERS.Dense(3)(inner)))


def masked_sequence():
    x = keras.Input((6, 2))
    return compiled(x, LAYERS.Dense(1)(LAYERS.SimpleRNN(3, return_sequences=True)(LAYERS.Masking()(x))))


def weighted_outputs():
    x = keras.Input((4,))
    return compiled(
        x, [LAYERS.Dense(1, name="a")(x), LAYERS.Dense(1, name="b")(x)], loss=["mse", "mse"], loss_weights=[0.25, 4.0],
    )  # fmt: skip


def with_layer(*layers):
    x = keras.Input((4,))
    return compiled(x, keras.Sequential([*layers, LAYERS.Dense(1)])(x))


@keras.saving.register_keras_serializable("tests")
class Penalized(LAYERS.Dense):
    """Adds the mean square of its output to the loss."""

    def call(self, x):
        y = super().call(x)
        self.add_loss(2 * keras.ops.mean(keras.ops.square(y)))
        return y


def with_losses():
    """Losses of layers, and regularizers of each kind, also of what does not train, and below batch normalisation."""
    regularizers = keras.regularizers
    return with_layer(
        LAYERS.Dense(4, kernel_regularizer=regularizers.L2(0.3), trainable=False),
        LAYERS.Dense(3, kernel_regularizer=regularizers.OrthogonalRegularizer(0.2), bias_regularizer="l1"),
        LAYERS.BatchNormalization(gamma_regularizer=regularizers.L1L2(0.1, 0.2), momentum=0.8),
        Penalized(3, kernel_regularizer=regularizers.L2(0.3), activity_regularizer="l2"),
    )


@keras.saving.register_keras_serializable("tests")
class Filled(LAYERS.Layer):
    """Puts a 2 where a 0 is."""

    def call(self, x):
        return keras.ops.where(x != 0, x, 2.0)


def compared():
    """A loss that leaves out the targets that are 0."""
    x = keras.Input((4,))
    outputs = LAYERS.Dense(1)(Filled()(x))
    return compiled(x, outputs, loss=lambda y, p: keras.ops.where(y == 0, 0.0, keras.ops.square(p - y))[:, 0])


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(64, 4)).astype("f"), RNG.normal(size=(64, 1)).astype("f")
TOKENS = RNG.integers(0, 5, (64, 6)).astype("i")
SEQUENCES = RNG.normal(size=(64, 6, 2)).astype("f") * (RNG.random((64, 6, 1)) < 0.6)
GAPS = np.where(RNG.random((64, 4)) < 0.4, 0, X), np.where(RNG.random((64, 1)) < 0.4, 0, Y)
POSITIONS = RNG.normal(size=(64, 6, 1)).astype("f")

MODELS = {
    "mask_zero": (masked_embedding, (TOKENS, POSITIONS)),
    "Masking": (masked_sequence, (SEQUENCES, POSITIONS)),
    "loss_weights": (weighted_outputs, (X, [Y, -Y])),
    "regularizers and add_loss": (with_losses, (X, Y)),
    "comparisons": (compared, GAPS),
}


def by_hand(model, data):
    """Weights after the steps of worker 0 of one, as `fit` with plain SGD takes them, on the batches of the run."""
    rows = shard_rows(data, 1, SEED)[0]
    order = batches(len(rows), BATCH, 0, SEED)
    model.optimizer = keras.optimizers.SGD(RATE)
    model.optimizer.build(model.trainable_variables)
    for _ in range(STEPS):
        chosen = rows[next(order)]
        model.train_on_batch(*keras.tree.map_structure(lambda array, chosen=chosen: array[chosen], data))
    return model.get_weights()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.rotating
def test_a_run_takes_the_steps_that_keras_takes(name, tmp_path):
    """Masks, weights of outputs and all that is added to the loss count as in `fit`, and in the evaluation."""
    layers, data = MODELS[name]

    def make():
        keras.utils.set_random_seed(0)
        return layers()

    result = train(
        model := make(), data, Serial(learning_rate=RATE), cluster=Cluster.local(1, backend="threads"), steps=STEPS,
        batch_size=BATCH, seed=SEED, validation_data=data, run_dir=tmp_path / "run", verbose=False,
    )  # fmt: skip
    fitted = make()
    for mine, keras_own in zip(model.get_weights(), by_hand(fitted, data), strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=2e-5, atol=2e-6)
    evaluated = fitted.evaluate(*data, batch_size=64, verbose=0, return_dict=True)
    assert result.metrics["test_loss"] == pytest.approx(evaluated["loss"], rel=1e-4)


def run(model, data, tmp_path, scheme=None, **options):
    options = {"steps": 2, "validation_data": data, "cluster": Cluster.local(1, backend="threads")} | options
    options = {"batch_size": BATCH, "run_dir": tmp_path / "run", "verbose": False} | options
    return train(model, data, scheme or Serial(learning_rate=RATE), **options)


def frozen_float16(trainable=False):
    """A frozen float16 backbone below a head; nothing that trains lies before it, unless the first layer does."""
    x = keras.Input((4,))
    first = LAYERS.Dense(4, name="first", trainable=trainable)(x)
    backbone = LAYERS.Dense(8, dtype="float16", trainable=False, name="backbone")(first)
    return compiled(x, LAYERS.Dense(1, name="head")(backbone))


@pytest.mark.rotating
def test_a_frozen_float16_backbone_is_left_as_it_is_and_the_head_trains(tmp_path):
    model = frozen_float16()
    before = model.get_layer("backbone").get_weights()[0], model.get_layer("head").get_weights()[0]
    run(model, (X, Y), tmp_path)
    np.testing.assert_array_equal(model.get_layer("backbone").get_weights()[0], before[0])
    assert not np.allclose(model.get_layer("head").get_weights()[0], before[1])


def with_metrics(*metrics, **options):
    x = keras.Input((4,))
    options = {"loss": keras.losses.CategoricalCrossentropy(), "metrics": list(metrics)} | options
    return compiled(x, LAYERS.Dense(3, activation="softmax")(x), **options)


CLASSES = np.eye(3, dtype="f")[RNG.integers(0, 3, 64)]


@pytest.mark.rotating
def test_all_metrics_are_in_the_result_and_vectors_are_lists(tmp_path, capsys):
    def model():
        keras.utils.set_random_seed(0)
        return with_metrics("accuracy", keras.metrics.F1Score(), keras.metrics.AUC(name="auc"))

    result = run(trained := model(), (X, CLASSES), tmp_path, verbose=True, tensorboard=True)
    evaluated = trained.evaluate(X, CLASSES, verbose=0, return_dict=True)
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert evaluated["f1_score"].shape == (3,)
    assert result.metrics["recovery"]["warnings"] == []
    for name, value in evaluated.items():
        for found in (result.metrics, stored, rows[-1], {k: v[-1] for k, v in result.history.items()}):
            assert found[f"test_{name}"] == pytest.approx(np.asarray(value).tolist(), rel=1e-4)
    table = summary_rows(result.metrics)
    assert len(table["test f1 score"].split()) == 3
    assert float(table["test auc"]) == pytest.approx(evaluated["auc"], abs=1e-4)
    events = [e for file in (tmp_path / "run" / "tb").iterdir() for e in tf.compat.v1.train.summary_iterator(str(file))]
    shown = {value.tag: value.simple_value for value in events[-1].summary.value}
    assert [shown[f"test_f1_score/{i}"] for i in range(3)] == pytest.approx(evaluated["f1_score"], rel=1e-4)


@pytest.mark.rotating
def test_a_vector_named_accuracy_is_in_the_result_but_numbers_come_first(tmp_path):
    vector = run(with_metrics(keras.metrics.F1Score(name="accuracy")), (X, CLASSES), tmp_path / "vector").metrics
    assert len(vector["test_accuracy"]) == len(summary_rows(vector)["test accuracy"].split()) == 3
    model = with_metrics(keras.metrics.TopKCategoricalAccuracy(k=3, name="a_accuracy"), "accuracy")
    numbers = run(model, (X, CLASSES), tmp_path / "numbers").metrics
    assert numbers["test_a_accuracy"] == 1
    assert numbers["test_accuracy"] == pytest.approx(
        model.evaluate(X, CLASSES, verbose=0, return_dict=True)["accuracy"]
    )


@pytest.mark.rotating
def test_metrics_of_each_output_are_in_the_result(tmp_path):
    x = keras.Input((4,))
    outputs = [LAYERS.Dense(1, name="a")(x), LAYERS.Dense(1, activation="sigmoid", name="b")(x)]
    metrics = {"a": ["mae"], "b": [keras.metrics.Precision(name="precision")]}
    model = compiled(x, outputs, loss=["mse", "mse"], metrics=metrics, optimizer=keras.optimizers.Adam(1e-3))
    data = X, [Y, (Y > 0).astype("f")]
    result = run(model, data, tmp_path)
    assert result.metrics["recovery"]["warnings"] == [
        "the model's optimizer, Adam(0.001), is not used: serial takes the steps"
    ]
    evaluated = model.evaluate(*data, verbose=0, return_dict=True)
    for name in ("a_mae", "b_precision"):
        assert result.metrics[f"test_{name}"] == pytest.approx(evaluated[name], rel=1e-4)


@keras.saving.register_keras_serializable("tests")
class Worded(keras.metrics.Metric):
    """A metric whose result holds no numbers."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        pass

    def result(self):
        return keras.ops.convert_to_tensor("none")


def adapted(layer, data):
    layer.adapt(data)
    return layer


def looks_up(layer, dtype):
    x = keras.Input((1,), dtype=dtype)
    return compiled(x, LAYERS.Dense(1)(LAYERS.Flatten()(LAYERS.Embedding(9, 2)(layer(x)))))


WORDS, NUMBERS = np.array([["a"], ["b"], ["c"], ["a"]] * 16), np.array([[3], [4], [5], [3]] * 16)


def elements(x=X, y=Y):
    return lambda: tf.data.Dataset.from_tensor_slices((x, y))


def ragged():
    rows = tf.ragged.constant([[1, 2], [3], [1], [2, 2]] * 16)
    return tf.data.Dataset.from_tensor_slices((rows, Y)).batch(BATCH)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (
            lambda: looks_up(adapted(LAYERS.TextVectorization(output_sequence_length=1, name="text"), WORDS), "string"),
            (WORDS, Y),
            r"layer text \(TextVectorization\) looks .* apply the layer to the data",
        ),
        (
            lambda: looks_up(adapted(LAYERS.StringLookup(name="words"), WORDS), "string"),
            (WORDS, Y),
            r"layer words \(StringLookup\) .* apply the layer to the data",
        ),
        (
            lambda: looks_up(LAYERS.IntegerLookup(vocabulary=[3, 4, 5], name="numbers"), "int64"),
            (NUMBERS, Y),
            r"layer numbers \(IntegerLookup\) .* apply the layer to the data",
        ),
        (lambda: with_layer(LAYERS.Dense(3)), X, r"compares with labels: give data=\(x, y\)\. Received: x float32"),
        (
            lambda: with_layer(LAYERS.Dense(3)),
            elements(),
            r"of batches, as after .batch\(32\)\. Received elements of x float32 \(4,\), y float32 \(1,\)",
        ),
        (
            lambda: with_layer(LAYERS.Dense(3)),
            elements(y=Y[:, 0]),
            r"of batches, as after .batch\(32\)\. Received elements of x float32 \(4,\), y float32 \(\)",
        ),
        (lambda: with_layer(LAYERS.Dense(3)), lambda: ragged(), "of dense tensors.*Received: tensorflow.RaggedTensor"),
        (
            lambda: with_metrics(keras.metrics.F1Score(), loss="sparse_categorical_crossentropy"),
            (X, CLASSES.argmax(1)),
            r"a metric of the model cannot be taken on validation_data: .*Received: x float32 \(8, 4\)",
        ),
        (lambda: with_metrics(Worded()), (X, CLASSES), "a metric of the model cannot be taken on validation_data"),
        (lambda: frozen_float16(trainable=True), (X, Y), r"gradients pass .* float16 \(backbone\).*mixed_bfloat16"),
        (
            lambda: compiled(x := keras.Input((4,)), LAYERS.Dense(1)(x), optimizer=keras.optimizers.SGD(clipvalue=0.5)),
            (X, Y),
            "clipvalue=0.5 would be lost: use clip_norm=",
        ),
    ],
)
def test_a_model_or_data_that_cannot_be_trained_is_refused(model, data, message, tmp_path):
    validation = (X, Y) if callable(data) else data
    with pytest.raises(UserError, match=message):
        run(model(), data, tmp_path, validation_data=validation)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("probe", "why"), [(True, "learning rate 1 is "), (False, "try a smaller learning rate than 1.0")]
)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_run_that_makes_the_model_worse_advises_a_smaller_rate(probe, why, tmp_path, capsys):
    keras.utils.set_random_seed(0)  # other initial weights may overflow, or have a rate that is not too large at first
    how = {"steps": 3, "verbose": True, "probe": probe}
    result = run(with_layer(LAYERS.Dense(3)), (X, Y), tmp_path, Serial(learning_rate=1.0), **how)
    first, last = (result.history["test_loss"][at] for at in (0, -1))
    told = f"test loss rose from {first:.4g} to {last:.4g}, training made the model worse: {why}"
    assert result.metrics["outcome"] == "completed"
    assert result.history["version"] == [0, 1, 2, 3]  # also where the last was evaluated first
    assert result.history["examples"] == [0, 8, 16, 24]
    assert told in result.metrics["advice"]
    assert "(docs/not-converging.md)" in result.metrics["advice"]
    assert told in json.loads((tmp_path / "run" / "result.json").read_text())["advice"]
    assert summary_rows(result.metrics)["advice"] == result.metrics["advice"]
    assert told in capsys.readouterr().err


@pytest.mark.rotating
def test_a_run_with_a_schedule_that_makes_the_model_worse_advises_no_number(tmp_path):
    keras.utils.set_random_seed(0)
    scheme = Serial(learning_rate=keras.optimizers.schedules.PolynomialDecay(1.0, 100))
    result = run(with_layer(LAYERS.Dense(3)), (X, Y), tmp_path, scheme, steps=4, probe=False)
    assert "try a smaller learning rate, fewer workers" in result.metrics["advice"]


@pytest.mark.rotating
def test_a_resumed_run_with_nothing_left_to_do_is_refused(tmp_path):
    keep = Recovery(checkpoint_steps=1000)
    run(with_layer(LAYERS.Dense(3)), (X, Y), tmp_path, epochs=4, steps=None, recovery=keep)
    again = {"recovery": Recovery(resume=tmp_path / "run"), "run_dir": tmp_path / "again"}
    result_file = tmp_path / "run" / "result.json"
    written = result_file.read_text()
    for epochs in (2, 4):
        for options in (again, {"recovery": keep}):
            with pytest.raises(UserError, match=f"has done all that is asked for.*Received: {8 * epochs} steps"):
                run(with_layer(LAYERS.Dense(3)), (X, Y), tmp_path, epochs=epochs, steps=None, **options)
        assert not (tmp_path / "again").exists()
    assert result_file.read_text() == written
    result_file.unlink()  # as if it had been killed at its end
    with pytest.raises(UserError, match="has done all that is asked for"):
        run(with_layer(LAYERS.Dense(3)), (X, Y), tmp_path, epochs=2, steps=None)
    result = run(with_layer(LAYERS.Dense(3)), (X, Y), tmp_path, epochs=5, steps=None, **again)
    assert result.metrics["recovery"]["resumed_from"] == 32


def test_a_model_with_a_lambda_trains_without_a_warning_of_keras(tmp_path, recwarn):
    run(with_layer(LAYERS.Dense(3, activation=lambda x: x + 0)), (X, Y), tmp_path)
    assert [str(warning.message) for warning in recwarn if "lambda" in str(warning.message)] == []


@pytest.mark.rotating
def test_a_masked_recurrent_layer_is_simulated_if_unrolled_else_refused(tmp_path):
    """A mask is data that a simulation has for each worker; with one worker the steps are those of `fit`."""

    def make(unroll):
        keras.utils.set_random_seed(0)
        x = keras.Input((6,), dtype="int32")
        embedded = LAYERS.Embedding(5, 4, mask_zero=True)(x)
        inner = LAYERS.SimpleRNN(3, return_sequences=True, unroll=unroll, name="loop")(embedded)
        return compiled(x, LAYERS.Dense(1)(inner))

    simulated = {"cluster": Cluster.local(1, backend="simulation"), "steps": STEPS, "seed": SEED}
    with pytest.raises(UserError, match=r"in a simulation .* layer loop \(\w+\) unroll=True"):
        run(make(False), (TOKENS, POSITIONS), tmp_path, SyncSGD(learning_rate=RATE), **simulated)
    assert not (tmp_path / "run").exists()
    run(model := make(True), (TOKENS, POSITIONS), tmp_path, SyncSGD(learning_rate=RATE), **simulated)
    for mine, keras_own in zip(model.get_weights(), by_hand(make(True), (TOKENS, POSITIONS)), strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=2e-5, atol=2e-6)


def test_an_optimizer_that_is_not_used_is_named():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.9)
    x = keras.Input((4,))
    for optimizer, name in [("rmsprop", None), ("sgd", "SGD(0.01)"), (keras.optimizers.SGD(schedule), "SGD(Expon")]:
        found = unused_optimizer(compiled(x, LAYERS.Dense(1)(x), optimizer=optimizer))
        assert (found is None) if name is None else found.startswith(name)


def without_input(*layers):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([*layers, LAYERS.Dense(1)])
    model.compile(loss="mse")
    return model


@pytest.mark.parametrize("data", [(X, Y), elements()().batch(BATCH), lambda: elements()().batch(BATCH)])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_model_without_an_input_is_built_on_the_data(data, tmp_path):
    result = run(model := without_input(LAYERS.Dense(3)), data, tmp_path, validation_data=(X, Y))
    assert model.input_shape == (None, 4)
    assert result.metrics["test_loss"] == pytest.approx(model.evaluate(X, Y, verbose=0), rel=1e-4)
    with pytest.raises(UserError, match=r"the model does not take a batch of data: .* Received: x float32 \(1, 4\)"):
        run(without_input(LAYERS.Conv2D(3, 3)), data, tmp_path / "wrong", validation_data=(X, Y))


@keras.saving.register_keras_serializable("tests")
class Coded(keras.Model):
    """An autoencoder, whose loss needs no labels."""

    def __init__(self, **options):
        super().__init__(**options)
        self.code, self.decode = LAYERS.Dense(2), LAYERS.Dense(4)

    def call(self, x):
        return self.decode(self.code(x))

    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(x - y_pred))


def coded():
    keras.utils.set_random_seed(0)
    model = Coded()
    model(X)
    model.compile()
    return model


def penalized():
    """A model without a compiled loss, whose layer adds one."""
    keras.utils.set_random_seed(0)
    x = keras.Input((4,))
    model = keras.Model(x, Penalized(3)(x))
    model.compile()
    return model


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (coded, X),
        (penalized, (X, None)),
        *(pytest.param(*one, marks=pytest.mark.rotating) for one in [(penalized, X), (coded, (X, None))]),
    ],
)
@pytest.mark.rotating
def test_a_model_whose_loss_needs_no_labels_trains_on_x_alone(make, data, tmp_path):
    result = run(model := make(), data, tmp_path, steps=STEPS, seed=SEED)
    for mine, keras_own in zip(model.get_weights(), by_hand(make(), (X,)), strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=2e-5, atol=2e-6)
    evaluated = model.evaluate(X, verbose=0, return_dict=True)
    assert result.metrics["test_loss"] == pytest.approx(evaluated["loss"], rel=1e-4)


@pytest.mark.parametrize(
    "cluster",
    [Cluster.local(2, backend="threads"), Cluster.local(2)],
    ids=["threads", "processes"],
)
@pytest.mark.rotating
def test_a_dataset_trains_as_its_arrays_do(cluster, tmp_path):
    weights, tested = [], []
    for i, (data, options) in enumerate(
        [
            ((X, Y), {"batch_size": BATCH}),
            (elements()().batch(BATCH), {}),
            (elements()(), {"batch_size": BATCH}),
            ((part for part in elements()().batch(BATCH)), {}),
        ][:: 3 if cluster.backend == "processes" else 1]
    ):
        keras.utils.set_random_seed(0)
        result = train(
            model := with_layer(LAYERS.Dense(3)), data, SyncSGD(learning_rate=RATE), cluster=cluster, epochs=2,
            seed=SEED, validation_data=elements()().batch(5), run_dir=tmp_path / str(i), verbose=False, **options,
        )  # fmt: skip
        weights.append(model.get_weights())
        tested.append(result.metrics["test_loss"])
        assert json.loads((tmp_path / str(i) / "config.json").read_text())["batch_size"] == BATCH
    for own in weights[1:]:
        for one, other in zip(weights[0], own, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tested, tested[0], rtol=1e-5)


@pytest.mark.rotating
def test_of_an_endless_generator_all_workers_get_their_steps(tmp_path):
    weights = []
    read = slice(STEPS * 2 * BATCH)  # examples of two workers
    for name, data in ("arrays", (X[read], Y[read])), ("endless", (b for b in elements()().repeat().batch(BATCH))):
        keras.utils.set_random_seed(0)
        run(
            model := with_layer(LAYERS.Dense(3)), data, tmp_path / name, SyncSGD(learning_rate=RATE), steps=STEPS,
            cluster=Cluster.local(2, backend="threads"), seed=SEED, validation_data=None,
        )  # fmt: skip
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
