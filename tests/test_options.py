"""Options that every algorithm has: they do what NumPy says they do."""

import copy
import inspect
import itertools
import json
import math
import pickle
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import get_type_hints

import keras
import numpy as np
import pytest

from distsgd.algorithms import (
    EASGD,
    SCHEMES,
    AllReduce,
    AsyncSGD,
    Downpour,
    LocalSGD,
    Scaffold,
    Serial,
    SyncSGD,
    SyncSGDLR,
)
from distsgd.common import Cluster, Group, Optimizer, Platform, Recovery, Scheme, UserError, join, problem, sweep, train
from distsgd.common.arguments import close_to
from distsgd.common.contract.schedules import shaped
from distsgd.common.data.dataset import shard_rows
from distsgd.common.replay.reference import asynchronous_rules
from distsgd.common.replay.reference.gradients import batch, mlp_gradient, skewed_rows
from distsgd.common.replay.replay import read
from distsgd.common.sources import meanings
from distsgd.common.tasks.options import Keywords, RunOptions
from distsgd.common.training import _in_order, cluster_of
from doubles import PausingAsyncSGD
from runs import DIGITS, HIDDEN, ONES, quadratic, record

CLOSE = {"rtol": 2e-5, "atol": 2e-6}
SCHEDULE = [0, 1, 1, 0, 2, 0, 2, 1, 1, 0, 2, 2] * 2


def threads(scheme, tmp_path, **options):
    return record(scheme, tmp_path / "run", **{"backend": "threads", "workers": 3, "schedule": SCHEDULE} | options)


@pytest.mark.rotating
def test_numbers_of_numpy_are_taken_for_those_of_python(tmp_path):
    scheme = Downpour(communication_period=np.int64(2), learning_rate=np.float32(0.5))
    given = {"steps": np.int32(4), "batch_size": np.int64(8), "seed": np.int64(3)}
    cluster = Cluster.local(2, backend="threads")
    train(quadratic([1.0]), ONES, scheme, cluster=cluster, run_dir=tmp_path / "run", verbose=False, **given)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["batch_size"], config["hyperparameters"]["communication_period"]) == (8, 2)


@pytest.mark.rotating
def test_l2_is_added_before_the_gradient_is_clipped_to_the_norm(tmp_path):
    run = threads(AsyncSGD(), tmp_path, l2=0.5, clip_norm=2.0)

    def gradient(x, k, t):
        g = run.gradient(x, k, t) + 0.5 * x
        return g * min(1, 2 / np.linalg.norm(g))

    path = asynchronous_rules.async_sgd(run.start, gradient, run.order, 3, eta=0.1)
    np.testing.assert_allclose(run.center, path[-1], **CLOSE)
    assert np.linalg.norm(run.gradient(run.start, 0, 0) + 0.5 * run.start) > 2  # it was clipped


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.rotating
def test_hostile_workers_compute_with_the_negative_of_their_gradients(backend, tmp_path):
    run = threads(SyncSGD(), tmp_path, hostile="sign-flip:2", backend=backend, schedule=(), steps=12)
    center = run.start
    for t in range(12):
        honest, *hostile = (run.gradient(center, k, t) for k in range(3))
        center = center - 0.2 * (honest - sum(hostile)) / 3
    np.testing.assert_allclose(run.center, center, **CLOSE)


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.rotating
def test_workers_train_on_the_clients_that_are_drawn_in_each_round(backend, tmp_path):
    """Three workers play seven clients: some twice, each on its next batches, and no two the same in a round."""
    how = {"participation": 0.42, "skew": "dirichlet:alpha=0.5", "schedule": (), "steps": 12}
    run = threads(LocalSGD(communication_period=2, learning_rate=0.1), tmp_path, backend=backend, **how)
    shards, gradient = skewed_rows(0, DIGITS.train[1], 7, 0.5), mlp_gradient(*DIGITS.train, [64, *HIDDEN, 10])
    center, done = run.start, [0] * 7
    for number in range(6):
        drawn, ends = np.random.default_rng([0, 0, 1 + number]).permutation(7)[:3].tolist(), []
        for client in drawn:
            x = center
            for _ in range(2):
                rows = shards[client][batch(0, client, done[client], len(shards[client]), 16)]
                x, done[client] = x - 0.1 * gradient(x, rows), done[client] + 1
            ends.append(x)
        center = np.mean(ends, axis=0)
    assert max(done) > 2
    np.testing.assert_allclose(run.center, center, **CLOSE)
    assert read(tmp_path / "run", SCHEMES).error() < 1e-5


