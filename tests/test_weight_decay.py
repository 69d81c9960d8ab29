"""Weight decay moves no variable without a gradient, and none that the user excludes, as in Keras."""

import json

import keras
import numpy as np
import pytest

import distsgd
from distsgd import Cluster, DeMo, LocalSGD, SignSGDMV, SyncSGD, UserError, train
from distsgd.common.cli.main import dispatch
from distsgd.common.contract.decay import decayed_of
from distsgd.common.contract.inner import INNER
from distsgd.common.contract.rounding import rounded
from distsgd.common.data.models import ModelRecipe
from distsgd.common.replay.reference.inner_steps import INNER_STEPS
from distsgd.common.replay.reference.synchronous_rules import signsgd_mv
from distsgd.common.training import try_on_a_batch
from runs import job_of

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(16, 3)).astype("f"), RNG.normal(size=(16, 1)).astype("f")


def two_heads(optimizer="rmsprop"):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    trunk = keras.layers.LayerNormalization(name="norm")(inputs)
    heads = [keras.layers.Dense(1, bias_initializer="ones", name=name)(trunk) for name in ("used", "unused")]
    model = keras.Model(inputs, heads)
    model.compile(optimizer, loss=["mse", None])
    return model


def weights(model):
    return {v.path: np.array(v) for v in model.trainable_variables}


def trained(tmp_path, model, **options):
    how = {"batch_size": 16, "steps": 3, "verbose": False, "probe": False, "run_dir": tmp_path / "run", **options}
    scheme = LocalSGD(learning_rate=0.1, inner_optimizer="adamw:weight_decay=0.5,epsilon=1e-7", communication_period=1)
    before = weights(model)
    train(model, (X, [Y, Y]), scheme, cluster=Cluster.local(1, backend="threads"), **how)
    return before, weights(model), json.loads((tmp_path / "run" / "config.json").read_text())


@pytest.mark.rotating
def test_a_run_with_weight_decay_and_an_unused_head_is_that_of_keras(tmp_path):
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    theirs = two_heads(optimizer)
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        theirs.fit(X, [Y, Y], batch_size=16, epochs=3, shuffle=False, verbose=0)
    before, after, config = trained(tmp_path, two_heads(), exclude_from_weight_decay="bias,norm/")
    for path, expected in weights(theirs).items():
        np.testing.assert_allclose(after[path], expected, rtol=1e-4, atol=1e-5)
        assert np.array_equal(after[path], before[path]) == path.startswith("unused"), path
    names = [*before]
    assert {names[i] for i in config["without_decay"]} == {*names} - {"used/kernel"}


@pytest.mark.rotating
def test_a_run_heeds_the_variables_that_the_optimizer_of_the_model_excludes(tmp_path):
    optimizer = keras.optimizers.AdamW()
    model = two_heads(optimizer)
    optimizer.exclude_from_weight_decay(var_list=[model.get_layer("used").bias])
    before, _, config = trained(tmp_path, model, steps=1)
    assert {[*before][i] for i in config["without_decay"]} == {"used/bias", "unused/bias", "unused/kernel"}


