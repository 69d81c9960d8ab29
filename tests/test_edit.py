"""EDiT: a server that weighs moves by their lengths, drops unusual ones, and clips the mean."""

import numpy as np
import pytest

from distsgd.algorithms import DiLoCo, EDiT
from distsgd.common import Group

STEP = {"communication_period": 1, "inner_optimizer": "sgd", "learning_rate": 1.0}
ALONG: dict = {**STEP, "outer_learning_rate": 1.0, "momentum": 0.0}  # the center goes where the mean move goes


def moved(group, *moves):
    """Return by what the center moves in a round in which the workers make these moves."""
    before = group.center
    for k, move in enumerate(moves):
        group.step(k, np.array(move, float))
    return before - group.center


def group_of(workers=2, **options):
    return Group(EDiT(**{**ALONG, **options}), np.zeros(2), workers=workers)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_move_that_is_longer_by_t_times_ln_10_counts_a_tenth(temperature):
    longer = 1 + temperature * np.log(10)
    found = moved(group_of(temperature=temperature), [1, 0], [0, longer])
    np.testing.assert_allclose(found, [10 / 11, longer / 11], rtol=1e-5)


def test_moves_of_one_length_count_alike_as_in_diloco():
    moves = [[3, 0], [0, -3], [3 * 0.6, 3 * 0.8]]
    found, of_diloco = (moved(Group(kind(**STEP), np.zeros(2), workers=3), *moves) for kind in (EDiT, DiLoCo))
    np.testing.assert_allclose(found / 1.8, of_diloco / 1.9, rtol=1e-5)  # their momenta: ε (1 + μ)


def test_the_mean_move_is_clipped_and_enters_the_momentum_so():
    group = group_of(move_clip=2.5, momentum=0.5)
    np.testing.assert_allclose(moved(group, [3, 4], [3, 4]), 1.5 * np.array([1.5, 2]), rtol=1e-5)
    np.testing.assert_allclose(moved(group, [0, 0], [0, 0]), 0.25 * np.array([1.5, 2]), rtol=1e-5)


def test_a_move_is_dropped_if_it_is_unusual_for_its_worker_after_the_first_rounds():
    group = group_of(warmup_rounds=30)
    for _ in range(29):
        moved(group, [1, 0], [0, 1])
    np.testing.assert_allclose(moved(group, [3, 0], [0, 3]), [1.5, 1.5], rtol=1e-5)
    np.testing.assert_allclose(moved(group, [1, 0], [0, 9]), [1, 0], rtol=1e-5)
    assert moved(group, [1, 0], [0, 2]).min() > 0  # the norm of 9 has made 2 usual


def test_moves_that_are_all_unusual_leave_center_and_momentum():
    kept, other = (group_of(warmup_rounds=30, momentum=0.5) for _ in range(2))
    for group in (kept, other):
        for _ in range(30):
            moved(group, [1, 0], [0, 1])
    np.testing.assert_array_equal(moved(kept, [9, 0], [0, 9]), 0)
    last = moved(kept, [0, 0], [0, 0])
    assert last.min() > 0.1
    np.testing.assert_allclose(moved(other, [0, 0], [0, 0]), last, rtol=1e-4)
