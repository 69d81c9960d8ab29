"""What DiLoCo's paper and later ones claim of a language model: few bytes, on text and a small transformer."""

from __future__ import annotations

from .claims_pictures import against_places
from .claims_runs import KINDS, message_kilobytes
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


# Loss against bytes.

FEWER, ROUND = 200, 20  # steps of each worker, and those of a round

HERE = f"after {FEWER} steps"

OUTER = {"communication_period": ROUND, "outer_learning_rate": 0.7}

ONE, TWO = geometric(0.002, 2, 4), geometric(0.005, 2, 4)

SENDING = [
    Arm("diloco", "diloco", {"learning_rate": ONE}, OUTER | {"momentum": 0.9}),
    Arm("muloco", "diloco", {"learning_rate": TWO}, OUTER | {"momentum": 0.6, "inner_optimizer": "muon"}),
    Arm("sparseloco", "sparseloco", {"learning_rate": ONE}, OUTER | {"share": 0.05}),
    Arm("powersgd, rank 2", "powersgd", {"learning_rate": geometric(0.05, 2, 4)}, {"rank": 2}),
    Arm("demo", "demo", {"learning_rate": geometric(0.001, 2, 4)}),
]

HEADS = [(32, 2, 16), (2, 16)]  # a projection of the attention

VARIABLES = [  # shapes of the transformer's
    *((97, 32), (32, 32), (32,), (32,), *3 * HEADS, (2, 16, 32), (32,), (32,), (32,)),
    *((32, 128), (128,), (128, 32), (32,), (32,), (32,), (32, 97), (97,)),
]


def _bytes() -> list[Row]:
    where = {HERE: {"workers": WORKERS, "steps": FEWER, "task": "text"}}
    return study("text-bytes", SENDING, where, last_loss, tuning_seeds=TUNING_SEEDS[:1])


def kilobytes(arm: Arm) -> float:
    """Return the kilobytes that a worker of this arm sends in a run."""
    scheme = KINDS[arm.scheme](**arm.settings()[0])
    return len(scheme.rounds(FEWER)) * message_kilobytes(scheme, WORKERS, VARIABLES)


def judge_bytes(found: Found) -> Verdict:
    """Judge that Muon inside is better than AdamW, and that sparse moves are level with whole ones."""
    diloco, muon, sparse, *_ = (found[arm, HERE] for arm in found.arms)
    excess, error = difference(sparse, diloco)
    words = [f"{found[arm.name, HERE].mean:.3f} (`{arm.name}`, {kilobytes(arm):.0f} kB)" for arm in SENDING]
    parts = [clearly_less(muon, diloco), excess + 3 * error <= SAME]
    return of_parts(parts, f"loss {HERE}, and what a worker has sent: {', '.join(words)}")


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
        scale=f"characters of Python's sources, 20,097 parameters, {STEPS} steps",
        remark=(
            "The gain is due to the inner AdamW: its averages over 50 steps have a lower loss than SGD with a message "
            "each step. Outer momentum (0.9, as in the paper) brings none within 6 to 30 rounds. The sources are those "
            "of Python 3.11; the command takes eight minutes of CPU time."
        ),
    ),
    Claim(
        "text-bytes",
        "MuLoCo (Thérien et al. 2025), SparseLoCo (Sarfi et al. 2025)",
        "Muon inside DiLoCo has a smaller loss with as many bytes, and sparse moves the same loss with fewer",
        (
            f"The model and text of [diloco-text](#diloco-text); {WORKERS} workers, {FEWER} steps of each, a round is "
            f"{ROUND} of them. `sparseloco` sends 5 % of the elements; `powersgd` and `demo`, beside them, a message "
            "after each step. The inner rate is tuned, on one seed; the outer one is 0.7. The same loss is one that "
            f"is more by {SAME} at most, with three standard errors."
        ),
        "loss",
        "run",
        _bytes,
        judge_bytes,
    ),
]
