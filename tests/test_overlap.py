"""Schemes whose workers compute between a message and its reply."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from test_counts import zeros

from distsgd.algorithms import (
    CO2,
    AllReduce,
    AsyncDiLoCo,
    CoCoDSGD,
    DecoupledDiLoCo,
    DiLoCo,
    EagerDiLoCo,
    LocalSGD,
    StreamingDiLoCo,
)
from distsgd.common import Cluster, Group, UserError, train
from distsgd.common.cluster.platform import Platform
from distsgd.common.contract import (
    Async,
    Barrier,
    Bounded,
    Collective,
    Delay,
    Gossip,
    Period,
    Quorum,
    Scheme,
    Synchronization,
    Unlocked,
)
from distsgd.common.contract.checks import check_scheme
from distsgd.common.contract.rounds import USUAL
from distsgd.common.contract.stability import largest_rate
from distsgd.common.errors import WaitTimeout
from distsgd.common.record.round_log import load_rounds
from distsgd.common.server.traffic import Traffic
from distsgd.common.waiting import wait_until
from distsgd.simulator.virtual_time.forecast import forecast
from distsgd.simulator.virtual_time.layers import exchange_of
from distsgd.simulator.virtual_time.schedule import EventLoop
from runs import ONES


@dataclass(frozen=True, kw_only=True)
class Meeting(Scheme):
    """The message of worker 1 leaves after the last step of worker 0, whose reply is later than both messages.

    A file in a folder of its own says that worker 0 has made a step.
    """

    name = "meeting"
    sync: Synchronization = field(default_factory=Barrier)
    communication_period: Period = 2
    delay: Delay = 1
    folder: str = ""

    def local_step(self, worker, gradient):
        made = tf.numpy_function(self._make, [worker.step, worker.index], tf.float32)
        worker.params.assign_add(0 * gradient + made)

    def message(self, worker):
        last = worker.step + self.delay - 1
        return worker.params + tf.numpy_function(self._await, [last, worker.index], tf.float32)

    def _file(self, step):
        return Path(self.folder) / str(step)

    def _make(self, step, worker):
        """Say that worker 0 has made the step; return 0."""
        if worker == 0:
            self._file(step).touch()
        return np.float32(0)

    def _await(self, step, worker):
        """Return 0 for worker 0, and for worker 1 once the step of worker 0 is made; 1 after a minute."""
        if worker == 0:
            return np.float32(0)
        with contextlib.suppress(WaitTimeout):
            wait_until(self._file(step).exists, 60, str)
        return np.float32(not self._file(step).exists())

    def server_update(self, server, message, staleness):
        if self.sync.uses_ps:
            server.center.assign(message)
        return message

    def on_reply(self, worker, reply):
        worker.params.assign(reply)


@pytest.mark.parametrize(
    ("numbers", "backend"),
    [
        ({}, "threads"),
        ({"sync": Collective()}, "threads"),
        ({"sync": Collective()}, "processes"),
        ({"sync": Collective(), "communication_period": 1}, "processes"),
        ({"sync": Collective(), "communication_period": 2, "delay": 2}, "processes"),
    ],
)
@pytest.mark.rotating
def test_a_worker_makes_its_last_steps_before_the_others_have_sent_their_messages(numbers, backend, warm, tmp_path):
    (folder := tmp_path / "made").mkdir()
    how = {"steps": 4, "batch_size": 4, "run_dir": tmp_path / "run", "verbose": False}
    scheme, cluster = Meeting(folder=str(folder), **numbers), Cluster.local(2, backend=backend)
    train(model := zeros(), (ONES[0], np.zeros((64, 6), "f")), scheme, cluster=cluster, **how)
    assert not model.layers[0].kernel.numpy().any()  # or worker 1 has waited in vain
    _, _, begun, ready, computed, _, _, replied = load_rounds(tmp_path / "run").T
    assert len(begun) == 2 * 4 // scheme.period
    assert (np.diff([begun, ready, computed, replied], axis=0) >= 0).all()
    assert (ready < computed).all()


@dataclass(frozen=True, kw_only=True)
class Mixing(Scheme):
    """Workers send their parameters, make two steps more, and mix in the mean of what was sent."""

    name = "mixing"
    sync: Synchronization = field(default_factory=Barrier)
    communication_period: Period = 5
    delay: Delay = 2

    def local_step(self, worker, gradient):
        worker.params.assign_sub(0.1 * gradient)

    def message(self, worker):
        return worker.params

    def server_update(self, server, message, staleness):
        return message

    def on_reply(self, worker, reply):
        worker.params.assign(0.3 * worker.params + 0.7 * reply)


class Scaling(Mixing):
    """A message that needs a mean over all workers."""

    def message_sizes(self, shapes):
        return 1, sum(map(np.prod, shapes))


@pytest.mark.parametrize("numbers", [{}, {"delay": 5}, {"delay": 1, "communication_period": 1}, {"delay": 0}])
@pytest.mark.rotating("others")
def test_workers_that_reduce_are_those_of_a_barrier(numbers):
    one, other = (played(Mixing(sync=sync, **numbers)) for sync in (Barrier(), Collective()))
    assert one.version == other.version > 5
    for k in range(3):
        np.testing.assert_allclose(one.params(k), other.params(k), rtol=1e-5, atol=1e-6)
    assert (other.center == other.params(0)).all()


class Following(Mixing):
    """`cocod_sgd` with any rule: the center is the last mean, to which workers add the move of their last steps."""

    def local_variables(self, params):
        return {"sent": params}

    message, server_update, on_reply = CoCoDSGD.message, CoCoDSGD.server_update, CoCoDSGD.on_reply


@pytest.mark.parametrize("sync", [Quorum(1, late="count"), Async()], ids=["quorum", "asynchronous"])
def test_a_worker_uses_the_reply_to_its_message_even_if_the_center_has_changed_since(sync):
    scheme = Following(sync=sync, communication_period=4, delay=3)
    group = Group(scheme, np.zeros(1), workers=2)
    for k in (0, 0, 1, 1):  # both send after their first step, and each message becomes the center
        group.step(k, np.array([-1.0 - k]))
    assert (group.version, group.staleness(0), group.staleness(1)) == (2, 1, 0)
    assert group.center == pytest.approx([0.2])
    for _ in range(2):
        group.step(0, np.array([-1.0]))
    assert group.params(0) == pytest.approx([0.1 + 3 * 0.1])  # the center that it made, and the three steps since


@pytest.mark.gate
def test_a_quorum_of_all_workers_with_a_delay_is_a_barrier_with_one():
    one, other = (played(Following(sync=sync, delay=3)) for sync in (Quorum(3, late="count"), Barrier()))
    assert one.version == other.version > 5
    assert (one.center == other.center).all()
    assert all((one.params(k) == other.params(k)).all() for k in range(3))


@pytest.mark.gate
def test_decoupled_diloco_with_a_delay_and_the_plain_average_is_cocod_sgd():
    """The plain average of equal work with K = W, ε = 1 and μ = 0: θ ← mean x_k, x_k ← θ + (x_k − y_k)."""
    numbers = {"communication_period": 5, "delay": 5, "learning_rate": 0.1, "inner_optimizer": "sgd"}
    more = {"quorum": 3, "average": "plain", "outer_learning_rate": 1.0, "momentum": 0.0}
    one = played(DecoupledDiLoCo(**numbers, **more))
    other = played(CoCoDSGD(communication_period=5, learning_rate=0.1))
    assert one.version == other.version > 5
    np.testing.assert_allclose(one.center, other.center, rtol=1e-5, atol=1e-6)
    for k in range(3):
        np.testing.assert_allclose(one.params(k), other.params(k), rtol=1e-5, atol=1e-6)


def test_a_round_that_is_shorter_than_the_delay_sends_its_message_before_its_step():
    numbers = {"communication_period": 4, "delay": 2, "learning_rate": 0.1, "inner_optimizer": "sgd"}
    more = {"quorum": 2, "average": "plain", "outer_learning_rate": 1.0, "momentum": 0.0}
    group = Group(DecoupledDiLoCo(work=(1.0, 0.25), **numbers, **more), np.ones(2), workers=2)
    for k in (0, 1, 0):
        group.step(k, np.ones(2))
    np.testing.assert_allclose(group.center, (0.8 + 0.25 * 1.0) / 1.25, rtol=1e-6)  # weighed by their steps
    assert (group.version, group.ready) == (1, [0, 1])


def test_an_all_reduce_with_a_delay_makes_each_step_along_the_mean_gradient_of_the_step_before():
    group, rng = Group(AllReduce(delay=1, learning_rate=0.1), np.arange(5.0), workers=3), np.random.default_rng(0)
    x, late = np.arange(5.0), np.zeros(5)
    for t in range(20):
        own = rng.normal(size=(3, 5)) + np.arange(3)[:, None]
        for k in rng.permutation(3).tolist():
            np.testing.assert_allclose(group.point(k), x, rtol=1e-5, atol=1e-6)
            group.step(k, own[k] + x)
        late, x = np.mean(own, 0) + x, x - 0.1 * late
        np.testing.assert_allclose(group.center, x, rtol=1e-5, atol=1e-6)
        assert group.version == t + 1


@pytest.mark.parametrize(("delay", "limit"), [(0, 2.0), (1, 1.0)])
@pytest.mark.rotating
def test_a_delay_of_one_step_halves_the_largest_stable_rate_of_all_reduce(delay, limit):
    scheme = AllReduce(delay=delay)
    assert largest_rate(scheme, 2, 0.0, curvature=4.0) == pytest.approx(limit / 4)
    for rate, is_stable in ((0.95 * limit, True), (1.05 * limit, False)):
        group = Group(scheme.but(learning_rate=rate / 4), np.ones(1), workers=2)
        for k in [0, 1] * 200:
            group.step(k, 4 * group.point(k))
        assert (abs(group.params(0)) < 1).all() == is_stable


def played(scheme, steps=47, seed=0, ps=1):
    """The center after steps in a random order."""
    rng, group = np.random.default_rng(seed), Group(scheme, np.arange(5.0), workers=3, ps=ps)
    for _ in range(3 * steps):
        group.step(int(k := rng.choice(group.ready)), 0.1 * group.point(int(k)) + rng.normal(size=5))
    return group


@pytest.mark.rotating
def test_without_a_delay_and_mixing_streaming_diloco_is_diloco_bit_for_bit():
    one, other = (
        played(DiLoCo(communication_period=7)),
        played(StreamingDiLoCo(communication_period=7, delay=0, mixing=0.0)),
    )
    assert one.version == other.version > 5
    assert (one.center == other.center).all()


def test_eager_diloco_of_one_worker_is_diloco_a_round_later():
    eager, usual = (
        Group(
            kind(communication_period=4, inner_optimizer="sgd", learning_rate=0.1, outer_learning_rate=0.5),
            np.arange(3.0),
            workers=1,
        )
        for kind in (EagerDiLoCo, DiLoCo)
    )
    last = usual.center
    for _ in range(5):
        for _ in range(4):
            for group in (eager, usual):
                group.step(0, group.point(0))
        np.testing.assert_allclose(eager.center, last, rtol=1e-5)
        np.testing.assert_allclose(eager.params(0), usual.center, rtol=1e-5)
        last = usual.center


def test_the_center_of_eager_diloco_is_the_mean_of_the_workers_at_the_begin_of_the_round():
    scheme = EagerDiLoCo(communication_period=3, inner_optimizer="sgd", learning_rate=0.1)
    group, rng = Group(scheme, np.arange(5.0), workers=4, ps=2), np.random.default_rng(0)
    for _ in range(6):
        began = np.mean([group.params(k) for k in range(4)], 0)
        for _ in range(3):
            for k in range(4):
                group.step(k, rng.normal(size=5) + k * group.point(k))
        assert np.ptp([group.params(k) for k in range(4)], 0).min() > 0.01  # news of their own
        np.testing.assert_allclose(group.center, began, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("step", "centers"),
    [(1.0, [1, 0, -1, -1, 0, 1, 1]), (0.5, [1, 0.5, 0, -0.25, -0.25, -0.125, 0]), (0.25, [1, 3 / 4, 4 / 8, 5 / 16])],
)
def test_the_mean_move_of_co2_comes_a_round_late(step, centers):
    """The first of the two steps of a round leads to the minimum, 0: θ ← θ − (ε/Λ) θ_old."""
    numbers = {"outer_learning_rate": 2 * step, "gap_penalty": 2.0, "momentum": 0.0}
    scheme = CO2(communication_period=2, inner_optimizer="sgd", learning_rate=1.0, **numbers)
    group = Group(scheme, np.ones(1), workers=3)
    for center in centers:
        for k in range(3):
            group.step(k, group.point(k) + k - 1)  # the workers' minima are 1, 0 and -1
            group.step(k, np.zeros(1))
        assert group.center == pytest.approx([center], abs=1e-6)
        assert all((group.params(k) == group.center).all() for k in range(3))  # where the next round begins


def test_the_clip_of_co2_limits_what_a_coordinate_moves_in_a_round():
    scheme = CO2(communication_period=2, inner_optimizer="sgd", learning_rate=0.1, momentum=0.9, momentum_clip=0.25)
    group, last = Group(scheme, np.zeros(3), workers=1), np.zeros(3)
    moves = []
    for _ in range(9):
        for _ in range(2):
            group.step(0, np.array([0.01, 100.0, -100.0]))
        moves.append(last - group.center)
        last = group.center.copy()
    moves = np.array(moves)
    assert not moves[0].any()  # the first message is zero
    np.testing.assert_allclose(moves[1:, 1:], [[0.25, -0.25]] * 8, rtol=1e-5)
    np.testing.assert_allclose(moves[1:, 0], [0.001 * (1 - 0.9**t) / 0.1 for t in range(1, 9)], rtol=1e-3)


def test_cocod_sgd_of_one_worker_is_serial_sgd():
    group, x = Group(CoCoDSGD(communication_period=3, learning_rate=0.5), np.arange(4.0), workers=1), np.arange(4.0)
    for t in range(12):
        np.testing.assert_allclose(group.point(0), x, rtol=1e-5, atol=1e-6)
        gradient = np.sin(group.point(0) + t)
        group.step(0, gradient)
        x = x - 0.5 * gradient
        if t % 3 == 0:
            sent = group.params(0) + 0.5 * gradient
        if t % 3 == 2:
            np.testing.assert_allclose(group.center, sent, rtol=1e-5, atol=1e-6)


def test_the_mean_of_cocod_sgd_s_workers_is_that_of_local_sgd_where_gradients_are_linear():
    """Each worker begins a round away from the mean by its own move in the round before minus the mean of all moves."""
    rng, curvature = np.random.default_rng(0), np.array([0.1, 1.0, 3.0])
    numbers = {"communication_period": 4, "learning_rate": 0.3}
    late, usual = (Group(kind(**numbers), np.ones(3), workers=3) for kind in (CoCoDSGD, LocalSGD))
    moves = np.zeros((3, 3))
    for _ in range(6):
        begins = np.array([late.params(k) for k in range(3)])
        np.testing.assert_allclose(begins.mean(0), usual.center, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(begins, usual.center + moves - moves.mean(0), rtol=1e-4, atol=1e-5)
        x = begins.copy()
        for _ in range(4):
            for k, own in enumerate(rng.normal(size=(3, 3)) + np.arange(3)[:, None]):  # shards that differ
                x[k] -= 0.3 * (curvature * x[k] + own)
                for group in (late, usual):
                    group.step(k, curvature * group.point(k) + own)
        moves = x - begins
        np.testing.assert_allclose(late.center, begins.mean(0), rtol=1e-5, atol=1e-6)
        assert np.ptp(moves, 0).min() > 0.01


@pytest.mark.parametrize(("rate", "period"), [(0.5, 3), (1.5, 2), (1.5, 3)])
@pytest.mark.rotating("others")
def test_a_round_of_cocod_sgd_turns_the_difference_of_two_workers_round(rate, period):
    """By −c with c = 1 − (1 − η h)^H, beside c times the difference of their minima. Here h = 1, the minima are ±1."""
    group = Group(CoCoDSGD(communication_period=period, learning_rate=rate), np.zeros(1), workers=2)
    difference, c = 0.0, 1 - (1 - rate) ** period
    for _ in range(20):
        for _ in range(period):
            for k in (0, 1):
                group.step(k, group.point(k) - (1 - 2 * k))
        difference = -c * difference + 2 * c
        np.testing.assert_allclose(group.params(0) - group.params(1), difference, rtol=1e-4)
    assert (abs(difference) > 10) == (c > 1)  # an odd number of steps longer than the way to the minimum


def test_fragments_are_exchanged_in_turn_and_send_as_much_in_a_period_as_one(tmp_path):
    group = Group(StreamingDiLoCo(communication_period=6, fragments=3, delay=1), np.zeros(7), workers=1)
    for due in ([1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1], [1, 1, 1, 0, 0, 0, 0]):
        before = group.center.copy()
        group.step(0, np.ones(7))
        group.step(0, np.ones(7))
        assert ((group.center != before) == np.array(due)).all()
    one, parts = (Traffic(scheme, scheme.codecs()[0], 2, [600]) for scheme in (DiLoCo(), StreamingDiLoCo(fragments=4)))
    assert 4 * parts.message == one.message + 4 * (4 + 4)  # besides index and fragment


@pytest.mark.parametrize("ps", [1, 3])
@pytest.mark.rotating
def test_slices_of_several_servers_know_their_fragments(ps):
    scheme = StreamingDiLoCo(communication_period=6, fragments=3)
    assert (played(scheme, ps=ps).center == played(scheme).center).all()


def test_a_worker_of_a_group_waits_only_where_it_uses_the_reply():
    group = Group(StreamingDiLoCo(communication_period=4, delay=2), np.zeros(3), workers=2)
    for _ in range(4):
        assert 0 in group.ready
        group.step(0, np.ones(3))
    assert group.ready == [1]
    group.step(1, np.ones(3))
    assert (group.ready, group.version) == ([1], 0)
    group.step(1, np.ones(3))
    assert (group.ready, group.version) == ([0, 1], 1)


class Waiting(Async):
    """A rule of one's own whose workers are at most a round ahead of the slowest."""

    waits = True
    lead = 1


