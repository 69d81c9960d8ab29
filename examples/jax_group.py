"""Gradients of JAX in a `Group` of four workers: python examples/jax_group.py (`bash run.sh pip install jax` first)."""

from distsgd import Group, LocalSGD

import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
true = np.array([1.0, -2.0, 3.0], np.float32)


def loss(params, x, y):
    """Return the mean squared error of a line."""
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


gradient = jax.jit(jax.grad(loss))
group = Group(LocalSGD(communication_period=5, learning_rate=0.1), {"w": np.zeros(3), "b": np.zeros(())}, workers=4)
for _ in range(400):
    k = int(rng.choice(group.ready))
    x = rng.normal(size=(8, 3)).astype(np.float32)
    group.step(k, gradient(group.point(k), x, x @ true + 0.5))
print({name: np.round(value, 2).tolist() for name, value in group.center.items()})
