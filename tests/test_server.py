"""Single events of the parameter server: admission of workers, waiting, and the order under the lock."""

import itertools
from concurrent.futures import wait
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import ADAG, AGN, SAGN, AsyncSGD, Downpour, Hogwild, SyncSGD
from distsgd.common.data.named import load
from distsgd.common.messages.ops import queue
from distsgd.common.record_format import RECORD
from distsgd.common.replay.reference import asynchronous_rules, gradients, synchronous_rules
from distsgd.common.server.transaction import DIRTY
from distsgd.common.sync.store import Message
from distsgd.common.tasks import graph as task_graph
from distsgd.common.tasks.options import Recovery
from doubles import HalfWay, Waiting
from runs import DIGITS, Harness, before, in_thread, wait_until

REFUSED = tf.errors.InvalidArgumentError
SPARSE = load("sparse:examples=64,features=64,active=2")


@pytest.mark.parametrize(
    ("scheme", "events", "data"),
    [
        (Downpour(push_period=2, pull_period=3), ("exchange", "push", "pull"), None),
        (SyncSGD(), ("exchange",), None),
        (AsyncSGD(), ("exchange",), SPARSE),
    ],
    ids=["asynchronous", "barrier", "sparse"],
)
@pytest.mark.rotating
def test_a_message_of_a_former_holder_is_refused_without_a_trace(scheme, events, data):
    with Harness(scheme, workers=1, data=data) as harness:
        before, now = harness.worker(0), harness.worker(0)
        untouched = harness.state()
        for event in events:
            with pytest.raises(REFUSED, match="refused"):
                before.round(event)
        with pytest.raises(REFUSED, match="refused"):
            before.run("refuse")
        assert harness.state() == untouched
        assert harness.run("incarnations").tolist() == [now.calls.incarnation, 1]
        for event in events:
            now.round(event)
        assert harness.run("rounds_applied").tolist() == [len(events)]


@pytest.mark.gate
def test_no_worker_is_admitted_to_a_dirty_state_nor_before_rejoining():
    with Harness(AsyncSGD(), workers=1) as harness:
        worker = harness.worker(0)
        harness.run("shut")  # as before a restoration
        for attempt in (worker.round, worker.join, lambda: harness.run("check_clean"), lambda: harness.run("at")):
            with pytest.raises(REFUSED, match="refused"):
                attempt()
        harness.run("open")
        with pytest.raises(REFUSED, match="refused"):
            worker.round()
        worker.join()
        worker.round()
        assert harness.run("version") == 1
        harness.observer.evict(0)
        with pytest.raises(REFUSED, match="refused"):
            worker.round()


@pytest.mark.gate
def test_an_interrupted_event_closes_the_ps_even_to_admitted_workers():
    with Harness(AsyncSGD(), workers=1) as harness:
        worker = harness.worker(0)
        with harness.graph.graph.as_default():
            cut = harness.graph.ps.transactions.mark(DIRTY)
        harness.session.run(cut)
        with pytest.raises(REFUSED, match="refused"):
            worker.round()
        assert (harness.run("version"), harness.run("recorded")) == (0, 0)


@pytest.mark.gate
def test_a_joining_worker_has_the_newest_center_and_no_older_gradient():
    with Harness(Downpour(push_period=2, pull_period=3, server_learning_rate=0.1), workers=2) as harness:
        first, late = harness.worker(0), harness.worker(1)
        first.round("push")
        late.round("pull")  # has a gradient that it has not pushed
        late.join()
        for _ in range(2):
            first.round("push")
        late.join()
        before = harness.run("center")
        late.round("push", steps=2)
        events = harness.run("drain_events")
        assert events[-1, [RECORD.index("worker"), RECORD.index("staleness")]].tolist() == [1, 0]
        # The worker had forgotten its gradient, and went on from this center; S is what three pushes have made of it.
        g = [by_hand(harness, 1, before.astype(float))]
        g.append(by_hand(harness, 1, before - 0.1 * g[0]))
        squares = np.asarray(harness.run("saved/scheme.squares/0"), float)
        np.testing.assert_allclose(harness.run("center"), before - 0.1 * sum(g) / np.sqrt(squares), atol=1e-5)


