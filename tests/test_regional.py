"""Two levels of servers in virtual time: messages of workers stay in their region, and those between servers travel."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scheduled import happens

from distsgd.algorithms import AsyncDiLoCo, HALoS
from distsgd.common.cluster.platform import Platform
from distsgd.common.errors import UserError
from distsgd.common.record_format import EVENTS
from runs import record

KINDS = {name: EVENTS.index(name) for name in ("exchange", "up", "down")}
STEP = HALoS(communication_period=1, moves_per_merge=1)
# A message takes 1 ms over a worker's link and 1 ms of latency; between regions 10 or 20 ms, and 1 or 21 ms of latency.
MACHINES: Any = {"uplink": "80Mbit", "downlink": "80Mbit", "latency": "1ms", "regions": "0ms/8Mbit,20ms/4Mbit"}


def times(events, kind, region, regions=2):
    """Milliseconds of the events of a kind in a region."""
    trace = events.trace
    mine = (trace["event"] == KINDS[kind]) & (trace["worker"] % regions == region)
    return (trace["microseconds"][mine] / 1000).tolist()


def test_messages_inside_a_region_and_between_servers_take_the_time_of_their_links():
    found = happens(STEP, workers=2, steps=7, size=1e4, **MACHINES)
    for region in (0, 1):
        assert times(found, "exchange", region) == [12 + 14 * n for n in range(7)]
    # The news of region 0 leave with the exchange that follows a merge, and are 11 ms on their way, as is the reply.
    assert times(found, "up", 0) == [12 + 11, 40 + 11, 68 + 11, 96 + 11]
    assert times(found, "down", 0) == [12 + 22, 40 + 22, 68 + 22, 96 + 22]
    assert times(found, "up", 1) == [12 + 41, 96 + 41]
    assert times(found, "down", 1) == [12 + 82, 96 + 82]
    assert found.seconds == 0.178  # the last message between servers arrives, too


def test_no_worker_waits_for_the_links_between_regions():
    slow, fast = (
        happens(STEP, workers=6, steps=9, size=1e4, **MACHINES | {"regions": f"0ms/{bandwidth},0ms/{bandwidth}"})
        for bandwidth in ("1kbit", "1Tbit")
    )
    assert np.array_equal(slow.rounds, fast.rounds)
    assert times(slow, "down", 0)[-1] > 1000 * times(fast, "down", 0)[0]


def test_workers_share_the_card_of_the_server_in_their_region_alone():
    """Three messages of 1 ms at once take 3 ms; those of the other region do not count."""
    machines = MACHINES | {"ps_link": "80Mbit"}
    found = happens(STEP, workers=6, steps=1, size=1e4, **machines)
    assert [times(found, "exchange", region) for region in (0, 1)] == [[14.0] * 3] * 2
    one = happens(STEP.but(regional_servers=1), workers=6, steps=1, size=1e4, **machines | {"regions": "none"})
    assert times(one, "exchange", 0, regions=1) == [17.0] * 6


def test_each_server_has_a_lock():
    found = happens(STEP, workers=4, steps=1, size=1e4, service="5ms", step_ms=10)
    for region in (0, 1):
        assert times(found, "exchange", region) == [10, 15]
    # The first news leave at 15 ms, when the region's lock is free again, and so do those of the other region.
    assert sorted(times(found, "up", 0) + times(found, "up", 1)) == [15, 20]
    assert times(found, "down", 0) == [20]
    assert (np.diff(found.trace["microseconds"]) >= 0).all()


def test_a_reply_is_merged_after_further_messages_or_later():
    found = happens(replace(STEP, merge_delay=2), workers=2, steps=20, size=1e4, **MACHINES)
    assert times(found, "up", 0)[0] == 12 + 11
    assert times(found, "down", 0)[0] == 12 + 14 * 2  # the reply is there after 22 ms, the second message after 28
    assert times(found, "down", 1)[0] == 12 + 82
    assert times(found, "up", 0)[1] == 12 + 14 * 3 + 11  # with the message after the merge


def test_nothing_is_on_record_after_the_last_update():
    whole, cut = (happens(STEP, workers=2, steps=7, size=1e4, stop_at_version=end, **MACHINES) for end in (None, 9))
    for name, column in cut.trace.items():
        np.testing.assert_array_equal(column, whole.trace[name][: len(column)])
    assert (cut.trace["version"].max(), cut.trace["event"][-1]) == (8, KINDS["exchange"])


def test_latencies_between_servers_vary_from_merge_to_merge():
    found = happens(STEP, workers=2, steps=30, size=1e4, latency_sigma=0.5, **MACHINES)
    sent, arrived = (times(found, kind, 1) for kind in ("up", "down"))
    travelled = {there - here for here, there in zip(sent, arrived, strict=False)}  # the last is on its way
    assert len(travelled) == len(arrived) > 2


@pytest.mark.parametrize("latency_sigma", [0.0, 0.5])
def test_regional_servers_are_many_times_faster_than_one_between_clouds(latency_sigma):
    machines: Any = {"network": "cloud-regions", "latency_sigma": latency_sigma}
    one, regional = (
        happens(scheme, workers=16, steps=200, size=4e7, **machines).seconds
        for scheme in (AsyncDiLoCo(communication_period=20), HALoS(communication_period=20, regional_servers=4))
    )
    assert one > 10 * regional


def test_regions_that_are_not_those_of_the_machines_are_refused():
    with pytest.raises(UserError, match=r"worker k belongs to region k modulo 2.*--regional-servers 4.*\[0, 1, 2, 3\]"):
        happens(HALoS(), workers=8, network="cloud-regions")
    with pytest.raises(UserError, match="in turn"):
        happens(HALoS(), workers=4, regions="0ms/1Gbit*2,1ms/1Gbit*2")
    happens(HALoS(regional_servers=4), workers=4, regions="0ms/1Gbit,1ms/1Gbit")  # two servers in each place


WIDE = Platform(regions="0ms/1Mbit,5ms/300kbit", latency="1ms", uplink="10Mbit", downlink="10Mbit")


def simulated(tmp_path, **options):
    scheme = HALoS(
        communication_period=4, regional_buffer=3, moves_per_merge=2, inner_optimizer="sgd", learning_rate=0.1
    )
    return record(
        scheme, tmp_path / "run", workers=4, backend="simulation", hidden=(8,), **{"platform": WIDE} | options
    )


@pytest.mark.rotating
def test_a_run_with_servers_in_regions_replays_and_notices_messages_that_came_too_early(tmp_path):
    run = simulated(tmp_path)
    kinds = run.trace["event"]
    assert (kinds == KINDS["up"]).sum() > 10
    assert (kinds == KINDS["down"]).sum() > 10
    assert run.error() < 1e-5
    at_once = replace(run, trace={name: column[kinds < KINDS["up"]] for name, column in run.trace.items()})
    assert at_once.error() > 1e-3  # as if those messages took no time
    for event in ("up", "down"):
        first = int(np.flatnonzero(kinds == KINDS[event])[0])
        order = [first, *(i for i in range(len(kinds)) if i != first)]
        early = replace(run, trace={name: column[order] for name, column in run.trace.items()})
        with pytest.raises(ValueError, match="when servers exchanged"):
            early.error()


@pytest.mark.rotating
def test_a_restarted_worker_and_an_early_end_replay(tmp_path):
    crashes = replace(WIDE, failures="crashes:every=300ms,down=50ms")
    run = simulated(tmp_path, platform=crashes, stop_at_version=70)
    assert run.joins.any()
    assert run.result["updates"] == 70
    assert run.error() < 1e-5


def test_a_region_s_message_that_has_not_arrived_when_the_run_ends_changes_nothing(tmp_path):
    far = replace(WIDE, regions="0ms/1kbit,0ms/1kbit")
    run = simulated(tmp_path, platform=far, stop_at_version=12)
    assert (run.trace["event"] == KINDS["exchange"]).all()
    assert np.array_equal(run.center, run.start)
    assert run.error() == 0
