"""The schemes in which the first K messages make an update, of whichever workers, and late ones count in the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .gradients import Gradient
from .inner_steps import InnerStep, inner_window, sgd_step
from .sending import Send, as_it_is
from .synchronous_rules import no_states


def sets(
    events: Sequence[tuple[int, int]],
    workers: int,
    count: int,
    ends: Sequence[int],
    together: Sequence[int] | None = None,
) -> tuple[list[list[tuple[int, int, int]]], bool]:
    """Return the sets of K messages, and True if each worker read θ between the update with its last message and this.

    `events` holds (worker, updates in the θ that it had read); `ends` the rounds after which a worker stops, of each
    run if one resumes another: then fewer than K may be left. A message is (worker, its rounds before, updates read).

    With a time of grace a set has K messages or more: `together` is their number in each set, as recorded.
    """
    found: list[list[tuple[int, int, int]]] = []
    inbox, done, after, wanted, lawful = [], [0] * workers, [0] * workers, 0, True
    for k, read in events:
        if not inbox:
            end = next((end for end in ends if min(done) < end), ends[-1])
            wanted = min(count, sum(rounds < end for rounds in done))
            if together is not None:
                least, wanted = wanted, together[len(found)] if len(found) < len(together) else workers + 1
                lawful &= least <= wanted
        lawful &= after[k] <= read <= len(found)
        inbox.append((k, done[k], read))
        done[k], after[k] = done[k] + 1, len(found) + 1
        if len(inbox) == wanted:
            found.append(inbox)
            inbox = []
    return found, lawful


def k_async(
    start: np.ndarray,
    gradient: Gradient,
    events: Sequence[tuple[int, int]],
    workers: int,
    *,
    eta: float,
    count: int,
    ends: Sequence[int],
) -> tuple[list[np.ndarray], bool]:
    """Average the gradients of the first K workers, of whatever θ, and step; these K then read θ, the others continue.

    Returns θ after each update, and whether the order is lawful, see `sets`.
    """
    (messages, lawful), thetas = sets(events, workers, count, ends), [start.copy()]
    for inbox in messages if lawful else []:
        gradients = [gradient(thetas[read], k, t) for k, t, read in inbox]
        thetas.append(thetas[-1] - eta * np.mean(gradients, axis=0))
    return thetas[1:], lawful


def mean(v: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return Σ w v / Σ w."""
    return np.average(v, axis=0, weights=w)


def radial_directional(v: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return (Σ w ‖v‖ / Σ w) φ(Σ w φ(v)) with φ(x) = x/‖x‖ and φ(0) = 0; the weighted mean if the directions cancel."""
    lengths = np.linalg.norm(v, axis=1)
    along = mean(v / np.where(lengths, lengths, 1)[:, None], w)
    length = np.linalg.norm(along)
    return mean(v, w) if length < 1e-6 else mean(lengths, w) * along / length


def decoupled_diloco(
    start: np.ndarray,
    gradient: Gradient,
    events: Sequence[tuple[int, int]],
    workers: int,
    *,
    eta: float,
    epsilon: float,
    mu: float,
    count: int,
    work: Sequence[float],
    sizes: Sequence[int],
    period: int,
    steps: int,
    ends: Sequence[int],
    together: Sequence[int] | None = None,
    inner: InnerStep = sgd_step,
    average: Callable[[np.ndarray, np.ndarray], np.ndarray] = radial_directional,
    tau: int = 0,
    send: Send = as_it_is,
) -> tuple[list[np.ndarray], bool]:
    """Merge the parameters x_k of the first K workers after H_k inner steps each, from whatever θ, and step.

    v_k = θ − x_k with the present θ, w_k = H_k, D = RDA(v, w), or another average, for each tensor of `sizes`;
    m ← μ m + D; θ ← θ − ε (D + μ m). Without `sizes`, D is the weighted mean. `together` as in `sets`. The last τ of
    the H_k steps follow the message: their move is added to the θ of the reply. Returns as `k_async`.
    """
    (messages, lawful), thetas = sets(events, workers, count, ends, together), [start.copy()]
    moved = [np.zeros_like(start)] * workers
    m, states, done = np.zeros_like(start), no_states(workers), [0] * workers
    for inbox in messages if lawful else []:
        v, w = [], []
        for k, number, read in inbox:
            length = max(1, round(work[k % len(work)] * min(period, steps - number * period)))
            overlap = min(tau, length)
            x = thetas[read] + moved[k]
            x = inner_window(x, states[k], gradient, k, done[k], length - overlap, eta, inner)
            v.append(thetas[-1] - send(x, k))
            w.append(length)
            moved[k] = inner_window(x, states[k], gradient, k, done[k] + length - overlap, overlap, eta, inner) - x
            done[k] += length
        moves, weights = np.array(v), np.array(w, start.dtype)
        tensors = np.split(moves, np.cumsum(sizes)[:-1], axis=1)
        d = np.concatenate([average(tensor, weights) for tensor in tensors]) if sizes else mean(moves, weights)
        m = mu * m + d
        thetas.append(thetas[-1] - epsilon * (d + mu * m))
    return thetas[1:], lawful
