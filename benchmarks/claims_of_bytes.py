"""What papers claim of rare or sparse messages with AdamW inside: as good as whole ones, with fewer bytes."""

from __future__ import annotations

from typing import Any

from .claims_of_language import last_loss
from .claims_runs import KINDS, moved_kilobytes
from .claims_study import NINE, Arm, Found, Row, clearly_less, geometric, study
from .claims_verdict import Claim, Verdict, compared, level, leveled, of_parts

WORKERS, STEPS, PARAMETERS = 8, 240, 936

INNER = geometric(0.016, 2**0.5, 9)  # rates of AdamW

SETTING = f"{WORKERS} workers, {STEPS} steps of each, AdamW inside"


def sent(scheme: str, settings: dict[str, Any], steps: int = STEPS) -> float:
    """Return the kilobytes that a worker pushes and pulls in a run."""
    return moved_kilobytes(KINDS[scheme](**settings), WORKERS, [(PARAMETERS,)], steps)


def is_level(one: Row, other: Row) -> bool:
    """Return True if the first loss is as good as the second, see `level`."""
    return level(one, other) == "as good"


def in_words(found: Found, kilobytes: dict[str, float], place: str) -> str:
    """Return the loss and the kilobytes of each arm."""
    return ", ".join(f"`{arm}` {found[arm, place].mean:.3f} ({kilobytes[arm]:.0f} kB)" for arm in found.arms)


# Moments with periods of their own.

PERIODS = 10, 40

MOMENTS = {"local_adam": (1, 1), "des_loc": (3, 6), "moments that stay": (1000, 1000)}


def _every(arm: str) -> dict[str, int]:
    return dict(zip(("first_moment_every", "second_moment_every"), MOMENTS[arm], strict=True))


def _des_loc() -> list[Row]:
    arms = [Arm(arm, "des_loc", {"learning_rate": INNER}, _every(arm)) for arm in MOMENTS]
    places = {
        str(period): {"workers": WORKERS, "steps": STEPS, "settings": {"communication_period": period}}
        for period in PERIODS
    }
    return study("des-loc", arms, places, last_loss, showing_seeds=NINE)


def judge_des_loc(found: Found) -> Verdict:
    """Judge that rare means of the moments are level with means in each period, and better than none."""
    parts, words = [], []
    for place in found.places:
        often, seldom, never = (found[arm, place] for arm in MOMENTS)
        parts += [is_level(seldom, often), clearly_less(seldom, never)]
        period = {"communication_period": int(place)}
        words.append(f"{in_words(found, {arm: sent('des_loc', _every(arm) | period) for arm in MOMENTS}, place)}")
    return of_parts(parts, f"loss and bytes, with periods of {' and '.join(found.places)}: {'; '.join(words)}")


# Sparse moves.

LOCO = {"communication_period": 20}

LONGER = 4 * STEPS  # with 12 rounds, most elements would never be sent

SHARES = 0.05, 0.2


def _sparseloco() -> list[Row]:
    grid = {"learning_rate": (0.032, 0.064, 0.128), "outer_learning_rate": (0.5, 0.7, 1.0)}
    arms = [Arm("diloco", "diloco", grid, LOCO | {"momentum": 0.9})]
    arms += [Arm(f"sparseloco, {share:g}", "sparseloco", grid, LOCO | {"share": share}) for share in SHARES]
    return study(
        "sparseloco", arms, {"48 rounds": {"workers": WORKERS, "steps": LONGER}}, last_loss, showing_seeds=NINE
    )


def judge_sparseloco(found: Found) -> Verdict:
    """Judge that sparse moves are level with DiLoCo's."""
    (place,), (dense, *sparse) = found.places, found.arms
    kilobytes = {dense: sent("diloco", LOCO, LONGER)}
    kilobytes |= {f"sparseloco, {share:g}": sent("sparseloco", LOCO | {"share": share}, LONGER) for share in SHARES}
    pairs = [(found[arm, place], found[dense, place]) for arm in sparse]
    return leveled(pairs, f"loss and bytes after {place}: {in_words(found, kilobytes, place)}")


# A random part of the parameters after each step.

PART = 0.05


def _sparta() -> list[Row]:
    whole = {"communication_period": round(1 / PART), "inner_optimizer": "adamw"}
    arms = [
        Arm("local_sgd", "local_sgd", {"learning_rate": INNER}, whole),
        Arm("sparta", "sparta", {"learning_rate": INNER}, {"share": PART}),
    ]
    return study("sparta", arms, {"240 steps": {"workers": WORKERS, "steps": STEPS}}, last_loss, showing_seeds=NINE)


