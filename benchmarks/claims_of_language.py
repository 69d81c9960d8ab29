"""What DiLoCo's paper and later ones claim of a language model: few bytes, on text and a small transformer."""

from __future__ import annotations

from .claims_pictures import against_kilobytes, against_places
from .claims_runs import KINDS, message_kilobytes, moved_kilobytes
from .claims_study import NINE, TUNING_SEEDS, Arm, Found, Outcome, Row, clearly_less, difference, geometric, study
from .claims_verdict import Claim, Verdict, leveled, of_parts

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
    seldom = {place: options for place, options in places.items() if place != "1"}
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


# Steps of Muon: their loss against the bytes of both ways.

STEP_RATES = geometric(0.005, 2, 4)

MUON = [
    Arm("Muon, whole messages", "ef21_muon", {"learning_rate": STEP_RATES}, {"share": 1.0, "reply_share": 1.0}),
    Arm("ef21_muon, 10 and 20 %", "ef21_muon", {"learning_rate": STEP_RATES}),
    Arm("ef21_muon, 5 %", "ef21_muon", {"learning_rate": STEP_RATES}, {"share": 0.05, "reply_share": 0.05}),
    Arm("dion, rank 8", "dion", {"learning_rate": STEP_RATES}, {"rank": 8}),
    Arm("dion, rank 2", "dion", {"learning_rate": STEP_RATES}, {"rank": 2}),
    *(
        Arm(
            f"diloco with Muon, period {period}",
            "diloco",
            {"learning_rate": STEP_RATES},
            {"communication_period": period, "outer_learning_rate": 0.7, "momentum": 0.6, "inner_optimizer": "muon"},
        )
        for period in (5, 20)
    ),
]


def _muon() -> list[Row]:
    where = {HERE: {"workers": WORKERS, "steps": FEWER, "task": "text"}}
    return study("muon-bytes", MUON, where, last_loss, tuning_seeds=TUNING_SEEDS[:1], showing_seeds=NINE)


def muon_kilobytes() -> dict[str, float]:
    """Return the kilobytes that a worker of each arm sends and receives in a run, by the name of the arm."""
    schemes = {arm.name: KINDS[arm.scheme](**arm.settings()[0]) for arm in MUON}
    return {name: moved_kilobytes(scheme, WORKERS, VARIABLES, FEWER) for name, scheme in schemes.items()}


def judge_muon(found: Found) -> Verdict:
    """Judge that steps of Muon with compressed messages are level with those with whole ones."""
    kilobytes = muon_kilobytes()
    words = [f"{found[arm, HERE].mean:.3f} (`{arm}`, {kilobytes[arm]:.0f} kB)" for arm in found.arms]
    whole, *compressed = found.arms[:5]
    pairs = [(found[arm, HERE], found[whole, HERE]) for arm in compressed]
    return leveled(pairs, f"loss {HERE}, and what a worker has sent and received: {', '.join(words)}")


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
            "after each step. The inner rate is tuned, on one seed; the outer one is 0.7."
        ),
        "loss",
        "run",
        _bytes,
        judge_bytes,
    ),
    Claim(
        "muon-bytes",
        "Dion (Ahn et al. 2025), EF21-Muon (Gruntkowska et al. 2026)",
        "steps of Muon with compressed messages are as good as with whole ones, with a fraction of the bytes",
        (
            f"The model and text of [diloco-text](#diloco-text); {WORKERS} workers, {FEWER} steps of each, a message "
            "after each step. With shares of one, `ef21_muon` is Muon on the mean of the workers' momenta. Its row's "
            "name has the share of message and reply, or of both. `diloco` with Muon inside (MuLoCo) stands beside "
            "them. Rates are tuned on one seed; the outer one is 0.7."
        ),
        "loss",
        "run",
        _muon,
        judge_muon,
        lambda found: against_kilobytes(found, muon_kilobytes(), "kB that a worker sent and received", "test loss"),
        scale=f"characters of Python's sources, 20,097 parameters, {FEWER} steps",
        remark="Local steps of Muon have a smaller loss than compressed messages after each step, with fewer bytes.",
    ),
]
