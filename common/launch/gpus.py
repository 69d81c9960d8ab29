"""The GPUs that a task of this machine sees: worker k gets GPU number k, in turn; ps and evaluator get none.

A worker whose batches are shared by d devices gets the next d GPUs. It allocates GPU memory as it needs it, so that
several workers may share one GPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"

NONE = "-1"


def gpus(environment: Mapping[str, str] = os.environ, drivers: Path = Path("/dev")) -> list[str]:
    """Return CUDA's numbers or names of the GPUs that a run may use; without TensorFlow, which would occupy them."""
    if VISIBLE in environment:
        named = [name.strip() for name in environment[VISIBLE].split(",")]
        return [name for name in named if name and name != NONE]
    numbers = sorted(int(path.name.removeprefix("nvidia")) for path in drivers.glob("nvidia[0-9]*"))
    return [str(number) for number in range(len(numbers))]


def seen_by(job_name: str, index: int, devices: int, there: Sequence[str], placed: bool) -> dict[str, str]:
    """Return the environment variables of a task that concern GPUs.

    Args:
        job_name: ps, worker, evaluator, or the name of a process that has all tasks of a run.
        index: number of the task in its job.
        devices: number of devices of a worker.
        there: the GPUs of this machine.
        placed: True if a scheduler has placed the tasks: a worker then uses the GPUs that it was given.
    """
    # The evaluator builds the workers' graph: with several devices per worker it must see the number of GPUs.
    if job_name == "ps" or (job_name == "evaluator" and devices == 1):
        return {VISIBLE: NONE}
    growing = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if job_name != "worker" or placed or not there:
        return growing
    mine = dict.fromkeys(there[(index * devices + i) % len(there)] for i in range(devices))
    return growing | {VISIBLE: ",".join(mine)}
