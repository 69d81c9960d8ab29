"""Reductions among workers: against flows of water through all links, and against latencies drawn one by one."""

import numpy as np
import pytest
from scheduled import happens

from distsgd.algorithms import AllReduce
from distsgd.common.cli.main import dispatch
from distsgd.common.cluster.platform import Machines, Platform
from distsgd.common.errors import UserError
from distsgd.simulator.virtual_time.network import Network

MBIT = 1e6 / 8  # bytes per second
STEP = 0.010


def seconds(workers, size, rounds=1, seed=0, **machines):
    """Of a round of all_reduce."""
    return happens(AllReduce(), workers, rounds, seed, size, **machines).seconds / rounds


def poured(flows, capacity):
    """When the last flow ends; max-min fair.

    Args:
        flows: bytes and the names of the links of each.
        capacity: of each link, bytes per second.
    """
    left, now = {n: float(size) for n, (size, _) in enumerate(flows) if size}, 0.0
    while left:
        free, rates, growing = dict(capacity), {}, set(left)
        while growing:  # the link that is full first fixes the rates of its flows
            users = {link: [n for n in growing if link in flows[n][1]] for link in free}
            link = min((link for link in free if users[link]), key=lambda link: free[link] / len(users[link]))
            rate = free[link] / len(users[link])
            for n in users[link]:
                rates[n] = rate
                for other in flows[n][1]:
                    free[other] -= rate
            growing -= set(users[link])
            free = {name: max(0.0, room) for name, room in free.items() if name != link}
        step = min(left[n] / rates[n] for n in left)
        now += step
        left = {n: size - rates[n] * step for n, size in left.items() if size - rates[n] * step > 1e-6}
    return now


def all_to_all(places, size, uplinks, downlinks, regions):
    """Seconds of both turns: each worker sends each other its slice, and then the sum of its own."""
    workers = len(places)
    capacity = {f"up{k}": rate for k, rate in enumerate(uplinks)}
    capacity |= {f"down{k}": rate for k, rate in enumerate(downlinks)}
    capacity |= {f"{way}{r}": rate for way in ("out", "in") for r, rate in enumerate(regions)}
    flows = []
    for a in range(workers):
        for b in range(workers):
            links = {f"up{a}", f"down{b}"}
            if places[a] != places[b]:
                links |= {f"out{places[a]}", f"in{places[b]}"}
            if a != b:
                flows.append((size / workers, links))
    return 2 * poured(flows, capacity)


@pytest.mark.parametrize(("workers", "least", "most"), [(4, 0.2475, 1.001), (16, 0.960, 1.001), (64, 3.81, 1.05)])
def test_workers_of_a_region_share_its_link_in_a_reduction_too(workers, least, most):
    """Three quarters of the bytes leave their region, over one link for all of it; of 64 workers 31 have a slice."""
    region = "0ms/202Mbit"
    found = seconds(workers, 4e6, regions=",".join([region] * 4))
    assert 1 <= found / least <= most


@pytest.mark.parametrize(
    ("regions", "caps", "places"),
    [
        ("0ms/100Mbit,0ms/537Mbit,0ms/935Mbit,0ms/202Mbit", (100, 537, 935, 202), [0, 1, 2, 3] * 2),
        ("0ms/100Mbit*3,0ms/100Mbit", (100, 100), [0, 0, 0, 1] * 2),
        ("0ms/2Gbit*5,0ms/300Mbit*2", (2000, 300), [0, 0, 0, 0, 0, 1, 1]),
    ],
)
def test_slices_take_as_long_as_water_through_the_same_links(regions, caps, places):
    size = 8e6
    workers = len(places)
    expected = all_to_all(
        places, size, [500 * MBIT] * workers, [800 * MBIT] * workers, [rate * MBIT for rate in caps]
    )  # the two turns use uplinks and downlinks in the same way
    found = seconds(workers, size, uplink="500Mbit", downlink="800Mbit", regions=regions) - STEP
    assert found == pytest.approx(expected, rel=0.02)


def test_a_ring_shares_the_link_of_its_region_if_every_hop_leaves_it():
    workers, size = 16, 4e6
    machines = {"regions": "0ms/200Mbit,0ms/200Mbit", "collective": "ring", "latency": "1ms"}
    each = size / workers / (200 * MBIT / 8)  # eight hops cross each link at once
    assert seconds(workers, size, **machines) - STEP == pytest.approx(2 * 15 * (each + 0.001), rel=1e-3)
    machines["regions"] = "0ms/200Mbit*8,0ms/200Mbit*8"  # one hop leaves each region
    once = seconds(workers, size, **machines) - STEP
    assert once < 2 * 15 * (size / workers / (200 * MBIT) + 0.001) * 1.01


