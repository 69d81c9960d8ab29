"""Files from elsewhere are loaded without running code from them; a peer's words are data."""

import contextlib
import json
import pickle
import re
import shutil
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

from distsgd.algorithms import AsyncSGD
from distsgd.common.cluster.fingerprint import differences, flat
from distsgd.common.data.models import ModelRecipe
from distsgd.common.errors import CannotWrite, DistsgdError, UserError
from distsgd.common.record import checkpoint
from distsgd.common.record.run_directory import load_center
from distsgd.common.tasks.options import Recovery
from runs import record

ROOT = Path(__file__).resolve().parent.parent


class Trap:
    """An object whose unpickling leaves a mark."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_a_center_or_trace_that_holds_a_pickle_is_refused_and_not_run(tmp_path):
    mark = tmp_path / "ran"
    np.savez(tmp_path / "center.npz", center=np.array([Trap(mark)], dtype=object), state=np.zeros(0))
    with pytest.raises(UserError, match="holds object, no numbers"):
        load_center(ModelRecipe.named("softmax", (64,), 10, 0).flat(), tmp_path)
    assert not mark.exists()
    with np.load(tmp_path / "center.npz", allow_pickle=True) as opened:
        opened["center"]
    assert mark.exists(), "the trap does not work, so the test above shows nothing"


def test_keras_refuses_a_model_file_with_code_unless_safe_mode_is_off(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "ran"
    trap = keras.layers.Lambda(lambda x: (__import__("pathlib").Path("ran").touch(), x)[1])
    path = tmp_path / "model.keras"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras advises against it, too
        keras.Sequential([keras.Input((2,)), trap]).save(path)
    mark.unlink(missing_ok=True)
    with pytest.raises(ValueError, match="safe_mode"):
        keras.saving.load_model(path)
    assert not mark.exists()
    keras.saving.load_model(path, safe_mode=False)
    assert mark.exists(), "the trap does not work, so the test above shows nothing"


def test_the_model_that_a_run_leaves_behind_loads_in_safe_mode(tmp_path):
    model = ModelRecipe.named("mlp", (64,), 10, 0).build()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False, safe_mode=True)
    for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_settings_of_a_peer_are_compared_as_text(tmp_path):
    mark = tmp_path / "ran"
    evil = json.loads(json.dumps({"model": f"__import__('pathlib').Path({str(mark)!r}).touch()"}))
    evil["pickle"] = pickle.dumps(Trap(mark)).hex()
    assert "model is mlp here and __import__" in differences({"model": "mlp"}, evil, "worker 1")
    assert not mark.exists()


def test_objects_are_compared_without_their_addresses():
    assert flat({"a": {"rate": object()}}) == flat({"a": {"rate": object()}})
    assert differences({"a": {"b": 1}}, {"a": {"b": 2}, "c": "x"}, "ps 0") == (
        "a.b is 1 here and 2 at ps 0; c is not given here and x at ps 0"
    )


# Symbolic links in a run directory from elsewhere: no file of this user is written or deleted through one.


SMALL = {"hidden": (8,), "batch_size": 8, "workers": 1, "recovery": Recovery(checkpoint_steps=10)}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run directory with checkpoints."""
    folder = tmp_path_factory.mktemp("links") / "run"
    record(AsyncSGD(), folder, steps=20, backend="threads", tensorboard=True, **SMALL)
    return folder


@pytest.fixture
def planted(finished, tmp_path):
    """A copy of it, and a function that puts links to files (or folders) of the user where the names say."""
    run_dir, before = tmp_path / "run", {}
    shutil.copytree(finished, run_dir)

    def plant(*names):
        for name in names:
            link, target = run_dir / name, tmp_path / f"precious-{len(before)}"
            if link.is_dir():
                link.rename(target)
            elif link.exists():
                shutil.move(link, target)
            elif name.startswith("checkpoints/"):
                target.mkdir()
                (target / "arrays.npz").write_text("precious")
            else:
                target.write_text("precious")
            link.symlink_to(target)
            before.update({path: path.read_bytes() for path in [target, *target.rglob("*")] if path.is_file()})
        return run_dir

    yield plant
    assert before, "nothing was planted"
    assert {path: path.read_bytes() if path.exists() else None for path in before} == before


