"""`bash run.sh advise`: which algorithm, for so many workers on such machines?"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from ...algorithms import SCHEMES, SyncSGD
from ..contract.checks import check_scheme
from ..contract.rounding import Rounding, rounded
from ..contract.scheme import Scheme
from ..errors import UserError, at_least, at_most, positive
from ..record.display import Page
from ..virtual_time.forecast import Forecast, forecast
from ..virtual_time.platform import Platform
from . import flags
from .like import like
from .limits import largest_rate, rate_of

SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}

MOST_WORKERS = 1000

BACKUPS = (16, 8, 4)  # one backup worker for so many: what is best of these is shown

BACKED = "sync_sgd --backup-workers"

# From the one whose arithmetic is nearest to that of serial SGD: who follows needs a reason.
NEAREST = ("sync_sgd", "all_reduce", BACKED, "local_sgd", "agn", "diloco")

ENOUGH, AS_MANY = 0.5, 0.95  # of the gradients of the fastest: what is beyond is not worth leaving SGD further behind


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be trained, and on how many machines."""

    workers: int = 16
    """Worker tasks."""
    ps: int = 1
    """Parameter server tasks."""
    parameters: str = "1M"
    """Of the model, as in 25M."""
    codec: Rounding = "float32"
    """How messages travel; algorithms that have no such choice send what they always do."""
    curvature: float = 1.0
    """The largest of the loss, h: rates are limited by it."""
    seed: int = 0
    """Of what is drawn."""
    like: Path | None = None
    """Machines like those of a recorded run, given its folder; what is said of machines overrides that."""

    def __post_init__(self):
        at_least(1, workers=self.workers, ps=self.ps)
        at_most(MOST_WORKERS, workers=self.workers, ps=self.ps)
        positive(curvature=self.curvature)
        _ = self.size

    @property
    def size(self) -> int:
        """P."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGB]?)", self.parameters.strip())
        size = round(float(found[1]) * SUFFIXES[found[2]]) if found else 0
        if not 1 <= size <= 10**12:
            raise UserError(
                f"parameters takes a number with k, M or G, as in 25M, at most 1e12. Received: {self.parameters!r}"
            )
        return size


@dataclass(frozen=True)
class Row:
    """An algorithm on these machines.

    Attributes:
        scheme: with its hyperparameters.
        run: what it would be like.
        limit: the rate from which on it diverges; None if the catalogue names none.
    """

    scheme: Scheme
    run: Forecast
    limit: float | None

    @property
    def stable(self) -> bool:
        """False if its rate is beyond the limit, or it is late and has none."""
        return self.run.staleness == 0 if self.limit is None else rate_of(self.scheme) < self.limit


def main(arguments: list[str]) -> int:
    """The catalogue as a table of what it would be like, and one sentence on what to take."""
    question, platform = flags.read(
        "run.sh advise",
        "Predict, for every algorithm, how fast and how stale a run would be: in virtual time, nothing is trained.",
        arguments,
        {"what is to be trained": Question, "machines": Platform},
    )
    rows = predict(question, like(question.like, platform))
    page = Page(highlight=False)
    page.print(_table(rows))
    page.print(
        "\nPredicted in virtual time; nothing is measured. computing: the part of workers' time; bytes/s: of a worker, "
        "both ways; staleness: of messages that count; -b: backup workers; rate: the catalogue's limit on ½hx² with "
        f"h = {question.curvature:g}, at that staleness; !: the default is beyond it; ?: late, and no limit is known."
    )
    page.print(Text(f"\n{recommendation(rows)}", style="bold"))
    return 0


def predict(question: Question, platform: Platform) -> dict[str, Row]:
    """Each algorithm of the catalogue on these machines, by name; those that cannot have so many workers are left out.

    Algorithms that send as much, as often, and wait in the same way have the same figures.
    """
    known: dict[object, Forecast] = {}

    def row(scheme: Scheme) -> Row | None:
        workers = question.workers if scheme.gate.exchanges else 1
        try:
            check_scheme(scheme, workers)
        except UserError:
            return None
        with suppress(UserError):
            scheme = rounded(scheme, question.codec)
        alike = _what_takes_time(scheme)
        if alike not in known:
            known[alike] = forecast(
                scheme, platform, workers=workers, parameters=question.size, ps=question.ps, seed=question.seed
            )
        return Row(scheme, known[alike], largest_rate(scheme, workers, known[alike].staleness, question.curvature))

    rows: dict[str, Row | None] = {}
    for name, kind in SCHEMES.items():
        rows[name] = row(kind())
        if name == "sync_sgd":
            numbers = {question.workers // many for many in BACKUPS} - {0}
            backed = [found for number in sorted(numbers) if (found := row(SyncSGD(backup_workers=number)))]
            rows[BACKED] = max(backed, key=lambda found: found.run.gradients, default=None)
    return {name: found for name, found in rows.items() if found is not None}


def _what_takes_time(scheme: Scheme) -> object:
    """What the order of events depends on."""
    kind = type(scheme)
    own = tuple(name for name in ("accepts", "rounds") if getattr(kind, name) is not getattr(Scheme, name))
    return (
        scheme.gate, scheme.period, scheme.codec, scheme.reply_codec, scheme.exchange_first, scheme.warmup_updates,
        own and scheme,
    )  # fmt: skip


def recommendation(rows: Mapping[str, Row]) -> str:
    """What to take, and why, in one sentence."""
    several = {name: row for name, row in rows.items() if row.scheme.gate.exchanges and row.stable}
    if not several:
        return (
            "Take one worker: at their default rates none of the algorithms is stable with so many; or lower the rate."
        )
    fastest = max(several, key=lambda name: several[name].run.gradients)
    best = several[fastest].run.gradients
    order = [*(name for name in NEAREST if name in several), fastest]
    name = next(name for name in order if several[name].run.gradients >= ENOUGH * best)
    alone = rows["serial"].run.gradients if "serial" in rows else 0.0
    if best < alone:
        return f"Take one worker: serial makes {alone:,.0f} gradients/s, and {fastest} no more than {best:,.0f}."
    chosen = several[name]
    much = f"{chosen.run.gradients:,.0f} gradients/s"
    if name == fastest or chosen.run.gradients >= AS_MANY * best:
        much += ", as many as any that is stable"
    else:
        much += f", at least half of those of the fastest that is stable ({fastest}, {best:,.0f})"
    return f"Take {_shown(name, chosen)}: {much}; {_reason(name, order, rows)}."


def _shown(name: str, row: Row) -> str:
    """As it would be typed."""
    return f"{name} {row.scheme.backup_workers}" if isinstance(row.scheme, SyncSGD) and name == BACKED else name


def _reason(name: str, order: Sequence[str], rows: Mapping[str, Row]) -> str:
    """Why not the one before, or why that suffices."""
    if name == order[0]:
        return "its arithmetic is the nearest to serial SGD"
    before = rows[order[0]].run
    what = {"computes": before.compute, "waits": before.waiting, "communicates": before.communication}
    spent = ", ".join(f"{verb} {part:.0%}" for verb, part in what.items())
    return f"{order[0]}, whose arithmetic is nearer to serial SGD, {spent} of the time"


def _table(rows: Mapping[str, Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("algorithm", no_wrap=True)
    for title in ("updates/s", "gradients/s", "computing", "staleness", "bytes/s", "rate"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, row in rows.items():
        run, mark = row.run, "" if row.stable else "?" if row.limit is None else "! "
        table.add_row(
            _shown(name, row).replace("--backup-workers", "-b"),
            f"{run.updates:,.1f}",
            f"{run.gradients:,.1f}",
            f"{run.compute:.0%}",
            f"{run.staleness:.1f}",
            _bytes(run.sent + run.received),
            f"{mark}" if row.limit is None else f"{mark}< {row.limit:.2g}",
            style="" if row.stable else "dim",
        )
    return table


def _bytes(number: float) -> str:
    power = min(4, max(0, int(math.log10(max(number, 1)) // 3)))
    return f"{number / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
