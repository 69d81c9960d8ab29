"""Steps per second: one process, `ParameterServerStrategy`, PyTorch if that is asked for, and the back ends here.

Every number is the median of some repetitions, taken in turn (the first of every system, then the second,
...), so that a machine that is busy for a while does not hit one system alone. Ours are read from the trace
of the run: local steps between 25 % and 95 % of the time in which all workers were at work. CPU milliseconds of all
processes together for one step are steady even where others use the machine, and tell where time goes. A column is a
model with kernels, which those peers get too that compute with TensorFlow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from ..common.arguments import at_least, check_known, positive
from ..common.cards import keep_off
from ..common.cli import flags
from ..common.cli.doctor import gpus_seen
from ..common.errors import DistsgdError, UserError
from ..common.kernels import Choice, Kernels, choose, cpu_name
from ..common.launch.client import keep_warm
from ..common.launch.gpus import NONE, VISIBLE
from .goals import GOALS, Goal
from .outcome_files import Output, write
from .peers import BATCH, CORES, LAYERS, WORKERS
from .startup import measure_startup
from .systems import SYSTEMS, Device, Measured, System, recipe_of
from .tables import THROUGHPUT, update_page
from .torch_environment import torch_python, torch_version

FILES = {"cpu": "throughput.json", "gpu": "throughput-gpu.json"}

Measurements = dict[str, list[Measured]]  # by system, one for each repetition

PEERS = ("torch",)  # that are measured if they are asked for

OVER = {"cpu": ("pss", "two cores"), "gpu": ("single", "fit XLA", "torch")}  # to which the others are compared

ONE_OF = {"two cores": ("single", "apart")}  # the arithmetic of all cores, with no communication: the best of these


@dataclass(frozen=True)
class Options:
    """What to measure, and how often."""

    repetitions: int = 3
    """Number of measurements of each system; the median counts."""
    seconds: float = 4.0
    """Seconds of one measurement, about."""
    only: tuple[str, ...] = ()
    """Names of systems; all if not given."""
    models: tuple[str, ...] = ()
    """Models: small (64-128-10), medium (784-1024-1024-10), large (1000-4096-4096-10), and cnn (28 x 28 pixels); if
    not given: small and medium, on GPUs all and resnet (32 x 32 pixels, batches of 256)."""
    kernels: tuple[Kernels, ...] = ("auto",)
    """Kernels of TensorFlow, a column each: auto (what a run chooses for the model on this CPU), eigen, onednn."""
    device: Device = "cpu"
    """Device on which all systems compute: gpu compares our workers, worker k on GPU k mod n, with plain TensorFlow,
    Keras and PyTorch on a GPU, without the start-up."""
    peers: tuple[str, ...] = ()
    """Further systems. torch: PyTorch of this environment (bash run.sh pip install torch), or else of an environment
    of its own, .venv-torch, made on first use."""
    startup: bool = True
    """Measure start-up times and memory as well."""

    def __post_init__(self):
        at_least(1, repetitions=self.repetitions)
        positive(seconds=self.seconds)
        check_known("system", *self.only, known=SYSTEMS)
        check_known("model", *self.models, known=LAYERS)
        check_known("peer", *self.peers, known=PEERS)
        if not self.models:
            object.__setattr__(self, "models", tuple(LAYERS) if self.device == "gpu" else ("small", "medium"))
        on_gpus = [name for name, system in SYSTEMS.items() if system.on_gpus]
        if self.device == "gpu" and not set(self.only) <= set(on_gpus):
            raise UserError(f"--device gpu measures {', '.join(on_gpus)}. Received: only={self.only}")
        if self.device == "cpu" and "resnet" in self.models:
            raise UserError("resnet takes too long on CPUs: give --device gpu. Received: --models resnet, --device cpu")

    def columns(self) -> dict[str, tuple[str, Choice]]:
        """Return model and kernels of each column, by its name; raise `UserError` if the environment excludes some."""
        found: dict[str, tuple[str, Choice]] = {}
        for model in self.models:
            for kernels in self.kernels:
                choice = choose(kernels, BATCH * (recipe_of(model).products or 0))
                name = model if self.device == "gpu" else f"{model}, {choice.name or 'auto'}"
                found.setdefault(name, (model, choice))
        return found

    def systems(self, model: str) -> dict[str, System]:
        """Return the systems that are measured with that model."""
        return {
            name: system
            for name, system in SYSTEMS.items()
            if (name in self.only if self.only else system.group in ("", *self.peers))
            and model in (system.on_gpus if self.device == "gpu" else system.models)
        }


def main(arguments: list[str]) -> int:
    """Measure, show and save; returns the exit code."""
    about, kinds = (
        "Measure the steps per second of distsgd and of other systems.",
        {"options": Options, "results": Output},
    )
    options, place = flags.read("run.sh throughput", about, arguments, kinds)
    if place.is_shown and options.only:
        raise UserError(f"the docs show all systems: leave only or output out. Received: only={options.only}")
    if any(system.group for model in options.models for system in options.systems(model).values()):
        torch_python()  # or say at once that it cannot be had
    console = Console(highlight=False)
    gpus = use(options.device)
    columns = options.columns()
    console.print(
        f"{gpus}{', ' * bool(gpus)}{CORES} cores, {cpu_name()}, TensorFlow {version('tensorflow')}, batch {BATCH}, "
        f"{WORKERS} workers + 1 ps, median of {options.repetitions}"
    )
    for name, (_, choice) in columns.items():
        console.print(f"  {name}: {choice.why}")
    measured = measure(options, console)
    for name, (model, _) in columns.items():
        console.print(rate_table(name, model, measured[name], OVER[options.device]))
        if reached(model, measured[name]):
            console.print(goal_table(name, model, measured[name]))
    path = place.output / FILES[options.device]
    save(path, options, measured, gpus)
    if options.startup and options.device == "cpu":
        save(path, options, measured, gpus, measure_startup(console))
    if place.is_shown:
        update_page(THROUGHPUT)
    console.print(f"written to {path}", soft_wrap=True)
    return 0 if all(len(m) == options.repetitions for column in measured.values() for m in column.values()) else 1


def use(device: Device) -> str:
    """Make all systems compute there; return the GPUs, for a heading.

    Raises:
        UserError: TensorFlow sees none.
    """
    if device == "cpu":
        os.environ[VISIBLE] = NONE
        return ""
    gpus = gpus_seen()
    if not gpus.startswith("GPU "):
        raise UserError(f"--device gpu: TensorFlow sees no GPU here. Received: {gpus}")
    keep_off()  # this process builds models, and measures nothing
    return gpus


def measure(options: Options, console: Console) -> dict[str, Measurements]:
    """Return all repetitions of all systems, by column; fewer where one has failed."""
    columns = options.columns()
    found: dict[str, Measurements] = {
        column: {name: [] for name in options.systems(model)} for column, (model, _) in columns.items()
    }
    with keep_warm():  # TensorFlow is imported once for all of ours
        for repetition in range(options.repetitions):
            for column, (model, choice) in columns.items():
                for name, system in options.systems(model).items():
                    before = found[column][name]
                    expected = before[-1].rate if before else system.expected(model, options.device)
                    heading = f"  {repetition + 1}/{options.repetitions} {column}: {name}:"
                    try:
                        measured = system.measure(model, options.seconds, expected, choice)
                    except DistsgdError as error:  # the others are still worth measuring
                        console.print(f"{heading} failed. {error}", markup=False)
                        continue
                    before.append(measured)
                    console.print(
                        f"{heading} {_rounded(measured.rate)} steps/s, {_rounded(total_cpu(measured))} ms of CPU a step"
                    )
    return found


def total_cpu(measured: Measured) -> float:
    """Return CPU milliseconds of all processes together for one step."""
    return sum(measured.cpu.values())


def rate(measured: Measurements, name: str) -> float | None:
    """Return the median of a system, or the best of those that the name stands for; None without results."""
    medians = [median(m.rate for m in measured[system]) for system in ONE_OF.get(name, (name,)) if measured.get(system)]
    return max(medians, default=None)


def ratio(measured: Measurements, system: str, over: str) -> float | None:
    """Return the ratio of their rates; None if one of the two was not measured."""
    numerator, denominator = rate(measured, system), rate(measured, over)
    return None if numerator is None or denominator is None else numerator / denominator


def _rounded(value: float) -> str:
    """Format three digits, or all before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def table(title: str, columns: Sequence[str]) -> Table:
    """Return an empty table: the first column is text, the others are numbers."""
    result = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        result.add_column(column, justify="right" if i else "left")
    return result


