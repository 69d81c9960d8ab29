"""Experiments of papers on what is sent, and how rarely: compression, signs, local steps."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ..algorithms.diloco import DiLoCo
from ..algorithms.ef21_sgdm import EF21SGDM
from ..algorithms.ef_sgd import EFSGD
from ..algorithms.fednova import FedNova
from ..algorithms.fedprox import FedProx
from ..algorithms.krum import Krum
from ..algorithms.local_sgd import LocalSGD
from ..algorithms.powersgd import PowerSGD
from ..algorithms.scaffold import Scaffold
from ..algorithms.signsgd_mv import SignSGDMV
from ..algorithms.sync_sgd import SyncSGD
from ..algorithms.trimmed_mean import TrimmedMean
from ..common.data.recipes import make
from ..common.replay.reference import codecs, gradients
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


# Unequal numbers of local steps.

UNEQUAL = {"learning_rate": 0.02, "communication_period": 10}
WORK, APART = (1.0, 0.2), np.array([-1.0, 1.0])


def _unequal() -> Numbers:
    """Return where FedNova and a mean of parameters come to rest on ½ (x − bₖ)², with 10 and 2 steps of a round."""
    nova = path(FedNova(**UNEQUAL, work=WORK), np.full(1, 3.0), lambda x, k, t: x - APART[k], workers=2, steps=4000)
    theta, kept = 3.0, _kept()
    for _ in range(400):
        theta = float(np.mean(APART + kept * (theta - APART)))
    return {"fednova": float(nova[-1, 0]), "averaging": theta}


def _kept() -> np.ndarray:
    """Return the part of the distance to its minimum that a worker's round leaves."""
    return (1 - UNEQUAL["learning_rate"]) ** (UNEQUAL["communication_period"] * np.array(WORK))


def _at_rest(steps: np.ndarray) -> float:
    """Return the point at rest in closed form, where worker k's move is divided by its number of `steps`."""
    pulls = (1 - _kept()) / steps
    return float(pulls @ APART / pulls.sum())


RESTS = {"fednova": _at_rest(np.array(WORK)), "averaging": _at_rest(np.ones(2))}


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


# The variance of random rounding.

ELEMENTS, DRAWS, BITS = 512, 4000, (2, 4, 8)


def _rounding() -> Numbers:
    """Return E‖C(v) − v‖² / ‖v‖² of random rounding with the levels of each number of bits, and the share of zeros."""
    random = np.random.default_rng(0)
    vector, found = random.standard_normal(ELEMENTS), {}
    for bits in BITS:
        sent = np.array([codecs.qsgd(vector, random.random(ELEMENTS), _levels(bits), ELEMENTS) for _ in range(DRAWS)])
        found[f"variance{bits}"] = float(((sent - vector) ** 2).sum(1).mean() / (vector @ vector))
        found[f"bias{bits}"] = float(np.linalg.norm(sent.mean(0) - vector) / np.linalg.norm(vector))
        found[f"nonzero{bits}"] = float(np.count_nonzero(sent, axis=1).mean())
    return found


