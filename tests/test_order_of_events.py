"""A record drives the rule of its algorithm, in whole numbers: its order is judged, and its actions are found."""

import numpy as np
import pytest

from covering import CATALOGUE, COVER
from distsgd.algorithms import SSP, AsyncSGD, Downpour, FedBuff, Hogwild, KSync, Ringmaster, SyncSGD
from distsgd.common.cluster.platform import Platform
from distsgd.common.contract import Quorum
from distsgd.common.errors import UserError
from distsgd.common.record_format import EVENTS
from distsgd.common.replay.order import departure_of
from distsgd.simulator.execution.record_actions import actions_of
from distsgd.simulator.virtual_time.program import Do
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


STEPS = 24, 18, 12  # of each worker: some end before the others


def run_of(scheme, rounds=None, **machines):
    """Return the events of a run of unequal workers."""
    rounds = rounds or [scheme.rounds(steps, 0, k) for k, steps in enumerate(STEPS)]
    sizes = {"message_bytes": 8, "reply_bytes": 8}
    machines = Platform(compute="exponential", **machines)
    return EventLoop(scheme, machines, workers=len(rounds), rounds=rounds, seed=1, **sizes).run()


def trace_of(scheme, **machines):
    """Return the record of such a run."""
    return dict(run_of(scheme, **machines).trace)


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


def test_the_order_of_a_resumed_run_is_unknown_if_the_end_of_a_worker_matters():
    """A worker that had made its steps before the run was resumed has more of them in the record, and no row of it."""
    resumed = {"recovery": {"restarts": {}, "evicted": [], "restored": [], "resumed_from": 5}}
    matters = [Downpour(warm_start=3), KSync(workers_per_update=2), SSP(), SyncSGD(), SyncSGD(backup_workers=1)]
    assert {departure_of(one, 3, trace_of(one), resumed, sparse=False) for one in matters} == {None}
    together = run_of(SyncSGD(), [SyncSGD().rounds(12)] * 3).trace
    assert departure_of(SyncSGD(), 3, together, resumed, sparse=False) == ""
    assert departure_of(AsyncSGD(), 3, trace_of(AsyncSGD()), resumed, sparse=False) == ""


def test_the_order_of_a_run_without_a_lock_or_whose_state_was_restored_is_unknown():
    trace, restored = trace_of(AsyncSGD()), {"recovery": {"restarts": {"ps-0": 1}, "restored": [{}], "evicted": []}}
    assert departs(Hogwild(), trace) is None
    assert departure_of(AsyncSGD(), 3, trace, restored, sparse=False) is None


def crashes(scheme):
    """Return machines that fail after two rounds in the mean."""
    return {"failures": f"crashes:every={20 * scheme.period}ms,down=10ms"}


@pytest.mark.parametrize("scheme", [*SCHEMES, KSync(workers_per_update=2, cancel_late=True)], ids=str)
def test_a_record_with_lost_workers_follows_its_rule_and_a_forged_one_departs_from_it(scheme):
    trace = trace_of(scheme, **crashes(scheme))
    joins = np.flatnonzero(trace["event"] == EVENTS.index("join"))
    assert len(joins) > 2
    assert departs(scheme, trace) == ""
    forged = trace["version"].copy()
    forged[joins[1]] += 1
    assert departs(scheme, trace | {"version": forged}).startswith(f"row {joins[1]}: the center had version")


def by_hand(*rows):
    """Return a record of rows (version, worker, staleness, accepted, event)."""
    events = [(*row, EVENTS.index(event)) for *row, event in rows]
    return dict(zip(("version", "worker", "staleness", "accepted", "event"), np.array(events).T, strict=True))


def rounds_of(version, workers):
    """Return rows of messages in sets."""
    return [(version, worker, 0, 1, "exchange") for worker in workers]


