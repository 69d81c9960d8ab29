"""Robust schemes: hostile workers send anything, also what is not finite, and the others train on."""

import json

import numpy as np
import pytest
import tensorflow as tf

from distsgd import Cluster, Group, train
from distsgd.algorithms import RFA, SCHEMES, AllReduce, AsyncSGD, CenteredClipping, DeMo, Krum, SyncSGD, TrimmedMean
from distsgd.common import Recovery, UserError
from distsgd.common.contract import Barrier
from distsgd.common.contract.checks import warnings_of
from distsgd.common.data.dataset import largest_labels
from distsgd.common.errors import Diverged
from distsgd.common.hostile import ATTACKS, attack_of
from distsgd.common.replay.reference import robust_rules
from distsgd.common.replay.replay import replay
from distsgd.common.replay.under_attack import ROBUST
from distsgd.common.worker.false_labels import with_false_labels
from runs import DIGITS, record

FEW = {"batch_size": 8, "hidden": (8,)}
BAD = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf, "huge": 1e30, "overflow": 3e38, "-0": -0.0}


def krum(rows, f, chosen):
    """The step of Krum, from the paper: each score is a sum over the W - f - 2 nearest others."""
    finite = np.isfinite(rows).all(1)
    with np.errstate(invalid="ignore"):
        far = ((rows[:, None] - rows[None]) ** 2).sum(2)
    far[~(finite[:, None] & finite)] = np.inf
    scores = [np.sort(np.delete(far[k], k))[: max(1, len(rows) - f - 2)].sum() for k in range(len(rows))]
    order = [k for k in np.argsort(scores, kind="stable") if finite[k]]
    return rows[order[:chosen]].mean(0)


def trimmed(rows, cut):
    """The mean of each coordinate without so many of its smallest and largest values."""
    rows = np.sort(np.where(np.isfinite(rows), rows, np.inf), 0)
    return rows[cut : len(rows) - cut].mean(0)


