"""The icon of an algorithm: three rounds in virtual time as a small SVG, without axes, to recognise it in the gallery.

The upper line is the server, dashed if it has no lock, with a diamond for each update of the center. Below, each
worker has a row: a bar of local steps, a thin line while it waits, and its messages, thinner if they are compressed. A
cross is a message that the server drops. Without a server the messages are between the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.contract.rounds import Rounds
from ..common.contract.scheme import Scheme
from ..common.record.plot import colour
from ..common.record_format import BETWEEN_SERVERS
from ..common.server.traffic import Traffic
from ..common.timeline.lanes import Tracks

WIDTH, HEIGHT = 240, 112
SERVER, FIRST, ROW = 10.0, 34.0, 22.0  # heights: of the server, of the first worker, from one worker to the next
BAR = 12.0
SHOWN = 3  # rounds of each worker but the slow one, the last
GREY = "#8b95a1"


@dataclass(frozen=True)
class Sketch:
    """What an icon shows.

    Attributes:
        scheme: the algorithm.
        columns: its rounds, see `Tracks.columns`.
        steps: local steps of each round of each worker.
        workers: number of rows.
        end: time at the right edge, in microseconds.
        weight: width of the line of a message.
    """

    scheme: Scheme
    columns: Mapping[str, np.ndarray]
    steps: Sequence[Sequence[int]]
    workers: int
    end: float
    weight: float

    def x(self, time: float) -> float:
        """Return the place of a time."""
        return round(WIDTH * time / self.end, 1)

    def rows(self) -> Iterator[dict[str, int]]:
        """Yield the rounds that begin before the right edge."""
        for values in zip(*self.columns.values(), strict=True):
            row = {name: int(value) for name, value in zip(self.columns, values, strict=True)}
            if 0 <= row["begun"] < self.end or row["event"] >= BETWEEN_SERVERS:
                yield row


def icon(scheme: Scheme, tracks: Tracks, traffic: Traffic, rounds: Sequence[Rounds], full: float) -> str:
    """Return the SVG.

    Args:
        scheme: the algorithm.
        tracks: its rounds.
        traffic: sizes of its messages.
        rounds: the rounds of each worker.
        full: bytes of a message that is not compressed.
    """
    columns = tracks.columns
    is_last = (columns["worker"] < tracks.workers - 1) & (columns["round"] == SHOWN - 1)
    end = 1.06 * float(columns["replied"][is_last].max())
    size = min(1.0, float(np.sum(traffic.message)) / full)
    steps = [[number for number, _ in each] for each in rounds]
    sketch = Sketch(scheme, columns, steps, tracks.workers, end, round(0.7 + 1.1 * size, 2))
    sync, paint = scheme.sync, colour(scheme.name)
    parts = [*_bars(sketch, paint), *_waits(sketch)]
    if sync.uses_ps:
        dashes = "" if getattr(sync, "locked", True) else ' stroke-dasharray="4 4"'
        parts.append(f'<path d="M0 {SERVER}H{WIDTH}" stroke="{GREY}"{dashes}/>')
        parts += [*_to_the_server(sketch, paint), *_updates(sketch, paint)]
    elif sync.kind == "collective":
        parts += _reductions(sketch, paint)
    elif sync.kind in ("gossip", "pairs"):
        parts += _between_workers(sketch, paint)
    return _svg(parts)


def icon_alone(scheme: Scheme) -> str:
    """Return the SVG of an algorithm with a single worker: its steps, on each of its devices."""
    devices, width = scheme.default_devices_per_worker, WIDTH / (2 * SHOWN)
    rows = range(1, 1 + devices)
    paint = colour(scheme.name)
    return _svg(_box(i * width, _lane(row), width - 2, BAR, paint) for row in rows for i in range(2 * SHOWN))


def _svg(parts: Iterable[str]) -> str:
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} fill="none" stroke-linecap="round">'
    return f"{head}{''.join(parts)}</svg>\n"


def _lane(worker: int) -> float:
    return FIRST + ROW * worker


def _line(*points: tuple[float, float], paint: str, width: float) -> str:
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path d="M{path}" stroke="{paint}" stroke-width="{width:g}"/>'


def _box(left: float, top: float, width: float, height: float, paint: str) -> str:
    return f'<rect x="{left:.1f}" y="{top:g}" width="{width:.1f}" height="{height:g}" fill="{paint}"/>'


def _bars(sketch: Sketch, paint: str) -> Iterator[str]:
    """Yield the local steps of each round, side by side, on each device of a worker."""
    devices = sketch.scheme.default_devices_per_worker
    height = (BAR - devices + 1) / devices
    for row in sketch.rows():
        until = max(row["ready"], row["computed"])
        if row["begun"] < 0 or until < 0:
            continue
        worker, number = row["worker"], row["round"]
        steps = sketch.steps[worker][number] if 0 <= number < len(sketch.steps[worker]) else 1
        edges = np.linspace(sketch.x(row["begun"]), sketch.x(until), max(steps, 1) + 1).tolist()
        for (left, right), device in itertools.product(itertools.pairwise(edges), range(devices)):
            top = _lane(worker) - BAR / 2 + device * (height + 1)
            yield _box(left, top, max(right - left - 0.9, 0.6), height, paint)


def _waits(sketch: Sketch) -> Iterator[str]:
    """Yield a thin line for each wait for other workers."""
    for row in sketch.rows():
        begin, end = max(row["arrived"], row["computed"]), row["released"]
        if row["begun"] >= 0 and begin >= 0 and sketch.x(end) - sketch.x(begin) > 1:
            y = _lane(row["worker"])
            yield _line((sketch.x(begin), y), (sketch.x(end), y), paint=GREY, width=1)


def _to_the_server(sketch: Sketch, paint: str) -> Iterator[str]:
    """Yield the messages and the replies, and a cross for each message that is dropped."""
    for row in sketch.rows():
        if row["event"] >= BETWEEN_SERVERS or min(row["ready"], row["arrived"]) < 0:
            continue
        y, x = _lane(row["worker"]), sketch.x(row["arrived"])
        yield _line((sketch.x(min(row["ready"], row["arrived"])), y), (x, SERVER), paint=paint, width=sketch.weight)
        if row["replied"] >= 0:
            freed = max(row["arrived"], row["released"])
            yield _line((sketch.x(freed), SERVER), (sketch.x(row["replied"]), y), paint=GREY, width=0.7)
        if not row["accepted"]:
            yield f'<path d="M{x - 4:g} {SERVER - 4}l8 8m0 -8l-8 8" stroke="{GREY}" stroke-width="1.6"/>'


def _updates(sketch: Sketch, paint: str) -> Iterator[str]:
    """Yield a diamond for each update of the center, hollow if it comes from another server."""
    for row in sketch.rows():
        if row["after"] > row["version"] >= 0:
            fill = paint if row["event"] < BETWEEN_SERVERS else "white"
            x = sketch.x(row["arrived"])
            yield f'<path d="M{x:g} {SERVER - 6}l5 6l-5 6l-5 -6z" fill="{fill}" stroke="{paint}"/>'


def _reductions(sketch: Sketch, paint: str) -> Iterator[str]:
    """Yield a band over all workers while they average among themselves."""
    top, bottom = _lane(0) - BAR / 2, _lane(sketch.workers - 1) + BAR / 2
    for left, right in sorted({(row["released"], row["replied"]) for row in sketch.rows() if row["replied"] >= 0}):
        width = max(sketch.x(right) - sketch.x(left) - 1, 1.5)
        yield f'<g opacity="0.35">{_box(sketch.x(left), top, width, bottom - top, paint)}</g>'


def _between_workers(sketch: Sketch, paint: str) -> Iterator[str]:
    """Yield the messages between neighbours: in gossip to all that hear them, in pairs there and back."""
    rows = {(row["worker"], row["round"]): row for row in sketch.rows()}
    for (worker, number), row in rows.items():
        for other in _heard(sketch, worker, number):
            peer_row, end = rows.get((other, number)), (sketch.x(row["replied"]), _lane(worker))
            if sketch.scheme.sync.kind == "pairs":
                begin = sketch.x(row["ready"]), _lane(worker)
                arrival = sketch.x(row["arrived"]), _lane(other)
                yield _line(begin, arrival, end, paint=paint, width=sketch.weight)
                yield f'<circle cx="{arrival[0]:g}" cy="{arrival[1]:g}" r="3" fill="white" stroke="{paint}"/>'
            elif peer_row is not None and row["replied"] >= 0:
                yield _line((sketch.x(peer_row["ready"]), _lane(other)), end, paint=paint, width=sketch.weight)


def _heard(sketch: Sketch, worker: int, number: int) -> list[int]:
    """Return the workers whose messages a worker needs in a round, without itself."""
    sync: Any = sketch.scheme.sync
    if sync.kind == "pairs":
        peers = sync.peers(sketch.workers)
        return [j for j in [int(peers[number % len(peers)][worker])] if j != worker]
    return [j for j in np.flatnonzero(sync.weights(sketch.workers, number)[worker]).tolist() if j != worker]
