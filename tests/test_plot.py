"""The plot that a run leaves behind: what it shows, and that it says nothing on the terminal."""

import os
import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest

from distsgd.algorithms import SCHEMES
from distsgd.common.errors import UserError
from distsgd.common.record.plot import Drawn, colour, draw

CONFIG = {"algorithm": "serial", "ps": 0, "workers": 1, "dataset": "own data", "model": "mine", "seed": 0}

ROWS = [
    {"kind": "center", "seconds": 4.0, "version": 0, "examples": 0, "test_loss": 2.0, "test_accuracy": 0.1},
    {"kind": "worker", "seconds": 10.0, "worker": 0, "loss": 1.5},
    {"kind": "worker", "seconds": 10.5, "worker": 1, "loss": 1.25},
    {"kind": "center", "seconds": 11.0, "version": 10, "examples": 80, "test_loss": 1.0, "test_accuracy": 0.9},
    {"kind": "worker", "seconds": 12.0, "worker": 0, "loss": 0.75},
    {"kind": "center", "seconds": 13.0, "version": 20, "examples": 160, "test_loss": 0.5, "test_accuracy": 0.95},
]


def axes_of(*runs, x="seconds"):
    """The axes of a figure that can be written."""
    figure = draw(runs, x)
    figure.savefig(BytesIO())  # a warning is an error here
    return figure.axes


def curves(axes):
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines}


def changed(**fields):
    """The rows of the center with other values in the last one."""
    rows = [row for row in ROWS if row["kind"] == "center"]
    return [*rows[:-1], rows[-1] | fields]


def test_curves_are_losses_and_errors_since_the_first_update():
    losses, errors = axes_of(Drawn(CONFIG, ROWS))
    assert curves(losses) == {
        "workers, training": [[0, 1.5], [2, 0.75]],
        "_worker 1, training": [[0.5, 1.25]],
        "center, test: 0.5": [[0, 2], [1, 1], [3, 0.5]],  # no line through the six seconds of the start
    }
    ((label, points),) = curves(errors).items()
    assert label == "center: 5 %"
    np.testing.assert_allclose(points, [[0, 90], [1, 10], [3, 5]])
    assert (losses.get_xlabel(), errors.get_ylabel()) == (
        "seconds since the first update",
        "test error of the center, %",
    )
    assert (losses.get_yscale(), errors.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in errors.get_yticklabels()] == ["5", "10", "20", "50", "100"]


def test_virtual_time_has_no_start_up():
    losses, _ = axes_of(Drawn(CONFIG | {"platform": {}}, changed()))
    assert losses.get_xlabel() == "virtual seconds"
    assert [x for x, _ in curves(losses)["center, test: 0.5"]] == [4, 11, 13]


def test_workers_lie_between_the_counts_of_the_center():
    losses, _ = axes_of(Drawn(CONFIG, ROWS), x="examples")
    assert [x for x, _ in curves(losses)["workers, training"]] == [pytest.approx(80 * 6 / 7), 120]
    with pytest.raises(UserError, match="no number of bytes is recorded in the run of serial"):
        draw([Drawn(CONFIG, ROWS)], "bytes")


def test_runs_of_one_algorithm_share_a_colour_and_differ_in_dashes():
    names = ["downpour", "sync_sgd", "downpour", "mine"]
    losses, _ = axes_of(*(Drawn(CONFIG | {"algorithm": name}, ROWS, f"{name} {i}") for i, name in enumerate(names)))
    (legend,) = losses.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"{name} {i}: 0.5, 5 %" for i, name in enumerate(names)]
    assert [line.get_label() for line in losses.lines] == [f"{name} {i}: 0.5" for i, name in enumerate(names)]
    assert [line.get_color() for line in losses.lines] == [colour(name) for name in names]
    assert [line.get_linestyle() for line in losses.lines] == ["-", "-", "--", "-"]
    assert len({*map(colour, SCHEMES), colour("mine")}) == 9


