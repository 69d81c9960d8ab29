"""Hierarchical: synchronous inside a worker, between its p devices; asynchronous between workers.

    worker k    g_k = (1/p) Σ g_ki(x) over its devices,  push g_k,  x ← reply
    server      θ ← θ − η g_k,  reply θ                                    one atomic event

One worker for each machine and a device for each of its GPUs: only one push of each machine reaches the ps.

Reference: Hadjis, Zhang, Mitliagkas, Iter, Ré, *Omnivore: An Optimizer for Multi-device Deep Learning on CPUs and
GPUs*, 2016, arXiv:1606.04487 (compute groups).
Departures: a group is the devices of one machine.
Limits: one worker with p devices is `sync_sgd` of p workers; workers with one device are `async_sgd`. Asynchrony acts
as momentum 1 − 1/W: fewer, larger groups have less of it. `--devices-per-worker p` runs any algorithm in this way.
"""

from dataclasses import dataclass

from ..common.contract import Rate, Scheme, sgd


@dataclass(frozen=True, kw_only=True)
class Hierarchical(Scheme):
    """Synchronous over the devices of a worker, asynchronous between workers."""

    paper = "Hadjis et al. 2016"
    default_devices_per_worker = 2

    learning_rate: Rate = 0.1
    """Step size η."""

    def server_update(self, server, message, staleness):
        sgd(server.center, message, self.learning_rate)
        return server.center
