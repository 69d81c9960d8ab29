"""A run that is resumed is the run that was not interrupted: state of the workers, and what counts as the same run."""

import keras
import pytest

from distsgd.algorithms import Serial
from distsgd.common import Cluster, Recovery, UserError, train
from runs import DIGITS

# The same run.


def cell(units=8, **names):
    """What a notebook builds anew each time that a cell is run: Keras goes on counting its names."""
    flat = keras.Input((64,))
    inner = keras.Sequential([keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(units)])
    model = keras.Model(flat, keras.layers.Dense(10)(keras.layers.add([inner(flat), inner(flat)])), **names)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def go_on(model, run_dir, steps):
    cluster, keep = Cluster.local(1, backend="threads"), Recovery(checkpoint_steps=1000)
    return train(
        model, DIGITS.train, Serial(), cluster=cluster, steps=steps, recovery=keep, run_dir=run_dir, verbose=False
    )


def test_a_cell_that_is_run_again_goes_on_and_with_another_model_is_refused(tmp_path):
    first, again, other = cell(), cell(), cell(units=9)
    assert first.name != again.name
    go_on(first, tmp_path / "run", 10)
    assert go_on(again, tmp_path / "run", 20).metrics["recovery"]["resumed_from"] == 10
    with pytest.raises(UserError, match=r"holds checkpoints of a run with architecture='6 variables"):
        go_on(other, tmp_path / "run", 30)
    with pytest.raises(UserError, match="holds checkpoints of a run with model='functional'"):
        go_on(cell(name="mine"), tmp_path / "run", 30)
