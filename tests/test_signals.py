"""Signals that end a run: which handler gets them, and what a run that is interrupted leaves."""

import json
import os
import signal
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
from resting import Resting

from distsgd.common import Callback, Cluster, Recovery, UserError, train
from distsgd.common.cli import train as train_command
from distsgd.common.cli.flag_groups import OUTPUT
from distsgd.common.errors import Interrupted
from distsgd.common.record import checkpoint, run_directory
from distsgd.common.signals import StopSignals, added, held, interrupt


@pytest.fixture
def stop(monkeypatch):
    """The handler, with a run that has begun; what it has asked is in `asked`."""
    asked = []
    stop = StopSignals([signal.SIGUSR2], asked.append)
    stop.begun, stop.asked = True, asked
    with stop:
        yield stop


def test_the_first_signal_asks_the_run_to_end_and_a_second_one_raises(stop, monkeypatch):
    monkeypatch.setattr("distsgd.common.signals.SAME_SECONDS", 60.0)
    signal.raise_signal(signal.SIGUSR2)
    signal.raise_signal(signal.SIGUSR2)  # the same one, as `timeout` sends it
    assert stop.asked == ["SIGUSR2"]
    with pytest.raises(Interrupted, match="SIGUSR2"):
        signal.raise_signal(signal.SIGTERM)
    monkeypatch.setattr("distsgd.common.signals.SAME_SECONDS", 0.0)
    with pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGUSR2)
    stop.over = True
    signal.raise_signal(signal.SIGINT)
    assert (stop.asked, stop.number) == (["SIGUSR2"], signal.SIGUSR2)


def test_a_terminal_that_is_closed_sends_sighup_twice(stop, monkeypatch):
    monkeypatch.setattr("distsgd.common.signals.SAME_SECONDS", 0.0)
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGHUP)
    assert stop.asked == ["SIGHUP"]


def test_a_signal_before_the_run_has_begun_ends_it_at_once(stop):
    stop.begun = False
    with pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGTERM)
    assert (stop.asked, stop.number) == ([], signal.SIGTERM)


def test_a_signal_with_a_handler_of_the_program_or_ignored_is_left_alone(monkeypatch):
    seen = []
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM)}
    try:
        signal.signal(signal.SIGUSR1, lambda *_: seen.append("own"))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        signal.signal(signal.SIGTERM, interrupt)  # that of the command line
        with StopSignals((), seen.append) as stop:
            stop.begun = True
            for number in before:
                signal.raise_signal(number)
        assert seen == ["own", "SIGTERM"]
        assert signal.getsignal(signal.SIGTERM) is interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_another_thread_than_the_main_one_has_no_handlers():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def enter():
        with StopSignals((), print):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_signal_that_is_held_back_is_raised_at_the_end_of_the_block():
    done = []

    def block():
        with held():
            signal.raise_signal(signal.SIGTERM)
            done.append(True)

    with pytest.raises(Interrupted, match="SIGTERM"):
        block()
    assert done == [True]


def test_a_signal_of_a_run_that_is_held_back_asks_it_to_end_after_the_block(stop):
    with held():
        signal.raise_signal(signal.SIGUSR2)
        assert stop.asked == []
    assert stop.asked == ["SIGUSR2"]


@pytest.mark.parametrize("error", [None, Interrupted(signal.SIGINT)])
def test_a_signal_while_the_result_is_written_takes_neither_table_nor_exit_code(monkeypatch, error):
    said = []

    def finished(record, error):
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.raise_signal(number)
        return record, {"exit_code": 0 if error is None else error.exit_code}, error

    monkeypatch.setattr(train_command, "finished", finished)
    monkeypatch.setattr(train_command, "show", lambda record, result, *_: said.append(record) or result["exit_code"])
    with added([signal.SIGTERM, signal.SIGUSR2]):
        assert train_command.shown(("record", error), OUTPUT) == (130 if error else 0)
        assert said == ["record"]
        with pytest.raises(Interrupted, match="SIGUSR2"):
            signal.raise_signal(signal.SIGUSR2)


