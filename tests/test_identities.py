"""What must be equal, conserved or bounded, on the threads back end, where the order of events is an input."""

import numpy as np
import pytest

import reference
from distsgd.algorithms import AEASGD, AsyncSGD, Downpour, DownpourEasy, Hogwild, Serial, SyncSGD
from distsgd.common import Cluster, train
from distsgd.common.errors import WaitTimeout
from runs import DIGITS, ONES, quadratic, record

CLOSE = {"rtol": 2e-5, "atol": 2e-6}  # float32 against float32 in another order


def threads(scheme, tmp_path, name="run", **options):
    return record(scheme, tmp_path / name, **{"backend": "threads", "workers": 1, "steps": 30, **options})


@pytest.mark.parametrize(
    "scheme",
    [
        AsyncSGD(learning_rate=0.2),
        Hogwild(learning_rate=0.2),
        DownpourEasy(learning_rate=0.2, communication_period=4),
        SyncSGD(learning_rate=0.2),
    ],
    ids=lambda scheme: scheme.name,
)
def test_one_worker_is_serial_sgd(scheme, tmp_path):
    serial = threads(Serial(learning_rate=0.2), tmp_path, "serial")
    np.testing.assert_allclose(threads(scheme, tmp_path).center, serial.center, **CLOSE)


def test_downpour_easy_with_period_one_is_async_sgd(tmp_path):
    schedule = [0, 1, 1, 2, 0, 2, 2, 1, 0, 0, 1, 2] * 2
    one, two = (
        threads(scheme, tmp_path, scheme.name, workers=3, schedule=schedule)
        for scheme in (AsyncSGD(), DownpourEasy(communication_period=1))
    )
    assert one.order == two.order == schedule
    np.testing.assert_allclose(one.center, two.center, **CLOSE)


def test_downpour_with_period_one_is_async_sgd_with_adagrad_on_the_server(tmp_path):
    scheme = Downpour(communication_period=1, server_learning_rate=0.05)
    run = threads(scheme, tmp_path, workers=2, schedule=[0, 1] * 10)
    theta, squares = run.start.copy(), np.full_like(run.start, 0.1)
    x, t = [theta.copy(), theta.copy()], [0, 0]
    for k in run.order:
        g = run.gradient(x[k], k, t[k])
        t[k] += 1
        squares += g * g
        theta = theta - 0.05 * g / np.sqrt(squares)
        x[k] = theta.copy()
    np.testing.assert_allclose(run.center, theta, **CLOSE)


@pytest.mark.parametrize("scheme", [AsyncSGD(), Downpour(), DownpourEasy(), AEASGD()], ids=lambda s: s.name)
def test_a_scripted_interleaving_replays(scheme, tmp_path):
    schedule = [0, 0, 1, 0, 2, 2, 1, 1, 0, 2, 1, 0]
    run = threads(scheme, tmp_path, workers=3, schedule=schedule, ps=2)
    assert run.order == schedule
    run.steps = 10**6  # every round of a schedule is a whole one
    assert run.error() < 1e-5


def test_staleness_is_what_the_schedule_makes_it(tmp_path):
    run = threads(AsyncSGD(), tmp_path, workers=3, schedule=[0, 1, 0, 0, 0, 2, 1])
    assert run.trace["staleness"].tolist() == [0, 1, 1, 0, 0, 5, 4]
    assert run.trace["version"].tolist() == list(range(7))


def test_workers_in_turn_are_each_w_minus_one_updates_late(tmp_path):
    run = threads(AsyncSGD(), tmp_path, workers=4, schedule=[0, 1, 2, 3] * 5)
    assert set(run.trace["staleness"][4:].tolist()) == {3}


def test_staleness_sums_to_the_bookkeeping_of_versions_on_real_processes(warm, tmp_path):
    """Each update is counted once in the window of every other worker: mean staleness tends to W - 1."""
    run = record(AsyncSGD(), tmp_path / "run", workers=3, steps=100)
    assert run.trace["version"].tolist() == list(range(300))
    pulled = dict.fromkeys(range(3), 0)
    for version, worker, staleness in zip(*(run.trace[k] for k in ("version", "worker", "staleness")), strict=True):
        assert staleness == version - pulled[worker]
        pulled[worker] = version + 1


@pytest.mark.parametrize("ps", [1, 2])
def test_synchronous_sgd_of_w_workers_is_serial_sgd_with_w_times_the_batch(ps, tmp_path):
    x, y = (array[:96] for array in DIGITS.train)

    def batches(size):
        def make(context):
            import tensorflow as tf

            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(size)
            return data.shard(context.num_input_pipelines, context.input_pipeline_id)

        return make

    centers = []
    for scheme, workers, size in ((SyncSGD(learning_rate=0.3), 3, 8), (Serial(learning_rate=0.3), 1, 24)):
        run = train(
            digits_model(),
            batches(size),
            scheme,
            cluster=Cluster.local(workers, ps=ps if workers > 1 else 1, backend="threads"),
            steps=12,
            batch_size=size,
            run_dir=tmp_path / scheme.name,
            verbose=False,
        )
        centers.append(np.concatenate([w.ravel() for w in run.model.get_weights()]))
    np.testing.assert_allclose(*centers, **CLOSE)


