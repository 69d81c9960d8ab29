"""What is known of the rounds of a run, and what it adds up to."""

import numpy as np
import pytest

from distsgd.common.errors import CannotWrite, UserError
from distsgd.common.record.joining import Join
from distsgd.common.record.releases import Releases, releases_of
from distsgd.common.record.round_log import RoundLog, Shares
from distsgd.common.record.stamp_file import StampReader, StampWriter, stamp_file
from distsgd.common.server.trace import EVENTS, RECORD, ROUND
from distsgd.common.sync.asynchronous import Async
from distsgd.common.sync.barrier import Barrier
from distsgd.common.sync.bounded import Bounded
from distsgd.common.sync.collective import Collective


def log(*rows):
    return RoundLog(np.array(rows, np.int64).reshape(-1, len(ROUND)))


def test_rounds_are_read_back_as_they_were_written(tmp_path):
    rounds = log([0, 0, 1, 2, 3, 4, 5], [1, 0, 1, -1, 3, -1, -1])
    rounds.save(tmp_path / "rounds.npz")
    assert np.array_equal(RoundLog.load(tmp_path).rows, rounds.rows)
    with np.load(tmp_path / "rounds.npz") as saved:
        assert tuple(saved) == ROUND


def test_a_folder_without_rounds_says_so_in_one_line(tmp_path):
    with pytest.raises(UserError, match="has no rounds"):
        RoundLog.load(tmp_path)
    (tmp_path / "rounds.npz").write_bytes(b"PK")
    with pytest.raises(UserError, match="damaged") as error:
        RoundLog.load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_round_is_compute_waiting_and_communication():
    # Two rounds of 10 s and 30 s: 3 + 13 s compute, 2 + 6 s waiting; the clock of the second worker is far ahead.
    second = 10**6
    rounds = log(
        [0, 0, 0, 50 * second, 51 * second, 52 * second, 53 * second],  # start-up
        [0, 1, 0, 3 * second, 5 * second, 7 * second, 10 * second],
        [1, 1, 900 * second, 913 * second, 5 * second, 11 * second, 930 * second],
        [1, 2, 930 * second, -1, -1, -1, -1],
    )
    shares = rounds.shares()
    assert shares == Shares(2, 20.0, 16 / 40, 8 / 40, 16 / 40)
    assert rounds.shares(0) == Shares(1, 10.0, 0.3, 0.2, 0.5)
    assert log([0, 1, 0, 3, -1, -1, 4]).shares().waiting is None
    assert log([0, 1, 0, -1, -1, -1, -1]).shares() is None


def test_the_advice_names_the_share_and_what_would_reduce_it():
    def says(rounds, waiting, communication, **hyperparameters):
        return Shares(rounds, 1.0, 0.1, waiting, communication).in_words(hyperparameters)

    assert (
        says(1000, 0.0, 0.6, communication_period=5)
        == "60% of a round is communication: communication_period=25 would make that about 23%"
    )
    assert says(1000, 0.0, 0.99, communication_period=5).endswith("communication_period=100 would make that about 83%")
    assert "larger batches" in says(1000, 0.0, 0.93)
    assert "larger batches" in says(1000, 0.0, 0.93, communication_period=None)
    assert "61% of a round is waiting for the slowest worker: backup workers" in says(1000, 0.61, 0.2, backup_workers=0)
    assert says(1000, 0.3, 0.3, communication_period=5) is None
    assert says(10, 0.0, 0.93, communication_period=5) is None
    assert says(1000, None, 0.93, communication_period=5) is None


def test_a_run_of_a_few_seconds_gets_no_advice():
    assert Shares(1000, 0.0099, 0.1, 0.0, 0.9).in_words({"communication_period": 5}) is None
    assert Shares(1000, 0.0101, 0.1, 0.0, 0.9).in_words({"communication_period": 5})


def events(*rows):
    """Events as (version, worker, accepted, microseconds, event); how stale they were says nothing here."""
    full = [(version, worker, 0, accepted, now, EVENTS.index(kind)) for version, worker, accepted, now, kind in rows]
    return np.array(full, np.int64).reshape(-1, len(RECORD))


def released(releases, some, version, cut=None):
    """Of all events, in one piece or in two."""
    pieces = [some] if cut is None else [some[:cut], some[cut:]]
    found = [*(releases.add(piece) for piece in pieces), releases.end(version)]
    assert np.array_equal(np.concatenate([each for each, _ in found]), some)
    return np.concatenate([times for _, times in found]).tolist()


