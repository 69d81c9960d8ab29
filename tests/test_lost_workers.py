"""Gossip that continues without a killed worker: the graph of the others, the round on which they agree, the proof."""

import json
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from going import SMALL, TOLERANCE, Going
from resting import LeavingDPSGD, RestingChoco, RestingDPSGD, RestingNoLoCo, RestingSGP, RestingTracking, UnwatchedDPSGD

from distsgd.algorithms import DPSGD, SCHEMES, AllReduce, DSGDTracking
from distsgd.common import Recovery, UserError
from distsgd.common.errors import TaskLost
from distsgd.common.messages.ops import building
from distsgd.common.messages.stand_in import Row
from distsgd.common.record import checkpoint
from distsgd.common.replay import members as lost_members
from distsgd.common.replay.reference.gossip_rules import NEVER, Lost, Members, d_psgd, dsgd_tracking, members_of
from distsgd.common.replay.replay import replay
from distsgd.common.sync import losses
from distsgd.common.sync.topology import GRAPHS, Topology, spectral_gap, without
from runs import Harness, change, patience, record, wait_until

FLOAT = np.dtype(float)

# The graph of the others.


@pytest.mark.parametrize("lost", [(2,), (2, 3), (6, 2, 3)])
@pytest.mark.parametrize("topology", GRAPHS)
def test_the_others_have_a_doubly_stochastic_matrix_that_is_the_stochastic_complement(topology, lost):
    graph = Topology(topology)
    for number in range(min(graph.cycle(8), 6)):
        whole, matrix = graph.weights(8, number), graph.weights(8, number, lost)
        np.testing.assert_allclose([matrix.sum(0), matrix.sum(1)], 1, rtol=1e-12)
        assert (matrix >= 0).all()
        assert (np.diag(matrix)[list(lost)] == 1).all()
        if (whole == whole.T).all():
            np.testing.assert_allclose(matrix, matrix.T, atol=1e-15)
        if spectral_gap(whole) > 1e-9:
            left = np.delete(np.arange(8), lost)
            assert spectral_gap(matrix[np.ix_(left, left)]) > 1e-9
        members = Members([Lost(k, 0, 0, [NEVER] * 8) for k in lost])
        np.testing.assert_allclose(members.mixing(whole, number, FLOAT), matrix, atol=1e-12)


def test_a_ring_is_closed_where_a_worker_is_lost_and_the_order_of_losses_does_not_matter():
    matrix = Topology("ring").weights(6, 0, (2,))
    sixth = [1 / 6, 1 / 2, 1 / 3]  # 1 hears 3, which 2 has passed on, and itself, which 2 has passed back
    np.testing.assert_allclose(matrix[1, [3, 1, 0]], sixth)
    np.testing.assert_allclose(without(Topology("ring").weights(6), (2, 3)), without(matrix, (3,)), atol=1e-15)
    np.testing.assert_allclose(without(matrix, (3,)), Topology("ring").weights(6, 0, (3, 2)), atol=1e-15)


def test_one_peer_without_a_worker_is_one_peer_of_the_others():
    matrix = Topology("one-peer").weights(4, 0, (1,))
    np.testing.assert_allclose(matrix[np.ix_([0, 2, 3], [0, 2, 3])], (np.eye(3) + np.roll(np.eye(3), 1, 1)) / 2)


# The equations.


def test_before_the_round_of_the_loss_each_keeps_the_weight_of_the_message_that_it_has_not_heard():
    ring, members = Topology("ring").weights(4), Members([Lost(2, 12, 9, [NEVER, 10, NEVER, 11])])
    np.testing.assert_array_equal(members.mixing(ring, 9, FLOAT), ring)
    matrix = members.mixing(ring, 10, FLOAT)
    np.testing.assert_allclose(matrix[1], [1 / 3, 2 / 3, 0, 0])
    np.testing.assert_array_equal(matrix[3], ring[3])
    np.testing.assert_allclose(members.mixing(ring, 11, FLOAT)[3], [1 / 3, 0, 0, 2 / 3])
    np.testing.assert_allclose(members.mixing(ring, 12, FLOAT), without(ring, (2,)), atol=1e-15)


