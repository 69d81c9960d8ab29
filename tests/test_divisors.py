"""A mean gradient of several workers is that of one batch of all: by valid positions, sums of weights, or as a sum."""

import warnings
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd import Optimizer
from distsgd.algorithms import (
    AllReduce,
    AsyncSGD,
    DiLoCo,
    KBatchSync,
    Krum,
    KSync,
    PowerSGD,
    Serial,
    SyncSGD,
    SyncSGDLR,
)
from distsgd.common import Cluster, train
from distsgd.common.contract.rounding import rounded
from distsgd.common.contract.weighed import warning_of_means, weighs
from distsgd.common.data.models import ModelRecipe
from distsgd.common.tasks.job import make_job
from distsgd.common.tasks.options import RunOptions
from distsgd.common.tasks.weighing import weigh
from distsgd.common.worker.divisors import Divisors
from distsgd.common.worker.flat_model import loss_of

RATE, STEPS = 0.1, 2
RNG = np.random.default_rng(0)
LENGTHS = np.array([1, 5, 2, 4, 0, 3])  # valid positions of each example
TOKENS = np.where(np.arange(5) < LENGTHS[:, None], RNG.integers(1, 7, (6, 5)), 0).astype("i")
Y, WEIGHTS = RNG.normal(size=(6, 5, 1)).astype("f"), RNG.uniform(0.5, 2, (6, 5)).astype("f")
CLASSES = np.array([0, 0, 1, 0, 1, 0])


def model(reduction, mask=True, outputs=1, l2=0.3):
    """Return a model whose penalty counts once, by whatever the losses are divided."""
    keras.utils.set_random_seed(0)
    x = keras.Input((5,), dtype="int32")
    inner = keras.layers.Embedding(7, 3, mask_zero=mask)(x)
    dense = [
        keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(l2) if l2 else None) for _ in range(outputs)
    ]
    made = keras.Model(x, [layer(inner) for layer in dense] if outputs > 1 else dense[0](inner))
    made.compile(loss=[keras.losses.MeanSquaredError(reduction=reduction) for _ in dense])
    return made


def classifier(reduction):
    keras.utils.set_random_seed(0)
    x = keras.Input((5,), dtype="int32")
    made = keras.Model(x, keras.layers.Dense(2)(keras.layers.Flatten()(keras.layers.Embedding(7, 3)(x))))
    made.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction))
    return made


def by_hand(own, x, y, weight):
    """Weights after steps of plain SGD along the gradient of Keras' loss of the whole data."""
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = loss_of(own, (x, y, weight) if weight is not None else (x, y), training=True)
        for variable, gradient in zip(own.trainable_variables, tape.gradient(loss, own.trainable_weights), strict=True):
            variable.assign_sub(RATE * tf.convert_to_tensor(gradient))
    return own.get_weights()


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean", "mean_with_sample_weight", "sum"])
@pytest.mark.parametrize("weight", [None, WEIGHTS], ids=["alone", "weights"])
@pytest.mark.parametrize("mask", [True, False], ids=["mask", "whole"])
def test_a_batch_counts_as_much_as_keras_divides_its_loss_by(reduction, weight, mask):
    """The loss times the count is the sum of the weighted losses that the mask keeps."""
    own, divisors = model(reduction, mask, l2=0), Divisors(batches=3)
    batch = (TOKENS, Y) if weight is None else (TOKENS, Y, weight)
    loss = float(loss_of(own, batch, training=True, divisors=divisors))
    weights = np.ones((6, 5)) if weight is None else weight
    kept = weights * (TOKENS > 0 if mask else 1)
    total = np.sum(kept * np.square(np.asarray(own(TOKENS)) - Y)[..., 0])
    if reduction == "sum":
        assert (divisors.has_sums, divisors.vary, divisors.agree) == (True, False, False)
        assert loss == pytest.approx(3 * total, rel=1e-5)
    elif mask or (weight is not None and reduction == "mean_with_sample_weight"):
        assert divisors.agree
        by_weight = reduction == "mean_with_sample_weight" and weight is not None
        assert float(divisors.count(())) == pytest.approx(kept.sum() if by_weight else LENGTHS.sum(), rel=1e-6)
        assert loss * float(divisors.count(())) == pytest.approx(total, rel=1e-5)
    else:
        assert (divisors.vary, divisors.has_others) == (False, True)
        assert loss == pytest.approx(total / 30, rel=1e-5)


