"""Whose steps per second are measured: each contender is a function of (model, seconds, expected steps/s).

It returns steps/s.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from ..algorithms import AsyncSGD, Downpour, Hogwild, Scheme, SyncSGD
from ..common.cluster.cluster import Cluster
from ..common.cluster.placement import BackendName
from ..common.errors import DistsgdError
from ..common.launch.launcher import launch
from ..common.problems.data import synthetic
from ..common.problems.models import ModelRecipe
from ..common.run.job import make_job
from ..common.run.options import RunOptions
from .peers import BATCH, EXAMPLES, LAYERS, LEARNING_RATE, WORKERS

PEER_SECONDS = 120  # a peer that takes longer than this beyond its measurement hangs
LEAST_ROUNDS = 600  # from 500 rounds on, several go into one call, as in any run that is not very short
STEADY = 0.25, 0.95  # part of a run that counts


def peer(role: str, model: str, seconds: float, expected: float) -> float:
    """Measure one of `peers.py` in a process of its own."""
    del expected
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "distsgd.benchmarks.peers", role, model, str(seconds)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=environment
        )
        try:
            output = process.communicate(timeout=seconds + PEER_SECONDS)[0]
        finally:
            process.kill()  # its servers end with it
            process.wait()
        if process.returncode:
            log.seek(0)
            tail = log.read().decode(errors="replace").splitlines()[-8:]
            raise DistsgdError("\n".join([f"{role} failed on the {model} model:", *tail]))
    return json.loads(output.splitlines()[-1])["rate"]


def ours(scheme: Scheme, backend: BackendName, model: str, seconds: float, expected: float) -> float:
    """Measure one of our schemes: a run without evaluation, on the warm fork server."""
    features, *hidden, classes = LAYERS[model]
    recipe = ModelRecipe.named(f"mlp:hidden={'-'.join(map(str, hidden))}", (features,), classes, seed=0)
    steps = round(expected * seconds / WORKERS)
    if scheme.period == 1:
        steps = max(steps, LEAST_ROUNDS)
    folder = Path(tempfile.mkdtemp(prefix="distsgd-benchmark-"))
    try:
        job = make_job(
            scheme,
            recipe,
            synthetic(examples=EXAMPLES, features=features).train,
            None,
            Cluster.local(WORKERS, backend=backend),
            RunOptions(steps=-(-steps // scheme.period) * scheme.period, batch_size=BATCH, run_dir=folder),
        )
        launch(job, lambda event: None)
        with np.load(folder / "trace.npz") as trace:
            return steady_rate(trace["microseconds"], trace["worker"], scheme.period)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def steady_rate(microseconds: np.ndarray, worker: np.ndarray, period: int) -> float:
    """Local steps per second of all workers, from the events of a trace while all of them were at work."""
    start = microseconds.min()
    end = min(microseconds[worker == k].max() for k in np.unique(worker))
    low, high = (start + part * (end - start) for part in STEADY)
    rounds = np.count_nonzero((microseconds >= low) & (microseconds < high))
    return float(period * rounds / (high - low) * 1e6)


SCHEMES: dict[str, tuple[Scheme, BackendName]] = {
    "hogwild": (Hogwild(learning_rate=LEARNING_RATE), "processes"),
    "async_sgd": (AsyncSGD(learning_rate=LEARNING_RATE), "processes"),
    "sync_sgd": (SyncSGD(learning_rate=LEARNING_RATE), "processes"),
    "downpour": (
        Downpour(communication_period=10, learning_rate=LEARNING_RATE, server_learning_rate=0.001),
        "processes",
    ),
}
SCHEMES |= {f"threads:{name}": (SCHEMES[name][0], "threads") for name in ("hogwild", "downpour")}

CONTENDERS: dict[str, Callable[[str, float, float], float]] = {
    "single": partial(peer, "single"),
    "pss": partial(peer, "pss"),
    **{name: partial(ours, *setup) for name, setup in SCHEMES.items()},
}

TITLES = {
    "single": "one process, loop in the graph",
    "pss": "ParameterServerStrategy",
    **{name: f"{scheme.name}, {backend}, period {scheme.period}" for name, (scheme, backend) in SCHEMES.items()},
}

# Steps/s to expect on two cores at first; they only set the length of the first repetition.
FIRST_GUESS = {
    "small": {"downpour": 5000.0, "threads:hogwild": 6000.0, "threads:downpour": 9000.0},
    "medium": {"downpour": 200.0, "threads:hogwild": 150.0, "threads:downpour": 200.0},
}
OTHER_GUESS = {"small": 1000.0, "medium": 100.0}
