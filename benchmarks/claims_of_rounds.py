"""What the papers claim of synchronous schemes: few rounds, outer momentum, large batches."""

from __future__ import annotations

import math
from typing import Any

from . import claims_of_messages
from .claims_pictures import against_places, bars
from .claims_study import Arm, Found, Row, clearly_less, final_error, final_loss, geometric, study, until
from .claims_verdict import Claim, Verdict, compared, of_parts

RATES = 0.1, 0.2, 0.4, 0.8, 1.6

# Synchronous against asynchronous, per update.

UPDATES = 400

EXAMPLES = 16  # of a worker's batch, in an update of all

LATE = f"async_sgd, {UPDATES} large gradients"


def _per_update() -> list[Row]:
    rows = []
    for n in (1, 4, 16, 64):
        large = {"updates": UPDATES, "steps": UPDATES // n + 20, "batch": EXAMPLES * n}
        async_rates = {"learning_rate": (0.025, 0.05, *RATES)}
        arms = [
            Arm("sync_sgd", "sync_sgd", {"learning_rate": (*RATES, 3.2, 6.4)}),
            Arm(LATE, "async_sgd", async_rates, run=large),
            Arm("async_sgd, small gradients", "async_sgd", async_rates),
        ]
        where = {str(n): {"workers": n, "steps": UPDATES, "batch": EXAMPLES}}
        rows += study(f"per-update, {n} workers", arms, where, final_loss)
    return rows


def judge_per_update(found: Found) -> Verdict:
    """Judge that with several workers the loss after as many examples is less, at the best rate of each."""
    sync, *async_arms = found.arms
    many = found.places[1:]
    pairs = [(found[sync, place], found[arm, place]) for arm in async_arms for place in many]
    words = [
        f"{found[sync, p].mean:.3f} against {' and '.join(f'{found[arm, p].mean:.3f}' for arm in async_arms)} with {p}"
        for p in many
    ]
    names = " and ".join(f"`{arm}`" for arm in async_arms)
    return compared(pairs, f"loss after as many examples, `{sync}` against {names}: {', '.join(words)} workers")


# Local SGD.

LOCAL_LOSS = 0.65


def _local_sgd() -> list[Row]:
    places = {
        str(period): {"workers": 8, "steps": 1024, "settings": {"communication_period": period}}
        for period in (1, 4, 16, 64)
    }
    return study(
        "local-sgd",
        [Arm("local_sgd", "local_sgd", {"learning_rate": (*RATES[2:], 3.2)})],
        places,
        until(LOCAL_LOSS, "updates"),
    )


def judge_local_sgd(found: Found) -> Verdict:
    """Judge that rounds to the loss fall with the period, and that examples do not more than double."""
    (arm,) = found.arms
    rounds = {int(place): found[arm, place].mean for place in found.places}
    fewer = [period for period in rounds if period > 1 and rounds[period] * 2 <= rounds[1]]
    same = [period for period in fewer if rounds[period] * period <= 2 * rounds[1]]
    words = ", ".join(f"{value:.0f}" if math.isfinite(value) else "never" for value in rounds.values())
    kept = f"at most twice the examples up to period {max(same)}" if same else "but more than twice the examples"
    periods = ", ".join(map(str, rounds))
    return of_parts(
        [bool(fewer), bool(same)], f"rounds to a loss of {LOCAL_LOSS} at periods {periods}: {words}; {kept}"
    )


# Outer momentum.

FEW = {"communication_period": 20}


def _outer() -> list[Row]:
    """Return arms that have 27 settings each."""
    sgd, plain = FEW | {"inner_optimizer": "sgd"}, {"momentum": 0.0}
    rates, small = {"learning_rate": geometric(0.2, 2**0.5, 9)}, {"learning_rate": geometric(0.016, 2**0.5, 9)}
    steps = {"outer_learning_rate": (0.7, 1.0, 1.4)}
    momenta = steps | {"momentum": (0.8, 0.9, 0.95)}
    arms = [
        Arm("SGD inside: averaging", "local_sgd", {"learning_rate": geometric(0.2, 2**0.2, 27)}, FEW),
        Arm("SGD inside: outer SGD", "diloco", rates | steps, sgd | plain),
        Arm("SGD inside: outer Nesterov", "diloco", {"learning_rate": (0.4, 0.8, 1.6)} | momenta, sgd),
        Arm("SGD inside: slowmo", "slowmo", rates | {"slow_momentum": (0.5, 0.7, 0.9)}, FEW),
        Arm("SGD inside: bmuf", "bmuf", rates | {"block_learning_rate": (0.7, 1.0, 1.4)}, FEW),
        Arm(
            "AdamW inside: averaging",
            "diloco",
            {"learning_rate": geometric(0.016, 2**0.2, 27)},
            FEW | plain | {"outer_learning_rate": 1.0},
        ),
        Arm("AdamW inside: outer SGD", "diloco", small | steps, FEW | plain),
        Arm("AdamW inside: outer Nesterov", "diloco", {"learning_rate": (0.032, 0.064, 0.128)} | momenta, FEW),
    ]
    return study("outer", arms, {"12 rounds": {"workers": 8, "steps": 240}}, final_loss)


def judge_outer(found: Found) -> Verdict:
    """Judge Nesterov's outer step against plain averaging, for either optimiser inside."""
    return _against_averaging(found, ["outer Nesterov"], ("SGD", "AdamW"))


def judge_slow(found: Found) -> Verdict:
    """Judge the momenta of SlowMo and BMUF against plain averaging."""
    return _against_averaging(found, ["slowmo", "bmuf"], ("SGD",))


def _against_averaging(found: Found, names: list[str], inside: tuple[str, ...]) -> Verdict:
    (place,) = found.places
    pairs, words = [], []
    for optimiser in inside:
        base = found[f"{optimiser} inside: averaging", place]
        for name in names:
            row = found[f"{optimiser} inside: {name}", place]
            pairs.append((row, base))
            words.append(f"{row.mean:.3f} ({name}) against {base.mean:.3f} with {optimiser} inside")
    return compared(pairs, f"loss after {place}: {'; '.join(words)}")


# Post-local SGD.

EPOCHS, IMAGES, HERE = 60, 1437, 4  # workers

ENOUGH = 100  # updates: a worse end after fewer is for want of them, and says nothing of generalisation


def _post_local() -> list[Row]:
    rates = {"learning_rate": (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)}
    arms = [
        Arm("sync_sgd", "local_sgd", rates, {"communication_period": 1}),
        Arm("post-local: period 8 after half", "local_sgd", rates, {"communication_period": 8}),
    ]
    places: dict[str, Any] = {}
    for batch in (8, 64, 256):
        steps = EPOCHS * (IMAGES // HERE // batch)
        places[str(HERE * batch)] = {
            "workers": HERE,
            "steps": steps,
            "task": "digits",
            "batch": batch,
            "period_rule": f"post-local:{steps // 2}",
        }
    return study("post-local", arms, places, final_error)


def judge_post_local(found: Found) -> Verdict:
    """Judge whether large batches are worse than small ones, and whether local steps close that gap."""
    sync, local = found.arms
    small, large = found.places[0], found.places[1:]
    words = [f"{found[sync, place].mean:.1%} ({place})" for place in found.places]
    why = f"errors on test images after {EPOCHS} epochs, by the batch of all workers: {', '.join(words)}"
    trained = [place for place in large if EPOCHS * (IMAGES // int(place)) >= ENOUGH]
    gap = [place for place in trained if clearly_less(found[sync, small], found[sync, place])]
    if not gap:
        return Verdict("not seen here", f"{why}: no gap after {ENOUGH} updates or more that local steps could close")
    parts = [clearly_less(found[local, place], found[sync, place]) for place in gap]
    closed = [f"{found[local, place].mean:.1%} ({place})" for place in gap]
    return of_parts(parts, f"{why}; with local steps after half of them {', '.join(closed)}")


CLAIMS = [
    Claim(
        "per-update",
        "Synchronous SGD (Chen et al. 2016)",
        "gradients of many workers together are worth more than late ones",
        (
            f"All rows of a column have had as many examples. `sync_sgd` makes {UPDATES} updates, to each of which a "
            f"worker gives a gradient of {EXAMPLES}. `async_sgd` makes as many, each by one late gradient of as many "
            f"examples as all workers give together, or more, each by one late gradient of {EXAMPLES}. Rates are tuned "
            "for each number of workers, which have one speed."
        ),
        "loss after as many examples",
        "workers",
        _per_update,
        judge_per_update,
    ),
    Claim(
        "local-sgd",
        "Local SGD (Stich 2019)",
        "the same loss with far fewer rounds",
        "Eight workers; the rate is tuned for each period.",
        f"rounds to a loss of {LOCAL_LOSS}",
        "period",
        _local_sgd,
        judge_local_sgd,
        lambda found: against_places(found, "communication period", f"rounds to a loss of {LOCAL_LOSS}"),
    ),
    Claim(
        "diloco",
        "DiLoCo (Douillard et al. 2023)",
        "outer momentum beats averaging at equal rounds",
        "Eight workers, 12 rounds of 20 steps; all rates and momenta are tuned together.",
        "loss at the end",
        "",
        _outer,
        judge_outer,
        lambda found: bars(found, "test loss after 12 rounds of 20 steps"),
    ),
    Claim(
        "slow-momentum",
        "SlowMo (Wang et al. 2020), BMUF (Chen & Huo 2016)",
        "momentum of the averages improves local SGD",
        "The same runs.",
        "loss at the end",
        "",
        _outer,
        judge_slow,
    ),
    *claims_of_messages.CLAIMS,
    Claim(
        "post-local",
        "Post-local SGD (Lin et al. 2020)",
        "generalises better than a large batch",
        (
            f"Is there a gap to close? `sync_sgd` on digits, {EPOCHS} epochs, with small and large batches, rates "
            "tuned. There are 360 test images."
        ),
        "share of wrong answers",
        "batch of all workers",
        _post_local,
        judge_post_local,
        scale=f"digits, 2,410 parameters, {EPOCHS} epochs",
    ),
]
