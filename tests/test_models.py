import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_train import DTYPES, Tables

from distsgd.common import UserError
from distsgd.common.cli.main import dispatch
from distsgd.common.data.models import MADE_FOR, MODELS, ModelRecipe, batched
from distsgd.common.data.named import load
from distsgd.common.data.suspects import diagnostic_batch
from distsgd.common.data.trial import try_out
from distsgd.common.worker.flat_model import FlatModel
from distsgd.common.worker.replica import own_seed

GLOBAL = 2.0  # which a lambda below needs


def compiled(*layers, shape=(8, 8, 1), **options):
    model = keras.Sequential([keras.Input(shape), *layers])
    model.compile(**{"loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options})
    return model


def test_the_flat_vector_holds_every_weight_in_order():
    model = compiled(keras.layers.Dense(3), keras.layers.Dense(2, use_bias=False), shape=(4,))
    flat = FlatModel(model)
    vector = np.arange(flat.size, dtype=np.float32)
    flat.load(vector, flat.pack_state())
    assert flat.size == 4 * 3 + 3 + 3 * 2
    np.testing.assert_array_equal(flat.pack(), vector)
    np.testing.assert_array_equal(model.get_weights()[1], [12, 13, 14])


def test_the_gradient_matches_keras_with_regularization_and_sample_weights():
    model = compiled(keras.layers.Dense(3, kernel_regularizer="l2"), shape=(4,))
    x, y = np.random.default_rng(0).normal(size=(6, 4)).astype("f"), np.array([0, 1, 2, 0, 1, 2])
    weight = np.arange(6, dtype="f")
    flat = FlatModel(model)
    loss, gradient, *_ = flat.gradient(tf.constant(flat.pack()), tf.zeros([0]), [], [], (x, y, weight))
    with tf.GradientTape() as tape:
        expected = model.compute_loss(x=x, y=y, y_pred=model(x), sample_weight=weight)
    parts = tape.gradient(expected, [v.value for v in model.trainable_variables])
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    found, parts = (np.concatenate([np.ravel(part) for part in vectors]) for vectors in (gradient, parts))
    np.testing.assert_allclose(found, parts, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("softmax", (12,)),
        ("mlp:hidden=5-4", (12,)),
        ("cnn", (8, 8, 1)),
        ("transformer:layers=2,width=8,heads=2", (6,)),
    ],
)
@pytest.mark.rotating("others")
def test_the_loss_rises_along_each_part_of_the_gradient_by_its_norm(name, shape):
    """Central differences of the loss in the direction of the gradient of one variable at a time."""
    flat = ModelRecipe.named(name, shape, 10, 0).flat()
    rng = np.random.default_rng(2)
    text = name.startswith("transformer")
    x = rng.integers(0, 10, (16, *shape)).astype("i") if text else rng.normal(size=(16, *shape)).astype("f")
    batch = x, rng.integers(0, 10, x.shape if text else 16).astype("i")
    params, rest = (
        flat.pack() + 0.01 * rng.normal(size=flat.size).astype("f"),
        (tf.zeros([0]), [], flat.frozen_values()),
    )
    evaluate = tf.function(lambda params: flat.gradient(params, *rest, batch)[:2])
    gradient = np.concatenate([np.ravel(part) for part in evaluate(tf.constant(params))[1]])
    begins = np.cumsum([0, *(int(np.prod(shape)) for shape in flat.shapes)])
    assert begins[-1] == flat.size == len(gradient)
    for begin, end in itertools.pairwise(begins):
        part = np.zeros(flat.size, "f")
        part[begin:end] = gradient[begin:end]
        length = np.linalg.norm(part)
        if length < 1e-4:  # of a bias of keys, which changes no attention
            assert text
            continue
        step = 0.004 * part / length
        above, below = (float(evaluate(tf.constant(params + sign * step))[0]) for sign in (1, -1))
        assert (above - below) / 0.008 == pytest.approx(length, rel=0.02, abs=2e-4), (begin, end)


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(MADE_FOR)))
@pytest.mark.parametrize("shape", [(64,), (8, 8, 1)])
def test_named_models_take_vectors_and_images(name, shape):
    assert ModelRecipe.named(name, shape, 10, 0).build()(np.zeros((2, *shape), "f")).shape == (2, 10)


@pytest.fixture(scope="module")
def transformer():
    recipe = ModelRecipe.named("transformer:layers=1,width=8,heads=2", (6,), 97, 0)
    return recipe, recipe.build()


