"""Gossip: workers that hear their neighbours alone, in a group, on processes, and in virtual time."""

import json
import shutil
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from resting import RestingDPSGD
from scheduled import happens

from distsgd.algorithms import DPSGD, SCHEMES, SGP, ChocoSGD, DSGDTracking, ExactDiffusion, NoLoCo, QGDSGDm, Serial
from distsgd.common import Group, Platform, Recovery, UserError
from distsgd.common.contract import Barrier, Gossip
from distsgd.common.contract.rounds import Rounds
from distsgd.common.messages.ops import when
from distsgd.common.record import checkpoint
from distsgd.common.record.callbacks import STOP, Callback
from distsgd.common.record.round_log import load_rounds
from distsgd.common.record.saved_runs import picture, read_run
from distsgd.common.replay.comparison import judge
from distsgd.common.replay.replay import replay
from distsgd.common.server.trace import ROUND
from distsgd.common.sync.losses import variables as variables_of
from distsgd.common.sync.topology import DRAWN, GRAPHS, Topology
from distsgd.common.tasks import interruption, plan, state_manager
from distsgd.common.tasks.local_state import Keeping
from distsgd.common.tasks.results import write_graph
from distsgd.simulator.execution.arithmetic import Arithmetic
from distsgd.simulator.virtual_time.schedule import EventLoop
from runs import DIGITS, Harness, averaged, job_of, patience, record

FEW, RATE = {"batch_size": 8, "hidden": (8,)}, 0.25


def played(topology, workers, steps, move, start=(1.0, -2.0, 0.5), kind=DPSGD):
    """The group after so many steps of each worker, whose gradient is `move(k, t, x)`."""
    group = Group(kind(learning_rate=RATE, topology=topology), np.array(start), workers=workers)
    for t in range(steps):
        for k in range(workers):
            group.step(k, move(k, t, np.asarray(group.point(k), np.float64)))
    return group


def distances(backend, run_dir):
    """The recorded consensus distance by version of the center, of a run of four workers on a ring."""
    record(DPSGD(), run_dir, backend=backend, workers=4, steps=40, evaluate_every=10, test=DIGITS.test, **FEW)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {row["version"]: row["consensus"] for row in rows if row["kind"] == "center" and row["version"]}


@pytest.mark.rotating
def test_the_consensus_distance_is_recorded_at_each_evaluation_and_drawn(tmp_path):
    simulated = distances("simulation", tmp_path / "simulation")
    live = distances("threads", tmp_path / "threads")
    assert sorted(live) == [10, 20, 30, 40]
    assert min(live.values()) > 0
    for version, distance in live.items():
        assert simulated[version] == pytest.approx(distance, rel=1e-3)
    axes = picture([read_run(tmp_path / "threads")]).axes
    assert "consensus distance" in axes[1].get_ylabel()


