"""Gossip in virtual time: a worker waits for its neighbours alone, or averages with one that does not wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np

from ..contract.scheme import Scheme
from ..sync.gossip import Gossip
from ..sync.pairs import Pairs
from ..sync.synchronization import Synchronization
from .network import Network
from .server import RoundTimings, SimulatedServer


class Neighbours:
    """The messages between neighbours. Times are in nanoseconds.

    Args:
        scheme: the algorithm; its synchronization rule has the graph.
        server: the record.
        timings: the timestamps of the rounds.
        network: the links.
        message_bytes: size of a message.
        end_round: ends the round of a worker at a time.
    """

    def __init__(
        self,
        scheme: Scheme,
        server: SimulatedServer,
        timings: RoundTimings,
        network: Network,
        message_bytes: float,
        end_round: Callable[[int, int], None],
    ):
        self.server, self.timings, self.network, self.end_round = server, timings, network, end_round
        self.message_bytes, self.rule = message_bytes, cast(Gossip, scheme.sync)
        # For each round that not all workers have done: its links, and when each worker has sent its message.
        self.rounds: dict[int, tuple[np.ndarray, dict[int, int]]] = {}

    def send(self, worker: int, now: int) -> None:
        """Send the message of a worker to its neighbours, and let those continue that now have all that they need."""
        number = self.server.recorded[worker]
        if number not in self.rounds:
            self.rounds[number] = self.rule.weights(self.server.workers, number) > 0, {}
        links, sent = self.rounds[number]
        self.timings.arrived[worker] = sent[worker] = now
        for other in np.flatnonzero(links[:, worker] | (np.arange(len(links)) == worker)).tolist():
            heard = [k for k in np.flatnonzero(links[other]).tolist() if k != other]
            if other in sent and all(k in sent for k in heard):
                hops = [self._hop(links, k, other, number, len(heard)) for k in heard]
                at = max([sent[other], *(sent[k] + hop for k, hop in zip(heard, hops, strict=True))])
                self.timings.released[other] = max(sent[k] for k in (*heard, other))
                self.server.gossip(other, at)
                self.end_round(other, at)
        if len(sent) == len(links):
            del self.rounds[number]

    def _hop(self, links: np.ndarray, one: int, other: int, number: int, gets: int) -> int:
        """Return the time of a message; a link carries the messages of a round to or from all neighbours together."""
        sends = int(links[:, one].sum()) - int(links[one, one])
        return self.network.hop(one, other, number, self.message_bytes, sends, gets)


def between_peers(network: Network, sync: Synchronization, message_bytes: float) -> Network:
    """Return a network in which a worker's message goes to its peer of the round, and the reply back, if in pairs.

    A worker without a peer sends nothing. A link carries one message at a time: others that share it are not known.
    """
    if not sync.in_pairs:
        return network
    peers = cast(Pairs, sync).peers(network.workers)

    def late(worker: int, number: int, there: bool) -> int:
        peer = int(peers[number % len(peers), worker])
        ends = (worker, peer) if there else (peer, worker)
        return 0 if peer == worker else network.hop(*ends, number, message_bytes, 1, 1)

    network.up = network.down = None
    network.message_late, network.reply_late = partial(late, there=True), partial(late, there=False)
    return network
