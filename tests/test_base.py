"""The base of the replay: NumPy alone, small, and fed by a folder that follows the documented format."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from distsgd.common import UserError
from distsgd.common.cli.main import dispatch
from distsgd.common.replay.adapters import TRANSCRIPTIONS
from distsgd.common.replay.comparison import judge
from distsgd.common.replay.recorded import Transcription, read_run
from distsgd.common.tasks.results import write_data
from runs import change

ROOT = Path(__file__).resolve().parent.parent
MOST_FILES, MOST_LINES = 13, 1410
BASE = [
    "common/__init__.py",
    "common/data/__init__.py",
    "common/data/recipes.py",
    "common/errors.py",
    "common/libraries.py",
    "common/record_format.py",
    "common/replay/__init__.py",
    "common/replay/comparison.py",
    "common/replay/recorded.py",
    "common/replay/reference/__init__.py",
    "common/replay/reference/gradients.py",
    "common/spec.py",
    "common/toplevel/__init__.py",
]
EQUATIONS = [
    f"common/replay/reference/{name}.py"
    for name in (
        *("asynchronous_rules", "buffered_rules", "codecs", "compressed_rules", "federated_rules", "gossip_rules"),
        *(
            "inner_steps",
            "outer_rules",
            "overlapped_rules",
            "quorum_rules",
            "regional_rules",
            "robust_rules",
            "sending",
        ),
        "synchronous_rules",
    )
]
BLOCKED = ("tensorflow", "keras", "sklearn", "matplotlib", "scipy", "rich", "cloudpickle")

PLAIN_SGD = """
def plain_sgd(run, values):
    center, done, centers = run.start, [0] * run.workers, []
    copies = [run.start] * run.workers
    for k in run.order:
        center = center - values.learning_rate * run.gradient(copies[k], k, done[k])
        copies[k], done[k] = center, done[k] + 1
        centers.append(center)
    return centers
"""

# A program without TensorFlow that replays a run: by equations of its own, or by those of the catalogue.
PROGRAM = f"""
import builtins, json, sys
from pathlib import Path

real_import = builtins.__import__

def guarded(name, *arguments, **options):
    if name.split(".")[0] in {BLOCKED}:
        raise ImportError(f"{{name}} is blocked")
    return real_import(name, *arguments, **options)

builtins.__import__ = guarded
from distsgd.common.replay.comparison import judge
from distsgd.common.replay.recorded import Transcription, read_run

{PLAIN_SGD}

equations = {{"async_sgd": Transcription(plain_sgd)}}
if sys.argv[2] == "catalogue":
    from distsgd.common.replay.adapters import TRANSCRIPTIONS as equations
verdict = judge(read_run(Path(sys.argv[1]), equations))
own = [module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "distsgd"]
print(json.dumps([verdict.agrees, verdict.differs, own, [name for name in {BLOCKED} if name in sys.modules]]))
"""


def in_a_program(folder, equations, cwd):
    """Return whether the run agrees and differs, and the files of the project that the program loaded."""
    command = [sys.executable, "-c", PROGRAM, str(folder), equations]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=cwd)
    assert done.returncode == 0, done.stderr
    agrees, differs, files, blocked = json.loads(done.stdout)
    assert blocked == []
    return (agrees, differs), sorted(str(Path(file).resolve().relative_to(ROOT)) for file in files)


# A recorder of its own, by docs/record.md alone: asynchronous SGD of softmax regression on three clusters.

WORKERS, STEPS, BATCH, SEED, RATE = 2, 12, 4, 7, 0.5


def softmax_gradient(w, x, y):
    logits = x @ w[:-1] + w[-1]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True) - np.eye(3)[y]
    return np.vstack([x.T @ p, p.sum(0, keepdims=True)]) / len(x)


def rows(k, t, examples):
    shard = np.random.default_rng([SEED, 0]).permutation(examples).reshape(WORKERS, -1)[k]
    epoch, place = divmod(t, len(shard) // BATCH)
    order = np.random.default_rng([SEED, 1 + k, epoch]).permutation(len(shard))
    return shard[order[place * BATCH : (place + 1) * BATCH]]


@pytest.fixture
def folder(tmp_path):
    """A run whose folder was written by hand, in float32."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=50)
    x = (np.eye(3)[y] + 0.3 * rng.standard_normal((50, 3))).astype(np.float32)
    train_x, train_y, test_x, test_y = x[:40], y[:40], x[40:], y[40:]
    w = rng.standard_normal((4, 3)).astype(np.float32)
    start, copies, pulled, done = w, [w] * WORKERS, [0] * WORKERS, [0] * WORKERS
    events = []
    for version, k in enumerate(rng.permutation(np.repeat(range(WORKERS), STEPS)).tolist()):
        at = rows(k, done[k], 40)
        w = (w - RATE * softmax_gradient(copies[k], train_x[at], train_y[at])).astype(np.float32)
        events.append((version, k, version - pulled[k], 1, 1000 * version, 0))
        copies[k], pulled[k], done[k] = w, version + 1, done[k] + 1
    config = {
        "algorithm": "async_sgd", "hyperparameters": {"learning_rate": RATE}, "workers": WORKERS, "ps": 1,
        "dataset": "clusters", "model": "softmax", "batch_size": BATCH, "devices_per_worker": 1, "l2": 0.0,
        "clip_norm": None, "ema_decay": None, "codec": "float32", "skew": None, "steps_per_worker": STEPS,
        "earlier_step_targets": [], "seed": SEED, "record": "full",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "result.json").write_text(json.dumps({"updates": len(events), "recovery": {"evicted": []}}))
    columns = ("version", "worker", "staleness", "accepted", "microseconds", "event")
    np.savez(tmp_path / "trace.npz", **dict(zip(columns, np.array(events, np.int64).T, strict=True)))
    np.savez(tmp_path / "initial.npz", center=start.ravel())
    np.savez(tmp_path / "center.npz", center=w.ravel())
    np.savez(tmp_path / "data.npz", train_x=train_x, train_y=train_y, test_x=test_x, test_y=test_y)
    return tmp_path