def test_the_mean_is_that_of_the_others_until_the_lost_worker_has_begun_anew_from_it():
    weights, targets = Topology("ring").weights(3), np.array([[1.0], [2.0], [6.0]])
    members = Members([Lost(2, 2, 1, [2, 2, NEVER], 4)])
    options = {"weights": lambda t: weights, "eta": 0.5, "members": members}
    path = [d_psgd(np.zeros(1), lambda x, k, t: x - targets[k], 3, steps=n, **options)[-1][0] for n in range(1, 6)]
    x = (
        0.5 * targets[:, 0]
    )  # of the first step; the mean of the second is without worker 2, which the others have heard
    found = [x.mean()]
    x = weights @ x - 0.5 * (x - targets[:, 0])
    found.append(x[:2].mean())
    for t in (2, 3):
        assert members.mixing(weights, t, FLOAT)[0, 1] == pytest.approx(0.5)
        x[:2] = x[:2].mean() - 0.5 * (x[:2] - targets[:2, 0])
        found.append(x[:2].mean())
    x[2] = found[-1]
    x = weights @ x - 0.5 * (x - targets[:, 0])
    np.testing.assert_allclose(path, [*found, x.mean()], rtol=1e-12)
    assert members.rounds(3, 5).tolist() == [5, 5, 2]


def test_tracking_that_begins_anew_ends_at_the_minimum_of_the_others(monkeypatch):
    weights, targets = Topology("ring").weights(4), np.array([[1.0], [2.0], [6.0], [9.0]])
    members = Members([Lost(2, 12, 9, [NEVER, 10, NEVER, 11])])
    options = {"weights": lambda t: weights, "eta": 0.2, "members": members, "steps": 300}
    ends = lambda: dsgd_tracking(np.zeros(1), lambda x, k, t: x - targets[k], 4, **options)[-1]  # noqa: E731
    np.testing.assert_allclose(ends(), targets[[0, 1, 3]].mean(0), rtol=1e-9)
    monkeypatch.setattr(Members, "changes", lambda *_: False)
    assert abs(ends() - targets[[0, 1, 3]].mean()) > 0.1


def test_tracking_begins_anew_where_a_worker_is_out_and_where_it_is_back():
    members = Members([Lost(2, 3, 2, [NEVER] * 4, 8), Lost(1, 9, 6, [NEVER] * 4, 7), Lost(3, 5, 5, [NEVER] * 4)])
    assert [t for t in range(12) if members.changes(t)] == [3, 5, 7, 8]


def entry(**values):
    known = {"worker": 1, "out_from": 5, "in_center_until": 4, "missed_from": [4, None, 5], "returned_at": None}
    return known | {"times": 1} | values


def test_lost_workers_that_a_run_cannot_have_are_refused():
    assert members_of([entry()], 3, 9).lost[0].missed_from == [4, NEVER, 5]
    for wrong in (
        [entry(worker=3)], [entry(missed_from=[1])], [entry(in_center_until=10)], [entry(returned_at=3)],
        [entry(), entry()], [entry(out_from=-1)], [entry(missed_from=[4, 1.5, 5])], [{"worker": 1}], [1], 1, "ab",
        [entry(times="1")], [entry(missed_from=None)],
    ):  # fmt: skip
        with pytest.raises(ValueError, match="which workers were lost"):
            members_of(wrong, 3, 9)


@pytest.mark.parametrize(("times", "topology"), [(2, "ring"), (1, None)])
def test_losses_that_no_transcription_follows_are_refused_in_one_line(times, topology):
    result = {"updates": 9, "recovery": {"lost_workers": [entry(times=times)]}}
    run = SimpleNamespace(algorithm="d_psgd", workers=3, result=result, hyperparameters={"topology": topology})
    with pytest.raises(UserError, match="in a way that the transcription of d_psgd cannot follow"):
        lost_members.members_of(run)


# The round on which all agree.


