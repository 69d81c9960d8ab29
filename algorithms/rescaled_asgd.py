"""Rescaled ASGD: asynchronous SGD with a larger step for a slow worker, so that all shards count alike.

    worker k    g = g_k(x),  push g,  x ← reply
    server      θ ← θ − η (τ + 1)/W g,  reply θ                            one atomic event

where W is the number of workers, and the staleness τ the number of updates since worker k's last pull: τ + 1 is the
time that the gradient took, in updates of the center.

Use: for unequal data on workers of different speed; not where the slowest worker's large steps would be unstable.
Reference: Mahran, Maranjyan, Richtárik, *Rescaled Asynchronous SGD: Optimal Distributed Optimization under Data and
System Heterogeneity*, 2026, arXiv:2605.13434.
Departures: the paper gives worker k a step size proportional to its computation time, which it takes as known and
fixed. Here the time of each gradient is measured, in updates: for fixed times its mean is proportional to the time.
So the steps follow speeds that change, and vary around the paper's.
Why it is unbiased: the times of a worker's gradients add up to the time of the run. After any n updates, the rates of
each worker sum to ηn/W, less those of the gradient it is computing. `async_sgd` has sums proportional to the workers'
speeds, and converges to the minimum of the losses weighted by speed: if shards differ, to another point.
Choice of η: a gradient of mean lateness, W − 1, has the step η, as in `async_sgd`; the gradients of a worker that is n
times as slow as the mean have nη, which must be stable. So a worker that pauses for long makes one large step.
Limits: with one worker it is serial SGD. With W equal workers in turn it is `async_sgd` from the second gradient of
each worker on. It is the opposite of `delay_adaptive` and `dynsgd`, which damp late gradients.
"""

from dataclasses import dataclass

from ..common.contract import Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class RescaledASGD(Scheme):
    """Every gradient is applied when it arrives, with a step in proportion to the time that it took."""

    paper = "Mahran et al. 2026"

    learning_rate: Rate = 0.1
    """Step size η of a gradient that is W − 1 updates late."""

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate * (staleness + 1) / server.num_workers)
        return server.center
