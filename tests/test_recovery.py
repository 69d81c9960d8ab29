"""State that survives: checkpoints, resuming, and tasks that are killed, stopped or poisoned during a run.

Every run that survives a fault is replayed: nothing was applied twice, and nothing that counts was lost.
"""

import itertools
import re
import signal
import threading
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
from going import SMALL, TOLERANCE, Going, Lasting
from resting import Resting

from distsgd.algorithms import AsyncSGD, DownpourEasy, SyncSGD
from distsgd.common.errors import Diverged, TaskLost, UserError, WaitTimeout
from distsgd.common.record import checkpoint
from distsgd.common.record.array_files import sliced, whole, write_array
from distsgd.common.record.faults import Faults
from distsgd.common.record_format import read_config
from distsgd.common.replay.order import departure_of
from distsgd.common.server.answers import NONE
from distsgd.common.tasks.options import Recovery
from distsgd.common.tasks.worker_calls import WorkerCalls
from distsgd.common.tasks.worker_loop import WorkerLoop
from doubles import PausingAEAMSGD, PausingAsyncSGD, PausingSyncSGD, Stumbles
from runs import patience, record, wait_until

OFTEN = Recovery(checkpoint_seconds=0.5, max_restarts=2)


@pytest.fixture
def going(warm, tmp_path):
    return lambda scheme, **options: Going(scheme, tmp_path / "run", **options)


