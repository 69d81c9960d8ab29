"""The model of `peers.py` in a loop of its own, which a script joins: see `Ours.joined`."""

from __future__ import annotations

from typing import Any

from ..common.launch.join import join
from ..common.lazy import tf
from .peers import BATCH, LAYERS, examples, logits, variables
from .systems import JOINED


def main(scheme: str, model: str, steps: str) -> None:
    """Make that number of local steps."""
    params = variables(LAYERS[model])

    @tf.function
    def loss_and_gradient(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits(params, x)))
        return loss, tape.gradient(loss, params)

    with join(JOINED[scheme], params) as worker:
        x, y = worker.shard(examples(model))
        batches = len(x) // BATCH
        for step in range(int(steps)):
            rows = slice(step % batches * BATCH, step % batches * BATCH + BATCH)
            loss, gradient = loss_and_gradient(x[rows], y[rows])
            worker.step(gradient, loss)
