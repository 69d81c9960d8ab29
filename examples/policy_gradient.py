"""A policy gradient on a small environment: bash run.sh launch --workers 4 examples/policy_gradient.py.

A ball falls towards the floor of a grid, and a paddle on the floor moves left, stays or moves right. An episode gives 1
if the paddle catches the ball, else -1.
"""

import sys

import distsgd
from distsgd import DiLoCo

import keras
import numpy as np
import tensorflow as tf

STEPS, EPISODES, SIDE = int(sys.argv[1]) if len(sys.argv) > 1 else 300, 64, 5

policy = keras.Sequential([keras.Input((3 * SIDE,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(3)])


def play(rng):
    """Play episodes with the present policy; return observations, actions, and the reward of each episode."""
    ball, paddle = rng.integers(0, SIDE, EPISODES), rng.integers(0, SIDE, EPISODES)
    seen, done = [], []
    for height in range(SIDE):
        row = np.full(EPISODES, height)
        seen.append(np.concatenate([np.eye(SIDE, dtype=np.float32)[at] for at in (ball, paddle, row)], 1))
        chances = tf.nn.softmax(policy(seen[-1])).numpy()
        done.append((rng.random((EPISODES, 1)) > chances.cumsum(1)).sum(1).clip(0, 2))
        paddle = np.clip(paddle + done[-1] - 1, 0, SIDE - 1)
    return np.concatenate(seen), np.concatenate(done), np.where(ball == paddle, 1.0, -1.0).astype(np.float32)


@tf.function
def gradient(seen, done, advantage):
    """Return the gradient of REINFORCE (Williams 1992)."""
    with tf.GradientTape() as tape:
        chosen = tf.nn.sparse_softmax_cross_entropy_with_logits(done, policy(seen))
        loss = tf.reduce_mean(advantage * chosen)
    return tape.gradient(loss, policy.trainable_variables)


with distsgd.join(DiLoCo(communication_period=10, learning_rate=0.01), policy.trainable_variables) as worker:
    rng = np.random.default_rng(worker.index)
    for _ in range(STEPS):
        seen, done, rewards = play(rng)
        worker.step(gradient(seen, done, np.tile(rewards - rewards.mean(), SIDE)))
        worker.log(reward=rewards.mean())

caught = np.mean([play(rng)[2] for _ in range(10)]) / 2 + 0.5
print(f"caught: {caught:.0%}")
