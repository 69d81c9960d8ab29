"""Hooks: callbacks, early ends, summaries."""

import json
import sys
import threading

import keras
import numpy as np
import pytest

from distsgd.algorithms import AllReduce, AsyncSGD, SyncSGD
from distsgd.common import Cluster, train
from distsgd.common.data.models import ModelRecipe
from distsgd.common.files import Lock
from distsgd.common.record import events as listener
from distsgd.common.record.callbacks import Callback
from distsgd.common.tasks import interruption
from distsgd.common.tasks.interruption import reason_to_stop
from runs import DIGITS, LASTING, job_of, record, wait_until


class Watcher(Callback):
    def __init__(self, stop_after: int):
        self.stop_after, self.calls = stop_after, []

    def on_train_begin(self, logs):
        self.calls.append(("begin", logs["algorithm"]))

    def on_train_batch_end(self, batch, logs):
        self.calls.append(("batch", batch, logs["loss"]))
        self.stop_training = batch >= self.stop_after

    def on_test_end(self, logs):
        self.calls.append(("test", logs["version"]))

    def on_train_end(self, logs):
        self.calls.append(("end", logs["version"]))


@pytest.mark.rotating
def test_a_callback_sees_the_run_and_ends_it(tmp_path):
    watcher = Watcher(20)
    options = {"backend": "threads", "workers": 2, "hidden": (16,), **LASTING}
    run = record(SyncSGD(), tmp_path / "run", callbacks=[watcher], **options)
    assert run.result["outcome"] == "completed"
    assert run.result["stopped_by"] == "a callback"
    assert 20 <= run.result["updates"] < LASTING["steps"]
    assert watcher.calls[0] == ("begin", "sync_sgd")
    assert watcher.calls[-1] == ("end", run.result["updates"])
    assert {call[0] for call in watcher.calls} == {"begin", "batch", "test", "end"}


class Waits(Callback):
    """Looks at nothing but its first report until the record of the run has the last update."""

    def __init__(self, run_dir, updates: int):
        self.metrics, self.updates, self.seen = run_dir / "metrics.jsonl", updates, []

    def trained(self) -> bool:
        rows = [json.loads(line) for line in self.metrics.read_text().splitlines() if line.endswith("}")]
        return max((row.get("version", 0) for row in rows), default=0) == self.updates

    def on_train_batch_end(self, batch, logs):
        if not self.seen:
            wait_until(self.trained, 100)
        self.seen.append(batch)

    def on_train_end(self, logs):
        threading.Event().wait(0.2)
        self.seen.append("end")


@pytest.mark.rotating
def test_a_slow_callback_stops_no_training_is_named_and_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "LATE_SECONDS", 0.05)
    slow = Waits(tmp_path / "run", updates=2 * 200)
    run = record(
        AsyncSGD(), tmp_path / "run", backend="threads", steps=200, workers=2, hidden=(16,),
        callbacks=[Callback(), slow],
    )  # fmt: skip
    assert run.result["outcome"] == "completed"
    assert run.result["updates"] == 400
    assert slow.seen[-1] == "end"
    # So short a limit names others on a busy machine, too.
    late = [text.partition(" cannot keep up")[0] for text in run.result["recovery"]["warnings"]]
    assert late.count("callback Waits") == 1


class Fails(Callback):
    def __init__(self, method: str):
        setattr(self, method, self.fail)

    def fail(self, *_):
        raise LookupError("a bug in a callback")


@pytest.mark.parametrize("method", ["on_train_begin", "on_train_end"])
@pytest.mark.gate("others")
def test_an_error_of_a_callback_ends_the_run_as_failed(method, tmp_path):
    with pytest.raises(LookupError, match="a bug in a callback"):
        record(
            AsyncSGD(), tmp_path / "run", backend="threads", steps=100, workers=2, hidden=(16,),
            callbacks=[Fails(method)],
        )  # fmt: skip
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["outcome"], result["exit_code"], result["message"]) == ("failed", 1, "a bug in a callback")


class Leaves(Callback):
    def __init__(self, method: str, code: int):
        self.code = code
        setattr(self, method, self.leave)

    def leave(self, *_):
        sys.exit(self.code)


@pytest.mark.parametrize("method", ["on_train_begin", "on_test_end"])
def test_a_callback_that_exits_leaves_a_result_and_a_free_folder(method, tmp_path):
    """The next run in the same notebook was refused: another one was under way."""
    options = {"backend": "threads", "steps": 100, "workers": 1, "hidden": (16,)}
    with pytest.raises(SystemExit, match="3"):
        record(AsyncSGD(), tmp_path, callbacks=[Leaves(method, 3)], **options)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["outcome"], result["exit_code"]) == ("failed", 1)
    assert result["message"] == "this program was ended by sys.exit(3)"
    Lock(tmp_path).release()


@pytest.mark.parametrize(
    ("rule", "version", "accuracy", "reason"),
    [
        ({"stop_at_version": 10}, 9, 1.0, None),
        ({"stop_at_version": 10}, 10, 0.0, "version 10"),
        ({"stop_at_accuracy": 0.8}, 99, 0.79, None),
        ({"stop_at_accuracy": 0.8}, 99, 0.8, "accuracy 0.8"),
        ({"stop_at_accuracy": 0.8}, 99, None, None),
        ({}, 99, 1.0, None),
    ],
)
def test_a_run_ends_when_the_version_or_the_accuracy_is_reached(rule, version, accuracy, reason, tmp_path):
    job = job_of(AsyncSGD(), run_dir=tmp_path, **rule)
    metrics = {"accuracy": 1.0} | ({} if accuracy is None else {"test_sparse_accuracy": accuracy})
    assert reason_to_stop(job, lambda: version, metrics) == reason


