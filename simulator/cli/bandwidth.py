"""The link that an algorithm needs: `bash run.sh bandwidth diloco --parameters 1B --layers 24 --step-ms 100`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from ...common.arguments import below_one, positive
from ...common.cli import flags
from ...common.cli.flag_groups import scheme_of
from ...common.cluster.platform import nanoseconds
from ...common.contract.hyperparameters import Fraction, Natural, NotNegative, Positive, check_fields
from ...common.contract.rounding import rounded
from ...common.contract.scheme import Scheme
from ...common.errors import UserError
from ...common.files import dumps
from ...common.record.plot import bare, check_format, figure_class, lines_of, save
from ...common.record.tables import columns
from ..virtual_time.layers import Exchange, LayeredStep, Pattern, exchange_of, needed_rate, utilisation
from ..virtual_time.schedule import SECOND
from .machines import number_of_parameters

GIGABIT = 10**9

GRID = np.logspace(-1, 3, 50)  # Gbit/s, of Table 4 in arXiv:2501.18512

POINTS = 60  # of a curve

# A packet of 1500 bytes has 20 of IP, 20 of TCP and 12 of a timestamp; Ethernet adds 38, with the gap after it.
GOODPUT = round(1448 / 1538, 3)

# The range of 8 % is that of a box plot without outliers: four times the distance of the quartiles, 5.4 deviations.
SPREAD = 0.015

SAME = 1e-5  # of a rate: the precision with which it is found

ABOUT = (
    "Compute the bandwidth of a worker's link, each way, at which workers compute for a given fraction of their time. "
    "Messages of layers travel while others are computed. For algorithms with options as in "
    "diloco:communication_period=100. See docs/bandwidth.md."
)


@dataclass(frozen=True, kw_only=True)
class LinkQuestion:
    """The algorithms, the model and the messages."""

    algorithms: tuple[str, ...] = ()
    """Algorithms, with options as in diloco:communication_period=100."""
    utilisation: str = "0.5,0.8,0.9,0.95,0.99"
    """Fractions of the time of a worker in which it computes, below 1."""
    parameters: str = "1B"
    """Number of parameters of the model, as in 25M."""
    layers: int = 24
    """Number of layers of the model, all of the same size."""
    step_ms: Positive = 100.0
    """Milliseconds of a local step that waits for no message."""
    workers: Natural = 2
    """Number of worker tasks."""
    over: Literal["collective", "ps", "as-here"] = "as-here"
    """Path of messages: a reduction among the workers (collective), or parameter servers with faster links (ps);
    as-here is that of the algorithm in this package."""
    buckets: int | None = None
    """Number of messages of a vector, or of a fragment. Default: that of the algorithm if it has several, or one for
    each layer. 1: the whole vector at once, as most runs of this package send it."""
    fragments: int | None = None
    """Number of fragments of the layers, sent in turn within a period. Default: that of the algorithm, or 1."""
    pattern: Pattern = "strided"
    """Layers of a fragment: strided or sequential."""
    delay: int | None = None
    """Local steps between a message and the use of its reply, while the worker computes. Default: that of the
    algorithm, or 0."""
    bits: str = ""
    """Bits of a parameter in a message, as in 16, or in a message and in its reply, as in 4,16. Default: those of the
    codec."""
    codec: str = "float32"
    """Compression of messages, as in training; algorithms with a codec of their own keep it."""
    latency: str = "0ms"
    """Time until the first bit of a message arrives."""
    goodput: Fraction = GOODPUT
    """Fraction of a link's rate that messages have. Default: 1448 bytes of data in the 1538 that a packet of TCP takes
    on Ethernet."""
    spread: NotNegative = SPREAD
    """Standard deviation of the workers' step times, as a fraction of their mean; all wait for the slowest, in
    proportion to the period. Default: that of equal GPUs, which differ by 8 % (Sinha et al. 2022, arXiv:2208.11035)."""
    grid: bool = False
    """Round up to the next of 50 bandwidths from 0.1 to 1000 Gbit/s, in equal ratios."""
    plot: Path | None = None
    """Picture of utilisation over bandwidth to write: .png, .svg or .pdf."""
    json: bool = False
    """Print the bandwidths in bits per second as JSON, instead of the table; null where no link is enough."""

    def __post_init__(self):
        if not self.algorithms:
            raise UserError("bandwidth needs an algorithm, as in: bandwidth diloco --parameters 1B --layers 24")
        check_fields(self)
        if self.plot is not None:
            check_format("plot", self.plot)
        _ = self.fractions, self.both_bits

    @property
    def fractions(self) -> list[float]:
        """The wanted utilisations."""
        found = _numbers("utilisation", self.utilisation)
        for each in found:
            below_one(utilisation=each)
        return found

    @property
    def both_bits(self) -> list[float]:
        """Bits of a parameter in a message and in its reply; empty if they are those of the codec."""
        found = _numbers("bits", self.bits) if self.bits else []
        if len(found) > 2:
            raise UserError(f"bits takes a number, or two for messages and replies. Received: {self.bits!r}")
        return found * (3 - len(found)) if found else []

    @property
    def step(self) -> LayeredStep:
        """What a worker computes."""
        return LayeredStep(
            layers=self.layers, seconds=self.step_ms / 1e3, parameters=number_of_parameters(self.parameters)
        )

    def exchange(self, scheme: Scheme) -> Exchange:
        """Return what the workers of an algorithm send; raises `UserError` if they send nothing."""
        found = exchange_of(rounded(scheme, self.codec), round(self.step.parameters), self.workers, self.layers)
        if self.over == "collective":
            found = found.reduced()
        if self.over == "ps":
            found = replace(found, uses_ps=True)
        names = "buckets", "fragments", "delay"
        overrides = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.both_bits:
            overrides |= {"bits_up": self.both_bits[0], "bits_down": self.both_bits[1], "gathered": False}
        overrides["latency"] = nanoseconds("latency", self.latency) / SECOND
        overrides["spread"] = self.spread if scheme.sync.waits else 0.0
        return replace(found, pattern=self.pattern, goodput=self.goodput, **overrides)


def _numbers(name: str, text: str) -> list[float]:
    """Parse positive numbers between commas."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{name} takes numbers between commas. Received: {text!r}") from None
    for each in found:
        positive(**{name: each})
    return found


