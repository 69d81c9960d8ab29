"""What the papers claim of asynchronous schemes: how many workers, how large a rate, how seldom an exchange."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .claims_pictures import against_places
from .claims_study import (
    GUESSING,
    Arm,
    Found,
    Row,
    clearly_less,
    final_loss,
    geometric,
    mean_loss,
    places,
    study,
    until,
)
from .claims_verdict import Claim, Verdict, compared, of_parts

PERIOD = {"communication_period": 10}

FLAT = 0.1  # of loss: what no picture would show as a slope

WORKERS = 1, 2, 4, 8, 16, 32

KEPT = "settings of 4 workers"


# AGN.


def _agn() -> list[Row]:
    arms = [
        Arm("downpour_easy", "downpour_easy", {"learning_rate": (0.025, 0.05, 0.1, 0.2)}, PERIOD),
        Arm("agn", "agn", {"learning_rate": (0.4, 0.8, 1.6, 3.2)}, PERIOD),
    ]
    return _tuned_and_kept("agn", arms)


def judge_agn(found: Found) -> Verdict:
    """Judge AGN: with kept settings flat where DOWNPOUR breaks; tuned: flat, and better with the most workers."""
    downpour, agn, downpour_kept, agn_kept = found.arms
    first, last = found.places[0], found.places[-1]
    broken = [place for place in found.places if found[downpour_kept, place].mean > GUESSING]
    flat = [place for place in found.places if found[agn_kept, place].mean <= found[agn_kept, first].mean + FLAT]
    breaks = f"is worse than guessing from {broken[0]} on" if broken else "never breaks"
    parts = [
        bool(broken) and broken[0] in flat,
        found[agn, last].mean <= found[agn, first].mean + FLAT,
        clearly_less(found[agn, last], found[downpour, last]),
    ]
    why = (
        f"with the {KEPT} `agn` stays within {FLAT} of one worker's loss at {', '.join(flat)} workers, and "
        f"`downpour_easy` {breaks}; tuned for each number of workers, from {first} to {last}, "
        f"{mean_loss(found[agn, first])} to {mean_loss(found[agn, last])} (`agn`), "
        f"{mean_loss(found[downpour, first])} to {mean_loss(found[downpour, last])} (`downpour_easy`)"
    )
    return of_parts(parts, why)


def _tuned_and_kept(about: str, arms: list[Arm]) -> list[Row]:
    """Tune for each number of workers; and for four, whose settings all others keep."""
    rows = study(about, arms, places(WORKERS, 8000), final_loss)
    kept = [replace(arm, name=f"{arm.name}, {KEPT}") for arm in arms]
    return rows + study(about, kept, places(WORKERS, 8000), final_loss, tuned_at="4")


# ADAG.


def _adag() -> list[Row]:
    large = PERIOD | {"learning_rate": 0.6, "server_learning_rate": 4.8}
    scales = {"distance_scale": (1e-5, 1e-4, 1e-3, 1e-2, 1.0)}
    arms = [Arm("agn, γ = 8 η", "agn", fixed=large), Arm("the same, damped", "damped_agn", scales, large)]
    return study("adag", arms, places((4, 8, 16, 32), 8000), final_loss)


def judge_adag(found: Found) -> Verdict:
    """Judge that the damped rule is never worse than guessing where the undamped rule is."""
    return _where_it_breaks(
        found, "the undamped rule never breaks", "undamped it is worse than guessing at {} workers; damped: {}"
    )


# DynSGD.


def _dynsgd() -> list[Row]:
    arms = [
        Arm("dynsgd", "dynsgd", {"learning_rate": (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)}, PERIOD),
        Arm("downpour_easy", "downpour_easy", {"learning_rate": (0.00625, 0.0125, 0.025, 0.05, 0.1, 0.2)}, PERIOD),
    ]
    large = [
        Arm(f"{scheme}, η = 0.2", scheme, {}, PERIOD | {"learning_rate": 0.2}) for scheme in ("dynsgd", "downpour_easy")
    ]
    return study("dynsgd", arms + large, places((4, 8, 32), 4000), final_loss)


def judge_dynsgd(found: Found) -> Verdict:
    """Judge that it holds at a fixed large rate, and is better with the most workers, each at its own best rate."""
    last = found.places[-1]
    held = found["dynsgd, η = 0.2", last].mean < GUESSING < found["downpour_easy, η = 0.2", last].mean
    tuned, plain = found["dynsgd", last], found["downpour_easy", last]
    why = (
        f"at η = 0.2 and {last} workers {mean_loss(found['dynsgd, η = 0.2', last])} against "
        f"{mean_loss(found['downpour_easy, η = 0.2', last])}; each at its best rate {mean_loss(tuned)} against "
        f"{mean_loss(plain)}"
    )
    return of_parts([held, clearly_less(tuned, plain)], why)


# DOWNPOUR.


def _downpour() -> list[Row]:
    arms = [
        Arm("plain SGD", "downpour_easy", {"learning_rate": (0.025, 0.05, 0.1, 0.2)}, PERIOD),
        Arm(
            "Adagrad",
            "downpour",
            {"server_learning_rate": (0.05, 0.1, 0.2, 0.4)},
            PERIOD | {"learning_rate": 0.1},
        ),
    ]
    return _tuned_and_kept("downpour", arms)


def judge_downpour(found: Found) -> Verdict:
    """Judge that Adagrad holds where plain SGD with kept settings breaks, and is better with each at its best."""
    plain, adagrad, plain_kept, adagrad_kept = found.arms
    broken = [place for place in found.places if found[plain_kept, place].mean > GUESSING]
    if not broken:
        return Verdict("not seen here", f"plain SGD never breaks with the {KEPT}")
    held = [found[adagrad_kept, place] for place in broken]
    pairs = [(found[adagrad, place], found[plain, place]) for place in broken]
    best = ", ".join(f"{mean_loss(one)} against {mean_loss(other)}" for one, other in pairs)
    why = (
        f"with the {KEPT} plain SGD is worse than guessing at {', '.join(broken)} workers, Adagrad there: "
        f"{', '.join(map(mean_loss, held))}; tuned there {best}"
    )
    return of_parts([row.mean < GUESSING for row in held] + [clearly_less(one, other) for one, other in pairs], why)


def _where_it_breaks(found: Found, never: str, why: str) -> Verdict:
    """Judge that the second arm beats guessing where the first does not; `why` has room for these places and losses."""
    plain, other = found.arms
    broken = [place for place in found.places if found[plain, place].mean > GUESSING]
    if not broken:
        return Verdict("not seen here", never)
    rows = [found[other, place] for place in broken]
    losses = ", ".join(f"{row.mean:.2f}" for row in rows)
    return of_parts([row.mean < GUESSING for row in rows], why.format(", ".join(broken), losses))


# Elastic averaging.

ELASTIC_LOSS = 1.4  # from 2.1, and where `aeasgd` is after most of its gradients

AVERAGING = Arm("aeasgd", "aeasgd", {"learning_rate": geometric(0.4, 2 ** (1 / 3), 12)})

MOMENTUM = Arm("aeamsgd", "aeamsgd", {"learning_rate": (0.02, 0.04, 0.08, 0.16), "momentum": (0.98, 0.99, 0.995)})

MASTER = Arm("mdownpour", "mdownpour", {"learning_rate": geometric(0.0005, 2, 4), "momentum": (0.98, 0.99, 0.995)})

SUMS = Arm("downpour_easy", "downpour_easy", {"learning_rate": geometric(0.00313, 2**0.5, 12)})

PERIODS: dict[str, dict[str, Any]] = {
    str(period): {"workers": 8, "steps": 1024, "task": "stretched", "settings": {"communication_period": period}}
    for period in (1, 4, 16, 64)
}


def _momentum() -> list[Row]:
    score = until(ELASTIC_LOSS, "gradients")
    each_step = {"1": PERIODS["1"] | {"settings": {}}}
    elastic = study("momentum", [AVERAGING, MOMENTUM], PERIODS, score)
    return elastic + study("momentum", [MASTER], each_step, score)


def _periods() -> list[Row]:
    return study("periods", [AVERAGING, MOMENTUM, SUMS], PERIODS, final_loss, tuned_at="16")


def judge_momentum(found: Found) -> Verdict:
    """Judge that gradients to the loss are fewer than without momentum, at each period, and than with the master's."""
    elastic, momentum, master = found.arms
    each_step = found[master, found.places[0]]
    with_momentum = [found[momentum, place] for place in found.places]
    plain = [found[elastic, place] for place in found.places]
    words = [f"{_count(one)} against {_count(other)}" for one, other in zip(with_momentum, plain, strict=True)]
    return compared(
        [*zip(with_momentum, plain, strict=True), *((one, each_step) for one in with_momentum)],
        f"gradients to a loss of {ELASTIC_LOSS}, `{momentum}` against `{elastic}` at periods "
        f"{', '.join(found.places)}: {'; '.join(words)}; `{master}`, whose period is 1: {_count(each_step)}",
    )


