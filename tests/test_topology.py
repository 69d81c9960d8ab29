"""Graphs of workers against closed forms: spectral gaps, contraction of the distance from the mean, exact averages."""

import math
import os
from itertools import pairwise

import numpy as np
import pytest

from distsgd.algorithms import DPSGD
from distsgd.benchmarks import reproduced_gossip
from distsgd.common.cluster.platform import Platform
from distsgd.common.contract import Rounds
from distsgd.common.errors import UserError
from distsgd.common.sync.topology import DRAWN, GRAPHS, Topology, spectral_gap
from distsgd.simulator.virtual_time.schedule import EventLoop

SIZES = {"torus": (1, 4, 6, 9, 16, 20), "hypercube": (1, 2, 4, 16)}
GRAPH_SIZES = [(name, workers) for name in GRAPHS for workers in SIZES.get(name, (1, 2, 3, 5, 8, 16))]


def weights(name, workers, round=0):
    return Topology(name).weights(workers, round)


def distance(x):
    """Mean squared distance of the workers [W, n] from their mean."""
    return np.mean(np.sum((x - x.mean(0)) ** 2, 1))


def contraction(matrix):
    """Largest factor by which a round multiplies the squared distance from the mean."""
    return np.linalg.norm(matrix - 1 / len(matrix), 2) ** 2


def neighbours(graph, worker, workers, round=0):
    """Return the other workers that a worker hears in a round."""
    return [int(k) for k in np.flatnonzero(graph.weights(workers, round)[worker]) if k != worker]


@pytest.mark.parametrize(("name", "workers"), GRAPH_SIZES)
def test_every_graph_keeps_equal_workers_equal_and_the_mean(name, workers):
    graph = Topology(name)
    for round in range(min(graph.cycle(workers), 5)):
        matrix = graph.weights(workers, round)
        assert matrix.shape == (workers, workers)
        assert matrix.dtype == np.float64
        assert (matrix >= 0).all()
        np.testing.assert_allclose([matrix.sum(0), matrix.sum(1)], 1, rtol=1e-15)


@pytest.mark.parametrize(("name", "expected"), [("ring", [1, 7]), ("hypercube", [1, 2, 4]), ("exponential", [1, 2, 4])])
def test_neighbours_of_worker_0_of_8(name, expected):
    assert neighbours(Topology(name), 0, 8) == expected


def test_torus_of_3_by_4():
    assert neighbours(Topology("torus"), 0, 12) == [1, 3, 4, 8]
    assert neighbours(Topology("torus"), 6, 12) == [2, 5, 7, 10]


def test_small_graphs_count_a_neighbour_once():
    np.testing.assert_array_equal(weights("ring", 2), np.full((2, 2), 1 / 2))
    assert neighbours(Topology("torus"), 0, 4) == [1, 2]
    np.testing.assert_array_equal(weights("torus", 4)[0], [1 / 3, 1 / 3, 1 / 3, 0])


@pytest.mark.parametrize(("workers", "gap"), [(3, 1.0), (16, 0.05075), (64, 0.00321), (256, 0.00020)])
def test_gap_of_the_ring(workers, gap):
    found = spectral_gap(weights("ring", workers))
    assert found == pytest.approx(2 / 3 * (1 - math.cos(2 * math.pi / workers)), rel=1e-9)
    assert found == pytest.approx(gap, abs=5e-6)


@pytest.mark.parametrize(("workers", "gap"), [(16, 0.400), (64, 0.117), (256, 0.0305)])
def test_gap_of_the_square_torus(workers, gap):
    found = spectral_gap(weights("torus", workers))
    assert found == pytest.approx(2 / 5 * (1 - math.cos(2 * math.pi / math.isqrt(workers))), rel=1e-9)
    assert found == pytest.approx(gap, abs=5e-4)


@pytest.mark.parametrize("name", ["hypercube", "exponential"])
@pytest.mark.parametrize(("workers", "gap"), [(16, 0.400), (64, 0.286), (256, 0.222)])
def test_gap_of_the_hypercube_and_the_exponential_graph(name, workers, gap):
    found = spectral_gap(weights(name, workers))
    assert found == pytest.approx(2 / (1 + math.log2(workers)), rel=1e-9)
    assert found == pytest.approx(gap, abs=5e-4)


