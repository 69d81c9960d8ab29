"""Runs beside packages that Keras and users import: pandas with pyarrow, jax, torch, polars (docs/contributing.md)."""

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from distsgd import EASGD, Cluster, Group, SyncSGD, keep_warm, train
from distsgd.common.cli.main import dispatch
from runs import linear

pytestmark = pytest.mark.packages

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

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


# Worker k has the loss |w - k|^2 / 2, in a model of two tensors of different types, of which one is not trained.
SCRIPT = """
import sys, warnings
import distsgd, numpy as np, torch
warnings.simplefilter("error")
from distsgd import LocalSGD, SyncSGD
folder, scheme = sys.argv[1], eval(sys.argv[2])
stepped = isinstance(scheme, LocalSGD)
model = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Linear(2, 1), torch.nn.Linear(4, 1, bias=False))
for part in model.parameters():
    torch.nn.init.ones_(part)
model[1].bfloat16()
model[2].requires_grad_(False)
trained = [part for part in model.parameters() if part.requires_grad]
optimizer = torch.optim.SGD(trained, 0.1)
with distsgd.join(scheme, model) as worker:
    for step in range(5):
        optimizer.zero_grad()
        loss = sum((part - worker.index).square().sum() / 2 for part in trained)
        if step % 2 and not stepped:
            worker.step(torch.autograd.grad(loss, trained), loss)
            continue
        loss.backward()
        if stepped:
            optimizer.step()
            worker.stepped(loss)
        else:
            worker.step(loss=loss)
        worker.log(distance=loss)
    center = worker.center()
kinds = [str(part.dtype) for part in center]
assert kinds == ["torch.float32"] * 2 + ["torch.bfloat16"] * 2, kinds
assert not any(part.requires_grad for part in center)
assert (model[2].weight == 1).all()
np.savez(f"{folder}/{worker.index}.npz", first=model[0].weight.detach(), second=model[1].weight.detach().float())
"""


@pytest.fixture(scope="module")
def of_arrays(center):
    return center((X, Y))


