"""Experiments of papers on how many workers an update waits for: order statistics of the times of gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.progress import track

from ..algorithms.async_sgd import AsyncSGD
from ..algorithms.k_async import KAsync
from ..algorithms.k_batch_async import KBatchAsync
from ..algorithms.k_batch_sync import KBatchSync
from ..algorithms.k_sync import KSync
from ..algorithms.ringmaster import Ringmaster
from ..algorithms.softsync import SoftSync
from ..algorithms.sync_sgd import SyncSGD
from ..common.cluster.platform import Platform
from ..common.contract import Scheme
from ..simulator.virtual_time.schedule import EventLoop
from .claims_runs import centers
from .reproduced_experiment import Experiment, Numbers

WORKERS, COUNT, STEPS = 8, 3, 6000

STEP_SECONDS = 0.01


def _times() -> Numbers:
    """Return the mean time of an update in units of the mean time of a gradient, and the mean staleness."""
    schemes = {
        "k_async": KAsync(workers_per_update=COUNT),
        "k_batch_async": KBatchAsync(messages_per_update=COUNT),
        "k_sync": KSync(workers_per_update=COUNT, cancel_late=True),
        "k_batch_sync": KBatchSync(messages_per_update=COUNT, cancel_late=True),
        "k_sync_without": KSync(workers_per_update=COUNT),
        "k_batch_sync_without": KBatchSync(messages_per_update=COUNT),
    }
    machines = Platform(compute="exponential", step_ms=1000 * STEP_SECONDS)
    found = {}
    for name, scheme in schemes.items():
        sizes: dict[str, Any] = {"message_bytes": 0, "reply_bytes": 0}
        trace = EventLoop(scheme, machines, workers=WORKERS, rounds=scheme.rounds(STEPS), seed=1, **sizes).run().trace
        middle = slice(len(trace["version"]) // 10, -len(trace["version"]) // 10)  # while all workers are in the run
        at, version, staleness = (trace[column][middle] for column in ("microseconds", "version", "staleness"))
        found[name] = float((at[-1] - at[0]) / (version[-1] - version[0]) / 1e6 / STEP_SECONDS)
        found[f"{name}_staleness"] = float(staleness.mean())
    return found


def _of_order() -> float:
    """Return E X_(K:W) of exponential times with mean 1: H_W − H_(W − K)."""
    return sum(1 / i for i in range(WORKERS - COUNT + 1, WORKERS + 1))


def _until_update(fresh: int, stale: int, left: int, waits: int) -> float:
    """Return the mean time until `left` more gradients at the present center are there, if none is cancelled.

    Each of the busy workers is the next with the same chance: one with a late gradient then begins at the present
    center, one with a fresh gradient waits (`waits` = 1), or begins again.
    """
    if not left:
        return 0.0
    busy, then = fresh + stale, 0.0
    if fresh:
        then += fresh / busy * _until_update(fresh - waits, stale, left - 1, waits)
    if stale:
        then += stale / busy * _until_update(fresh + 1, stale - 1, left, waits)
    return 1 / busy + then


EXPECTED = {
    "k_async": _of_order(),
    "k_batch_async": COUNT / WORKERS,
    "k_sync": _of_order(),
    "k_batch_sync": COUNT / WORKERS,
    "k_sync_without": _until_update(COUNT, WORKERS - COUNT, COUNT, 1),
    "k_batch_sync_without": _until_update(1, WORKERS - 1, COUNT, 0),
}


# The staleness of n-softsync.

LEARNERS, SPLITS = 16, (1, 2, 4, 8, 16)


def _staleness() -> Numbers:
    """Return the mean staleness for each n, and the largest share of gradients that are more than 2n updates late."""
    found, late_shares = {}, []
    for n in SPLITS:
        scheme = SoftSync(messages_per_update=LEARNERS // n)
        machines = Platform(compute="lognormal:sigma=0.1")
        sizes: dict[str, Any] = {"message_bytes": 0, "reply_bytes": 0}
        rounds = scheme.rounds(2000)
        trace = EventLoop(scheme, machines, workers=LEARNERS, rounds=rounds, seed=1, **sizes).run().trace
        middle = trace["staleness"][len(trace["staleness"]) // 10 : -len(trace["staleness"]) // 10]
        found[f"n{n}"] = float(middle.mean())
        late_shares.append(float((middle > 2 * n).mean()))
    return found | {"late": max(late_shares)}


# The best number of workers to wait for.

MANY, DIMENSIONS, TARGET, SMOOTHED = 16, 10, 0.02, 5

LAWS = {
    "constant": {},
    "exponential": {"compute": "exponential"},
    "lognormal": {"compute": "lognormal:sigma=1"},
    "pareto": {"compute": "pareto:shape=1.5"},
    "root": {"step_factors": ",".join(f"{i**0.5:.4f}" for i in range(1, MANY + 1))},
    "cube": {"step_factors": ",".join(str(i**3) for i in range(1, MANY + 1))},
}


def _laws() -> Numbers:
    """Return, for each law of the times of gradients, how many times longer the best m-synchronous SGD takes.

    The others are asynchronous SGD and Ringmaster; the learning rate, m and R are the best of a grid for each law.
    """
    found = {}
    for name, law in track(LAWS.items(), "laws of time", transient=True):
        synchronous = {
            m: min(
                _seconds(SyncSGD(backup_workers=MANY - m, learning_rate=eta), law, 200)
                for eta in (0.05, 0.1, 0.2, 0.4, 0.8)
            )
            for m in (1, 2, 4, 8, 16)
        }
        others = [AsyncSGD(learning_rate=eta) for eta in (0.0125, 0.025, 0.05, 0.1)]
        others += [Ringmaster(learning_rate=eta, delay_threshold=r) for eta in (0.025, 0.05, 0.1) for r in (4, 16, 64)]
        found[f"{name}_m"] = min(synchronous, key=lambda m: synchronous[m])
        found[name] = min(synchronous.values()) / min(_seconds(scheme, law, 600) for scheme in others)
    return found


def _seconds(scheme: Scheme, law: Mapping[str, str], updates: int) -> float:
    """Return when ½ |x|²/d is below the target; infinity if it is not after so many updates."""
    machines, rounds = Platform(**law), scheme.rounds(4 * updates)  # pyright: ignore[reportArgumentType]
    sizes: dict[str, Any] = {"message_bytes": 0, "reply_bytes": 0}
    loop = EventLoop(scheme, machines, workers=MANY, rounds=rounds, seed=1, stop_at_version=updates, **sizes)
    trace, noisy = loop.run().trace, lambda x, k, t: x + np.random.default_rng([k, t]).standard_normal(len(x))
    walk = np.array(centers(scheme, trace, np.ones(DIMENSIONS), noisy, MANY, 4 * updates))
    gaps = np.convolve((walk**2).mean(1) / 2, np.ones(SMOOTHED) / SMOOTHED, "valid")
    if not (below := np.flatnonzero(gaps < TARGET)).size:
        return math.inf
    return float(trace["microseconds"][np.searchsorted(trace["version"], below[0] + SMOOTHED - 1)] / 1e6)


EXPERIMENTS = [
    Experiment(
        "order-statistics",
        "`k_async`, `k_batch_async`, `k_sync`, `k_batch_sync`",
        "Dutta et al. 2018 (arXiv:1803.01113), the time of an update; exponential times of gradients with mean 1, "
        f"W = {WORKERS}, K = {COUNT}",
        f"K-async and K-sync E X₍K:W₎ = {EXPECTED['k_async']:.3f}, K-batch-async and K-batch-sync K/W = "
        f"{EXPECTED['k_batch_async']:.3f}, K-batch-async with a staleness of (W − 1)/K = {(WORKERS - 1) / COUNT:.3f}; "
        f"where late gradients are not cancelled, K-sync {EXPECTED['k_sync_without']:.3f} and K-batch-sync "
        f"{EXPECTED['k_batch_sync_without']:.3f}",
        _times,
        "K-async {k_async:.3f}, K-sync {k_sync:.3f} (`--cancel-late`), K-batch-async {k_batch_async:.3f} with "
        "{k_batch_async_staleness:.3f}, K-batch-sync {k_batch_sync:.3f} (`--cancel-late`); without, "
        "{k_sync_without:.3f} and {k_batch_sync_without:.3f}",
        lambda found: all(math.isclose(found[name], time, rel_tol=0.03) for name, time in EXPECTED.items()),
    ),
    Experiment(
        "softsync",
        "`softsync`",
        "Zhang et al. 2016 (arXiv:1511.05950), section 5.1; ours has 16 workers, lognormal times with σ = 0.1 "
        "(with σ = 0.3, 0.5 % are later), n = 1, 2, 4, 8, 16",
        "a mean staleness of n, and less than one gradient in 10,000 more than 2n updates late",
        _staleness,
        ", ".join(f"{{n{n}:.2f}}" for n in SPLITS) + "; {late:.5f} of them later",
        lambda found: all(abs(found[f"n{n}"] / n - 1) < 0.1 for n in SPLITS) and found["late"] < 1e-4,
    ),
    Experiment(
        "m-sync",
        "`sync_sgd --backup-workers`, `async_sgd`, `ringmaster`",
        "Begunov & Tyurin 2026 (arXiv:2602.03802), m-synchronous SGD; ours is ½ ‖x‖² with noise, 16 workers, times of "
        "gradients constant, exponential, lognormal (σ = 1), Pareto (shape 1.5), √i and i³ for worker i",
        "the best m takes longer than the best asynchronous algorithm by a logarithmic factor at most; the constant is "
        "open, and our limit for it is 2 log 16 = 5.5",
        _laws,
        "factors of " + ", ".join(f"{{{name}:.1f}} (m = {{{name}_m}})" for name in LAWS),
        lambda found: max(found[name] for name in LAWS) < 2 * math.log(MANY),
    ),
]