@pytest.mark.parametrize("topology", GRAPHS)
@pytest.mark.rotating("others")
def test_each_worker_has_the_weighted_sum_of_its_neighbours_and_its_own_step(topology):
    workers, steps, rng = 8, 6, np.random.default_rng(0)
    noise = rng.normal(size=(steps, workers, 3))
    group = played(topology, workers, steps, lambda k, t, x: x + noise[t, k])
    x = np.tile([1.0, -2.0, 0.5], (workers, 1))
    for t in range(steps):
        x = Topology(topology).weights(workers, t) @ x - RATE * (x + noise[t])
    np.testing.assert_allclose([group.params(k) for k in range(workers)], x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(group.center, x.mean(0), rtol=1e-5, atol=1e-6)
    assert group.version == steps


@pytest.mark.parametrize("topology", ["ring", "one-peer", "random-matching"])
def test_the_mean_of_the_workers_is_all_reduce_where_all_losses_have_one_curvature(topology):
    """Then g_i(x_i) has the mean g at the mean of the x_i, whatever their distances."""
    targets, theta = np.random.default_rng(1).normal(size=(4, 3)), np.array([1.0, -2.0, 0.5])
    group = played(topology, 4, 5, lambda k, t, x: x - targets[k])
    for _ in range(5):
        theta = theta - RATE * np.mean(theta - targets, axis=0)
    np.testing.assert_allclose(group.center, theta, rtol=1e-5, atol=1e-6)
    assert np.std([group.params(k) for k in range(4)], axis=0).min() > 0.01


@pytest.mark.parametrize("topology", GRAPHS)
@pytest.mark.rotating("others")
def test_with_tracking_each_worker_averages_its_parameters_and_its_estimate_of_the_gradient(topology):
    workers, steps, rng = 8, 6, np.random.default_rng(0)
    noise = rng.normal(size=(steps, workers, 3))
    group = played(topology, workers, steps, lambda k, t, x: x + noise[t, k], kind=DSGDTracking)
    x = np.tile([1.0, -2.0, 0.5], (workers, 1))
    y = before = x + noise[0]
    for t in range(steps):
        weights = Topology(topology).weights(workers, t)
        x, y = weights @ (x - RATE * y), weights @ y - before
        if t + 1 < steps:
            before = x + noise[t + 1]
            y = y + before
    np.testing.assert_allclose([group.params(k) for k in range(workers)], x, rtol=1e-5, atol=1e-6)


CURVATURES, MINIMA = np.linspace(0.5, 2.0, 5)[:, None], np.random.default_rng(5).normal(size=(5, 3))


@pytest.mark.parametrize("topology", ["ring", "exponential"])
@pytest.mark.rotating
def test_where_losses_differ_tracking_and_exact_diffusion_end_at_the_minimum_and_plain_gossip_beside_it(topology):
    """At rest d_psgd has x = W x − η a (x − b): each worker is pulled to its own minimum b, with momentum by 2 η."""
    with_momentum = partial(DPSGD, momentum=0.5)
    ends = {
        kind: played(topology, 5, 60, lambda k, t, x: CURVATURES[k] * (x - MINIMA[k]), kind=kind)
        for kind in (DPSGD, DSGDTracking, ExactDiffusion, with_momentum)
    }
    minimum = (CURVATURES * MINIMA).sum(0) / CURVATURES.sum()

    def at_rest(rate):
        apart = np.eye(5) - Topology(topology).weights(5) + rate * np.diag(CURVATURES[:, 0])
        return np.linalg.solve(apart, rate * CURVATURES * MINIMA)

    workers = {kind: np.array([end.params(k) for k in range(5)]) for kind, end in ends.items()}
    np.testing.assert_allclose(workers[DPSGD], at_rest(RATE), atol=1e-5)
    np.testing.assert_allclose(workers[with_momentum], at_rest(2 * RATE), atol=1e-4)
    for kind in (DSGDTracking, ExactDiffusion):
        np.testing.assert_allclose(workers[kind], np.tile(minimum, (5, 1)), atol=1e-4)
    assert np.abs(at_rest(RATE).mean(0) - minimum).max() > 0.01


class TwoOfSync(DSGDTracking):
    """Sends two vectors to a barrier."""

    sync = Barrier()


def test_several_vectors_in_a_message_need_a_rule_without_a_ps():
    with pytest.raises(UserError, match=r"message_sizes needs .* no parameter server"):
        Group(TwoOfSync(), np.zeros(3), workers=2)


def test_a_ring_at_rest_comes_together_by_the_second_eigenvalue_of_its_matrix():
    workers = 16
    wave = np.cos(2 * np.pi * np.arange(workers) / workers)
    group = played("ring", workers, 1, lambda k, t, x: np.full(3, wave[k]))
    before = np.array([group.params(k) for k in range(workers)])
    for _ in range(5):
        for k in range(workers):
            group.step(k, np.zeros(3))
    after = np.array([group.params(k) for k in range(workers)])
    factor = (1 + 2 * np.cos(2 * np.pi / workers)) / 3
    np.testing.assert_allclose(after - after.mean(0), (before - before.mean(0)) * factor**5, atol=1e-6)


@pytest.mark.rotating
def test_workers_that_agree_stay_where_they_are():
    """Weights of 1/3 in float32 sum to more than one: as a weighted sum the vector would grow."""
    start = np.full(3, 1.1, np.float32)
    group = played("ring", 5, 50, lambda k, t, x: np.zeros(3), start)
    assert (np.array([group.params(k) for k in range(5)]) == start).all()


def test_one_worker_is_serial_sgd():
    alone = Group(Serial(learning_rate=RATE), np.array([1.0, -2.0, 0.5]), workers=1)
    for _ in range(4):
        alone.step(0, alone.point(0))
    np.testing.assert_allclose(played("ring", 1, 4, lambda k, t, x: x).center, alone.center, rtol=1e-6)


def test_after_the_rounds_that_are_drawn_matchings_repeat():
    rule = Gossip(topology="random-matching")
    for number in (7, 7 + DRAWN):
        np.testing.assert_allclose(rule.weights(5, number), Topology("random-matching").weights(5, 7), rtol=1e-6)
    assert rule.links(5).weights.shape == (DRAWN, 5, 1)


@pytest.mark.parametrize("workers", [1, 4, 8])
@pytest.mark.parametrize("topology", GRAPHS)
def test_the_links_of_a_worker_are_its_row_and_its_column_of_each_matrix(topology, workers):
    if (topology, workers) == ("torus", 1):
        workers = 6
    rule = Gossip(topology=topology)
    for worker in range(workers):
        heard, hearing = rule.links(workers).of(worker)
        for number in range(min(5, len(heard))):
            matrix = rule.weights(workers, number) * (1 - np.eye(workers))
            np.testing.assert_allclose(heard[number], matrix[worker], rtol=1e-6)
            np.testing.assert_allclose(hearing[number], matrix[:, worker], rtol=1e-6)


# Processes, threads and virtual time.


@pytest.mark.parametrize(
    ("kind", "topology", "backend", "workers", "steps"),
    [
        (DPSGD, "ring", "threads", 4, 12),
        (DPSGD, "random-matching", "simulation", 5, 12),
        (DSGDTracking, "ring", "threads", 4, 12),
        (DSGDTracking, "one-peer", "simulation", 5, 12),
        (DPSGD, "one-peer", "processes", 4, 40),
        (DPSGD, "random-matching", "processes", 3, 40),
        (DSGDTracking, "ring", "processes", 4, 40),
    ],
)
@pytest.mark.rotating
def test_a_run_is_that_of_the_equations(kind, topology, backend, workers, steps, tmp_path):
    scheme = kind(topology=topology)
    run = record(scheme, tmp_path, workers=workers, backend=backend, steps=steps, **FEW)
    assert run.error() < 1e-5
    assert run.result["updates"] == steps
    assert len(run.order) == steps * workers
    assert np.linalg.norm(run.center - run.start) > 0.01
    rounds = load_rounds(tmp_path)
    for number in range(steps):
        links, now = Topology(topology).weights(workers, number) > 0, rounds[rounds[:, 1] == number]
        ready, released = now[np.argsort(now[:, 0])][:, [ROUND.index("ready"), ROUND.index("released")]].T
        assert released.tolist() == [ready[heard].max() for heard in links]


def store_of(workers, lost, last_version=7, every=3):
    """Stand-ins for what worker 0 reads and writes when it collects; the lost workers have handed over nothing."""
    variables = SimpleNamespace(consensus=tf.Variable(0.0), **{k: tf.Variable(v) for k, v in variables_of(3).items()})
    part = SimpleNamespace(center=tf.Variable(tf.zeros([2])), average=tf.Variable(tf.zeros([2])))
    states, noted = tf.Variable(tf.zeros([3, 1])), []
    ps = SimpleNamespace(num_workers=3, can_lose=True, last_version=last_version, multiples=(every, 9), when=when)
    ps.variables, ps.transactions = variables, SimpleNamespace(exclusive=nullcontext)
    ps.center = SimpleNamespace(slices=[part], read_version=lambda: 0)
    ps.center.count_updates, ps.center.after_update = lambda number: number, lambda *_: None
    ps.slots = SimpleNamespace(states=states, count=lambda flags: tf.reduce_sum(tf.cast(flags, tf.int32)))
    ps.journal = SimpleNamespace(record_rounds=lambda version, times, present: noted.append(present.numpy().tolist()))
    nothing = tf.zeros([5]), tf.zeros([0, 5]), tf.constant(False)
    mail = SimpleNamespace(at=lambda number: mail, notes=lambda *_: tf.zeros([0, 5]))
    mail.collected = lambda k, *_: nothing if k in lost else (workers[k], tf.zeros([0, 5]), tf.constant(True))
    return ps, mail, noted


def test_lost_workers_count_neither_in_the_center_nor_in_its_average_and_consensus_distance():
    """A worker has two parameters, their two averages, and a state; worker 2 is lost."""
    workers = tf.constant([[1.0, 2.0, 1.0, 4.0, 8.0], [3.0, 4.0, 5.0, 6.0, 2.0], [9.0, 9.0, 9.0, 9.0, 9.0]])
    ps, mail, noted = store_of(workers, lost=[2])
    slot = SimpleNamespace(index=0, mail=mail, round=tf.constant(2, tf.int64))
    Gossip().collect(ps, slot, workers[0, :4], workers[0, 4:])
    assert noted == [[True, True, False]]
    part = ps.center.slices[0]
    assert (part.center.numpy().tolist(), part.average.numpy().tolist()) == ([2, 3], [3, 5])
    assert (ps.slots.states.numpy().ravel().tolist(), float(ps.variables.consensus)) == ([8, 2, 5], 2)
    assert ps.variables.kept.numpy().tolist() == [3, 3, 0]


def test_worker_0_collects_after_each_multiple_and_after_the_last_round():
    ps, mail, noted = store_of(tf.ones([3, 5]), lost=[])
    seen = []
    for number in range(7):
        slot = SimpleNamespace(index=0, mail=mail, round=tf.constant(number, tf.int64))
        Gossip().collect(ps, slot, tf.ones([4]), tf.ones([1]))
        seen.append(len(noted))
    assert seen == [0, 0, 1, 1, 1, 2, 3]


def saved_average(folder):
    with np.load(folder / "center.npz") as saved:
        return saved["average"]


@pytest.mark.parametrize(
    ("scheme", "backend", "steps"),
    [
        (DPSGD(), "threads", 120),
        (NoLoCo(communication_period=3), "threads", 60),
        (NoLoCo(communication_period=3), "simulation", 60),
        (DSGDTracking(topology="one-peer"), "simulation", 60),
        (SGP(), "processes", 60),
    ],
    ids=lambda value: getattr(value, "name", None),
)
@pytest.mark.rotating
def test_the_mean_of_the_averages_of_all_workers_is_the_average_of_their_mean(scheme, backend, steps, tmp_path):
    """Of 120 rounds every second mean is collected, and each counts."""
    run = record(scheme, tmp_path, workers=4, backend=backend, steps=steps, ema_decay=0.8, **FEW)
    average = averaged(run, 0.8, scheme.period)
    np.testing.assert_allclose(saved_average(tmp_path), average, rtol=2e-5, atol=2e-6)
    assert np.linalg.norm(average - run.center) > 1e-3


@pytest.mark.rotating
def test_a_resumed_run_continues_the_averages_of_its_workers(tmp_path):
    how = {"recovery": Recovery(checkpoint_steps=40), "workers": 3, "backend": "threads", "ema_decay": 0.99, **FEW}
    record(DPSGD(), tmp_path, steps=80, **how)
    again = record(DPSGD(), tmp_path, steps=120, **how)
    assert again.result["recovery"]["resumed_from"] == 80
    np.testing.assert_allclose(saved_average(tmp_path), averaged(again, 0.99), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.rotating
def test_a_replay_reads_the_matrix_in_the_folder_of_the_run_not_the_file_that_it_had(backend, tmp_path):
    graph, again = tmp_path / "graph.txt", tmp_path / "again"
    np.savetxt(graph, Topology("ring").weights(3) * 0.9 + 0.1 * np.eye(3))
    record(DPSGD(topology=f"file:{graph}"), tmp_path / "run", workers=3, backend=backend, steps=12, **FEW)
    shutil.copytree(tmp_path / "run", again)
    graph.unlink()
    assert replay(again, SCHEMES).agrees
    np.savetxt(again / "topology.txt", np.eye(3))  # also within one process
    assert not replay(again, SCHEMES).agrees


def test_a_run_is_not_resumed_with_another_matrix(tmp_path):
    graph = tmp_path / "graph.txt"
    np.savetxt(tmp_path / "topology.txt", np.eye(2))
    np.savetxt(graph, np.full((2, 2), 0.5))
    with pytest.raises(UserError, match="another mixing matrix"):
        write_graph(tmp_path, f"file:{graph}", 2)


@pytest.mark.rotating
@pytest.mark.parametrize("topology", GRAPHS)
def test_eight_workers_never_wait_for_each_other_in_a_circle(topology, tmp_path):
    run = record(DPSGD(topology=topology), tmp_path, workers=8, backend="threads", steps=9, **FEW)
    assert run.error() < 1e-5


def test_a_worker_waits_for_its_neighbours_alone():
    """In a ring of nine, one slow worker delays another only after as many rounds as there are links between them."""
    workers, rounds = 9, 3
    platform = Platform(step_ms=10, step_factors="5" + ",1" * (workers - 1))
    loop = EventLoop(
        DPSGD(), platform, workers=workers, rounds=Rounds.even(rounds, 1), seed=0, message_bytes=8, reply_bytes=8
    )
    found = loop.run().rounds
    ends, links = np.zeros(workers), Topology("ring").weights(workers) > 0
    for number in range(rounds):
        ready = ends + np.where(np.arange(workers) == 0, 50, 10)
        ends = np.array([ready[own].max() for own in links])
        rows = found[found[:, 1] == number]
        np.testing.assert_allclose(rows[np.argsort(rows[:, 0]), -1], 1000 * ends, atol=2)
    assert (ends.min(), ends.max()) == (30, 150)


def test_a_message_takes_the_links_of_both_ends_and_the_latency():
    platform = Platform(step_ms=10, uplink="1MB", latency="5ms")  # a byte each microsecond
    loop = EventLoop(
        DPSGD(), platform, workers=4, rounds=Rounds.even(1, 1), seed=0, message_bytes=1000, reply_bytes=1000
    )
    assert loop.run().seconds == pytest.approx(0.010 + 2 * 0.001 + 0.005)


def test_a_worker_is_released_by_its_last_neighbour_and_a_round_ends_with_its_last_worker():
    """Messages overtake each other here: the last to be sent is not the last to arrive."""
    machines = {"compute": "exponential", "latency": "5ms", "latency_sigma": 1.0, "uplink": "8Mbit"}
    found, links = happens(DPSGD(), 5, 30, size=1e4, seed=3, **machines), Topology("ring").weights(5) > 0
    for number in range(30):
        rows = found.rounds[found.rounds[:, 1] == number]
        arrived, released, replied = rows[np.argsort(rows[:, 0])][:, 5:].T
        assert released.tolist() == [arrived[own].max() for own in links]
        assert set(found.trace["microseconds"][found.trace["version"] == number]) == {replied.max()}


def test_latencies_between_neighbours_vary_as_those_of_other_messages_do():
    ends = {}
    for sigma in (0.0, 0.5):
        machines = Platform(step_ms=1.0, latency="10ms", latency_sigma=sigma)
        sizes = {"message_bytes": 0, "reply_bytes": 0}
        loop = EventLoop(DPSGD(), machines, workers=8, rounds=Rounds.even(200, 1), seed=1, **sizes)
        ends[sigma] = loop.run().seconds
    assert ends[0.0] == pytest.approx(200 * 0.011)
    assert 1.2 * ends[0.0] < ends[0.5] < 2.5 * ends[0.0]  # each round waits for the later of two messages


class Mixed(SGP):
    """Keeps a half of its own parameters, so that the simulation needs those after the local step."""

    def on_reply(self, worker, reply):
        worker.params.assign((worker.params + reply) / 2)


@pytest.mark.rotating
def test_a_simulation_collects_the_mean_of_the_workers_between_their_rounds_alone():
    job = job_of(Mixed(), 4, model="mlp:hidden=8", steps=6)
    sizes = {"message_bytes": 0, "reply_bytes": 0}
    trace = EventLoop(job.scheme, Platform(), workers=4, rounds=job.plan.rounds(0), seed=0, **sizes).run().trace
    arithmetic, found = Arithmetic(job, trace), []
    for events in (8, 9):  # the second is within the third round, whose local steps have been made
        arithmetic.run(events)
        found.append(arithmetic.snapshot())
    arithmetic.close()
    before, within = found
    assert before["at"] == within["at"] == 2
    np.testing.assert_array_equal(before["center"], within["center"])
    assert before["consensus"] == within["consensus"] > 0


@pytest.mark.parametrize("kind", [DPSGD, DSGDTracking, SGP])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_checkpoint_has_the_parameters_of_each_worker(kind):
    with Harness(kind(), workers=2) as harness:
        assert "params" in harness.worker(1).calls.local_places


@pytest.mark.rotating
@pytest.mark.parametrize(
    "kind",
    [DPSGD, DSGDTracking, SGP, partial(ChocoSGD, compressor="bf16"), ExactDiffusion],  # no codec with jumps
    ids=["d_psgd", "dsgd_tracking", "sgp", "choco_sgd", "exact_diffusion"],
)
def test_a_resumed_run_is_that_of_the_equations(kind, tmp_path):
    """Each worker has its own parameters in the checkpoint, taken in a round after which their mean was collected."""
    how = {"recovery": Recovery(checkpoint_steps=40, keep_checkpoints=99), "workers": 3, "backend": "threads", **FEW}
    record(kind(), tmp_path / "whole", steps=480, **how)
    shutil.copytree(tmp_path / "whole", tmp_path / "again", ignore=shutil.ignore_patterns("result.json", "*.lock"))
    _, *later = checkpoint.found(tmp_path / "again")
    assert later
    for path in later:
        checkpoint.discard(path)
    again = record(kind(), tmp_path / "again", steps=480, **how)
    assert 0 < again.result["recovery"]["resumed_from"] < 480
    assert again.result["recovery"]["warnings"] == []
    assert judge(again).agrees  # rounding adds up over the steps of exact_diffusion


def test_what_gossip_cannot_do_is_refused(tmp_path):
    with pytest.raises(UserError, match="hypercube needs"):
        Harness(DPSGD(topology="hypercube"), workers=6)
    with pytest.raises(UserError, match="topology must be the name of a graph"):
        DPSGD(topology=3)
    with pytest.raises(UserError, match="cannot follow a schedule"):
        record(DPSGD(), tmp_path, backend="threads", steps=2, schedule=(0, 1, 2), **FEW)


@pytest.mark.parametrize(("topology", "workers"), [*((graph, 8) for graph in GRAPHS), ("random-matching", 3)])
def test_workers_meet_for_a_checkpoint_at_a_round_that_none_has_passed(topology, workers):
    keeping = Keeping(job_of(DPSGD(topology=topology), workers), {})
    assert keeping.lag >= Topology(topology).lead(workers)


class Interrupts(Callback):
    """Leaves the name of a signal in the folder of the run, as the launcher does, once there is a round."""

    def __init__(self, run_dir):
        self.file = run_dir / STOP

    def on_event(self, event):
        if event["event"] == "first_update":
            self.file.write_text("SIGTERM")


@pytest.mark.parametrize(
    ("scheme", "steps"),
    [
        (RestingDPSGD(milliseconds=40), 480),
        (DPSGD(), 5000),  # several rounds in a call
        (SGP(), 5000),
    ],
    ids=["d_psgd", "several rounds in a call", "sgp"],
)
@pytest.mark.rotating
def test_a_run_that_a_signal_interrupts_has_the_mean_of_its_last_common_round_and_resumes(
    scheme, steps, tmp_path, monkeypatch
):
    monkeypatch.setattr(state_manager, "INTERRUPTED_SECONDS", patience(60))  # on a busy machine
    monkeypatch.setattr(interruption, "CHIEF_SECONDS", patience(70))
    monkeypatch.setattr(plan, "ROUNDS_PER_CALL", 3)  # the graph of 16 takes 15 s to build
    how = {"workers": 3, "backend": "threads", "test": DIGITS.test, **FEW}
    run = record(scheme, tmp_path / "run", steps=steps, callbacks=[Interrupts(tmp_path / "run")], **how)
    reached = run.result["updates"]
    assert 0 < checkpoint.newest(tmp_path / "run").version == reached < steps
    assert run.error() < 1e-5
    shutil.copytree(tmp_path / "run", tmp_path / "again", ignore=shutil.ignore_patterns("result.json", "*.lock"))
    again = record(scheme, tmp_path / "again", steps=reached + 20, **how)
    assert again.result["recovery"]["resumed_from"] == reached
    assert again.error() < 1e-5


def test_quasi_global_momentum_comes_to_rest_where_plain_gossip_does():
    """A momentum of each worker's own gradients rests where plain gossip with a rate of η/(1 − β) does."""
    curvatures, minima = np.array([0.5, 1.0, 1.5, 2.0]), np.array([-1.0, 3.0, 0.0, 1.0])
    ends = []
    for scheme in (SGP(topology="ring", learning_rate=0.3), QGDSGDm(learning_rate=0.3, momentum=0.8)):
        group = Group(scheme, np.zeros(1), workers=4)
        for k in list(range(4)) * 80:
            group.step(k, curvatures[k] * (group.point(k) - minima[k]))
        ends.append([float(group.params(k)[0]) for k in range(4)])
    np.testing.assert_allclose(*ends, atol=1e-4)
    assert np.ptp(ends[0]) > 0.1
