"""GPUs, on a machine without one: what each task is told of them, and where the graph has what."""

import pytest

from distsgd.algorithms import AllReduce, AsyncSGD, Serial
from distsgd.common.cluster.cluster import compute_devices
from distsgd.common.launch.gpus import gpus, seen_by
from distsgd.common.tasks.graph import TaskGraph
from runs import job_of


def test_worker_k_sees_gpu_k_in_turn_and_takes_what_it_needs():
    seen = [seen_by("worker", k, 1, ["0", "1", "2"], placed=False) for k in range(4)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["0", "1", "2", "0"]
    assert all(one["TF_FORCE_GPU_ALLOW_GROWTH"] == "true" for one in seen)
    two = [seen_by("worker", k, 2, ["0", "1", "2"], placed=False)["CUDA_VISIBLE_DEVICES"] for k in range(2)]
    assert two == ["0,1", "2,0"]


def test_ps_and_evaluator_see_no_gpu_and_a_placed_worker_keeps_its_own():
    for task in ("ps", "evaluator"):
        assert seen_by(task, 0, 1, ["0"], placed=False) == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert "CUDA_VISIBLE_DEVICES" not in seen_by("evaluator", 0, 2, ["0"], placed=False)  # it names their devices
    for there, placed in ((["0", "1"], True), ([], False)):
        assert seen_by("worker", 1, 1, there, placed) == {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def test_the_gpus_of_a_machine_are_those_that_the_run_may_use(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus({}, tmp_path) == ["0", "1", "2"]
    assert gpus({"CUDA_VISIBLE_DEVICES": "1, GPU-5c3f"}, tmp_path) == ["1", "GPU-5c3f"]
    assert gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == gpus({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []


@pytest.mark.parametrize("scheme", [Serial(), AllReduce()])
@pytest.mark.parametrize(("backend", "center"), [("processes", "/job:worker/task:0"), ("threads", "/device:GPU:0")])
def test_without_a_ps_the_center_is_on_worker_0_and_bookkeeping_on_its_cpu(
    monkeypatch, tmp_path, scheme, backend, center
):
    import tensorflow as tf

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["a GPU"] if kind == "GPU" else [])
    workers = 1 if scheme.name == "serial" else 2
    job = job_of(scheme, workers, backend=backend, model="mlp:hidden=4", steps=4, run_dir=tmp_path)
    graph = TaskGraph(job, [0] if backend == "processes" else range(workers)).graph
    place = {op.name: op.device for op in graph.get_operations() if op.type in ("VarHandleOp", "MutexV2")}
    assert place.pop("center_0") == place["worker_0_clock"] == center
    books = ["version", "pulled", "lock", "refused", "rounds_applied", "active", "finished", "unacknowledged"]
    assert {place[name] for name in books} == {job.cluster.placement.ps_devices(0)[0]}
    assert place["version"].endswith("/device:CPU:0")


@pytest.mark.parametrize(("number", "devices"), [(0, ["", ""]), (1, [0, 0]), (2, [0, 1])])
def test_workers_of_one_process_take_gpus_in_turn_and_the_center_the_cpu(monkeypatch, tmp_path, number, devices):
    import tensorflow as tf

    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: ["a GPU"] * number if kind == "GPU" else []
    )
    job = job_of(AsyncSGD(), model="mlp:hidden=4", steps=4, run_dir=tmp_path)
    graph = TaskGraph(job, range(2)).graph
    names = [f"/device:GPU:{device}" if device != "" else "" for device in devices]
    assert [graph.get_operation_by_name(f"worker_{k}_params").device for k in range(2)] == names
    assert graph.get_operation_by_name("version").device == "/device:CPU:0"
    assert compute_devices("/job:worker/task:1", 2) == [
        f"/job:worker/task:1/device:{'GPU' if number else 'CPU'}:{i % number if number else i}" for i in range(2)
    ]