class Protocol:
    """The operations of `losses` on a graph of four workers, of which two have to be left."""

    def __init__(self, harness):
        self.harness, ps = harness, harness.graph.ps
        self.workers = [harness.worker(k) for k in range(4)]
        with building(harness.graph.graph):
            slots = [ps.slots.slot(k, k) for k in range(4)]
            self.number = tf.compat.v1.placeholder(tf.int64, [])
            self.of = tf.compat.v1.placeholder(tf.int64, [])
            run = lambda function, *given: tf.function(function, autograph=False)(*given)  # noqa: E731
            self.begins = [run(lambda n, s=s: losses.begin(ps, s, n), self.number) for s in slots]
            self.loses = [run(lambda k, n, s=s: losses.lose(ps, s, k, n), self.of, self.number) for s in slots]

    def begin(self, worker, end):
        return self.harness.session.run(self.begins[worker], {self.number: end}).tolist()

    def lose(self, worker, of, missed):
        return [bool(it) for it in self.harness.session.run(self.loses[worker], {self.of: of, self.number: missed})]

    def described(self):
        return losses.described(self.harness.observer.lost_workers())


@pytest.fixture
def protocol():
    with Harness(DPSGD(), workers=4, recovery=Recovery(min_workers=2)) as harness:
        yield Protocol(harness)


@pytest.mark.rotating
def test_a_worker_is_out_from_a_round_that_no_worker_has_begun_the_same_for_all(protocol):
    for k, end in enumerate((3, 5, 4, 4)):
        assert protocol.begin(k, end) == [losses.NEVER] * 4
    assert protocol.described() == []
    assert protocol.lose(1, of=3, missed=4) == [True, True]
    assert protocol.begin(0, 9) == [losses.NEVER] * 3 + [5]
    assert protocol.lose(2, of=3, missed=2) == [True, False]  # the second report comes after rounds up to 9
    assert protocol.begin(2, 9)[3] == 5
    assert protocol.described() == [
        {"worker": 3, "out_from": 5, "in_center_until": 0, "missed_from": [None, 4, 2, None], "returned_at": None,
         "times": 1}
    ]  # fmt: skip
    assert protocol.harness.run("worker_flags").active.tolist() == [True, True, True, False]


@pytest.mark.rotating
def test_a_run_with_too_few_workers_left_or_without_worker_0_does_not_continue(protocol):
    assert protocol.lose(1, of=0, missed=0) == [False, False]
    assert protocol.lose(0, of=3, missed=0) == [True, True]
    assert protocol.lose(0, of=2, missed=0) == [True, True]
    assert protocol.lose(0, of=1, missed=0) == [False, False]
    assert [one["worker"] for one in protocol.described()] == [2, 3]


@pytest.mark.rotating
def test_a_worker_that_has_left_after_its_last_round_is_lost_only_to_those_that_have_not(protocol):
    for k in (1, 3):
        protocol.workers[k].calls.set_finished(0, 0)
    assert protocol.lose(1, of=3, missed=0) == [False, False]
    assert protocol.described() == []
    assert protocol.lose(2, of=3, missed=0) == [True, True]
    assert protocol.lose(1, of=2, missed=0) == [True, True]


@pytest.mark.rotating
def test_a_lost_worker_that_joins_again_takes_part_from_the_present_version(protocol):
    assert protocol.lose(0, of=3, missed=0) == [True, True]
    assert protocol.begin(0, 4)[3] == 0
    joined = protocol.workers[3].join()
    assert joined.rounds == joined.version == 0
    assert protocol.begin(0, 4) == [losses.NEVER] * 4
    assert protocol.described()[0]["returned_at"] == 0