@pytest.mark.gate
def test_a_message_that_is_not_finite_is_kept_from_the_center_and_counted():
    with Harness(AsyncSGD(), workers=1, start=np.full(650, np.nan, np.float32)) as harness:
        worker = harness.worker(0)
        with pytest.raises(REFUSED, match="refused"):
            worker.round()
        assert (harness.run("version"), harness.run("recorded"), harness.run("rounds_applied").tolist()) == (0, 0, [0])
        worker.run("refuse")
        assert (harness.run("version"), harness.run("recorded"), harness.run("rounds_applied").tolist()) == (0, 1, [1])
        assert harness.run("refused").tolist() == [1]


@pytest.mark.gate
def test_the_end_of_a_former_holder_does_not_end_its_successor():
    with Harness(SyncSGD()) as harness:
        before, now, other = harness.worker(0), harness.worker(0), harness.worker(1)
        before.calls.set_finished(5, 7)
        assert before.run("deregister").tolist() == [False] * 2
        flags = harness.observer.worker_flags()
        assert (flags.finished.tolist(), flags.active.tolist()) == ([False] * 2, [True] * 2)
        waiting = other.starts()
        now.round()
        waiting.result(200)
        assert now.run("deregister").tolist() == [True, False]


@pytest.mark.gate
def test_a_token_for_the_former_holder_of_a_slot_is_void():
    with Harness(SyncSGD()) as harness:
        harness.worker(0)
        other = harness.worker(1)
        harness.run("wake")  # a token for each worker, and none is waiting
        other.run("await_token")
        now = harness.worker(0)
        with pytest.raises(tf.errors.DeadlineExceededError):
            now.run("await_token", seconds=0.5)
        waiting = now.starts()
        other.round()
        waiting.result(200)
        assert (harness.run("version"), harness.run("rounds_applied").tolist()) == (1, [1, 1])


@pytest.mark.gate
def test_a_slot_reports_its_waiting_message_until_the_set_is_complete():
    with Harness(SyncSGD()) as harness:
        first, other = harness.worker(0), harness.worker(1)
        waiting = first.starts()
        now = harness.worker(0)
        assert (now.joined.rounds, now.joined.waits) == (1, True)
        other.round()
        waiting.result(200)  # the token was for the message, whichever worker holds the slot
        joined = now.join()
        assert (joined.rounds, joined.waits) == (1, False)


@pytest.mark.gate
def test_a_worker_that_does_not_wait_evicts_no_other():
    """Its set was completed meanwhile, or it has not sent its message: the others need not go."""
    with Harness(SyncSGD(), workers=3, recovery=Recovery(min_workers=1)) as harness:
        workers = [harness.worker(k) for k in range(3)]
        waiting = workers[1].starts()
        assert workers[0].run("evict_absent").tolist() == [False] * 3
        assert (harness.run("version"), harness.observer.worker_flags().active.tolist()) == (0, [True] * 3)
        assert workers[1].run("evict_absent").tolist() == [True, False, True]
        waiting.result(200)
        assert harness.run("version") == 1


