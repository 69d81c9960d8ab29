"""How tasks start: beside packages that start threads, in a sandbox, with modules that only the program finds."""

import ast
import importlib
import importlib.util
import json
import os
import pickle
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf
from going import Going, Lasting

from distsgd.algorithms import AsyncSGD, SyncSGD
from distsgd.common import keep_warm, train
from distsgd.common.cluster.task_spec import Addresses
from distsgd.common.launch import by_value, deferral, forkserver, isolation, server_process
from distsgd.common.launch.task_process import Start, load
from distsgd.common.tasks.options import Recovery
from runs import ONES, linear, wait_until

STARTS_A_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, name="keeper", daemon=True).start()
class DataFrame: pass
class Series: pass
"""

SETS_A_HANDLER = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
HERE = True
"""

PATCHES_TENSORFLOW = """
import tensorflow
def refuse(*_, **__): raise RuntimeError("patched")
tensorflow.compat.v1.Session = tensorflow.distribute.Server = refuse
"""


def write(folder: Path, **modules: str) -> Path:
    """Write modules into a folder, and return it."""
    for name, text in modules.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


@pytest.fixture
def importer(tmp_path, monkeypatch):
    """Return a function that imports a module as the fork server imports Keras, given other modules by name."""
    before = set(sys.modules)

    def run(text: str, **modules: str):
        monkeypatch.syspath_prepend(write(tmp_path, importer=text, **modules))
        monkeypatch.setattr(deferral, "IMPORTERS", ("importer",))
        with deferral.deferring():
            return importlib.import_module("importer")

    yield run
    for name in set(sys.modules) - before:
        del sys.modules[name]


def imported(name: str) -> bool:
    return any(found.partition(".")[0] == name for found in sys.modules)


def test_a_package_that_is_imported_only_if_present_is_imported_at_its_first_use(importer):
    made = importer(
        """
        import needed
        try:
            import optional
        except ImportError:
            optional = None
        try:
            import optional.inner as inner
            from optional import inner as again
            from optional import Thing, helper
        except (ImportError, AttributeError):
            inner = None
        try:
            import absent
        except ImportError:
            absent = None
        TYPES = (int, optional.Thing) if optional else (int,)
        """,
        **{
            "needed": "",
            "optional/__init__": "class Thing: pass\ndef helper(): return 3",
            "optional/inner": "VALUE = 5",
        },
    )
    assert (imported("needed"), imported("optional"), made.absent) == (True, False, None)
    assert isinstance(1, made.TYPES)
    assert not isinstance("", made.TYPES)
    assert not imported("optional")
    assert (made.inner.VALUE, made.again.VALUE, made.helper()) == (5, 5, 3)
    import optional  # as a task does

    assert isinstance(optional.Thing(), made.TYPES)
    assert issubclass(type("Derived", (optional.Thing,), {}), made.Thing)
    assert made.optional.Thing is optional.Thing


def test_a_package_that_is_used_during_the_import_is_imported_then(importer):
    made = importer(
        """
        try:
            from optional import Base
            import called
            import other
        except ImportError:
            Base = object
        class Derived(Base): pass
        called.register(Derived)
        """,
        optional="class Base: pass",
        called="import other\nknown = [other.NUMBER]\nregister = known.append",
        other="NUMBER = 7",
    )
    assert made.Derived.__mro__[1].__module__ == "optional"
    assert sys.modules["called"].known == [7, made.Derived]


