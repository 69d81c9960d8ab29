"""Machines fitted to a recorded run: in numbers, in words, and as a file."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..contract.scheme import Scheme
from ..files import replacing
from ..record.summary import size_in_bytes
from ..virtual_time.distributions import RecordedSteps
from ..virtual_time.platform import Machines, Platform

ALIKE = 0.1  # numbers of parameters that differ by no more have messages of the same size

SPREAD = 10, 50, 90  # percentiles of step times to show

UNCORRELATED = 0.1  # correlation of rounds that counts as none

BLOCK = 10  # length of a block, in multiples of the lag at which the correlation vanishes

LEAST_BLOCKS = 4  # the fewest blocks of the recorded rounds

STEPS, PLATFORM = "steps.npy", "machines.toml"


@dataclass(frozen=True)
class Likeness:
    """Machines fitted to a run. Times are in seconds.

    Attributes:
        scheme, workers: the algorithm and the number of workers of the run.
        rounds: number of rounds used for the fit.
        steps: mean time of a step in each round in order, [W, n], without its time on shared cores.
        period: steps of a round.
        cores: number of cores that all workers share, or None; a step takes one of them for `core`.
        latency: mean latency of a message, one way; `latency_sigma` is its variation.
        rate: bytes per second of a worker's link.
        card: bytes per second of the network card of each ps task; infinite if messages did not queue for it.
        service: time of a message under the lock of the ps; None if unknown.
        parameters: size of the run's model; `size` are the bytes of its messages.
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
        """Mean time of a step, without its time on shared cores."""
        return float(self.steps.mean())

    @property
    def block(self) -> int:
        """Number of consecutive rounds that are drawn together, which keeps their correlation."""
        return block_of(self.steps)

    @property
    def _times(self) -> np.ndarray:
        """Times of single steps, scaled to a worker of mean speed; equal within a round, [W, n]."""
        return np.repeat(self.steps / self._factors[:, None], self.period, 1)

    @property
    def _factors(self) -> np.ndarray:
        """Mean step time of each worker as a multiple of the mean of all, [W]."""
        return self.steps.mean(1) / self.step

    def with_parameters(self, number: int) -> Likeness:
        """Return the same machines for a model of that size.

        If the run had messages of one size and no queue at a card, the share of the bytes in the latency is unknown:
        the whole latency then counts as time of the bytes.
        """
        if not self.hides_bytes(number) or not math.isinf(self.card):
            return self
        size = self.size if self.scheme.gate.uses_ps else self.size * (self.workers - 1) / self.workers
        return replace(self, latency=0.0, latency_sigma=0.0, rate=size / self.latency)

    def hides_bytes(self, number: int) -> bool:
        """Return True if the latency includes the time of bytes, and a model of that size has more or fewer of them."""
        alike = abs(number - self.parameters) <= ALIKE * self.parameters
        return self.scheme.gate.exchanges and math.isinf(self.rate) and self.latency > 0 and not alike

    def machines(self) -> Machines:
        """Return the machines in numbers."""
        model = RecordedSteps(self._times / self.step, self.block * self.period)
        return replace(Machines.of(Platform(**self._fields())), model=model)

    def _fields(self) -> dict[str, Any]:
        """Return the fields of `Platform`, except the model of steps."""
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
        """Write the platform and its step times to a folder; return the path for `--network`.

        Raises:
            CannotWrite: the disk is full, or the folder is not writable.
        """
        times = folder.resolve() / STEPS
        with replacing(times) as file:
            np.save(file, self._times)
        fields = self._fields() | {"compute": f"recorded:path={times},block={self.block * self.period}"}
        with replacing(folder / PLATFORM) as file:
            file.write("".join(f"{name} = {_toml(value)}\n" for name, value in fields.items()).encode())
        return folder / PLATFORM

    def in_words(self) -> list[str]:
        """Describe the fit in a few lines."""
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
                rate = f"its {size} included: with one size their share is unknown (--latency, --uplink, --downlink)"
            spread = f", sigma {self.latency_sigma:.2g}" if self.latency_sigma else ""
            lines.append(f"a message       {1e3 * self.latency:.3g} ms each way{spread}, {rate}")
        if self.scheme.gate.uses_ps:
            held = "too few messages waited to measure it: none is assumed (--service)"
            if self.service is not None:
                held = f"{1e3 * self.service:.3g} ms a message"
            lines.append(f"under the lock  {held}")
        card = "no message waited for it: taken as unlimited, so more workers may look too fast (--ps-link)"
        if not math.isinf(self.card):
            card = f"{8e-6 * self.card:.3g} Mbit/s, shared by all messages: more of them take longer"
        lines.append(f"card of the ps  {card}")
        return [*lines, *self._unknown()]

    def _unknown(self) -> list[str]:
        """Describe the quantities that the record does not determine, and the remedies."""
        longest = 1e3 * float(self.steps.max())
        said = [f"rare steps longer than the longest recorded one, {longest:.3g} ms: they would make more workers wait"]
        if self.period > 1:
            said.append(f"the variation of steps within a round of {self.period}: take a run of period 1")
        if not self.scheme.gate.uses_ps:
            said.append("card and lock of a ps, as the run had none: taken as ideal (--ps-link, --service)")
        return [f"not known        {line}" for line in said]


def counted(number: int, what: str) -> str:
    """Format a count, as in `1 step`, `2 steps`."""
    return f"{number} {what}{'s' * (number != 1)}"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def block_of(values: np.ndarray) -> int:
    """Return the number of consecutive values, [W, n], that a block needs to keep most of their correlation."""
    number = values.shape[1]
    deviations = values - values.mean(1, keepdims=True)
    variance = (deviations**2).sum()
    lag = 1
    while lag < number // LEAST_BLOCKS and variance > 0:
        if (deviations[:, lag:] * deviations[:, :-lag]).sum() < UNCORRELATED * variance:
            break
        lag += 1
    return max(1, min(1 if lag == 1 else BLOCK * lag, number // LEAST_BLOCKS))
