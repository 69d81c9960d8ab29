"""The reduction of workers without a ps: each adds up a slice for all."""

import itertools
import threading
from functools import partial, reduce
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import AllReduce
from distsgd.common.messages import transport
from distsgd.common.messages.channels import Channels
from distsgd.common.messages.cut import TIMES
from distsgd.common.messages.ops import in_program_order, without_order
from distsgd.common.messages.transport import TRANSPORTS, Transport
from distsgd.common.sync.collective import LEAST, Collective, buckets_of, slices_of
from distsgd.common.sync.store import Message, WorkerSlot
from distsgd.common.tasks.graph import TaskGraph
from distsgd.common.tasks.requests import name_of_rounds
from runs import before, in_thread, job_of, record

SIZES = 1, 333, 40_000, 100_000  # of vectors that are reduced one after the other: a slice for one worker, two, more


@pytest.mark.parametrize(
    ("workers", "way"), [(1, "sockets"), (2, "memory"), (3, "sockets"), (3, "memory"), (5, "sockets")]
)
@pytest.mark.rotating("others")
def test_every_worker_has_the_same_mean_of_every_vector_in_every_call(workers, way, monkeypatch):
    """Two calls of two functions each, in which nothing but the order of what is sent says which vector it is."""
    monkeypatch.setattr(transport, "SHARED_BYTES", 40)  # so that some slices go through memory
    vectors = np.random.default_rng(0).normal(size=(2, workers, sum(SIZES))).astype(np.float32)
    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(tf.float32, [sum(SIZES)])
        functions = [
            [in_program_order(mean, sign * given) for sign in (1.0, -1.0)]
            for mean in means_of(workers, TRANSPORTS[way]())
        ]
    with tf.compat.v1.Session(graph=graph) as session:

        def rounds(k):
            return [session.run(function, {given: own[k]}) for own in vectors for function in functions[k]]

        going = [in_thread(partial(rounds, k)) for k in range(workers)]
        found = np.array([future.result(timeout=100) for future in going])
    totals = [reduce(np.add, sign * own) for own in vectors for sign in (1, -1)]  # in the order of the workers
    np.testing.assert_array_equal(found, np.tile(np.array(totals) * (1 / np.float32(workers)), (workers, 1, 1)))


def means_of(workers, way):
    """For each worker, a function that reduces a vector part by part."""
    store = SimpleNamespace(num_workers=workers, min_workers=workers, in_process=False)
    slots = [SimpleNamespace(index=k, mail=Channels(k, ["/device:CPU:0"] * workers, way)) for k in range(workers)]

    def mean(slot, vector):
        return tf.concat([Collective().mean(store, slot, part) for part in tf.split(vector, SIZES)], 0)

    return [partial(mean, slot) for slot in slots]


def received(k, workers, buckets, message, way=None):
    """Build the exchange of a worker; returns whether the reply is finite, and the reply."""
    store = SimpleNamespace(num_workers=workers, min_workers=workers, in_process=False, center=Books(), journal=Books())
    mail = Channels(k, ["/device:CPU:0"] * workers, way or Transport())
    slot = WorkerSlot(k, "", None, None, mail=mail, times=tf.fill([TIMES], tf.constant(k, tf.int64)))
    rule = Collective(buckets=buckets)
    reply = rule.exchange(store, slot, Message(message))
    return rule.is_finite(store, reply), reply


def in_variables(given):
    """A vector of 100 000 as the concatenation of seven."""
    return tf.concat([tf.identity(part) for part in tf.split(given, [40_000, 1000, 3, 33_000, 5, 25_000, 992])], 0)


@pytest.mark.parametrize("buckets", [1, 3])
def test_every_worker_sees_one_element_of_one_message_that_is_not_finite(buckets):
    """It looks at one element of each slice, whichever worker has added that up; the next round is fine again."""
    workers, size = 3, 100_000
    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(tf.float32, [size])
        exchange = lambda k, given: received(k, workers, buckets, in_variables(given))  # noqa: E731
        functions = [in_program_order(partial(exchange, k), given) for k in range(workers)]
    cases = [(0, 0.0), *itertools.product((0, 1, 50_000, 99_999), (np.nan, np.inf)), (0, 0.0)]
    with tf.compat.v1.Session(graph=graph) as session:

        def rounds(k):
            for where, value in cases:
                vector = np.ones(size, np.float32)
                vector[where] += value if k == 1 else 0
                yield session.run(functions[k], {given: vector})

        for going in [in_thread(partial(list, rounds(k))) for k in range(workers)]:
            told = going.result(timeout=100)
            assert [fine for fine, _ in told] == [True, *[False] * 8, True]
            assert (told[0][1] == 1).all()
            assert (told[-1][1] == 1).all()


@pytest.mark.parametrize(
    ("number", "sizes"), [(1, [100]), (2, [43, 57]), (4, [40, 3, 31, 26]), (9, [40, 3, 30, 1, 26])]
)
def test_buckets_are_cut_between_variables_and_about_equal(number, sizes):
    with tf.Graph().as_default():
        parts = [tf.fill([size], float(i)) for i, size in enumerate((40, 1, 2, 30, 1, 26))]
        buckets = buckets_of(tf.concat(parts, 0), number)
        assert [bucket.shape[0] for bucket in buckets] == sizes
        assert buckets_of(2 * tf.concat(parts, 0), number)[0].shape == [100]  # no concatenation: one bucket


