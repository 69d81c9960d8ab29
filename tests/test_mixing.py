"""Gossip without gradients, and on one quadratic: what the workers' distances do, by NumPy from the matrices alone."""

import itertools
import re

import numpy as np
import pytest

from distsgd import Group
from distsgd.algorithms import DPSGD, SCHEMES, SGP, DiLoCo, DSGDTracking, ExactDiffusion, GASLoC, NoLoCo, QGDSGDm
from distsgd.common import UserError
from distsgd.common.contract.mixing import growth, largest_momentum, largest_step
from distsgd.common.contract.stability import diverging_rate, largest_rate
from distsgd.common.launch import run as launch
from distsgd.common.sync.topology import GRAPHS, Topology
from runs import record

KINDS = (DPSGD, SGP, DSGDTracking, GASLoC, NoLoCo, QGDSGDm)
OUTER = (GASLoC, NoLoCo)
FIXED = ("ring", "torus", "hypercube", "complete")  # and symmetric
SIZES = range(4, 33)
GRAPH_SIZES = [
    (graph, workers)
    for graph in GRAPHS
    for workers in SIZES
    if (graph != "hypercube" or workers & (workers - 1) == 0)
    and (graph != "torus" or any(workers % k == 0 for k in range(2, int(workers**0.5) + 1)))
]
SGD = {"inner_optimizer": "sgd", "communication_period": 1}


def transcribed(name, x, old, mix, momentum, rate=1.0):
    """The distances [W, n] after a round, and what the next round needs besides, from the papers' equations."""
    if name == "gasloc":
        return x - rate * (x - mix @ x) + momentum * (x - old), x
    if name == "noloco":
        velocity = momentum * old + rate * (mix @ x - x)
        return x + velocity, velocity
    if name == "dsgd_tracking":
        return mix @ (x - old), mix @ old
    return mix @ x, old


def farthest(name, graph, workers, momentum, rate=1.0, rounds=300):
    """By how much distances have grown at the end of so many rounds without gradients."""
    x = np.random.default_rng(0).normal(size=(workers, 3))
    x = x - x.mean(0)
    old = x.copy() if name == "gasloc" else np.zeros_like(x)
    began = np.abs(x).max()
    for number in range(rounds):
        x, old = transcribed(name, x, old, Topology(graph).weights(workers, number), momentum, rate)
    return np.abs(x).max() / began


def most(kind, graph, workers):
    """The largest momentum that the module takes, at most its default."""
    return min(kind().momentum, largest_momentum(kind(topology=graph), workers)) if kind in OUTER else 0.0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.rotating("others")
def test_without_gradients_nothing_grows_on_any_graph_of_4_to_32_workers(kind):
    grown = {}
    for graph, workers in GRAPH_SIZES:
        if graph == "random-matching" and workers not in (4, 9, 32):  # whose limits take longer
            continue
        momentum = most(kind, graph, workers)
        rate = kind().consensus_rate if kind in OUTER else 1.0
        if (far := farthest(kind.name, graph, workers, momentum, rate)) > 1:
            grown[graph, workers, momentum] = far
    # At the limit in hundredths, distances fall slowly: some are above their first ones for a while.
    assert all(far < 50 for far in grown.values()), grown
    assert all(momentum == most(kind, graph, workers) < 0.9 for graph, workers, momentum in grown), grown
    assert kind in OUTER or not grown


@pytest.mark.parametrize("kind", OUTER, ids=lambda kind: kind.name)
@pytest.mark.parametrize("graph", ["one-peer", "exponential", "random-matching"])
@pytest.mark.rotating("others")
def test_a_momentum_above_the_limit_drives_workers_apart_and_is_refused(kind, graph):
    rate = kind().consensus_rate
    for workers in (4, 16):
        limit = largest_momentum(kind(topology=graph), workers)
        assert farthest(kind.name, graph, workers, limit - 0.03, rate, 1000) < 1e-3
        assert farthest(kind.name, graph, workers, limit + 0.04, rate, 1000) > 1e3
        kind(topology=graph, momentum=limit).check(workers)
        with pytest.raises(UserError, match=rf"{graph} of {workers} workers.*at most {limit:.2g}, or consensus_rate"):
            kind(topology=graph, momentum=limit + 0.02).check(workers)


def test_all_doors_refuse_a_momentum_that_drives_workers_apart(tmp_path):
    scheme = GASLoC(topology="one-peer")
    with pytest.raises(UserError, match=r"grows 1.11 times in a round.*lower momentum to at most 0.7, or"):
        Group(scheme, np.zeros(3), workers=8)
    with pytest.raises(UserError, match="lower momentum to at most"):
        record(scheme, tmp_path, workers=8, backend="simulation")
    np.savetxt(tmp_path / "directed.txt", 0.3 * np.eye(5) + 0.7 * np.roll(np.eye(5), 1, 1))
    own = f"file:{tmp_path / 'directed.txt'}"
    with pytest.raises(UserError, match=r"lower momentum to at most 0\.17, or"):
        GASLoC(topology=own, momentum=0.5).check(5)
    GASLoC(topology=own, momentum=largest_momentum(GASLoC(topology=own), 5)).check(5)
    with pytest.raises(UserError, match="lower consensus_rate"):
        NoLoCo(topology="ring", consensus_rate=5.0).check(8)


