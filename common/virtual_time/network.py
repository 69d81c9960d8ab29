"""The network of a simulated run: the times of messages and replies in transit.

message     latency + bytes, over the worker's uplink, its region's link and the card of the ps, which all share
reply       the same in the other direction of each link; replies of a barrier begin together, and compete
several ps  a message is cut into equal parts, one for each ps task: together they act as one card, n times as fast
reduction   see `reduction`: it uses the links of the workers and of their regions, and no card of a ps
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from .draws import uniforms
from .platform import Machines
from .reduction import Reduction
from .resources import NEVER, Fair, OneByOne, Shared

BLOCK = 1 << 16  # number of latencies, of all workers together, that are drawn at once


class Network:
    """The network of W workers.

    Args:
        machines: the machines, with their links.
        workers: W.
        ps: number of ps tasks.
        seed: seed of the random latencies and links.

    Attributes:
        up, down: the resources that messages and replies share; None if their bytes take no time.
        latency: mean latency of each worker, one way, [W].
        message_late, reply_late: nanoseconds of latency, a function of the worker and its round.
        reduction: nanoseconds of a reduction, a function of the bytes of the vector and the number of earlier ones.
    """

    def __init__(self, machines: Machines, workers: int, ps: int, seed: int):
        self.machines, self.workers = machines, workers
        self.region = machines.region_of(workers)
        factors = machines.link_factors(workers, seed).tolist() if machines.link_sigma else [1.0] * workers
        self.uplinks = [machines.uplink * factor for factor in factors]
        self.downlinks = [machines.downlink * factor for factor in factors]
        self.up = self._shared(self.uplinks, machines.ps_link * ps)
        self.down = self._shared(self.downlinks, machines.ps_link * ps)
        self.latency = [machines.latency + machines.regions[region][0] for region in self.region]
        late = partial(Lateness, self.latency, machines.latency_sigma, seed)
        self.message_late, self.reply_late = late("message").of, late("reply").of
        self.reduction = Reduction(machines, self.region, self.uplinks, self.downlinks, seed).nanoseconds

    def _shared(self, links: Sequence[float], card: float) -> Shared | None:
        caps = [bandwidth for _, bandwidth in self.machines.regions]
        if all(math.isinf(rate) for rate in (*links, *caps, card)):
            return None
        private = all(math.isinf(rate) for rate in (*caps, card))  # then both kinds are equal, and `Fair` is faster
        kind = OneByOne if self.machines.fifo and not private else Fair
        return kind(card, links, self.region, caps)


class Lateness:
    """Latencies of messages: lognormal, with a mean for each worker.

    Args:
        means: mean latency of each worker in nanoseconds, [W].
        sigma: sigma of the lognormal.
        seed: seed of the random latencies.
        way: message or reply.
    """

    def __init__(self, means: Sequence[int], sigma: float, seed: int, way: str):
        self.means, self.sigma, self.draw = means, sigma, partial(uniforms, seed, way, range(len(means)))
        self.size = max(1, BLOCK // len(means))  # rounds of a block
        self.blocks: list[np.ndarray] = []  # nanoseconds, [W, rounds]
        self.of = self._drawn if sigma else self._constant

    def _constant(self, worker: int, number: int) -> int:
        """Return the constant latency of a worker."""
        del number
        return self.means[worker]

    def _drawn(self, worker: int, number: int) -> int:
        """Return the drawn latency of a worker in the round of this number."""
        block, column = divmod(number, self.size)
        while block >= len(self.blocks):
            self._draw()
        return self.blocks[block].item(worker, column)

    def _draw(self) -> None:
        from scipy.special import ndtri

        first = len(self.blocks) * self.size
        z = ndtri(self.draw(np.arange(first, first + self.size)))
        factors = np.exp(self.sigma * z - self.sigma**2 / 2)
        late = np.minimum(np.rint(factors * np.array(self.means)[:, None]), NEVER)
        self.blocks.append(late.astype(np.int64))
