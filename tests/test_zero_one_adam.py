"""0/1 Adam: when its variance changes, how long its rounds are, and what it is without compression."""

import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import ZeroOneAdam
from distsgd.common import Group, Recovery
from distsgd.common.server.traffic import Traffic
from runs import record

SIZE, WORKERS = 12, 3


def gradients(steps):
    """Noisy gradients of each worker in each step, [steps, W, P]."""
    noise = np.random.default_rng(0).normal(size=(steps, WORKERS, SIZE))
    return (noise + np.linspace(-1, 1, SIZE)).astype(np.float32)


def played(scheme, given, ps=2):
    """The group after these gradients, and its center after each round."""
    group, path, begin = Group(scheme, np.ones(SIZE), workers=WORKERS, ps=ps), [], 0
    for length, _ in scheme.rounds(len(given)):
        for k in range(WORKERS):
            for step in given[begin : begin + length]:
                group.step(k, step[k])
        begin += length
        path.append(group.center.copy())
    return group, np.array(path)


def test_the_distance_of_changes_of_the_variance_doubles():
    scheme = ZeroOneAdam(warmup_steps=10**6)
    for n in range(1, 8):
        assert scheme.rounds(16 * (2**n - 1)).kinds()["floats"] == 16 * n
    few = ZeroOneAdam(warmup_steps=12, variance_repeats=2).rounds(10**9)
    assert [few.kinds(rounds)["floats"] for rounds in range(14)] == [0, 1, 2, 3, 3, 4, 4, 5, 5, 5, 5, 6, 6, 6]
    assert few.kinds()["floats"] == 6  # after the steps 0, 1, 2, 4, 6 and 10


def test_rounds_have_one_step_until_the_variance_is_frozen_and_then_double():
    scheme = ZeroOneAdam(warmup_steps=3, doubling_steps=4, communication_period=8)
    lengths = [length for length, _ in scheme.rounds(31)]
    assert lengths == [1, 1, 1, 2, 2, 4, 8, 8, 4]
    assert [length for length, _ in scheme.rounds(26, done=5)] == lengths[4:]
    kept = ZeroOneAdam(warmup_steps=12, variance_repeats=2)
    for done in range(1, 20):
        assert [*kept.rounds(done), *kept.rounds(20 - done, done)][:12] == [*kept.rounds(20)][:12]
    assert [length for length, _ in ZeroOneAdam(communication_period=1).rounds(5)] == [1] * 5
    assert scheme.period == 8


@pytest.mark.usefixtures("uncompressed")
def test_without_compression_and_local_steps_it_is_adam_with_a_frozen_variance():
    given = gradients(12)
    scheme = ZeroOneAdam(warmup_steps=5, variance_repeats=5, communication_period=1)
    x, m, v = np.ones(SIZE), np.zeros(SIZE), np.zeros(SIZE)
    for t, (step, center) in enumerate(zip(given.astype(np.float64), played(scheme, given)[1], strict=True), 1):
        m = 0.9 * m + 0.1 * step.mean(0)
        v = 0.999 * v + 0.001 * step.mean(0) ** 2 if t <= 5 else v
        x = x - 0.004 * m / (np.sqrt(v / (1 - 0.999 ** min(t, 5))) + 1e-8)
        np.testing.assert_allclose(center, x, rtol=1e-5)


@pytest.mark.usefixtures("uncompressed")
def test_without_compression_a_round_is_the_mean_of_the_local_steps():
    """All are divided by one √v: the workers' moves have the mean of a worker with the mean gradients."""
    given = gradients(16)
    scheme = ZeroOneAdam(warmup_steps=4, doubling_steps=4, communication_period=4)
    alone = np.repeat(given.mean(1, keepdims=True), WORKERS, 1)
    np.testing.assert_allclose(played(scheme, given)[1], played(scheme, alone)[1], rtol=1e-5)


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_workers_end_a_round_at_the_center_with_one_momentum(ps):
    group, path = played(ZeroOneAdam(warmup_steps=4, doubling_steps=4, communication_period=4), gradients(24), ps)
    assert np.isfinite(path).all()
    rows = [group._operations.local.row("moving", k).read_value() for k in range(WORKERS)]
    for k in range(WORKERS):
        np.testing.assert_allclose(group.params(k), group.center, rtol=1e-6)
        np.testing.assert_allclose(rows[k], rows[0], rtol=1e-6)
    assert 0 < tf.norm(rows[0]) < 10


def test_only_rounds_in_which_the_variance_changes_have_the_bytes_of_floats():
    scheme = ZeroOneAdam(warmup_steps=12, variance_repeats=2)
    traffic = Traffic(scheme, scheme.codecs()[0].for_model(3), WORKERS, [100, 100])
    scalars, signs, reply = 2 * 2 * 4, 2 * 25 + 8 * (3 + 1), 2 * 25 + 8 * 2  # each slice has both scalars
    assert traffic.moved(scheme.rounds(10**9).kinds(20)) == (
        6 * 800 + 14 * signs + 20 * scalars,
        6 * 800 + 14 * reply,
    )


@pytest.mark.rotating
def test_a_run_that_is_resumed_equals_one_that_was_not(tmp_path):
    asked = {"workers": 2, "backend": "threads", "batch_size": 4, "hidden": (4,)}
    asked |= {"recovery": Recovery(checkpoint_steps=1000)}
    scheme = ZeroOneAdam(warmup_steps=6, variance_repeats=2, doubling_steps=4, communication_period=4)
    longer = record(scheme, tmp_path / "longer", steps=22, **asked)
    again = record(scheme, tmp_path / "resumed", steps=5, **asked)
    for steps in (14, 22):  # before and after the variance is frozen
        again = record(scheme, tmp_path / "resumed", steps=steps, **asked)
        assert again.result["recovery"]["resumed_from"] > 0
    np.testing.assert_array_equal(again.center, longer.center)
    assert again.result["bytes_pushed"] == longer.result["bytes_pushed"]