@pytest.mark.parametrize(
    ("kind", "graph"),
    [*itertools.product(KINDS, GRAPHS), *itertools.product([ExactDiffusion], FIXED)],
    ids=lambda own: getattr(own, "name", own),
)
@pytest.mark.rotating("others")
def test_the_linear_round_is_that_of_the_rules_on_a_quadratic(kind, graph):
    workers, eta, curvature, rng = 4, 0.1, 3.0, np.random.default_rng(1)
    more = {"momentum": 0.4, "outer_learning_rate": 0.8, "consensus_rate": 0.6} | SGD if kind in OUTER else {}
    scheme = kind(learning_rate=eta, topology=graph, **more)
    group, kick = Group(scheme, np.zeros(2), workers=workers), rng.normal(size=(workers, 2))
    state = [np.zeros((workers, 2)) for _ in range(scheme.linear_vectors)]
    for number in range(4):
        here = np.array([group.point(k) for k in range(workers)])
        if number == 0:  # workers begin equal: the first gradients drive them apart
            for k in range(workers):
                group.step(k, kick[k])
            state = _after_kick(kind, scheme, Topology(graph).weights(workers, 0), -eta * kick)
        else:
            for k in range(workers):
                group.step(k, curvature * here[k])
            mix = Topology(graph).weights(workers, number)
            state = scheme.linear_round(lambda v, mix=mix: mix @ v, state, eta * curvature)
        np.testing.assert_allclose([group.params(k) for k in range(workers)], state[0], rtol=1e-5, atol=1e-6)


def _after_kick(kind, scheme, mix, moved):
    """The vectors after a first round with these moves from zero."""
    if kind is GASLoC:
        now = scheme.outer_learning_rate * moved
        return [now + scheme.consensus_rate * (mix @ now - now) + scheme.momentum * now, now]
    if kind is NoLoCo:
        velocity = scheme.outer_learning_rate * (mix @ moved)
        return [velocity, velocity]
    if kind is DSGDTracking:
        return [mix @ moved, -mix @ moved, -moved]
    if kind is QGDSGDm:
        return [mix @ moved, (scheme.smoothing - 1) * (mix @ moved)]
    if kind is ExactDiffusion:
        return [(moved + mix @ moved) / 2, (mix @ moved - moved) / 2]
    return [moved if kind is DPSGD else mix @ moved, -moved]


@pytest.mark.parametrize(("graph", "workers"), [c for c in GRAPH_SIZES if c[0] != "random-matching" and c[1] < 18])
def test_the_eigenvalues_are_those_of_the_matrices(graph, workers):
    found = Topology(graph).eigenvalues(workers)
    assert len(found) == Topology(graph).cycle(workers)
    np.testing.assert_allclose(found[:, 0], 1)
    for number, values in enumerate(found):
        powers = [np.trace(np.linalg.matrix_power(Topology(graph).weights(workers, number), k)) for k in range(1, 9)]
        np.testing.assert_allclose([(values**k).sum() for k in range(1, 9)], powers, atol=1e-9)


@pytest.mark.parametrize(("graph", "workers"), [c for c in GRAPH_SIZES if c[0] in FIXED and c[1] in (4, 6, 9, 16, 32)])
def test_limits_on_symmetric_graphs_are_closed_forms(graph, workers):
    values = np.linalg.eigvalsh(Topology(graph).weights(workers))
    low, near = min(values[0], 0), {"abs": 0.0011}
    assert largest_step(DPSGD(topology=graph), workers) == pytest.approx(1 + values[0], **near)
    assert largest_step(SGP(topology=graph), workers) == pytest.approx(2, **near)
    assert largest_step(QGDSGDm(topology=graph), workers) == pytest.approx(2 * 1.99 / 1.9, **near)
    tracking = min(2, 1 / max(-low, 1e-9) + low)
    assert largest_step(DSGDTracking(topology=graph), workers) == pytest.approx(tracking, **near)
    assert largest_momentum(GASLoC(topology=graph), workers) == 0.99
    gap = 1 - values[-2]
    best = (1 - np.sqrt(gap)) ** 2  # the momentum at which the slowest part is fastest, by its square root
    slow = GASLoC(topology=graph, momentum=best) if best > 0.01 else None
    if slow and 1 + 2 * best > -values[0]:
        assert growth(slow, workers)[0] == pytest.approx(np.sqrt(best), rel=1e-3)
    assert growth(GASLoC(topology=graph), workers)[0] == pytest.approx(
        max(np.sqrt(0.9), np.abs(np.roots([1, -(0.9 + values[-2]), 0.9])).max()), rel=1e-6
    )


