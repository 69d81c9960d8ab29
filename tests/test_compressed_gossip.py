"""Compressed messages between neighbours: on the wire, in the mean of the workers, and in real runs."""

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from distsgd import Group, UserError
from distsgd.algorithms import ADPSGD, DPSGD, SCHEMES, SGP, AllReduce, ChocoSGD, DSGDTracking, GASLoC
from distsgd.common.contract import Codec, with_memory
from distsgd.common.contract.rounding import CODECS, rounded
from distsgd.common.contract.seeded import uniform
from distsgd.common.messages.encoder import Encoder
from distsgd.common.messages.one_piece import as_one, as_tensors
from distsgd.common.replay.reference.gossip_rules import choco_sgd
from distsgd.common.replay.reference.synchronous_rules import largest
from distsgd.common.replay.replay import replay
from distsgd.common.sync.topology import Topology
from runs import record

FEW = {"batch_size": 8, "hidden": (8,)}


@pytest.mark.parametrize("text", ["float32", *CODECS, "qsgd:bits=2", "topk:fraction=0.9"])
def test_what_travels_in_one_piece_arrives_as_if_its_tensors_did(text):
    codec = with_memory(text)
    for size in (1, 7, 300):
        message = tf.constant(np.random.default_rng(size).normal(size=size), tf.float32)
        encoder = Encoder(codec, [size], "own")
        encoder.worker = SimpleNamespace(
            shapes=[(size,)], index=1, round=tf.constant(3, tf.int64), uniform=partial(uniform, 7, size)
        )
        wire, arrives, opened = encoder.in_one_piece(message)
        assert wire.dtype == tf.float32
        np.testing.assert_array_equal(opened(tf.identity(wire)), arrives)
        again = Encoder(codec, [size], "again")
        again.worker = encoder.worker
        (tensors,) = again.encode(message, codec)
        np.testing.assert_array_equal(codec.decode(tensors, size), arrives)


def test_tensors_of_every_type_are_the_same_after_travelling_in_one_piece():
    numbers = np.random.default_rng(0).integers(-9, 9, 5)
    kinds = tf.float32, tf.int32, tf.int8, tf.uint8, tf.bfloat16, tf.int64
    wire = [tf.cast(tf.constant(numbers[: 5 - i]), kind) for i, kind in enumerate(kinds)]
    wire += [tf.cast(tf.constant(numbers[:, None]), tf.int32), tf.zeros([0]), tf.constant([np.nan, np.inf])]
    for own, other in zip(wire, as_tensors(as_one(wire), wire), strict=True):
        assert own.dtype == other.dtype
        np.testing.assert_array_equal(tf.cast(own, tf.float64), tf.cast(other, tf.float64))


@pytest.mark.parametrize("compressor", ["topk:fraction=0.2", "randomk:fraction=0.3", "sign", "qsgd", "int8", "dct"])
@pytest.mark.parametrize("order", ["paper", "authors"])
@pytest.mark.rotating("others")
def test_the_mean_of_the_workers_moves_as_without_compression(compressor, order):
    scheme = ChocoSGD(compressor=compressor, order=order, learning_rate=0.3, consensus_rate=0.7)
    rng = np.random.default_rng(3)
    start, gradients = rng.normal(size=20), rng.normal(size=(5, 4, 20))
    group = Group(scheme, start, workers=4)
    for of_step in gradients:
        for k, gradient in enumerate(of_step):
            group.step(k, gradient)
    np.testing.assert_allclose(group.center, start - 0.3 * gradients.mean(1).sum(0), atol=2e-6)
    assert np.ptp([group.params(k) for k in range(4)], axis=0).max() > 0.1


@pytest.mark.parametrize(("graph", "workers", "limit"), [("ring", 8, 0.38), ("ring", 16, 0.43), ("complete", 8, 0.26)])
@pytest.mark.rotating("others")
def test_workers_come_together_below_the_rate_that_choco_sgd_documents_and_part_above(graph, workers, limit):
    """With the ten largest of a hundred elements, in the order of the authors, too."""
    apart, keep = np.random.default_rng(0).normal(size=(workers, 100)), largest(10)

    def grown(gamma, order):
        last = []

        def gradient(x, k, t):
            last.append(x)
            return -apart[k] if t == 0 else 0 * x

        how = {"weights": lambda t: Topology(graph).weights(workers, t), "compress": lambda u, k, t: keep(u)}
        choco_sgd(np.zeros(100), gradient, workers, eta=1.0, gamma=gamma, order=order, steps=500, **how)
        return np.abs(np.array(last[-workers:]) - np.mean(last[-workers:], 0)).max()

    for order in ("paper", "authors"):
        assert grown(0.6 * limit, order) < 0.5
        assert grown(1.5 * limit, order) > 5


@pytest.mark.parametrize(
    ("scheme", "how"),
    [
        (ChocoSGD(compressor="topk:fraction=0.05"), {"backend": "processes", "workers": 3}),
        (ChocoSGD(compressor="sign", order="authors"), {"backend": "threads", "workers": 4}),
        (ChocoSGD(compressor="qsgd", topology="complete"), {"backend": "simulation", "workers": 4}),
        (DPSGD(topology="one-peer"), {"backend": "threads", "workers": 4, "codec": "int8"}),
        (SGP(), {"backend": "processes", "workers": 4, "codec": "bf16", "hidden": (1024,)}),
        (GASLoC(communication_period=2), {"backend": "simulation", "workers": 4, "codec": "int8"}),
    ],
    ids=["topk", "sign", "qsgd", "int8", "bf16-in-shared-memory", "gasloc"],
)
@pytest.mark.rotating
def test_a_run_with_compressed_messages_is_that_of_the_equations_and_counts_their_bytes(scheme, how, tmp_path):
    run = record(scheme, tmp_path, **{"steps": 24, **FEW, **how})
    assert replay(tmp_path, SCHEMES).agrees
    result = json.loads((tmp_path / "result.json").read_text())
    now = rounded(scheme, how.get("codec", "float32"))
    rounds, links = result["updates"] * how["workers"], now.sync.traffic(how["workers"])[0]
    each = now.codecs()[0].for_model(4).bytes([len(run.center)])
    assert result["bytes_pushed"] == result["bytes_pulled"] == pytest.approx(rounds * links * each, rel=1e-6)
    assert each < 0.6 * 4 * len(run.center)


def test_what_no_codec_compresses_is_refused():
    for scheme in (AllReduce(), DSGDTracking(), ADPSGD()):
        with pytest.raises(UserError, match=r"no neighbours to which a worker sends one message: leave codec out"):
            rounded(scheme, "int8")
    with pytest.raises(UserError, match=r"d_psgd sends parameters, for which a codec is one of bf16, int8"):
        rounded(DPSGD(), "topk")
    with pytest.raises(UserError, match="choco_sgd has a codec of its own"):
        rounded(ChocoSGD(), "int8")
    for graph in ("one-peer", "random-matching"):
        with pytest.raises(UserError, match=rf"same neighbours in all rounds.*topology={graph}"):
            ChocoSGD(topology=graph).check(4)
    with pytest.raises(UserError, match="unknown codec 'none'"):
        ChocoSGD(compressor="none")
    assert type(with_memory("float32")) is Codec
