"""A group, in which the caller plays all workers, against the engine; `test_replay.py` has the equations."""

from types import SimpleNamespace
from typing import Any

import keras
import means
import numpy as np
import pytest
import tensorflow as tf
from fair import Fair, fair
from means import AtServer, Normalised, PowerSGD
from uneven import Clipped, FedNova, clipped, fed_nova

from covering import CATALOGUE, COVER, ON_PROCESSES, in_rotation
from distsgd.algorithms import (
    AGN,
    SSP,
    AllReduce,
    AsyncSGD,
    Downpour,
    LocalSGD,
    Serial,
    SyncSGD,
)
from distsgd.common import Group, UserError
from distsgd.common.cluster.platform import Platform
from distsgd.common.contract import Int8, WithMemory, uniform_numbers
from distsgd.common.contract.schedules import shaped
from distsgd.common.errors import Diverged
from doubles import PerWorker, RandomPart, Weighed
from runs import PlayedRun, record

TOLERANCE = 1e-5
ALONE = [0] * 20
SMALL: dict[str, Any] = {"hidden": (8,), "batch_size": 8}


def workers_of(scheme):
    return 3 if scheme.sync.exchanges else 1


def distance(one, other):
    return np.linalg.norm(one - other) / np.linalg.norm(other)


# In the order of a schedule, where two workers do, as each is a part of the graph; in virtual time where a thread may
# read its reply (or start) after the next message.
TURNS: dict[str, Any] = {"workers": 2, "schedule": (0, 0, 1, 0, 1, 1, 1, 0, 0, 1)}
SETS: dict[str, Any] = {"workers": 2, "schedule": (1, 0, 0, 1, 1, 0)}
SETS_OF_THREE: dict[str, Any] = {"schedule": (2, 0, 1, 1, 2, 0, 0, 1, 2)}
VIRTUAL: dict[str, Any] = {"backend": "simulation", "steps": 60}


