"""Files from elsewhere are loaded without running code from them; a peer's words are data."""

import json
import pickle
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

from distsgd.common.cluster.fingerprint import differences, flat
from distsgd.common.problems.models import ModelRecipe
from distsgd.common.record.run_directory import load_center


class Trap:
    """An object whose unpickling leaves a mark."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_a_center_or_trace_that_holds_a_pickle_is_refused_and_not_run(tmp_path):
    mark = tmp_path / "ran"
    np.savez(tmp_path / "center.npz", center=np.array([Trap(mark)], dtype=object), state=np.zeros(0))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        load_center(ModelRecipe.named("softmax", (64,), 10, 0).flat(), tmp_path)
    assert not mark.exists()
    with np.load(tmp_path / "center.npz", allow_pickle=True) as opened:
        opened["center"]
    assert mark.exists(), "the trap does not work, so the test above shows nothing"


def test_a_model_file_with_code_in_it_is_refused_by_keras_unless_it_is_told_otherwise(tmp_path, monkeypatch):
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


def test_what_a_peer_says_it_runs_is_compared_as_text(tmp_path):
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
