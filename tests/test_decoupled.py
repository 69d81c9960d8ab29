"""What the paper of Decoupled DiLoCo prints: the share of its time that a machine computes, and lengths of averages."""

import math

import pytest
import tensorflow as tf

from distsgd.algorithms import DecoupledDiLoCo
from distsgd.benchmarks import reproduced
from distsgd.benchmarks.reproduced_failures import (
    CHIPS,
    DOWN,
    PERIOD,
    TABLE,
    WORKERS,
    YEAR,
    Stops,
    goodput,
    with_quorum,
)


@pytest.mark.parametrize("chips", [1e4, 1e5, 1e6])
def test_without_elasticity_a_learner_stops_once_for_the_failures_of_a_stop(chips):
    assert goodput(chips, Stops(shrink=50)) == pytest.approx(1 / (1 + 50 * chips / YEAR), rel=0.02)


def test_a_learner_grows_once_all_its_slices_are_whole():
    rare, often = 1e4, 3e6  # a failure each 53 min, and each 11 s
    assert goodput(rare, Stops(20, 60, 15)) == pytest.approx(1 / (1 + 35 * rare / YEAR), rel=0.01)
    assert goodput(often, Stops(20, 600, 15)) == pytest.approx(goodput(often, Stops(20)), abs=0.001)  # they never are


def test_with_a_quorum_of_one_no_worker_waits_for_those_that_are_down():
    every = YEAR / (CHIPS[3] * 1000 / WORKERS)
    round_takes = (every + DOWN) * (math.exp(PERIOD / every) - 1)  # with the rounds that a failure cuts
    assert with_quorum(1) == pytest.approx(PERIOD / round_takes, rel=0.03)


def test_the_goodput_of_decoupled_diloco_is_that_of_the_paper_within_four_percent():
    (goodput,) = (each for each in reproduced.EXPERIMENTS if each.name == "goodput")
    numbers = goodput.measure()
    assert goodput.agrees(numbers)
    assert not goodput.agrees(numbers | {"hits": 15})
    assert len(numbers["misses"].split("; ")) == sum(map(len, TABLE.values())) - numbers["hits"]


@pytest.mark.rotating
def test_moves_of_many_workers_are_at_right_angles_and_the_radial_directional_average_keeps_their_length():
    (directions,) = (each for each in reproduced.EXPERIMENTS if each.name == "directions")
    numbers = directions.measure()
    assert directions.agrees(numbers)
    assert not directions.agrees(numbers | {"plain_length16": 0.5})
    assert not directions.agrees(numbers | {"radial16": numbers["plain16"]})


@pytest.mark.parametrize(("angle", "length"), [(2e-3, 1.0), (2e-4, 1.0), (0.0, 0.0)])
def test_only_moves_that_cancel_have_no_common_direction(angle, length):
    """Nearly opposite ones have the mean of their lengths, as little as is left of them."""
    moves = tf.constant([[1.0, 0.0], [-math.cos(angle), math.sin(angle)]])
    mean = DecoupledDiLoCo()._mean(moves, tf.constant([0.5, 0.5]))
    assert float(tf.norm(mean)) == pytest.approx(length, abs=1e-3)
