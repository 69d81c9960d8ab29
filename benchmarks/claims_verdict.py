"""A claim, and what its experiment says about it: a verdict is computed from what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .claims_study import Found, Row, clearly_less, difference

Word = Literal["shown", "shown in part", "undecided", "not seen here"]

Level = Literal["as good", "worse", "undecided"]

MARGIN = 0.02  # of loss


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
        scale: task, size and steps; for the heading of a claim that is not seen here.
        remark: what else the numbers say, below them.
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
    scale: str = ""
    remark: str = ""


def of_parts(parts: list[bool], why: str) -> Verdict:
    """Return a verdict: shown if all parts are, not seen here if none is: a small task says little of a large one."""
    return Verdict("shown" if all(parts) else "shown in part" if any(parts) else "not seen here", why)


def level(one: Row, other: Row) -> Level:
    """Compare paired losses: as good if the first is at most `MARGIN` above the second for sure, worse if it is more.

    For sure is within three standard errors of the mean difference.
    """
    excess, error = difference(one, other)
    if excess + 3 * error <= MARGIN:
        return "as good"
    return "worse" if excess - 3 * error > MARGIN else "undecided"


def leveled(pairs: list[tuple[Row, Row]], why: str) -> Verdict:
    """Return a verdict on rows that are claimed to be as good as others.

    Shown if all are, not seen here if all are worse. The reason states
    margin, seeds, and the settings tried on each side.
    """
    levels = [level(one, other) for one, other in pairs]
    words = [
        f"`{one.arm}` {excess:+.3f} ± {error:.3f} to `{other.arm}`: {found} ({_tried(one)} against {_tried(other)})"
        for (one, other), found in zip(pairs, levels, strict=True)
        for excess, error in [difference(one, other)]
    ]
    seeds = len(pairs[0][0].scores)
    terms = f"margin {MARGIN} of loss, three standard errors, {seeds} seeds, settings tried in parentheses"
    some: Word = "shown in part" if "as good" in levels else "undecided"
    words_of: dict[frozenset[str], Word] = {frozenset({"as good"}): "shown", frozenset({"worse"}): "not seen here"}
    return Verdict(words_of.get(frozenset(levels), some), f"{why}; {'; '.join(words)} ({terms})")


def _tried(row: Row) -> str:
    """Return the number of settings that were tried for a row, and which of the chosen ones end a grid."""
    ends = f", {', '.join(row.edges)} at an end" if row.edges else ""
    return f"{row.tried + row.further}{ends}"


def compared(pairs: list[tuple[Row, Row]], why: str) -> Verdict:
    """Return a verdict: shown if the first of each pair is clearly less, undecided if no difference is clear."""
    parts = [clearly_less(one, other) for one, other in pairs]
    if not any(parts) and not any(clearly_less(other, one) for one, other in pairs):
        return Verdict("undecided", f"{why}: no clear difference")
    return of_parts(parts, why)