def digits_model():
    from distsgd.common.models import ModelRecipe

    return ModelRecipe.named("mlp:hidden=7-5", (64,), 10, 0).build()


def test_no_backup_workers_is_the_plain_barrier(tmp_path):
    one = threads(SyncSGD(), tmp_path, "one", workers=3)
    two = threads(SyncSGD(backup_workers=0), tmp_path, "two", workers=3)
    np.testing.assert_allclose(one.center, two.center, **CLOSE)
    assert one.trace["accepted"].all()
    assert not one.trace["staleness"].any()


def test_the_late_gradient_is_dropped_and_its_worker_goes_on(tmp_path):
    run = threads(SyncSGD(backup_workers=1), tmp_path, workers=3, schedule=[0, 1, 2, 1, 2, 0, 0, 2])
    assert run.trace["accepted"].tolist() == [1, 1, 0, 1, 1, 0, 1, 1]
    assert run.error() < 1e-5
    assert run.result["dropped"] == 2


def test_a_barrier_that_cannot_fill_names_the_missing_workers(tmp_path):
    with pytest.raises(WaitTimeout, match=r"barrier for worker 1, worker 2|turn"):
        threads(SyncSGD(), tmp_path, workers=3, schedule=[0, 0], wait_seconds=1)


def test_two_ps_tasks_give_the_same_center_as_one(tmp_path):
    schedule = [0, 1, 1, 0, 2, 1, 0, 2, 2]
    for scheme in (AsyncSGD(), Downpour(), AEASGD()):
        runs = [
            threads(scheme, tmp_path, f"{scheme.name}-{ps}", workers=3, ps=ps, schedule=schedule) for ps in (1, 2, 3)
        ]
        for other in runs[1:]:
            np.testing.assert_allclose(runs[0].center, other.center, rtol=1e-6, atol=1e-6)  # vector tails round apart


def test_an_elastic_exchange_conserves_params_plus_center(tmp_path):
    """With gradients of a linear loss, Σ x_k + θ moves by exactly -η g for every local step, exchanges or not."""
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3, use_bias=False)])
    slope = np.array([1.0, -2.0, 0.5], np.float32)
    model.compile(loss=lambda y, p: keras.ops.sum(p * slope, axis=-1))
    start = model.get_weights()[0].ravel().astype(float)
    scheme = AEASGD(learning_rate=0.01, beta=0.9, communication_period=2)
    schedule = [0, 1, 1, 0, 2, 0, 1, 2]
    workers = 3
    result = train(
        model,
        ONES,
        scheme,
        cluster=Cluster.local(workers, backend="threads"),
        steps=2,
        batch_size=4,
        run_dir=tmp_path / "run",
        schedule=schedule,
        verbose=False,
    )
    expected = reference.aeasgd(start, lambda *_: slope, schedule, workers, eta=0.01, alpha=0.3, period=2, steps=10**6)[
        -1
    ]
    np.testing.assert_allclose(result.model.get_weights()[0].ravel(), expected, rtol=1e-5)


def test_without_elasticity_the_center_never_moves(tmp_path):
    run = threads(AEASGD(beta=0.0), tmp_path, workers=2, steps=25)
    np.testing.assert_array_equal(run.center, run.start.astype(np.float32))


@pytest.mark.parametrize(("step", "stable"), [(0.95, True), (1.05, False)])
def test_two_workers_in_turn_are_stable_exactly_below_the_known_step(step, stable, tmp_path):
    """On ½x² with W workers in turn the limit is 2 sin(π/(4W − 2)): 1 for W = 2."""
    result = train(
        quadratic([1.0, -0.5]),
        ONES,
        AsyncSGD(learning_rate=step),
        cluster=Cluster.local(2, backend="threads"),
        batch_size=8,
        run_dir=tmp_path / "run",
        schedule=[0, 1] * 60,
        verbose=False,
    )
    size = np.abs(result.model.get_weights()[0]).max()
    assert size < 0.3 if stable else size > 3


def test_batches_of_a_worker_do_not_depend_on_when_it_runs(tmp_path):
    one = threads(AsyncSGD(), tmp_path, "one", workers=2, schedule=[0, 0, 1, 1])
    two = threads(AsyncSGD(), tmp_path, "two", workers=2, schedule=[1, 0, 1, 0])
    for run in (one, two):
        assert run.error() < 1e-5
