"""`bash run.sh reproduced [NAME ...]`: experiments of papers; the expected numbers beside ours.

A claim (`claims`) is tested where it can show, mostly on our tasks, and tuned. Here nothing is tuned: a paper states the
result, or it follows from the paper's equations in closed form, and our numbers agree or do not. The order of the
events is that of virtual time, the arithmetic that of the equations in NumPy. Another experiment is a function that
returns numbers by name, and an entry of `EXPERIMENTS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from ..algorithms.async_sgd import AsyncSGD
from ..algorithms.diloco import DiLoCo
from ..algorithms.ef_sgd import EFSGD
from ..algorithms.signsgd_mv import SignSGDMV
from ..common.arguments import nearest
from ..common.cli import flags
from ..common.contract import Scheme
from ..common.errors import UserError
from ..common.replay.reference import asynchronous_rules
from ..common.replay.reference.gradients import Gradient
from ..common.virtual_time.platform import Platform
from ..common.virtual_time.schedule import EventLoop
from . import claims_quadratic
from .claims_runs import centers
from .claims_variants import Forgetful
from .outcome_files import write
from .plots import PALETTE, bare

RESULTS = Path(__file__).parent / "results" / "reproduced.json"
PAGE = Path(__file__).parent.parent / "docs" / "claims.md"

Numbers = Mapping[str, Any]  # by name: a number, or a list of numbers


@dataclass(frozen=True)
class Experiment:
    """An experiment of a paper.

    Attributes:
        name: its name on the command line.
        schemes: the algorithms of the catalogue that it is about.
        source: the paper, the place in it, and the settings.
        expected: the result that the paper states, or that follows from its equations in closed form.
        measure: returns our numbers, by name.
        ours: a format of these numbers.
        agrees: returns True if they agree with the expected ones.
        draw: returns a figure like that of the paper; None if it has none.
    """

    name: str
    schemes: str
    source: str
    expected: str
    measure: Callable[[], Numbers]
    ours: str
    agrees: Callable[[Numbers], bool]
    draw: Callable[[Numbers], Any] | None = None

    def row(self, numbers: Numbers) -> str:
        """Return a row of the table."""
        verdict = "reproduced" if self.agrees(numbers) else "**not reproduced**"
        cells = self.schemes, self.source, self.expected, self.ours.format(**numbers), verdict
        return f"| {' | '.join(cells)} | `bash run.sh reproduced {self.name}` |"


def path(
    scheme: Scheme, start: np.ndarray, gradient: Gradient, *, workers: int, steps: int, seed: int = 0, **platform: str
) -> np.ndarray:
    """Return the center after each update in virtual time, [updates, P], while all workers have rounds left."""
    machines, rounds = Platform(**platform), scheme.rounds(steps)  # pyright: ignore[reportArgumentType]
    times = {"message_bytes": 0, "reply_bytes": 0}
    loop = EventLoop(scheme, machines, workers=workers, rounds=rounds, seed=seed, stop_at_version=steps, **times)
    return np.array(centers(scheme, loop.run().trace, start, gradient, workers, steps))


# Ringmaster.


def _ringmaster() -> Numbers:
    """Return f − f* every `claims_quadratic.STEP` seconds; the settings are those of the authors' published script."""
    settings = {
        "ringmaster": {"learning_rate": 0.25, "delay_threshold": 6},
        "delay_adaptive": {"learning_rate": 0.00032},
        "async_sgd": {"learning_rate": 0.00032},
    }
    return {
        name: [float(f"{gap:.5g}") for gap in claims_quadratic.run(name, 5, **values)]
        for name, values in track(settings.items(), "ringmaster", transient=True)
    }


def _ringmaster_agrees(found: Numbers) -> bool:
    """Check the order after 400 s, and that Ringmaster is below delay-adaptive SGD at all times."""
    gaps = {name: np.array(curve) for name, curve in found.items()}
    at = 400 // claims_quadratic.STEP - 1
    below = (gaps["ringmaster"] < gaps["delay_adaptive"]).all()
    return bool(below and 50 * gaps["ringmaster"][at] < gaps["delay_adaptive"][at] < gaps["async_sgd"][at])