def rate_table(column: str, model: str, measured: Measurements, over: Sequence[str]) -> Table:
    """Return a table of the steps per second of one column, and of their ratios to some systems."""
    units, found = "-".join(map(str, LAYERS[model])), [name for name in over if rate(measured, name) is not None]
    ratios = [f"/ {name}" for name in found]
    result = table(f"\n{column} ({units})", ["system", "steps/s", "min - max", "CPU ms a step", *ratios])
    for name, values in measured.items():
        rates = [m.rate for m in values]
        result.add_row(
            SYSTEMS[name].title,
            _rounded(median(rates)) if rates else "failed",
            f"{_rounded(min(rates))} - {_rounded(max(rates))}" if rates else "-",
            _rounded(median(map(total_cpu, values))) if rates else "-",
            *(_shown(ratio(measured, name, system)) for system in found),
        )
    return result


def goal_table(column: str, model: str, measured: Measurements) -> Table:
    """Return a table of the goals of one column."""
    result = table(f"\ngoals, {column}", ["ratio", "at least", "measured", ""])
    for goal, value in reached(model, measured):
        verdict = "[green]met[/]" if value >= goal.least[model] else "[red]missed[/]"
        result.add_row(goal.name, f"{goal.least[model]:g}", f"{value:.2f}", verdict)
    return result


