"""Kinds of rounds: what a worker sends, in which codec, and whether it is answered may differ from round to round."""

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
from test_optimizer import grouped, trained

from distsgd import UserError
from distsgd.algorithms import DESLOC, SSP, AllReduce, AsyncSGD, DiLoCo, Downpour, OneBitAdam, SyncSGD, ZeroOneAdam
from distsgd.common import Group
from distsgd.common.contract import (
    Async,
    Barrier,
    Codec,
    InnerOptimizer,
    Kind,
    Period,
    Quorum,
    Rounds,
    Scheme,
    Synchronization,
    WithMemory,
)
from distsgd.common.contract.checks import check_scheme
from distsgd.common.contract.rounding import Int8
from distsgd.common.contract.rounds import USUAL
from distsgd.common.server.traffic import Traffic
from runs import PlayedRun, job_of, record


class Halved(Codec):
    """Brings half of each vector."""

    def encode(self, vector, variables):
        return [2 * vector]

    def decode(self, wire, size):
        return wire[0] / 4

    def bytes(self, sizes):
        return 2 * sum(sizes)


@dataclass(frozen=True, kw_only=True)
class Alternating(Scheme):
    """Each function of a worker depends on the kind of the round."""

    name = "alternating"
    sends = "gradient_sum"
    kinds: ClassVar = {"sums": Kind(), "halves": Kind(codec=(Halved(), Halved()))}

    communication_period: Period = 2
    waits: bool = False

    @property
    def sync(self) -> Synchronization:  # pyright: ignore[reportIncompatibleVariableOverride]
        return Barrier() if self.waits else Async()

    def rounds(self, steps, done=0, worker=0, seed=0):
        pattern = [(2, "sums"), (2, "halves"), (1, "halves")]
        turn = 0 if self.waits else worker  # without a barrier, workers need not be in rounds of one kind
        whole, rest = divmod(steps, 5)
        return Rounds((((*pattern[turn:], *pattern[:turn]), whole),)) + Rounds.even(rest, 2, "sums")

    def gradient_point(self, worker):
        return worker.params * {"sums": 1.0, "halves": 0.9}[worker.kind]

    def local_step(self, worker, gradient):
        worker.params.assign_sub({"sums": 0.1, "halves": 0.05}[worker.kind] * gradient)

    def message(self, worker):
        return worker.gradient_sum * {"sums": 1.0, "halves": 1.5}[worker.kind]

    def server_update(self, server, message, staleness):
        server.center.assign_sub(0.1 * message)
        return server.center

    def on_reply(self, worker, reply):
        worker.params.assign(reply if worker.kind == "sums" else 0.5 * worker.params + reply)


@pytest.mark.parametrize("waits", [False, True], ids=["asynchronous", "barrier"])
@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.gate
def test_each_kind_is_exchanged_as_in_a_group(backend, waits, tmp_path):
    scheme = Alternating(waits=waits)
    small = {"hidden": (8,), "batch_size": 8}
    order = {"schedule": (0, 1, 1, 0, 1, 0, 0, 1)} if backend == "threads" else {"steps": 25}
    run = record(scheme, tmp_path / "run", backend=backend, workers=2, ps=2, **small, **order)
    group = PlayedRun(scheme, workers=2, ps=2, **small).replay(run.trace)
    np.testing.assert_allclose(group.center, run.center, rtol=1e-5, atol=1e-6)
    rounds = enumerate(np.bincount(run.trace["worker"]).tolist())
    sums = sum(scheme.rounds(10**6, 0, worker).kinds(number)["sums"] for worker, number in rounds)
    sent = (2 * len(run.trace["worker"]) + 2 * sums) * len(run.center)
    assert (run.result["bytes_pushed"], run.result["bytes_pulled"]) == (sent, sent + 2 * 4 * len(run.center))
    assert np.linalg.norm(run.center - run.start) > 0.01


@pytest.mark.parametrize("waits", [False, True], ids=["asynchronous", "barrier"])
@pytest.mark.gate
def test_each_kind_is_exchanged_in_a_model_as_in_a_group(waits):
    scheme = Alternating(waits=waits)
    found = trained(scheme, 40, workers=2)
    np.testing.assert_allclose(found, grouped(scheme, 40, workers=2), rtol=1e-5, atol=1e-6)


