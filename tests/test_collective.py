"""The reduction of workers without a ps: each adds up a slice for all."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from distsgd.common.messages import transport
from distsgd.common.messages.channels import Channels
from distsgd.common.messages.transport import TRANSPORTS, Transport
from distsgd.common.sync.collective import LEAST, Collective, slices_of
from distsgd.common.sync.store import Message, WorkerSlot
from distsgd.common.tasks.requests import traced
from runs import in_thread

SIZES = 1, 333, 40_000, 100_000  # of vectors that are reduced one after the other: a slice for one worker, two, more


@pytest.mark.parametrize(
    ("workers", "way"), [(1, "sockets"), (2, "memory"), (3, "sockets"), (3, "memory"), (5, "sockets")]
)
def test_every_worker_has_the_same_mean_of_every_vector_in_every_call(workers, way, monkeypatch):
    """Two calls of two functions each, in which nothing but the order of what is sent says which vector it is."""
    monkeypatch.setattr(transport, "SHARED_BYTES", 40)  # so that some slices go through memory
    vectors = np.random.default_rng(0).normal(size=(2, workers, sum(SIZES))).astype(np.float32)
    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(tf.float32, [sum(SIZES)])
        functions = [
            [traced(mean, sign * given) for sign in (1.0, -1.0)] for mean in means_of(workers, TRANSPORTS[way]())
        ]
    with tf.compat.v1.Session(graph=graph) as session:

        def rounds(k):
            return [session.run(function, {given: own[k]}) for own in vectors for function in functions[k]]

        going = [in_thread(partial(rounds, k)) for k in range(workers)]
        found = np.array([future.result(timeout=100) for future in going])
    expected = np.array([sign * own.mean(0) for own in vectors for sign in (1, -1)])
    np.testing.assert_allclose(found, np.tile(expected, (workers, 1, 1)), rtol=1e-5, atol=1e-6)
    assert (found == found[0]).all()


def means_of(workers, way):
    """For each worker, a function that reduces a vector part by part."""
    store = SimpleNamespace(num_workers=workers, min_workers=workers, in_process=False)
    slots = [SimpleNamespace(index=k, mail=Channels(k, ["/device:CPU:0"] * workers, way)) for k in range(workers)]

    def mean(slot, vector):
        return tf.concat([Collective().mean(store, slot, part) for part in tf.split(vector, SIZES)], 0)

    return [partial(mean, slot) for slot in slots]


@pytest.mark.parametrize("where", [0, 1, 50_000, 99_999])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_every_worker_sees_one_element_of_one_message_that_is_not_finite(where, value):
    """It looks at one element of each slice, whichever worker has added that up."""
    workers, size = 3, 100_000
    store = Books(
        num_workers=workers, min_workers=workers, in_process=False, released=SimpleNamespace(assign=lambda _: None)
    )

    def received(k, given):
        mail = Channels(k, ["/device:CPU:0"] * workers, Transport())
        slot = WorkerSlot(k, "", None, None, mail=mail).with_times(tf.fill([3], tf.constant(k, tf.int64)))
        reply = Collective().exchange(store, slot, Message(given))
        return Collective().is_finite(store, reply), reply

    with tf.Graph().as_default() as graph:
        given = tf.compat.v1.placeholder(tf.float32, [size])
        functions = [traced(partial(received, k), given) for k in range(workers)]
    vectors = np.ones((2, workers, size), np.float32)
    vectors[1, 1, where] = value
    with tf.compat.v1.Session(graph=graph) as session:

        def rounds(k):
            return [session.run(functions[k], {given: own[k]}) for own in vectors]

        for going in [in_thread(partial(rounds, k)) for k in range(workers)]:
            (fine, reply), (spoiled, _) = going.result(timeout=100)
            assert (fine, spoiled) == (True, False)
            assert (reply == 1).all()


class Books(SimpleNamespace):
    """A store in which nothing is written down."""

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
        found = [traced(partial(both, k)) for k in range(2)]
    with tf.compat.v1.Session(graph=graph) as session:
        for number, vector in session.run(found):
            assert (number, vector.tolist()) == (3.5, [4.5, 6.5])


def test_running_statistics_are_the_workers_mean_at_each_worker_and_stored():
    with tf.Graph().as_default() as graph:
        store = SimpleNamespace(num_workers=3, min_workers=3, in_process=False, states=tf.Variable(tf.zeros([3, 2])))

        def shared(k):
            slot = SimpleNamespace(index=k, mail=Channels(k, ["/device:CPU:0"] * 3, Transport()))
            return Collective().share_state(store, slot, [0.0, 3.0, 9.0][k] + tf.constant([1.0, -1.0]))

        functions = [traced(partial(shared, k)) for k in range(3)]
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(store.states.initializer)
        assert np.array(session.run(functions)).tolist() == [[5.0, 3.0]] * 3
        assert session.run(store.states).tolist() == [[5.0, 3.0]] * 3


@pytest.mark.parametrize(("size", "workers"), [(1, 4), (LEAST, 2), (LEAST + 1, 2), (4 * LEAST, 3), (21_000_000, 7)])
def test_slices_are_aligned_and_together_they_are_the_vector(size, workers):
    slices = slices_of(size, workers)
    ends = [part.stop for part in slices.values()]
    assert [part.start for part in slices.values()] == [0, *ends[:-1]]
    assert (ends[-1], list(slices)) == (size, list(range(len(slices))))
    assert all(part.start % 16 == 0 < part.stop - part.start for part in slices.values())
    assert max(part.stop - part.start for part in slices.values()) < max(size / workers, LEAST) + 16
