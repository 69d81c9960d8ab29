"""Workers whose vectors are in pieces: who is one of them, and that their rounds are those of a worker with one."""

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import ADAG, AEAMSGD, SCHEMES, Downpour, DownpourEasy, LocalSGD
from distsgd.common.contract import Period, sgd
from distsgd.common.engine import pieces
from distsgd.common.engine.parameter_server import ParameterServer
from distsgd.common.engine.pieces import Pieces
from distsgd.common.engine.transport import Client, Transport
from distsgd.common.engine.view import has_no_views, is_elementwise
from distsgd.common.gates import Barrier
from distsgd.common.problems.models import ModelRecipe
from doubles import HalvedLocalSGD, RemembersHalf
from runs import Table


@dataclass(frozen=True, kw_only=True)
class Alone(LocalSGD):
    """A scheme of somebody's own."""

    communication_period: Period = 3


class Normed(Alone):
    """Its steps have one length."""

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient / tf.norm(gradient), 0.1)


class ByLayer(Alone):
    """It looks at the model's variables."""

    def local_step(self, worker, gradient):
        assert worker.shapes
        sgd(worker.params, gradient, 0.1)


class StartsNormed(Alone):
    """A local variable of its begins with what all coordinates have in common."""

    def local_variables(self, params):
        return {"start": tf.norm(params) + 0 * params}


class OwnRates(Alone):
    """It has a rate for each coordinate."""

    def local_step(self, worker, gradient):
        sgd(worker.params, gradient, tf.linspace(0.1, 0.2, 650))


class Shifted(Alone):
    """Each coordinate is told the one beside it."""

    def message(self, worker):
        return tf.roll(worker.params.read_value(), 1, 0)


class Counted(Alone):
    """It sends a number as well."""

    scalars = ("steps",)

    def message(self, worker):
        return worker.params, {"steps": worker.steps}


@pytest.mark.parametrize("kind", [Normed, ByLayer, StartsNormed, OwnRates, Shifted, Counted])
def test_a_scheme_that_thinks_of_more_than_a_coordinate_is_not_elementwise(kind):
    assert is_elementwise(Alone())
    assert not is_elementwise(kind())


def test_the_catalogue_takes_no_views_of_a_reply_that_others_read_too_and_who_does_has_one_alone():
    assert all(has_no_views(kind()) for kind in SCHEMES.values() if isinstance(kind().gate, Barrier))
    for scheme, shares in ((LocalSGD(), True), (HalvedLocalSGD(), False), (RemembersHalf(), False)):
        assert has_no_views(scheme) == shares
        with tf.Graph().as_default():
            client, size = Client(Transport(shared=True), "/cpu:0"), 1 << 18
            sizes = {"sizes": [[size]], "state_size": 0, "num_workers": 2, "devices": ["/cpu:0"], "last_version": 1}
            ps, reply = ParameterServer(scheme, **sizes, client=client), tf.zeros([size])
            assert (ps.share(reply) is not reply) == shares


def test_the_catalogues_local_steps_are_elementwise_but_for_those_that_start_with_a_scalar_of_the_vector():
    schemes = [kind() for kind in SCHEMES.values()]
    alone = {scheme.name: is_elementwise(scheme) for scheme in schemes if scheme.period > 1}
    assert {name for name, elementwise in alone.items() if not elementwise} == {"diloco", "async_diloco"}
    assert len(alone) > 10


def test_large_variables_are_pieces_and_small_neighbours_are_one_together(monkeypatch):
    monkeypatch.setattr(pieces, "LARGE_FLOATS", 10)
    cut = Pieces([10, 2, 3, 11, 12, 4, 1], apart=True)
    assert cut.sizes == [10, 5, 11, 12, 5]
    vector = tf.range(43.0)
    parts = cut.of_variables(cut.cut(vector))
    assert [part.shape[0] for part in parts] == [10, 2, 3, 11, 12, 4, 1]
    np.testing.assert_array_equal(tf.concat(cut.from_variables(parts), 0), vector)
    assert Pieces([10, 2], apart=False).sizes == [12]


def centers(scheme, ps, **options):
    """The center after each of some rounds of a worker, and how many vectors it has its parameters in."""
    model = ModelRecipe.named("mlp:hidden=16-8", (64,), 10, 0).build()
    with Table(scheme, workers=1, ps=ps, model=model, steps=100, **options) as table:
        found = [op for op in table.graph.graph.get_operations() if op.type == "VarHandleOp" and "_params" in op.name]
        player, path = table.player(0), []
        for event in ["exchange", *sorted(scheme.events - {"exchange"}), "exchange"]:
            player.round(event, steps=3)
            path.append(table.run("center"))
    return np.array(path), len(found)


@pytest.mark.parametrize(
    ("scheme", "ps"),
    [
        (Downpour(push_period=2, pull_period=3, learning_rate=lambda step: 0.1 / (1 + step)), 2),
        (ADAG(), 1),  # sends the sum of its gradients
        (AEAMSGD(), 1),  # exchanges first, and takes gradients elsewhere
    ],
    ids=["downpour", "adag", "aeamsgd"],
)
def test_in_pieces_a_round_is_what_it_is_on_the_whole_vector(monkeypatch, scheme, ps):
    whole, one = centers(scheme, ps)
    monkeypatch.setattr(pieces, "LARGE_FLOATS", 100)
    path, several = centers(scheme, ps)
    assert (one, several) == (
        1,
        4,
    )  # weights and biases of the first layer, weights of the second, and what comes after them
    assert np.abs(whole[-1] - whole[0]).max() > 1e-4
    np.testing.assert_allclose(path, whole, rtol=1e-5, atol=1e-7)


def test_a_loss_of_the_whole_vector_keeps_it_in_one_piece(monkeypatch):
    monkeypatch.setattr(pieces, "LARGE_FLOATS", 100)
    assert centers(DownpourEasy(), 1, l2=0.1)[1] == 1