def test_the_optimizer_for_fit_heeds_its_own_excluded_variables():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, bias_initializer="ones")])
    optimizer = distsgd.Optimizer(SignSGDMV(momentum=0.0, weight_decay=0.5, learning_rate=0.1), workers=1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    kernel = np.array(model.layers[0].kernel)
    optimizer.apply([np.zeros((3, 1), "f"), np.zeros(1, "f")], model.trainable_variables)
    center, bias = optimizer.center
    np.testing.assert_allclose(center, kernel * 0.95, rtol=1e-5)
    assert bias == 1


@pytest.mark.parametrize(
    ("scheme", "spreads"),
    [(DeMo(), True), (rounded(SyncSGD(), "dct"), True), (rounded(SyncSGD(), "sign"), False), (SyncSGD(), False)],
    ids=["demo", "dct", "sign", "float32"],
)
def test_a_run_names_the_variables_without_a_gradient_that_blocks_reach(scheme, spreads):
    model = two_heads()
    job = job_of(scheme, model=ModelRecipe.of(model), data=(X, [Y, Y]))
    try_on_a_batch(job, model)
    named = [line for line in job.warnings if "the loss does not depend on unused/kernel, unused/bias, but" in line]
    assert len(named) == spreads
    if spreads:
        model.get_layer("unused").trainable = False
        job = job_of(scheme, model=ModelRecipe.of(model), data=(X, [Y, Y]))
        try_on_a_batch(job, model)
        assert not job.warnings


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_an_inner_optimizer_and_its_equations_decay_the_same_variables(name):
    start = [RNG.normal(size=shape) for shape in ((2, 3), (3,), (3, 2), (2,))]
    without, scheme = (
        (1, 2),
        LocalSGD(learning_rate=0.1, communication_period=1, inner_optimizer=f"{name}:weight_decay=0.5"),
    )
    group = distsgd.Group(scheme, start, workers=1, without_decay=without)
    vector, state = np.concatenate([one.ravel() for one in start]), {}
    decays = np.repeat([True, False, False, True], [6, 3, 6, 2])
    shapes = {"shapes": [one.shape for one in start]} if name == "muon" else {}
    for _ in range(3):
        gradient = [RNG.normal(size=one.shape) for one in start]
        group.step(0, gradient)
        g = np.concatenate([one.ravel() for one in gradient])
        vector = INNER_STEPS[name](vector, g, 0.1, state, weight_decay=0.5, decays=decays, **shapes)
    np.testing.assert_allclose(np.concatenate([one.ravel() for one in group.center]), vector, rtol=1e-4, atol=1e-4)
    assert {name for name, kind in INNER.items() if hasattr(kind, "weight_decay")} == {"adamw", "lion", "muon"}


def test_servers_decay_their_slices_of_the_same_variables():
    start = [np.ones(3), np.ones(2), np.ones(4)]
    group = distsgd.Group(
        SignSGDMV(momentum=0.0, weight_decay=0.5, learning_rate=0.1), start, workers=2, ps=4, without_decay=[1]
    )
    for k in range(2):
        group.step(k, [0 * one for one in start])
    decays = np.repeat([True, False, True], [3, 2, 4])
    (expected,) = signsgd_mv(np.ones(9), lambda x, k, t: 0 * x, 2, eta=0.1, steps=1, weight_decay=0.5, decays=decays)
    np.testing.assert_allclose(np.concatenate(group.center), expected, rtol=1e-6)
    np.testing.assert_allclose(np.concatenate(group.point(1)), expected, rtol=1e-6)


def test_the_slices_of_a_mask_are_those_of_the_vector():
    sizes, shapes = [4, 1, 5, 2], [(2, 3), (), (1,), (4,)]
    masks = [np.array(own(np.ones(n, "f"))) for own, n in zip(decayed_of(shapes, {0, 2}, sizes), sizes, strict=True)]
    assert [len(mask) for mask in masks] == sizes
    assert np.concatenate(masks).tolist() == [0] * 6 + [1] + [0] + [1] * 4


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.rotating
def test_a_run_without_the_decay_of_biases_is_replayed(tmp_path, capsys, backend):
    run = str(tmp_path / "run")
    inner = ["--inner-optimizer", "muon:weight_decay=0.5", "--exclude-from-weight-decay", "bias"]
    flags = [
        "--backend",
        backend,
        "--steps",
        "6",
        "--model",
        "mlp:hidden=4",
        "--dataset",
        "synthetic:examples=64,test=8",
        "--batch-size",
        "8",
        "--run-dir",
        run,
        "--quiet",
        "--no-probe",
    ]
    assert dispatch(["local_sgd", *inner, *flags, "--communication-period", "3"]) == 0
    assert dispatch(["replay", run]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["without_decay"], config["exclude_from_weight_decay"]) == ([1, 3], "bias")
    (tmp_path / "run" / "config.json").write_text(json.dumps(config | {"without_decay": []}))
    assert dispatch(["replay", run]) == 1
    capsys.readouterr()


def test_what_decays_nothing_or_names_no_variable_is_refused(tmp_path):
    with pytest.raises(UserError, match="'gain' occurs in no path of a variable of the model, such as norm/gamma"):
        trained(tmp_path, two_heads(), exclude_from_weight_decay="bias,gain")
    with pytest.raises(UserError, match="sync_sgd has no weight decay here"):
        train(two_heads(), (X, [Y, Y]), SyncSGD(), exclude_from_weight_decay="bias", batch_size=8)
    with pytest.raises(
        UserError, match=r"without_decay must list positions of the arrays, from 0 to 0. Received: \[1\]"
    ):
        distsgd.Group(SyncSGD(), np.zeros(2), workers=1, without_decay=[1])