@pytest.mark.parametrize("cut", [None, 1, 3, 5])
def test_behind_a_barrier_the_message_that_completes_the_set_lets_all_go(cut):
    some = events(
        (0, 0, 1, 10, "exchange"),
        (0, 2, 1, 15, "exchange"),
        (1, 1, 0, 18, "exchange"),  # a late backup worker
        (1, 2, 1, 20, "exchange"),
        (1, 0, 0, 21, "join"),
        (1, 1, 1, 30, "exchange"),
        (2, 0, 1, 40, "exchange"),  # no worker completes this set
    )
    rule = releases_of(Barrier(backup_workers=1), [0, 0, 0], [3, 3, 3])
    assert released(rule, some, version=2, cut=cut) == [15, 15, 18, 30, 21, 30, -1]


def test_an_asynchronous_gate_releases_each_worker_at_its_event():
    some = events((0, 0, 1, 10, "exchange"), (1, 1, 1, 12, "push"))
    assert released(releases_of(Async(), [0, 0], [1, 1]), some, version=2) == [10, 12]


@pytest.mark.parametrize("cut", [None, 2, 4])
def test_a_lead_releases_at_the_round_that_brings_the_slowest_within_it(cut):
    some = events(
        (0, 0, 1, 10, "exchange"),  # one ahead
        (1, 0, 1, 20, "exchange"),  # two ahead: waits ...
        (2, 1, 0, 25, "join"),
        (2, 1, 1, 30, "exchange"),  # ... for this
        (3, 0, 1, 40, "exchange"),  # waits for ever: the last round of the other one is not on record
    )
    rule = releases_of(Bounded(slack=1), [0, 0], [5, 3])
    assert released(rule, some, version=4, cut=cut) == [10, 30, 25, 30, -1]
    done = events((0, 0, 1, 10, "exchange"), (1, 0, 1, 20, "exchange"), (2, 0, 1, 30, "exchange"))
    assert released(releases_of(Bounded(slack=0), [0, 7], [3, 7]), done, version=3) == [10, 20, 30]


def test_releases_are_unknown_for_a_gate_without_a_lead():
    class Secret(Bounded):
        lead = None  # pyright: ignore

    some = events((0, 0, 1, 10, "exchange"))
    assert released(releases_of(Secret(), [0], [1]), some, version=1) == [-1]


SECOND = 1_000_000


def stamped(writer, first, *moments):
    writer.add(first, np.array(moments, np.float64).T)


def test_a_round_that_is_done_again_has_the_place_that_it_had(tmp_path):
    path = stamp_file(tmp_path, 1)
    writer = StampWriter(path, exchange_first=False)
    stamped(writer, 0, (1, 2, 3), (3, 4, 5))
    stamped(writer, 4, (7, 8, 9))  # two were done, and their times are unknown
    read = StampReader(path).read
    assert read(0, 6).tolist()[:2] == [[SECOND, 2 * SECOND, 3 * SECOND], [3 * SECOND, 4 * SECOND, 5 * SECOND]]
    assert (read(2, 2) == -1).all()
    assert read(4, 2).tolist() == [[7 * SECOND, 8 * SECOND, 9 * SECOND], [-1, -1, -1]]
    again = StampWriter(path, exchange_first=False)  # of a process that was started again, from a restored state
    again.go_back(1)
    stamped(again, 2, (20, 21, 22))
    assert read(0, 5)[:, 0].tolist() == [SECOND, -1, 20 * SECOND, -1, -1]
    assert (StampReader(tmp_path / "absent").read(0, 2) == -1).all()


def test_the_sums_leave_out_the_start_up_and_need_no_file():
    writer = StampWriter(None, exchange_first=False)
    stamped(writer, 0, (0, 100, 200))
    stamped(writer, 1, (200, 201, 203), (203, 206, 210))
    assert (writer.timed, writer.compute, writer.exchange) == (2, 4.0, 6.0)


def test_elastic_workers_compute_from_one_reply_to_the_next_message():
    writer = StampWriter(None, exchange_first=True)
    stamped(writer, 0, (0, 1, 2))
    stamped(writer, 1, (7, 8, 9))  # from 2 to 7 it made the other steps of its round 0
    writer.go_back(2)
    stamped(writer, 2, (20, 21, 22))
    assert (writer.timed, writer.compute) == (2, 6.0 + 1.0)


def test_a_full_disk_costs_the_moments_and_not_the_sums(tmp_path):
    (tmp_path / "rounds").write_text("no folder")
    writer = StampWriter(stamp_file(tmp_path, 0), exchange_first=False)
    with pytest.raises(CannotWrite):
        stamped(writer, 0, (0, 1, 2))
    stamped(writer, 1, (2, 3, 4))
    assert writer.timed == 1


