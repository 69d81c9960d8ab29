"""Memory of GPUs, on a machine without one: figures of a stand-in for the driver's tool, and who keeps off."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import tensorflow as tf

from distsgd import AsyncSGD, Cluster, Group, Optimizer, SyncSGD, problem, train
from distsgd.common import cards
from distsgd.common.cards import Gpu, ask, crowded, keep_off, left_visible, warn_if_crowded
from distsgd.common.cli import own
from distsgd.common.cli.flag_groups import parse_flags
from distsgd.common.cli.train import prepared
from distsgd.common.launch.gpus import planned, shares
from runs import job_of

ME = os.getpid()
H100 = "NVIDIA H100 80GB HBM3"


def card(number=0, free=80000, held=None, model=H100, uuid=None):
    return Gpu(str(number), uuid or f"GPU-{number}a5c3f", model, 81559, free, held or {})


def said(found, shares, own=False, **environment):
    return crowded(found, shares, in_process=own, environment=environment)


def test_a_gpu_with_room_for_its_workers_is_no_matter():
    assert said([card(free=2048), card(1, free=1024)], {"0": 2, "1": 1}) == []
    assert said([], {"0": 1}) == []  # without figures


def test_a_gpu_that_this_program_has_taken_is_one_line_with_the_remedy():
    taken = [card(free=400, held={(ME, "python"): 80700})]
    (line,) = said(taken, {"0": 2})
    assert line.startswith(f"GPU 0 ({H100}) has 0.4 of 79.6 GB left for 2 workers: this program holds 78.8 GB. To have")
    assert "import distsgd, or set TF_FORCE_GPU_ALLOW_GROWTH=true, before the program makes" in line
    assert said(taken, {"0": 1}, own=True) == []  # it computes in this process, with that memory
    (line,) = said(taken, {"0": 1}, TF_FORCE_GPU_ALLOW_GROWTH="false")
    assert "leave out TF_FORCE_GPU_ALLOW_GROWTH=false" in line


def test_a_gpu_that_others_have_taken_names_them():
    held = {(7, "a, b"): 500, (8, "python"): 70000, (9, "x"): 3000, (10, "y"): 7000}
    (line,) = said([card(free=1000, held=held)], {"0": 1})
    assert line == (
        f"GPU 0 ({H100}) has 1.0 of 79.6 GB left: process 8 (python) holds 68.4 GB, process 10 (y) holds 6.8 GB, "
        "process 9 (x) holds 2.9 GB. To have more, end it, or choose other GPUs with CUDA_VISIBLE_DEVICES"
    )
    (line,) = said([card(free=1000)], {"0": 1}, own=True)  # a container shows no processes
    assert "a process that nvidia-smi does not show here holds the rest. If it is this program, import distsgd" in line


def test_gpus_are_matched_by_uuid_and_by_number_where_cuda_and_the_tool_count_alike():
    mixed = [card(0, free=1), card(1, free=2, model="NVIDIA L4")]
    assert said(mixed, {"0": 1, "1": 1}) == []
    assert len(said(mixed, {"0": 1, "1": 1}, CUDA_DEVICE_ORDER="PCI_BUS_ID")) == 2
    (line,) = said(mixed, {"GPU-1a5": 1})
    assert line.startswith("GPU GPU-1a5 (NVIDIA L4) has 0.0 of")
    assert said(mixed, {"MIG-377e0049": 1, "GPU-": 1}) == []


def test_workers_that_share_a_gpu_without_growth_are_warned():
    (line,) = said([card()], {"0": 2}, TF_FORCE_GPU_ALLOW_GROWTH="false")
    assert line.startswith("2 workers share GPU 0, and with TF_FORCE_GPU_ALLOW_GROWTH=false the first takes all")
    assert said([card()], {"0": 2}, TF_FORCE_GPU_ALLOW_GROWTH="true") == []


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A stand-in for nvidia-smi on the PATH, of a machine with two GPUs of which this process has taken one."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        f"*query-gpu*) echo '0, GPU-0a5c3f, {H100}, 81559, 400'; echo '1, GPU-1a5c3f, {H100}, 81559, [N/A]';;\n"
        f"*) echo 'GPU-0a5c3f, {ME}, /usr/bin/python, mine.py, 80700'; echo 'GPU-0a5c3f, 5, [Not Found], [N/A]';;\n"
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def test_the_answers_of_the_tool_are_read_also_where_some_are_unknown(tool):
    assert ask()() == [card(free=400, held={(ME, "/usr/bin/python, mine.py"): 80700, (5, "[Not Found]"): 0})]
    tool.write_text("#!/bin/sh\necho NVIDIA-SMI has failed because it could not communicate with the driver.\nexit 9\n")
    assert ask()() == []
    assert ask("no-such-tool")() == []


def test_a_tool_that_does_not_answer_is_not_waited_for(tool, monkeypatch):
    monkeypatch.setattr(cards, "ANSWER_SECONDS", 0.1)
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    assert ask()() == []


@pytest.fixture
def physical(monkeypatch):
    """Two GPUs that TensorFlow has in this process, both visible; the list of those that are visible."""
    there = ["PhysicalDevice 0", "PhysicalDevice 1"]
    visible = list(there)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: there if kind == "GPU" else [])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: list(visible) if kind == "GPU" else [])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: visible.__init__(devices))
    monkeypatch.setattr(cards, "_off", set())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5c3f")
    return visible


@pytest.fixture
def driver(tmp_path):
    """A root folder that looks as if there were an NVIDIA driver."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidiactl").touch()
    return tmp_path


