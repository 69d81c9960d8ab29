"""Experiments of papers on hostile workers: which rule survives which attack."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.progress import track

from ..common.data.recipes import make
from ..common.hostile import attack_of
from ..common.replay.reference import gradients, robust_rules
from ..common.replay.reference.robust_rules import Rows
from ..common.replay.under_attack import forging, of_hostile
from .reproduced_experiment import Experiment, Numbers

WORKERS, HOSTILE, STEPS, RATE, MOMENTUM, SEEDS = 15, 3, 200, 0.2, 0.9, 9

EPSILON, Z = 0.1, 1.5  # of IPM and ALIE

# Names, and the option `hostile` of such a run.
ATTACKS = {
    **{"none": None, "sign-flip": f"sign-flip:{HOSTILE}", "label-flip": f"label-flip:{HOSTILE}"},
    **{"ipm": f"ipm:{HOSTILE},epsilon={EPSILON}", "alie": f"alie:{HOSTILE},z={Z}", "nan": f"nan:{HOSTILE}"},
}
SHARDS = {"equal": None, "sorted": 0.0}

RULES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "mean": (robust_rules.trimmed_mean, {"beta": 0.0}),
    "median": (robust_rules.trimmed_mean, {"beta": 0.5}),
    "trimmed_mean": (robust_rules.trimmed_mean, {"beta": HOSTILE / WORKERS}),
    "krum": (robust_rules.krum, {"beta": HOSTILE / WORKERS, "chosen": 1}),
    "multi_krum": (robust_rules.krum, {"beta": HOSTILE / WORKERS, "chosen": 5}),
    "rfa": (robust_rules.rfa, {"beta": HOSTILE / WORKERS, "nu": 1e-6, "iterations": 8}),
    "centered_clipping": (
        robust_rules.centered_clipping,
        {"beta": HOSTILE / WORKERS, "tau": 1.0, "iterations": 3},
    ),
}


def _survivors() -> Numbers:
    """Return the accuracies on digits of softmax regression, [seeds], by shards, attack, rule and bucket."""
    digits = make("digits")
    (x, y), (test_x, test_y) = ((x.reshape(len(x), -1), y) for x, y in (digits.train, digits.test))
    size = x.shape[1]
    of_labels = [gradients.mlp_gradient(x, labels, [size, 10]) for labels in (y, y.max() - y)]

    def accuracy(shards: str, attack: str, rule: str, bucket: int, seed: int, workers: int = WORKERS) -> float:
        skew = None if SHARDS[shards] is None else (y, SHARDS[shards])
        options: dict[str, Any] = {"examples": len(x), "workers": WORKERS, "seed": seed, "batch_size": 16, "skew": skew}
        honest, false = (gradients.batch_gradient(on_rows, **options) for on_rows in of_labels)
        hostile, gradient = ATTACKS[attack], honest
        if hostile is not None:
            config = {"hostile": hostile, "workers": WORKERS, "algorithm": "trimmed_mean"}
            gradient = of_hostile(config, honest, lambda: false)
        drawn = np.random.default_rng(seed).random((STEPS, WORKERS))
        rows = Rows(MOMENTUM, bucket, lambda t: drawn[t], forging(attack_of(hostile), WORKERS))
        step, settings = RULES[rule]
        with np.errstate(all="ignore"):
            path = step(np.zeros(size * 10 + 10), gradient, workers, eta=RATE, steps=STEPS, rows=rows, **settings)
            scores = test_x @ path[-1][:-10].reshape(-1, 10) + path[-1][-10:]
        return float((scores.argmax(1) == test_y).mean()) if np.isfinite(scores).all() else 0.1

    cases = [*itertools.product(SHARDS, ATTACKS, RULES, (1, 2))]
    found = {
        "_".join(map(str, case)): [accuracy(*case, seed) for seed in range(SEEDS)]
        for case in track(cases, description="survivors")
    }
    alone = WORKERS - HOSTILE
    for shards in SHARDS:
        found[f"{shards}_alone"] = [accuracy(shards, "none", "mean", 1, seed, alone) for seed in range(SEEDS)]
    return found


def kept(found: Numbers, shards: str, rule: str, bucket: int) -> float:
    """Return the least mean accuracy of a rule under an attack, in units of that of the honest workers alone."""
    means = [np.mean(found[f"{shards}_{attack}_{rule}_{bucket}"]) for attack in ATTACKS if attack != "none"]
    return float(min(means) / np.mean(found[f"{shards}_alone"]))


def _agrees(found: Numbers) -> bool:
    """Check that clipping with buckets survives on unequal shards, and no older rule does without."""
    older = "mean", "median", "trimmed_mean", "krum", "rfa"
    clipped = kept(found, "sorted", "centered_clipping", 2)
    return clipped > 0.9 and all(kept(found, "sorted", rule, 1) < min(0.8, clipped - 0.1) for rule in older)


def _summary(found: Numbers) -> dict[str, float]:
    """Return the figures of the text: what each rule keeps under the worst attack."""
    return {
        f"{shards}_{rule}_{bucket}": kept(found, shards, rule, bucket)
        for shards, rule, bucket in itertools.product(SHARDS, RULES, (1, 2))
    }


def _measured() -> Numbers:
    found = _survivors()
    return {**found, **_summary(found)}


def _draw(found: Numbers) -> Figure:
    """Draw the accuracies under each attack: a panel for equal shards and one for sorted ones."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(len(SHARDS), 1, sharex=True, sharey=True)
    for panel, shards in zip(panels, SHARDS, strict=True):
        for i, rule in enumerate(RULES):
            for bucket, face in ((1, f"C{i}"), (2, "white")):
                values = np.array([found[f"{shards}_{attack}_{rule}_{bucket}"] for attack in ATTACKS])
                means = values.mean(1)
                band = np.array([means - values.min(1), values.max(1) - means])
                at = np.arange(len(ATTACKS)) + (2 * i + bucket - len(RULES) - 0.5) / 18
                label = rule.replace("_", " ") if bucket == 1 else None
                look = {"color": f"C{i}", "markerfacecolor": face, "label": label}
                panel.errorbar(at, means, band, fmt="o", markersize=4, elinewidth=1, **look)
        panel.set_ylabel(f"accuracy, {shards} shards")
        panel.grid(axis="y", alpha=0.3)
    panels[-1].set_xticks(range(len(ATTACKS)), ATTACKS)
    panels[-1].set_xlabel(f"attack of {HOSTILE} of {WORKERS} workers; hollow: buckets of two")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(RULES))
    return figure