def _levels(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def _rounding_agrees(found: Numbers) -> bool:
    """Check the bounds, and that the mean is the vector but for the noise of so many draws."""
    return all(
        found[f"variance{bits}"] <= codecs.variance_bound(_levels(bits), ELEMENTS)
        and found[f"nonzero{bits}"] <= _levels(bits) * (_levels(bits) + ELEMENTS**0.5)
        and found[f"bias{bits}"] < 2 * (found[f"variance{bits}"] / DRAWS) ** 0.5
        for bits in BITS
    )


# The size of factors of low rank.

CHANNELS = 64, 128, 256, 512

WORDS, WIDTH = 28_869, 650


def _resnet18() -> list[tuple[int, ...]]:
    """Return the shapes of ResNet18 for images of 32 x 32 pixels, but for the statistics of its normalizations."""
    convolutions, narrow = [(3, 3, 3, 64)], 64
    for wide in CHANNELS:
        convolutions += [(3, 3, narrow, wide)] + 3 * [(3, 3, wide, wide)]
        if narrow != wide:  # the shortcut
            convolutions.append((1, 1, narrow, wide))
        narrow = wide
    norms = [(shape[-1],) for shape in convolutions for _ in ("scale", "shift")]
    return [*convolutions, *norms, (512, 10), (10,)]


def _lstm() -> list[tuple[int, ...]]:
    """Return the shapes of three layers of LSTM with two biases each, and the embedding of words at both ends."""
    return [(WORDS, WIDTH), (WORDS,)] + 3 * [(WIDTH, 4 * WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH,)]


# shapes of each model, steps of an epoch (fitted), and the paper's megabytes of an epoch by rank; 0 is SGD
EPOCHS_OF_TABLES = {
    "resnet18": (_resnet18(), 24, {0: 1023, 1: 4, 2: 8, 4: 14, 7: 24}),
    "lstm": (_lstm(), 70, {0: 7730, 1: 25, 2: 38, 4: 64}),
}


def _epochs_of_messages() -> Numbers:
    """Return the megabytes (2²⁰ bytes) that a worker sends in an epoch; a rank of 0 is SGD."""
    found = {}
    for model, (shapes, steps, expected) in EPOCHS_OF_TABLES.items():
        for rank in expected:
            elements = PowerSGD(rank=rank).message_sizes(shapes) if rank else [math.prod(shape) for shape in shapes]
            found[f"{model}{rank}"] = 4 * steps * sum(elements) / 2**20
    return found


def _megabytes(model: str) -> str:
    """Return the format of the megabytes of a model."""
    return ", ".join(f"{{{model}{rank}:.1f}}" for rank in EPOCHS_OF_TABLES[model][2])


# Hostile workers.

HOSTILE = range(5)  # of ten workers


def _attack() -> Numbers:
    """Return the accuracy on digits of the mean and the median of 10 workers, some of which send negative gradients."""
    (x, y), test = _images()
    on_rows, found = gradients.mlp_gradient(x, y, [x.shape[1], 10]), {}
    on_batches = gradients.batch_gradient(on_rows, examples=len(x), workers=10, seed=0, batch_size=16)
    for scheme in SyncSGD(learning_rate=0.2), TrimmedMean(learning_rate=0.2, trim=0.5):
        for hostile in HOSTILE:
            attacked = lambda x, k, t, n=10 - hostile: on_batches(x, k, t) * (1 if k < n else -1)  # noqa: E731
            last = path(scheme, np.zeros(x.shape[1] * 10 + 10), attacked, workers=10, steps=60)[-1]
            found[f"{scheme.name}{hostile}"] = _accuracy(last, *test)
    return found


def _images() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return vectors of images and their digits, of the training data and of the test data."""
    digits = make("digits")
    return [(x.reshape(len(x), -1), y) for x, y in (digits.train, digits.test)]


def _accuracy(params: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of right answers of a softmax regression."""
    return float(((x @ params[:-10].reshape(-1, 10) + params[-10:]).argmax(1) == y).mean())


def _five(scheme: str) -> str:
    """Return the format of the five accuracies of a scheme."""
    return ", ".join(f"{{{scheme}{hostile}:.3f}}" for hostile in HOSTILE)


# Hostile workers that send anything.

MANY, ATTACKERS, NOISE, LARGER = 21, 7, 200, 20

ATTACKS = "none", "gaussian", "omniscient"


def _choosing() -> Numbers:
    """Return the accuracy on digits of the mean, Krum and Multi-Krum under each attack, after 100 steps."""
    (x, y), test = _images()
    on_rows, found = gradients.mlp_gradient(x, y, [x.shape[1], 10]), {}
    on_batches = gradients.batch_gradient(on_rows, examples=len(x), workers=MANY, seed=0, batch_size=3)
    share, whole = ATTACKERS / MANY, np.arange(len(x))

    @lru_cache(maxsize=1)
    def slope(theta: bytes) -> np.ndarray:
        """Return the gradient of the whole data, which all attackers of a step send."""
        return on_rows(np.frombuffer(theta), whole)

    schemes = {
        "mean": SyncSGD(learning_rate=0.1),
        "krum": Krum(learning_rate=0.1, hostile_share=share),
        "multi": Krum(learning_rate=0.1, hostile_share=share, chosen=MANY - ATTACKERS),
    }
    sent = {
        "none": on_batches,
        "gaussian": lambda theta, k, t: NOISE * np.random.default_rng([k, t]).standard_normal(len(theta)),
        "omniscient": lambda theta, k, t: -LARGER * slope(theta.tobytes()),
    }
    for name, scheme in schemes.items():
        for attack, hostile in sent.items():
            gradient = lambda theta, k, t, hostile=hostile: (  # noqa: E731
                on_batches if k < MANY - ATTACKERS else hostile
            )(theta, k, t)
            last = path(scheme, np.zeros(x.shape[1] * 10 + 10), gradient, workers=MANY, steps=100)[-1]
            found[f"{name}_{attack}"] = _accuracy(last, *test)
    return found


def _chosen_agrees(found: Numbers) -> bool:
    """Check that only the mean fails under attack, and that one chosen gradient costs accuracy without."""
    attacked = ATTACKS[1:]
    return (
        all(found[f"mean_{attack}"] < 0.2 for attack in attacked)
        and all(
            found[f"{name}_{attack}"] > found[f"{name}_none"] - 0.1 for name in ("krum", "multi") for attack in attacked
        )
        and found["krum_none"] < found["mean_none"] - 0.1
        and found["multi_none"] > found["mean_none"] - 0.02
    )


def _each_attack(name: str) -> str:
    """Return the format of the accuracies of a rule under each attack."""
    return ", ".join(f"{{{name}_{attack}:.3f}}" for attack in ATTACKS)


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
        "objective",
        "`fednova`",
        "Wang et al. 2020 (arXiv:2007.07481), objective inconsistency; ours is ½ (x − bₖ)² with b = −1, 1, η = 0.02, "
        "and 10 and 2 local steps in a round",
        f"means of parameters rest near the mean weighted by steps, −2/3, at {RESTS['averaging']:.4f}; FedNova near "
        f"the minimum, 0, at {RESTS['fednova']:.4f}",
        _unequal,
        "{averaging:.4f}; {fednova:.4f}",
        lambda found: all(abs(found[name] - rest) < 1e-4 for name, rest in RESTS.items()),
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
        "qsgd",
        "`--codec qsgd`",
        f"Alistarh et al. 2017 (arXiv:1610.02132), lemma 3.1: unbiased, E‖Q(v) − v‖² ≤ min(n/s², √n/s) ‖v‖², at most "
        f"s (s + √n) elements in the mean; a normal vector of n = {ELEMENTS}, s = 1, 7, 127 (2, 4, 8 bits)",
        "variances of at most "
        + ", ".join(f"{codecs.variance_bound(_levels(bits), ELEMENTS):.3g}" for bits in BITS)
        + "; elements of at most "
        + ", ".join(f"{min(ELEMENTS, _levels(bits) * (_levels(bits) + ELEMENTS**0.5)):.0f}" for bits in BITS),
        _rounding,
        "{variance2:.3g}, {variance4:.3g}, {variance8:.3g}; {nonzero2:.0f}, {nonzero4:.0f}, {nonzero8:.0f}",
        _rounding_agrees,
    ),
    Experiment(
        "low-rank",
        "`powersgd`",
        "Vogels et al. 2019 (arXiv:1905.13727), tables 3 and 4: megabytes that a worker sends in an epoch with SGD and "
        "ranks 1, 2, 4, 7 of ResNet18 on CIFAR-10, and 1, 2, 4 of an LSTM with 28,869 words; the steps of an epoch, 24 "
        "and 70, are fitted to the numbers of SGD",
        "; ".join(", ".join(map(str, numbers.values())) for _, _, numbers in EPOCHS_OF_TABLES.values()),
        _epochs_of_messages,
        f"{_megabytes('resnet18')}; {_megabytes('lstm')}",
        lambda found: all(
            round(found[f"{model}{rank}"]) == expected
            for model, (_, _, numbers) in EPOCHS_OF_TABLES.items()
            for rank, expected in numbers.items()
        ),
    ),
    Experiment(
        "hostile",
        "`trimmed_mean`, `sync_sgd`",
        "Yin et al. 2018 (arXiv:1803.01498), the median; ours is softmax regression on digits, 60 steps with η = 0.2, "
        "10 workers, of which 0, 1, 2, 3, 4 send negative gradients",
        "the median loses little with any minority of hostile workers; the mean makes a step of (1 − 2α) η, with α the "
        "share of them, and any one worker can take it anywhere",
        _attack,
        f"accuracy of the mean: {_five('sync_sgd')}; of the median: {_five('trimmed_mean')}",
        lambda found: found["trimmed_mean4"] > found["trimmed_mean0"] - 0.1 > found["sync_sgd4"] + 0.2,
    ),
    Experiment(
        "krum",
        "`krum`, `sync_sgd`",
        "Blanchard et al. 2017 (arXiv:1703.02757), a third of the workers hostile; ours is softmax regression on "
        f"digits, 100 steps with η = 0.1, batches of 3, {MANY} workers, of which {ATTACKERS} send normal numbers with "
        f"a deviation of {NOISE} (Gaussian), or −{LARGER} times the gradient of all data (omniscient)",
        "the mean fails under each attack, Krum does not; without attack a step by one gradient of 21 is worse than "
        "their mean, and Multi-Krum (14 chosen) as good",
        _choosing,
        "accuracy without attack, with Gaussian and with omniscient attackers: of the mean "
        f"{_each_attack('mean')}; of Krum {_each_attack('krum')}; of Multi-Krum {_each_attack('multi')}",
        _chosen_agrees,
    ),
]
