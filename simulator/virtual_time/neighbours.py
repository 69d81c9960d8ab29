"""Gossip in virtual time: a worker waits for its neighbours alone, or averages with one that does not wait for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np

from ...common.sync.gossip import Gossip
from ...common.sync.pairs import Pairs
from ...common.sync.synchronization import Synchronization
from .network import Network
from .resources import EventQueue
from .simulated_server import RoundTimings, SimulatedServer
from .sizes import Sizes


class GossipRound:
    """A round that not all workers have ended. Times are in nanoseconds.

    Args:
        weights: the mixing matrix, [W, W].
        network: the latencies.
        number: number of the round.

    Attributes:
        hearing: for each worker those that hear it, and the latency of the message to each.
        missing: messages that each worker still needs, with its own, [W].
        ready: when the last message that each worker needs has left its sender, so far, [W].
        heard: when the last message that each worker needs has arrived, so far, [W].
        left: number of workers that have not ended the round.
    """

    def __init__(self, weights: np.ndarray, network: Network, number: int):
        self.left = len(weights)
        self.hearing: list[list[tuple[int, int]]] = [[] for _ in range(self.left)]
        receivers, senders = np.nonzero((weights > 0) & ~np.eye(self.left, dtype=bool))
        edges = zip(senders.tolist(), receivers.tolist(), network.hops(senders, receivers, number), strict=True)
        for sender, receiver, latency in edges:
            self.hearing[sender].append((receiver, latency))
        self.missing = (1 + np.bincount(receivers, minlength=self.left)).tolist()
        self.ready, self.heard = [0] * self.left, [0] * self.left


class Neighbours:
    """The messages between neighbours. Times are in nanoseconds.

    Args:
        rule: the synchronization rule, which has the graph; of another one no message is sent.
        server: the record.
        timings: the timestamps of the rounds.
        network: the latencies, and the links between workers.
        sizes: bytes of messages.
        end_round: ends the round of a worker at a time.
        queue: the events of the run.

    Attributes:
        links: the links between workers; None if bytes take no time.
        rounds: the rounds that not all workers have ended, by their numbers.
    """

    def __init__(
        self,
        rule: Synchronization,
        server: SimulatedServer,
        timings: RoundTimings,
        network: Network,
        sizes: Sizes,
        end_round: Callable[[int, int], None],
        queue: EventQueue,
    ):
        self.rule, self.server, self.timings, self.network = cast(Gossip, rule), server, timings, network
        self.sizes, self.end_round, self.queue = sizes, end_round, queue
        self.links = network.between_workers() if rule.kind == "gossip" else None
        self.rounds: dict[int, GossipRound] = {}

    def send(self, worker: int, now: int) -> None:
        """Send the message of a worker to its neighbours."""
        number = self.server.sequencer.recorded[worker]
        if number not in self.rounds:
            self.rounds[number] = GossipRound(self.rule.weights(self.server.workers, number), self.network, number)
        self.timings.arrived[worker] = now
        size = self.sizes.message()
        for other, latency in self.rounds[number].hearing[worker]:
            act = partial(self._arrive, number, now, latency)
            if self.links is None:
                act(other, now)
            else:
                self.queue.share(self.links, now, other, size, act, (worker, other))
        self._arrive(number, now, 0, worker, now)

    def _arrive(self, number: int, ready: int, latency: int, worker: int, now: int) -> None:
        """Add the latency to a message whose bytes have all been sent; end the round of a worker that has all it needs.

        Args:
            number: number of the round.
            ready: when the message has left its sender.
            latency: latency of the message.
            worker: the receiver.
            now: when its last byte was sent.
        """
        found = self.rounds[number]
        found.ready[worker] = max(found.ready[worker], ready)
        found.heard[worker] = at = max(found.heard[worker], now + latency)
        found.missing[worker] -= 1
        if not found.missing[worker]:
            found.left -= 1
            if not found.left:
                del self.rounds[number]
            self.timings.released[worker] = found.ready[worker]
            self.server.gossip(worker, at)
            self.end_round(worker, at)


def between_peers(network: Network, sync: Synchronization) -> Network:
    """Return a network in which a worker's message goes to its peer of the round, and the reply back, if in pairs.

    A worker without a peer sends nothing.
    """
    if not sync.in_pairs:
        return network
    peers = cast(Pairs, sync).peers(network.workers).tolist()

    def way_up(worker: int, number: int) -> tuple[int, int] | None:
        peer = peers[number % len(peers)][worker]
        return None if peer == worker else (worker, peer)

    def way_back(worker: int, number: int) -> tuple[int, int] | None:
        ends = way_up(worker, number)
        return ends and (ends[1], ends[0])

    def latency(way: Callable[[int, int], tuple[int, int] | None], worker: int, number: int) -> int:
        ends = way(worker, number)
        return network.hops([ends[0]], [ends[1]], number)[0] if ends else 0

    network.up = network.down = network.between_workers()
    network.way_up, network.way_down = way_up, way_back
    network.message_latency, network.reply_latency = partial(latency, way_up), partial(latency, way_back)
    return network
