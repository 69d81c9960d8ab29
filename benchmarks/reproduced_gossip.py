"""Experiments of papers on workers that average with their neighbours: consensus, and what the graph decides."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.progress import track

from ..algorithms.ad_psgd import ADPSGD
from ..algorithms.all_reduce import AllReduce
from ..algorithms.d_psgd import DPSGD
from ..common.cluster.platform import Platform
from ..common.data.recipes import make
from ..common.replay.reference import gossip_rules
from ..common.replay.reference.gradients import batch_gradient, mlp_gradient, mlp_loss
from ..common.replay.reference.synchronous_rules import largest
from ..common.sync.topology import Topology, spectral_gap
from ..simulator.virtual_time.schedule import EventLoop
from .claims_runs import centers
from .reproduced_experiment import Experiment, Numbers, on_digits, path

# How far the workers are from their mean.

WORKERS, RATE, COORDINATES, ROUNDS, WARM = 16, 0.1, 2000, 400, 100

GRAPHS = "ring", "hypercube", "random-matching", "complete"


def _consensus() -> Numbers:
    """Return, for each graph, the mean squared distance of workers and mean, and the mean square of the mean.

    They are of D-PSGD, x ← W x − η (x + ξ), on ½ x² with noise ξ of variance 1, for one coordinate.
    """
    found = {}
    for name in GRAPHS:
        graph, random, x = Topology(name), np.random.default_rng(1), np.zeros((WORKERS, COORDINATES))
        apart, means = [], []
        for t in range(ROUNDS):
            x = graph.weights(WORKERS, t) @ x - RATE * (x + random.standard_normal(x.shape))
            if t >= WARM:
                apart.append(np.mean((x - x.mean(0)) ** 2))
                means.append(np.mean(x.mean(0) ** 2))
        found |= {name: float(np.mean(apart)), f"{name}_mean": float(np.mean(means))}
    return found


def stationary_consensus(name: str) -> float:
    """Return the same distance in closed form: (1/W) Σ η² / (1 − |λ − η|²) over all eigenvalues but that of the mean.

    Pairs that are drawn in each round are projections with E W = λ on all vectors without a mean, so that there
    E (W − η)² = λ (1 − 2 η) + η².
    """
    if name == "random-matching":
        kept = (WORKERS - 2) / (2 * (WORKERS - 1)) * (1 - 2 * RATE) + RATE**2
        return (WORKERS - 1) / WORKERS * RATE**2 / (1 - kept)
    among = sorted(np.linalg.eigvals(Topology(name).weights(WORKERS)), key=lambda value: abs(value - 1))[1:]
    return float(np.sum(RATE**2 / (1 - np.abs(np.array(among) - RATE) ** 2)) / WORKERS)


VARIANCE = RATE**2 / (1 - (1 - RATE) ** 2) / WORKERS  # of the mean, with any graph


# Loss per epoch.

EPOCHS, BATCH, HIDDEN, ETA = (2, 8, 32), 16, 32, 0.2


def _epochs() -> Numbers:
    """Return the loss on digits after so many epochs, of all-reduce and of D-PSGD on a ring, on equal shards."""
    start, gradient, loss, *_, examples = on_digits(HIDDEN, WORKERS, BATCH)
    of_epoch = examples // (WORKERS * BATCH)
    steps = EPOCHS[-1] * of_epoch
    ring = Topology("ring").weights(WORKERS)
    paths = {
        "all_reduce": path(AllReduce(learning_rate=ETA), start, gradient, workers=WORKERS, steps=steps),
        "ring": gossip_rules.d_psgd(start, gradient, WORKERS, weights=lambda t: ring, eta=ETA, steps=steps),
    }
    return {f"{name}{n}": loss(centers[n * of_epoch - 1]) for name, centers in paths.items() for n in EPOCHS}


# One slow worker.

SLOWER, FEW, LOSS, STEP_MS = (1, 10, 100), 4, 0.3, 10.0

OF_SLOW = ADPSGD(learning_rate=ETA), DPSGD(learning_rate=ETA), AllReduce(learning_rate=ETA)


def _slow_worker() -> Numbers:
    """Return the virtual seconds to a loss on digits, with the first of four workers so many times slower."""
    start, gradient, loss, *_ = on_digits(HIDDEN, FEW, BATCH)
    found = {}
    for scheme in OF_SLOW:
        for slower in SLOWER:
            machines = Platform(step_ms=STEP_MS, step_factors=f"{slower}{',1' * (FEW - 1)}")
            last = round(200 * scheme.sync.updates_per_round(FEW))
            options = {"rounds": scheme.rounds(last), "message_bytes": 0, "reply_bytes": 0, "stop_at_version": last}
            trace = EventLoop(scheme, machines, workers=FEW, seed=0, **options).run().trace
            whole = centers(scheme, trace, start, gradient, FEW, last)
            reached = next(version for version, center in enumerate(whole) if loss(center) <= LOSS)
            at = np.searchsorted(trace["version"], reached, side="right") - 1
            found[f"{scheme.name}{slower}"] = float(trace["microseconds"][at]) / 1e6
    return found


# What the spectral gap does not tell.

SIZES, TARGET, DIMENSIONS, REPEATS, MOST = (16, 64, 256), 1e-3, 50, 8, 1000

DRAWN = "ring", "torus", "hypercube", "complete"

LEARNING_RATES = [2 ** (-k / 4) for k in range(24)]


def squared_norms(weights: np.ndarray, rate: float) -> np.ndarray:
    """Return E ‖x‖² of a worker after each round, in units of its start, until the target or divergence.

    The rounds are x ← W (x − η d dᵀx) with normal vectors d, drawn by each worker in each round, from equal x. On a
    graph that looks the same from each worker, the second moment of the mode of eigenvalue λ then obeys
    m ← |λ|² ((1 − η)² m + η² (D + 1) m̄), where m̄ = E ‖x‖² is the mean over all modes.
    """
    squares = np.sort(np.abs(np.linalg.eigvals(weights)) ** 2)
    modes, norms = np.zeros(len(squares)), [1.0]
    modes[-1] = len(squares)
    while TARGET <= norms[-1] < 10 and len(norms) <= MOST:
        modes = squares * ((1 - rate) ** 2 * modes + rate**2 * (DIMENSIONS + 1) * modes.mean())
        norms.append(float(modes.mean()))
    return np.array(norms[1:])


def _steps(norms: np.ndarray) -> float:
    return len(norms) if norms[-1] < TARGET else np.inf


def _simulated(weights: np.ndarray, rate: float) -> int:
    """Return the rounds until the mean of ‖x‖² over workers and repetitions is below the target."""
    random = np.random.default_rng(2)
    x = np.ones((REPEATS, len(weights), DIMENSIONS))
    for t in range(1, MOST):
        drawn = random.standard_normal(x.shape)
        x = weights @ (x - rate * drawn * np.sum(drawn * x, 2, keepdims=True))
        if np.mean(x**2) < TARGET:
            return t
    return MOST


def _gaps() -> Numbers:
    """Return, for each graph and number of workers, its gap, and rounds to the target at the best rate of the grid."""
    found = {}
    for name, workers in track([(name, workers) for name in DRAWN for workers in SIZES], "graphs", transient=True):
        weights = Topology(name).weights(workers)
        rounds = {rate: _steps(squared_norms(weights, rate)) for rate in LEARNING_RATES}
        rate = min(rounds, key=lambda rate: rounds[rate])
        key = f"{name}{workers}"
        found |= {f"{key}_gap": spectral_gap(weights), key: rounds[rate], f"{key}_simulated": _simulated(weights, rate)}
    return found


def _draw(numbers: Numbers) -> Any:
    """Return a figure: if the gap decided, all points would lie on one curve that falls."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for name in DRAWN:
        gaps = [numbers[f"{name}{workers}_gap"] for workers in SIZES]
        (line,) = axes.plot(gaps, [numbers[f"{name}{workers}"] for workers in SIZES], label=f"{name}, closed form")
        rounds = [numbers[f"{name}{workers}_simulated"] for workers in SIZES]
        axes.plot(gaps, rounds, "o", color=line.get_color(), label=f"{name}, simulated")
        for gap, number, workers in zip(gaps, rounds, SIZES, strict=True):
            axes.annotate(f"{workers}", (gap, number), textcoords="offset points", xytext=(4, 5))
    axes.set_xscale("log")
    axes.set_xlabel("spectral gap; beside each point, the number of workers")
    axes.set_ylabel("rounds to the target at the best rate")
    axes.legend(fontsize="small")
    return figure


