"""Run while tasks are killed and stopped at random; each run must end as it should, and replay.

`bash run.sh soak --minutes 5 --seed 1` draws schemes, victims, faults and moments from the seed. With `--machines` each
task has a machine of its own (a network namespace), machines crash, and cables are cut or slow. After each run the
NumPy reference executes what is on record (`bash run.sh replay`); the last line counts what was survived. The machines
are those of `tests/`, so `--machines` needs the source checkout.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..algorithms import AEASGD, SCHEMES, AsyncSGD, Downpour, SyncSGD
from ..common import Cluster
from ..common.arguments import positive
from ..common.cli.flags import Parser, plain
from ..common.contract.scheme import Scheme
from ..common.data.models import ModelRecipe
from ..common.data.named import load
from ..common.errors import UserError
from ..common.launch.client import keep_warm
from ..common.record.callbacks import Callback
from ..common.replay.replay import replay
from ..common.sources import docstring
from ..common.tasks.job import make_job
from ..common.tasks.options import Recovery, RunOptions
from ..common.waiting import wait_until
from .complete import completed

TESTS = Path(__file__).resolve().parent.parent / "tests"
DATASET, MODEL = "digits", "mlp:hidden=16"
WAIT_SECONDS = 10.0
BOOT_SECONDS = 30.0  # over machines: one that has crashed imports TensorFlow again, on a machine that is busy
RUN_SECONDS = 180.0  # more than any run may take
WORKERS = 3
MACHINES = 4
CHECKPOINT_SECONDS = 0.5
SLOW = {"delay": 0.003, "jitter": 0.002, "loss": 0.005}  # seconds, seconds, a share of the frames


def main(arguments: list[str]) -> int:
    """Run the command line of the soak; 0 if every run ended right."""
    parser = Parser("run.sh soak", docstring(sys.modules[__name__]).partition("\n")[0])
    parser.add_argument(
        "--minutes", type=plain(float), default=5.0, help="Minutes of all runs together, about. (default: 5)"
    )
    parser.add_argument("--seed", type=plain(int), default=0, help="Random seed of runs and faults. (default: 0)")
    parser.add_argument("--machines", action="store_true", help="Give each task a machine of its own (Linux).")
    parser.add_argument("--verbose", action="store_true", help="Print each fault.")
    options = parser.values(arguments)
    positive(minutes=options.minutes)
    rng = random.Random(options.seed)
    total: Counter[str] = Counter()
    worst, failed = 0.0, 0
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distsgd-soak-")))
        take_place = stack.enter_context(_over_machines() if options.machines else _on_this_machine())
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end:
            number = total["runs"]
            run = SoakRun.draw(rng, folder / str(number), _say if options.verbose else lambda text: None)
            right, text = run.judge(take_place)
            total.update(run.counts)
            total["runs"] += 1
            worst = max(worst, run.error)
            failed += not right
            _say(f"{number:3d} {'ok  ' if right else 'WRONG'} {text}")
    _say(json.dumps({"seed": options.seed, "failed": failed, "worst_replay_error": worst, **total}))
    return 1 if failed else 0


@dataclass
class SoakRun:
    """One run with its faults."""

    rng: random.Random
    run_dir: Path
    say: Callable[[str], None]
    scheme: Scheme
    steps: int
    ps: int
    faults: int
    counts: Counter[str] = field(default_factory=Counter)
    error: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random, run_dir: Path, say: Callable[[str], None]) -> SoakRun:
        """Draw the run, and the number of its faults."""
        scheme, steps = rng.choice([(AsyncSGD(), 1500), (SyncSGD(), 800), (AEASGD(), 8000), (Downpour(), 6000)])
        rng_of_run = random.Random(rng.random())  # how many faults a run has time for must not change the next one
        return cls(rng_of_run, run_dir, say, scheme, steps, ps=rng.choice([1, 2]), faults=rng.randint(1, 4))

    def deal(self, fault: str, victim: str) -> None:
        """Record a fault."""
        self.counts[f"{fault} {'chief' if victim == 'worker-0' else victim.split('-')[0]}"] += 1
        self.say(f"{fault} {victim}")

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of the run, on whatever machines."""
        return {"steps": self.steps, "batch_size": 8, "seed": 0}

    @property
    def recovery(self) -> dict[str, Any]:
        """Return the recovery options of the run."""
        return {"checkpoint_seconds": CHECKPOINT_SECONDS, "max_restarts": 3 * self.faults}

    def judge(self, take_place: Callable[[SoakRun], Any]) -> tuple[bool, str]:
        """Run, and report whether it ended right, and how."""
        began, right = time.monotonic(), False
        try:
            take_place(self)
            verdict = replay(self.run_dir, SCHEMES)
            self.error, result = verdict.error, verdict.run.result
            recovery = result["recovery"]
            steps = sum(self.scheme.rounds(self.steps, 0, k).steps() for k in range(result["workers"]))
            right = verdict.agrees and result["steps"] == steps
            dealt = dict(self.counts)
            self.counts["restarts"] = sum(recovery["restarts"].values())
            self.counts["restorations"] = len(recovery["restored"])
            self.counts["updates"] = result["updates"]
            self.counts["updates lost with a ps"] = recovery["lost_updates"]
            notes = [f"restored {recovery['restored']}", *recovery["warnings"]]
            text = f"replay {self.error:.1e}, {recovery['restarts']}, {', '.join(notes)}"
        except Exception as problem:
            dealt, text = dict(self.counts), f"{type(problem).__name__}: {problem}"
        seconds = time.monotonic() - began
        self.counts["seconds"] = round(seconds)
        right &= seconds < RUN_SECONDS
        return right, f"{self.scheme.name:<9} {self.ps} ps, {seconds:.0f} s, {dealt}: {text}"


