"""What the papers claim of small messages: a part of a step that is remembered, signs, and factors of low rank."""

from __future__ import annotations

from typing import Any

from ..algorithms.powersgd import PowerSGD
from .claims_runs import message_kilobytes
from .claims_study import NINE, Arm, Found, Row, clearly_less, difference, final_loss, geometric, mean_loss, study
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
        return Verdict("undecided", f"{why}: too close to tell")
    return of_parts([excess < SAME], why)


# Factors of low rank.

RANKS = 1, 2, 4

WIDE = EIGHT | {"task": "wide", "steps": 250}

SHAPES = [(20, 128), (128,), (128, 128), (128,), (128, 8), (8,)]  # of the model of that task

WHOLE, LOW_RANK, SIGNS = "whole gradients", "powersgd", "signs"


def _low_rank() -> list[Row]:
    rates = {"learning_rate": geometric(0.04, 2, 6)}
    ranks = {str(rank): WIDE | {"settings": {"rank": rank}} for rank in RANKS}
    whole = {"whole": WIDE | {"settings": {"rank": 128}}}  # all columns of the widest matrix
    low = Arm(LOW_RANK, "powersgd", rates)
    others = [
        Arm(name, "other_than_low_rank", rates, {"compressor": name})
        for name in ("largest", "random elements", "random block", SIGNS)
    ]
    studies = [
        ([Arm(WHOLE, "powersgd", rates)], whole),
        ([low, *others[:-1]], ranks),
        (others[-1:], {"1": ranks["1"]}),
    ]
    return [row for arms, places in studies for row in study("powersgd", arms, places, final_loss, showing_seeds=NINE)]


def _kilobytes(rank: int) -> float:
    """Return the kilobytes of a message of `powersgd`, on the task's model."""
    return message_kilobytes(PowerSGD(rank=rank), EIGHT["workers"], SHAPES)


def judge_low_rank(found: Found) -> Verdict:
    """Judge that rank 2 is level with whole gradients, and each rank better than all that has as many bytes."""
    whole, *ranks = found.places
    excess, error = difference(found[LOW_RANK, "2"], found[WHOLE, whole])
    parts, words = [excess + 3 * error <= SAME], []
    for rank in ranks:
        low = found[LOW_RANK, rank]
        others = [row for arm in found.arms if arm not in (WHOLE, LOW_RANK) and (row := found.get(arm, rank))]
        parts += [clearly_less(low, other) for other in others]
        beside = ", ".join(f"{mean_loss(other, 3)} ({other.arm})" for other in others)
        words.append(f"{low.mean:.3f} with rank {rank} ({_kilobytes(int(rank)):.1f} kB), where others have {beside}")
    message = f"{_kilobytes(max(SHAPES[2])):.1f} kB"
    return of_parts(parts, f"loss: {found[WHOLE, whole].mean:.3f} with whole gradients ({message}); {'; '.join(words)}")


CLAIMS = [
    Claim(
        "ef-sgd",
        "EF-SGD (Karimireddy et al. 2019)",
        "what is left out of a message, and remembered, costs nothing",
        (
            "Eight workers, 500 steps of each; rates are tuned. The largest elements of a step (Stich et al. 2018), or "
            "scaled signs of each variable (Karimireddy et al.). Without memory, our control, the rest is lost."
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
    Claim(
        "powersgd",
        "PowerSGD (Vogels et al. 2019)",
        "rank 2 is as good as whole gradients, and better than other compressors at equal bytes",
        (
            "The paper's tables 3 and 4 in small: eight workers, 250 steps, a network of 20,232 parameters. A column "
            "is the rank r; the other rows send as many bytes of each matrix [n, m]: the r (n + m) / 2 largest "
            "elements with indices, or r (n + m) elements or a block, at places that all workers draw alike. Signs "
            "have a tenth more bytes than rank 1. All have error feedback and the paper's momentum, 0.9."
        ),
        "loss at the end",
        "rank",
        _low_rank,
        judge_low_rank,
        remark=(
            "Of the messages that an all-reduce can add up, low rank has the least loss. The largest elements and "
            "signs do better, but each worker must receive all messages."
        ),
    ),
]
