"""Experiments of papers on asynchronous algorithms: delays, unequal data, momentum, stability."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.progress import track

from ..algorithms.async_sgd import AsyncSGD
from ..algorithms.malenia import Malenia
from ..algorithms.rescaled_asgd import RescaledASGD
from ..algorithms.ringleader import Ringleader
from ..common.replay.reference import asynchronous_rules
from . import claims_quadratic
from .plots import bare, lines_of
from .reproduced_experiment import Experiment, Numbers, path

# Ringmaster.


def _ringmaster() -> Numbers:
    """Return f − f* every `claims_quadratic.STEP` seconds; the settings are those of the authors' published script."""
    settings = {
        "ringmaster": {"learning_rate": 0.25, "delay_threshold": 6},
        "ringmaster_cancel": {"learning_rate": 0.25, "delay_threshold": 6, "cancel_late": True},
        "delay_adaptive": {"learning_rate": 0.00032},
        "async_sgd": {"learning_rate": 0.00032},
    }
    return {
        name: [float(f"{gap:.5g}") for gap in claims_quadratic.run(name, 5, **values)]
        for name, values in track(settings.items(), "ringmaster", transient=True)
    }


def _ringmaster_agrees(found: Numbers) -> bool:
    """Check the order after 400 s, and that Ringmaster, with and without stops, is always below delay-adaptive SGD."""
    gaps = {name: np.array(curve) for name, curve in found.items()}
    at = 400 // claims_quadratic.STEP - 1
    ring = np.maximum(gaps["ringmaster"], gaps["ringmaster_cancel"])
    below = (ring < gaps["delay_adaptive"]).all()
    return bool(below and 50 * ring[at] < gaps["delay_adaptive"][at] < gaps["async_sgd"][at])


def _ringmaster_figure(found: Numbers) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    bare(axes)
    for (name, gaps), line in zip(found.items(), lines_of(list(found)), strict=True):
        axes.plot(claims_quadratic.STEP * np.arange(1, len(gaps) + 1), gaps, label=name, **line)
    axes.set(yscale="log", xlabel="seconds (virtual)", ylabel="f − f*")
    axes.legend(fontsize=8)
    return figure


# The bias of asynchrony.

MINIMA, TIMES = np.arange(4.0), np.array([1, 2, 5, 20])


def _bias() -> Numbers:
    """Return where each scheme comes to rest: the mean of the last fifth of its versions, with small steps."""
    found = {}
    schemes = AsyncSGD(learning_rate=0.001), RescaledASGD(learning_rate=0.001), Ringleader(learning_rate=0.01)
    for scheme in *schemes, Malenia(learning_rate=0.05):
        gradient, factors = lambda x, k, t: x - MINIMA[k], ",".join(map(str, TIMES))
        centers = path(scheme, np.zeros(1), gradient, workers=4, steps=20000, step_factors=factors)
        found[scheme.name] = float(centers[-len(centers) // 5 :].mean())
    return found


def _bias_agrees(found: Numbers) -> bool:
    """Check that asynchronous SGD rests at the mean weighted by speed, and the others at the mean."""
    expected = {
        "async_sgd": MINIMA @ (1 / TIMES) / (1 / TIMES).sum(),
        "rescaled_asgd": 1.5,
        "ringleader": 1.5,
        "malenia": 1.5,
    }
    return all(abs(found[name] - rest) < 0.01 for name, rest in expected.items())


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


EXPERIMENTS = [
    Experiment(
        "ringmaster",
        "`ringmaster`, `delay_adaptive`, `async_sgd`",
        "Maranjyan et al. 2025 (arXiv:2501.16168), appendix G and the authors' script: the quadratic with d = 1729, "
        "6174 workers, R = 6, η = 0.25 (`ringmaster`), η = 0.00032 (the others)",
        "a plot of f − f* over time: Ringmaster below delay-adaptive SGD at all times, with and without stops "
        "(`--cancel-late`)",
        _ringmaster,
        "f − f* after 400 s: {ringmaster[39]:.3f} (with stops {ringmaster_cancel[39]:.3f}), {delay_adaptive[39]:.2f}, "
        "{async_sgd[39]:.2f}; after 2000 s: {ringmaster[199]:.3f} ({ringmaster_cancel[199]:.3f}), "
        "{delay_adaptive[199]:.3f}, {async_sgd[199]:.3f}",
        _ringmaster_agrees,
        _ringmaster_figure,
    ),
    Experiment(
        "bias",
        "`async_sgd`, `rescaled_asgd`, `ringleader`, `malenia`",
        "Maranjyan & Richtárik 2025 (arXiv:2509.22860), on unequal data; the example is ours: fᵢ = ½ (x − aᵢ)² with "
        "aᵢ = 0, 1, 2, 3, and gradients that take τᵢ = 1, 2, 5, 20",
        "asynchronous SGD comes to rest at Σ (aᵢ / τᵢ) / Σ (1 / τᵢ) = 0.6000, the others at the minimum, 1.5",
        _bias,
        "{async_sgd:.4f}, {rescaled_asgd:.4f}, {ringleader:.4f}, {malenia:.4f}",
        _bias_agrees,
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
        "stability",
        "`aeasgd`",
        "Zhang et al. 2015 (arXiv:1412.6651), stability of the round-robin scheme: ½ x², period 1",
        "stable for α ≤ (4 − 2 η) / (4 − η): 0.857, 0.667, 0.400 at η = 0.5, 1, 1.5, for any number of workers",
        _stability,
        "{r05:.3f}, {r10:.3f}, {r15:.3f} (3 workers)",
        lambda found: all(abs(found[name] - (4 - 2 * eta) / (4 - eta)) < 0.001 for name, eta in RATES.items()),
    ),
]
