"""`bash run.sh pictures [NAME ...]`: draw the measured pictures again that show something else than now.

Those of `benchmark`, `claims`, `reproduced`, `stragglers` and `collisions` are drawn from the results that they have
left; those of `shown_runs` from rows of runs, which `--again` executes once more; those of docs/choosing.md and
docs/not-converging.md from their simulated runs, which are repeated. The pictures of the algorithms' pages are drawn
with each build of the site.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ..common.arguments import check_known
from ..common.cli import flags
from ..common.errors import UserError
from . import choosing, claims, collisions, convergence, plots, reproduced, shown_runs, stamps, stragglers
from .claims_study import Found
from .outcome_files import RESULTS

DPI = {**dict.fromkeys(plots.PICTURES, 100), "downpour": 120, "timeline": 130}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which pictures."""

    names: tuple[str, ...] = ()
    """Names of pictures, as claims-agn; all of them if none is given."""
    again: bool = False
    """Execute the runs of the pictures downpour and timeline once more, before they are drawn."""

    def __post_init__(self):
        pages = [name for name, block in choosing.blocks().items() if block["axis"]]
        names = [*(path.stem for path in from_results()), *pages]
        check_known("picture", *self.names, known=names)
        if self.again and not {*self.names} <= shown_runs.RUNS.keys():
            raise UserError(f"--again is for {' and '.join(shown_runs.RUNS)}. Received: {', '.join(self.names)}")


def from_results(folder: Path = RESULTS) -> dict[Path, Callable[[], Any]]:
    """Return the pictures of a folder of results, each with the function that makes its figure."""

    def read(name: str) -> Any:
        return json.loads((folder / name).read_text())

    outcomes, found, numbers = read(convergence.FILE), read("claims.json"), read("reproduced.json")
    figures: Mapping[str, Callable[[], Any]] = {
        **{name: partial(make, outcomes) for name, make in plots.PICTURES.items()},
        **{
            f"claims-{each.name}": partial(claims.figure_of, each, Found.of_json(found[each.name]))
            for each in claims.pictured()
            if each.name in found
        },
        **{
            f"reproduced-{each.name}": partial(reproduced.figure_of, each, numbers[each.name])
            for each in reproduced.EXPERIMENTS
            if each.draw and each.name in numbers
        },
        "stragglers": partial(stragglers.figure_of, read("stragglers.json")),
        "hogwild": partial(collisions.figure_of, read("hogwild.json")),
        **{name: partial(make, read(f"{name}.json")) for name, make in shown_runs.FIGURES.items()},
    }
    return {folder / f"{name}.png": make for name, make in figures.items()}


def outdated(folder: Path = RESULTS) -> dict[Path, Any]:
    """Return the pictures that show something else than their results, each with its figure of now."""
    figures = {path: make() for path, make in from_results(folder).items()}
    return {path: figure for path, figure in figures.items() if stamps.read(path) != stamps.of_figure(figure)}


def main(arguments: list[str]) -> int:
    """Draw what is outdated; return the exit code."""
    about = "Draw the measured pictures again that show something else than their results, or in other colours."
    options: Options = flags.read("run.sh pictures", about, arguments, {"options": Options}, positional="names")[0]
    console = Console(highlight=False)
    for name in (options.names or shown_runs.RUNS) if options.again else ():
        shown_runs.execute(name, RESULTS)
    for path, figure in outdated().items():
        if path.stem in (options.names or [path.stem]):
            stamps.save(figure, path, dpi=DPI.get(path.stem, 110))
            console.print(f"{path.name}: drawn")
    names = [name for name in choosing.outdated() if name in (options.names or [name])]
    return choosing.main(names) if names else 0