def test_a_worker_that_returns_skips_the_rounds_that_it_was_out_and_is_in_no_earlier_center():
    own = {name: tf.Variable(value) for name, value in losses.variables(3).items()}
    ps, skipped = SimpleNamespace(variables=SimpleNamespace(**own)), []
    ps.center = SimpleNamespace(read_version=lambda: tf.constant(9, tf.int64))
    ps.journal = SimpleNamespace(rounds_applied=tf.constant([9, 9, 4], tf.int64))
    ps.journal.skip_rounds = lambda number: skipped.append(number.numpy())
    ps.slots = SimpleNamespace(only=lambda slot: tf.equal(tf.range(3), slot.index))
    ps.slots.write = lambda variable, slot, value: Row(variable, slot.index).write(value)
    own["lost"].assign([losses.NEVER, losses.NEVER, 5])
    losses.keep(ps, tf.constant([True, True, False]), tf.constant(9, tf.int64))
    for worker in (1, 2):
        losses.rejoin(ps, SimpleNamespace(index=worker))
    assert [number.tolist() for number in skipped] == [[0, 0, 0], [0, 0, 5]]
    assert (own["begun"].numpy().tolist(), own["returned"].numpy().tolist()) == ([0, 9, 9], [losses.NEVER] * 2 + [9])
    losses.keep(ps, tf.constant([True] * 3), tf.constant(12, tf.int64))
    assert own["kept"].numpy().tolist() == [12, 12, 0]
    assert losses.out_from(ps).numpy().tolist() == [losses.NEVER] * 3


# Processes.


@pytest.fixture
def going(warm, tmp_path):
    options = {"workers": 4, "updates": 15, "recovery": Recovery(min_workers=2), "wait_seconds": patience(30)}
    return lambda scheme, **more: Going(scheme, tmp_path / "run", **options | more)


def survived(run, lost):
    """The outcome of a run that must have lost these workers, and replay."""
    outcome = run.end()
    assert not isinstance(outcome, Exception), outcome
    recovery = outcome.result["recovery"]
    assert sorted(recovery["evicted"]) == [one["worker"] for one in recovery["lost_workers"]] == sorted(lost)
    assert outcome.error() < TOLERANCE
    return outcome


@pytest.mark.rotating
def test_gossip_continues_without_a_killed_worker_and_each_part_of_its_record_counts(going):
    run = going(RestingDPSGD(), steps=120)
    run.send("worker-2", signal.SIGKILL)
    outcome = survived(run, [2])
    (lost,) = outcome.result["recovery"]["lost_workers"]
    assert outcome.result["updates"] == 120
    assert lost["in_center_until"] <= min(lost["missed_from"][1], lost["missed_from"][3]) <= lost["out_from"] < 120
    rounds = np.bincount(outcome.trace["worker"])
    assert rounds.tolist() == [120, 120, lost["in_center_until"], 120]
    schemes = {**SCHEMES, "d_psgd": RestingDPSGD}
    assert replay(run.run_dir, schemes).agrees
    for change_ in ({"out_from": 100}, {"missed_from": [None, lost["missed_from"][1] - 9, None, 0]}):
        recovery = outcome.result["recovery"] | {"lost_workers": [lost | change_]}
        assert replace(outcome, result=outcome.result | {"recovery": recovery}).error() > 100 * TOLERANCE
    recovery = outcome.result["recovery"] | {"lost_workers": [lost | {"in_center_until": 3}]}
    with pytest.raises(ValueError, match="how many messages each worker sent"):
        replace(outcome, result=outcome.result | {"recovery": recovery}).error()
    change(run.run_dir, "result.json", recovery=outcome.result["recovery"] | {"lost_workers": [{"worker": 2}]})
    assert not replay(run.run_dir, schemes).agrees


@pytest.mark.parametrize(
    ("scheme", "how", "lost"),
    [
        (RestingSGP(), {"workers": 5}, (2, 3)),
        (RestingNoLoCo(communication_period=2), {"steps": 240}, (3,)),
        (RestingTracking(), {}, (2,)),
        (RestingChoco(compressor="bf16"), {}, (2,)),
        (DPSGD(), {"steps": 1500, "workers": 3}, (1,)),  # rounds share a call
        (RestingDPSGD(), {"workers": 3, "hidden": (1024, 256)}, (1,)),
    ],
    ids=["sgp", "noloco", "dsgd_tracking", "choco_sgd", "several-rounds-in-a-call", "shared-memory"],
)
@pytest.mark.rotating
def test_other_gossip_continues_too(scheme, how, lost, going, monkeypatch):
    run = going(scheme, **{"steps": 240} | how)
    for k in lost:
        run.send(f"worker-{k}", signal.SIGKILL)
    outcome = survived(run, lost)
    if scheme.cleared:
        monkeypatch.setattr(Members, "changes", lambda *_: False)
        assert outcome.error() > 100 * TOLERANCE


