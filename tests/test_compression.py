"""Compressed messages: what is sent, what is kept for later, and what is lost."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from scipy import fft

from distsgd.algorithms import DIANA, EF21SGDM, SCHEMES, DeMo, EF21Muon, LocalSGD, SparseLoCo, SyncSGD
from distsgd.common import Group, Recovery, UserError
from distsgd.common.contract.rounding import CODECS, WithMemory, codec_of, rounded
from distsgd.common.contract.seeded import OF_CODEC, uniform, uniform_numbers
from distsgd.common.replay.reference import codecs, compressed_rules, synchronous_rules
from distsgd.common.replay.reference.inner_steps import orthogonal
from distsgd.common.spec import parse
from runs import record

# Three workers whose minimum is 0, but whose gradients' largest elements add up to a step away from it (Beznosikov et
# al. 2020, example 1): f_k(x) = ⟨a_k, x⟩² + ¼ |x|².
SLOPES = np.array([[-3.0, 2, 2], [2, -3, 2], [2, 2, -3]])


def hostile_gradient(x, k, t=0):
    return 2 * (SLOPES[k] @ x) * SLOPES[k] + x / 2


def test_top_1_without_memory_grows_by_a_factor_known_in_advance_and_with_memory_it_converges():
    start, largest, options = np.ones(3), synchronous_rules.largest(1), {"workers": 3, "steps": 3000}
    without = start
    for t in range(1, 21):
        without = without - 0.02 * np.mean([largest(hostile_gradient(without, k)) for k in range(3)], axis=0)
        np.testing.assert_allclose(without, (1 + 11 * 0.02 / 6) ** t, rtol=1e-12)
    for rule, own in ((synchronous_rules.ef_sgd, {}), (compressed_rules.ef21_sgdm, {"beta": 0.0})):
        path = rule(start, hostile_gradient, eta=0.02, compress=largest, **options, **own)
        assert np.sum(path[-1] ** 2) < 1e-31


@pytest.mark.parametrize("compressor", ["topk", "sign"])
@pytest.mark.rotating("others")
def test_ef21_s_server_knows_the_mean_of_what_its_workers_have_sent(compressor):
    group = Group(EF21SGDM(learning_rate=0.02, share=0.4, compressor=compressor), np.ones(3), workers=3, ps=2)
    known = [group._operations.local.row("known", k) for k in range(3)]
    for _ in range(20):
        for k in range(3):
            group.step(k, hostile_gradient(group.point(k), k))
        servers = np.concatenate([server.variables["known"].numpy() for server in group._operations.servers])
        assert np.abs(servers).max() > 0.01
        np.testing.assert_allclose(servers, np.mean([row.read_value() for row in known], axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.gate
def test_ef21_muon_s_workers_are_at_the_center_and_both_know_what_was_sent():
    """The server's y makes steps of equal singular values; the center follows it."""
    rng, start = np.random.default_rng(0), [np.zeros((6, 4)), np.zeros(3)]
    group = Group(EF21Muon(share=0.4, reply_share=0.3, learning_rate=0.1), start, workers=2)
    known = [group._operations.local.row("known", k) for k in range(2)]
    own = group._operations.servers[0].variables
    for _ in range(6):
        before = own["model"].numpy()
        for k in range(2):
            group.step(k, [rng.normal(size=part.shape) for part in start])
        center = np.concatenate([np.ravel(part) for part in group.center])
        for k in range(2):
            params = np.concatenate([np.ravel(part) for part in group.params(k)])
            np.testing.assert_array_equal(params, center)
        np.testing.assert_allclose(own["known"], np.mean([row.read_value() for row in known], axis=0), atol=1e-6)
        moved = own["model"].numpy() - before
        sizes = np.linalg.svd(moved[:24].reshape(6, 4), compute_uv=False) / (0.1 * 0.2 * np.sqrt(6))
        assert (sizes > 0.6).all()
        assert (sizes < 1.3).all()
        np.testing.assert_allclose(moved[24:], -0.1 * np.sign(own["known"].numpy()[24:]), rtol=1e-4)
    assert np.abs(own["model"] - center).max() > 0.01  # not all has been sent


