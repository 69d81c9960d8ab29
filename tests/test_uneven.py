"""Rounds that depend on the worker, and numbers that go beside the vector of a message."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import uneven
from scheduled import happens
from uneven import Clipped, FedNova

from distsgd.algorithms import AsyncSGD, Downpour, ProxSkip
from distsgd.common import Group, Platform, UserError
from distsgd.common.contract import Async, Barrier, Collective, Rounds, Scheme
from distsgd.common.contract.rounds import ENDLESS
from distsgd.common.data.recipes import Dataset
from distsgd.common.messages.message import as_message, sent_by
from distsgd.common.record.checkpoint import Checkpoint
from distsgd.common.server.traffic import Traffic
from distsgd.common.tasks.job import describe
from distsgd.common.tasks.state_manager import check_fits
from distsgd.simulator.virtual_time.forecast import forecast
from runs import ONES, Harness, job_of, quadratic, record

STEPS = (1, 2, 4)
LIMIT = 0.5
HIDDEN = 8


def fed_nova(run, gradient=None):
    return uneven.fed_nova(run.start, gradient or run.gradient, run.steps // 4, STEPS, 0.1)


def clipped(run, gradient=None):
    return uneven.clipped(run.start, gradient or run.gradient, run.contacts, run.steps, STEPS, 0.1, LIMIT)


SCHEMES = pytest.mark.parametrize(("scheme", "replay"), [(FedNova(), fed_nova), (Clipped(limit=LIMIT), clipped)])


def difference(center, expected):
    return np.linalg.norm(center - expected) / np.linalg.norm(expected)


@SCHEMES
@pytest.mark.parametrize("backend", ["processes", "simulation"])
@pytest.mark.rotating
def test_a_run_of_uneven_workers_does_what_its_equations_say(tmp_path, scheme, replay, backend):
    ps = 2 if backend == "processes" else 1
    run = record(scheme, tmp_path, workers=3, ps=ps, backend=backend, steps=43, batch_size=8, hidden=(HIDDEN,))
    rounds = [10, 10, 10] if scheme.sync.waits else [43, 22, 11]
    steps = [10, 20, 40] if scheme.sync.waits else [43, 43, 43]
    assert np.bincount(run.trace["worker"]).tolist() == rounds
    assert (run.result["steps"], run.result["examples"]) == (sum(steps), 8 * sum(steps))
    assert run.result["bytes_pushed"] == sum(rounds) * 4 * (len(run.center) + ps)
    assert difference(run.center, replay(run)) < 1e-5
    assert difference(run.center, run.start) > 0.01


class Leaving(Clipped):
    """All wait for all that have rounds left: those of one step have more of them."""

    name = "leaving"
    sync = Barrier()


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.rotating
def test_a_barrier_does_not_wait_for_a_worker_that_has_done_its_rounds(tmp_path, backend):
    run = record(Leaving(limit=LIMIT), tmp_path, backend=backend, steps=12, batch_size=8, hidden=(HIDDEN,))
    assert run.result["updates"] == 12
    assert np.bincount(run.trace["version"]).tolist() == [3] * 3 + [2] * 3 + [1] * 6
    x = run.start
    for r in range(12):
        sums = []
        for k, number in enumerate(STEPS):
            own, total = x.copy(), 0
            for t in range(r * number, min((r + 1) * number, 12)):
                slope = run.gradient(own, k, t)
                own, total = own - 0.1 * slope, total + slope
            sums += [total] if r * number < 12 else []
        norm = np.mean([np.linalg.norm(total) for total in sums])
        x = x - 0.1 * min(1, LIMIT / norm) * np.mean(sums, axis=0)
    assert difference(run.center, x) < 1e-5


def uneven_job(scheme, steps=43):
    return job_of(scheme, 3, model=f"mlp:hidden={HIDDEN}", steps=steps)


def course(job, **machines):
    return happens(job.scheme, 3, seed=1, size=1.0, rounds=job.plan.all_rounds, **machines)


def test_a_round_in_virtual_time_lasts_as_long_as_its_usual_steps():
    job = uneven_job(Clipped(), steps=8)
    there = course(job, step_ms=10, step_factors="1,1,3")
    ends = [there.trace["microseconds"][there.trace["worker"] == k].tolist() for k in range(3)]
    assert ends == [[10_000 * (r + 1) for r in range(8)], [20_000 * (r + 1) for r in range(4)], [120_000, 240_000]]
    drawn = [course(uneven_job(made, steps=8), compute="exponential", step_ms=10) for made in (Clipped(), AsyncSGD())]
    last = [[there.trace["microseconds"][there.trace["worker"] == k].max() for k in range(3)] for there in drawn]
    np.testing.assert_allclose(last[0], last[1], atol=8)  # the same steps, cut into rounds in another way


def test_a_rejoined_worker_resumes_with_the_batch_after_its_own_rounds():
    job = uneven_job(Clipped(), steps=9)
    for k, lengths in enumerate([[1] * 9, [2, 2, 2, 2, 1], [4, 4, 1]]):
        whole = list(job.plan.batches(k))
        assert [len(rows) for rows, _ in whole] == lengths
        again = list(job.plan.batches(k, 2))
        assert [rows.tolist() for rows, _ in again] == [rows.tolist() for rows, _ in whole[2:]]


def test_a_forecast_uses_the_rounds_of_each_worker():
    found = forecast(Clipped(), Platform(step_ms=10), workers=3, parameters=100)
    assert found.gradients == pytest.approx(300, rel=0.02)  # each makes a step in 10 ms ...
    assert found.updates == pytest.approx(100 + 50 + 25, rel=0.02)  # ... and a message after its own number of them
    assert found.sent == pytest.approx((100 + 50 + 25) / 3 * 4 * 101, rel=0.02)


def test_a_server_s_falling_rate_counts_steps_of_the_average_worker():
    assert uneven_job(Clipped(), steps=40).plan.round_steps == pytest.approx(120 / (40 + 20 + 10))
    assert uneven_job(FedNova(), steps=40).plan.round_steps == pytest.approx(70 / 30)
    assert uneven_job(Clipped(local_steps=(4,)), steps=40).plan.round_steps == 4


def test_the_config_has_the_steps_of_each_worker_if_not_those_asked_for():
    assert describe(uneven_job(FedNova(), steps=40), "", "")["steps_of_workers"] == [10, 20, 40]
    assert "steps_of_workers" not in describe(uneven_job(Clipped(), steps=40), "", "")
    of_script = uneven_job(FedNova(), steps=40)
    of_script.steps = ENDLESS
    assert "steps_of_workers" not in describe(of_script, "", "")  # whose steps are not known yet


class WithoutPS(Clipped):
    """Without a ps all must meet in each round."""

    name = "without_ps"
    sync = Collective()
    scalars = ()


class TooLong(Scheme):
    """It says that a round is a step."""

    name = "too_long"

    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.even(steps, 1 + worker)


class Sparse(AsyncSGD):
    """Scalars beside the coordinates of a batch."""

    name = "sparse_with_scalars"
    sparse = True
    scalars = ("norm",)


class Once(AsyncSGD):
    """Worker 0 makes one round, whatever the length of the run."""

    name = "once"

    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.even(steps if worker else self.period, self.period)


def test_a_schedule_takes_the_first_rounds_of_each_worker_none_of_which_is_a_short_last_one():
    for scheme in (Once(), ProxSkip(probability=0.3), Downpour(push_period=2, pull_period=3)):
        job = job_of(scheme, 2, backend="threads", schedule=(0, 0, 1, 0, 1), seed=4)
        for worker, number in ((0, 3), (1, 2)):
            assert [*job.plan.rounds(worker)] == [*scheme.rounds(600, 0, worker, 4)][:number]
    assert len(job_of(Once(), 2, backend="threads", schedule=(0, 0, 1)).plan.rounds(0)) == 1


def test_rounds_and_scalars_that_cannot_be_are_refused_in_one_line():
    with pytest.raises(UserError, match=r"all must have as many\. Received: 11 to 43 rounds"):
        uneven_job(WithoutPS())
    with pytest.raises(UserError, match=r"are not longer than the period.*Received: a round of 3 steps, period=1"):
        uneven_job(TooLong())
    with pytest.raises(UserError, match="messages of a scheme with sparse = True are vectors alone"):
        uneven_job(Sparse())

    class WithScalars(WithoutPS):
        name = "with_scalars"
        scalars = ("norm",)

    with pytest.raises(UserError, match="messages without a ps are vectors alone"):
        uneven_job(WithScalars())


# Scalars, one message at a time.


class Told(Scheme):
    """The center is what workers say: a weighted mean of vectors, and the scalars themselves."""

    name = "told"
    sync = Barrier()
    scalars = ("weight", "loss")

    def weighted(self, server, message, staleness):
        return server.sent.weight * message

    def message(self, worker):
        weight = 1.0 + tf.cast(worker.index, tf.float32)
        return weight * tf.ones_like(worker.params), {"weight": weight, "loss": worker.loss}

    def server_update(self, server, message, staleness):
        server.center.assign(message / server.sent.weight + server.sent.loss)
        return server.center


START = [1.0, 2.0, 3.0, 0.0, 0.0]  # where the loss of h/2 |x|² is 7
DATA = Dataset(ONES, None, classes=0)


def told(scheme=None, **options):
    return Harness(scheme or Told(), workers=2, model=quadratic(START), data=DATA, **options)


@pytest.mark.rotating
def test_a_barrier_weighs_messages_by_their_scalars_and_merges_with_means():
    with told(ps=2) as harness:
        first = harness.worker(0).starts()
        harness.worker(1).round()
        first.result()
        expected = (1 * 1 + 2 * 2) / (1 + 2) + 7  # the loss of both was 7
        np.testing.assert_allclose(harness.run("center"), expected, rtol=1e-6)


@pytest.mark.gate
def test_an_incomplete_set_is_restored_with_another_number_of_ps():
    with told(ps=2) as harness:
        harness.worker(0).starts()
        kept = harness.state_calls.values()
    assert np.asarray(kept["inbox"]).tolist() == [1.0] * 5
    assert kept["copies.inbox.scalars"].tolist() == [1.0, 7.0]
    with told(ps=3) as harness:
        last = Checkpoint({name: np.asarray(array) for name, array in kept.items()}, {})
        check_fits(last, SimpleNamespace(about={}, run_dir="run"), harness.state_calls)
        harness.state_calls.restore(kept, restoration=2, events=0)
        second = harness.worker(1)
        second.round()
        np.testing.assert_allclose(harness.run("center"), 5 / 3 + 7, rtol=1e-6)


@pytest.mark.rotating
def test_a_scalar_that_is_not_finite_is_refused_like_a_vector():
    class Spoiled(Told):
        name = "spoiled"
        sync = Async()

        def message(self, worker):
            return worker.params, {"weight": 0.0, "loss": worker.loss / 0.0}

    with told(Spoiled(), ps=2) as harness:
        with pytest.raises(tf.errors.InvalidArgumentError, match="refused"):
            harness.worker(0).round()
        assert harness.run("version") == 0


@pytest.mark.parametrize("rule", ["message", "server_update"])
def test_a_rule_without_a_return_is_refused_by_its_name(rule):
    def silent(*_):
        pass

    silent.__name__ = rule
    scheme = type("Silent", (AsyncSGD,), {"name": "silent", rule: silent})()
    group = Group(scheme, np.zeros(3), workers=2)
    with pytest.raises(UserError, match=f"silent: {rule} must return a vector, and returns None"):
        group.step(0, np.ones(3))
    with pytest.raises(UserError, match=f"silent: {rule} must return a vector, and returns None"):
        told(scheme)


def test_a_message_without_its_scalars_is_refused_with_their_names():
    class Silent(Told):
        name = "silent"

        def message(self, worker):
            return worker.params, {"weight": 1.0}

    with pytest.raises(UserError, match=r"silent: a message must bring the scalars weight, loss\. Received: weight"):
        told(Silent())
    with pytest.raises(UserError, match=r"must bring the scalars none\. Received: weight"):
        as_message("talks", (), (tf.zeros([2]), {"weight": 1.0}))
    with pytest.raises(AttributeError, match=r"no scalar weight is sent: name it in `scalars`\. It has: none"):
        _ = sent_by((), ()).weight


def test_scalars_are_counted_once_for_each_slice():
    plain, with_scalars = (Traffic(s, s.codec, 2, [3, 2]) for s in (AsyncSGD(), Told()))
    assert (plain.message, with_scalars.message) == (4 * 5, 4 * 5 + 4 * 2 * 2)
    assert plain.reply == with_scalars.reply
