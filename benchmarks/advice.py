"""`bash run.sh advice`: the answers of `advise` at the points of a grid, which docs/choose.md shows by sliders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..common.cli import flags
from ..common.cluster.platform import Platform
from ..common.files import dumps
from ..simulator.cli.advise import NEAREST, Prediction, Question, predict, recommendation
from .outcome_files import RESULTS, Output

FILE = RESULTS / "advice.json"

WORKERS = (4, 16, 64)
LINKS = (("100Mbit", "20ms"), ("1Gbit", "1ms"), ("10Gbit", "200us"), ("100Gbit", "20us"))
STEPS = (10.0, 100.0, 1000.0)  # ms
PARAMETERS = ("1M", "10M", "100M", "1000M")
COMPUTE = "lognormal:sigma=0.3"

FASTEST = 4  # algorithms that a point shows beside the nearest to serial SGD


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of the grid: workers, the indices of link and step time, parameters."""

    workers: int
    link: int
    step: int
    parameters: str

    @property
    def key(self) -> str:
        """The point's name in the file."""
        return f"{self.workers} {self.link} {self.step} {self.parameters}"

    @property
    def command(self) -> str:
        """The command that gives the same answer."""
        rate, latency = LINKS[self.link]
        return (
            f"bash run.sh advise --workers {self.workers} --parameters {self.parameters} "
            f"--step-ms {STEPS[self.step]:g} --uplink {rate} --ps-link {rate} --latency {latency} --compute {COMPUTE}"
        )


def points() -> Iterator[Point]:
    """Yield all points."""
    for workers, link, step, parameters in itertools.product(WORKERS, range(len(LINKS)), range(len(STEPS)), PARAMETERS):
        yield Point(workers=workers, link=link, step=step, parameters=parameters)


def predicted(point: Point) -> dict[str, Prediction]:
    """Return what `advise` predicts at a point."""
    rate, latency = LINKS[point.link]
    machines = Platform(step_ms=STEPS[point.step], uplink=rate, ps_link=rate, latency=latency, compute=COMPUTE)
    return predict(Question(workers=point.workers, parameters=point.parameters), machines)


def answer(rows: dict[str, Prediction]) -> dict[str, Any]:
    """Return the answer of `advise`, and gradients and megabytes a second of the algorithms that a point shows."""
    stable = {name: row for name, row in rows.items() if row.stable}
    fastest = sorted(stable, key=lambda name: -stable[name].run.gradients)
    near = [name for name in ("serial", *NEAREST) if name in stable]
    shown = [*near, *[name for name in fastest if name not in near][:FASTEST]]
    return {
        "answer": recommendation(rows),
        "rows": [
            [
                name.replace("--backup-workers", "-b") + (f" H={row.scheme.period}" if row.longer else ""),
                float(f"{row.run.gradients:.3g}"),
                float(f"{(row.run.sent + row.run.received) / 1e6:.3g}"),
            ]
            for name in sorted(shown, key=fastest.index)
            for row in [stable[name]]
        ],
    }


def main(arguments: list[str]) -> int:
    """Compute and save the grid; return the exit code."""
    about = "Compute the answers of `advise` that docs/choose.md shows."
    (place,) = flags.read("run.sh advice", about, arguments, {"results": Output})
    found = {}
    for point in points():
        print(point.command, flush=True)
        found[point.key] = answer(predicted(point))
    lines = ",\n".join(f"{dumps(key)}: {dumps(value)}" for key, value in found.items())
    place.output.mkdir(parents=True, exist_ok=True)
    (place.output / FILE.name).write_text(f"{{\n{lines}\n}}\n")
    return 0
