"""The order of a record is held against the rule of its algorithm, in whole numbers."""

import numpy as np
import pytest

from distsgd.algorithms import SSP, AsyncSGD, Downpour, FedBuff, Hogwild, KSync, Ringmaster, SyncSGD
from distsgd.common.cluster.platform import Platform
from distsgd.common.record_format import EVENTS
from distsgd.common.replay.order import departure_of
from distsgd.simulator.virtual_time.schedule import EventLoop

FAULTLESS = {"recovery": {"restarts": {}, "evicted": [], "restored": [], "resumed_from": None}}

SCHEMES = [
    AsyncSGD(),
    SyncSGD(),
    SyncSGD(backup_workers=1),
    SSP(slack=1),
    KSync(workers_per_update=2),
    FedBuff(messages_per_update=2, communication_period=2),
    Ringmaster(delay_threshold=2),
    Downpour(push_period=2, pull_period=3),
    Downpour(warm_start=3),
]


def trace_of(scheme):
    """Return the record of a run of unequal workers, of which some end before the others."""
    loop = EventLoop(
        scheme,
        Platform(compute="exponential"),
        workers=3,
        rounds=[scheme.rounds(steps, 0, k) for k, steps in enumerate((24, 18, 12))],
        seed=1,
        message_bytes=8,
        reply_bytes=8,
    )
    return dict(loop.run().trace)


def departs(scheme, trace):
    return departure_of(scheme, 3, trace, FAULTLESS, sparse=False)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_record_follows_its_rule_and_each_forged_number_departs_from_it(scheme):
    trace = trace_of(scheme)
    assert departs(scheme, trace) == ""
    half = len(trace["version"]) // 2
    for column, other in (("version", 1), ("staleness", 7), ("accepted", 1 - 2 * trace["accepted"][half])):
        forged = trace[column].copy()
        forged[half] += other
        assert departs(scheme, trace | {column: forged}) != "", column


def test_a_message_that_came_too_late_was_not_taken():
    scheme = SyncSGD(backup_workers=1)
    trace = trace_of(scheme)
    late = int(np.flatnonzero(trace["accepted"] == 0)[0])
    forged = trace["accepted"].copy()
    forged[late] = 1
    why = f"row {late}: the message of worker {trace['worker'][late]} came too late to be taken"
    assert departs(scheme, trace | {"accepted": forged}) == why


def test_a_message_of_a_worker_that_had_to_wait_departs_from_the_rule():
    rows = [(0, worker, 0, 1) for worker in (0, 0, 1, 2)]  # version, worker, staleness, accepted
    trace = dict(zip(("version", "worker", "staleness", "accepted"), np.array(rows).T, strict=True))
    trace["event"] = np.full(len(rows), EVENTS.index("exchange"))
    assert departs(SyncSGD(), trace) == "row 1: worker 0 had to wait"


def test_the_order_of_a_run_without_a_lock_or_of_one_that_lost_a_worker_is_unknown():
    trace, lost = trace_of(AsyncSGD()), {"recovery": {"restarts": {"worker-1": 1}}}
    assert departs(Hogwild(), trace) is None
    assert departure_of(AsyncSGD(), 3, trace, lost, sparse=False) is None
