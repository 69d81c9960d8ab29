"""Settings of Keras and TensorFlow: what a program sets reaches its tasks, and no model of the catalogue."""

import json
import pickle
import sys
from dataclasses import replace
from pkgutil import resolve_name

import cloudpickle
import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd import Cluster, LocalSGD, Optimizer, SyncSGD, problem, train
from distsgd.common import UserError, lazy, settings
from distsgd.common.data import inputs, models
from distsgd.common.data.models import ModelRecipe
from distsgd.common.data.named import load
from distsgd.common.launch.run import in_common, run
from distsgd.common.launch.terms import Terms
from distsgd.common.settings import REFUSED, STANDARD, TRAVEL, WITHOUT_EFFECT, of_program, set_here, using
from distsgd.common.tasks.job import describe, unpickled
from runs import job_of

MODULES = {  # of the public functions that set something, and where these are not named set, enable or disable
    "keras.config": (),
    "tf.config": ("run_functions_eagerly",),
    "tf.config.experimental": (),
    "tf.config.optimizer": (),
    "tf.config.threading": (),
    "tf.data.experimental": (),
    "tf.debugging": (),
    "tf.experimental.numpy": ("experimental_enable_numpy_behavior",),
    "tf.random": (),
}
ODD = {**STANDARD, "floatx": "float16", "epsilon": 0.2, "image_data_format": "channels_first",
       "dtype_policy": "mixed_bfloat16", "flash_attention": False, "max_steps_per_epoch": 1}  # fmt: skip
OWN = {**ODD, "floatx": "float64", "max_steps_per_epoch": None}  # gradients in float16 are refused
X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def test_each_setting_of_keras_and_tensorflow_is_in_one_of_the_tables():
    known = [name for setting in TRAVEL.values() for name in (setting.write, setting.off) if name]
    known += [name for names in (*REFUSED, *WITHOUT_EFFECT.values(), settings.OF_GPUS) for name in names]
    assert len(known) == len(set(known))
    for module, more in MODULES.items():
        there = dir(settings.resolved(module))
        names = [name for name in there if name.startswith(("set_", "enable_", "disable_"))] + [*more]
        assert {f"{module}.{name}" for name in names} <= set(known)
    assert all(callable(settings.resolved(name)) for name in known)


def test_a_program_has_its_own_settings_again_after_others():
    before = of_program()
    assert before == STANDARD
    with using(ODD):
        assert of_program() == ODD
        with using(STANDARD):
            assert of_program() == STANDARD
    policy = keras.dtype_policies.DTypePolicyMap()
    policy["dense"] = keras.DTypePolicy("mixed_bfloat16")
    keras.config.set_dtype_policy(policy)
    try:
        with using(json.loads(json.dumps(of_program()))):
            assert keras.config.dtype_policy().get_config() == policy.get_config()
    finally:
        set_here(before)


