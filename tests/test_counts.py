"""Rounds, steps and random numbers that a scheme sees: right for each message, whatever happens to its worker."""

import os
import signal
import threading
from dataclasses import dataclass, field

import keras
import numpy as np
import pytest
import tensorflow as tf
from going import task_log
from sleeping import rested

from conftest import children
from distsgd.common import Cluster, Recovery, train
from distsgd.common.cluster.platform import Platform
from distsgd.common.contract import (
    Async,
    Barrier,
    Collective,
    Delay,
    Period,
    Quorum,
    Scheme,
    Synchronization,
    uniform_numbers,
)
from distsgd.common.record_format import EVENTS
from distsgd.common.tasks import plan
from distsgd.common.tasks import worker_loop as loop
from distsgd.common.tasks.worker_calls import WorkerCalls
from runs import ONES, updates_logged, wait_until

SEED, WORKERS, SIZE = 7, 2, 6


@dataclass(frozen=True, kw_only=True)
class Telling(Scheme):
    """A message says what its worker sees; the center adds up what they say."""

    name = "telling"
    communication_period: Period = 1
    sync: Synchronization = field(default_factory=Async)
    delay: Delay = 0

    def local_variables(self, params):
        return {"stepped": 0.0, "adopted": 0.0}

    def local_step(self, worker, gradient):
        drawn = tf.floor(256 * worker.uniform(worker.index, worker.step))
        worker.stepped.assign(tf.cast(worker.step, tf.float32) + drawn[1])

    def message(self, worker):
        drawn = tf.floor(256 * worker.uniform(worker.index, worker.round, worker.step))
        counts = [tf.cast(count, tf.float32) for count in (worker.round, worker.step)]
        return tf.stack([1.0, *counts, drawn[0] + drawn[-1], worker.stepped.read_value(), worker.adopted.read_value()])

    def server_update(self, server, message, staleness):
        if not self.sync.uses_ps:
            return message
        server.center.assign_add(message)
        return server.center

    def on_reply(self, worker, reply):
        drawn = tf.floor(256 * worker.uniform(worker.index, worker.round))
        worker.adopted.assign(tf.cast(1000 * worker.round + worker.step, tf.float32) + drawn[1])
        worker.params.assign(reply if self.sync.uses_ps else worker.params + reply)


class RestingTelling(Telling):
    """The same, at 5 ms a round, so that a kill comes before the end of a run."""

    def message(self, worker):
        return rested(super().message(worker), 5)


def draw(*key):
    return np.floor(256 * uniform_numbers(SEED, SIZE, *key))


def told(scheme, trace, lengths):
    """The center, in NumPy: what the messages on record say, those of a set in the mean.

    Args:
        scheme: with its synchronization rule.
        trace: of the run.
        lengths: local steps of each round.
    """
    rounds, last, sets = [0] * WORKERS, [(0, 0)] * WORKERS, {}
    columns = (trace[name] for name in ("version", "worker", "event", "accepted"))
    for version, k, event, accepted in zip(*columns, strict=True):
        if EVENTS[event] == "join":  # it starts anew, and does the next round that is not on record
            last[k] = 0, 0
            continue
        r, before = rounds[k], sum(lengths[: rounds[k]])
        step = before + lengths[r] - min(scheme.delay, lengths[r])
        drawn = draw(k, r, step)
        stepped, adopted = last[k]
        now, replied = before + lengths[r] - 1, 1000 * r + step + min(scheme.delay, lengths[r]) + draw(k, r)[1]
        if step:
            stepped = step - 1 + draw(k, step - 1)[1]
        mine = [1, r, step, drawn[0] + drawn[-1], stepped, adopted]
        rounds[k], last[k] = r + 1, (now + draw(k, now)[1], replied)
        if accepted:
            sets.setdefault(version, []).append(mine)
    merge = np.sum if scheme.sync.set_size(WORKERS) is None else np.mean
    return sum(merge(messages, 0) for messages in sets.values())


def zeros():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(SIZE, use_bias=False, kernel_initializer="zeros")])
    model.compile(loss="mse")
    return model


def run(scheme, tmp_path, backend, steps, platform=None, **options):
    """Train as a user does; returns the center and the trace."""
    more = {} if platform is None else {"platform": platform}
    cluster = Cluster.local(WORKERS, ps=2 if scheme.sync.uses_ps else 1, backend=backend, **more)
    options |= {"steps": steps, "batch_size": 4, "seed": SEED, "run_dir": tmp_path / "run", "record": "full"}
    train(model := zeros(), (ONES[0], np.zeros((64, SIZE), "f")), scheme, cluster=cluster, verbose=False, **options)
    with np.load(tmp_path / "run" / "trace.npz") as trace:
        return model.layers[0].kernel.numpy()[0], dict(trace)


