"""The arithmetic of a simulated run: a trace, executed with the modules of the catalogue as they are."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from scheduled import happens

from covering import CATALOGUE, in_rotation
from distsgd.algorithms import (
    AGN,
    SCHEMES,
    DownpourEasy,
    SyncSGD,
)
from distsgd.common import Scheme
from distsgd.common.contract import Barrier
from distsgd.common.contract.schedules import shaped
from distsgd.common.data.dataset import shard_rows
from distsgd.common.data.models import ModelRecipe
from distsgd.common.data.trial import try_out
from distsgd.common.errors import Diverged, UserError
from distsgd.common.launch.run import run as run_job
from distsgd.common.messages.codec import Codec
from distsgd.common.messages.ops import building
from distsgd.common.record_format import EVENTS, RECORD
from distsgd.common.replay.comparison import judge
from distsgd.common.replay.recorded import RecordedRun
from distsgd.common.server.center import Center
from distsgd.common.tasks.job import describe
from distsgd.common.tasks.options import Recovery
from distsgd.simulator.execution.arithmetic import Arithmetic
from distsgd.simulator.execution.batched_workers import BatchedWorkers
from distsgd.simulator.execution.executor import Merging
from distsgd.simulator.virtual_time.program import Do
from runs import DIGITS, averaged, job_of, network_gradient, record, rule_of

TOLERANCE = 1e-5
MOST_DECAY = 0.8  # of the moving average of workers that gossip


def small(scheme, workers=3, *, steps=32, **options):
    return job_of(scheme, workers, model="mlp:hidden=8", steps=steps, **options)


def trace_of(job):
    workers, rounds = job.cluster.workers, job.plan.rounds(0)
    return happens(job.scheme, workers, size=1.0, rounds=rounds, step_factors="0.58,0.75,1.51").trace


def executed(job, trace, **options):
    """The last snapshot, and the losses."""
    arithmetic = Arithmetic(job, trace, **options)
    arithmetic.run(len(trace["worker"]))
    found = arithmetic.snapshot()
    arithmetic.close()
    return found, arithmetic


def replayed(job, trace, hidden=8):
    """The verdict of a replay on the last center."""
    found, arithmetic = executed(job, trace)
    gradient, start = network_gradient(job, [64, hidden, 10]), arithmetic.model.pack().astype(np.float64)
    result = {"updates": int(found["at"]), "recovery": {"evicted": []}}
    scheme = (
        SCHEMES["async_sgd"](learning_rate=job.scheme.learning_rate) if job.scheme.name == "hogwild" else job.scheme
    )
    assert np.linalg.norm(found["center"] - start) > 0.01 * np.linalg.norm(start)
    run = RecordedRun(
        **rule_of(scheme),
        workers=job.cluster.workers,
        steps=job.steps,
        start=start,
        trace=trace,
        center=found["center"],
        gradient=gradient,
        result=result,
        seed=job.options.seed,
        servers_apart=job.servers_apart,
        shapes=[variable.shape for variable in job.recipe.build().get_weights()],
    )
    if job.options.ema_decay:
        average = averaged(run, MOST_DECAY, scheme.period)
        np.testing.assert_allclose(found["average"], average, rtol=2e-5, atol=2e-6)
    return judge(run)


@pytest.mark.parametrize("name", in_rotation())
@pytest.mark.gate("others")
def test_an_order_of_virtual_time_replays(name):
    """Every scheme of the catalogue, as it is, against the papers' equations."""
    scheme = CATALOGUE[name]
    averages = {"ema_decay": MOST_DECAY} if scheme.sync.gossips and not scheme.sync.in_pairs else {}
    job = small(scheme, workers=3 if scheme.sync.exchanges else 1, backend="simulation", **averages)
    verdict = replayed(job, trace_of(job))
    assert not verdict.differs, verdict


@pytest.fixture(scope="module")
def repeated():
    """The same order of `downpour_easy`, executed three times: as many rounds at once as fit, again, and one by one."""
    job = small(DownpourEasy(communication_period=2), steps=12)
    return [executed(job, trace_of(job), width=width) for width in (None, None, 1)]


@pytest.mark.rotating
def test_the_same_trace_gives_the_same_center_to_the_bit(repeated):
    (one, first), (other, second), _ = repeated
    np.testing.assert_array_equal(one["center"], other["center"])
    np.testing.assert_array_equal(first.losses, second.losses)


