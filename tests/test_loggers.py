"""The loggers of Weights & Biases and MLflow, with doubles of their libraries that note the calls."""

import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from distsgd import Cluster, MLflowLogger, SyncSGD, UserError, WandbLogger, train
from distsgd.common.cli.main import dispatch
from distsgd.common.errors import Diverged
from distsgd.common.lazy import keras


class Calls(ModuleType):
    """A library: each of its functions notes its name and arguments."""

    def __init__(self, name, **results):
        super().__init__(name)
        self.calls, self.results = [], results

    def __getattr__(self, name):
        def called(*args, **options):
            self.calls.append((name, args, options))
            return self.results.get(name)

        return called

    def of(self, name):
        return [(args, options) for called, args, options in self.calls if called == name]


@pytest.fixture
def wandb(monkeypatch):
    run = Calls("run")
    run.summary = Calls("summary")
    library = Calls("wandb", init=run)
    monkeypatch.setitem(sys.modules, "wandb", library)
    return library


@pytest.fixture
def mlflow(monkeypatch):
    library = Calls("mlflow", start_run=SimpleNamespace(info=SimpleNamespace(run_id="r1")))
    monkeypatch.setitem(sys.modules, "mlflow", library)
    return library


def trained(tmp_path, logger, rate=0.1):
    x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    data = x, x.sum(1, keepdims=True)
    how = {"cluster": Cluster.local(2, backend="threads"), "verbose": False, "run_dir": tmp_path / "run"}
    return train(model, data, SyncSGD(learning_rate=rate), epochs=60, validation_data=data, callbacks=[logger], **how)


@pytest.mark.rotating
def test_weights_and_biases_has_settings_metrics_and_result(wandb, tmp_path):
    result = trained(tmp_path, WandbLogger(project="mine"))
    (_, begun), run = wandb.of("init")[0], wandb.results["init"]
    assert begun["project"] == "mine"
    assert (begun["config"]["algorithm"], begun["config"]["hyperparameters"]["learning_rate"]) == ("sync_sgd", 0.1)
    logged = {options["step"]: args[0] for args, options in run.of("log")}
    assert [*logged] == sorted(logged)
    assert logged[max(logged)]["test_loss"] == pytest.approx(result.metrics["test_loss"])
    ((summary,), _) = run.summary.of("update")[0]
    assert summary["updates"] == result.metrics["updates"] == max(logged)
    assert run.of("finish") == [((), {"exit_code": 0})]
    assert all(isinstance(value, int | float) for value in summary.values())


@pytest.mark.rotating
def test_mlflow_has_settings_metrics_and_result(mlflow, tmp_path):
    result = trained(tmp_path, MLflowLogger(run_name="mine"))
    assert mlflow.of("start_run") == [((), {"run_name": "mine"})]
    ((settings,), _) = mlflow.of("log_params")[0]
    assert settings["hyperparameters.learning_rate"] == "0.1"
    logged = {options["step"]: args[0] for args, options in mlflow.of("log_metrics")}
    assert logged[result.metrics["updates"]]["test_loss"] == pytest.approx(result.metrics["test_loss"])
    ((written, _), _) = mlflow.of("log_dict")[0]
    assert json.loads(json.dumps(written))["updates"] == result.metrics["updates"]
    assert mlflow.of("end_run") == [(("FINISHED",), {})]
    assert {
        options.get("run_id") for name in ("log_params", "log_metrics", "log_dict") for _, options in mlflow.of(name)
    } == {"r1"}


@pytest.mark.rotating
def test_a_run_that_fails_is_marked_as_failed(wandb, mlflow, tmp_path):
    for logger in (WandbLogger(), MLflowLogger()):
        with pytest.raises(Diverged, match=r"not finite|became"):
            trained(tmp_path / type(logger).__name__, logger, rate=1e4)
    assert wandb.results["init"].of("finish") == [((), {"exit_code": 1})]
    assert mlflow.of("end_run") == [(("FAILED",), {})]


@pytest.mark.parametrize(("name", "logger"), [("wandb", WandbLogger), ("mlflow", MLflowLogger)])
def test_a_library_that_is_not_installed_is_named(name, logger, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=f"pip install {name}"):
        logger()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"pip install {name}"):
        dispatch(["downpour", "--log", name])
    assert not (tmp_path / "runs").exists()


@pytest.mark.rotating
def test_the_command_line_logs(mlflow, tmp_path, capsys):
    words = ["simulate", "sync_sgd", "--dataset", "quadratic:dim=5", "--batch-size", "1", "--steps", "5"]
    assert dispatch([*words, "--run-dir", str(tmp_path / "run"), "--log", "mlflow", "--quiet"]) == 0
    assert mlflow.of("end_run") == [(("FINISHED",), {})]
    assert max(options["step"] for _, options in mlflow.of("log_metrics")) == 5