TASK = """
import os, signal, threading
from distsgd.common import signals
signals.ignore([signal.SIGUSR2])
reported = threading.Event()
signals.report_terminations(reported.set)
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    os.kill(os.getpid(), number)
assert reported.wait(30) and not signals.leaving.is_set()
if (child := os.fork()) == 0:  # such as a process that loads data
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
os.kill(os.getpid(), signal.SIGURG)
assert signals.leaving.wait(30)
"""


def test_a_task_leaves_signals_to_the_launcher_and_reports_sigterm():
    subprocess.run([sys.executable, "-c", TASK], check=True, timeout=100)


def test_further_signals_are_those_of_schedulers():
    assert Recovery(stop_signals="usr2, SIGXCPU").signals == (signal.SIGUSR2, signal.SIGXCPU)
    assert Recovery().signals == ()
    with pytest.raises(UserError, match=r"stop_signals takes USR2, .*Received: stop_signals='KILL'"):
        Recovery(stop_signals="KILL")


class Kill(Callback):
    """Sends a signal to this process, in training or when the result is here."""

    def __init__(self, number, at_end=False, leaves=None):
        self.number, self.at_end, self.leaves, self.sent = number, at_end, leaves, False

    def on_test_end(self, logs):
        if logs["version"] > 0 and not self.at_end and not self.sent:
            self.sent = True
            self.leaves.touch()  # as an evaluator that is killed
            os.kill(os.getpid(), self.number)

    def on_train_end(self, logs):
        if self.at_end:
            os.kill(os.getpid(), self.number)


@pytest.mark.gate
def test_train_gives_back_the_center_it_has_reached_and_continues_from_there(tmp_path, capsys, monkeypatch):
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    start = model.get_weights()[0]
    how = {
        "cluster": Cluster.local(backend="threads"),
        "validation_data": (x, x[:, :1]),
        "batch_size": 8,
        "evaluate_every": 2,
    }

    def result(folder):
        return json.loads((tmp_path / folder / "result.json").read_text())

    def weights():
        return np.concatenate([np.ravel(array) for array in model.get_weights()])

    half = tmp_path / "a" / ".data.npz.part"
    long = {"steps": 480, "callbacks": [Kill(signal.SIGUSR1, leaves=half)]}
    scheme = Resting(milliseconds=100)
    events, on_event, save = [], run_directory.RunRecord.on_event, run_directory.save
    monkeypatch.setattr(
        run_directory.RunRecord, "on_event", lambda record, event: events.append(event) or on_event(record, event)
    )
    monkeypatch.setattr(run_directory, "save", lambda *_: signal.raise_signal(signal.SIGTERM))  # while it is drawn
    with pytest.raises(KeyboardInterrupt, match="SIGUSR1"):
        train(model, (x, x[:, :1]), scheme, run_dir=tmp_path / "a", **how, **long)
    monkeypatch.setattr(run_directory, "save", save)
    before = result("a")
    assert (before["outcome"], before["exit_code"], before["stopped_by"]) == ("interrupted", 138, "SIGUSR1")
    assert 0 < before["updates"] == checkpoint.newest(tmp_path / "a").version
    kept = [event["version"] for event in events if event["event"] == "kept"]  # none if all workers left before
    assert all(0 < version <= before["updates"] for version in kept)
    with np.load(tmp_path / "a" / "center.npz") as saved:
        np.testing.assert_array_equal(weights(), saved["center"])
    assert np.abs(model.get_weights()[0] - start).max() > 0
    assert "async_sgd: interrupted" in (said := capsys.readouterr().out)
    assert f"to continue: train(..., recovery=Recovery(resume='{tmp_path / 'a'}'))" in said
    assert not (tmp_path / "a" / "stop").exists()
    assert not half.exists()

    # A signal that comes when all steps are done takes nothing from the result, and still reaches the caller.
    how |= {"recovery": Recovery(resume=tmp_path / "a"), "callbacks": [Kill(signal.SIGTERM, at_end=True)]}
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        train(model, (x, x[:, :1]), scheme, steps=before["steps"] + 9, run_dir=tmp_path / "b", verbose=False, **how)
    after = result("b")
    assert (after["outcome"], after["exit_code"], after["stopped_by"]) == ("completed", 0, None)
    assert after["updates"] > before["updates"]
