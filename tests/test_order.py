"""The order of events in virtual time: which workers wait, what is logged, and that it is repeatable."""

import re

import numpy as np
import pytest
from scheduled import happens

from distsgd.algorithms import EASGD, SSP, AllReduce, AsyncSGD, Downpour, LocalSGD, Ringmaster, Serial, SyncSGD
from distsgd.common.contract.rounds import Rounds
from distsgd.common.errors import UserError
from distsgd.common.record_format import EVENTS, RECORD
from distsgd.common.server.trace import ROUND
from distsgd.simulator.virtual_time.resources import NEVER, EventQueue


def rows(found, *names):
    """Return columns of the trace, as tuples."""
    return list(zip(*(found.trace[name].tolist() for name in names), strict=True))


def test_asynchronous_messages_merge_singly_each_as_stale_as_others_merged():
    found = happens(AsyncSGD(), workers=3, steps=4)
    assert rows(found, "version", "worker", "staleness", "accepted") == [
        (3 * r + k, k, 3 - 1 if r else k, 1) for r in range(4) for k in range(3)
    ]
    assert set(found.trace) == set(RECORD)
    assert found.seconds == 0.04


def test_a_worker_that_takes_half_the_time_sends_twice_as_often():
    found = happens(AsyncSGD(), workers=2, steps=100, step_factors="0.5,1")
    before = found.trace["microseconds"] <= 100 * 5_000
    assert np.bincount(found.trace["worker"][before]).tolist() == [100, 50]


def test_behind_a_barrier_the_slowest_sets_the_pace_and_nothing_is_stale():
    found = happens(SyncSGD(), workers=3, steps=5, step_factors="1,2,3")
    assert rows(found, "version", "worker", "staleness", "accepted") == [
        (r, k, 0, 1) for r in range(5) for k in range(3)
    ]
    assert found.seconds == 5 * 0.03


def test_backup_workers_drop_late_messages_and_end_with_the_last_update():
    found = happens(SyncSGD(backup_workers=1), workers=3, steps=4, step_factors="1,1,1.3")
    assert rows(found, "version", "worker", "staleness", "accepted", "microseconds") == [
        (0, 0, 0, 1, 10_000),
        (0, 1, 0, 1, 10_000),
        (1, 2, 1, 0, 13_000),  # continues with version 1
        (1, 0, 0, 1, 20_000),
        (1, 1, 0, 1, 20_000),
        (2, 2, 1, 0, 26_000),
        (2, 0, 0, 1, 30_000),
        (2, 1, 0, 1, 30_000),
        (3, 2, 1, 0, 39_000),
        (3, 0, 0, 1, 40_000),
        (3, 1, 0, 1, 40_000),  # the last update: what worker 2 sends at 52 ms is not on record
    ]


def test_no_worker_begins_a_round_beyond_the_slack_ahead_of_the_slowest():
    slack = 2
    found = happens(SSP(slack=slack), workers=3, steps=20, step_factors="1,1,4")
    worker, number, begun, replied = (found.rounds[:, ROUND.index(n)] for n in ("worker", "round", "begun", "replied"))
    for k, r, at in zip(worker, number, begun, strict=True):
        done = [np.sum((worker == other) & (replied <= at)) for other in range(3) if other != k]
        assert r - slack <= min(done)
    assert len(found.trace["version"]) == 60


def test_without_a_bound_it_is_asynchronous():
    assert rows(happens(SSP(slack=100), step_factors="1,3"), *RECORD) == rows(
        happens(AsyncSGD(), step_factors="1,3"), *RECORD
    )


def test_without_a_ps_all_are_on_record_for_each_update():
    found = happens(AllReduce(), workers=3, steps=4, step_factors="1,2,1")
    assert rows(found, "version", "worker", "staleness") == [(r, k, 0) for r in range(4) for k in range(3)]
    assert found.seconds == 0.08


