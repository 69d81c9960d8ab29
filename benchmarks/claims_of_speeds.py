"""What Ringmaster's authors claim of very different speeds, on the quadratic of their own experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .claims_pictures import on_logarithms
from .claims_quadratic import HORIZON, STEP, QuadraticRun
from .claims_study import Arm, Found, Row, Score, geometric, study
from .claims_verdict import Claim, Verdict, compared

MOMENTS = 200, 400, 600, 1000, HORIZON


def _gap(seconds: int) -> Score:
    def score(outcome: Mapping[str, Sequence[float]]) -> float:
        return outcome["loss"][seconds // STEP - 1] if outcome["loss"] else float("inf")

    return score


def _ringmaster() -> list[Row]:
    slow = {"learning_rate": geometric(0.0000128, 5**0.5, 9)}
    arms = [
        Arm("ringmaster", "ringmaster", {"learning_rate": (0.05, 0.25, 1.25), "delay_threshold": (2, 6, 18)}),
        Arm("delay-adaptive", "delay_adaptive", slow),
        Arm("async_sgd", "async_sgd", slow),
    ]
    moments: dict[str, dict[str, Any]] = {f"{seconds} s": {} for seconds in MOMENTS}
    scores = {f"{seconds} s": _gap(seconds) for seconds in MOMENTS}
    last = f"{HORIZON} s"
    return study(
        "ringmaster",
        arms,
        moments,
        scores,
        tuned_at=last,
        tuning_seeds=(100,),
        showing_seeds=(0, 1),
        kind=QuadraticRun,
    )


def judge_ringmaster(found: Found) -> Verdict:
    """Judge whether Ringmaster is nearest to the minimum at each moment, each arm at its best rate."""
    ring, *others = found.arms
    words = [", ".join(f"{found[arm, place].mean:.3g}" for arm in found.arms) + f" ({place})" for place in found.places]
    names = ", ".join(f"`{arm}`" for arm in found.arms)
    pairs = [(found[ring, place], found[arm, place]) for place in found.places for arm in others]
    return compared(pairs, f"f − f* of {names}: {'; '.join(words)}")


CLAIMS = [
    Claim(
        "ringmaster",
        "Ringmaster (Maranjyan et al. 2025)",
        "leaving out what is too late is faster where speeds differ",
        (
            "The quadratic of the authors' published script: d = 1729, 6174 workers, of which worker i takes "
            "1 + √i + |N(0, i + 1)| seconds for a gradient, whose noise has the deviation 0.01. Rates, and R with "
            f"them, are tuned on one seed by f − f* after {HORIZON} s; two others are shown."
        ),
        "f − f*",
        "after",
        _ringmaster,
        judge_ringmaster,
        lambda found: on_logarithms(found, "seconds", "f − f*"),
        "the paper's",
    )
]
