"""The benchmark: what it covers, what it keeps, what it draws."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from distsgd.algorithms import SCHEMES
from distsgd.benchmarks import (
    check_devices,
    convergence,
    endurance,
    grids,
    outcome_files,
    peers,
    soak,
    startup,
    stragglers,
    systems,
    tables,
    throughput,
    torch_environment,
    verdicts,
)
from distsgd.benchmarks.plots import PICTURES
from distsgd.benchmarks.systems import Measured, System
from distsgd.common import kernels
from distsgd.common.cluster.fingerprint import source_digest
from distsgd.common.data.models import ModelRecipe
from distsgd.common.errors import Interrupted, TaskFailed, UserError
from distsgd.common.replay.reference.inner_steps import INNER_STEPS

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("quick", [True, False])
def test_every_algorithm_is_covered(quick):
    studies = convergence.plan(convergence.Options(quick=quick))
    assert {study.algorithm for study in studies if study.part == "main"} == set(SCHEMES)
    assert {study.part for study in studies} == ({"main"} if quick else set(convergence.PARTS))
    assert len(set(studies)) == len(studies)


def test_settings_are_tuned_on_separate_seeds_and_have_distinct_files():
    studies = [study for study in convergence.plan(convergence.Options()) if study.algorithm in ("agn", "sync_sgd_lr")]
    tuning, shown = set(), set()
    for study in studies:
        settings = grids.candidates(study.algorithm, study.period)
        tuning |= {(experiment.file, experiment.seed) for experiment in study.tuning(settings)}
        shown |= {(experiment.file, experiment.seed) for experiment in study.showing(settings[0])}
        for one in settings:
            assert SCHEMES[study.algorithm](**one).period in (1, study.period)
    assert not {seed for _, seed in tuning} & {seed for _, seed in shown}
    assert len({file for file, _ in tuning | shown}) == len(tuning | shown)


def test_the_search_extends_a_grid_whose_edge_is_best():
    tried = grids.candidates("agn", 10)
    low, middle, high = grids.GRIDS["agn"]["learning_rate"]
    inside = {**tried[0], "learning_rate": middle, "server_learning_rate": 1.6}
    assert grids.beyond(inside, tried) == []
    assert grids.beyond({**inside, "learning_rate": high}, tried) == [{**inside, "learning_rate": 2 * high}]
    assert grids.beyond({**inside, "learning_rate": low}, tried) == [{**inside, "learning_rate": low / 2}]
    assert grids.beyond({"learning_rates": (2.0,)}, [{"learning_rates": (r,)} for r in (1.0, 2.0)]) == [
        {"learning_rates": (4.0,)}
    ]
    assert grids.beyond({"quorum": 2}, [{"quorum": n} for n in (2, 3)]) == [{"quorum": 1}]
    assert grids.beyond({"quorum": 1}, [{"quorum": n} for n in (1, 2)]) == []


def test_the_settings_that_reach_the_target_first_on_all_seeds_are_chosen():
    def one(name, seconds, final=0.5):
        return {"settings": {"rate": name}, "reached": seconds and {"seconds": seconds}, "final": final}

    steady, lucky = [one(1, 5.0), one(1, 5.0)], [one(2, 1.0), one(2, None)]
    faster = [one(3, 2.0), one(3, 8.0)]
    assert convergence.chosen([*zip(steady, lucky, strict=True)]) == {"rate": 1}
    assert convergence.chosen([*zip(steady, lucky, faster, strict=True)]) == {"rate": 3}
    never, diverged = [one(4, None, 0.9)] * 2, [one(5, None, None)] * 2
    assert convergence.chosen([*zip(diverged, never, strict=True)]) == {"rate": 4}


def test_the_committed_page_shows_the_committed_results():
    page = (ROOT / "docs" / "benchmark.md").read_text()
    assert tables.with_tables(page) == page
    pictures = re.findall(r"\]\(\.\./(benchmarks/results/[^)]+)\)", page)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).exists(), picture


def measured(seconds):
    """A run that came to the target after so many seconds, or not."""
    axes = {"examples": [0, 64], "rounds": [0, 4], "seconds": [0, 2.0], "bytes": [0, 9]}
    curve = {**axes, "loss": [2.0, 1.0], "accuracy": [0.1, 0.6], "staleness": 0.5, "updates": 4}
    reached = seconds and {"examples": 32, "rounds": 2, "seconds": seconds, "bytes": 4}
    return {"settings": {}, "reached": reached, "final": 1.0, "curve": curve}


def outcome(part, name, *seconds, workers=4, period=10):
    """Of a study whose runs took so many seconds."""
    about = {"part": part, "algorithm": name, "workers": workers, "period": period, "settings": {"rate": 1.0}}
    return {**about, "tried": [], "runs": [measured(one) for one in seconds]}


@pytest.mark.parametrize("x", ["examples", "seconds", "bytes"])
def test_a_curve_is_the_mean_of_its_seeds_up_to_the_end_of_the_shortest(x):
    """The panels were once made by an iterator that was used up before they were drawn on."""
    seeds = outcome("main", "agn", 1.0, 1.0, 1.0, 1.0)
    ends = {"examples": 4000, "seconds": 5, "bytes": 8_000_000}
    starts = {"examples": 0, "seconds": 0, "bytes": 1_000_000}
    for end, last, run in zip((1, 2, 3, 4), (0.8, 1.2, 2.0, None), seeds["runs"], strict=True):
        run["curve"] |= {axis: [0, starts[axis], ends[axis] * end] for axis in ends} | {"loss": [2.0, 2.0, last]}
    figure = PICTURES[f"loss-{x}"]([seeds, outcome("main", "sync_sgd", 1.0), outcome("workers", "adag", 1.0)])
    scale = {"examples": 1e-3, "seconds": 1, "bytes": 1e-6}[x]
    agn, sync = figure.axes
    assert [(axes.get_title(loc="left"), len(axes.lines)) for axes in (agn, sync)] == [("agn", 2), ("sync_sgd", 1)]
    grey, mean = (line.get_xydata() for line in agn.lines)
    np.testing.assert_allclose(mean[[0, -1], 0], [starts[x] * scale, ends[x] * scale])
    at_end = 0.8, np.interp(ends[x], [starts[x], 2 * ends[x]], [2.0, 1.2]), 2.0
    np.testing.assert_allclose(mean[[0, -1], 1], [2.0, np.mean(at_end)])
    np.testing.assert_array_equal(grey, sync.lines[0].get_xydata())
    band = agn.collections[0].get_paths()[0].vertices
    np.testing.assert_allclose(np.ptp(band[np.isclose(band[:, 0], ends[x] * scale), 1]), 2 * np.std(at_end))


def test_panels_match_their_labels_and_the_fastest_is_on_top():
    """A dot for each seed in seconds, thousands of examples, and megabytes; of a sweep, the mean of the seeds."""
    fast, slow, never = outcome("main", "agn", 1.0, 2.0), outcome("main", "adag", 3.0), outcome("main", "ssp", None)
    silent = outcome("main", "serial", 2.5)
    silent["runs"][0]["reached"]["bytes"] = 0
    figure = PICTURES["to-target"]([never, slow, silent, fast])
    seconds, examples, megabytes = figure.axes
    assert [label.get_text() for label in seconds.get_yticklabels()] == ["agn", "serial", "adag", "ssp"]
    assert seconds.yaxis_inverted()
    each = 32 * 1e-3
    for axes, values in ((seconds, [[1, 2], [2.5], [3]]), (examples, [[each] * 2, [each], [each]])):
        assert [line.get_xdata().tolist() for line in axes.lines] == [*values, []]
        assert [text.get_text() for text in axes.texts] == ["not reached"]
    assert [line.get_xdata().tolist() for line in megabytes.lines] == [[4 * 1e-6] * 2, [], [4 * 1e-6], []]
    assert [text.get_text() for text in megabytes.texts] == ["nothing is sent", "not reached"]
    for picture, labels in (
        ("workers", ("virtual seconds", "thousands of examples, of all workers")),
        ("period", ("virtual seconds", "messages of a worker")),
    ):
        sizes = ({picture: size} for size in (8, 2))
        figure = PICTURES[picture]([outcome(picture, "agn", 1.0, 4.0, **size) for size in sizes])
        assert tuple(axes.get_ylabel() for axes in figure.axes) == labels
        for axes, value in zip(figure.axes, (2.0, 0.032 if picture == "workers" else 2), strict=True):
            np.testing.assert_allclose(axes.lines[0].get_xydata(), [(2, value), (8, value)])


def test_tables_show_algorithms_that_miss_the_target(tmp_path):
    outcomes = [outcome("main", "agn", 1.0, 3.0), outcome("main", "adag", 1.0, None)]
    outcomes += [outcome("workers", "agn", seconds, workers=w) for w, seconds in ((4, 0.25), (8, None))]
    outcome_files.write(tmp_path / "convergence.json", outcomes)
    *_, agn, adag = tables.main_table(tmp_path).splitlines()
    assert agn.startswith("| `agn` | 2.0 ± 1.0 | 32 | 2 | 0.00 | 0.5 | 1.000 |")
    assert adag.startswith("| `adag` | 1 of 2 | - | - | - | 0.5 |")
    assert tables.TABLES["workers"](tmp_path).splitlines()[-1] == "| `agn` | 0.25 | (1.00) |"
    seconds = PICTURES["to-target"](outcomes).axes[0]
    assert [len(line.get_xdata()) for line in seconds.lines] == [2, 1]
    (line,) = PICTURES["workers"](outcomes).axes[0].lines
    np.testing.assert_array_equal(line.get_ydata(), [0.25, np.nan])


def test_kept_results_depend_on_sources_of_the_algorithm_and_the_engine(monkeypatch, tmp_path):
    """A changed algorithm was once shown with its old curves."""

    def change(place, text):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)

    def files():
        outcome_files.sources.cache_clear()
        return [convergence.Study("main", name).showing({})[0].file for name in ("agn", "adag")]

    monkeypatch.setattr(outcome_files, "source_digest", partial(source_digest, tmp_path))
    before = files()
    change("common/cli/main.py", "1")
    assert files() == before
    change("algorithms/agn.py", "1")
    agn, adag = files()
    assert (agn != before[0], adag) == (True, before[1])
    change("common/worker/worker.py", "1")
    assert not {*files()} & {agn, adag}
    outcome_files.sources.cache_clear()


def test_results_of_a_few_algorithms_go_beside_those_of_the_others(tmp_path):
    file = tmp_path / "convergence.json"
    old = [outcome(*row, 1.0) for row in (("main", "serial"), ("main", "agn"), ("workers", "serial"), ("main", "gone"))]
    outcome_files.write(file, old)
    found = outcome_files.merged([outcome("main", "agn", 3.0), outcome("main", "async_sgd", 2.0)], file)
    rows = [(o["part"], o["algorithm"], o["runs"][0]["reached"]["seconds"]) for o in found]
    expected = [("main", "serial", 1.0), ("main", "async_sgd", 2.0), ("main", "agn", 3.0), ("workers", "serial", 1.0)]
    assert rows == expected


@pytest.mark.rotating
def test_an_interrupted_benchmark_continues_and_draws_its_pictures(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(convergence, "GRADIENTS", 160)
    monkeypatch.setattr(convergence, "BEYOND", 0)
    monkeypatch.setattr(convergence, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    monkeypatch.setattr(grids, "GRIDS", {})
    monkeypatch.setattr(grids, "RATES", (0.1, 0.4))
    command = ["agn", "serial", "--parts", "main", "--seeds", "1", "--output", str(tmp_path / "out")]
    measure, began = convergence.Experiment.measure, []

    def interrupted_at_the_third(experiment):
        if len(began) == 2:
            raise KeyboardInterrupt
        began.append(experiment)
        return measure(experiment)

    monkeypatch.setattr(convergence.Experiment, "measure", interrupted_at_the_third)
    assert convergence.main(command, cache=tmp_path / "cache") == 130
    assert "resumes from here" in capsys.readouterr().out
    monkeypatch.setattr(
        convergence.Experiment, "measure", lambda experiment: began.append(experiment) or measure(experiment)
    )
    assert convergence.main(command, cache=tmp_path / "cache") == 0
    assert [(experiment.algorithm, experiment.part) for experiment in began] == [
        (name, part) for name in ("serial", "agn") for part in ("tuning", "main")
    ]
    outcomes = json.loads((tmp_path / "out" / "convergence.json").read_text())
    assert {o["algorithm"] for o in outcomes} == {"agn", "serial"}
    assert {p.stem for p in (tmp_path / "out").glob("*.png")} == {"to-target", *LOSSES}


LOSSES = "loss-examples", "loss-seconds", "loss-bytes"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["agm"], "unknown algorithm 'agm'. Did you mean agn"),
        (["agn", "--seeds", "0"], "seeds must be at least 1"),
        (["agn", "--output", __file__], "cannot write into --output"),
    ],
)
def test_bad_input_is_refused(arguments, message, tmp_path):
    with pytest.raises(UserError, match=re.escape(message)):
        convergence.main(arguments, cache=tmp_path)


def test_throughput_skips_a_measurement_that_fails_and_ends_on_sigterm(monkeypatch):
    asked = []

    def system(name, outcome):
        def measure(model, seconds, expected, kernels):
            asked.append(name)
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        return measure

    monkeypatch.setattr(throughput, "keep_warm", contextlib.nullcontext)
    outcomes = {"single": TaskFailed("no"), "pss": Measured(7.0), "hogwild": Interrupted(15), "downpour": Measured(8.0)}
    known = {name: System(name, system(name, what)) for name, what in outcomes.items()}
    monkeypatch.setattr(throughput, "SYSTEMS", known)
    with pytest.raises(Interrupted):
        throughput.measure(throughput.Options(models=("small",)), Console(quiet=True))
    assert asked == ["single", "pss", "hogwild"]


def test_throughput_compares_medians_and_takes_two_cores_at_their_best():
    rates = {"single": [3.0, 9.0, 5.0], "apart": [8.0], "downpour": [4.0, 2.0], "hogwild": []}
    measured = {name: [Measured(rate) for rate in values] for name, values in rates.items()}
    assert throughput.ratio(measured, "downpour", "single") == 3 / 5
    assert throughput.ratio(measured, "downpour", "two cores") == 3 / 8
    assert throughput.ratio(measured, "hogwild", "single") is throughput.ratio(measured, "single", "ddp") is None
    assert [(goal.name, value) for goal, value in throughput.reached("small", measured)] == [
        ("downpour / two cores", 3 / 8)
    ]


def test_peers_and_other_sizes_are_measured_only_if_that_is_asked_for():
    alone, beside = throughput.Options(), throughput.Options(peers=("torch",), models=("large",))
    assert "ddp" not in alone.systems("small")
    assert {"ddp", "torch:hogwild", "all_reduce x4"} <= beside.systems("large").keys()
    assert "all_reduce x4" not in beside.systems("medium")
    with pytest.raises(UserError, match="unknown peer 'torhc'"):
        throughput.Options(peers=("torhc",))


def test_a_column_is_a_model_with_kernels_and_the_own_choice_comes_first(monkeypatch):
    monkeypatch.delenv(kernels.VARIABLE)
    monkeypatch.setattr(kernels, "cpu_features", list)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    columns = throughput.Options(models=("small", "medium"), kernels=("auto", "eigen", "onednn")).columns()
    assert [*columns] == ["small, eigen", "small, onednn", "medium, onednn", "medium, eigen"]
    assert [choice.why for _, choice in columns.values()][1::2] == ["asked for"] * 2


def test_on_gpus_our_workers_stand_beside_tensorflow_keras_and_pytorch(monkeypatch):
    options = throughput.Options(device="gpu", peers=("torch",))
    assert options.models == ("small", "medium", "large", "cnn", "resnet")
    assert {"single", "torch", "ddp", "serial", "sync_sgd"} <= options.systems("cnn").keys()
    assert {"fit", "fit XLA", "serial", "serial without XLA", "sync_sgd"} <= options.systems("resnet").keys()
    assert "pss" not in options.systems("large")
    assert throughput.Options(device="gpu", only=("serial",)).systems("cnn").keys() == {"serial"}
    assert throughput.Options(device="gpu", models=("cnn",)).columns().keys() == {"cnn"}
    for what, message in (
        ({"device": "gpu", "only": ("hogwild",)}, "--device gpu measures single, fit, .* Received: only=.'hogwild'"),
        ({"models": ("resnet",)}, "resnet takes too long on CPUs"),
    ):
        with pytest.raises(UserError, match=message):
            throughput.Options(**what)
    monkeypatch.setattr(throughput, "gpus_seen", lambda: "none: an NVIDIA driver is on this machine")
    with pytest.raises(UserError, match=r"^--device gpu: TensorFlow sees no GPU here. Received: none: an NVIDIA"):
        throughput.use("gpu")
    monkeypatch.setattr(throughput, "gpus_seen", lambda: "GPU 0 (a card)")
    monkeypatch.setattr(throughput, "keep_off", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert throughput.use("gpu") == "GPU 0 (a card)"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
    throughput.use("cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_step_of_the_plain_cnn_is_one_of_serial_sgd():
    """The peer's step on Keras variables, and ours on the flat vector, from the same weights on the same batch."""
    params, forward = peers.trained("cnn")
    model = ModelRecipe.named("cnn", (784,), 10, seed=0).flat()
    before = model.pack()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 784)).astype(np.float32), rng.integers(10, size=8).astype(np.int32)
    peers.step(params, tf.constant(x), tf.constant(y), forward)
    gradient = model.gradient(tf.constant(before), tf.zeros([0]), (), (), (tf.constant(x), tf.constant(y)))[1]
    found, gradient = (np.concatenate([np.reshape(part, -1) for part in parts]) for parts in (params, gradient))
    assert np.abs(found - before).max() > 1e-4
    np.testing.assert_allclose(found, before - peers.LEARNING_RATE * gradient, atol=1e-6)


