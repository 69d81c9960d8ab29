"""Graphs of workers that average with their neighbours, as mixing matrices, in NumPy.

One round of averaging is x ← W x: worker i hears worker j with the weight W[i, j]. Each row of W sums to one, so that
equal vectors stay equal, and each column does, so that the mean over the workers stays what it is.

The graphs, by the workers that each worker hears:

    ring             its two neighbours on a circle
    torus            its four neighbours on a grid that closes at the edges, as square as the number of workers permits
    hypercube        the workers whose numbers differ from its own in one bit; 2^d workers
    exponential      the workers 1, 2, 4, ... places further on a circle
    one-peer         one of these, a different one in each round: the mean of all after log2 W rounds, if W = 2^d
    random-matching  one worker, in pairs that are drawn again in each round; of an odd number one worker hears none
    complete         all workers
    file:PATH        the matrix in a text file, as `numpy.savetxt` writes it

In each graph but that of a file, a worker gives itself and each worker that it hears the same weight.

**Lost workers.** The matrix of the others is the stochastic complement, see `without`: a neighbour of a lost worker
hears the neighbours of that worker in its place. For example, a ring without worker 2 is closed again between 1 and 3.

Reference: Lian et al. 2017 (arXiv:1705.09056) for the ring; Ying et al. 2021 (arXiv:2110.13363) for the exponential
graphs; Boyd et al. 2006, Randomized Gossip Algorithms, for pairs; Meyer 1989, Stochastic Complementation, Uncoupling
Markov Chains, and the Theory of Nearly Reducible Systems, SIAM Review 31, for graphs without some of their workers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..arguments import at_least, check_known
from ..errors import UserError
from ..files import reason_of
from ..record_format import open_to_read

FILE = "file:"

GRAPH = "topology.txt"  # in a run directory: the matrix that the run read from a file

CHANGING = ("one-peer", "random-matching")  # graphs that are another one in the next round

DRAWN = 1024  # rounds after which the matchings that a run draws repeat

EXACT = 1e-9  # by which the sums of a file's rows and columns may differ from one


@dataclass(frozen=True)
class Topology:
    """The graph of a run, from its text; it may change from round to round."""

    text: str
    """Name of a graph, or `file:PATH`."""

    def __post_init__(self):
        """Raise `UserError` for an unknown name."""
        if not self.text.startswith(FILE):
            check_known("topology", self.text, known=[*GRAPHS, FILE + "PATH"])

    def weights(self, workers: int, round: int = 0, lost: Collection[int] = ()) -> np.ndarray:
        """Return the mixing matrix of a round, [W, W], float64, read-only; row i has the weights that worker i gives.

        Args:
            workers: number of workers, W.
            round: number of the round, from 0; the matrices repeat after `cycle` rounds.
            lost: workers that are out, see `without`.

        Raises:
            UserError: the graph does not exist for this number of workers, or the matrix of the file cannot be read or
                is not doubly stochastic.
        """
        matrix = _weights(self.text, workers, round % self.cycle(workers), self.written())
        return without(matrix, lost) if lost else matrix

    def written(self) -> int | None:
        """Return the time in nanoseconds at which the file of the matrix was written, by which it is read again."""
        try:
            return os.stat(self.text.removeprefix(FILE)).st_mtime_ns if self.text.startswith(FILE) else None
        except OSError:  # reading the file tells why
            return None

    def cycle(self, workers: int) -> int:
        """Return the number of rounds after which the matrices repeat."""
        at_least(1, workers=workers)
        return DRAWN if self.is_drawn else _distances(workers) if self.text == "one-peer" else 1

    def eigenvalues(self, workers: int) -> np.ndarray | None:
        """Return the eigenvalues of the matrices of a cycle, complex [cycle, W]; None for random matchings.

        The matrices of a cycle have the same eigenvectors, in the same order; the first is that of equal workers, with
        the eigenvalue 1. All graphs here but matchings look the same from each worker, so a Fourier transform over the
        circle, grid or cube of the workers finds them.

        Raises:
            UserError: as `weights`.
        """
        matrices = [self.weights(workers, round) for round in range(1 if self.is_drawn else self.cycle(workers))]
        if self.is_drawn:
            return None
        if self.text.startswith(FILE):
            found = np.linalg.eigvals(matrices[0]).astype(complex)
            return found[None, np.argsort(np.abs(found - 1))]
        shape = {"torus": _grid, "hypercube": _cube}.get(self.text, lambda workers: [workers])(workers)
        return np.array([np.fft.fftn(matrix[0].reshape(shape)).ravel() for matrix in matrices])

    @property
    def is_drawn(self) -> bool:
        """True if the matrices are drawn at random."""
        return self.text == "random-matching"

    def lead(self, workers: int) -> int:
        """Return the most rounds by which a worker can be ahead of worker 0, if each waits for those that it hears."""
        heard = np.array([self.weights(workers, round) > 0 for round in range(self.cycle(workers))])
        begun = np.arange(len(heard))[:, None]  # worker 0 stays in this round, whose message it has sent
        done = np.tile(begun, workers)
        for _ in range(DRAWN):  # no end if a file has workers that never hear of worker 0
            hears = heard[done % len(heard), np.arange(workers)]
            continues = np.logical_and.reduce(~hears | (done[:, None] >= done[:, :, None]), axis=2)
            continues[:, 0] = False
            if not continues.any():
                break
            done = done + continues
        return int((done - begun).max())

    def peers(self, workers: int) -> np.ndarray:
        """Return the worker with which each averages in a round, [rounds, W], int32, drawn; rounds repeat after that.

        The workers are cut into two classes, see `classes`. Those of the second draw one of their neighbours of the
        first class, with the weights of the graph; those of the first have themselves. Links of a graph that changes
        from round to round are those of all rounds.

        Raises:
            UserError: as `weights`.
        """
        return _peers(self.text, workers, self.written())


def classes(links: np.ndarray) -> np.ndarray:
    """Cut the workers of a graph with these symmetric links [W, W] into two classes; return a flag for each, [W].

    Along the links, each worker takes the class of fewer of its neighbours so far; worker 0 is in the first class. So a
    connected graph stays connected if only links between the classes are used, at least half of all links are, and of
    a bipartite graph all.
    """
    found, queue = np.full(len(links), -1), list(range(len(links) - 1, -1, -1))  # of several parts, one after the other
    while queue:
        k = queue.pop()
        if found[k] < 0:
            near = found[(links[k] > 0) & (np.arange(len(links)) != k)]
            found[k] = int((near == 0).sum() > (near == 1).sum())
            queue += [int(j) for j in np.flatnonzero(links[k])[::-1] if found[j] < 0]
    return found == 1


def spectral_gap(weights: np.ndarray) -> float:
    """Return 1 - |λ2| of a mixing matrix [W, W], with its second largest eigenvalue by absolute value.

    It is 1 for the complete graph, and 0 for a graph that is not connected.
    """
    among = weights - 1 / len(weights)  # the eigenvalue 1 of the mean becomes 0
    return float(1 - np.max(np.abs(np.linalg.eigvals(among))))


def without(weights: np.ndarray, lost: Collection[int]) -> np.ndarray:
    """Return the mixing matrix once some workers are lost, [W, W]: each of these hears itself alone.

    The others have the weights with which they would hear each other if a lost worker only passed on what it hears:
    W_ij + W_ik W_kj / (1 - W_kk) without worker k, for one lost worker after the other, in any order. Rows and columns
    still sum to one, a symmetric matrix stays symmetric, and a connected graph stays connected.
    """
    matrix = np.array(weights)
    for k in lost:
        passed = 1 - matrix[k, k]
        if passed > EXACT:  # else it hears, and is heard by, itself and other lost workers alone
            matrix += np.outer(matrix[:, k], matrix[k]) / passed
        matrix[k], matrix[:, k] = 0, 0
        matrix[k, k] = 1
    return matrix


def _ring(workers: int, round: int) -> np.ndarray:
    return _circle(workers, [1, -1])


def _grid(workers: int) -> tuple[int, int]:
    """Return the rows and columns of a grid of so many workers, as square as possible."""
    rows = next(k for k in range(math.isqrt(workers), 0, -1) if workers % k == 0)
    return rows, workers // rows


def _cube(workers: int) -> list[int]:
    """Return the sides of a cube of 2^d workers."""
    return [2] * (workers.bit_length() - 1)


def _torus(workers: int, round: int) -> np.ndarray:
    rows, columns = _grid(workers)
    if rows == 1 < workers:
        raise UserError(
            f"topology torus needs a number of workers that fills a grid of at least two rows and two columns, such as "
            f"4, 6, 8, 9 or 10. Received: workers={workers}"
        )
    down, right = _circle(rows, [1, -1]), _circle(columns, [1, -1])
    return np.kron(down, np.eye(len(right), dtype=bool)) | np.kron(np.eye(rows, dtype=bool), right)


def _hypercube(workers: int, round: int) -> np.ndarray:
    if workers & (workers - 1):
        raise UserError(
            f"topology hypercube needs 1, 2, 4, 8, ... workers, a power of two. Received: workers={workers}"
        )
    bits = np.bitwise_xor.outer(np.arange(workers), np.arange(workers))
    return (bits & (bits - 1)) == 0


def _exponential(workers: int, round: int) -> np.ndarray:
    return _circle(workers, [1 << k for k in range(_distances(workers))])


def _one_peer(workers: int, round: int) -> np.ndarray:
    return _circle(workers, [1 << round])


def _random_matching(workers: int, round: int) -> np.ndarray:
    order = np.argsort(np.random.default_rng([0, round]).random(workers))
    first, second = order[: workers // 2], order[workers // 2 : workers // 2 * 2]
    heard = np.zeros((workers, workers), bool)
    heard[first, second] = heard[second, first] = True
    return heard


def _complete(workers: int, round: int) -> np.ndarray:
    return np.ones((workers, workers), bool)


# Each worker must hear, and be heard by, as many: then equal weights are doubly stochastic. All but matchings must look
# the same from each worker of a circle, grid or cube, see `Topology.eigenvalues`. Other graphs are a matrix in a file.
GRAPHS: dict[str, Callable[[int, int], np.ndarray]] = {
    "ring": _ring,
    "torus": _torus,
    "hypercube": _hypercube,
    "exponential": _exponential,
    "one-peer": _one_peer,
    "random-matching": _random_matching,
    "complete": _complete,
}


@lru_cache(maxsize=64)  # the cycles of the usual graphs
def _weights(text: str, workers: int, round: int, written: int | None) -> np.ndarray:
    if text.startswith(FILE):
        weights = _from_file(text.removeprefix(FILE), workers)
    else:
        heard = GRAPHS[text](workers, round) | np.eye(workers, dtype=bool)
        weights = heard / heard.sum(1, keepdims=True)
        if not np.allclose(weights.sum(0), 1):
            raise UserError(
                f"in the graph {text} some workers are heard by more than others, so that equal weights are not doubly "
                f"stochastic: write its matrix into a file, and give {FILE}PATH"
            )
    weights.setflags(write=False)
    return weights


@lru_cache(maxsize=16)
def _peers(text: str, workers: int, written: int | None) -> np.ndarray:
    every = {"random-matching": "complete", "one-peer": "exponential"}.get(text, text)  # the links of all rounds
    links = Topology(every).weights(workers)
    links = links + links.T
    begins = classes(links)
    peers = np.tile(np.arange(workers, dtype=np.int32), (DRAWN, 1))
    drawn = np.random.default_rng(workers).random((DRAWN, workers))
    for k in np.flatnonzero(begins):
        shares = np.cumsum(np.where(begins, 0, links[k]))
        if shares[-1] > 0:
            peers[:, k] = np.searchsorted(shares, drawn[:, k] * shares[-1], side="right")
    peers.setflags(write=False)
    return peers


def _circle(workers: int, distances: list[int]) -> np.ndarray:
    """Return which workers each hears if it hears those at these distances, [W, W]."""
    heard, indices = np.zeros((workers, workers), bool), np.arange(workers)
    for distance in distances:
        heard[indices, (indices + distance) % workers] = True
    return heard


def _distances(workers: int) -> int:
    """Return how many of the distances 1, 2, 4, ... are below the number of workers; 1 for one worker."""
    return max((workers - 1).bit_length(), 1)


def _from_file(path: str, workers: int) -> np.ndarray:
    """Return the doubly stochastic matrix in a text file; raises `UserError`."""
    try:
        with open_to_read(Path(path)) as file:
            weights = np.array([line.split() for line in file if line.strip()], np.float64)
    except OSError as error:
        raise UserError(f"cannot read the matrix of the topology: {reason_of(error)}. Received: {path!r}") from None
    except ValueError:
        raise UserError(
            f"the matrix of the topology must be a text of numbers, a row on each line, as numpy.savetxt writes it. "
            f"Received: {path!r}"
        ) from None
    if weights.shape != (workers, workers):
        raise UserError(
            f"the matrix of the topology must have a row and a column for each worker. Received: workers={workers}, "
            f"and a matrix of shape {list(weights.shape)} in {path!r}"
        )
    sums = np.concatenate([weights.sum(0), weights.sum(1)])
    worst = sums[np.argmax(np.abs(sums - 1))]
    if not np.isfinite(weights).all() or weights.min() < 0 or abs(worst - 1) > EXACT:
        raise UserError(
            f"the matrix of the topology must have no negative number, and rows and columns that sum to 1 to nine "
            f"digits. Received: {path!r}, with a smallest number of {weights.min():.4g} and a sum of {worst:.12g}"
        )
    return weights
