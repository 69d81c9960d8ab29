"""Whose steps per second are measured: schemes of this project, and peers in processes of their own.

A system is a title and a function of (model, seconds, expected steps/s, kernels) that measures it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from ..algorithms import AllReduce, AsyncSGD, Downpour, Hogwild, Scheme, Serial, SyncSGD
from ..common.cards import gpus
from ..common.cluster.cluster import BackendName, Cluster
from ..common.data.models import ModelRecipe
from ..common.errors import DistsgdError
from ..common.kernels import Choice, Kernels
from ..common.launch.launcher import launch
from ..common.launch.script import script_job
from ..common.record.cpu import CpuRecord
from ..common.record_format import ALONE_STEPS
from ..common.tasks.job import Job, Script, make_job
from ..common.tasks.options import Jit, RunOptions, TransportName
from . import resnet
from .peers import BATCH, BATCHES, EXAMPLES, LAYERS, LEARNING_RATE, MLPS, WORKERS, examples
from .torch_environment import torch_python

Device = Literal["cpu", "gpu"]

PEER_SECONDS = 180  # a peer that takes longer than this beyond its measurement hangs
MANY = 32  # workers of a run with many
STEADY = 0.25, 0.95  # part of a run that counts

# Of each worker. From 500 on, several go into one call, as in any run that is not very short; a large round is long
# anyway, and so are several medium steps.
LEAST_ROUNDS = {"small": 600, "medium": 600, "large": 12, "cnn": 600, "resnet": 12}

LEAST_CALLS = 8  # of a worker that is alone, each of which is one event of its trace


@dataclass(frozen=True)
class Measured:
    """One measurement: steps per second of all workers, and CPU milliseconds of each process for one such step."""

    rate: float
    cpu: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class System:
    """A system whose throughput is measured."""

    title: str
    measure: Callable[[str, float, float, Choice], Measured]
    models: Sequence[str] = tuple(MLPS)
    guess: Mapping[str, float] = field(default_factory=dict)  # steps/s at first, by model; sets the first one's length
    group: str = ""  # of peers that are measured only if that is asked for
    on_gpus: Mapping[str, float] = field(default_factory=dict)  # models that are measured on GPUs: steps/s at first

    def expected(self, model: str, device: Device) -> float:
        """Return the steps per second to expect at first, on two cores or on a GPU."""
        if device == "gpu":
            return self.on_gpus[model]
        return self.guess.get(model, {"small": 1000.0, "medium": 100.0, "large": 5.0, "cnn": 50.0}[model])


@cache
def recipe_of(model: str) -> ModelRecipe:
    """Return the recipe of a model by its name here."""
    features, *hidden, classes = LAYERS[model]
    if model == "resnet":
        x, y = examples(model)
        return resnet.recipe((x[:BATCH], y[:BATCH]))
    named = f"mlp:hidden={'-'.join(map(str, hidden))}" if model in MLPS else model
    return ModelRecipe.named(named, (features,), classes, seed=0)


def peer(role: str, model: str, seconds: float, expected: float, kernels: Choice) -> Measured:
    """Measure one of `peers.py`."""
    del expected
    command = [sys.executable, "-m", "distsgd.benchmarks.peers", role, model, str(seconds)]
    return Measured(**told_by(command, role, seconds, kernels))


def torch_peer(kind: str, model: str, seconds: float, expected: float, kernels: Choice) -> Measured:
    """Measure one of `torch_peers.py`, which has kernels of its own."""
    del kernels
    workers = 1 if kind == "single" else WORKERS
    steps = max(LEAST_ROUNDS["large"], round(expected * seconds / workers))
    task = {"model": model, "units": LAYERS[model], "workers": workers, "batch": BATCH, "examples": EXAMPLES}
    task |= {"learning_rate": LEARNING_RATE, "steps": steps, "device": "cuda" if gpus() else "cpu"}
    script = str(Path(__file__).with_name("torch_peers.py"))
    command = [str(torch_python()), script, kind, json.dumps(task)]
    return Measured(**told_by(command, f"PyTorch's {kind}", seconds))


def told_by(command: Sequence[str], name: str, seconds: float, kernels: Choice | None = None) -> dict[str, Any]:
    """Return the JSON that a peer prints at its end; all processes that it started end with it."""
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment |= kernels.environment if kernels else {}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        try:
            output = process.communicate(timeout=seconds + PEER_SECONDS)[0]
        except subprocess.TimeoutExpired:
            raise DistsgdError(f"{name} has not ended {PEER_SECONDS} s after its time") from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # no process is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            log.seek(0)
            tail = log.read().decode(errors="replace").splitlines()[-8:]
            raise DistsgdError("\n".join([f"{name} failed:", *tail]))
    return json.loads(output.splitlines()[-1])


@dataclass(frozen=True)
class Ours:
    """One of our schemes, on that many workers: a run without evaluation, on the warm fork server.

    If it is `joined`, the workers run a script whose own loop takes the gradients, `joined.py`.
    """

    scheme: Scheme
    backend: BackendName = "processes"
    workers: int = WORKERS
    codec: str = "float32"
    transport: TransportName = "memory"
    joined: bool = False
    jit: Jit = "auto"

    @property
    def title(self) -> str:
        """Return the title in the table."""
        several = "" if self.workers == WORKERS else f", {self.workers} worker{'s' * (self.workers > 1)}"
        rounded = f", {self.codec}" if self.codec != "float32" else ""
        through = ", sockets" if self.transport == "sockets" else ""
        joined = ", joined by a script" if self.joined else ""
        kind = f"{self.scheme.name}, {self.backend}, period {self.scheme.period}"
        return f"{kind}{several}{rounded}{through}{joined}{', without XLA' * (self.jit == 'off')}"

    def __call__(self, model: str, seconds: float, expected: float, kernels: Choice) -> Measured:
        """Run it."""
        rounds = -(-round(expected * seconds / self.workers) // self.scheme.period)
        if not self.scheme.sync.exchanges:
            rounds = max(rounds, LEAST_CALLS * ALONE_STEPS)
        elif self.scheme.period == 1 or model != "medium":
            rounds = max(rounds, LEAST_ROUNDS[model])
        record = CpuRecord(self.workers)
        folder = Path(tempfile.mkdtemp(prefix="distsgd-benchmark-"))
        try:
            launch(self._job(model, rounds * self.scheme.period, folder, kernels), record.on_event)
            with np.load(folder / "trace.npz") as trace:
                moments, worker = trace["microseconds"], trace["worker"]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        each, used = self.scheme.period if self.scheme.sync.exchanges else ALONE_STEPS, record.summary()
        return Measured(steady_rate(moments, worker, each), cpu_of_a_step(used, moments, each) if used else {})

    def _job(self, model: str, steps: int, folder: Path, kernels: Choice) -> Job:
        options = RunOptions(
            steps=steps,
            batch_size=BATCHES[model],
            run_dir=folder,
            codec=self.codec,
            transport=self.transport,
            jit=self.jit,
            kernels=cast(Kernels, kernels.name or "auto"),
        )
        cluster = Cluster.local(self.workers, backend=self.backend)
        if self.joined:
            script = Script(folder / "script.py", (self.scheme.name, model, str(steps)))
            script.path.write_text(f"import sys\nfrom {__package__}.joined import main\n\nmain(*sys.argv[1:])\n")
            return script_job(script, cluster, options)
        return make_job(self.scheme, recipe_of(model), examples(model), None, cluster, options)


def steady_rate(microseconds: np.ndarray, worker: np.ndarray, each: int) -> float:
    """Return local steps per second of all workers, `each` to an event: the slope of a trace while all were at work."""
    start = microseconds.min()
    end = min(microseconds[worker == k].max() for k in np.unique(worker))
    low, high = (start + part * (end - start) for part in STEADY)
    seconds = 1e-6 * np.sort(microseconds[(microseconds >= low) & (microseconds < high)] - start)
    return float(each * np.polyfit(seconds, np.arange(len(seconds)), 1)[0])


def cpu_of_a_step(used: Mapping, microseconds: np.ndarray, each: int) -> dict[str, float]:
    """Return CPU milliseconds of each task for one local step of any worker, while all of them were at work."""
    steps = each * np.count_nonzero((microseconds >= used["begun"]) & (microseconds <= used["ended"]))
    return {task: 1e3 * seconds / steps for task, seconds in used["seconds"].items()} if steps else {}


SYNC, DOWNPOUR = (
    SyncSGD(learning_rate=LEARNING_RATE),
    Downpour(communication_period=10, learning_rate=LEARNING_RATE, server_learning_rate=0.001),
)
SERIAL, HOGWILD, ALL_REDUCE = (kind(learning_rate=LEARNING_RATE) for kind in (Serial, Hogwild, AllReduce))


def ours(
    *setup: object, models: Sequence[str] = tuple(MLPS), on_gpus: Mapping[str, float] | None = None, jit: Jit = "auto",
    **guess: float,
) -> System:  # fmt: skip
    """Return a system of our own."""
    run = Ours(*setup, jit=jit)  # type: ignore[arg-type]
    return System(run.title, run, models, guess, on_gpus=on_gpus or {})


def joined(scheme: Scheme, **guess: float) -> System:
    """Return a system of our own whose workers run a script."""
    run = Ours(scheme, joined=True)
    return System(run.title, run, ["medium"], guess)


JOINED = {scheme.name: scheme for scheme in (SYNC, DOWNPOUR)}  # by a script

# Steps per second on a GPU, about: where the model stays there, and where each tenth or each step sends it to the host.
THERE = {"small": 3000.0, "medium": 2000.0, "large": 800.0, "cnn": 1000.0}
FEWER = {"small": 3000.0, "medium": 1000.0, "large": 200.0, "cnn": 2000.0}
ACROSS = {"small": 1000.0, "medium": 200.0, "large": 30.0, "cnn": 800.0}

SYSTEMS = {
    "single": System("one process, loop in the graph", partial(peer, "single"), (*MLPS, "cnn"), on_gpus=THERE),
    "fit": System("Keras' fit, without XLA", partial(peer, "fit"), (), on_gpus={"resnet": 35.0}),
    "fit XLA": System("Keras' fit", partial(peer, "fit-xla"), (), on_gpus={"resnet": 80.0}),
    "apart": System("two such processes, a core each", partial(peer, "apart")),
    "pss": System("ParameterServerStrategy", partial(peer, "pss")),
    "torch": System("PyTorch, one process", partial(torch_peer, "single"), (), group="torch", on_gpus=THERE),
    "ddp": System("PyTorch DDP, gloo", partial(torch_peer, "ddp"), group="torch", on_gpus=ACROSS),
    "torch:hogwild": System("PyTorch Hogwild", partial(torch_peer, "hogwild"), group="torch"),
    "hogwild": ours(HOGWILD),
    "serial": ours(
        SERIAL, "processes", 1, models=["large", "cnn"], on_gpus={**THERE, "resnet": 80.0}, large=15.0, cnn=250.0
    ),
    "serial without XLA": ours(SERIAL, "processes", 1, models=[], on_gpus={"large": 800.0, "resnet": 35.0}, jit="off"),
    "async_sgd": ours(AsyncSGD(learning_rate=LEARNING_RATE), models=(*MLPS, "cnn"), on_gpus=ACROSS),
    "sync_sgd": ours(SYNC, on_gpus={**ACROSS, "resnet": 50.0}),
    "sync_sgd x1": ours(SYNC, "processes", 1, models=[], on_gpus={"large": 30.0, "resnet": 50.0}),
    "sync_sgd joined": joined(SYNC),
    "downpour": ours(DOWNPOUR, models=(*MLPS, "cnn"), on_gpus=FEWER, small=5000.0, medium=150.0),
    "downpour joined": joined(DOWNPOUR, medium=150.0),
    "threads:hogwild": ours(HOGWILD, "threads", small=6000.0),
    "threads:downpour": ours(DOWNPOUR, "threads", small=9000.0, medium=150.0),
    f"downpour x{MANY}": ours(DOWNPOUR, "processes", MANY, models=["small"], small=5000.0),
    "sync_sgd bf16": ours(SYNC, "processes", WORKERS, "bf16", models=["large"]),
    "sync_sgd x4": ours(SYNC, "processes", 4, models=["large"]),
    "all_reduce x4": ours(ALL_REDUCE, "processes", 4, models=["large"]),
    "sync_sgd x4 sockets": ours(SYNC, "processes", 4, "float32", "sockets", models=["large"]),
    "all_reduce x4 sockets": ours(ALL_REDUCE, "processes", 4, "float32", "sockets", models=["large"]),
}