@pytest.mark.rotating
def test_bare_processes_of_tensorflow_report_their_seconds():
    found = startup.bare(2)
    assert found.keys() == {"seconds", "cpu_seconds"}
    assert found["cpu_seconds"] > 0
    assert found["seconds"] > 0


def test_steps_per_second_are_the_slope_of_events_while_all_workers_work():
    """Worker 0 begins alone, and ends alone; both make a round of five steps each 0.1 s."""
    moments = np.concatenate([np.arange(0, 110), np.arange(10.5, 90)]) * 1e5
    worker = np.repeat([0, 1], [110, 80])
    assert systems.steady_rate(moments, worker, 5) == pytest.approx(100, rel=0.02)
    used = {"begun": 20e5, "ended": 80e5, "seconds": {"ps-0": 1.2, "worker-0": 3.0}}
    assert systems.cpu_of_a_step(used, moments, 5) == pytest.approx({"ps-0": 2, "worker-0": 5}, rel=0.02)


@pytest.mark.rotating
def test_a_joined_system_trains_in_a_loop_of_its_own(warm):
    measured = systems.Ours(systems.SYNC, joined=True)("small", 0.1, 10, kernels.choose())
    assert measured.rate > 0
    assert {"ps-0", "worker-0", "worker-1"} <= measured.cpu.keys()