@pytest.mark.rotating
def test_clients_whose_first_round_is_a_step_replay(tmp_path):
    """The reference once gave each round a whole period of a client's batches."""
    run = threads(EASGD(communication_period=3), tmp_path, participation=0.42, schedule=(), steps=12)
    assert np.linalg.norm(run.center - run.start) > 0.01
    assert read(tmp_path / "run", SCHEMES).error() < 1e-5


def checked_average(run, path, most, folder):
    """Return the average of the centers of a run, which is the one that is saved."""
    average = run.start
    for n, center in enumerate(path):
        decay = min(most, (1 + n) / (10 + n))
        average = decay * average + (1 - decay) * center
    with np.load(folder / "run" / "center.npz") as saved:
        np.testing.assert_allclose(saved["average"], average, **CLOSE)
    return average


@pytest.mark.rotating
def test_the_average_follows_the_center_and_is_what_the_model_gets(tmp_path):
    run = threads(AsyncSGD(), tmp_path, ema_decay=0.8)
    path = asynchronous_rules.async_sgd(run.start, run.gradient, run.order, 3, eta=0.1)
    average = checked_average(run, path, 0.8, tmp_path)
    model = keras.models.load_model(tmp_path / "run" / "model.keras", compile=False)
    np.testing.assert_allclose(np.concatenate([w.ravel() for w in model.get_weights()]), average, **CLOSE)


@pytest.mark.parametrize("scheme", [Serial(), AllReduce()], ids=lambda s: s.name)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_without_a_server_the_average_moves_with_every_step(scheme, tmp_path):
    run = threads(scheme, tmp_path, workers=1, schedule=(), steps=70, ema_decay=0.9)
    checked_average(run, asynchronous_rules.serial(run.start, run.gradient, 70, eta=0.2), 0.9, tmp_path)


def cosine(initial, steps):
    return lambda t: initial * (1 + np.cos(np.pi * min(t, steps) / steps)) / 2


@pytest.mark.rotating
def test_a_schedule_of_keras_is_a_function_of_the_local_step(tmp_path):
    """Of one worker: together they are no faster."""
    schedule = keras.optimizers.schedules.CosineDecay(0.3, 20)
    run = threads(SyncSGD(learning_rate=schedule), tmp_path, schedule=(), steps=16)
    theta = run.start
    for t in range(16):
        theta = theta - cosine(0.3, 20)(t) * np.mean([run.gradient(theta, k, t) for k in range(3)], axis=0)
    np.testing.assert_allclose(run.center, theta, **CLOSE)


@pytest.mark.rotating
def test_a_server_s_schedule_counts_local_steps_of_the_average_worker(tmp_path):
    scheme = Downpour(communication_period=2, server_learning_rate=keras.optimizers.schedules.CosineDecay(0.1, 20))
    run = threads(scheme, tmp_path)
    theta, squares, path = run.start, np.full_like(run.start, 0.1), []
    x, t = [theta] * 3, [0] * 3
    for version, k in enumerate(run.order):
        _, a = asynchronous_rules.window(x[k], run.gradient, k, t[k], 2, 0.1)
        t[k] += 2
        squares = squares + a * a
        theta = theta - cosine(0.1, 20)(version * 2 / 3) * a / np.sqrt(squares)
        x[k] = theta
        path.append(theta)
    np.testing.assert_allclose(run.center, theta, **CLOSE)


@pytest.mark.parametrize(("shape", "half"), [("linear", 0.05), ("cosine", 0.05), ("exponential", 0.01)])
def test_schedules_by_name_fall_over_the_run(shape, half):
    scheme = shaped(Downpour(server_learning_rate=0.1), shape, 100)
    assert float(scheme.learning_rate(0)) == pytest.approx(0.1)
    assert float(scheme.server_learning_rate(50)) == pytest.approx(half)


def test_a_scheme_without_a_single_rate_has_no_schedule():
    with pytest.raises(UserError, match="no learning_rate"):
        shaped(SyncSGDLR(), "cosine", 100)