class Pushing(AsyncDiLoCo):
    kinds = USUAL


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (
            StreamingDiLoCo(communication_period=4, delay=5),
            r"delay must be at most the period, .*Received: delay=5, period=4",
        ),
        (StreamingDiLoCo(communication_period=8, fragments=3), r"a multiple of the fragments.*fragments=3"),
        (StreamingDiLoCo(communication_period=8, fragments=4, delay=3), r"Received: delay=3, period=2"),
        (AllReduce(delay=2), r"delay must be at most the period, .*Received: delay=2, period=1"),
        (AllReduce(delay=1, buckets=2), r"leave whole.*buckets=2"),
        (Scaling(sync=Collective(), delay=1), r"no mean over the workers.*and message_sizes"),
        (StreamingDiLoCo().but(sync=Quorum(2)), r"late messages count.*sync=Quorum"),
        (StreamingDiLoCo().but(sync=Gossip()), r"a barrier without backup workers.*sync=Gossip"),
        (StreamingDiLoCo().but(sync=Bounded(1)), r"a barrier without backup workers.*sync=Bounded"),
        (StreamingDiLoCo().but(sync=Unlocked()), r"exchanges with one server.*sync=Unlocked"),
        (StreamingDiLoCo().but(sync=Async(warm_start=2)), r"exchanges with one server.*warm_start=2"),
        (StreamingDiLoCo().but(sync=Waiting()), r"exchanges with one server.*sync=Waiting"),
        (Pushing(delay=2), r"exchanges with one server.*delay=2, sync=Async"),
        (StreamingDiLoCo().but(sync=Barrier(backup_workers=1)), r"a barrier without backup workers.*backup_workers=1"),
    ],
)
def test_a_delay_that_no_engine_can_execute_is_refused(scheme, message):
    with pytest.raises(UserError, match=message):
        check_scheme(scheme, 2)


