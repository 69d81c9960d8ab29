"""PowerSGD: what it sends of a matrix, and what it keeps."""

import numpy as np

from distsgd.algorithms import AllReduce, PowerSGD
from distsgd.common import Group
from distsgd.common.server.traffic import Traffic

SHAPES = [(6, 5), (4,), (2, 2, 2, 6)]  # a matrix, a vector, and a kernel, which is a matrix [8, 6]


def of_low_rank(rng, rank):
    """A gradient whose matrices have this rank, as a list of arrays."""
    parts = [rng.normal(size=shape) for shape in SHAPES]
    for i, (n, m) in {0: (6, 5), 2: (8, 6)}.items():
        parts[i] = (rng.normal(size=(n, rank)) @ rng.normal(size=(rank, m))).reshape(SHAPES[i])
    return parts


def flat(parts):
    """The arrays as one vector."""
    return np.concatenate([np.ravel(part) for part in parts])


def test_powersgd_loses_nothing_of_mean_gradients_of_its_rank():
    group, rng = (
        Group(PowerSGD(momentum=0.0, rank=2), [np.zeros(shape) for shape in SHAPES], workers=2),
        np.random.default_rng(0),
    )
    gradient = of_low_rank(rng, 2)
    noise = [rng.normal(size=shape) for shape in SHAPES]
    for sign, k in ((1, 0), (-1, 1)):  # the mean alone has that rank
        group.step(k, [g + sign * e for g, e in zip(gradient, noise, strict=True)])
    for moved, g in zip(group.center, gradient, strict=True):
        np.testing.assert_allclose(moved, -2 * 0.02 * g, rtol=1e-4, atol=1e-5)


def test_what_powersgd_sends_and_keeps_is_the_sum_of_all_gradients():
    """x = −2 η (Σ d), and Σ d + mean e = Σ mean g: each part of a gradient is sent in the end."""
    group, rng, total = (
        Group(PowerSGD(momentum=0.0), [np.zeros(shape) for shape in SHAPES], workers=2),
        np.random.default_rng(0),
        0.0,
    )
    for _ in range(10):
        parts = [[rng.normal(size=shape) for shape in SHAPES] for _ in range(2)]
        for k in range(2):
            group.step(k, parts[k])
        total = total + np.mean([flat(part) for part in parts], axis=0)
    kept = np.mean([group._operations.local.row("error", k).read_value() for k in range(2)], axis=0)
    assert np.abs(kept).max() > 1
    assert not kept[30:34].any()  # the vector is sent as it is
    np.testing.assert_allclose(flat(group.center) / (-2 * 0.02) + kept, total, rtol=1e-4, atol=1e-4)


def test_powersgd_sends_two_factors_of_each_matrix():
    scheme = PowerSGD(rank=2)
    assert scheme.message_sizes(SHAPES) == [2 * 6 + 2 * 8, 2 * 5 + 4 + 2 * 6]
    assert scheme.message_sizes([(3, 4), (5,)]) == [12 + 5]  # two factors of 2 would have 14 elements
    assert scheme.message_sizes([(4, 4)]) == [16]  # as many as two factors, which would lose something
    moved = Traffic(scheme, scheme.codecs()[0], 4, [30 + 4 + 48], shapes=SHAPES)
    assert moved.of_kinds["exchange"] == (2 * 3 / 4 * 4 * 54 / 2, 2 * 3 / 4 * 4 * 54 / 2)
    assert sum(Traffic(AllReduce(), AllReduce().codec, 4, [82], shapes=SHAPES).vectors) == 4 * 82