def _ringmaster_figure(found: Numbers) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    bare(axes)
    for (name, gaps), color in zip(found.items(), PALETTE, strict=False):
        axes.plot(claims_quadratic.STEP * np.arange(1, len(gaps) + 1), gaps, color=color, label=name)
    axes.set(yscale="log", xlabel="seconds (virtual)", ylabel="f − f*")
    axes.legend(fontsize=8)
    return figure


# The bias of asynchrony.

MINIMA, TIMES = np.arange(4.0), np.array([1, 2, 5, 20])


def _bias() -> Numbers:
    """Return where async_sgd comes to rest: the mean of the last fifth of 20000 small steps."""
    gradient = lambda x, k, t: x - MINIMA[k]  # noqa: E731
    factors = ",".join(map(str, TIMES))
    found = path(AsyncSGD(learning_rate=0.001), np.zeros(1), gradient, workers=4, steps=20000, step_factors=factors)
    return {"async_sgd": float(found[-4000:].mean())}


# Asynchrony begets momentum.

RUNS, UPDATES, RATE = 2000, 40, 0.1


def _momentum() -> Numbers:
    """Fit the momentum of the expected path: E Δ' = μ E Δ − (η / W) E x of ½ x², with exponential steps."""
    found = {}
    for workers in (2, 4, 16):
        drawn = [
            path(
                AsyncSGD(learning_rate=RATE),
                np.ones(1),
                lambda x, k, t: x,
                workers=workers,
                steps=UPDATES,
                seed=seed,
                compute="exponential",
            )
            for seed in track(range(RUNS), f"momentum, {workers} workers", transient=True)
        ]
        x = np.append(1.0, np.mean(drawn, 0)[:, 0])
        move = np.diff(x)
        found[f"W{workers}"] = float(move[:-1] @ (move[1:] + RATE / workers * x[1:-1]) / (move[:-1] @ move[:-1]))
    return found


# Compression without memory.


def _memory() -> Numbers:
    """Return the factor of a step of top-1 without memory, less 1, in units of η; and ‖x‖² with memory at the end."""
    directions = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
    gradient = lambda x, k, t: 2 * directions[k] * (directions[k] @ x) + x / 2  # noqa: E731
    rate, start = 0.02, np.ones(3)
    settings = {"learning_rate": rate, "share": 1 / 3, "compressor": "topk"}
    lost = path(Forgetful(**settings), start, gradient, workers=3, steps=50)
    kept = path(EFSGD(**settings), start, gradient, workers=3, steps=3000)
    return {"growth": float((lost[-1, 0] / lost[-2, 0] - 1) / rate), "left": float(kept[-1] @ kept[-1])}


# The stability of elastic averaging.

RATES = {"r05": 0.5, "r10": 1.0, "r15": 1.5}


def _stability() -> Numbers:
    """Find the largest moving rate α at which AEASGD of three workers in turn does not diverge on ½ x², by halving."""

    def diverges(rate: float, moving_rate: float) -> bool:
        order, rounds = [0, 1, 2] * 400, 400
        walk = asynchronous_rules.aeasgd(
            np.ones(1), lambda x, k, t: x, order, 3, eta=rate, alpha=moving_rate, period=1, steps=rounds
        )
        early, late = np.abs(np.ravel(walk))[300:600], np.abs(np.ravel(walk))[-300:]
        return bool(late.max() > early.max())

    found = {}
    for name, rate in RATES.items():
        low, high = 0.0, 2.0
        for _ in range(14):
            middle = (low + high) / 2
            low, high = (low, middle) if diverges(rate, middle) else (middle, high)
        found[name] = low
    return found


# The noise of two-phase optimizers.

LOCAL_STEPS, INNER, OUTER, COORDINATES = 10, 0.1, 0.7, 20000