def test_a_bucket_is_reduced_before_the_gradients_of_the_first_variables_are_known():
    """Both workers compute these only when the mean of the last variables is known."""
    reduced = threading.Event()

    class Noticed(Transport):
        def share(self, reply):
            return tf.numpy_function(lambda mean: reduced.set() or mean, [reply], tf.float32)

    def exchange(k):
        late = tf.numpy_function(lambda: np.full(50, k if reduced.wait(60) else np.nan, "f"), [], tf.float32)
        without_order(late.op)
        parts = [tf.ensure_shape(late, [50]), tf.fill([40], 2.0 + k)]
        return received(k, 2, 2, tf.concat(parts, 0), Noticed())[1]

    with tf.Graph().as_default() as graph:
        functions = [in_program_order(partial(exchange, k)) for k in range(2)]
    threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8, use_per_session_threads=True)
    with tf.compat.v1.Session(graph=graph, config=threads) as session:
        for reply in session.run(functions):
            assert reply.tolist() == [0.5] * 50 + [2.5] * 40


@pytest.mark.parametrize(("buckets", "expected"), [(1, [2]), (3, [1, 1, 2])])
@pytest.mark.gate("others")
def test_all_buckets_but_one_leave_before_the_timestamp_of_the_whole_gradient(buckets, expected):
    """It is the second of a round."""
    graph = TaskGraph(job_of(AllReduce(buckets=buckets), backend="processes", model="mlp:hidden=64-64"), [1])
    round_ = before(graph.of_workers[1][name_of_rounds("exchange", 1)].fetches[1].op)
    sent = sorted((op for op in round_ if "QueueEnqueue" in op.type), key=graph.graph.get_operations().index)
    counts = [sum(other.type == "Timestamp" for other in before(op)) for op in sent]
    assert counts == expected


@pytest.mark.rotating
def test_buckets_change_no_bit_of_a_run_on_processes(warm, tmp_path):
    """Of two workers; of more, the order in which TensorFlow adds up slices may vary."""
    hidden = 256, 256  # buckets of one slice and of two
    whole, parts = (
        record(AllReduce(buckets=number), tmp_path / str(number), workers=2, steps=20, hidden=hidden)
        for number in (1, 3)
    )
    assert (whole.center == parts.center).all()
    assert parts.error() < 1e-5


class Books:
    """A part of a ps in which nothing is written down."""

    released = SimpleNamespace(assign=lambda _: None)

    def read_version(self):
        return 0

    def record(self, *_, **__):
        pass

    def count_updates(self, _):
        pass


def test_the_mean_of_a_number_and_of_a_vector_of_unknown_length():
    store = SimpleNamespace(num_workers=2, min_workers=2, in_process=False)

    def both(k):
        slot = SimpleNamespace(index=k, mail=Channels(k, ["/device:CPU:0"] * 2, Transport()))
        unknown = tf.boolean_mask(k + tf.constant([4.0, -9.0, 6.0]), [True, False, True])
        return [Collective().mean(store, slot, value) for value in (tf.constant(3.0 + k), unknown)]

    with tf.Graph().as_default() as graph:
        found = [in_program_order(partial(both, k)) for k in range(2)]
    with tf.compat.v1.Session(graph=graph) as session:
        for number, vector in session.run(found):
            assert (number, vector.tolist()) == (3.5, [4.5, 6.5])


def test_running_statistics_are_the_workers_mean_at_each_worker_and_stored():
    with tf.Graph().as_default() as graph:
        store = SimpleNamespace(num_workers=3, min_workers=3, in_process=False)
        store.slots = SimpleNamespace(states=tf.Variable(tf.zeros([3, 2])))

        def shared(k):
            slot = SimpleNamespace(index=k, mail=Channels(k, ["/device:CPU:0"] * 3, Transport()))
            return Collective().share_state(store, slot, [0.0, 3.0, 9.0][k] + tf.constant([1.0, -1.0]))

        functions = [in_program_order(partial(shared, k)) for k in range(3)]
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(store.slots.states.initializer)
        assert np.array(session.run(functions)).tolist() == [[5.0, 3.0]] * 3
        assert session.run(store.slots.states).tolist() == [[5.0, 3.0]] * 3


@pytest.mark.parametrize(("size", "workers"), [(1, 4), (LEAST, 2), (LEAST + 1, 2), (4 * LEAST, 3), (21_000_000, 7)])
def test_slices_are_aligned_and_together_they_are_the_vector(size, workers):
    slices = slices_of(size, workers)
    ends = [part.stop for part in slices.values()]
    assert [part.start for part in slices.values()] == [0, *ends[:-1]]
    assert (ends[-1], list(slices)) == (size, list(range(len(slices))))
    assert all(part.start % 16 == 0 < part.stop - part.start for part in slices.values())
    assert max(part.stop - part.start for part in slices.values()) < max(size / workers, LEAST) + 16
