"""Hooks: callbacks, early ends, summaries."""

import pytest

from distsgd.algorithms import AsyncSGD, SyncSGD
from distsgd.common import Cluster, train
from distsgd.common.hooks import Callback
from distsgd.common.models import ModelRecipe
from runs import DIGITS, record

FOREVER = 20_000


class Watcher(Callback):
    def __init__(self, stop_after: int):
        self.stop_after, self.calls = stop_after, []

    def on_train_begin(self, logs):
        self.calls.append(("begin", logs["algorithm"]))

    def on_train_batch_end(self, batch, logs):
        self.calls.append(("batch", batch, logs["loss"]))

    def on_test_end(self, logs):
        self.calls.append(("test", logs["version"]))
        self.stop_training = logs["version"] >= self.stop_after

    def on_train_end(self, logs):
        self.calls.append(("end", logs["version"]))


def test_a_callback_sees_the_run_and_ends_it(warm, tmp_path):
    watcher = Watcher(50)
    run = record(SyncSGD(), tmp_path / "run", steps=FOREVER, workers=2, hidden=(16,), callbacks=[watcher])
    assert run.result["outcome"] == "completed"
    assert run.result["stopped_by"] == "a callback"
    assert 50 <= run.result["updates"] < FOREVER
    assert watcher.calls[0] == ("begin", "sync_sgd")
    assert watcher.calls[-1] == ("end", run.result["updates"])
    assert {call[0] for call in watcher.calls} == {"begin", "batch", "test", "end"}


@pytest.mark.slow
def test_a_run_ends_at_a_version_or_an_accuracy_and_leaves_summaries(warm, tmp_path):
    from tensorflow.compat.v1.train import summary_iterator

    def short(**options):
        model = ModelRecipe.named("mlp", (64,), 10, 0).build()
        return train(
            model, DIGITS.train, AsyncSGD(), steps=FOREVER, validation_data=DIGITS.test, verbose=False,
            cluster=Cluster.local(2), **options,
        )  # fmt: skip

    by_version = short(run_dir=tmp_path / "version", stop_at_version=100, tensorboard=True)
    assert by_version.metrics["stopped_by"] == "version 100"
    assert 100 <= by_version.metrics["updates"] < FOREVER
    (file,) = (tmp_path / "version" / "tb").iterdir()
    events = list(summary_iterator(str(file)))
    assert {value.tag for event in events for value in event.summary.value} >= {"test_loss", "test_accuracy"}
    assert events[-1].step == by_version.metrics["updates"]
    by_accuracy = short(run_dir=tmp_path / "accuracy", stop_at_accuracy=0.8)
    assert by_accuracy.metrics["stopped_by"] == "accuracy 0.8"
    assert by_accuracy.metrics["test_accuracy"] > 0.7
