"""The optimizer for `model.fit`, in which the workers are played in turn, against a group on the same order."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from means import Normalised, PowerSGD
from tensorflow.python.eager import context
from test_group import distance, fails, workers_of

from covering import CATALOGUE, COVER_OF_OPTIMIZER, in_rotation
from distsgd import Group, Optimizer
from distsgd.algorithms import DCASGD, EASGD, SSP, AsyncSGD, Downpour, LocalSGD, Serial, SyncSGD, SyncSGDLR
from distsgd.common.group import Operations
from doubles import PerWorker, RandomPart, Weighed

TOLERANCE = 1e-5
BATCH = 4
SCHEMES = CATALOGUE | {"dc_asgd": DCASGD(compensation=2.0)}  # here a larger one diverges


def data(steps):
    x = np.random.default_rng(0).normal(size=(steps * BATCH, 3)).astype("float32")
    return x, 0.5 * x @ np.ones((3, 2), "float32") + 0.2


def linear(optimizer=None, **how):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="zeros")])
    if optimizer is not None:
        model.compile(optimizer=optimizer, loss="mse", **how)
    return model


def fit(model, steps, epochs=1, callbacks=(), **how):
    x, y = data(steps)
    first = [model.optimizer.callback(), *callbacks]
    return model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, epochs=epochs, callbacks=first, **how)


def vector(arrays):
    return np.concatenate([np.ravel(array) for array in arrays])


def trained(scheme, steps, *, workers, jit_compile=False, **how: Any):
    model = linear(Optimizer(scheme, workers=workers, **how), jit_compile=jit_compile)
    fit(model, steps)
    return vector(model.get_weights())


def grouped(scheme, steps, *, workers, order=None, **how: Any):
    """Return the center of a group that takes the steps of `trained`, by default round robin, in batches of `data`."""
    x, y = data(steps)
    group = Group(scheme, linear().get_weights(), workers=workers, **how)
    order = list(range(workers)) if order is None else order
    turn = 0
    for t in range(steps):
        while order[turn % len(order)] not in group.ready:
            turn += 1
        k, batch = order[turn % len(order)], slice(t * BATCH, (t + 1) * BATCH)
        kernel, bias = group.point(k)
        error = x[batch] @ kernel + bias - y[batch]
        scale = 2 / error.size
        group.step(k, [scale * x[batch].T @ error, scale * error.sum(0)], loss=np.mean(error**2))
        turn += 1
    return vector(group.center)


# As in a group. XLA compiles what is slow, as Keras lets it where there is a GPU.

FAST = {"downpour", "easgd", "all_reduce", "ssp", "sync_sgd with a backup worker", "downpour with a warm start"}


@pytest.mark.parametrize("name", in_rotation(SCHEMES, always=COVER_OF_OPTIMIZER))
@pytest.mark.gate("others")
def test_center_is_that_of_a_group_on_the_same_order(name):
    scheme = SCHEMES[name]
    workers, steps = workers_of(scheme), 126 if scheme.period >= 10 else 31
    found = trained(scheme, steps, workers=workers, jit_compile=name == "downpour" or name not in FAST)
    assert distance(found, grouped(scheme, steps, workers=workers)) < TOLERANCE
    assert np.linalg.norm(found) > 0.01


def test_variables_are_where_xla_finds_them_on_a_gpu():
    made = []

    def noted(make, **how):
        made.append(make(**how))
        assert context.context().device_name == ""  # that of the model, and no other
        return made[-1]

    with tf.variable_creator_scope(noted):
        for scheme in SCHEMES.values():  # of a group, and of an optimizer, which has others besides
            Operations(scheme, tf.zeros([6]), workers=workers_of(scheme), ps=1, shapes=[(3, 2)], seed=0)
        Optimizer(Downpour(), workers=2).build([keras.Variable(np.zeros((3, 2), "float32"))])
    assert {variable.dtype.name for variable in made} == {"float32", "int64"}  # TensorFlow keeps int32 on the host
    assert len(made) > 5 * len(SCHEMES)


@pytest.mark.parametrize(
    ("scheme", "codec"),
    [
        (AsyncSGD(), "int8"),
        (SyncSGD(), "topk:fraction=0.3"),
        (LocalSGD(communication_period=3), "bf16"),
        (AsyncSGD(), "sign:memory=no"),
        (SyncSGD(), "bf16"),
        (LocalSGD(communication_period=3), "int8"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.rotating
def test_slices_and_codecs_are_those_of_a_group(scheme, codec):
    how: Any = {"workers": 3, "ps": 3, "codec": codec}
    assert distance(trained(scheme, 24, jit_compile=True, **how), grouped(scheme, 24, **how)) < TOLERANCE


OTHER_OWN = [pytest.param(s, marks=pytest.mark.rotating) for s in (Normalised(), PerWorker())]


@pytest.mark.parametrize(
    "scheme", [PowerSGD(), RandomPart(), Weighed(learning_rate=0.1), *OTHER_OWN], ids=lambda scheme: scheme.name
)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_means_rows_and_losses_are_those_of_a_group(scheme):
    assert distance(trained(scheme, 18, workers=3), grouped(scheme, 18, workers=3)) < TOLERANCE


def test_given_order_is_repeated_and_skips_workers_that_wait():
    order, scheme = [0, 0, 0, 0, 2, 1, 0], SSP(slack=1)
    found = trained(scheme, 30, workers=3, order=order)
    assert distance(found, grouped(scheme, 30, workers=3, order=order)) < TOLERANCE


@pytest.mark.rotating
def test_random_order_depends_on_the_seed():
    one, same, other = (trained(AsyncSGD(), 20, workers=3, order="random", seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert distance(one, other) > 1e-4


@pytest.mark.rotating
def test_long_run_plans_its_turns_again():
    scheme, steps = AsyncSGD(learning_rate=0.01), 700
    assert distance(trained(scheme, steps, workers=3), grouped(scheme, steps, workers=3)) < TOLERANCE


# In `fit`.


class Sees(keras.callbacks.Callback):
    """Notes how far the weights are from the center."""

    def __init__(self):
        super().__init__()
        self.far = {"train": [], "test": [], "epoch": [], "predict": []}

    def note(self, where):
        self.far[where].append(np.abs(vector(self.model.get_weights()) - vector(self.model.optimizer.center)).max())

    def on_train_batch_begin(self, batch, logs=None):
        self.note("train")

    def on_test_batch_begin(self, batch, logs=None):
        self.note("test")

    def on_epoch_end(self, epoch, logs=None):
        self.note("epoch")


def test_evaluations_and_the_end_see_the_center_and_steps_a_point(tmp_path):
    model, sees = linear(Optimizer(EASGD(communication_period=3), workers=2)), Sees()
    saved = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras"))
    fit(model, 8, epochs=2, callbacks=[sees, saved], validation_data=data(2))
    assert max(sees.far["test"] + sees.far["epoch"]) == 0
    assert min(sees.far["train"][7:]) > 0
    center = vector(model.optimizer.center)
    np.testing.assert_array_equal(vector(model.get_weights()), center)
    np.testing.assert_array_equal(vector(keras.saving.load_model(tmp_path / "2.keras").get_weights()), center)


def test_callback_at_any_place_gives_others_the_center():
    model, sees = linear(Optimizer(EASGD(communication_period=3), workers=2)), [Sees(), Sees()]
    callbacks = [sees[0], model.optimizer.callback(), sees[1]]
    model.fit(*data(8), batch_size=BATCH, verbose=0, epochs=2, callbacks=callbacks)
    assert [far for each in sees for far in each.far["epoch"]] == [0] * 4


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_saved_model_continues_as_if_it_had_not_been_saved(tmp_path, jit_compile):
    def made():
        return Optimizer(Downpour(communication_period=3), workers=3, order="random", seed=3, clipnorm=1.0)

    whole, parts = (linear(made(), jit_compile=jit_compile) for _ in range(2))
    for model in whole, whole, parts:
        fit(model, 10)
    parts.save(tmp_path / "model.keras")
    loaded: Any = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == parts.optimizer.get_config()
    fit(loaded, 10)
    np.testing.assert_allclose(vector(loaded.get_weights()), vector(whole.get_weights()), rtol=1e-6)


@pytest.mark.gate
def test_checkpoint_within_an_epoch_continues_as_if_it_had_not_been_saved(tmp_path):
    model = linear(Optimizer(EASGD(communication_period=2), workers=2))
    fit(model, 9, callbacks=[keras.callbacks.ModelCheckpoint(str(tmp_path / "{batch}.keras"), save_freq=5)])
    loaded: Any = keras.saving.load_model(tmp_path / "5.keras")
    x, y = data(9)
    loaded.fit(x[20:], y[20:], batch_size=BATCH, shuffle=False, verbose=0, callbacks=[loaded.optimizer.callback()])
    np.testing.assert_allclose(vector(loaded.get_weights()), vector(model.get_weights()), rtol=1e-6)


def test_fit_may_have_nothing_left_after_a_restore(tmp_path):
    for _ in range(2):
        model = linear(Optimizer(SSP(), workers=2))
        fit(model, 5, callbacks=[keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)])
    assert model.optimizer.iterations == 5


def changed_after(model, steps):
    """Fit so many steps, give the model other weights, and return it and a new one that starts from them."""
    scheme, workers = model.optimizer.scheme, model.optimizer.workers
    fit(model, steps)
    other = linear(Optimizer(scheme, workers=workers))
    for each in model, other:
        each.set_weights([10 * np.ones((3, 2)), np.ones(2)])
    return model, other


BEGUN = ("local_sgd", "powersgd")
ROTATING = [pytest.param(name, marks=pytest.mark.rotating) for name in SCHEMES if name not in BEGUN]


@pytest.mark.parametrize("name", [*BEGUN, *ROTATING])
@pytest.mark.gate
def test_weights_that_were_changed_begin_a_new_run(name):
    scheme = SCHEMES[name]
    workers = workers_of(scheme)
    model, new = changed_after(linear(Optimizer(scheme, workers=workers)), workers * scheme.period + 1)
    for each in model, new:
        fit(each, 9)
    np.testing.assert_array_equal(vector(model.get_weights()), vector(new.get_weights()))


@pytest.mark.rotating
def test_saved_model_continues_a_new_run(tmp_path):
    how: Any = {"workers": 3, "order": "random", "seed": 3}
    model = changed_after(linear(Optimizer(Downpour(communication_period=3), **how)), 4)[0]
    fit(model, 5)
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.saving.load_model(tmp_path / "model.keras")
    for each in model, loaded:
        fit(each, 5)
    np.testing.assert_allclose(vector(loaded.get_weights()), vector(model.get_weights()), rtol=1e-6)


def test_saved_model_imports_no_module_but_of_the_catalogue(tmp_path, monkeypatch):
    (tmp_path / "of_a_stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    config = Optimizer(SyncSGD(), workers=2).get_config()
    for module in ("of_a_stranger", "distsgd.algorithms.missing"):
        config["scheme"] |= {"module": module}
        fails(f"no scheme SyncSGD in module {module}. If", lambda: Optimizer.from_config(config))


def test_schedule_begins_anew_with_a_new_run():
    scheme = AsyncSGD(learning_rate=keras.optimizers.schedules.CosineDecay(0.3, 10))
    model, _ = changed_after(linear(Optimizer(scheme, workers=2)), 16)
    fit(model, 4)
    np.testing.assert_allclose(model.optimizer.learning_rate, scheme.learning_rate(2))


def test_learning_rate_is_that_of_the_scheme():
    optimizer = Optimizer(SyncSGD(learning_rate=0.25), workers=2)
    model = linear(optimizer)
    assert float(optimizer.learning_rate) == 0.25
    fit(model, 4)
    optimizer.learning_rate = 0.0
    before = vector(model.get_weights())
    fit(model, 4)
    np.testing.assert_array_equal(vector(model.get_weights()), before)
    assert optimizer.get_config()["scheme"]["config"]["learning_rate"] == 0.0


def test_schedule_counts_the_steps_of_a_worker():
    scheme = AsyncSGD(learning_rate=keras.optimizers.schedules.CosineDecay(0.3, 10))
    model = linear(Optimizer(scheme, workers=2))
    fit(model, 16)
    assert distance(vector(model.get_weights()), grouped(scheme, 16, workers=2)) < TOLERANCE
    np.testing.assert_allclose(model.optimizer.learning_rate, scheme.learning_rate(8))
    config = keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer)).get_config()
    assert config == model.optimizer.get_config()


class Ascent(keras.Model):
    """A model with a `train_step` of its own, which fits the negative targets."""

    def __init__(self):
        super().__init__()
        self.dense, self.norm = keras.layers.Dense(2), keras.layers.BatchNormalization()

    def call(self, x, training=False):
        return self.dense(self.norm(x, training=training))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) + y) ** 2)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"loss": loss}


@pytest.mark.parametrize("how", [{}, {"run_eagerly": True}, {"steps_per_execution": 5}], ids=str)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_own_train_step_trains(how):
    keras.utils.set_random_seed(0)
    model = Ascent()
    model.compile(optimizer=Optimizer(LocalSGD(communication_period=2), workers=3), **how)
    losses = fit(model, 20, epochs=5).history["loss"]
    assert losses[-1] < 0.05


@pytest.mark.gate
def test_mixed_precision_trains():
    model = linear(Optimizer(SyncSGD(learning_rate=0.1), workers=2))
    inner = model.optimizer
    model.compile(keras.optimizers.LossScaleOptimizer(inner), loss="mse")
    x, y = data(20)
    history = model.fit(x, y, verbose=0, epochs=10, callbacks=[inner.callback()]).history["loss"]
    assert history[-1] < 0.2 * history[0]
    np.testing.assert_array_equal(vector(model.get_weights()), vector(inner.center))


@pytest.mark.rotating
def test_several_outputs_losses_and_metrics_work():
    inputs = keras.Input((3,))
    outputs = {name: keras.layers.Dense(2, name=name)(inputs) for name in ("one", "two")}
    model = keras.Model(inputs, outputs)
    model.compile(Optimizer(SyncSGD(), workers=2), loss={"one": "mse", "two": "mae"}, metrics={"one": ["mse"]})
    x, y = data(20)
    history = model.fit(x, {"one": y, "two": y}, verbose=0, epochs=4, callbacks=[model.optimizer.callback()]).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert "one_mse" in history


# What is refused.


def test_arguments_that_do_not_fit_are_refused_in_one_line():
    fails(r"not its class: write Downpour\(\)", lambda: Optimizer(Downpour, workers=2))  # pyright: ignore
    fails("use --workers 1", lambda: Optimizer(Serial(), workers=2))
    fails("^order must be round robin or random, or a list", lambda: Optimizer(SSP(), workers=2, order="reverse"))  # pyright: ignore
    fails("^order must be .* from 0 to 1. Received: \\[0, 2\\]", lambda: Optimizer(SSP(), workers=2, order=[0, 2]))
    fails("^order must be .* Received: 5$", lambda: Optimizer(SSP(), workers=2, order=5))  # pyright: ignore
    fails("^order must be .* Received: \\[\\]", lambda: Optimizer(SSP(), workers=2, order=[]))
    fails(
        "^sync_sgd_lr has no learning_rate that could change",
        lambda: setattr(Optimizer(SyncSGDLR(), workers=2), "learning_rate", 0.1),
    )
    fails(
        "^order has none .* after step 1, and the others wait: add one of workers 1 to order",
        lambda: fit(linear(Optimizer(SyncSGD(), workers=2, order=[0])), 3),
    )
    fails("^ps must be at most 8", lambda: fit(linear(Optimizer(SSP(), workers=2, ps=9)), 3))


def test_fit_without_the_right_callback_is_refused_in_one_line():
    model, others = (linear(Optimizer(SSP(), workers=2), metrics=["mae"]) for _ in range(2))
    needs = r"^fit needs callbacks=\[optimizer\.callback\(\)\]"
    fails(needs, lambda: model.fit(*data(2), verbose=0))
    fit(model, 2)
    fails(needs, lambda: model.fit(*data(2), verbose=0))
    fails(
        "must be of the optimizer that the model is compiled with",
        lambda: model.fit(*data(2), verbose=0, callbacks=[others.optimizer.callback()]),
    )
    fails(
        "^steps_per_execution must be at most",
        lambda: fit(linear(Optimizer(SSP(), workers=2), steps_per_execution=1000), 2),
    )


class Stops(keras.callbacks.Callback):
    """Raises an error before a batch, or after it."""

    def __init__(self, when):
        super().__init__()
        setattr(self, f"on_train_batch_{when}", self.stop)

    def stop(self, batch, logs=None):
        if batch == 1:
            raise InterruptedError


@pytest.mark.parametrize("when", ["begin", "end"])
@pytest.mark.gate("others")
def test_fit_without_callback_is_refused_after_a_fit_that_was_interrupted(when):
    model = linear(Optimizer(SSP(), workers=2))
    with pytest.raises(InterruptedError):
        fit(model, 3, callbacks=[Stops(when)])
    assert has_center(model)
    fails(r"^fit needs callbacks=\[optimizer\.callback\(\)\]", lambda: model.fit(*data(1), batch_size=BATCH, verbose=0))
    fit(model, 3)


def has_center(model):
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    pairs = zip(model.get_weights(), optimizer.center, strict=True)
    return all(np.array_equal(own, center) for own, center in pairs)


def test_an_error_of_a_step_leaves_the_center_also_with_mixed_float16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = linear(Optimizer(EASGD(), workers=3))
    finally:
        keras.config.set_dtype_policy(before)

    def batches():
        yield from (tuple(part[i : i + 8] for part in data(2)) for i in (0, 8, 0, 8, 0))
        raise InterruptedError

    optimizer = model.optimizer.inner_optimizer
    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=tuple(tf.TensorSpec((None, *part.shape[1:]), part.dtype) for part in data(2))
    )
    with pytest.raises(tf.errors.OpError, match="InterruptedError"):
        model.fit(dataset, steps_per_epoch=9, shuffle=False, verbose=0, callbacks=[optimizer.callback()])
    assert has_center(model)


@pytest.mark.rotating
def test_a_checkpoint_between_two_epochs_has_the_center(tmp_path):
    model, path = linear(Optimizer(EASGD(), workers=3)), tmp_path / "saved.keras"
    fit(model, 3, callbacks=[keras.callbacks.ModelCheckpoint(path, save_freq=2)])
    without = linear(Optimizer(EASGD(), workers=3))
    fit(without, 3)
    assert all(map(np.array_equal, model.get_weights(), without.get_weights()))
    assert has_center(saved := keras.models.load_model(path))
    assert int(saved.optimizer.iterations.numpy()) > 0


class Counts(SyncSGD):
    """Has a variable of int32."""

    def local_variables(self, params):
        return {"count": tf.constant(0)}


def test_variables_of_int32_are_refused_in_one_line():
    fails(": make its variable count of type int64", lambda: fit(linear(Optimizer(Counts(), workers=2)), 2))


def test_gradients_and_weights_that_do_not_fit_are_refused_in_one_line():
    optimizer, weights = Optimizer(SSP(), workers=2), [keras.Variable(np.ones(2, "float32")) for _ in range(3)]
    optimizer.apply([tf.ones(2)] * 2, weights[:2])
    fails("is None: the loss does not depend on it", lambda: optimizer.apply([tf.ones(2), None], weights[:2]))
    fails("Received: gradients of 1 variables, 0 of them others", lambda: optimizer.apply([tf.ones(2)], weights[:1]))
    fails("Received: gradients of 2 variables, 1 of them", lambda: optimizer.apply([tf.ones(2)] * 2, weights[1:]))
    half = keras.Variable(np.ones(2, "float16"), dtype="float16")
    fails("must be of type float32. Received: .* of type float16", lambda: Optimizer(SSP(), workers=2).build([half]))
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        fails("leave tf.distribute's strategy out", lambda: Optimizer(SSP(), workers=2).build(weights))