# On this machine: one launcher, which starts again what is killed.


@contextlib.contextmanager
def _on_this_machine() -> Any:
    data = load(DATASET)
    recipe = ModelRecipe.named(MODEL, data.shape, data.classes, seed=0)

    def take_place(run: SoakRun) -> None:
        chaos = Chaos(run)
        chaos.start()
        try:
            options = RunOptions(run_dir=run.run_dir, recovery=Recovery(**run.recovery), **run.options)
            cluster = Cluster.local(WORKERS, ps=run.ps, wait_seconds=WAIT_SECONDS)
            job = make_job(run.scheme, recipe, data.train, None, cluster, options)
            completed(job, DATASET, MODEL, callbacks=[chaos])
        finally:
            chaos.done.set()
            chaos.join()

    with keep_warm():
        yield take_place


class Chaos(threading.Thread, Callback):
    """Hurts the tasks of one run now and then, until told to stop."""

    def __init__(self, run: SoakRun):
        super().__init__(daemon=True)
        self.of = run
        self.events: list[dict[str, Any]] = []
        self.done = threading.Event()

    def on_event(self, event: dict[str, Any]) -> None:
        """Record the tasks that run."""
        self.events.append(event)

    def run(self) -> None:
        """Inject one fault after the other."""
        rng = self.of.rng
        while not any(event["event"] == "first_update" for event in self.events):
            if self.done.wait(0.05):
                return
        for _ in range(self.of.faults):
            if self.done.wait(rng.uniform(0.3, 2.5)):
                return
            pids = next(event["pids"] for event in reversed(self.events) if event["event"] == "started")
            victim = rng.choice(sorted(pids))
            stop = victim.startswith("worker") and rng.random() < 0.2
            number = signal.SIGSTOP if stop else signal.SIGKILL
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[victim], number)
                self.of.deal(number.name, victim)


# Over machines: a program for each task, which starts it again; after a crash the same command does.


@contextlib.contextmanager
def _over_machines() -> Any:
    if not TESTS.is_dir():
        raise UserError("the machines are those of tests/, which are part of the source checkout alone")
    sys.path.insert(0, str(TESTS))
    hosts = importlib.import_module("machines")

    def take_place(run: SoakRun) -> None:
        cluster = hosts.Run(machines, run.run_dir, ps=run.ps, workers=MACHINES - run.ps)
        options = run.options | {"recovery": run.recovery, "hidden": (16,), "wait_seconds": BOOT_SECONDS}
        number = run.rng.randrange(2 * MACHINES)
        slow = number < MACHINES
        if slow:
            run.deal("slow cable of", f"machine-{number}")
        try:
            with machines.slow_link(number, **SLOW) if slow else contextlib.nullcontext():
                tasks = cluster.start_all(run.scheme, **options)
                wait_until(cluster.trains, 60, lambda: "the first round")
                for _ in range(run.faults):
                    time.sleep(run.rng.uniform(0.2, 2.5))
                    _hurt(run, hosts, cluster, tasks, options)
                errors = [task.end(RUN_SECONDS) for task in tasks.values()]
            for error in filter(None, errors):
                raise error
        finally:
            for machine in machines:
                machine.tidy()

    with hosts.machines_with_servers(MACHINES) as machines:
        if not machines.real:
            raise UserError(f"this machine allows no network of its own: {machines.refusal}")
        yield take_place


def _hurt(run: SoakRun, hosts: Any, cluster: Any, tasks: dict[tuple[str, int], Any], options: dict[str, Any]) -> None:
    """Kill a process, crash a machine and boot it, or unplug its cable for a while."""
    victim = run.rng.choice([*cluster.on, ("evaluator", 0)])
    name, place = "-".join(map(str, victim)), victim if victim in cluster.on else ("worker", 0)
    machine = cluster.on[place]
    fault = run.rng.choices(["kill", "crash", "cut"], [3, 1, 1])[0]
    if fault == "kill":
        with contextlib.suppress(LookupError, ProcessLookupError):  # the run may have ended
            os.kill(hosts.task_process(run.run_dir, name), signal.SIGKILL)
            run.deal("SIGKILL", name)
    elif fault == "cut":
        run.deal("cut cable of", name)
        cluster.machines.plug(cluster.machines.index(machine), "down")
        time.sleep(run.rng.uniform(0.5, 4))
        cluster.machines.plug(cluster.machines.index(machine), "up")
    elif tasks[place].thread.is_alive():
        run.deal("crash of", name)
        machine.crash()
        tasks[place].end()
        machine.server.close()
        machine.boot()
        tasks[place] = cluster.start(run.scheme, *place, **options)


def _say(text: str) -> None:
    print(text, flush=True)
