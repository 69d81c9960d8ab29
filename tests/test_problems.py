"""Problems of theory: the quadratic of Nesterov, least squares, logistic regression as of LIBSVM's data sets."""

import json

import numpy as np
import pytest

from distsgd.algorithms import SCHEMES
from distsgd.benchmarks import reproduced
from distsgd.benchmarks.outcome_files import RESULTS
from distsgd.common.cli.main import dispatch
from distsgd.common.cluster.platform import Machines, Platform
from distsgd.common.data import named
from distsgd.common.data.dataset import shard_rows
from distsgd.common.data.models import ModelRecipe, name_for
from distsgd.common.data.problems import quadratic_noise
from distsgd.common.errors import UserError
from distsgd.common.replay.comparison import judge
from distsgd.common.replay.reference import gradients, objectives
from distsgd.common.replay.replay import read
from runs import change


def tridiagonal(size):
    return (2 * np.eye(size) - np.eye(size, k=1) - np.eye(size, k=-1)) / 4


def built(spec):
    """The data set, its model, and the gradient of a batch at a point."""
    import tensorflow as tf

    dataset = named.load(spec)
    model = ModelRecipe.named(
        name_for(None, dataset.kind, dataset.model), dataset.shape, dataset.classes, seed=0
    ).flat()

    def gradient(x, rows):
        batch = [tf.constant(part[rows]) for part in dataset.train]
        loss, parts, *_ = model.gradient(tf.constant(x, tf.float32), tf.zeros([0]), [], [], batch)
        return float(loss), np.concatenate([part.numpy() for part in parts])

    return dataset, model, gradient


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_gradients_of_the_quadratic_are_a_x_minus_b_and_their_noise(size):
    dataset, model, gradient = built(f"quadratic:dim={size},noise=0.3,minima=3,examples=30")
    a, b, x = tridiagonal(size), -np.eye(1, size)[0] / 4, np.linspace(-1, 2, size)
    np.testing.assert_allclose(model.pack(), np.sqrt(size) * np.eye(1, size)[0], rtol=1e-6)
    for n in (0, 1, 5):
        s = n % 3 - 1
        wanted = a @ (x - s) - b + 0.3 * quadratic_noise(n, size)
        np.testing.assert_allclose(gradient(x, [n])[1], wanted, atol=1e-6)
    rows = np.array([3, 4, 8])
    reference = objectives.quadratic_gradient(lambda n, d: 0.3 * quadratic_noise(n, d), 3)
    np.testing.assert_allclose(gradient(x, rows)[1], reference(x, rows), atol=1e-6)
    assert dataset.train[1].tolist() == [0, 1, 2] * 10


def test_the_test_loss_of_the_quadratic_is_the_distance_from_its_minimum():
    import tensorflow as tf

    dataset, model, _ = built("quadratic:dim=5,noise=0.3,minima=2,examples=10")
    a, b, x = tridiagonal(5), -np.eye(1, 5)[0] / 4, np.arange(5.0)
    least = np.linalg.solve(a, b)
    wanted = x @ a @ x / 2 - b @ x - (least @ a @ least / 2 - b @ least)
    batch = [tf.constant(part) for part in dataset.test]
    loss, *_ = model.gradient(tf.constant(x, tf.float32), tf.zeros([0]), [], [], batch)
    assert float(loss) == pytest.approx(wanted, rel=1e-6)
    assert objectives.quadratic_loss(x) == pytest.approx(wanted, rel=1e-12)
    assert objectives.quadratic_loss(least) == pytest.approx(0, abs=1e-15)


def test_the_noise_of_the_quadratic_has_mean_0_and_deviation_1():
    noise = np.stack([quadratic_noise(n, 200) for n in range(200)])
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(1, abs=0.01)
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < 0.02