@pytest.fixture(scope="module")
def module_of_a_user(tmp_path_factory):
    """A module with a layer that reads settings: when it is imported, built and called."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "layers_of_a_user.py").write_text(
        "import keras\n"
        "EPSILON = keras.config.epsilon()\n"
        "@keras.saving.register_keras_serializable()\n"
        "class Odd(keras.layers.Layer):\n"
        "    def build(self, shape):\n"
        "        first = keras.config.image_data_format() == 'channels_first'\n"
        "        self.factor = 1 + EPSILON + 0.5 * first\n"
        "        self.by_name = 'by_name'\n"  # of a function that the program has registered
        "    def get_config(self):\n"
        "        return {**super().get_config(), 'by_name': 'by_name'}\n"
        "    def __init__(self, by_name='by_name', **more):\n"
        "        super().__init__(**more)\n"
        "    def call(self, x):\n"
        "        x = keras.saving.get_registered_object(self.by_name)(x)\n"
        "        lower = keras.config.dtype_policy().compute_dtype\n"
        "        return self.factor * keras.ops.cast(keras.ops.cast(x, lower), 'float32')\n"
    )
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    del sys.modules["layers_of_a_user"]


def doubled(x):
    return 2 * x


@pytest.mark.rotating
def test_processes_have_the_settings_of_the_program(module_of_a_user, warm, tmp_path):
    """They train as threads, which are in the program: a loss divides by epsilon, a layer has what is registered."""
    keras.saving.get_custom_objects()["by_name"] = doubled
    with using(OWN):
        odd = resolve_name("layers_of_a_user.Odd")(dtype="float32")
        found = {}
        for backend in ("threads", "processes"):
            keras.utils.set_random_seed(0)
            dense = keras.layers.Dense(1, dtype="float32", kernel_initializer="ones")
            model = keras.Sequential([keras.Input((4,), dtype="float32"), odd, dense])
            model.compile(loss="mape", metrics=["mae"])
            run_dir = tmp_path / backend
            cluster = Cluster.local(2, backend=backend)
            how = {"batch_size": 4, "epochs": 1, "verbose": False, "run_dir": run_dir, "validation_data": (X, Y)}
            result = train(model, (X, Y), SyncSGD(learning_rate=0.01), cluster=cluster, **how)
            found[backend] = np.concatenate([*map(np.ravel, model.get_weights()), [result.metrics["test_mae"]]])
        config = json.loads((run_dir / "config.json").read_text())
    del keras.saving.get_custom_objects()["by_name"]
    np.testing.assert_allclose(found["processes"], found["threads"], rtol=1e-6)
    assert config["keras_settings"] == {name: value for name, value in OWN.items() if value != STANDARD[name]}


MODELS = {"softmax": (4,), "mlp": (4,), "cnn:filters=2": (16,), "logistic": (4,), "linear": (4,),
          "quadratic:dim=3": (1,), "transformer:width=4,layers=1,heads=1": (4,)}  # fmt: skip


def test_models_by_name_are_built_without_the_settings_of_the_program():
    assert set(models.MODELS) == {name.partition(":")[0] for name in MODELS}
    for name, shape in MODELS.items():
        recipe, built = ModelRecipe.named(name, shape, 2, seed=0), []
        for values in (STANDARD, ODD):
            with using(values):
                model = recipe.build()
            layers = [{**layer.get_config(), "name": ""} for layer in model.layers]
            built.append(repr((layers, [(v.dtype, v.shape) for v in model.variables])))
        assert built[0] == built[1]
        assert recipe.settings == STANDARD


def test_images_by_name_are_loaded_without_the_settings_of_the_program(monkeypatch):
    """Keras loads cifar10 as its image_data_format says."""

    def loaded():
        shape = (2, 3, 8, 8) if keras.config.image_data_format() == "channels_first" else (2, 8, 8, 3)
        return [(np.zeros(shape, np.uint8), np.zeros((2, 1), np.uint8))] * 2

    monkeypatch.setattr(keras.datasets.cifar10, "load_data", loaded)
    with using(ODD):
        assert load("cifar10").train[0].shape == (2, 8, 8, 3)


@pytest.mark.rotating
def test_a_model_by_name_is_trained_and_measured_without_the_settings_of_the_program(tmp_path):
    found = []
    for number, values in enumerate((STANDARD, ODD)):
        with using(values):
            model, data, test = problem("least_squares:examples=64,features=4")
            how = {"steps": 4, "validation_data": test, "run_dir": tmp_path / str(number)}
            cluster = Cluster.local(1, backend="threads")
            result = train(model, data, LocalSGD(), cluster=cluster, probe=False, verbose=False, **how)
            assert of_program() == values
        found.append([*model.get_weights()[0].ravel(), result.metrics["test_loss"]])
        assert "keras_settings" not in json.loads((tmp_path / str(number) / "config.json").read_text())
    assert found[0] == found[1]


@pytest.mark.rotating
def test_functions_that_are_to_run_eagerly_do_not_change_a_run(tmp_path):
    """Threads waited for ever, and a simulation was wrong."""
    centers = []
    tf.config.run_functions_eagerly(True)
    try:
        for backend in ("threads", "simulation"):
            model, data, _ = problem("least_squares:examples=64,features=4")
            cluster = Cluster.local(2, backend=backend)
            how = {"steps": 4, "probe": False, "verbose": False, "run_dir": tmp_path / backend}
            train(model, data, SyncSGD(), cluster=cluster, **how)
            assert tf.config.functions_run_eagerly()
            centers.append(model.get_weights()[0].ravel())
    finally:
        tf.config.run_functions_eagerly(False)
    assert np.linalg.norm(centers[0]) > 0.1
    np.testing.assert_allclose(centers[1], centers[0], rtol=1e-5)


@pytest.mark.rotating
def test_tasks_run_where_only_deterministic_operations_may(warm, tmp_path):
    """As TF_DETERMINISTIC_OPS=1 has it: TensorFlow refuses its clock then, and a random operation without a seed."""

    def noise():
        data = tf.data.Dataset.range(64).map(lambda _: (tf.random.normal([4]), tf.ones([1])))
        return data.batch(8)

    recipe = ModelRecipe.named("linear", (4,), 0, seed=0)
    recipe = replace(recipe, settings={**STANDARD, "op_determinism": True, "numpy_behavior": True})
    job = job_of(
        SyncSGD(), backend="processes", model=recipe, codec="int8", data=inputs.sharding(noise), run_dir=tmp_path
    )
    record, error = run(job, describe(job, "noise", "linear"), verbose=False)
    assert (record.finish(error, picture=False)["outcome"], error) == ("completed", None)


@pytest.fixture
def keras_file(tmp_path, monkeypatch):
    """The file of settings that Keras reads; it has been imported already."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    return tmp_path / "keras.json"