def test_asynchronous_diloco_with_a_delay_and_plain_steps_of_the_center_is_serial_sgd_of_one_worker():
    """ε = 1 and β = 0: θ ← x as it was sent, and the worker keeps the move of its later steps. Each counts once."""
    numbers = {"communication_period": 5, "inner_optimizer": "sgd", "learning_rate": 0.1}
    scheme = AsyncDiLoCo(**numbers, delay=2, outer_learning_rate=1.0, momentum=0.0)
    group, x, path = Group(scheme, np.arange(3.0), workers=1), np.arange(3.0), []
    for _ in range(15):
        gradient = np.sin(7 * x)
        np.testing.assert_allclose(group.point(0), x, rtol=1e-5)
        group.step(0, gradient)
        path.append(x := x - 0.1 * gradient)
    assert group.version == 3
    np.testing.assert_allclose(group.center, path[3 * 5 - 2 - 1], rtol=1e-5)


def rounds(scheme, steps, **machines):
    """The columns of the rounds of two workers in virtual time, in milliseconds: begun, ready, replied."""
    platform = Platform(step_ms=10.0, **machines)
    sizes = {"message_bytes": 1e6, "reply_bytes": 1e6}
    loop = EventLoop(scheme, platform, workers=2, rounds=scheme.rounds(steps), seed=0, **sizes)
    worker, _, begun, ready, computed, _, _, replied = loop.run().rounds.T
    assert ((ready <= computed) & (computed <= replied)).all()
    return (np.stack([begun, ready, replied], 1)[worker == 0] / 1000).tolist()