def test_a_group_of_one_worker_does_what_each_kind_says():
    group, x, center, total = Group(Alternating(), np.array([1.0]), workers=1), 1.0, 1.0, 0.0
    for length, kind in Alternating().rounds(5):
        for _ in range(length):
            point = x if kind == "sums" else 0.9 * x
            np.testing.assert_allclose(group.point(0), [point], rtol=1e-6)
            group.step(0, group.point(0))  # of ½x²
            x, total = x - (0.1 if kind == "sums" else 0.05) * point, total + point
        center -= 0.1 * (total if kind == "sums" else 1.5 * total / 2)
        x, total = (center if kind == "sums" else 0.5 * x + center / 2), 0.0
        np.testing.assert_allclose((group.center[0], group.params(0)[0]), (center, x), rtol=1e-6)


def test_rounds_of_each_kind_are_counted_without_a_walk_through_a_run():
    rounds = Alternating().rounds(5 * 10**12 + 3)
    assert rounds.kinds() == {"sums": 10**12 + 2, "halves": 2 * 10**12}
    for done in range(9):
        assert rounds.kinds(done) == Counter(kind for _, kind in [*rounds.first(done)])
    assert Rounds.even(0, 5).kinds() == {}
    assert Downpour(push_period=2, pull_period=3).rounds(12).kinds() == {"exchange": 2, "push": 4, "pull": 2}


@pytest.mark.parametrize(
    "scheme", [OneBitAdam(), ZeroOneAdam(), DESLOC(), Downpour(push_period=2)], ids=lambda s: s.name
)
def test_all_rounds_are_of_declared_kinds_and_a_resumed_run_continues_in_them(scheme):
    whole = [*scheme.rounds(1000)]
    assert {kind for _, kind in whole} == scheme.kinds.keys()
    assert [*DESLOC().rounds(22)][-1] == (2, "parameters")  # not the first moment, whose mean is due a step later
    if not isinstance(scheme, Downpour):  # whose resumed runs begin with whole periods
        done = sum(length for length, _ in whole[:17])
        assert [*scheme.rounds(1000 - done, done)] == whole[17:]


class Pushes(AsyncSGD):
    events = frozenset({"push", "pull"})


class Floats(AsyncSGD):
    def sent_as_floats(self, rounds):
        return 3


class Turns(AsyncSGD):
    sends_in_turn = True


class First(AsyncSGD):
    exchange_first = True


class Robust(SyncSGD):
    def most_hostile(self, messages):
        return 1


class Careful(AsyncSGD):
    def warnings(self, workers):
        return ["mind the rate"]


class Summing(AsyncSGD):
    uses_gradient_sum = True


class Inside(DiLoCo):
    plain_inner_steps = False


class Averaging(AsyncSGD):
    sends = "parameters"


@dataclass(frozen=True, kw_only=True)
class Inner(AsyncSGD):
    inner: float = 0.5


class Seedless(AsyncSGD):
    def rounds(self, steps, done=0, worker=0):
        return Rounds.even(steps, 1)


@dataclass(frozen=True, kw_only=True)
class Rateless(SyncSGD):
    learning_rate: float = 0.1
    inner_optimizer: InnerOptimizer = "sgd"


FOLLOWS = r"follows from the kinds of its rounds: declare these instead, as in kinds = "
GONE = r"exchange_first is no longer there: .*Rounds.ending_at\(period, steps, done\)"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        *((kind, FOLLOWS) for kind in (Pushes, Floats, Turns)),
        (First, GONE),
        (Robust, r"most_hostile is no longer there: .*sync = Barrier\(outliers=0.25\)"),
        (Careful, "warnings is no longer there: return the warnings from check"),
        (Summing, 'uses_gradient_sum is no longer there: declare sends = "gradient_sum"'),
        (Inside, "plain_inner_steps is no longer there: leave out local_step"),
        (Averaging, "sends must be one of gradient, gradient_sum, params. Received: sends=parameters"),
        (Inner, "inner is a member that the engine reads: give your own another name"),
        (Seedless, r"rounds needs an argument for the run's seed: write def rounds\(self, steps"),
        (Rateless, "inner_optimizer needs its step size: declare learning_rate: Rate"),
    ],
)
def test_a_member_that_is_gone_or_cannot_be_is_refused_with_what_to_declare(kind, message):
    with pytest.raises(UserError, match=message):
        check_scheme(kind(), 2)


def test_rounds_end_at_each_multiple_of_a_period_and_steps_after_the_last_are_left_out():
    for period, end in itertools.product((1, 3, 4), range(14)):
        exchanged = [step for step in range(end) if step % period == 0]
        for done in range(end + 1):  # also in a run that was resumed there
            rounds = [*Rounds.ending_at(period, done), *Rounds.ending_at(period, end - done, done)]
            assert (np.cumsum([length for length, _ in rounds]) - 1).tolist() == exchanged


class Unnamed(AsyncSGD):
    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.even(steps, 1, "push")


