"""A residual network on images of 32 x 32 pixels, for the throughput of GPUs: 2.8 million parameters.

Pre-activation blocks (He et al. 2016, arXiv:1603.05027), two for each of 64, 128 and 256 filters.
"""

from __future__ import annotations

from typing import Any

from ..common.data.models import ModelRecipe
from ..common.data.trial import try_out
from ..common.lazy import keras

SIDE, CHANNELS, CLASSES = 32, 3, 10

STAGES = ((64, 1), (128, 2), (256, 2))  # filters, and stride of the first block

BLOCKS = 2  # of a stage


def build(**options: Any) -> Any:
    """Build the network for flat images [batch, 3072], and compile it with these arguments of Keras' `compile`."""
    part = keras.layers
    images = keras.Input((SIDE * SIDE * CHANNELS,))
    x = part.Conv2D(64, 3, padding="same")(part.Reshape((SIDE, SIDE, CHANNELS))(images))
    for filters, stride in STAGES:
        for block in range(BLOCKS):
            strides = 1 if block else stride
            inner = part.ReLU()(part.BatchNormalization()(x))
            inner = part.Conv2D(filters, 3, strides=strides, padding="same")(inner)
            inner = part.ReLU()(part.BatchNormalization()(inner))
            inner = part.Conv2D(filters, 3, padding="same")(inner)
            x = inner + (x if block else part.Conv2D(filters, 1, strides=strides)(x))
    model = keras.Model(images, part.Dense(CLASSES)(part.GlobalAveragePooling2D()(x)))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"], **options)
    return model


def recipe(batch: tuple[Any, Any]) -> ModelRecipe:
    """Return the recipe of the network, tried on a batch (x, y)."""
    model = build()
    return try_out(ModelRecipe.of(model), model, batch)