def test_pytorch_of_this_environment_is_the_peer_or_one_line_says_why_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_environment, "find_spec", {"torch": True}.get)
    assert torch_environment.torch_python() == Path(sys.executable)
    monkeypatch.setattr(torch_environment, "find_spec", lambda _: None)
    pins = tmp_path / "pins.txt"
    with pytest.raises(UserError, match="needs a source checkout"):
        torch_environment.torch_python(tmp_path / "venv", pins)
    with pytest.raises(UserError, match=r"^--peers torch: PyTorch could not be installed: [^\n]+$"):
        torch_environment.run(sys.executable, "-c", "import sys; sys.exit('first\\nno such version')")


def test_the_page_on_throughput_is_made_from_its_results(tmp_path, monkeypatch):
    file, of_gpus = (tmp_path / name for name in throughput.FILES.values())
    text = "".join(f"<!-- table: {name} -->\nold\n<!-- end -->\n" for name in ("throughput", "goals", "startup"))
    monkeypatch.setattr(throughput, "cpu_name", lambda: "a CPU")
    monkeypatch.setattr(throughput, "choose", lambda *_: kernels.Choice("eigen", "asked for"))
    for model, rate in (("small", 50.0), ("medium", 0.25)):  # the second leaves the first where it is
        measured = {
            "pss": [Measured(10.0, {"ps-0": 1.0})],
            "async_sgd": [Measured(rate, {"ps-0": 1.25, "worker-0": 2})],
        }
        options = throughput.Options(models=(model,))
        throughput.save(file, options, dict.fromkeys(options.columns(), measured))
    page = tables.with_tables(text, tmp_path)
    gpu = throughput.Options(models=("resnet",), device="gpu")
    throughput.save(of_gpus, gpu, {"resnet": {"fit XLA": [Measured(8.0)], "serial": [Measured(6.0)]}}, "GPU 0 (a card)")
    on_gpu = tables.with_tables(
        "".join(f"<!-- table: {name}_gpu -->\n<!-- end -->\n" for name in ("throughput", "goals")), tmp_path
    )
    assert "| Keras' fit | 8 |" in on_gpu
    assert "\nGPU 0 (a card), 2 cores, a CPU, TensorFlow" in on_gpu
    assert "| serial / fit XLA | 0.75 (goal 0.9) **!** |" in on_gpu
    monkeypatch.setattr(throughput, "cpu_name", lambda: "another CPU")  # the start-up stays, not the columns
    throughput.save(file, options, dict.fromkeys(options.columns(), measured), startup={"worker_private_mb": 1})
    monkeypatch.setattr(throughput, "cpu_name", lambda: "a third CPU")
    throughput.save(file, options, dict.fromkeys(options.columns(), measured))
    results = json.loads((tmp_path / "throughput.json").read_text())
    assert (results["startup"], [*results["columns"]]) == ({"worker_private_mb": 1}, ["medium, eigen"])
    assert page.splitlines() == [
        "<!-- table: throughput -->",
        "| | small, eigen: steps/s | small, eigen: CPU ms a step "
        "| medium, eigen: steps/s | medium, eigen: CPU ms a step |",
        "|---|---|---|---|---|",
        "| ParameterServerStrategy | 10 | 1 | 10 | 1 |",
        "| async_sgd, processes, period 1 | 50 | 3.25 | 0.25 | 3.25 |",
        "",
        f"{peers.CORES} cores, a CPU, TensorFlow {version('tensorflow')}: "
        "small, eigen (asked for); medium, eigen (asked for).",
        "<!-- end -->",
        "<!-- table: goals -->",
        "| | small, eigen | medium, eigen |",
        "|---|---|---|",
        "| async_sgd / pss | 5.00 (goal 3.5) | 0.03 (goal 1.8) **!** |",
        "<!-- end -->",
        "<!-- table: startup -->",
        "old",
        "<!-- end -->",
    ]


