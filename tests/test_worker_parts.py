"""The parts of a worker one by one, without a run: what is dropped, counted and timed, and what a checkpoint awaits."""

from types import MethodType, SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import AsyncSGD
from distsgd.common.messages.ops import building
from distsgd.common.server.answers import NEVER, NONE, PausedWorkers, Positions
from distsgd.common.sync.store import Message, WorkerSlot
from distsgd.common.tasks.local_state import LocalState
from distsgd.common.tasks.progress import Progress
from distsgd.common.tasks.standstill import Standstill
from distsgd.common.tasks.worker_calls import NO_END, Done
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


@pytest.mark.parametrize(
    ("exchanges", "finite", "found"), [(True, True, (2, 4)), (True, False, (2, 0)), (False, True, (4, 2))]
)
def test_a_round_has_the_mean_loss_of_its_steps_and_the_number_of_those_that_were_not_dropped(exchanges, finite, found):
    """Of four steps with a sum of 8. A worker alone drops two, whose losses are not in the sum."""
    sync = SimpleNamespace(exchanges=exchanges, in_pairs=False, uses_ps=False, most_left_out=lambda workers: 0)
    scheme = SimpleNamespace(sync=sync)

    def build(state):
        replica = SimpleNamespace(state=state, model=SimpleNamespace(state_size=0))
        worker = worker_of(replica=replica, _scheme_now=lambda: scheme)
        worker.ps.num_workers = 2
        worker._collective_round = lambda *_: (tf.constant(8.0), tf.constant(finite))
        worker._steps_alone = lambda *_: (tf.constant(8.0), tf.constant(2.0))
        return DenseWorker.round(worker, tf.zeros([4, 8], tf.int32), "exchange", None, 0, 0)

    assert run(build, state=[0.0]).tolist() == [*found]


def test_a_worker_reports_the_mean_of_the_losses_that_are_finite():
    said, plan = [], SimpleNamespace(scheme=AsyncSGD(), workers=2)
    progress = Progress(SimpleNamespace(index=1), plan, "drop", lambda **event: said.append(event))
    progress.count([ROWS] * 3, Done(np.array([1.0, np.nan, 3.0]), np.array([1, 0, 1]), NO_END))
    progress.report_figures()
    assert said == [
        {"event": "refused", "worker": 1, "number": 1},
        {"event": "worker", "worker": 1, "steps": 3, "loss": 2.0},
    ]


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
        worker = SimpleNamespace(device="/device:CPU:0", round=one)
        before = tf.constant([5, 20, 60, 70], tf.int64)
        DenseWorker.rounds(worker, tf.zeros([3, 4, 8], tf.int32), "exchange", before)
        return numbers

    assert np.array(run(build)).tolist() == [[5, 20], [6, 24], [7, 28]]


def test_rounds_without_a_copy_are_numbered_too():
    numbers = []

    class Counting(without_copy.WithoutCopy):
        def round(self, rows, before, first, last):
            numbers.append([self.view.round, self.view.step, tf.constant([first, last])])
            return tf.constant(0.5), before

    def build():
        worker = object.__new__(Counting)
        worker.device, worker.view = "/device:CPU:0", SimpleNamespace()
        worker.rounds(tf.zeros([3, 1, 8], tf.int32), "exchange", tf.constant([5, 5, -1, -1], tf.int64))
        return [list(map(tf.convert_to_tensor, ones)) for ones in numbers]

    found = [(int(number), int(step), *ends) for number, step, ends in run(build)]
    assert found == [(5, 5, True, False), (6, 6, False, False), (7, 7, False, True)]


def fed_worker(**own):
    worker = object.__new__(FedWorker)
    vars(worker).update({"views": [SimpleNamespace(params=None)], "replica": SimpleNamespace(), **own})
    return worker


def test_a_round_that_a_script_ends_early_has_the_steps_that_were_made():
    worker = fed_worker()
    worker.views[0].steps = 10.0
    worker._end_steps(20, tf.constant(3))
    assert (int(worker.views[0].step), float(worker.views[0].steps)) == (23, 3.0)


