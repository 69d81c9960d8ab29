"""The arithmetic of a simulated run: a trace, executed with the modules of the catalogue as they are."""

from pathlib import Path

import numpy as np
import pytest

from distsgd.algorithms import ADAG, DCASGD, SCHEMES, Downpour, LocalSGD, Ringmaster, SyncSGD, SyncSGDLR
from distsgd.common import Cluster
from distsgd.common.problems.models import ModelRecipe
from distsgd.common.proof.transcriptions import Recorded
from distsgd.common.run.job import make_job
from distsgd.common.run.options import RunOptions
from distsgd.common.simulation.arithmetic import Arithmetic
from distsgd.common.virtual_time.order import order
from distsgd.common.virtual_time.platform import Platform
from runs import DIGITS, network_gradient

TOLERANCE = 1e-5
UNEVEN = Platform(step_factors="0.58,0.75,1.51")
RUNS = {name: scheme() for name, scheme in SCHEMES.items()} | {
    "adag": ADAG(distance_scale=1e-5, communication_period=3),  # a distance at which the scale matters
    "dc_asgd": DCASGD(compensation=100.0),  # a strength at which it matters
    "ringmaster": Ringmaster(delay_threshold=2),
    "sync_sgd_lr": SyncSGDLR(learning_rates=(0.3, 0.1, 0.05), reduction="mean"),
    "downpour with periods of its own": Downpour(push_period=3, pull_period=4, initial_accumulator=0.5),
    "downpour in dean's phase": Downpour(phase="dean"),
    "downpour with a warm start": Downpour(warm_start=3),
    "sync_sgd with a backup worker": SyncSGD(backup_workers=1),
    "local_sgd after synchronous steps": LocalSGD(synchronous_steps=15),
}
FAST = {"downpour with periods of its own", "aeasgd", "local_sgd", "ssp", "sync_sgd with a backup worker", "serial"}


def job_of(scheme, *, workers=3, steps=32, hidden=8, data=DIGITS.train, **options):
    recipe = ModelRecipe.named(f"mlp:hidden={hidden}", (64,), 10, 0)
    options = {"steps": steps, "batch_size": 8, "seed": 0, "run_dir": Path("nowhere"), **options}
    return make_job(scheme, recipe, data, None, Cluster.local(workers, backend="threads"), RunOptions(**options))


def trace_of(job, platform=UNEVEN):
    sizes = {"message_bytes": 1.0, "reply_bytes": 1.0}
    return order(job.scheme, platform, workers=job.cluster.workers, rounds=job.rounds(0), seed=0, **sizes).trace


def executed(job, trace, **options):
    """The last snapshot, and the losses."""
    arithmetic = Arithmetic(job, trace, **options)
    arithmetic.run(len(trace["worker"]))
    found = arithmetic.snapshot()
    arithmetic.close()
    return found, arithmetic


def error(job, trace, hidden=8):
    """Relative distance of the last center from that of the equations, in NumPy."""
    found, arithmetic = executed(job, trace)
    gradient, start = network_gradient(job, [64, hidden, 10]), arithmetic.model.pack().astype(np.float64)
    result = {"updates": int(found["at"]), "recovery": {}}
    scheme = (
        SCHEMES["async_sgd"](learning_rate=job.scheme.learning_rate) if job.scheme.name == "hogwild" else job.scheme
    )
    assert np.linalg.norm(found["center"] - start) > 0.01 * np.linalg.norm(start)
    return Recorded(scheme, job.cluster.workers, job.steps, start, trace, found["center"], gradient, result).error()


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in RUNS])
def test_an_order_of_virtual_time_replays(name):
    """Every scheme of the catalogue, as it is, against the papers' equations."""
    scheme = RUNS[name]
    job = job_of(scheme, workers=3 if scheme.gate.exchanges else 1)
    assert error(job, trace_of(job)) < TOLERANCE
