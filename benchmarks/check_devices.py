"""`bash run.sh check-devices [NAME ...]`: run all algorithms on the devices of this machine.

Each algorithm trains a small network for 40 rounds, on processes that one fork server starts, and its record is
replayed. Then there are threads, workers of two devices each (GPUs, or logical CPU devices), XLA, a convolution and a
transformer, and `Optimizer` in `model.fit` against a `Group` on the same order. A failure is a row of the table, and
the other rows follow.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithms import SCHEMES
from ..common.arguments import at_least, check_known
from ..common.cli import doctor, flags
from ..common.cli.imports import import_tensorflow
from ..common.cluster.cluster import Cluster
from ..common.contract.scheme import Scheme
from ..common.data.models import ModelRecipe
from ..common.data.named import load
from ..common.errors import first_line
from ..common.launch.client import keep_warm
from ..common.lazy import keras, tf
from ..common.record.tables import aligned
from ..common.replay.comparison import Verdict
from ..common.replay.replay import replay
from ..common.tasks.job import make_job
from ..common.tasks.options import Jit, RunOptions
from .complete import completed

WORKERS, BATCH, PERIOD = 3, 16, 4  # some rules need three workers; a round shall be short

NETWORK = ("digits", "mlp:hidden=32")

CLOSE = 1e-5  # relative distance of two centers, in float32

# One of each kind of variables and operations that XLA compiles.
IN_FIT = (
    "downpour", "adag", "halos", "ssp", "easgd", "ad_psgd", "sync_sgd", "trimmed_mean", "ef_sgd", "demo",
    "one_bit_adam", "scaffold", "streaming_diloco", "sparta", "all_reduce", "powersgd", "d_psgd",
)  # fmt: skip

# Other ways of some algorithms: the algorithm, the way, and the arguments of `trained`.
WAYS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    *((name, "threads", {"backend": "threads"}) for name in ("async_sgd", "sync_sgd", "all_reduce", "ad_psgd")),
    *((name, "2 devices a worker", {"devices_per_worker": 2}) for name in ("downpour", "sync_sgd")),
    *((name, "XLA", {"jit": "on"}) for name in ("downpour", "sync_sgd")),
    ("downpour", "convolution", {"network": ("digits", "cnn")}),
    ("downpour", "transformer", {"network": ("text", "transformer")}),
)

WIDTHS = (34, 26, 8)  # columns of what, devices, steps per second


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to check, and how."""

    names: tuple[str, ...] = ()
    """Names of algorithms; all of them if none is given."""
    rounds: int = 40
    """Rounds of each run."""
    jit: Jit = "auto"
    """XLA for the gradients of the workers, and for `Optimizer`: as Keras decides, always, or never."""
    tf32: bool = True
    """Let GPUs round factors of products to TF32."""

    def __post_init__(self):
        check_known("algorithm", *self.names, known=SCHEMES)
        at_least(1, rounds=self.rounds)


@dataclass(frozen=True)
class Checked:
    """The outcome of one check.

    Attributes:
        devices: devices of the workers, each named once.
        rate: steps per second of all workers together, without the first round; None for a run without messages.
        verdict: the outcome, in words.
        right: False for a failure.
    """

    devices: str
    rate: float | None
    verdict: str
    right: bool = True


def main(arguments: list[str]) -> int:
    """Check, and print a line for each check; return 0 if all is right."""
    about = "Run all algorithms on the devices of this machine, and print a table for a report."
    options: Options = flags.read("run.sh check-devices", about, arguments, {"options": Options}, positional="names")[0]
    began = time.monotonic()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # warnings, but no messages between the rows
    import_tensorflow()
    found = doctor.look()
    print(aligned({name: found[name] for name in ("distsgd", "tensorflow", "python", "cores", "cpu", "memory", "gpu")}))
    print(f"\n{line('what', 'devices', 'steps/s', 'verdict')}", flush=True)
    wrong = number = 0
    with keep_warm(), tempfile.TemporaryDirectory(prefix="distsgd-check-") as folder:
        for what, check in checks(options, Path(folder)):
            done = outcome(check)
            rate = "-" if done.rate is None else f"{done.rate:,.0f}"
            print(line(what, done.devices, rate, done.verdict), flush=True)
            wrong, number = wrong + (not done.right), number + 1
    seconds = time.monotonic() - began
    print(f"\n{number} checks in {seconds:.0f} s: {f'{wrong} FAILED' if wrong else 'all right'}")
    return 1 if wrong else 0


def line(what: str, devices: str, rate: str, verdict: str) -> str:
    """Return a row of the table."""
    first, second, third = WIDTHS
    return f"{what:{first}} {devices:{second}} {rate:>{third}}  {verdict}"


def outcome(check: Callable[[], Checked]) -> Checked:
    """Return the outcome of a check; one that raises an error has failed."""
    try:
        return check()
    except Exception as error:
        return Checked("-", None, f"FAILED: {type(error).__name__}: {first_line(error)[:200]}", right=False)


def checks(options: Options, folder: Path) -> Iterator[tuple[str, Callable[[], Checked]]]:
    """Yield the checks by what they check."""
    names = options.names or tuple(SCHEMES)

    def run_of(name: str, what: str = "", **setting: Any) -> tuple[str, Callable[[], Checked]]:
        title = f"{name}{what}"
        place = folder / title.replace(" ", "-").replace(",", "")
        return title, lambda: trained(SCHEMES[name], place, options, **setting)

    for name in names:
        yield run_of(name)
    for name, what, setting in WAYS:
        if name in names:
            yield run_of(name, f", {what}", **setting)
    for name in IN_FIT:
        if name in names:
            yield f"{name} in model.fit", lambda name=name: fitted(SCHEMES[name], options)


