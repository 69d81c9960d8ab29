"""HeLoCo: moves that are turned to the momentum of the server, tensor by tensor."""

import numpy as np
import pytest

from distsgd.algorithms import HeLoCo
from distsgd.common import Group

ALONG: dict = {  # the center goes where the corrected move goes, and the momentum is that of the move before
    **{"communication_period": 1, "inner_optimizer": "sgd", "learning_rate": 1.0, "outer_learning_rate": 1.0},
    "momentum": 0.0,
}


def moved(group, *moves):
    """Return by what the center moves, tensor by tensor, if a worker makes these moves."""
    before = group.center
    group.step(0, [np.array(move, float) for move in moves])
    return [old - new for old, new in zip(before, group.center, strict=True)]


def after(momentum, move, **options):
    """Return what becomes of the move of a tensor beside one that points along its momentum."""
    group = Group(HeLoCo(**ALONG, **options), [np.zeros(2), np.zeros(2)], workers=1)
    np.testing.assert_allclose(moved(group, momentum, [0, 4]), [momentum, [0, 4]], rtol=1e-5)  # the first is as it was
    found, other = moved(group, move, [0, 4])
    np.testing.assert_allclose(other, [0, 4], rtol=1e-5)
    return found


@pytest.mark.parametrize(
    ("move", "options", "found"),
    [
        ([3, 1], {}, [3, 1]),
        ([-1, 1], {"momentum_weight": 0.0}, [np.sqrt(0.5) - 1, 1]),
        ([-1, 1], {"momentum_weight": 0.0, "most_shrinkage": 0.25}, [-0.75, 1]),
        ([-1, 1], {"momentum_weight": 0.0, "shrinkage": 0.0}, [-1, 1]),
        ([-2, 0], {"momentum_weight": 1.0}, [-2 + 2 * 2 / 3, 0]),
        ([0, 1], {"momentum_weight": 0.0}, np.sqrt([0.5, 0.5])),
        ([0, 1], {"momentum_weight": 0.0, "turning": 4.0}, [1, 0]),
        ([0, 1], {"momentum_weight": 1.0, "turning": 1.0}, np.sqrt([0.5, 0.5])),
        ([0, 1], {"turning": 0.0}, [0, 1]),
        ([0, 1], {"keep_above": 0.0}, [0, 1]),
        ([0, 0], {}, [0, 0]),
    ],
)
def test_a_move_is_turned_to_the_momentum_as_far_as_it_points_elsewhere(move, options, found):
    np.testing.assert_allclose(after([1.0, 0.0], move, **options), found, rtol=1e-5, atol=1e-6)


def test_without_corrections_each_message_makes_a_nesterov_step():
    group = Group(HeLoCo(**{**ALONG, "momentum": 0.5, "turning": 0.0, "shrinkage": 0.0}), [np.zeros(1)], workers=2)
    centers, m = [0.0], 0.0
    for k, gradient in [(0, 1), (1, 2), (1, -3), (0, 1)]:
        group.step(k, [np.array([float(gradient)])])
        m = 0.5 * m + 0.5 * gradient
        centers.append(centers[-1] - gradient - 0.5 * m)
        np.testing.assert_allclose(group.center, [[centers[-1]]], rtol=1e-5)
