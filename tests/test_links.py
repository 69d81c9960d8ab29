"""Links between workers, regions and servers in virtual time: none carries more than its rate, whatever the algorithm.

The bytes of each link are counted here, from the record alone and from what the rule of each algorithm sends where.
"""

import math

import numpy as np
import pytest
from scheduled import happens

from distsgd.algorithms import ADPSGD, DPSGD, SCHEMES, AsyncSGD, GASLoC, HALoS, NoLoCo
from distsgd.common.cluster.platform import Machines, Platform
from distsgd.common.record_format import EVENTS
from distsgd.common.server.traffic import halves
from distsgd.common.sync.topology import Topology
from distsgd.simulator.virtual_time import forecast as module
from distsgd.simulator.virtual_time.forecast import forecast

WORKERS = 6

FIGURES = module.figures


# No link carries more than its rate.


class Carried:
    """The bytes that each link has carried in a run: the ways of workers [W], of regions [R], and of cards of servers.

    Messages are counted when the record has them, replies of all rounds but the last of each worker.
    """

    def __init__(self, schedule, scheme, traffic, regions, servers):
        self.regions, self.scheme, self.traffic = np.asarray(regions), scheme, traffic
        self.trace, self.workers = schedule.trace, len(regions)
        self.up, self.down = np.zeros((2, self.workers))
        self.out, self.into = np.zeros((2, max(regions) + 1))
        self.card_in, self.card_out = np.zeros((2, servers))
        sync = scheme.sync
        (self._pairs if sync.in_pairs else self._gossip if sync.gossips else self._reduced if sync.is_collective else
         self._regional if scheme.regions else self._server)()  # fmt: skip

    def _of_workers(self, size_up, size_down):
        """Add the bytes of each row's worker, given those of a kind of event; replies without the last of each."""
        kinds = self.trace["event"]
        for k in range(self.workers):
            rows = kinds[(self.trace["worker"] == k) & (kinds < EVENTS.index("up"))]
            self.up[k], self.down[k] = size_up[rows].sum(), size_down[rows[:-1]].sum()

    def _server(self):
        sizes = np.array([self.traffic.of_kinds[name] for name in EVENTS]).T
        self._of_workers(*sizes)
        self.out, self.into = (np.bincount(self.regions, way) for way in (self.up, self.down))
        self.card_in[0], self.card_out[0] = self.up.sum(), self.down.sum()

    def _regional(self):
        """Messages of workers stay in a region; a model goes to the global server, the last one, and back."""
        self._of_workers(*np.array([self.traffic.of_kinds[name] for name in EVENTS]).T)
        servers = len(self.card_in) - 1
        moved = [
            self.traffic.reply
            * np.bincount(self.trace["worker"][self.trace["event"] == EVENTS.index(way)], minlength=servers)
            for way in ("up", "down")
        ]
        own = np.arange(self.workers) % servers
        self.card_in[:-1] = np.bincount(own, self.up) + moved[1]
        self.card_out[:-1] = np.bincount(own, self.down) + moved[0]
        self.card_in[-1], self.card_out[-1] = (way.sum() for way in moved)
        self.out, self.into = (np.bincount(self.regions[:servers], way, len(self.out)) for way in moved)

    def _sent(self, one, other, size):
        self.up[one] += size
        self.down[other] += size
        if self.regions[one] != self.regions[other]:
            self.out[self.regions[one]] += size
            self.into[self.regions[other]] += size

    def _gossip(self):
        for number in range(int(self.trace["version"][-1]) + 1):
            weights = self.scheme.sync.weights(self.workers, number)
            for other, one in zip(*np.nonzero(weights), strict=True):
                if one != other:
                    self._sent(one, other, self.traffic.message)

    def _pairs(self):
        peers = self.scheme.sync.peers(self.workers)
        for one in range(self.workers):
            number = int((self.trace["worker"] == one).sum())
            for i in range(number):
                if (other := peers[i % len(peers), one]) != one:
                    self._sent(one, other, self.traffic.message)
                    self._sent(other, one, self.traffic.reply * (i + 1 < number))

    def _reduced(self):
        """Each worker has a slice of all others, and sends the sum to all."""
        *means, last = self.traffic.vectors
        total = 2 * sum(means) + sum(halves(last, self.traffic.reply - sum(means), self.workers))
        number = int(self.trace["version"][-1]) + 1
        for one in range(self.workers):
            for other in range(self.workers):
                if one != other:
                    self._sent(one, other, number * total / self.workers)


