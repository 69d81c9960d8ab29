"""The network of a simulated run: the times of messages and replies in transit.

message     latency + bytes, over the worker's uplink, its region's link and the card of the ps, which all share
reply       the same in the other direction of each link; replies of a barrier begin together, and compete
several ps  a message is cut into equal parts, one for each ps task: together they act as one card, n times as fast
reduction   workers without a ps add up their messages among themselves, over the links of the workers and their regions

A reduction (`--collective`) has turns:

slices  each worker adds up a slice for all and sends the sum back: two turns, in each of which every worker sends to
        every other; small vectors are sliced for few workers, as in `sync.collective`
ring    2 (W - 1) turns: each worker sends 1/W of the vector to the next
tree    2 ⌈log2 W⌉ turns: the distance of the partners is halved each time, then doubled again (Bruck et al. 1997)

A worker may send compressed messages, and get replies of another size: then the second half of the turns has as many
bytes as replies have; or all messages are gathered in these turns alone, if that is less (`sizes.halves`).

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
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...common.cluster.distributions import Blocks, lognormal_factors, uniforms
from ...common.cluster.platform import Machines
from ...common.messages.codec import FLOAT_BYTES
from ...common.sync.collective import LEAST
from .links import SharedLinks
from .resources import NEVER, Fair, Shared

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
        message_latency, reply_latency: nanoseconds of latency, a function of the worker and its round.
    """

    def __init__(self, machines: Machines, workers: int, ps: int, seed: int):
        self.machines, self.workers, self.seed, self.sigma = machines, workers, seed, machines.latency_sigma
        self.regions = np.array(machines.region_of(workers))
        factors = machines.link_factors(workers, seed) if machines.link_sigma else np.ones(workers)
        self.uplinks, self.downlinks = machines.uplink * factors, machines.downlink * factors
        self.card = machines.ps_link * ps
        self.up, self.down = (self._shared(links.tolist(), self.card) for links in (self.uplinks, self.downlinks))
        added, links = zip(*machines.regions, strict=True)
        self.added, self.region_links = np.array(added), np.array(links)
        self.latency = (machines.latency + self.added[self.regions]).tolist()
        self.message_latency, self.reply_latency = (
            latencies(self.latency, self.sigma, seed, purpose) for purpose in ("message", "reply")
        )
        # With which a worker's message, or reply, of a round is sent over `up`, or `down`; None if there is none.
        self.way_up: Callable[[int, int], Any] = lambda worker, number: worker
        self.way_down: Callable[[int, int], Any] = self.way_up
        self.inside = np.bincount(self.regions, minlength=len(links))  # workers of each region
        self.times: dict[tuple[float, float], int] = {}  # of reductions by size, if latencies are constant

    def _shared(self, links: Sequence[float], card: float) -> Shared | None:
        caps, regions = [bandwidth for _, bandwidth in self.machines.regions], self.regions.tolist()
        if all(map(math.isinf, (*links, *caps, card))):
            return None
        private = all(map(math.isinf, (*caps, card)))  # then both kinds are equal, and `Fair` is faster
        if private or not self.machines.fifo:
            return Fair(card, links, regions, caps)
        first, last = len(links), len(links) + len(caps)
        return SharedLinks([*links, *caps, card], lambda worker: (worker, first + regions[worker], last), 3, fifo=True)

    # Messages between workers.

    def between_workers(self) -> SharedLinks | None:
        """Return the links between any two workers, whose ways are pairs of them; None if bytes take no time.

        A message takes the uplink of its sender and the downlink of its receiver; between regions, both of their links.
        """
        down, out = self.workers, 2 * self.workers
        into, regions = out + len(self.region_links), self.regions.tolist()

        def way(ends: tuple[int, int]) -> list[int]:
            (sender, receiver), (origin, destination) = ends, (regions[ends[0]], regions[ends[1]])
            return [sender, down + receiver, *((out + origin, into + destination) if origin != destination else ())]

        of_workers, of_regions = [*self.uplinks, *self.downlinks], [*self.region_links] * 2
        longest = 2 * sum(any(map(math.isfinite, rates)) for rates in (of_workers, of_regions))
        return SharedLinks([*of_workers, *of_regions], way, longest, self.machines.fifo) if longest else None

    def starts(self, size: float) -> list[int]:
        """Draw when workers start, within the time that a link which they share needs for a message of each.

        Equal workers that start together would all send, then all receive, for ever, so that each way of a fairly
        shared link is idle for half of the time. Small differences between real ones end that: a worker that is a
        little ahead has the link alone, and its lead grows.

        Args:
            size: bytes of a message.
        """
        slowness = np.maximum(self.workers / self.card, self.inside[self.regions] / self.region_links[self.regions])
        return (
            np.rint(size * slowness * uniforms(self.seed, "start", range(self.workers), [0])[:, 0]).astype(int).tolist()
        )

    # Reductions among the workers.

    def reductions(self, sizes: Sequence[tuple[float, float]], number: int) -> int:
        """Return the nanoseconds of reductions of vectors of these sizes, one after the other, in a round."""
        return sum(self.reduction(size, number * len(sizes) + i) for i, size in enumerate(sizes))

    def reduction(self, size: tuple[float, float], number: int) -> int:
        """Return the nanoseconds of a reduction.

        Args:
            size: bytes of the vector in the first half of the reduction, and in the second.
            number: number of earlier reductions.
        """
        if self.workers == 1:
            return 0
        if not self.sigma:
            number = 0
            if size in self.times:
                return self.times[size]
        took = self._in_slices(size, number) if self.machines.collective == "slices" else self._in_turns(size, number)
        self.times[size] = math.ceil(took)
        return self.times[size]

    def hops(self, senders: Any, receivers: Any, number: int) -> list[int]:
        """Return the nanoseconds of latency of messages from workers to others, [n] each, in the round of a number."""
        sender, receiver = np.asarray(senders), np.asarray(receivers)
        latency = self._latencies(self.regions[sender], self.regions[receiver]).astype(np.float64)
        if self.sigma:
            u = uniforms(self.seed, "gossip", sender * self.workers + receiver, [number])[:, 0]
            latency = np.minimum(latency * lognormal_factors(u, self.sigma), NEVER)
        return np.rint(latency).astype(np.int64).tolist()

    def _latencies(self, origins: np.ndarray, destinations: np.ndarray) -> np.ndarray:
        """Return the mean latencies of messages between workers of these regions."""
        return self.machines.latency + np.where(
            origins == destinations, 0, self.added[origins] + self.added[destinations]
        )

    def _factors(self, u: np.ndarray, many: np.ndarray | float = 1.0) -> np.ndarray:
        """Return the longest of `many` latencies with mean 1, drawn with uniform numbers `u`."""
        return lognormal_factors(u ** (1 / many), self.sigma)

    # Slices.

    def _in_slices(self, size: tuple[float, float], number: int) -> float:
        gathered, whole = size[1] > size[0] == 0, max(size)
        each = whole / self.workers if gathered else max(whole / self.workers, min(whole, LEAST * FLOAT_BYTES))
        holders = min(self.workers, math.ceil(whole / each)) if whole else 1
        held = np.zeros(self.workers)
        held[:holders] = np.minimum(each, whole - each * np.arange(holders)) / (whole or 1)
        return self._bytes(size, held) + self._last(holders, number, 1 if gathered else 2)

    def _bytes(self, size: tuple[float, float], held: np.ndarray) -> float:
        """Return the time of the slowest link in both turns; `held` is the share that each worker adds up, [W].

        In the first turn a worker sends all but its own share, and gets its share of all others; in the second turn
        both are swapped.
        """
        most, least = 1 - held, (self.workers - 1) * held
        held_in = np.bincount(self.regions, held, len(self.region_links))
        leaves, enters = self.inside * (1 - held_in), held_in * (self.workers - self.inside)
        regions = (np.maximum(leaves, enters) / self.region_links).max()
        first = max((most / self.uplinks).max(), (least / self.downlinks).max(), regions)
        second = max((least / self.uplinks).max(), (most / self.downlinks).max(), regions)
        return size[0] * first + size[1] * second

    def _last(self, holders: int, number: int, turns: int) -> float:
        """Return the latency of the last sum: over slices, the largest sum of the longest latencies of the turns."""
        places, regions = self.regions[:holders, None], np.arange(len(self.region_links))[None]
        counts = self.inside[None] - (places == regions)  # messages between a slice's worker and a region
        means = self._latencies(places, regions)  # [holders, regions]
        if not self.sigma:
            return turns * np.where(counts > 0, means, 0).max()
        ends = 2 * len(self.region_links)
        u = uniforms(self.seed, "reduction", range(holders), number * ends + np.arange(ends))
        u = u.reshape(holders, 2, -1)[:, :turns]
        longest = means[:, None] * self._factors(u, np.maximum(counts, 1)[:, None])
        return np.where(counts[:, None] > 0, longest, 0).max(2).sum(1).max()

    # Ring and tree.

    def _turns(self, size: tuple[float, float]) -> Iterable[tuple[int, float]]:
        """Return the distance of the partners in each turn, and the bytes of its messages."""
        first, second = (part / self.workers for part in size)
        if self.machines.collective == "ring":
            distances = [(1, 1)] * (self.workers - 1)
        else:
            powers = [2**k for k in range(math.ceil(math.log2(self.workers)))]
            distances = [(distance, min(distance, self.workers - distance)) for distance in powers]
        adding = [] if second > first == 0 else [(distance, first * parts) for distance, parts in reversed(distances)]
        return [*adding, *((distance, second * parts) for distance, parts in distances)]

    def _in_turns(self, size: tuple[float, float], number: int) -> float:
        turns = list(self._turns(size))
        paths = {distance: self._path(distance) for distance in {distance for distance, _ in turns}}
        ready = np.zeros(self.workers)  # time at which each worker has the data of its next message
        for turn, (distance, part) in enumerate(turns):
            slowness, latency = paths[distance]
            sent = ready + part * slowness
            if self.sigma:
                index = number * len(turns) + turn
                u = uniforms(self.seed, "reduction", range(self.workers), [index])[:, 0]
                latency = latency * self._factors(u)
            ready = np.maximum(sent, np.roll(sent + latency, distance))
        return ready.max()

    def _path(self, distance: int) -> tuple[np.ndarray, np.ndarray]:
        """Return nanoseconds per byte and mean latency of each worker's message to the partner at a distance, [W]."""
        to = np.roll(self.regions, -distance)
        slowness = np.maximum(1 / self.uplinks, 1 / np.roll(self.downlinks, -distance))
        crosses = self.regions != to
        for side in (self.regions, to):
            load = np.bincount(side[crosses], minlength=len(self.region_links)) / self.region_links
            slowness = np.where(crosses, np.maximum(slowness, load[side]), slowness)
        return slowness, self._latencies(self.regions, to)


def latencies(means: Sequence[int], sigma: float, seed: int, purpose: str) -> Callable[[int, int], int]:
    """Return the latency in nanoseconds as a function of the worker and its round: lognormal with these means, [W]."""
    if not sigma:
        return lambda worker, number: means[worker]

    def draw(rounds: slice) -> np.ndarray:
        u = uniforms(seed, purpose, range(len(means)), np.arange(rounds.start, rounds.stop))
        delays = lognormal_factors(u, sigma) * np.array(means)[:, None]
        return np.minimum(np.rint(delays), NEVER).astype(np.int64)

    return Blocks(max(1, BLOCK // len(means)), draw).item
