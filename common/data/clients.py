"""Partial participation: the data belong to more clients than there are workers, which take part by turns.

McMahan et al. 2017 (federated averaging, with the share C): in each round a random part of all clients trains. Each of
the W workers plays one of them: it takes its local steps on the shard of the client that is drawn for it. The equations
of an algorithm do not change; only the data of its workers do, from round to round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .dataset import batches


def number_of_clients(workers: int, participation: float | None) -> int:
    """Return N, of which `workers` take part in a round; without a share, each worker is a client."""
    return workers if participation is None else max(workers, round(workers / participation))


def drawn_clients(
    clients: int, workers: int, seed: int, lengths: Iterable[Sequence[int]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield for each round the clients that take part, [workers], and the local steps that each has done before.

    A draw is a function of the seed and the number of the round. All clients of a round are different.

    Args:
        clients: N.
        workers: W.
        seed: seed of the run.
        lengths: local steps of each worker, [W], in each round.
    """
    done = np.zeros(clients, np.int64)
    for number, steps in enumerate(lengths):
        drawn = np.random.default_rng([seed, 0, 1 + number]).permutation(clients)[:workers]
        yield drawn, done[drawn]
        done[drawn] += steps


def client_batches(shard: int, batch_size: int, client: int, seed: int, done: int) -> Iterator[np.ndarray]:
    """Yield the batches of a client, see `dataset.batches`, as positions in the shards of all clients."""
    return (client * shard + rows for rows in batches(shard, batch_size, client, seed, done))
