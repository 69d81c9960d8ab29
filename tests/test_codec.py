"""Codecs give back what they are given, and the bytes in the results are those that travel."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from own_codec import Rounded, RoundedSGD

from distsgd.algorithms import EFSGD, AllReduce, AsyncSGD, FedNova, Hogwild, OneBitAdam, PowerSGD, SignSGDMV, SparseLoCo
from distsgd.common import Cluster, UserError, train
from distsgd.common.contract import Codec, Coordinates, ScaledSigns, Signs, Span, WholeNumbers
from distsgd.common.contract.checks import check_scheme
from distsgd.common.contract.rounding import Int8
from distsgd.common.messages.codec import BatchCoordinates, SummedCoordinates
from distsgd.common.server.traffic import Traffic
from runs import DIGITS, linear

SIZE = 37


def there_and_back(codec, vector, kept=None):
    """Return the vector after its travel in one slice, and the bytes that travelled."""
    (wire,) = codec.send(tf.constant(vector, tf.float32), [len(vector)], [kept], None)
    size = sum(int(np.prod(tensor.shape)) * tensor.dtype.size for tensor in wire)
    return codec.decode(wire, len(vector)).numpy(), size


def signs(size):
    return np.random.default_rng(0).integers(-1, 2, size).astype(np.float32)


@pytest.mark.parametrize("size", [1, 4, SIZE])
def test_signs_come_back_as_they_were_in_two_bits_each(size):
    vector = signs(size)
    back, travelled = there_and_back(Signs(), vector)
    np.testing.assert_array_equal(back, vector)
    assert travelled == Signs().bytes([size]) == (size + 3) // 4


@pytest.mark.parametrize("most", [1, 5, SIZE])
def test_the_elements_that_are_not_zero_come_back_where_they_were(most):
    vector = np.zeros(SIZE, np.float32)
    rng = np.random.default_rng(1)
    vector[rng.choice(SIZE, most, replace=False)] = rng.normal(size=most)
    back, travelled = there_and_back(Coordinates(most / SIZE), vector)
    np.testing.assert_array_equal(back, vector)
    assert travelled == Coordinates(most / SIZE).bytes([SIZE]) == 8 * most


def test_a_sum_of_sparse_vectors_has_at_most_all_elements():
    one = SummedCoordinates(0.1)
    assert [one.for_workers(workers).bytes([1000]) for workers in (1, 3, 10, 64)] == [800, 2400, 8000, 8000]


@pytest.mark.parametrize(("first", "number"), [(0, 4), (2, 5), (6, 3), (0, 9), (3, 0)])
def test_a_part_of_a_vector_comes_back_where_it_was(first, number):
    vector = np.zeros(9, np.float32)
    vector[first : first + number] = np.arange(number) - 1  # which has a zero
    begin, part = Span(number / 9).encode(tf.constant(vector), None)
    np.testing.assert_array_equal(Span(number / 9).decode([begin, part], 9), vector)
    assert 4 * (len(part) + 1) <= Span(number / 9).bytes([9])


def test_without_a_codec_a_vector_travels_as_it_is():
    vector = np.random.default_rng(2).normal(size=SIZE).astype(np.float32)
    back, travelled = there_and_back(Codec(), vector)
    np.testing.assert_array_equal(back, vector)
    assert travelled == Codec().bytes([SIZE]) == 4 * SIZE


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "codec",
    [Codec(), Coordinates(1.0), Span(1.0), Signs(), ScaledSigns()],
    ids=lambda codec: type(codec).__name__,
)
def test_an_element_that_is_not_finite_does_not_come_back_finite(codec, bad):
    vector = signs(SIZE)
    vector[11] = bad
    back, _ = there_and_back(codec, vector)
    assert not np.isfinite(back[11])
    np.testing.assert_array_equal(np.delete(back, 11), np.delete(vector, 11))


@pytest.mark.parametrize(
    ("scheme", "message", "reply"),
    [
        (SignSGDMV(), 0.25, 0.25),
        (EFSGD(share=0.1), 0.8, 4.0),
        (OneBitAdam(warmup_steps=2), (2 * 4 + 4 * 0.3) / 6, (2 * 4 + 4 * 0.27) / 6),
    ],
    ids=lambda value: getattr(value, "name", None),
)
@pytest.mark.rotating
def test_a_result_counts_the_bytes_that_travel(tmp_path, scheme, message, reply):
    rounds, workers = 6, 2
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    cluster = Cluster.local(workers=workers, ps=2, backend="threads")
    result = train(model, DIGITS.train, scheme, cluster=cluster, steps=rounds, run_dir=tmp_path, verbose=False)
    size = model.count_params()
    assert json.loads((tmp_path / "result.json").read_text())["bytes_pushed"] == result.metrics["bytes_pushed"]
    assert result.metrics["bytes_pushed"] == pytest.approx(workers * rounds * message * size, rel=0.01)
    pulled = workers * rounds * reply * size + workers * 4 * size  # the last are the center that each began with
    assert result.metrics["bytes_pulled"] == pytest.approx(pulled, rel=0.01)


def test_a_round_has_the_bytes_of_its_vectors_in_both_slices_with_scalars_and_states():
    """Of four workers, a matrix and a vector of ten in slices of 60 and 40, and seven floats of state."""

    def moved(scheme, codec=None):
        traffic = Traffic(scheme, codec or scheme.codecs()[0], 4, [60, 40], state_size=7, shapes=[(10, 9), (10,)])
        return [*traffic.vectors, traffic.reply, traffic.center]

    state = 4 * 7
    assert moved(FedNova()) == [400 + state + 2 * 4, 400, 400]  # the number of steps goes to each slice
    assert moved(AsyncSGD(), Int8(block=50)) == [100 + 3 * 4 + state, 400, 400]
    assert moved(SparseLoCo(share=0.05)) == [8 * 5 + state, 4 * 8 * 5, 400]  # the sum of four
    assert moved(PowerSGD(rank=2)) == [4 * 20, 4 * (18 + 10) + state, 4 * (20 + 18 + 10), 400]
    assert moved(Hogwild(), BatchCoordinates(30))[2] == 0  # a sparse worker keeps no copy of the center


def test_scaled_signs_come_back_with_the_size_of_their_variable():
    vector = np.array([0, 0, 0.5, -0.5, 0, 0.5, 3, 0, -3, 0, 1e-3, 0], np.float32)
    for part, sizes in ((vector, 3), (vector[4:], 3), (vector[7:9], 1), (0 * vector, 0)):
        back, travelled = there_and_back(ScaledSigns(), part)
        np.testing.assert_array_equal(back, part)
        assert travelled == (len(part) + 3) // 4 + 8 * sizes
    assert ScaledSigns().for_model(3).bytes([10, 10]) == 2 * 3 + 8 * 4


def test_signs_are_rounded_up_to_a_byte_on_each_slice():
    assert Signs().bytes([5, 5]) == 4
    assert Signs().bytes([10]) == 3
    assert Coordinates(0.1).bytes([5, 5]) == Coordinates(0.1).bytes([10])  # the one largest of all


# A codec in a user's own file, with a memory: on a loss whose gradient is the same everywhere.

SLOPES = np.array([0.125, -0.25, 0.375, 0, 3.25], np.float32)  # all that follows is exact in float32
ROUNDS = 7


def sent(slopes, rounds, step=0.5):
    """The sum of what one worker sends, as one would write it in NumPy."""
    rest = total = 0 * slopes
    for _ in range(rounds):
        message = step * np.round((slopes + rest) / step)
        rest, total = slopes + rest - message, total + message
    return total


@pytest.mark.rotating
def test_the_residual_of_a_codec_goes_with_a_later_message(tmp_path):
    workers, model = 3, linear()
    data = np.ones((24, 1), np.float32), np.tile(SLOPES, (24, 1))
    cluster = Cluster.local(workers=workers, ps=2, backend="threads")
    options = {"steps": ROUNDS, "batch_size": 8, "run_dir": tmp_path, "verbose": False}
    result = train(model, data, RoundedSGD(learning_rate=0.5), cluster=cluster, **options)
    expected = -0.5 * workers * sent(SLOPES, ROUNDS)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy()[0], expected)
    assert np.abs(expected + 0.5 * workers * ROUNDS * SLOPES).max() <= 0.5 * workers * 0.25  # half a step each
    assert expected[0] != 0  # without a memory an eighth would never be sent
    assert result.metrics["bytes_pushed"] == workers * ROUNDS * 5


def test_a_reply_codec_with_memory_and_a_codec_without_a_ps_are_refused():
    class Replies(RoundedSGD):
        name = "replies"
        codec = Codec(), Rounded()

    class WithoutPS(AllReduce):
        name = "without_ps"
        codec = Signs()

    with pytest.raises(UserError, match=r"the codec of replies cannot keep variables.*Rounded"):
        check_scheme(Replies(), 2)
    with pytest.raises(UserError, match=r"without a ps only messages to neighbours.*Signs"):
        check_scheme(WithoutPS(), 2)


@pytest.mark.parametrize(("most", "octets"), [(1, 3), (2, 5), (7, 5), (8, 10), (127, 10), (128, 40)])
def test_whole_numbers_take_the_bits_of_the_largest(most, octets):
    numbers = np.array([most, -most, 0, 1, -1, most, 0, 0, -most, 1], np.float32)
    codec = WholeNumbers().for_workers(most)
    wire, width = codec.encode(tf.constant(numbers), None)
    np.testing.assert_array_equal(codec.decode([wire, width], 10), numbers)
    assert wire.dtype == tf.uint8
    assert len(wire) == octets == codec.bytes([10]) - 1
    numbers[[3, 7]] = np.nan, np.inf
    again = codec.decode(codec.encode(tf.constant(numbers), None), 10).numpy()
    assert np.isnan(again[[3, 7]]).all()
    np.testing.assert_array_equal(np.delete(again, [3, 7]), np.delete(numbers, [3, 7]))
