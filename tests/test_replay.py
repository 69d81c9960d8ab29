"""Record and replay: a real run agrees with the paper's equations in the order in which things happened."""

import numpy as np
import pytest

import reference
from distsgd.algorithms import AEASGD, AsyncSGD, Downpour, DownpourEasy, Serial, SyncSGD
from doubles import NoLock, SlowAsyncSGD, UnlockedEarly
from runs import DIGITS, record

TOLERANCE = 1e-5
SCHEMES = {
    "async_sgd": AsyncSGD(),
    "downpour": Downpour(),
    "downpour_easy": DownpourEasy(),
    "sync_sgd": SyncSGD(),
    "sync_sgd with a backup worker": SyncSGD(backup_workers=1),
    "aeasgd": AEASGD(),
}


def moved(run) -> float:
    return float(np.linalg.norm(run.center - run.start) / np.linalg.norm(run.start))


def test_the_hand_written_gradient_is_the_slope_of_the_loss():
    x, y = DIGITS.train
    rows = np.arange(5)
    gradient = reference.mlp_gradient(x, y, [64, 4, 10])
    params = np.random.default_rng(0).normal(size=64 * 4 + 4 + 4 * 10 + 10)

    def loss(p):
        w1, b1, w2, b2 = np.split(p, np.cumsum([256, 4, 40]))
        logits = np.tanh(x[rows].astype(float) @ w1.reshape(64, 4) + b1) @ w2.reshape(4, 10) + b2
        shifted = logits - logits.max(1, keepdims=True)
        return -np.mean((shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))[np.arange(5), y[rows]])

    for i in np.random.default_rng(1).integers(len(params), size=20):
        e = np.zeros_like(params)
        e[i] = 1e-6
        assert gradient(params, rows)[i] == pytest.approx((loss(params + e) - loss(params - e)) / 2e-6, abs=1e-7)


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.parametrize("name", SCHEMES)
def test_a_run_on_real_processes_replays(name, ps, warm, tmp_path):
    run = record(SCHEMES[name], tmp_path / "run", workers=3, ps=ps)
    assert moved(run) > 0.05
    assert run.error() < TOLERANCE
    assert run.result["updates"] == (120 if "sync_" in name and "async" not in name else len(run.order))


@pytest.mark.parametrize("name", ["async_sgd", "sync_sgd", "sync_sgd with a backup worker"])
def test_a_long_run_with_several_rounds_in_a_call_replays(name, warm, tmp_path):
    run = record(SCHEMES[name], tmp_path / "run", workers=3, steps=504, hidden=(16,), batch_size=8)
    assert run.error() < TOLERANCE


def test_serial_on_a_real_process_replays(warm, tmp_path):
    run = record(Serial(), tmp_path / "run", workers=1, steps=150)
    assert moved(run) > 0.05
    assert run.error() < TOLERANCE
    assert run.result["ps"] == 0
    assert run.result["updates"] == 150


@pytest.mark.parametrize("repetition", range(3))
def test_the_barrier_replays_on_threads_where_everything_is_fast(repetition, tmp_path):
    """Once a token could be taken before the version was counted: a rare hang or a dropped message."""
    run = record(SyncSGD(), tmp_path / "run", workers=4, backend="threads", steps=300, hidden=(8,), seed=repetition)
    assert run.error() < TOLERANCE
    assert run.result["dropped"] == 0


def test_the_replay_agrees_when_a_slow_update_is_under_the_lock(warm, tmp_path):
    assert record(SlowAsyncSGD(), tmp_path / "run", steps=200).error() < TOLERANCE


@pytest.mark.parametrize("broken", [NoLock(), UnlockedEarly()], ids=["no lock", "unlocked early"])
def test_the_replay_fails_when_the_lock_is(broken, warm, tmp_path):
    assert record(broken, tmp_path / "run", steps=200).error() > 10 * TOLERANCE
