"""What a scheme of one's own may ask for, and what it is told when it asks for more."""

import keras
import numpy as np
import pytest

from distsgd.algorithms import AsyncDiLoCo, SyncSGDLR
from distsgd.common import Cluster, UserError, train
from distsgd.common.contract import Barrier, Int8, WithMemory

DATA = np.ones((24, 4), np.float32), np.zeros((24, 1), np.float32)


def dense():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    return model


def run(scheme, tmp_path, backend="threads", workers=3, steps=8, ps=2, **options):
    """Train a small model, as a user does."""
    cluster = Cluster.local(workers=workers, ps=ps, backend=backend)
    more = {"steps": steps, "batch_size": 4, "run_dir": tmp_path / "run", "verbose": False} | options
    return train(dense(), DATA, scheme, cluster=cluster, **more)


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