def test_the_transformer_sees_no_character_after_the_one_it_continues(transformer):
    model = transformer[1]
    x = np.random.default_rng(0).integers(0, 97, (1, 6)).astype("i")
    later = x.copy()
    later[0, 4] += 1
    one, two = np.asarray(model(x)), np.asarray(model(later))
    assert one.shape == (1, 6, 97)
    np.testing.assert_allclose(one[0, :4], two[0, :4], atol=1e-6)
    assert (np.abs(one[0, 4:] - two[0, 4:]).max(axis=1) > 1e-4).all()


def test_the_transformer_knows_where_a_character_stands(transformer):
    logits = np.asarray(transformer[1](np.full((1, 6), 7, "i")))[0]
    assert (np.abs(np.diff(logits, axis=0)).max(axis=1) > 1e-4).all()


@pytest.mark.rotating
def test_the_transformer_takes_a_flat_vector_and_has_a_loss_per_character(transformer):
    recipe, model = transformer
    flat = recipe.flat()
    rng = np.random.default_rng(1)
    x, y = (rng.integers(0, 97, (5, 6)).astype("i") for _ in "xy")
    logits = np.asarray(model(x), "d")
    expected = np.mean(np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, y[..., None], -1)[..., 0])
    params, frozen = flat.pack(), flat.frozen_values()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loss, gradient = session.run(tf.function(flat.gradient)(params, tf.zeros([0]), [], frozen, (x, y))[:2])
    assert loss == pytest.approx(expected, rel=1e-5)
    assert all(np.isfinite(part).all() for part in gradient)
    assert flat.state_size == 0
    measured = flat.measure(batched((x, y), 2))
    assert measured["test_loss"] == pytest.approx(expected, rel=1e-5)
    assert measured["test_accuracy"] == pytest.approx(np.mean(logits.argmax(-1) == y), rel=1e-5)


@pytest.mark.rotating  # a gate trains one in test_claims.py
def test_the_transformer_learns_more_than_the_frequencies_of_characters(tmp_path):
    text = "text:context=32,characters=60000"
    flags = ["--dataset", text, "--model", "transformer:layers=1,width=32,heads=2", "--steps", "150"]
    assert dispatch(["serial", "--learning-rate", "0.5", *flags, "--run-dir", str(tmp_path / "run")]) == 0
    made = load(text)
    frequency = np.bincount(made.train[1].ravel(), minlength=made.classes) + 1
    of_frequencies = -np.log(frequency / frequency.sum())[made.test[1]].mean()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["test_loss"] < of_frequencies - 0.1


