"""Experiment of a paper on workers in four regions: two levels of servers, one level, and rounds of all workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..algorithms.async_diloco import AsyncDiLoCo
from ..algorithms.halos import HALoS
from ..common.cluster.platform import Platform
from ..common.contract import Rounds, Scheme
from ..common.record.plot import bare, colour, figure_class
from ..common.record_format import EVENTS
from ..common.replay.reference.gradients import Gradient
from ..common.replay.reference.inner_steps import State, adamw_step, inner_window
from ..common.replay.reference.regional_rules import RegionalServer, delayed_server
from ..simulator.virtual_time.schedule import EventLoop
from .crossing import crossing
from .reproduced_experiment import Experiment, Numbers, on_digits

# The example of the authors: bandwidths in Gbit/s, the speeds of the workers of each region, milliseconds of a step of
# the fastest worker, and the bytes of a model of 70 million parameters.
LINKS = (
    (100.0, 0.537, 0.935, 0.202),
    (0.537, 100.0, 0.386, 0.117),
    (0.935, 0.386, 100.0, 0.127),
    (0.202, 0.117, 0.127, 100.0),
)
SPEEDS = (
    (0.232, 0.907, 0.828, 0.347),
    (0.574, 0.531, 0.722, 0.194),
    (0.852, 0.132, 0.896, 0.107),
    (0.827, 0.515, 0.527, 0.788),
)
STEP_MS, BYTES = 238.391, 4 * 70_426_624

RING = 0.127  # Gbit/s of the slowest link of the fastest ring through all regions

FASTEST = max(map(max, SPEEDS))

PERIODS = {"diloco": 32, "async_diloco": 32, "halos": 8}  # of the fastest worker

ONE_SERVER, LOCAL, GLOBAL = (0.05, 0.9, 32), (0.2, 0.9, 16), (0.15, 0.5, 2)  # ε, β and N of the servers

MERGED, SHARE = 32, 0.25  # updates of a region between two merges, and the weight α of the global model

HIDDEN, BATCH, ETA, SEEDS, TARGET = 32, 4, 0.001, 3, 0.2  # of our network; η is the authors'

SECONDS, POINTS = 2000.0, 101

NEAR = 0.25  # how far our factors may be from the paper's


def _steps(period: int, speed: float) -> int:
    """Return the local steps of a worker in a round: fewer for a slower one, so that all rounds take the same time."""
    return math.ceil(period * speed / FASTEST)


def _arrivals(scheme: Scheme, speeds: Sequence[float], **links: Any) -> list[tuple[float, str, int]]:
    """Return the seconds at which messages reach a server, what they are, and their workers, in virtual time."""
    machines = Platform(step_ms=STEP_MS, step_factors=",".join(f"{FASTEST / speed:.9g}" for speed in speeds), **links)
    rounds = []
    for speed in speeds:
        steps = _steps(scheme.period, speed)
        rounds.append(Rounds.even(steps * math.ceil(SECONDS * 1000 * speed / FASTEST / STEP_MS / steps), steps))
    sizes: dict[str, Any] = {"message_bytes": BYTES, "reply_bytes": BYTES}
    trace = EventLoop(scheme, machines, workers=len(speeds), rounds=rounds, seed=0, **sizes).run().trace
    columns = trace["microseconds"] / 1e6, trace["event"], trace["worker"]
    events = zip(*(column.tolist() for column in columns), strict=True)
    return [(at, EVENTS[event], k) for at, event, k in events if at <= SECONDS]


def _at_one_server() -> list[tuple[float, str, int]]:
    """Return the arrivals of the messages at a server in the first region."""
    regions = ",".join(f"0ms/{LINKS[0][r]}Gbit" for r, of_region in enumerate(SPEEDS) for _ in of_region)
    return _arrivals(AsyncDiLoCo(communication_period=PERIODS["async_diloco"]), sum(SPEEDS, ()), regions=regions)


def _at_regional_servers() -> tuple[list[tuple[float, str, int]], list[int]]:
    """Return the arrivals of the messages at regional servers and the global one, and what number each worker has here.

    HALoS' worker k is in region k modulo their number. Links inside a region are equal, and no two workers share one.
    """
    number = list(range(len(sum(SPEEDS, ()))))
    places = sorted(number, key=lambda i: (i % len(SPEEDS[0]), i))  # all regions have as many workers
    scheme = HALoS(communication_period=PERIODS["halos"], regional_servers=len(SPEEDS), moves_per_merge=MERGED)
    inside, between = f"{LINKS[0][0]}Gbit", ",".join(f"0ms/{link}Gbit" for link in LINKS[0])
    speeds = [sum(SPEEDS, ())[i] for i in places]
    return _arrivals(scheme, speeds, uplink=inside, downlink=inside, regions=between), places


class Workers:
    """The local steps of all workers.

    Args:
        gradient: of worker k at its step t.
        speeds: of the workers.
        period: local steps of the fastest worker in a round.
    """

    def __init__(self, gradient: Gradient, speeds: Sequence[float], period: int):
        self.gradient, self.lengths = gradient, [_steps(period, speed) for speed in speeds]
        self.states: list[State] = [{} for _ in speeds]
        self.done = [0] * len(speeds)

    def move(self, k: int, start: np.ndarray, steps: int = 0) -> np.ndarray:
        """Return the pseudo-gradient of a round of worker k."""
        steps = steps or self.lengths[k]
        end = inner_window(start, self.states[k], self.gradient, k, self.done[k], steps, ETA, adamw_step)
        self.done[k] += steps
        return start - end


Path = Iterator[tuple[float, np.ndarray]]  # seconds, and the global model from then on


def diloco(start: np.ndarray, gradient: Gradient) -> Path:
    """Yield the center after each round, which all workers end with a ring all-reduce."""
    speeds, period = sum(SPEEDS, ()), PERIODS["diloco"]
    workers, theta, m = Workers(gradient, speeds, period), start, 0 * start
    for number in range(1, int(SECONDS / _round_of_all()) + 1):
        move = np.mean([workers.move(k, theta, period) for k in range(len(speeds))], axis=0)
        m = 0.9 * m + move
        theta = theta - 0.7 * (move + 0.9 * m)
        yield number * _round_of_all(), theta


def _round_of_all() -> float:
    """Return the seconds of a round of DiLoCo: the steps of the slowest worker, then a reduction over the ring."""
    workers = sum(map(len, SPEEDS))
    ring = 2 * (workers - 1) / workers * 8 * BYTES / (RING * 1e9)
    return PERIODS["diloco"] * STEP_MS / 1000 * FASTEST / min(map(min, SPEEDS)) + ring


def async_diloco(start: np.ndarray, gradient: Gradient) -> Path:
    """Yield the center after each message to the one server, which is in the first region."""
    speeds = sum(SPEEDS, ())
    center = delayed_server(start, *ONE_SERVER)
    workers, pulled = Workers(gradient, speeds, PERIODS["async_diloco"]), [start] * len(speeds)
    for at, _, k in _at_one_server():
        pulled[k] = center.step(workers.move(k, pulled[k]))
        yield at, pulled[k]


def halos(start: np.ndarray, gradient: Gradient) -> Path:
    """Yield the global model after each message of a region; no worker waits for a message between regions."""
    workers = Workers(gradient, sum(SPEEDS, ()), PERIODS["halos"])
    top = delayed_server(start, *GLOBAL)
    regions = [RegionalServer(delayed_server(start, *LOCAL), MERGED, SHARE) for _ in SPEEDS]
    pulled, sent = [start] * len(workers.done), [start] * len(SPEEDS)
    arrivals, number = _at_regional_servers()
    for at, event, k in arrivals:
        r = k % len(SPEEDS)
        if event == "exchange":
            i = number[k]
            pulled[i], news = regions[r].step(workers.move(i, pulled[i]))
            sent[r] = sent[r] if news is None else news
        elif event == "up":
            sent[r] = top.step(sent[r])
            yield at, top.theta
        else:
            regions[r].merge(sent[r])


def _speeds() -> dict[str, float]:
    """Return the local steps that all workers make in a second."""
    speeds = sum(SPEEDS, ())
    found = {"diloco": len(speeds) * PERIODS["diloco"] / _round_of_all()}
    halos, places = _at_regional_servers()
    for name, arrivals, number in ("async_diloco", _at_one_server(), range(len(speeds))), ("halos", halos, places):
        moves = [number[k] for _, event, k in arrivals if event == "exchange"]
        found[name] = sum(_steps(PERIODS[name], speeds[i]) for i in moves) / SECONDS
    return found


def _measure() -> Numbers:
    """Return local steps in a second, the loss over time with the first seed, and the mean time to the target."""
    found: dict[str, Any] = {f"{name}_speed": speed for name, speed in _speeds().items()}
    for rule in (diloco, async_diloco, halos):
        times = []
        for seed in range(SEEDS):
            task = on_digits(HIDDEN, sum(map(len, SPEEDS)), BATCH, seed)
            seconds, losses = [0.0], [task.test_loss(task.start)]
            for at, theta in rule(task.start, task.gradient):
                seconds.append(at)
                losses.append(task.test_loss(theta))
                if losses[-1] < TARGET / 2:
                    break
            times.append(place.of(seconds) if (place := crossing(losses, TARGET)) else math.inf)
            if seed == 0:
                shown = np.interp(np.linspace(0, seconds[-1], POINTS), seconds, losses)
                found |= {f"{rule.__name__}_end": seconds[-1], f"{rule.__name__}_losses": shown.round(4).tolist()}
        found[rule.__name__] = float(np.mean(times))
    for other in ("diloco", "async_diloco"):
        found[f"{other}_faster"] = found[other] / found["halos"]
        found[f"{other}_steps"] = found["halos_speed"] / found[f"{other}_speed"]
    return found


def _draw(numbers: Numbers) -> Any:
    """Draw the test loss over time."""
    figure = figure_class()(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    names = {"diloco": "DiLoCo", "async_diloco": "asynchronous, one server", "halos": "HALoS, a server in each region"}
    for name, label in names.items():
        seconds = np.linspace(0, numbers[f"{name}_end"], POINTS)
        axes.plot(seconds, numbers[f"{name}_losses"], color=colour(name), lw=1.4, label=label)
    axes.axhline(TARGET, color="0.5", lw=0.8, ls=":")
    axes.set(yscale="log", xlabel="seconds of virtual time", ylabel="test loss")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.legend()
    bare(axes)
    return figure


EXPERIMENTS = [
    Experiment(
        "regions",
        "`diloco`, `async_diloco`, and `halos` with a server in each region",
        "Kim et al. 2025 (arXiv:2506.04531): 16 workers of unequal speed in four regions. Speeds, links, periods, "
        "rates and the bytes of a message are those of the authors' example; the network is ours, with "
        f"{HIDDEN} hidden units on digits, batches of {BATCH}, mean of {SEEDS} seeds",
        "up to 7.5 times faster to a loss than DiLoCo, up to 2.1 times faster than asynchronous training with one "
        "server",
        _measure,
        f"to a test loss of {TARGET} {{halos:.0f}} s, {{diloco_faster:.1f}} times faster than DiLoCo and "
        "{async_diloco_faster:.1f} times faster than with one server. Local steps in a second: {diloco_speed:.1f}, "
        "{async_diloco_speed:.1f}, {halos_speed:.1f}, which are factors of {diloco_steps:.1f} and "
        "{async_diloco_steps:.1f}",
        lambda found: (
            abs(found["diloco_faster"] / 7.5 - 1) < NEAR and abs(found["async_diloco_faster"] / 2.1 - 1) < NEAR
        ),
        _draw,
    ),
]
