"""What the papers claim of clients with data of their own: what the server makes of their moves."""

from __future__ import annotations

from .claims_study import TUNING_SEEDS, Arm, Found, Row, final_loss, geometric, study
from .claims_verdict import Claim, Verdict, compared

CLIENTS, PERIOD = 100, 10

EPOCH = {"communication_period": PERIOD}  # batches of 16 of a client's 160 examples

TWO, FIVE = TUNING_SEEDS[:2], tuple(range(5))

# An optimizer on the server.

UNEQUAL, RARE = "unequal labels", "rare features"

SERVED = {"workers": 10, "clients": CLIENTS}

PLAIN, ADAPTIVE = ("FedAvg", "FedAvgM"), ("FedAdam", "FedYogi")


def _fedopt() -> list[Row]:
    rates = {"learning_rate": (0.1, 0.4, 1.6)}
    server = rates | {"server_learning_rate": (0.01, 0.03, 0.1)}
    arms = [
        Arm("FedAvg", "local_sgd", {"learning_rate": geometric(0.1, 2**0.5, 9)}, EPOCH),
        Arm(
            "FedAvgM",
            "bmuf",
            rates | {"block_learning_rate": (0.1, 0.3, 1.0)},
            EPOCH | {"form": "classical", "block_momentum": 0.9},
        ),
        *(Arm(name, "fedopt", server, EPOCH | {"server_optimizer": name[3:].lower()}) for name in ADAPTIVE),
    ]
    places = {
        UNEQUAL: SERVED | {"task": "dirichlet", "steps": 1000},
        RARE: SERVED | {"task": "words", "steps": 300, "batch": 8},
    }
    return study("fedopt", arms, places, final_loss, tuning_seeds=TWO, showing_seeds=FIVE)


def judge_fedopt(found: Found) -> Verdict:
    """Judge that each adaptive optimizer has a clearly smaller loss than each other, on both kinds of data."""
    pairs = [(found[one, place], found[other, place]) for place in found.places for one in ADAPTIVE for other in PLAIN]
    words = [
        f"{', '.join(f'{found[arm, place].mean:.3f} ({arm})' for arm in found.arms)} with {place}"
        for place in found.places
    ]
    return compared(pairs, f"loss at the end: {'; '.join(words)}")


CLAIMS = [
    Claim(
        "fedopt",
        "FedAdam, FedYogi (Reddi et al. 2021)",
        "adaptive optimizers of the server are better than averaging, with and without momentum",
        (
            f"{CLIENTS} clients, of which 10 take part in a round of {PERIOD} steps. Unequal labels: 100 rounds on 160 "
            "examples of each, with labels by `--skew dirichlet:alpha=0.1`. Rare features: "
            "30 rounds of logistic regression, batches of 8; two of the four features of an example are of 8 that "
            "are frequent, the others of 1016. FedAvg is `local_sgd`, FedAvgM is `bmuf` with classical momentum 0.9, "
            "FedAdam and FedYogi are `fedopt`. Both rates are tuned, on two seeds; five others are shown."
        ),
        "loss at the end",
        "data",
        _fedopt,
        judge_fedopt,
    ),
]