def _on(name: str, kind: str = "") -> str:
    return ", ".join(f"{{{name}{workers}{kind}}}" for workers in SIZES)


def _gap_misleads(found: Numbers) -> bool:
    """Check that simulation and closed form agree, and that the rounds do not follow the gap."""
    keys = [f"{name}{workers}" for name in DRAWN for workers in SIZES]
    return (
        all(abs(found[f"{key}_simulated"] - found[key]) <= 1 + 0.03 * found[key] for key in keys)
        and found["ring256"] < 1.1 * found["ring16"]
        and found["torus256"] < found["torus16"]
        and found["ring16_gap"] > 200 * found["ring256_gap"]
    )


# What tracking the gradient brings where the shards of the workers differ.

OF_WORKERS, UNTIL = (4, 8, 16), 1500


def _tracking() -> Numbers:
    """Return how far the mean of the workers ends from the minimum, of D-PSGD and with tracking, without noise.

    Worker i has the loss ½ a_i (x − b_i)². With D-PSGD x rests where (1 − W + η a) x = η a b.
    """
    found = {}
    for workers in OF_WORKERS:
        curvatures, minima = np.linspace(0.2, 1.0, workers), np.random.default_rng(3).standard_normal(workers)
        minimum, weights = curvatures @ minima / curvatures.sum(), Topology("ring").weights(workers)
        gradient = lambda x, k, t, a=curvatures, b=minima: a[k] * (x - b[k])  # noqa: E731
        options = {"weights": lambda t, weights=weights: weights, "eta": ETA, "steps": UNTIL}
        for name in ("d_psgd", "dsgd_tracking"):
            path_of = getattr(gossip_rules, name)(np.zeros(1), gradient, workers, **options)
            found[f"{name}{workers}"] = float(np.abs(path_of[-1] - minimum)[0])
        rest = np.linalg.solve(np.eye(workers) - weights + ETA * np.diag(curvatures), ETA * curvatures * minima)
        found[f"rest{workers}"] = float(abs(rest.mean() - minimum))
    return found