@pytest.mark.gate
def test_a_set_is_completed_without_workers_that_left_or_were_evicted():
    with Harness(SyncSGD(), workers=4, recovery=Recovery(min_workers=2)) as harness:
        start = harness.run("center")
        workers = [harness.worker(k) for k in range(4)]
        assert workers[0].run("evict_absent").tolist() == [False] * 4  # it has not waited
        first = workers[0].starts()
        assert workers[0].run("evict_absent").tolist() == [False] * 4  # too few would be left
        second = workers[1].starts()
        workers[2].run("deregister")
        assert harness.run("version") == 0
        assert workers[0].run("evict_absent").tolist() == [False, False, False, True]
        for released in (first, second):
            released.result(200)
        assert (harness.run("version"), harness.observer.worker_flags().active.tolist()) == (
            1,
            [True, True, False, False],
        )
        moved = harness.run("center") - start
        for evicted in workers[2:]:
            with pytest.raises(REFUSED, match="refused"):
                evicted.round()
        gradients = [by_hand(harness, k) for k in (0, 1)]  # the mean of two, although there are four workers
        np.testing.assert_allclose(moved, -0.2 * np.mean(gradients, axis=0), atol=1e-6)
        back = harness.worker(3)
        again = [workers[k].starts() for k in (0, 1)]
        assert harness.run("version") == 1  # they wait for it
        back.round()
        for released in again:
            released.result(200)
        assert harness.run("version") == 2


def by_hand(harness, k, params=None):
    """Return the gradient of worker k on its first row, which is all its data here; at the start, or elsewhere."""
    x, y = harness.job.train
    row = gradients.rows(harness.job.options.seed, k, len(x), harness.job.cluster.workers)[:1]
    params = harness.graph.initial[0].astype(float) if params is None else params
    return gradients.mlp_gradient(x, y, [64, 10])(params, row)


@pytest.mark.gate
def test_no_worker_begins_a_round_beyond_the_slack_ahead_of_the_slowest():
    with Harness(Waiting(slack=1), workers=3, recovery=Recovery(min_workers=2)) as harness:
        fast, middle, slow = (harness.worker(k) for k in range(3))
        fast.round()  # one ahead
        ahead = fast.starts()  # two
        middle.round()
        assert harness.run("arrived").tolist() == [True, False, False]
        assert harness.run("awaited").tolist() == [False, False, True]  # worker 1 is near enough
        assert not ahead.done()
        assert harness.run("version") == 3  # each message is applied at once
        slow.round()
        ahead.result(200)
        ahead = fast.starts()
        assert harness.run("awaited").tolist() == [False, True, True]
        assert fast.run("evict_absent").tolist() == [False] * 3  # one would be left
        middle.run("deregister")
        assert harness.run("awaited").tolist() == [False, False, True]
        assert not ahead.done()
        slow.round()
        ahead.result(200)


# What a worker sends.


def replayed(transcription, harness, steps, **options):
    """What the transcription of a scheme makes of rounds of worker 0 alone, all on its first row."""
    x, y = harness.job.train
    by_rows = gradients.mlp_gradient(x, y, [64, 10])
    row = gradients.rows(harness.job.options.seed, 0, len(x), 1)[:1]
    start = harness.graph.initial[0].astype(float)
    return transcription(start, lambda params, k, t: by_rows(params, row), steps=steps, **options)[-1]


@pytest.mark.parametrize(
    ("scheme", "transcription", "options"),
    [
        (
            AGN(learning_rate=0.1, server_learning_rate=0.2),
            asynchronous_rules.agn,
            {"eta": 0.1, "gamma": 0.2, "order": [0, 0]},
        ),
        (ADAG(distance_scale=1e-3), asynchronous_rules.agn, {"eta": 0.2, "distance_scale": 1e-3, "order": [0, 0]}),
        (SAGN(), synchronous_rules.sagn, {"eta": 0.2, "gamma": 0.5}),
    ],
    ids=["agn", "adag", "sagn"],
)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_mean_of_gradients_is_over_the_steps_of_its_round(scheme, transcription, options):
    with Harness(scheme, workers=1) as harness:
        worker = harness.worker(0)
        worker.round(steps=scheme.period)
        worker.round(steps=2)
        expected = replayed(transcription, harness, scheme.period + 2, workers=1, period=scheme.period, **options)
        np.testing.assert_allclose(harness.run("center"), expected, atol=1e-6)


