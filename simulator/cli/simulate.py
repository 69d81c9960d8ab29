"""Runs in virtual time: `bash run.sh simulate downpour`, or several on the same machines: `simulate --compare a,b`.

With `--parameters 10G` time alone is simulated, for a model of any size.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from ...algorithms import SCHEMES
from ...common.arguments import spelt
from ...common.cli import flags
from ...common.cli.catalogue import known_names, meant_by
from ...common.cli.flag_groups import GROUPS, Options, find_cluster, parse_flags, scheme_of, with_machines
from ...common.cli.sweep import SweepOptions
from ...common.cli.sweep import main as sweep
from ...common.cli.train import perform, run_command, with_data
from ...common.cluster.cluster import BackendName
from ...common.cluster.platform import Platform
from ...common.contract.checks import fitted
from ...common.contract.hyperparameters import Count, Natural, check_fields
from ...common.contract.scheme import Scheme
from ...common.errors import Interrupted, UserError
from ...common.files import dumps
from ...common.launch.client import keep_warm
from ...common.record.metrics import shown
from ...common.record.plot import save
from ...common.record.saved_runs import picture, read_run
from ...common.record.tables import columns, figures, formatted
from ...common.tasks.job import checked
from ..virtual_time.forecast import Forecast, forecast
from ..virtual_time.reduced import Over
from .machines import free_links, number_of_parameters

ABOUT = (
    "Train in virtual time: the arithmetic is real, the machines are described (see `simulated machines` below). "
    "For the hyperparameters of an algorithm see `run.sh simulate downpour --help`."
)

OF_TIME = (
    "Simulate the time of a run without its gradients, for a model of any size (with --parameters). With --layers, "
    "messages of layers travel while others are computed; see docs/bandwidth.md."
)


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(Options):
    """Options of one simulation, or of several that are compared."""

    algorithm: tuple[str, ...] = ()
    """An algorithm of the catalogue."""
    compare: str = ""
    """Several algorithms to compare, on the same machines and with the same random numbers, as in
    async_sgd,ringmaster,sync_sgd:backup_workers=2. With --seeds 3, or another option of `sweep` such as --table and
    --width: a sweep, whose table and plot have means and deviations."""
    backend: BackendName = "simulation"
    """Execution: only simulation."""


def main(arguments: list[str]) -> int:
    """Simulate one algorithm, or compare several; return the exit code."""
    named, typed = [word for word in arguments if spelt(word, known_names())], set(map(flags.field_of, arguments))
    if len(named) == 1 and "compare" not in typed:
        (name, *meant), rest = meant_by(*named), [word for word in arguments if word not in named]
        if "parameters" in typed:
            return time_alone(SCHEMES[name], [*meant, *rest])
        return run_command(*_simulated(*parse_flags(SCHEMES[name], ["--backend", "simulation", *meant, *rest])))
    if "compare" in typed and typed & {*flags.names(SweepOptions)}:
        return sweep(_as_sweep(arguments))
    (options,) = flags.read(
        "run.sh simulate",
        ABOUT,
        arguments,
        {"options": SimulationOptions},
        groups={name: GROUPS[name] for name in ("simulated machines", *GROUPS)},
        positional="algorithm",
        folded=GROUPS.keys() - {"simulated machines"},
    )
    if options.algorithm:
        meant_by(options.algorithm[0])
        raise UserError("give one algorithm, or several to --compare. Received: " + " ".join(options.algorithm))
    if not options.compare:
        raise UserError("which algorithm? As in: simulate downpour --workers 1000, or simulate --compare agn,sync_sgd")
    return compare(options)


def _as_sweep(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a sweep for those of `--compare a,b`."""
    compared, rest, left = [], [], iter(arguments)
    for word in left:
        if flags.field_of(word) == "compare":
            compared.append(word.partition("=")[2] if "=" in word else next(left, ""))
        else:
            rest.append(word)
    if not compared[-1] or compared[-1].startswith("-"):
        raise UserError("--compare needs algorithms, as in: simulate --compare agn,sync_sgd --seeds 3")
    return [compared[-1], "--backend", "simulation", *rest]


def _simulated(scheme: Scheme, options: Options) -> tuple[Scheme, Options]:
    if options.backend != "simulation":
        raise UserError(f"simulate has a back end of its own: leave --backend out. Received: {options.backend}")
    return scheme, options