def test_one_worker_alone_counts_its_steps_as_updates():
    found = happens(Serial(), workers=1, rounds=Rounds.even(100, 64))
    assert rows(found, "version", "worker", "staleness", "accepted") == [(0, 0, 0, 1), (64, 0, 0, 1)]
    assert found.seconds == 1.0


def test_pushes_and_pulls_are_on_record_as_in_a_real_run():
    found = happens(Downpour(push_period=2, pull_period=3), workers=1, steps=6)
    names = [EVENTS[event] for event in found.trace["event"]]
    assert names == ["push", "pull", "push", "exchange"]
    assert rows(found, "version", "staleness", "accepted") == [(0, 0, 1), (1, 1, 0), (1, 0, 1), (2, 1, 1)]


def test_what_is_too_stale_is_on_record_and_counts_no_update():
    found = happens(Ringmaster(delay_threshold=2), workers=4, steps=3)
    assert (found.trace["accepted"] == (found.trace["staleness"] < 2)).all()
    assert found.trace["version"][-1] + found.trace["accepted"][-1] == found.trace["accepted"].sum()


def test_worker_0_warms_up_alone_and_the_others_start_from_its_center():
    found = happens(Downpour(warm_start=3, communication_period=1), workers=3, steps=6)
    assert found.trace["worker"][:3].tolist() == [0, 0, 0]
    first = [np.flatnonzero(found.trace["worker"] == k)[0] for k in (1, 2)]
    pulled = [found.trace["version"][row] - found.trace["staleness"][row] for row in first]
    assert pulled == [3, 3]
    assert np.bincount(found.trace["worker"]).tolist() == [6, 6, 6]


def test_a_warm_start_longer_than_the_run_is_worker_0_alone_then_the_rest():
    found = happens(Downpour(warm_start=100, communication_period=1), workers=3, steps=4)
    assert found.trace["worker"][:4].tolist() == [0] * 4
    assert len(found.trace["worker"]) == 12


def test_a_run_ends_with_the_update_at_which_it_is_to_stop():
    for scheme in (AsyncSGD(), SyncSGD()):
        found = happens(scheme, stop_at_version=3)
        assert found.trace["version"].max() == 2


def test_elastic_schemes_exchange_after_the_first_step_and_leave_out_what_follows_the_last_exchange():
    found = happens(EASGD(communication_period=5), workers=2, steps=10)
    assert found.trace["microseconds"].tolist() == [10_000] * 2 + [60_000] * 2
    assert found.seconds == 0.06


class Instants:
    """Something shared of which all get through at one time."""

    def __init__(self, at):
        self.at, self.queue, self.next = at, [], NEVER

    def send(self, now, worker, size, what):
        self.queue.append(what)
        self.next = self.at

    def pop(self):
        what = self.queue.pop(0)
        self.next = self.at if self.queue else NEVER
        return what


def test_shared_resources_come_last_at_a_tie_in_their_own_order():
    happened = []
    things = Instants(5), Instants(5)
    ends = [lambda worker, now, n=n: happened.append((f"thing {n}", worker)) for n in range(2)]
    queue = EventQueue(4)
    queue.add(*things)
    for kind in range(2):
        queue.on(kind, lambda worker, now, k=kind: happened.append((f"kind {k}", worker)))
    queue.share(things[1], 0, 0, 1.0, ends[1])
    queue.share(things[0], 0, 1, 1.0, ends[0])
    queue.at(5, 1, 2)
    queue.at(5, 0, 3)
    queue.run(lambda events: None)
    assert happened == [("kind 0", 3), ("kind 1", 2), ("thing 0", 1), ("thing 1", 0)]


def test_rounds_tell_what_they_were_spent_on():
    found = happens(LocalSGD(communication_period=2), workers=2, steps=4, step_factors="1,3")
    assert sorted(map(tuple, found.rounds.tolist())) == [
        (0, 0, 0, 20_000, 20_000, 20_000, 60_000, 60_000),
        (0, 1, 60_000, 80_000, 80_000, 80_000, 120_000, 120_000),
        (1, 0, 0, 60_000, 60_000, 60_000, 60_000, 60_000),
        (1, 1, 60_000, 120_000, 120_000, 120_000, 120_000, 120_000),
    ]


