"""The parts of a worker one by one, without a run: what is dropped, counted and timed, and what a checkpoint awaits."""

from types import MethodType, SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from distsgd.common.messages.ops import building
from distsgd.common.server.answers import NEVER, NONE, PausedWorkers
from distsgd.common.sync.store import Message, WorkerSlot
from distsgd.common.tasks.local_state import LocalState
from distsgd.common.tasks.standstill import Standstill
from distsgd.common.worker import without_copy
from distsgd.common.worker.fed_worker import FedWorker
from distsgd.common.worker.replica import Replica
from distsgd.common.worker.timing import RoundTimer, moment
from distsgd.common.worker.worker import DenseWorker

ROWS = np.zeros((1, 2), np.int32)


def run(build, **variables):
    """Run what `build(**variables)` makes of variables, in the order of its lines, in a graph of its own."""
    with building(tf.Graph()), tf.compat.v1.Session() as session:
        made = {name: tf.Variable(value) for name, value in variables.items()}
        fetches = tf.function(lambda: build(**made), autograph=False)()
        session.run(tf.compat.v1.global_variables_initializer())
        return session.run(fetches)


def before(op, found=None):
    """Return the operations that have run when `op` runs."""
    found = set() if found is None else found
    for other in {*(tensor.op for tensor in op.inputs), *op.control_inputs} - found:
        found.add(other)
        before(other, found)
    return found


def worker_of(**own):
    """A worker of two whose message is a vector of ones."""
    own = {"index": 1, "loss": 0.5, "overlap": 0, "averages": [], "is_center": False} | own
    worker = SimpleNamespace(
        slot=WorkerSlot(own.pop("index"), "/device:CPU:0", None, None),
        views=[SimpleNamespace(round=tf.constant(0, tf.int64))],
        local_steps=lambda rows, after, first: tf.constant(own["loss"]),
        _last_gradient=list,
        message=lambda scheme, begun, total: Message(tf.ones([3])),
        on_reply=lambda scheme, reply: None,
        ps=SimpleNamespace(center=SimpleNamespace(ema_decay=None), last_version=None),
        **own,
    )
    return worker


@pytest.mark.parametrize("finite", [True, False])
def test_without_a_ps_the_running_statistics_of_a_dropped_round_are_dropped(finite):
    sync = SimpleNamespace(buckets=1, gossips=False, is_finite=lambda *_: tf.constant(finite))
    sync.exchange = lambda ps, slot, message: message.vector

    def build(state, clock):
        def local_steps(*_):
            state.assign([2.0])
            return tf.constant(0.5)

        replica = SimpleNamespace(state=state, model=SimpleNamespace(state_size=1))
        replica.keep_state = MethodType(Replica.keep_state, replica)
        timer = RoundTimer(moment(), tf.zeros([2], tf.int64))
        worker = worker_of(replica=replica, clock=clock)
        worker.local_steps = local_steps
        DenseWorker._collective_round(worker, SimpleNamespace(sync=sync), ROWS, timer, 0)
        return state.read_value()

    assert run(build, state=[1.0], clock=0).tolist() == [2.0 if finite else 1.0]


@pytest.mark.parametrize(("loss", "element"), [(0.5, 1.0), (np.inf, 1.0), (0.5, np.nan)])
def test_a_pair_averages_no_parameters_after_a_loss_or_an_element_that_is_not_finite(loss, element):
    asked, rule = [], SimpleNamespace(meet=lambda *_: None)

    def check(conditions):
        asked.extend(conditions)
        return tf.no_op()

    def build():
        worker = worker_of(loss=loss)
        worker.message = lambda *_: Message(tf.constant([1.0, element]))
        worker.ps.transactions = SimpleNamespace(check=check)
        timer = RoundTimer(moment(), tf.zeros([2], tf.int64))
        DenseWorker._round_in_pairs(worker, SimpleNamespace(sync=rule), ROWS, timer, 0)
        return asked

    assert run(build) == [np.isfinite(loss) and np.isfinite(element)]


def test_rounds_in_one_call_are_numbered_and_so_are_their_steps():
    numbers = []

    def one(rows, event, timer, number, first):
        numbers.append([number, first])
        return tf.zeros([2])

    def build():
        worker = SimpleNamespace(device="/device:CPU:0", scheme=SimpleNamespace(exchange_first=False), round=one)
        DenseWorker.rounds(worker, tf.zeros([3, 4, 8], tf.int32), "exchange", tf.constant([5, 20, -1, -1], tf.int64))
        return numbers

    assert np.array(run(build)).tolist() == [[5, 20], [6, 24], [7, 28]]


