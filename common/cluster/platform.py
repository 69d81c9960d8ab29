"""The machines of a simulated run: the times of computing and sending, and failures.

Each field is a keyword argument, a flag of the command line and a key of a TOML file. A field that is not given has the
value of the network, or else is ideal: only computing takes time.

Not modelled: time of day, links that fail or change, messages that overlap with computing (but see `layers`), several
jobs on the same machines, a ps whose speed depends on the worker, memory. A worker is one machine, with its own link
each way.
"""

from __future__ import annotations

import math
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from ..arguments import CheckedCall, a_text, at_most, nearest
from ..contract.hyperparameters import Natural, NotNegative, Positive, check_fields, check_values
from ..errors import UserError
from ..spec import parse
from .distributions import MOST_SIGMA, RecordedSteps, lognormal_factors, model, uniforms

MILLISECOND = 10**6  # nanoseconds

BANDWIDTHS = "uplink", "downlink", "ps_link", "ps_rate"

CLASSES = 16  # number of different links, if workers' links differ

MOST_MILLISECONDS = 1e9  # the longest step: eleven days

not_longer = partial(at_most, MOST_MILLISECONDS)

Sigma = Annotated[NotNegative, partial(at_most, MOST_SIGMA)]

MOST_FACTOR = 1e6  # the largest of step_factors; its inverse is the smallest

MOST_REPEATED = 10_000  # the largest N of one `*N`

# Values for the fields of `Platform`. Bandwidths and latencies of `one-rack`, `internet` and `federated` are round
# numbers of their kind. The regions of `cloud-regions` are four sites of a cloud seen from the first, where the ps is:
# bandwidths as in the example of HALoS (Kim et al. 2025), latencies of continents.
IDEAL: dict[str, Any] = {
    "step_ms": 10.0,
    "compute": "constant",
    "step_factors": "1",
    "cores": None,
    "core_ms": 0.0,
    "uplink": "unlimited",
    "downlink": "unlimited",
    "link_sigma": 0.0,
    "latency": "0ms",
    "latency_sigma": 0.0,
    "regions": "none",
    "ps_link": "unlimited",
    "sharing": "fair",
    "service": "0us",
    "ps_rate": "unlimited",
    "collective": "slices",
    "failures": "none",
}

NETWORKS: dict[str, dict[str, Any]] = {
    "ideal": {},
    "one-rack": {"uplink": "25Gbit", "downlink": "25Gbit", "ps_link": "25Gbit", "latency": "50us"},
    "cloud-regions": {
        "uplink": "10Gbit",
        "downlink": "10Gbit",
        "ps_link": "25Gbit",
        "latency": "250us",
        "regions": "0ms/100Gbit,30ms/537Mbit,70ms/935Mbit,110ms/202Mbit",
    },
    "internet": {
        "uplink": "100Mbit",
        "downlink": "500Mbit",
        "ps_link": "10Gbit",
        "latency": "40ms",
        "latency_sigma": 0.5,
    },
    "federated": {
        "uplink": "10Mbit",
        "downlink": "50Mbit",
        "link_sigma": 0.6,
        "ps_link": "10Gbit",
        "latency": "50ms",
        "latency_sigma": 0.5,
        "step_factors": "lognormal:sigma=0.6",
    },
}

TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}  # in nanoseconds

