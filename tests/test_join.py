"""A script's own loop on real processes: `launch` and `distsgd.join`."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import distsgd
from distsgd.algorithms import SCHEMES, LocalSGD, SyncSGD
from distsgd.common import Group, UserError
from distsgd.common.cli.main import dispatch
from distsgd.common.cli.own import problem_of_run
from distsgd.common.data.orders import seed_generators
from distsgd.common.errors import WaitTimeout
from distsgd.common.launch.averages import mean_of_workers
from distsgd.common.launch.join import JoinedWorker
from distsgd.common.launch.own_state import OwnState
from distsgd.common.launch.script import MOST_PENDING, Echo, of_network
from distsgd.common.launch.unlaunched import refuse_copies
from distsgd.common.record import checkpoint
from distsgd.common.record.run_directory import RunRecord, check_steps
from distsgd.common.record_format import read_config
from distsgd.common.reports import OF_LATER_JOIN
from distsgd.common.tasks.script_loop import Handoff
from runs import in_thread, patience, wait_until

ROOT = Path(__file__).resolve().parent.parent
HEAD = """
import sys, numpy as np, tensorflow as tf, distsgd
from distsgd.algorithms import *
from pathlib import Path
folder, words = Path(sys.argv[1]), sys.argv[2:]
"""
# Worker k has the loss |w - k|^2 / 2 + (b + k)^2 / 2.
QUADRATIC = """
scheme, steps = eval(words[0]), int(words[1])
w, b = tf.Variable([[1.0, 2.0, 3.0]] * 2), tf.Variable(2.0)
with distsgd.join(scheme, {"w": w, "b": b}) as worker:
    k = worker.index
    for step in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((w - k) ** 2) / 2 + (b + k) ** 2 / 2
        worker.step(tape.gradient(loss, {"w": w, "b": b}), loss)
        worker.log(step=step)
    done, center = worker.steps_done, worker.center()
    print("worker", k, "of", worker.num_workers)
np.savez(folder / f"{k}.npz", w=w, b=b, done=done, shape=center["w"].shape, drawn=np.random.rand())
import json, random, tempfile, uuid
states = {
    "random": random.random(), "default_rng()": np.random.default_rng().random(), "uuid4": str(uuid.uuid4()),
    "tempfile": tempfile.mktemp(), "tf.random": float(tf.random.uniform([])),
    "order of a set": [*{str(i) for i in range(40)}], "default_rng(0)": np.random.default_rng(0).random(),
}
(folder / f"{k}.json").write_text(json.dumps(states))
"""
# Of what a fork copies, these are the same on all workers: orders agree. Others differ, as noise and names must.
SAME_ON_ALL = {"order of a set", "default_rng(0)"}
ERRORS = """
what, k = words[0], distsgd.common.launch.launched.Launched.current.index
if what == "never joins":
    sys.exit()
if what == "argument":
    import argparse
    argparse.ArgumentParser().parse_args(["--rate", "x"])
arrays = [np.ones(5 + (k if what == "shapes" else 0), np.float32), np.ones((), np.float32)]
with distsgd.join(DiLoCo(communication_period=2 + (k if what == "schemes" else 0)), arrays) as worker:
    for step in range(0 if what == "never steps" else 10):
        gradient = [np.zeros(5), 0.0]
        if (step, worker.index) == (3, 1):
            if what == "none":
                gradient[1] = None
            elif what == "shape":
                gradient[0] = np.zeros(4)
            elif what == "exception":
                {}["missing"]
            elif what == "ends early":
                sys.exit()
            elif what == "exit":
                os._exit(0)
        worker.step(gradient)
if what == "later":
    raise RuntimeError("after the block")
if what == "message":
    sys.exit("no such file")
if what == "later exit":
    with distsgd.join(AsyncSGD(), np.ones(3), name="second"):
        if k == 1:
            os._exit(0)
"""
RESTART = """
w, killed = np.ones(3, np.float32), folder / "killed"
with distsgd.join(Downpour(communication_period=2, learning_rate=0.1), w) as worker:
    first = worker.steps_done
    while worker.steps_done < 20:
        worker.step(w)
        if (worker.index, worker.steps_done) == (1, 7) and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