def test_a_transformer_whose_heads_do_not_divide_its_width_is_refused():
    with pytest.raises(UserError, match=r"heads must divide the width of a transformer\. Received: width=64, heads=5"):
        ModelRecipe.named("transformer:heads=5", (6,), 97, 0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: keras.Sequential([keras.layers.Dense(1)]), "no variables yet"),
        (lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), "no loss"),
        (lambda: compiled(keras.layers.Dense(1, dtype="float64"), shape=(2,)), "float32"),
        (lambda: compiled(keras.layers.Flatten(), shape=(2,)), "no trainable"),
        (
            lambda: with_own_step(),
            r"OwnStep has its own train_step, .* compute_loss.* distsgd.Optimizer, .*distsgd.join",
        ),
        (lambda: stateful(), r"layer gru\w* is stateful: .* Leave stateful=True out"),
        (lambda: compiled(keras.layers.Dense(2, kernel_constraint="non_neg"), shape=(2,)), "NonNeg of .*kernel"),
        (lambda: compiled(keras.layers.Dense(2, dtype="mixed_float16"), shape=(2,)), "mixed_bfloat16"),
        (
            lambda: compiled(keras.layers.Dense(2), optimizer=keras.optimizers.SGD(clipnorm=1.0)),
            "clipnorm=1.0.*clip_norm=",
        ),
        (lambda: compiled(keras.layers.Dense(2), optimizer=keras.optimizers.AdamW(weight_decay=0.1)), "l2="),
        (lambda: compiled(keras.layers.Dense(2), optimizer=keras.optimizers.SGD(use_ema=True)), "ema_decay="),
        (lambda: compiled(keras.layers.Dense(2), optimizer=keras.optimizers.SGD(loss_scale_factor=8.0)), "loss_scale"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_with_the_reason(model, message):
    with pytest.raises(UserError, match=message):
        FlatModel(model())


def with_own_step():
    class OwnStep(keras.Sequential):
        def train_step(self, data):
            raise AssertionError

    model = OwnStep([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    return model


def stateful():
    model = keras.Sequential([keras.Input(batch_shape=(4, 3, 2)), keras.layers.GRU(2, stateful=True)])
    model.compile(loss="mse")
    return model


def test_an_optimizer_with_its_own_defaults_is_no_reason_to_refuse_a_model():
    for optimizer in ("adamw", keras.optimizers.SGD(0.5, momentum=0.9), keras.optimizers.Lion()):
        FlatModel(compiled(keras.layers.Dense(2), shape=(2,), optimizer=optimizer))


class Counts(keras.layers.Layer):
    """Counts steps in a variable of some dtype."""

    def __init__(self, kind, **options):
        super().__init__(**options)
        self.kind = kind

    def build(self, shape):
        self.count = self.add_weight(shape=(), dtype=self.kind, initializer="zeros", trainable=False, name="count")

    def call(self, x, training=False):
        if training:
            self.count.assign_add(keras.ops.ones((), self.kind))
        return x


def batch(features=4, classes=3, rows=8):
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, features)).astype("f"), rng.integers(classes, size=rows)


@pytest.mark.rotating
def test_only_variables_that_a_step_changes_are_statistics():
    frozen = keras.layers.BatchNormalization(trainable=False)
    moving = keras.layers.BatchNormalization()
    layers = [
        Tables(), frozen, keras.layers.Dense(5, trainable=False), moving, keras.layers.Dropout(0.5), Counts("bfloat16"),
    ]  # fmt: skip
    model = compiled(*layers, keras.layers.Dense(3), shape=(4,))
    flat = try_out(ModelRecipe.of(model), model, batch()).flat()
    assert [v.path.split("/")[-1] for v in flat.statistics] == ["moving_mean", "moving_variance", "count"]
    assert flat.state_size == 5 + 5 + 1
    assert [v.path.split("/")[-1] for v in flat.seeds] == ["seed_generator_state"]
    assert len(flat.frozen) == len(DTYPES) + 4 + 2
    np.testing.assert_array_equal(moving.moving_mean, np.zeros(5))  # trying it out has changed nothing
    assert float(layers[-1].count.numpy()) == 0


def test_statistics_of_half_precision_are_averaged_as_float32_and_go_back():
    model = compiled(Counts("bfloat16"), keras.layers.Dense(3), shape=(4,))
    flat = try_out(ModelRecipe.of(model), model, batch()).flat()
    _, _, state, *_ = flat.gradient(tf.constant(flat.pack()), tf.constant([6.0]), [], [], batch())
    assert state.dtype == tf.float32
    np.testing.assert_array_equal(state, [7.0])
    flat.load(flat.pack(), np.array([7.0], "f"))
    assert float(flat.model.layers[0].count.numpy()) == 7


def test_an_integer_that_a_step_changes_is_refused_by_name():
    model = compiled(Counts("int32"), keras.layers.Dense(3), shape=(4,))
    with pytest.raises(UserError, match=r"a training step changes \S*/count \(int32\).*float32"):
        try_out(ModelRecipe.of(model), model, batch())


class OwnLoss(keras.Model):
    """Keras' example: its own loss, which a tracker counts, and no loss in `compile`; without `training`, as in 3.0."""

    def __init__(self, units):
        super().__init__()
        self.units, self.dense = units, keras.layers.Dense(units)
        self.tracker = keras.metrics.Mean(name="own")

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x, y, y_pred, sample_weight):
        loss = 3 * keras.ops.mean(keras.ops.square(y_pred - y))
        self.tracker.update_state(loss)
        return loss


class Told(OwnLoss):
    def get_config(self):
        return {"units": self.units}


def test_a_loss_of_the_models_own_is_what_is_trained():
    model = Told(1)
    x, y = batch()[0], np.zeros((8, 1))  # float64, as NumPy makes it
    model(x)
    model.compile()
    flat = try_out(ModelRecipe.of(model), model, (x, y)).flat()
    params = flat.pack()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:  # as in a task: no variable of Keras can be read
        loss, gradient, *_ = tf.function(flat.gradient)(params, tf.zeros([0]), [], [], (x, y))
        loss, gradient = session.run([loss, gradient])
    prediction = x @ params[:4, None] + params[4]
    assert loss == pytest.approx(3 * np.mean(prediction**2), rel=1e-5)
    np.testing.assert_allclose(np.concatenate(gradient)[:4], 6 / 8 * x.T @ prediction[:, 0], rtol=1e-4)