def test_a_round_in_virtual_time_ends_with_the_later_of_its_steps_and_its_reply():
    scheme = StreamingDiLoCo(communication_period=4, delay=2)
    fast, slow = {"latency": "4ms"}, {"latency": "40ms"}
    assert rounds(scheme, 8, latency="15ms") == [[0, 20, 50], [50, 70, 100]]  # a message arrives before the last step
    assert rounds(scheme, 8, **fast) == [[0, 20, 40], [40, 60, 80]]
    assert rounds(scheme, 8, **slow) == [[0, 20, 100], [100, 120, 200]]
    assert rounds(StreamingDiLoCo(communication_period=4, delay=0), 4, **slow) == [[0, 40, 120]]
    assert rounds(scheme, 5, **fast)[1] == [40, 40, 50]  # a last round that is shorter than the delay
    late = Mixing(sync=Collective(), communication_period=4, delay=2)
    assert rounds(late, 8, **fast) == [[0, 20, 40], [40, 60, 80]]
    assert rounds(late, 8, **slow) == [[0, 20, 100], [100, 120, 200]]
    alone = AsyncDiLoCo(communication_period=4, delay=2)
    assert rounds(alone, 8, **fast) == [[0, 20, 40], [40, 60, 80]]
    assert rounds(alone, 8, **slow) == [[0, 20, 100], [100, 120, 200]]
    assert rounds(alone, 4, **slow, step_factors="1,9") == [[0, 20, 100]]  # without a wait for the other worker
    assert rounds(AllReduce(delay=1), 2, **slow) == [[0, 0, 80], [80, 80, 160]]
    assert rounds(AllReduce(delay=1), 2, **fast) == [[0, 0, 10], [10, 10, 20]]
    assert rounds(AllReduce(), 2, **fast) == [[0, 10, 18], [18, 28, 36]]
    shared = rounds(scheme, 4, cores=1, core_ms=5.0, **fast)
    assert shared[0][0] < shared[0][1] < shared[0][2]
    longer = StreamingDiLoCo(communication_period=5, delay=1)  # four steps before the message, one after it
    assert rounds(longer, 5, cores=2, core_ms=1.0, latency="1ms") == [[0, 44, 55]]