np.savez(folder / f"{worker.index}.npz", w=w, first=first)
"""
# Worker 1 is killed after its first step and two newer checkpoints: the first of these may have been read before it.
RESUME = """
w, b, killed, steps = np.ones(3, np.float32), np.zeros(2), folder / "killed", int(words[0])
runs, seen = (folder / "run" / "checkpoints", folder / "run" / "b" / "checkpoints"), set()
with distsgd.join(AsyncSGD(learning_rate=1.0), w) as worker:
    with distsgd.join(AsyncSGD(learning_rate=1.0), b, name="b") as other:
        first = worker.steps_done
        while worker.steps_done < steps or other.steps_done < steps:
            if worker.steps_done < steps:
                worker.step(np.ones(3))
            if other.steps_done < steps:
                other.step(-np.ones(2))
            newest, other_newest = (max([path.name for path in run.glob("[0-9]*")], default="") for run in runs)
            seen.add(newest)
            if worker.index == 1 and not killed.exists() and len(seen) > 2 and other_newest:
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
np.savez(folder / f"{worker.index}.npz", first=first)
"""
MOMENTUM = """
class Momentum:
    def __init__(self):
        self.v, self.steps = np.zeros(3, np.float32), 0
    def state_dict(self):
        return {"v": self.v, 0: [self.steps, None, (0.5, "x")]}
    def load_state_dict(self, state):
        self.v, (self.steps, none, pair) = state["v"], state[0]
        assert (none, pair) == (None, (0.5, "x"))
    def step(self, w, gradient):
        self.v = np.float32(0.9) * self.v + gradient
        self.steps += 1
        w -= np.float32(0.1) * self.v
w, optimizer = np.ones(3, np.float32), Momentum()
with distsgd.join(LocalSGD(communication_period=3), w, state=optimizer) as worker:
    while worker.steps_done < int(words[0]):
        optimizer.step(w, w - worker.index)
        worker.stepped()
assert optimizer.steps == int(words[0])
np.savez(folder / f"{worker.index}.npz", v=optimizer.v)
"""
TWO = """
maker, critic = np.full(3, 2.0), {"w": np.zeros((2, 2), np.float32)}
with distsgd.join(LocalSGD(communication_period=3, learning_rate=0.5), maker) as first:
    with distsgd.join(AsyncSGD(learning_rate=0.5), critic, name="critic") as second:
        for step in range(9):
            second.step({"w": np.ones((2, 2))})
            second.log(loss=step)
            first.step(maker, loss=1.0)
np.savez(folder / f"{first.index}.npz", maker=maker, critic=critic["w"])
"""
IN_SEQUENCE = """
for name in ("a", "b"):
    with distsgd.join(AsyncSGD(), np.ones(3, np.float32), name=name) as worker:
        for step in range(40):
            worker.step(np.zeros(3), loss=1.0)
            worker.log(number=step)
        assert len(worker._loop.progress.figures["number"]) <= 40
print("the last line", end="")
"""
# Two mistakes that a script may make and continue, then one that ends it.
MISTAKES = """
try:
    with distsgd.join(AsyncSGD(), "no arrays"):
        pass
except distsgd.UserError as error:
    print(error)
with distsgd.join(AsyncSGD(), np.ones(3, np.float32)) as worker:
    worker.step(np.zeros(3))
    try:
        with distsgd.join(AsyncSGD(), np.ones(3, np.float32)):
            pass
    except distsgd.UserError as error:
        print(error)
    worker.step(np.zeros(3))
(folder / f"{worker.index}").touch()
if worker.index == 1:
    with distsgd.join(AsyncSGD(), np.ones(3, np.float32), name="other"):
        pass
"""
LARGE = """
w = np.zeros(5 << 20, np.float32)  # more than a chunk
with distsgd.join(AsyncSGD(learning_rate=1.0), w) as worker:
    for step in range(8):
        worker.step(np.ones_like(w))
        assert np.ptp(worker.center()) == 0
"""
# The local steps of both workers are momentum SGD, by Keras and by hand.
STEPPED = """
import keras
beta, k = float(words[0]), distsgd.common.launch.launched.Launched.current.index
w = np.full(3, 2.0, np.float32) if k else tf.Variable([2.0] * 3)
optimizer, velocity = keras.optimizers.SGD(0.1, momentum=beta), 0
with distsgd.join(DiLoCo(communication_period=5), w) as worker:
    for step in range(10):
        gradient = w - k
        if k == 0:
            optimizer.apply([gradient], [w])
        else:
            velocity = beta * velocity + gradient
            w -= 0.1 * velocity
        worker.stepped(loss=1.0)
with (
    distsgd.join(AsyncSGD(), w, name="pushes") as pushes,
    distsgd.join(PALSGD(), w, name="pulls") as pulls,
    distsgd.join(PALSGD(pull_probability=0.0), w, name="none") as none,
):
    for worker in pushes, pulls, none:
        try:
            worker.stepped()
        except distsgd.UserError as error:
            print(error)
"""
RECORDED = """
w, k = [np.float32([2, 1.9, 1.7]), np.float32([1, 0.8])], distsgd.common.launch.launched.Launched.current.index
with distsgd.join(eval(words[0]), w) as worker:
    for step in range(13):
        gradient = [part - k * step for part in w]
        if words[1:]:
            w[0] -= 0.1 * gradient[0]
            worker.stepped()
        else:
            worker.step(gradient)