def reached(model: str, measured: Measurements) -> list[tuple[Goal, float]]:
    """Return the goals whose systems were measured, with the ratio."""
    values = [(goal, ratio(measured, goal.system, goal.over)) for goal in GOALS if model in goal.least]
    return [(goal, value) for goal, value in values if value is not None]


def save(
    path: Path,
    options: Options,
    measured: Mapping[str, Measurements],
    gpus: str = "",
    startup: Mapping[str, Any] | None = None,
) -> None:
    """Save all results as JSON without the name of this machine; columns that are not measured now stay there."""
    before = json.loads(path.read_text()) if path.exists() else {}
    rows = {
        column: {
            "why": choice.why,
            "repetitions": options.repetitions,
            "systems": {name: _row(name, values) for name, values in measured[column].items()},
            "goals": [
                {"ratio": goal.name, "measured": round(value, 2)} for goal, value in reached(model, measured[column])
            ],
        }
        for column, (model, choice) in options.columns().items()
    }
    machine = {"cores": CORES, "cpu": cpu_name(), "gpu": gpus}
    if {name: before.get(name, "") for name in machine} == machine:  # the ratios of two machines differ
        rows = before["columns"] | rows
    content = {
        **machine,
        "tensorflow": version("tensorflow"),
        "torch": torch_version() if options.peers else before.get("torch", ""),
        "batch_size": BATCH,
        "workers": WORKERS,
        "options": asdict(options),
        "columns": {name: rows[name] for model in LAYERS for name in rows if name.partition(",")[0] == model},
        "startup": startup or before.get("startup"),
    }
    write(path, content, indent=2)


def _row(name: str, values: Sequence[Measured]) -> dict[str, Any]:
    """Return a row: one system with one model."""
    tasks = values[0].cpu if values else ()
    cpu = {task: round(median(m.cpu.get(task, 0.0) for m in values), 4) for task in tasks}
    return {"title": SYSTEMS[name].title, "rates": [round(m.rate, 2) for m in values], "cpu_ms": cpu}