def test_a_round_of_a_kind_that_is_not_declared_is_refused_by_name():
    wanted = r"each round must be of one of the kinds that the class declares.*Received: a round of the kind 'push', k"
    with pytest.raises(UserError, match=wanted):
        job_of(Unnamed())
    with pytest.raises(UserError, match=wanted):
        Group(Unnamed(), np.zeros(2), workers=2)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({}, r"kinds must be a mapping of names to Kind, .*Received: {}"),
        ({"exchange": "push"}, r"kinds must be a mapping of names to Kind"),
        (("exchange", "push"), r"kinds must be a mapping of names to Kind"),
        ({"a b": Kind()}, r"must be an identifier. Received: 'a b'"),
        ({1: Kind()}, r"must be an identifier. Received: 1"),
        ({"push": Kind()}, r"the kind of rounds push must be that event, .*Received: push"),
        ({"join": Kind()}, r"the kind of rounds join must be that event, .*Received: join"),
        ({"none": Kind(sends=False, answered=False)}, r"must send a message, be answered, or both. Received: none"),
        ({"exchange": Kind(codec=WithMemory(Int8()))}, r"cannot keep variables: return it from codec.*WithMemory"),
        ({"exchange": Kind(codec=(Codec(), WithMemory(Int8())))}, r"the codec of replies cannot keep variables"),
        ({"pull": Kind(sends=False, codec=Halved())}, r"without a message takes no codec for it"),
        ({"push": Kind(answered=False, codec=(Codec(), Halved()))}, r"without a reply takes no codec for it"),
    ],
)
def test_kinds_that_cannot_be_are_refused(kinds, message):
    with pytest.raises(UserError, match=message):
        check_scheme(AsyncSGD().but(kinds=kinds), 2)


class Crossed(Alternating):
    def rounds(self, steps, done=0, worker=0, seed=0):
        names = ["sums", "halves"]
        return Rounds.even(2, 1, names[worker % 2]) + Rounds.even(steps - 2, 2, "sums")


def test_workers_that_make_an_update_together_are_in_rounds_of_one_kind():
    wanted = "cannot make one update: return rounds of the same kinds.* Received: kinds halves, sums in one round"
    with pytest.raises(UserError, match=wanted):
        job_of(Crossed(waits=True), workers=2)
    group = Group(Crossed(waits=True), np.zeros(2), workers=2)
    group.step(0, np.ones(2))
    with pytest.raises(UserError, match=wanted):
        group.step(1, np.ones(2))
    job_of(Crossed(), workers=2)  # each message is merged by itself


@pytest.mark.parametrize("sync", [Barrier(backup_workers=1), Quorum(1), Quorum(1, late="count")], ids=str)
def test_no_worker_falls_behind_where_kinds_of_rounds_have_messages_of_their_own(sync):
    with pytest.raises(UserError, match=r"several kinds of rounds need a rule that waits for all workers"):
        check_scheme(AsyncSGD().but(sync=sync, kinds=Alternating.kinds), 2)
    check_scheme(AsyncSGD().but(sync=sync), 2)


@pytest.mark.parametrize("base", [SyncSGD, SSP])
def test_workers_that_wait_exchange_in_each_round(base):
    with pytest.raises(UserError, match=r"rounds without a message or a reply need an asynchronous rule"):
        check_scheme(base().but(kinds=USUAL), 2)


def test_without_a_server_no_kind_has_a_codec():
    with pytest.raises(UserError, match="without a ps only messages to neighbours, of all parameters, have a codec"):
        check_scheme(AllReduce().but(kinds={"exchange": Kind(codec=Halved())}), 2)


def test_a_kind_may_have_another_codec_for_replies_alone():
    scheme = AsyncSGD().but(kinds={"exchange": Kind(codec=(Codec(), Halved()))})
    assert Traffic(scheme, Codec(), 2, [100]).moved({"exchange": 3, "join": 1}) == (3 * 400, 3 * 200 + 400)


def test_kinds_of_one_message_may_be_compressed_and_others_not():
    job_of(Downpour(push_period=2, pull_period=3), codec="int8")
    assert USUAL.keys() == Downpour(push_period=2).kinds.keys()
    with pytest.raises(UserError, match="sends several vectors in turn: leave codec out"):
        job_of(Alternating(), codec="int8")


def test_the_kind_of_a_round_is_no_tensor():
    @dataclass(frozen=True, kw_only=True)
    class Asking(AsyncSGD):
        def message(self, worker):
            assert worker.kind == "exchange"
            assert not tf.is_tensor(worker.kind)
            return worker.gradient

    Group(Asking(), np.zeros(2), workers=1).step(0, np.ones(2))