def test_a_setting_with_which_no_run_is_possible_is_named_with_its_file(keras_file, monkeypatch):
    keras_file.write_text('{"floatx": "float64", "backend": "jax"}')
    of_file = f"from {keras_file}"
    with using({"floatx": "float64", "dtype_policy": "float64"}):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        with pytest.raises(
            UserError, match=f"must be float32. Received: .* Keras' floatx is float64, {of_file}: change"
        ):
            train(model, (X, Y), SyncSGD())
        model.compile(loss="mse", optimizer=(optimizer := Optimizer(SyncSGD(), workers=2)))
        with pytest.raises(UserError, match=f"of type float64. Keras' floatx is float64, {of_file}"):
            model.fit(X, Y, callbacks=[optimizer.callback()], verbose=0)
    with using({"dtype_policy": "mixed_float16"}):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        why = "float32. Keras' dtype policy is mixed_float16, set by keras.config.set_dtype_policy: change it"
        with pytest.raises(UserError, match=why):
            train(model, (X, Y), SyncSGD())
    with tf.Graph().as_default(), pytest.raises(UserError, match="TensorFlow behaves as version 1 here"):
        train(model, (X, Y), SyncSGD())
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    for refused in (lambda: train(model, (X, Y), SyncSGD()), lambda: Optimizer(SyncSGD(), workers=2)):
        with pytest.raises(UserError, match=f"needs Keras on TensorFlow: .* Received: jax, {of_file}"):
            refused()
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    with pytest.raises(UserError, match="Received: jax, from the environment variable KERAS_BACKEND"):
        settings.refuse()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"epsilon": 1}', "epsilon must be a number with a point. Received: 1"),
        ('{"floatx": "bfloat16"}', "floatx must be float16, float32, float64. Received: 'bfloat16'"),
        ('["floatx"]', "they must be an object"),
        ('{"epsilon": 1e-3, "floatx": "float64"}', ""),
        ("no JSON", ""),
    ],
)
def test_a_file_with_which_keras_cannot_be_imported_is_one_line(content, said, keras_file, monkeypatch):
    keras_file.write_text(content)
    lazy.require_tensorflow()  # Keras has been imported
    monkeypatch.delitem(sys.modules, "keras")
    if said:
        with pytest.raises(UserError, match=f"cannot read its settings in {keras_file}: {said}"):
            lazy.require_tensorflow()
    else:
        lazy.require_tensorflow()


def test_tasks_on_several_machines_and_scripts_compare_the_settings():
    recipe = ModelRecipe.named("softmax", (64,), 10, 0)
    found = []
    for values in (STANDARD, ODD):
        job = job_of(SyncSGD(), model=replace(recipe, settings=values))
        with using(values):
            joined = Terms(SyncSGD(), [(3,)], np.zeros(3, np.float32)).in_common()["settings of Keras"]
        found.append((in_common(job, recipe.build())["keras_settings"], joined))
    (standard, of_script), (odd, of_odd) = found
    assert standard == {name: value for name, value in STANDARD.items() if TRAVEL[name].compared}
    assert odd["epsilon"] == 0.2
    assert ("epsilon=1e-07" in of_script, "epsilon=0.2" in of_odd) == (True, True)


def test_a_task_has_the_settings_of_its_job_before_it_loads_modules_and_after():
    job, seen = job_of(SyncSGD()), []

    class Reads:  # a part of the job, such as a module of the user's
        def __reduce__(self):
            return seen_and_set, ()

    def seen_and_set():
        seen.append(of_program())
        keras.config.set_epsilon(0.7)

    odd = {**ODD, "numpy_behavior": False}
    pickled = pickle.dumps(odd) + cloudpickle.dumps(
        replace(job, recipe=replace(job.recipe, settings=odd), prefix=Reads())
    )
    with using(STANDARD):
        unpickled(pickled)
        assert of_program() == odd
    assert of_program() == STANDARD