def test_how_many_rounds_are_computed_together_does_not_matter(repeated):
    (many, first), _, (single, second) = repeated
    np.testing.assert_allclose(many["center"], single["center"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(first.losses, second.losses, rtol=1e-5)
    assert np.isfinite(first.losses).all()


@pytest.mark.parametrize(
    "name",
    ["sync_sgd", *(pytest.param(n, marks=pytest.mark.rotating) for n in ("async_sgd", "ssp", "aeamsgd", "all_reduce"))],
)
@pytest.mark.rotating
def test_a_real_run_executed_again_comes_to_the_same_center(name, tmp_path):
    """Repeatable asynchrony: whatever the threads did, it can be done again."""
    options = {"workers": 3, "steps": 32, "hidden": (8,), "batch_size": 8, "backend": "threads"}
    run = record(CATALOGUE[name], tmp_path / "run", **options)
    found, _ = executed(small(CATALOGUE[name]), run.trace)
    assert np.linalg.norm(found["center"] - run.center) < TOLERANCE * np.linalg.norm(run.center)


def recipe_of(model):
    return try_out(ModelRecipe.of(model), model, [array[:2] for array in DIGITS.train])


def of_a_run(scheme, recipe, tmp_path, **options):
    """A job of any model, and its run on threads: center and state at the end, and the trace."""
    job = job_of(scheme, model=recipe, **{"steps": 6, "run_dir": tmp_path / "run"} | options)
    log, error = run_job(job, describe(job, "digits", "own"), verbose=False)
    log.finish(error, picture=False)
    assert error is None
    with np.load(tmp_path / "run" / "center.npz") as center, np.load(tmp_path / "run" / "trace.npz") as trace:
        return job, dict(center), dict(trace)


def agree(scheme, recipe, tmp_path, **options):
    job, real, trace = of_a_run(scheme, recipe, tmp_path, **options)
    found, _ = executed(job, trace)
    assert set(real) == set(found) - {"at"}
    for name, value in real.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.rotating
def test_running_statistics_dropout_and_every_option_are_as_on_threads(tmp_path):
    """Each worker has statistics and seeds of its own; rates fall with its clock and the center's."""
    layers = keras.layers
    stack = [layers.Dense(6), layers.BatchNormalization(), layers.Dropout(0.5, seed=3), layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *stack])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    scheme = shaped(AGN(communication_period=2), "cosine", 6)
    agree(scheme, recipe_of(model), tmp_path, l2=0.01, clip_norm=0.5, ema_decay=0.9, schedule=(0, 1, 1, 0, 0, 1))


@pytest.mark.rotating
def test_a_convolution_of_each_worker_is_none_that_is_vectorised(tmp_path):
    agree(SyncSGD(), ModelRecipe.named("cnn:filters=2", (64,), 10, 0), tmp_path)


def by_hand(*rows):
    """A trace of rows (version, worker, staleness, accepted, event)."""
    table = np.array([(v, k, s, a, i, EVENTS.index(e)) for i, (v, k, s, a, e) in enumerate(rows)], np.int64)
    return dict(zip(RECORD, table.T, strict=True))


def test_a_rejoined_worker_starts_from_the_center_and_loses_its_round():
    trace = by_hand(
        (0, 0, 0, 1, "exchange"),
        (1, 1, 0, 0, "join"),
        (1, 0, 0, 1, "exchange"),
        (2, 1, 1, 1, "exchange"),
        (3, 1, 0, 1, "exchange"),
    )
    assert replayed(small(CATALOGUE["downpour_easy"], workers=2), trace).error < TOLERANCE


class Deaf(Scheme):
    """Workers send their gradients and continue from what they have; the barrier does not change that."""

    name = "deaf"
    sync = Barrier()

    def local_step(self, worker, gradient):
        worker.params.assign_sub(0.2 * gradient)

    def server_update(self, server, message, staleness):
        server.center.assign_sub(0.1 * message)
        return server.center

    def on_reply(self, worker, reply):
        pass


def test_a_worker_that_ignores_replies_keeps_its_parameters():
    """What a reply replaces is not stored; this one replaces nothing."""
    job = small(Deaf(), workers=2, steps=4)
    found, arithmetic = executed(job, trace_of(job))
    gradient, x = network_gradient(job, [64, 8, 10]), arithmetic.model.pack().astype(np.float64)
    center, own = x, [x, x]
    for t in range(4):
        gradients = [gradient(own[k], k, t) for k in range(2)]
        own = [own[k] - 0.2 * gradients[k] for k in range(2)]
        center = center - 0.1 * np.mean(gradients, 0)
    np.testing.assert_allclose(found["center"], center, rtol=1e-5, atol=1e-6)


def test_a_message_that_is_not_finite_ends_the_run_before_the_center_unless_it_is_dropped():
    x, y = DIGITS.train
    x = x.copy()
    x[shard_rows((x, y), 3, 0)[1]] = np.nan  # all that worker 1 has
    job = small(CATALOGUE["ringmaster"], steps=4, data=(x, y))
    messages = (0, 0, 0, 1), (1, 2, 1, 1), (2, 1, 2, 0), (2, 0, 1, 1), (3, 1, 1, 1)
    arithmetic = Arithmetic(job, by_hand(*((*message, "exchange") for message in messages)))
    with pytest.raises(Diverged, match=r"^.*worker 1 .* version 3.*$"):
        arithmetic.run(5)
    found = arithmetic.snapshot()
    assert found["at"] == 3
    assert np.isfinite(found["center"]).all()


class Tolerant(SyncSGD):
    """Leaves out one message that is not finite."""

    sync = Barrier(outliers=0.5)


def test_a_set_is_divided_by_its_messages_without_those_that_it_leaves_out():
    graph, here = tf.Graph(), "/device:CPU:0"
    model = SimpleNamespace(size=2, shapes=[(2,)], without_decay=(), state_size=0, initial_seeds=[])
    with building(graph):
        scheme = Tolerant(learning_rate=1.0)
        center = Center(scheme, [[2]], [here], 3, None)
        replica = SimpleNamespace(model=model, frozen=[])
        workers = BatchedWorkers(scheme, replica, 3, (tf.zeros([2]), tf.zeros([0])), seed=0, sizes=[2])
        merging = Merging(scheme, center, workers, [Do.ARRIVE, Do.CLOSE], 3)
        sent, do = tf.compat.v1.placeholder(tf.float32, [3]), tf.constant([Do.ARRIVE] * 3 + [Do.CLOSE])

        def merge():
            merging.outbox.vector.assign(sent[:, None] * tf.ones([3, 2]))
            merging.run(
                do, tf.constant([0, 1, 2, 3]), tf.zeros([4, 3]), tf.constant([0, 1, 2, 0]), tf.constant([0] * 4)
            )
            return center.slices[0].center.read_value()

        moved, initialize = tf.function(merge, autograph=False)(), tf.compat.v1.global_variables_initializer()
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(initialize, {center.initial[0]: np.zeros(2)})
        ends = [session.run(moved, {sent: messages})[0] for messages in ([1, np.nan, 5], [1, 2, 6], [np.inf, 4, 8])]
    assert -np.diff(ends, prepend=0) == pytest.approx([3, 3, 6])


class Remembers(Codec):
    """Keeps what it has not sent."""

    def local_variables(self, vector):
        return {"residual": vector}


class Remembering(SyncSGD):
    """Sends with a memory."""

    codec = Remembers()


@pytest.mark.parametrize("state_size", [0, 2])
def test_workers_of_a_simulation_have_seeds_of_their_own_and_begin_again_without_a_memory(state_size):
    """Workers with running statistics adopt a reply at once: the evaluator reads the statistics after it."""
    model = SimpleNamespace(size=3, shapes=[(3,)], without_decay=(), state_size=state_size)
    model.initial_seeds = [np.array([7, 1], np.int64)]
    graph, scheme, here = tf.Graph(), Remembering(), "/device:CPU:0"
    with building(graph):
        center = Center(scheme, [[3]], [here], 4, None)
        replica = SimpleNamespace(model=model, frozen=[])
        first = tf.ones([3]), tf.zeros([state_size])
        workers = BatchedWorkers(scheme, replica, 4, first, seed=0, sizes=[2, 1])
        merging = Merging(scheme, center, workers, [Do.ARRIVE, Do.CLOSE, Do.ADOPT], 4)
        memories = [own["residual"] for own in workers.tables["codec"]]
        remember = [memory.assign(tf.ones_like(memory)) for memory in memories]
        start = tf.function(lambda: (workers.start_one(1, tf.fill([3], 2.0)), tf.constant(0))[1], autograph=False)()
        after = [memory.read_value() for memory in memories], workers.tables["params"].read_value()
        seeds, initialize = workers.tables["seeds"][0].read_value(), tf.compat.v1.global_variables_initializer()
    assert merging.adopts_later == (not state_size)
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(initialize, {center.initial[0]: np.ones(3)})
        drawn = session.run(seeds)
        assert len({*map(tuple, drawn.tolist())}) == 4
        session.run(remember)
        session.run(start)
        kept, params = session.run(after)
    assert [memory[:, 0].tolist() for memory in kept] == [[1, 0, 1, 1]] * 2
    assert params[:, 0].tolist() == [1, 2, 1, 1]


@pytest.mark.gate
def test_it_can_be_looked_at_after_each_event():
    job = small(CATALOGUE["sync_sgd"], steps=2)
    arithmetic = Arithmetic(job, trace_of(job))
    seen = []
    for until in range(7):
        arithmetic.run(until)
        seen.append(int(arithmetic.snapshot()["at"]))
    assert seen == [0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize(
    ("options", "trace", "said"),
    [
        (
            {"data": lambda context: tf.data.Dataset.from_tensor_slices(DIGITS.train).batch(8), "steps": 4},
            {},
            "needs arrays",
        ),
        ({"recovery": Recovery(on_nan="drop")}, {}, "on_nan=drop"),
        ({}, {"worker": np.zeros(1)}, "needs the columns"),
        ({"steps": 1}, by_hand((0, 0, 0, 1, "exchange"), (1, 0, 0, 1, "exchange")), "more rounds of worker 0"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(options, trace, said):
    with pytest.raises(UserError, match=said):
        Arithmetic(small(CATALOGUE["async_sgd"], **options), trace or by_hand((0, 0, 0, 1, "exchange")))