def test_a_class_without_its_configuration_is_refused_by_name():
    class Untold(keras.Model):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner[0]

        def call(self, x):
            return self.inner(x)

    model = Untold((keras.layers.Dense(1),))
    model(batch()[0])
    model.compile(loss="mse")
    with pytest.raises(UserError, match=r"give class Untold a get_config \(.*\)$"):
        ModelRecipe.of(model)


def test_a_recipe_carries_a_lambda_with_what_it_needs_from_around_it():
    import cloudpickle

    factors = [2.0, 5.0]
    losses = [lambda y, p, k=k: GLOBAL * k * keras.ops.mean(keras.ops.square(y - p)) for k in factors]
    x = keras.Input((4,))
    model = keras.Model(x, [keras.layers.Dense(1)(x), keras.layers.Dense(1, activation=lambda z: GLOBAL * z)(x)])
    model.compile(loss=losses)
    x, y = batch()[0], [np.zeros((8, 1), "f")] * 2
    flat = cloudpickle.loads(cloudpickle.dumps(try_out(ModelRecipe.of(model), model, (x, y)))).flat()
    assert float(flat.gradient(flat.pack(), tf.zeros([0]), [], [], (x, y))[0]) == pytest.approx(
        float(model.compute_loss(x, y, model(x))), rel=1e-5
    )
    assert {loss.__name__ for loss in losses} == {"<lambda>"}


def test_random_numbers_and_variables_that_no_layer_owns_are_refused():
    noisy = compiled(keras.layers.Lambda(lambda x: x + keras.random.normal((4,))), keras.layers.Dense(3), shape=(4,))
    with pytest.raises(UserError, match=r"none of its layers owns \(.*seed_generator_state\): .*SeedGenerator"):
        try_out(ModelRecipe.of(noisy), noisy, batch())


def test_missing_values_that_the_model_itself_handles_are_no_fault():
    model = compiled(keras.layers.Lambda(lambda x: keras.ops.nan_to_num(x)), keras.layers.Dense(3), shape=(4,))
    x, y = batch(rows=20)
    x[17, 2] = np.nan
    try_out(ModelRecipe.of(model), model, diagnostic_batch((x, y), 4))
    assert np.isnan(diagnostic_batch((x, y), 4)[0]).sum() == 1
    assert 9 in diagnostic_batch((x, np.r_[y[:19], 9]), 4)[1]


def test_an_evaluation_is_that_of_keras_and_leaves_nothing_behind():
    """Each left 40 KB of functions of a data set with TensorFlow, a gigabyte in a day."""
    from tensorflow.python.eager import context

    a, b = keras.Input((3,)), keras.Input((2,), dtype="int32")
    model = keras.Model([a, b], keras.layers.Dense(1)(keras.layers.Concatenate()([a, keras.ops.cast(b, "float32")])))
    model.compile(loss="mse", weighted_metrics=["mae"])
    rng = np.random.default_rng(0)
    x, y, weight = [rng.normal(size=(50, 3)), rng.integers(0, 5, (50, 2))], rng.normal(size=(50, 1)), rng.random(50)
    expected = model.evaluate(x, y, sample_weight=weight, batch_size=16, verbose=0, return_dict=True)
    flat, batches = FlatModel(model), batched((x, y, weight), 16)
    assert flat.measure(batches) == pytest.approx({f"test_{name}": value for name, value in expected.items()}, rel=1e-6)
    before = context.context().list_function_names()
    for _ in range(3):
        flat.measure(batches)
    assert len(context.context().list_function_names()) == len(before)


class Own(keras.layers.Layer):
    """A layer with code and state of its own."""

    def __init__(self, code, **options):
        super().__init__(**options)
        self.code, self.offset, self.factor = code, keras.ops.convert_to_tensor([1.0, 2.0, 3.0, 4.0]), 1.0
        self.foreign = tf.Variable(1.0)

    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        if self.code == "variable":
            return x + self.foreign
        if self.code == "condition" and tf.is_tensor(x):
            return x if float(x[0, 0]) > 0 else 2 * x
        return self.factor * x + self.offset


def test_arrays_that_layers_keep_get_into_the_graph():
    x, y = batch()
    normalization = keras.layers.Normalization()
    normalization.adapt(5 + 3 * x)
    model = compiled(normalization, Own("shift"), keras.layers.Dense(3), shape=(4,))
    flat = try_out(ModelRecipe.of(model), model, (x, y)).flat()
    params, frozen = flat.pack(), flat.frozen_values()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        loss = session.run(tf.function(flat.gradient)(params, tf.zeros([0]), [], frozen, (x, y))[0])
    assert loss == pytest.approx(float(model.compute_loss(x, y, model(x))), rel=1e-5)
    assert tf.is_tensor(model.layers[1].offset)


