"""`bash run.sh reproduced [NAME ...]`: experiments of papers; the expected numbers beside ours.

A claim (`claims`) is tested where it can show, mostly on our tasks, and tuned. Here nothing is tuned: a paper states
the result, or it follows from the paper's equations in closed form, and our numbers agree or do not. The order of the
events is that of virtual time, the arithmetic that of the equations in NumPy. Another experiment is a function that
returns numbers by name, and an entry in `EXPERIMENTS` of one of the modules below.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..common.arguments import check_known
from ..common.cli import flags
from . import (
    reproduced_asynchrony,
    reproduced_clients,
    reproduced_coins,
    reproduced_directions,
    reproduced_failures,
    reproduced_gossip,
    reproduced_links,
    reproduced_messages,
    reproduced_regions,
    reproduced_robust,
    reproduced_waiting,
    stamps,
)
from .outcome_files import Output, keep, locked
from .plots import title_of
from .reproduced_experiment import Numbers

FILE = "reproduced.json"
PAGE = Path(__file__).parent.parent / "docs" / "claims" / "reproduced.md"

EXPERIMENTS = [
    *reproduced_asynchrony.EXPERIMENTS,
    *reproduced_waiting.EXPERIMENTS,
    *reproduced_messages.EXPERIMENTS,
    *reproduced_clients.EXPERIMENTS,
    *reproduced_coins.EXPERIMENTS,
    *reproduced_links.EXPERIMENTS,
    *reproduced_failures.EXPERIMENTS,
    *reproduced_directions.EXPERIMENTS,
    *reproduced_regions.EXPERIMENTS,
    *reproduced_gossip.EXPERIMENTS,
    *reproduced_robust.EXPERIMENTS,
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which experiments."""

    names: tuple[str, ...] = ()
    """Names of experiments; all of them if none is given."""

    def __post_init__(self):
        check_known("experiment", *self.names, known=[each.name for each in EXPERIMENTS])


def with_table(text: str, results: Mapping[str, Numbers]) -> str:
    """Return the text of the page with a section for each experiment that was measured."""
    parts = "\n\n".join(section(each, results[each.name]) for each in EXPERIMENTS if each.name in results)
    pattern = r"(<!-- reproduced -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda place: f"{place[1]}{parts}\n\n{place[2]}", text, flags=re.DOTALL)


def section(each: Any, numbers: Numbers) -> str:
    """Return the section of an experiment: its source, what is expected beside ours, and its picture."""
    verdict = "reproduced" if each.agrees(numbers) else "**not reproduced**"
    parts = [
        f"## {each.name}",
        textwrap.fill(f"{each.schemes}. {each.source}.", 100, break_long_words=False, break_on_hyphens=False)
        + f"\nCommand: `bash run.sh reproduced {each.name}`.",
        f"| expected | ours | |\n|---|---|---|\n| {each.expected} | {each.ours.format(**numbers)} | {verdict} |",
    ]
    if each.draw:
        parts.append(f"![{each.name}](../../benchmarks/results/reproduced-{each.name}.png)")
    return "\n\n".join(parts)


def figure_of(each: Any, numbers: Numbers) -> Any:
    """Return the figure of an experiment with a picture, with what is expected above."""
    figure = each.draw(numbers)
    title_of(figure, f"{each.schemes}: {each.expected}".replace("`", ""))
    return figure


def main(arguments: list[str]) -> int:
    """Measure, save and show; return the exit code."""
    names, kinds = [each.name for each in EXPERIMENTS], {"options": Options, "results": Output}
    about = f"Execute experiments of papers, and print their numbers beside ours. Names: {', '.join(names)}"
    options, place = flags.read("run.sh reproduced", about, arguments, kinds, positional="names")
    console = Console(highlight=False)
    for each in EXPERIMENTS:
        if not options.names or each.name in options.names:
            numbers = each.measure()
            verdict = "reproduced" if each.agrees(numbers) else "not reproduced"
            console.print(f"[bold]{each.name}[/]: {verdict}: {each.ours.format(**numbers)} (expected: {each.expected})")
            if each.draw:
                stamps.save(figure_of(each, numbers), place.output / f"reproduced-{each.name}.png")
            keep(place.output / FILE, {each.name: numbers}, names)
    if place.is_shown and PAGE.exists():
        with locked(PAGE):  # and with what another command has measured meanwhile
            PAGE.write_text(with_table(PAGE.read_text(), keep(place.output / FILE, {}, names)))
    return 0
