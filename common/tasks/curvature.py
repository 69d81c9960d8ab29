"""The largest curvature of the loss where a run begins, and whether the learning rate is too large for it.

The curvature is the largest eigenvalue h of the Hessian, by power iteration: v ← Hv / ‖Hv‖, where the product with the
Hessian is a difference of two gradients, Hv = (g(x + εv) − g(x)) / ε. Each vᵀHv is at most h, so the estimate errs on
the side of no warning. The first v is the gradient, along which the run begins, with noise.

The curvature of a network changes while it trains. Above 2/h the loss may rise at first, until the parameters have
found a place with less curvature (Lewkowycz, Bahri, Dyer, Sohl-Dickstein, Gur-Ari, *The Large Learning Rate Phase of
Deep Learning: the Catapult Mechanism*, 2020, arXiv:2003.02218). So a warning comes from `MARGIN` times the limit on;
where the curvature is the same at another point, as that of a quadratic, from the limit itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract.stability import diverging_rate, staleness_of
from ..data.dataset import num_examples
from ..data.models import plain
from ..lazy import tf
from ..record import checkpoint
from ..reports import Report
from ..worker.flat_model import FlatModel
from .job import Job

ITERATIONS = 8  # products with the Hessian

EXAMPLES, LEAST_EXAMPLES = 512, 128  # few examples have a larger curvature than all of them

CHUNK = 128  # examples of one gradient; or a batch, if that is larger

PRODUCTS = 2e10  # multiplications of all gradients, about a second of a core

EPSILON = 0.01  # length of the step between two gradients

MARGIN = 3.0  # of a loss whose curvature changes

SAME = 0.01  # relative difference between curvatures of a quadratic, in float32

Gradient = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Curvature:
    """The curvature of a loss at a point.

    Attributes:
        largest: the largest eigenvalue of the Hessian, h; an estimate from below.
        constant: True if the loss has the same curvature at another point.
    """

    largest: float
    constant: bool


def measured(gradient: Gradient, x: np.ndarray, seed: int = 0) -> Curvature:
    """Measure the curvature of a loss at a point, by `ITERATIONS` + 3 gradients.

    Args:
        gradient: returns the gradient at a point, [P].
        x: the point, [P].
        seed: seed of the noise in the first direction.
    """
    gradient_at_x = gradient(x)
    noise = np.random.default_rng([seed, len(x)]).standard_normal(len(x), np.float32)
    v = _unit(_unit(gradient_at_x) + _unit(noise))
    largest, sharpest, shift = 0.0, v, 0.0
    for _ in range(ITERATIONS):
        product = (gradient(x + EPSILON * v) - gradient_at_x) / EPSILON
        if (found := float(v @ product)) > largest:
            largest, sharpest = found, v
        shift = max(shift, -found)  # with H + shift, a large negative eigenvalue does not attract v
        v = _unit(product + shift * v)
    nearby = x + sharpest
    other = float(sharpest @ (gradient(nearby + EPSILON * sharpest) - gradient(nearby))) / EPSILON
    return Curvature(largest, abs(other - largest) <= SAME * largest)


def _unit(v: np.ndarray) -> np.ndarray:
    """Return a vector scaled to the length 1, or zeros."""
    return v / max(float(np.linalg.norm(v)), np.finfo(np.float32).tiny)


def probe(job: Job, flat: FlatModel, report: Report) -> None:
    """Report the curvature at the start of a run, with a warning if its learning rate is far above the limit.

    Nothing is measured where no limit is known, nor for data of a function, a gradient that is clipped, hostile
    workers, a run that is resumed, and a model that needs more than `PRODUCTS` multiplications.
    """
    workers, examples = job.cluster.workers, _affordable(job)
    if examples is None or diverging_rate(job.scheme, workers, 1.0) is None:
        return
    try:
        found = measured(gradient_of(job, flat, examples), flat.pack(), job.options.seed)
    except Exception as error:  # of the user's model outside a graph: the training may do without
        report(event="warning", message=f"the curvature of the loss was not measured: {plain(error)}")
        return
    h = found.largest + job.options.l2
    if np.isfinite(h) and h > 0:
        first: Any = job.scheme.at(tf.constant(0, tf.int64))
        rate = float(first.learning_rate)
        limit = diverging_rate(job.scheme, workers, h) or np.inf
        too_large = _too_large(rate, limit, h, staleness_of(job.scheme, workers)) if rate > limit else ""
        report(event="curvature", curvature=h, largest_rate=limit, too_large=too_large)
        if rate > (1 if found.constant else MARGIN) * limit:
            report(event="warning", message=f"{too_large} (docs/not-converging.md)")


def _affordable(job: Job) -> int | None:
    """Return the number of examples for a probe of the job; None for no probe."""
    products, options = getattr(job.recipe, "products", None), job.options
    if not options.probe or products is None or callable(job.train) or checkpoint.found(job.run_dir):
        return None
    if options.clip_norm is not None or options.hostile is not None:
        return None
    examples = PRODUCTS / ((ITERATIONS + 3) * max(products, 1))
    if examples < LEAST_EXAMPLES / 4:
        return None
    return min(num_examples(job.train), EXAMPLES, max(LEAST_EXAMPLES, int(examples)))


def gradient_of(job: Job, flat: FlatModel, examples: int) -> Gradient:
    """Return the gradient of the mean loss of some examples of the run, as a function of the parameters, [P]."""
    rows = np.random.default_rng([job.options.seed, examples]).permutation(num_examples(job.train))[:examples]
    chunk = max(CHUNK, job.options.batch_size)
    parts = [rows[i : i + chunk] for i in range(0, examples, chunk)]
    batches = [tf.nest.map_structure(lambda leaf, part=part: tf.constant(leaf[part]), job.train) for part in parts]
    held = flat.pack_state(), flat.initial_seeds, flat.frozen_values()
    state, seeds, frozen = tf.nest.map_structure(tf.constant, held)

    @tf.function(autograph=False)  # a small model is quicker to trace once than to execute some dozens of times
    def on_batch(point: Any, batch: Any) -> Any:
        return tf.concat(flat.gradient(point, state, seeds, frozen, batch)[1], 0)

    def gradient(x: np.ndarray) -> np.ndarray:
        point, total = tf.constant(x, tf.float32), np.zeros(flat.size, np.float32)
        for part, batch in zip(parts, batches, strict=True):
            total += on_batch(point, batch).numpy() * np.float32(len(part) / examples)
        return total

    return gradient


def _too_large(rate: float, limit: float, h: float, staleness: int) -> str:
    """Return what is wrong with a rate above the limit, in one line, and a smaller one."""
    times = f"{rate / limit:.2g} times" if rate > 1.5 * limit else "above"
    stale = f" at a staleness of {staleness}" * bool(staleness)
    return (
        f"learning rate {rate:.3g} is {times} {limit:.2g}, the limit{stale} (largest curvature of the loss where the "
        f"run begins: {h:.2g}): try {rounded_down(limit / 2):g}"
    )


def rounded_down(number: float) -> float:
    """Return the largest number with one significant digit that is at most `number`."""
    power = 10.0 ** np.floor(np.log10(number))
    return float(f"{np.floor(number / power * (1 + 1e-9)) * power:.1g}")
