"""What papers claim of very different speeds: Ringmaster on the quadratic of its authors, FedBuff on clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from .claims_pictures import on_logarithms
from .claims_quadratic import HORIZON, STEP, QuadraticRun
from .claims_study import Arm, Found, Row, Score, geometric, study, until
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


# Clients of very different speeds.

CLIENTS, LOCAL_STEPS, TARGET = 64, 10, 0.8

KINDS = {"local_sgd": {}, "fedbuff, K 1": {"messages_per_update": 1}, "fedbuff, K 10": {"messages_per_update": 10}}


def half_normal(workers: int) -> str:
    """Return as many values of the half-normal distribution, at equal steps of probability, in no order of size."""
    normal = NormalDist()
    values = [normal.inv_cdf(0.5 + (i + 0.5) / (2 * workers)) for i in range(workers)]
    return ",".join(f"{values[17 * i % workers]:.4f}" for i in range(workers))


def _fedbuff() -> list[Row]:
    rates = {"learning_rate": (0.2, 0.4, 0.8, 1.6, 3.2)}
    arms = [
        Arm(arm, arm.partition(",")[0], rates, {"communication_period": LOCAL_STEPS, **chosen})
        for arm, chosen in KINDS.items()
    ]
    clients = {"workers": CLIENTS, "steps": 400, "platform": {"step_factors": half_normal(CLIENTS)}}
    columns = "seconds", "gradients"
    return study("fedbuff", arms, dict.fromkeys(columns, clients), {each: until(TARGET, each) for each in columns})


def judge_fedbuff(found: Found) -> Verdict:
    """Judge that a buffer needs clearly less time and fewer gradients than rounds, and than no buffer."""
    *others, buffered = found.arms
    words = [
        ", ".join(f"{found[arm, place].mean / found[buffered, place].mean:.1f} (`{arm}`)" for arm in others)
        + f" times as many {place}"
        for place in found.places
    ]
    pairs = [(found[buffered, place], found[arm, place]) for place in found.places for arm in others]
    return compared(pairs, f"to a loss of {TARGET}, beside `{buffered}`: {'; '.join(words)}")


CLAIMS = [
    Claim(
        "ringmaster",
        "Ringmaster (Maranjyan et al. 2025)",
        "leaving out what is too late is faster where speeds differ",
        (
            "The quadratic of the authors' published script: d = 1729, 6174 workers, of which worker i takes "
            "1 + √i + |N(0, i + 1)| seconds for a gradient, whose noise has the deviation 0.01. Rates and R are "
            f"tuned on one seed by f − f* after {HORIZON} s."
        ),
        "f − f*",
        "after",
        _ringmaster,
        judge_ringmaster,
        lambda found: on_logarithms(found, "seconds", "f − f*"),
        "the paper's",
    ),
    Claim(
        "fedbuff",
        "FedBuff (Nguyen et al. 2022)",
        "a buffer of K messages needs less time and fewer client updates than rounds, and than none",
        (
            f"{CLIENTS} workers train at the same time; their times of a step are half-normal. A message has "
            f"{LOCAL_STEPS} local steps, K = 10 as in the paper; K = 1 stands for FedAsync. Rates are tuned for each "
            "column. A fast worker begins again at once; all have equal data, so that is no loss here. The paper "
            "draws clients with data of their own, and reports 3.3 times the efficiency of rounds, 2.5 of FedAsync."
        ),
        f"to a loss of {TARGET}",
        "what it takes",
        _fedbuff,
        judge_fedbuff,
    ),
]