@pytest.mark.rotating
def test_devices_train_a_model_with_batch_normalisation_and_dropout(tmp_path):
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(32),
            layers.BatchNormalization(),
            layers.Activation("tanh"),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    result = train(
        model, DIGITS.train, AllReduce(), cluster=Cluster.local(2, devices_per_worker=2, backend="threads"),
        epochs=10, validation_data=DIGITS.test, run_dir=tmp_path, verbose=False,
    )  # fmt: skip
    assert result.metrics["test_accuracy"] > 0.9


@pytest.mark.rotating
def test_running_statistics_are_the_means_of_those_of_the_workers_shards(tmp_path):
    """Each batch is the whole shard, so that NumPy knows its mean and variance."""
    data = np.random.default_rng(0).normal([1, -2, 3], [1, 2, 3], (60, 3)).astype("f"), np.zeros(60, "i")
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(momentum=0.7), keras.layers.Dense(2)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    result = train(
        model, data, AllReduce(), cluster=Cluster.local(3, backend="threads"), steps=4, batch_size=20,
        seed=5, run_dir=tmp_path / "run", verbose=False,
    )  # fmt: skip
    shards = data[0][shard_rows(data, 3, 5)]
    statistics, kept = result.model.layers[0], 0.7**4
    np.testing.assert_allclose(statistics.moving_mean, (1 - kept) * shards.mean(1).mean(0), rtol=1e-5)
    np.testing.assert_allclose(statistics.moving_variance, kept + (1 - kept) * shards.var(1).mean(0), rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 5, "devices_per_worker": 2}, "multiple of the devices"),
        ({"devices_per_worker": 0}, "devices_per_worker must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1. Received: evaluate_every=0"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"l2": -1.0}, "l2"),
        ({"ema_decay": 1.5}, "ema_decay"),
        (
            {"hostile": "noise:1"},
            "hostile takes sign-flip, huge, inf, nan, label-flip, alie, ipm and a number of workers, as in sign-flip:2",
        ),
        ({"participation": 0}, "participation must be a positive number. Received: participation=0"),
        ({"participation": "0.1"}, "participation must be a positive number. Received: participation='0.1'"),
        ({"participation": 1.5}, "participation must be at most 1. Received: participation=1.5"),
        ({"participation": 0.5, "hostile": "sign-flip:1"}, "with participation, hostile names workers"),
        ({"participation": 0.5}, "with participation, all workers must meet in each round, as with local_sgd"),
        ({"hostile": "sign-flip:3"}, "hostile workers must be fewer than the 3 workers. Received: 3"),
    ],
)
def test_bad_options_are_refused(options, message, tmp_path):
    with pytest.raises(UserError, match=message):
        threads(AsyncSGD(), tmp_path, **options)


def test_scaffold_whose_workers_know_their_own_data_refuses_participation(tmp_path):
    with pytest.raises(UserError, match="with participation, the workers of scaffold keep what they know"):
        threads(Scaffold(), tmp_path, participation=0.5)


@pytest.mark.parametrize("backend", ["threads", "simulation"])
def test_a_batch_beyond_the_shard_of_a_client_names_the_clients(backend, tmp_path):
    said = r"the shard of a client, \d+ examples \(\d+ for 15 clients\)"
    with pytest.raises(UserError, match=said):
        threads(LocalSGD(), tmp_path, participation=0.2, batch_size=1000, schedule=(), backend=backend)


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.gate("others")
def test_a_run_that_may_stop_at_an_accuracy_needs_one(backend, tmp_path):
    cluster = Cluster.local(2, backend=backend)
    with pytest.raises(UserError, match="stop_at_accuracy needs test data, and a model with an accuracy: leave it out"):
        train(
            quadratic([1.0]),
            ONES,
            SyncSGD(),
            cluster=cluster,
            run_dir=tmp_path / "run",
            verbose=False,
            stop_at_accuracy=0.5,
        )


def test_one_rate_for_each_worker_or_one_for_all(tmp_path):
    with pytest.raises(UserError, match="each of the 3 workers"):
        threads(SyncSGDLR(learning_rates=(0.1, 0.2)), tmp_path, schedule=())