def test_the_base_is_small_and_replays_a_run_without_tensorflow(folder, tmp_path):
    verdict, files = in_a_program(folder, "own", tmp_path)
    assert verdict == (True, False)
    assert files == BASE
    assert len(files) <= MOST_FILES
    assert sum(len((ROOT / file).read_text().splitlines()) for file in files) <= MOST_LINES


def test_the_catalogue_adds_its_equations_alone(folder, tmp_path):
    verdict, files = in_a_program(folder, "catalogue", tmp_path)
    assert verdict == (True, False)
    assert files == sorted(
        [
            *BASE,
            *EQUATIONS,
            *(
                f"common/replay/{name}.py"
                for name in (
                    *("adapters", "between", "compressors", "draws", "elastic", "lengths", "members", "under_attack"),
                    "with_codec",
                )
            ),
            "common/arguments.py",
            "common/hostile.py",
        ]
    )


def test_a_folder_written_by_hand_is_replayed_by_the_command(folder, capsys):
    assert dispatch(["replay", str(folder)]) == 0
    assert "the run did what the paper's equations say" in capsys.readouterr().out


def swapped(folder):
    with np.load(folder / "trace.npz") as file:
        change(folder, "trace.npz", worker=1 - file["worker"])


def moved(name):
    def apply(folder):
        with np.load(folder / name) as file:
            change(folder, name, center=file["center"] + np.float32(0.01))

    return apply


def other_data(folder):
    with np.load(folder / "data.npz") as file:
        change(folder, "data.npz", train_x=file["train_x"][::-1].copy())


def other_config(**values):
    return lambda folder: change(folder, "config.json", **values)


WRONG = {
    "workers": swapped,
    "center": moved("center.npz"),
    "initial center": moved("initial.npz"),
    "data": other_data,
    "seed": other_config(seed=SEED + 1),
    "rate": other_config(hyperparameters={"learning_rate": 1.01 * RATE}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_folder_with_another_value_differs(what, folder):
    WRONG[what](folder)
    verdict = judge(read_run(folder, TRANSCRIPTIONS))
    assert verdict.differs


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "initial.npz").unlink(), "has no initial.npz: it ended without a result, or is of"),
        (lambda folder: np.savez(folder / "initial.npz", center=np.zeros(5, np.float32)), "initial.npz holds 5 para"),
        (lambda folder: np.savez(folder / "initial.npz", center=np.zeros(12)), "must be a vector of float32"),
        (lambda folder: (folder / "data.npz").unlink(), "unknown data set 'clusters'"),
        (lambda folder: np.savez(folder / "data.npz", train_x=np.zeros((4, 3))), "they have no 'train_y'"),
        (lambda folder: change(folder, "data.npz", train_y=np.full(40, -1)), "data.npz is damaged"),
        (lambda folder: change(folder, "data.npz", test_x=np.zeros((10, 4))), "data.npz is damaged"),
        (other_config(hyperparameters={}), "config.json has no hyperparameter 'learning_rate'"),
        (other_config(hyperparameters={"learning_rate": {}}), "cannot have these values"),
        (other_config(codec="bf16"), "have no codec bf16"),
        (other_config(algorithm="gossip"), "gossip has no reference in NumPy"),
        (other_config(model="cnn"), "no gradient of the model cnn"),
    ],
)
def test_a_folder_that_cannot_be_replayed_is_refused_in_one_line(damage, says, folder):
    damage(folder)
    with pytest.raises(UserError, match=says):
        judge(read_run(folder, TRANSCRIPTIONS))


OWN = f"""
from distsgd.common.replay.recorded import Transcription


{PLAIN_SGD}


TRANSCRIPTIONS = {{"my_sgd": Transcription(plain_sgd)}}
"""


