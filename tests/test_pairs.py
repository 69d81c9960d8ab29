"""Asynchronous gossip: two workers at a time average, in a group, on threads and processes, and in virtual time."""

from types import SimpleNamespace

import numpy as np
import pytest

from distsgd.algorithms import ADPSGD, SCHEMES, Serial
from distsgd.common import Group, Platform, Recovery, UserError
from distsgd.common.contract import Pairs, Scheme
from distsgd.common.contract.rounds import Rounds
from distsgd.common.errors import Diverged
from distsgd.common.replay.replay import replay
from distsgd.common.sync.topology import DRAWN, GRAPHS, Topology, _peers, classes
from distsgd.simulator.virtual_time.schedule import EventLoop
from runs import Harness, record

FEW, RATE = {"batch_size": 8, "hidden": (8,)}, 0.25

START = np.array([1.0, -2.0, 0.5])


def group_of(workers, topology="ring"):
    return Group(ADPSGD(learning_rate=RATE, topology=topology), START, workers=workers)


def params(group):
    return np.array([group.params(k) for k in range(group.workers)])


# The two classes of workers.


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 8, 9, 16])
@pytest.mark.parametrize("topology", GRAPHS)
def test_workers_draw_neighbours_of_the_other_class_by_which_all_are_connected(topology, workers):
    if (topology == "torus" and workers in (2, 3, 5)) or (topology == "hypercube" and workers in (3, 5, 9)):
        with pytest.raises(UserError, match=topology):
            Pairs(topology=topology).check(workers)
        return
    peers, own = Pairs(topology=topology).peers(workers), np.arange(workers)
    every = {"random-matching": "complete", "one-peer": "exponential"}.get(topology, topology)
    links = Topology(every).weights(workers) + Topology(every).weights(workers).T > 0
    begins = (peers != own).any(0)
    assert peers.shape == (DRAWN, workers)
    assert not begins[0]
    used = np.zeros((workers, workers), bool)
    for k in np.flatnonzero(begins):
        used[k, peers[:, k]] = True
        assert not begins[peers[:, k]].any()  # those that are drawn draw none
        np.testing.assert_array_equal(used[k], links[k] & ~begins)  # each of them in some round
    used |= used.T
    assert not (used & ~links).any()
    assert (np.linalg.matrix_power(used + np.eye(workers, dtype=int), workers) > 0).all()
    assert 2 * used.sum() >= links.sum() - workers


@pytest.mark.parametrize(("topology", "workers"), [("ring", 8), ("hypercube", 16), ("torus", 16)])
def test_a_bipartite_graph_keeps_all_its_links(topology, workers):
    links = Topology(topology).weights(workers) > 0
    begins = classes(links)
    assert (begins[:, None] != begins)[links & ~np.eye(workers, dtype=bool)].all()


def test_neighbours_are_drawn_with_the_weights_of_a_file(tmp_path):
    weights = np.array([[0.4, 0.5, 0.1, 0.0], [0.5, 0.5, 0.0, 0.0], [0.1, 0.0, 0.0, 0.9], [0.0, 0.0, 0.9, 0.1]])
    np.savetxt(tmp_path / "graph.txt", weights)
    peers = Pairs(topology=f"file:{tmp_path / 'graph.txt'}").peers(4)
    assert (peers[:, [0, 1, 3]] == [0, 0, 3]).all()
    assert np.mean(peers[:, 2] == 3) == pytest.approx(0.9, abs=0.03)
    assert set(peers[:, 2]) == {0, 3}


def test_no_draw_takes_a_worker_that_is_no_neighbour(monkeypatch):
    for drawn in (0.0, 1 - 2.0**-53):
        _peers.cache_clear()
        generator = SimpleNamespace(random=lambda shape, drawn=drawn: np.full(shape, drawn))
        monkeypatch.setattr(np.random, "default_rng", lambda seed, generator=generator: generator)
        peers = Pairs(topology="ring").peers(8)[0]
        assert [k for k in range(8) if peers[k] != k and (k - peers[k]) % 8 not in (1, 7)] == []
    _peers.cache_clear()


