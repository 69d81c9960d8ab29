"""Two levels of servers in virtual time: one in each region, and a global one, see `Scheme.regions`.

A message of a worker travels inside its region: over the worker's own link, and the network card of the region's
server, which has a lock of its own. The global server is where the ps of other schemes is, so that messages between it
and a region take the region's latency and link, and the cards of both servers, of which the region's carries messages
of workers, too. A server of a region continues while they travel.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np

from ...common.cluster.platform import Machines
from ...common.contract.scheme import Scheme
from ...common.errors import UserError
from .links import SharedLinks
from .network import Network
from .resources import ARRIVE, HELD, Act, EventQueue
from .simulated_server import DOWN, EXCHANGE, UP, RoundTimings, SimulatedServer
from .sizes import Sizes


def check_regions(scheme: Scheme, machines: Machines, workers: int) -> None:
    """Raise `UserError` if a server of a region has workers in several regions of the machines."""
    assert scheme.regions is not None  # noqa: S101
    servers, places = scheme.regions.number, machines.region_of(workers)
    if any(place != places[k % servers] for k, place in enumerate(places)):
        raise UserError(
            f"{scheme.name}: worker k belongs to region k modulo {servers}, but the machines place the workers of a "
            f"region apart. Give --regional-servers {len(machines.regions)}, and list the regions of the workers in "
            f"turn. Received: the workers' regions {places[: 2 * servers]}"
        )


def numbers_of(scheme: Scheme, workers: int) -> int:
    """Return how many numbers the events of a run have: those of workers, of the ps, and of messages of regions."""
    return workers + 1 + (2 * scheme.regions.number if scheme.regions else 0)


class Regional:
    """The servers of the regions of a run, and the messages between them and the global server, if it has regions.

    Times are in nanoseconds. In the queue of events worker k is k; after the workers and the ps come the messages of
    regions, then the replies to them.

    Args:
        server: the record, with the algorithm.
        machines: the machines.
        ps: number of tasks of each server.
        seed: seed of the random latencies.
        timings: the timestamps of the rounds.
        sizes: bytes of messages, and of replies, which are those of a model.
        arrive: serves the message of a worker that has arrived, if there are no regions.
        release: sends the replies to workers, released at the first of two times and sent at the second.
        queue: the events of the run.

    Attributes:
        inside: the machines as workers see them.
        arrive: serves a message that has arrived.
        links: the links of workers and servers; None if bytes take no time, or without regions.
        holds: for how long each kind of event holds the lock of its server.
        free: time at which the lock of each server has served all requests so far; the last is the global one, [R + 1].
        since: messages of each region since its last merge, [R].
        replied: True if the reply has reached the region, which merges it later, [R].
        merges: merges of each region, [R].
        end: the time of the last event between servers.
    """

    def __init__(
        self,
        server: SimulatedServer,
        machines: Machines,
        ps: int,
        seed: int,
        timings: RoundTimings,
        sizes: Sizes,
        arrive: Act,
        release: Callable[[Sequence[int], int, int], None],
        queue: EventQueue,
    ):
        self.server, self.timings, self.release, self.bytes = server, timings, release, sizes.reply()
        self.inside, self.arrive, self.end, self.queue = machines, arrive, 0, queue
        queue.on(ARRIVE, arrive)
        self.first = server.workers + 1  # the number of the message of region 0
        self.links: SharedLinks | None = None
        self.holds: dict[int, int] = {}
        if (regions := server.scheme.regions) is None:
            return
        self.servers, self.moves, self.delay = regions.number, regions.every, regions.delay
        self.inside, self.arrive = copy.copy(machines), self._arrive
        queue.on(ARRIVE, self._arrive)
        queue.on(HELD, self.serve)
        self.inside.regions, self.inside.places = [(0, math.inf)] * self.servers, [*range(self.servers)]
        self.card, self.inside.ps_link = machines.ps_link * ps, math.inf
        of_model = machines.held(self.bytes / ps)
        self.holds = {EXCHANGE: machines.held(sizes.message() / ps), UP: of_model, DOWN: of_model}
        self.network = Network(machines, self.servers, ps, seed + 1)  # its workers are the servers of regions
        self.free = [0] * (self.servers + 1)
        self.since, self.merges = [0] * self.servers, [0] * self.servers
        self.replied = [False] * self.servers

    def connect(self, inside: Network) -> None:
        """Let messages of workers, and those between servers, share links; `inside` is the network of the workers."""
        if not self.holds:
            return
        workers, servers, links = inside.workers, self.servers + 1, self.network.region_links
        cards_in, cards_out = 2 * workers, 2 * workers + servers  # each way of the cards; the last is the global one
        links_out, links_in = cards_out + servers, cards_out + servers + len(links)
        rates = [*inside.uplinks, *inside.downlinks, *[self.card] * 2 * servers, *links, *links]
        places = self.network.regions.tolist()

        def way(number: int) -> list[int]:
            """Return the links of a message with a number, or of the reply to worker ~number."""
            worker = max(number, ~number)
            kind, region = self._kind(worker)
            if kind == UP:
                return [cards_out + region, links_out + places[region], cards_in + self.servers]
            if kind == DOWN:
                return [cards_out + self.servers, links_in + places[region], cards_in + region]
            return [worker, cards_in + region] if number == worker else [cards_out + region, workers + worker]

        if not all(map(math.isinf, rates)):
            inside.up = inside.down = self.links = SharedLinks(rates, way, 3, self.network.machines.fifo)
            inside.way_down = lambda worker, number: ~worker
            inside.region_links = np.full(self.servers, self.card)

    def _arrive(self, number: int, now: int) -> None:
        """Serve a message that has arrived, when the lock of its server has served those before it."""
        kind, region = self._kind(number)
        lock = self.servers if kind == UP else region
        begun = max(now, self.free[lock])
        self.free[lock] = begun + self.holds[kind]
        if begun > now:
            self.queue.at(begun, HELD, number)
        else:
            self.serve(number, now)

    def serve(self, number: int, now: int) -> None:
        """Merge a message: of a worker, of a region into the global model, or the global server's into the region."""
        if self.server.over:
            return
        kind, region = self._kind(number)
        if kind == UP:
            self._record(UP, region, now)
            self._send(number + self.servers, now)
            return
        if kind == DOWN:
            self.replied[region] = True
        else:
            self.timings.arrived[number] = now
            self.release(self.server.exchange(number, now), now, now + self.holds[kind])
            self.since[region] += 1
            if self.since[region] == self.moves:
                self._send(self.first + region, now)
        if self.replied[region] and self.since[region] >= self.moves + self.delay:
            self.replied[region], self.since[region] = False, 0
            self.merges[region] += 1
            self._record(DOWN, region, now)

    def _record(self, event: int, region: int, now: int) -> None:
        self.server.between_servers(event, region, now)
        self.end = now

    def _send(self, number: int, now: int) -> None:
        """Send a message between servers, which is a whole model."""
        if self.links is None:
            self._sent(number, now)
        else:
            self.queue.share(self.links, now, number, self.bytes, self._sent)

    def _sent(self, number: int, now: int) -> None:
        """Add the latency to a message between servers, and the time for which its sender held the lock before."""
        kind, region = self._kind(number)
        latency = (self.network.message_latency if kind == UP else self.network.reply_latency)(
            region, self.merges[region]
        )
        held = self.holds[EXCHANGE if kind == UP else UP]
        if latency + held:
            self.queue.at(now + latency + held, ARRIVE, number)
        else:
            self.arrive(number, now)

    def _kind(self, number: int) -> tuple[int, int]:
        """Return the kind of event that the message with a number makes, and its region."""
        if number < self.first:
            return EXCHANGE, number % self.servers
        reply, region = divmod(number - self.first, self.servers)
        return (DOWN if reply else UP), region