def test_tasks_see_the_gpus_that_the_program_has_left_visible(physical, driver, tmp_path):
    assert (left_visible(), planned(4, 1, driver)) == ({}, "2 GPUs")
    tf.config.set_visible_devices(physical[1:], "GPU")
    assert (left_visible(), planned(4, 1, driver)) == ({"CUDA_VISIBLE_DEVICES": "GPU-5c3f"}, "1 GPU")
    assert planned(4, 1, tmp_path / "none") == "CPU"  # a left-over CUDA_VISIBLE_DEVICES
    tf.config.set_visible_devices([], "GPU")
    assert (left_visible(), planned(4, 1, driver)) == ({"CUDA_VISIBLE_DEVICES": "-1"}, "CPU")


def test_a_launcher_that_keeps_off_the_gpus_leaves_them_to_its_tasks(physical, driver, monkeypatch):
    keep_off()
    assert physical == []
    assert (left_visible(), planned(4, 1, driver)) == ({}, "2 GPUs")
    tf.config.set_visible_devices(["PhysicalDevice 0"], "GPU")  # in the file of the user's model
    assert left_visible() == {"CUDA_VISIBLE_DEVICES": "3"}

    def late(devices, kind):
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    monkeypatch.setattr(tf.config, "set_visible_devices", late)
    keep_off()


@pytest.mark.parametrize(
    ("words", "keeps_off"),
    [("", True), ("--dry-run", False), ("--backend threads", False), ("--backend simulation", False)],
)
def test_a_command_keeps_off_the_gpus_where_it_only_tries_the_model(words, keeps_off, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "import keras\n"
        "def build():\n"
        "    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])\n"
        "    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))\n"
        "    return model\n"
    )
    kept = []
    monkeypatch.setattr(own, "keep_off", lambda: kept.append(True))
    flags = f"--model {tmp_path}/own.py:build --dataset digits --steps 4 --run-dir {tmp_path}/run {words}"
    prepared(*parse_flags(SyncSGD, flags.split()))
    assert bool(kept) == keeps_off


def test_the_workers_that_share_each_gpu_are_counted(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    for workers, devices, backend, found in (
        (4, 1, "processes", {"0": 2, "1": 1, "2": 1}),
        (2, 2, "processes", {"0": 2, "1": 1, "2": 1}),
        (2, 1, "threads", {"0": 1, "1": 1}),
        (2, 4, "threads", {"0": 1, "1": 1, "2": 1}),
    ):
        job = job_of(SyncSGD(), workers, backend=backend)
        job.cluster = replace(job.cluster, devices_per_worker=devices)
        assert shares(job) == found
    job.cluster = Cluster.at(ps_hosts=["a:1"], worker_hosts=["b:1", "c:1"], job_name="worker", task_index=1)
    assert shares(job) == {"0": 1, "1": 1, "2": 1}
    job.cluster = Cluster.at(ps_hosts=["a:1"], worker_hosts=["b:1", "c:1"], job_name="ps")
    assert shares(job) == {}


@pytest.mark.rotating
def test_a_run_says_before_its_start_that_a_gpu_is_taken_and_what_its_tasks_see(tool, warm, tmp_path, monkeypatch):
    """Its tasks have the user's own choice of growth, and the evaluator sees no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    seen = tmp_path / "seen"
    seen.mkdir()

    def data():
        import os
        from pathlib import Path

        name = Path("/proc/self/comm").read_text().strip()
        (seen / name).write_text(f"{os.environ['CUDA_VISIBLE_DEVICES']} {os.environ['TF_FORCE_GPU_ALLOW_GROWTH']}")
        return tf.data.Dataset.from_tensors((tf.ones([8, 4]), tf.ones([8, 1]))).repeat(8)

    model, *_ = problem("least_squares:examples=64,features=4")
    how = {"steps": 2, "probe": False, "verbose": False, "run_dir": tmp_path / "run", "batch_size": 8}
    result = train(model, data, AsyncSGD(), cluster=Cluster.local(2), validation_data=data, **how)
    said = result.metrics["recovery"]["warnings"]
    assert any(
        "GPU 0 (NVIDIA H100 80GB HBM3) has 0.4 of 79.6 GB left for 2 workers: this program" in line for line in said
    )
    assert any("2 workers share GPU 0" in line for line in said)
    found = {path.name: path.read_text() for path in seen.iterdir() if "-" in path.name}
    assert found == {"worker-0": "0 false", "worker-1": "0 false", "evaluator-0": "-1 false"}


def test_importing_the_package_lets_tensorflow_take_memory_as_it_needs_it(tmp_path):
    code = "import os, sys, distsgd; print(os.environ['TF_FORCE_GPU_ALLOW_GROWTH'], 'tensorflow' in sys.modules)"
    known = {name: value for name, value in os.environ.items() if name != "TF_FORCE_GPU_ALLOW_GROWTH"}
    for given, found in (({}, "true"), ({"TF_FORCE_GPU_ALLOW_GROWTH": "false"}, "false")):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=known | given, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.stdout == f"{found} False\n", done.stderr


def test_a_group_and_an_optimizer_warn_once_that_others_have_taken_the_gpu(tool, physical, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    tool.write_text(tool.read_text().replace(str(ME), "4242"))
    warn_if_crowded.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"has 0.4 of 79.6 GB left: process 4242 .* holds 78.8 GB"):
            Group(SyncSGD(), [1.0], workers=2)
        Optimizer(SyncSGD(), workers=2)  # a warning would be an error
    finally:
        warn_if_crowded.cache_clear()
