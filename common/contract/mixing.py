"""By what factor the workers of a gossip algorithm move apart in a round, and the limits that follow from it.

Without gradients, and on the loss ½Lx² without noise, a round of gossip is linear (`OnGraph.linear_round`). Along each
eigenvector of the mixing matrix, with the eigenvalue λ, it is a small matrix of its own: that of `d_psgd` is λ − ηL.
The largest factor of a round is the largest absolute value of the eigenvalues of these. Where the graph changes, the
small matrices of a cycle are multiplied. Matchings that are drawn have no eigenvectors in common: their factor is
measured on vectors that go through all drawn rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import UserError
from ..sync.topology import Topology
from .hyperparameters import declared
from .scheme import Scheme

Mix = Callable[[Any], Any]  # from a number of each worker to the weighted sum of what it hears

GROWS = 1 + 1e-6  # the factor above which workers move apart, beyond rounding

MOST = 2.1  # no limit of ηL is as large


def growth(scheme: Any, workers: int, curvature: Any = 0.0) -> np.ndarray:
    """Return the largest factor of a round, in the mean over many: of the distances between the workers.

    Args:
        scheme: a gossip algorithm with a `linear_round`. A hyperparameter may be an array, [G, 1].
        workers: number of workers, W.
        curvature: ηL of the loss ½Lx²; an array [G, 1] for several. If it is not zero, the factor of the mean of the
            workers counts, too.

    Returns:
        the factors, [G]; zero for a single worker without a gradient.
    """
    graph = Topology(scheme.topology)
    modes, size = graph.eigenvalues(workers), scheme.linear_vectors
    alone = np.ones((1, 1)) if np.any(curvature) else np.zeros((1, 0))
    if modes is None:
        apart = _of_vectors(scheme, workers, curvature)
        modes = alone
    else:
        apart, modes = np.zeros(1), np.concatenate([np.repeat(alone, len(modes), 0), modes[:, 1:]], 1)
    if not modes.size:
        return apart
    product: Any = np.eye(size)
    for values in modes:
        columns = [scheme.linear_round(lambda v, values=values: values * v, one, curvature) for one in np.eye(size)]
        entries = np.broadcast_arrays(*(entry + 0 * values for column in columns for entry in column))
        product = np.moveaxis(np.stack(entries, -1).reshape(*entries[0].shape, size, size), -1, -2) @ product
    factors = np.abs(np.linalg.eigvals(product)).max(-1) ** (1 / len(modes))
    return np.maximum(apart, np.atleast_2d(factors).max(-1))


def _of_vectors(scheme: Any, workers: int, curvature: Any) -> np.ndarray:
    """Return the factors of vectors whose mean is zero, [G], in a cycle of rounds after one that aligns them."""
    links = scheme.sync.links(workers)
    state: Any = np.random.default_rng(0).normal(size=(scheme.linear_vectors, 1, workers))
    logs, cycle = np.zeros(1), len(links.others)
    for number in range(2 * cycle):
        others, weights = links.others[number % cycle], links.weights[number % cycle]

        def mix(v: Any, others: Any = others, weights: Any = weights) -> Any:
            return v + ((v[..., others] - v[..., None]) * weights).sum(-1)

        state = np.stack(np.broadcast_arrays(*scheme.linear_round(mix, state, curvature)))
        state = state - state.mean(-1, keepdims=True)
        norms = np.sqrt((state**2).sum((0, 2)))
        state = state / np.where(norms > 0, norms, 1)[None, :, None]
        if number >= cycle:
            with np.errstate(divide="ignore"):  # equal workers stay equal: the factor is zero
                logs = logs + np.log(norms)
    return np.exp(logs / cycle)


def _largest(factors: Callable[[np.ndarray], np.ndarray], limit: float, width: float) -> float:
    """Return the largest multiple of a width below `limit` up to which no factor exceeds one; 0 if there is none."""
    low, step = 0.0, 0.1
    while step > 0.9 * width:
        values = np.round(np.arange(low + step, limit, step)[: 10 if low else None], 3)
        grows = np.append(factors(values[:, None]) > GROWS, True)
        low, step = ([low, *values.tolist()][int(np.argmax(grows))], step / 10)
    return low


@lru_cache(maxsize=256)
def _factor(scheme: Any, workers: int, written: int | None) -> float:
    return float(growth(scheme, workers)[0])


def largest_momentum(scheme: Any, workers: int) -> float:
    """Return the largest stable momentum of a gossip algorithm without gradients, in hundredths."""
    return _momentum(_plain(scheme).but(momentum=0.0), workers, Topology(scheme.topology).written())


@lru_cache(maxsize=256)
def _momentum(scheme: Any, workers: int, written: int | None) -> float:
    return _largest(lambda values: growth(scheme.but(momentum=values), workers), 1.0, 0.01)


def largest_step(scheme: Any, workers: int) -> float | None:
    """Return the largest stable ηL of a gossip algorithm on the loss ½Lx² of all workers, in thousandths.

    None if it is not known: for local steps of another optimizer than SGD, and a scheme without a `linear_round`.
    """
    if not scheme.linear_vectors or declared(scheme, "inner_optimizer", "sgd") != "sgd":
        return None
    return _step(_plain(scheme), workers, Topology(scheme.topology).written())


@lru_cache(maxsize=256)
def _step(scheme: Any, workers: int, written: int | None) -> float:
    return _largest(lambda values: growth(scheme, workers, values), MOST, 0.001)


def check_growth(scheme: Any, workers: int) -> None:
    """Raise `UserError` if the distances between the workers grow without any gradient."""
    written = Topology(scheme.topology).written()
    if (factor := _factor(_plain(scheme), workers, written)) <= GROWS:
        return
    largest = largest_momentum(scheme, workers) if "momentum" in scheme.linear_rates else 0.0
    rates = {name: getattr(scheme, name) for name in scheme.linear_rates}
    ways = [f"lower momentum to at most {largest:.2g}"] if largest else []
    ways += ["consensus_rate" if largest else "lower consensus_rate"] if "consensus_rate" in rates else []
    received = ", ".join(f"{name}={value}" for name, value in rates.items())
    raise UserError(
        f"{scheme.name}: on the graph {scheme.topology} of {workers} workers, the distance between workers grows "
        f"{factor:.3g} times in a round, at any learning rate: "
        f"{', or '.join(ways) or 'choose another graph'}. Received: {received}"
    )


def limits(scheme: Any, workers: int) -> Iterable[str]:
    """Return one line with the eigenvalues of the graph, and the limits that follow from them."""
    if workers == 1:
        return
    graph = Topology(scheme.topology)
    modes: Any = graph.eigenvalues(workers)
    written = graph.written()
    smallest = f" (smallest eigenvalue {modes.real.min():.3f})" if modes is not None and len(modes) == 1 else ""
    factor = _factor(_plain(scheme), workers, written)
    found = [f"{scheme.topology} of {workers} workers{smallest}: a round multiplies their distances by {factor:.3g}"]
    if "momentum" in scheme.linear_rates:
        found.append(f"{scheme.name} is stable up to momentum={largest_momentum(scheme, workers):.2g}")
    if step := largest_step(scheme, workers):
        found.append(f"{scheme.name} is stable up to a learning rate of {step:.3g}/L, L the curvature of the loss")
    yield "; ".join(found)


def _plain(scheme: Scheme) -> Scheme:
    """Return the scheme without its learning rate, which has no effect without a gradient."""
    return scheme.but(learning_rate=0.0)


def after_local_steps(scheme: Any, curvature: Any) -> Any:
    """Return by what the local steps of a round multiply parameters on ½Lx², with SGD: (1 − ηL)ᴴ."""
    return (1 - curvature) ** scheme.period