"""
# Worker k makes as many steps as the word k + 1 says; with those before the run was resumed.
UNEQUAL = """
w = np.ones(3, np.float32)
with distsgd.join(eval(words[0]), w) as worker:
    while worker.steps_done < int(words[1 + worker.index]):
        worker.step(w - worker.index)
np.savez(folder / f"{worker.index}.npz", w=w)
"""
# Worker 0 makes steps of `other` alone until the signal has ended that join; worker 1 may wait in one of the first.
ENDLESS = """
schemes = [eval(word) for word in words[:2]]
with distsgd.join(schemes[0], np.ones(3, np.float32)) as worker:
    with distsgd.join(schemes[1], np.ones(2, np.float32), name="other") as other:
        try:
            while len(words) == 2:
                worker.step(np.ones(3))
                other.step(np.ones(2))
                before, alone = -1, worker.index == 0 and not schemes[1].sync.waits
                while alone and other.steps_done > max(before, 3):
                    before = other.steps_done
                    (folder / "going").touch()
                    other.step(np.ones(2))
                if other.steps_done > 3:
                    (folder / "going").touch()
        except KeyboardInterrupt:
            (folder / "after").touch()
            raise
"""


@pytest.fixture
def launch(warm, tmp_path):
    """Return a function that launches a script, and returns its exit code and result."""

    def start(body, *words, flags=(), folder="run"):
        script = tmp_path / "script.py"
        script.write_text(f"import os, signal{HEAD}{body}")
        run_dir = tmp_path / folder
        code = dispatch(["launch", *flags, "--run-dir", str(run_dir), str(script), str(tmp_path), *words])
        return code, json.loads((run_dir / "result.json").read_text())

    return start


def center_of(run_dir):
    with np.load(run_dir / "center.npz") as saved:
        return saved["center"]


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("text", "options", "flags"),
    [
        ("SyncSGD(learning_rate=0.1)", {}, []),
        ("DiLoCo(communication_period=5)", {"ps": 2, "codec": "bf16"}, ["--ps", "2", "--codec", "bf16"]),
        ("AllReduce(learning_rate=0.1)", {}, []),
        ("DPSGD(learning_rate=0.1)", {}, []),
    ],
)
def test_a_script_has_the_center_of_a_group(launch, tmp_path, text, options, flags):
    code, result = launch(QUADRATIC, text, "20", flags=flags)
    assert code == 0, result
    scheme = eval(text, {kind.__name__: kind for kind in SCHEMES.values()})
    group = Group(scheme, {"w": np.array([[1.0, 2.0, 3.0]] * 2), "b": 2.0}, workers=2, **options)
    for _ in range(20):
        for k in (0, 1):
            point = group.point(k)
            group.step(k, {"w": point["w"] - k, "b": point["b"] + k})
    expected = np.concatenate([[group.center["b"]], group.center["w"].ravel()])  # in the order of the names
    np.testing.assert_allclose(center_of(tmp_path / "run"), expected, rtol=1e-5)


def step_here(before=lambda step: None):
    """Make ten steps of a script that `launch` has not started; return the variable."""
    w = np.full(3, 2.0, np.float32)
    with distsgd.join(LocalSGD(communication_period=4, learning_rate=0.1), w) as worker:
        for step in range(10):
            before(step)
            worker.step(w, loss=step)
    return w


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "torchrun .* bash run.sh launch --workers 2 x.py 3"),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "torchrun .* and -m distsgd launch --cluster torchrun x.py 3, "),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun .* bash run.sh launch --workers 4 x.py 3"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "3"}, "srun -n 3 bash run.sh launch --cluster slurm x.py 3"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ""),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "3"}, ""),
    ],
)
def test_copies_of_a_script_by_another_starter_are_no_runs_of_one_worker(monkeypatch, variables, said):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=said) if said else contextlib.nullcontext():
        refuse_copies("x.py 3")


def test_a_join_outside_of_a_block_says_what_it_is():
    with pytest.raises(UserError, match="join is a block: with join"):
        distsgd.join(SyncSGD(), [np.zeros(2, np.float32)]).step()
    assert not hasattr(distsgd.join(SyncSGD(), []), "backward")


@pytest.mark.rotating
def test_a_script_without_launch_is_one_worker_with_a_record(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["my_script.py"])

    def interrupt(step):
        if step == 5:
            raise KeyboardInterrupt

    def fail(step):
        if step == 5:
            raise LookupError("a bug in the script")

    def latest(has_center=True):
        run = tmp_path / "runs" / "latest"
        return json.loads((run / "result.json").read_text()), center_of(run) if has_center else None

    w = step_here()
    result, center = latest()
    assert (result["outcome"], result["steps"], result["updates"]) == ("completed", 10, 3)
    np.testing.assert_allclose(center, [2 * 0.9**10] * 3, rtol=1e-5)
    np.testing.assert_array_equal(w, center)
    with pytest.raises(KeyboardInterrupt):
        step_here(interrupt)
    result, center = latest()
    assert (result["outcome"], result["exit_code"], result["steps"]) == ("interrupted", 130, 5)
    np.testing.assert_allclose(center, [2 * 0.9**5] * 3, rtol=1e-5)
    with pytest.raises(LookupError):
        step_here(fail)
    result, _ = latest(has_center=False)
    assert (result["outcome"], result["message"]) == ("failed", "a bug in the script")
    shown = capsys.readouterr().err
    assert shown.count("one worker, in this process") == 3
    assert "local_sgd: completed" in shown


@pytest.mark.parametrize(("beta", "inner"), [("0.9", "momentum"), ("0", "sgd")])
@pytest.mark.rotating
def test_stepped_follows_the_steps_of_an_optimizer_of_the_script(launch, tmp_path, capsys, beta, inner):
    code, result = launch(STEPPED, beta)
    assert (code, result["steps"]) == (0, 20), result
    scheme = SCHEMES["diloco"](communication_period=5, inner_optimizer=inner, learning_rate=0.1)
    group = Group(scheme, np.full(3, 2.0), workers=2)
    for _ in range(10):
        for k in (0, 1):
            group.step(k, group.point(k) - k)
    np.testing.assert_allclose(center_of(tmp_path / "run"), group.center, rtol=1e-5)
    said = read_config(tmp_path / "run")["hyperparameters"]
    assert (said["inner_optimizer"], said["learning_rate"]) == ("of the script", None)
    pushes = read_config(tmp_path / "run" / "pushes")["hyperparameters"]  # no step was made there
    assert pushes["learning_rate"] == SCHEMES["async_sgd"]().learning_rate
    refused = re.findall(r"the local steps of (\w+) are not those of an inner optimizer", capsys.readouterr().err)
    assert set(refused) == {"async_sgd", "palsgd"}


def drawn_by(task):
    """The first number of NumPy's global generator in a task of a run with the seed 0."""
    before = np.random.get_state(), random.getstate()
    seed_generators(0, task)
    number = np.random.rand()
    np.random.set_state(before[0])
    random.setstate(before[1])
    return number


