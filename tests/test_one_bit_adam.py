"""1-bit Adam: Adam at first, then steps whose messages and replies are signs, and what is kept of them."""

import numpy as np
import pytest
import tensorflow as tf
from scheduled import happens

from distsgd.algorithms import OneBitAdam, SyncSGD
from distsgd.common import Group, Recovery, UserError
from distsgd.common.contract.optimizers import adam
from distsgd.common.server.traffic import Traffic
from runs import record

SIZE, WORKERS, EARLY = 12, 3, 5


def gradients(steps, seed=0):
    """Noisy gradients of each worker in each step, [steps, W, P]; one weight has none, and one tiny ones."""
    noise = np.random.default_rng(seed).normal(size=(steps, WORKERS, SIZE))
    scale = np.where(np.arange(SIZE) == 4, 0, np.where(np.arange(SIZE) == 7, 1e-5, 1))
    return ((noise + np.linspace(-1, 1, SIZE)) * scale).astype(np.float32)


def plays(given, scheme=None, ps=2):
    """The group after each of these gradients."""
    group = Group(scheme or OneBitAdam(warmup_steps=EARLY), np.ones(SIZE), workers=WORKERS, ps=ps)
    for step in given:
        for k in range(WORKERS):
            group.step(k, step[k])
        yield group


def played(given, scheme=None, ps=2):
    """The group after these gradients, and its center after each step."""
    groups, path = zip(*((group, group.center.copy()) for group in plays(given, scheme, ps)), strict=True)
    return groups[-1], np.array(path)


def kept(group, name):
    """The mean over the workers of a local variable, and the server's variable of that name."""
    rows = [group._operations.local.row(name, k).read_value() for k in range(WORKERS)]
    return np.mean(rows, axis=0), np.concatenate(
        [server.variables[name].numpy() for server in group._operations.servers]
    )


def adam_with_variance(given, frozen_after):
    """The centers of Adam on mean gradients; its second moment changes in the first steps alone."""
    x, m, v, path = tf.ones(SIZE), tf.zeros(SIZE), tf.zeros(SIZE), []
    for t, step in enumerate(given, 1):
        new_m, new_v, moved = adam(m, v, step.mean(0), float(t), 0.9, 0.999, 1e-8)
        if t > frozen_after:  # adam divides its moment by √v̂ of step t: take that of the last change instead
            new_v, power = v, 1 - 0.999**frozen_after
            moved = new_m / (1 - 0.9**t) / (tf.sqrt(v / power) + 1e-8)
        m, v, x = new_m, new_v, x - 0.004 * moved
        path.append(x.numpy())
    return np.array(path)


@pytest.mark.rotating
def test_before_the_variance_is_frozen_it_is_adam_on_mean_gradients():
    given = gradients(EARLY)
    np.testing.assert_allclose(played(given)[1], adam_with_variance(given, EARLY), rtol=1e-6)
    later = gradients(EARLY + 3)
    assert not np.allclose(played(later)[1][-1], adam_with_variance(later, EARLY + 3)[-1], rtol=1e-4)


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.usefixtures("uncompressed")
@pytest.mark.gate("others")
def test_without_compression_it_is_adam_with_a_frozen_variance(ps):
    given = gradients(30)
    group, path = played(given, OneBitAdam(warmup_steps=EARLY), ps)
    np.testing.assert_allclose(path, adam_with_variance(given, EARLY), rtol=2e-6)
    assert max(np.abs(error).max() for error in kept(group, "error")) == 0


