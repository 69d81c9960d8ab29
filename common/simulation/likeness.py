"""Machines like those of a recorded run: what was fitted, in numbers, in words, and as a file."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..contract.scheme import Scheme
from ..files import replacing
from ..record.summary import size_in_bytes
from ..virtual_time.platform import Machines, Platform
from ..virtual_time.step_times import RecordedSteps

ALIKE = 0.1  # numbers of parameters that differ by no more have messages of the same size

SPREAD = 10, 50, 90  # percentiles that are shown

UNCORRELATED = 0.1  # correlation of rounds that counts as none

BLOCK = 10  # times the rounds after which there is none left: that much of it stays

LEAST_BLOCKS = 4  # that the record has

STEPS, PLATFORM = "steps.npy", "machines.toml"


@dataclass(frozen=True)
class Likeness:
    """Machines like those of a run. Times are in seconds.

    Attributes:
        scheme, workers: of the run.
        rounds: that were used.
        steps: the mean time of a step in each round in order, [W, n], but for what it takes of cores that are shared.
        period: steps of a round.
        cores: that all workers share, or None; a step takes one of them for `core`.
        latency: of a message, one way, in the mean; `latency_sigma` is how it varies.
        rate: bytes per second of a worker's link.
        card: of the network card of each ps task; infinite if messages did not queue for it.
        service: under the lock of the ps; None if it is not known.
        parameters: of the model of the run; `size` are the bytes of its messages.
    """

    scheme: Scheme
    workers: int
    rounds: int
    steps: np.ndarray
    period: int
    cores: int | None = None
    core: float = 0.0
    latency: float = 0.0
    latency_sigma: float = 0.0
    rate: float = math.inf
    service: float | None = None
    card: float = math.inf
    parameters: int = 0
    size: float = 0.0

    @property
    def step(self) -> float:
        """The mean time of a step, but for what it takes of cores that are shared."""
        return float(self.steps.mean())

    @property
    def block(self) -> int:
        """Rounds that are drawn together, so that what belongs together stays together."""
        return block_of(self.steps)

    @property
    def _times(self) -> np.ndarray:
        """Of single steps of a worker that is as fast as all in the mean, as far as they are known, [W, n]."""
        return np.repeat(self.steps / self._factors[:, None], self.period, 1)

    @property
    def _factors(self) -> np.ndarray:
        """The time of each worker's steps as a multiple of the mean of all, [W]."""
        return self.steps.mean(1) / self.step

    def with_parameters(self, number: int) -> Likeness:
        """The same machines for a model of that size.

        Where neither messages of other sizes nor a card have told the part of their bytes, all of their time is that.
        """
        if not self.hides_bytes(number) or not math.isinf(self.card):
            return self
        size = self.size if self.scheme.gate.uses_ps else self.size * (self.workers - 1) / self.workers
        return replace(self, latency=0.0, latency_sigma=0.0, rate=size / self.latency)

    def hides_bytes(self, number: int) -> bool:
        """Return True if the latency has bytes in it that a model of that size has more or fewer of."""
        alike = abs(number - self.parameters) <= ALIKE * self.parameters
        return self.scheme.gate.exchanges and math.isinf(self.rate) and self.latency > 0 and not alike

    def machines(self) -> Machines:
        """In numbers."""
        model = RecordedSteps(self._times / self.step, self.block * self.period)
        return replace(Machines.of(Platform(**self._fields())), model=model)

    def _fields(self) -> dict[str, Any]:
        """Of `Platform`, but for the model of steps."""
        links: dict[str, str] = (
            {} if math.isinf(self.rate) else dict.fromkeys(("uplink", "downlink"), f"{self.rate:.0f}B")
        )
        if not math.isinf(self.card):
            links["ps_link"] = f"{self.card:.0f}B"
        shared = {} if self.cores is None else {"cores": self.cores, "core_ms": round(1e3 * self.core, 6)}
        return {
            "step_ms": round(1e3 * self.step, 6),
            "step_factors": ",".join(f"{factor:.6g}" for factor in self._factors),
            "latency": f"{1e9 * self.latency:.0f}ns",
            "latency_sigma": round(self.latency_sigma, 6),
            "service": f"{1e9 * (self.service or 0.0):.0f}ns",
            **links,
            **shared,
        }

    def write(self, folder: Path) -> Path:
        """Write the platform and its times of steps into a folder; returns the file, which `--network` takes.

        Raises:
            CannotWrite: there is no room, or no right to.
        """
        times = folder.resolve() / STEPS
        with replacing(times) as file:
            np.save(file, self._times)
        fields = self._fields() | {"compute": f"recorded:path={times},block={self.block * self.period}"}
        with replacing(folder / PLATFORM) as file:
            file.write("".join(f"{name} = {_toml(value)}\n" for name, value in fields.items()).encode())
        return folder / PLATFORM

    def in_words(self) -> list[str]:
        """What was fitted, in a few lines."""
        low, middle, high = np.percentile(1e3 * self.steps, SPREAD)
        speeds = self.steps.mean(1) / self.step
        lines = [
            f"fitted to {self.rounds:,} rounds of {self.scheme.name}: {counted(self.workers, 'worker')}, "
            f"{counted(self.period, 'step')} a round",
            f"a step          {middle:.3g} ms in the median, 10 to 90 % {low:.3g} to {high:.3g}, workers "
            f"{speeds.min():.2f} to {speeds.max():.2f} of the mean; drawn in blocks of {counted(self.block, 'round')}",
        ]
        if self.cores is not None:
            lines.append(f"cores           {self.cores}, shared by all; a step takes {1e3 * self.core:.3g} ms of one")
        if self.scheme.gate.exchanges:
            rate = f"and {8e-6 * self.rate:.3g} Mbit/s"
            if math.isinf(self.rate):
                size = size_in_bytes(self.size)
                rate = f"its {size} included: one size does not tell their part (--latency, --uplink, --downlink)"
            spread = f", sigma {self.latency_sigma:.2g}" if self.latency_sigma else ""
            lines.append(f"a message       {1e3 * self.latency:.3g} ms each way{spread}, {rate}")
        if self.scheme.gate.uses_ps:
            held = "too few waited for it to say: none is assumed (--service)"
            if self.service is not None:
                held = f"{1e3 * self.service:.3g} ms a message"
            lines.append(f"under the lock  {held}")
        card = "no message is known to have waited for it: unlimited, so more workers may look too fast (--ps-link)"
        if not math.isinf(self.card):
            card = (
                f"{8e-6 * self.card:.3g} Mbit/s, shared by all messages: they are longer where there are more of them"
            )
        lines.append(f"card of the ps  {card}")
        return [*lines, *self._unknown()]

    def _unknown(self) -> list[str]:
        """What the record could not tell, and what to do."""
        longest = 1e3 * float(self.steps.max())
        said = [f"no step is longer than the longest on record, {longest:.3g} ms: rarer ones make more workers wait"]
        if self.period > 1:
            said.append(f"how steps vary within a round of {self.period} is not on record: take a run of period 1")
        if not self.scheme.gate.uses_ps:
            said.append("the run had no ps: its card and its lock are taken as ideal (--ps-link, --service)")
        return [f"not known        {line}" for line in said]


def counted(number: int, what: str) -> str:
    """As in `1 step`, `2 steps`."""
    return f"{number} {what}{'s' * (number != 1)}"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def block_of(values: np.ndarray) -> int:
    """How many values in a row, [W, n], must stay together for most of their correlation to be kept."""
    number = values.shape[1]
    deviations = values - values.mean(1, keepdims=True)
    variance = (deviations**2).sum()
    lag = 1
    while lag < number // LEAST_BLOCKS and variance > 0:
        if (deviations[:, lag:] * deviations[:, :-lag]).sum() < UNCORRELATED * variance:
            break
        lag += 1
    return max(1, min(1 if lag == 1 else BLOCK * lag, number // LEAST_BLOCKS))