@pytest.mark.rotating
def test_a_worker_that_leaves_in_a_round_sends_what_the_others_send_in_it(launch, tmp_path):
    """Worker 0 leaves after step 7, when the others take the mean of the first moment after step 8."""
    code, _ = launch("""
with distsgd.join(DESLOC(communication_period=6, first_moment_every=1, learning_rate=0.01), np.zeros(3)) as worker:
    for _ in range(24 if worker.index else 7):
        worker.step(np.ones(3))
""")
    assert code == 0
    np.testing.assert_allclose(center_of(tmp_path / "run"), [-0.24] * 3, rtol=0.02)  # steps of Adam have this size


@pytest.mark.gate
def test_a_script_that_ends_in_a_round_exchanges_its_steps_and_leaves_a_record(launch, tmp_path, capsys):
    scheme = "LocalSGD(communication_period=4, learning_rate=0.5)"
    code, result = launch(QUADRATIC, scheme, "6", flags=["--ps", "2"])
    assert (code, result["outcome"], result["steps"], result["updates"]) == (0, "completed", 12, 2)
    # Towards k by half of the distance with each step, then the mean of both workers: after 4 steps, and after 2.
    value = np.array([2.0, *[1.0, 2.0, 3.0] * 2])
    goals = np.array([[0.0] * 7, [-1.0, *[1.0] * 6]])
    for steps in (4, 2):
        value = np.mean(goals + (value - goals) * 0.5**steps, axis=0)
    center = center_of(tmp_path / "run")
    np.testing.assert_allclose(center, value, rtol=1e-5)
    for k in (0, 1):
        with np.load(tmp_path / f"{k}.npz") as own:
            np.testing.assert_array_equal(np.concatenate([[own["b"]], own["w"].ravel()]), center)
            assert own["done"] == 6
            assert tuple(own["shape"]) == (2, 3)
            assert own["drawn"] == drawn_by(f"worker-{k}")
    one, other = (json.loads((tmp_path / f"{k}.json").read_text()) for k in (0, 1))
    assert {name for name, value in one.items() if value == other[name]} == SAME_ON_ALL
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["algorithm"], config["model"], config["dataset"]) == ("local_sgd", "7 parameters", "script.py")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "step"} <= {name for row in rows if row["kind"] == "worker" for name in row}
    assert (tmp_path / "run" / "plot.png").exists()
    assert "worker 0 of 2" in capsys.readouterr().err
    assert dispatch(["timeline", str(tmp_path / "run")]) == 0
    with pytest.raises(UserError, match="run launch with --record gradients"):
        dispatch(["replay", str(tmp_path / "run")])
    with pytest.raises(UserError, match="evaluate does not measure runs of launch"):
        problem_of_run(tmp_path / "run", None, None, read_config(tmp_path / "run"))
    with pytest.raises(UserError, match="leave out --resume"):
        launch("", flags=["--record", "gradients", "--resume", str(tmp_path / "run")], folder="other")


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("Downpour(communication_period=3, warm_start=0)", ()),
        ("DiLoCo(communication_period=5)", ("stepped",)),
        ("SyncSGD()", ()),
        ("EASGD(communication_period=4)", ()),
        ("EFSGD()", ()),
        ("DiLoCo(communication_period=5)", ()),
        ("AEASGD(communication_period=4)", ()),
        ("DPSGD()", ()),
        ("NoLoCo(communication_period=5)", ()),
        ("ADPSGD()", ()),
    ],
)
@pytest.mark.rotating
def test_replay_executes_the_recorded_gradients_of_a_script(launch, tmp_path, capsys, scheme, words):
    code, result = launch(RECORDED, scheme, *words, flags=["--record", "gradients"])
    assert code == 0, result
    run_dir = tmp_path / "run"
    assert dispatch(["replay", str(run_dir)]) == 0
    what = "local steps" if words else "gradients"
    assert f"not checked     the {what} themselves: replay knows" in capsys.readouterr().out
    path = run_dir / "gradients-1.bin"
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\0\0\0\x41" + content[8:])  # another gradient in the first step
    assert dispatch(["replay", str(run_dir)]) == 1
    path.write_bytes(b"\0" * 24 + content[24:])  # a hole in place of the row of the first step
    with pytest.raises(UserError, match="the gradients of all steps: 1 are missing, as the run was resumed"):
        dispatch(["replay", str(run_dir)])
    path.write_bytes(content[:-4])
    with pytest.raises(UserError, match=r"gradients-1\.bin, which is damaged"):
        dispatch(["replay", str(run_dir)])


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (("14", "13", "14"), "for worker 1, which has left its loop"),
        (("13", "14", "14"), "for worker 1, worker 2"),
    ],
)
@pytest.mark.rotating
def test_gossip_with_unequal_numbers_of_steps_ends_in_one_line(launch, steps, said):
    flags = ["--workers", "3", "--wait-seconds", str(patience(15))]
    code, result = launch(UNEQUAL, "DPSGD()", *steps, flags=flags)
    assert code == 5
    assert f" s {said}: without a parameter server all workers must make as many steps" in result["message"]


