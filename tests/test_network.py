"""The machines of a simulated run: links that are shared, what they cost, crashes, and descriptions that cannot be."""

import itertools
import math

import numpy as np
import pytest
from scheduled import happens

from distsgd.algorithms import DESLOC, SSP, AllReduce, AsyncDiLoCo, AsyncSGD, Downpour, OneBitAdam, SyncSGD
from distsgd.common.cluster.platform import NETWORKS, Machines, Platform
from distsgd.common.contract import Bounded
from distsgd.common.errors import UserError
from distsgd.common.record_format import EVENTS
from distsgd.common.server.trace import ROUND
from distsgd.common.sync.release import waiting_at
from distsgd.simulator.virtual_time import schedule
from distsgd.simulator.virtual_time.links import SharedLinks
from distsgd.simulator.virtual_time.network import Network
from distsgd.simulator.virtual_time.resources import NEVER, Fair, level
from distsgd.simulator.virtual_time.schedule import EventLoop
from distsgd.simulator.virtual_time.simulated_server import RoundTimings
from distsgd.simulator.virtual_time.sizes import Sizes


def ends(shared, sends):
    """Return when each of `sends`, (time, worker, size), is complete."""
    found, left = {}, sorted(enumerate(sends), key=lambda item: (item[1][0], item[0]))
    while left or shared.next < NEVER:
        if left and left[0][1][0] <= shared.next:
            number, (at, worker, size) = left.pop(0)
            shared.send(at, worker, size, number)
        else:
            at = shared.next
            found[shared.pop()] = at
    return [found[number] for number in range(len(sends))]


def of_one_card(capacity, caps, regions, region_caps):
    """The links of workers, of their regions, and the one that all share; and the way of each worker."""
    first = len(caps)
    ways = [(worker, first + region, first + len(region_caps)) for worker, region in enumerate(regions)]
    return [*caps, *region_caps, capacity], ways


def filled(rates, ways, sizes, begun):
    """The ends of messages on ways of several links, in small steps of time: water is poured until links are full."""
    left, found, now = {}, {}, 0
    while len(found) < len(ways):
        left |= {n: sizes[n] for n in range(len(ways)) if begun[n] <= now and n not in left and n not in found}
        speed, growing = dict.fromkeys(left, 0.0), set(left)
        while growing:
            room = {
                link: (rates[link] - sum(speed[n] for n in left if link in ways[n])) / number
                for link in range(len(rates))
                if (number := sum(link in ways[n] for n in growing))
            }
            more = min(room.values())
            for n in growing:
                speed[n] += more
            full = {link for link, rest in room.items() if rest <= more * (1 + 1e-12)}
            growing = {n for n in growing if not full.intersection(ways[n])}
        step = min([left[n] / speed[n] for n in left] + [at - now for at in begun if at > now])
        now += step
        for n in list(left):
            left[n] -= speed[n] * step
            if left[n] <= 1e-6:
                found[n] = now
                del left[n]
    return [found[n] for n in range(len(ways))]


def test_links_are_shared_as_if_water_were_poured():
    draw = np.random.default_rng(0)
    for trial in range(30):
        caps = draw.choice([1.0, 2.0, 5.0], 6).tolist()
        regions = (np.arange(6) % 2).tolist()
        region_caps = [float(draw.choice([3.0, 100.0])), float(draw.choice([2.0, 100.0]))]
        capacity = float(draw.choice([2.0, 6.0, 50.0]))
        sends = [(int(draw.integers(0, 4000)), k, float(draw.integers(500, 4000))) for k in range(6)]
        found = ends(Fair(capacity, caps, regions, region_caps), sends)
        links, ways = of_one_card(capacity, caps, regions, region_caps)
        expected = filled(links, ways, [size for *_, size in sends], [at for at, *_ in sends])
        np.testing.assert_allclose(found, expected, atol=8, err_msg=str(trial))  # nanoseconds, rounded up


