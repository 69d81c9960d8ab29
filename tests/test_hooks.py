"""Hooks: callbacks, early ends, summaries."""

import json
import sys
import threading

import pytest

from distsgd.algorithms import AsyncSGD, SyncSGD
from distsgd.common.files import Lock
from distsgd.common.record import events as listener
from distsgd.common.record.callbacks import Callback
from distsgd.common.tasks.job import StopRule
from runs import record, wait_until

FOREVER = 10**7


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


def test_a_callback_sees_the_run_and_ends_it(tmp_path):
    watcher = Watcher(50)
    options = {"backend": "threads", "steps": FOREVER, "workers": 2, "hidden": (16,)}
    run = record(SyncSGD(), tmp_path / "run", callbacks=[watcher], **options)
    assert run.result["outcome"] == "completed"
    assert run.result["stopped_by"] == "a callback"
    assert 50 <= run.result["updates"] < FOREVER
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


def test_a_slow_callback_stops_no_training_is_named_and_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "LATE_SECONDS", 0.05)
    slow = Waits(tmp_path / "run", updates=2 * 500)
    run = record(
        AsyncSGD(), tmp_path / "run", backend="threads", steps=500, workers=2, hidden=(16,),
        callbacks=[Callback(), slow],
    )  # fmt: skip
    assert run.result["outcome"] == "completed"
    assert run.result["updates"] == 1000
    assert slow.seen[-1] == "end"
    (warning,) = run.result["recovery"]["warnings"]
    assert warning.startswith("callback Waits cannot keep up")


class Fails(Callback):
    def __init__(self, method: str):
        setattr(self, method, self.fail)

    def fail(self, logs):
        raise LookupError("a bug in a callback")


@pytest.mark.parametrize("method", ["on_train_begin", "on_test_end", "on_train_end"])
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
        ({"version": 10}, 9, 1.0, None),
        ({"version": 10}, 10, 0.0, "version 10"),
        ({"accuracy": 0.8}, 99, 0.79, None),
        ({"accuracy": 0.8}, 99, 0.8, "accuracy 0.8"),
        ({"accuracy": 0.8}, 99, None, None),
        ({}, 99, 1.0, None),
    ],
)
def test_a_run_ends_when_the_version_or_the_accuracy_is_reached(rule, version, accuracy, reason, tmp_path):
    rule = StopRule(**{"version": None, "accuracy": None, "folder": tmp_path} | rule)
    metrics = {"accuracy": 1.0} | ({} if accuracy is None else {"test_sparse_accuracy": accuracy})
    assert rule.reason(lambda: version, metrics) == reason