# Compressed messages.

COMPRESSED, UP_TO = 9, 0.5  # number of workers, and loss to reach
KEPT = {"tenth": (0.1, 0.3), "hundredth": (0.01, 0.1)}  # fraction of the elements that is sent, and γ
SHARDS = {"equal": None, "sorted": 0.0}


def _compressed() -> Numbers:
    """Return the steps, and the megabytes that a worker sends, until a loss on digits, by shards and algorithm."""
    digits, found = make("digits"), {}
    x, y = digits.train[0].reshape(len(digits.train[0]), -1), digits.train[1]
    sizes = [x.shape[1], HIDDEN, 10]
    on_rows, loss, start = mlp_gradient(x, y, sizes), mlp_loss(x, y, sizes), on_digits(HIDDEN, COMPRESSED, BATCH).start

    def note(name: str, centers: Any, bytes_of_step: float) -> None:
        reached = next(step for step in range(5, len(centers) + 1, 5) if loss(centers[step - 1]) <= UP_TO)
        found[f"{name}_steps"], found[f"{name}_megabytes"] = reached, reached * bytes_of_step / 1e6

    for shards, alpha in track(SHARDS.items(), description="choco"):
        skew, steps = (None, 400) if alpha is None else ((y, alpha), 2000)
        plan: dict[str, Any] = {"examples": len(x), "workers": COMPRESSED, "seed": 0, "batch_size": BATCH, "skew": skew}
        gradient = batch_gradient(on_rows, **plan)
        reduced = path(AllReduce(learning_rate=ETA), start, gradient, workers=COMPRESSED, steps=steps)
        note(f"{shards}_all_reduce", reduced, 2 * (COMPRESSED - 1) / COMPRESSED * 4 * len(start))
        for graph in "ring", "torus":
            weights = Topology(graph).weights(COMPRESSED)
            links = np.count_nonzero(weights) / COMPRESSED - 1
            run: dict[str, Any] = {"weights": lambda t, w=weights: w, "eta": ETA, "steps": steps}
            exact = gossip_rules.d_psgd(start, gradient, COMPRESSED, **run)
            note(f"{shards}_{graph}_d_psgd", exact, links * 4 * len(start))
            for part, (share, gamma) in KEPT.items():
                keep = largest(int(share * len(start)))
                rule = {"gamma": gamma, "order": "paper", "compress": lambda u, k, t, keep=keep: keep(u)}
                centers = gossip_rules.choco_sgd(start, gradient, COMPRESSED, **run, **rule)
                note(f"{shards}_{graph}_{part}", centers, links * 8 * int(share * len(start)))
    return found