@pytest.mark.parametrize(
    "compared",
    [
        "sync_sgd local_sgd diloco async_sgd downpour all_reduce agn",
        "sync_sgd local_sgd diloco sparseloco ef_sgd",
        "sync_sgd local_sgd diloco scaffold",
        "sync_sgd async_sgd trimmed_mean",
        "serial sync_sgd async_sgd",
        "serial hogwild async_sgd downpour",
        "async_sgd ringmaster delay_adaptive",
        "all_reduce d_psgd dsgd_tracking sgp noloco gasloc",
        "all_reduce d_psgd ad_psgd async_sgd",
        "all_reduce diloco streaming_diloco",
        "sync_sgd k_sync async_sgd",
        "sync_sgd local_sgd ssp async_sgd downpour_easy",
        "async_sgd easgd aeasgd",
    ],
)
def test_algorithms_that_are_often_compared_differ_in_colour(compared: str):
    names = compared.split()
    assert len(set(map(colour, names))) == len(names)


def test_axes_stay_readable_with_zeros_negative_numbers_and_without_any():
    losses, errors = axes_of(Drawn(CONFIG, changed(test_loss=-1.0, test_accuracy=1.0)))
    assert (losses.get_yscale(), errors.get_yscale()) == ("linear", "symlog")
    assert errors.get_yticklabels()[0].get_text() == "0"
    least = min(y for line in errors.lines for y in line.get_ydata() if y > 0)
    assert not [tick for tick in errors.get_yticks() if 0 < tick < least]  # its label would overlap that of zero
    losses, others = axes_of(Drawn(CONFIG, changed(test_loss=None, test_accuracy=95.0)))
    assert (losses.get_yscale(), others.get_ylabel()) == ("log", "test accuracy of the center")
    np.testing.assert_array_equal([y for _, y in curves(losses)["center, test: nan"]], [2, 1, np.nan])
    (losses,) = axes_of(Drawn(CONFIG, [{"kind": "center", "seconds": 0.1, "version": 1}]))
    assert losses.get_ylabel() == "loss"


def test_figures_of_a_script_have_a_panel():
    rows = [{**row, "reward": 7.0} if row["kind"] == "worker" else row for row in ROWS]
    _, figures, _ = axes_of(Drawn(CONFIG, rows))
    assert curves(figures) == {"reward, worker 0": [[0, 7], [2, 7]], "reward, worker 1": [[0.5, 7]]}
    without = [{k: v for k, v in row.items() if "loss" not in k and "accuracy" not in k} for row in rows]
    (figures,) = axes_of(Drawn(CONFIG, without))
    assert figures.get_ylabel() == "reward"
    scripted = [{**row, "length": 1.0} for row in rows if row["kind"] == "worker"]
    losses, figures, _ = axes_of(Drawn(CONFIG | {"shapes": [[2]]}, [*scripted, ROWS[0]]))
    assert figures.get_ylabel() == "figures of the script"
    for k in (0, 1):
        of_worker = {
            line.get_color() for axes in (losses, figures) for line in axes.lines if f"worker {k}" in line.get_label()
        }
        assert of_worker == {f"C{k}"}


def test_a_title_stays_within_its_picture_and_names_a_problem_once():
    problem = "quadratic:dim=1729,noise=0.01"
    config = CONFIG | {"dataset": problem, "model": f"{problem},minima=1", "hyperparameters": {"a": None, "b_c": 2}}
    (losses,) = axes_of(Drawn(config, [{"kind": "center", "seconds": 0.1, "version": 1}]))
    title = losses.figure.get_suptitle().splitlines()
    assert title == ["serial on quadratic:dim=1729,noise=0.01,minima=1", "(workers: 1)", "b c 2, seed 0"]


def test_training_losses_stand_for_missing_test_losses():
    untested = [{k: v for k, v in row.items() if not k.startswith("test_")} for row in ROWS]
    (losses,) = axes_of(Drawn(CONFIG, untested, "a"), Drawn(CONFIG, untested, "b"))
    assert {label: len(points) for label, points in curves(losses).items()} == {
        "a: 0.75": 2, "_a: 1.25": 1, "b: 0.75": 2, "_b: 1.25": 1,
    }  # fmt: skip


def test_matplotlib_prints_nothing_without_a_writable_home(tmp_path):
    code = "from distsgd.common.record.plot import figure_class as figure; figure()().savefig('plot.png')"
    environment = {**os.environ, "HOME": "/dev/null", "TMPDIR": str(tmp_path)}
    for name in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "plot.png").exists()


def test_import_in_a_thread_leaves_level_and_errors_to_the_user():
    code = """
import logging, sys, threading
from distsgd.common.record import plot
threads = [threading.Thread(target=plot.import_ahead) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(logging.getLogger("matplotlib").level)
sys.modules["matplotlib.figure"] = None
plot.import_ahead()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == ("0\n", "")