def test_a_waiting_rule_without_set_size_or_lead_is_refused():
    from own_rule import BoundedSGD

    with pytest.raises(UserError, match=re.escape("set_size or lead".replace(" or ", "` or `"))):
        happens(BoundedSGD())


WITH_LEAD = """
from dataclasses import dataclass

import own_rule

@dataclass(frozen=True)
class BoundedRounds(own_rule.BoundedRounds):
    @property
    def lead(self):
        return self.slack

@dataclass(frozen=True, kw_only=True)
class BoundedSGD(own_rule.BoundedSGD):
    name = "bounded_sgd_with_lead"

    @property
    def sync(self):
        return BoundedRounds(self.slack)
"""


def test_a_custom_rule_with_a_lead_runs_as_the_stock_rule_of_that_kind():
    made = {}
    exec(WITH_LEAD, made)
    uneven = {"step_factors": "1,2.5,1", "compute": "lognormal"}
    found, stock = happens(made["BoundedSGD"](slack=2), **uneven), happens(SSP(slack=2), **uneven)
    assert rows(found, *RECORD) == rows(stock, *RECORD)


SCHEMES = [AsyncSGD(), SyncSGD(), SyncSGD(backup_workers=2), SSP(), AllReduce(), EASGD(), Ringmaster(), Downpour()]


@pytest.mark.parametrize("network", ["ideal", "internet", "federated"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_seed_gives_the_same_order_to_the_bit_and_another_seed_another(scheme, network):
    first, again, other = (happens(scheme, seed=s, compute="lognormal", network=network) for s in (3, 3, 4))
    assert first.rounds.tobytes() == again.rounds.tobytes()
    assert all(first.trace[name].tobytes() == again.trace[name].tobytes() for name in RECORD)
    assert first.rounds.tobytes() != other.rounds.tobytes()
    assert (np.diff(first.trace["microseconds"]) >= 0).all()


def computing(found):
    """Return how long each round of each worker computed."""
    return {(k, r): ready - begun for k, r, begun, ready in found.rounds[:, :4].tolist()}


MODELS = ["exponential", "shifted", "lognormal", "pareto", "phases:length=4,probability=0.3"]


@pytest.mark.parametrize("compute", MODELS)
def test_durations_of_a_worker_depend_on_no_other_worker_and_no_algorithm(compute):
    options = {"compute": compute, "step_factors": "lognormal:sigma=0.5", "steps": 20}
    few = computing(happens(AsyncSGD(), workers=3, **options))
    for other in (happens(AsyncSGD(), workers=4, **options), happens(SyncSGD(), workers=5, **options)):
        many = computing(other)
        assert {key: abs(many[key] - few[key]) <= 1 for key in few} == dict.fromkeys(few, True)  # rounded timestamps
    assert len(set(few.values())) > 5


@pytest.mark.parametrize("compute", MODELS)
def test_a_step_takes_the_same_time_whatever_the_period(compute):
    each = computing(happens(LocalSGD(communication_period=1), workers=2, steps=12, compute=compute))
    four = computing(happens(LocalSGD(communication_period=4), workers=2, steps=12, compute=compute))
    for (k, r), taken in four.items():
        assert taken == pytest.approx(sum(each[k, 4 * r + i] for i in range(4)), abs=5)


def test_blocks_of_durations_are_seamless(monkeypatch):
    from distsgd.simulator.virtual_time import durations

    for compute in MODELS:
        whole = happens(AsyncSGD(), steps=50, compute=compute)
        with monkeypatch.context() as patched:
            patched.setattr(durations, "BLOCK_STEPS", 12)
            parts = happens(AsyncSGD(), steps=50, compute=compute)
        assert whole.rounds.tobytes() == parts.rounds.tobytes()