@pytest.mark.parametrize("name", ["ring", "torus", "hypercube", "exponential"])
def test_the_worst_vector_contracts_by_the_squared_eigenvalue(name):
    """These matrices are normal: their largest factor is |λ2|², and the eigenvector attains it in each round."""
    matrix = weights(name, 16)
    factor = (1 - spectral_gap(matrix)) ** 2
    assert contraction(matrix) == pytest.approx(factor, rel=1e-9)
    worst = np.linalg.svd(matrix - 1 / 16)[2][0][:, None]
    distances = [distance(np.linalg.matrix_power(matrix, k) @ worst) for k in range(5)]
    assert [after / before for before, after in pairwise(distances)] == pytest.approx([factor] * 4, rel=1e-9)


def test_complete_graph_is_the_mean_in_one_round():
    np.testing.assert_array_equal(weights("complete", 8), np.full((8, 8), 1 / 8))
    assert spectral_gap(weights("complete", 8)) == pytest.approx(1)


@pytest.mark.parametrize("workers", [2, 4, 16, 64])
def test_one_peer_is_exact_after_log2_rounds(workers):
    graph = Topology("one-peer")
    rounds = graph.cycle(workers)
    assert rounds == math.log2(workers)
    for start in range(3):  # from any round on
        product = np.eye(workers)
        for round in range(start, start + rounds):
            assert np.abs(product - 1 / workers).max() > 0.01
            assert len(neighbours(graph, 0, workers, round)) == 1
            product = graph.weights(workers, round) @ product
        np.testing.assert_array_equal(product, np.full((workers, workers), 1 / workers))


def test_one_peer_is_not_exact_for_other_numbers():
    graph = Topology("one-peer")
    product = np.linalg.multi_dot([graph.weights(6, round) for round in range(graph.cycle(6))])
    assert 0.1 < 1 - spectral_gap(product) < 0.5


@pytest.mark.parametrize("workers", [2, 7, 8])
def test_random_pairs_contract_by_their_expectation(workers):
    """E WᵀW = E W, whose second eigenvalue is (W - 2)/2(W - 1) for an even number of workers, 1/2 for an odd one."""
    expected = 1 / 2 if workers % 2 else (workers - 2) / (2 * (workers - 1))
    rounds = [weights("random-matching", workers, round) for round in range(DRAWN)]
    for matrix in rounds[:20]:
        np.testing.assert_allclose(matrix.T @ matrix, matrix)  # averages of pairs: a projection
        assert sorted(np.count_nonzero(matrix, 1)) == [1] * (workers % 2) + [2] * (workers - workers % 2)
    mean = np.mean(rounds, 0)
    among = mean[~np.eye(workers, dtype=bool)]
    assert among == pytest.approx((1 - expected) / workers, abs=5 * np.sqrt(0.25 * 0.25 / DRAWN) if workers > 2 else 0)
    assert 1 - spectral_gap(mean) == pytest.approx(expected, abs=0.06)


def test_random_pairs_depend_on_the_round_alone():
    graph = Topology("random-matching")
    assert graph.cycle(8) == DRAWN
    first = graph.weights(8, 3)
    np.testing.assert_array_equal(first, Topology("random-matching").weights(8, 3))
    assert any((graph.weights(8, round) != first).any() for round in range(4, 7))


@pytest.mark.parametrize(
    ("name", "workers"), [("torus", 7), ("torus", 2), ("hypercube", 6), ("hypercube", 3), ("ring", 0)]
)
def test_impossible_numbers_of_workers(name, workers):
    with pytest.raises(UserError, match=rf"workers.*Received: workers={workers}"):
        weights(name, workers)


def test_misspelt_name():
    with pytest.raises(UserError, match=r"unknown topology 'hyper-cube'\. Did you mean hypercube"):
        Topology("hyper-cube")


def test_matrix_of_a_file(tmp_path):
    matrix = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
    np.savetxt(tmp_path / "graph.txt", matrix)
    graph = Topology(f"file:{tmp_path / 'graph.txt'}")
    np.testing.assert_array_equal(graph.weights(3, 17), matrix)
    assert neighbours(graph, 2, 3) == [0]
    assert graph.cycle(3) == 1
    with pytest.raises(UserError, match=r"workers=4, and a matrix of shape \[3, 3\]"):
        graph.weights(4)


def test_a_matrix_of_a_file_that_was_written_again_is_the_new_one(tmp_path):
    graph = Topology(f"file:{tmp_path / 'graph.txt'}")
    for time, share in ((1, 0.5), (2, 0.25)):
        np.savetxt(tmp_path / "graph.txt", [[share, 1 - share], [1 - share, share]])
        os.utime(tmp_path / "graph.txt", (time, time))
        assert graph.weights(2)[0, 0] == share