@pytest.fixture
def known(monkeypatch):
    """The transcriptions of the catalogue, restored after the test."""
    before = dict(TRANSCRIPTIONS)
    yield TRANSCRIPTIONS
    TRANSCRIPTIONS.clear()
    TRANSCRIPTIONS.update(before)


def test_an_imported_file_brings_the_equations_of_its_algorithm(folder, tmp_path, known, capsys):
    other_config(algorithm="my_sgd")(folder)
    with pytest.raises(UserError, match="my_sgd has no reference in NumPy: it is not transcribed"):
        dispatch(["replay", str(folder)])
    (tmp_path / "my_equations.py").write_text(OWN)
    assert dispatch(["--import", str(tmp_path / "my_equations.py"), "replay", str(folder)]) == 0
    assert "my_sgd, 2 workers, 12 local steps each" in capsys.readouterr().out
    swapped(folder)
    assert dispatch(["--import", str(tmp_path / "my_equations.py"), "replay", str(folder)]) == 1


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda center: None, r"must return a list of centers, each of shape \(12,\). Received: <class 'NoneType'>"),
        (lambda center: center, r"Received: {\(\)}"),
        (lambda center: [center[:-1]] * 24, r"Received: {\(11,\)}"),
    ],
)
def test_equations_that_return_no_list_of_centers_are_refused(returned, says, folder):
    with pytest.raises(UserError, match=says):
        judge(read_run(folder, {"async_sgd": Transcription(lambda run, values: returned(run.start))}))


@pytest.mark.parametrize(("returned", "least"), [(0, 1), (11, 12)])
def test_a_verdict_on_too_few_centers_says_how_many_are_expected(returned, least, folder):
    row = {"kind": "center", "version": 12, "test_loss": 0.5}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    equations = Transcription(lambda run, values: [run.start] * returned, jumps=least > 1)  # these read the losses
    says = f"the equations returned {returned} centers, of at least {least}: one after each message"
    assert says in judge(read_run(folder, {"async_sgd": equations})).reason


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("TRANSCRIPTIONS = [1]\n", "must be a dict of a Transcription for each algorithm"),
        (OWN.replace('"my_sgd"', '"async_sgd"'), "'async_sgd', whose equations the catalogue has"),
    ],
)
def test_wrong_transcriptions_of_a_file_are_refused(text, says, tmp_path, known):
    (tmp_path / "wrong_equations.py").write_text(text)
    with pytest.raises(UserError, match=says):
        dispatch(["--import", str(tmp_path / "wrong_equations.py"), "list"])


def test_a_run_records_data_that_no_recipe_makes(tmp_path):
    data = (np.zeros((4, 2), np.float32), np.arange(4) % 2), (np.zeros((2, 2), np.float32), np.arange(2))
    config = {"dataset": "mnist1d", "model": "mlp:hidden=8", "record": "full"}
    for other in ({"dataset": "digits"}, {"model": "cnn"}, {"record": "off"}):
        write_data(tmp_path, config | other, *data)
        assert not (tmp_path / "data.npz").exists()
    write_data(tmp_path, config, *data)
    with np.load(tmp_path / "data.npz") as file:
        assert set(file) == {"train_x", "train_y", "test_x", "test_y"}


def test_the_documented_format_names_each_value_that_the_base_reads():
    page = (ROOT / "docs" / "record.md").read_text()
    read = re.findall(r'config\["(\w+)"\]', (ROOT / "common" / "replay" / "recorded.py").read_text())
    for name in {*read, "initial.npz", "data.npz", "train_x", "version", "staleness", "accepted", "microseconds"}:
        assert f"`{name}`" in page, name


@pytest.mark.rotating
def test_a_run_on_generated_data_is_replayed_from_its_folder_alone(tmp_path):
    run_dir = tmp_path / "run"
    arguments = ["--steps", "20", "--model", "mlp:hidden=8", "--dataset", "mnist1d:examples=200,test=50"]
    assert dispatch(["async_sgd", *arguments, "--backend", "threads", "--run-dir", str(run_dir)]) == 0
    assert in_a_program(run_dir, "catalogue", tmp_path)[0] == (True, False)
    moved("center.npz")(run_dir)
    assert in_a_program(run_dir, "catalogue", tmp_path)[0] == (False, True)


@pytest.mark.parametrize("name", ["initial.npz", "data.npz", "metrics.jsonl"])
@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_the_base_never_waits_for_a_pipe_or_a_device(name, put, folder):
    (folder / name).unlink(missing_ok=True)
    put(folder / name)
    if name == "metrics.jsonl":  # optional, as a file that cannot be read
        assert judge(read_run(folder, TRANSCRIPTIONS)).agrees
    else:
        with pytest.raises(UserError, match=name):
            read_run(folder, TRANSCRIPTIONS)


def test_data_of_a_giant_shape_are_refused(folder):
    with zipfile.ZipFile(folder / "data.npz", "w") as archive, archive.open("train_x.npy", "w") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**20)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(UserError, match="which its size is not"):
        read_run(folder, TRANSCRIPTIONS)
