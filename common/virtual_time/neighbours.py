"""A round of gossip in virtual time: a worker waits for its neighbours alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from ..contract.scheme import Scheme
from ..sync.gossip import Gossip
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