@pytest.mark.rotating
def test_the_workers_of_pairs_may_make_unequal_numbers_of_steps(launch, tmp_path):
    code, result = launch(UNEQUAL, "ADPSGD(learning_rate=0.1)", "12", "17", "14", flags=["--workers", "3"])
    assert (code, result["updates"]) == (0, 43)
    for k in range(3):
        with np.load(tmp_path / f"{k}.npz") as own:
            np.testing.assert_array_equal(own["w"], center_of(tmp_path / "run"))


@pytest.mark.rotating
def test_gossip_of_a_script_is_resumed_after_its_last_round(launch, tmp_path):
    flags = ["--checkpoint-steps", "5", "--record", "gradients"]
    for steps in ("13", "36"):
        code, result = launch(UNEQUAL, "DPSGD()", steps, steps, flags=flags)
        assert (code, result["updates"]) == (0, int(steps)), result
    assert result["recovery"]["resumed_from"] == 13
    assert dispatch(["replay", str(tmp_path / "run")]) == 0
    code, result = launch(UNEQUAL, "DPSGD()", "3", "3", flags=["--min-workers", "1"], folder="other")
    assert code == 2
    assert "d_psgd needs all its workers to run a script: leave --min-workers out" in result["message"]


def test_a_join_without_steps_is_named_beside_one_that_has_some(tmp_path):
    record, said = RunRecord(tmp_path / "run", {"workers": 1, "algorithm": "diloco"}), []
    record.publish = said.append
    record.on_event({"event": OF_LATER_JOIN, "join": "critic", "its": "worker", "worker": 0, "steps": 0})
    record.last = record.later_joins["critic"].last = {"updates": 0}
    with pytest.raises(UserError, match="made a step in the join of diloco and the join critic, so"):
        check_steps(record)
    record.on_event({"event": "worker", "worker": 0, "steps": 4})
    check_steps(record)
    assert "made a step in the join critic, so the center is where it began" in said[-1]["message"]
    record.later_joins["critic"].steps = {0: 1}
    check_steps(record)
    assert len(said) == 1
    for own in (record, *record.later_joins.values()):
        own.metrics.close()


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("never steps", 2, "no worker has made a step in the join of diloco, so the center is where it began: call"),
        ("never joins", 2, "script.py ended by sys.exit(None) without a call of distsgd.join"),
        ("shapes", 2, "all workers must join with the same shapes of variables. Received: [(6,), ()], and [(5,), ()]"),
        ("schemes", 2, "all workers must join with the same algorithm. Received: DiLoCo(communication_period=3"),
        ("none", 2, "worker-1: gradient 1 of 2 is None"),
        ("shape", 2, "worker-1: gradient 0 of 2 must have shape (5,). Received: (4,)"),
        ("exception", 1, '\n    {}["missing"]\n'),
        ("ends early", 1, "ended by sys.exit(None) before the end of the block of distsgd.join"),
        ("exit", 1, "worker-1: the process of its script ended before the end of the block"),
        ("later", 1, "RuntimeError: after the block"),
        ("message", 1, "script.py: no such file"),
        (
            "argument",
            1,
            "script.py ended by sys.exit(2)\nusage: script.py [-h]\nscript.py: error: unrecognized arguments: --rate x",
        ),
        ("later exit", 1, "worker-1: the process of its script ended before the end of"),
    ],
)
@pytest.mark.rotating
def test_a_fault_of_the_script_ends_the_run(launch, capsys, what, code, said):
    found, result = launch(ERRORS, what)
    assert (found, result["exit_code"]) == (code, code)
    assert said in result["message"]
    assert said in capsys.readouterr().err
    assert result["outcome"] == {1: "failed", 2: "rejected"}[code]


