"""What the devices of a run are called in TensorFlow."""

from __future__ import annotations

from .cluster import Cluster


def ps_devices(cluster: Cluster, uses_ps: bool) -> list[str]:
    """The device of each slice of the center; without a ps worker 0 has it whole."""
    if cluster.backend == "threads":
        return ["/device:CPU:0"] * (cluster.ps if uses_ps else 1)
    if not uses_ps:
        return ["/job:worker/task:0"]
    return [f"/job:ps/task:{i}/device:CPU:0" for i in range(cluster.ps)]


def worker_device(cluster: Cluster, index: int) -> str:
    """The device of a worker's variables and arithmetic; TensorFlow chooses CPU or GPU on it."""
    return "" if cluster.backend == "threads" else f"/job:worker/task:{index}"


def compute_devices(worker: str, number: int) -> list[str]:
    """The devices that share the batches of a worker: its GPUs in turn, or as many logical CPU devices."""
    if number == 1:
        return [worker]
    import tensorflow as tf

    gpus = len(tf.config.list_physical_devices("GPU"))
    return [f"{worker}/device:GPU:{i % gpus}" if gpus else f"{worker}/device:CPU:{i}" for i in range(number)]
