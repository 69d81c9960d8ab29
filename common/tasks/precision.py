"""The arithmetic of the tasks in this process: their devices, the precision of products, and XLA."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ..lazy import tf
from .job import Job

TF32_SINCE = (8, 0)  # compute capability of NVIDIA's first cards with TF32

OVERRIDE = "NVIDIA_TF32_OVERRIDE"  # the environment variable by which NVIDIA's libraries turn it off


@contextmanager
def precision(job: Job) -> Iterator[None]:
    """Round factors of products to TF32 inside the context only if both the run and its program allow it."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(before and job.options.tf32)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def has_gpu() -> bool:
    """Return True if TensorFlow has a GPU in this process."""
    return bool(tf.config.list_physical_devices("GPU"))


def arithmetic(job: Job) -> dict[str, bool]:
    """Return the arithmetic of a worker in this process, for its event.

    `tf32` and `bfloat16` are True if factors of products may be rounded to these formats; `xla` is True if XLA compiles
    the gradient.
    """
    gpus = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    is_on = tf.config.experimental.tensor_float_32_execution_enabled() and os.environ.get(OVERRIDE) != "0"
    return {
        "tf32": is_on and any(gpu.get("compute_capability", TF32_SINCE) >= TF32_SINCE for gpu in gpus),
        "bfloat16": job.recipe.bfloat16,
        "xla": job.cluster.simulated is None and job.script is None and job.compiles(bool(gpus)),
    }
