"""K-async SGD: the mean of the gradients of the first K of W workers, whatever center they were computed at.

    worker k    g_k = g_k(x_k),  push g_k,  wait,  x_k ← θ
    server      with the K-th gradient:  θ ← θ − (η/K) Σ g_k,  then release these K workers

The other workers continue at the older centers x_k that they have, and their gradients count in a later update.

Use: if some workers are late now and then, and no gradient should be lost; not where stale gradients do harm.
Reference: Dutta, Joshi, Ghosh, Dube, Nagpurkar, *Slow and Stale Gradients Can Win the Race: Error-Runtime Trade-offs in
Distributed SGD*, AISTATS 2018, arXiv:1803.01113.
Departures: none. At the end of a run, when fewer than K workers have rounds left, these make the updates.
Limits: with K = 1 it is `async_sgd`, with K = W `sync_sgd`. A worker waits for at most K − 1 others. With exponential
times of mean E[X] an update takes (1/(W − K + 1) + ... + 1/W)·E[X], the K-th smallest of W times.
"""

from dataclasses import dataclass

from ..common.contract import Natural, Quorum, Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class KAsync(Scheme):
    """The mean of the first K workers' gradients, however late; the others continue at their older centers."""

    paper = "Dutta et al. 2018"
    means_gradients = True

    learning_rate: Rate = 0.2
    """Step size η of the mean gradient."""
    workers_per_update: Natural = 4
    """Number K of workers whose gradients make one update."""

    @property
    def sync(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return Quorum(self.workers_per_update, late="count")

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
