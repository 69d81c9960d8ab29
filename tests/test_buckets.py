"""Workers whose vectors are in buckets: which schemes have them, and their rounds are those of a worker with one."""

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf
from elementwise import is_elementwise

from distsgd.algorithms import ADAG, AEAMSGD, SCHEMES, CoCoDSGD, Downpour, DownpourEasy, LocalSGD
from distsgd.common.contract import Period, sgd
from distsgd.common.data.models import ModelRecipe
from distsgd.common.messages.transport import Client, SharedMemory
from distsgd.common.server.center import Center
from distsgd.common.server.parameter_server import ParameterServer
from distsgd.common.worker import buckets
from distsgd.common.worker.buckets import Buckets
from doubles import HalvedLocalSGD, RemembersHalf
from runs import Harness


@dataclass(frozen=True, kw_only=True)
class Alone(LocalSGD):
    """A scheme whose rules are those of local SGD."""

    communication_period: Period = 3


class Normed(Alone):
    """Its steps have one length."""

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient / tf.norm(gradient), 0.1)


class Shifted(Alone):
    """Each coordinate is told the one beside it."""

    def message(self, worker):
        return tf.roll(worker.params.read_value(), 1, 0)


@pytest.mark.parametrize("kind", [Normed, Shifted])
def test_a_scheme_with_an_own_rule_is_elementwise_only_if_declared(kind):
    assert is_elementwise(Alone())
    assert Alone.elementwise
    assert not is_elementwise(kind())
    assert not kind.elementwise


def test_each_scheme_of_the_catalogue_declares_elementwise_correctly():
    declared = {name: kind().in_coordinates for name, kind in SCHEMES.items()}
    # Of a class that promises it, the simplest inner optimizer shows whether its own rules keep the promise.
    plain = {
        name: kind(inner_optimizer="sgd") if kind().inner and kind.elementwise is True else kind()
        for name, kind in SCHEMES.items()
    }
    assert declared == {name: is_elementwise(scheme) for name, scheme in plain.items()}
    assert declared["downpour"]
    assert not declared["sparta"]  # random numbers by place


def test_workers_read_one_reply_only_if_the_scheme_is_elementwise():
    for scheme, shares in ((LocalSGD(), True), (HalvedLocalSGD(), False), (RemembersHalf(), False)):
        assert is_elementwise(scheme) == scheme.in_coordinates == shares
        with tf.Graph().as_default():
            client, size = Client(SharedMemory(), "/cpu:0"), 1 << 18
            center = Center(scheme, [[size]], ["/cpu:0"], 2, None, client=client)
            ps, reply = ParameterServer(center, state_size=0, last_version=1), tf.zeros([size])
            assert (ps.share(reply) is not reply) == shares


def test_large_variables_are_pieces_and_small_neighbours_are_one_together(monkeypatch):
    monkeypatch.setattr(buckets, "LARGE_FLOATS", 10)
    cut = Buckets([10, 2, 3, 11, 12, 4, 1], apart=True)
    assert cut.sizes == [10, 5, 11, 12, 5]
    vector = tf.range(43.0)
    parts = cut.of_variables(cut.cut(vector))
    assert [part.shape[0] for part in parts] == [10, 2, 3, 11, 12, 4, 1]
    np.testing.assert_array_equal(tf.concat(cut.from_variables(parts), 0), vector)
    assert Buckets([10, 2], apart=False).sizes == [12]


def centers(scheme, ps, **options):
    """The center after each of some rounds of a worker, and how many vectors it has its parameters in."""
    model = ModelRecipe.named("mlp:hidden=16-8", (64,), 10, 0).build()
    with Harness(scheme, workers=1, ps=ps, model=model, steps=100, **options) as harness:
        found = [op for op in harness.graph.graph.get_operations() if op.type == "VarHandleOp" and "_params" in op.name]
        worker, path = harness.worker(0), []
        for event in ["exchange", *sorted(scheme.events - {"exchange"}), "exchange"]:
            worker.round(event, steps=3)
            path.append(harness.run("center"))
    return np.array(path), len(found)


@pytest.mark.parametrize(
    ("scheme", "ps"),
    [
        (Downpour(push_period=2, pull_period=3, learning_rate=lambda step: 0.1 / (1 + step)), 2),
        (ADAG(), 1),  # sends the sum of its gradients
        (AEAMSGD(), 1),  # takes gradients elsewhere
        (LocalSGD(inner_optimizer="adam", learning_rate=0.01), 1),  # counts the steps of each piece
        (CoCoDSGD(communication_period=3), 2),  # steps while its message travels
    ],
    ids=["downpour", "adag", "aeamsgd", "local_sgd", "cocod_sgd"],
)
@pytest.mark.rotating
def test_in_pieces_a_round_is_what_it_is_on_the_whole_vector(monkeypatch, scheme, ps):
    whole, one = centers(scheme, ps)
    monkeypatch.setattr(buckets, "LARGE_FLOATS", 100)
    path, several = centers(scheme, ps)
    assert (one, several) == (
        1,
        4,
    )  # weights and biases of the first layer, weights of the second, and what comes after them
    assert np.abs(whole[-1] - whole[0]).max() > 1e-4
    np.testing.assert_allclose(path, whole, rtol=1e-5, atol=1e-7)


class Counted(LocalSGD):
    """It sends a number as well."""

    elementwise = True
    scalars = ("steps",)

    def message(self, worker):
        return worker.params, {"steps": worker.steps}


@pytest.mark.parametrize(
    ("scheme", "options"), [(DownpourEasy(), {"l2": 0.1}), (Counted(), {})], ids=["loss of the vector", "scalars"]
)
@pytest.mark.gate("others")
def test_schemes_that_need_the_whole_vector_have_one_piece(monkeypatch, scheme, options):
    monkeypatch.setattr(buckets, "LARGE_FLOATS", 100)
    assert centers(scheme, 1, **options)[1] == 1