def _two_phases() -> Numbers:
    """Return the stationary variance of the center on ½ x² with noise of variance 1, for 1 and 4 workers."""
    gradient = lambda x, k, t: x + np.random.default_rng([k, t]).standard_normal(len(x))  # noqa: E731
    scheme = DiLoCo(
        communication_period=LOCAL_STEPS,
        inner_optimizer="sgd",
        learning_rate=INNER,
        outer_learning_rate=OUTER,
        momentum=0.0,
    )
    found = {}
    for workers in (1, 4):
        walk = path(scheme, np.zeros(COORDINATES), gradient, workers=workers, steps=40 * LOCAL_STEPS)
        found[f"W{workers}"] = float(np.mean(walk[20:] ** 2))
    return found


def _two_phase_variance(workers: int) -> float:
    """Return ε² η² (1 − q^2H) / (W (1 − q²) (1 − c²)), with q = 1 − η and c = 1 − ε (1 − q^H)."""
    q = 1 - INNER
    c = 1 - OUTER * (1 - q**LOCAL_STEPS)
    return OUTER**2 * INNER**2 * (1 - q ** (2 * LOCAL_STEPS)) / (workers * (1 - q**2) * (1 - c**2))


# Signs of skewed noise.


def _signs() -> Numbers:
    """Return the mean step, in units of η, of signs and of signs with error feedback on x / 4."""
    drawn = np.where(np.random.default_rng(0).random(100_000) < 0.25, 4.0, -1.0)
    schemes = {
        "signs": SignSGDMV(learning_rate=1e-3, momentum=0.0),
        "memory": EFSGD(learning_rate=1e-3, compressor="sign"),
    }
    return {
        name: float(
            path(scheme, np.zeros(1), lambda x, k, t: drawn[t : t + 1], workers=1, steps=len(drawn))[-1, 0]
            / (1e-3 * len(drawn))
        )
        for name, scheme in schemes.items()
    }