@pytest.mark.parametrize(("alpha", "rests"), [(None, True), (0.0, False)])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_diana_rests_at_the_minimum_of_unequal_losses_and_without_memory_does_not(alpha, rests):
    """½ |x − b_k|², b_k = 1, 2, 3 times a vector: h_k goes to θ* − b_k, and h is the mean of all h_k."""
    minima, start = np.arange(1.0, 4.0)[:, None] * np.ones(10), np.zeros(10)
    group = Group(DIANA(learning_rate=0.2, share=0.5, memory_rate=alpha), start, workers=3, ps=2)
    known, apart = [group._operations.local.row("known", k) for k in range(3)], []
    for _ in range(100):
        for k in range(3):
            group.step(k, group.point(k) - minima[k])
        apart.append(np.abs(group.center - 2).max())
        servers = np.concatenate([server.variables["known"].numpy() for server in group._operations.servers])
        np.testing.assert_allclose(servers, np.mean([row.read_value() for row in known], axis=0), atol=1e-5)
    assert (max(apart[-20:]) < 1e-4) == rests
    assert rests or min(apart[-20:]) > 0.01
    if rests:
        np.testing.assert_allclose([row.read_value() for row in known], 2 - minima, atol=1e-3)


def test_moves_that_sparseloco_has_not_sent_decay():
    """One step of η = 1 in each round along slopes of 1 and 0.6: the second element is sent once it is the larger."""
    scheme = SparseLoCo(
        inner_optimizer="sgd", learning_rate=1.0, communication_period=1, outer_learning_rate=1.0, share=0.5, decay=0.5
    )
    group, found = Group(scheme, np.zeros(2), workers=1), []
    for _ in range(4):
        group.step(0, np.array([1.0, 0.6]))
        found.append(group.center.tolist())
    assert found == [[-1, 0], [-2, 0], [-2, pytest.approx(-1.05)], [pytest.approx(-3.5), pytest.approx(-1.05)]]
    np.testing.assert_allclose(group.params(0), group.center)


@pytest.mark.rotating
def test_a_codec_without_memory_grows_as_in_theory_and_with_memory_it_falls():
    found = {}
    for memory in ("yes", "no"):
        group = Group(SyncSGD(learning_rate=0.02), np.ones(3), workers=3, codec=f"topk:fraction=0.34,memory={memory}")
        for k in list(range(3)) * 30:
            group.step(k, hostile_gradient(group.point(k), k))
        found[memory] = group.center
    np.testing.assert_allclose(found["no"], (1 + 11 * 0.02 / 6) ** 30, rtol=1e-5)
    assert np.abs(found["yes"]).max() < 1


# Codecs of `--codec`, on two slices, against NumPy.

SHAPES = [(40, 8), (8,), (10, 7)]
SIZES, ALL = (199, 199), 398
OTHERS = (  # with other options than the defaults
    "int8:block=64", "int4:block=32", "topk:fraction=0.1", "randomk:fraction=0.3", "randomk:fraction=0.3,memory=no",
    "qsgd:bits=2,block=16", "qsgd:bits=8,block=100,memory=yes", "dct:block=16,kept=3",
)  # fmt: skip


def messages(seed=0):
    rng = np.random.default_rng(seed)
    vector = (rng.normal(size=ALL) * 10.0 ** rng.uniform(-4, 2, ALL)).astype(np.float32)
    vector[20:120] = 0
    return vector


def sender(k=1, t=3):
    return SimpleNamespace(shapes=SHAPES, index=k, round=tf.constant(t, tf.int64), uniform=partial(uniform, 7, ALL))


def sent(codec, vector, kept=(None, None), **where):
    """Return a message as it arrives, and the bytes that travelled."""
    wires = codec.send(tf.constant(vector), SIZES, kept, sender(**where))
    size = sum(int(np.prod(tensor.shape)) * tensor.dtype.size for wire in wires for tensor in wire)
    return np.concatenate([codec.decode(wire, n) for wire, n in zip(wires, SIZES, strict=True)]), size


@pytest.mark.parametrize("text", [*CODECS, *OTHERS])
def test_a_codec_is_that_of_numpy_and_counts_the_bytes_that_travel(text):
    codec, (name, options) = codec_of(text), parse("codec", text, codecs.CODECS)
    run = codecs.Run(SIZES, SHAPES, lambda k, t: uniform_numbers(7, ALL, OF_CODEC, k, t))
    equations = codecs.CODECS[name](**options)(run)
    for t in range(2):
        vector = messages(t)
        back, travelled = sent(codec, vector, k=1, t=t)
        atol = 1e-6 * np.abs(vector).max() if name == "dct" else 1e-12  # sums, of numbers of all sizes
        np.testing.assert_allclose(back, equations(vector, 1, t), rtol=1e-5, atol=atol)
        counted = codec.for_model(len(SHAPES)).bytes(SIZES)
        assert travelled == counted or (name == "randomk" and travelled < counted)  # a zero that is drawn is not sent