def test_which_batches_come_late_depends_on_seed_and_worker_alone(monkeypatch):
    slept = []
    monkeypatch.setattr(stragglers.time, "sleep", slept.append)
    options = stragglers.Options(milliseconds=20, slow_milliseconds=500, slow_share=0.3)
    train = np.arange(600.0).reshape(300, 2), np.arange(300)

    def waits(seed, worker):
        slept.clear()
        context = tf.distribute.InputContext(2, worker)
        batches = list(stragglers.late_batches(train, options, seed)(context).take(40))
        assert all(int(y) % 2 == worker for _, labels in batches for y in labels)
        return slept[:40]

    first = waits(0, 0)
    assert set(first) == {0.02, 0.5}
    assert first == waits(0, 0)
    assert first != waits(0, 1)
    assert first != waits(1, 0)


STRAGGLERS = """
from distsgd.benchmarks import stragglers
command = "--workers 3 --backups 0 1 --updates 30 --milliseconds 1 --slow-milliseconds 40 --slow-share 0.1"
raise SystemExit(stragglers.main([*command.split(), "--repetitions", "1", "--output", "."]))
"""


@pytest.mark.rotating
def test_stragglers_measures_backup_workers_and_tensorflow_prints_nothing(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", STRAGGLERS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(":")[0].strip() for line in done.stdout.splitlines()] == ["0", "1", "async_sgd"]
    runs = json.loads((tmp_path / "stragglers.json").read_text())["runs"]
    assert set(runs) == {"0", "1", "async_sgd"}
    assert runs["0"][0]["dropped"] == runs["async_sgd"][0]["dropped"] == 0
    assert 0 < runs["1"][0]["dropped"] < 1 / 2
    assert "| 1 |" in tables.stragglers(tmp_path)
    assert (tmp_path / "stragglers.png").exists()


def test_as_many_backup_workers_as_workers_are_refused():
    with pytest.raises(UserError, match="backups must lie between 0 and 3"):
        stragglers.Options(workers=4, backups=(0, 4))


@pytest.mark.rotating
def test_verdicts_of_honest_runs_are_counted_and_an_accusation_fails(monkeypatch, capsys, tmp_path):
    """The default optimizers come first; a verdict is kept, so that the same command continues an interrupted one."""
    monkeypatch.setattr(verdicts, "FILE", tmp_path / "cache" / "verdicts.jsonl")
    order = list(verdicts.variants(["diloco", "serial"]))
    assert order[:2] == [SCHEMES["diloco"](), SCHEMES["serial"]()]
    assert {scheme.inner_optimizer for scheme in order if scheme.name == "diloco"} == set(INNER_STEPS) - {"own"}
    assert verdicts.main(command := ["serial", "--workers", "1,2", "--steps", "20"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["agrees", "refused"]
    assert json.loads(last) == {"steps": 20, "seed": 0, "agrees": 1, "refused": 1}
    monkeypatch.setattr(verdicts, "judged", lambda *_: ("differs", "by 1"))
    assert verdicts.main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert verdicts.main(["krum", "--workers", "3"]) == 1
    with pytest.raises(UserError, match="must be numbers of workers, as in 3,4"):
        verdicts.main(["--workers", "0"])


@pytest.mark.rotating
@pytest.mark.parametrize("where", [[], ["--machines"]], ids=["here", "over machines"])
def test_the_soak_counts_survived_faults_and_replays_the_run(where, capsys):
    """With this seed a worker is killed, early in a long run."""
    try:
        assert soak.main(["--minutes", "0.01", "--seed", "7", "--verbose", *where]) == 0
    except UserError as error:
        pytest.skip(str(error))
    *_, told, last = capsys.readouterr().out.splitlines()
    assert told.startswith("  0 ok")
    counted = json.loads(last)
    assert (counted["runs"], counted["failed"]) == (1, 0)
    assert counted["worst_replay_error"] < 1e-5
    assert sum(number for name, number in counted.items() if name.startswith(("SIG", "crash", "cut"))) > 0


def test_endurance_finds_growing_tasks_by_a_line_through_the_second_half(tmp_path):
    watch = endurance.Watch(tmp_path, seconds=600)
    for second in range(0, 600, 10):
        ended = 10**8 + 10**5 * min(second, 200)
        memory = {"ps-0": ended, "worker-0": 10**8 + 1000 * second, "evaluator-0": 10**5 * second}
        held = {"ps-0": 20 + second // 10, "worker-0": 30}
        watch.samples.append(endurance.Sample(second, 2000 * second, 96 * 1000 * second, memory, 10**6, held))
    assert watch.growth() == pytest.approx({"ps-0": 0, "worker-0": 3.6, "evaluator-0": 360}, abs=0.1)
    assert watch.growing() == ["ps-0", "evaluator-0"]
    assert watch.bytes_per_million() == pytest.approx(48e6)
    assert watch.verdict()[-1] == "growing: ps-0, evaluator-0"


@pytest.mark.parametrize("record", ["full", "off"])
@pytest.mark.rotating
def test_endurance_runs_for_some_seconds(record, tmp_path, capfd):
    arguments = ["--minutes", "0.03", "--record", record, "--run-dir", str(tmp_path / "run"), "--workers", "1"]
    endurance.main(arguments)
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert set(told["mb_per_hour"]) == {"launcher", "fork server", "ps-0", "worker-0", "evaluator-0"}
    assert (told["record"], told["updates"] > 0) == (record, True)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["outcome"], result["record"]) == ("completed", record)
    assert sum(result["staleness"]["histogram"].values()) == result["updates"] == result["steps"]
    assert (tmp_path / "run" / "trace.npz").exists() == (record == "full")


def test_a_check_of_devices_that_fails_is_a_row_of_the_table(monkeypatch, capsys):
    def fails():
        raise ValueError("no such device\nand more")

    known = {"good": lambda: check_devices.Checked("GPU 0", 1234.5, "agrees"), "bad": fails}
    monkeypatch.setattr(check_devices, "checks", lambda options, folder: known.items())
    monkeypatch.setattr(check_devices.doctor, "look", lambda: defaultdict(str))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    assert check_devices.main([]) == 1
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["good", "GPU", "0", "1,234", "agrees"] in rows
    assert ["bad", "-", "-", "FAILED:", "ValueError:", "no", "such", "device"] in rows
    assert "1 FAILED" in " ".join(rows[-1])


def test_devices_are_checked_for_each_algorithm_and_in_each_way(tmp_path):
    found = dict(check_devices.checks(check_devices.Options(), tmp_path))
    assert set(SCHEMES) < set(found)
    assert {name.partition(", ")[2] for name in found} > {"threads", "XLA", "2 devices a worker", "convolution"}
    assert sum(name.endswith("in model.fit") for name in found) == len(check_devices.IN_FIT)
    assert all(check_devices.short(kind).period <= 4 for kind in SCHEMES.values())


@pytest.mark.rotating
def test_a_check_of_devices_runs_and_replays_and_compares_a_fit_with_a_group(warm, tmp_path):
    options = check_devices.Options(rounds=6)
    done = check_devices.trained(SCHEMES["sync_sgd"], tmp_path / "run", options, devices_per_worker=2)
    assert (done.devices, done.verdict[:6], done.right) == ("CPU", "agrees", True)
    assert done.rate
    done = check_devices.fitted(SCHEMES["downpour"], options)
    assert (done.devices, done.verdict[:17], done.right) == ("CPU:0", "agrees with Group", True)
