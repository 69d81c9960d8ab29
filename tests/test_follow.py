"""An evaluator that has no network to the ps: it follows the checkpoints."""

import json
import shutil
import threading
from functools import partial

import keras
import numpy as np
import pytest

from distsgd.algorithms import AsyncSGD
from distsgd.common.cli.commands import evaluate
from distsgd.common.cli.own import problem_of_run
from distsgd.common.errors import UserError, WaitTimeout
from distsgd.common.record import checkpoint
from distsgd.common.record.callbacks import Callback
from distsgd.common.tasks.follow import follow
from distsgd.common.tasks.options import Recovery
from runs import DIGITS, LASTING, patience, record


def found(run_dir):
    """Return the function that finds data and model of a run by their names."""
    return partial(problem_of_run, run_dir, None, None)


class UntilMeasured(Callback):
    """Ends a run when a checkpoint of it has been measured."""

    def __init__(self, seen):
        self.seen = seen

    def on_train_batch_end(self, batch, logs):
        self.stop_training = bool(self.seen)


@pytest.mark.rotating
def test_checkpoints_are_measured_during_a_run_and_the_last_is_its_result(tmp_path):
    run_dir, seen = tmp_path / "run", []
    follower = threading.Thread(target=follow, args=(run_dir, patience(60), found(run_dir), seen.append), daemon=True)
    follower.start()  # before there is anything to follow
    options = {"ema_decay": 0.9, "recovery": Recovery(checkpoint_seconds=0.1), "callbacks": [UntilMeasured(seen)]}
    run = record(AsyncSGD(), run_dir, backend="threads", workers=2, **LASTING, **options)
    follower.join(patience(60))
    assert not follower.is_alive()
    assert len(seen) > 1
    last = seen[-1]
    assert last["version"] == run.result["updates"]
    model = keras.saving.load_model(run_dir / "model.keras", compile=False)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    result = model.evaluate(*DIGITS.test, verbose=0, return_dict=True)
    np.testing.assert_allclose([last["test_loss"], last["test_accuracy"]], list(result.values())[::-1], rtol=1e-4)
    again = []
    follow(run_dir, 1, found(run_dir), again.append)
    assert again == seen == [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]


def test_following_a_missing_run_or_one_with_its_own_data_is_an_error(tmp_path):
    with pytest.raises(WaitTimeout, match="waited 1 s for a checkpoint in"):
        follow(tmp_path, 1, found(tmp_path), print)
    (tmp_path / "checkpoints" / "000000000007").mkdir(parents=True)
    (tmp_path / "checkpoints" / "000000000007" / "checkpoint.json").write_text("{}")
    config = {"dataset": "own data", "model": "mine", "seed": 0, "steps_per_worker": 9, "workers": 2, "batch_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="has a model or data of its own"):
        follow(tmp_path, 0.1, found(tmp_path), print)


def test_a_wait_without_an_end_or_for_what_is_no_folder_is_refused(tmp_path):
    for seconds in (float("nan"), float("inf"), 0.0):
        with pytest.raises(UserError, match="wait_seconds must be a positive number"):
            follow(tmp_path, seconds, found(tmp_path), print)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not a folder"):
        follow(tmp_path / "file", 1, found(tmp_path), print)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run whose last checkpoint stands for three, as if its center had rested since version 20."""
    run_dir = tmp_path_factory.mktemp("follow") / "run"
    recovery = Recovery(checkpoint_steps=1000, keep_checkpoints=9)
    record(AsyncSGD(), run_dir, steps=30, workers=2, backend="threads", recovery=recovery)
    last = checkpoint.newest(run_dir)
    for version in (20, 40):
        arrays = {**last.arrays, "version": np.asarray(version, last.arrays["version"].dtype)}
        checkpoint.publish(checkpoint.write(run_dir, checkpoint.Checkpoint(arrays, last.about)), keep=9)
    return run_dir


@pytest.fixture
def run_dir(recorded, tmp_path):
    """A copy of them."""
    copy = shutil.copytree(recorded, tmp_path / "run")
    assert [int(path.name) for path in checkpoint.found(copy)] == [20, 40, 60]
    return copy


@pytest.mark.rotating
def test_evaluate_warns_of_each_damaged_checkpoint(run_dir, capsys):
    (first, *_) = paths = checkpoint.found(run_dir)
    (first / "arrays.npz").write_bytes(b"x")
    evaluate([str(run_dir)])
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith(f"warning: the checkpoint {first} cannot be read")
    assert line.endswith("; it was passed over")
    measured = [int(words.split()[1]) for words in told.out.splitlines()]
    assert measured == [int(path.name) for path in paths[1:]]


def test_a_checkpoint_deleted_meanwhile_is_skipped_without_a_warning(run_dir):
    paths, measured, told = checkpoint.found(run_dir), [], []

    def delete_the_second(line):
        measured.append(line["version"])
        checkpoint.discard(paths[1])

    follow(run_dir, 1, found(run_dir), delete_the_second, told.append)
    assert measured == [int(path.name) for path in paths if path != paths[1]]
    assert told == []


def test_evaluate_waits_only_if_asked_for_a_folder_that_is_not_there(tmp_path, capsys):
    (tmp_path / "my_run").mkdir()
    with pytest.raises(UserError, match=r"no run directory .*my_rnu. Did you mean my_run\?"):
        evaluate([str(tmp_path / "my_rnu")])
    with pytest.raises(UserError, match="To wait until a run makes it, give --wait-seconds"):
        evaluate([str(tmp_path / "nothing")])
    with pytest.raises(WaitTimeout):
        evaluate([str(tmp_path / "nothing"), "--wait-seconds", "0.1"])
    assert f"{tmp_path}/nothing does not exist yet; waits up to 0.1 s" in capsys.readouterr().err


def test_following_a_simulated_run_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"algorithm": "downpour", "platform": {"network": "ideal"}}))
    with pytest.raises(UserError, match=r"a simulated run has no checkpoints: .*metrics\.jsonl"):
        follow(tmp_path, 1.0, found(tmp_path), print)
