"""The time of a reduction: workers without a ps add up their messages among themselves.

slices  each worker adds up a slice for all and sends the sum back: two turns, in each of which every worker sends to
        every other; small vectors are sliced for few workers, as in `sync.collective`
ring    2 (W - 1) turns: each worker sends 1/W of the vector to the next
tree    2 ⌈log2 W⌉ turns: the distance of the partners is halved each time, then doubled again (Bruck et al. 1997)

The bytes of a turn of slices take the time of the slowest link: a worker's own, or that of a region, which carries all
bytes that leave the region, and in the other direction all that enter it. In a ring or a tree a worker sends as soon as
it has the data; its rate is that of its own link, or its share of the region's link if the message crosses that. Each
message has a latency of its own: the latencies of the regions that it leaves and enters are added, and the sum varies
with `latency_sigma`. A turn of slices has W² messages: the longest latency between two regions is drawn at once, from
its distribution.

With equal workers, latency a and bandwidth b the time is 2 (a t + (W - 1)/W n/b), where t is half of the turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ..messages.codec import FLOAT_BYTES
from ..sync.collective import LEAST
from .draws import uniforms
from .platform import Machines


class Reduction:
    """The reductions of W workers.

    Args:
        machines: the machines, with the regions and their links.
        region: region of each worker, [W].
        uplinks, downlinks: rates of each worker's links in bytes per nanosecond, [W].
        seed: seed of the latencies.
    """

    def __init__(
        self,
        machines: Machines,
        region: Sequence[int],
        uplinks: Sequence[float],
        downlinks: Sequence[float],
        seed: int,
    ):
        self.workers, self.sigma, self.seed = len(region), machines.latency_sigma, seed
        self.kind, self.base = machines.collective, machines.latency
        self.region = np.array(region)
        self.up, self.down = np.array(uplinks), np.array(downlinks)
        added, links = zip(*machines.regions, strict=True)
        self.added, self.links = np.array(added), np.array(links)
        self.inside = np.bincount(self.region, minlength=len(links))  # workers of each region
        self.known: dict[float, int] = {}  # times by size, if latencies are constant

    def nanoseconds(self, size: float, number: int) -> int:
        """Return the nanoseconds of a reduction.

        Args:
            size: bytes of the vector.
            number: number of earlier reductions.
        """
        if self.workers == 1:
            return 0
        if not self.sigma:
            number = 0
            if size in self.known:
                return self.known[size]
        took = self._in_slices(size, number) if self.kind == "slices" else self._in_turns(size, number)
        self.known[size] = math.ceil(took)
        return self.known[size]

    def _latencies(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the mean latencies of messages between workers of these regions."""
        return self.base + np.where(one == other, 0, self.added[one] + self.added[other])

    def _factors(self, u: np.ndarray, many: np.ndarray | float = 1.0) -> np.ndarray:
        """Return the longest of `many` latencies with mean 1, drawn with uniform numbers `u`."""
        from scipy.special import ndtri

        return np.exp(self.sigma * ndtri(u ** (1 / many)) - self.sigma**2 / 2)

    # Slices.

    def _in_slices(self, size: float, number: int) -> float:
        each = max(size / self.workers, min(size, LEAST * FLOAT_BYTES))
        holders = min(self.workers, math.ceil(size / each)) if size else 1
        held = np.zeros(self.workers)
        held[:holders] = np.minimum(each, size - each * np.arange(holders))
        return self._bytes(size, held) + self._last(holders, number)

    def _bytes(self, size: float, held: np.ndarray) -> float:
        """Return the time of the slowest link in both turns; `held` are the bytes that each worker adds up, [W]."""
        sends, gets = size - held, (self.workers - 1) * held  # in the first turn; swapped in the second
        here = np.bincount(self.region, held, len(self.links))
        leaves, enters = self.inside * (size - here), here * (self.workers - self.inside)
        regions = (np.maximum(leaves, enters) / self.links).max()
        there = max((sends / self.up).max(), (gets / self.down).max(), regions)
        return there + max((gets / self.up).max(), (sends / self.down).max(), regions)

    def _last(self, holders: int, number: int) -> float:
        """Return the latency of the last sum: over slices, the largest sum of the longest way there and back."""
        mine = self.region[:holders, None]  # [holders, 1]
        others = np.arange(len(self.links))[None]
        many = self.inside[None] - (mine == others)  # messages between a slice's worker and a region
        means = self._latencies(mine, others)  # [holders, regions]
        if not self.sigma:
            return 2 * np.where(many > 0, means, 0).max()
        both = 2 * len(self.links)
        u = uniforms(self.seed, "reduction", range(holders), number * both + np.arange(both))
        u = u.reshape(holders, 2, -1)
        longest = means[:, None] * self._factors(u, np.maximum(many, 1)[:, None])
        return np.where(many[:, None] > 0, longest, 0).max(2).sum(1).max()

    # Ring and tree.

    def _turns(self, size: float) -> Iterable[tuple[int, float]]:
        """Return the distance of the partners in each turn, and the bytes of its messages."""
        part = size / self.workers
        if self.kind == "ring":
            return [(1, part)] * (2 * (self.workers - 1))
        distances = [2**k for k in range(math.ceil(math.log2(self.workers)))]
        doubling = [(far, part * min(far, self.workers - far)) for far in distances]
        return [*reversed(doubling), *doubling]

    def _in_turns(self, size: float, number: int) -> float:
        turns = list(self._turns(size))
        ways = {far: self._way(far) for far in {far for far, _ in turns}}
        ready = np.zeros(self.workers)  # time at which each worker has the data of its next message
        for turn, (far, part) in enumerate(turns):
            slowness, latencies = ways[far]
            sent = ready + part * slowness
            if self.sigma:
                index = number * len(turns) + turn
                latencies = latencies * self._factors(
                    uniforms(self.seed, "reduction", range(self.workers), [index])[:, 0]
                )
            ready = np.maximum(sent, np.roll(sent + latencies, far))
        return ready.max()

    def _way(self, far: int) -> tuple[np.ndarray, np.ndarray]:
        """Return nanoseconds per byte and mean latency of each worker's message to the partner at a distance, [W]."""
        to = np.roll(self.region, -far)
        slowness = np.maximum(1 / self.up, 1 / np.roll(self.down, -far))
        crosses = self.region != to
        for side in (self.region, to):
            crowd = np.bincount(side[crosses], minlength=len(self.links)) / self.links
            slowness = np.where(crosses, np.maximum(slowness, crowd[side]), slowness)
        return slowness, self._latencies(self.region, to)