LINKS = [
    {"uplink": "100Mbit"},
    {"uplink": "80Mbit", "downlink": "200Mbit", "sharing": "fifo"},
    {"ps_link": "200Mbit"},
    {"ps_link": "200Mbit", "sharing": "fifo", "uplink": "1Gbit"},
    {"regions": "0ms/300Mbit,5ms/100Mbit,0ms/1Gbit", "latency": "1ms"},
    {"regions": "0ms/300Mbit,5ms/100Mbit*2", "uplink": "150Mbit", "ps_link": "250Mbit", "compute": "exponential"},
]


@pytest.mark.parametrize("links", LINKS, ids=str)
@pytest.mark.rotating("others")
def test_no_link_carries_more_than_its_rate(links, monkeypatch):
    """In any forecast of any algorithm, whose steps are short; of gossip on each graph."""
    platform = Platform(step_ms=1.0, **links)
    machines = Machines(platform)
    regions, seen = machines.region_of(WORKERS), []
    monkeypatch.setattr(module, "MOST_ROUNDS", module.LEAST_ROUNDS)
    monkeypatch.setattr(module, "figures", lambda *found: seen.append(found) or FIGURES(*found))
    graphs = [kind(topology=graph) for kind in (DPSGD, ADPSGD) for graph in ("exponential", "random-matching", "torus")]
    in_regions = HALoS(regional_servers=max(2, len(machines.places)))
    for scheme in [*(kind() for kind in SCHEMES.values() if kind is not HALoS), *graphs, in_regions]:
        run = forecast(scheme, platform, workers=WORKERS, parameters=10**6)
        if not scheme.sync.exchanges:
            continue
        schedule, _, traffic, *_ = seen[-1]
        found = Carried(schedule, scheme, traffic, regions, 1 + (scheme.regions.number if scheme.regions else 0))
        seconds = schedule.trace["microseconds"].max() / 1e6
        rates = np.array([rate for _, rate in machines.regions])
        for carried, rate in (
            (found.up, machines.uplink),
            (found.down, machines.downlink),
            (np.array([run.sent]) * seconds, machines.uplink),
            (np.array([run.received]) * seconds, machines.downlink),
            (found.out, rates),
            (found.into, rates),
            (found.card_in, machines.ps_link),
            (found.card_out, machines.ps_link),
        ):
            assert (carried / 1e9 <= 1.0001 * rate * seconds).all(), (scheme, carried, seconds)


# Gossip over the links of two regions.

CROSSING = {"ring": 2, "torus": 4, "hypercube": 4, "exponential": 7, "complete": 16}
"""Messages of a round that leave a region, of two with workers 0 to 3 and 4 to 7: 3 → 4, 0 → 7 and so on."""

SITES = "0ms/1Gbit*4,0ms/1Gbit*4"


@pytest.mark.parametrize("graph", CROSSING)
def test_workers_of_two_regions_gossip_at_the_rate_of_the_links_between_them(graph):
    """Each needs all messages that cross, c n/b, and its steps, which first come, first served may hide."""
    seconds = CROSSING[graph] * 0.008
    for sharing, least in (("fair", seconds + 0.010), ("fifo", seconds)):
        found = happens(DPSGD(topology=graph), 8, 40, regions=SITES, sharing=sharing)
        took = np.diff(found.rounds[found.rounds[:, 0] == 3][:, -1])[10:].mean() / 1e6
        assert 0.999 * least < took < 1.001 * (seconds + 0.010)


def test_the_narrower_region_sets_the_rate_and_the_latencies_of_both_add_up():
    found = happens(DPSGD(), 8, 40, regions="2ms/1Gbit*4,3ms/500Mbit*4", latency="1ms")
    assert found.seconds == pytest.approx(40 * (0.010 + 2 * 0.016 + 0.006), rel=0.01)