def test_a_number_between_two_levels_is_the_lower_one():
    ties = np.array([7, 0.5, -0.5, 1.5, -1.5, 6.5, -6.5, 0], np.float32)
    codec = codec_of("int4:block=8")
    back = codec.decode(codec.encode(tf.constant(ties), None), len(ties))
    np.testing.assert_array_equal(back, [7, 0, -1, 1, -2, 6, -7, 0])
    np.testing.assert_array_equal(back, codecs.CODECS["int4"](block=8)(codecs.Run((8,), [(8,)], None))(ties, 0, 0))


def test_qsgd_sends_no_larger_number_than_its_bits_have():
    """An element that is the norm of its block is rounded up beyond it, where float32 has the quotient above one."""
    codec, vector = codec_of("qsgd:bits=4,block=1"), np.random.default_rng(0).normal(size=2000).astype(np.float32)
    wire = codec._rounded(tf.constant(vector), tf.fill([2000], np.float32(1 - 2.0**-24)))
    np.testing.assert_allclose(codec.decode(wire, 2000), vector * codec.factor, rtol=1e-5)


@pytest.mark.parametrize("text", ["int4", "fp4", "topk:fraction=0.1", "randomk", "sign", "qsgd:memory=yes", "dct"])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_what_is_not_sent_stays_with_the_worker_and_does_not_grow(text):
    codec = WithMemory(codec_of(text))
    kept = [SimpleNamespace(memory=tf.Variable(tf.zeros(n))) for n in SIZES]
    total, arrived, rests = np.zeros(ALL), np.zeros(ALL), []
    for t in range(60):
        vector = np.random.default_rng(t).normal(size=ALL).astype(np.float32)
        total, arrived = total + vector, arrived + sent(codec, vector, kept, t=t)[0]
        rest = np.concatenate([own.memory.numpy() for own in kept])
        np.testing.assert_allclose(arrived + rest, total, atol=1e-4)
        rests.append(np.linalg.norm(rest) / np.sqrt(ALL))
    assert rests[-1] < (12 if text == "randomk" else 8)  # of random walks without a codec, √60


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("text", [*CODECS, "randomk:memory=no"])
def test_a_message_that_is_not_finite_does_not_arrive_finite(text, bad):
    vector = messages()
    vector[300] = bad
    assert not np.isfinite(sent(codec_of(text), vector)[0]).all()


def test_the_coefficients_are_those_of_the_discrete_cosine_transform():
    vector = np.random.default_rng(0).normal(size=(3, 16))
    coefficients = fft.dct(vector, norm="ortho")
    smallest = np.sort(np.abs(coefficients))[:, -3, None]
    kept = np.where(np.abs(coefficients) >= smallest, coefficients, 0)
    found = codecs.cosine_coefficients(vector.ravel(), 16, 3)
    np.testing.assert_allclose(found, kept.ravel(), atol=1e-12)
    np.testing.assert_allclose(codecs.of_coefficients(found, 16), fft.idct(kept, norm="ortho").ravel(), atol=1e-12)
    short = vector.ravel()[:21]  # the last block has five elements
    every = codecs.cosine_coefficients(short, 16, 16)
    np.testing.assert_allclose(every[16:], fft.dct(short[16:], norm="ortho"), atol=1e-12)
    np.testing.assert_allclose(codecs.of_coefficients(every, 16), short, atol=1e-12)


OF_DEMO = [(5, 6), (6,), (2, 7)]


def transform(vector, inverse=False, block=16):
    parts = [vector[i : i + block] for i in range(0, len(vector), block)]
    return np.concatenate([(fft.idct if inverse else fft.dct)(part, norm="ortho") for part in parts])


def played_demo(gradients, alpha, step, over, beta=0.9, kept=2, eta=0.1):
    """The paper's rule with scipy's transform, and the singular vectors of numpy."""
    size = gradients.shape[2]
    theta, memory = np.zeros(size), np.zeros((len(gradients[0]), size))
    cuts = np.cumsum([int(np.prod(shape)) for shape in OF_DEMO])[:-1]
    for of_step in gradients:
        sent = []
        for k, g in enumerate(of_step):
            memory[k] = beta * memory[k] + g
            c = transform(memory[k])
            for i in range(0, size, 16):
                c[i + np.argsort(-np.abs(c[i : i + 16]), kind="stable")[kept:]] = 0
            memory[k] -= alpha * transform(c, inverse=True)
            sent.append(c)
        number = np.maximum((np.array(sent) != 0).sum(0), 1) if over == "senders" else len(sent)
        mean = transform(np.sum(sent, 0) / number, inverse=True)
        if step == "muon":
            parts = zip(np.split(mean, cuts), OF_DEMO, strict=True)
            moved = np.concatenate([of_muon(part, shape) for part, shape in parts])
        else:
            moved = np.sign(mean) if step == "sign" else mean
        theta = theta - eta * moved
    return theta


