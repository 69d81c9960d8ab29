"""Logistic regression in NumPy on four workers, one of which is slow: the caller's own loop around a `Group`."""

from distsgd import Downpour, Group, SyncSGD

import numpy as np

rng = np.random.default_rng(0)
x = rng.normal(size=(4000, 8))
y = x @ rng.normal(size=8) + 0.5 > rng.logistic(size=4000)
shards = np.split(rng.permutation(4000), 4)  # the rows of each worker


def gradient(params, rows):
    """Return the gradient of the mean logistic loss on these rows."""
    error = 1 / (1 + np.exp(-x[rows] @ params["w"] - params["b"])) - y[rows]
    return {"w": x[rows].T @ error / len(rows), "b": error.mean()}


for scheme in SyncSGD(learning_rate=0.5), Downpour(learning_rate=0.5, server_learning_rate=0.2):
    group = Group(scheme, {"w": np.zeros(8), "b": 0.0}, workers=4)
    staleness = 0
    for _ in range(1200):
        speeds = [0.1 if k == 3 else 1.0 for k in group.ready]  # steps of worker 3 take ten times as long
        k = rng.choice(group.ready, p=np.divide(speeds, sum(speeds)))
        staleness = max(staleness, group.staleness(k))
        group.step(k, gradient(group.point(k), rng.choice(shards[k], 16)))
    center = group.center
    accuracy = np.mean((x @ center["w"] + center["b"] > 0) == y)
    print(f"{scheme.name}: {group.version} updates, staleness up to {staleness}, accuracy {accuracy:.3f}")