@pytest.mark.rotating
def test_a_stopped_worker_is_killed_and_left_out(going):
    run = going(RestingDPSGD(), steps=240, workers=3, wait_seconds=patience(8))
    run.send("worker-1", signal.SIGSTOP)
    assert "silent for" in survived(run, [1]).result["recovery"]["warnings"][0]


@pytest.mark.parametrize("kind", [RestingDPSGD, RestingTracking])
@pytest.mark.rotating
def test_a_lost_worker_takes_part_again_when_the_run_is_resumed(kind, going, tmp_path):
    keep, scheme = Recovery(min_workers=2, checkpoint_steps=20), kind(milliseconds=40)
    run = going(scheme, steps=480, recovery=keep)  # a graph of several rounds in a call takes seconds to build
    run.send("worker-2", signal.SIGKILL)

    def saved_without_it():
        saved = checkpoint.found(run.run_dir) and checkpoint.newest(run.run_dir)
        return saved and saved.version > saved.arrays["lost"][2]

    wait_until(lambda: saved_without_it() or not run.thread.is_alive())
    run.send("worker-0", signal.SIGKILL)
    error = run.end()
    assert isinstance(error, TaskLost)
    assert "worker-0 was killed by SIGKILL. min_workers is of the others" in str(error)
    version = checkpoint.newest(run.run_dir).version
    options = {"workers": 4, "steps": version + 60, "recovery": Recovery(resume=run.run_dir), **SMALL}
    again = record(scheme, tmp_path / "again", **options)
    (lost,) = again.result["recovery"]["lost_workers"]
    assert lost["out_from"] < lost["returned_at"] == version == again.result["recovery"]["resumed_from"]
    assert again.trace["worker"][again.joins].tolist() == [2]
    assert again.result["steps"] == 4 * (version + 60) - (version - lost["in_center_until"])
    assert again.error() < TOLERANCE


@pytest.mark.rotating
def test_a_checkpoint_at_the_end_needs_no_connection_to_a_lost_worker(going):
    run = going(UnwatchedDPSGD(), steps=120, workers=3, recovery=Recovery(min_workers=2, checkpoint_seconds=1e6))
    run.send("worker-1", signal.SIGKILL)
    assert survived(run, [1]).result["recovery"]["checkpoints"] == 1
    assert checkpoint.newest(run.run_dir).version == 120


@pytest.mark.rotating
def test_a_worker_that_is_killed_after_all_rounds_of_the_others_is_left_out(going):
    run = going(LeavingDPSGD(), steps=40, workers=3)
    (lost,) = survived(run, [2]).result["recovery"]["lost_workers"]
    assert (lost["out_from"], lost["in_center_until"]) == (40, 40)


@pytest.mark.rotating  # each gate has it over machines, in test_machines.py
def test_gossip_ends_when_too_few_workers_are_left(going):
    run = going(RestingDPSGD(milliseconds=40), steps=480, workers=3, recovery=Recovery(min_workers=3))
    run.send("worker-1", signal.SIGKILL)
    error = run.end()
    assert isinstance(error, TaskLost)
    assert "worker-1 was killed" in str(error)
    assert json.loads((run.run_dir / "result.json").read_text())["outcome"] != "completed"


class TrackingWithoutSums(DSGDTracking):
    """Says nothing of what a loss changes."""

    def local_variables(self, params):
        return {"mean_gradient": 0 * params, "last_gradient": 0 * params}


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        (TrackingWithoutSums(), "may change, and none of its local variables is in ClearedOnLoss"),
        (AllReduce(), "workers: leave"),
    ],
)
def test_where_no_worker_may_be_lost_that_is_refused(scheme, why, tmp_path):
    with pytest.raises(UserError, match=f"{scheme.name} needs all its workers.*min_workers out") as error:
        record(scheme, tmp_path, steps=2, workers=3, recovery=Recovery(min_workers=2), **SMALL)
    assert why in str(error.value)