def short(kind: type[Scheme]) -> Scheme:
    """Return the algorithm with its defaults, but with short rounds if it has a period."""
    lengths = {"communication_period": PERIOD, "probability": 1 / PERIOD}
    return kind(**{field.name: lengths[field.name] for field in fields(kind) if field.name in lengths})


# On processes and threads.


def trained(
    kind: type[Scheme],
    run_dir: Path,
    options: Options,
    *,
    network: tuple[str, str] = NETWORK,
    backend: Any = "processes",
    devices_per_worker: int | None = None,
    jit: Jit | None = None,
) -> Checked:
    """Train a network, and replay the run."""
    scheme, (dataset, model) = short(kind), network
    data = load(dataset)
    cluster = Cluster.local(
        WORKERS if scheme.sync.exchanges else 1, backend=backend, devices_per_worker=devices_per_worker
    )
    arguments = {"steps": options.rounds * scheme.period, "batch_size": BATCH, "run_dir": run_dir, "probe": False}
    recipe = ModelRecipe.named(model, data.shape, data.classes, 0)
    job = make_job(
        scheme, recipe, data.train, None, cluster, RunOptions(**arguments, jit=jit or options.jit, tf32=options.tf32)
    )
    record, result = completed(job, dataset, model)
    devices = dict.fromkeys(device.partition(" (")[0] for names in result["devices"].values() for device in names)
    found = ", ".join(devices) + ", XLA" * result["arithmetic"]["xla"]
    rate = None
    if (spent := result["round"]) and spent["seconds"]:  # not of the first round, in which XLA compiles
        rate = result["steps"] / len(job.plan.all_rounds[0]) / spent["seconds"]
    if network != NETWORK or kind.name == "hogwild":  # hogwild has no order to replay
        return Checked(found, rate, *by_losses([row["loss"] for row in record.rows if "loss" in row]))
    verdict = replay(run_dir, SCHEMES)
    return Checked(found, rate, in_words(verdict), right=not verdict.differs)


def in_words(verdict: Verdict) -> str:
    """Return a verdict in a few words."""
    word = "agrees" if verdict.agrees else f"DIFFERS {verdict.reason}".rstrip() if verdict.differs else "not decided"
    return f"{word}: {verdict.error:.0e}, {verdict.run.factors} explains {verdict.limit:.0e}"


def by_losses(losses: list[float]) -> tuple[str, bool]:
    """Return the verdict on a run without a replay by the losses of its workers, and if it is right."""
    right = len(losses) > 1 and bool(np.isfinite(losses).all()) and losses[-1] < losses[0]
    return f"{'ran' if right else 'FAILED'}: loss {losses[0]:.2f} to {losses[-1]:.2f}, not replayed", right


# In one process.


def fitted(kind: type[Scheme], options: Options) -> Checked:
    """Fit a linear model by `Optimizer`, and compare its center with that of a `Group` on the same order."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)  # NumPy computes the gradients of the group
    try:
        return _fitted(short(kind), 2 * options.rounds, options.jit)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


def _fitted(scheme: Scheme, steps: int, jit: Jit) -> Checked:
    from ..common.group import Group  # not at the top: they import TensorFlow, which prints messages
    from ..common.optimizer import Optimizer

    x = np.random.default_rng(0).normal(size=(steps * BATCH, 3)).astype(np.float32)
    y = 0.5 * x @ np.ones((3, 2), np.float32) + 0.2
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, kernel_initializer="zeros")])
    optimizer = Optimizer(scheme, workers=WORKERS)
    group = Group(scheme, model.get_weights(), workers=WORKERS)
    model.compile(optimizer=optimizer, loss="mse", jit_compile={"on": True, "off": False}.get(jit, "auto"))
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "callbacks": [optimizer.callback()]}
    model.fit(x[: len(x) // 2], y[: len(x) // 2], **options)
    began = time.monotonic()
    model.fit(x[len(x) // 2 :], y[len(x) // 2 :], **options)
    seconds = time.monotonic() - began
    _play(group, x, y, steps)
    centers = [np.concatenate([np.ravel(part) for part in each]) for each in (optimizer.center, group.center)]
    apart = float(np.linalg.norm(centers[0] - centers[1]) / np.linalg.norm(centers[1]))
    places = {variable.value.device.rpartition("device:")[2] for variable in optimizer.variables}
    right = apart < CLOSE and len(places) == 1
    where = ", ".join(sorted(places)) + ", XLA" * bool(model.jit_compile)
    return Checked(
        where, steps / 2 / seconds, f"{'agrees with' if right else 'DIFFERS from'} Group: {apart:.0e}", right
    )


def _play(group: Any, x: np.ndarray, y: np.ndarray, steps: int) -> None:
    """Play the steps of a fit of a linear model, round robin."""
    turn = 0
    for t in range(steps):
        while turn % WORKERS not in group.ready:
            turn += 1
        k, batch = turn % WORKERS, slice(t * BATCH, (t + 1) * BATCH)
        kernel, bias = group.point(k)
        error = x[batch] @ kernel + bias - y[batch]
        scale = 2 / error.size
        group.step(k, [scale * x[batch].T @ error, scale * error.sum(0)], loss=np.mean(error**2))
        turn += 1
