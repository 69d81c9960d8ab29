"""Compressed messages: what is sent, what is kept for later, and what is lost."""

import numpy as np
import pytest

from distsgd.algorithms import EF21SGDM, SparseLoCo
from distsgd.common import Group
from distsgd.common.replay.reference import compressed_rules, synchronous_rules

# Three workers whose minimum is 0, but whose gradients' largest elements add up to a step away from it (Beznosikov et
# al. 2020, example 1): f_k(x) = ⟨a_k, x⟩² + ¼ |x|².
SLOPES = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])


def hostile_gradient(x, k, t=0):
    return 2 * (SLOPES[k] @ x) * SLOPES[k] + x / 2


def test_top_1_without_memory_grows_by_a_factor_known_in_advance_and_with_memory_it_converges():
    start, largest, options = np.ones(3), synchronous_rules.largest(1), {"workers": 3, "steps": 3000}
    without = start
    for t in range(1, 21):
        without = without - 0.02 * np.mean([largest(hostile_gradient(without, k)) for k in range(3)], axis=0)
        np.testing.assert_allclose(without, (1 + 11 * 0.02 / 6) ** t, rtol=1e-12)
    for rule, own in ((synchronous_rules.ef_sgd, {}), (compressed_rules.ef21_sgdm, {"beta": 0.0})):
        path = rule(start, hostile_gradient, eta=0.02, compress=largest, **options, **own)
        assert np.sum(path[-1] ** 2) < 1e-31


@pytest.mark.parametrize("compressor", ["topk", "sign"])
def test_ef21_s_server_knows_the_mean_of_what_its_workers_have_sent(compressor):
    group = Group(EF21SGDM(learning_rate=0.02, share=0.4, compressor=compressor), np.ones(3), workers=3, ps=2)
    known = [group._operations.local.row("known", k) for k in range(3)]
    for _ in range(20):
        for k in range(3):
            group.step(k, hostile_gradient(group.point(k), k))
        servers = np.concatenate([server.own["known"].numpy() for server in group._operations.servers])
        assert np.abs(servers).max() > 0.01
        np.testing.assert_allclose(servers, np.mean([row.read_value() for row in known], axis=0), rtol=1e-4, atol=1e-6)


def test_moves_that_sparseloco_has_not_sent_decay():
    """One step of η = 1 in each round along slopes of 1 and 0.6: the second element is sent once it is the larger."""
    scheme = SparseLoCo(
        inner_optimizer="sgd", learning_rate=1.0, communication_period=1, outer_learning_rate=1.0, share=0.5, decay=0.5
    )
    group, found = Group(scheme, np.zeros(2), workers=1), []
    for _ in range(4):
        group.step(0, np.array([1.0, 0.6]))
        found.append(group.center.tolist())
    assert found == [[-1, 0], [-2, 0], [-2, pytest.approx(-1.05)], [pytest.approx(-3.5), pytest.approx(-1.05)]]
    np.testing.assert_allclose(group.params(0), group.center)
