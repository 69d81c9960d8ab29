"""The plot that a run leaves behind: what it shows, and that it says nothing on the terminal."""

import os
import subprocess
import sys
from io import BytesIO

import numpy as np
import pytest

from distsgd.common.record import plot as module
from distsgd.common.record.plot import figure_class, plot

CONFIG = {"algorithm": "serial", "ps": 0, "workers": 1, "dataset": "own data", "model": "mine"}


@pytest.fixture
def axes_of(monkeypatch):
    """Plots rows; returns the axes of losses and those of the accuracy."""
    figures = []

    class Kept(figure_class()):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            figures.append(self)

    monkeypatch.setattr(module, "figure_class", lambda: Kept)

    def axes(rows, **config):
        plot(rows, CONFIG | config, BytesIO())
        return figures[-1].axes

    return axes


def curves(axes):
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines if len(line.get_xydata()) > 2}


def test_curves_are_losses_and_accuracies_over_seconds_since_the_first_row(axes_of):
    rows = [
        {"kind": kind, "seconds": 10.5 + second, **({"worker": k, "loss": k + 2 - second / 4} if k is not None else {})}
        | ({"version": second, "test_loss": 2 - second / 2, "test_my_accuracy": second / 4} if k is None else {})
        for second in range(3)
        for kind, k in (("worker", 0), ("center", None), ("worker", 1))
    ]
    losses, accuracy = axes_of(rows)
    assert curves(losses) == {
        "worker 0, training": [[0, 2], [1, 1.75], [2, 1.5]],
        "worker 1, training": [[0, 3], [1, 2.75], [2, 2.5]],
        "center, test": [[0, 2], [1, 1.5], [2, 1]],
    }
    assert [*curves(accuracy).values()] == [[[0, 0], [1, 0.25], [2, 0.5]]]
    assert (losses.get_xlabel(), losses.get_yscale()) == ("seconds", "log")
    for row in rows:
        row["loss" if row["kind"] == "worker" else "test_loss"] = None if row["seconds"] > 12 else -1.0
    losses, _ = axes_of(rows, platform={})
    assert (losses.get_xlabel(), losses.get_yscale()) == ("virtual seconds", "linear")
    np.testing.assert_array_equal(curves(losses)["center, test"], [[0, -1], [1, -1], [2, np.nan]])


def test_the_plot_of_a_run_without_test_data_has_only_losses(axes_of):
    (losses,) = axes_of([{"kind": "center", "seconds": 0.1, "version": 1}])  # a warning is an error here
    assert losses.get_ylabel() == "loss"


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
