"""What the papers claim of gradients that come late: where that costs nothing, and what makes up for it."""

from __future__ import annotations

from .claims_study import NINE, Arm, Found, Row, final_loss, geometric, places, study
from .claims_verdict import Claim, Verdict, compared, of_parts

# Hogwild.


def _hogwild() -> list[Row]:
    rows = []
    for kind in ("rare", "certain"):
        where = {
            f"{kind}, {number}": {"workers": number, "steps": 6144 // number, "task": kind, "batch": 8}
            for number in (1, 8, 32, 128)
        }
        arm = Arm("each coordinate as it is found", "async_sgd", {"learning_rate": (0.125, 0.25, 0.5, 1.0, 2.0)})
        rows += study(f"hogwild, {kind}", [arm], where, final_loss, tuned_at=f"{kind}, 1")
    return rows


def judge_hogwild(found: Found) -> Verdict:
    """Judge that late gradients cost nothing where examples seldom share a coordinate, and something where they do."""
    (arm,) = found.arms
    cost = {}
    for kind in ("rare", "certain"):
        of_kind = [place for place in found.places if place.startswith(kind)]
        cost[kind] = found[arm, of_kind[-1]].mean - found[arm, of_kind[0]].mean
    workers = found.places[-1].split(", ")[1]
    why = (
        f"{workers} workers instead of one cost {max(cost['rare'], 0):.3f} of loss where collisions are rare, "
        f"{max(cost['certain'], 0):.3f} where they are certain, each at the best rate of one worker"
    )
    return of_parts([abs(cost["rare"]) < 0.01, cost["certain"] > 2 * max(cost["rare"], 0.01)], why)


# DC-ASGD.


def _dc_asgd() -> list[Row]:
    rates = {"learning_rate": (0.1, 0.2, 0.4)}
    arms = [
        Arm("async_sgd", "async_sgd", {"learning_rate": geometric(0.035, 2 ** (1 / 3), 12)}),
        Arm("dc_asgd", "dc_asgd", rates | {"compensation": (12.5, 25.0, 50.0, 100.0)}),
        Arm("dc_asgd, adaptive", "dc_asgd", rates | {"compensation": (0.5, 2.0, 8.0, 32.0)}, {"form": "adaptive"}),
    ]
    return study("dc_asgd", arms, places((16, 64), 4000), final_loss, showing_seeds=NINE)


def judge_dc_asgd(found: Found) -> Verdict:
    """Judge that the correction makes the loss better, each arm at its best rate."""
    base, *corrected = found.arms
    pairs = [(found[arm, place], found[base, place]) for place in found.places for arm in corrected]
    words = [f"{one.mean:.3f} (`{one.arm}`) against {other.mean:.3f} at {one.place} workers" for one, other in pairs]
    return compared(pairs, f"loss {', '.join(words)}")


CLAIMS = [
    Claim(
        "hogwild",
        "Hogwild (Niu et al. 2011)",
        "where examples seldom share a coordinate, late updates cost nothing",
        (
            "Sparse logistic regression, three epochs; up to 128 workers of one speed, so that a gradient "
            "is as many updates late. Updates that are lost for want of a lock are not in this: `bash "
            "run.sh collisions` has them."
        ),
        "training loss at the end",
        "collisions, workers",
        _hogwild,
        judge_hogwild,
    ),
    Claim(
        "dc-asgd",
        "DC-ASGD (Zheng et al. 2017)",
        "a correction makes up for the delay",
        (
            "4000 gradients of many workers; rate and compensation are tuned for each number of workers. λ is "
            "constant, or λ₀ of the adaptive form with m = 0.95."
        ),
        "loss at the end",
        "workers",
        _dc_asgd,
        judge_dc_asgd,
    ),
]
