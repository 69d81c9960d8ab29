"""What a user's scheme may use, and the errors where it uses more."""

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import tensorflow as tf
from fair import Fair, fair

from distsgd import Group, Optimizer, common
from distsgd.algorithms import SCHEMES, AsyncDiLoCo, FedBuff, Hogwild, LocalSGD, SyncSGD, SyncSGDLR
from distsgd.common import Cluster, Recovery, UserError, train
from distsgd.common.cluster.platform import Platform
from distsgd.common.contract import (
    Async,
    Barrier,
    Codec,
    Collective,
    EachWorker,
    Int8,
    Period,
    PulledCenter,
    Rounds,
    Scheme,
    WithMemory,
    uniform_numbers,
)
from distsgd.common.contract.decay import weight_decay_of
from distsgd.common.contract.hyperparameters import rates_of, undeclared
from distsgd.common.contract.seeded import uniform
from distsgd.common.contract.stability import diverging_rate
from distsgd.common.data.named import load
from distsgd.common.tasks import plan
from runs import ONES, Harness, linear, quadratic

SPARSE = load("sparse:examples=64,features=64,active=2")
SLOPES = np.array([1.0, -2.0, 0.5, 4.0, -0.25], np.float32)
BACKENDS = ["threads", "simulation"]


def run(scheme, tmp_path, backend="threads", workers=3, steps=8, ps=2, **options):
    """Train the linear model, as a user does; return its parameters in the end, and the result."""
    model, data = linear(), (np.ones((24, 1), np.float32), np.tile(SLOPES, (24, 1)))
    cluster = Cluster.local(workers=workers, ps=ps, backend=backend)
    more = {"steps": steps, "batch_size": 4, "run_dir": tmp_path / "run", "verbose": False, "record": "full"} | options
    result = train(model, data, scheme, cluster=cluster, **more)
    return model.layers[0].kernel.numpy()[0], result


def ended(tmp_path):
    return json.loads((tmp_path / "run" / "result.json").read_text())


class Waiting(SyncSGDLR):
    name = "waiting"
    sync = Barrier(backup_workers=3)


class Misnamed(AsyncDiLoCo):
    name = "misnamed"
    sync: Any = "barrier"


class Replying(AsyncDiLoCo):
    name = "replying"
    codec = Codec(), WithMemory(Int8())