def joined(folder, some, rule, before=(0, 0), **options):
    join = Join(rule, [StampReader(stamp_file(folder, k)) for k in (0, 1)], before, **options)
    return np.concatenate(list(join.rows([some[:2], some[2:]], 99))), join.waiting


def test_the_nth_event_of_a_worker_is_its_nth_round(tmp_path):
    for k in (0, 1):
        stamped(
            StampWriter(stamp_file(tmp_path, k), exchange_first=False), 0, *((10 * n + k,) * 3 for n in range(1, 6))
        )
    some = events(
        (0, 1, 1, 50, "exchange"), (1, 0, 0, 60, "join"), (1, 0, 1, 70, "exchange"), (2, 1, 1, 80, "exchange")
    )
    rows, waiting = joined(tmp_path, some, Releases(), before=(3, 0))
    ends = [1, 0, 11 * SECOND], [0, 3, 40 * SECOND], [1, 1, 21 * SECOND]
    assert rows[:, [0, 1, 6]].tolist() == [list(row) for row in ends]
    assert rows[:, 4].tolist() == rows[:, 5].tolist() == [50, 70, 80]
    assert waiting == 0.0


def test_without_a_ps_a_message_waits_for_the_last_one_that_is_ready(tmp_path):
    for k, ready in ((0, (11, 21)), (1, (16, 24))):
        moments = [(end - 9, here, end) for here, end in zip(ready, (19, 29), strict=True)]
        stamped(StampWriter(stamp_file(tmp_path, k), exchange_first=False), 0, *moments)
    some = events(*((version, k, 1, 0, "exchange") for version in (0, 1) for k in (0, 1)))
    rule = releases_of(Collective(), [0, 0], [2, 2])
    rows, waiting = joined(tmp_path, some, rule, collective=True)
    assert rows[:, 4].tolist() == [11 * SECOND, 16 * SECOND, 21 * SECOND, 24 * SECOND]
    assert rows[:, 5].tolist() == [16 * SECOND, 16 * SECOND, 24 * SECOND, 24 * SECOND]
    assert waiting == 1.5  # in the second round, 3 s and none; the first counts nowhere
    rule = releases_of(Collective(), [0, 0], [2, 2])
    rows, waiting = joined(tmp_path, some, rule, collective=True, one_clock=False)
    assert waiting is None
    assert (rows[:, [4, 5]] == -1).all()


def test_waiting_of_other_rounds_is_not_taken_for_a_part_of_these():
    shares = Shares.of(100, 0.001, 0.002, 0.5)
    assert shares is not None
    assert (shares.waiting, round(shares.compute + shares.communication, 9)) == (None, 1.0)


def test_a_worker_woken_by_a_restoration_has_no_reply_and_keeps_waiting(tmp_path):
    for k, replied in ((0, 12), (1, 31)):
        stamped(StampWriter(stamp_file(tmp_path, k), exchange_first=False), 0, (0, 1, 2), (2, 10, replied))
    moments = [(0, 0, 1), (0, 1, 2), (1, 0, 11), (1, 1, 30)]
    some = events(*((version, k, 1, now * SECOND, "exchange") for version, k, now in moments))
    join = Join(releases_of(Barrier(), [0, 0], [2, 2]), [StampReader(stamp_file(tmp_path, k)) for k in (0, 1)], (0, 0))
    rows = np.concatenate(list(join.rows([some], 2)))
    assert rows[:, 5].tolist() == [2 * SECOND, 2 * SECOND, 30 * SECOND, 30 * SECOND]
    assert rows[:, 6].tolist() == [2 * SECOND, 2 * SECOND, -1, 31 * SECOND]
    assert join.shares == Shares(1, 29.0, 8 / 29, 0.0, 21 / 29)  # of worker 1, whose second round is wholly known


def test_where_a_worker_has_no_moments_the_others_do_not_stand_for_it(tmp_path):
    stamped(StampWriter(stamp_file(tmp_path, 0), exchange_first=False), 0, (0, 1, 2), (2, 3, 4))
    join = Join(Releases(), [StampReader(stamp_file(tmp_path, k)) for k in (0, 1)], (0, 0))
    some = events((0, 0, 1, SECOND, "exchange"), (1, 0, 1, 3 * SECOND, "exchange"))
    assert len(np.concatenate(list(join.rows([some], 2)))) == 2
    assert join.shares is None
