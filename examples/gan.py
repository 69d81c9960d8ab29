"""A generative adversarial network on digits, in two groups of variables: bash run.sh launch examples/gan.py."""

import sys

import distsgd
from distsgd import SyncSGD

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

STEPS, BATCH, NOISE = int(sys.argv[1]) if len(sys.argv) > 1 else 1000, 32, 16

digits = load_digits().data.astype("float32") / 8 - 1  # [1797, 64], from -1 to 1
layers = keras.layers
generator = keras.Sequential([keras.Input((NOISE,)), layers.Dense(64, "relu"), layers.Dense(64, "tanh")])
critic = keras.Sequential([keras.Input((64,)), layers.Dense(64, layers.LeakyReLU(0.2)), layers.Dense(1)])
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def gradients(real, noise):
    """Return the losses of critic and generator on a batch, and their gradients."""
    with tf.GradientTape(persistent=True) as tape:
        fake = generator(noise)
        scores = critic(tf.concat([real, fake], 0))
        is_real = tf.concat([tf.ones([BATCH, 1]), tf.zeros([BATCH, 1])], 0)
        critic_loss = cross_entropy(is_real, scores)
        generator_loss = cross_entropy(tf.ones([BATCH, 1]), scores[BATCH:])
    return (
        (critic_loss, tape.gradient(critic_loss, critic.trainable_variables)),
        (generator_loss, tape.gradient(generator_loss, generator.trainable_variables)),
    )


with (
    distsgd.join(SyncSGD(learning_rate=0.1), generator.trainable_variables) as makes,
    distsgd.join(SyncSGD(learning_rate=0.1), critic.trainable_variables, name="critic") as judges,
):
    rng, own = np.random.default_rng(makes.index), makes.shard(digits)
    for _ in range(STEPS):
        noise = tf.constant(rng.normal(size=(BATCH, NOISE)), tf.float32)
        judged, made = gradients(tf.constant(rng.choice(own, BATCH)), noise)
        judges.step(judged[1])
        judges.log(loss=judged[0])
        makes.step(made[1])
        makes.log(loss=made[0])

samples = generator(rng.normal(size=(500, NOISE))).numpy()
print(f"distance of the mean image: {np.abs(samples.mean(0) - digits.mean(0)).mean():.2f}")