def judge_sparta(found: Found) -> Verdict:
    """Judge that a part after each step is better than all of the parameters after as many steps as there are parts."""
    (place,), (whole, part) = found.places, found.arms
    words = (
        f"loss after {STEPS} steps: `{part}` {found[part, place].mean:.3f}, `{whole}` {found[whole, place].mean:.3f}"
    )
    return compared([(found[part, place], found[whole, place])], words)


# Momentum in its largest cosine coefficients.

SUBTRACTED = {f"demo, α {alpha:g}": {"subtraction": alpha} for alpha in (0.2, 0.5, 1.0)}  # those that the paper tries


def _demo() -> list[Row]:
    adam = {"communication_period": 1, "inner_optimizer": "adamw"}
    arms = [
        Arm("AdamW, a message each step", "local_sgd", {"learning_rate": INNER}, adam),
        Arm("signsgd_mv", "signsgd_mv", {"learning_rate": geometric(0.002, 2**0.5, 9)}, {"momentum": 0.9}),
    ]
    arms += [
        Arm(arm, "demo", {"learning_rate": geometric(0.004, 2**0.5, 9)}, settings)
        for arm, settings in SUBTRACTED.items()
    ]
    seeds = range(3 * len(NINE))  # of nine the differences have a standard error of half the margin
    return study("demo", arms, {"240 steps": {"workers": WORKERS, "steps": STEPS}}, last_loss, showing_seeds=seeds)


def judge_demo(found: Found) -> Verdict:
    """Judge that the largest coefficients are level with AdamW."""
    (place,), (whole, signs, *demo) = found.places, found.arms
    kilobytes = {whole: sent("local_sgd", {"communication_period": 1}), signs: sent("signsgd_mv", {})}
    kilobytes |= {arm: sent("demo", SUBTRACTED[arm]) for arm in demo}
    pairs = [(found[arm, place], found[whole, place]) for arm in demo]
    return leveled(pairs, f"loss and bytes after {place}: {in_words(found, kilobytes, place)}")


# Signs of the momentum of Adam, with a variance that is frozen.

FIRST = round(0.15 * STEPS)

ZERO_ONE = KINDS["zero_one_adam"]()

FROZEN = ZERO_ONE.warmup_steps

ADAMS = {  # algorithm and fixed hyperparameters
    "Adam, floats": ("one_bit_adam", {"warmup_steps": STEPS}),
    "one_bit_adam": ("one_bit_adam", {"warmup_steps": FIRST}),
    "Adam on signs of gradients": ("compressed_adam", {"warmup_steps": FIRST}),
    "zero_one_adam": ("zero_one_adam", {}),
}


def _one_bit_adam() -> list[Row]:
    arms = [Arm(arm, scheme, {"learning_rate": INNER}, fixed) for arm, (scheme, fixed) in ADAMS.items()]
    return study(
        "one-bit-adam", arms, {"240 steps": {"workers": WORKERS, "steps": STEPS}}, last_loss, showing_seeds=NINE
    )


def judge_one_bit_adam(found: Found) -> Verdict:
    """Judge that signs of the momentum are level with Adam, and better than Adam on signs of gradients."""
    (place,), (whole, signs, changing, *_) = found.places, found.arms
    kilobytes = {arm: sent(*ADAMS[arm]) for arm in ADAMS}
    parts = [is_level(found[signs, place], found[whole, place])]
    parts += [clearly_less(found[signs, place], found[changing, place])]
    return of_parts(parts, f"loss and bytes after {place}: {in_words(found, kilobytes, place)}")


def judge_zero_one_adam(found: Found) -> Verdict:
    """Judge that 0/1 Adam is level with Adam and with 1-bit Adam, in fewer rounds and with fewer bytes."""
    (place,), (whole, signs, *_, fewer) = found.places, found.arms
    kilobytes = {arm: sent(*ADAMS[arm]) for arm in ADAMS}
    rounds = {arm: len(KINDS[scheme](**fixed).rounds(STEPS)) for arm, (scheme, fixed) in ADAMS.items()}
    parts = [is_level(found[fewer, place], found[other, place]) for other in (whole, signs)]
    parts += [kilobytes[fewer] < kilobytes[signs] and rounds[fewer] < rounds[signs]]
    words = [
        f"`{arm}` {found[arm, place].mean:.3f} ({kilobytes[arm]:.0f} kB in {rounds[arm]} rounds)"
        for arm in (whole, signs, fewer)
    ]
    return of_parts(parts, f"loss, bytes and rounds of {place}: {', '.join(words)}")


# Pulls to the last center between the local steps.

PULLS = {"palsgd, γ 0.05": 0.05, "palsgd, γ 0.5": 0.5}

FAR = 2 * STEPS  # six rounds of the longest period


