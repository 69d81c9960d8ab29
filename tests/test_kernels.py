"""The kernels of TensorFlow that a run chooses, says and keeps."""

import math
import os
import re
import subprocess
import sys

import keras
import pytest

from distsgd.algorithms import AsyncSGD
from distsgd.common import Cluster, Recovery, UserError, keep_warm, kernels, train
from distsgd.common.data.models import PASSES, ModelRecipe
from distsgd.common.kernels import LEAST, VARIABLE, choose
from distsgd.common.launch import client
from distsgd.common.launch import run as running
from distsgd.common.launch.script import script_job
from distsgd.common.tasks.job import Script
from distsgd.common.tasks.options import RunOptions
from runs import DIGITS, record


@pytest.fixture
def unset(monkeypatch):
    """Take away what conftest.py has set for all other tests."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(kernels.SET_HERE, raising=False)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return monkeypatch


@pytest.mark.parametrize(
    ("features", "products", "name", "why"),
    [
        ("avx2 avx512_vnni", 1, "onednn", "the CPU has avx512_vnni"),
        ("avx2 amx_tile", 10 * LEAST, "onednn", "the CPU has amx_tile"),
        ("avx2", LEAST / 2, "eigen", "multiplications a step, fewer than"),
        ("avx2", LEAST, "onednn", "multiplications a step, at least"),
        ("avx2", None, "onednn", "not known before the run"),
    ],
)
def test_a_run_chooses_its_kernels_by_cpu_and_model(features, products, name, why, unset):
    unset.setattr(kernels, "cpu_features", features.split)
    chosen = choose("auto", products)
    assert chosen.name == name
    assert why in chosen.why
    assert chosen.environment[VARIABLE] == {"eigen": "0", "onednn": "1"}[name]


def test_user_run_and_resumed_run_take_precedence_in_that_order(unset):
    unset.setattr(kernels, "cpu_features", list)
    assert choose("auto", 1, before="onednn").name == "onednn"
    assert choose("eigen", 1, before="onednn").name == "eigen"
    unset.setenv(VARIABLE, "TRUE")
    assert choose("auto", 1, before="eigen").name == "onednn"
    assert choose("onednn").why == f"{VARIABLE}=TRUE is set"
    with pytest.raises(UserError, match=f"{VARIABLE}=TRUE in the environment excludes --kernels eigen"):
        choose("eigen")
    unset.setenv(kernels.SET_HERE, "TRUE")  # by this package
    assert choose("eigen").name == "eigen"
    unset.setenv(VARIABLE, "0")  # later, by the user
    assert choose("auto").why == f"{VARIABLE}=0 is set"


def test_another_processor_leaves_the_choice_to_tensorflow(unset):
    unset.setattr("platform.machine", lambda: "aarch64")
    assert (choose().name, choose().environment) == (None, {})
    assert choose("eigen").name == "eigen"


def test_the_cpu_is_named_with_its_vector_instructions(tmp_path):
    told = tmp_path / "cpuinfo"
    told.write_text("processor\t: 0\nmodel name\t: A 9\nflags\t\t: fpu avx2 fma avx_vnni\n\nmodel name\t: B\n")
    assert kernels.cpu_name(told) == "A 9 (avx2, avx_vnni)"
    assert kernels.cpu_features(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("name", "shape"),
    [("softmax", (64,)), ("mlp:hidden=20-30", (8, 8, 1)), ("cnn:filters=4", (64,)), ("cnn", (32, 32, 3))],
)
def test_multiplications_of_named_models_are_those_of_keras_layers(name, shape):
    recipe = ModelRecipe.named(name, shape, 10, 0)
    assert recipe.products == ModelRecipe.of(recipe.build()).products


def test_a_transformer_multiplies_its_weights_at_each_position():
    recipe = ModelRecipe.named("transformer", (64,), 90, 0)
    in_matrices = recipe.products - PASSES * 2 * 2 * 64**3  # without those of the attention
    assert in_matrices == PASSES * 64 * (recipe.parameters - _vectors(recipe.build()))


def _vectors(model):
    """Count the parameters that a batch is not multiplied with: embeddings and biases."""
    embedded = sum(layer.count_params() for layer in model.layers if isinstance(layer, keras.layers.Embedding))
    biases = [v for v in model.trainable_variables if re.search("bias|beta|gamma", v.path)]
    return embedded + sum(math.prod(v.shape) for v in biases)


@pytest.mark.rotating
def test_a_run_says_its_kernels_and_keeps_them_when_resumed(warm, unset, tmp_path):
    saving = {"recovery": Recovery(checkpoint_steps=2)}
    first = record(AsyncSGD(), tmp_path / "run", workers=1, steps=5, kernels="eigen", **saving)
    assert first.result["kernels"] == {"used": "eigen", "why": "asked for"}
    again = record(AsyncSGD(), tmp_path / "run", workers=1, steps=8)
    assert again.result["kernels"] == {"used": "eigen", "why": "those of the run that is resumed"}
    how = Cluster.local(1), RunOptions(batch_size=1, run_dir=tmp_path / "run")
    assert script_job(Script(tmp_path / "x.py"), *how).kernels.why == "those of the run that is resumed"


@pytest.mark.parametrize(("used", "asked", "value"), [("eigen", "onednn", 1), ("onednn", "eigen", 0)])
@pytest.mark.gate("others")
def test_a_run_where_tensorflow_is_imported_names_the_variable(used, asked, value, unset, tmp_path):
    unset.setattr(running, "used_here", lambda: used)
    model = ModelRecipe.named("softmax", (64,), 10, 0).build()
    how = {"cluster": Cluster.local(1, backend="threads"), "steps": 2, "run_dir": tmp_path / "run", "verbose": False}
    result = train(model, DIGITS.train, AsyncSGD(), kernels=asked, **how).metrics
    assert result["kernels"] == {"used": used, "why": "TensorFlow was imported before the run"}
    (warning,) = result["recovery"]["warnings"]
    assert f"set {VARIABLE}={value} before" in warning


def test_importing_the_package_before_tensorflow_sets_the_variable():
    code = "import os; from distsgd.common.kernels import VARIABLE, choose; "
    code += "print(os.environ.get(VARIABLE), choose('eigen').why)"
    environment = {name: value for name, value in os.environ.items() if name not in (VARIABLE, kernels.SET_HERE)}
    found = [
        subprocess.check_output([sys.executable, "-c", before + code], text=True, env=environment | more)
        for before, more in (("", {}), ("import sys; sys.modules['tensorflow'] = None; ", {}), ("", {VARIABLE: "0"}))
    ]
    wanted = choose("onednn").environment[VARIABLE]
    assert found == [f"{wanted} asked for\n", "None asked for\n", f"0 {VARIABLE}=0 is set\n"]


def test_a_warm_fork_server_is_shared_by_runs_of_the_same_kernels(monkeypatch, tmp_path):
    class Started:
        def __init__(self, isolation, chosen, logs=None):
            made.append((isolation, chosen.name))
            self.process = self

        def poll(self):
            return None

        def close(self):
            closed.append(self)

    made, closed = [], []
    monkeypatch.setattr(client, "ForkServer", Started)
    monkeypatch.setattr(client, "_warm", None)
    chosen = [kernels.Choice(name, "") for name in ("eigen", "onednn", "eigen")]
    with keep_warm():
        for one in chosen:
            with client.fork_server("auto", one, tmp_path):
                pass
        assert made == [("auto", "eigen"), ("auto", "onednn")]
        assert not closed
    assert len(closed) == 2
    with client.fork_server("auto", chosen[0], tmp_path):
        assert len(made) == 3
    assert len(closed) == 3
