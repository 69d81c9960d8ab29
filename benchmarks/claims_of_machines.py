"""What the papers claim of time: stragglers, speeds, bandwidth, crashes. Described machines, in virtual time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..algorithms import SCHEMES, Scheme
from ..common.cluster.platform import Platform
from ..simulator.virtual_time.forecast import Forecast, forecast
from . import claims_of_speeds
from .claims_pictures import dots, on_logarithms
from .claims_study import SHOWING_SEEDS, Arm, Found, Row, clearly_less, study, until
from .claims_verdict import Claim, Verdict, compared, of_parts

# Time to a loss on five platforms.

TARGET = 0.8

WORKERS = 16

SECOND = {"step_ms": 1000}

PLATFORMS: dict[str, dict[str, Any]] = {
    "even": SECOND,
    "uneven": SECOND | {"step_factors": "0.58,0.75,1.51,3.33"},
    "lognormal": SECOND | {"compute": "lognormal:sigma=1"},
    "pareto": SECOND | {"compute": "pareto:shape=1.5"},
    "crashes": SECOND | {"failures": "crashes:every=300s,down=30s"},
}


def arms() -> list[Arm]:
    """Return the arms on the platforms; each run is long enough for its algorithm to reach the loss."""
    sync_rates, async_rates = {"learning_rate": (0.8, 1.6, 3.2, 6.4)}, {"learning_rate": (0.05, 0.1, 0.2, 0.4)}
    period, ahead = {"communication_period": 10}, {"learning_rate": (0.8, 1.6, 3.2, 6.4)}
    rounds, messages = {"steps": 400, "updates": 400}, {"steps": 2000, "updates": 3000}
    return [
        Arm("sync_sgd", "sync_sgd", sync_rates, run=rounds),
        *(Arm(f"sync_sgd, {b} backups", "sync_sgd", sync_rates, {"backup_workers": b}, rounds) for b in (1, 4, 8)),
        Arm("async_sgd", "async_sgd", async_rates, run=messages),
        *(Arm(f"ssp, slack {slack}", "ssp", ahead, {"slack": slack}, messages) for slack in (2, 16)),
        *(
            Arm(f"ringmaster, R {limit}", "ringmaster", async_rates, {"delay_threshold": limit}, messages)
            for limit in (8, 32)
        ),
        Arm("dynsgd", "dynsgd", {"learning_rate": (0.4, 0.8, 1.6, 3.2)}, period, {"steps": 2000, "updates": 1000}),
        Arm("agn", "agn", {"learning_rate": (0.4, 0.8, 1.6, 3.2)}, period, {"steps": 2000, "updates": 1000}),
        Arm("local_sgd", "local_sgd", {"learning_rate": (0.4, 0.8, 1.6, 3.2)}, period, {"steps": 400}),
    ]


def _platforms() -> list[Row]:
    places = {name: {"workers": WORKERS, "platform": platform} for name, platform in PLATFORMS.items()}
    return study("platforms", arms(), places, until(TARGET, "seconds"), tuned_at="uneven")


def judge_asynchronous(found: Found) -> Verdict:
    """Judge that an asynchronous algorithm is sooner than synchronous SGD where workers differ or are late."""
    places = [place for place in found.places if place != "even"]
    words = [f"{_times(found['sync_sgd', p], found['async_sgd', p])} ({p})" for p in found.places]
    return compared(
        [(found["async_sgd", p], found["sync_sgd", p]) for p in places],
        f"the time of `sync_sgd` to a loss of {TARGET}, divided by that of `async_sgd`: {', '.join(words)}",
    )


def judge_backups(found: Found) -> Verdict:
    """Judge that backup workers save time with stragglers, however many there are."""
    names = [arm for arm in found.arms if "backups" in arm]
    stragglers = "lognormal", "pareto"
    parts = [clearly_less(found[name, place], found["sync_sgd", place]) for place in stragglers for name in names]
    words = [f"{_of_each(found, 'sync_sgd', names, place)} ({place})" for place in (*stragglers, "even")]
    numbers = ", ".join(name.split()[1] for name in names)
    return of_parts(
        parts, f"to a loss of {TARGET}, times as fast as `sync_sgd`, with {numbers} backups: {'; '.join(words)}"
    )


def judge_ssp(found: Found) -> Verdict:
    """Judge that a bounded lead is sooner than a barrier and than no bound, wherever workers are not even."""
    names = [arm for arm in found.arms if arm.startswith("ssp")]
    uneven, ends = [place for place in found.places if place != "even"], ("sync_sgd", "async_sgd")
    parts = [clearly_less(found[arm, place], found[end, place]) for place in uneven for arm in names for end in ends]
    words = [f"{' and '.join(_of_each(found, end, names, place) for end in ends)} ({place})" for place in uneven]
    slacks = ", ".join(arm.split()[-1] for arm in names)
    return of_parts(
        parts,
        f"to a loss of {TARGET}, times as fast as `sync_sgd` and as `async_sgd`, with a slack of {slacks}: "
        f"{'; '.join(words)}",
    )


def _of_each(found: Found, base: str, names: Sequence[str], place: str) -> str:
    """Return how many times as fast as the base each of these is."""
    return ", ".join(_times(found[base, place], found[name, place]) for name in names)


def _times(slow: Row, fast: Row) -> str:
    if math.isinf(fast.mean):
        return "never"
    return f"{slow.mean / fast.mean:.1f}"


# From the order alone: no gradient is computed.

PARAMETERS = 25_000_000

BANDWIDTHS = "10Mbit", "100Mbit", "1Gbit", "10Gbit", "100Gbit"

LARGE: dict[str, tuple[str, dict[str, Any]]] = {
    "sync_sgd": ("sync_sgd", {}),
    "all_reduce": ("all_reduce", {}),
    "async_sgd": ("async_sgd", {}),
    "signsgd_mv": ("signsgd_mv", {}),
    "ef_sgd, 1 %": ("ef_sgd", {"share": 0.01}),
    "downpour_easy, period 10": ("downpour_easy", {"communication_period": 10}),
    "local_sgd, period 10": ("local_sgd", {"communication_period": 10}),
    "diloco, period 100": ("diloco", {"communication_period": 100}),
}


def _forecasts(
    schemes: Mapping[str, tuple[str, Mapping[str, Any]]], platforms: Mapping[str, Mapping[str, Any]], workers: int
) -> list[Row]:
    """Return milliseconds for a gradient, by the order of some rounds."""
    rows = []
    for (name, (scheme, settings)), (place, fields) in itertools.product(schemes.items(), platforms.items()):
        algorithm = SCHEMES[scheme](**settings)
        found = [_forecast(algorithm, fields, workers, seed) for seed in SHOWING_SEEDS]
        rows.append(Row(name, place, {}, [], [1000 / predicted.gradients for predicted in found]))
    return rows


def _forecast(scheme: Scheme, fields: Mapping[str, Any], workers: int, seed: int, ps: int = 1) -> Forecast:
    return forecast(scheme, Platform(**fields), workers=workers, parameters=PARAMETERS, ps=ps, seed=seed)


def _bandwidth() -> list[Row]:
    fields = {"step_ms": 100, "compute": "lognormal:sigma=0.2", "latency": "100us"}
    platforms = {b: {**fields, "uplink": b, "downlink": b, "ps_link": b} for b in BANDWIDTHS}
    return _forecasts(LARGE, platforms, WORKERS)


def judge_bandwidth(found: Found) -> Verdict:
    """Judge that long periods win where links are slow, and matter little where they are fast."""
    fastest = {
        place: min((found[arm, place] for arm in found.arms), key=lambda row: row.mean) for place in found.places
    }
    slow, fast = found.places[0], found.places[-1]
    gain = {place: found["sync_sgd", place].mean / fastest[place].mean for place in (slow, fast)}
    words = ", ".join(f"`{row.arm}` ({place})" for place, row in fastest.items())
    why = (
        f"least time for a gradient: {words}; {gain[slow]:.0f} times faster than `sync_sgd` at {slow}, "
        f"{gain[fast]:.1f} at {fast}"
    )
    return of_parts([fastest[slow].arm == "diloco, period 100", gain[fast] < gain[slow] / 10], why)


RING = 2, 4, 8, 16, 32, 64


def _all_reduce() -> list[Row]:
    """Return milliseconds of an update besides its gradients."""
    link = {"step_ms": 1e-6, "uplink": "10Gbit", "downlink": "10Gbit", "ps_link": "10Gbit", "latency": "100us"}
    rows = []
    for workers in RING:
        ways = {
            "ring": ("all_reduce", link | {"collective": "ring"}, 1),
            "slices": ("all_reduce", link, 1),
            "tree": ("all_reduce", link | {"collective": "tree"}, 1),
            "one ps": ("sync_sgd", link, 1),
            "as many ps as workers": ("sync_sgd", link, workers),
        }
        for name, (scheme, fields, ps) in ways.items():
            predicted = _forecast(SCHEMES[scheme](), fields, workers, 0, ps)
            rows.append(Row(name, str(workers), {}, [], [1000 / predicted.updates]))
    return rows


def judge_all_reduce(found: Found) -> Verdict:
    """Judge that a reduction takes less time than a parameter server."""
    parts = [found["ring", place].mean < found["one ps", place].mean for place in found.places]
    last = found.places[-1]
    ratio = found["one ps", last].mean / found["ring", last].mean
    spread = found["as many ps as workers", last].mean / found["ring", last].mean
    why = (
        f"with {last} workers one ps takes {ratio:.0f} times as long as the ring; as many ps tasks as "
        f"workers {spread:.2f} times"
    )
    return of_parts(parts, why)


RATES = {"never": "none", "1000 s": "1000s", "300 s": "300s", "100 s": "100s"}


def _failures() -> list[Row]:
    schemes = {
        "sync_sgd": ("sync_sgd", {}),
        "sync_sgd, 4 backups": ("sync_sgd", {"backup_workers": 4}),
        "local_sgd, period 10": ("local_sgd", {"communication_period": 10}),
        "ssp, slack 2": ("ssp", {"slack": 2}),
        "async_sgd": ("async_sgd", {}),
        "downpour_easy, period 10": ("downpour_easy", {"communication_period": 10}),
    }
    fields = SECOND | {"compute": "lognormal:sigma=0.2"}
    platforms = {
        name: fields | {"failures": every if every == "none" else f"crashes:every={every},down=30s"}
        for name, every in RATES.items()
    }
    return _forecasts(schemes, platforms, WORKERS)


def judge_failures(found: Found) -> Verdict:
    """Judge how much dearer a gradient is where workers crash: less without a barrier."""
    never, often = found.places[0], found.places[-1]
    dearer = {arm: found[arm, often].mean / found[arm, never].mean for arm in found.arms}
    words = ", ".join(f"{times:.1f} (`{arm}`)" for arm, times in dearer.items())
    part = dearer["async_sgd"] < dearer["sync_sgd"]
    return of_parts([part], f"time for a gradient with a crash of each worker every {often}, of that without: {words}")


def on_platforms(name: str, paper: str, sentence: str, experiment: str, judge: Any, draw: Any = None) -> Claim:
    """Return a claim on the runs of the five platforms."""
    return Claim(
        name, paper, sentence, experiment, f"virtual seconds to a loss of {TARGET}", "platform", _platforms, judge, draw
    )


CLAIMS: Sequence[Claim] = [
    on_platforms(
        "asynchronous",
        "Dean et al. 2012; Chen et al. 2016",
        "asynchronous SGD is faster by the clock where workers differ",
        (
            "16 workers, a step takes a second in the mean: all even; four speeds (0.58, 0.75, 1.51, 3.33 "
            "s); lognormal and Pareto tails; crashes every 300 s. Rates are tuned on the four speeds and "
            "kept."
        ),
        judge_asynchronous,
        lambda found: dots(found, f"virtual seconds to a loss of {TARGET}"),
    ),
    on_platforms(
        "backups",
        "Backup workers (Chen et al. 2016)",
        "they save time where there are stragglers",
        "The same runs.",
        judge_backups,
    ),
    on_platforms(
        "ssp",
        "SSP (Ho et al. 2013)",
        "a bounded lead is faster than a barrier, and than no bound at all",
        "The same runs.",
        judge_ssp,
    ),
    *claims_of_speeds.CLAIMS,
    Claim(
        "bandwidth",
        "Local SGD, DiLoCo (Stich 2019; Douillard et al. 2023)",
        "long periods win where links are slow",
        (
            "Order only: 16 workers, 25 million parameters, 100 ms for a gradient; all links and the card "
            "of the one ps have the bandwidth. What a gradient is worth is another question."
        ),
        "milliseconds for a gradient",
        "bandwidth",
        _bandwidth,
        judge_bandwidth,
        lambda found: on_logarithms(found, "bandwidth of each link", "milliseconds for a gradient"),
    ),
    Claim(
        "all-reduce",
        "All-reduce (Patarasuk & Yuan 2009)",
        "a ring takes less time than a parameter server",
        "Order only: 25 million parameters, links of 10 Gbit/s, 100 µs of latency; gradients take no time.",
        "milliseconds for an update",
        "workers",
        _all_reduce,
        judge_all_reduce,
        lambda found: on_logarithms(found, "workers", "milliseconds for an update"),
    ),
    Claim(
        "failures",
        "Dean et al. 2012",
        "asynchronous SGD is robust to machines that fail",
        "Order only: 16 workers, a step takes a second; each worker crashes now and then, and is away for 30 s.",
        "milliseconds for a gradient",
        "a worker crashes every",
        _failures,
        judge_failures,
        lambda found: on_logarithms(found, "a worker crashes every", "milliseconds for a gradient"),
    ),
]
