"""The largest curvature at the start of a run: its value, the warning, and the explanation of a run that diverges."""

import contextlib

import numpy as np
import pytest

from distsgd import Cluster, UserError, train
from distsgd.algorithms import SCHEMES, AsyncSGD, Downpour, LocalSGD, SyncSGD
from distsgd.common.data import models, named
from distsgd.common.data.models import ModelRecipe
from distsgd.common.errors import Diverged
from distsgd.common.lazy import keras
from distsgd.common.replay.reference.gradients import mlp_gradient
from distsgd.common.tasks.curvature import MARGIN, gradient_of, measured, probe, rounded_down
from distsgd.common.tasks.job import make_job
from distsgd.common.tasks.options import RunOptions

HIDDEN = 8


def symmetric(size, largest):
    """Return a random matrix with eigenvalues from −1 to `largest`."""
    basis, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((size, size)))
    return (basis * np.array([largest, *np.linspace(-1, largest / 3, size - 1)])) @ basis.T


def job_of(scheme, tmp_path, workers=2, dataset="digits", model=None, **options):
    """Return a job of threads, and its model."""
    data = named.load(dataset)
    recipe = ModelRecipe.named(models.name_for(model, data.kind, data.model), data.shape, data.classes, 0)
    cluster = Cluster.local(1 if scheme.sync.label == "one process" else workers, backend="threads")
    options = RunOptions(run_dir=tmp_path / "run", **options)
    return make_job(scheme, recipe, data.train, data.test, cluster, options), recipe.flat()


def probed(*args, **options):
    """Return the events that the probe of a job reports, by their names."""
    events = []
    job, flat = job_of(*args, **options)
    probe(job, flat, lambda **event: events.append(event))
    return {event.pop("event"): event for event in events}


@pytest.mark.parametrize("largest", [0.01, 3.0, 500.0])
def test_the_curvature_of_a_quadratic_is_its_largest_eigenvalue(largest):
    matrix = symmetric(20, largest) if largest > 2 else largest * symmetric(20, 3.0) / 3
    found = measured(lambda x: (matrix @ x).astype(np.float32), np.ones(20, np.float32))
    assert found.largest == pytest.approx(largest, rel=0.01)
    assert found.constant


def test_a_direction_of_negative_curvature_is_not_the_largest_one():
    curvatures = np.array([1.0, -4.0], np.float32)
    found = measured(lambda x: curvatures * x, np.ones(2, np.float32))
    assert 0.7 < found.largest < 1.001


def test_a_point_without_a_gradient_has_a_curvature_too():
    assert measured(lambda x: 2 * x, np.zeros(3, np.float32)).largest == pytest.approx(2)
    assert measured(lambda x: 0 * x, np.zeros(3, np.float32)).largest == 0


def test_the_curvature_of_a_network_is_that_of_its_hessian(tmp_path):
    """The matrix of second derivatives, from the gradient of the reference in float64."""
    job, flat = job_of(SyncSGD(), tmp_path, model=f"mlp:hidden={HIDDEN}")
    found = measured(gradient_of(job, flat, 512), flat.pack())
    rows = np.random.default_rng([0, 512]).permutation(len(job.train[0]))[:512]
    gradient, x = mlp_gradient(*job.train, [64, HIDDEN, 10]), flat.pack().astype(np.float64)
    step, basis = 1e-5, np.eye(len(x))
    hessian = np.array([(gradient(x + step * e, rows) - gradient(x - step * e, rows)) / (2 * step) for e in basis])
    exact = np.linalg.eigvalsh((hessian + hessian.T) / 2)[-1]
    assert 0.9 * exact < found.largest < 1.02 * exact
    assert not found.constant


DIVERGE = {("downpour_easy", 8)}  # by simulation: the test loss rises from 2.4 to 40


@pytest.mark.parametrize("workers", [8, *(pytest.param(n, marks=pytest.mark.rotating) for n in (1, 2, 4))])
@pytest.mark.rotating
def test_only_defaults_that_diverge_cause_a_warning(workers, tmp_path):
    warned = set()
    for name, kind in SCHEMES.items():
        with contextlib.suppress(UserError):  # an algorithm may need another number of workers
            warned |= {(name, workers)} if "warning" in probed(kind(), tmp_path, workers) else set()
    assert warned == {known for known in DIVERGE if known[1] == workers}


@pytest.mark.parametrize(
    ("scheme", "workers", "limit"),
    [(SyncSGD, 8, 2), (AsyncSGD, 8, 2 * np.sin(np.pi / 30)), (LocalSGD, 4, 2)],
)
@pytest.mark.rotating("others")
def test_a_quadratic_warns_from_its_limit_on(scheme, workers, limit, tmp_path):
    how = {"workers": workers, "dataset": "quadratic:dim=50", "batch_size": 1}
    events = probed(scheme(learning_rate=0.9 * limit), tmp_path, **how)
    assert events["curvature"]["largest_rate"] == pytest.approx(limit, rel=0.06)
    assert "warning" not in events
    said = probed(scheme(learning_rate=1.1 * limit), tmp_path, **how)["warning"]["message"]
    assert said.startswith(f"learning rate {1.1 * limit:.3g} is above ")
    assert said.endswith(f": try {rounded_down(limit / 2):g} (docs/not-converging.md)")


def test_a_network_warns_from_a_multiple_of_its_limit_on(tmp_path):
    limit = probed(SyncSGD(), tmp_path)["curvature"]["largest_rate"]
    above = probed(SyncSGD(learning_rate=0.9 * MARGIN * limit), tmp_path)
    assert above.keys() == {"curvature"}
    assert "times" in above["curvature"]["too_large"]
    assert "warning" in probed(SyncSGD(learning_rate=1.1 * MARGIN * limit), tmp_path)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        (SyncSGD(learning_rate=50.0), {"probe": False}),
        (SyncSGD(learning_rate=50.0), {"clip_norm": 1.0}),
        (SyncSGD(learning_rate=50.0), {"hostile": "sign-flip:1"}),
        (Downpour(learning_rate=50.0), {}),
        (LocalSGD(learning_rate=50.0, inner_optimizer="adam"), {}),
    ],
)
def test_nothing_is_measured_where_no_limit_is_known(scheme, options, tmp_path):
    assert probed(scheme, tmp_path, **options) == {}


def test_the_coefficient_of_l2_is_a_part_of_the_curvature(tmp_path):
    with_l2, without = (probed(SyncSGD(), tmp_path, l2=l2)["curvature"]["curvature"] for l2 in (0.5, 0.0))
    assert with_l2 - without == pytest.approx(0.5)


@pytest.mark.parametrize("backend", ["threads", "simulation"])
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_run_that_diverges_names_the_limit(backend, tmp_path):
    x = np.random.default_rng(0).standard_normal((128, 4)).astype(np.float32)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    how = {"cluster": Cluster.local(2, backend=backend), "verbose": False, "epochs": 80, "run_dir": tmp_path / "run"}
    with pytest.raises(Diverged, match=r"; learning rate 30 is \d+ times 0\.\d+, the limit \(.*: try 0\.\d$"):
        train(model, (x, x.sum(1, keepdims=True)), SyncSGD(learning_rate=30.0), **how)


@pytest.mark.parametrize(("number", "digit"), [(0.273, 0.2), (0.3, 0.3), (1.03, 1), (37.0, 30), (0.0099, 0.009)])
def test_a_proposed_rate_has_one_digit(number, digit):
    assert rounded_down(number) == digit
