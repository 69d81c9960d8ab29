"""GPUs, on a machine without one: what each task is told of them, and where the graph has what."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from distsgd.algorithms import AllReduce, AsyncSGD, Serial
from distsgd.common.cluster.cluster import OF_WORKER, compute_devices
from distsgd.common.launch import gpus as gpus_module
from distsgd.common.launch.gpus import devices_of, gpus, planned, seen_by, survey, unusable
from distsgd.common.record.display import Display, on_devices
from distsgd.common.record.run_directory import RunRecord
from distsgd.common.tasks.graph import TaskGraph
from runs import job_of

CONFIG = {
    "algorithm": "x", "hyperparameters": {}, "backend": "processes", "workers": 1, "ps": 1, "dataset": "d",
    "model": "m", "batch_size": 1, "ema_decay": None, "seed": 0, "steps_per_worker": 5, "earlier_step_targets": [],
    "record": "full",
}  # fmt: skip


def test_worker_k_sees_gpu_k_in_turn():
    seen = [seen_by("worker", k, 1, ["0", "1", "2"], placed=False, workers=4) for k in range(4)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["0", "1", "2", "0"]
    two = [seen_by("worker", k, 2, ["0", "1", "2"], placed=False, workers=2)["CUDA_VISIBLE_DEVICES"] for k in range(2)]
    assert two == ["0,1", "2,0"]


def test_a_ps_sees_no_gpu_and_a_placed_worker_keeps_its_own():
    assert seen_by("ps", 0, 1, ["0"], placed=False, workers=1) == {"CUDA_VISIBLE_DEVICES": "-1"}
    for there, placed in ((["0", "1"], True), ([], False)):
        assert seen_by("worker", 1, 1, there, placed, workers=2) == {}


@pytest.mark.parametrize(
    ("there", "devices", "placed", "seen", "of_worker"),
    [("0", 1, False, "-1", 1), ("0 1", 1, False, "-1", 1), ("0 1 5", 1, False, "5", 1), ("0 1 2 3", 2, False, "-1", 2),
     ("0 1 2 3 4 5", 2, False, "4", 2), ("0", 2, False, "-1", 1), ("", 2, False, "-1", 0),
     ("0 1 2 3", 2, True, "-1", 4)],
)  # fmt: skip
def test_the_evaluator_sees_a_gpu_that_the_workers_leave_and_names_theirs(
    there, devices, placed, seen, of_worker, monkeypatch
):
    found = seen_by("evaluator", 0, devices, there.split(), placed, workers=2)
    assert found["CUDA_VISIBLE_DEVICES"] == seen
    monkeypatch.setenv(OF_WORKER, found[OF_WORKER])
    if devices == 2:
        kind = [f"CPU:{i}" if not of_worker else f"GPU:{i % of_worker}" for i in range(2)]
        assert compute_devices("/job:worker/task:0", 2) == [f"/job:worker/task:0/device:{name}" for name in kind]


def test_the_gpus_of_a_machine_are_those_that_the_run_may_use(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus({}, tmp_path) == ["0", "1", "2"]
    assert gpus({"CUDA_VISIBLE_DEVICES": "1, GPU-5c3f"}, tmp_path) == ["1", "GPU-5c3f"]


@pytest.mark.parametrize(
    ("text", "found"),
    [("0,-1,1", ["0"]), ("2,0,2,-1,1", ["2", "0", "2"]), (" 1 , 0 ", ["1", "0"]), ("0,7,1", ["0"]), ("0,,1", ["0"]),
     ("GPU-8932f937,1", ["GPU-8932f937", "1"]), ("MIG-377e0049-554c", ["MIG-377e0049-554c"]), ("-1", []), ("", []),
     ("NoDevFiles", []), ("none", []), ("void", []), ("all", [])],
)  # fmt: skip
def test_a_list_of_visible_gpus_ends_as_for_cuda_before_the_first_entry_that_is_none(text, found, tmp_path):
    for number in range(3):
        (tmp_path / f"nvidia{number}").touch()
    assert gpus({"CUDA_VISIBLE_DEVICES": text}, tmp_path) == found
    if text != "0,7,1":
        assert gpus({"CUDA_VISIBLE_DEVICES": text}, tmp_path / "none") == found  # as in WSL


@pytest.fixture
def cards(monkeypatch):
    """A list of GPUs that TensorFlow has in this process: their models."""
    import tensorflow as tf

    models: list[str] = []
    for listed in ("list_physical_devices", "get_visible_devices"):
        monkeypatch.setattr(tf.config, listed, lambda kind=None: list(models) if kind == "GPU" else [])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda model: {"device_name": model})
    return models


def test_a_worker_reports_its_devices_by_cudas_number_and_model(cards, tmp_path, monkeypatch):
    job = SimpleNamespace(devices_per_worker=1)
    reports = []
    for before in range(3):
        gpus_module.report_devices(job, before, lambda **event: reports.append(event), before)
    assert [report["devices"] for report in reports] == [["CPU"]] * 3
    cards += ["H100", "L4"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5c3f")
    assert [devices_of(1, k) for k in range(3)] == [["GPU 3 (H100)"], ["GPU GPU-5c3f (L4)"], ["GPU 3 (H100)"]]
    assert devices_of(2) == ["GPU 3 (H100)", "GPU GPU-5c3f (L4)"]
    assert survey() == "GPU 3 (H100), GPU GPU-5c3f (L4); worker k has the one of number k modulo 2"
    assert on_devices({0: devices_of(1), 1: devices_of(1, 1), 2: devices_of(1)}) == (
        "workers 0, 2 on GPU 3 (H100); worker 1 on GPU GPU-5c3f (L4)"
    )
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    assert [planned(*how, tmp_path) for how in ((1, 1), (4, 1), (1, 2))] == ["1 GPU", "2 GPUs", "2 GPUs"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert planned(4, 1, tmp_path) == "CPU"


def machine(root, *files):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def test_a_driver_that_tensorflow_cannot_use_is_one_line_with_the_reason_and_the_remedy(cards, tmp_path, monkeypatch):
    assert unusable(tmp_path) == ""  # no driver
    there = machine(tmp_path, "proc/driver/nvidia/version")
    said = unusable(there, {})
    assert said.startswith(
        "an NVIDIA driver is on this machine, and workers compute on the CPU: the CUDA libraries are"
    )
    assert gpus_module.SET_UP in said
    for meant in ({"DISTSGD_GPU": "0"}, {"CUDA_VISIBLE_DEVICES": "-1"}, {"CUDA_VISIBLE_DEVICES": ""}):
        assert unusable(there, meant) == ""
    monkeypatch.setattr(gpus_module, "_is_installed", lambda module: True)
    assert f"no {there}/dev/nvidia0. To use the GPU, start the container" in unusable(there, {})
    machine(tmp_path, "dev/nvidia0")
    assert "compare the driver (nvidia-smi)" in unusable(there, {})
    monkeypatch.setattr(gpus_module.os, "access", lambda *_: False)
    assert f"no permission for {there}/dev/nvidia0" in unusable(there, {})
    assert survey() == "none"
    cards.append("H100")
    assert unusable(there, {}) == ""


def test_a_run_warns_once_of_a_driver_that_is_not_used_and_its_result_has_the_device_of_each_worker(tmp_path):
    log, shown = RunRecord(tmp_path, CONFIG | {"workers": 2}), io.StringIO()
    display = Display(CONFIG | {"workers": 2}, Console(file=shown, width=80), planned="2 GPUs")

    def publish(event):
        log.on_event(event)
        display.on_event(event)

    log.publish = publish
    for worker in range(2):
        publish({"event": "devices", "worker": worker, "devices": ["CPU"], "unusable": "a driver"})
    result = log.finish(None, picture=False)
    assert result["devices"] == {"worker-0": ["CPU"], "worker-1": ["CPU"]}
    assert result["recovery"]["warnings"] == ["a driver"]
    assert shown.getvalue() == "a driver\n"
    assert "workers on 2 GPUs)" in display.headline()
    publish({"event": "devices", "worker": 1, "devices": ["GPU 1 (L4)"], "unusable": ""})  # started again
    assert shown.getvalue() == "a driver\n"


@pytest.mark.parametrize("scheme", [Serial(), AllReduce()])
@pytest.mark.parametrize(("backend", "center"), [("processes", "/job:worker/task:0"), ("threads", "/device:GPU:0")])
@pytest.mark.rotating("others")
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
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_workers_of_one_process_take_gpus_in_turn_and_the_center_the_cpu(monkeypatch, tmp_path, number, devices):
    import tensorflow as tf

    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: ["a GPU"] * number if kind == "GPU" else []
    )
    job = job_of(AsyncSGD(), model="mlp:hidden=4", steps=4, run_dir=tmp_path)
    graph = TaskGraph(job, range(2)).graph
    names = [f"/device:GPU:{device}" if device != "" else "" for device in devices]
    params = [op for op in graph.get_operations() if op.type == "VarHandleOp" and op.name.endswith("_params")]
    assert [op.device for op in params] == names
    assert graph.get_operation_by_name("version").device == "/device:CPU:0"
    assert compute_devices("/job:worker/task:1", 2) == [
        f"/job:worker/task:1/device:{'GPU' if number else 'CPU'}:{i % number if number else i}" for i in range(2)
    ]