def _fewer_bytes(found: Numbers) -> bool:
    """Check that on equal shards a hundredth of the elements needs as many steps, and in any case fewer bytes."""
    return all(
        found[f"equal_{graph}_hundredth_steps"] < 1.1 * found[f"equal_{graph}_d_psgd_steps"]
        and all(
            found[f"{shards}_{graph}_hundredth_megabytes"] < found[f"{shards}_{graph}_d_psgd_megabytes"] / fewer
            for shards, fewer in (("equal", 40), ("sorted", 4))
        )
        for graph in ("ring", "torus")
    )


def _both(shards: str) -> str:
    """Return the format of steps and megabytes of all algorithms on these shards."""
    names = [f"{shards}_all_reduce"]
    names += [f"{shards}_{graph}_{way}" for graph in ("ring", "torus") for way in ("d_psgd", *KEPT)]
    return ", ".join(f"{{{name}_steps}} and {{{name}_megabytes:.3g}}" for name in names)


EXPERIMENTS = [
    Experiment(
        "consensus",
        "`d_psgd`",
        "Lian et al. 2017 (arXiv:1705.09056), x ← W x − η g; ours is ½ x² with noise of variance 1, η = 0.1, 16 "
        f"workers on the graphs {', '.join(GRAPHS)}",
        "a mean squared distance from the mean of "
        + ", ".join(f"{stationary_consensus(name):.5f}" for name in GRAPHS)
        + f"; the mean itself has the variance of all-reduce, {VARIANCE:.5f}, on each",
        _consensus,
        ", ".join(f"{{{name}:.5f}}" for name in GRAPHS) + "; " + ", ".join(f"{{{name}_mean:.5f}}" for name in GRAPHS),
        lambda found: all(
            abs(found[name] / stationary_consensus(name) - 1) < 0.01
            and abs(found[f"{name}_mean"] / VARIANCE - 1) < 0.03
            for name in GRAPHS
        ),
    ),
    Experiment(
        "epochs",
        "`d_psgd`, `all_reduce`",
        "Lian et al. 2017 (arXiv:1705.09056), figure of the loss per epoch; ours is a network with 32 hidden units on "
        f"digits, 16 workers with equal shards, η = {ETA}, batches of {BATCH}",
        "on a ring, the loss of the mean of the workers after an epoch is that of all-reduce",
        _epochs,
        f"after {', '.join(map(str, EPOCHS))} epochs: "
        + ", ".join(f"{{ring{n}:.4f}}" for n in EPOCHS)
        + "; all-reduce "
        + ", ".join(f"{{all_reduce{n}:.4f}}" for n in EPOCHS),
        lambda found: all(abs(found[f"ring{n}"] / found[f"all_reduce{n}"] - 1) < 0.02 for n in EPOCHS),
    ),
    Experiment(
        "slow-worker",
        "`ad_psgd`, `d_psgd`, `all_reduce`",
        "Lian et al. 2018 (arXiv:1710.06952), one slow worker among others; ours is a network with 32 hidden units on "
        f"digits, {FEW} workers with equal shards, η = {ETA}, batches of {BATCH}, steps of 10 ms, the first worker "
        f"{', '.join(map(str, SLOWER))} times slower",
        "AD-PSGD hardly notices the slow worker: by its gradients, 3 + 1/s in place of 4 in the time of a step, it "
        "takes "
        f"{', '.join(f'{FEW / (FEW - 1 + 1 / s):.2f}' for s in SLOWER[1:])} times as long; the others s times",
        _slow_worker,
        f"virtual seconds to a loss of {LOSS}: "
        + "; ".join(f"`{scheme.name}` " + ", ".join(f"{{{scheme.name}{s}:.2f}}" for s in SLOWER) for scheme in OF_SLOW),
        lambda found: all(
            abs(found[f"ad_psgd{s}"] / found["ad_psgd1"] / (FEW / (FEW - 1 + 1 / s)) - 1) < 0.05
            and all(abs(found[f"{name}{s}"] / found[f"{name}1"] / s - 1) < 0.01 for name in ("d_psgd", "all_reduce"))
            for s in SLOWER
        ),
    ),
    Experiment(
        "spectral-gap",
        "`d_psgd`",
        "Vogels et al. 2022 (arXiv:2206.03093), beyond the spectral gap, random quadratics; ours are ½ (dᵀx)² with "
        f"{DIMENSIONS} normal elements of d, 16, 64 and 256 workers, the best of 24 learning rates for each",
        "a ring of 256 needs as many rounds as one of 16, with a gap 250 times smaller; a torus of 256 needs fewer "
        "than one of 16, with a gap 13 times smaller",
        _gaps,
        f"simulated rounds to {TARGET}: ring {_on('ring', '_simulated')}, torus {_on('torus', '_simulated')}, "
        f"hypercube {_on('hypercube', '_simulated')}, complete {_on('complete', '_simulated')}; closed form: "
        f"{_on('ring')}; {_on('torus')}; {_on('hypercube')}; {_on('complete')}",
        _gap_misleads,
        _draw,
    ),
    Experiment(
        "tracking",
        "`dsgd_tracking`, `d_psgd`",
        "Pu & Nedić 2021 (arXiv:1805.11454), linear convergence to the exact minimum at a constant rate without noise; "
        f"ours is ½ aᵢ (x − bᵢ)² on a ring of {', '.join(map(str, OF_WORKERS))} workers, η = {ETA}, {UNTIL} rounds",
        "with tracking the mean of the workers ends at the minimum; `d_psgd` ends beside it, by the solution of "
        "(1 − W + η a) x = η a b",
        _tracking,
        "with tracking "
        + ", ".join(f"{{dsgd_tracking{workers}:.0e}}" for workers in OF_WORKERS)
        + " from the minimum; `d_psgd` "
        + ", ".join(f"{{d_psgd{workers}:.4f}}" for workers in OF_WORKERS)
        + "; the solution "
        + ", ".join(f"{{rest{workers}:.4f}}" for workers in OF_WORKERS),
        lambda found: all(
            found[f"dsgd_tracking{workers}"] < 1e-9 < 1e-3 < found[f"d_psgd{workers}"]
            and abs(found[f"d_psgd{workers}"] / found[f"rest{workers}"] - 1) < 1e-6
            for workers in OF_WORKERS
        ),
    ),
    Experiment(
        "choco",
        "`choco_sgd`, `d_psgd`, `all_reduce`",
        "Koloskova et al. 2019 (arXiv:1902.00340), decentralized SGD with compressed messages; ours is a network with "
        f"{HIDDEN} hidden units on digits, {COMPRESSED} workers, η = {ETA}, batches of {BATCH}, the largest tenth and "
        f"hundredth of the elements with γ = {KEPT['tenth'][1]} and {KEPT['hundredth'][1]}, until a loss of {UP_TO}",
        "about as many steps as exact gossip, and a hundredth of the bytes (a fiftieth here, as an index is sent with "
        "each element); on sorted shards more steps",
        _compressed,
        "steps, and megabytes that a worker sends, of all-reduce, then on the ring of `d_psgd` and of `choco_sgd` with "
        f"a tenth and a hundredth, then on the torus: equal shards {_both('equal')}; sorted shards {_both('sorted')}",
        _fewer_bytes,
    ),
]
