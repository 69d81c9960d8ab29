"""The NVIDIA GPUs of this machine: those that a run may use, and who holds their memory.

TensorFlow takes all memory of a GPU when it makes its devices, unless `TF_FORCE_GPU_ALLOW_GROWTH` is true then. So
`import distsgd` sets that variable where the user has not, for the program and its tasks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .lazy import tf

VISIBLE = "CUDA_VISIBLE_DEVICES"

NONE = "-1"

GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

TOOL = "nvidia-smi"

ANSWER_SECONDS = 10.0  # limit for the tool

LEAST_MB = 1024  # of free memory for each process that computes on a GPU: TensorFlow's own libraries take half of it


def gpus(environment: Mapping[str, str] = os.environ, drivers: Path = Path("/dev")) -> list[str]:
    """Return CUDA's numbers or names of the GPUs that a run may use; without TensorFlow, which would occupy them.

    As CUDA does, the list of `CUDA_VISIBLE_DEVICES` ends before the first entry that is no GPU.
    """
    number = len([*drivers.glob("nvidia[0-9]*")])
    if VISIBLE not in environment:
        return [str(k) for k in range(number)]
    found = []
    for name in map(str.strip, environment[VISIBLE].split(",")):
        is_number = name.isdecimal() and (int(name) < number or not number)  # the files may be elsewhere, as in WSL
        if not is_number and not name.startswith(("GPU-", "MIG-")):
            break
        found.append(name)
    return found


@dataclass(frozen=True)
class Gpu:
    """A GPU, as the driver's tool lists it; memory in MB of 2^20 bytes.

    Attributes:
        held: memory of each process that holds some, by its pid and name.
    """

    number: str
    uuid: str
    model: str
    total: int
    free: int
    held: Mapping[tuple[int, str], int]


def ask(tool: str = TOOL) -> Callable[[], list[Gpu]]:
    """Ask the driver's tool for the GPUs, and return a function that waits for its answer: no cards if it has none."""
    if shutil.which(tool) is None:
        return list
    queries = ("--query-gpu=index,uuid,name,memory.total,memory.free",
               "--query-compute-apps=gpu_uuid,pid,process_name,used_memory")  # fmt: skip
    form = "--format=csv,noheader,nounits"
    started = [
        subprocess.Popen([tool, query, form], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for query in queries
    ]

    def answer() -> list[Gpu]:
        texts = []
        for process in started:
            try:
                texts.append(process.communicate(timeout=ANSWER_SECONDS)[0])
            except subprocess.TimeoutExpired:
                process.kill()
                texts.append(process.communicate()[0])
        return _cards(*texts)

    return answer


def _cards(listed: str, processes: str) -> list[Gpu]:
    """Return the GPUs in the answers of the tool; without those whose memory it does not know, such as slices (MIG)."""
    held: dict[str, dict[tuple[int, str], int]] = {}
    for line in processes.splitlines():
        match line.split(", "):
            case uuid, pid, *name, used if pid.isdecimal():
                held.setdefault(uuid, {})[int(pid), ", ".join(name)] = int(used) if used.isdecimal() else 0
    found = []
    for line in listed.splitlines():
        match line.split(", "):
            case number, uuid, *model, total, free if total.isdecimal() and free.isdecimal():
                found.append(Gpu(number, uuid, ", ".join(model), int(total), int(free), held.get(uuid, {})))
    return found


def crowded(
    cards: Sequence[Gpu], shares: Mapping[str, int], *, in_process: bool, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """Return a line for each GPU that has too little free memory: who holds it, how much is left, and what to do.

    Args:
        cards: the GPUs of this machine.
        shares: number of processes that will compute on each GPU, by CUDA's name of it.
        in_process: True if this process is that process: what it holds already is then free for it.
        environment: environment variables of this process.
    """
    lines = []
    for name, processes in shares.items():
        if processes > 1 and environment.get(GROWTH) == "false":
            lines.append(
                f"{processes} workers share GPU {name}, and with {GROWTH}=false the first takes all its memory: leave "
                "that out"
            )
        for card in _meant(name, cards, environment):
            own_memory = sum(used for (pid, _), used in card.held.items() if pid == os.getpid())
            left = card.free + own_memory * in_process
            if left < LEAST_MB * processes:
                workers = f" for {processes} workers" * (processes > 1)
                lines.append(
                    f"GPU {name} ({card.model}) has {_gb(left)} of {_gb(card.total)} GB left{workers}: "
                    f"{_holders(card, own_memory * (not in_process), environment)}"
                )
    return lines


def _meant(name: str, cards: Sequence[Gpu], environment: Mapping[str, str]) -> list[Gpu]:
    """Return the GPU with CUDA's name; none if CUDA may count them in another order than the tool."""
    same = len({card.model for card in cards}) == 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return [card for card in cards if (card.number == name and same) or (name[4:] and card.uuid.startswith(name))]


def _holders(card: Gpu, own_memory: int, environment: Mapping[str, str]) -> str:
    """Return who holds the memory of a GPU, and what to do, in words; `own_memory` is held by this program."""
    others = sorted(((used, key) for key, used in card.held.items() if key[0] != os.getpid()), reverse=True)
    holders = [f"this program holds {_gb(own_memory)} GB"] * (own_memory > 0)
    holders += [f"process {pid} ({name}) holds {_gb(used)} GB" for used, (pid, name) in others[:3]]
    ours = (
        f"leave out {GROWTH}=false, with which TensorFlow takes all memory of a GPU"
        if environment.get(GROWTH) == "false"
        else f"import distsgd, or set {GROWTH}=true, before the program makes its first tensor or model"
    )
    theirs = f"end it, or choose other GPUs with {VISIBLE}"
    if not holders:
        return f"a process that {TOOL} does not show here holds the rest. If it is this program, {ours}; else {theirs}"
    return f"{', '.join(holders)}. To have more, {ours if own_memory else theirs}"


def _gb(megabytes: int) -> str:
    return f"{megabytes / 1024:.1f}"


@functools.cache  # the answer takes a second, and many groups may be made
def warn_if_crowded() -> None:
    """Warn once if other processes have taken the GPU on which TensorFlow computes in this process."""
    if tf.config.list_physical_devices("GPU"):
        for line in crowded(ask()(), dict.fromkeys(gpus()[:1], 1), in_process=True):
            warnings.warn(line, stacklevel=3)


_off: set[int] = set()  # pids of the process that keeps off the GPUs


def keep_off() -> None:
    """Let TensorFlow use no GPU in this process: its tasks, which are other processes, may use all."""
    with contextlib.suppress(RuntimeError):  # TensorFlow has made its devices
        tf.config.set_visible_devices([], "GPU")
        _off.add(os.getpid())


def left_visible() -> dict[str, str]:
    """Return the environment variable by which tasks see the GPUs that this program has left visible to TensorFlow.

    Without a call of `tf.config.set_visible_devices` in the program it is empty.
    """
    if "tensorflow" not in sys.modules or not (names := gpus()):
        return {}
    present, visible = tf.config.list_physical_devices("GPU"), tf.config.get_visible_devices("GPU")
    all_seen = len(visible) == len(present) or (os.getpid() in _off and not visible)
    if all_seen or len(present) != len(names):  # TensorFlow leaves out those that are too old, and may count otherwise
        return {}
    return {VISIBLE: ",".join(names[present.index(gpu)] for gpu in visible) or NONE}
