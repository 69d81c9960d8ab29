"""The examples that each worker trains on in an epoch, where the workers' shares are not equal."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd import DESLOC, AllReduce, AsyncSGD, Cluster, SyncSGD, UserError, train
from distsgd.common.data.inputs import sharding, shares, uneven
from distsgd.common.data.models import ModelRecipe
from distsgd.common.tasks.job import make_job
from distsgd.common.tasks.options import RunOptions

N, BATCH = 60, 4


def of_unequal(*sizes):
    """Return a data function of an InputContext, by which workers have so many of the batches, one after the other."""

    def make(context):
        begin = BATCH * sum(sizes[: context.input_pipeline_id])
        rows = slice(begin, begin + BATCH * sizes[context.input_pipeline_id])
        x, y = np.eye(N, dtype="f")[rows], np.zeros((N, 1), "f")[rows]
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)

    return make


def in_order():
    return of_unequal(15)(tf.distribute.InputContext())


def visits_of(make, tmp_path, workers=2, **options):
    """Return how often asynchronous workers visit each example: the loss of a weight is its example's mean output."""
    model = keras.Sequential([keras.Input((N,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(loss=lambda y, out: tf.reduce_mean(out, -1))
    cluster = Cluster.local(workers, backend="threads")
    how = {"batch_size": BATCH, "verbose": False, "probe": False, "run_dir": tmp_path / "run", **options}
    result = train(model, make, AsyncSGD(learning_rate=1.0), cluster=cluster, **how)
    return np.round(-BATCH * np.array(model.trainable_variables[0]).ravel()).astype(int), result.metrics


@pytest.mark.parametrize(
    ("make", "workers"), [(of_unequal(4, 11), 2), (in_order, 4)], ids=["of the function", "of its batches"]
)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_each_example_is_used_once_in_an_epoch_of_unequal_shares(tmp_path, make, workers):
    visits, metrics = visits_of(make, tmp_path, workers, epochs=2)
    assert visits.tolist() == [2] * N
    assert metrics["updates"] == 30
    assert any("the shares of the workers differ: 4, " in line for line in metrics["recovery"]["warnings"])


def job_of(scheme, make, workers=2, **options):
    recipe, cluster = ModelRecipe(lambda: None), Cluster.local(workers, backend="threads")
    return make_job(scheme, recipe, make, None, cluster, RunOptions(batch_size=BATCH, **options))


def test_only_workers_that_need_not_meet_make_the_steps_of_their_own_shares():
    assert [own.steps() for own in job_of(SyncSGD(), of_unequal(4, 11), epochs=3).plan.all_rounds] == [12, 33]
    for scheme in (AllReduce(), DESLOC()):
        job = job_of(scheme, of_unequal(4, 11), epochs=3)
        assert [own.steps() for own in job.plan.all_rounds] == [33, 33]
        assert job.warnings == [
            "the shares of the workers differ: 4, 11 batches an epoch; their steps are as many, so that shorter ones "
            "begin anew"
        ]
    job = job_of(SyncSGD(), of_unequal(4, 11), steps=5)
    assert ([own.steps() for own in job.plan.all_rounds], job.warnings) == ([5, 5], [])


def test_a_resumed_run_makes_the_other_epochs_of_each_share():
    job = job_of(AsyncSGD(), of_unequal(4, 11), epochs=5)
    job.earlier_step_targets = [22]
    assert [len(own) for own in job.plan.all_rounds] == [20, 55]


def test_a_worker_without_a_batch_is_named_before_the_start():
    for steps in (None, 3):
        with pytest.raises(UserError, match=r"no batch for worker 1 of 3: .* Received batches: 7, 0, 8"):
            job_of(SyncSGD(), of_unequal(7, 0, 8), workers=3, steps=steps)
    with pytest.raises(UserError, match=r"no batch for worker 15 of 20: .* Received batches: 0 to 1 of 20 workers"):
        job_of(SyncSGD(), in_order, workers=20)


def test_shares_are_those_that_the_data_set_yields():
    calls = []

    def counted():
        calls.append(1)
        return in_order()

    assert shares(sharding(counted), 4) == [4, 4, 4, 3] == [len(list(in_order().shard(4, k))) for k in range(4)]
    assert len(calls) == 1
    assert shares(sharding(lambda: in_order().repeat()), 2) == [-1, -1]
    with pytest.raises(UserError, match=r"length of the tf.data.Dataset is not known: give steps="):
        job_of(SyncSGD(), lambda: in_order().filter(lambda *_: True))


def test_a_line_says_from_a_tenth_on_that_batches_do_not_divide_arrays():
    told = {n: uneven((np.zeros(n), np.zeros(n)), 2, 32) for n in (126, 142, 640)}
    assert told[126] == (
        "an epoch uses 64 of 126 examples, others in each: a worker has 63, in batches of 32. Another "
        "batch_size uses more"
    )
    assert [n for n, line in told.items() if line] == [126]  # of 142 examples 128 are used, 90.1 %