EXPERIMENTS = [
    Experiment(
        "ringmaster",
        "`ringmaster`, `delay_adaptive`, `async_sgd`",
        "Maranjyan et al. 2025 (arXiv:2501.16168), appendix G and the authors' script: the quadratic with d = 1729, "
        "6174 workers, R = 6, η = 0.25 (`ringmaster`), η = 0.00032 (the others)",
        "a plot of f − f* over time: Ringmaster below delay-adaptive SGD at all times",
        _ringmaster,
        "f − f* after 400 s: {ringmaster[39]:.3f}, {delay_adaptive[39]:.2f}, {async_sgd[39]:.2f}; after 2000 s: "
        "{ringmaster[199]:.3f}, {delay_adaptive[199]:.3f}, {async_sgd[199]:.3f}",
        _ringmaster_agrees,
        _ringmaster_figure,
    ),
    Experiment(
        "bias",
        "`async_sgd`",
        "Maranjyan & Richtárik 2025 (arXiv:2509.22860), on unequal data; the example is ours: fᵢ = ½ (x − aᵢ)² with "
        "aᵢ = 0, 1, 2, 3, and gradients that take τᵢ = 1, 2, 5, 20",
        "asynchronous SGD comes to rest at Σ (aᵢ / τᵢ) / Σ (1 / τᵢ) = 0.6000, not at the minimum, 1.5",
        _bias,
        "{async_sgd:.4f}",
        lambda found: abs(found["async_sgd"] - MINIMA @ (1 / TIMES) / (1 / TIMES).sum()) < 0.002,
    ),
    Experiment(
        "momentum",
        "`async_sgd`",
        "Mitliagkas et al. 2016 (arXiv:1605.09774), queueing model: W equal workers, exponential steps; "
        "the quadratic is ours",
        "an implicit momentum of 1 − 1/W: 0.5, 0.75, 0.9375 for 2, 4, 16 workers",
        _momentum,
        "fitted to the mean of 2000 runs: {W2:.4f}, {W4:.4f}, {W16:.4f}",
        lambda found: all(abs(found[f"W{w}"] - (1 - 1 / w)) < 0.01 for w in (2, 4, 16)),
    ),
    Experiment(
        "memory",
        "`ef_sgd`",
        "Beznosikov et al. 2020 (arXiv:2002.12410), three workers, top-1, fᵢ = ⟨aᵢ, x⟩² + ¼ ‖x‖², x = (1, 1, 1)",
        "without memory each step multiplies x by 1 + 11 η / 6 (1.8333); with memory it converges",
        _memory,
        "1 + {growth:.4f} η; with memory, η = 0.02, ‖x‖² = {left:.0e} after 3000 steps",
        lambda found: abs(found["growth"] - 11 / 6) < 1e-9 and found["left"] < 1e-20,
    ),
    Experiment(
        "two-phases",
        "`diloco`",
        "Agarwala 2026 (arXiv:2603.26954), two-phase optimizers on noisy least squares; ours are ½ x², SGD inside with "
        "η = 0.1, 10 local steps, outer SGD with ε = 0.7",
        f"a stationary variance, in closed form, of {_two_phase_variance(1):.5f} (1 worker), "
        f"{_two_phase_variance(4):.5f} (4 workers); SGD has {INNER**2 / (1 - (1 - INNER) ** 2):.5f}",
        _two_phases,
        "{W1:.5f}, {W4:.5f}",
        lambda found: all(abs(found[f"W{w}"] / _two_phase_variance(w) - 1) < 0.01 for w in (1, 4)),
    ),
    Experiment(
        "signs",
        "`signsgd_mv`, `ef_sgd`",
        "Karimireddy et al. 2019 (arXiv:1901.09847), counterexample 1: f = x / 4, gradients 4 (probability 1/4) and −1",
        "signs move x by η / 2 a step, away from the minimum; with error feedback it moves by −η / 4, as SGD",
        _signs,
        "{signs:.3f} η; with error feedback {memory:.3f} η",
        lambda found: abs(found["signs"] - 0.5) < 0.01 and abs(found["memory"] + 0.25) < 0.03,
    ),
    Experiment(
        "stability",
        "`aeasgd`",
        "Zhang et al. 2015 (arXiv:1412.6651), stability of the round-robin scheme: ½ x², period 1",
        "stable for α ≤ (4 − 2 η) / (4 − η): 0.857, 0.667, 0.400 at η = 0.5, 1, 1.5, for any number of workers",
        _stability,
        "{r05:.3f}, {r10:.3f}, {r15:.3f} (3 workers)",
        lambda found: all(abs(found[name] - (4 - 2 * eta) / (4 - eta)) < 0.001 for name, eta in RATES.items()),
    ),
]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Which experiments."""

    names: tuple[str, ...] = ()
    """Of experiments; all if none is given."""

    def __post_init__(self):
        known = [each.name for each in EXPERIMENTS]
        for name in self.names:
            if name not in known:
                raise UserError(f"unknown experiment {name!r}. {nearest(name, known)}")


def with_table(text: str, results: Mapping[str, Numbers]) -> str:
    """Return the text of the page with the table of what was measured."""
    rows = ["| schemes | experiment | expected | ours | | command |", "|---|---|---|---|---|---|"]
    rows += [each.row(results[each.name]) for each in EXPERIMENTS if each.name in results]
    table = "\n".join(rows)
    pattern = r"(<!-- reproduced -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda place: f"{place[1]}{table}\n{place[2]}", text, flags=re.DOTALL)


def main(arguments: list[str]) -> int:
    """Measure, save and show; return the exit code."""
    options: Options = flags.read(
        "run.sh reproduced",
        "Experiments of papers with their settings; expected numbers beside ours.",
        arguments,
        {"options": Options},
        positional="names",
    )[0]
    console = Console(highlight=False)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for each in EXPERIMENTS:
        if not options.names or each.name in options.names:
            numbers = results[each.name] = each.measure()
            verdict = "reproduced" if each.agrees(numbers) else "not reproduced"
            console.print(f"[bold]{each.name}[/]: {verdict}: {each.ours.format(**numbers)} (expected: {each.expected})")
            if each.draw:
                each.draw(numbers).savefig(RESULTS.parent / f"reproduced-{each.name}.png", dpi=110)
            write(
                RESULTS, {known.name: results[known.name] for known in EXPERIMENTS if known.name in results}, indent=1
            )
    if PAGE.exists():
        PAGE.write_text(with_table(PAGE.read_text(), results))
    return 0