def _each(shards: str, bucket: int) -> str:
    return ", ".join(f"{{{shards}_{rule}_{bucket}:.2f}}" for rule in RULES)


EXPERIMENTS = [
    Experiment(
        "survivors",
        "`centered_clipping`, `rfa`, `krum`, `trimmed_mean`, `sync_sgd`",
        "Karimireddy et al. 2022 (arXiv:2006.09365), aggregation rules under attacks with and without buckets of two, "
        f"momentum {MOMENTUM}, τ and iterations of the paper; ours is softmax regression on digits, {STEPS} steps with "
        f"η = {RATE}, batches of 16, {WORKERS} workers, of which {HOSTILE} are hostile (sign flip, label flip, IPM "
        f"with ε = {EPSILON}, ALIE with z = {Z}, NaN), {SEEDS} seeds; sorted shards have one "
        "or two labels each, so that those of the hostile ones are lost",
        "on unequal shards centered clipping with buckets keeps its accuracy under each attack; median, Krum and RFA "
        "lose it under one at least without buckets",
        _measured,
        "accuracy under the worst attack, in units of that of the honest workers alone, of mean, median, trimmed mean, "
        f"Krum, Multi-Krum, RFA and centered clipping: equal shards {_each('equal', 1)}, with buckets "
        f"{_each('equal', 2)}; sorted shards {_each('sorted', 1)}, with buckets {_each('sorted', 2)}",
        _agrees,
        _draw,
    ),
]
