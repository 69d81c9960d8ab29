"""Runs beside packages that Keras and users import: pandas with pyarrow, jax, torch, polars (docs/contributing.md)."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from distsgd import Cluster, SyncSGD, keep_warm, train
from runs import linear

pytestmark = pytest.mark.packages

ROWS = np.random.default_rng(0)

X, Y = ROWS.normal(size=(64, 1)).astype("float32"), ROWS.normal(size=(64, 5)).astype("float32")


def frames(arrays):
    return tuple(pytest.importorskip("pandas").DataFrame(array) for array in arrays)


def jax_arrays(arrays):
    return tuple(map(pytest.importorskip("jax").numpy.asarray, arrays))


def tensors(arrays):
    return tuple(map(pytest.importorskip("torch").from_numpy, arrays))


def polars_frames(arrays):
    return tuple(map(pytest.importorskip("polars").DataFrame, arrays))


def loader(arrays):
    data = pytest.importorskip("torch.utils.data")
    return data.DataLoader(data.TensorDataset(*tensors(arrays)), batch_size=8)


@pytest.fixture(scope="module")
def center(tmp_path_factory):
    """Return a function that trains on data in processes, and returns the center."""

    def trained(data):
        model = linear()
        cluster = Cluster.local(2, backend="processes")
        options = {"steps": 4, "batch_size": 8, "verbose": False, "probe": False, "seed": 0}
        train(model, data, SyncSGD(), cluster=cluster, run_dir=tmp_path_factory.mktemp("run"), **options)
        return model.get_weights()[0]

    with keep_warm():
        yield trained


@pytest.fixture(scope="module")
def of_arrays(center):
    return center((X, Y))


@pytest.mark.parametrize("kind", [frames, jax_arrays, tensors, polars_frames])
def test_data_of_a_package_train_as_arrays_do(kind, center, of_arrays):
    assert np.array_equal(center(kind((X, Y))), of_arrays)
    assert np.abs(of_arrays).sum() > 0


def test_a_loader_of_torch_trains(center):
    assert np.abs(center(loader((X, Y)))).sum() > 0


def seen_by_keras(context):
    """Return data from a frame; in a task, after a look at what Keras knows of frames and tensors."""
    pandas, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")
    import tensorflow as tf

    slicing = sys.modules["keras.src.trainers.data_adapters.array_slicing"]
    frame = pandas.DataFrame(X)
    assert isinstance(frame, slicing.ARRAY_TYPES)
    assert slicing.pandas.DataFrame is pandas.DataFrame
    assert slicing.can_slice_array(frame)
    rows = tf.data.Dataset.from_tensor_slices((frame.to_numpy(), torch.from_numpy(Y).numpy()))
    return rows.shard(context.num_input_pipelines, context.input_pipeline_id).batch(8)


def test_keras_sees_the_packages_of_a_data_function_in_each_task(center):
    assert np.abs(center(seen_by_keras)).sum() > 0


def test_a_frame_in_fit_in_a_task_is_read_as_in_a_program():
    """With the import of the fork server, in a process of its own."""
    code = """
        import sys
        from distsgd.common.launch.deferral import import_tensorflow
        from distsgd.common.launch.forkserver import other_threads
        import_tensorflow()
        assert not other_threads(), other_threads()
        assert not {"pandas", "pyarrow", "jax", "torch", "polars"} & set(sys.modules)
        import keras
        import numpy as np
        import pandas
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(loss="mse")
        frame = pandas.DataFrame(np.ones((32, 2), "float32"))
        model.fit(frame, frame[0], validation_split=0.5, verbose=0)
        assert model.predict(frame, verbose=0).shape == (32, 1)
    """
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
