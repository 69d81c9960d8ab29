"""A gate in a user's own file, of public parts alone, in a run that loses a worker."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_launcher import task_log

from conftest import children
from distsgd.algorithms import SCHEMES
from distsgd.common.cli.imports import import_schemes
from distsgd.common.engine.trace import EVENTS
from distsgd.common.errors import UserError
from runs import wait_until

FILE = Path(__file__).with_name("leashed.py")
LENGTH = 2
STEPS = 600


def trains(run_dir):
    """True once there are some updates on record."""
    try:
        rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return False
    return max((row.get("version", 0) for row in rows), default=0) > 60


@pytest.mark.slow
def test_a_gate_of_ones_own_on_processes_survives_a_killed_worker_and_keeps_its_bound(tmp_path):
    command = [sys.executable, "-m", "distsgd.common.cli.main", "--import", str(FILE), "leashed", "--json"]
    command += ["--length", str(LENGTH), "--workers", "3", "--ps", "2", "--steps", str(STEPS), "--batch-size", "8"]
    command += ["--max-restarts", "1", "--run-dir", "run", "--record", "full"]
    run = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: trains(tmp_path / "run") or run.poll() is not None)
        victims = [pid for pid in children() if task_log(pid) == "worker-1.log"]
        assert victims, run.communicate()
        os.kill(victims[0], signal.SIGKILL)
        out, errors = run.communicate(timeout=400)
    finally:
        run.kill()
    assert run.returncode == 0, errors
    result = json.loads(out.splitlines()[-1])
    assert (result["outcome"], result["recovery"]["restarts"]) == ("completed", {"worker-1": 1})
    assert (result["updates"], result["test_accuracy"] > 0.8) == (3 * STEPS, True)
    with np.load(tmp_path / "run" / "trace.npz") as trace:
        messages = trace["worker"][trace["event"] == EVENTS.index("exchange")]
    ahead = bounds(messages, 3)
    assert max(ahead) <= LENGTH


def bounds(order, workers):
    """For each message, how many rounds its worker was ahead of the last one while it computed it, at least."""
    clocks = np.zeros(workers, int)
    for k in order:
        yield int(clocks[k] - clocks.min())
        clocks[k] += 1


def test_the_file_asks_for_public_things_alone():
    text = FILE.read_text()
    assert set(re.findall(r"from (distsgd[\w.]*)", text)) == {"distsgd.common.contract", "distsgd.common.gates"}
    assert not re.search(r"\bps\._|\bslot\._|self\._", text)


def test_the_gate_says_what_it_cannot_do(tmp_path):
    scheme = import_schemes(FILE, SCHEMES)["leashed"]
    assert (scheme().gate.label, scheme().gate.updates_per_round(3)) == ("on a leash", 3)
    with pytest.raises(UserError, match="length"):
        scheme(length=-1)