def test_a_set_may_be_complete_without_an_evicted_worker_until_it_joins():
    alone, all_again = rounds_of(1, (0, 1)), rounds_of(2, (0, 1, 2))
    join = (2, 2, 0, 0, "join")
    assert departs(SyncSGD(), by_hand(*rounds_of(0, (0, 1, 2)), *alone, join, *all_again)) == ""
    # Without the row of its join nothing tells that worker 2 was gone, unless the run says so.
    trace = by_hand(*rounds_of(0, (0, 1, 2)), *alone, *all_again)
    assert departs(SyncSGD(), trace) == "row 5: the center had version 1, recorded is 2"
    # It is awaited again from its join on.
    trace = by_hand(*rounds_of(0, (0, 1, 2)), *alone, join, *rounds_of(2, (0, 1)), *rounds_of(3, (0, 1, 2)))
    assert departs(SyncSGD(), trace) == "row 8: the center had version 2, recorded is 3"


# What is computed.


class InGrace(SyncSGD):
    """Drops messages that are later than a time of grace."""

    name, sync = "in_grace", Quorum(2, grace=0.01)


@pytest.mark.parametrize("scheme", [*(CATALOGUE[name] for name in COVER), InGrace()], ids=lambda scheme: scheme.name)
def test_a_record_drives_the_rule_to_the_actions_that_virtual_time_has_noted(scheme):
    """Virtual time notes them while it happens, and the record of a real run says no more than these events."""
    can_lose = scheme.sync.uses_ps and not scheme.sends_in_turn and not scheme.regions
    machines = crashes(scheme) if can_lose else {}
    workers = 3 if scheme.sync.exchanges else 1
    rounds = [scheme.rounds(12 * scheme.period, 0, k) for k in range(workers)]
    found = run_of(scheme, rounds, **machines)
    noted, driven = found.actions.program(), actions_of(found.trace, scheme, [*map(len, rounds)]).program()
    for name, column in vars(noted).items():
        np.testing.assert_array_equal(column, vars(driven)[name], err_msg=name)
    messages = np.isin(found.trace["event"], [EVENTS.index(event) for event in ("exchange", "push")])
    assert np.isin(np.flatnonzero(messages), noted.row).all()


def test_a_worker_reads_when_the_record_says_that_it_did():
    """Of a sparse problem workers read by themselves: here worker 0 after the message of worker 1."""
    rows = [(0, 0, 0, 1, "push"), (1, 1, 1, 1, "push"), (2, 1, 0, 1, "push"), (3, 0, 1, 1, "push")]
    program = actions_of(by_hand(*rows), AsyncSGD(), [2, 2], sparse=True).program()
    assert program.do.tolist() == [Do.PUSH, Do.APPLY, Do.READ, Do.APPLY, Do.APPLY]
    assert program.worker.tolist() == [0, 1, 0, 1, 0]
    assert program.ends.tolist() == [1, 3, 4, 5]


def test_a_worker_that_waited_for_the_warm_start_reads_once_it_has_noticed_it():
    scheme, rows = Downpour(warm_start=2), [(0, 0, 0, 1), (1, 0, 0, 1), (2, 0, 0, 1), (3, 1, 0, 1), (4, 2, 2, 1)]
    trace = by_hand(*((*row, "exchange") for row in rows))
    assert departs(scheme, trace) == ""
    program = actions_of(trace, scheme, [3, 1, 1]).program()
    assert program.do.tolist() == [Do.APPLY, Do.APPLY, Do.START, Do.APPLY, Do.START, Do.APPLY, Do.APPLY]
    assert program.worker.tolist() == [0, 0, 2, 0, 1, 1, 2]


def test_a_program_of_a_record_that_no_run_can_have_is_refused():
    trace = trace_of(AsyncSGD())
    trace["staleness"][5] += 9
    with pytest.raises(UserError, match="async_sgd has no run with these events: row 5: worker"):
        actions_of(trace, AsyncSGD(), STEPS)
