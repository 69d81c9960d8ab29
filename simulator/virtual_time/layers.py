"""Steps of layers in virtual time: messages that travel while a worker computes, and how fast a link they need.

A step is a graph of 3 L − 1 nodes of equal time, which a worker computes one after the other: the forward pass of the
layers 1 to L; then, from the last layer to the first, the backward pass to the activations (not of the first layer) and
to the parameters. A message of a layer is ready when its parameters' node is, goes to a link, which serves messages in
their order, and is needed by the forward node of that layer τ + 1 steps later. All workers have a link of the same rate
each way and wait for the slowest, so that this one stands for all. Of W workers whose step times are normal it takes
1 + σ E max(z_1 ... z_W) times as long as the mean: a wait that grows with H, and that no delay hides.

    all_reduce          every layer in each step
    DiLoCo              every layer in each H-th step
    gossip              a copy of every layer for each neighbour
    Streaming DiLoCo    a fragment of the layers in turn, each in every H-th step, used τ steps later

Reference: Douillard et al. 2025, *Streaming DiLoCo with overlapping communication*, arXiv:2501.18512, whose Table 4
has the bandwidths that this model needs (`bash run.sh reproduced utilisation`). The links are those of two workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, get_args

import numpy as np

from ...common.arguments import at_least, at_most, fraction, not_negative, one_of, positive
from ...common.contract.hyperparameters import declared
from ...common.contract.scheme import Scheme
from ...common.errors import UserError
from ...common.server.traffic import Traffic, halves, square_layers

CYCLES = 12  # times that a message comes back as its reply; the second half of them is measured

FASTEST = 1e18  # bits per second: a utilisation that such a link does not reach is out of reach

NEAR = 1e-9  # of a utilisation: differences are those of rounding

Pattern = Literal["strided", "sequential"]


@dataclass(frozen=True, kw_only=True)
class LayeredStep:
    """A step of a model of equal layers.

    Attributes:
        layers: number of layers, L.
        seconds: of a step that waits for no message.
        parameters: number of parameters of the model, P; each layer has P/L.
    """

    layers: int
    seconds: float
    parameters: float

    def __post_init__(self):
        at_least(1, layers=self.layers)
        positive(seconds=self.seconds, parameters=self.parameters)

    @property
    def node(self) -> float:
        """Seconds of a node of the graph."""
        return self.seconds / (3 * self.layers - 1)

    def ready(self, layer: int) -> float:
        """Return the seconds from the end of the forward pass until the gradient of a layer, from 0, is ready."""
        return min(2 * (self.layers - layer), 2 * self.layers - 1) * self.node


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What workers send, and when.

    Attributes:
        period: local steps between two messages of a layer, H.
        fragments: the layers are cut into so many fragments, F, which are sent in turn, H/F steps apart; at most H.
        pattern: `strided` if fragment p has the layers p, p + F, p + 2 F, ..., `sequential` if they are consecutive.
        buckets: number of messages of a fragment; by default one for each layer. A message of several layers is ready
            with the last of them in the backward pass, and needed by the first of them in the forward pass.
        delay: local steps between the message and the use of its reply, τ.
        bits_up, bits_down: bits of a parameter in a message, and in its reply.
        workers: W. In a reduction a worker sends and receives (W − 1)/W of the vector twice: first as messages, then as
            replies.
        uses_ps: True if messages go to a parameter server, which has a faster link: then a reply follows its message,
            and both are as long as the vector.
        gathered: True if a reduction has one half, in which all messages go to all, see `traffic.halves`.
        neighbours: messages that a worker sends to neighbours and gets of them, in place of a reduction.
        latency: seconds until the first bit of a message arrives, which occupies no link.
        goodput: fraction of a link's rate that messages have; the rest are headers and gaps between packets.
        spread: standard deviation σ of the workers' step times, as a fraction of their mean.
    """

    period: int = 1
    fragments: int = 1
    pattern: Pattern = "strided"
    buckets: int | None = None
    delay: int = 0
    bits_up: float = 32
    bits_down: float = 32
    workers: int = 2
    uses_ps: bool = False
    gathered: bool = False
    neighbours: float | None = None
    latency: float = 0.0
    goodput: float = 1.0
    spread: float = 0.0

    def __post_init__(self):
        at_least(1, period=self.period, fragments=self.fragments, workers=self.workers)
        at_least(0, delay=self.delay)
        if self.buckets is not None:
            at_least(1, buckets=self.buckets)
        if self.fragments > self.period:
            raise UserError(
                f"fragments must be at most {self.period}, the period, as each is sent in a step of its "
                f"own. Received: fragments={self.fragments}"
            )
        one_of(get_args(Pattern), pattern=self.pattern)
        positive(bits_up=self.bits_up, bits_down=self.bits_down)
        not_negative(latency=self.latency, spread=self.spread)
        positive(goodput=self.goodput)
        at_most(1, goodput=self.goodput)

    def check(self, layers: int) -> None:
        """Raise `UserError` if so many layers cannot be cut into the fragments."""
        if self.fragments > layers:
            raise UserError(
                f"fragments must be at most the number of layers, {layers}. Received: fragments={self.fragments}"
            )

    def messages(self, step: int, layers: int) -> Iterator[tuple[int, int]]:
        """Yield the messages of a step in the order in which they are ready: the first layer of each, and their number.

        Fragment p, from 0, is sent in the steps s with s mod H = ⌊(p + 1) H/F⌋ − 1.
        """
        sent = [p for p in range(self.fragments) if ((p + 1) * self.period) // self.fragments - 1 == step % self.period]
        yield from sorted((bucket for p in sent for bucket in self._buckets(p, layers)), reverse=True)

    def _buckets(self, fragment: int, layers: int) -> Iterator[tuple[int, int]]:
        if self.pattern == "strided":
            of_fragment = range(fragment, layers, self.fragments)
        else:
            of_fragment = range(fragment * layers // self.fragments, (fragment + 1) * layers // self.fragments)
        number = min(self.buckets or len(of_fragment), len(of_fragment))
        for i in range(number):
            first, end = i * len(of_fragment) // number, (i + 1) * len(of_fragment) // number
            yield of_fragment[first], end - first

    @property
    def slowest(self) -> float:
        """Step time of the slowest worker, as a multiple of the mean."""
        return 1 + self.spread * largest_of(self.workers)

    def hops(self, parameters: float, rate: float) -> list[tuple[float, float]]:
        """Return the links that a message of so many parameters takes, one after the other: seconds on it, and latency.

        A reduction is one link, with a latency for each half.
        """
        up, down = (8 * moved / (rate * self.goodput) for moved in self.moved(parameters))
        if self.uses_ps:
            return [(up, self.latency), (down, self.latency)]
        if self.neighbours is not None:
            return [(up, self.latency)]
        return [(up + down, self.latency if self.gathered else 2 * self.latency)]

    def moved(self, parameters: float) -> tuple[float, float]:
        """Return the bytes that a worker sends, and receives, with a message of so many parameters and its reply.

        In a reduction it sends and receives as many in both halves: these are those of the first half and the second.
        """
        up, down = parameters * self.bits_up / 8, parameters * self.bits_down / 8
        if self.uses_ps:
            return up, down
        if self.neighbours is not None:
            return self.neighbours * up, self.neighbours * up
        if self.gathered:
            return 0.0, (self.workers - 1) * up
        share = (self.workers - 1) / self.workers
        return share * up, share * down

    def reduced(self) -> Exchange:
        """Return the same exchange as a reduction among the workers."""
        gathered = not halves(self.bits_up, self.bits_down, self.workers)[0]
        return replace(self, uses_ps=False, neighbours=None, gathered=gathered)


@cache
def largest_of(number: int) -> float:
    """Return the mean of the largest of so many standard normal numbers."""
    from scipy.special import ndtr

    x = np.linspace(0, 10, 10_001)
    return float(np.trapezoid(1 - ndtr(x) ** number - ndtr(-x) ** number, x))


def exchange_of(scheme: Scheme, parameters: int, workers: int, layers: int) -> Exchange:
    """Return what the workers of an algorithm send: in the buckets of its rule, or else one for each layer.

    Raises:
        UserError: the workers send nothing, or not one message in each period.
    """
    if not scheme.sync.exchanges:
        raise UserError(f"{scheme.name} has one worker, which needs no link")
    if scheme.events != frozenset({"exchange"}):
        raise UserError(f"{scheme.name} pushes and pulls in periods of their own, which no formula covers: simulate it")
    if scheme.sync.in_pairs:
        raise UserError(
            f"workers of {scheme.name} share the links of their peers, which no formula covers: simulate it"
        )
    fragments = declared(scheme, "fragments", 1)  # a message and a round are those of one fragment
    traffic = Traffic(scheme, scheme.codecs()[0], workers, [parameters], shapes=square_layers(parameters, layers))
    up, down = (8 * fragments * moved / parameters for moved in (traffic.message, traffic.reply))
    found = Exchange(
        period=scheme.period * fragments,
        fragments=fragments,
        buckets=scheme.sync.buckets if scheme.sync.buckets > 1 else None,
        delay=scheme.overlap,
        bits_up=up,
        bits_down=down,
        workers=workers,
        uses_ps=scheme.sync.uses_ps,
        neighbours=scheme.sync.traffic(workers)[0] if scheme.sync.gossips else None,
    )
    return found if found.uses_ps or scheme.sync.gossips else found.reduced()


def utilisation(step: LayeredStep, exchange: Exchange, rate: float) -> float:
    """Return the fraction of its time that a worker computes, if its link carries `rate` bits per second each way.

    Example:
        >>> from distsgd.simulator.virtual_time.layers import Exchange, LayeredStep, utilisation
        >>> step = LayeredStep(layers=24, seconds=0.1, parameters=1e9)
        >>> round(utilisation(step, Exchange(period=100, bits_up=16, bits_down=16), rate=10e9), 3)
        0.862
    """
    exchange.check(step.layers)
    slowest = replace(step, seconds=step.seconds * exchange.slowest)
    worker = _Worker(slowest, exchange, rate)
    periods = CYCLES // 2 * (1 + exchange.delay // exchange.period)  # a delay of several lets their lengths differ
    start = worker.after(periods * exchange.period)
    seconds = (worker.after(periods * exchange.period) - start) / periods
    # A delay hides for many periods that a link falls behind, but no period is shorter than its messages in the end.
    return exchange.period * step.seconds / max(seconds, step.layers * max(seconds for seconds, _ in worker.hops))


class _Worker:
    """A worker that computes steps and sends messages; times are seconds since its start."""

    def __init__(self, step: LayeredStep, exchange: Exchange, rate: float):
        self.step, self.exchange = step, exchange
        self.hops = exchange.hops(step.parameters / step.layers, rate)
        self.now, self.number = 0.0, 0
        self.links = [0.0] * len(self.hops)  # times at which they are free
        self.due: dict[int, list[tuple[int, float]]] = {}  # for each step the layers that need a reply, and its time

    def after(self, steps: int) -> float:
        """Return the time after further steps."""
        for _ in range(steps):
            self._forward()
            for first, number in self.exchange.messages(self.number, self.step.layers):
                self._send(first, number)
            self.now += self.step.ready(0)
            self.number += 1
        return self.now

    def _forward(self) -> None:
        """Compute the forward pass, whose nodes wait for the replies that they need."""
        node = self.step.node
        for layer, arrives in sorted(self.due.pop(self.number, [])):
            self.now += max(0.0, arrives - (self.now + layer * node))
        self.now += self.step.layers * node

    def _send(self, first: int, number: int) -> None:
        """Send the message of `number` layers, which is ready with the gradient of layer `first`."""
        at = self.now + self.step.ready(first)
        for i, (seconds, latency) in enumerate(self.hops):
            self.links[i] = max(self.links[i], at) + number * seconds
            at = self.links[i] + latency
        self.due.setdefault(self.number + 1 + self.exchange.delay, []).append((first, at))


def needed_rate(step: LayeredStep, exchange: Exchange, wanted: float) -> float:
    """Return the least rate of the links, in bits per second each way, for a utilisation; infinite if none is enough.

    Args:
        step: what a worker computes.
        exchange: what it sends.
        wanted: fraction of its time that a worker computes, below 1.
    """
    fraction(utilisation=wanted)

    def enough(rate: float) -> bool:
        return utilisation(step, exchange, rate) >= wanted - NEAR

    if not enough(FASTEST):
        return math.inf
    low, high = 0.0, math.log(FASTEST)
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if enough(math.exp(middle)) else (middle, high)
    return math.exp(high)
