"""What the installed package is called, what it offers at its top, and how little it imports."""

import json
import shutil
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import distsgd
import distsgd.common
from distsgd.algorithms import SCHEMES
from distsgd.common.cli import main as cli
from distsgd.common.cli.completion import NAMES
from distsgd.common.cluster.fingerprint import source_digest
from distsgd.common.errors import Interrupted
from distsgd.common.lazy import tf

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("algorithms", "benchmarks", "common", "simulator")
HEAVY = ("tensorflow", "keras", "sklearn", "scipy", "matplotlib")


def python(*arguments, **options):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=200, **options)


def test_the_package_has_a_version_and_what_its_readers_look_for():
    assert distsgd.__version__ == version("distsgd")
    assert set(dir(distsgd)) >= {"train", "Cluster", "Scheme", "algorithms", "common", "__version__"}
    assert set(dir(distsgd.common)) >= set(distsgd.common.__all__)
    for folder in (distsgd.common, distsgd.simulator):
        for name in folder.__all__:
            assert getattr(distsgd, name) is getattr(folder, name)
            assert name in dir(distsgd)
    for kind in SCHEMES.values():
        assert getattr(distsgd, kind.__name__) is kind
        assert kind.__name__ in dir(distsgd)
    with pytest.raises(AttributeError, match="module 'distsgd' has no attribute 'tarin'"):
        distsgd.tarin  # noqa: B018


def test_every_folder_is_installed():
    """As `pyproject.toml` lists them for setuptools, which finds no package by itself here."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    there = {path.parent.relative_to(ROOT) for name in FOLDERS for path in (ROOT / name).rglob("*.py")}
    named = {".".join(("distsgd", *folder.parts)) for folder in there - {Path("common/toplevel")}}
    assert listed == {"distsgd", "distsgd.deploy"} | named  # distsgd itself is common/toplevel; deploy/ has templates


def test_the_citation_file_has_what_its_format_requires_and_agrees_with_the_package():
    """The format is version 1.2.0 of the Citation File Format."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["cff-version"] == "1.2.0"
    assert set(cited) >= {"authors", "message", "title"}
    assert all(set(author) <= {"name", "family-names", "given-names", "orcid"} for author in cited["authors"])
    named = ("title", "abstract", "version", "license", "keywords")
    assert {name: cited[name] for name in named} == {
        "title": project["name"], "abstract": project["description"], **{name: project[name] for name in named[2:]},
    }  # fmt: skip


