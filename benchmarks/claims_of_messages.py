"""What the papers claim of small messages: a part of a step that is remembered, and signs."""

from __future__ import annotations

from .claims_study import Arm, Found, Row, final_loss, study
from .claims_verdict import Claim, Verdict, of_parts

EIGHT = {"workers": 8, "steps": 500}


def _compressed() -> list[Row]:
    rates, signs = {"learning_rate": (0.4, 0.8, 1.6, 3.2)}, {"learning_rate": (0.01, 0.02, 0.04, 0.08)}
    arms = [
        Arm("sync_sgd", "sync_sgd", rates),
        Arm("ef_sgd, 10 %", "ef_sgd", rates, {"share": 0.1}),
        Arm("ef_sgd, 1 %", "ef_sgd", rates, {"share": 0.01}),
        Arm("signsgd_mv", "signsgd_mv", signs, {"momentum": 0.0}),
    ]
    return study("compressed", arms, {"8 workers": EIGHT}, final_loss)


SAME = 0.02  # of loss


def judge_ef(found: Found) -> Verdict:
    """As good as whole messages, after the same examples."""
    (place,) = found.places
    whole, kept = found["sync_sgd", place].mean, ["ef_sgd, 10 %", "ef_sgd, 1 %"]
    words = [f"{found[arm, place].mean:.3f} (`{arm}`)" for arm in kept]
    parts = [found[arm, place].mean <= whole + SAME for arm in kept]
    return of_parts(parts, f"loss after the same examples: {', '.join(words)}; whole messages {whole:.3f}")


def _signs() -> list[Row]:
    arms = [
        Arm("whole messages", "whole_with_momentum", {"learning_rate": (0.4, 0.8, 1.6, 3.2)}),
        Arm("signs", "falling_signs", {"learning_rate": (0.005, 0.01, 0.02, 0.04)}),
    ]
    places = {
        f"β {momentum:g}, {'falling' if falls else 'constant'} η": EIGHT
        | {"settings": {"momentum": momentum, "falls": falls}}
        for momentum, falls in ((0.0, False), (0.9, False), (0.0, True), (0.9, True))
    }
    return study("signs", arms, places, final_loss, fair=True)


def judge_sign(found: Found) -> Verdict:
    """As good as whole messages, with the paper's momentum and a falling rate on both sides."""
    place = found.places[-1]
    signs, whole = found["signs", place], found["whole messages", place]
    first = found.places[0]
    why = (
        f"loss after the same examples, {place} on both sides: {signs.mean:.3f} (signs), {whole.mean:.3f} (whole "
        f"messages); {first}: {found['signs', first].mean:.3f} and {found['whole messages', first].mean:.3f}"
    )
    return of_parts([signs.mean <= whole.mean + SAME], why)


CLAIMS = [
    Claim(
        "ef-sgd",
        "EF-SGD (Karimireddy et al. 2019)",
        "what is left out of a message, and remembered, costs nothing",
        "Eight workers, 500 steps of each; rates are tuned. A control without memory is not in this.",
        "loss at the end",
        "",
        _compressed,
        judge_ef,
    ),
    Claim(
        "signsgd",
        "signSGD with majority vote (Bernstein et al. 2019)",
        "the sign of each element is enough",
        (
            "Eight workers, 500 steps of each. Momentum β is of the workers, as in the paper's Algorithm 1, for whole "
            "messages, too; a falling η goes linearly to zero. Rates are tuned for each column."
        ),
        "loss at the end",
        "",
        _signs,
        judge_sign,
    ),
]
