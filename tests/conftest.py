import gc
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # some tests compare bits of runs in this process and in others
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # of a suite in the background: runs would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # of `nohup`
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import pytest

import selection
import times
from distsgd.common.signals import USUAL

COLLECTED = pytest.StashKey[list[pytest.Item]]()


def pytest_addoption(parser):
    selection.add_options(parser)


def pytest_configure(config):
    config.pluginmanager.register(selection.Selection(config))
    is_one_of_several = hasattr(config, "workerinput")
    if is_one_of_several or not config.option.numprocesses:
        config.pluginmanager.register(times.Stopwatch())
    if not is_one_of_several:
        config.pluginmanager.register(times.Report(config.option.times))


def pytest_xdist_auto_num_workers():
    """One process for each core, few enough for the memory of most machines."""
    return min(8, len(os.sched_getaffinity(0)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config, items):
    config.stash[COLLECTED] = [*items]
    yield
    gc.collect()
    gc.freeze()  # otherwise each collection looks at all modules and tests again, and takes a tenth of the time


@pytest.fixture(scope="session")
def collected(request) -> list[pytest.Item]:
    """All tests of the files that were read, whatever is chosen of them."""
    if any("::" in argument for argument in request.config.args):
        pytest.skip("only parts of files were read")
    return request.config.stash[COLLECTED]


def children() -> set[int]:
    """Return the running processes that this one or its children started (zombies apart)."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    found = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {os.getpid()}


@pytest.fixture(autouse=True)
def blank_pictures(monkeypatch):
    """Replace the plot of a run, which takes as long as a small run, by an empty file in this process."""
    blank = SimpleNamespace(savefig=lambda *_, **__: None)
    monkeypatch.setattr("distsgd.common.record.run_directory.draw", lambda runs: blank)


@pytest.fixture
def uncompressed(monkeypatch):
    """Let 1-bit Adam, and 0/1 Adam, which derives from it, send floats in all rounds."""
    from distsgd.algorithms.one_bit_adam import OneBitAdam
    from distsgd.common.contract import Codec

    monkeypatch.setattr("distsgd.algorithms.one_bit_adam.scaled_signs", lambda vector, shapes: vector)
    monkeypatch.setattr(OneBitAdam, "codec", Codec())


@pytest.fixture(autouse=True)
def user_errors_of_one_line(monkeypatch):
    """Check that each `UserError` that the test raises in this process is one line."""
    from distsgd.common.errors import UserError

    said: list[str] = []

    def noted(self, *arguments):
        said.extend(map(str, arguments))
        super(UserError, self).__init__(*arguments)

    monkeypatch.setattr(UserError, "__init__", noted)
    yield
    assert not [message for message in said if "\n" in message]


@pytest.fixture(autouse=True)
def signals_as_before():
    """Check that the test leaves the handlers of signals as they were: later processes would inherit ignored ones."""
    before = [signal.getsignal(number) for number in USUAL]
    yield
    assert [signal.getsignal(number) for number in USUAL] == before


@pytest.fixture
def run_main(monkeypatch, capsys):
    """Return a function that runs the command line in this process, and returns its exit code and output."""
    from distsgd.algorithms import SCHEMES
    from distsgd.common.cli.main import main
    from distsgd.common.contract.rounding import CODECS
    from distsgd.common.replay.adapters import TRANSCRIPTIONS
    from distsgd.common.replay.reference.codecs import CODECS as EQUATIONS_OF_CODECS

    monkeypatch.setattr("signal.signal", lambda *_: None)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["distsgd", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    known = [(names, dict(names)) for names in (SCHEMES, CODECS, EQUATIONS_OF_CODECS, TRANSCRIPTIONS)]
    yield run
    for names, before in known:
        names.clear()  # of what `--import` has added
        names.update(before)


@pytest.fixture(scope="session")
def warm():
    """Keep one fork server for all runs of the session: TensorFlow is imported once."""
    from distsgd.common import keep_warm

    with keep_warm():
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_left():
    """Check that the suite leaves no process behind."""
    yield
    import multiprocessing.resource_tracker as tracker

    left = children() - {getattr(tracker._resource_tracker, "_pid", None)}
    assert not left, f"processes left: {left}"


@pytest.fixture(scope="session")
def private_network() -> bool:
    """Return whether this machine allows private networks."""
    from distsgd.common.cli.doctor import PRIVATE_NETWORK

    return not subprocess.run([sys.executable, "-P", "-c", PRIVATE_NETWORK], capture_output=True, timeout=60).returncode