def test_the_options_of_a_run_are_written_once():
    """The keywords for editors, the signature, the help and the flags have the same names and defaults."""
    options = {field.name: field for field in fields(RunOptions)}
    hints, keywords = get_type_hints(RunOptions), get_type_hints(Keywords)
    assert list(keywords) == list(options)
    wider = {"run_dir", "recovery"}  # a text will do, None is the default
    assert {name for name in options if keywords[name] != hints[name]} == wider
    shown = inspect.signature(train).parameters
    assert all(shown[name].default == field.default for name, field in options.items())
    for kind in (RunOptions, Recovery):
        assert list(meanings(kind)) == [field.name for field in fields(kind)]
    assert all(f"{name}: {meaning}" in train.__doc__ for name, meaning in meanings(RunOptions).items())


def test_an_option_that_is_not_known_is_refused_with_the_nearest_name():
    for wrong, meant in (
        ("epoch", r"\. Did you mean epochs\b"),
        ("validation_dat", r"\. Did you mean validation_data\b"),
        ("learning_rate", r": write AsyncSGD\(learning_rate=...\)"),
        ("isolation", r": write Cluster.local\(isolation=...\)"),
        ("max_restarts", r": write Recovery\(max_restarts=...\)"),
        ("lr", r": write AsyncSGD\(learning_rate=...\)"),
        ("n_workers", r"\. Did you mean workers\?"),
        ("batchsize", r"\. Did you mean batch_size\?"),
        ("num_epochs", r"\. Did you mean epochs\?"),
        ("shuffle", ": each worker shuffles its shard in every epoch"),
        ("steps_per_epoch", ": steps counts the local steps of each worker in the whole run"),
        ("wandb", r"\. See help\(distsgd.train\)"),
    ):
        with pytest.raises(UserError, match=f"there is no option '{wrong}' of train{meant}"):
            train(quadratic([1.0]), ONES, AsyncSGD(), **{wrong: 3})
    with pytest.raises(UserError, match=r": write Downpour\(communication_period=...\)"):
        train(quadratic([1.0]), ONES, Downpour(), period=3)


X, Y, RULE = np.ones((4, 2)), np.ones(4), AsyncSGD()


@pytest.mark.parametrize(
    ("values", "named", "data"),
    [
        (["model", (X, Y), RULE], {}, (X, Y)),
        (["model", X, Y, RULE], {}, (X, Y)),
        (["model", X, Y], {"scheme": RULE}, (X, Y)),
        (["model", RULE, (X, Y)], {}, (X, Y)),
        ([RULE, "model", X], {}, X),
        ([], {"model": "model", "x": X, "y": Y, "scheme": RULE}, (X, Y)),
        (["model", X, Y, Y, RULE], {}, (X, Y, Y)),
    ],
)
def test_train_takes_the_arguments_in_the_order_of_fit(values, named, data):
    model, found, scheme = _in_order(values, named)
    assert (model, scheme, named) == ("model", RULE, {})
    assert found is data or all(mine is its for mine, its in zip(found, data, strict=True))