@pytest.mark.rotating
def test_two_joins_of_a_script_train_two_centers_that_replay(launch, tmp_path, capsys):
    code, result = launch(TWO, flags=["--record", "gradients"])
    assert (code, result["algorithm"], result["steps"], result["updates"]) == (0, "local_sgd", 18, 3)
    run_dir = tmp_path / "run"
    np.testing.assert_allclose(center_of(run_dir), np.full(3, 2.0 * 0.5**9), rtol=1e-5)
    np.testing.assert_allclose(center_of(run_dir / "critic"), np.full(4, -0.5 * 18), rtol=1e-5)
    for k in (0, 1):
        with np.load(tmp_path / f"{k}.npz") as own:
            np.testing.assert_array_equal(own["maker"], center_of(run_dir))
            np.testing.assert_array_equal(own["critic"].ravel(), center_of(run_dir / "critic"))
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert {row["critic_loss"] for row in rows if "critic_loss" in row} <= {*np.arange(0, 9, 0.125)}
    later = json.loads((run_dir / "critic" / "result.json").read_text())
    assert (later["algorithm"], later["outcome"]) == ("async_sgd", "completed")
    assert (later["steps"], later["updates"]) == (18, 18)
    assert later["seconds_training"] > 0
    rows = [json.loads(line) for line in (run_dir / "critic" / "metrics.jsonl").read_text().splitlines()]
    assert {row["loss"] for row in rows if "loss" in row} <= {*np.arange(0, 9, 0.125)}
    capsys.readouterr()
    assert dispatch(["replay", str(run_dir)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("the run did what the paper's equations say") == 2
    assert shown.count("not checked     the gradients themselves: replay knows") == 2
    assert shown.index("local_sgd, 2 workers, 9 local steps each") < shown.index("async_sgd, 2 workers, 9 local steps")
    with np.load(run_dir / "critic" / "center.npz") as file:
        arrays = dict(file)
    np.savez(run_dir / "critic" / "center.npz", **arrays | {"center": 1.1 * arrays["center"]})
    assert dispatch(["replay", str(run_dir)]) == 1


@pytest.mark.rotating
def test_each_of_two_joins_in_sequence_reports_its_figures(launch, tmp_path, capsys):
    code, result = launch(IN_SEQUENCE)
    assert code == 0, result
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"number", "loss", "steps"} <= {name for row in rows for name in row}
    later = [row for row in rows if "b_number" in row]
    assert {row["worker"] for row in later} == {0, 1}
    assert not any("steps" in row for row in later)
    assert "the last line" in capsys.readouterr().err


@pytest.mark.rotating
def test_two_workers_read_a_large_center_at_once(launch):
    code, result = launch(LARGE, flags=["--transport", "sockets"])
    assert code == 0, result


@pytest.mark.rotating
def test_a_script_joins_again_after_a_mistake_and_a_join_without_worker_0_ends(launch, tmp_path, capsys):
    code, result = launch(MISTAKES, flags=["--wait-seconds", str(patience(4))])
    said = capsys.readouterr().err
    assert "variables must be a model, variables of TensorFlow or Keras, tensors of PyTorch" in said
    assert "each join of a script needs a name of its own, as in join(..., name='critic')" in said
    assert (tmp_path / "0").exists()
    assert (tmp_path / "1").exists()
    told = "worker-1: worker 0 has ended without a join named 'other': call join with the same names on all workers"
    assert (code, result["message"]) == (2, told)


@pytest.mark.rotating
def test_a_restarted_script_continues_its_steps(launch, tmp_path):
    code, result = launch(RESTART, flags=["--max-restarts", "1", "--record", "gradients"])
    assert (code, result["recovery"]["restarts"]) == (0, {"worker-1": 1})
    with np.load(tmp_path / "1.npz") as own:
        assert own["first"] == 6
        np.testing.assert_array_equal(own["w"], center_of(tmp_path / "run"))
    assert result["updates"] == 20
    assert dispatch(["replay", str(tmp_path / "run")]) == 0


@pytest.mark.rotating
def test_an_optimizer_of_the_script_resumes_with_its_state(launch, tmp_path):
    found = {}
    for steps, folder, flags in (
        ("12", "whole", []),
        ("6", "half", ["--checkpoint-steps", "1"]),
        ("12", "rest", ["--resume", str(tmp_path / "half")]),
    ):
        code, result = launch(MOMENTUM, steps, flags=flags, folder=folder)
        assert code == 0, result
        found[folder] = [center_of(tmp_path / folder)]
        for k in (0, 1):
            with np.load(tmp_path / f"{k}.npz") as own:
                found[folder].append(own["v"])
    np.testing.assert_array_equal(found["rest"], found["whole"])
    assert not np.array_equal(found["half"], found["whole"])


def test_only_a_state_of_numbers_and_texts_is_kept():
    with pytest.raises(UserError, match="must be an optimizer of PyTorch or Keras"):
        OwnState(3, [])
    for wrong, kind in (({1}, "set"), (np.array([None]), "ndarray object")):  # no pickle can be read back
        owner = SimpleNamespace(state_dict=lambda wrong=wrong: {"a": wrong}, load_state_dict=print)
        with pytest.raises(UserError, match=f"numbers, texts and arrays alone. Received: {kind}"):
            OwnState(owner, [])


@pytest.mark.rotating
def test_a_script_that_was_killed_resumes_from_its_checkpoint(launch, tmp_path):
    often = ["--checkpoint-steps", "2"]
    code, result = launch(RESUME, "1000000", flags=often)
    assert (code, result["outcome"]) == (4, "lost")
    last = checkpoint.newest(tmp_path / "run").version
    # In the same folder, in another folder, and once more after it has completed.
    for more, folder in ((10, "run"), (20, "again"), (30, "again")):
        steps = last + more  # more than worker 1 had done
        flags = ["--resume", str(tmp_path / "run"), *often] if folder == "again" else often
        code, result = launch(RESUME, str(steps), flags=flags, folder=folder)
        assert (code, result["updates"], result["steps"]) == (0, 2 * steps, 2 * steps), result
        np.testing.assert_array_equal(center_of(tmp_path / folder), np.full(3, 1.0 - 2 * steps, np.float32))
        with np.load(tmp_path / "1.npz") as own:
            assert 0 < own["first"] < steps
    code, result = launch(RESUME.replace("AsyncSGD", "Downpour"), "9", flags=often)
    assert (code, result["outcome"]) == (2, "rejected")
    assert "holds checkpoints of a run with algorithm='async_sgd': resume with the same" in result["message"]
    with pytest.raises(UserError, match="they have no 'steps_per_worker'"):
        dispatch(["async_sgd", "--resume", str(tmp_path / "run"), "--run-dir", str(tmp_path / "other")])


@pytest.mark.parametrize(
    "schemes",
    [
        ("AsyncSGD()", "AsyncSGD()"),
        ("AEASGD()", "AllReduce()"),
        ("AllReduce()", "AsyncSGD()"),
        ("DPSGD()", "SyncSGD()"),
    ],
)
@pytest.mark.rotating
def test_ctrl_c_ends_all_scripts_and_writes_the_centers_and_checkpoints(launch, tmp_path, schemes):
    def interrupt():
        wait_until((tmp_path / "going").exists)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code, result = launch(ENDLESS, *schemes)
    thread.join()
    assert (code, result["outcome"], result["stopped_by"]) == (130, "interrupted", "SIGINT")
    assert result["updates"] > 0
    assert np.ptp(center_of(tmp_path / "run")) == 0
    assert center_of(tmp_path / "run" / "other").shape == (2,)
    assert checkpoint.newest(tmp_path / "run").version == result["updates"]
    saved = checkpoint.newest(tmp_path / "run" / "other")
    assert saved is not None
    assert (tmp_path / "after").exists()
    expected = center_of(tmp_path / "run" / "other")
    if saved.shared.get("arrived", np.zeros(2)).any():  # one worker's message, which counts as the other one leaves
        expected = expected - np.float32(SyncSGD().learning_rate)
    code, again = launch(ENDLESS, *schemes, "end")
    assert (code, again["updates"], again["stopped_by"]) == (0, result["updates"], None), again
    np.testing.assert_allclose(center_of(tmp_path / "run" / "other"), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "steps", "said"),
    [
        ("gan", "100", r"distance of the mean image: 0\.[0-4]"),
        ("policy_gradient", "100", r"caught: ([5-9]\d|100)%"),
    ],
)
@pytest.mark.rotating
def test_the_example_trains(warm, tmp_path, capsys, name, steps, said):
    assert dispatch(["launch", "--run-dir", str(tmp_path), str(ROOT / "examples" / f"{name}.py"), steps]) == 0
    assert re.search(said, capsys.readouterr().err)
    assert (tmp_path / "plot.png").exists()


