"""Dion: steps of low rank whose factors are sent, and what of them stays in the momentum."""

import numpy as np
import pytest

from distsgd.algorithms import Dion
from distsgd.common import Group
from distsgd.common.server.traffic import Traffic

SHAPES = [(12, 10), (4,), (2, 2, 3, 16)]  # a matrix, a vector, and a kernel, which is a matrix [12, 16]
AT = slice(0, 120), slice(120, 124), slice(124, 316)


def group_of(workers=1, **options):
    return Group(Dion(**{"weight_decay": 0.0, **options}), [np.zeros(shape) for shape in SHAPES], workers=workers)


def gradients(rng):
    return [rng.normal(size=shape) for shape in SHAPES]


def flat(parts):
    return np.concatenate([np.ravel(part) for part in parts])


def momentum(group, k):
    return group._operations.local.row("error", k).read_value().numpy()


def test_workers_are_one_worker_on_the_mean_gradient_and_so_are_their_momenta():
    several, one, rng = group_of(3), group_of(), np.random.default_rng(0)
    for _ in range(6):
        parts = [gradients(rng) for _ in range(3)]
        for k in range(3):
            several.step(k, parts[k])
        one.step(0, [np.mean(part, axis=0) for part in zip(*parts, strict=True)])
    np.testing.assert_allclose(flat(several.center), flat(one.center), rtol=2e-3, atol=1e-5)
    mean = np.mean([momentum(several, k) for k in range(3)], axis=0)
    np.testing.assert_allclose(mean, momentum(one, 0), rtol=1e-3, atol=1e-3)
    assert np.abs(momentum(several, 0) - mean).max() > 1
    assert not mean[AT[1]].any()  # the vector has no such momentum


@pytest.mark.parametrize("rank", [1, 3])
def test_each_column_moves_a_matrix_by_a_matrix_of_norm_one_times_the_root_of_its_sides(rank):
    group, rng = group_of(rank=rank, learning_rate=0.5), np.random.default_rng(1)
    group.step(0, gradients(rng))
    for own, (n, m) in ((0, (12, 10)), (2, (12, 16))):
        moved = np.reshape(group.center[own], (n, m))
        assert np.linalg.matrix_rank(moved, tol=1e-4) == rank
        assert np.linalg.norm(moved) == pytest.approx(0.5 * np.sqrt(m / n) * np.sqrt(rank), rel=1e-4)
    np.testing.assert_allclose(np.abs(group.center[1]), 0.5, rtol=1e-4)  # the first step of Adam


def test_what_leaves_the_momentum_is_the_part_that_was_sent():
    """For a gradient of rank one, all of it: M ← μ M + g, the momentum of heavy ball times μ."""
    group, rng = group_of(rank=1, momentum=0.9), np.random.default_rng(2)
    column = rng.normal(size=(12, 1))
    matrix, expected = column @ rng.normal(size=(1, 10)), np.zeros((12, 10))
    for _ in range(4):
        group.step(0, [matrix, np.ones(4), np.ones(SHAPES[2])])
        expected = 0.9 * (expected + matrix)
        np.testing.assert_allclose(momentum(group, 0)[AT[0]].reshape(12, 10), expected, rtol=1e-3, atol=1e-4)


def test_dion_sends_two_factors_of_each_matrix_and_decays_all_weights():
    scheme = Dion(rank=2)
    assert scheme.message_sizes(SHAPES) == [2 * 12 + 2 * 12, 2 * 10 + 4 + 2 * 16]
    moved = Traffic(scheme, scheme.codecs()[0], 4, [316], shapes=SHAPES)
    assert moved.of_kinds["exchange"] == (2 * 3 / 4 * 4 * 104 / 2, 2 * 3 / 4 * 4 * 104 / 2)
    start = [np.ones(shape) for shape in SHAPES]
    group = Group(Dion(weight_decay=0.5, learning_rate=0.1), start, workers=1)
    group.step(0, [np.zeros(shape) for shape in SHAPES])
    np.testing.assert_allclose(flat(group.center), 0.95, rtol=1e-5)
