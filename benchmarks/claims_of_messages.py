"""What the papers claim of small messages: a part of a step that is remembered, and signs."""

from __future__ import annotations

from typing import Any

from .claims_study import NINE, Arm, Found, Row, clearly_less, difference, final_loss, mean_loss, study
from .claims_verdict import Claim, Verdict, of_parts

EIGHT = {"workers": 8, "steps": 500}


SAME = 0.02  # of loss


def _compressed() -> list[Row]:
    rates = {"learning_rate": (0.4, 0.8, 1.6, 3.2)}
    compressors: dict[str, dict[str, Any]] = {"top 1 %": {"share": 0.01}, "signs": {"compressor": "sign"}}
    arms = [Arm("whole messages", "sync_sgd", rates)] + [
        Arm(f"{name}, {memory} memory", scheme, rates, compressor)
        for name, compressor in compressors.items()
        for memory, scheme in (("with", "ef_sgd"), ("without", "forgetful_ef_sgd"))
    ]
    return study("compressed", arms, {"8 workers": EIGHT}, final_loss, showing_seeds=NINE)


def judge_ef(found: Found) -> Verdict:
    """Judge error feedback: as good as whole messages after the same examples, and better than without memory."""
    (place,) = found.places
    whole, *rows = (found[arm, place] for arm in found.arms)
    parts, words = [], []
    for kept, lost in zip(rows[::2], rows[1::2], strict=True):
        excess, error = difference(kept, whole)
        parts += [excess + 3 * error <= SAME, clearly_less(kept, lost)]
        paired = f"{excess:+.3f}, standard error {error:.3f}"
        words.append(f"{kept.mean:.3f} ({kept.arm}: {paired}) and {mean_loss(lost, 3)} ({lost.arm})")
    return of_parts(parts, f"loss after the same examples: {whole.mean:.3f} ({whole.arm}); {'; '.join(words)}")


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
    return study("signs", arms, places, final_loss, showing_seeds=NINE)


def judge_sign(found: Found) -> Verdict:
    """Judge signs: as good as whole messages, with the paper's momentum and a falling rate on both sides."""
    first, place = found.places[0], found.places[-1]
    signs, whole = found["signs", place], found["whole messages", place]
    excess, error = difference(signs, whole)
    why = (
        f"loss after the same examples, {place} on both sides: {signs.mean:.3f} (signs), {whole.mean:.3f} (whole "
        f"messages), a difference of {excess:.4f} (standard error {error:.4f}) where {SAME} is allowed; {first}: "
        f"{found['signs', first].mean:.3f} and {found['whole messages', first].mean:.3f}"
    )
    if abs(excess - SAME) < 3 * error:
        return Verdict("not at this scale", f"{why}: too close to tell")
    return of_parts([excess < SAME], why)


CLAIMS = [
    Claim(
        "ef-sgd",
        "EF-SGD (Karimireddy et al. 2019)",
        "what is left out of a message, and remembered, costs nothing",
        (
            "Eight workers, 500 steps of each; rates are tuned. The largest elements of a step (Stich et al. 2018), or "
            "scaled signs of each variable (Karimireddy et al.). Without memory is our control: what is left out is "
            "lost. As good is a loss that is more by 0.02 at most, with three standard errors of the difference."
        ),
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
