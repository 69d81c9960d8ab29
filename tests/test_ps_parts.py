"""The parts of the parameter server one by one, without workers: what each writes where another part reads it."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import DCASGD, HALoS, KBatchAsync
from distsgd.common.contract.schedules import shaped
from distsgd.common.messages.ops import building
from distsgd.common.server.answers import NEVER, NONE
from distsgd.common.server.center import Center
from distsgd.common.server.journal import Journal
from distsgd.common.server.local_copies import LocalCopies
from distsgd.common.server.region import Region
from distsgd.common.server.slots import Slots
from distsgd.common.server.snapshots import NEVER as NOT_TAKEN
from distsgd.common.server.snapshots import Multiples, SnapshotBuffer
from distsgd.common.server.trace import ROW, UNKNOWN
from distsgd.common.server.transaction import Transactions
from distsgd.common.sync.in_regions import InRegions
from distsgd.common.sync.store import Message

HERE = "/device:CPU:0"
SCHEME = shaped(KBatchAsync(messages_per_update=2, learning_rate=0.1), "linear", 100)


def integers(*values):
    return tf.constant(values, tf.int64)


class Parts:
    """The parts that a parameter server of four workers is made of, with a center of two slices, [3] and [2]."""

    def __init__(self, scheme, **options):
        self.graph = tf.Graph()
        with building(self.graph):
            self.center = Center(scheme, [[3], [2]], [HERE, HERE], 4, 0.5, round_steps=3, **options)
            self.center.apart = False
            self.transactions = Transactions(HERE, 4, self.center.version)
            self.journal = Journal(self.transactions, waits=True)
            self.slots = Slots(self.transactions, [HERE], tf.zeros([0]), waits=False)
            self.copies = LocalCopies(self.transactions, self.journal, self.slots)
            self.snapshots = SnapshotBuffer(Multiples(2, 4), self.center.slices, self.slots.states)
            self.center.snapshots = self.snapshots
            self.slot = self.slots.slot(1, 1)
            initialize = tf.compat.v1.global_variables_initializer()
        self.session = tf.compat.v1.Session(graph=self.graph)
        fed = dict(zip(self.center.initial, (np.ones(3), np.ones(2)), strict=True))
        self.session.run(initialize, fed | {self.journal.restoration: [1, 0]})

    def run(self, build):
        """Run what `build` builds, in the order of its lines; a restoration would be number 2, after 40 events."""
        with building(self.graph):
            fetches = tf.function(lambda: tf.nest.map_structure(tf.convert_to_tensor, build()), autograph=False)()
        return self.session.run(fetches, {self.journal.restoration: [2, 40]})

    def do(self, *actions):
        """Run actions, one after the other, that return nothing."""
        for action in actions:
            self.run(lambda action=action: (action(), tf.constant(0))[1])


@pytest.fixture
def parts():
    made = Parts(SCHEME)
    yield made
    made.session.close()


def test_a_worker_that_takes_its_slot_is_active_and_has_not_finished(parts):
    slots = parts.slots
    parts.do(lambda: slots.finished.assign([True] * 4), lambda: slots.active.assign([False] * 4))
    parts.do(lambda: slots.take(parts.slot))
    flags = parts.run(lambda: [slots.finished, slots.active, slots.ready])
    assert [np.flatnonzero(flag).tolist() for flag in flags] == [[0, 2, 3], [1], [1]]


def test_a_checkpoint_needs_the_copies_of_finished_workers_again(parts):
    copies = parts.copies
    parts.do(lambda: copies.put_back(integers(5, 6, 7, 8), tf.constant(list("abcd"))))
    parts.do(lambda: parts.slots.finished.assign([False, True] * 2), copies.forget)
    rounds, kept = parts.run(lambda: [copies.rounds, copies.copies])
    assert (rounds.tolist(), kept.tolist()) == ([NONE, 6, NONE, 8], [b"", b"b", b"", b"d"])


def test_a_worker_stands_still_with_a_copy_of_its_last_round_or_once_it_has_finished_or_left(parts):
    copies, slots = parts.copies, parts.slots
    parts.do(lambda: parts.journal.rounds_applied.assign(integers(5, 5, 5, 5)))
    parts.do(lambda: copies.put_back(integers(5, 4, 4, 6), tf.constant(list("abcd"))))
    assert parts.run(copies.paused_workers)[0].tolist() == [True, False, False, False]
    joined = [parts.run(lambda k=k: copies.join(parts.slots.slot(k, k), integers(5)[0]))[0] for k in range(4)]
    assert joined == [True, False, False, False]  # of rounds that are not recorded, a copy is of no use
    parts.do(lambda: slots.finished.assign([False, True, False, False]))
    parts.do(lambda: slots.active.assign([True, True, False, True]))
    paused, rounds, continues = parts.run(copies.paused_workers)
    assert (paused.tolist(), rounds.tolist(), continues) == ([True, True, True, False], [5] * 4, True)
    parts.do(lambda: slots.stopping.assign(True))
    assert not parts.run(copies.paused_workers)[2]


def test_no_request_for_copies_outlives_a_restoration(parts):
    copies = parts.copies
    assert parts.run(lambda: copies.asked) == NEVER
    parts.do(lambda: copies.ask(integers(40)[0]), lambda: copies.announce_rounds(parts.slot, integers(9)[0]))
    assert parts.run(lambda: [copies.asked, copies.longest_call])[1].tolist() == [1, 9, 1, 1]
    parts.do(lambda: copies.put_back(integers(*[NONE] * 4), tf.constant([""] * 4)))
    asked, longest = parts.run(lambda: [copies.asked, copies.longest_call])
    assert (asked, longest.tolist()) == (NONE, [1] * 4)


def test_rounds_that_a_worker_was_out_are_no_events_of_the_log(parts):
    journal = parts.journal
    parts.do(lambda: journal.skip_rounds(integers(0, 3, 0, 1)))
    rounds, joins = parts.run(lambda: [journal.rounds_applied, journal.joins])
    assert (rounds.tolist(), rounds.sum() + joins) == ([0, 3, 0, 1], 0)


def test_rounds_of_workers_that_are_lost_are_neither_logged_nor_counted_nor_released(parts):
    journal = parts.journal

    def two_rounds():
        times = tf.tile(tf.range(5, dtype=tf.int64)[None, None], [4, 2, 1])  # the last is that of the release
        journal.record_rounds(7, times, tf.constant([True, False, True, False]))

    parts.do(two_rounds)
    rows, rounds, released = parts.run(
        lambda: [journal.records.dequeue_many(4), journal.rounds_applied, journal.released]
    )
    assert rows[:, : ROW.index("staleness")].tolist() == [[7, 0], [7, 2], [8, 0], [8, 2]]
    assert (rounds.tolist(), released.tolist()) == ([2, 0, 2, 0], [4, UNKNOWN, 4, UNKNOWN])


def test_a_dropped_message_is_released_when_it_arrives_and_one_of_a_set_with_its_set(parts):
    for accepted in (False, True, True):
        parts.do(lambda accepted=accepted: parts.journal.record(0, parts.slot, 0, tf.constant(accepted), locked=False))
    rows = parts.run(lambda: parts.journal.records.dequeue_many(3))
    dropped = rows[0, ROW.index("microseconds")]
    assert rows[:, ROW.index("released")].tolist() == [UNKNOWN, dropped, UNKNOWN]


def rows_of(**columns):
    """Return rows of the log that are zero but for these columns."""
    number = len(next(iter(columns.values())))
    return tf.transpose(tf.stack([integers(*columns.get(name, [0] * number)) for name in ROW]))


def test_messages_of_a_region_get_the_versions_that_follow_in_the_log_of_the_run(parts):
    journal, columns = parts.journal, {"worker": [3, 1, 0, 3], "accepted": [1, 1, 0, 1]}
    assert parts.run(lambda: journal.record_of_region(rows_of(**columns), integers(10)[0])) == 3
    found, rounds = parts.run(lambda: [journal.records.dequeue_many(4), journal.rounds_applied])
    assert found[:, ROW.index("version")].tolist() == [10, 11, 12, 12]
    assert rounds.tolist() == [0, 1, 0, 2]


def test_what_the_evaluator_has_not_acknowledged_is_read_again_but_not_across_a_restoration(parts):
    journal = parts.journal

    def drained():
        events, before, restoration, length, _ = parts.run(journal.drain)
        return events[:, ROW.index("worker")].tolist(), int(before), [int(restoration), int(length)]

    parts.do(lambda: journal.records.enqueue_many(rows_of(worker=[0, 1, 2])))
    assert drained() == ([0, 1, 2], 0, [1, 0])
    for restoration, number in ((7, 3), (1, 2), (1, 1)):  # of another state; of two events; of one, too late
        parts.do(lambda n=number, r=restoration: journal.acknowledge(integers(r)[0], integers(n)[0]))
    parts.do(lambda: journal.records.enqueue_many(rows_of(worker=[3])))
    assert drained() == ([2, 3], 2, [1, 0])
    parts.do(lambda: journal.finish(parts.slot, integers(5, 6), tf.constant(True)))
    assert parts.run(journal.ends)[:, 1:].tolist() == [[-1, -1], [5, 6], [-1, -1], [-1, -1]]
    parts.do(lambda: journal.records.enqueue_many(rows_of(worker=[1])), journal.begin_again)
    assert drained() == ([], 40, [2, 40])
    assert parts.run(journal.ends)[:, 1:].tolist() == [[-1, -1]] * 4


@pytest.mark.parametrize("resumes", [True, False])
def test_a_worker_that_resumes_from_its_copy_keeps_the_center_that_it_had(resumes):
    parts = Parts(DCASGD())
    center, (part, _) = parts.center, parts.center.slices
    parts.do(lambda: center.version.assign(8), lambda: part.center.assign([3.0] * 3))
    parts.do(lambda: center.note_pull(parts.slot, unless=tf.constant(resumes)))
    pulled, centers = parts.run(lambda: [center.pulled, part.pulled_centers])
    assert (pulled.tolist(), centers[:, 0].tolist()) == (
        ([0] * 4, [1.0] * 4) if resumes else ([0, 8, 0, 0], [1.0, 3.0, 1.0, 1.0])
    )
    parts.session.close()


def test_an_update_is_complete_with_its_last_accepted_message_alone(parts):
    accepted = [True, False, True, False, False, True, True]
    found = [parts.run(lambda one=one: parts.center.count_message(tf.constant(one))) for one in accepted]
    assert [bool(completes) for completes in found] == [False, False, True, False, False, False, True]


def test_rates_of_the_server_follow_the_local_steps_of_a_worker(parts):
    """Four workers make two updates in a round of three steps."""
    rate = parts.run(lambda: parts.center.scheme_at(tf.constant(20, tf.int64)).learning_rate)
    assert rate == pytest.approx(0.1 * (1 - 20 * 3 / 2 / 100))


def test_the_average_moves_with_each_update_and_not_with_each_message(parts):
    center, part, averages = parts.center, parts.center.slices[0], []

    def merge(completes):
        message, version = Message(tf.constant([10.0] * 3)), tf.constant(0, tf.int64)
        center.merge(part, message, tf.constant(0.0), version, parts.slot, tf.constant(completes))

    parts.do(lambda: part.average.assign([5.0] * 3))
    for completes in (False, True):
        parts.do(lambda completes=completes: merge(completes))
        averages.append(parts.run(lambda: [part.average, part.center]))
    (unmoved, before), (moved, after) = averages
    assert (before.tolist(), unmoved.tolist()) == ([1.0] * 3, [5.0] * 3)
    np.testing.assert_allclose(moved, 0.1 * unmoved + 0.9 * after, rtol=1e-6)
    assert abs(after - before).min() > 0.5


def test_a_snapshot_is_written_once_and_counts_when_all_its_slices_are_there(parts):
    snapshots, (first, second) = parts.snapshots, parts.center.slices
    taken = parts.run(snapshots.read)
    assert taken["passed"][0] > 0
    assert taken["passed"][1:].tolist() == [NOT_TAKEN] * 3
    parts.do(lambda: first.average.assign([2.0] * 3), lambda: second.average.assign([2.0] * 2))
    parts.do(lambda: parts.center.count_updates(2))
    once = parts.run(snapshots.read)
    parts.do(lambda: first.average.assign([3.0] * 3))
    for updates in (0, 1, 5):  # a message that makes no update; to versions 3 and 8, which have no row
        parts.do(lambda updates=updates: parts.center.count_updates(updates))
    again = parts.run(snapshots.read)
    assert again["centers"].tolist() == [[1.0] * 5, [2.0] * 5, [0.0] * 5, [0.0] * 5]
    assert again["passed"].tolist() == once["passed"].tolist()
    parts.do(lambda: snapshots.passed[1].assign(snapshots.never))
    assert parts.run(snapshots.read)["passed"].tolist() == [NOT_TAKEN] * 4


def test_a_region_counts_its_messages_and_has_news_when_it_may_send_or_merge():
    """Of two workers, 1 and 3, with a message up after each two, and its reply merged after one more."""
    scheme = HALoS(moves_per_merge=2, merge_delay=1).but(sync=InRegions())
    graph = tf.Graph()
    with building(graph):
        center = Center(scheme, [[3]], [HERE], 4, None, servers_apart=True)
        journal = Journal(Transactions(HERE, 4, center.version), waits=False)
        region = Region(1, HERE, center, journal, tf.identity)
        center.scheme_at = lambda messages: SimpleNamespace(at=messages)
        clock = region._scheme().at
        del center.scheme_at
        of_worker = tf.compat.v1.placeholder(tf.int32, [])
        slot = SimpleNamespace(index=of_worker, times=tf.zeros([4], tf.int64), encoder=None)
        reply = tf.function(lambda: region.exchange(slot, Message([tf.zeros([3])])), autograph=False)()
        news, rows = region.news.size(), region.rows.dequeue_many(4)
        initialize = tf.compat.v1.global_variables_initializer()
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(initialize, {center.initial[0]: np.zeros(3), journal.restoration: [1, 0]})
        told = []
        for worker in (1, 3, 3, 1):
            session.run(reply, {of_worker: worker})
            told.append(session.run(news))
        assert told == [0, 1, 2, 2]
        assert session.run(rows)[:, ROW.index("staleness")].tolist() == [0, 1, 0, 2]
        assert session.run(clock) == 4 * scheme.regional_servers