def test_messages_on_ways_of_several_links_share_them_as_if_water_were_poured():
    draw = np.random.default_rng(0)
    for trial in range(20):
        rates = draw.choice([1.0, 2.0, 5.0, 20.0], 7).tolist()
        ways = [draw.permutation(7)[: draw.integers(1, 5)].tolist() for _ in range(9)]
        sizes, begun = draw.integers(500, 4000, 9).astype(float).tolist(), draw.choice([0, 0, 700, 1500], 9).tolist()
        links = SharedLinks(rates, lambda n, ways=ways: ways[n], 4, fifo=False)
        found = ends(links, list(zip(begun, range(9), sizes, strict=True)))
        np.testing.assert_allclose(found, filled(rates, ways, sizes, begun), atol=12, err_msg=str(trial))


def one_by_one(capacity, caps, regions, region_caps):
    """First come, first served."""
    links, ways = of_one_card(capacity, caps, regions, region_caps)
    return SharedLinks(links, ways.__getitem__, 3, fifo=True)


def test_first_come_first_served_lets_one_through_after_the_other():
    link = one_by_one(1.0, [1.0, 0.5], [0, 0], [math.inf])
    assert ends(link, [(0, 0, 1000.0), (500, 1, 1000.0), (9000, 0, 10.0)]) == [1000, 3000, 9010]


def test_a_later_message_has_the_rate_that_earlier_ones_leave():
    link = one_by_one(1.0, [0.75, 0.75, 1.0], [0, 0, 0], [math.inf])
    # 0.75 and 0.25 until 1000; then 0.75 and 0.25, until 2000; the third has all of the link for its last 750.
    assert ends(link, [(0, 0, 750.0), (0, 1, 1000.0), (0, 2, 1000.0)]) == [1000, 2000, 2750]


def test_a_full_region_delays_no_message_of_another_region():
    link = one_by_one(9.0, [1.0] * 3, [0, 0, 1], [1.0, 2.0])
    assert ends(link, [(0, 0, 1000.0), (0, 1, 1000.0), (0, 2, 1000.0)]) == [1000, 2000, 1000]


def test_a_message_without_links_or_bytes_takes_no_time():
    for fifo in (False, True):
        link = SharedLinks([1.0], [(), (0,), (0,)].__getitem__, 1, fifo)
        assert ends(link, [(0, 0, 1000.0), (0, 1, 500.0), (0, 2, 0.0)]) == [0, 500, 0]


def test_messages_of_gigabytes_on_slow_links_end_in_spite_of_rounding():
    draw = np.random.default_rng(0)
    for _ in range(100):
        link = SharedLinks([1.25e-3] * 3, [(0,), (1,), (0, 2), (1, 2)].__getitem__, 2, fifo=False)
        begun = np.sort(draw.integers(10**12, size=8)).tolist()
        assert min(ends(link, [(at, way, 4e9) for at, way in zip(begun, draw.integers(4, size=8), strict=True)])) > 3e12


@pytest.mark.parametrize("ways", [{"uplink": "8Mbit", "downlink": "8Mbit"}, {"regions": ",".join(["0ms/8Mbit"] * 5)}])
def test_unshared_links_carry_messages_of_all_workers_at_once(ways):
    """Five workers with a link each: 10 ms of computing, a second there and one back."""
    for sharing in ("fair", "fifo"):
        assert happens(SyncSGD(), workers=5, steps=1, sharing=sharing, **ways).seconds == 2.010


def test_the_level_fills_what_there_is():
    assert level(10, [(1, 2), (8, 2)]) == 4
    assert level(10, [(8, 2), (1, 2)]) == 4
    assert level(10, [(1, 2), (2, 2)]) == math.inf
    assert level(9, [(math.inf, 3)]) == 3


