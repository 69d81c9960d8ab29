"""The word `latest`, wherever a command takes the folder of a run."""

import json
from pathlib import Path

import numpy as np
import pytest

from distsgd.algorithms import AsyncSGD, SyncSGD
from distsgd.common import Cluster, Recovery, train
from distsgd.common.errors import UserError
from distsgd.common.record.latest import make_latest, named


def fit(tiny, scheme, **options):
    """Run a scheme on threads; returns its folder."""
    model, data = tiny
    cluster = Cluster.local(workers=1, backend="threads")
    return train(model, data, scheme, cluster=cluster, batch_size=4, verbose=False, **options).run_dir


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A model and data, with the working directory in an empty folder."""
    import keras

    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(loss="mse")
    rng = np.random.default_rng(0)
    return model, (rng.normal(size=(16, 3)).astype("float32"), rng.normal(size=(16, 2)).astype("float32"))


@pytest.mark.rotating
def test_latest_names_the_newest_run_of_all_and_of_each_algorithm(tiny, run_main):
    first, second = fit(tiny, AsyncSGD(), steps=3), fit(tiny, SyncSGD(), steps=3)
    for word, folder in (("latest", second), ("async_sgd/latest", first), ("runs/sync_sgd/latest", second)):
        code, out, _ = run_main("timeline", word)
        assert (code, Path(out.splitlines()[0])) == (0, Path(folder) / "trace.json")
        assert run_main("replay", word)[2].startswith(f"error: the run in {folder} has a model or data of its own")
    assert json.loads(Path("runs/latest/result.json").read_text())["algorithm"] == "sync_sgd"


@pytest.mark.rotating
def test_a_run_resumes_from_the_latest_one(tiny):
    first = fit(tiny, SyncSGD(), steps=3, recovery=Recovery(checkpoint_steps=1))
    second = fit(tiny, SyncSGD(), steps=5, recovery=Recovery(resume="latest"))
    assert json.loads((Path(second) / "result.json").read_text())["recovery"]["resumed_from"] == 3
    assert named(Path("latest")) == Path(second) != Path(first)


@pytest.mark.rotating
def test_the_latest_run_resumes_in_its_own_folder(tiny):
    first = fit(tiny, SyncSGD(), steps=3, recovery=Recovery(checkpoint_steps=1))
    assert fit(tiny, SyncSGD(), steps=5, run_dir="runs/sync_sgd/latest") == Path(first)
    assert json.loads((Path(first) / "result.json").read_text())["recovery"]["resumed_from"] == 3
    assert named(Path("latest")) == named(Path("sync_sgd/latest")) == Path(first)


@pytest.mark.rotating
def test_a_run_in_a_folder_of_its_own_changes_no_link(tiny):
    first = fit(tiny, SyncSGD(), steps=3)
    fit(tiny, SyncSGD(), steps=3, run_dir="mine")
    assert named(Path("latest")) == Path(first)


def test_latest_without_a_run_is_refused_in_one_line(tmp_path, monkeypatch, run_main):
    monkeypatch.chdir(tmp_path)
    for command in (
        ["replay", "latest"],
        ["timeline", "latest"],
        ["evaluate", "latest"],
        ["simulate", "agn", "--like", "latest"],
    ):
        code, _, err = run_main(*command)
        assert code == 2
        assert err == "error: no run here is the latest: there is no folder runs/latest. Received: latest\n"


def test_a_folder_that_is_called_latest_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("latest").mkdir()
    assert named(Path("latest")) == Path("latest")


def test_links_replace_no_file_of_the_user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/agn/a").mkdir(parents=True)
    Path("runs/latest").mkdir()
    make_latest(Path("runs/agn/a"))
    assert Path("runs/latest").is_dir()
    Path("runs/latest").rmdir()
    Path("runs/latest").write_text("mine")
    make_latest(Path("runs/agn/a"))
    assert Path("runs/latest").read_text() == "mine"
    assert sorted(path.name for path in Path("runs").rglob("*")) == ["a", "agn", "latest", "latest"]
    with pytest.raises(UserError, match="no folder runs/dc_asgd/latest"):
        named(Path("dc_asgd/latest"))
