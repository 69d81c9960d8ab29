"""The network of a simulated run: how long messages and replies are on their way, and what a reduction costs.

message     latency + bytes, over the worker's uplink, its region's link and the card of the ps, which all share
reply       the same back, over the other half of each; replies of a barrier begin together, and compete
several ps  a message is cut in equal parts, one for each ps task: together they are one card, n times as fast
reduction   of n bytes among W workers, latency a and bandwidth b of the slowest link among them: t a + 2 (W - 1)/W n/b
            in t = 2 steps where each adds up a slice for all, as here; ring t = 2 (W - 1);  tree t = 2 ⌈log2 W⌉;
            of small vectors few workers have slices, as `gates.collective` has it, of s bytes: 2 a + 2 (W - 1) s/b
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from ..contract.codec import FLOAT_BYTES
from ..gates.collective import LEAST
from .chance import uniforms
from .platform import Machines
from .sharing import Fair, OneByOne, Shared

BLOCK = 1 << 16  # latencies of all workers that are drawn at once


class Network:
    """The network of W workers.

    Args:
        machines: with the links.
        workers: W.
        ps: tasks.
        seed: of what is drawn.

    Attributes:
        up, down: what is shared by messages, and by replies; None where the bytes take no time.
        latency: of each worker, one way, in the mean, [W].
        message_late, reply_late: nanoseconds of latency, given a worker and its round.
    """

    def __init__(self, machines: Machines, workers: int, ps: int, seed: int):
        self.machines, self.workers = machines, workers
        self.region = [k % len(machines.regions) for k in range(workers)]
        factors = machines.link_factors(workers, seed).tolist() if machines.link_sigma else [1.0] * workers
        self.uplinks = [machines.uplink * factor for factor in factors]
        self.downlinks = [machines.downlink * factor for factor in factors]
        self.up = self._shared(self.uplinks, machines.ps_link * ps)
        self.down = self._shared(self.downlinks, machines.ps_link * ps)
        self.latency = [machines.latency + machines.regions[region][0] for region in self.region]
        late = partial(Lateness, self.latency, machines.latency_sigma, seed)
        self.message_late, self.reply_late = late("message").of, late("reply").of

    def _shared(self, links: Sequence[float], card: float) -> Shared | None:
        caps = [bandwidth for _, bandwidth in self.machines.regions]
        if all(math.isinf(rate) for rate in (*links, *caps, card)):
            return None
        if self.machines.fifo:
            return OneByOne([min(links[k], caps[self.region[k]], card) for k in range(self.workers)])
        return Fair(card, links, self.region, caps)

    def reduction(self, size: float) -> int:
        """Nanoseconds of a reduction of vectors of that many bytes."""
        if self.workers == 1:
            return 0
        shared = [self.machines.regions[region][1] for region in self.region]
        rate, latency = min(*self.uplinks, *self.downlinks, *shared), max(self.latency)
        turns, part = self.workers - 1, size / self.workers
        if self.machines.collective == "tree":
            turns = math.ceil(math.log2(self.workers))
        elif self.machines.collective == "slices":
            turns, part = 1, max(part, min(size, LEAST * FLOAT_BYTES))
        return math.ceil(2 * (turns * latency + (self.workers - 1) * part / rate))


class Lateness:
    """How long messages are on their way besides their bytes: lognormal with the mean of each worker.

    Args:
        means: nanoseconds, [W].
        sigma: of the logarithms.
        seed: of what is drawn.
        way: message or reply.
    """

    def __init__(self, means: Sequence[int], sigma: float, seed: int, way: str):
        self.means, self.sigma, self.draw = means, sigma, partial(uniforms, seed, way, range(len(means)))
        self.size = max(1, BLOCK // len(means))  # rounds of a block
        self.blocks: list[np.ndarray] = []  # nanoseconds, [W, rounds]
        self.of = self._drawn if sigma else self._constant

    def _constant(self, worker: int, number: int) -> int:
        """Of a round of a worker: always the same."""
        del number
        return self.means[worker]

    def _drawn(self, worker: int, number: int) -> int:
        """Of a round of a worker."""
        block, column = divmod(number, self.size)
        while block >= len(self.blocks):
            self._draw()
        return self.blocks[block].item(worker, column)

    def _draw(self) -> None:
        from scipy.special import ndtri

        first = len(self.blocks) * self.size
        z = ndtri(self.draw(np.arange(first, first + self.size)))
        factors = np.exp(self.sigma * z - self.sigma**2 / 2)
        self.blocks.append(np.rint(factors * np.array(self.means)[:, None]).astype(np.int64))
