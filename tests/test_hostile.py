"""Run directories from elsewhere: what is wrong in their files ends in one line, and at once."""

import functools
import io
import json
import os
import shutil
import time
import zipfile

import numpy as np
import pytest

from distsgd.algorithms import SCHEMES, AsyncSGD
from distsgd.common import Recovery, UserError
from distsgd.common.cli.own import problem_of_run
from distsgd.common.data import named as data
from distsgd.common.record import checkpoint
from distsgd.common.replay.replay import replay
from distsgd.common.tasks.follow import follow
from distsgd.common.timeline.lanes import read_lanes
from distsgd.common.timeline.trace_export import write_trace
from runs import record

WRONG = (None, [], {}, "x", -1, 10**9, 10**30, float("nan"))

SECONDS = 60  # of a case on a busy machine, which takes a tenth of a second alone


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "run"
    train(folder, steps=5)
    return folder


def train(folder, steps=8):
    """Train; with more steps than before, resume."""
    keep = Recovery(checkpoint_steps=1000)
    record(AsyncSGD(), folder, workers=2, backend="threads", steps=steps, hidden=(4,), recovery=keep)


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """The same data for all cases: to read them takes longer than a case."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", functools.cache(data.load))
        yield


@pytest.fixture
def copy(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path / "copy")


def draw(folder):
    write_trace([read_lanes(folder)], io.BytesIO())


COMMANDS = {
    "replay": lambda folder: replay(folder, SCHEMES),
    "timeline": draw,
    "evaluate": lambda folder: follow(
        folder, 0.1, functools.partial(problem_of_run, folder, None, None), lambda line: None
    ),
    "resume": train,
}


def outcome(command, folder):
    """What is wrong with the end of a command; empty if it was a result, or a refusal in one line."""
    began = time.monotonic()
    try:
        COMMANDS[command](folder)
    except UserError as error:
        line = str(error)
        if "\n" in line or not line or "allow_pickle" in line or len(line) > 600:
            return f"not one good line: {line}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return f"{time.monotonic() - began:.0f} s" if time.monotonic() - began > SECONDS else ""


@pytest.mark.parametrize(
    ("name", "command"),
    [(name, command) for name in ("config.json", "result.json") for command in ("replay", "timeline")],
)
@pytest.mark.rotating
def test_a_wrong_value_of_any_key_is_no_traceback(name, command, copy):
    path = copy / name
    content, bad = json.loads(path.read_text()), {}
    for key in content:
        for value in (*WRONG, "missing"):
            changed = {other: kept for other, kept in content.items() if other != key or value != "missing"}
            path.write_text(json.dumps(changed | ({} if value == "missing" else {key: value})))
            if problem := outcome(command, copy):
                bad[key, str(value)] = problem
    assert not bad


def test_a_wrong_hyperparameter_is_no_traceback(copy):
    path, bad = copy / "config.json", {}
    content = json.loads(path.read_text())
    for algorithm in ("async_sgd", "bmuf", "ringmaster", "sync_sgd_lr"):
        for key in (*vars(SCHEMES[algorithm]()), "unknown"):
            for value in WRONG:
                path.write_text(json.dumps(content | {"algorithm": algorithm, "hyperparameters": {key: value}}))
                if problem := outcome("replay", copy):
                    bad[algorithm, key, str(value)] = problem
    assert not bad


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("dataset", "synthetic:examples=2000000000", "at most 10000000"),
        ("dataset", "mnist1d:examples=2000000000", "at most 10000000"),
        ("dataset", "sparse:examples=2000000000", "at most 10000000"),
        ("dataset", "synthetic:features=1000000000", "at most 1000000000 numbers"),
        ("dataset", "synthetic:classes=1000000000", "at most 1000000000 numbers"),
        ("dataset", "synthetic:examples=5000000,features=1000", "at most 1000000000 numbers"),
        ("dataset", "sparse:examples=5000000,active=100", "at most 1000000000 numbers"),
        ("dataset", "mnist1d:examples=5000000", "at most 1000000000 numbers"),
        ("dataset", "libsvm:path=/dev/zero", "no regular file"),
        ("model", "mlp:hidden=1000000-1000000", "parameters"),
    ],
)
def test_a_data_set_or_model_too_large_to_be_made_is_refused(key, value, why, copy):
    path = copy / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(UserError, match=why):
        replay(copy, SCHEMES)


def with_header(path, member, shape):
    """A file of arrays in which the header of one names another shape."""
    with np.load(path) as file:
        arrays = dict(file)
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                there = shape if name == member else array.shape
                header = {"descr": array.dtype.str, "fortran_order": False, "shape": there}
                np.lib.format.write_array_header_1_0(file, header)
                file.write(array.tobytes())


ARRAYS = {
    "strings": lambda a: np.array(["x"] * len(a)),
    "objects": lambda a: np.array([{}] * len(a), object),
    "NaN": lambda a: np.full(a.shape, np.nan),
    "complex": lambda a: a.astype(complex),
    "a number": lambda a: np.array(1),
    "two axes": lambda a: np.stack([a, a]),
    "none": lambda a: a[:0],
    "large": lambda a: np.full(a.shape, 2**62),
    "negative": lambda a: np.full(a.shape, -1),
}


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("trace.npz", "replay"),
        ("trace.npz", "timeline"),
        ("center.npz", "replay"),
        ("initial.npz", "replay"),
        ("rounds.npz", "timeline"),
    ],
)
@pytest.mark.rotating("others")
def test_wrong_arrays_are_no_traceback(name, command, copy):
    path, bad = copy / name, {}
    with np.load(path) as file:
        arrays = dict(file)
    for member in arrays.keys() & {"worker", "version", "accepted", "center", "replied"}:
        array = arrays[member]
        for kind, change in ARRAYS.items():
            np.savez(path, **arrays | {member: change(array)})
            bad[member, kind] = outcome(command, copy)
        for shape in ((2**60,), (2**62, 2**62), (-1,), (len(array), 2**40)):
            np.savez(path, **arrays)
            with_header(path, member, shape)
            bad[member, shape] = outcome(command, copy)
    np.savez(path, **{member: array[:0] for member, array in arrays.items()})
    bad["empty"] = outcome(command, copy)
    np.savez_compressed(path, **arrays | {"bomb": np.zeros(10**7)})
    bad["bomb"] = outcome(command, copy)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    bad["npy"] = outcome(command, copy)
    path.unlink()
    path.mkdir()
    bad["folder"] = outcome(command, copy)
    path.rmdir()
    path.symlink_to("/dev/zero")
    bad["endless"] = outcome(command, copy)
    assert not {case: problem for case, problem in bad.items() if problem}


CHECKPOINT = f"checkpoints/000000000010/{checkpoint.ABOUT}"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "name", ["config.json", "result.json", "metrics.jsonl", "center.npz", "initial.npz", CHECKPOINT]
)
@pytest.mark.rotating("others")
def test_no_command_waits_for_a_pipe_or_reads_a_device(name, command, recorded, tmp_path):
    assert (recorded / name).is_file()
    kinds = {"pipe": os.mkfifo} | ({"device": lambda path: path.symlink_to("/dev/zero")} if command != "resume" else {})
    bad = {}
    for kind, put in kinds.items():  # a run follows no links: see test_security.py
        folder = shutil.copytree(recorded, tmp_path / kind)
        (folder / name).unlink()
        put(folder / name)
        bad[kind] = outcome(command, folder)
    assert not {kind: problem for kind, problem in bad.items() if problem}