RATES = {
    **{f"{prefix}bit": 10**power / 8e9 for prefix, power in (("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12))},
    **{f"{prefix}B": 10**power / 1e9 for prefix, power in (("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12))},
}  # per second, in bytes per nanosecond

UNLIMITED = "unlimited"

LONGEST = 10**6  # hours: a longer time is a mistake, and does not fit into 64 bits of nanoseconds


def _values_of(network: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a preset network or a TOML file sets.

    Args:
        network: the name or the path.
        kinds: the type of each field that a file may set.

    Raises:
        UserError: the network is unknown, or the file has a wrong key or value.
    """
    a_text(network=network)
    if not network.endswith(".toml"):
        if network not in NETWORKS:
            suggestion = nearest(network, NETWORKS)
            raise UserError(f"unknown network {network!r}. {suggestion} Or give the path of a .toml file")
        return dict(NETWORKS[network])
    try:
        found = tomllib.loads(Path(network).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read the network {network}: {getattr(error, 'strerror', None) or error}") from None
    for name, value in found.items():
        if name not in kinds:
            raise UserError(f"{network} has an unknown key {name!r}. {nearest(name, list(kinds))}")
        wanted = kinds[name]
        if not isinstance(value, wanted) or isinstance(value, bool):
            form = "a text in quotes" if wanted is str else "a number"
            raise UserError(f"{name} of {network} must be {form}. Received: {value!r}")
    return found


@dataclass(frozen=True, kw_only=True)
class Platform(CheckedCall):
    """The machines of a run.

    Example:
        >>> internet = Platform(network="internet", compute="lognormal:sigma=0.6")
        >>> cluster = Cluster.local(workers=4, backend="simulation", platform=internet)
        >>> result = train(model, (x, y), Downpour(), cluster=cluster, verbose=False)
        >>> 0 < result.metrics["simulated"]["virtual_seconds"] < 10
        True

    Raises:
        UserError: a value is impossible.
    """

    network: str = "ideal"
    """Network that supplies all values not given below: ideal, one-rack, cloud-regions, internet, federated, or the
    path of a .toml file."""
    step_ms: Annotated[Positive, not_longer] | None = None
    """Mean time of a local step (ms); 10 by default."""
    compute: str | None = None
    """Distribution of step times: constant, exponential, shifted:fixed=0.5, lognormal:sigma=0.6, pareto:shape=2.5,
    phases:slow=10,probability=0.02,length=1 or recorded:path=steps.npy,block=32."""
    step_factors: str | None = None
    """Factors on the step time of the workers, in turn, as in 0.58,0.75,1.51, or 3,1*7 for one slow worker among
    eight; or lognormal:sigma=0.6; or roots:noise=1, which is 1 + √i + noise |N(0, i + 1)| for worker i, from 0."""
    cores: Natural | None = None
    """Number of cores that all workers share for the arithmetic of their steps, if they are on one machine."""
    core_ms: Annotated[NotNegative, not_longer] | None = None
    """Extra CPU time per step (ms) that does not overlap with --step-ms."""
    uplink: str | None = None
    """Bandwidth from a worker to the parameter server, as in 100Mbit. Default: that of --downlink."""
    downlink: str | None = None
    """Bandwidth from the parameter server to a worker, as in 100Mbit. Default: that of --uplink."""
    link_sigma: Sigma | None = None
    """Variation of links between workers: sigma of a lognormal factor on both bandwidths, in 16 classes."""
    latency: str | None = None
    """Mean latency of a message, one way, without the time of its bytes, as in 20ms."""
    latency_sigma: Sigma | None = None
    """Variation of the latency: sigma of its lognormal distribution."""
    regions: str | None = None
    """Regions of the workers, in turn: the latency to add, and the bandwidth each way that all workers of the region
    share, as in 0ms/unlimited,30ms/1Gbit; REGION*3 stands for three workers in one region."""
    ps_link: str | None = None
    """Bandwidth of the network card of each ps task, each way."""
    sharing: Literal["fair", "fifo"] | None = None
    """Sharing of links by messages: equal rates (fair), or one after the other (fifo)."""
    service: str | None = None
    """Time under the lock of the ps for each message, as in 50us."""
    ps_rate: str | None = None
    """Bytes of messages that each ps task processes under the lock per second, as in 5GB."""
    collective: Literal["slices", "ring", "tree"] | None = None
    """Reduction among workers without a ps: each worker adds up a slice for all, a ring, or halving and doubling."""
    failures: str | None = None
    """Failures: none, or crashes:every=1h,down=1min, the mean times that a worker works and is down (exponential)."""

    def __post_init__(self):
        check_fields(self)
        Machines(self)

    def described(self) -> dict[str, Any]:
        """Return all fields by name; those that are not given have the values of the network."""
        return IDEAL | self.given()

    def given(self) -> dict[str, Any]:
        """Return the fields that are given, here or by the network; one of a link's two ways stands for both."""
        kinds = {name: _kind(hint) for name, hint in typing.get_type_hints(Platform).items() if name != "network"}
        found = _values_of(self.network, kinds)
        found |= {name: value for name, value in vars(self).items() if value is not None}
        for one, other in (("uplink", "downlink"), ("downlink", "uplink")):
            if one in found and other not in found:
                bytes_per_nanosecond(one, found[one])  # an error names the flag that is given
                found[other] = found[one]
        return found


def _kind(hint: Any) -> Any:
    """Return the type, or types, that a TOML file may have for a field of this type."""
    (kind, *_) = typing.get_args(hint)
    return {float: (int, float), int: int}.get(kind, str)


class Machines:
    """A platform in numbers: nanoseconds, bytes, and bytes per nanosecond.

    Args:
        platform: the platform.

    Raises:
        UserError: a value is impossible.

    Attributes:
        step: mean time of a local step.
        model: the distribution of step times.
        step_factors: the factor on the step time of each worker, [W], as a function of W and the seed.
        cores: number of cores that workers share; each step takes `core` nanoseconds of one of them.
        uplink, downlink, ps_link: bandwidths.
        link_sigma: variation of workers' links.
        latency: mean, one way; `latency_sigma` is its variation.
        regions: latency and bandwidth of each region; `places` are the regions of workers, in turn.
        fifo: True if messages share a link one after the other.
        service: time under the lock for each message; `ps_rate` is the rate for its bytes.
        collective: the kind of reduction among workers without a ps.
        failures: mean times that a worker works and is down; None if no worker fails.
    """

    def __init__(self, platform: Platform):
        values = platform.described()
        check_values(Platform, values)
        self.cores, self.link_sigma, self.collective = values["cores"], values["link_sigma"], values["collective"]
        self.step, self.core = values["step_ms"] * MILLISECOND, round(values["core_ms"] * MILLISECOND)
        self.regions, self.places = _regions(values["regions"])
        rates = (bytes_per_nanosecond(name, values[name]) for name in BANDWIDTHS)
        self.uplink, self.downlink, self.ps_link, self.ps_rate = rates
        self.latency, self.service = (nanoseconds(name, values[name]) for name in ("latency", "service"))
        self.model, self.step_factors = model(values["compute"]), _step_factors(values["step_factors"])
        self.latency_sigma, self.fifo = values["latency_sigma"], values["sharing"] == "fifo"
        self.failures = _failures(values["failures"])

    def region_of(self, workers: int) -> list[int]:
        """Return the region of each worker, [W]."""
        return [self.places[k % len(self.places)] for k in range(workers)]

    def held(self, size: float) -> int:
        """Return the nanoseconds for which a message of so many bytes holds the lock of a ps."""
        return self.service + round(size / self.ps_rate)

    def expected_steps(self, workers: int, seed: int) -> np.ndarray:
        """Return the mean time of a local step of each worker while the others are idle, [W], in nanoseconds."""
        means = self.model.values.mean(1) if isinstance(self.model, RecordedSteps) else np.ones(1)
        core = 0 if self.cores is None else self.core
        return self.step * self.step_factors(workers, seed) * np.resize(means, workers) + core

    def link_factors(self, workers: int, seed: int) -> np.ndarray:
        """Return the factor on the bandwidths of each worker, [W]: one of `CLASSES` values."""
        from scipy.special import ndtri

        number = np.floor(CLASSES * uniforms(seed, "link", range(workers), [0])[:, 0])
        return np.exp(self.link_sigma * ndtri((number + 0.5) / CLASSES))


Factors = Callable[[int, int], np.ndarray]  # of the number of workers and a seed: a factor for each worker, [W]


def lognormal(*, sigma: float = 0.6) -> Factors:
    """Return lognormal factors, drawn once."""
    at_most(MOST_SIGMA, sigma=sigma)
    return lambda workers, seed: lognormal_factors(uniforms(seed, "speed", range(workers), [0])[:, 0], sigma)


def roots(*, noise: float = 0.0) -> Factors:
    """Return 1 + √i + noise |N(0, i + 1)| for worker i, drawn once: the machines of Ringmaster's authors."""
    at_most(MOST_FACTOR / 1e5, noise=noise)

    def factors(workers: int, seed: int) -> np.ndarray:
        from scipy.special import ndtri

        i = np.arange(workers)
        return 1 + np.sqrt(i) + noise * np.abs(ndtri(uniforms(seed, "speed", i, [0])[:, 0])) * np.sqrt(i + 1)

    return factors


def crashes(*, every: str = "1h", down: str = "1min") -> tuple[int, int]:
    """Return the mean times that a worker works and is down, in nanoseconds."""
    times = nanoseconds("every", every), nanoseconds("down", down)
    if not all(times):
        raise UserError(f"crashes need times above zero. Received: every={every}, down={down}")
    return times


def _step_factors(text: str) -> Factors:
    """Parse step_factors: a list of factors, or a distribution."""
    if text[:1].isalpha() and not text.startswith(("nan", "inf")):
        models = {"lognormal": lognormal, "roots": roots}
        name, options = parse("model of step_factors", text, models)
        return models[name](**options)
    parts = [part for part, number in _repeated("step_factors", text.split(",")) for _ in range(number)]
    try:
        found = [float(part) for part in parts]
    except ValueError:
        found = [math.nan]
    if not all(1 / MOST_FACTOR <= factor <= MOST_FACTOR for factor in found):
        raise UserError(
            f"step_factors must be positive numbers, as in 0.58,0.75,1.51 or 3,1*7, from {1 / MOST_FACTOR:g} to "
            f"{MOST_FACTOR:g}. Received: {text!r}"
        )
    return lambda workers, seed: np.resize(found, workers)


def _regions(text: str) -> tuple[list[tuple[int, float]], list[int]]:
    """Parse regions: return latency and bandwidth of each region, and the regions of workers in turn."""
    found, places = [], []
    for region, number in _repeated("regions", [] if text == "none" else text.split(",")):
        latency, slash, bandwidth = region.partition("/")
        if not slash:
            raise UserError(f"a region is a latency and a bandwidth, as in 30ms/1Gbit. Received: {region!r}")
        places += [len(found)] * number
        found.append(
            (nanoseconds("latency of a region", latency), bytes_per_nanosecond("bandwidth of a region", bandwidth))
        )
    return (found, places) if found else ([(0, math.inf)], [0])


def _repeated(name: str, parts: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each part without its `*N`, and N, or 1 without a `*`."""
    for part in parts:
        text, star, number = part.partition("*")
        if star and not (re.fullmatch("[0-9]{1,5}", number) and 1 <= int(number) <= MOST_REPEATED):
            raise UserError(f"{name} takes whole numbers from 1 to {MOST_REPEATED} after a *. Received: {part!r}")
        yield text, int(number or 1)


def _failures(text: str) -> tuple[int, int] | None:
    """Parse failures: return the mean times that a worker works and is down; None for none."""
    if text == "none":
        return None
    _, options = parse("model of failures", text, {"crashes": crashes, "none": lambda: None})
    return crashes(**options)


def nanoseconds(name: str, text: str) -> int:
    """Parse a time such as 20ms or 0s; `name` stands for it in errors.

    Raises:
        UserError: the text is no time, or the time is too long.
    """
    found = _quantity(name, text, TIMES, "as in 20ms")
    if found > LONGEST * TIMES["h"]:
        raise UserError(f"{name} must be at most {LONGEST}h. Received: {text!r}")
    return round(found)


def bytes_per_nanosecond(name: str, text: str) -> float:
    """Parse a bandwidth per second such as 100Mbit or 1GB, or `unlimited`; `name` stands for it in errors.

    Raises:
        UserError: the text is no bandwidth, or less than one bit per second.
    """
    if text == UNLIMITED:
        return math.inf
    rate = _quantity(name, text, RATES, f"as in 100Mbit (per second), or is {UNLIMITED}")
    if rate < RATES["bit"]:
        raise UserError(f"{name} must be at least 1bit (per second). Received: {text!r}")
    return rate


def _quantity(name: str, text: str, units: Mapping[str, float], example: str) -> float:
    found = re.fullmatch(r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)([a-zA-Z]+)", text.strip())
    if found is None or found[2] not in units:
        raise UserError(f"{name} takes a number and a unit ({', '.join(units)}), {example}. Received: {text!r}")
    return float(found[1]) * units[found[2]]