@pytest.mark.parametrize("graph", ["ring", "complete"])
def test_messages_inside_a_region_take_no_link_between_regions(graph):
    """Four workers in one region: each sends to its neighbours over its own link alone."""
    copies = {"ring": 2, "complete": 3}[graph]
    found = happens(DPSGD(topology=graph), 4, 10, regions="50ms/1kbit*4,0ms/1kbit*4", uplink="1Gbit")
    assert found.seconds == pytest.approx(10 * (0.010 + copies * 0.008), rel=1e-6)


def test_a_slow_link_of_one_worker_delays_its_neighbours_alone():
    """Worker 0 of a path 0 - 1 - 2 - 3 has a fourth of the bandwidth: its messages of a round take 32 ms."""
    for workers, graph in ((2, "ring"), (8, "hypercube")):
        fast, slow = (happens(DPSGD(topology=graph), workers, 3, uplink=rate).seconds for rate in ("1Gbit", "250Mbit"))
        links = {2: 1, 8: 3}[workers]
        assert (fast, slow) == pytest.approx((3 * (0.010 + links * 0.008), 3 * (0.010 + links * 0.032)))


def ring_of_two_messages(workers, rounds, steps, seconds):
    """The ends of rounds in a ring, each of whose messages takes some seconds if it is alone on both of its links.

    Water is poured into the links between workers, worker by worker, whose steps [rounds, W] differ.
    """
    left, sent = {}, {}  # of (sender, receiver, round); and when the messages of a round were ready
    end, number = np.zeros(workers), [0] * workers
    ready = {k: steps[0, k] for k in range(workers)}
    now = 0.0
    while min(number) < rounds:
        for k in [k for k, at in ready.items() if at <= now + 1e-12]:
            del ready[k]
            sent[k, number[k]] = now
            left |= {(k, (k + far) % workers, number[k]): seconds for far in (1, -1)}
        speed = dict.fromkeys(left, 0.0)
        growing = set(left)
        while growing:
            ends = [("up", a) for a in range(workers)] + [("down", b) for b in range(workers)]
            on = {link: [m for m in left if m[0 if link[0] == "up" else 1] == link[1]] for link in ends}
            room = {link: 1 - sum(speed[m] for m in messages) for link, messages in on.items()}
            more = min(room[link] / n for link in ends if (n := sum(m in growing for m in on[link])))
            for m in growing:
                speed[m] += more
            full = [link for link in ends if sum(speed[m] for m in on[link]) > 1 - 1e-9]
            growing -= {m for link in full for m in on[link]}
        step = min([left[m] / speed[m] for m in left] + [at - now for at in ready.values()])
        now += step
        for m in list(left):
            left[m] -= speed[m] * step
            if left[m] < 1e-9:
                del left[m]
        for k in range(workers):
            near = [(k + far) % workers for far in (1, -1)]
            if (k, number[k]) in sent and all((j, number[k]) in sent and (j, k, number[k]) not in left for j in near):
                end[k], number[k] = now, number[k] + 1
                if number[k] < rounds:
                    ready[k] = now + steps[number[k], k]
    return end


def test_a_ring_whose_workers_differ_is_that_of_a_simulation_of_its_own():
    """Messages of neighbours share their links for as long as both are there, and no longer."""
    workers, rounds = 5, 6
    factors = np.array([1, 1.3, 0.7, 2.1, 0.9])
    expected = ring_of_two_messages(workers, rounds, np.tile(0.010 * factors, (rounds, 1)), 0.008)
    found = happens(DPSGD(), workers, rounds, uplink="1Gbit", step_factors=",".join(map(str, factors))).rounds
    last = found[found[:, 1] == rounds - 1]
    np.testing.assert_allclose(last[np.argsort(last[:, 0]), -1] / 1e6, expected, atol=1e-5)


@pytest.mark.parametrize("kind", [NoLoCo, GASLoC])
@pytest.mark.gate("others")
def test_gossip_between_clouds_is_not_faster_than_their_links(kind):
    """64 workers in four regions; a region's link carries the messages of its workers to the three others."""
    run = forecast(kind(), Platform(network="cloud-regions", step_ms=100.0), workers=64, parameters=25 * 10**6)
    crossing = np.mean([
        (Topology(kind().topology).weights(64, number) > 0)[(regions := np.arange(64) % 4)[:, None] != regions].sum()
        for number in range(9)
    ]) / 4  # fmt: skip
    assert 0.5 < run.updates * crossing * 1e8 * 8 / 202e6 <= 1.05