def test_a_matrix_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        weights("ring", 4)[0, 0] = 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0.9 0.2\n0.1 0.8\n", "a sum of 1.1"),
        ("0.5 0.5\n0.6 0.4\n", "a sum of"),  # rows sum to one, columns do not
        ("1.5 -0.5\n-0.5 1.5\n", "smallest number of -0.5"),
        ("nan 1\n1 0\n", "no negative number"),
        ("0.333 0.667\n0.667 0.3333\n", "to nine digits"),
        ("half half\nhalf half\n", "a text of numbers"),
        ("1 0\n0\n", "a text of numbers"),
        ("", r"shape \[0\]"),
        (None, "No such file"),
    ],
)
def test_refused_files(tmp_path, text, said):
    path = tmp_path / "graph.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=said) as raised:
        weights(f"file:{path}", 2)
    assert "\n" not in str(raised.value)


@pytest.mark.rotating
def test_consensus_of_the_quadratic_is_that_of_the_closed_form():
    (consensus,) = (each for each in reproduced_gossip.EXPERIMENTS if each.name == "consensus")
    found = dict(consensus.measure())
    assert consensus.agrees(found)
    assert not consensus.agrees(found | {"ring": found["hypercube"]})


def test_stationary_consensus_of_the_complete_graph():
    """Each worker has its own noise and no memory of it: η² / (1 - η²), less the part of the mean."""
    rate, workers = reproduced_gossip.RATE, reproduced_gossip.WORKERS
    expected = (workers - 1) / workers * rate**2 / (1 - rate**2)
    assert reproduced_gossip.stationary_consensus("complete") == pytest.approx(expected)


@pytest.mark.parametrize(("name", "workers"), [("ring", 5), ("torus", 6), ("exponential", 6), ("complete", 3)])
def test_second_moments_of_the_modes_are_those_of_all_pairs_of_workers(name, workers):
    """B[i, j] = E xᵢᵀxⱼ: of one worker it takes the gradient's noise, of two workers it does not; then W B Wᵀ."""
    rate, more, matrix = 0.02, reproduced_gossip.DIMENSIONS + 1, weights(name, workers)
    pairs, expected = np.ones((workers, workers)), []
    for _ in range(20):
        pairs = matrix @ ((1 - rate) ** 2 * pairs + rate**2 * more * np.diag(np.diag(pairs))) @ matrix.T
        expected.append(np.trace(pairs) / workers)
    np.testing.assert_allclose(reproduced_gossip.squared_norms(matrix, rate)[:20], expected, rtol=1e-12)


# How far a worker may be ahead of worker 0.


@pytest.mark.parametrize(
    ("topology", "workers", "lead"),
    [("ring", 2, 1), ("ring", 5, 2), ("ring", 8, 4), ("torus", 16, 4), ("hypercube", 16, 4), ("complete", 7, 1)],
)
def test_a_worker_of_a_fixed_graph_is_ahead_of_worker_0_by_its_distance(topology, workers, lead):
    assert Topology(topology).lead(workers) == lead


@pytest.mark.parametrize(("topology", "workers"), [("random-matching", 3), ("random-matching", 8), ("one-peer", 8)])
def test_no_worker_is_ahead_of_a_slow_worker_0_by_more_than_the_lead(topology, workers):
    """It is by one round less while worker 0 computes, and has not sent the message of its round."""
    machines = Platform(step_ms=1, step_factors=f"100000{',1' * (workers - 1)}")
    sizes = {"message_bytes": 0, "reply_bytes": 0}
    scheme, rounds = DPSGD(topology=topology), Rounds.even(1100, 1)
    loop = EventLoop(scheme, machines, workers=workers, rounds=rounds, seed=0, **sizes).run()
    ends = [np.sort(loop.rounds[loop.rounds[:, 0] == k, -1]) for k in range(workers)]
    begun = np.concatenate([[0], ends[0][:-1]])  # rounds of worker 0
    ahead = max(int((np.searchsorted(of, begun + 10**6) - np.arange(1100)).max()) for of in ends[1:])
    assert ahead + 1 == Topology(topology).lead(workers)


def test_in_random_pairs_a_worker_may_be_ahead_by_more_rounds_than_there_are_workers():
    assert Topology("random-matching").lead(3) > 5


def test_a_graph_whose_equal_weights_are_not_doubly_stochastic_is_refused(monkeypatch):
    monkeypatch.setitem(GRAPHS, "star", lambda workers, round: np.eye(workers, dtype=bool) | (np.arange(workers) == 0))
    with pytest.raises(UserError, match=r"graph star some workers are heard by more .*: write its matrix into a file"):
        Topology("star").weights(4)