def compare(options: SimulationOptions) -> int:
    """Simulate several algorithms on the same machines, each in its own run directory; print a table of the results."""
    names = [text.strip() for text in flags.listed(options.compare)]
    schemes = [scheme_of(text) for text in names]
    _simulated(schemes[0], options)
    if options.dry_run:
        raise UserError("--dry-run describes one run: leave --compare out, as in: simulate downpour --dry-run")
    if options.run.run_dir is not None:
        raise UserError("each of the runs that are compared has a folder of its own: leave --run-dir out")
    chosen, note = with_data(with_machines(options), schemes)
    for scheme in schemes:  # before the first of them runs
        checked(scheme, None, find_cluster(chosen, scheme.sync.uses_ps), chosen.run)
    results = []
    with keep_warm():
        for scheme in schemes:
            _, result, error = perform(scheme, chosen, note)
            note = ""
            if error is not None:
                print(f"error: {scheme.name}: {error}", file=sys.stderr)  # noqa: T201
            if isinstance(error, UserError):
                return result["exit_code"]
            results.append(result)
            if isinstance(error, Interrupted):
                break
    if not chosen.output.quiet:
        Console().print(table(names[: len(results)], results))
        for result in results:
            print(f"{result['algorithm']}: {result['run_dir']}")  # noqa: T201
        if drawn := _drawn([Path(result["run_dir"]) for result in results if result["outcome"] == "completed"]):
            print(drawn)  # noqa: T201
    if options.output.json:
        print(dumps(results), flush=True)  # noqa: T201
    return max(result["exit_code"] for result in results)


def _drawn(folders: Sequence[Path]) -> Path | None:
    """Draw the curves of runs, as `compare` does, and return the path of the plot; None without two runs."""
    if len(folders) < 2:
        return None
    path = folders[0] / "compare-seconds.png"
    save(picture([read_run(folder) for folder in folders], "seconds"), path)
    return path


def table(names: Sequence[str], results: Sequence[dict[str, Any]]) -> Table:
    """Build a table with one line for each run."""
    numbers = ("updates", "seconds", "per s", "staleness", "compute", "a worker", "loss")
    table = columns("algorithm", *numbers, right=numbers, title="in virtual time", padding=(0, 0, 0, 1))
    for name, result in zip(names, results, strict=True):
        seconds, updates, spent = result["seconds_training"], result["updates"], result["round"]
        moved = (result["bytes_pushed"] + result["bytes_pulled"]) / result["workers"]
        table.add_row(
            name,
            formatted(updates, ",d"),
            formatted(seconds, ",.1f"),
            formatted(updates / seconds if seconds and updates else None, ",.1f"),
            formatted(result["staleness"].get("steady"), ",.1f"),
            formatted(spent and spent["compute"], ".0%"),
            decimal(int(moved)),
            shown(result["test_loss"]) if result["outcome"] == "completed" else result["outcome"],
        )
    return table


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
    over: Over = "as-here"
    """Path of messages: a reduction among the workers (collective), for algorithms whose updates have a message of
    every worker, or as-here, that of the algorithm in this package."""
    codec: str = "float32"
    """Compression of messages, as in training."""
    seed: Count = 0
    """Random seed of the simulated times."""
    json: bool = False
    """Print the figures as JSON, instead of a table."""

    def __post_init__(self):
        check_fields(self)


def time_alone(scheme_type: type[Scheme], arguments: Sequence[str]) -> int:
    """Simulate the time of a run of an algorithm, and print its figures; return the exit code."""
    kinds = {f"hyperparameters of {scheme_type.name}": scheme_type, "model and tasks": Timing, "machines": Platform}
    scheme, timing, platform = flags.read(f"run.sh simulate {scheme_type.name}", OF_TIME, arguments, kinds)
    found = forecast(
        fitted(scheme, timing.workers, timing.ps, timing.codec),
        platform,
        workers=timing.workers,
        parameters=number_of_parameters(timing.parameters),
        ps=timing.ps,
        seed=timing.seed,
        layers=timing.layers,
        over=timing.over,
    )
    if timing.json:
        print(dumps(asdict(found)), flush=True)  # noqa: T201
    else:
        page = Console(highlight=False)
        page.print(_of_time(scheme, timing, found))
        for warning in free_links(platform, scheme.sync.uses_ps and timing.over == "as-here"):
            page.print(warning)
    return 0


def _of_time(scheme: Scheme, timing: Timing, found: Forecast) -> Table:
    title = f"{scheme.name}: {timing.workers} workers, {timing.parameters} parameters, in virtual time"
    seconds = scheme.sync.updates_per_round(timing.workers) / found.updates
    spent = {"compute": found.compute, "waiting": found.waiting, "communication": found.communication}
    rows = {
        "updates/s": f"{found.updates:,.3g}",
        "gradients/s": f"{found.gradients:,.3g}",
        "a round": f"{1e3 * seconds:,.1f} ms: {', '.join(f'{part:.1%} {name}' for name, part in spent.items())}",
        "a worker": f"{decimal(int(found.sent))}/s sent, {decimal(int(found.received))}/s received",
        "staleness": f"mean {found.staleness:.3g}",
    }
    return figures(title, rows)