def test_output_of_a_script_is_a_stream_with_bounded_lines(tmp_path):
    lines = []
    with (tmp_path / "log").open("w+") as log:
        echo = Echo(log, lines.append)
        assert (echo.fileno(), echo.encoding, echo.isatty()) == (log.fileno(), log.encoding, False)
        subprocess.run(["true"], stderr=echo, check=True)
        print("10%", "90%", "end", sep="\r", file=echo)
        echo.writelines(["x" * MOST_PENDING, "\ry" * MOST_PENDING])
        assert len(echo.line) == MOST_PENDING
        echo.write("\n")
    assert lines == ["end", "y"]


@pytest.mark.parametrize(("network", "is_named"), [(["lo"], True), (["lo", "eth0"], False)])
def test_an_error_of_the_internet_names_the_private_network(monkeypatch, network, is_named):
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(network, 1)))
    for cause, is_of_network in (
        (socket.gaierror(socket.EAI_AGAIN, "no name"), True),
        (FileNotFoundError(2, "x"), False),
    ):
        error = RuntimeError("cannot load the data")
        error.__context__ = cause
        assert ("--isolation off" in of_network(error)) == (is_named and is_of_network)


def test_a_step_in_a_function_of_tensorflow_is_refused():
    worker = JoinedWorker.__new__(JoinedWorker)
    for call in worker.stepped, lambda: worker.step(np.ones(3)):
        with pytest.raises(UserError, match=r"would be called only once, .* let the function return the gradients"):
            tf.function(call, autograph=False)()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "2"], "launch needs a script"),
        (["data.csv"], "launch needs a script whose name ends in .py. Received: data.csv"),
        (["missing.py"], "there is no script of this name. Received: missing.py"),
        (["--worker", "2", "x.py"], "unknown option --worker"),
        (["--run-dir", "folder.py"], "launch needs a script"),
        (["--run-dir", "folder.py", "missing.py"], "there is no script of this name. Received: missing.py"),
        (["--quiet", "missing.py"], "there is no script of this name. Received: missing.py"),
    ],
)
def test_launch_refuses_other_words(words, said):
    with pytest.raises(UserError, match=said):
        dispatch(["launch", *words])