def summed(build):
    """Build a model whose loss is the sum of its outputs."""
    import keras

    model = keras.Sequential([keras.Input((64,)), *build(keras.layers)])
    model.compile(loss=lambda y, p: keras.ops.sum(p, axis=-1))
    return model


@pytest.mark.gate
def test_each_worker_has_own_running_statistics_and_the_center_their_mean():
    model = summed(lambda layers: [layers.BatchNormalization(momentum=0.75, scale=False)])
    with Harness(AsyncSGD(), model=model) as harness:
        workers = [harness.worker(k) for k in (0, 1)]
        x = harness.job.train[0]
        rows = [x[gradients.rows(0, k, len(x), 2)[0]] for k in (0, 1)]  # a batch is this row, again and again
        for worker in (workers[0], workers[1], workers[1]):
            worker.round()
        once, twice = 0.25, 1 - 0.75**2
        mean = (once * rows[0] + twice * rows[1]) / 2
        variance = np.full(64, ((1 - once) + (1 - twice)) / 2)
        np.testing.assert_allclose(harness.run("state"), np.concatenate([mean, variance]), atol=1e-6)
        assert harness.worker(1).joined.rounds == 2
        workers[0].round()  # continues from its own, not from the mean
        mean = (twice * rows[0] + twice * rows[1]) / 2
        np.testing.assert_allclose(harness.run("state")[:64], mean, atol=1e-6)


@pytest.mark.gate
def test_no_two_workers_devices_or_rounds_drop_the_same_units():
    model = summed(lambda layers: [layers.Dense(64, use_bias=False), layers.Dropout(0.5)])
    ones = replace(DIGITS, train=(np.ones_like(DIGITS.train[0]), DIGITS.train[1]))
    with Harness(AsyncSGD(learning_rate=1.0), devices_per_worker=2, model=model, data=ones, batch_size=2) as harness:
        workers, kept = [harness.worker(k) for k in (0, 1)], []
        for k in (0, 1, 0):
            before = harness.run("center")
            workers[k].round()
            kept.append((before - harness.run("center")).reshape(64, 64)[0])  # of both devices, with one example each
    for one, other in itertools.combinations(kept, 2):
        assert np.abs(one - other).max() > 0.5
    for units in kept:  # 0, 1 or 2: dropped in both devices, in one, in none
        assert np.bincount(np.round(units).astype(int), minlength=3)[1] > 10


# Atomicity: seen once, and read off the graph.


@pytest.mark.gate
def test_the_center_is_not_read_during_an_update():
    with Harness(HalfWay(push_period=2, pull_period=3), ps=2) as harness:
        with harness.graph.graph.as_default():
            reached, go_on = queue("half_way").size(), queue("go_on").enqueue(True)
            handle = harness.graph.graph.get_tensor_by_name("worker_1/worker_0_params:0")
            params = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        first, second, start = harness.worker(0), harness.worker(1), harness.run("center")
        pushing = in_thread(lambda: first.round("push"))
        wait_until(lambda: pushing.done() or harness.session.run(reached))
        reading = [in_thread(action) for action in (lambda: second.round("pull"), lambda: harness.run("center"))]
        assert not wait(reading, timeout=1).done
        harness.session.run(go_on)
        pushing.result(200)
        _, seen = (future.result(200) for future in reading)
        assert min(np.abs(half).max() for half in np.split(harness.run("center") - start, 2)) > 0
        for center in (seen, harness.session.run(params)):
            np.testing.assert_array_equal(center, harness.run("center"))


