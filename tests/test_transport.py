"""Vectors that go from process to process of one machine in memory that both have."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import signal
import subprocess
import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import EASGD, AsyncSGD, LocalSGD, SyncSGD
from distsgd.common.errors import UserError
from distsgd.common.launch import sessions
from distsgd.common.messages import ops, segments, transport
from distsgd.common.messages.cut import cut_into
from distsgd.common.messages.segments import Segments
from distsgd.common.record_format import read_config
from distsgd.common.server.failures import is_absence
from distsgd.common.sync.store import Message
from distsgd.common.worker.buckets import Buckets
from distsgd.common.worker.timing import RoundTimer, moment
from doubles import HalvedLocalSGD
from runs import DIGITS, record

pytestmark = pytest.mark.skipif(not segments.available(), reason="no memory without a name here")

PR_SET_DUMPABLE = 4

WORDS = np.frombuffer(b"in one place", np.uint8)

BIG = (1024, 256)  # 330 thousand parameters: more than a megabyte

# Another process, which reads the array of a handle and prints it.
READER = """
import sys
import numpy as np
from distsgd.common.messages.segments import Segments
words = Segments().take(np.array(sys.argv[1:], np.int64))
print(words.tobytes().decode(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def reader():
    """Start a process that takes the array of a handle, and keeps it until it is killed."""
    started = []

    def start(handle):
        command = [sys.executable, "-c", READER, *map(str, handle)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_process_that_lets_no_other_in_shares_no_memory(monkeypatch):
    """Its own it could open: a run began, and ended at its first large vector."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0)
    try:
        assert not segments.available()
    finally:
        libc.prctl(PR_SET_DUMPABLE, 1)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    here, there = Segments(), Segments()
    monkeypatch.setattr(segments.os, "open", refuse)
    with pytest.raises(RuntimeError, match=r"lets no other into its memory .*: use --transport sockets$"):
        there.take(here.put(WORDS))


def test_a_segment_is_written_again_only_when_its_last_reader_released_it():
    here, there = Segments(), Segments()
    first = there.take(here.put(WORDS))
    second = there.take(here.put(WORDS[::-1].copy()))
    assert first.tobytes() == b"in one place"
    assert second.tobytes() == b"ecalp eno ni"
    assert here.count() == 2
    del first
    gc.collect()
    third = there.take(here.put(WORDS))
    assert here.count() == 2
    assert second.tobytes() == b"ecalp eno ni"
    assert third.tobytes() == b"in one place"


def test_a_segment_on_its_way_is_not_written_again():
    here = Segments()
    handle = here.put(WORDS)
    assert here.put(WORDS[::-1].copy()).tolist() != handle.tolist()
    assert Segments().take(handle).tobytes() == b"in one place"


def test_a_shared_segment_is_written_once_and_reused_after_its_last_reader():
    here, there = Segments(), Segments()
    kept = here.take(here.put(WORDS))
    handles = [here.put(kept) for _ in range(3)]
    assert len({tuple(handle) for handle in handles}) == 3  # each reader has a mark of its own
    first, second = (there.take(handle) for handle in handles[:2])
    assert here.count() == 1
    del kept, first
    gc.collect()
    for holder in ("a reader", "one on the way"):
        here.take(here.put(WORDS[::-1].copy()))
        assert here.count() == 2, holder
        assert second is None or second.tobytes() == b"in one place"
        second = None
        gc.collect()
    assert Segments().take(handles[2]).tobytes() == b"in one place"
    others = [here.put(WORDS) for _ in range(2)]
    assert here.count() == 2
    assert len({handle[2] for handle in others}) == 2


def test_a_part_of_a_segment_is_not_taken_for_the_whole():
    here = Segments()
    kept = here.take(here.put(WORDS))
    assert Segments().take(here.put(kept[:6])).tobytes() == b"in one"
    assert Segments().take(here.put(kept, kept)).tobytes() == 2 * b"in one place"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_segment_is_free_again_when_its_reader_in_another_process_dies(reader, end):
    here = Segments()
    process, read = reader(here.put(WORDS))
    assert read == "in one place"
    here.put(WORDS)
    assert here.count() == 2
    process.send_signal(end)
    process.wait()
    here.put(WORDS)
    assert here.count() == 2


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_segment_with_two_readers_is_kept_after_the_first_released_it(elsewhere):
    """And no other reader is on the way to it."""
    here = Segments()
    there = Segments() if elsewhere else here
    kept = here.take(here.put(WORDS))
    first, second = (there.take(here.put(kept)) for _ in range(2))
    del kept, first
    gc.collect()
    others = here.take(here.put(WORDS[::-1].copy()))
    assert second.tobytes() == b"in one place"
    assert others.tobytes() == b"ecalp eno ni"
    assert here.count() == 2
    del second
    gc.collect()
    here.put(WORDS)
    assert here.count() == 2


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def clock(monkeypatch):
    """The clock of segments, which stands still until it is set."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(segments, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_unused_segments_are_closed_by_maker_and_reader(clock):
    before, here, there = descriptors(), Segments(), Segments()
    kept = [there.take(here.put(WORDS)) for _ in range(8)]
    assert (here.count(), descriptors() - before) == (8, 32)  # of maker and reader, a map has one, too
    last = kept[3]
    kept.clear()
    clock.seconds += segments.IDLE_SECONDS
    there.take(here.put(WORDS))
    assert here.count() == 2  # that, and the one that is still read
    assert last.tobytes() == b"in one place"
    assert descriptors() - before == 8
    del last
    clock.seconds += segments.IDLE_SECONDS
    there.take(here.put(WORDS))
    assert (here.count(), descriptors() - before) == (1, 4)


def test_at_most_some_segments_of_one_maker_stay_open(monkeypatch):
    monkeypatch.setattr(segments, "SEEN", 4)
    here, there = Segments(), Segments()
    handles = [here.put(np.full(3, k, np.uint8)) for k in range(20)]
    made = descriptors()
    words = [there.take(handle) for handle in handles]
    assert [word[0] for word in words] == list(range(20))  # arrays keep their memory
    words.clear()
    assert descriptors() - made == 2 * 4


@pytest.fixture
def opened(monkeypatch):
    """The names of the segments of others that are opened, one after the other."""
    names, inner = [], segments._opened

    def open_one(*key):
        names.append(key[-1])
        return inner(*key)

    monkeypatch.setattr(segments, "_opened", open_one)
    return names


def test_segments_that_are_used_stay_open_with_maker_and_reader(clock, opened):
    here, there = Segments(), Segments()
    for _ in range(5):
        there.take(here.put(WORDS))
        clock.seconds += 0.6 * segments.IDLE_SECONDS
    assert len(opened) == 1


def test_the_segments_used_last_stay_open_if_there_are_too_many(monkeypatch, opened):
    monkeypatch.setattr(segments, "SEEN", 2)
    here, there = Segments(), Segments()
    kept = [here.take(here.put(np.full(3, k, np.uint8))) for k in range(3)]
    for k in (0, 1, 0, 2, 0):
        there.take(here.put(kept[k]))
    assert len(opened) == 3


def test_segments_of_an_ended_process_are_closed_when_another_is_opened():
    there, here = Segments(), Segments()
    code = "import sys, numpy as np; from distsgd.common.messages.segments import Segments; made = Segments(); "
    code += "[print(*made.put(np.full(3, k, np.uint8)), flush=True) for k in range(3)]; sys.stdin.read()"
    before = descriptors()
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as maker:
        handles = [np.array(maker.stdout.readline().split(), np.int64) for _ in range(3)]
        words = [there.take(handle) for handle in handles]
        with pytest.raises(subprocess.TimeoutExpired):
            maker.wait(0)
        maker.kill()
    assert descriptors() - before == 6
    assert [word[0] for word in words] == [0, 1, 2]
    words.clear()
    there.take(here.put(WORDS))
    assert descriptors() - before == 4  # of the new one alone, maker and reader


def test_too_few_descriptors_raise_before_tensorflow_aborts(monkeypatch):
    here = Segments()
    monkeypatch.setattr(segments.resource, "getrlimit", lambda _: (descriptors() + 10, 10**6))
    with pytest.raises(
        RuntimeError, match=r"\d+ file descriptors are in use, and \d+ allowed: raise the limit .*sockets"
    ):
        here.put(WORDS)


def test_a_run_that_may_need_too_many_descriptors_is_refused_at_its_start(monkeypatch, tmp_path):
    """A ps was killed by SIGABRT in the middle of the run, and nothing said why."""
    monkeypatch.setattr(segments, "allowed", lambda: 150)
    with pytest.raises(
        UserError, match=r"4 tasks that share memory need up to 160 .* and 150 are allowed.*ulimit -n 160"
    ):
        record(AsyncSGD(), tmp_path, workers=2, steps=1, hidden=BIG, test=DIGITS.test)


@pytest.mark.rotating
def test_a_run_without_large_vectors_needs_no_more_descriptors(monkeypatch, tmp_path, warm):
    monkeypatch.setattr(segments, "allowed", lambda: 100)
    assert record(AsyncSGD(), tmp_path, workers=1, steps=1, hidden=(8,)).result["outcome"] == "completed"


def test_a_ticket_of_an_ended_process_is_an_absence():
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    with pytest.raises(RuntimeError, match="does not have its segment any more") as raised:
        Segments().take(handle := np.array([int(process.stdout), 3, 1, 8]))
    assert is_absence(raised.value)
    with pytest.raises(tf.errors.UnavailableError, match="segment gone"):  # tasks catch those of TensorFlow
        transport.fetched(transport.SharedTensor(handle, tf.float32, [1]))


def test_a_descriptor_that_another_segment_has_taken_is_not_read():
    here = Segments()
    process, descriptor, name, mark = here.put(WORDS)
    with pytest.raises(RuntimeError, match="another has its number"):
        Segments().take(np.array([process, descriptor, name + 1, mark]))


def test_a_variable_that_is_a_message_keeps_it_when_the_next_ones_come():
    """A rule may put a message into a variable as it is. Nothing is copied then, and nothing may change."""
    size = transport.SHARED_BYTES // 4
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        way, message = transport.SharedMemory(), tf.compat.v1.placeholder(tf.float32, [size])
        came = way.receive(way.send(message))
        kept = tf.Variable(tf.zeros([size]))
        keep, add = kept.assign(came), kept.assign_add(came)
        session.run(kept.initializer)
        for k in range(1, 4):
            session.run(keep, {message: np.full(size, k)})
            assert [session.run(came, {message: np.full(size, 10 * k + i)})[0] for i in range(3)] == [
                10 * k + i for i in range(3)
            ]
            assert (session.run(kept) == k).all()
            session.run(add, {message: np.full(size, 1)})
            assert (session.run(kept) == k + 1).all()


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int8])
def test_tensors_of_every_codec_arrive_as_they_were(dtype):
    size = transport.SHARED_BYTES
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        way = transport.SharedMemory()
        sent = tf.cast(tf.range(size) % 251 - 125, dtype)
        shared_tensor = way.send(sent)
        assert isinstance(shared_tensor, transport.SharedTensor)
        came, sent = session.run([way.receive(shared_tensor), sent])
    assert np.array_equal(came, sent)


def test_a_concatenated_message_is_concatenated_in_the_segment():
    size = transport.SHARED_BYTES // 8
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        parts = [tf.fill([size], 1.0), tf.fill([1], 2.0), tf.range(float(size))]
        way, timer = transport.SharedMemory(), RoundTimer(moment(), before=[-1, -1])
        sent = timer.send(Message(tf.concat(parts, 0))).vector
        came = session.run(way.receive(way.send(sent)))
        written = next(op for op in graph.get_operations() if op.type == "PyFunc")
    assert np.array_equal(came, np.concatenate([np.ones(size), [2], np.arange(size)]))
    assert len(written.inputs) == 1 + len(parts)  # and where they are in their vectors


@pytest.mark.parametrize("sizes", [[1 << 18, 1 << 18], [1 << 17, 1 << 18, 1 << 17]], ids=["apart", "across"])
def test_a_step_on_pieces_of_a_reply_writes_nothing_that_others_read(sizes, monkeypatch):
    """Of two ps tasks. TensorFlow takes the last view of a segment for memory of its own."""
    monkeypatch.setattr(transport, "SEGMENTS", Segments())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        way, replies = transport.SharedMemory(), [tf.fill([1 << 18], 1.0), tf.fill([1 << 18], 2.0)]
        params = [tf.Variable(tf.zeros([size])) for size in sizes]

        def on_reply(*replies):
            reply = tf.concat([way.receive(way.send(reply)) for reply in replies], 0)
            for variable, part in zip(params, Buckets(sizes, apart=True).cut(reply), strict=True):
                variable.assign(part)
            return tf.constant(True)

        adopted = tf.function(on_reply, autograph=False)(*replies)
        session.run([variable.initializer for variable in params])
        session.run(adopted)
        stepped = np.concatenate(session.run([variable.assign_sub(tf.ones_like(variable)) for variable in params]))
    assert (stepped == np.repeat([0.0, 1.0], 1 << 18)).all()
    (written,) = transport.SEGMENTS._own.values()
    assert sorted(np.unique(one.bytes().view(np.float32)).tolist() for one in written) == [[1.0], [2.0]]


def test_a_reply_to_many_is_copied_once_and_stays_when_the_center_moves():
    size = transport.SHARED_BYTES // 4
    before = transport.SEGMENTS.count()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        way, center = transport.SharedMemory(), tf.Variable(tf.ones([size]))
        kept = tf.Variable(tf.zeros([size]))
        keep, step = kept.assign(way.share(center.read_value())), center.assign_add(tf.ones([size]))
        replies = [way.send(kept.read_value()) for _ in range(3)]
        session.run([center.initializer, kept.initializer])
        session.run(keep.op)
        session.run(step.op)
        handles = session.run([reply.handle for reply in replies])
    assert len({tuple(handle[:3]) for handle in handles}) == 1
    assert transport.SEGMENTS.count() <= before + 1
    there = Segments()
    assert all((there.take(handle).view(np.float32) == 1).all() for handle in handles)


def test_slices_of_a_concatenated_vector_are_written_without_copies():
    size = transport.SHARED_BYTES // 2
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        parts = [tf.range(float(size)), tf.fill([3], 7.0), tf.range(float(size))]
        whole, way, sizes = tf.concat(parts, 0), transport.SharedMemory(), [size - 5, size + 8]
        slices = cut_into(whole, sizes)
        came = [way.receive(way.send(part)) for part in slices]
        vector, *arrived = session.run([whole, *came])
        written = [op for op in graph.get_operations() if op.type == "PyFunc" and op.inputs[0].op.type == "Const"]
    assert np.array_equal(np.concatenate(arrived), vector)
    assert [len(part) for part in arrived] == sizes
    sources = [source.op.inputs[0] for op in written for source in op.inputs[1:]]
    assert [[part is source for part in parts].index(True) for source in sources] == [0, 0, 1, 2]


def test_a_slice_that_is_a_part_of_a_concatenation_is_not_concatenated_again():
    with tf.Graph().as_default():
        parts = [tf.zeros([5]), tf.zeros([3]), tf.zeros([8])]
        assert [piece.op.type for piece in cut_into(tf.concat(parts, 0), [5, 3, 8])] == ["StridedSlice"] * 3


@pytest.mark.parametrize("name", transport.TRANSPORTS)
def test_a_client_feeds_and_fetches_the_vectors_of_the_graph(name):
    size = transport.SHARED_BYTES // 4
    vector = np.arange(2 * size, dtype=np.float32).reshape(2, size)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        way, shared = transport.TRANSPORTS[name](), name == "memory"
        client, kept = transport.Client(way, "/cpu:0"), tf.Variable(tf.zeros([2, size]))
        place = client.feed(tf.float32, [2, size])
        keep, seen = kept.assign(way.receive(place)), client.fetch(way.send(kept + 1))
        session.run(keep.op, dict(zip(tf.nest.flatten(place), [transport.fed(place, vector)], strict=True)))
        (found,) = session.run(tf.nest.flatten(seen))
        array = transport.fetched(tf.nest.pack_sequence_as(seen, [found]))
        assert isinstance(place, transport.SharedTensor) == isinstance(seen, transport.SharedTensor) == shared
    assert np.array_equal(array, vector + 1)
    if shared:
        segment = next(one for own in transport.SEGMENTS._own.values() for one in own if one.name == found[2])
        assert not segment.is_free()
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
        del array
        assert segment.is_free()


def test_a_session_keeps_no_large_constant_of_zeros():
    """TensorFlow would make it when it prepares the graph, and keep it as long as the session is there."""
    size = 1 << 22
    with tf.Graph().as_default() as graph:
        variable, other = tf.Variable(ops.zeros(size)), tf.Variable(ops.zeros(size))
        blank = other.assign(tf.zeros_like(variable.read_value()))
        told = tf.compat.v1.RunMetadata()
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        session = sessions.open_session("", graph, tf.compat.v1.ConfigProto(), 60)
        made = [variable.initializer, other.initializer]
        session.run(made)
        assert not session.run([*made, blank], options=options, run_metadata=told)[-1].any()
        session.close()
    prepared = [node for part in told.partition_graphs for node in part.node if node.op == "Const"]
    sizes = [math.prod(dim.size for dim in node.attr["value"].tensor.tensor_shape.dim) for node in prepared]
    assert max(sizes, default=0) < size


def test_small_tensors_and_those_of_unknown_size_go_through_sockets():
    with tf.Graph().as_default():
        for shape in ([transport.SHARED_BYTES // 4 - 1], [None]):
            tensor = tf.compat.v1.placeholder(tf.float32, shape)
            assert transport.SharedMemory().send(tensor) is tensor
        large = tf.zeros([transport.SHARED_BYTES])
        assert transport.Transport().send(large) is large


def test_a_variable_that_keeps_a_view_of_shared_memory_writes_to_it():
    """TensorFlow does so if it is the last view left, and copies a whole vector: only elementwise schemes share one."""
    size, way = 1 << 18, transport.SharedMemory()
    with tf.Graph().as_default() as graph:
        given, handle = tf.compat.v1.placeholder(tf.float32, [size]), tf.compat.v1.placeholder(tf.int64, [4])
        written = way.send(given).handle
        reply = way.receive(transport.SharedTensor(handle, tf.float32, given.shape))
        params, half = tf.Variable(tf.zeros([size])), tf.Variable(tf.zeros([size // 2]))
        on_reply = params.assign(reply).op
        keep = half.assign(params.read_value()[: size // 2]).op
        step, more = params.assign_add(given).op, half.assign_add(tf.ones([size // 2])).op
        start = tf.compat.v1.global_variables_initializer()
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(start)
        place = session.run(written, {given: np.zeros(size, np.float32)})
        session.run(on_reply, {handle: place})
        session.run(keep)
        others = transport.SEGMENTS.take(place).view(np.float32)
        session.run(step, {given: np.ones(size, np.float32)})
        assert (others == 0).all()
        session.run(more)
        assert (others[: size // 2] == 1).all()
        assert (others[size // 2 :] == 0).all()


@pytest.mark.parametrize(
    ("scheme", "ps"),
    [
        (SyncSGD(backup_workers=1), 1),
        (EASGD(communication_period=2), 2),
        (LocalSGD(communication_period=2), 1),  # all adopt pieces of one reply
    ],
    ids=lambda value: getattr(value, "name", None),
)
@pytest.mark.rotating
def test_a_run_in_shared_memory_replays(scheme, ps, warm, tmp_path):
    run = record(scheme, tmp_path / "run", workers=3, ps=ps, steps=6 * scheme.period, hidden=(1024, 512))
    assert read_config(tmp_path / "run")["transport"] == "memory"
    assert run.error() < 1e-5


@pytest.mark.parametrize(
    ("scheme", "workers"),
    [
        (AsyncSGD(), 1),
        (HalvedLocalSGD(communication_period=2), 2),  # all read one reply
    ],
    ids=lambda value: getattr(value, "name", None),
)
@pytest.mark.rotating
def test_the_same_bits_come_through_each_transport(scheme, workers, warm, tmp_path):
    ways = [*transport.TRANSPORTS]
    runs = [
        record(scheme, tmp_path / way, workers=workers, steps=4 * scheme.period, hidden=BIG, transport=way)
        for way in ways
    ]
    assert [read_config(tmp_path / way)["transport"] for way in ways] == ways
    assert all(np.array_equal(a.center, b.center) for a, b in pairwise(runs))