def engine_options(scheme):
    sync = scheme.sync
    if not sync.exchanges:
        return {"steps": len(ALONE)}
    if sync.late == "count":
        return VIRTUAL | {"stop_at_version": min(20, VIRTUAL["steps"] // scheme.period)}  # before a worker is done
    if scheme.takes_means:
        return VIRTUAL | {"steps": 12}  # orthonormal columns of nearly equal ones multiply the rounding of each step
    if scheme.sync.cancel_late:  # equal workers end before any of them is stopped
        return VIRTUAL | {"platform": Platform(compute="exponential")}
    if sync.warm_start or sync.gossips or (sync.waits and sync.set_size(3) != 3):
        return VIRTUAL
    if scheme.name in {"krum", "sync_sgd_lr", "trimmed_mean"}:
        return SETS_OF_THREE
    return SETS if sync.waits else TURNS


def is_simulated(scheme):
    return "backend" in engine_options(scheme)


ON_THREADS = [name for name in COVER if name not in ON_PROCESSES and not is_simulated(CATALOGUE[name])]


@pytest.mark.parametrize("name", in_rotation(always=ON_THREADS))
@pytest.mark.gate("others")
def test_center_is_that_of_the_engine_on_the_same_order(name, tmp_path):
    scheme = CATALOGUE[name]
    servers = 2 if scheme.sync.uses_ps and not scheme.whole_center else 1
    how = {"backend": "threads", "ps": servers, "workers": workers_of(scheme)} | SMALL | engine_options(scheme)
    engine = record(scheme, tmp_path, **how)
    options = SMALL | {"workers": how["workers"]}
    group = PlayedRun(scheme, ps=servers, **options)
    group = group.replay(engine.trace) if scheme.sync.exchanges else group.play(ALONE)
    assert group.group.version == engine.result["updates"]
    assert distance(group.center, engine.center) < TOLERANCE


@pytest.mark.parametrize("shape", ["cosine", "linear"])
@pytest.mark.rotating
def test_learning_rates_fall_as_in_the_engine(shape, tmp_path):
    for name, scheme in {"async": AGN(communication_period=2), "sets": LocalSGD(communication_period=2)}.items():
        falling, options = shaped(scheme, shape, 10), SMALL | (SETS if scheme.sync.waits else TURNS)
        engine = record(falling, tmp_path / name, backend="threads", **options)
        run = PlayedRun(falling, workers=2, **SMALL).replay(engine.trace)
        assert distance(run.center, engine.center) < TOLERANCE


@pytest.mark.rotating
def test_slices_are_rounded_as_in_the_engine(tmp_path):
    engine = record(AsyncSGD(), tmp_path, backend="threads", ps=2, codec="int8", **SMALL, **TURNS)
    run = PlayedRun(AsyncSGD(), workers=2, ps=2, codec="int8", **SMALL).replay(engine.trace)
    assert distance(run.center, engine.center) < TOLERANCE


def test_codec_rounds_each_slice_and_remembers_the_rest():
    gradient = np.linspace(-3, 5, 7)
    group = Group(AsyncSGD(learning_rate=1.0), np.zeros(7), workers=1, ps=2, codec="int8")
    codec, expected = WithMemory(Int8()), []
    for part in (gradient[:4], gradient[4:]):
        kept, total = SimpleNamespace(memory=tf.Variable(tf.zeros(len(part)))), 0.0
        for _ in range(3):
            (wire,) = codec.send(tf.constant(part, tf.float32), [len(part)], [kept], None)
            total = total + codec.decode(wire, len(part))
        expected.append(total)
    for _ in range(3):
        group.step(0, gradient)
    np.testing.assert_array_equal(-group.center, np.concatenate(expected))
    assert np.abs(group.center + 3 * gradient).max() > 1e-3


# Schemes of users.


@pytest.mark.parametrize(
    ("scheme", "equations"),
    [
        (PowerSGD(), lambda run: means.power_sgd(run.start, run.gradient, 3, 6, 0.1)),
        (Normalised(), lambda run: means.normalised(run.start, run.gradient, 3, 12, 0.1, 2)),
        (FedNova(), lambda run: fed_nova(run.start, run.gradient, 6, (1, 2, 4), 0.1)),
        (Clipped(limit=0.5), lambda run: clipped(run.start, run.gradient, [0, 1, 2] * 6, 10**6, (1, 2, 4), 0.1, 0.5)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.gate("others")
def test_means_scalars_and_uneven_rounds_are_those_of_the_equations(scheme, equations):
    run = PlayedRun(scheme, **SMALL).play([0, 1, 2] * 6)
    assert distance(run.center, equations(run)) < TOLERANCE


def test_several_messages_make_an_update_and_workers_have_numbers():
    scheme, order = Fair(), [0, 1, 0, 2, 1, 1, 0]
    group = Group(scheme, np.array([4.0, -2.0]), workers=3)
    centers, seen = fair(np.array([4.0, -2.0]), order, lambda x: x, scheme)
    for k, expected in zip(order, seen, strict=True):
        group.step(k, group.point(k))
        assert (group.version, group.staleness(k)) == expected
        group.step(k, group.point(k))
    np.testing.assert_allclose(group.center, centers[-1], rtol=1e-5)


def test_rows_of_workers_are_kept_on_each_server():
    group = Group(PerWorker(), np.zeros(3), workers=3, ps=2)
    for k in (1, 1, 2):
        group.step(k, np.zeros(3))
    np.testing.assert_allclose(group.center, [1.1 + 1.2 + 2.1] * 3, rtol=1e-6)


def test_barrier_weighs_each_message():
    group = Group(Weighed(learning_rate=1.0), np.zeros(2), workers=2)
    for k in range(2):
        group.step(k, np.array([1.0, 2.0]))
    np.testing.assert_allclose(group.center, [-1.5, -3.0])


def test_random_numbers_and_losses_are_those_of_the_step():
    group = Group(RandomPart(learning_rate=1.0), np.zeros(40), workers=2, seed=5)
    for _ in range(2):
        group.step(1, np.ones(40), loss=3.0)
    masks = [uniform_numbers(5, 40, 1, number) < 0.5 for number in range(2)]
    np.testing.assert_array_equal(group.center, -3.0 * np.sum(masks, 0))
    with pytest.raises(UserError, match=r"^worker\.loss is for Scheme\.message alone .* each step brings its loss"):
        group.step(0, np.ones(40))


# Workers that wait.


def test_worker_waits_for_its_set():
    group = Group(SyncSGD(learning_rate=1.0), np.ones(1), workers=3)
    assert group.ready == [0, 1, 2]
    assert not group.step(1, [0.3] * np.ones(1))
    assert group.ready == [0, 2]
    for act in (group.point, lambda k: group.step(k, np.ones(1))):
        with pytest.raises(UserError, match=r"^worker 1 has to wait: step a worker of group\.ready, \[0, 2\], first$"):
            act(1)
    assert not group.step(0, np.zeros(1))
    assert group.step(2, np.zeros(1))
    assert (group.ready, group.version, [group.staleness(k) for k in range(3)]) == ([0, 1, 2], 1, [0, 0, 0])
    np.testing.assert_allclose(group.center, [0.9])


def test_late_message_is_dropped_where_there_are_backup_workers():
    group = Group(SyncSGD(learning_rate=1.0, backup_workers=1), np.zeros(1), workers=3)
    group.step(0, np.ones(1))
    group.step(2, np.ones(1))
    assert (group.version, group.staleness(1)) == (1, 1)
    assert group.step(1, np.array([100.0]))
    assert (group.center, group.params(1), group.staleness(1)) == (-1, -1, 0)


def test_worker_too_far_ahead_waits_and_continues_from_the_newest_center():
    group = Group(SSP(slack=1, learning_rate=2.0), np.zeros(1), workers=2)
    assert group.step(0, np.ones(1))
    assert not group.step(0, np.ones(1))
    assert group.ready == [1]
    assert group.step(1, np.ones(1))
    assert (group.ready, group.params(0), group.center) == ([0, 1], -3, -3)


def test_worker_0_makes_the_warm_start_alone():
    group = Group(Downpour(communication_period=1, warm_start=2), np.ones(1), workers=2)
    for _ in range(2):
        assert group.ready == [0]
        group.step(0, np.ones(1))
    assert group.ready == [0, 1]
    assert group.params(1) == group.center != 1


# What goes in and comes out.


def test_arrays_come_out_as_they_went_in():
    params = {"w": np.ones((2, 3)), "b": [tf.Variable(tf.zeros(3)), np.float32(2)]}
    group = Group(AsyncSGD(learning_rate=1.0), params, workers=2)
    point = group.point(0)
    assert (point["w"].dtype, point["w"].shape, point["b"][1]) == (np.float64, (2, 3), np.float32(2))
    assert tf.is_tensor(point["b"][0])
    group.step(0, {"w": 2 * point["w"], "b": [tf.ones(3), tf.constant(0.5)]})
    np.testing.assert_array_equal(group.center["w"], -np.ones((2, 3)))
    np.testing.assert_array_equal(group.center["b"][0], -np.ones(3))
    assert group.center["b"][1] == 1.5
    np.testing.assert_array_equal(group.params(1)["w"], params["w"])


@pytest.mark.rotating
def test_keras_model_trains_in_a_tape():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((), dtype="int32"), keras.layers.Embedding(5, 4), keras.layers.Dense(1)])
    words, scores = np.arange(5), np.linspace(-1, 1, 5)[:, None].astype("float32")
    group = Group(Downpour(), model.trainable_variables, workers=3)

    def loss_at(point):
        for variable, value in zip(model.trainable_variables, point, strict=True):
            variable.assign(value)
        return tf.reduce_mean((model(words) - scores) ** 2)

    before = loss_at(group.center)
    for k in [0, 1, 2, 1] * 50:
        with tf.GradientTape() as tape:
            loss = loss_at(group.point(k))
        group.step(k, tape.gradient(loss, model.trainable_variables))  # that of the embedding is tf.IndexedSlices
    assert loss_at(group.center) < 0.1 * before


def test_arrays_of_the_caller_may_change_after_a_step():
    gradient = np.ones(2, np.float32)
    group = Group(CATALOGUE["easgd"], np.zeros(2, np.float32), workers=2)
    group.step(0, gradient)  # it is used after the exchange
    gradient[:] = 1e6
    center = group.center
    center[:] = 1e6
    group.step(1, np.ones(2))
    assert np.abs(group.params(0)).max() < 1


def fails(said, act):
    with pytest.raises(UserError, match=said):
        act()


def test_arguments_that_do_not_fit_are_refused_in_one_line():
    one = np.ones(3)
    fails(r"not its class: write Downpour\(\)", lambda: Group(Downpour, one, workers=2))
    fails(r"as in Group\(Downpour\(\).* Received: 'downpour'$", lambda: Group("downpour", one, workers=2))
    fails("use --workers 1", lambda: Group(Serial(), one, workers=2))
    fails("has no parameter server: leave ps out", lambda: Group(AllReduce(), one, workers=2, ps=2))
    fails("ps must be at most 3", lambda: Group(AsyncSGD(), one, workers=2, ps=4))
    fails("workers must be at least 1", lambda: Group(AsyncSGD(), one, workers=0))
    fails("unknown codec .int3.", lambda: Group(AsyncSGD(), one, workers=2, codec="int3"))
    fails(
        "must be arrays of floats. Received: float64, int64$", lambda: Group(AsyncSGD(), [one, np.arange(3)], workers=2)
    )
    fails("must be arrays of floats. Received: none$", lambda: Group(AsyncSGD(), [], workers=2))


def test_a_model_and_other_iterables_are_lists_and_tuples_fit_lists():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    arrays = [np.array(value) for value in model.get_weights()]
    for params in (model, model.trainable_variables, (array for array in arrays), {"w": arrays}, tuple(arrays)):
        group = Group(SyncSGD(learning_rate=0.5), params, workers=1)
        point = group.point(0)
        group.step(0, {"w": tuple(point["w"])} if isinstance(point, dict) else (part for part in point))
        center = group.center["w"] if isinstance(point, dict) else group.center
        assert type(center) is (tuple if isinstance(params, tuple) else list)
        for half, whole in zip(center, arrays, strict=True):
            np.testing.assert_array_equal(half, whole / 2)


def test_gradients_that_do_not_fit_are_refused_in_one_line_and_change_nothing():
    group = Group(AsyncSGD(), [np.ones((2, 3)), np.ones(3)], workers=2)
    for k in (2, -1, 1.0, None):
        fails(rf"^the index of a worker must lie between 0 and 1. Received: worker {k}$", lambda k=k: group.step(k, []))
    fails("^gradient 1 of 2 is None: the loss does not depend", lambda: group.step(0, [np.ones((2, 3)), None]))
    fails(
        r"^gradient 0 of 2 must have shape \(2, 3\). Received: \(3, 2\)$",
        lambda: group.step(0, [np.ones((3, 2)), np.ones(3)]),
    )
    fails(
        "must be a list with 2 arrays, like the parameters. Received: a list with 1",
        lambda: group.step(0, [np.ones((2, 3))]),
    )
    fails("must be a list with 2 arrays, like the parameters. Received: a ndarray", lambda: group.step(0, np.ones(9)))
    assert group.version == 0


def test_step_in_a_function_of_tensorflow_is_refused():
    group = Group(SyncSGD(), np.ones(2), workers=1)
    with pytest.raises(UserError, match=r"step would be called only once, when the tf.function around it is traced"):
        tf.function(lambda: group.step(0, np.ones(2)), autograph=False)()


def test_message_that_is_not_finite_leaves_the_center():
    group = Group(AsyncSGD(), np.ones(2), workers=2)
    with pytest.raises(Diverged, match=r"^worker 1 has a message that is not finite, at version 0 of the center"):
        group.step(1, np.array([0.0, np.nan]))
    np.testing.assert_array_equal(group.center, np.ones(2))
    assert group.step(1, np.ones(2))
    assert (group.version, group.staleness(1)) == (1, 0)


class Unequal(PowerSGD):
    """Worker 0 takes no mean."""

    name = "unequal"

    def message_sizes(self, shapes):
        return [4, 4]

    def message(self, worker):
        return worker.gradient if worker.index == 0 else worker.mean(worker.gradient)


def test_means_that_cannot_be_are_refused_in_one_line():
    fails("send numbers beside the vector", lambda: Group(AtServer(), np.ones(4), workers=2))
    group = Group(Unequal(), np.ones(4), workers=2)
    fails(
        "all 2 workers must call worker.mean. Received: 1 call",
        lambda: [group.step(k, np.ones(4)) for k in range(2)],
    )
