"""Steps per second: one process, `ParameterServerStrategy`, and the back ends of this project, side by side.

Every number is the median of some repetitions, taken in turn (the first of every contender, then the second,
...), so that a machine that is busy for a while does not hit one contender alone. Ours are read from the trace
of the run: local steps between 25 % and 95 % of the time in which all workers were at work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from ..common.cli import flags
from ..common.errors import DistsgdError, UserError, at_least, positive
from ..common.launch.client import keep_warm
from ..common.spec import nearest
from .contenders import CONTENDERS, FIRST_GUESS, OTHER_GUESS, TITLES
from .peers import BATCH, CORES, LAYERS, WORKERS
from .startup import measure_startup

RESULTS = Path(__file__).parent / "results" / "throughput.json"

Rates = dict[str, dict[str, list[float]]]  # by model and contender, one for each repetition


@dataclass(frozen=True)
class Options:
    """Steps per second, side by side."""

    repetitions: int = 3
    """Measurements of each contender; the median counts."""
    seconds: float = 4.0
    """Of one measurement, about."""
    only: tuple[str, ...] = ()
    """Names of contenders; all if not given."""
    models: tuple[str, ...] = ("small", "medium")
    """small (64-128-10) and medium (784-1024-1024-10)."""
    startup: bool = True
    """Measure start-up times and memory as well."""

    def __post_init__(self):
        at_least(1, repetitions=self.repetitions)
        positive(seconds=self.seconds)
        for what, names, known in (("contender", self.only, CONTENDERS), ("model", self.models, LAYERS)):
            for name in names:
                if name not in known:
                    raise UserError(f"unknown {what} {name!r}. {nearest(name, [*known])}")


@dataclass(frozen=True)
class Goal:
    """The ratio of two contenders that is to be reached."""

    contender: str
    over: str
    least: dict[str, float]  # by model


GOALS = [
    Goal("hogwild", "pss", {"small": 4, "medium": 1.5}),
    Goal("async_sgd", "pss", {"small": 3.5, "medium": 1.4}),
    Goal("sync_sgd", "pss", {"small": 3, "medium": 1.2}),
    Goal("downpour", "pss", {"small": 15, "medium": 3.3}),
    Goal("downpour", "single", {"small": 0.5, "medium": 0.9}),
    Goal("threads:hogwild", "single", {"small": 0.7, "medium": 0.8}),
]


def main(arguments: list[str]) -> int:
    """Measure, show and save; returns the exit code."""
    options: Options = flags.read(
        "run.sh throughput", "Steps per second, side by side.", arguments, {"options": Options}
    )[0]
    console = Console(highlight=False)
    console.print(
        f"{CORES} cores, TensorFlow {version('tensorflow')}, batch {BATCH}, "
        f"{WORKERS} workers + 1 ps, median of {options.repetitions}"
    )
    rates = measure(options, console)
    for model in options.models:
        console.print(rate_table(model, rates[model]))
        if reached(rates[model]):
            console.print(goal_table(model, rates[model]))
    save(options, rates, startup=None)
    if options.startup:
        save(options, rates, measure_startup(console))
    console.print(f"written to {RESULTS}", soft_wrap=True)
    complete = all(len(v) == options.repetitions for of_model in rates.values() for v in of_model.values())
    return 0 if complete else 1


def measure(options: Options, console: Console) -> Rates:
    """All repetitions of all contenders; fewer numbers where one has failed."""
    names = [name for name in CONTENDERS if not options.only or name in options.only]
    rates: Rates = {model: {name: [] for name in names} for model in options.models}
    with keep_warm():  # TensorFlow is imported once for all of ours
        for repetition in range(options.repetitions):
            for model in options.models:
                for name in names:
                    guess = FIRST_GUESS[model].get(name, OTHER_GUESS[model])
                    expected = (rates[model][name] or [guess])[-1]
                    heading = f"  {repetition + 1}/{options.repetitions} {model} {name}:"
                    try:
                        rate = CONTENDERS[name](model, options.seconds, expected)
                    except DistsgdError as error:  # the others are still worth measuring
                        console.print(f"{heading} failed. {error}", markup=False)
                        continue
                    rates[model][name].append(rate)
                    console.print(f"{heading} {rate:.0f} steps/s")
    return rates


def ratio(rates: dict[str, list[float]], contender: str, over: str) -> float | None:
    """Of the medians; None if one of the two was not measured."""
    if not rates.get(contender) or not rates.get(over):
        return None
    return median(rates[contender]) / median(rates[over])


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def table(title: str, columns: Sequence[str]) -> Table:
    """An empty table: the first column is text, the others are numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left")
    return made


def rate_table(model: str, rates: dict[str, list[float]]) -> Table:
    """Steps per second of one model."""
    units = "-".join(map(str, LAYERS[model]))
    made = table(f"\n{model} ({units})", ["contender", "steps/s", "min - max", "/ pss", "/ single"])
    for name, values in rates.items():
        made.add_row(
            TITLES[name],
            f"{median(values):.0f}" if values else "failed",
            f"{min(values):.0f} - {max(values):.0f}" if values else "-",
            _shown(ratio(rates, name, "pss")),
            _shown(ratio(rates, name, "single")),
        )
    return made


def goal_table(model: str, rates: dict[str, list[float]]) -> Table:
    """What was to be reached with one model."""
    made = table(f"\ngoals, {model}", ["ratio", "at least", "measured", ""])
    for goal, value in reached(rates):
        verdict = "[green]met[/]" if value >= goal.least[model] else "[red]missed[/]"
        made.add_row(f"{TITLES[goal.contender]} / {goal.over}", f"{goal.least[model]:g}", f"{value:.2f}", verdict)
    return made


def reached(rates: dict[str, list[float]]) -> list[tuple[Goal, float]]:
    """The goals whose contenders were measured, with the ratio."""
    values = [(goal, ratio(rates, goal.contender, goal.over)) for goal in GOALS]
    return [(goal, value) for goal, value in values if value is not None]


def save(options: Options, rates: Rates, startup: dict[str, Any] | None) -> None:
    """Everything as JSON, with nothing in it that names this machine."""
    goals = [
        {
            "model": model,
            "ratio": f"{goal.contender} / {goal.over}",
            "at_least": goal.least[model],
            "measured": round(value, 2),
            "met": value >= goal.least[model],
        }
        for model in rates
        for goal, value in reached(rates[model])
    ]
    content = {
        "cores": CORES,
        "tensorflow": version("tensorflow"),
        "batch_size": BATCH,
        "workers": WORKERS,
        "options": asdict(options),
        "steps_per_second": {
            model: {name: [round(v, 1) for v in values] for name, values in of_model.items()}
            for model, of_model in rates.items()
        },
        "goals": goals,
        "startup": startup,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=2) + "\n")
