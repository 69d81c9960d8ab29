import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd.common import UserError
from distsgd.common.models import MODELS, FlatModel, ModelRecipe


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


def test_the_gradient_is_that_of_keras_with_regularization_and_sample_weights():
    model = compiled(keras.layers.Dense(3, kernel_regularizer="l2"), shape=(4,))
    x, y = np.random.default_rng(0).normal(size=(6, 4)).astype("f"), np.array([0, 1, 2, 0, 1, 2])
    weight = np.arange(6, dtype="f")
    flat = FlatModel(model)
    loss, gradient, _, _ = flat.gradient(tf.constant(flat.pack()), tf.zeros([0]), [], (x, y, weight))
    with tf.GradientTape() as tape:
        expected = model.compute_loss(x=x, y=y, y_pred=model(x), sample_weight=weight)
    parts = tape.gradient(expected, [v.value for v in model.trainable_variables])
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(gradient, np.concatenate([np.ravel(p) for p in parts]), rtol=1e-4, atol=1e-6)


def test_the_logistic_model_takes_indices_and_values():
    batch = np.zeros((2, 5), "i"), np.ones((2, 5), "f")
    assert ModelRecipe.named("logistic", (64,), 2, 0).build()(batch).shape == (2, 1)


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"logistic"}))
@pytest.mark.parametrize("shape", [(64,), (8, 8, 1)])
def test_named_models_take_vectors_and_images(name, shape):
    assert ModelRecipe.named(name, shape, 10, 0).build()(np.zeros((2, *shape), "f")).shape == (2, 10)


def test_the_same_seed_gives_the_same_model():
    one, two = (FlatModel(ModelRecipe.named("cnn", (64,), 10, 3).build()).pack() for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_a_recipe_rebuilds_model_loss_and_weights():
    model = compiled(keras.layers.Flatten(), keras.layers.Dense(3), keras.layers.BatchNormalization())
    copy = ModelRecipe.of(model).build()
    for a, b in zip(model.get_weights(), copy.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert FlatModel(copy).size == FlatModel(model).size


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: keras.Sequential([keras.layers.Dense(1)]), "no variables yet"),
        (lambda: keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), "no loss"),
        (lambda: compiled(keras.layers.Dense(1, dtype="float64"), shape=(2,)), "float32"),
        (lambda: compiled(keras.layers.Flatten(), shape=(2,)), "no trainable"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_with_the_reason(model, message):
    with pytest.raises(UserError, match=message):
        FlatModel(model())
