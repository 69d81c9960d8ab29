"""The pictures of an algorithm: a few rounds as a timeline, the same as an icon, and its curve in the benchmark."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..common.cluster.platform import Platform
from ..common.contract.rounds import Rounds
from ..common.contract.scheme import Scheme
from ..common.messages.cut import even_sizes
from ..common.record.plot import save
from ..common.server.traffic import Traffic
from ..common.timeline.lanes import Tracks, lanes_of, within
from ..common.timeline.picture import draw
from ..simulator.virtual_time.forecast import Forecast, figures
from ..simulator.virtual_time.schedule import EventLoop, EventSchedule
from .algorithm_icons import icon
from .plots import AXES, GREY, Outcome, band, bare, colour

WORKERS = 4
PARAMETERS = 100_000
PERIOD = 4  # period of algorithms whose default is longer, so that a few rounds fit the picture
ROUNDS = 8  # number of rounds of the fast workers
STEPS = 200  # local steps of each worker in the figures
STEP_MS = 10.0
MACHINES = Platform(
    step_ms=STEP_MS,
    step_factors="1,1,1,2.5",
    compute="lognormal:sigma=0.1",
    uplink="1Gbit",
    downlink="1Gbit",
    latency="0.5ms",
)


def for_the_picture(kind: type[Scheme]) -> Scheme:
    """Return the algorithm with its defaults, but short periods, quorums of half the workers, and little slack."""
    defaults: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(kind)}
    chosen = {
        "communication_period": min(defaults.get("communication_period", PERIOD), PERIOD),
        "workers_per_update": WORKERS // 2,
        "slack": 1,
    }
    return kind(**{name: value for name, value in chosen.items() if name in defaults})


def schedule_of(scheme: Scheme) -> tuple[EventSchedule, Traffic, list[Rounds]]:
    """Return the events of the algorithm on `MACHINES`, the sizes of its messages, and the rounds of each worker."""
    traffic = Traffic(scheme, scheme.codecs()[0], WORKERS, even_sizes(PARAMETERS, 1))
    rounds = [scheme.rounds(STEPS, 0, worker) for worker in range(WORKERS)]
    loop = EventLoop(
        scheme,
        MACHINES,
        workers=WORKERS,
        rounds=rounds,
        seed=1,
        message_bytes=traffic.message,
        reply_bytes=traffic.reply,
        apart=traffic.apart,
    )
    return loop.run(), traffic, rounds


def tracks_of(scheme: Scheme, schedule: EventSchedule) -> Tracks:
    """Return the first rounds as lanes."""
    tracks = lanes_of(
        scheme.name,
        schedule.trace,
        schedule.rounds,
        workers=WORKERS,
        ps=int(scheme.sync.uses_ps),
        updates=None,
        about="worker 3 is 2.5 times slower",
    )
    return within(tracks, 0.0, _shown(scheme))


def _shown(scheme: Scheme) -> float:
    """Return the seconds that the picture shows."""
    return ROUNDS * (scheme.period * STEP_MS + 2) / 1000


def timeline(scheme: Scheme, file: Path) -> Forecast:
    """Draw the first rounds, and their icon beside the file; return the figures of the whole simulated run."""
    schedule, traffic, rounds = schedule_of(scheme)
    tracks = tracks_of(scheme, schedule)
    save(draw([tracks], end=_shown(scheme)), file, dpi=130)
    file.with_name(f"{scheme.name}-icon.svg").write_text(icon(scheme, tracks, traffic, rounds, 4 * PARAMETERS))
    return figures(schedule, scheme, traffic, rounds)


def curve(outcome: Outcome, baseline: Outcome, file: Path) -> None:
    """Draw the test loss against virtual seconds and against bytes, above the baseline in grey."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.8))  # with places of its own: to find them takes as long as to draw
    places = {"left": 0.06, "right": 0.99, "bottom": 0.18, "top": 0.97, "wspace": 0.04}
    for axes, x in zip(figure.subplots(1, 2, sharey=True, gridspec_kw=places), ("seconds", "bytes"), strict=True):
        _curve(axes, x, [(baseline, GREY), (outcome, colour(outcome["algorithm"]))])
    figure.axes[0].set_ylabel("test loss")
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=100)


def _curve(axes: Any, x: str, rows: Sequence[tuple[Outcome, str]]) -> None:
    scale, label = AXES[x]
    for outcome, paint in rows:
        found = band(outcome["runs"], x)
        if found and found[0][-1] > 0:
            grid, middle, spread = found
            axes.plot(grid * scale, middle, color=paint, lw=1.8, label=outcome["algorithm"])
            axes.fill_between(grid * scale, middle - spread, middle + spread, color=paint, alpha=0.25, lw=0)
    if x == "bytes":
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    axes.set(ylim=(0.45, 1.6), xlabel=label)
    bare(axes)
