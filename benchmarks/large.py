"""`bash run.sh large`: models of 21 and 100 million parameters from their start to their end.

A run trains for some steps, is evaluated, writes checkpoints, and ends; a second run resumes from its checkpoint. Of
both, how long each part takes, and the peak of the memory that each process has for itself, in vectors of P floats.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from ..algorithms import AsyncSGD, Downpour, Scheme, SyncSGD
from ..common.arguments import at_least, check_known
from ..common.cli import flags
from ..common.cluster.cluster import Cluster
from ..common.data.models import ModelRecipe
from ..common.data.recipes import synthetic
from ..common.launch.run import run
from ..common.record.callbacks import Callback
from ..common.tasks.job import describe, make_job
from ..common.tasks.options import Recovery, RunOptions
from .endurance import processes
from .outcome_files import Output, write
from .peers import BATCH, EXAMPLES, WORKERS
from .systems import LEARNING_RATE
from .tables import THROUGHPUT, update_page

FEATURES, CLASSES = 1000, 10
HIDDEN = {"21M": (4096, 4096), "100M": (9500, 9500)}
LOOK_SECONDS = 0.2  # between two looks at the memory of each process

SCHEMES: dict[str, tuple[Scheme, int, int]] = {  # vectors that the scheme needs on a worker, and on the ps
    "async_sgd": (AsyncSGD(learning_rate=LEARNING_RATE), 2, 1),  # parameters, gradient; center
    "sync_sgd": (SyncSGD(learning_rate=LEARNING_RATE), 2, 2),  # and the sum of the set that is complete next
    "downpour": (Downpour(communication_period=10, learning_rate=LEARNING_RATE), 3, 2),  # sum of gradients; of squares
}
SHARED = "shared"  # by the ps and the workers

ROOM = 2  # vectors beyond them that a process may have


@dataclass(frozen=True)
class Options:
    """Large models from their start to their end."""

    models: tuple[str, ...] = ("21M",)
    """Models: 21M (1000-4096-4096-10, 84 MB a vector) and 100M (1000-9500-9500-10, 400 MB a vector)."""
    ps: tuple[int, ...] = (1, 2)
    """Numbers of parameter servers."""
    scheme: str = "async_sgd"
    """Algorithm: async_sgd, sync_sgd or downpour."""
    steps: int = 20
    """Local steps of each worker, and as many again when the run is resumed."""

    def __post_init__(self):
        at_least(2, steps=self.steps)
        check_known("model", *self.models, known=HIDDEN)
        check_known("algorithm", self.scheme, known=SCHEMES)
        for number in self.ps:
            at_least(1, ps=number)


class Watch(Callback):
    """When what happened first and last in a run, and the most memory that each process has had for itself."""

    def __init__(self):
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.peaks: dict[str, int] = {}  # bytes, by process
        self.pids: dict[str, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_now_and_then, daemon=True)

    def on_train_begin(self, logs: dict[str, Any]) -> None:
        """Begin."""
        self._take("begun")
        self._thread.start()

    def on_event(self, event: dict[str, Any]) -> None:
        """Record an event."""
        self._take(event["event"])
        if event["event"] == "started":
            self.pids = processes(event)

    def end(self) -> None:
        """Stop measuring."""
        self._take("over")
        self._over.set()
        self._thread.join()

    def seconds(self, after: str, until: str) -> float:
        """Return the seconds between the first events of two kinds; not a number if one is missing."""
        return self.first.get(until, math.nan) - self.first.get(after, math.nan)

    def _take(self, kind: str) -> None:
        self.first.setdefault(kind, now := time.monotonic())
        self.last[kind] = now

    def _look_now_and_then(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            for name, pid in dict(self.pids).items():
                private, shared = peak_bytes(pid)
                self.peaks[name] = max(self.peaks.get(name, 0), private)
                self.peaks[SHARED] = max(self.peaks.get(SHARED, 0), shared)


def peak_bytes(pid: int) -> tuple[int, int]:
    """Return the most memory that a process has had so far, less what it shares with others now; 0 if it has gone.

    And what lies in segments that were made to be shared, also by those that have gone meanwhile.
    """
    try:
        status = _numbers(Path(f"/proc/{pid}/status").read_text())
        now = _numbers(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return 0, 0
    if "VmHWM" not in status:  # it is about to go
        return 0, 0
    segments = status["RssShmem"]
    alone = max(0, 2 * now["Pss_Shmem"] - segments)  # of them, memory that no other process maps
    return 1024 * (status["VmHWM"] - now["Shared_Clean"] - now["Shared_Dirty"] - alone), 1024 * segments


def _numbers(text: str) -> dict[str, int]:
    """Return kB by name."""
    lines = (line.split() for line in text.splitlines() if line.endswith(" kB"))
    return {name.rstrip(":"): int(number) for name, number, _ in lines}


@dataclass(frozen=True)
class Passage:
    """One model from its start to its end."""

    model: str
    ps: int
    scheme: str
    size: int
    seconds: dict[str, float] = field(default_factory=dict)
    megabytes: dict[str, float] = field(default_factory=dict)  # the most of each kind of process
    vectors: dict[str, float] = field(default_factory=dict)  # the same in 4P bytes
    allowed: dict[str, int] = field(default_factory=dict)


def main(arguments: list[str]) -> int:
    """Run, show, save; returns the exit code."""
    about, kinds = (
        "Train large models, and measure the seconds and the memory of each phase.",
        {"options": Options, "results": Output},
    )
    options, place = flags.read("run.sh large", about, arguments, kinds)
    console = Console(highlight=False)
    passages = []
    for model in options.models:
        for ps in options.ps:
            passages.append(passage(model, ps, options))
            console.print(line_of(passages[-1]), soft_wrap=True)
    path = place.output / "large.json"
    write(path, {"workers": WORKERS, "batch_size": BATCH, "passages": [vars(p) for p in passages]}, indent=2)
    if place.is_shown:
        update_page(THROUGHPUT)
    console.print(f"written to {path}", soft_wrap=True)
    return 0


def line_of(row: Passage) -> str:
    """Return a line for the terminal."""
    seconds = ", ".join(f"{what} {value:g}" for what, value in row.seconds.items())
    memory = ", ".join(
        f"{name} {number:g} MB ({row.vectors[name]:g} vectors"
        + (f" of at most {row.allowed[name]})" if name in row.allowed else ")")
        for name, number in row.megabytes.items()
    )
    return f"{row.model}, {row.scheme}, {row.ps} ps: seconds: {seconds}; memory: {memory}"


def passage(model: str, ps: int, options: Options) -> Passage:
    """Train to the end, then resume and train to the end again."""
    with tempfile.TemporaryDirectory(prefix="distsgd-large-") as folder:
        first = one_run(model, ps, options, Path(folder) / "first", options.steps, None)
        resumed = one_run(model, ps, options, Path(folder) / "again", 2 * options.steps, Path(folder) / "first")
        size = sum(path.stat().st_size for path in (Path(folder) / "again").rglob("*") if path.is_file())
    units = (FEATURES, *HIDDEN[model], CLASSES)
    floats = sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(units))
    peaks: dict[str, int] = {}
    for watch in (first, resumed):
        for name, number in watch.peaks.items():
            kind = name.rpartition("-")[0] or name
            peaks[kind] = max(peaks.get(kind, 0), number)
    _, worker, server = SCHEMES[options.scheme]
    seconds = {
        "start": first.seconds("begun", "first_update"),
        "step": first.seconds("first_update", "finished") / (options.steps - 1),
        "end": first.seconds("finished", "over"),
        "resume": resumed.seconds("begun", "worker"),
    }
    return Passage(
        model, ps, options.scheme, floats,
        {name: round(value, 3) for name, value in seconds.items()} | {"folder_mb": round(size / 1e6)},
        {name: round(number / 1e6) for name, number in peaks.items()},
        {name: round(number / 4 / floats, 1) for name, number in peaks.items()},
        {"worker": worker + ROOM, "ps": server + ROOM},
    )  # fmt: skip


def one_run(model: str, ps: int, options: Options, folder: Path, steps: int, resume: Path | None) -> Watch:
    """Run with checkpoints, and evaluate during the training."""
    data = synthetic(examples=EXAMPLES, features=FEATURES)
    named = f"mlp:hidden={'-'.join(map(str, HIDDEN[model]))}"
    job = make_job(
        SCHEMES[options.scheme][0],
        ModelRecipe.named(named, data.shape, data.classes, seed=0),
        data.train,
        data.test,
        Cluster.local(WORKERS, ps=ps),
        RunOptions(
            steps=steps,
            batch_size=BATCH,
            run_dir=folder,
            recovery=Recovery(checkpoint_steps=options.steps, resume=resume),
        ),
    )
    watch = Watch()
    try:
        record, error = run(job, describe(job, "synthetic", named), verbose=True, callbacks=[watch])
        record.finish(error, picture=False)
    finally:
        watch.end()
    if error is not None:
        raise error
    return watch