@dataclass(frozen=True, kw_only=True)
class Every(Scheme):
    name = "every"
    sync_every: Period = 5


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (Every(), "the field of this type must be called communication_period: rename sync_every, or"),
        (Waiting(), "backup_workers must be fewer"),
        (Replying(), "the codec of replies cannot keep variables"),
        (Misnamed(), "misnamed: sync must be a rule, as in sync = Barrier\\(\\). Received: sync='barrier'"),
        (AsyncDiLoCo(momentum_share=0.5), "momentum_share must be at most 1/3"),
    ],
)
def test_a_run_asks_the_checks_of_scheme_rule_and_codec(scheme, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run(scheme, tmp_path)


def names_that_are_read():
    """Return the names of attributes that common/ reads as strings, where these are no names of the contract."""
    calls = (
        node
        for file in Path(common.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr", "declared")
    )
    names = {call.args[1].value for call in calls if isinstance(call.args[1], ast.Constant)}
    return {"learning_rate", "momentum", "fragments"} | {
        name for name in names if not (hasattr(Scheme, name) or name.startswith("__") or name == "name")
    }


def test_a_field_that_the_engine_does_not_declare_is_the_authors_own():
    """Whatever its name: of all that common/ reads by its name, only what a type declares has a meaning there."""
    names = names_that_are_read()
    assert {"delay", "inner_optimizer", "communication_period", "weight_decay"} < names

    class Plain(Scheme):
        name = "plain"
        sync = Barrier()

        def server_update(self, server, message, staleness):
            server.center.assign_sub(message)
            return server.center

    def centers(own):
        kinds = {"__annotations__": dict.fromkeys(own, "Any")}
        scheme = dataclass(frozen=True, kw_only=True)(type("Own", (Plain,), own | kinds))()
        assert not undeclared(scheme)
        assert not scheme.scheduled
        assert (scheme.period, scheme.overlap) == (1, 0)
        assert (weight_decay_of(scheme), rates_of(scheme), diverging_rate(scheme, 2, 1.0)) == (0.0, {}, None)
        assert Optimizer(scheme, workers=2).learning_rate == 0
        group = Group(scheme, np.ones(2), workers=2)
        for k in [0, 1, 1, 0]:
            group.step(k, group.point(k) / 4)
        return group.version, group.center

    (updates, plain), (_, same) = centers({}), centers(dict.fromkeys(names, 0.5) | {"of_step": lambda step: 0.5})
    assert updates == 2
    np.testing.assert_array_equal(same, plain)


def test_a_whole_number_with_a_name_of_the_engine_and_no_type_of_it_is_said_in_one_line():
    @dataclass(frozen=True, kw_only=True)
    class Own(Scheme):
        name = "own"
        communication_period: Period = 3
        delay: int = 1

    (line,) = undeclared(Own())
    assert line == (
        "own: delay is a number of your own rule, which the engine does not read: for its meaning in the engine give "
        "the field the type Delay"
    )
    assert (Own().period, Own().overlap) == (3, 0)
    assert not [line for scheme in SCHEMES.values() for line in undeclared(scheme())]


class Unmerged(Scheme):
    name = "unmerged"


class Shared(Scheme):
    name = "shared"
    sync = Collective()


class Nameless(SyncSGD):
    name = None


class Numbered(SyncSGD):
    name = "numbered"

    def global_variables(self, center):
        return {"count": EachWorker(np.zeros(4))}


class Marked(SyncSGD):
    name = "marked"

    def local_variables(self, params):
        return {"rows": EachWorker(0 * params)}


class Unmade(SyncSGD):
    name = "unmade"

    def global_variables(self, center):
        return {"rows": PulledCenter}


@pytest.mark.parametrize(
    ("scheme", "ps", "message"),
    [
        (Unmerged(), 2, r"unmerged has no server_update\(self, server, message, staleness\): write one$"),
        (Shared(), 1, r"shared has no server_update.* \(without a ps, threads .* mean message with it: return it\)"),
        (Nameless(), 2, 'class Nameless has no name: give it one, as in name = "nameless"'),
        (
            Numbered(),
            2,
            r"numbered: count is kept for each worker: it must begin as a vector .*as a number.*Received: array\(",
        ),
        (Marked(), 2, "marked: rows must be a value here; global_variables may return .*Received: EachWorker"),
        (Unmade(), 2, "unmade: rows must be a value here.*Received: <class"),
    ],
)
def test_a_scheme_without_a_rule_or_a_name_is_refused(scheme, ps, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run(scheme, tmp_path, ps=ps)
    assert not (tmp_path / "run").exists()


# Names.


class Named(SyncSGD):
    """Variables of all kinds."""

    name = "named"
    local: ClassVar[str] = "own"
    shared: ClassVar[str] = "shared"
    row: ClassVar[str] = "row"

    def local_variables(self, params):
        return {self.local: 0 * params}

    def global_variables(self, center):
        return {self.shared: 0 * center, self.row: EachWorker(0 * center)}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"local": "loss"},
            r"a local variable cannot be called 'loss': a worker has members with the names .*gradient",
        ),
        (
            {"shared": "sent"},
            r"a global variable cannot be called 'sent': a server has members with the names .*center",
        ),
        (
            {"row": "sender"},
            r"a global variable cannot be called 'sender': a server has members with the names .*center",
        ),
        ({"local": "_own"}, r"a local variable cannot be called '_own': it is read as worker\._own"),
        ({"shared": "θ"}, r"a global variable cannot be called 'θ': it is read as server\.θ\. Use letters from a to z"),
        ({"row": "lambda"}, r"a global variable cannot be called 'lambda': it is read as server\.lambda"),
    ],
)
def test_a_variable_with_a_name_that_is_taken_is_refused(names, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run(type("Taken", (Named,), names)(), tmp_path, backend="processes")
    assert not (tmp_path / "run").exists()


class Rows(Named):
    """The mean of the workers' rows; its variables are called as those of the engine and its rules."""

    local, shared, row = "clock", "inbox", "pulled"

    def global_variables(self, center):
        numbers = dict.fromkeys(("version", "reply", "arrived", "index"), 0 * center[0])
        return {**super().global_variables(center), **numbers}

    def weighted(self, server, message, staleness):
        server.pulled.assign(message)
        return 0 * message

    def server_update(self, server, message, staleness):
        server.inbox.assign_add(tf.reduce_mean(server.pulled.read_value(), 0))
        server.version.assign_add(1.0)
        server.center.assign(-self.learning_rate * server.inbox)
        return server.center


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.rotating
def test_a_scheme_may_use_the_names_of_variables_of_rules_and_server(backend, warm, tmp_path):
    kernel, _ = run(
        Rows(learning_rate=0.5), tmp_path, backend,
        **({} if backend == "simulation" else {"recovery": Recovery(checkpoint_steps=4)}),
    )  # fmt: skip
    np.testing.assert_allclose(kernel, -0.5 * 8 * SLOPES, rtol=1e-6)


# What is for the message alone.


class Late(SyncSGD):
    name = "late"

    def on_reply(self, worker, reply):
        worker.params.assign(reply - 0 * worker.gradient)


class Early(SyncSGD):
    name = "early"

    def local_step(self, worker, gradient):
        worker.params.assign_sub(worker.loss * gradient)


class Unsaid(LocalSGD):
    name = "unsaid"

    def message(self, worker):
        return worker.params - 0 * worker.gradient_sum


class UnsaidOfOne(SyncSGD):
    name = "unsaid_of_one"

    def message(self, worker):
        return worker.gradient_sum


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.parametrize(
    ("scheme", "name"),
    [(Late(), "gradient"), (Early(), "loss"), (Unsaid(), "gradient_sum"), (UnsaidOfOne(), "gradient_sum")],
)
@pytest.mark.rotating("others")
def test_an_attribute_for_the_message_alone_is_refused_elsewhere(scheme, name, backend, tmp_path):
    with pytest.raises(UserError, match=rf"worker\.{name} is for Scheme\.message alone .* keep it in a local variable"):
        run(scheme, tmp_path, backend)


# Operators.


class Compared(Scheme):
    """Python's operators on all that a scheme sees; a row and a number of each worker are used like variables."""

    name = "compared"

    def local_variables(self, params):
        return {"count": 0.0, "is_zero": tf.cast(params == 0, tf.float32)}

    def global_variables(self, center):
        return {"total": EachWorker(tf.where(center == 0, 1.0, 0.0)), "merged": EachWorker(0)}

    def message(self, worker):
        worker.count.assign_add(1.0)
        factor = tf.where(worker.index == 0, 2.0, 1.0) * tf.where(worker.round % 2 == 0, 1.0, 3.0)
        return factor * tf.where(worker.count != 2, 1.0, 5.0) * worker.gradient + worker.is_zero

    def server_update(self, server, message, staleness):
        server.merged.assign_add(1)
        server.merged.assign(server.merged + 1)
        server.total.assign_add(message)
        rate = tf.where(server.merged == 6, 0.1, 0.01) * tf.where(staleness == 0, 1.0, 0.5)
        server.center.assign_sub(rate * server.total)
        return server.center


def compared(theta, order):
    """The last center, in NumPy."""
    pulled, count = dict.fromkeys(order, (theta, 0)), dict.fromkeys(order, 0)
    zero = 1.0 * (theta == 0)  # the element in the middle
    total = dict.fromkeys(order, zero)
    for version, k in enumerate(order):
        (x, at), number = pulled[k], count[k]
        factor = (2 if k == 0 else 1) * (1 if number % 2 == 0 else 3) * (5 if number == 1 else 1)
        count[k], total[k] = number + 1, total[k] + factor * x + zero
        theta = theta - (0.1 if number == 2 else 0.01) * (1 if at == version else 0.5) * total[k]
        pulled[k] = theta, version + 1
    return theta


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.rotating
def test_operators_compare_values_and_take_rows_and_numbers_on_backends(backend, warm, tmp_path):
    start = np.linspace(-2, 2, 9)
    model, cluster = quadratic(start), Cluster.local(workers=3, ps=2, backend=backend)
    options = {"steps": 6, "batch_size": 4, "record": "full", "run_dir": tmp_path / "run"}
    train(model, ONES, Compared(), cluster=cluster, verbose=False, **options)
    with np.load(tmp_path / "run" / "trace.npz") as trace:
        order = trace["worker"].tolist()
    np.testing.assert_allclose(model.layers[0].kernel.numpy()[0], compared(start, order), rtol=1e-5, atol=1e-6)


# Messages that count and make no update, and a number for each worker.


@pytest.mark.parametrize(
    ("scheme", "backend"),
    [
        *((Fair(), backend) for backend in BACKENDS),
        (Fair(buffer_size=4), "processes"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.rotating
def test_several_messages_make_an_update_of_an_asynchronous_rule(scheme, backend, warm, tmp_path):
    start = [1.0, -2.0, 0.5, 3.0]
    model, cluster = quadratic(start), Cluster.local(workers=3, ps=2, backend=backend)
    options = {"steps": 30, "batch_size": 4, "evaluate_every": 2, "record": "full", "run_dir": tmp_path / "run"}
    train(model, ONES, scheme, cluster=cluster, validation_data=ONES, verbose=False, **options)
    with np.load(tmp_path / "run" / "trace.npz") as trace:
        order, found = trace["worker"].tolist(), list(zip(trace["version"], trace["staleness"], strict=True))
        assert trace["accepted"].all()
    thetas, seen = fair(np.array(start), order, lambda x: x, scheme)
    np.testing.assert_allclose(model.layers[0].kernel.numpy()[0], thetas[-1], rtol=1e-5)
    updates = 3 * 15 // scheme.buffer_size
    assert (found, len(order)) == (seen, 3 * 15)
    assert (ended(tmp_path)["updates"], ended(tmp_path)["staleness"]["max"]) == (updates, max(late for _, late in seen))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    looked_at = {row["version"]: row["test_loss"] for row in rows if row["kind"] == "center"}
    assert {*range(0, updates + 1, 2), updates} <= looked_at.keys()
    for version, loss in looked_at.items():
        assert loss == pytest.approx(thetas[version] @ thetas[version] / 2, rel=1e-4)


class Lopsided(Fair):
    """Worker 0 does one round of each run: it has an old center at the end of it."""

    name = "lopsided"

    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.even(steps if worker else self.period, self.period)


@pytest.mark.rotating
def test_a_resumed_run_counts_on_messages_numbers_of_workers_and_staleness(tmp_path):
    start, scheme = [1.0, -2.0, 0.5], Lopsided(buffer_size=4)
    options = {"batch_size": 4, "record": "full", "run_dir": tmp_path / "run", "verbose": False}
    for steps in (10, 20):
        cluster = Cluster.local(3, ps=2 if steps == 10 else 1, backend="threads")
        model, keep = quadratic(start), Recovery(checkpoint_steps=1000)
        train(model, ONES, scheme, cluster=cluster, steps=steps, recovery=keep, **options)
    with np.load(tmp_path / "run" / "trace.npz") as trace:
        order, found = trace["worker"].tolist(), list(zip(trace["version"], trace["staleness"], strict=True))
    thetas, seen = fair(np.array(start), order, lambda x: x, scheme)
    assert (found, len(order)) == (seen, 2 * (1 + 5 + 5))
    assert ended(tmp_path)["updates"] == 22 // 4
    np.testing.assert_allclose(model.layers[0].kernel.numpy()[0], thetas[-1], rtol=1e-5)


SHORT = {"communication_period": 2, "learning_rate": 0.1}


class Fresh(FedBuff):
    name = "fresh"

    @property
    def sync(self):
        return Async(messages_per_update=self.messages_per_update, drop_after=0)


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.rotating
def test_a_dropped_message_does_not_count_for_an_update(backend, tmp_path):
    machines = {"platform": Platform(compute="exponential")} if backend == "simulation" else {}
    cluster = Cluster.local(3, ps=2, backend=backend, **machines)
    model, scheme = quadratic([1.0, -2.0, 0.5]), Fresh(messages_per_update=2, **SHORT)
    options = {"batch_size": 4, "record": "full", "run_dir": tmp_path / "run", "verbose": False}
    options |= {"schedule": [0, 1, 2, 2, 1, 0, 2, 1, 0, 0, 0, 1]} if backend == "threads" else {"steps": 16}
    train(model, ONES, scheme, cluster=cluster, **options)
    with np.load(tmp_path / "run" / "trace.npz") as trace:
        rows = list(zip(*(trace[name].tolist() for name in ("worker", "version", "accepted")), strict=True))
    theta, buffer, number, version = np.array([1.0, -2.0, 0.5]), 0, 0, 0
    pulled, found = dict.fromkeys(range(3), (theta, 0)), []
    for k, _, _ in rows:
        x, at = pulled[k]
        fresh = at == version
        found.append((k, version, int(fresh)))
        if fresh:
            buffer, number = buffer + (1 - 0.9**2) * x / 2, number + 1
            if number % 2 == 0:
                theta, buffer, version = theta - buffer, 0, version + 1
        pulled[k] = theta, version
    assert rows == found
    assert 0 < sum(accepted for *_, accepted in rows) < len(rows) - 3
    assert ended(tmp_path)["updates"] == version
    np.testing.assert_allclose(model.layers[0].kernel.numpy()[0], theta, rtol=1e-5)


@pytest.mark.gate
def test_a_run_ends_with_an_update_not_with_a_message(tmp_path):
    run(FedBuff(messages_per_update=3, **SHORT), tmp_path, "simulation", steps=40, stop_at_version=5)
    assert ended(tmp_path)["updates"] == 5


class Waits(FedBuff):
    name = "waits"
    sync = Barrier()


def test_several_messages_make_an_update_only_of_an_asynchronous_rule(tmp_path):
    with pytest.raises(
        UserError, match=r"waits: messages_per_update belongs to the synchronization rule.*=3, sync=Barrier\(\)"
    ):
        run(Waits(messages_per_update=3), tmp_path)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"uses_ps": False}, r'uses_ps follows from the kind .*kind = "collective"\. Received: uses_ps=False'),
        ({"gossips": True}, r'gossips follows from the kind .*kind = "gossip"\. Received: gossips=True'),
        ({"kind": "ring"}, r"kind must be one of alone, server, .*pairs\. Received: kind='ring'"),
    ],
    ids=["uses_ps", "gossips", "kind"],
)
def test_a_rule_declares_its_kind_and_nothing_that_follows_from_it(own, said):
    with pytest.raises(UserError, match=f"class Own: {said}"):
        type("Own", (Async,), own)