def test_a_call_that_a_recovery_has_abandoned_gets_no_gradient_of_the_script():
    handoff, points = Handoff(2), [np.full(2, k, np.float32) for k in range(3)]
    before = handoff.begin_call()
    waiting = in_thread(lambda: handoff.take(points[0], False, before))
    np.testing.assert_array_equal(handoff.point(), points[0])
    now = handoff.begin_call()
    with pytest.raises(RuntimeError, match="abandoned"):
        waiting.result(10)
    handoff.give(points[2], 1.0)  # at the point of the former call
    taken = in_thread(lambda: handoff.take(points[1], False, now))
    np.testing.assert_array_equal(handoff.point(), points[1])
    for may_end in (False, True):  # the former call makes its next step
        with pytest.raises(RuntimeError, match="abandoned"):
            handoff.take(points[0], may_end, before)
    handoff.give(points[2], 3.0)
    gradient, loss, is_point, more = taken.result(10)
    np.testing.assert_array_equal(gradient, points[2])
    assert (loss, is_point, more, handoff.taken) == (3, False, True, 1)
    handoff.leave()
    assert not handoff.take(points[0], True, now)[-1]
    with pytest.raises(StopIteration):
        handoff.take(points[0], False, handoff.begin_call())


def test_a_mean_over_workers_waits_for_all_and_refuses_other_shapes():
    left: dict[str, dict[int, list[float]]] = {}

    def mean(key, index, vector, wait=20.0):
        def exchange(key, own):
            left.setdefault(key, {})[index] = own
            return {k: v for k, v in left[key].items() if k != index}

        return mean_of_workers(key, np.array(vector, np.float32), [1 - index], exchange, wait)

    with ThreadPoolExecutor(2) as pool:
        found = [future.result(timeout=30) for future in [pool.submit(mean, "a", k, [k, 3.0]) for k in (0, 1)]]
    np.testing.assert_array_equal(found, [[0.5, 3.0]] * 2)
    with pytest.raises(WaitTimeout, match="worker 1: each worker must call average as often"):
        mean("b", 0, [1.0], wait=0.0)
    left["c"] = {1: [1.0, 2.0]}
    with pytest.raises(UserError, match="Received: 1 numbers, and 2 on worker 1"):
        mean("c", 0, [1.0])