def test_a_transfer_takes_its_latency_and_its_bytes():
    found = happens(AsyncSGD(), workers=1, steps=2, uplink="8Mbit", downlink="80Mbit", latency="5ms", service="2ms")
    # 10 ms of computing, 1000 + 5 ms, the lock, 100 + 5 ms back
    assert found.rounds.tolist() == [
        [0, 0, 0, 10_000, 10_000, 1_015_000, 1_015_000, 1_122_000],
        [0, 1, 1_122_000, 1_132_000, 1_132_000, 2_137_000, 2_137_000, 2_244_000],
    ]
    assert found.trace["microseconds"].tolist() == [1_015_000, 2_137_000]


def test_a_pull_request_has_no_bytes_and_no_push_waits_for_reply_bytes():
    scheme = Downpour(push_period=1, pull_period=2, communication_period=1)
    found = happens(scheme, workers=1, steps=3, uplink="8Mbit", downlink="8Mbit")
    names = [EVENTS[event] for event in found.trace["event"]]
    taken = found.rounds[:, -1] - found.rounds[:, 3]
    costs = {"push": 1_000_000, "pull": 1_000_000, "exchange": 2_000_000}
    assert [costs[name] for name in names] == taken.tolist()


def test_workers_in_regions_share_the_link_of_their_region_alone():
    machines = {"uplink": "1Gbit", "regions": "0ms/unlimited,20ms/1Gbit"}
    found = happens(SyncSGD(), workers=4, steps=1, **machines)
    arrived = {row[0]: row[5] for row in found.rounds.tolist()}
    assert arrived == {0: 18_000, 2: 18_000, 1: 46_000, 3: 46_000}  # 8 ms alone; 16 ms for two, and 20 ms


def test_workers_begin_within_the_time_that_a_link_which_they_share_needs_for_all():
    """Two workers of the far region share a gigabit: 16 ms for a megabyte of each; the others share no link."""
    near, far, again, too = Network(Machines(Platform(regions="0ms/unlimited,20ms/1Gbit")), 4, 1, seed=0).starts(1e6)
    assert near == again == 0
    assert 0 < min(far, too) < max(far, too) < 16e6
    shared = Network(Machines(Platform(ps_link="1Gbit")), 4, 1, seed=0).starts(1e6)
    assert 16e6 < max(shared) < 32e6


def test_the_lock_is_held_for_a_message_or_for_the_center_that_is_pulled():
    scheme, held = Downpour(push_period=2, pull_period=3), []
    how = {"workers": 2, "rounds": scheme.rounds(12), "seed": 0, "message_bytes": 3.0, "reply_bytes": 8.0}
    loop = EventLoop(scheme, Platform(), **how)
    loop.service = lambda size: held.append(size) or 0
    events = loop.run().trace["event"].tolist()
    assert held == [8 if EVENTS[event] == "pull" else 3 for event in events]
    assert {EVENTS[event] for event in events} == {"exchange", "push", "pull"}


def test_rounds_of_some_kinds_have_sizes_of_their_own():
    sizes = Sizes(message=3.0, reply=8.0, apart={"floats": (40.0, 50.0)})
    assert [(sizes.message(kind), sizes.reply(kind)) for kind in ("floats", "signs")] == [(40, 50), (3, 8)]


def test_a_round_whose_reply_is_lost_has_no_end_of_its_steps_either():
    timings = RoundTimings(2)
    timings.begun, timings.ready, timings.computed = [1000, 2000], [3000, 4000], [5000, 6000]
    timings.log(0, 9000)
    timings.log(1, -1)
    assert timings.rounds()[:, [0, 2, 3, 4, 7]].tolist() == [[0, 1, 3, 5, 9], [1, 2, 4, -1, -1]]


def test_a_worker_that_has_left_bounds_the_lead_of_no_other():
    lead = waiting_at(Bounded(1), 3)
    lead.counted(1)
    assert lead.arrive(0, 1) == [0]
    lead.counted(2)
    assert lead.arrive(0, 2) == []  # 1 and 2 have made no round
    lead.counted(1)
    assert lead.arrive(1, 1) == [1]
    assert lead.leave(0) == [0]  # worker 2 leaves


def test_the_lock_of_the_ps_takes_one_after_the_other():
    found = happens(AsyncSGD(), workers=3, steps=1, service="1ms", ps_rate="1GB")
    assert found.trace["microseconds"].tolist() == [10_000, 12_000, 14_000]