def test_as_many_vectors_travel_back_as_to_the_peers():
    """Of a pair, one sends its parameters, and gets their mean."""
    for workers in (2, 4, 5):
        begin = (Pairs().peers(workers)[0] != np.arange(workers)).mean()
        assert Pairs().traffic(workers) == (begin, begin)
    assert Pairs().traffic(4) == (0.5, 0.5)


# The rule.


@pytest.mark.parametrize("topology", ["ring", "complete", "exponential"])
@pytest.mark.rotating("others")
def test_an_event_moves_the_mean_of_the_workers_by_its_gradient_alone(topology):
    """The average of a pair keeps the mean: after each event it has moved by −η g / W."""
    group, random = group_of(5, topology), np.random.default_rng(0)
    for k in random.integers(5, size=40):
        before, gradient = params(group).mean(0), random.normal(size=3)
        group.step(int(k), gradient)
        np.testing.assert_allclose(params(group).mean(0), before - RATE * gradient / 5, atol=1e-6)
        np.testing.assert_allclose(group.center, params(group).mean(0), atol=1e-6)
    assert group.version == 40


def test_a_pair_takes_its_mean_and_one_of_them_its_step():
    group, peers = group_of(4), Pairs().peers(4)
    group.step(1, np.zeros(3))
    group.step(0, np.full(3, 4.0))  # is drawn, and draws none: its own step alone
    np.testing.assert_allclose(group.params(0), START - 1)
    group.step(1, np.ones(3))
    x = np.tile(START, (4, 1))
    x[0] -= 1
    j = peers[1, 1]
    x[1] = x[j] = (x[1] + x[j]) / 2
    x[1] -= RATE
    np.testing.assert_allclose(params(group), x, atol=1e-6)


def test_a_worker_takes_its_gradient_where_it_was_after_its_last_step():
    """Others change its parameters meanwhile, as it computes."""
    group = group_of(2)  # worker 1 draws worker 0
    group.step(1, np.full(3, 4.0))
    group.step(1, np.zeros(3))
    np.testing.assert_allclose(group.params(0), START - 0.5)
    np.testing.assert_allclose(group.point(0), START)
    group.step(0, np.zeros(3))
    np.testing.assert_allclose(group.point(0), START - 0.5)


@pytest.mark.rotating
def test_workers_at_rest_come_together():
    group = group_of(16)
    for k in range(16):
        group.step(k, np.full(3, float(k)))
    apart = params(group).std(0).max()
    mean = params(group).mean(0)
    for _ in range(150):
        for k in range(1, 16, 2):
            group.step(k, np.zeros(3))
    assert params(group).std(0).max() < 0.02 * apart
    np.testing.assert_allclose(params(group).mean(0), mean, atol=1e-5)


def test_one_worker_is_serial_sgd():
    alone, group = Group(Serial(learning_rate=RATE), START, workers=1), group_of(1)
    for each in (alone, group):
        for _ in range(4):
            each.step(0, each.point(0))
    np.testing.assert_allclose(group.center, alone.center, rtol=1e-6)


# Threads, processes and virtual time.


@pytest.mark.parametrize(
    ("topology", "backend", "workers", "steps", "hidden"),
    [
        ("ring", "threads", 3, 40, 8),
        ("random-matching", "simulation", 5, 40, 8),
        ("ring", "processes", 4, 40, 8),
        ("complete", "processes", 3, 12, 4000),  # vectors in shared memory
    ],
)
@pytest.mark.rotating
def test_a_run_is_that_of_the_equations(topology, backend, workers, steps, hidden, tmp_path):
    run = record(
        ADPSGD(topology=topology),
        tmp_path,
        workers=workers,
        backend=backend,
        steps=steps,
        batch_size=8,
        hidden=(hidden,),
    )
    assert run.error() < 1e-5
    assert run.result["updates"] == len(run.order) == steps * workers
    last = dict.fromkeys(range(workers), -1)
    for number, (k, staleness) in enumerate(zip(run.trace["worker"], run.trace["staleness"], strict=True)):
        assert staleness == number - last[k] - 1  # rounds of others since its own last one
        last[k] = number
    assert np.linalg.norm(run.center - run.start) > 0.01


