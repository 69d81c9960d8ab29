"""Which GPUs a task of this machine sees: worker k has number k, in turn; ps and evaluator, which would take one, none.

A worker whose batches are shared by d devices has the next d. What it sees it fills as it needs to, so that several
workers may have one card.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"

NONE = "-1"


def gpus(environment: Mapping[str, str] = os.environ, drivers: Path = Path("/dev")) -> list[str]:
    """The GPUs of this machine that a run may use, as CUDA numbers or names them; asking TensorFlow would take them."""
    if VISIBLE in environment:
        named = [name.strip() for name in environment[VISIBLE].split(",")]
        return [name for name in named if name and name != NONE]
    numbers = sorted(int(path.name.removeprefix("nvidia")) for path in drivers.glob("nvidia[0-9]*"))
    return [str(number) for number in range(len(numbers))]


def seen_by(job_name: str, index: int, devices: int, there: Sequence[str], placed: bool) -> dict[str, str]:
    """What the environment of a task says of GPUs.

    Args:
        job_name: ps, worker, evaluator, or what has all of a run in one process.
        index: of the task.
        devices: of a worker.
        there: the GPUs of this machine.
        placed: somebody else has placed the tasks: a worker then has whatever it was given.
    """
    if job_name == "ps" or (job_name == "evaluator" and devices == 1):  # which builds the workers' graph: with several
        return {VISIBLE: NONE}  # devices, it has to see how many there are
    growing = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    if job_name != "worker" or placed or not there:
        return growing
    mine = dict.fromkeys(there[(index * devices + i) % len(there)] for i in range(devices))
    return growing | {VISIBLE: ",".join(mine)}