# Files.


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_slices_of_any_number_of_ps_make_the_same_vectors(parts):
    center, rows = np.arange(7.0), np.arange(14.0).reshape(2, 7)
    sizes = [7 // parts + (i < 7 % parts) for i in range(parts)]
    cut = {"center": center, "rows": rows, "count": np.float32(3)}
    slices = {f"{n}/{i}": part for n, v in cut.items() for i, part in enumerate(sliced(v, sizes))}
    for name, vector in whole(slices).items():
        np.testing.assert_array_equal(vector, cut[name])
        for part, again in zip(sliced(cut[name], [3, 4]), sliced(vector, [3, 4]), strict=True):
            np.testing.assert_array_equal(part, again)
        together, apart = BytesIO(), BytesIO()
        np.save(together, cut[name])
        write_array(apart, vector)
        assert apart.getvalue() == together.getvalue()


# Resuming.


@pytest.mark.rotating
def test_an_interrupted_run_resumes_in_another_folder_from_its_checkpoint(warm, tmp_path):
    keep = Recovery(checkpoint_steps=20)
    run = Going(Resting(), tmp_path / "run", updates=0, steps=480, workers=2, recovery=keep)
    wait_until(lambda: checkpoint.found(tmp_path / "run"))
    run.send("ps-0", signal.SIGKILL)
    assert isinstance(run.end(), TaskLost)
    version = checkpoint.newest(tmp_path / "run").version
    steps = 20 + version
    other = Recovery(checkpoint_steps=20, resume=tmp_path / "run")
    again = record(Resting(), tmp_path / "other", steps=steps, workers=2, recovery=other, **SMALL)
    assert again.result["recovery"]["resumed_from"] == version
    assert again.result["updates"] == 2 * steps
    assert again.error() < TOLERANCE


@pytest.mark.rotating
def test_a_run_with_several_rounds_per_call_resumes_past_its_old_end(warm, tmp_path):
    """There a round is shorter than the others, in the middle of a call that would hold it."""
    asked = {"workers": 2, "recovery": Recovery(checkpoint_steps=200), **SMALL}
    scheme = DownpourEasy(communication_period=2)
    record(scheme, tmp_path / "run", steps=1205, stop_at_version=300, **asked)
    again = record(scheme, tmp_path / "run", steps=1500, **asked)
    assert 300 <= again.result["recovery"]["resumed_from"] < 1200
    again.earlier_step_targets = [1205]
    assert again.result["updates"] == 2 * (603 + 148)
    assert again.error() < TOLERANCE


@pytest.mark.rotating
def test_a_checkpoint_of_another_run_is_refused(warm, tmp_path):
    keep = Recovery(checkpoint_steps=20)
    record(AsyncSGD(), tmp_path / "run", workers=2, steps=20, recovery=keep, **SMALL)
    with pytest.raises(UserError, match="learning_rate"):
        record(AsyncSGD(learning_rate=0.5), tmp_path / "run", workers=2, steps=40, recovery=keep, **SMALL)
    with pytest.raises(UserError, match="record='full'"):
        record(AsyncSGD(), tmp_path / "run", workers=2, steps=40, recovery=keep, record="off", **SMALL)
    with pytest.raises(UserError, match="no checkpoint to resume from"):
        record(AsyncSGD(), tmp_path / "new", workers=2, steps=20, recovery=Recovery(resume=tmp_path / "none"), **SMALL)


# Tasks that die and come back.


@pytest.mark.parametrize(
    ("scheme", "moment", "victim"),
    [
        (PausingAsyncSGD, "lock", "worker-1"),
        (PausingAsyncSGD, "lock", "ps-0"),
        (PausingSyncSGD, "push", "worker-1"),
        (PausingSyncSGD, "lock", "worker-0"),
        (PausingSyncSGD, "reply", "ps-0"),
        (PausingAEAMSGD, "reply", "worker-1"),  # which begins without momentum, in the run as in the equations
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.rotating
def test_a_task_killed_at_that_moment_is_restarted_and_the_run_replays(scheme, moment, victim, warm, tmp_path):
    (tmp_path / "armed").touch()
    pausing = scheme(folder=str(tmp_path), moment=moment)
    steps = 60 * pausing.period
    run = Going(pausing, tmp_path / "run", updates=0, steps=steps, workers=2, recovery=OFTEN)
    wait_until(lambda: (tmp_path / "here").exists() or not run.thread.is_alive())
    run.send(victim, signal.SIGKILL)
    (tmp_path / "armed").unlink()
    recovery = run.survived()
    assert recovery["restarts"][victim] == 1
    if victim.startswith("ps"):
        assert len(recovery["restored"]) == 1
    elif moment != "lock":
        assert recovery["restored"] == []
        assert recovery["lost_rounds"] == 0


@pytest.mark.rotating
def test_a_run_in_shared_memory_survives_the_loss_of_its_ps_and_a_worker(going):
    run = going(SyncSGD(), steps=60, updates=10, workers=2, hidden=(1024, 256), recovery=OFTEN)
    run.send("worker-1", signal.SIGKILL)
    run.send("ps-0", signal.SIGKILL)
    assert run.survived()["restarts"] == {"worker-1": 1, "ps-0": 1}
    assert read_config(run.run_dir)["transport"] == "memory"


@pytest.mark.gate
def test_a_run_without_trace_survives_losing_ps_and_evaluator_with_counts(going):
    run = going(AsyncSGD(), steps=480, workers=2, recovery=OFTEN, record="off")
    run.send("evaluator-0", signal.SIGKILL)
    run.send("ps-0", signal.SIGKILL)
    outcome = run.end()
    assert not isinstance(outcome, Exception), outcome
    result = outcome.result
    assert result["recovery"]["restarts"] == {"evaluator-0": 1, "ps-0": 1}
    assert len(result["recovery"]["restored"]) == 1
    assert sum(result["staleness"]["histogram"].values()) == result["updates"] == result["steps"] == 960
    assert result["record"] == "off"
    assert not (run.run_dir / "trace.npz").exists()


@pytest.mark.rotating
def test_a_stopped_ps_is_started_again_and_its_state_restored(going):
    run = going(AsyncSGD(), steps=300, workers=2, wait_seconds=patience(5), recovery=OFTEN)
    run.send("ps-0", signal.SIGSTOP)
    recovery = run.survived()
    assert recovery["restarts"] == {"ps-0": 1}
    assert len(recovery["restored"]) == 1


@pytest.mark.rotating
@pytest.mark.parametrize("steps", [480, 504], ids=["a round in a call", "several rounds in a call"])
def test_a_ps_lost_beside_a_stopped_worker_is_restored_and_both_restarted(steps, going):
    """Found by the soak: the others came back into a set that waits for the stopped one, and no message said so."""
    several = Recovery(checkpoint_seconds=0.5, max_restarts=6)
    run = going(SyncSGD(), ps=2, steps=steps, workers=3, wait_seconds=patience(5), recovery=several)
    run.send("worker-2", signal.SIGSTOP)
    wait_until(lambda: checkpoint.newest(run.run_dir).arrays["arrived"].any())
    run.send("ps-1", signal.SIGKILL)
    assert {"worker-2", "ps-1"} <= run.survived()["restarts"].keys()


@pytest.mark.rotating
def test_a_synchronous_run_continues_without_a_lost_worker(going):
    some = Recovery(min_workers=2)
    run = going(SyncSGD(), steps=300, workers=3, wait_seconds=patience(8), recovery=some)
    run.send("worker-2", signal.SIGKILL)
    outcome = run.end()
    assert not isinstance(outcome, Exception), outcome
    assert outcome.result["updates"] == 300
    assert outcome.result["recovery"]["evicted"] == [2]
    assert departure_of(run.scheme, 3, outcome.trace, outcome.result, sparse=False) == ""
    assert outcome.error() < TOLERANCE


@pytest.mark.rotating
def test_a_stopped_worker_is_named_by_an_asynchronous_run_without_restarts(warm, tmp_path):
    run = Lasting(AsyncSGD(), tmp_path / "run", wait_seconds=patience(4))
    run.send("worker-1", signal.SIGSTOP)
    error = run.end()
    assert isinstance(error, WaitTimeout)
    assert re.search("no word from worker-1|worker 1 has sent nothing", str(error))


def test_a_worker_whose_copy_was_deleted_after_its_join_keeps_its_new_local_state():
    deleted = SimpleNamespace(index=1, copy_of=lambda worker: (NONE, b""))  # any further call would raise
    WorkerCalls.restore_copy(deleted, layout=None)


# Messages that are not finite.


@pytest.mark.gate
def test_a_message_that_is_not_finite_ends_the_run_and_names_the_worker(tmp_path):
    before, keep = {*threading.enumerate()}, {"recovery": Recovery(checkpoint_seconds=1000)}
    with pytest.raises(Diverged, match="worker 1 sent a message that is not finite, at version"):
        record(Stumbles(), tmp_path / "run", backend="threads", workers=2, steps=100, **keep, **SMALL)
    wait_until(lambda: {*threading.enumerate()} <= before, patience(20))  # no thread saves the state of a failed run


def test_a_worker_that_cannot_be_prepared_leaves_no_thread_that_saves_the_state(tmp_path, monkeypatch):
    before, prepare = {*threading.enumerate()}, WorkerLoop.prepare

    def fails(loop):
        if loop.index == 1:
            raise MemoryError("no room for its shard")
        prepare(loop)

    monkeypatch.setattr(WorkerLoop, "prepare", fails)
    keep = Recovery(checkpoint_seconds=1000)
    with pytest.raises(MemoryError, match="no room"):
        record(AsyncSGD(), tmp_path / "run", backend="threads", workers=2, steps=100, recovery=keep, **SMALL)
    wait_until(lambda: {*threading.enumerate()} <= before, patience(20))


@pytest.mark.rotating
def test_a_message_that_is_not_finite_can_be_dropped_and_is_counted(tmp_path):
    options = {"backend": "threads", "recovery": Recovery(on_nan="drop")}
    run = record(Stumbles(), tmp_path / "run", workers=2, steps=100, **options, **SMALL)
    refused = run.result["recovery"]["refused"]
    assert refused["worker 1"] > 5
    assert list(refused) == ["worker 1"]
    assert run.result["updates"] == 200 - refused["worker 1"]
    assert run.result["dropped"] == refused["worker 1"]
    assert np.isfinite(run.center).all()


# Counting losses.


def center(version):
    return {"event": "center", "version": version}


def started(event, version, restoration):
    return {"event": event, "version": version, "restoration": restoration}


def undone(updates, restoration=100):
    return {"event": "undone", "updates": updates, "restoration": restoration}


def lost(rounds, before, together=False):
    return {"event": "lost", "worker": 0, "rounds": rounds, "together": together, "before": before}


FOLLOWED = {"event": "followed", "restoration": 100}
RESUMED = [FOLLOWED, center(30), started("resumed", 26, 100)]


@pytest.mark.parametrize(
    ("events", "resumed_from", "restored", "lost_updates"),
    [
        (  # a worker loses rounds before the restoration, is absent in the second one, and loses more after it
            [center(70), lost(30, 0), started("restored", 60, 100), lost(15, 0), undone(41),
             started("restored", 60, 200), lost(4, 0), lost(2, 100)],
            None, [(60, 49), (60, 2)], 51,
        ),
        ([started("restored", 60, 100), lost(7, 0, True), lost(6, 0, True)], None, [(60, 7)], 7),  # the same updates
        ([center(950), started("resumed", 6, 100), undone(946)], None, [(6, 946)], 946),  # with chief and ps
        ([started("resumed", 60, 100), center(70)], 60, [], 0),
        ([started("resumed", 60, 100), undone(40), center(70)], 60, [(60, 40)], 40),  # no checkpoint has these
        *((list(order), 26, [], 0) for order in itertools.permutations(RESUMED)),
        ([*RESUMED, started("resumed", 20, 200)], 26, [(20, 6)], 6),  # by the next chief, whose ps is new too
    ],
)  # fmt: skip
def test_losses_are_counted_once_in_any_order_of_events(events, resumed_from, restored, lost_updates):
    faults = Faults()
    for event in events:
        faults.on_event(event)
    summary = faults.summary()
    assert (summary["resumed_from"], summary["lost_updates"]) == (resumed_from, lost_updates)
    assert [(entry["version"], entry["lost_updates"]) for entry in summary["restored"]] == restored


@pytest.mark.rotating
def test_a_chief_and_a_ps_killed_together_rejoin_the_other_workers(going):
    """To them it looks like a run that is resumed, and a worker that stayed may be in the middle of it."""
    # There is no checkpoint but that of the beginning: what has been done is lost, and counted.
    run = going(SyncSGD(), steps=480, workers=3, recovery=Recovery(checkpoint_seconds=1000, max_restarts=4))
    run.send("worker-0", signal.SIGKILL)
    run.send("ps-0", signal.SIGKILL)
    recovery = run.survived()
    assert recovery["restarts"] == {"worker-0": 1, "ps-0": 1}
    assert recovery["resumed_from"] is None
    assert [entry["version"] for entry in recovery["restored"]] == [0]
    assert recovery["lost_updates"] >= 60