def test_several_ps_tasks_share_the_bytes_of_a_message_but_not_its_service():
    """There is one lock: 1 ms of service for each message, and half of its 2 ms of bytes on each of two ps."""
    found = happens(AsyncSGD(), workers=3, steps=1, service="1ms", ps_rate="500MB", ps=2)
    assert found.trace["microseconds"].tolist() == [10_000, 12_000, 14_000]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("1.5e-3Gbit", "1.5Mbit"),
        ("0.5Gbit", "500Mbit"),
        (".5Gbit", "500Mbit"),
        ("1e3Mbit", "1Gbit"),
        ("2.5e+1Mbit", "25Mbit"),
    ],
)
def test_rates_may_be_fractions(text, same):
    given, plain = (Machines(Platform(uplink=some)).uplink for some in (text, same))
    assert given == pytest.approx(plain)


def test_speeds_that_are_drawn_have_the_mean_1():
    factors = Machines(Platform(step_factors="lognormal:sigma=0.6")).step_factors(100_000, 3)
    assert factors.mean() == pytest.approx(1, abs=0.01)
    assert np.log(factors).std() == pytest.approx(0.6, rel=0.01)


def test_more_cores_than_workers_are_no_help_and_fewer_are_shared():
    few, many = (happens(AsyncSGD(), workers=4, steps=10, cores=n, core_ms=10.0).seconds for n in (2, 8))
    assert (few, many) == (0.3, 0.2)


def test_latency_varies_around_its_mean_and_slow_links_stay_slow():
    found = happens(AsyncSGD(), workers=50, steps=200, latency="40ms", latency_sigma=0.5, size=0.0)
    late = found.rounds[:, 5] - found.rounds[:, 3]
    assert late.mean() == pytest.approx(40_000, rel=0.02)
    assert np.log(late).std() == pytest.approx(0.5, rel=0.02)
    found = happens(AsyncSGD(), workers=50, steps=3, uplink="8Mbit", link_sigma=0.6)
    late = (found.rounds[:, 5] - found.rounds[:, 3]).tolist()
    by_worker = {}
    for worker, taken in zip(found.rounds[:, 0].tolist(), late, strict=True):
        by_worker.setdefault(worker, set()).add(taken)
    assert all(max(taken) - min(taken) <= 1 for taken in by_worker.values())
    assert 4 < len(set(late)) <= 3 * 16


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("scheme", [AsyncSGD(), SyncSGD(backup_workers=1), SSP(), AllReduce(), Downpour(warm_start=5)])
def test_every_network_runs_every_kind_of_rule_with_ordered_timestamps(network, scheme):
    found = happens(scheme, workers=7, steps=20, network=network, compute="lognormal")
    moments = found.rounds[:, 2:]
    assert (np.diff(moments, axis=1) >= 0).all()
    assert len(found.rounds) >= np.sum(found.trace["event"] == 0) - 7
    assert found.seconds >= moments.max() / 1e6 - 1e-6


def test_a_file_describes_machines_and_what_is_given_besides_goes_first(tmp_path):
    path = tmp_path / "office.toml"
    path.write_text('uplink = "8Mbit"\nstep_ms = 20\ncores = 2\nregions = "1ms/1Gbit"\n')
    said = Platform(network=str(path), step_ms=5.0).described()
    assert (said["uplink"], said["step_ms"], said["cores"], said["latency"]) == ("8Mbit", 5.0, 2, "0ms")
    assert Machines(Platform(network=str(path))).uplink == 0.001


@pytest.mark.parametrize(
    "values",
    [{"network": 3}, {"uplink": 1e9}, {"latency": 0.02}, {"step_factors": [1, 2]}, {"regions": None, "failures": 1}],
)
def test_a_number_in_place_of_a_text_is_refused_by_its_name(values):
    name, value = list(values.items())[-1]
    with pytest.raises(UserError) as refused:
        Platform(**values)
    assert str(refused.value) == f"{name} must be a text in quotes. Received: {name}={value}"