@pytest.mark.rotating
def test_what_is_not_sent_is_kept_on_both_sides():
    """m − β₁ m' − (1 − β₁) ḡ is what both kept before, less what they keep now: nothing of a gradient is lost."""
    given = gradients(40)
    before, moment = 0.0, 0.0
    for steps, group in enumerate(plays(given), 1):
        (_, own), (errors, servers) = kept(group, "first_moment"), kept(group, "error")
        now = errors + servers
        if steps > EARLY:
            np.testing.assert_allclose(own - 0.9 * moment - 0.1 * given[steps - 1].mean(0), before - now, atol=1e-6)
            assert len(np.unique(np.abs(own[: SIZE // 2]))) <= 2  # signs of one size on a slice, and zero
        before, moment = now, own
    assert 0.01 < np.abs(before).max() < 10 * np.abs(moment).max()


@pytest.mark.rotating
def test_workers_keep_the_center_of_the_server_and_a_weight_without_variance_stays():
    given = gradients(30)
    given[20:, :, 4] = 1.0  # its first gradients come after the variance is frozen
    group, path = played(given)
    for k in range(WORKERS):
        np.testing.assert_array_equal(group.params(k), group.center)
    assert np.all(path[:, 4] == 1)
    assert np.isfinite(path).all()
    assert np.all(np.delete(path[-1], 4) != 1)


def test_the_bytes_of_the_first_rounds_are_those_of_floats():
    scheme = OneBitAdam(warmup_steps=4)
    traffic = Traffic(scheme, scheme.codecs()[0].for_model(3), WORKERS, [100, 100])
    signs, reply = 2 * 25 + 8 * (3 + 1), 2 * 25 + 8 * 2  # a magnitude for each variable and each slice
    assert (traffic.message, traffic.reply) == (signs, reply)
    assert traffic.moved(scheme.rounds(10).kinds()) == (4 * 800 + 6 * signs, 4 * 800 + 6 * reply)
    assert scheme.rounds(10).kinds(3) == {"floats": 3}
    assert [*scheme.rounds(3), *scheme.rounds(7, done=3)] == [*scheme.rounds(10)]
    plain = Traffic(SyncSGD(), SyncSGD().codec, WORKERS, [100, 100])
    assert plain.moved({"exchange": 10}) == (8000, 8000)


def test_the_first_rounds_take_the_time_of_floats_on_a_link():
    """Of a megabyte with 8 Mbit/s a second each way, and then of a tenth of it."""
    how = {"step_ms": 0.001, "uplink": "8Mbit", "downlink": "8Mbit", "latency": "0ms", "size": 1e5}
    found = happens(OneBitAdam(warmup_steps=4), 1, 10, apart={"floats": (1e6, 5e5)}, **how)
    assert found.seconds == pytest.approx(4 * (1 + 0.5) + 6 * 0.2, rel=1e-4)
    how_held = {"apart": {"floats": (1e6, 1e6)}, "size": 1e5, "ps_link": "8Mbit", "step_ms": 0.001}
    held = happens(OneBitAdam(warmup_steps=4), 1, 10, **how_held)
    assert held.seconds >= 4 * 1 + 6 * 0.1


@pytest.mark.rotating  # the gate has that of 0/1 Adam, which keeps the same memories by the same code, and more
def test_a_run_that_is_resumed_equals_one_that_was_not(tmp_path):
    asked = {"workers": 2, "backend": "threads", "batch_size": 4, "hidden": (4,)}
    asked |= {"recovery": Recovery(checkpoint_steps=1000)}
    scheme = OneBitAdam(warmup_steps=10)
    longer = record(scheme, tmp_path / "longer", steps=16, **asked)
    again = record(scheme, tmp_path / "resumed", steps=6, **asked)
    for before, steps in ((6, 13), (13, 16)):  # before and after the variance is frozen
        again = record(scheme, tmp_path / "resumed", steps=steps, **asked)
        assert again.result["recovery"]["resumed_from"] == before
    np.testing.assert_array_equal(again.center, longer.center)
    assert again.result["bytes_pushed"] == longer.result["bytes_pushed"]


def test_no_worker_may_begin_again_with_messages_of_the_first_steps(tmp_path):
    with pytest.raises(UserError, match=r"^workers of one_bit_adam must make the same rounds: leave max_restarts,"):
        record(OneBitAdam(), tmp_path, backend="threads", recovery=Recovery(max_restarts=1))
