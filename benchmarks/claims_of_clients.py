"""What the papers claim of clients with data of their own: how many take part, and what the server makes of them."""

from __future__ import annotations

import math

from .claims_of_speeds import half_normal
from .claims_pictures import against_places
from .claims_study import TUNING_SEEDS, Arm, Found, Row, clearly_less, final_loss, geometric, study, until
from .claims_verdict import Claim, Verdict, compared, of_parts

CLIENTS, PERIOD, TARGET = 100, 10, 0.8

EPOCH = {"communication_period": PERIOD}  # batches of 16 of a client's 160 examples

TWO, FIVE = TUNING_SEEDS[:2], tuple(range(5))

# Clients that take part in a round.

ROUNDS = {1: 4000, 10: 400, 100: 150}  # at most, by the number of clients that take part

OWN_DATA = {"equal data": "shards", "unequal data": "dirichlet"}


def _participation() -> list[Row]:
    rates = {"learning_rate": (0.4, 0.8, 1.6)}
    arms = [Arm(name, "local_sgd", rates, EPOCH, {"task": task}) for name, task in OWN_DATA.items()]
    places = {
        str(number): {"workers": number, "clients": CLIENTS, "steps": PERIOD * rounds}
        for number, rounds in ROUNDS.items()
    }
    return study("participation", arms, places, until(TARGET, "updates"), tuning_seeds=TWO)


def judge_participation(found: Found) -> Verdict:
    """Judge that ten clients need clearly fewer rounds than one, and all not much fewer than ten, on either data."""
    parts, words = [], []
    for arm in found.arms:
        one, ten, every = (found[arm, place] for place in found.places)
        parts += [clearly_less(ten, one), every.mean * 2 > ten.mean]
        means = (found[arm, place].mean for place in found.places)
        words.append(f"{', '.join(f'{mean:.0f}' if math.isfinite(mean) else 'never' for mean in means)} ({arm})")
    numbers = ", ".join(found.places)
    return of_parts(parts, f"rounds to a loss of {TARGET} with {numbers} of {CLIENTS} clients: {'; '.join(words)}")


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


# Without waiting, each with data of its own.

OWNERS, LEVEL = 32, 0.85


def _unequal_buffer() -> list[Row]:
    rates = {"learning_rate": (0.4, 0.8, 1.6)}
    many = {"steps": 100_000}  # which no worker does before the last update
    arms = [
        Arm("local_sgd", "local_sgd", rates, EPOCH, {"steps": 1100}),
        Arm("fedbuff, K 1", "fedbuff", rates, EPOCH | {"messages_per_update": 1}, many | {"updates": 3500}),
        Arm("fedbuff, K 10", "fedbuff", rates, EPOCH | {"messages_per_update": 10}, many | {"updates": 350}),
    ]
    owners = {"workers": OWNERS, "platform": {"step_factors": half_normal(OWNERS)}}
    places = {data: owners | {"task": task} for data, task in OWN_DATA.items()}
    places["unequal data, drawn anew"] = places["unequal data"] | {"clients": CLIENTS}
    return study("fedbuff-unequal", arms, places, until(LEVEL, "seconds"), tuning_seeds=TWO)


def judge_unequal_buffer(found: Found) -> Verdict:
    """Judge that a buffer needs clearly less time than rounds and than no buffer, with unequal data."""
    *others, buffered = found.arms
    pairs = [(found[buffered, place], found[arm, place]) for place in found.places[1:] for arm in others]
    words = [
        f"{', '.join(f'{in_words(found[arm, place])} (`{arm}`)' for arm in found.arms)} with {place}"
        for place in found.places
    ]
    return compared(pairs, f"seconds to a loss of {LEVEL}: {'; '.join(words)}")


def in_words(row: Row) -> str:
    """Return the mean of a row, or on how many seeds the loss was reached."""
    reached = sum(map(math.isfinite, row.scores))
    if reached == len(row.scores):
        return f"{row.mean:.3g}"
    return f"on {reached} of {len(row.scores)} seeds" if reached else "never"


CLAIMS = [
    Claim(
        "participation",
        "Federated averaging (McMahan et al. 2017)",
        "a tenth of the clients in each round needs far fewer rounds than one client, and little more than all",
        (
            f"The paper's table 1 in small: {CLIENTS} clients with 160 examples each, equal or with labels by "
            f"`--skew dirichlet:alpha=0.1`; a round is an epoch of those that are drawn for it, {PERIOD} batches of "
            "16. The rate is tuned for each number, on two seeds. *Little more* is twice the rounds at most."
        ),
        f"rounds to a loss of {TARGET}",
        "clients in a round",
        _participation,
        judge_participation,
        lambda found: against_places(found, "clients in a round, of 100", f"rounds to a loss of {TARGET}"),
    ),
    Claim(
        "fedopt",
        "FedAdam, FedYogi (Reddi et al. 2021)",
        "adaptive optimizers of the server are better than averaging, with and without momentum",
        (
            f"{CLIENTS} clients, of which 10 take part in a round of {PERIOD} steps. Unequal labels: 100 rounds of the "
            "clients of [participation](#participation) with `--skew dirichlet:alpha=0.1`. Rare features: 30 rounds "
            "of logistic regression, batches of 8; an example has two of 8 frequent features and two of 1016 rare "
            "ones. FedAvg is `local_sgd`, FedAvgM is `bmuf` with classical momentum 0.9, FedAdam and FedYogi are "
            "`fedopt`. Both rates are tuned, on two seeds."
        ),
        "loss at the end",
        "data",
        _fedopt,
        judge_fedopt,
    ),
    Claim(
        "fedbuff-unequal",
        "FedBuff (Nguyen et al. 2022)",
        "a buffer is faster than rounds and than no buffer, where each client has data of its own",
        (
            f"{OWNERS} clients train at the same time, with 160 examples each, equal or with labels by "
            "`--skew dirichlet:alpha=0.1`; their times of a step are half-normal. A message has "
            f"{PERIOD} local steps; all clients take 35,000 gradients at most. Rates are tuned for each column, on "
            "two seeds. A fast client begins again at once. The paper draws another client instead: in the column "
            f"*drawn anew* each message is of one of {CLIENTS} clients at random."
        ),
        f"seconds to a loss of {LEVEL}",
        "data",
        _unequal_buffer,
        judge_unequal_buffer,
        remark="Without a draw the fast clients decide: the fastest sends a third of all messages.",
    ),
]
