"""How a run ends: with its last update, and for the right reason."""

import threading

import numpy as np

from distsgd.algorithms import SyncSGD
from distsgd.common import Cluster, train
from distsgd.common.hooks import Callback
from distsgd.common.models import ModelRecipe
from runs import DIGITS

LIMIT = 60.0  # seconds for what must happen


class Tells(Callback):
    """Sets an event when the center has had so many updates."""

    def __init__(self, version):
        self.version, self.reached = version, threading.Event()

    def on_test_end(self, logs):
        if logs["version"] >= self.version:
            self.reached.set()


def held_up(worker, release):
    """A data function: one worker has no batch until it is released."""

    def make(context):
        import tensorflow as tf

        def wait():
            release.wait(LIMIT)
            return np.int32(0)

        def delayed(*batch):
            with tf.control_dependencies([tf.numpy_function(wait, [], tf.int32, stateful=True)]):
                return tuple(tf.identity(part) for part in batch)

        batches = tf.data.Dataset.from_tensor_slices(DIGITS.train).repeat().batch(8, drop_remainder=True)
        return batches.map(delayed) if context.input_pipeline_id == worker else batches

    return make


def softmax():
    return ModelRecipe.named("softmax", (64,), 10, 0).build()


def test_a_run_with_backup_workers_ends_with_its_last_update(tmp_path):
    """Whoever was late once worked off all its rounds alone, to be dropped: up to a fifth of the time of a run."""
    tells = Tells(20)
    result = train(
        softmax(),
        held_up(2, tells.reached),
        SyncSGD(backup_workers=1),
        cluster=Cluster.local(3, backend="threads"),
        steps=20,
        batch_size=8,
        run_dir=tmp_path,
        callbacks=[tells],
        verbose=False,
    )
    trace = dict(np.load(tmp_path / "trace.npz"))
    assert np.bincount(trace["worker"], minlength=3).tolist() == [20, 20, 0]
    assert trace["accepted"].all()
    assert (result.metrics["updates"], result.metrics["steps"], result.metrics["dropped"]) == (20, 40, 0)