def test_a_tree_crosses_regions_only_with_small_messages_if_alternating():
    machines = {"regions": "0ms/200Mbit,0ms/200Mbit", "collective": "tree"}
    size, workers = 4e6, 16
    across = 2 * size / workers * 8 / (200 * MBIT)  # eight workers of each region, at distance one, there and back
    assert seconds(workers, size, **machines) - STEP == pytest.approx(across, rel=1e-3)


def test_messages_between_regions_have_the_latencies_of_both():
    machines = {"latency": "1ms", "regions": "10ms/unlimited*2,30ms/unlimited*2"}
    assert seconds(4, 4.0, **machines) - STEP == pytest.approx(0.011 + 0.030 + 0.011 + 0.030, rel=1e-6)
    assert seconds(2, 4.0, **machines) - STEP == pytest.approx(2 * 0.001, rel=1e-6)


@pytest.mark.parametrize(("workers", "regions"), [(6, [0] * 6), (5, [0, 0, 0, 1, 1])])
@pytest.mark.rotating("others")
def test_every_message_of_a_reduction_in_slices_draws_its_latency(workers, regions):
    """The last slice: the longest way of W - 1 messages there, and of W - 1 back; a Monte Carlo of all of them."""
    rng, sigma, trials = np.random.default_rng(0), 0.7, 20_000
    added = np.array([0.0, 0.015])
    where = np.array(regions)
    means = 0.020 + np.where(where[:, None] == where, 0, added[where][:, None] + added[where])
    there, back = (
        means * np.exp(sigma * rng.standard_normal((trials, workers, workers)) - sigma**2 / 2) for _ in range(2)
    )
    for way in (there, back):
        way[:, range(workers), range(workers)] = 0
    expected = (there.max(1) + back.max(1)).max(1)
    text = "0ms/unlimited" if not any(regions) else "0ms/unlimited*3,15ms/unlimited*2"
    machines = Machines(Platform(latency="20ms", latency_sigma=sigma, regions=text))
    network = Network(machines, workers, 1, 3)
    size = workers * 4.0 * (1 << 15)  # as many slices as workers
    found = np.array([network.reduction((size, size), n) for n in range(10_000)]) / 1e9
    assert found.mean() == pytest.approx(expected.mean(), rel=0.015)
    assert np.quantile(found, (0.1, 0.9)) == pytest.approx(np.quantile(expected, (0.1, 0.9)), rel=0.03)


@pytest.mark.parametrize(("kind", "distances"), [("ring", [1] * 10), ("tree", [4, 2, 1, 1, 2, 4])])
@pytest.mark.rotating("others")
def test_every_message_of_a_ring_and_a_tree_draws_its_latency(kind, distances):
    workers, sigma, trials = 6, 0.7, 4000
    rng = np.random.default_rng(0)
    expected = np.zeros((trials, workers))
    for far in distances:
        late = 0.020 * np.exp(sigma * rng.standard_normal((trials, workers)) - sigma**2 / 2)
        got = [np.maximum(expected[:, k], (expected + late)[:, k - far]) for k in range(workers)]
        expected = np.stack(got, 1)
    machines = {"latency": "20ms", "latency_sigma": sigma, "collective": kind}
    found = seconds(workers, 4.0, rounds=1500, **machines) - STEP
    assert found == pytest.approx(expected.max(1).mean(), rel=0.02)


def test_varying_latencies_cost_more_than_steady_ones_and_follow_the_seed():
    machines = {"latency": "40ms", "workers": 16, "size": 4e6, "rounds": 20}
    steady, varied, again, other = (
        seconds(**machines, latency_sigma=sigma, seed=seed) for sigma, seed in ((0.0, 0), (1.0, 0), (1.0, 0), (1.0, 1))
    )
    assert steady == pytest.approx(0.090)
    assert varied > 2 * steady
    assert varied == again != other


def test_unequal_numbers_of_workers_in_regions():
    places = Machines(Platform(regions="0ms/1Gbit*3,30ms/1Gbit,5ms/2Gbit*2")).region_of(8)
    assert places == [0, 0, 0, 1, 2, 2, 0, 0]
    factors = Machines(Platform(step_factors="3,1*7")).step_factors(10, 0)
    assert factors.tolist() == [3, *[1] * 7, 3, 1]


@pytest.mark.parametrize(
    ("flag", "text"),
    [(flag, f"{value}*{number}") for flag, value in (("--regions", "0ms/1Gbit"), ("--step-factors", "3"))
     for number in ("0", "-1", "x", "", "1.5", "9" * 30)],
)  # fmt: skip
def test_a_number_of_workers_that_cannot_be_is_refused_in_one_line(flag, text):
    with pytest.raises(UserError, match=r"takes whole numbers from 1 to 10000 after a \*"):
        dispatch(["advise", flag, text])
