"""A claim, and what its experiment says about it: a verdict is computed from what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .claims_study import Found, Row, clearly_less

Word = Literal["shown", "shown in part", "refuted", "not at this scale"]


@dataclass(frozen=True)
class Verdict:
    """One word on a claim, and the numbers that it is based on."""

    word: Word
    why: str


@dataclass(frozen=True)
class Claim:
    """What a paper says, and how that is put to the test.

    Attributes:
        name: of the claim on the command line.
        paper: where it is published.
        sentence: what they say.
        experiment: what is done here, in a sentence or two.
        unit: what the numbers of the table are.
        column: what its columns are.
        measure: the experiment.
        judge: the verdict on what was found.
        draw: the picture, or None.
        whose: the experiment is.
    """

    name: str
    paper: str
    sentence: str
    experiment: str
    unit: str
    column: str
    measure: Callable[[], list[Row]]
    judge: Callable[[Found], Verdict]
    draw: Callable[[Found], Any] | None = None
    whose: Literal["ours", "the paper's"] = "ours"


def of_parts(parts: list[bool], why: str) -> Verdict:
    """Return a verdict: shown if all parts are, refuted if none is."""
    return Verdict("shown" if all(parts) else "shown in part" if any(parts) else "refuted", why)


def compared(pairs: list[tuple[Row, Row]], why: str) -> Verdict:
    """Return a verdict: shown if the first of each pair is clearly less; no clear difference is no refutation."""
    parts = [clearly_less(one, other) for one, other in pairs]
    if not any(parts) and not any(clearly_less(other, one) for one, other in pairs):
        return Verdict("not at this scale", f"{why}: no clear difference")
    return of_parts(parts, why)