def _palsgd() -> list[Row]:
    grid = {"learning_rate": (0.032, 0.064, 0.128), "outer_learning_rate": (0.35, 0.7, 1.4)}
    arms = [Arm("diloco", "diloco", grid, {"momentum": 0.9})]
    arms += [Arm(arm, "palsgd", grid, {"momentum": 0.9, "pull_strength": pull}) for arm, pull in PULLS.items()]
    places = {
        str(period): {"workers": WORKERS, "steps": FAR, "settings": {"communication_period": period}}
        for period in (20, 80)
    }
    return study("palsgd", arms, places, last_loss, showing_seeds=NINE)


def judge_palsgd(found: Found) -> Verdict:
    """Judge that DiLoCo's loss at the longest period is clearly above that of each arm with pulls."""
    plain, *pulled = found.arms
    words = [
        ", ".join(f"`{arm}` {found[arm, place].mean:.3f}" for arm in found.arms) + f" (period {place})"
        for place in found.places
    ]
    place = found.places[-1]
    return compared([(found[arm, place], found[plain, place]) for arm in pulled], f"loss: {'; '.join(words)}")


CLAIMS = [
    Claim(
        "des-loc",
        "DES-LOC (Iacob et al. 2026)",
        "moments that are averaged less often than the parameters are as good, with half of the bytes",
        (
            f"{SETTING}. `local_adam` averages parameters and both moments in each period, `des_loc` the moments every "
            "3rd and 6th time, and moments that stay are never averaged."
        ),
        "loss after the last round",
        "period",
        _des_loc,
        judge_des_loc,
    ),
    Claim(
        "sparseloco",
        "SparseLoCo (Sarfi et al. 2025)",
        "a few percent of each move, with error feedback, are as good as DiLoCo's whole moves",
        (
            f"{WORKERS} workers, {LONGER} steps of each, AdamW inside, a period of 20; the share of the elements that "
            "are sent is in the row's name."
        ),
        "loss after the last round",
        "run",
        _sparseloco,
        judge_sparseloco,
    ),
    Claim(
        "sparta",
        "SPARTA (Beton et al. 2025)",
        "the mean of a small random part of the parameters after each step keeps workers together",
        (
            f"{SETTING}. `sparta` averages {PART:.0%} of the parameters after each step, `local_sgd` all of them after "
            f"{round(1 / PART)} steps: as many elements."
        ),
        "loss after the last round",
        "run",
        _sparta,
        judge_sparta,
    ),
    Claim(
        "demo",
        "DeMo (Peng et al. 2026)",
        "steps of signs by the largest coefficients of each momentum are as good as AdamW with whole messages",
        (
            f"{WORKERS} workers, {STEPS} steps of each, a message after each step. Of what is sent, the fraction α in "
            "the row's name leaves the momentum; the paper tunes it over these three."
        ),
        "loss after the last round",
        "run",
        _demo,
        judge_demo,
    ),
    Claim(
        "one-bit-adam",
        "1-bit Adam (Tang et al. 2021)",
        "signs of the momentum with a frozen variance are as good as Adam, which signs of gradients are not",
        (
            f"{WORKERS} workers, {STEPS} steps of each, and a message after each step. The first {FIRST} messages "
            "are floats in the second and the third arm; in the third Adam continues on means of signs, with "
            "error memory on both sides. The fourth is of [zero-one-adam](#zero-one-adam)."
        ),
        "loss after the last round",
        "run",
        _one_bit_adam,
        judge_one_bit_adam,
    ),
    Claim(
        "zero-one-adam",
        "0/1 Adam (Lu et al. 2023)",
        "rare changes of the variance, and local steps, are as good as Adam and 1-bit Adam, in fewer rounds and bytes",
        (
            f"{WORKERS} workers, {STEPS} steps of each. `zero_one_adam` has its defaults: the variance changes "
            f"{ZERO_ONE.rounds(FROZEN).kinds()['floats']} times in the first {FROZEN} steps, a round each; then a "
            "round has two, and later four local steps."
        ),
        "loss after the last round",
        "run",
        _one_bit_adam,
        judge_zero_one_adam,
    ),
    Claim(
        "palsgd",
        "PALSGD (Naganuma et al. 2025)",
        "pulls to the last center allow longer periods",
        (
            f"{WORKERS} workers, {FAR} steps of each, AdamW inside, periods of 20 and 80; a step is a pull with the "
            "probability 0.1, of the strength γ in the row's name, and uses no gradient: these arms have a tenth "
            "fewer. All arms have an outer momentum of 0.9. The paper reports time: 18.4 % less than data parallelism "
            "on ImageNet-1K, 24.4 and 21.1 % less on TinyStories."
        ),
        "loss after the last round",
        "period",
        _palsgd,
        judge_palsgd,
        scale=f"noisy clusters, {PARAMETERS} parameters, {FAR} steps",
    ),
]