# Pairs.


def test_messages_at_one_peer_share_its_link(tmp_path):
    """A star: all but worker 0 average with it, so its links carry the messages of all, and then the replies."""
    workers = 9
    weights = np.eye(workers) * 0.5
    weights[0, 1:] = weights[1:, 0] = 0.5 / (workers - 1)
    weights[0, 0], weights[range(1, workers), range(1, workers)] = 0.5, 1 - 0.5 / (workers - 1)
    np.savetxt(tmp_path / "star.txt", weights)
    star = ADPSGD(topology=f"file:{tmp_path / 'star.txt'}")
    found = happens(star, workers, 4, uplink="1Gbit", latency="5ms").rounds
    begin = found[found[:, 0] > 0]
    assert begin[:, -1].max() / 1e6 == pytest.approx(4 * (0.010 + 2 * (8 * 0.008 + 0.005)), rel=1e-4)
    assert found[found[:, 0] == 0][-1, -1] == 40_000  # it answers while it computes


@pytest.mark.parametrize("workers", [2, 8])
def test_a_worker_of_a_pair_sends_no_more_than_its_link_carries(workers):
    """1 ms steps, 4 MB at 125 MB/s: half of the workers send one message in each 65 ms, and get one reply."""
    run = forecast(ADPSGD(), Platform(step_ms=1.0, uplink="125MB"), workers=workers, parameters=10**6)
    assert run.sent == run.received
    assert 0.5 * 62.5e6 < run.sent <= 62.5e6
    if workers == 2:
        assert run.sent == pytest.approx(4e6 / 0.065, rel=0.05)


# Servers in regions.

STEP = HALoS(communication_period=1, moves_per_merge=1)


def arrived(found, kind):
    rows = (found.trace["event"] == EVENTS.index(kind)) & (found.trace["worker"] == 0)
    return (found.trace["microseconds"][rows] / 1000).tolist()


def test_a_message_between_servers_takes_no_link_of_a_worker():
    """Workers' links take 100 ms for a message that takes 10 ms between servers."""
    regions = {"regions": "0ms/8Mbit,0ms/8Mbit", "uplink": "800kbit"}
    found = happens(STEP, workers=2, steps=2, size=1e4, **regions)
    assert arrived(found, "exchange") == [110, 320]
    assert (arrived(found, "up"), arrived(found, "down")) == ([120, 330], [130, 340])


def test_messages_between_servers_share_the_card_of_the_region_with_those_of_its_workers():
    """A reply to the worker (10 ms alone) and the region's message leave over one card, and take 20 ms."""
    found = happens(STEP, workers=1, steps=1, size=1e4, ps_link="8Mbit", regions="0ms/1Gbit,0ms/1Gbit")
    assert arrived(found, "exchange") == [20]
    assert arrived(found, "up") == [40]
    assert found.rounds[0, -1] == 40_000


# What may not matter.


@pytest.mark.parametrize("scheme", [DPSGD(), ADPSGD(), NoLoCo(communication_period=2), STEP, AsyncSGD()])
@pytest.mark.parametrize("workers", [1, 5])
@pytest.mark.parametrize("sharing", ["fair", "fifo"])
def test_the_same_machines_give_the_same_events_to_the_byte(scheme, workers, sharing):
    machines = {"uplink": "1Gbit", "compute": "lognormal", "latency": "2ms", "latency_sigma": 0.5, "sharing": sharing}
    first, again = (happens(scheme, workers, 8, ps_link="2Gbit", **machines) for _ in range(2))
    assert first.rounds.tobytes() == again.rounds.tobytes()
    assert all(first.trace[name].tobytes() == again.trace[name].tobytes() for name in first.trace)
    if workers == 1 and scheme.sync.gossips:
        assert math.isclose(first.seconds, happens(scheme, 1, 8, compute="lognormal").seconds)