@pytest.mark.gate
def test_a_trace_is_not_written_through_a_link(planted, run_main):
    run_dir = planted(".trace.json.part", "trace.json")
    assert run_main("timeline", str(run_dir))[0] == 0
    assert json.loads((run_dir / "trace.json").read_text())["traceEvents"]


@pytest.mark.rotating
def test_a_resumed_run_replaces_its_files_without_following_links(planted):
    names = [f".{path.name}.part" for path in planted("config.json").iterdir()]
    parts = [f"checkpoints/.{version:012d}.part" for version in (20, 30, 40)]
    results = "result.json", "trace.npz", "rounds.npz", "center.npz", "model.keras", "stop"
    run_dir = planted(*names, ".model.part.keras", *results, *parts)
    run = record(AsyncSGD(), run_dir, steps=40, backend="threads", **SMALL)
    assert (run.result["outcome"], run.result["updates"]) == ("completed", 40)
    assert checkpoint.newest(run_dir).version == 40
    assert [str(path) for path in run_dir.rglob("*") if path.is_symlink()] == []


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "checkpoints"])
def test_a_run_that_would_write_through_a_link_is_refused(name, planted):
    run_dir = planted(name)
    with pytest.raises(UserError, match=f"{name}.*it is a symbolic link, and a run writes through none") as refused:
        record(AsyncSGD(), run_dir, steps=40, backend="threads", **SMALL)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["events.bin", "tb"])
@pytest.mark.rotating("others")
def test_a_log_that_is_a_link_is_not_written(name, planted):
    """The record of a run ends it; the rest is a warning."""
    run_dir = planted(name)
    with contextlib.suppress(CannotWrite):
        record(AsyncSGD(), run_dir, steps=40, backend="threads", tensorboard=True, **SMALL)
    said = json.loads((run_dir / "result.json").read_text())
    assert "it is a symbolic link" in json.dumps([said["message"], said["recovery"]["warnings"]])


@pytest.mark.parametrize("name", ["logs", "logs/worker-0.log"])
def test_the_output_of_tasks_goes_through_no_link(name, planted, warm, tmp_path):
    (tmp_path / "run" / "logs").mkdir(exist_ok=True)
    (tmp_path / "run" / "logs" / "worker-0.log").write_text("precious")
    run_dir = planted(name)
    with pytest.raises(DistsgdError):
        record(AsyncSGD(), run_dir, steps=40, **SMALL)
    assert json.loads((run_dir / "result.json").read_text())["outcome"] != "completed"


def test_files_are_opened_to_be_written_in_one_place():
    """`files.py`, which follows no links; the others write into folders of their own, or read."""
    others = {
        "common/messages/segments.py",  # memory
        "common/launch/isolation.py",  # of the kernel
        "common/launch/launcher.py",  # a temporary folder
        "common/launch/server_process.py",  # the same
        "common/launch/forkserver.py",  # the same
        "common/record/checkpoint.py",  # the folder itself, to flush it
        "common/cli/streams.py",  # the null device
        "common/files.py",
        "common/record_format.py",  # `regular`, the opener of files.py and of its own reads
    }
    writes = re.compile(
        r'\.open\("[^"]*[wax+]|\bos\.(open|truncate)\(|(?<!\.)\bopen\(.*"[wax]|\.write_(text|bytes)\(|shutil\.copy\('
    )
    found = {path for path in (ROOT / "common").rglob("*.py") if writes.search(path.read_text())}
    assert {str(path.relative_to(ROOT)) for path in found} <= others
