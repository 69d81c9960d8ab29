"""Experiments of papers on what is sent, and how rarely: compression, signs, local steps."""

from __future__ import annotations

import numpy as np

from ..algorithms.diloco import DiLoCo
from ..algorithms.ef21_sgdm import EF21SGDM
from ..algorithms.ef_sgd import EFSGD
from ..algorithms.fedprox import FedProx
from ..algorithms.local_sgd import LocalSGD
from ..algorithms.scaffold import Scaffold
from ..algorithms.signsgd_mv import SignSGDMV
from .claims_variants import Forgetful
from .reproduced_experiment import Experiment, Numbers, path

# Compression without memory.


def _memory() -> Numbers:
    """Return the factor of a step of top-1 without memory, less 1, in units of η; and ‖x‖² with memory at the end."""
    directions = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])
    gradient = lambda x, k, t: 2 * directions[k] * (directions[k] @ x) + x / 2  # noqa: E731
    rate, start = 0.02, np.ones(3)
    settings = {"learning_rate": rate, "share": 1 / 3, "compressor": "topk"}
    lost = path(Forgetful(**settings), start, gradient, workers=3, steps=50)
    found = {"growth": float((lost[-1, 0] / lost[-2, 0] - 1) / rate)}
    for name, scheme in {"ef": EFSGD(**settings), "ef21": EF21SGDM(**settings, momentum=0.0)}.items():
        kept = path(scheme, start, gradient, workers=3, steps=3000)[-1]
        found[name] = float(kept @ kept)
    return found


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


# The drift of local steps on unequal data.

DRIFT = {"learning_rate": 0.1, "communication_period": 10}
CURVATURES, MINIMA = np.array([0.5, 2.0]), np.array([-1.0, 1.0])


def _drift() -> Numbers:
    """Return where the center comes to rest on the mean of two quadratics ½ aₖ (x − bₖ)², a worker each."""
    gradient = lambda x, k, t: CURVATURES[k] * (x - MINIMA[k])  # noqa: E731
    schemes = LocalSGD(**DRIFT), FedProx(**DRIFT, proximity=1.0), Scaffold(**DRIFT)
    return {
        scheme.name: float(path(scheme, np.full(1, 3.0), gradient, workers=2, steps=1000)[-1, 0]) for scheme in schemes
    }


def _drifted(mu: float) -> float:
    """Return that place for local SGD with a spring of strength μ, in closed form."""
    pulls = CURVATURES + mu
    moved = (1 - (1 - DRIFT["learning_rate"] * pulls) ** DRIFT["communication_period"]) * CURVATURES / pulls
    return float(moved @ MINIMA / moved.sum())


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


EXPERIMENTS = [
    Experiment(
        "memory",
        "`ef_sgd`, `ef21_sgdm`",
        "Beznosikov et al. 2020 (arXiv:2002.12410), three workers, top-1, fᵢ = ⟨aᵢ, x⟩² + ¼ ‖x‖², x = (1, 1, 1)",
        "without memory each step multiplies x by 1 + 11 η / 6 (1.8333); with memory it converges",
        _memory,
        "1 + {growth:.4f} η; with memory, η = 0.02, ‖x‖² = {ef:.0e}, {ef21:.0e} after 3000 steps",
        lambda found: abs(found["growth"] - 11 / 6) < 1e-9 and max(found["ef"], found["ef21"]) < 1e-20,
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
        "drift",
        "`local_sgd`, `fedprox`, `scaffold`",
        "Karimireddy et al. 2020 (arXiv:1910.06378), client drift; the quadratics are ours: ½ aₖ (x − bₖ)² with "
        "a = ½, 2 and b = −1, 1, η = 0.1, 10 local steps, μ = 1 (`fedprox`)",
        f"local SGD comes to rest at {_drifted(0):.4f}, FedProx at {_drifted(1):.4f}, SCAFFOLD at the minimum, 0.6000",
        _drift,
        "{local_sgd:.4f}, {fedprox:.4f}, {scaffold:.4f}",
        lambda found: np.allclose(
            [found[name] for name in ("local_sgd", "fedprox", "scaffold")], [_drifted(0), _drifted(1), 0.6], atol=1e-4
        ),
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
]