@pytest.mark.parametrize(
    ("delay", "latency", "shares"),  # of computing, waiting and communication, in rounds of four steps of 10 ms
    [
        (0, 40, (40 / 120, 0, 80 / 120)),
        (2, 4, (1, 0, 0)),
        (2, 15, (40 / 50, 0, 10 / 50)),
        (2, 40, (40 / 100, 0, 60 / 100)),  # 20 of the 80 ms beside the last two steps
        (4, 40, (40 / 80, 0, 40 / 80)),
        (4, 15, (1, 0, 0)),
    ],
)
def test_steps_beside_a_message_are_computing_in_a_forecast(delay, latency, shares):
    scheme = StreamingDiLoCo(communication_period=4, delay=delay)
    run = forecast(scheme, Platform(step_ms=10.0, latency=f"{latency}ms"), workers=2, parameters=10)
    assert (run.compute, run.waiting, run.communication) == pytest.approx(shares, abs=0.01)
    assert run.gradients == pytest.approx(200 * run.compute, rel=0.02)  # two workers, 100 steps a second


def test_a_forecast_of_a_scheme_with_overlap_waits_for_a_slow_worker():
    """It computes 80 ms in a round. The fast one computes 40, waits 36 for the other's message, and 4 for a reply."""
    platform = Platform(step_ms=10.0, step_factors="1,2", latency="4ms")
    run = forecast(EagerDiLoCo(communication_period=4), platform, workers=2, parameters=10)
    assert (run.compute, run.waiting, run.communication) == pytest.approx((120 / 160, 36 / 160, 4 / 160), abs=0.01)


def test_the_layers_of_a_scheme_in_fragments_have_its_whole_period_and_all_bits():
    found = exchange_of(StreamingDiLoCo(communication_period=20, fragments=4, delay=2), 4000, 2, 8)
    assert (found.period, found.fragments, found.delay) == (20, 4, 2)
    assert found.bits_up == pytest.approx(32 + 2 * 4 * 32 / 4000)  # and the index and the number of each part
    assert found.bits_down == pytest.approx(32 + 4 * 32 / 4000)