@pytest.mark.rotating
def test_keras_and_tensorflow_hold_nothing_else_in_a_task_than_in_a_program():
    """A package that was kept out for good would leave None in their modules, as if it were not installed."""
    code = """
    import json, sys
    from distsgd.common.launch.deferral import import_tensorflow
    from distsgd.common.launch.forkserver import other_threads
    import_tensorflow()
    mine = {k: v for k, v in sys.modules.items() if k.partition(".")[0] in ("keras", "tensorflow")}
    none = {name: [key for key, value in list(vars(module).items()) if value is None] for name, module in mine.items()}
    print(json.dumps([none, other_threads(), sorted({name.partition(".")[0] for name in sys.modules})]))
    """
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
    command = [sys.executable, "-P", "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    none, threads, packages = json.loads(done.stdout.splitlines()[-1])
    assert threads == []
    assert not {"sklearn", "matplotlib", "IPython", "scipy", "pandas", "jax", "torch"} & set(packages)
    import keras.wrappers  # noqa: F401

    for name, keys in none.items():
        here = vars(sys.modules[name]) if name in sys.modules else {}
        late = {"FLAGS"}  # which TensorFlow makes when a program first asks for it
        assert not [key for key in keys if here.get(key) is not None and not key.startswith("_") and key not in late], (
            name
        )


@pytest.fixture
def server(monkeypatch):
    """A fork server that starts nothing: the events that it sends, and the tasks that it forks and spawns."""
    monkeypatch.setattr(forkserver, "ignore", lambda further: None)  # this process is to end by its signals
    events: list[dict] = []
    made = forkserver.TaskForker(SimpleNamespace(send=lambda **event: events.append(event)), ["tracer"])
    made.events, made.spawned = events, []
    made.spawn = lambda start: made.spawned.append(start) or 100 + len(made.spawned)
    yield made
    for port in made.reserved:
        port.close()


def test_tasks_are_new_interpreters_where_the_environment_starts_a_thread(server, tmp_path):
    request = {"run": 3, "job": str(tmp_path / "job"), "logs": "", "path": [], "folder": "", "environment": {}}
    request["signals"] = []
    server.start(request | {"tasks": [["ps", 0], ["worker", 0]], "addresses": None})
    warning, started = server.events
    assert warning["event"] == "warning"
    assert "another thread in each process (tracer)" in warning["message"]
    assert started["pids"] == {"ps-0": 101, "worker-0": 102}
    assert [start.task for start in server.spawned] == ["ps-0", "worker-0"]


def test_a_task_that_is_restarted_beside_a_thread_gets_its_job_from_a_file(server, tmp_path, monkeypatch):
    """The tasks of the run were forked, and the file of the job deleted."""
    started = []
    monkeypatch.setattr(os, "posix_spawn", lambda *arguments, **_: started.append(arguments) or 100)
    server.job, server.parts, server.environment = tmp_path / "job", ([1.5], None, None, b"rest"), {"SET": "1"}
    server.channel.fileno = lambda: 7
    start = Start(1, "worker", 0, Addresses([], ["h:1"]), "logs", [], "")
    forkserver.TaskForker.spawn(server, start)
    _, (*_, descriptor, parent, job, text), environment = started[0]
    assert (descriptor, parent, environment) == ("7", str(os.getpid()), {"SET": "1"})
    assert load(job) == server.parts
    assert Start.from_json(text) == start


def test_other_threads_are_named():
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="keeper")
    thread.start()
    try:
        assert "keeper" in forkserver.other_threads()
    finally:
        done.set()
        thread.join()
    assert "keeper" not in forkserver.other_threads()


def test_a_network_that_cannot_be_configured_is_not_entered(monkeypatch):
    def enter():
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(isolation, "enter_private_network", enter)
    assert isolation.network_of("auto") == "refused: Read-only file system"
    assert isolation.network_of("off") == "open"
    monkeypatch.setattr(isolation, "why_not", lambda: "")  # of a child, which has a single thread
    assert isolation.network_of("auto") == "refused: Read-only file system"