def test_one_count_fits_several_losses_only_where_one_number_divides_them_all():
    two = model("mean", outputs=2)
    loss_of(two, (TOKENS, [Y, -Y]), training=True, divisors=(divisors := Divisors()))
    assert divisors.agree
    two.compile(loss=["mse", keras.losses.MeanSquaredError(reduction="sum")])
    loss_of(two, (TOKENS, [Y, -Y]), training=True, divisors=(divisors := Divisors()))
    assert (divisors.vary, divisors.agree) == (True, False)
    ignored = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    x = keras.Input((5,), dtype="int32")
    made = keras.Model(x, keras.layers.Dense(7)(keras.layers.Embedding(7, 3)(x)))
    made.compile(loss=ignored)
    loss_of(made, (TOKENS, TOKENS), training=True, divisors=(divisors := Divisors()))
    assert divisors.agree
    assert float(divisors.count(())) == LENGTHS.sum()


@pytest.mark.parametrize(
    ("scheme", "reduction", "weight", "how"),
    [
        (SyncSGD(learning_rate=RATE), "sum_over_batch_size", None, {"workers": 3, "backend": "simulation"}),
        (KSync(learning_rate=RATE), "sum", WEIGHTS, {"workers": 2, "backend": "simulation"}),
        (AllReduce(learning_rate=RATE), "mean_with_sample_weight", WEIGHTS, {"workers": 3, "backend": "threads"}),
        (SyncSGD(learning_rate=RATE), "mean", None, {"workers": 2, "backend": "threads", "ps": 2}),
        (Serial(learning_rate=RATE), "mean", WEIGHTS, {"workers": 1, "backend": "threads", "devices_per_worker": 3}),
        (KBatchSync(learning_rate=RATE, messages_per_update=2), "mean", None, {"workers": 1, "backend": "simulation"}),
        (SyncSGDLR(learning_rates=(RATE,)), "mean", None, {"workers": 2, "backend": "simulation"}),
        (PowerSGD(learning_rate=RATE / 2, momentum=0, rank=3), "mean", None, {"workers": 2, "backend": "simulation"}),
    ],
    ids=["sync_sgd", "k_sync-sum", "all_reduce", "sync_sgd-2-ps", "devices", "k_batch_sync", "sync_sgd_lr", "powersgd"],
)
@pytest.mark.rotating
def test_synchronous_steps_are_those_of_one_batch_of_all_workers(scheme, reduction, weight, how, tmp_path):
    data = (TOKENS, Y) if weight is None else (TOKENS, Y, weight)
    each = scheme.sync.messages_per_update
    options = {"batch_size": 6 // how["workers"] // each, "steps": STEPS * each, "run_dir": tmp_path, "probe": False}
    result = train(trained := model(reduction), data, scheme, cluster=Cluster.local(**how), verbose=False, **options)
    for mine, keras_own in zip(trained.get_weights(), by_hand(model(reduction), TOKENS, Y, weight), strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=2e-5, atol=2e-6)
    assert result.metrics["recovery"]["warnings"] == []


@pytest.mark.rotating
def test_class_weights_count_as_in_one_batch_of_all_workers(tmp_path):
    reduction, weights = "mean_with_sample_weight", {0: 0.5, 1: 4.0}
    cluster = Cluster.local(workers=2, backend="simulation")
    train(
        trained := classifier(reduction), (TOKENS, CLASSES), SyncSGD(learning_rate=RATE), cluster=cluster,
        class_weight=weights, batch_size=3, steps=STEPS, run_dir=tmp_path, probe=False, verbose=False,
    )  # fmt: skip
    each = np.array([weights[c] for c in CLASSES], "f")
    for mine, own in zip(trained.get_weights(), by_hand(classifier(reduction), TOKENS, CLASSES, each), strict=True):
        np.testing.assert_allclose(mine, own, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("scheme", [SyncSGD(learning_rate=RATE), AllReduce(learning_rate=RATE)], ids=lambda s: s.name)
@pytest.mark.rotating
def test_a_smaller_batch_of_a_data_function_counts_by_its_examples(scheme, tmp_path):
    """Of 6 examples one worker has a batch of 4, and the other a batch of 2."""
    train(
        trained := model("mean", mask=False), lambda: tf.data.Dataset.from_tensor_slices((TOKENS, Y)).batch(4), scheme,
        cluster=Cluster.local(workers=2, backend="threads"), batch_size=4, steps=STEPS, run_dir=tmp_path,
        probe=False, verbose=False,
    )  # fmt: skip
    for mine, own in zip(trained.get_weights(), by_hand(model("mean", mask=False), TOKENS, Y, None), strict=True):
        np.testing.assert_allclose(mine, own, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("scheme", "divided", "summed", "told"),
    [
        (SyncSGD(), "by count", False, ""),
        (SyncSGD(), "alike", True, ""),
        (SyncSGD(), "apart", False, "no weight fits all"),
        (AllReduce(), "by count", False, ""),
        (AllReduce(delay=1), "by count", False, "all_reduce with a delay takes the mean of its workers' means"),
        (Krum(), "by count", False, "krum takes the mean of its workers' means"),
        (Krum(), "alike", True, "krum takes the mean of its workers' losses, which are sums"),
        (rounded(SyncSGD(), "topk"), "by count", False, "sync_sgd with error feedback of its codec"),
        (rounded(SyncSGD(), "topk:memory=no"), "by count", False, ""),
        (SyncSGDLR(reduction="sum"), "by count", False, "sync_sgd_lr takes the mean of its workers' means"),
        (AsyncSGD(), "by count", True, ""),  # no common batch exists
        (DiLoCo(), "apart", True, ""),
    ],
)
def test_a_run_says_before_it_starts_that_its_mean_is_one_of_means(scheme, divided, summed, told, tmp_path):
    cluster = Cluster.local(workers=4, backend="threads")
    made = make_job(
        scheme, ModelRecipe(build=None), (TOKENS, Y), None, cluster, RunOptions(batch_size=1, steps=1, run_dir=tmp_path)
    )
    made.recipe = replace(made.recipe, divided=divided, summed=summed)
    before = list(made.warnings)
    weigh(made)
    assert told in " ".join(made.warnings)
    assert len(made.warnings) - len(before) == bool(told)
    assert weighs(made.scheme) == (divided == "by count" and not told and scheme.means_gradients)


def lines_of_loss(scheme, own, y=Y, weight=None):
    """Return the warnings of two losses that are computed in a `fit` with `Optimizer`."""
    compute_loss = warning_of_means(scheme, 2, own)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            compute_loss(x=TOKENS, y=y, y_pred=own(TOKENS), sample_weight=weight, training=True)
    return [str(line.message) for line in said if "Optimizer" in str(line.message)]


def test_the_optimizer_says_once_that_it_weighs_no_batches():
    """In `fit`, where each worker's batch has a mask, weights or a sum; not where each update is that of one batch."""
    (line,) = lines_of_loss(SyncSGD(), model("mean"))
    assert line == (
        "Optimizer(SyncSGD()) takes the mean of its workers' means, each over the valid positions or weights of its "
        "own batch, not the mean over all: train(model, data, SyncSGD()) weighs them"
    )
    (line,) = lines_of_loss(KSync(workers_per_update=2), model("mean_with_sample_weight", mask=False), weight=WEIGHTS)
    assert "positions or weights" in line
    (line,) = lines_of_loss(SyncSGD(), model("sum", mask=False))
    assert "sums over their batches" in line
    ignoring = classifier("mean")
    ignoring.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1))
    assert len(lines_of_loss(SyncSGD(), ignoring, CLASSES)) == 1
    assert not lines_of_loss(SyncSGD(), model("mean", mask=False))
    assert not lines_of_loss(SyncSGD(), model("mean_with_sample_weight", mask=False))
    assert not lines_of_loss(AsyncSGD(), model("mean"))
    assert not lines_of_loss(DiLoCo(), model("mean"))


@pytest.mark.rotating
def test_fit_with_a_mask_warns():
    optimizer, own = Optimizer(SyncSGD(), workers=2), model("mean")
    own.compile(optimizer=optimizer, loss="mse")
    with pytest.warns(UserWarning, match="not the mean over all"):
        own.fit(TOKENS, Y, 3, verbose=0, callbacks=[optimizer.callback()])
    assert "compute_loss" not in vars(own)