def test_short_forms_of_a_cluster_on_this_machine():
    assert cluster_of(RULE, None, workers=4, ps=2, backend="threads") == Cluster.local(4, ps=2, backend="threads")
    assert cluster_of(Serial(), None, ps=None) == Cluster.local(1)
    assert cluster_of(RULE, mine := Cluster.local(3), workers=None) is mine


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train(), r"needs a model, data and an algorithm, as in train\(model, \(x, y\), Downpour\(\)\)"),
        (lambda: train("model", (X, Y)), "needs a model, data and an algorithm"),
        (lambda: train("model", X, Y), "scheme must be an algorithm such as .* Received: ndarray"),
        (lambda: train("model", (X, Y), (X, Y), RULE), r"one argument of data, .* are validation_data=..."),
        (lambda: train("model", iter([X]), iter([Y]), RULE), "one argument of data"),
        (
            lambda: train("model", X, RULE, workers=3, cluster=Cluster.local()),
            r"write cluster=Cluster.local\(workers=3",
        ),
        (lambda: train("model", X, RULE, backend="thread"), "unknown backend 'thread'. Did you mean threads"),
        (lambda: train("model", X, RULE, callbacks=3), "callbacks must be a list"),
        (lambda: Downpour(period=3), "Downpour has no argument 'period'. Did you mean communication_period, push_peri"),
        (lambda: SyncSGD(lr=0.1), r"SyncSGD has no argument 'lr'. Did you mean learning_rate\?"),
        (lambda: SyncSGD(0.1), r"positional arguments\): give them by name, as in SyncSGD\(learning_rate=...\)"),
        (lambda: Group(), "Group needs scheme, params, workers. Received: no arguments"),
        (
            lambda: Group(RULE, ONES, 2),
            r"too many positional arguments\): give them by name, as in Group\(workers=...\)",
        ),
        (lambda: Optimizer(RULE), "Optimizer needs scheme, workers. Received: 1 by position"),
        (lambda: sweep(dict, (X, Y), SyncSGD), r"scheme must be an algorithm, not its class: write SyncSGD\(\)"),  # pyright: ignore
        (lambda: Group(RULE, Y, workers=2, codec=3), "codec must be a text in quotes, .* Received: codec=3"),  # pyright: ignore
        (lambda: problem(5), "dataset must be a text in quotes. Received: dataset=5"),  # pyright: ignore
        (lambda: problem("digits", 5), "model must be a text in quotes. Received: model=5"),  # pyright: ignore
        (lambda: problem("digits", seed=-1), "seed must be at least 0"),
        (lambda: Group(RULE, Y, workers=2).step(0, "x"), "gradient must hold numbers. Received: str"),
        (
            lambda: join(ONES, RULE),
            r"scheme must be an algorithm such as Downpour\(\), as in join\(Downpour\(\), variables\)",
        ),
        (lambda: sweep(seeds=3), "sweep needs model, data, schemes. Received: seeds"),
        (lambda: Serial(momentum=0.9), r"Serial has no argument 'momentum'. Known: learning_rate\."),
        (lambda: Cluster.local(n_workers=3), r"Cluster.local has no argument 'n_workers'. Did you mean workers\?"),
        (lambda: Cluster.local(4, 2), r"give them by name, as in Cluster.local\(ps=...\)"),
        (lambda: Cluster.at(job_name="ps"), "Cluster.at needs worker_hosts, job_name. Received: job_name$"),
        (lambda: Cluster.from_slurm(workers=2), "Cluster.from_slurm has no argument 'workers'"),
        (lambda: Recovery(max_restart=3), r"Recovery has no argument 'max_restart'. Did you mean max_restarts\?"),
        (lambda: Platform(steps_ms=3), r"Platform has no argument 'steps_ms'. Did you mean step_ms\?"),
    ],
)
def test_an_argument_that_is_not_known_is_refused_with_the_nearest_name(call, message):
    with pytest.raises(UserError, match=message):
        call()


ANYTHING = 5, -1, 1.5, "x", b"x", [1], {}, True, object(), math.nan, None, np.zeros(3), lambda: 1


@pytest.mark.parametrize(
    "make", [RunOptions, Recovery, Platform, Cluster.local, *SCHEMES.values()], ids=lambda make: make.__qualname__
)
def test_a_value_of_any_kind_is_accepted_or_refused_by_a_user_error(make):
    for name, value in itertools.product(inspect.signature(make).parameters, ANYTHING):
        with suppress(UserError):
            make(**{name: value})


def test_a_name_is_suggested_only_if_a_third_of_its_letters_differ():
    known = ["mutants", "all_reduce", "cores", "ssp", "run_dir", "workers", "min_workers", "mlp", "schedule", "l2"]
    for word in ("runs", "resume", "--config", "sweep", "--dry-run", "shuffle", "lr", "w", ""):
        assert close_to(word, known) == []
    for word, meant in (("mpl", "mlp"), ("--wrokers", "workers"), ("num_workers", "workers"), ("--run-dri", "run_dir")):
        assert close_to(word, known) == [meant]


def test_a_scheme_with_a_required_argument_can_be_copied_and_pickled():
    scheme = PausingAsyncSGD(folder="f", moment="lock")
    assert copy.copy(scheme) == pickle.loads(pickle.dumps(scheme)) == scheme


def test_a_scheme_without_arguments_says_so():
    @dataclass(frozen=True, kw_only=True)
    class Plain(Scheme):
        name = "plain"

    for call in (lambda: Plain(0.1), lambda: Plain(rate=0.1)):
        with pytest.raises(UserError, match="Plain takes no arguments"):
            call()
