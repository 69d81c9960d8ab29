"""The GPUs of this machine, and what each worker has of them.

Worker k gets GPU number k, in turn; a ps gets none, and the evaluator one if the workers leave one. A worker whose
batches are shared by d devices gets the next d GPUs. It allocates GPU memory as it needs it (see `cards`), so that
several workers may share one GPU.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from ..cards import NONE, VISIBLE, gpus, left_visible
from ..cluster.cluster import OF_WORKER
from ..lazy import tf
from ..packages import IS_CHECKOUT
from ..reports import Report
from ..tasks.job import Job

DRIVER = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/nvidia0", "usr/lib/wsl/lib/libcuda.so.1")  # as in run.sh

CUDNN = "nvidia.cudnn"  # a package of the CUDA libraries

SET_UP = "DISTSGD_GPU=1 bash run.sh list" if IS_CHECKOUT else "pip install 'tensorflow[and-cuda]'"


def seen_by(
    job_name: str, index: int, devices: int, found: Sequence[str], placed: bool, workers: int
) -> dict[str, str]:
    """Return the environment variables of a task that concern GPUs.

    Args:
        job_name: ps, worker, evaluator, or the name of a process that has all tasks of a run.
        index: number of the task in its job.
        devices: number of devices of a worker.
        found: the GPUs of this machine.
        placed: True if a scheduler has placed the tasks: a worker then uses the GPUs that it was given.
        workers: number of workers that share the GPUs.
    """
    if job_name == "ps":
        return {VISIBLE: NONE}
    of_worker = found if placed else [*dict.fromkeys(_cards(index, devices, found))]
    if job_name == "evaluator":  # it builds the graph of the workers, whose GPUs it does not see
        free = [] if placed else found[workers * devices :]
        return {VISIBLE: free[0] if free else NONE, OF_WORKER: str(len(of_worker))}
    return {} if job_name != "worker" or placed or not found else {VISIBLE: ",".join(of_worker)}


def shares(job: Job) -> Counter[str]:
    """Return the number of workers that compute on each GPU of this machine, for a job in processes."""
    found, devices, cluster = gpus(os.environ | left_visible()), job.devices_per_worker, job.cluster
    if cluster.task is not None:
        return Counter(found if cluster.task.job == "worker" else [])
    if cluster.placement.in_process:  # a process of its own has all tasks
        return Counter(found[: cluster.workers * devices])
    return Counter(card for k in range(cluster.workers) for card in {*_cards(k, devices, found)})


def _cards(index: int, devices: int, found: Sequence[str]) -> list[str]:
    """Return the GPU of each device of a worker, in turn."""
    return [found[(index * devices + i) % len(found)] for i in range(devices if found else 0)]


def planned(workers: int, devices: int, root: Path = Path("/")) -> str:
    """Return the devices that the workers of a run on this machine will have, in words; without TensorFlow."""
    found = gpus(os.environ | left_visible()) if _has_driver(root) else []
    number = min(len(found), workers * devices)
    return f"{number} GPU{'s' * (number > 1)}" if number else "CPU"


def devices_of(number: int, first: int = 0) -> list[str]:
    """Return the devices on which a worker of this process computes: GPUs by CUDA's number and their model, or CPU.

    Args:
        number: number of the worker's devices.
        first: number of devices of the workers before it in this process.
    """
    found, numbers = [], gpus()
    for place, gpu in enumerate(tf.config.list_physical_devices("GPU")):
        model = tf.config.experimental.get_device_details(gpu).get("device_name", "")
        found.append(f"GPU {numbers[place] if place < len(numbers) else place}{f' ({model})' if model else ''}")
    return list(dict.fromkeys(found[(first + i) % len(found)] for i in range(number))) if found else ["CPU"]


def report_devices(job: Job, worker: int, report: Report, before: int = 0) -> None:
    """Report the devices of a worker of this process, in which `before` workers have devices before it."""
    devices = job.devices_per_worker
    report(event="devices", worker=worker, devices=devices_of(devices, before * devices), unusable=unusable())


def unusable(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> str:
    """Return why TensorFlow has no GPU in this process though there is a driver, and what to do; empty if all is well.

    The user may have said that workers compute on the CPU: by `DISTSGD_GPU=0`, or an empty `CUDA_VISIBLE_DEVICES`.
    """
    meant = environment.get("DISTSGD_GPU") == "0" or environment.get(VISIBLE, "0").strip() in ("", NONE)
    if meant or tf.config.list_physical_devices("GPU") or not _has_driver(root):
        return ""
    nodes = [root / "dev" / name for name in ("nvidiactl", "nvidia0")]
    if not tf.sysconfig.get_build_info().get("is_cuda_build"):
        why, remedy = "this TensorFlow has no CUDA", "install that of the package index for Linux on x86-64"
    elif not _is_installed(CUDNN):
        why, remedy = "the CUDA libraries are not installed", f"install them by {SET_UP}"
    elif closed := [str(node) for node in nodes if node.exists() and not os.access(node, os.R_OK | os.W_OK)]:
        why, remedy = f"no permission for {closed[0]}", "ask for it, often by the group video"
    elif not any(node.exists() for node in nodes):
        why, remedy = f"no {nodes[1]}", "start the container with its GPUs, as by docker run --gpus all"
    else:
        why, remedy = "CUDA finds no GPU", "compare the driver (nvidia-smi) with CUDA 12, and see the log of the worker"
    return (
        f"an NVIDIA driver is on this machine, and workers compute on the CPU: {why}. To use the GPU, {remedy}; for "
        "the CPU, set DISTSGD_GPU=0"
    )


def _has_driver(root: Path) -> bool:
    return any((root / place).exists() for place in DRIVER)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that should have it
        return False


def survey() -> str:
    """Return the GPUs of this machine and the worker that gets each, or why TensorFlow has none."""
    found = devices_of(max(1, len(tf.config.list_physical_devices("GPU"))))
    if found == ["CPU"]:
        return f"none{f': {why}' if (why := unusable()) else ''}"
    return f"{', '.join(found)}" + (f"; worker k has the one of number k modulo {len(found)}" if len(found) > 1 else "")
