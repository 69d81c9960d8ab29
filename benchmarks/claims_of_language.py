"""What DiLoCo's paper claims of a language model: AdamW inside and long periods, on text and a small transformer."""

from __future__ import annotations

from .claims_pictures import against_places
from .claims_study import TUNING_SEEDS, Arm, Found, Outcome, Row, clearly_less, difference, geometric, study
from .claims_verdict import Claim, Verdict, of_parts

WORKERS, STEPS = 4, 300

PERIODS = 1, 10, 50

SAME = 0.02  # of loss


def last_loss(outcome: Outcome) -> float:
    """Return the loss after the last round: with six rounds in all, those before it are at another time."""
    return outcome["loss"][-1] if outcome["loss"] else float("inf")


def _language() -> list[Row]:
    often = [
        Arm("local_sgd", "local_sgd", {"learning_rate": geometric(0.125, 2**0.5, 9)}),
        Arm(
            "AdamW inside, averaging",
            "diloco",
            {"learning_rate": geometric(0.002, 2**0.5, 9)},
            {"outer_learning_rate": 1.0, "momentum": 0.0},
        ),
    ]
    grid = {"learning_rate": (0.002, 0.004, 0.008), "outer_learning_rate": (0.35, 0.7, 1.4)}
    diloco = Arm("diloco", "diloco", grid, {"momentum": 0.9})
    places = {
        str(period): {
            "workers": WORKERS,
            "steps": STEPS,
            "task": "text",
            "settings": {"communication_period": period},
        }
        for period in PERIODS
    }
    seldom = {place: how for place, how in places.items() if place != "1"}
    return [
        row
        for arms, where in ((often, places), ([diloco], seldom))
        for row in study("diloco-text", arms, where, last_loss, tuning_seeds=TUNING_SEEDS[:1])
    ]


def judge_language(found: Found) -> Verdict:
    """Judge the longest period: clearly better than local SGD and averaging, and level with a message each step."""
    often, seldom = str(PERIODS[0]), str(PERIODS[-1])
    diloco, local = found["diloco", seldom], found["local_sgd", seldom]
    averaged, each_step = (found["AdamW inside, averaging", place] for place in (seldom, often))
    excess, error = difference(diloco, each_step)
    parts = [clearly_less(diloco, local), clearly_less(diloco, averaged), excess + 3 * error <= SAME]
    rounds = STEPS // PERIODS[-1]
    return of_parts(
        parts,
        f"loss after {rounds} rounds of {seldom} steps: {diloco.mean:.3f}; `local_sgd` {local.mean:.3f}, averages of "
        f"AdamW {averaged.mean:.3f}; with {STEPS} rounds, AdamW {each_step.mean:.3f} and synchronous SGD "
        f"{found['local_sgd', often].mean:.3f}",
    )


CLAIMS = [
    Claim(
        "diloco-text",
        "DiLoCo (Douillard et al. 2023)",
        "as good as synchronous training of a language model, with a fraction of the messages",
        (
            "A transformer (one layer, width 32, two heads: 20,097 parameters) learns the next character of Python's "
            f"own sources; {WORKERS} workers, {STEPS} steps of each, batch 16 of 32 characters, nothing seen twice. "
            "With a period of 1, `local_sgd` is synchronous SGD, and averaging is AdamW with a message each step. "
            "Rates are tuned for each period, on one seed."
        ),
        "loss after the same examples",
        "period",
        _language,
        judge_language,
        lambda found: against_places(found, "local steps of a round", f"test loss after {STEPS} steps", least=2),
    )
]
