"""Quantised messages: codecs against NumPy, the residual, and which schemes may have quantised replies."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_codec import SLOPES, there_and_back

from covering import CATALOGUE
from distsgd.algorithms import EASGD, SCHEMES, AsyncSGD, SyncSGD
from distsgd.common import Cluster, UserError, train
from distsgd.common.cli.main import dispatch
from distsgd.common.contract import BFloat16, Codec, Int8, WithMemory
from distsgd.common.contract.rounding import rounded
from distsgd.common.data.recipes import Dataset
from distsgd.common.replay.adapters import TRANSCRIPTIONS
from distsgd.common.replay.reference import codecs
from distsgd.common.replay.reference.codecs import on_slices
from distsgd.common.replay.reference.sending import compressing, pushed, whole
from distsgd.common.replay.replay import read
from runs import DIGITS, Harness, linear, record

BOTH = pytest.mark.parametrize(
    ("codec", "transcription"),
    [(BFloat16(), codecs.bf16), (Int8(), codecs.int8)],
    ids=["bf16", "int8"],
)


def numbers(size):
    """Of all sizes, with halves of steps and zeros among them."""
    rng = np.random.default_rng(size)
    vector = (rng.normal(size=size) * 10.0 ** rng.uniform(-6, 3, size)).astype(np.float32)
    vector[::5] = np.round(vector[::5])
    vector[size // 2 : size // 2 + 300] = 0
    return vector


@BOTH
@pytest.mark.parametrize("size", [1, 256, 257, 5000])
def test_rounding_is_that_of_numpy_bit_for_bit(codec, transcription, size):
    vector = numbers(size)
    back, travelled = there_and_back(codec, vector)
    np.testing.assert_array_equal(back, transcription(vector))
    assert travelled == codec.bytes([size])


def test_halves_go_to_the_even_number():
    back, _ = there_and_back(BFloat16(), np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8], np.float32))
    assert back.tolist() == [1, 1 + 2**-6, -1]
    back, _ = there_and_back(Int8(), np.array([127, 0.5, 1.5, -2.5], np.float32))
    assert back.tolist() == [127, 0, 2, -2]


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_element_that_is_not_finite_does_not_come_back_finite(codec, transcription, bad):
    vector = numbers(700)
    vector[300] = bad
    assert not np.isfinite(there_and_back(codec, vector)[0][300])
    kept = SimpleNamespace(memory=tf.Variable(tf.zeros(700)))
    assert not np.isfinite(there_and_back(WithMemory(codec), vector, kept)[0][300])


@BOTH
def test_messages_sent_and_the_residual_sum_up_to_all_messages(codec, transcription):
    kept, rng = SimpleNamespace(memory=tf.Variable(tf.zeros(600))), np.random.default_rng(0)
    memory = total = sent = np.zeros(600, np.float32)
    for _ in range(20):
        vector = rng.normal(size=600).astype(np.float32)
        back, _ = there_and_back(WithMemory(codec), vector, kept)
        np.testing.assert_array_equal(back, transcription(vector + memory))
        memory, total, sent = vector + memory - back, total + vector, sent + back
        np.testing.assert_array_equal(kept.memory.numpy(), memory)
    np.testing.assert_allclose(sent + memory, total, atol=1e-5)
    assert 0 < np.abs(memory).max() < 0.05


# Runs.


def test_replies_are_rounded_where_they_are_the_place_of_a_gradient_alone():
    def replies(codec):
        found = set()
        for name, kind in SCHEMES.items():
            try:
                scheme = rounded(kind(), codec)
            except UserError:
                continue
            assert scheme.codecs()[0].remembers
            if type(scheme.codecs()[1]) is not Codec:
                found.add(name)
        return found

    plain = "async_sgd dc_asgd delay_adaptive hierarchical hogwild rescaled_asgd ringleader ringmaster softsync ssp"
    plain += " k_batch_async k_batch_sync k_sync k_async krum malenia sync_sgd trimmed_mean centered_clipping rfa"
    plain += " ringmaster_lmo"
    assert replies("bf16") == set(plain.split())
    assert not replies("int8")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("ef_sgd", "ef_sgd has a codec of its own"),
        ("signsgd_mv", "signsgd_mv has a codec of its own"),
        ("des_loc", "des_loc sends several vectors in turn"),
        ("all_reduce", "all_reduce has no parameter server"),
        ("serial", "serial has no parameter server"),
    ],
)
def test_schemes_that_cannot_round_are_refused_in_one_line(name, wrong):
    with pytest.raises(UserError, match=f"^{wrong}.*leave codec out. Received: codec=bf16$"):
        rounded(SCHEMES[name](), "bf16")


def test_coordinates_of_a_batch_are_not_rounded(tmp_path):
    arguments = ["--dataset", "sparse:examples=480,features=20,active=5", "--model", "logistic", "--codec", "int8"]
    with pytest.raises(UserError, match=r"on a sparse problem.*leave codec out. Received: codec=int8"):
        dispatch(["async_sgd", *arguments, "--run-dir", str(tmp_path / "run")])


@pytest.mark.parametrize("ps", [1, 2])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_run_sends_numpy_s_vectors_and_forgets_the_residual_on_rejoining(ps):
    data = Dataset((np.ones((8, 1), np.float32), np.tile(SLOPES, (8, 1))), None, classes=0)
    sizes = [5] if ps == 1 else [3, 2]
    sent = pushed(lambda x, k, t: SLOPES, compressing(on_slices(codecs.int8, sizes), 1), whole)
    once, twice = (sent(SLOPES, 0, t) for t in range(2))
    options = {"workers": 1, "ps": ps, "model": linear(), "data": data, "codec": "int8"}
    with Harness(AsyncSGD(learning_rate=1.0), **options) as harness:
        worker = harness.worker(0)
        worker.round()
        worker.round()
        np.testing.assert_allclose(harness.run("center"), -once - twice, rtol=1e-6)
        worker.join()
        worker.round()
        np.testing.assert_allclose(harness.run("center"), -once - twice - once, rtol=1e-6)
    assert np.abs(once - twice).max() > 0.001


def close(run_dir):
    """How far a short run is from the equations with its codec, and how far from those without."""
    config = run_dir / "config.json"
    with_codec, found = read(run_dir, SCHEMES).error(), json.loads(config.read_text())
    config.write_text(json.dumps(found | {"codec": "float32"}))
    return with_codec, read(run_dir, SCHEMES).error()


@pytest.mark.parametrize(
    ("codec", "scheme", "options"),
    [
        ("bf16", AsyncSGD(), {"backend": "threads"}),
        ("topk:fraction=0.1", SyncSGD(), {"backend": "threads"}),
        ("randomk:fraction=0.2,memory=no", SyncSGD(), {"backend": "threads"}),
        ("int8", AsyncSGD(), {"backend": "simulation"}),  # each slice begins new blocks
        ("qsgd:bits=4,block=64", AsyncSGD(), {"backend": "simulation"}),
        ("dct:block=16", SyncSGD(), {"backend": "simulation"}),
        ("fp4", AsyncSGD(), {"backend": "threads"}),
        ("int8", SyncSGD(), {"backend": "threads"}),
        ("int8", AsyncSGD(), {"backend": "processes"}),
    ],
)
@pytest.mark.rotating
def test_a_run_does_what_the_equations_with_its_codec_say(codec, scheme, options, tmp_path):
    record(scheme, tmp_path / "run", workers=2, steps=4, hidden=(8,), codec=codec, **{"ps": 2, **options})
    with_codec, without = close(tmp_path / "run")
    assert without > 1e-5
    # Mostly 1e-7. An element between two steps may go to one in float32 and to the other in float64.
    assert with_codec < without / 2


SENDING = [name for name, equations in TRANSCRIPTIONS.items() if equations.sends]
FAST = {"agn", "diloco"}
# One of each way to a message: after the steps, beside them, in fragments, with scalars, of parameters.
KINDS = {"aeasgd", "cocod_sgd", "co2", "eager_diloco", "fednova", "slowmo", "streaming_diloco"}


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.rotating) for name in SENDING]
)
@pytest.mark.rotating
def test_messages_that_are_no_gradients_follow_the_equations_with_their_codec(name, tmp_path):
    scheme = CATALOGUE[name] if SCHEMES[name]().regions else SCHEMES[name]()  # whose regions send in so few steps
    codec = "int8" if scheme.sends == "params" else "fp4"
    steps = max(12, 3 * scheme.overlap)  # where a round begins with its message, the first one is zero
    servers = 1 if scheme.whole_center or not scheme.sync.uses_ps else 2
    record(scheme, tmp_path / "run", workers=2, steps=steps, hidden=(8,), codec=codec, ps=servers, backend="simulation")
    with_codec, without = close(tmp_path / "run")
    assert without > 1e-5
    assert with_codec < without / 2


@pytest.mark.parametrize(
    ("scheme", "codec"),  # bf16 has the finer steps
    [(SyncSGD(), "bf16"), (EASGD(), "int8")],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.rotating
def test_a_run_with_a_codec_comes_as_far_as_one_without(scheme, codec, tmp_path):
    def loss(codec):
        cluster = Cluster.local(workers=4, backend="simulation")
        recipe = {"epochs": 6, "run_dir": tmp_path / codec, "verbose": False, "codec": codec}
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(10)])
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return train(model, DIGITS.train, scheme, cluster=cluster, validation_data=DIGITS.test, **recipe).metrics

    exact, found = loss("float32"), loss(codec)
    assert found["test_loss"] == pytest.approx(exact["test_loss"], rel=0.02)
    assert found["bytes_pushed"] < exact["bytes_pushed"] * (0.51 if codec == "bf16" else 0.27)
