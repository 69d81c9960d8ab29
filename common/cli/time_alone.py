"""Simulation of time alone, for models of any size: `bash run.sh simulate diloco --parameters 10G --step-ms 800`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.filesize import decimal
from rich.table import Table

from ..contract.checks import fitted
from ..contract.hyperparameters import Count, Natural, check_fields
from ..contract.scheme import Scheme
from ..files import dumps
from ..record import tables
from ..record.display import Page
from ..virtual_time.forecast import Forecast, forecast
from ..virtual_time.platform import Platform
from . import flags
from .machines import number_of_parameters

ABOUT = (
    "Simulate the time of a run without its gradients, for a model of any size (with --parameters). With --layers, "
    "messages of layers travel while others are computed; see docs/simulation.md."
)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What is simulated."""

    parameters: str
    """Number of parameters of the model, as in 25M. No gradients are computed."""
    workers: Natural = 16
    """Number of worker tasks."""
    ps: Natural = 1
    """Number of ps tasks."""
    layers: Natural | None = None
    """Number of layers of the model: a layer is sent as soon as its gradient is known. Default: a vector is sent at
    once, as in a run."""
    codec: str = "float32"
    """Compression of messages, as in training."""
    seed: Count = 0
    """Random seed of the simulated times."""
    json: bool = False
    """Print the figures as JSON, instead of a table."""

    def __post_init__(self):
        check_fields(self)


def main(scheme_type: type[Scheme], arguments: Sequence[str]) -> int:
    """Simulate the time of a run of an algorithm, and print its figures; return the exit code."""
    kinds = {f"hyperparameters of {scheme_type.name}": scheme_type, "model and tasks": Timing, "machines": Platform}
    scheme, timing, platform = flags.read(f"run.sh simulate {scheme_type.name}", ABOUT, arguments, kinds)
    figures = forecast(
        fitted(scheme, timing.workers, timing.ps, timing.codec),
        platform,
        workers=timing.workers,
        parameters=number_of_parameters(timing.parameters),
        ps=timing.ps,
        seed=timing.seed,
        layers=timing.layers,
    )
    if timing.json:
        print(dumps(asdict(figures)), flush=True)  # noqa: T201
    else:
        Page(highlight=False).print(_table(scheme, timing, figures))
    return 0


def _table(scheme: Scheme, timing: Timing, figures: Forecast) -> Table:
    title = f"{scheme.name}: {timing.workers} workers, {timing.parameters} parameters, in virtual time"
    seconds = scheme.updates_per_round(timing.workers) / figures.updates
    spent = {"compute": figures.compute, "waiting": figures.waiting, "communication": figures.communication}
    rows = {
        "updates/s": f"{figures.updates:,.3g}",
        "gradients/s": f"{figures.gradients:,.3g}",
        "a round": f"{1e3 * seconds:,.1f} ms: {', '.join(f'{part:.1%} {name}' for name, part in spent.items())}",
        "a worker": f"{decimal(int(figures.sent))}/s sent, {decimal(int(figures.received))}/s received",
        "staleness": f"mean {figures.staleness:.3g}",
    }
    return tables.figures(title, rows)
