"""Hierarchical SGD: synchronous among the p devices of a worker, asynchronous between workers.

    worker k    g_k = (1/p) Σ g_ki(x) over its devices,  push g_k,  x ← reply
    server      θ ← θ − η g_k,  reply θ                                    one atomic event

With one worker for each machine and one device for each of its GPUs, each machine sends one push to the ps.

Use: for several machines with several devices each; not for one device in each.
Reference: Hadjis, Zhang, Mitliagkas, Iter, Ré, *Omnivore: An Optimizer for Multi-device Deep Learning on CPUs and
GPUs*, 2016, arXiv:1606.04487 (compute groups).
Departures: a group consists of the devices of one machine.
Limits: with one worker of p devices it is `sync_sgd` of p workers; with one device per worker it is `async_sgd`.
Asynchrony acts as momentum 1 − 1/W, so fewer, larger groups have less of it. `--devices-per-worker p` runs any
algorithm in this way.
"""

from dataclasses import dataclass

from ..common.contract import Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class Hierarchical(Scheme):
    """Synchronous over the devices of a worker, asynchronous between workers."""

    paper = "Hadjis et al. 2016"
    equals = "async_sgd --devices-per-worker 2"
    default_devices_per_worker = 2

    learning_rate: Rate = 0.1
    """Step size η."""

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