def main(arguments: list[str]) -> int:
    """Print the bandwidth that each algorithm needs for each utilisation; return the exit code."""
    (question,) = flags.read("run.sh bandwidth", ABOUT, arguments, {"question": LinkQuestion}, positional="algorithms")
    exchanges = {text: question.exchange(scheme_of(text)) for text in question.algorithms}
    found = {
        text: [_on_grid(needed_rate(question.step, exchange, each), question.grid) for each in question.fractions]
        for text, exchange in exchanges.items()
    }
    if question.json:
        names = [f"{each:g}" for each in question.fractions]
        finite = {text: [rate if math.isfinite(rate) else None for rate in rates] for text, rates in found.items()}
        rows = {text: dict(zip(names, rates, strict=True)) for text, rates in finite.items()}
        print(dumps(rows), flush=True)  # noqa: T201
    else:
        page = Console(highlight=False)
        page.print(_table(question, found))
        page.print(_notes(question, exchanges))
    if question.plot is not None:
        save(_picture(question, exchanges), question.plot)
        if not question.json:
            print(question.plot)  # noqa: T201
    return 0


def _on_grid(rate: float, grid: bool) -> float:
    """Return the rate, or the next point of the grid."""
    if not grid:
        return rate
    return next((float(point) for point in GIGABIT * GRID if point >= rate * (1 - SAME)), math.inf)


def _table(question: LinkQuestion, found: Mapping[str, list[float]]) -> Table:
    shares = [f"{100 * each:g}%" for each in question.fractions]
    title = "Gbit/s of a worker's link, each way, by the time that the worker computes"
    table = columns("algorithm", *shares, right=shares, title=title)
    for text, rates in found.items():
        table.add_row(text, *(f"{rate / GIGABIT:.3g}" if math.isfinite(rate) else "none" for rate in rates))
    return table


def _notes(question: LinkQuestion, exchanges: Mapping[str, Exchange]) -> str:
    lines = [
        f"Computed, not measured: {question.workers} workers, {question.parameters} parameters in {question.layers} "
        f"layers, {question.step_ms:g} ms a step."
    ]
    lines += _each(exchanges, lambda each: f"{each.bits_up:.3g} bits a parameter up, {each.bits_down:.3g} down")
    lines += _each(exchanges, _sent)
    if any(each.gathered for each in exchanges.values()):
        lines.append("Messages much smaller than their sum go to all workers, and are not added up on the way.")
    if any(each.uses_ps for each in exchanges.values()):
        lines.append("The links of the parameter servers are taken as fast enough for all workers.")
    lines.append(f"Messages have {question.goodput:.3g} of a link's rate (--goodput).")
    if waits := max(each.slowest for each in exchanges.values()) - 1:
        lines.append(
            f"Step times of workers differ by {question.spread:.2g} of their mean (--spread): all wait for the "
            f"slowest, and compute for {1 / (1 + waits):.1%} of their time at most."
        )
    return "\n" + " ".join(lines)


def _sent(exchange: Exchange) -> str:
    """Describe how a vector leaves a worker."""
    if exchange.buckets is None:
        return "a layer is sent as soon as its gradient is known; runs send a vector at once (--buckets 1)"
    return f"a vector is sent in {exchange.buckets} message{'s' * (exchange.buckets > 1)}"


def _each(exchanges: Mapping[str, Exchange], describe: Callable[[Exchange], str]) -> list[str]:
    """Return what is so of each exchange, in a sentence for those that are alike, with their names if others differ."""
    alike: dict[str, list[str]] = {}
    for text, exchange in exchanges.items():
        alike.setdefault(describe(exchange), []).append(text)
    if len(alike) == 1:
        return [f"{sentence[0].upper()}{sentence[1:]}." for sentence in alike]
    return [f"{', '.join(names)}: {sentence}." for sentence, names in alike.items()]


def _picture(question: LinkQuestion, exchanges: Mapping[str, Exchange]) -> Any:
    figure = figure_class()(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    names = [text.partition(":")[0] for text in exchanges]
    for (text, exchange), line in zip(exchanges.items(), lines_of(names), strict=True):
        rates = np.geomspace(*_range(question.step, exchanges.values()), POINTS)
        axes.plot(
            rates / GIGABIT, [100 * utilisation(question.step, exchange, rate) for rate in rates], label=text, **line
        )
    axes.set(xscale="log", xlabel="bandwidth of a worker's link (Gbit/s each way)", ylabel="time computing (%)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 102)
    bare(axes)
    axes.legend()
    axes.set_title(
        f"{question.parameters} parameters, {question.layers} layers, {question.step_ms:g} ms a step", fontsize=10
    )
    return figure


def _range(step: LayeredStep, exchanges: Iterable[Exchange]) -> tuple[float, float]:
    """Return the ends of the axis, around the rates at which sending would take as long as computing."""
    sent = [step.parameters * (each.bits_up + each.bits_down) / 2 / each.period for each in exchanges]
    return min(sent) / step.seconds / 20, max(sent) / step.seconds * 20