@pytest.mark.parametrize("scheme", ["SyncSGD(learning_rate=0.1)", "LocalSGD(communication_period=5)"])
def test_a_model_of_torch_is_trained_in_place(scheme, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with keep_warm():
        code = dispatch(["launch", "--run-dir", str(tmp_path / "run"), str(script), str(tmp_path), scheme])
    said = " ".join("".join(capsys.readouterr()).split())
    assert code == 0
    assert said.count("each step copies the variables, bfloat16 on cpu, to float32 of the host and back") == 1
    goal = 0.5 + 0.5 * 0.9**5  # the mean of both workers, with one exchange or five
    for k in (0, 1):
        with np.load(tmp_path / f"{k}.npz") as own:
            np.testing.assert_allclose(own["first"], [[goal] * 3], rtol=1e-5)
            np.testing.assert_allclose(own["second"], [[goal] * 2], rtol=1e-2)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any("distance" in row and "loss" in row for row in rows)


def test_a_group_takes_a_model_of_torch_and_gives_tensors():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    for params in (
        model,
        model.parameters(),
        tuple(model.parameters()),
        dict(model.named_parameters()),
        model.bfloat16(),
    ):
        group = Group(EASGD(learning_rate=0.5, communication_period=1), params, workers=1)
        point = group.point(0)
        group.step(0, tuple(point) if isinstance(point, list) else point, loss=model.weight.sum())
        for part in torch.utils._pytree.tree_leaves(group.params(0)):
            assert isinstance(part, torch.Tensor)
            assert part.dtype == model.weight.dtype or part.dtype == torch.float32
            assert (part < 1).all()


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


# Without importorskip: where an example is tested, its package must be installed.
@pytest.mark.parametrize(("example", "argument"), [("torch_classifier", "3"), ("torch_diloco_text", "20")])
def test_the_examples_of_torch_run_on_two_workers(example, argument, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with keep_warm():
        assert dispatch(["launch", "--run-dir", "run", str(EXAMPLES / f"{example}.py"), argument]) == 0
    said = capfd.readouterr()
    assert re.search(r"test (accuracy 0\.[6-9]|loss [1-3]\.)", said.out + said.err)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["outcome"], result["workers"]) == ("completed", 2)
    assert 0 < result["figures"]["loss"] < 5


def test_the_pytorch_example_of_the_readme_runs_as_it_is_pasted(tmp_path, monkeypatch, capfd):
    readme = (EXAMPLES.parent / "README.md").read_text()
    [code] = [
        block for block in re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE) if "torch" in block
    ]
    (tmp_path / "classify.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    assert dispatch(["launch", "--workers", "2", "classify.py"]) == 0
    said = capfd.readouterr()
    assert re.search(r"accuracy 0\.9", said.out + said.err)


STATES = """
import sys, distsgd, numpy as np, torch
from distsgd import LocalSGD
kind, steps, folder = sys.argv[1:]
if kind == "keras":
    import keras, tensorflow as tf
    model = tf.Variable(tf.ones([3]))
    optimizer = keras.optimizers.Adam(0.1)
else:
    model = torch.nn.Linear(3, 1)
    torch.manual_seed(0)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if kind == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), 0.1, amsgrad=True)
with distsgd.join(LocalSGD(communication_period=3), model, state=optimizer) as worker:
    while worker.steps_done < int(steps):
        if kind == "keras":
            optimizer.apply([model - worker.index], [model])
        else:
            optimizer.zero_grad()
            (model(torch.full([1, 3], 1.0 + worker.index)) ** 2).sum().backward()
            optimizer.step()
        worker.stepped()
"""


@pytest.mark.parametrize("kind", ["sgd", "adamw", "keras"])
def test_a_resumed_run_is_the_uninterrupted_one_with_the_state_of_its_optimizer(kind, tmp_path):
    script, centers = tmp_path / "script.py", {}
    script.write_text(STATES)
    with keep_warm():
        for steps, name, flags in (
            ("12", "whole", []),
            ("6", "half", ["--checkpoint-steps", "1"]),
            ("12", "rest", ["--resume", str(tmp_path / "half")]),
        ):
            words = ["--run-dir", str(tmp_path / name), *flags, str(script), kind, steps, str(tmp_path)]
            assert dispatch(["launch", "--quiet", *words]) == 0
            with np.load(tmp_path / name / "center.npz") as saved:
                centers[name] = saved["center"]
    np.testing.assert_array_equal(centers["rest"], centers["whole"])
    assert not np.array_equal(centers["half"], centers["whole"])


def test_the_example_of_torch_runs_on_two_machines(tmp_path):
    """Three programs, as on machines of their own, which find each other by their addresses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ps, *workers = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    command = [sys.executable, "-m", "distsgd", "launch", f"--ps_hosts={ps}", f"--worker_hosts={','.join(workers)}"]
    tasks = [("ps", 0), ("worker", 0), ("worker", 1)]
    with ExitStack() as stack:
        programs = []
        for job, index in tasks:
            words = [
                f"--job_name={job}",
                f"--task_index={index}",
                "--run-dir=run",
                EXAMPLES / "torch_classifier.py",
                "3",
            ]
            programs.append(stack.enter_context(subprocess.Popen([*command, *map(str, words)], cwd=tmp_path)))
            stack.callback(programs[-1].kill)
        assert [program.wait(300) for program in programs] == [0, 0, 0]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["algorithm"], result["outcome"], result["workers"]) == ("diloco", "completed", 2)
    assert 0 < result["figures"]["loss"] < 2


def test_the_example_of_torch_runs_on_two_machines_of_torchrun(tmp_path):
    """The tasks tell each other their addresses in the store of the first `torchrun`: a ps, and three workers."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        store = str(one.getsockname()[1])
    words = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    words += ["--master-port", store, "-m", "distsgd", "launch", "--cluster=torchrun", "--run-dir=run"]
    with ExitStack() as stack:
        programs = []
        for node in (0, 1):
            command = [sys.executable, *words[:2], f"--node-rank={node}", *words[2:], EXAMPLES / "torch_classifier.py"]
            programs.append(stack.enter_context(subprocess.Popen([*map(str, command), "3"], cwd=tmp_path)))
            stack.callback(programs[-1].kill)
        assert [program.wait(300) for program in programs] == [0, 0]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["outcome"], result["workers"]) == ("completed", 3)


def test_optimizers_of_torch_do_not_meet_the_compiler_of_tensorflow():
    """Where Triton is installed, they import it: a segmentation fault ended the process."""
    code = "import distsgd, tensorflow, torch; torch.optim.SGD([torch.zeros(2, requires_grad=True)], 0.1)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_torch_does_not_meet_the_cuda_of_tensorflow():
    """It warned of an error of the CUDA runtime at the first `backward`."""
    code = """
        import distsgd, tensorflow, torch, warnings
        warnings.simplefilter("error")
        torch.zeros(2, requires_grad=True).sum().backward()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_example_of_jax_finds_the_line():
    done = subprocess.run([sys.executable, EXAMPLES / "jax_group.py"], capture_output=True, text=True, timeout=120)
    assert done.stdout == "{'w': [1.0, -2.0, 3.0], 'b': 0.5}\n", done.stderr


def test_statistics_of_torch_are_averaged_in_place(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(
        textwrap.dedent("""
        import distsgd, torch
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        with distsgd.join(distsgd.SyncSGD(), model) as worker:
            model(torch.full([4, 2], 1.0 + worker.index)).sum().backward()
            worker.step()
        model[1].running_mean.fill_(worker.index)
        worker.average(model.buffers())
        print(model[1].running_mean.tolist(), int(model[1].num_batches_tracked))
    """)
    )
    with keep_warm():
        assert dispatch(["launch", "--run-dir", "run", "script.py"]) == 0
    assert "[0.5, 0.5, 0.5] 1" in "".join(capfd.readouterr())