def test_a_read_only_proc_leaves_the_network_open():
    """As in many sandboxes: a process may enter a network there, but not configure it."""
    try_it = f"mount -o remount,ro /proc || exit 77; {shlex.join(isolation.command([sys.executable], 'auto'))}"
    sandbox = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", try_it]
    done = subprocess.run(sandbox, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode in (1, 77):
        pytest.skip(f"no sandbox can be made here: {done.stderr}")
    assert done.stdout == "refused: Read-only file system\n", done.stderr


def test_a_module_that_no_path_finds_travels_by_value(tmp_path, monkeypatch):
    for folder in (tmp_path / "on_path", tmp_path / "elsewhere"):
        write(
            folder,
            same_name="",
            **{"package/__init__": "", "package/inner": "def value(): return 2 + VALUE\nVALUE = 3"},
        )
    monkeypatch.syspath_prepend(tmp_path / "on_path")

    def load(name: str, file: str):
        spec = importlib.util.spec_from_file_location(name, tmp_path / file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    before = set(map(id, by_value.unfindable()))
    load("same_name", "on_path/same_name.py")
    load("package", "on_path/package/__init__.py")
    load("package.inner", "on_path/package/inner.py")
    assert set(map(id, by_value.unfindable())) == before
    other = load("same_name", "elsewhere/same_name.py")  # the path has another module of that name
    inner = load("only_here", "elsewhere/package/inner.py")
    assert {module.__name__ for module in by_value.unfindable() if id(module) not in before} == {
        "only_here",
        "same_name",
    }
    pickled = by_value.dumps((inner.value, other))
    monkeypatch.delitem(sys.modules, "only_here")
    value, _ = pickle.loads(pickled)
    assert value() == 5
    assert "only_here" not in sys.modules


class Slow:
    """Something that is pickled here, and by another thread, which begins meanwhile and ends later if it can."""

    def __init__(self, value):
        self.value, self.found = value, []
        self.other = threading.Thread(target=lambda: self.found.append(by_value.dumps(self)))
        self.here, self.there = threading.Event(), threading.Event()

    def __reduce__(self):
        if threading.current_thread() is self.other:
            self.there.set()
            self.here.wait(60)
        else:
            self.other.start()
            self.there.wait(0.2)  # in vain if one waits for the other
        return tuple, ([self.value],)


def test_threads_that_pickle_together_do_not_take_modules_from_each_other(tmp_path, monkeypatch):
    write(tmp_path, made="def value(): return 5")
    spec = importlib.util.spec_from_file_location("made_here", tmp_path / "made.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "made_here", module)
    spec.loader.exec_module(module)
    slow = Slow(module.value)
    pickles = [by_value.dumps(slow)]
    slow.here.set()
    slow.other.join()
    monkeypatch.delitem(sys.modules, "made_here")
    assert [pickle.loads(text)[0]() for text in pickles + slow.found] == [5, 5]


LAYERS = """
import keras
import numpy as np
import tensorflow as tf

class Twice(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs

def data():
    ones = np.ones((32, 2), "float32"), np.ones((32, 1), "float32")
    return tf.data.Dataset.from_tensor_slices(ones).batch(4)
"""


@pytest.mark.rotating
def test_a_warm_server_finds_modules_of_a_path_that_was_added_later(warm, tmp_path, monkeypatch):
    """And runs a layer of a module that was loaded from its file."""
    write(tmp_path, found_later=LAYERS)
    spec = importlib.util.spec_from_file_location("only_here", tmp_path / "found_later.py")
    only_here = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "only_here", only_here)
    spec.loader.exec_module(only_here)
    monkeypatch.syspath_prepend(tmp_path)
    found_later = importlib.import_module("found_later")
    model = keras.Sequential([keras.Input((2,)), only_here.Twice(), found_later.Twice(), keras.layers.Dense(1)])
    model.compile(loss="mse")
    options = {"steps": 3, "batch_size": 4, "verbose": False, "run_dir": tmp_path / "run", "probe": False}
    result = train(model, found_later.data, SyncSGD(), **options)
    assert result.metrics["outcome"] == "completed"
    monkeypatch.delitem(sys.modules, "found_later")


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Return a function that adds modules to the environment of the processes of runs, which have a fork server."""

    def add(**modules: str):
        monkeypatch.syspath_prepend(write(tmp_path / "environment", **modules))

    with keep_warm():
        yield add


def frames(context):
    """Return data; in a task, after a look at the packages that Keras has."""
    if "TF_GRPC_REUSE_PORT" in os.environ:
        slicing = sys.modules["keras.src.trainers.data_adapters.array_slicing"]
        assert "pandas" not in sys.modules
        assert not slicing.can_slice_array("text")
        import pandas

        frame = pandas.DataFrame()
        assert isinstance(frame, slicing.ARRAY_TYPES)
        assert isinstance(frame, slicing.pandas.DataFrame)
        assert sys.modules["keras.src.saving.saving_lib"].huggingface_hub.HERE
    rows = tf.data.Dataset.from_tensor_slices(ONES)
    return rows.shard(context.num_input_pipelines, context.input_pipeline_id).batch(8)


@pytest.mark.rotating
def test_packages_that_keras_imports_if_present_are_imported_by_tasks_only(environment, tmp_path, capfd):
    """One starts a thread, one sets handlers of signals, one replaces parts of TensorFlow."""
    environment(pandas=STARTS_A_THREAD, huggingface_hub=SETS_A_HANDLER, cv2=PATCHES_TENSORFLOW)
    options = {"steps": 3, "batch_size": 8, "run_dir": tmp_path / "run", "probe": False}
    result = train(linear(), frames, SyncSGD(), **options)
    assert result.metrics["outcome"] == "completed"
    assert "new Python processes" not in "".join(capfd.readouterr())


@pytest.mark.rotating
def test_a_run_of_new_interpreters_survives_a_killed_worker(environment, tmp_path, private_network):
    environment(sitecustomize=STARTS_A_THREAD)
    recovery = Recovery(checkpoint_seconds=0.5, max_restarts=2)
    going = Going(AsyncSGD(), tmp_path / "run", workers=2, steps=480, recovery=recovery)
    pids = {task: going.pid(task) for task in ("ps-0", "worker-0", "worker-1", "evaluator-0")}
    for pid in pids.values():
        assert "task_process" in Path(f"/proc/{pid}/cmdline").read_text()
        assert os.getpgid(pid) == pid
        assert private_network == (os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net"))
    os.kill(pids["worker-1"], signal.SIGKILL)
    assert going.survived()["restarts"] == {"worker-1": 1}


@pytest.mark.rotating
def test_no_new_interpreter_survives_its_fork_server(environment, tmp_path):
    environment(sitecustomize=STARTS_A_THREAD)
    going = Lasting(AsyncSGD(), tmp_path / "run")
    pids = [going.pid(task) for task in ("ps-0", "worker-0", "worker-1", "evaluator-0")]
    (server,) = {int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) for pid in pids}
    os.kill(server, signal.SIGKILL)
    assert isinstance(going.end(), Exception)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_command_starts_the_fork_server_before_it_imports_numpy(tmp_path):
    """It ends with the command if no run takes it: arguments are wrong, or ask for another kind of run."""
    code = """
import sys
from distsgd.common.cli.main import dispatch
from distsgd.common.errors import UserError
from distsgd.common.launch import server_process
begun = []
class Noted(server_process.ServerProcess):
    def __init__(self, *arguments):
        begun.append((self, "numpy" in sys.modules))
        super().__init__(*arguments)
server_process.ServerProcess = Noted
for words in ("downpour --workers no", "downpour --workers no --backend threads", "downpour --workers no --dry_run"):
    try:
        dispatch(words.split())
    except UserError as error:
        print(error)
print([(late, server.process.poll() is None, server.folder.name) for server, late in begun])
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    *errors, found = done.stdout.splitlines()
    assert [error.partition(" takes")[0] for error in errors] == ["--workers"] * 3
    ((late, runs, folder),) = ast.literal_eval(found)
    assert (late, runs, Path(folder).exists()) == (False, False, False)


def test_a_run_takes_the_process_that_is_there_if_it_is_of_its_kind(tmp_path):
    usual, log = (sys.executable,), tmp_path / "forkserver.log"
    for mode, python in (("off", usual), ("auto", (sys.executable, "-s"))):
        with server_process.ahead(["--workers=4"]):
            other = server_process._ahead
            assert server_process.adopted(mode, python, log) is None
            assert other.process.poll() is not None
    with server_process.ahead(["--workers=4"]):
        mine = server_process._ahead
        mine.log.write_text("a warning\n")
        assert server_process.adopted("auto", usual, log) is mine
        assert server_process.adopted("auto", usual, log) is None
    try:
        assert mine.process.poll() is None
        assert (mine.log, log.read_text()) == (log, "a warning\n")
    finally:
        mine.close(0)