def judge_period(found: Found) -> Verdict:
    """Judge that the loss depends little on the period, and that of DOWNPOUR much."""
    losses = {arm: [found[arm, place].mean for place in found.places] for arm in found.arms}
    change = {arm: max(values) - min(values) for arm, values in losses.items()}
    parts = [change["aeasgd"] < FLAT, change["aeamsgd"] < FLAT, max(losses["downpour_easy"]) > GUESSING]
    words = [f"{change[arm]:.2f} (`{arm}`)" for arm in found.arms]
    return of_parts(parts, f"loss at the worst period above that at the best: {', '.join(words)}")


def _count(row: Row) -> str:
    return f"{row.mean:.0f}" if math.isfinite(row.mean) else "never"


CLAIMS = [
    Claim(
        "agn",
        "AGN (Hermans et al. 2017)",
        "accuracy is flat in the number of workers; stable where DOWNPOUR with the same period diverges",
        (
            "The paper's coupling, γ = η; 8000 gradients of all workers together, none sees an example twice. "
            "Rates are tuned for each number of workers, and for four, whose rates are kept."
        ),
        "loss at the end",
        "workers",
        _agn,
        judge_agn,
        lambda found: against_places(found, "workers", "test loss at the end", most=2.5, level=(GUESSING, "guessing")),
    ),
    Claim(
        "adag",
        "ADAG (Hermans' thesis 2017)",
        "damping by distance keeps a large AGN stable",
        (
            "AGN whose server takes eight times the worker's rate (η = 0.6), as it is and damped. The scale of the "
            "damping is tuned."
        ),
        "loss at the end",
        "workers",
        _adag,
        judge_adag,
    ),
    Claim(
        "dynsgd",
        "DynSGD (Jiang et al. 2017)",
        "dividing by staleness rescues many workers at a large rate",
        "4000 gradients; once with the rate tuned for each number of workers, once with one large rate.",
        "loss at the end",
        "workers",
        _dynsgd,
        judge_dynsgd,
    ),
    Claim(
        "downpour",
        "DOWNPOUR (Dean et al. 2012)",
        "Adagrad on the server tolerates what plain SGD does not",
        (
            "8000 gradients. Plain SGD has one rate, of workers and server; beside Adagrad's the workers' is 0.1. "
            "Tuned for each number of workers, and for four, whose settings are kept."
        ),
        "loss at the end",
        "workers",
        _downpour,
        judge_downpour,
    ),
    Claim(
        "easgd-momentum",
        "Elastic averaging (Zhang et al. 2015)",
        "with momentum it is fastest",
        (
            "Eight workers, 1024 steps of each; a badly conditioned task (features scaled from 1 to 1/100). Rates and "
            "momenta are tuned for each period. MDOWNPOUR is the paper's own opponent with momentum, "
            "Nesterov's, of the master: its period is 1. In the paper all momenta are 0.99."
        ),
        f"gradients to a loss of {ELASTIC_LOSS}",
        "period",
        _momentum,
        judge_momentum,
        lambda found: against_places(found, "communication period", f"gradients to a loss of {ELASTIC_LOSS}"),
    ),
    Claim(
        "easgd-period",
        "Elastic averaging (Zhang et al. 2015)",
        "insensitive to the period, where DOWNPOUR breaks",
        "The same task, rates and momenta tuned by the loss at the end, at period 16, and kept. "
        "A worker makes 16 exchanges at period 64.",
        "loss at the end",
        "period",
        _periods,
        judge_period,
    ),
]
