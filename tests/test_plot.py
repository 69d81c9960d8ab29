"""The plot that a run leaves behind says nothing on the terminal."""

import os
import subprocess
import sys

from distsgd.common.record.plot import plot

CONFIG = {"algorithm": "serial", "ps": 0, "workers": 1, "dataset": "own data", "model": "mine"}


def test_a_short_run_without_test_data_has_a_plot_too(tmp_path):
    plot(
        [{"kind": "center", "seconds": 0.1, "version": 1}], CONFIG, tmp_path / "plot.png"
    )  # a warning is an error here
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_where_no_home_can_be_written_matplotlib_says_nothing(tmp_path):
    code = "from distsgd.common.record.plot import figure_class as figure; figure()().savefig('plot.png')"
    environment = {**os.environ, "HOME": "/dev/null", "TMPDIR": str(tmp_path)}
    for name in ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "plot.png").exists()