def graphs(scheme, data=None):
    """Yield the graph of each event of a scheme, by name, with the variables of the ps and its mutex in it."""
    sync = scheme.sync
    harness = Harness(scheme, ps=2, data=data)
    ps = harness.graph.ps
    with harness, harness.graph.graph.as_default():
        shared = [v.handle for v in tf.compat.v1.global_variables() if not v.name.startswith("worker")]
        slot, message = ps.slots.slot(1, harness.graph.identity[0]), Message(tf.zeros([sum(ps.center.sizes)]))
        if harness.job.sparse:
            message = Message(tf.IndexedSlices(tf.zeros([2]), tf.constant([1, 40])))
        builds = {"join": lambda: ps.join(slot, True), "pull": lambda: ps.pull(slot), "values": ps.persistence.values}
        builds |= {"exchange": lambda: sync.exchange(ps, slot, message), "refuse": lambda: ps.refuse(slot)}
        builds |= {"acknowledge": lambda: ps.journal.acknowledge(1, 1), "stop": ps.stop}
        builds |= {"snapshot": ps.snapshot, "drain": ps.journal.drain, "check_clean": ps.check_clean}
        builds |= {"incarnations": ps.transactions.read_incarnations}
        if sync.waits:
            builds |= {"evict": lambda: sync.evict(ps, slot), "deregister": lambda: sync.deregister(ps, slot)}
        else:
            builds |= {"push": lambda: sync.push(ps, slot, message)}
        if harness.job.sparse:
            builds["gather"] = lambda: sync.gather(ps, slot, tf.constant([1, 40]))
        for name, build in builds.items():
            made = tf.function(build, autograph=False).get_concrete_function().graph
            inside = {id(outer): inner for outer, inner in made.captures}
            yield name, made, {inside[id(h)].name for h in shared if id(h) in inside}


@pytest.mark.parametrize(
    ("scheme", "data"),
    [(ADAG(), None), (AsyncSGD(), SPARSE), (SyncSGD(backup_workers=1), None)],
    ids=["asynchronous", "sparse", "backup workers"],
)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_events_read_and_write_global_variables_only_under_the_lock(scheme, data):
    """Torn reads are rare, and what they do is small: here none is possible. (Hogwild allows them.)"""
    for name, graph, shared in graphs(scheme, data):
        touching = [op for op in graph.get_operations() if any(tensor.name in shared for tensor in op.inputs)]
        unlocks = [op for op in graph.get_operations() if op.type == "ConsumeMutexLock"]
        held = [(unlock.inputs[0].op, before(unlock)) for unlock in unlocks]
        assert touching
        for op in touching:
            assert any(lock in before(op) and op in needed for lock, needed in held), f"{name}: {op.name} is outside"


@pytest.mark.gate
def test_the_barrier_releases_after_all_slices_and_the_version_are_written():
    (graph,) = (graph for name, graph, _ in graphs(SyncSGD()) if name == "exchange")
    branches = [op for op in graph.get_operations() if op.type in ("If", "StatelessIf")]
    inside = {op: graph._get_function(op.get_attr("then_branch").name).graph.get_operations() for op in branches}
    (release,) = (op for op in branches if any(one.type.startswith("QueueEnqueue") for one in inside[op]))
    assert len(branches) == 5
    assert set(branches) <= before(release)  # two slices have the message, and their updates
    enqueued = [op for op in inside[release] if op.type.startswith("QueueEnqueue")]
    assert len(enqueued) == 2
    for op in enqueued:
        assert {"AssignAddVariableOp", "AssignVariableOp"} <= {one.type for one in before(op)}  # version, arrived


@pytest.mark.parametrize(("scheme", "same"), [(Hogwild(), True), (AsyncSGD(), False)], ids=lambda value: str(value)[:9])
@pytest.mark.rotating
def test_hogwild_in_one_memory_takes_gradients_at_the_center_as_it_is(monkeypatch, scheme, same):
    monkeypatch.setattr(task_graph, "IN_PLACE_FLOATS", 0)
    centers = []
    for late in (False, True):
        with Harness(scheme) as harness:
            workers = [harness.worker(k) for k in ([0] if late else [0, 1])]
            workers[0].round()
            (workers[1:] or [harness.worker(1)])[-1].round()
            centers.append(harness.run("center"))
    assert np.array_equal(*centers) == same