@pytest.mark.parametrize(
    "last", ["algorithms/*.py", "common/*.py", "common/server/*.py", "common/replay/reference/*.py", "common/*.typed"]
)
def test_the_digest_of_the_source_changes_with_any_file(last, tmp_path):
    for name in ("algorithms", "common"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    before = source_digest(tmp_path)
    assert source_digest(tmp_path) == before == source_digest()
    with sorted(tmp_path.glob(last))[-1].open("a") as file:
        file.write("# changed")
    assert source_digest(tmp_path) != before


def test_importing_the_package_imports_nothing_heavy(tmp_path):
    code = f"import sys, distsgd; assert 'numpy' not in sys.modules; distsgd.train; distsgd.Downpour; dir(distsgd);\
        print([name for name in {HEAVY} if name in sys.modules])"
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stderr


# The modules that each quick command may import besides those of the command line itself; none imports NumPy.
RUNS = "bands latest metrics plot repeats saved_runs sheet summary"
MAY_IMPORT = {
    "--version": "",
    "--help": "",
    "list": "",
    "explain downpour": "",
    "runs": "cli.runs " + " ".join(f"record.{name}" for name in RUNS.split()),
    "Tab downp": "cli.completion record.latest",
    "Tab downpour --": "cli.completion record.latest",
    **{f"Tab downpour --{option} ": "cli.completion record.latest" for option in NAMES},
}
COMMAND_LINE = (
    "arguments cli cli.catalogue cli.flags cli.main errors files lazy libraries packages record record.tables "
    "record_format signals sources system"
)


@pytest.mark.rotating
def test_a_quick_command_imports_the_modules_that_it_needs(tmp_path):
    code = """
import io, json, os, sys
from distsgd.common.cli.main import COMMANDS, dispatch
for text in sys.argv[1:]:
    if os.fork() == 0:
        if text.startswith("Tab "):
            line = text.replace("Tab", "distsgd")
            os.environ |= {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
            from distsgd.common.cli.completion import complete
            complete([*COMMANDS], output_stream=io.StringIO(), exit_method=lambda code: None)
        else:
            dispatch(text.split())
        print(json.dumps([text, sorted(sys.modules)]), file=sys.stderr, flush=True)
        os._exit(0)
    os.wait()
"""
    (tmp_path / "runs").mkdir()
    done = python("-c", code, *MAY_IMPORT, cwd=tmp_path)
    found = dict(json.loads(line) for line in done.stderr.splitlines() if line.startswith("["))
    assert found.keys() == MAY_IMPORT.keys(), done.stdout + done.stderr
    for text, more in MAY_IMPORT.items():
        ours = {name.removeprefix("distsgd.common.") for name in found[text] if name.startswith("distsgd.")}
        assert ours - {"distsgd.common", "distsgd.algorithms"} <= {*COMMAND_LINE.split(), *more.split()}, text
        assert not {"numpy", *HEAVY} & set(found[text]), text
    assert f"distsgd {version('distsgd')}\n" in done.stdout


@pytest.mark.rotating
def test_help_and_ideas_do_not_need_the_docstrings_of_a_running_program(tmp_path):
    """`python -OO` has none. Those of an own algorithm, too, are read from its file."""
    (tmp_path / "mine.py").write_text(OWN)
    commands = ["--import mine.py list", "explain mine", "explain diloco", "downpour --help", "soak --help"]
    code = """
import sys
from distsgd.common.cli.main import dispatch
for text in sys.argv[1:]:
    try:
        dispatch(text.split())
    except SystemExit:
        pass
"""
    done = [python(*flag, "-c", code, *commands, cwd=tmp_path) for flag in ((), ("-OO",))]
    assert done[1].stdout == done[0].stdout, done[1].stderr
    for text in ("Local steps between two outer steps", "My idea", "What it is", "tasks are killed"):
        assert text in done[0].stdout


OWN = '''
"""A module."""
from dataclasses import dataclass
from distsgd.common.contract import Scheme

@dataclass(frozen=True, kw_only=True)
class Mine(Scheme):
    """My idea."""
    name = "mine"
    rate: float = 0.1
    """What it is."""
'''


@pytest.mark.gate
def test_type_checkers_know_the_names_of_the_package(tmp_path):
    names = [*distsgd.common.__all__, *distsgd.simulator.__all__, *(kind.__name__ for kind in SCHEMES.values())]
    (tmp_path / "user.py").write_text(f"from distsgd import {', '.join(names)}\nreveal_type(Downpour(ps=2))\n")
    shutil.copytree(ROOT / "common" / "toplevel", tmp_path / "distsgd")
    for name in FOLDERS:
        (tmp_path / "distsgd" / name).symlink_to(ROOT / name)
    done = python("-m", "basedpyright", "--level", "error", "--pythonpath", sys.executable, "user.py", cwd=tmp_path)
    assert 'No parameter named "ps"' in done.stdout, done.stdout
    assert done.stdout.count("error:") == 1, done.stdout


def test_virtual_time_orders_a_run_of_every_rule_without_tensorflow(tmp_path):
    code = f"""
import sys
from distsgd.algorithms import SCHEMES
from distsgd.simulator.virtual_time.schedule import EventLoop
from distsgd.common.cluster.platform import Platform
for name in ("downpour", "sync_sgd", "ssp", "local_sgd", "all_reduce"):
    scheme = SCHEMES[name]()
    EventLoop(scheme, Platform(), workers=2, rounds=scheme.rounds(4), seed=0, message_bytes=1e3, reply_bytes=1e3)
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.rotating
def test_a_lazy_module_is_imported_once_when_threads_first_read_it(tmp_path):
    code = """
import copy, pickle, sys, threading
import cloudpickle
from distsgd.common.lazy import tf
assert copy.copy(tf) is pickle.loads(cloudpickle.dumps(tf)) is tf
sys.modules["tensorflow"] = None
try:
    tf.add
except ImportError:
    del sys.modules["tensorflow"]
assert "tensorflow" not in sys.modules
together, found = threading.Barrier(4), []
def read():
    together.wait()
    found.append((tf.add, tf.errors.OpError))
threads = [threading.Thread(target=read) for _ in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
import tensorflow
print(found == [(tensorflow.add, tensorflow.errors.OpError)] * 4, hasattr(tf, "no_such"))
"""
    done = python("-c", code, cwd=tmp_path)
    assert done.stdout == "True False\n", done.stderr


def test_autograph_converts_a_function_that_uses_a_lazy_module():
    @tf.function
    def total(n):
        found = tf.constant(0)
        for i in tf.range(n):
            if i % 2 == 0:
                found += i
        while found < 100:
            found *= 2
        return tf.cond(found > 150, lambda: found + 1, lambda: found)

    assert int(total(tf.constant(7))) == 193


def test_python_runs_the_package_as_the_console_script_does(tmp_path):
    done = python("-m", "distsgd", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"distsgd {version('distsgd')}\n", "")


def test_a_signal_in_the_first_moment_is_one_line_and_no_traceback(tmp_path):
    code = "import importlib, os, distsgd.__main__ as start\n"
    code += "importlib.import_module = lambda name: os.kill(os.getpid(), {})\n"
    code += "start.main()"
    for number in (signal.SIGINT, signal.SIGHUP):  # while the command line is being imported
        done = python("-c", code.format(int(number)), cwd=tmp_path)
        said = f"error: interrupted by {number.name}\n"
        assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", said)


def test_a_signal_that_is_ignored_stays_so(tmp_path):
    """In the background of a script Ctrl-C is for others."""
    code = "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import distsgd.__main__ as start\n"
    code += "from distsgd.common.cli import main as cli\n"
    code += "cli.dispatch = lambda arguments: os.kill(os.getpid(), signal.SIGINT)\n"
    code += "start.main()"
    done = python("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (Interrupted(signal.SIGTERM), 143)])
def test_a_signal_before_the_run_is_one_line_too(error, code, monkeypatch, capsys):
    def interrupted(arguments):
        raise error

    monkeypatch.setattr(cli, "dispatch", interrupted)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == code
    assert capsys.readouterr() == ("", f"error: interrupted by {signal.Signals(code - 128).name}\n")
