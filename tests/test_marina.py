"""MARINA: whole gradients by a common coin, and random parts of differences between."""

import numpy as np
import pytest

from distsgd.algorithms import MARINA
from distsgd.common import Group
from distsgd.common.contract.rounds import COINS
from distsgd.common.server.traffic import Traffic

MINIMA = np.arange(1.0, 4.0)[:, None] * np.ones(10)  # of ½ |x − b_k|² of three workers, whose mean loss has it at 2
WORKERS = len(MINIMA)


@pytest.mark.parametrize("probability", [None, 0.1])
def test_with_full_gradients_it_rests_at_the_minimum_of_unequal_losses_and_errors_last_until_the_coin(probability):
    scheme, apart = MARINA(learning_rate=0.2, share=0.4, probability=probability), []
    group = Group(scheme, np.zeros(10), workers=WORKERS, ps=2)
    for _, kind in scheme.rounds(150):
        gradients = group.center - MINIMA
        for k in range(WORKERS):
            group.step(k, gradients[k])
        estimate = np.concatenate([server.variables["estimate"].numpy() for server in group._operations.servers])
        apart.append(np.abs(estimate - gradients.mean(axis=0)).max())
        assert (apart[-1] < 1e-5) == (kind == "floats") or max(np.abs(gradients.mean(axis=0))) < 1e-2
    assert max(apart) > 0.05
    np.testing.assert_allclose(group.center, 2, atol=1e-4)


def test_the_coin_is_one_of_the_seed_the_same_to_all_workers_and_the_first_round_is_whole():
    scheme = MARINA(probability=0.25)
    drawn, other = ([*scheme.rounds(3 * COINS, seed=seed)] for seed in (0, 1))
    assert drawn != other
    assert [*scheme.rounds(3 * COINS, worker=2)] == drawn
    assert drawn[0] == other[0] == (1, "floats")
    assert drawn[1:COINS] == drawn[COINS + 1 : 2 * COINS]
    assert drawn.count((1, "floats")) / len(drawn) == pytest.approx(0.25, rel=0.02)
    for done in (1, 70, COINS + 3):
        assert [*scheme.rounds(200, done=done)] == drawn[done : done + 200]
    assert not [*scheme.rounds(0)]


def test_the_bytes_of_a_run_are_those_of_the_coins_that_were_drawn():
    scheme = MARINA(share=0.1)
    rounds = scheme.rounds(50, seed=3)
    whole = rounds.kinds()["floats"]
    assert 1 < whole < 15
    traffic = Traffic(scheme, scheme.codecs()[0].for_model(1), WORKERS, [200])
    pushed, pulled = traffic.moved(rounds.kinds())
    assert pushed == whole * (800 + 4) + (50 - whole) * (20 * 8 + 4)  # a value, and its index or the coin
    assert pulled == 50 * 800