def test_recorded_steps_are_drawn_in_blocks_that_stay_together(tmp_path):
    path = tmp_path / "steps.npy"
    np.save(path, np.arange(1, 101))
    found = happens(AsyncSGD(), workers=2, steps=64, compute=f"recorded:path={path},block=16", step_ms=50.5)
    mine = found.rounds[found.rounds[:, 0] == 1]
    taken = np.rint((mine[:, 3] - mine[:, 2]) / 1000).astype(int)
    assert ((taken >= 1) & (taken <= 100)).all()
    blocks = taken.reshape(4, 16)
    assert (np.diff(blocks, axis=1) % 100 == 1).all()
    assert len(set(blocks[:, 0])) > 1


CRASHES = {"failures": "crashes:every=200ms,down=50ms", "compute": "lognormal"}


@pytest.mark.parametrize("scheme", [AsyncSGD(), SyncSGD(), SyncSGD(backup_workers=1), SSP(slack=1), Downpour()])
def test_crashed_workers_rejoin_and_all_workers_do_their_rounds(scheme):
    steps = 100
    found = happens(scheme, workers=4, steps=steps, uplink="1Gbit", downlink="1Gbit", **CRASHES)
    event, worker = found.trace["event"], found.trace["worker"]
    joins = event == EVENTS.index("join")
    assert joins.sum() > 5
    assert (found.trace["staleness"][joins] == 0).all()
    assert (found.trace["accepted"][joins] == 0).all()
    assert (found.trace["version"][joins] > 0).all()
    if scheme.sync.set_size(4) is None:
        assert np.bincount(worker[~joins]).tolist() == [len(scheme.rounds(steps))] * 4
    else:
        assert found.trace["version"].max() == steps - 1
    for k in range(4):  # a worker that joined has read the center of that version
        own = np.flatnonzero(worker == k)
        for row, following in itertools.pairwise(own):
            if joins[row] and not joins[following]:
                read = found.trace["version"][following] - found.trace["staleness"][following]
                assert read >= found.trace["version"][row]
    lost = found.rounds[:, -1] < 0
    assert 0 < lost.sum() < joins.sum() + 4 or not lost.any()


def test_a_crash_loses_its_round_and_a_barrier_waits_for_absent_workers():
    with_crashes = happens(SyncSGD(), workers=4, steps=100, **CRASHES)
    without = happens(SyncSGD(), workers=4, steps=100, compute="lognormal")
    assert with_crashes.seconds > without.seconds + 0.05 * 5
    assert (with_crashes.trace["staleness"] == 0).all()