def of_muon(part, shape):
    if len(shape) != 2:
        return np.sign(part)
    return 0.2 * np.sqrt(max(shape)) * orthogonal(part.reshape(shape)).ravel()


@pytest.mark.parametrize("alpha", [1.0, 0.5, 0.2])
@pytest.mark.parametrize(
    ("step", "over"), [("sign", "all"), ("plain", "senders"), ("muon", "all"), ("sign", "senders")]
)
@pytest.mark.rotating("others")
def test_demo_has_the_fraction_the_step_and_the_mean_that_it_is_told(alpha, step, over):
    gradients = np.random.default_rng(3).normal(size=(9, 4, 50)).astype(np.float32)
    scheme = DeMo(learning_rate=0.1, decay=0.9, chunk=16, kept=2, subtraction=alpha, step=step, mean_over=over)
    group = Group(scheme, [np.zeros(shape) for shape in OF_DEMO], workers=4)
    for of_step in gradients:
        for k, g in enumerate(of_step):
            group.step(k, [p.reshape(s) for p, s in zip(np.split(g, [30, 36]), OF_DEMO, strict=True)])
    expected = played_demo(gradients, alpha, step, over)
    np.testing.assert_allclose(np.concatenate([part.ravel() for part in group.center]), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
def test_demo_that_sends_all_steps_by_the_mean_of_a_momentum_with_a_shorter_decay(alpha):
    gradients = np.random.default_rng(4).normal(size=(8, 3, 20))
    scheme = DeMo(learning_rate=0.1, decay=0.9, chunk=8, kept=8, subtraction=alpha)
    group, momentum, theta = Group(scheme, np.zeros(20), workers=3), np.zeros(20), np.zeros(20)
    for of_step in gradients:
        for k, g in enumerate(of_step):
            group.step(k, g)
        momentum = (1 - alpha) * 0.9 * momentum + of_step.mean(0)
        theta = theta - 0.1 * np.sign(momentum)
        np.testing.assert_allclose(group.center, theta, atol=1e-6)


def test_a_plain_step_of_demo_applies_a_gradient_by_the_inverse_of_the_fraction_in_all():
    scheme = DeMo(learning_rate=1.0, decay=1.0, chunk=8, kept=8, subtraction=0.5, step="plain")
    group, first = Group(scheme, np.zeros(8), workers=1), np.random.default_rng(5).normal(size=8)
    for t in range(40):
        group.step(0, first if t == 0 else np.zeros(8))
    np.testing.assert_allclose(group.center, -2 * first, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ps", [1, 2])
def test_an_element_that_one_worker_sends_counts_whole_among_its_senders(ps):
    scheme = SparseLoCo(
        communication_period=1, inner_optimizer="sgd", learning_rate=1.0, share=0.25, mean_over="senders"
    )
    group = Group(scheme, np.zeros(8), workers=3, ps=ps)
    for k, g in enumerate(([4, 3, 0, 0, 0, 0, 0, 0], [2, 0, 0, 0, 0, 0, 5, 0], [0, 0, 0, 0, 0, 0, 7, 1])):
        group.step(k, np.array(g, float))
    np.testing.assert_allclose(group.center, [-3, -3, 0, 0, 0, 0, -6, -1], atol=1e-6)
    for k in range(3):  # the counts begin anew
        group.step(k, np.array([1.0, 0, 0, 0, 0, 0, 0, 0]))
    np.testing.assert_allclose(group.center[0], -4, atol=1e-6)


def test_demo_refuses_a_fraction_above_one_and_several_servers_for_whole_matrices():
    with pytest.raises(UserError, match=r"subtraction must be at most 1. Received: subtraction=1.5"):
        Group(DeMo(subtraction=1.5), np.zeros(4), workers=2)
    with pytest.raises(UserError, match="needs the whole vectors on one ps"):
        Group(DeMo(step="muon"), np.zeros((2, 2)), workers=2, ps=2)


def test_demo_steps_by_signs_and_keeps_the_rest_of_the_momentum():
    """Of a chunk of two, the coefficients are (a + b)/√2 and (a − b)/√2, and the larger is sent."""
    group = Group(DeMo(learning_rate=1.0, decay=0.5, chunk=2, kept=1), np.zeros(2), workers=1)
    memory, theta = np.zeros(2), np.zeros(2)
    for slope in np.random.default_rng(0).normal(size=(12, 2)):
        group.step(0, slope)
        total = 0.5 * memory + slope
        both = np.array([total.sum() / 2, np.subtract(*total) / 2])  # each of the two waves at the first element
        even = np.abs(both[0]) >= np.abs(both[1])
        sent = np.full(2, both[0]) if even else np.array([both[1], -both[1]])
        memory, theta = total - sent, theta - np.sign(sent)
        np.testing.assert_allclose(group.center, theta, atol=1e-6)


@pytest.mark.parametrize(("bits", "block"), [(2, 16), (4, 64), (4, 512), (8, 64)])
def test_qsgd_is_unbiased_and_its_variance_is_below_the_bound(bits, block):
    """E C(u) = u and E‖C(u) − u‖² ≤ min(n/s², √n/s) ‖u‖²: Alistarh et al. 2017, lemma 3.1."""
    s, rng = 2 ** (bits - 1) - 1, np.random.default_rng(0)
    vector = rng.normal(size=block)
    drawn = np.array([codecs.qsgd(vector, rng.uniform(size=block), s, block) for _ in range(2000)])
    variance = np.mean(np.sum((drawn - vector) ** 2, 1)) / np.sum(vector**2)
    assert variance <= codecs.variance_bound(s, block)
    assert np.sum((drawn.mean(0) - vector) ** 2) < 1.2 * variance / 2000 * np.sum(vector**2)


@pytest.mark.rotating
def test_random_elements_without_memory_are_unbiased():
    codec = codec_of("randomk:fraction=0.25,memory=no")
    mean = np.mean([sent(codec, np.ones(ALL, np.float32), t=t)[0] for t in range(300)], axis=0)
    assert abs(mean.mean() - 1) < 0.01  # k of P, exactly
    assert np.abs(mean - 1).max() < 4.5 * np.sqrt(3 / 300)
    assert not np.array_equal(*(sent(codec, np.ones(ALL, np.float32), k=k)[0] for k in range(2)))


@pytest.mark.parametrize(
    ("codec", "wrong"),
    [
        ("top", "unknown codec 'top'"),
        ("topk:share=0.1", "codec topk has no option 'share'"),
        ("topk:fraction=2", "fraction must lie between 0 and 1"),
        ("topk:memory=maybe", "memory must be"),
        ("int4:block=x", "takes a whole number"),
        ("qsgd:bits=3", "bits of the codec qsgd must be 2, 4 or 8. Received: 3"),
    ],
)
def test_a_codec_that_is_none_is_refused_in_one_line(codec, wrong):
    with pytest.raises(UserError, match=wrong) as refused:
        Group(SyncSGD(), np.zeros(3), workers=2, codec=codec)
    assert "\n" not in str(refused.value)


def test_parameters_are_not_made_sparse():
    for name, kind in SCHEMES.items():
        if kind.sends == "params" and kind().sync.uses_ps and not kind().sends_in_turn:
            assert rounded(kind(), "int8").codec.remembers
            with pytest.raises(
                UserError, match=f"{name} sends parameters, for which a codec is one of bf16, int8. Rec"
            ):
                rounded(kind(), "topk:fraction=0.1")
    with pytest.raises(UserError, match="local_sgd sends parameters"):
        Group(LocalSGD(), np.zeros(3), workers=2, codec="sign")


@pytest.mark.rotating
def test_what_a_codec_keeps_survives_another_number_of_ps_tasks(tmp_path):
    """The residual of the whole message, cut anew."""
    asked = {"workers": 2, "backend": "threads", "batch_size": 4, "hidden": (4,), "codec": "topk:fraction=0.05"}
    asked |= {"recovery": Recovery(checkpoint_steps=1000)}
    longer = record(SyncSGD(), tmp_path / "longer", ps=2, steps=16, **asked)
    record(SyncSGD(), tmp_path / "run", ps=2, steps=8, **asked)
    again = record(SyncSGD(), tmp_path / "run", ps=3, steps=16, **asked)
    assert again.result["recovery"]["resumed_from"] == 8
    assert again.result["recovery"]["warnings"] == []
    np.testing.assert_allclose(again.center, longer.center, rtol=1e-6)


def test_a_momentum_of_one_that_would_never_let_a_gradient_in_is_refused():
    with pytest.raises(UserError, match=r"^momentum must be below 1\. Received: momentum=1"):
        EF21SGDM(momentum=1.0)
