"""`bash run.sh claims [NAME ...]`: what the papers claim, each in a regime where it can show, and what came out.

Everything is in virtual time: `claims_runs` says how. What was run is kept, by its sources, so that an interrupted
command resumes where it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from ..common.arguments import check_known
from ..common.cli import flags
from . import reproduced, stamps
from .claims_catalogue import CLAIMS, pictured
from .claims_page import update_pages
from .claims_pictures import in_general
from .claims_study import Found
from .outcome_files import Output, keep
from .plots import title_of
from .reproduced import EXPERIMENTS


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which claims."""

    names: tuple[str, ...] = ()
    """Names of claims, or of experiments of `reproduced`; all claims if none is given. Claims that share their runs are
    measured together."""

    def __post_init__(self):
        check_known("claim", *self.names, known=[each.name for each in (*CLAIMS, *EXPERIMENTS)])


def figure_of(claim: Any, found: Found) -> Any:
    """Return the figure of a claim with a picture, with its sentence above."""
    figure = claim.draw(found) if claim.draw else in_general(found, claim.column, claim.unit)
    title_of(figure, f"{claim.paper}: {claim.sentence}")
    return figure


def main(arguments: list[str]) -> int:
    """Measure, judge, save and draw; returns the exit code."""
    about, kinds = (
        "Test claims of the papers in virtual time, and print a verdict for each.",
        {"options": Options, "results": Output},
    )
    options, place = flags.read("run.sh claims", about, arguments, kinds, positional="names")
    if experiments := [name for name in options.names if name in {each.name for each in EXPERIMENTS}]:
        reproduced.main([*experiments, "--output", str(place.output)])
        if len(experiments) == len(options.names):
            return 0
    console = Console(highlight=False)
    for claim in CLAIMS:
        if options.names and claim.name not in options.names:
            continue
        found = Found(claim.measure())
        verdict = claim.judge(found)
        console.print(f"[bold]{claim.name}[/]: {verdict.word}: {verdict.why}")
        if claim in pictured():
            stamps.save(figure_of(claim, found), place.output / f"claims-{claim.name}.png")
        keep(place.output / "claims.json", {claim.name: found.as_json()}, [each.name for each in CLAIMS])
    if place.is_shown:
        update_pages()
    return 0