def fed_worker(**own):
    worker = object.__new__(FedWorker)
    vars(worker).update({"views": [SimpleNamespace(params=None)], "replica": SimpleNamespace(), **own})
    return worker


@pytest.mark.parametrize("exchange_first", [False, True])
def test_a_round_that_a_script_ends_early_has_the_steps_that_were_made(exchange_first):
    worker = fed_worker(scheme=SimpleNamespace(exchange_first=exchange_first))
    worker.views[0].steps = 10.0
    worker._end_steps(20, tf.constant(3))
    assert (int(worker.views[0].step), float(worker.views[0].steps)) == (23, 10.0 if exchange_first else 3.0)


def test_a_step_of_a_script_s_own_optimizer_counts_for_schedules():
    worker = fed_worker(scheme=SimpleNamespace(plain_inner_steps=True), scheduled=True)
    worker.clock, worker.views[0].params = tf.Variable(4), tf.Variable([1.0])
    worker.replica.is_point = tf.constant(True)
    worker._step([tf.constant([3.0])])
    assert (int(worker.clock), worker.views[0].params.numpy().tolist()) == (5, [3.0])


@pytest.mark.parametrize("in_parts", [False, True])
def test_the_first_part_of_a_message_leaves_after_its_time_and_in_buckets_the_others_do_not_wait(in_parts):
    with tf.Graph().as_default():
        parts = [tf.identity(tf.ones([2]), name=f"part_{i}") for i in range(2)]
        timer = RoundTimer(moment(), tf.zeros([2], tf.int64))
        sent = timer.send(Message(tf.concat(parts, 0)), in_parts=in_parts)
        time = timer.ready.op
        assert {part.op for part in parts} <= before(time)
        assert [time in before(part.op) for part in sent.vector.op.inputs[:2]] == [True, not in_parts]


def test_a_sparse_round_begins_when_its_coordinates_are_read(monkeypatch):
    timers = []

    class Kept(RoundTimer):
        def __init__(self, *times):
            super().__init__(*times)
            timers.append(self)

    monkeypatch.setattr(without_copy, "RoundTimer", Kept)
    with tf.Graph().as_default():
        read = tf.identity(tf.zeros([4]), name="read")
        sync = SimpleNamespace(gather=lambda *_: read, push=lambda *_: None)
        worker = object.__new__(without_copy.SparseWorker)
        worker.scheme, worker.ps, worker.view = SimpleNamespace(sync=sync), None, SimpleNamespace()
        worker.scheme.message = lambda view: view.gradient
        batch = tf.zeros([2, 2], tf.int32), tf.zeros([2, 2]), tf.zeros([2], tf.int32)
        worker.source, worker.slot = SimpleNamespace(batch=lambda rows: batch), WorkerSlot(0, "", None, None)
        worker._gradient_function = without_copy.logistic_gradient
        worker.round(ROWS[0], tf.zeros([2], tf.int64), first=True, last=True)
        assert read.op in before(timers[0].begun.op)


# Checkpoints.


@pytest.mark.parametrize(
    ("wanted", "asked", "copies"), [(False, NEVER, 0), (False, NONE, 1), (False, 40, 1), (True, NEVER, 1)]
)
def test_a_worker_leaves_a_copy_at_its_end_if_checkpoints_are_written(wanted, asked, copies):
    local, written = object.__new__(LocalState), []
    local.keeping, local.progress = SimpleNamespace(keeps=True), SimpleNamespace(stopping=False, rounds=7)
    local.wanted_at_end = wanted
    local.calls = SimpleNamespace(read_asked=lambda: asked, write_copy=lambda *copy: written.append(copy))
    local.end()
    assert written == [(7, True)] * copies


@pytest.mark.parametrize("meets", ["", "rounds", "version"])
@pytest.mark.parametrize("uses_ps", [True, False])
def test_a_state_is_read_while_a_worker_moves_only_where_its_messages_take_the_lock(uses_ps, meets):
    keeping = SimpleNamespace(meets=meets, waits_for_all=not uses_ps)
    now = PausedWorkers(np.array([True, False]), np.array([4, 4]), np.True_)
    standstill = Standstill(keeping, lambda: 100.0)  # pyright: ignore[reportArgumentType]
    calls = SimpleNamespace(paused_workers=lambda: now)
    assert standstill._stands(calls, lambda: True, most=-1.0) == uses_ps
    # A worker in its first round has no state, and is not waited for unless all meet.
    first = PausedWorkers(np.array([True, False]), np.array([4, 0]), np.True_)
    assert [standstill._all_stand(each) for each in (now, first)] == [False, not meets]
