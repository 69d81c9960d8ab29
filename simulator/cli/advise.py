"""Recommendation of an algorithm for given workers and machines: `bash run.sh advise`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ...algorithms import SCHEMES, SyncSGD
from ...common.arguments import at_most
from ...common.cli import flags
from ...common.cli.flag_groups import scheme_of
from ...common.cluster.platform import NETWORKS, Machines, Platform
from ...common.contract.checks import fitted as for_tasks
from ...common.contract.hyperparameters import Count, Natural, Positive, check_fields, feature, kinds_of
from ...common.contract.rounding import rounded
from ...common.contract.scheme import Scheme
from ...common.contract.stability import largest_rate, rate_of
from ...common.errors import UserError
from ...common.files import dumps
from ...common.record.tables import columns
from ...common.server.traffic import LAYERS
from ..fitting.like import fitted
from ..virtual_time.forecast import Forecast, forecast
from ..virtual_time.reduced import Over
from ..virtual_time.schedule import check
from .machines import free_links, number_of_parameters

PARAMETERS = 10**6  # the size of the model if neither the question nor a recorded run gives it

BACKUPS = (16, 8, 4)  # workers for each backup worker: the table shows the fastest of these

BACKED = "sync_sgd --backup-workers"

# Ordered by similarity to serial SGD: a later one is recommended only if it is faster than those before it.
NEAREST = ("sync_sgd", "all_reduce", BACKED, "local_sgd", "agn", "diloco")

WORTH = 1.3  # several workers are recommended only if they make so many times the gradients of one

LONGEST = 64  # the longest period tried, in default periods, if messages take more than half of the time

OFTEN = 10  # restarts of workers: with fewer, the prediction does not show the cost of crashes

# Fractions of the fastest's gradients: with the first, an algorithm nearer to SGD is preferred; the second is a tie.
ENOUGH, AS_MANY = 0.5, 0.95

MOST_WORKERS = 1000

MOST_STEPS = 2 * 10**6  # of all workers in a round: the time of each is drawn


@dataclass(frozen=True, kw_only=True)
class Question:
    """The model to train, the number of machines, and hyperparameters."""

    workers: Natural = 16
    """Number of worker tasks."""
    ps: Natural = 1
    """Number of parameter server tasks."""
    parameters: str | None = None
    """Number of parameters of the model, as in 25M. Default: 1M, or with --like that of the run."""
    layers: Natural | None = None
    """Number of layers of the model, each of which algorithms without a ps send as soon as its gradient is known, on
    equal machines. Default: they send a vector at once, as in a run."""
    over: Over = "as-here"
    """Path of messages of algorithms whose updates have a message of every worker: a reduction among the workers
    (collective), as most programs have it, or as-here, that of the algorithm in this package, to its ps tasks."""
    communication_period: Natural | None = None
    """Local steps between two exchanges, for all algorithms with such a period. Default: that of each algorithm, and
    longer ones if messages take more than half of the time."""
    settings: str = ""
    """Hyperparameters of some algorithms instead of their defaults, as in diloco:communication_period=100."""
    codec: str = "float32"
    """Compression of messages, as in training; algorithms with a codec of their own keep it."""
    curvature: Positive = 1.0
    """Largest curvature of the loss, h, which limits the learning rates."""
    seed: Count = 0
    """Random seed of the simulated times."""
    like: Path | None = None
    """Folder of a recorded run: predict for machines fitted to its rounds. Flags of machines override the fit."""
    json: bool = False
    """Print the recommendation and the predictions as one line of JSON, instead of the table."""

    def __post_init__(self):
        check_fields(self)
        at_most(MOST_WORKERS, workers=self.workers, ps=self.ps)
        _ = self.size
        for scheme in self.schemes.values():
            if scheme.period > MOST_STEPS // self.workers:
                raise UserError(
                    f"{scheme.name}: communication_period must be at most {MOST_STEPS // self.workers} with so "
                    f"many workers. Received: communication_period={scheme.period}, workers={self.workers}"
                )

    @property
    def schemes(self) -> dict[str, Scheme]:
        """The catalogue, with the given hyperparameters."""
        texts = [text for text in flags.listed(self.settings) if text.strip()]
        typed = {scheme.name: scheme for scheme in map(scheme_of, texts)}
        period = {} if self.communication_period is None else {"communication_period": self.communication_period}
        return {
            name: typed[name] if name in typed else kind(**period if has_period(kind) else {})
            for name, kind in SCHEMES.items()
        }

    @property
    def size(self) -> int | None:
        """Number of parameters P; None if not given."""
        if self.parameters is None:
            return None
        return number_of_parameters(self.parameters)


def has_period(scheme: Any) -> bool:
    """Return True if the algorithm, or its class, has the hyperparameter `communication_period`."""
    kind = scheme if isinstance(scheme, type) else type(scheme)
    return feature(kinds_of(kind).get("communication_period")) is not None


@dataclass(frozen=True)
class Prediction:
    """The prediction for an algorithm on these machines.

    Attributes:
        scheme: the algorithm with its hyperparameters.
        run: the predicted run.
        limit: the smallest rate at which it diverges; None if the catalogue names no limit.
        longer: True if its period is longer than the default, because messages took too long.
    """

    scheme: Scheme
    run: Forecast
    limit: float | None
    longer: bool = False

    @property
    def stable(self) -> bool:
        """False if its rate exceeds the limit, or if its gradients are stale and no limit is known."""
        return self.run.staleness == 0 if self.limit is None else rate_of(self.scheme) < self.limit


def main(arguments: list[str]) -> int:
    """Print a table of predictions for the catalogue and a recommendation; return the exit code."""
    question, platform = flags.read(
        "run.sh advise",
        "Predict the speed and staleness of a run of every algorithm, in virtual time and without training.",
        arguments,
        {"workload": Question, "machines": Platform},
    )
    machines, size = fitted(question.like, platform, question.size)
    rows = predict(replace(question, parameters=str(size or PARAMETERS)), machines)
    if question.json:
        print(dumps({"recommendation": recommendation(rows), "rows": list(map(_record, rows.values()))}))  # noqa: T201
        return 0
    page = Console(highlight=False)
    page.print(_table(rows))
    page.print(
        "\nPredicted in virtual time, not measured. computing: fraction of the workers' time; bytes/s: of a worker, "
        "both ways; staleness: mean of the messages that count, without the first third of the updates, in which "
        "workers that start together are not stale yet; -b: backup workers; H: a period longer than the default; "
        "serial: on the fastest machine, which does not fail; rate: the catalogue's limit on ½hx² with "
        f"h = {question.curvature:g}, at that staleness; !: the default exceeds it; ?: stale, and no limit is known. "
        "Data and hostile workers are not part of the question: see docs/choosing.md."
    )
    if question.over == "collective":
        page.print("Where an update has a message of every worker, messages are reduced among the workers (--over).")
    elif math.isfinite(Machines(machines).ps_link):
        page.print(
            f"Messages to the center share the network {'card' if question.ps == 1 else 'cards'} of {question.ps} ps "
            f"(--ps). Most programs reduce them among the workers instead, as --ps {question.workers} nearly does: see "
            "--over collective."
        )
    if question.layers is None and "powersgd" in rows:
        page.print(f"powersgd: for a model of {LAYERS} square layers (--layers).")
    if ideal := _ideal(machines):
        page.print(f"Not given, so taken as ideal: {', '.join(ideal)}.")
    if machines.step_ms is None and machines.network in NETWORKS:
        page.print(f"Not given, so assumed: a step takes {machines.described()['step_ms']:g} ms (--step-ms).")
    if Machines(machines).failures and any(row.run.joined < OFTEN for row in _exchanging(rows).values()):
        page.print(
            "Failures are too rare in the few simulated rounds: the figures are those of machines that hardly fail. "
            "For the cost of crashes, run a long enough run.sh simulate."
        )
    if missing := [name for name in SCHEMES if name not in rows]:
        page.print(
            "Left out, because the algorithm does not support so many workers or such machines, or its synchronization "
            f"rule cannot be simulated: {', '.join(missing)}."
        )
    for warning in free_links(machines):
        page.print(Text(f"\n{warning}", style="yellow"))
    page.print(Text(f"\n{recommendation(rows)}", style="bold"))
    return 0


def predict(question: Question, platform: Platform) -> dict[str, Prediction]:
    """Predict a run of each algorithm on these machines, by name; leave out those that cannot have so many workers."""
    machines, size = Machines(platform), question.size or PARAMETERS

    def row(scheme: Scheme) -> Prediction | None:
        workers = question.workers if scheme.sync.exchanges else 1
        try:
            for_tasks(scheme, workers, question.ps if scheme.sync.uses_ps else 1, "float32")
            if scheme.sync.exchanges:
                check(scheme, machines, workers)
        except UserError:
            return None
        with suppress(UserError):
            scheme = rounded(scheme, question.codec)
        reduces = question.over == "collective" and scheme.sync.meets(question.workers)
        collective = reduces or (scheme.sync.is_collective and scheme.sync.waits)
        run = forecast(
            scheme,
            platform,
            workers=question.workers,
            parameters=size,
            ps=question.ps,
            seed=question.seed,
            layers=question.layers if collective else None,
            over="collective" if reduces else "as-here",
        )
        return Prediction(scheme, run, largest_rate(scheme, workers, run.staleness, question.curvature))

    def best(scheme: Any) -> Prediction | None:
        """Lengthen the period while messages take more than half of the time and the algorithm stays stable."""
        found = row(scheme)
        chosen = question.communication_period is not None or scheme != type(scheme)()
        if found is None or chosen or not has_period(scheme) or not found.stable:
            return found
        times = 2
        while found.run.communication > ENOUGH and times <= LONGEST:
            longer = row(replace(scheme, communication_period=times * scheme.communication_period))
            if longer is None or not longer.stable:
                break
            found, times = replace(longer, longer=True), 2 * times
        return found

    rows: dict[str, Prediction | None] = {}
    for name, scheme in question.schemes.items():
        rows[name] = best(scheme)
        if name == "sync_sgd":
            numbers = {question.workers // many for many in BACKUPS} - {0}
            backed = [found for number in sorted(numbers) if (found := row(SyncSGD(backup_workers=number)))]
            rows[BACKED] = max(backed, key=lambda found: found.run.gradients, default=None)
    return {name: found for name, found in rows.items() if found is not None}


def _ideal(platform: Platform) -> list[str]:
    """Return the flags that were not given and whose quantity is therefore constant, or takes no time."""
    machines = Machines(platform)
    takes = {
        "compute": platform.described()["compute"] != "constant",
        "uplink": math.isfinite(machines.uplink),
        "downlink": math.isfinite(machines.downlink),
        "ps_link": math.isfinite(machines.ps_link),
        "latency": machines.latency > 0 or any(latency for latency, _ in machines.regions),
        "service": machines.service > 0 or math.isfinite(machines.ps_rate),
    }
    silent = [name for name, costs in takes.items() if not costs and getattr(platform, name) is None]
    return list(map(flags.flag_of, silent))


def _exchanging(rows: Mapping[str, Prediction]) -> dict[str, Prediction]:
    """Return the rows of algorithms with several workers."""
    return {name: row for name, row in rows.items() if row.scheme.sync.exchanges}


def recommendation(rows: Mapping[str, Prediction]) -> str:
    """Return one sentence: the recommended algorithm, and the reason."""
    exchanging = _exchanging(rows)
    if not exchanging:
        return "Take one worker: no algorithm supports so many on such machines."
    several = {name: row for name, row in exchanging.items() if row.stable}
    if not several:
        return (
            "Take one worker: at their default rates none of the algorithms is stable with so many; or lower the rate."
        )
    fastest = max(several, key=lambda name: several[name].run.gradients)
    best = several[fastest].run.gradients
    alone = rows["serial"].run.gradients if "serial" in rows else 0.0
    if best < WORTH * alone:
        text = f"Take one worker: serial makes {_digits(alone)} gradients/s, and {fastest} no more than {_digits(best)}"
        return text + ("." if best < alone else f": less than {WORTH:g} times as many.")
    order = [*(name for name in NEAREST if name in several), fastest]
    name = next(name for name in order if several[name].run.gradients >= max(ENOUGH * best, WORTH * alone))
    chosen = several[name]
    speed = f"{_digits(chosen.run.gradients)} gradients/s"
    if name == fastest or chosen.run.gradients >= AS_MANY * best:
        speed += ", as many as any that is stable"
    else:
        speed += f", at least half of those of the fastest that is stable ({fastest}, {_digits(best)})"
    period = f" --communication-period {chosen.scheme.period}" if chosen.longer else ""
    return f"Take {_shown(name, chosen)}{period}: {speed}; {_reason(name, order, rows)}."


def _shown(name: str, row: Prediction) -> str:
    """Format an algorithm as on the command line."""
    return f"{name} {row.scheme.backup_workers}" if isinstance(row.scheme, SyncSGD) and name == BACKED else name


def _reason(name: str, order: Sequence[str], rows: Mapping[str, Prediction]) -> str:
    """Return the reason for an algorithm: it is the nearest to SGD, or the nearest one is too slow."""
    if name == order[0]:
        return "its arithmetic is the nearest to serial SGD"
    before = rows[order[0]].run
    shares = {"computes": before.compute, "waits": before.waiting, "communicates": before.communication}
    spent = ", ".join(f"{verb} {part:.0%}" for verb, part in shares.items())
    return f"{order[0]}, whose arithmetic is nearer to serial SGD, {spent} of the time"


def _table(rows: Mapping[str, Prediction]) -> Table:
    numbers = ("updates/s", "gradients/s", "computing", "staleness", "bytes/s", "rate")
    table = columns("algorithm", *numbers, right=numbers, padding=(0, 1, 0, 0))
    for name, row in rows.items():
        run, mark = row.run, "" if row.stable else "?" if row.limit is None else "! "
        table.add_row(
            _shown(name, row).replace("--backup-workers", "-b") + (f" H={row.scheme.period}" if row.longer else ""),
            _digits(run.updates),
            _digits(run.gradients),
            f"{run.compute:.0%}",
            _digits(run.staleness),
            decimal(int(run.sent + run.received)),
            f"{mark}" if row.limit is None else f"{mark}< {row.limit:.2g}",
            style="" if row.stable else "dim",
        )
    return table


def _record(row: Prediction) -> dict[str, Any]:
    """Return a row for JSON: the algorithm with its hyperparameters, and the figures of its run."""
    settings = {field.name: str(getattr(row.scheme, field.name)) for field in fields(row.scheme)}
    limits = {"largest_rate": row.limit, "stable": row.stable, "longer_period": row.longer}
    return {"algorithm": row.scheme.name, "hyperparameters": settings, **asdict(row.run), **limits}


def _digits(number: float) -> str:
    """Format a number with three significant digits, or all digits before the point if these are more."""
    return f"{number:,.0f}" if number >= 999.5 else f"{number:.3g}"