CASES = {
    "krum of 5": (Krum(), 5, 1, lambda rows: krum(rows, 1, 1)),
    "krum of 8": (Krum(), 8, 2, lambda rows: krum(rows, 2, 1)),
    "krum of 4": (Krum(), 4, 1, lambda rows: krum(rows, 1, 1)),
    "multi-krum of 9": (Krum(chosen=4, hostile_share=0.3), 9, 2, lambda rows: krum(rows, 2, 4)),
    "trimmed mean of 5": (TrimmedMean(), 5, 1, lambda rows: trimmed(rows, 1)),
    "trimmed mean of 8": (TrimmedMean(), 8, 2, lambda rows: trimmed(rows, 2)),
    "median of 5": (TrimmedMean(trim=0.5), 5, 2, lambda rows: trimmed(rows, 2)),
    "median of 6": (TrimmedMean(trim=0.5), 6, 2, lambda rows: trimmed(rows, 2)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.rotating("others")
def test_what_is_not_finite_is_one_of_the_hostile_messages(name):
    scheme, workers, hostile, rule = CASES[name]
    for seed, (kind, bad) in enumerate(BAD.items()):
        rng = np.random.default_rng(seed)
        group, center = Group(scheme, np.zeros(3), workers=workers), np.zeros(3)
        for _ in range(3):
            rows = rng.normal(size=(workers, 3)).astype(np.float32)
            for k in rng.permutation(workers)[:hostile]:
                rows[k, rng.integers(3) :] = bad
            for k in range(workers):
                group.step(k, rows[k])
            center = center - 0.2 * rule(rows.astype(np.float64))
            np.testing.assert_allclose(group.center, center, rtol=1e-5, atol=1e-6, err_msg=f"{name}, {kind}")


@pytest.mark.parametrize("name", ["krum of 8", "median of 5"])
def test_one_more_than_the_rule_withstands_ends_the_run_before_it_reaches_the_center(name):
    scheme, workers, hostile, _ = CASES[name]
    group = Group(scheme, np.zeros(3), workers=workers)
    for k in range(hostile):
        group.step(k, np.full(3, np.nan))
    with pytest.raises(Diverged, match=f"worker {hostile} has a message that is not finite"):
        group.step(hostile, np.full(3, np.inf))
    assert (group.center == 0).all()


class LateKrum(Krum):
    """Krum that does not wait for its slowest worker."""

    name = "late_krum"
    sync = Barrier(backup_workers=1)


def test_a_message_that_is_dropped_leaves_no_row_behind():
    """Once the gradient of a late worker was one of those among which the next step chose."""
    group = Group(LateKrum(learning_rate=1.0), np.zeros(2), workers=4)
    for k in range(3):
        group.step(k, np.array([1.0 + 0.1 * k, 0.0]))
    np.testing.assert_allclose(group.center, [-1.0, 0.0], rtol=1e-6)
    group.step(3, np.array([0.0, 9.0]))  # late
    for k in range(3):  # the set is complete without worker 3, whose row is no neighbour
        group.step(k, np.array([0.0, 8.9 - 3.0 * k]))
    np.testing.assert_allclose(group.center, [-1.0, -8.9], rtol=1e-6)


class Heavy(TrimmedMean):
    """A trimmed mean whose messages have a number beside the vector."""

    name = "heavy"
    scalars = ("steps",)

    def message(self, worker):
        return worker.gradient, {"steps": worker.gradient[0]}

    def global_variables(self, center):
        return {**super().global_variables(center), "seen": 0 * center}

    def server_update(self, server, message, staleness):
        server.seen.assign(0 * server.seen + server.sent.steps)
        return super().server_update(server, message, staleness)


def test_numbers_beside_the_vector_are_the_mean_of_the_messages_that_count():
    group = Group(Heavy(), np.zeros(2), workers=5)
    for k in range(5):
        group.step(k, np.array([np.nan if k == 4 else k, 1.0]))
    (server,) = group._operations.servers
    np.testing.assert_allclose(server.variables["seen"], [1.5, 1.5])
    assert np.isfinite(group.center).all()


@pytest.mark.parametrize("workers", [3, 4])
@pytest.mark.parametrize("size", [1, 7, 9610])
@pytest.mark.rotating("others")
def test_the_two_nearest_gradients_of_few_workers_tie_exactly_and_the_first_is_taken(workers, size):
    """In float32 the distance of a pair once depended on which of both came first."""
    rng, group = np.random.default_rng(size), Group(Krum(learning_rate=1.0), np.zeros(size), workers=workers)
    for _ in range(12):
        before, rows = np.array(group.center), rng.normal(size=(workers, size)).astype(np.float32)
        for k in range(workers):
            group.step(k, rows[k])
        pairs = [(((rows[j].astype(float) - rows[k]) ** 2).sum(), j) for k in range(workers) for j in range(k)]
        np.testing.assert_allclose(before - group.center, rows[min(pairs)[1]], atol=2e-5)


def test_too_many_hostile_workers_are_refused_if_they_are_the_users_and_else_warned_of():
    for workers, fits in ((3, True), (4, False), (5, True), (7, True), (8, True)):
        assert (warnings_of(Krum(), workers) == []) == fits
    (line,) = warnings_of(Krum(), 4)
    assert "1 of 4 workers" in line
    assert "only of 5" in line
    with pytest.raises(UserError, match=r"2 f \+ 2 < W.* Received: hostile_share=0.25, workers=4, so f=1"):
        Krum(hostile_share=0.25).check(4)
    assert not warnings_of(Krum(hostile_share=0.25), 5)


def test_no_other_scheme_tolerates_what_is_not_finite():
    assert {name for name, kind in SCHEMES.items() if kind().sync.outliers} == {*ROBUST}


def metrics(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize(
    ("scheme", "backend", "ps"),
    [
        (Krum(), "threads", 1),
        (TrimmedMean(), "simulation", 1),
        (TrimmedMean(), "threads", 1),
        (TrimmedMean(), "processes", 2),
        (Krum(), "simulation", 1),
        (Krum(), "processes", 1),
    ],
)
@pytest.mark.rotating
def test_a_run_with_a_worker_that_sends_nan_is_that_of_the_equations(scheme, backend, ps, tmp_path):
    servers = {} if backend == "simulation" else {"ps": ps}
    run = record(scheme, tmp_path, workers=5, backend=backend, steps=12, hostile="nan:1", **servers, **FEW)
    assert replay(tmp_path, SCHEMES).agrees
    result = metrics(tmp_path)
    assert result["updates"] == 12
    assert result["recovery"]["refused"] == {"worker 4": 12}
    assert result["dropped"] == 0
    assert np.linalg.norm(run.center - run.start) > 0.01


@pytest.mark.parametrize("attack", [f"{kind}:1" + ",z=1" * (kind == "alie") for kind in ATTACKS if kind != "nan"])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_run_under_each_attack_is_that_of_the_equations(attack, tmp_path):
    record(TrimmedMean(), tmp_path, workers=4, backend="simulation", steps=6, hostile=attack, **FEW)
    assert replay(tmp_path, SCHEMES).agrees


@pytest.mark.parametrize(
    ("scheme", "attack", "how"),
    [
        (SyncSGD(), "alie:2,z=1.5", {"backend": "threads", "ps": 2}),
        (SyncSGD(), "ipm:1,epsilon=2", {"backend": "processes"}),
        (CenteredClipping(bucket=2, hostile_share=0.1), "alie:1,z=2", {"backend": "threads"}),
        (RFA(momentum=0.5), "ipm:1", {"backend": "simulation"}),
        (TrimmedMean(bucket=2, trim=0.2), "alie:1,z=1", {"backend": "processes", "ps": 2}),
        (SyncSGD(), "label-flip:2", {"backend": "processes"}),
    ],
)
@pytest.mark.rotating
def test_a_run_whose_hostile_workers_know_what_others_send_is_that_of_the_equations(scheme, attack, how, tmp_path):
    run = record(scheme, tmp_path, workers=6, steps=8, hostile=attack, **how, **FEW)
    assert replay(tmp_path, SCHEMES).agrees
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["hostile"] == attack
    (tmp_path / "config.json").write_text(json.dumps(config | {"hostile": None}))
    assert not replay(tmp_path, SCHEMES).agrees
    assert np.linalg.norm(run.center - run.start) > 0.005


@pytest.mark.parametrize(
    ("labels", "other"),
    [
        ([0, 3, 9], [9, 6, 0]),
        (np.array([0.0, 3.0, 9.0]), [9, 6, 0]),  # class numbers as floats
        (np.array([0, 3, 9], np.uint8), [9, 6, 0]),
        ([True, False, False], [False, True, True]),
        ([[0.0], [1.0], [1.0]], [[1], [0], [0]]),
        ([[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[0, 1, 0], [1, 0, 0], [0, 0, 1]]),  # one-hot, as whole numbers
        ([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]], [[1, 0], [1, 0], [0, 1]]),
        ([[4, 0], [1, 1], [2, 3]], [[0, 4], [3, 3], [2, 1]]),  # characters of a text
    ],
)
def test_false_labels_are_counted_from_the_other_end_whatever_their_type(labels, other):
    y, x = np.array(labels), np.zeros((3, 2))
    for is_hostile, expected in ((True, np.array(other, y.dtype)), (False, y)):
        batch = (x, {"a": tf.constant(y)}, x)
        _, found, _ = with_false_labels(batch, largest_labels({"a": y}), tf.constant(is_hostile))
        np.testing.assert_array_equal(found["a"], expected)


def test_data_without_labels_have_no_false_ones(tmp_path):
    import keras

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    with pytest.raises(UserError, match=r"label-flip changes the labels of arrays\. Received: data without labels"):
        train(
            model,
            (np.zeros((8, 2)),),
            TrimmedMean(),
            cluster=Cluster.local(workers=3, backend="threads"),
            hostile="label-flip:1",
            run_dir=tmp_path,
        )


def test_an_attack_has_the_strength_of_its_paper_or_one_of_the_users():
    assert attack_of("alie:5").of(25) == pytest.approx(0.2533, abs=1e-4)  # the normal quantile of 0.6
    assert attack_of("alie:2,z=1.5").of(8) == 1.5
    assert attack_of("ipm:2").of(8) == 0.1
    rows = np.random.default_rng(0).normal(size=(7, 3))
    forged = robust_rules.forged(rows, 2, "alie", 1.5)
    np.testing.assert_allclose(forged[5], rows[:5].mean(0) - 1.5 * rows[:5].std(0, ddof=1))
    np.testing.assert_array_equal(forged[5], forged[6])
    np.testing.assert_allclose(robust_rules.forged(rows, 2, "ipm", 0.5)[6], -0.5 * rows[:5].mean(0))


@pytest.mark.parametrize(
    ("scheme", "attack", "message"),
    [
        (SyncSGD(), "alie:1", r"only with z=0: give one, as in alie:1,z=1"),
        (SyncSGD(), "ipm:4", "ipm needs two honest workers"),
        (SyncSGD(), "sign-flip:2,z=1", "hostile takes sign-flip"),
        (SyncSGD(), "alie:2,epsilon=1", "hostile takes sign-flip"),
        (SyncSGD(), "alie:2,z=-1", "z of the attack alie must be positive"),
        (AsyncSGD(), "ipm:1", "needs the messages of all workers at one time.*async_sgd"),
        (SyncSGD(backup_workers=1), "ipm:1", "needs the messages of all workers at one time"),
        (AllReduce(), "alie:1,z=1", "needs the messages of all workers at one time"),
        (DeMo(), "ipm:1", "needs the messages of all workers at one time"),
    ],
)
def test_attacks_that_cannot_be_are_refused(scheme, attack, message, tmp_path):
    with pytest.raises(UserError, match=message):
        record(scheme, tmp_path, workers=5, backend="threads", steps=2, hostile=attack, **FEW)


def test_buckets_of_which_half_may_be_hostile_are_refused():
    with pytest.raises(UserError, match="1 hostile workers of 4 may spoil half of the 2 buckets"):
        TrimmedMean(bucket=2).check(4)
    TrimmedMean(bucket=2).check(6)
    TrimmedMean(bucket=9, trim=0.1).check(5)  # one bucket: the mean


def test_momentum_lets_an_attack_of_small_steps_out_in_the_open():
    """On ½‖x‖² with noise of one, ALIE leaves (f z σ/W)² (1 − β)/(1 + β) in each coordinate of the plain mean."""
    errors = {}
    for beta in (0.0, 0.9):
        rng, rows = np.random.default_rng(1), robust_rules.Rows(momentum=beta)
        rows.attack = lambda m: robust_rules.forged(m, 4, "alie", 1.0)
        path = robust_rules.trimmed_mean(
            *(np.zeros(400), lambda x, k, t, rng=rng: x + rng.normal(size=400), 16),
            **{"eta": 0.05, "beta": 0.0, "steps": 600, "rows": rows},
        )
        errors[beta] = float(np.mean(np.mean(path[300:], 0) ** 2))
    assert errors[0.0] == pytest.approx((4 / 16) ** 2, rel=0.1)
    assert errors[0.9] == pytest.approx((4 / 16) ** 2 * 0.1 / 1.9, rel=0.3)


@pytest.mark.rotating
def test_one_attacker_more_ends_a_run_on_each_back_end(tmp_path):
    for backend in ("threads", "simulation"):
        with pytest.raises(Diverged, match="message that is not finite"):
            record(Krum(), tmp_path / backend, workers=5, backend=backend, steps=6, hostile="inf:2", **FEW)


@pytest.mark.rotating
def test_with_on_nan_drop_the_others_train_on_whatever_the_number_of_attackers(tmp_path):
    options = {"recovery": Recovery(on_nan="drop"), "hostile": "nan:3"}
    record(TrimmedMean(), tmp_path, workers=5, backend="threads", steps=6, **options, **FEW)
    result = metrics(tmp_path)
    assert result["outcome"] == "completed"
    assert np.isfinite(np.load(tmp_path / "center.npz")["center"]).all()
    assert result["updates"] >= 6


@pytest.mark.parametrize("codec", ["int8", "topk:fraction=0.2"])
def test_a_codec_forgets_the_error_of_a_message_that_was_not_finite(codec):
    """Once each later message of that worker was NaN, too."""
    rng, group = np.random.default_rng(0), Group(TrimmedMean(), np.zeros(10), workers=5, codec=codec)
    for t in range(4):
        for k in range(5):
            group.step(k, np.full(10, np.nan) if (k, t) in ((0, 0), (1, 1), (2, 2), (3, 3)) else rng.normal(size=10))
    assert np.isfinite(group.center).all()
    for rows in group._operations.local.codecs:
        assert np.isfinite(rows["memory"]).all()


def with_statistics():
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.rotating
def test_statistics_of_a_hostile_worker_do_not_reach_the_model(backend, tmp_path):
    """The last of four workers has the nines, whose features overflow in the first layer."""
    x, y = DIGITS.train
    x = np.where(y[:, None] == 9, np.float32(3e38), x)
    model, few = with_statistics(), {"steps": 5, "batch_size": 32, "skew": "sorted"}
    cluster = Cluster(workers=4, backend=backend)
    result = train(model, (x, y), TrimmedMean(), cluster=cluster, verbose=False, run_dir=tmp_path, probe=False, **few)
    assert set(result.metrics["recovery"]["refused"]) == {"worker 3"}
    assert all(np.isfinite(weights).all() for weights in model.get_weights())


def test_the_transcriptions_agree_with_the_papers_rules():
    rng = np.random.default_rng(4)
    for name, (scheme, workers, hostile, rule) in CASES.items():
        rows = rng.normal(size=(4, workers, 6))
        rows[:, :hostile] = np.nan
        given = {"eta": 0.2, "steps": 4}
        if isinstance(scheme, Krum):
            given |= {"beta": 0.25 if scheme.hostile_share is None else scheme.hostile_share, "chosen": scheme.chosen}
            path = robust_rules.krum(np.zeros(6), lambda x, k, t, rows=rows: rows[t, k], workers, **given)
        else:
            given["beta"] = scheme.trim
            path = robust_rules.trimmed_mean(np.zeros(6), lambda x, k, t, rows=rows: rows[t, k], workers, **given)
        center = np.zeros(6)
        for t in range(4):
            center = center - 0.2 * rule(rows[t])
            np.testing.assert_allclose(path[t], center, err_msg=name)