def test_sorted_shards_give_each_worker_a_minimum_of_its_own():
    dataset = named.load("quadratic:dim=2,minima=4,examples=41")
    shards = shard_rows(dataset.train, 4, seed=3, skew="sorted")
    assert [set(dataset.train[1][rows]) for rows in shards] == [{0}, {1}, {2}, {3}]
    reference = gradients.skewed_rows(3, dataset.train[1], 4, 0.0)
    np.testing.assert_array_equal(shards, reference)


def test_least_squares_has_the_gradient_of_its_residuals():
    dataset, model, gradient = built("least_squares:examples=40,features=6,condition=100")
    (x, y), w, rows = dataset.train, np.linspace(-1, 1, 6), np.array([1, 5, 7])
    loss, slope = gradient(w, rows)
    assert loss == pytest.approx(np.mean((x[rows] @ w - y[rows]) ** 2), rel=1e-5)
    np.testing.assert_allclose(slope, objectives.least_squares_gradient(x, y)(w, rows), rtol=1e-4, atol=1e-6)
    assert not model.pack().any()
    assert x[:, 0].std() == pytest.approx(10 * x[:, -1].std(), rel=0.5)


@pytest.mark.parametrize(
    ("like", "examples", "features", "active"), [("a9a", 32561, 123, 14), ("phishing", 11055, 68, 30)]
)
def test_logistic_regression_has_the_size_of_its_model(like, examples, features, active):
    dataset = named.load(f"logistic:like={like}")
    (indices, values), y = dataset.train
    assert (len(y), dataset.features, dataset.kind) == (examples, features, "sparse")
    assert indices.shape == values.shape == (examples, active)
    assert all(len(set(row)) == active for row in indices[:50].tolist())
    assert (indices.min(), indices.max()) == (0, features - 1)
    assert 0.2 < y.mean() < 0.8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("quadratic:dim=3,minima=9,examples=4", "examples must be at least minima. Received: examples=4, minima=9"),
        ("least_squares:condition=0.5", "condition must be at least 1. Received: condition=0.5"),
        ("logistic:like=a8a", "has no likeness of 'a8a'. Did you mean a9a"),
    ],
)
def test_impossible_problems_are_refused(text, says):
    with pytest.raises(UserError, match=says):
        named.load(text)


def test_a_problem_has_one_model():
    dataset = named.load("quadratic:dim=3,noise=0.5")
    assert name_for(None, dataset.kind, dataset.model) == "quadratic:dim=3,noise=0.5,minima=1"
    with pytest.raises(UserError, match=r"needs the model quadratic:dim=3,noise=0\.5,minima=1: leave --model out"):
        name_for("mlp", dataset.kind, dataset.model)
    with pytest.raises(UserError, match=r"the model quadratic needs a quadratic data set"):
        name_for("quadratic", "dense")


RUNS = [  # the last ones rotate
    ("ringmaster", "simulation", "quadratic:dim=20,noise=0.1", ["--delay-threshold", "2"]),
    ("local_sgd", "threads", "quadratic:dim=20,noise=0.1,minima=3", ["--skew", "sorted"]),
    ("async_sgd", "simulation", "least_squares:examples=300,features=8", ["--l2", "0.1"]),
    ("signsgd_mv", "simulation", "quadratic:dim=20,noise=0.1", []),
    ("sync_sgd", "simulation", "logistic:like=phishing", ["--learning-rate", "0.01"]),
]


@pytest.mark.parametrize(
    ("name", "backend", "dataset", "flags"),
    [pytest.param(*run, id=run[0], marks=[pytest.mark.rotating] if run in RUNS[3:] else []) for run in RUNS],
)
@pytest.mark.rotating
def test_a_run_on_a_problem_gets_nearer_to_its_minimum_and_replays(
    name, backend, dataset, flags, warm, tmp_path, capsys
):
    run_dir = tmp_path / "run"
    arguments = [name, "--dataset", dataset, "--backend", backend, "--workers", "3", "--steps", "40", *flags]
    assert dispatch([*arguments, "--batch-size", "4", "--run-dir", str(run_dir)]) == 0
    capsys.readouterr()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    losses = [row["test_loss"] for row in rows if row.get("kind") == "center"]
    assert losses[-1] < losses[0]
    assert judge(read(run_dir, SCHEMES)).agrees
    if dataset.startswith("quadratic"):
        change(run_dir, "config.json", dataset="quadratic:dim=21")
        with pytest.raises(UserError, match="the model quadratic is not for the data set quadratic:dim=21"):
            read(run_dir, SCHEMES)