def agree(center, expected):
    np.testing.assert_allclose(center, expected, rtol=1e-6)


CASES = {
    "asynchronous": (Telling(communication_period=3), 10),
    "overlap": (Telling(sync=Barrier(), communication_period=5, delay=2), 16),
    "overlap_of_whole_rounds": (Telling(sync=Barrier(), communication_period=3, delay=3), 10),
    "without_a_ps": (Telling(sync=Collective(), communication_period=3), 10),
    "overlap_without_a_ps": (Telling(sync=Collective(), communication_period=5, delay=2), 16),
    "overlap_with_a_quorum": (Telling(sync=Quorum(1, late="count"), communication_period=5, delay=2), 16),
    "overlap_of_single_steps": (Telling(sync=Collective(), delay=1), 6),
    "dropped_messages": (Telling(sync=Barrier(backup_workers=1)), 40),
}


# In each gate: exchanges that no worker waits for, overlap with and without a ps, sets of some messages, dropped ones.
ALWAYS = {
    *(
        ("overlap", "threads"),
        ("without_a_ps", "threads"),
        ("dropped_messages", "threads"),
    ),
    *(
        ("asynchronous", "simulation"),
        ("overlap_with_a_quorum", "simulation"),
        ("overlap_without_a_ps", "simulation"),
    ),
}


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        pytest.param(case, backend, marks=() if (case, backend) in ALWAYS else pytest.mark.rotating)
        for backend in ("threads", "simulation")
        for case in CASES
        if backend == "threads" or case == "asynchronous" or "overlap" in case
    ],
)
@pytest.mark.rotating
def test_each_message_has_the_counts_and_the_draws_of_its_round(case, backend, tmp_path):
    scheme, steps = CASES[case]
    center, trace = run(scheme, tmp_path, backend, steps)
    whole, rest = divmod(steps, scheme.period)
    agree(center, told(scheme, trace, [scheme.period] * whole + [rest] * (rest > 0)))


@pytest.mark.rotating
def test_several_rounds_in_a_call_count_one_after_the_other(monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "LONG_RUN_ROUNDS", 1)
    monkeypatch.setattr(plan, "ROUNDS_PER_CALL", 3)
    monkeypatch.setattr(loop, "is_short", lambda *_: True)
    counts, make = set(), WorkerCalls._callable
    monkeypatch.setattr(WorkerCalls, "_callable", lambda own, event, n: counts.add(n) or make(own, event, n))
    scheme, steps = Telling(communication_period=2), 24
    center, trace = run(scheme, tmp_path, "threads", steps)
    assert counts == {1, 3}
    agree(center, told(scheme, trace, [2] * 12))


@pytest.mark.parametrize("sync", [Async(), Barrier(), Barrier(backup_workers=1)])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_simulated_worker_that_comes_back_after_a_crash_counts_on(sync, tmp_path):
    machines = Platform(failures="crashes:every=150ms,down=20ms", compute="exponential", latency="1ms")
    scheme = Telling(sync=sync)
    center, trace = run(scheme, tmp_path, "simulation", 60, machines)
    assert (trace["event"] == EVENTS.index("join")).sum() > 5
    agree(center, told(scheme, trace, [1] * 60))


@pytest.mark.parametrize(
    ("scheme", "backend"),
    [
        (Telling(sync=Collective(), communication_period=3), "threads"),
        (Telling(sync=Barrier(), communication_period=3, delay=2), "threads"),
        (Telling(sync=Collective(), communication_period=3, delay=2), "threads"),
        (Telling(sync=Barrier(), communication_period=3), "processes"),
    ],
    ids=["without_a_ps", "overlap", "overlap_without_a_ps", "on_processes"],
)
@pytest.mark.rotating
def test_a_resumed_run_counts_on(scheme, backend, warm, tmp_path):
    for steps in (7, 12):
        center, trace = run(scheme, tmp_path, backend, steps, recovery=Recovery(checkpoint_steps=1000))
    agree(center, told(scheme, trace, [3, 3, 1, 3, 2]))


@pytest.mark.rotating
def test_a_process_that_was_killed_counts_on(warm, tmp_path):
    def kill():
        wait_until(lambda: updates_logged(tmp_path / "run") > 60)
        (victim,) = [pid for pid in children() if task_log(pid) == "worker-1.log"]
        os.kill(victim, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    scheme, steps = RestingTelling(), 480
    center, trace = run(scheme, tmp_path, "processes", steps, recovery=Recovery(max_restarts=1))
    killer.join()
    assert (trace["event"] == EVENTS.index("join")).sum() == 1
    agree(center, told(scheme, trace, [1] * steps))