def test_a_step_of_a_script_s_own_optimizer_counts_for_schedules():
    worker = fed_worker(scheme=SimpleNamespace(makes_inner_steps=True), scheduled=True)
    worker.clock, worker.views[0].params = tf.Variable(4), tf.Variable([1.0])
    worker.replica.is_point = tf.constant(True)
    worker._step([tf.constant([3.0])])
    assert (int(worker.clock), worker.views[0].params.numpy().tolist()) == (5, [3.0])


@pytest.mark.parametrize("more", [False, True])
def test_the_loop_of_a_script_that_has_left_ends_without_a_step(more):
    worker = fed_worker()
    worker.replica.more, steps = tf.constant(more), []
    worker._gradient = lambda rows: (tf.constant(0.5), [tf.ones([2])])
    worker._step = steps.append
    _, _, (continues,) = worker._local_step(ROWS[0], tf.constant(1))
    assert (bool(continues), len(steps), bool(worker.replica.may_end)) == (more, int(more), True)


def test_steps_beside_a_message_are_computed_after_it_is_ready():
    with tf.Graph().as_default():
        timer = RoundTimer(moment(), tf.zeros([2], tf.int64))
        timer.send(Message(tf.identity(tf.ones([2]))))
        ready, steps = timer.ready, tf.identity(tf.ones([]))
        assert timer.computed is ready
        timer.overlap(steps)
        assert timer.ready is ready
        assert {ready.op, steps.op} <= before(timer.computed.op)


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
    local.wanted_at_end, local.interrupted = wanted, str
    local.calls = SimpleNamespace(read_asked=lambda: asked, write_copy=lambda *copy: written.append(copy))
    local.end()
    assert written == [(7, True)] * copies


@pytest.mark.parametrize("meets", ["", "rounds", "version"])
@pytest.mark.parametrize("uses_ps", [True, False])
def test_a_state_is_read_while_a_worker_moves_only_where_its_messages_take_the_lock(uses_ps, meets):
    keeping = SimpleNamespace(meets=meets, waits_for_all=not uses_ps)
    now = PausedWorkers(np.array([True, False]), np.array([4, 4]), np.True_)
    standstill = Standstill(keeping, lambda: 100.0, int)  # pyright: ignore[reportArgumentType]
    calls = SimpleNamespace(paused_workers=lambda: now)
    assert standstill._stands(calls, lambda: True, most=-1.0, last=False) == uses_ps
    assert standstill.moving == "worker 1"
    # A worker in its first round has no state, and is not waited for unless all meet.
    first = PausedWorkers(np.array([True, False]), np.array([4, 0]), np.True_)
    assert [standstill._standing(each).all() for each in (now, first)] == [False, not meets]


@pytest.mark.parametrize(
    ("meets", "gossips", "meeting"), [("version", False, 18), ("rounds", False, 20), ("version", True, 5004 + 3 + 8)]
)
def test_workers_meet_after_the_present_call_of_each_and_one_more(meets, gossips, meeting):
    """Of 4 rounds at most. In gossip no other worker can be more than 3 rounds ahead of worker 0."""
    keeping = SimpleNamespace(meets=meets, gossips=gossips, lag=3)
    standstill = Standstill(keeping, lambda: 100.0, lambda: 5000)  # pyright: ignore[reportArgumentType]
    assert standstill._earliest(Positions(np.int64(10), np.array([9, 12]), np.array([1, 4]))) == meeting


@pytest.mark.parametrize("meets", ["", "version"])
def test_a_worker_passes_no_meeting_and_answers_each_request_once(meets):
    """It has made 20 rounds, and joined 3 updates later than it would have without a restart."""
    local = object.__new__(LocalState)
    local.keeping, local.progress = SimpleNamespace(stops=True, meets=meets), SimpleNamespace(rounds=20)
    local.calls, local.answered = SimpleNamespace(asked=NONE), NONE
    local.joined(23, copied=False)
    assert local.meeting == (23 if meets else 20)
    seen = []
    for local.calls.asked in (NONE, NEVER, 23, 25, 60):
        seen.append((local.at_most(10), local.is_asked()))
    assert seen == ([(10, False)] * 2 + ([(10, True), (2, False), (10, False)] if meets else [(10, True)] * 3))
    local.answered = local.calls.asked = local.meeting
    assert not local.is_asked()
