"""What a scheme of one's own may ask for, and what it is told when it asks for more."""

from dataclasses import dataclass
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import AsyncDiLoCo, SyncSGD, SyncSGDLR
from distsgd.common import Cluster, Recovery, UserError, train
from distsgd.common.contract import Barrier, Int8, WithMemory

SLOPES = np.array([1.0, -2.0, 0.5, 4.0, -0.25], np.float32)
BACKENDS = ["threads", "simulation", pytest.param("processes", marks=pytest.mark.slow)]


def linear():
    """A Keras model whose gradient is y, whatever its five parameters are."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(5, use_bias=False)])
    model.compile(loss=lambda y, p: keras.ops.sum(y * p, axis=-1))
    model.layers[0].kernel.assign(np.zeros((1, 5), np.float32))
    return model


def run(scheme, tmp_path, backend="threads", workers=3, steps=8, ps=2, **options):
    """Train the linear model, as a user does; returns its parameters in the end, and the result."""
    model, data = linear(), (np.ones((24, 1), np.float32), np.tile(SLOPES, (24, 1)))
    cluster = Cluster.local(workers=workers, ps=ps, backend=backend)
    more = {"steps": steps, "batch_size": 4, "run_dir": tmp_path / "run", "verbose": False, "record": "full"} | options
    result = train(model, data, scheme, cluster=cluster, **more)
    return model.layers[0].kernel.numpy()[0], result


class Waiting(SyncSGDLR):
    name = "waiting"
    gate = Barrier(backup_workers=3)


class Replying(AsyncDiLoCo):
    name = "replying"
    reply_codec = WithMemory(Int8())


@pytest.mark.parametrize(
    ("scheme", "message"),
    [(Waiting(), "backup_workers must be fewer"), (Replying(), "a codec of replies keeps no variables")],
)
def test_a_check_of_ones_own_leaves_those_of_gate_and_codec_in_place(scheme, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run(scheme, tmp_path)


def test_the_check_of_a_scheme_is_asked(tmp_path):
    with pytest.raises(UserError, match="momentum_share must be at most 1/3"):
        run(AsyncDiLoCo(momentum_share=0.5), tmp_path)


# Names.


@dataclass(frozen=True, kw_only=True)
class Named(SyncSGD):
    """Variables of all kinds."""

    name = "named"
    local: ClassVar[str] = "own"
    shared: ClassVar[str] = "shared"
    row: ClassVar[str] = "row"

    def local_variables(self, params):
        return {self.local: 0 * params}

    def global_variables(self, center):
        return {self.shared: 0 * center}

    def worker_rows(self, center):
        return {self.row: 0 * center}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"local": "loss"}, r"a local variable cannot be called 'loss': of a worker these names .*gradient"),
        ({"shared": "sent"}, r"a global variable cannot be called 'sent': of a server these names .*center"),
        ({"row": "sender"}, r"a worker row cannot be called 'sender': of a server these names .*center"),
        ({"row": "shared"}, r"a worker row cannot be called 'shared': another variable of the scheme is"),
        ({"local": "_own"}, r"a local variable cannot be called '_own': it is read as worker\._own"),
    ],
)
def test_a_name_that_is_taken_is_refused_before_the_start(names, message, tmp_path):
    with pytest.raises(UserError, match=message):
        run(type("Taken", (Named,), names)(), tmp_path, backend="processes")
    assert not (tmp_path / "run").exists()


class Rows(Named):
    """The mean of the workers' rows; its variables are called as those that engine and gates keep for themselves."""

    local, shared, row = "clock", "inbox", "pulled"

    def global_variables(self, center):
        return {"inbox": 0 * center, **dict.fromkeys(("version", "reply", "arrived", "index"), 0 * center[0])}

    def weigh(self, server, message, staleness):
        server.pulled.assign(message)
        return 0 * message

    def server_update(self, server, message, staleness):
        server.inbox.assign_add(tf.reduce_mean(server.pulled.read_value(), 0))
        server.version.assign_add(1.0)
        server.center.assign(-self.learning_rate * server.inbox)
        return server.center


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_engine_and_gates_keep_for_themselves_takes_no_name(backend, warm, tmp_path):
    kernel, _ = run(
        Rows(learning_rate=0.5),
        tmp_path,
        backend,
        **({} if backend == "simulation" else {"recovery": Recovery(checkpoint_steps=4)}),
    )
    np.testing.assert_allclose(kernel, -0.5 * 8 * SLOPES, rtol=1e-6)


# What is for the message alone.


class Late(SyncSGD):
    name = "late"

    def adopt(self, worker, reply):
        worker.params.assign(reply - 0 * worker.gradient)


class Early(SyncSGD):
    name = "early"

    def local_step(self, worker, gradient):
        worker.params.assign_sub(worker.loss * gradient)


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.parametrize(("scheme", "name"), [(Late(), "gradient"), (Early(), "loss")])
def test_what_is_for_the_message_alone_is_refused_elsewhere(scheme, name, backend, tmp_path):
    with pytest.raises(UserError, match=rf"worker\.{name} is for Scheme\.message alone .* keep it in a local variable"):
        run(scheme, tmp_path, backend)