@pytest.mark.parametrize(
    ("times", "rounds_of_0"),
    [
        ((20, 30), [10, 110, 210]),  # it joins once more when the set is complete
        ((20, 30, 40, 150), [10, 160, 210]),  # down again: it does nothing before it is back
        ((20, 150), [10, 160, 210]),  # the set is complete before it is back
    ],
)
def test_a_worker_that_crashes_while_its_message_waits_joins_once_more(times, rounds_of_0, monkeypatch):
    """Worker 0 takes 10 ms for a round, worker 1 takes 100."""
    left = [round(1e6 * passed) for passed in np.diff((0, *times))]  # between its crashes and returns

    def scripted(seed, purpose, worker, index, mean):
        return left.pop(0) if worker == 0 and left else NEVER

    monkeypatch.setattr("distsgd.simulator.virtual_time.schedule.exponential_time", scripted)
    found = happens(SyncSGD(), workers=2, steps=3, step_factors="1,10", failures="crashes")
    trace = found.trace
    sent = trace["event"] != EVENTS.index("join")
    of_0, of_1 = (trace["microseconds"][sent & (trace["worker"] == k)] // 1000 for k in range(2))
    assert of_0.tolist() == rounds_of_0
    assert of_1.tolist() == [100, 200, 300]
    assert found.seconds == 0.3


def test_crashes_are_the_same_for_all_algorithms():
    crashed = []
    for scheme in (AsyncSGD(), SSP(slack=50)):
        found = happens(scheme, workers=3, steps=100, failures="crashes:every=300ms,down=50ms")
        joined = found.trace["event"] == EVENTS.index("join")
        crashed.append(found.trace["microseconds"][joined][:5].tolist())
    assert crashed[0] == crashed[1]


@pytest.mark.parametrize(
    "scheme",
    [Downpour(communication_period=1, warm_start=3), Downpour(push_period=3, pull_period=4)],
    ids=["warm start", "pushes and pulls"],
)
def test_each_worker_crashes_and_then_waits_for_the_bytes_of_the_center(scheme):
    machines = {"step_ms": 10, "downlink": "8Mbit", "failures": "crashes:every=200ms,down=20ms"}
    found = happens(scheme, workers=3, steps=120, size=1e4, **machines)
    joined, rounds = found.trace["event"] == EVENTS.index("join"), found.rounds
    workers, moments = found.trace["worker"][joined], found.trace["microseconds"][joined]
    assert {*workers.tolist()} == {0, 1, 2}
    for worker, moment in zip(workers, moments, strict=True):
        begun = rounds[rounds[:, 0] == worker, ROUND.index("begun")]
        assert not ((begun > moment - 1) & (begun < moment + 10_000)).any()  # the center takes that time


def test_a_worker_that_crashes_in_the_steps_beside_its_message_begins_a_whole_round(monkeypatch):
    """Its message leaves after 20 ms; it crashes at 25 ms and is back at 35 ms."""
    moments = {("crash", 0): 25_000_000, ("repair", 0): 10_000_000}
    monkeypatch.setattr(schedule, "exponential_time", lambda _, what, worker, n, mean: moments.get((what, n), NEVER))
    scheme = AsyncDiLoCo(communication_period=3, delay=1)
    found = happens(scheme, workers=1, steps=6, step_ms=10, failures="crashes:every=200ms,down=20ms")
    assert found.rounds[:, ROUND.index("ready")].tolist() == [20_000, 55_000]
    assert found.trace["event"].tolist() == [EVENTS.index(name) for name in ("exchange", "join", "exchange")]


WRONG = [
    ({"uplink": "-1Mbit"}, "uplink takes a number and a unit"),
    ({"downlink": "100"}, "downlink takes a number and a unit"),
    ({"ps_link": "0Gbit"}, "ps_link must be at least 1bit (per second)"),
    ({"latency": "-3ms"}, "latency takes a number and a unit"),
    ({"latency": "3 parsec"}, "latency takes a number and a unit"),
    ({"latency_sigma": -1.0}, "latency_sigma must not be negative"),
    ({"step_ms": 0.0}, "step_ms must be a positive number"),
    ({"step_ms": math.nan}, "step_ms must be a positive number"),
    ({"cores": 0}, "cores must be at least 1"),
    ({"core_ms": -1.0}, "core_ms must not be negative"),
    ({"compute": "gauss"}, "unknown model of compute 'gauss'"),
    ({"compute": "lognormal:sigma=-1"}, "must be positive"),
    ({"compute": "lognormal:mu=1"}, "has no option 'mu'"),
    ({"compute": "pareto:shape=1"}, "needs a shape above 1"),
    ({"compute": "phases:probability=1.5"}, "probability must lie between 0 and 1"),
    ({"compute": "phases:slow=0.5"}, "needs slow and length of 1 at least"),
    ({"compute": "shifted:fixed=1"}, "fixed must be below 1"),
    ({"compute": "recorded"}, "recorded needs the path"),
    ({"compute": "recorded:path=none.npy"}, "recorded needs the path"),
    *(({"step_factors": bad}, "must be positive numbers") for bad in ("1,0", "", "1,x", "0", "1,-2", "nan", "inf")),
    ({"step_factors": "normal"}, "unknown model of step_factors"),
    ({"regions": "20ms"}, "a region is a latency and a bandwidth"),
    ({"regions": "20ms/-1bit"}, "bandwidth of a region takes"),
    ({"sharing": "greedy"}, "sharing must be one of fair, fifo"),
    ({"uplink": "1e-300Gbit"}, "uplink must be at least 1bit (per second)"),
    ({"latency": "1e300ms"}, "latency must be at most 1000000h"),
    ({"service": "1e400s"}, "service must be at most 1000000h"),
    ({"step_ms": 1e300}, "step_ms must be at most 1000000000"),
    ({"latency_sigma": 1e6}, "latency_sigma must be at most 4"),
    ({"compute": "lognormal:sigma=1e6"}, "sigma must be at most 4"),
    ({"step_factors": "1e-300,1"}, "from 1e-06 to 1e+06"),
    ({"collective": "star"}, "collective must be one of slices, ring, tree"),
    ({"failures": "crashes:every=0s"}, "crashes need times above zero"),
    ({"failures": "sometimes"}, "unknown model of failures"),
    ({"network": "interent"}, "unknown network 'interent'. Did you mean internet?"),
    ({"network": "nowhere.toml"}, "cannot read the network nowhere.toml"),
]


@pytest.mark.parametrize(("machines", "says"), WRONG, ids=str)
def test_machines_that_cannot_be_are_refused_in_one_line(machines, says):
    with pytest.raises(UserError) as refused:
        Platform(**machines)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('uplnk = "1Mbit"', "unknown key 'uplnk'. Did you mean uplink"),
        ("uplink = 3", "uplink of FILE must be a text in quotes"),
        ('step_ms = "3"', "step_ms of FILE must be a number"),
        ("step_ms = true", "step_ms of FILE must be a number"),
        ('uplink = "-1Mbit"', "uplink takes a number and a unit"),
        ('network = "internet"', "unknown key 'network'"),
        ("uplink =", "cannot read the network FILE"),
    ],
)
def test_files_that_cannot_be_are_refused_in_one_line(text, says, tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(text)
    with pytest.raises(UserError) as refused:
        Platform(network=str(path))
    assert says in str(refused.value).replace(str(path), "FILE")


def test_failures_without_a_ps_are_refused_before_anything_is_started(run_main):
    for name in ("all_reduce", "serial"):
        code, out, errors = run_main("simulate", name, "--workers", "1", "--failures", "crashes", "--steps", "5")
        assert (code, out) == (2, "")
        line = f"error: {name} has no parameter server, to which a worker could come back: leave failures out"
        assert errors.splitlines()[-1] == line
        assert "starting TensorFlow" not in errors


def test_crashes_of_workers_that_send_several_vectors_in_turn_are_refused():
    for scheme in (OneBitAdam(), DESLOC()):
        with pytest.raises(UserError, match=f"{scheme.name} .*leave failures out"):
            happens(scheme, failures="crashes")


def test_crashes_too_frequent_for_a_round_are_refused_before_the_start(run_main):
    often = ["--failures", "crashes:every=1ms,down=1ms", "--latency", "3ms"]
    code, out, errors = run_main("simulate", "async_sgd", "--workers", "2", "--steps", "5", *often)
    assert (code, out) == (2, "")
    assert "Received: crashes every 1 ms, rounds of 16 ms" in errors
    assert "starting TensorFlow" not in errors
    with pytest.raises(UserError, match="Received: worker 0 crashed 1000 times in 0 rounds"):
        happens(AsyncSGD(), workers=1, uplink="8kbit", failures="crashes:every=50ms,down=1ms")  # 1000 s a message


@pytest.mark.parametrize("scheme", [SyncSGD(), AllReduce()])
@pytest.mark.parametrize("slow", [{"latency": "1000000h"}, {"step_ms": 1e9, "step_factors": "1e6"}])
def test_a_run_of_more_than_a_century_is_one_line(scheme, slow):
    with pytest.raises(UserError, match=f"{scheme.name} takes more than a century on these machines"):
        happens(scheme, workers=2, steps=10, **slow)