def test_code_that_no_graph_can_hold_is_refused():
    model = compiled(Own("condition"), keras.layers.Dense(3), shape=(4,))
    with pytest.raises(UserError, match=r"own code cannot be put into a TensorFlow graph: .*Python conditions"):
        try_out(ModelRecipe.of(model), model, batch())


OUTSIDE, CONSTANT = tf.Variable(tf.ones([4]), trainable=False), tf.ones([4])


@pytest.mark.parametrize(
    ("layer", "where"),
    [
        (Own("variable"), ""),
        (keras.layers.Lambda(lambda x: x * OUTSIDE), r" \(lambda in line \d+ of test_models.py\)"),
        (keras.layers.Lambda(lambda x, k=CONSTANT: x * k), ""),
    ],
)
def test_tensors_and_variables_from_outside_of_the_model_are_refused(layer, where):
    model = compiled(layer, keras.layers.Dense(3), shape=(4,))
    with pytest.raises(UserError, match=rf"own code{where} uses a tf\.Variable or a tensor.*add_weight"):
        try_out(ModelRecipe.of(model), model, batch())


def tied(where):
    """Build a model in which a function reads the kernel of its first layer."""
    down, x = keras.layers.Dense(2, use_bias=False, name="down"), keras.Input((4,))
    total = lambda: keras.ops.sum(down.kernel)  # noqa: E731
    loss = lambda y, p: keras.ops.mean(keras.ops.square(y - p), -1) + total()  # noqa: E731
    metric = lambda y, p: keras.ops.mean(y - p, -1) + total()  # noqa: E731
    last = {
        "lambda": lambda: keras.layers.Lambda(lambda t: keras.ops.matmul(t, keras.ops.transpose(down.kernel))),
        "activation": lambda: keras.layers.Dense(4, activation=lambda t: t * total()),
        "regularizer": lambda: keras.layers.Dense(4, kernel_regularizer=lambda w: total()),
    }.get(where, lambda: keras.layers.Dense(4))()
    model = keras.Model(x, last(down(x)))
    model.compile(loss=loss if where == "loss" else "mse", metrics=[metric] if where == "metric" else None)
    return model


@pytest.mark.parametrize("where", ["lambda", "activation", "regularizer", "loss", "metric"])
def test_a_function_that_reads_a_weight_of_the_model_from_outside_is_refused(where):
    """The copy in a task has a kernel of its own, which no training changes."""
    model, x = tied(where), batch()[0]
    with pytest.raises(UserError, match=r"^a function of the model.* reads down/kernel from outside.* attribute"):
        try_out(ModelRecipe.of(model), model, (x, x), (x, x))


@keras.saving.register_keras_serializable("test_models")
class Transposed(keras.layers.Layer):
    """A layer that holds another one, which its configuration describes once more."""

    def __init__(self, other, **options):
        super().__init__(**options)
        self.other = other

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.other.kernel))

    def get_config(self):
        return {**super().get_config(), "other": keras.saving.serialize_keras_object(self.other)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config.pop("other")), **config)


def test_a_layer_that_holds_another_layer_of_the_model_is_refused_with_the_reason():
    down, x = keras.layers.Dense(2, use_bias=False), keras.Input((4,))
    model = keras.Model(x, Transposed(down)(down(x)))
    model.compile(loss="mse")
    with pytest.raises(UserError, match=r"the copy has 2 variables, and the model 1: .* becomes a second layer"):
        ModelRecipe.of(model)


def test_a_model_that_is_another_one_after_it_has_been_rebuilt_is_refused():
    model = compiled(Own("factor"), keras.layers.Dense(3), shape=(4,))
    model.layers[0].factor = 9.0
    with pytest.raises(UserError, match="rebuilt from its configuration and weights, has another loss"):
        try_out(ModelRecipe.of(model), model, batch())


def test_no_two_layers_of_two_workers_draw_the_same_numbers():
    """Though their seeds are neighbours, and Keras adds one to the counter in each step."""
    states = [own_seed(np.array([seed, 0], np.uint32), k).numpy() for seed in range(8) for k in range(64)]
    assert len({state[0] for state in states}) == 8 * 64
    assert not np.array(states)[:, 1].any()