@pytest.mark.parametrize("graph", ["ring", "exponential", "one-peer", "random-matching"])
@pytest.mark.parametrize("kind", [DPSGD, SGP, DSGDTracking, QGDSGDm], ids=lambda kind: kind.name)
def test_workers_diverge_right_above_the_limit_of_their_rate(kind, graph):
    workers = 6
    limit = largest_step(kind(topology=graph), workers)
    far, scheme, weights = [], kind(topology=graph), Topology(graph).weights
    for step in (0.93 * limit, 1.07 * limit):
        state = np.zeros((scheme.linear_vectors, workers, 1))
        state[0] = np.random.default_rng(2).normal(size=(workers, 1))
        for number in range(400):
            state = np.stack(scheme.linear_round(lambda v, number=number: weights(workers, number) @ v, state, step))
        far.append(np.abs(state).max())
    assert far[0] < 0.1
    assert far[1] > 10


def test_the_limit_of_the_rate_is_that_of_the_probe_and_of_advise():
    for name, expected in (("d_psgd", 0.4), ("sgp", 2.0), ("dsgd_tracking", 16 / 15)):
        scheme = SCHEMES[name](topology="torus")
        for limit in (diverging_rate(scheme, 16, 4.0), largest_rate(scheme, 16, 0.0, 4.0)):
            assert limit == pytest.approx(expected / 4, abs=5e-4)
    assert diverging_rate(SCHEMES["ad_psgd"](), 16, 4.0) is None
    assert diverging_rate(GASLoC(), 16, 4.0) is None  # AdamW inside
    assert diverging_rate(GASLoC(**SGD, momentum=0.0, outer_learning_rate=1.0), 16, 4.0) == pytest.approx(0.5, abs=1e-3)


TABLES = {DPSGD: largest_step, DSGDTracking: largest_step, GASLoC: largest_momentum, NoLoCo: largest_momentum}


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.name)
@pytest.mark.rotating("others")
def test_the_limits_in_the_docstring_are_those_of_the_rules(kind):
    text = __import__(kind.__module__, fromlist=["x"]).__doc__
    rows = [line.split() for line in text.splitlines() if re.match(rf" +({'|'.join(GRAPHS)}) +\d", line)]
    assert {row[0] for row in rows} >= {"exponential", "one-peer", "random-matching"}
    for graph, *numbers in rows:
        for (alpha, workers), number in zip(itertools.product((1.0, 0.5), (4, 8, 16, 32)), numbers, strict=False):
            if graph == "random-matching" and workers > 8:  # whose limits take longer
                continue
            scheme = kind(topology=graph) if kind is not GASLoC else kind(topology=graph, consensus_rate=alpha)
            assert float(number) == pytest.approx(TABLES[kind](scheme, workers), abs=0.0051), (graph, workers)


@pytest.mark.parametrize("graph", ["ring", "one-peer"])
def test_the_mean_of_gasloc_is_diloco_where_gradients_do_not_depend_on_the_place(graph):
    workers, rng = 5, np.random.default_rng(3)
    given = {"communication_period": 2, "momentum": 0.6, "inner_optimizer": "momentum", "learning_rate": 0.1}
    gradients = rng.normal(size=(12, workers, 4))
    groups = [Group(s(**given), np.ones(4), workers=workers) for s in (lambda **o: GASLoC(topology=graph, **o), DiLoCo)]
    for group in groups:
        for t in range(12):
            for k in range(workers):
                group.step(k, gradients[t, k])
    np.testing.assert_allclose(groups[0].center, groups[1].center, rtol=1e-5)
    assert np.std([groups[0].params(k) for k in range(workers)], axis=0).min() > 0.01


def test_a_run_says_the_limits_of_its_graph(monkeypatch, tmp_path):
    said = []

    def start(job, on_event, model=None, interrupted=bool):
        raise UserError("it has begun")

    monkeypatch.setattr(launch, "start", start)
    publish = launch.EventBus.publish
    monkeypatch.setattr(launch.EventBus, "publish", lambda bus, event: (said.append(event), publish(bus, event)))
    with pytest.raises(UserError, match="it has begun"):
        record(DPSGD(topology="torus"), tmp_path, workers=16)
    (line,) = [event["message"] for event in said if event["event"] == "limits"]
    assert "torus of 16 workers (smallest eigenvalue -0.600)" in line
    assert "up to a learning rate of 0.4/L" in line
    (line,) = NoLoCo().limits(8)
    assert "stable up to momentum=0.84" in line
