"""What is known of the rounds of a run, and what it adds up to."""

import time
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import ADPSGD, AEASGD, DPSGD, SSP, AllReduce, AsyncSGD, SyncSGD
from distsgd.common.errors import UserError
from distsgd.common.record.round_log import (
    ARRIVED,
    BEGUN,
    COMPUTED,
    READY,
    RELEASED,
    REPLIED,
    Shares,
    TimeTotals,
    load_rounds,
    save_rounds,
)
from distsgd.common.record_format import EVENTS
from distsgd.common.server.trace import ROUND, ROW
from distsgd.common.tasks.options import Recovery
from distsgd.common.tasks.round_record import rounds_of
from runs import Harness, record, slow_batches


def log(*rows):
    return np.array(rows, np.int64).reshape(-1, len(ROUND))


def test_rounds_are_read_back_as_they_were_written(tmp_path):
    rounds = log([0, 0, 1, 2, 2, 3, 4, 5], [1, 0, 1, -1, -1, 3, -1, -1])
    save_rounds(tmp_path / "rounds.npz", rounds)
    assert np.array_equal(load_rounds(tmp_path), rounds)
    with np.load(tmp_path / "rounds.npz") as saved:
        assert tuple(saved) == ROUND


def test_a_folder_without_rounds_says_so_in_one_line(tmp_path):
    with pytest.raises(UserError, match="has no rounds"):
        load_rounds(tmp_path)
    (tmp_path / "rounds.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match="damaged"):
        load_rounds(tmp_path)


def test_a_round_is_compute_waiting_and_communication():
    # Two rounds of 10 s and 30 s: 3 + 13 s compute, 2 + 6 s waiting; the clock of the second worker is far ahead.
    second = 10**6
    rounds = log(
        [0, 0, 0, 50 * second, 50 * second, 51 * second, 52 * second, 53 * second],  # start-up
        [0, 1, 0, 3 * second, 3 * second, 5 * second, 7 * second, 10 * second],
        [1, 1, 900 * second, 913 * second, 913 * second, 5 * second, 11 * second, 930 * second],
        [1, 2, 930 * second, -1, -1, -1, -1, -1],
    )
    shares = TimeTotals(rounds).shares
    assert shares == Shares(2, 20.0, 16 / 40, 8 / 40, 16 / 40)
    assert TimeTotals(rounds[rounds[:, 0] == 0]).shares == Shares(1, 10.0, 0.3, 0.2, 0.5)
    assert TimeTotals(log([0, 1, 0, 3, 3, -1, -1, 4])).shares.waiting is None
    assert TimeTotals(log([0, 1, 0, -1, -1, -1, -1, -1])).shares is None


def test_what_a_worker_computes_after_its_message_is_no_waiting_and_no_communication():
    second = 10**6
    row = [903 * second, 907 * second]  # 3 s to the ps, whose clock is ahead; 4 s for the others

    def shares(computed, replied):
        return TimeTotals(log([0, 1, 0, 4 * second, computed * second, *row, replied * second])).shares

    assert shares(4, 14) == Shares(1, 14.0, 4 / 14, 4 / 14, 6 / 14)
    assert shares(6, 14) == Shares(1, 14.0, 6 / 14, 4 / 14, 4 / 14)
    assert shares(9, 14) == Shares(1, 14.0, 9 / 14, 2 / 14, 3 / 14)
    assert shares(12, 14) == Shares(1, 14.0, 12 / 14, 0.0, 2 / 14)
    assert shares(20, 20) == Shares(1, 20.0, 1.0, 0.0, 0.0)


def test_what_lies_between_a_reply_and_the_next_round_is_a_part_of_its_own():
    """Each round takes 3 ms, 1 to compute; 7 ms lie between two of them, and much more before the second start."""
    begun = 1000 * np.array([0, 10, 20, 5000, 5010, 5020])
    rounds = np.stack([0 * begun, range(6), *(begun + add for add in (0, 1000, 1000, 1500, 2000, 3000))], 1)
    rounds[1, 7] += 6000  # the figures are those of the second start: in the first one a round was slower
    spent = TimeTotals(since=4_000_000)
    for block in (rounds[4:], rounds[3:4], rounds[:3]):  # the last one first, as the record has it
        spent.add(block)
    assert spent.shares == Shares(3, pytest.approx(0.01), *map(pytest.approx, (0.1, 0.05, 0.15, 0.7)))
    assert spent.seconds == pytest.approx(0.023)


def test_on_several_machines_the_training_lasts_as_long_as_a_worker_on_its_own_clock():
    rounds = log([0, 0, 0, 1, 1, 2, 3, 4_000_000], [1, 0, 900_000_000, -1, -1, -1, -1, 903_000_000])
    assert TimeTotals(rounds, one_clock=False).seconds == 4
    assert TimeTotals(rounds).seconds == 903
    assert TimeTotals().seconds is None


def test_the_advice_names_the_share_and_what_would_reduce_it():
    def says(rounds, waiting, communication, **hyperparameters):
        return Shares(rounds, 1.0, 0.1, waiting, communication).in_words({"hyperparameters": hyperparameters})

    assert (
        says(1000, 0.0, 0.6, communication_period=5)
        == "60% of the workers' time is communication: communication_period=25 would make that about 23%"
    )
    assert says(1000, 0.0, 0.99, communication_period=5).endswith("communication_period=100 would make that about 83%")
    assert "larger batches" in says(1000, 0.0, 0.93)
    assert "larger batches" in says(1000, 0.0, 0.93, communication_period=None)
    assert "61% of the workers' time is waiting for the slowest worker: backup workers" in says(
        1000, 0.61, 0.2, backup_workers=0
    )
    between = Shares(1000, 1.0, 0.1, 0.1, 0.1, 0.7).in_words({"hyperparameters": {}})
    assert between.startswith("70% of the workers' time is between two rounds: steps are short: larger batches")
    assert says(1000, 0.3, 0.3, communication_period=5) is None
    assert says(10, 0.0, 0.93, communication_period=5) is None
    assert says(1000, None, 0.93, communication_period=5) is None


def test_a_run_of_a_few_seconds_gets_no_advice():
    assert Shares(1000, 0.0099, 0.1, 0.0, 0.9).in_words({"hyperparameters": {"communication_period": 5}}) is None
    assert Shares(1000, 0.0101, 0.1, 0.0, 0.9).in_words({"hyperparameters": {"communication_period": 5}})


def rounds_in(harness):
    """The rounds on record so far, without a run that would end."""
    rows = harness.run("drain_events")
    rows = rows[rows[:, ROW.index("event")] != EVENTS.index("join")]
    return rounds_of(rows, harness.observer.rounds_applied(), harness.observer.ends())


def arrivals(rounds, *picked):
    return rounds[list(picked), ARRIVED].tolist()


@pytest.mark.parametrize("cut", [[], [1], [3], [5], [2, 4]])
def test_the_end_of_a_round_is_in_the_next_row_of_its_worker(cut):
    def row(worker, now, released=-1, computed=-1, replied=-1):
        return (0, worker, 0, 1, now, 0, released, now - 2, now - 1, computed, replied)

    events = np.array(
        [row(1, 10), row(0, 20), row(0, 30, 21, 23, 24), row(2, 40), row(1, 50, 41, 43, 44), row(0, 60, 31, -1, -1)],
        np.int64,
    )
    numbers, ends = np.array([7, 2, 1]), np.array([[61, 63, 64], [51, -1, -1], [-1, -1, -1]])
    blocks = [rounds_of(piece, numbers, ends) for piece in reversed(np.split(events, cut))]
    assert np.concatenate(blocks[::-1]).tolist() == [
        [1, 0, 8, 9, 43, 10, 41, 44],
        [0, 4, 18, 19, 23, 20, 21, 24],
        [0, 5, 28, 29, -1, 30, 31, -1],
        [2, 0, 38, 39, -1, 40, -1, -1],
        [1, 1, 48, 49, -1, 50, 51, -1],
        [0, 6, 58, 59, 63, 60, 61, 64],
    ]
    assert (numbers.tolist(), ends.tolist()) == ([4, 0, 0], 3 * [[-1, -1, -1]])


@pytest.mark.rotating
def test_the_message_that_completes_a_set_releases_all_of_it():
    with Harness(SyncSGD(backup_workers=1), workers=3) as harness:
        workers = [harness.worker(k) for k in range(3)]
        going = workers[0].starts()
        assert harness.observer.ends().tolist() == 3 * [[-1, -1, -1]]
        workers[1].round()
        going.result(timeout=100)
        workers[2].round()  # too late: dropped, and released at once
        rounds = rounds_in(harness)
    assert rounds[:, 0].tolist() == [0, 1, 2]
    assert rounds[:, RELEASED].tolist() == arrivals(rounds, 1, 1, 2)
    assert (rounds[:, [BEGUN, READY]] > 0).all()


@pytest.mark.rotating
def test_the_eviction_of_the_last_missing_worker_releases_the_others():
    with Harness(SyncSGD(), workers=2, recovery=Recovery(min_workers=1)) as harness:
        waits, _ = (harness.worker(k) for k in range(2))
        going = waits.starts()
        before = time.time() * 1e6
        assert waits.calls.evict_absent().tolist() == [False, True]
        going.result(timeout=100)
        ((*_, arrived, released, replied),) = rounds_in(harness)
    assert arrived < before < released
    assert replied == -1


@pytest.mark.gate
def test_the_round_that_brings_the_slowest_near_enough_releases_a_worker():
    with Harness(SSP(slack=0), workers=2) as harness:
        ahead, behind = (harness.worker(k) for k in range(2))
        going = ahead.starts()
        behind.round()
        going.result(timeout=100)
        rounds = rounds_in(harness)
    assert rounds[:, RELEASED].tolist() == arrivals(rounds, 1, 1)


@pytest.mark.rotating
def test_a_worker_called_back_by_a_restoration_is_not_released():
    with Harness(SyncSGD(), workers=2) as harness:
        waits, other = (harness.worker(k) for k in range(2))
        going = waits.starts()
        harness.run("wake")
        going.result(timeout=100)  # what it takes for a reply is none
        assert rounds_in(harness)[:, RELEASED].tolist() == [-1]
        assert waits.join().waits
        other.round()
        rounds = rounds_in(harness)
    assert rounds[:, RELEASED].tolist() == arrivals(rounds, 1, 1)


def test_a_reply_travels_with_the_next_message_and_the_last_with_the_farewell():
    with Harness(AsyncSGD(), workers=1) as harness:
        worker = harness.worker(0)
        ends, end = [], (-1, -1)
        for t in range(3):
            done = worker.calls.rounds("exchange", np.zeros((1, 1, 8), np.int32), (t, t, *end))
            ends.append(end := done.end)
        replies = [replied for _, replied in ends]
        assert rounds_in(harness)[:, REPLIED].tolist() == [*replies[:2], -1]
        worker.calls.set_finished(*end)
        rounds = rounds_in(harness)
        assert rounds[:, [COMPUTED, REPLIED]].tolist() == [[*end] for end in ends]
        assert (rounds[:, COMPUTED] == rounds[:, READY]).all()
        assert (rounds[1:, BEGUN] >= replies[:2]).all()
        before = worker
        now = harness.worker(0)
        before.calls.set_finished(*end)  # it does not have its slot any more
        assert harness.observer.ends()[0, 1:].tolist() == [-1, -1]
        now.calls.set_finished(7, 9)
        before.calls.set_finished(*end)
        assert harness.observer.ends()[0, 1:].tolist() == [7, 9]


@pytest.mark.gate
def test_a_restored_state_has_its_releases_and_no_later_replies():
    with Harness(SyncSGD(), workers=1) as harness:
        worker = harness.worker(0)
        worker.round()
        saved, ends = harness.state_calls.values(), harness.observer.ends()
        worker.calls.set_finished(*worker.calls.rounds("exchange", np.zeros((1, 1, 8), np.int32)).end)
        assert harness.observer.ends()[0].min() > ends[0, 0] > 0
        harness.state_calls.restore(saved, restoration=2, events=1)
        assert harness.observer.ends().tolist() == [[ends[0, 0], -1, -1]]


def patient(context):
    """Each batch takes 40 ms from when a worker asks for it: a little before the round, as nothing orders the two."""
    whole = tf.data.Options()
    whole.experimental_optimization.inject_prefetch = False
    return slow_batches(context, 40).with_options(whole)


@pytest.mark.parametrize("kind", [DPSGD, ADPSGD, AllReduce, partial(AEASGD, communication_period=1)])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_the_gradient_of_a_round_is_computing_also_if_the_message_holds_nothing_of_it(kind, tmp_path):
    """The message of D-PSGD are the parameters before the step."""
    record(kind(), tmp_path, workers=2, steps=5, hidden=(4,), batch_size=8, backend="threads", data=patient)
    rows = load_rounds(tmp_path)
    assert len(rows) == 10
    assert (rows[:, READY] - rows[:, BEGUN]).min() >= 20_000