def test_a_signal_while_a_run_looks_for_one_is_not_taken_for_a_callback(monkeypatch, tmp_path):
    """A simulated run ended as completed, with code 0, when the file came between two looks at it."""

    class Appearing:
        looks = 0

        def read_text(self):
            self.looks += 1
            if self.looks == 1:
                raise FileNotFoundError
            return "SIGUSR1"

        def exists(self):
            return True

    file, job = Appearing(), job_of(AsyncSGD(), run_dir=tmp_path)
    monkeypatch.setattr(interruption, "stop_file", lambda job: file)
    assert [reason_to_stop(job, int, {}) for _ in range(2)] == [None, "SIGUSR1"]


class Epochs(keras.callbacks.Callback):
    """Evaluates the model that it sees at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.calls, self.logs = [], []

    def on_train_begin(self, logs=None):
        self.calls.append("begin")

    def on_epoch_end(self, epoch, logs=None):
        measured = self.model.evaluate(*DIGITS.test, batch_size=512, verbose=0, return_dict=True)
        assert logs["val_loss"] == pytest.approx(measured["loss"], rel=1e-5)
        self.calls.append(epoch)
        self.logs.append(logs)

    def on_train_batch_end(self, batch, logs=None):
        raise AssertionError("called")

    def on_train_end(self, logs=None):
        self.calls.append("end")


def stopped_early(backend, run_dir, scheme=None, **options):
    """Train with a target that the second and third evaluation miss; return callbacks, result and model."""
    model = ModelRecipe.named("softmax", (64,), 10, 0).build()
    epochs, file = Epochs(), run_dir / "log.csv"
    stop = keras.callbacks.EarlyStopping("val_loss", mode="max", patience=2, restore_best_weights=True)
    checkpoint = keras.callbacks.ModelCheckpoint(run_dir / "at-{version}.keras")
    options = LASTING | {"evaluate_every": 10} | options
    result = train(
        model, scheme=scheme or SyncSGD(), validation_data=DIGITS.test, verbose=False,
        cluster=Cluster.local(2, backend=backend), run_dir=run_dir / "run",
        callbacks=[epochs, stop, keras.callbacks.CSVLogger(file), checkpoint], **options,
    )  # fmt: skip
    return epochs, result, model, file.read_text().splitlines()


@pytest.mark.parametrize("backend", ["threads", "simulation", "processes"])
@pytest.mark.rotating
def test_keras_callbacks_see_the_center_at_known_updates(backend, tmp_path):
    how = {"data": DIGITS.train} if backend == "simulation" else {}
    epochs, result, model, table = stopped_early(backend, tmp_path, **how)
    assert epochs.calls == ["begin", 0, 1, 2, "end"]
    assert [logs["version"] for logs in epochs.logs] == [10, 20, 30]
    assert all(set(logs) == {"loss", "val_loss", "val_accuracy", "version"} for logs in epochs.logs), epochs.logs
    assert len(table) == 1 + 3
    assert result.metrics["stopped_by"] == "a callback"
    assert result.history["version"][:4] == [0, 10, 20, 30]
    assert len(result.history["version"]) <= 5  # the last center, and no snapshot after the request to stop
    (warning,) = result.metrics["recovery"]["warnings"]
    assert warning.startswith("callback Epochs: on_train_batch_end is not called")
    best = keras.models.load_model(tmp_path / "at-10.keras", compile=False)
    for returned, saved in zip(model.get_weights(), best.get_weights(), strict=True):
        np.testing.assert_array_equal(returned, saved)  # the weights of the best epoch, not of the last center
    assert not (tmp_path / "run" / "evaluated.npz").exists()


@pytest.mark.rotating
def test_keras_callbacks_are_told_of_limits_in_one_line(tmp_path):
    epochs, result, *_ = stopped_early(
        "threads", tmp_path, AllReduce(), steps=40, evaluate_every=None, data=DIGITS.train
    )
    lines = "; ".join(result.metrics["recovery"]["warnings"])
    assert "patience counts evaluations, at times that vary: set evaluate_every" in lines
    assert "a run without a parameter server cannot be stopped early" in lines
    assert (epochs.calls[0], epochs.calls[-1]) == ("begin", "end")


@pytest.mark.parametrize(
    "callbacks",
    [
        (keras.callbacks.LambdaCallback(on_epoch_end=Fails("on_epoch_end").fail),),
        (Fails("on_test_end"), keras.callbacks.Callback()),  # the second one does not see the evaluated center
    ],
)
@pytest.mark.rotating
def test_an_error_beside_keras_callbacks_ends_the_run_as_failed(callbacks, tmp_path):
    with pytest.raises(LookupError, match="a bug in a callback"):
        train(
            ModelRecipe.named("softmax", (64,), 10, 0).build(), scheme=AsyncSGD(), verbose=False,
            cluster=Cluster.local(2, backend="threads"), run_dir=tmp_path, record="off", callbacks=callbacks, **LASTING,
        )  # fmt: skip
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["outcome"], result["exit_code"], result["message"]) == ("failed", 1, "a bug in a callback")
    assert not (tmp_path / "evaluated.npz").exists()