@pytest.mark.rotating
def test_the_replay_of_another_graph_differs(tmp_path):
    record(ADPSGD(topology="ring"), tmp_path, workers=6, backend="simulation", steps=40, **FEW)
    assert replay(tmp_path, SCHEMES).agrees
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"ring"', '"complete"'))
    assert not replay(tmp_path, SCHEMES).agrees


@pytest.mark.rotating
@pytest.mark.parametrize("topology", GRAPHS)
def test_eight_workers_never_wait_for_each_other_in_a_circle(topology, tmp_path):
    run = record(ADPSGD(topology=topology), tmp_path, workers=8, backend="threads", steps=20, **FEW)
    assert run.error() < 1e-5


def loop_of(workers, rounds, kind=ADPSGD, **platform):
    how = {"rounds": Rounds.even(rounds, 1), "seed": 0, "message_bytes": 1000, "reply_bytes": 1000}
    return EventLoop(kind(), Platform(**platform), workers=workers, **how).run()


def test_no_worker_waits_for_a_slow_one():
    found = loop_of(4, 5, step_ms=10, step_factors="8,1,1,1").rounds
    ends = [found[(found[:, 0] == k), -1].max() for k in range(4)]
    np.testing.assert_allclose(ends, np.array([400, 50, 50, 50]) * 1000, atol=2)


def test_a_message_and_its_reply_take_the_links_of_a_pair_and_the_latency():
    """Of two workers one begins each average; the other makes its step at once. No ps serves a message."""
    machines = {"step_ms": 10, "uplink": "1MB", "latency": "5ms", "service": "3ms"}  # a byte each microsecond
    found = loop_of(2, 1, **machines).rounds
    ends = found[np.argsort(found[:, 0]), -1]
    np.testing.assert_allclose(ends, [10_000, 10_000 + 2 * (1_000 + 5_000)], atol=2)


def test_latencies_between_peers_vary_from_round_to_round_each_way():
    found = loop_of(2, 20, step_ms=10, latency="5ms", latency_sigma=0.5).rounds
    _, _, _, ready, _, arrived, _, replied = found[found[:, 0] == 1].T
    assert len({*(arrived - ready).tolist()}) == len({*(replied - arrived).tolist()}) == 20


class AtItsParameters(ADPSGD):
    """Takes its gradient where others may have moved it."""

    gradient_point = Scheme.gradient_point


class WithLocalSteps(ADPSGD):
    """Makes local steps while others change its parameters."""

    def local_step(self, worker, gradient):
        worker.params.assign_sub(self.learning_rate * gradient)


@pytest.mark.parametrize("kind", [AtItsParameters, WithLocalSteps])
def test_a_worker_of_a_pair_reads_and_writes_its_parameters_at_the_average_alone(kind):
    with pytest.raises(UserError, match="override gradient_point"):
        Group(kind(), START, workers=2)


def test_what_pairs_cannot_do_is_refused(tmp_path):
    with pytest.raises(UserError, match="hypercube needs"):
        Harness(ADPSGD(topology="hypercube"), workers=6)
    for recovery in (Recovery(checkpoint_steps=10), Recovery(checkpoint_seconds=1.0), Recovery(on_nan="drop")):
        with pytest.raises(UserError, match="no time at which all its workers stand still"):
            record(ADPSGD(), tmp_path, backend="threads", steps=2, recovery=recovery, **FEW)
    with pytest.raises(UserError, match="leave ema_decay out"):
        record(ADPSGD(), tmp_path, backend="threads", steps=2, ema_decay=0.9, **FEW)
    with pytest.raises(UserError, match="leave min_workers out"):
        record(ADPSGD(), tmp_path, backend="threads", steps=2, recovery=Recovery(min_workers=1), **FEW)
    with pytest.raises(UserError, match="all workers must meet in each round"):
        record(ADPSGD(), tmp_path, backend="threads", steps=2, participation=0.5, **FEW)


@pytest.mark.rotating
def test_a_gradient_that_is_not_finite_ends_the_run(tmp_path):
    with pytest.raises(Diverged, match="not finite"):
        record(ADPSGD(learning_rate=3e38), tmp_path, workers=3, backend="threads", steps=40, **FEW)