# Rounds, steps and random numbers.


def test_random_numbers_are_uniform_and_follow_from_seed_and_key_alone():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        found = session.run([uniform(seed, 5000, *key) for seed, key in ((3, (1, 2)), (3, (2, 1)), (-4, (2**40, 0)))])
    for values, (seed, key) in zip(found, ((3, (1, 2)), (3, (2, 1)), (-4, (2**40, 0))), strict=True):
        np.testing.assert_array_equal(values, uniform_numbers(seed, 5000, *key))
        assert 0 <= values.min() <= values.max() < 1
        assert np.bincount((10 * values).astype(int), minlength=10) == pytest.approx(500, abs=5 * 500**0.5)
    assert abs(np.corrcoef(found)[np.triu_indices(3, 1)]).max() < 5 / 5000**0.5


class Halved(SyncSGD):
    name = "halved"

    def message(self, worker):
        return worker.gradient * worker.uniform(worker.step / 2)


def test_a_key_of_random_numbers_is_whole_numbers(tmp_path):
    with pytest.raises(TypeError, match=r"a key of worker\.uniform is made of whole numbers\. .* float64"):
        run(Halved(), tmp_path)


class Numbered(Hogwild):
    """Gradients that count as often as the number of their round says."""

    name = "numbered"

    def message(self, worker):
        times, gradient = tf.cast(worker.round + worker.step, tf.float32), worker.gradient
        return tf.IndexedSlices(times * gradient.values, gradient.indices)


@pytest.mark.rotating
def test_rounds_of_one_call_count_as_those_of_separate_calls(monkeypatch):
    monkeypatch.setattr(plan, "LONG_RUN_ROUNDS", 1)
    monkeypatch.setattr(plan, "ROUNDS_PER_CALL", 3)
    centers = []
    for calls in (1, 3):
        with Harness(Numbered(), workers=1, data=SPARSE) as harness:
            rows = np.arange(3 * 8, dtype=np.int32).reshape(3, 1, 8)
            worker = harness.worker(0)
            for first, batches in zip(range(5, 8), np.split(rows, calls), strict=False):
                worker.calls.rounds("exchange", batches, (first, first, 0, 0))
            centers.append(harness.run("center"))
    np.testing.assert_allclose(*centers, rtol=1e-6)