@pytest.mark.rotating
def test_asynchronous_sgd_is_biased_to_the_minima_of_fast_workers(warm, tmp_path, capsys):
    """f_i = ¼ (x − a_i)² with speeds 1, 2, 5, 20: it comes to rest at Σ (a_i / τ_i) / Σ (1 / τ_i), not at the mean."""
    command = (
        "async_sgd --dataset quadratic:dim=1,minima=4,examples=4000 --skew sorted --workers 4 --batch-size 1 "
        "--backend simulation --step-factors 1,2,5,20 --learning-rate 0.005 --steps 3000 --stop-at-version 3000"
    )
    assert dispatch([*command.split(), "--run-dir", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    with np.load(tmp_path / "run" / "center.npz") as file:
        found = float(file["center"][0]) + 0.5 + 1.5  # from the first minimum, x* − 1.5
    a, speed = np.arange(4), 1 / np.array([1, 2, 5, 20])
    assert found == pytest.approx(a @ speed / speed.sum(), abs=0.01)  # 0.6


def test_steps_may_take_as_long_as_those_of_ringmasters_authors():
    times = Machines(Platform(step_factors="roots:noise=1")).step_factors(6174, seed=5)
    least = 1 + np.sqrt(np.arange(6174))
    z = (times - least) / np.sqrt(np.arange(1, 6175))
    assert (z > 0).all()
    assert np.mean(z**2) == pytest.approx(1, abs=0.05)
    np.testing.assert_allclose(Machines(Platform(step_factors="roots")).step_factors(9, seed=5), least[:9])


def test_the_table_of_reproduced_experiments_shows_what_was_measured():
    page, results = reproduced.PAGE.read_text(), json.loads((RESULTS / reproduced.FILE).read_text())
    assert reproduced.with_table(page, results) == page
    assert set(results) == {each.name for each in reproduced.EXPERIMENTS}
    wrong = results["ringmaster"] | {"ringmaster": [9.9] * 200}
    assert "**not reproduced**" in reproduced.section(reproduced.EXPERIMENTS[0], wrong)


def test_top_1_without_memory_diverges_by_the_factor_of_the_paper():
    (memory,) = (each for each in reproduced.EXPERIMENTS if each.name == "memory")
    assert memory.agrees(memory.measure())


@pytest.mark.rotating
def test_krum_chooses_honest_gradients_where_the_mean_fails():
    (krum,) = (each for each in reproduced.EXPERIMENTS if each.name == "krum")
    numbers = krum.measure()
    assert krum.agrees(numbers)
    assert not krum.agrees(numbers | {"krum_gaussian": 0.1})


def test_messages_of_powersgd_have_the_sizes_of_the_papers_tables():
    (sizes,) = (each for each in reproduced.EXPERIMENTS if each.name == "low-rank")
    numbers = sizes.measure()
    assert sizes.agrees(numbers)
    assert not sizes.agrees(numbers | {"lstm2": 39.0})


@pytest.mark.rotating
def test_a_draw_of_clients_without_replacement_adds_the_variance_of_the_closed_form():
    (sampling,) = (each for each in reproduced.EXPERIMENTS if each.name == "sampling")
    numbers = sampling.measure()
    assert sampling.agrees(numbers)
    assert not sampling.agrees(numbers | {"C50": numbers["C50"] * 2})  # as it were with replacement


def test_an_unknown_experiment_is_one_line():
    with pytest.raises(UserError, match=r"unknown experiment 'bais'\. Did you mean bias"):
        reproduced.Options(names=("bais",))
