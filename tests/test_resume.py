"""A run that is resumed is the run that was not interrupted: state of the workers, and what counts as the same run."""

import re
import shutil
import signal
import threading
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from going import Going
from resting import RestingEFSGD, RestingHeavyAllReduce

from distsgd.algorithms import AEASGD, EFSGD, SCHEMES, SSP, AsyncDiLoCo, AsyncSGD, DeMo, Serial, SyncSGD
from distsgd.common import Cluster, Recovery, UserError, train
from distsgd.common.errors import TaskLost
from distsgd.common.record import checkpoint
from distsgd.common.record.callbacks import Callback
from distsgd.common.record_format import ALONE_STEPS, read_rows
from distsgd.common.replay.order import departure_of
from distsgd.common.settings import using
from distsgd.common.tasks import local_state, standstill, state_manager
from distsgd.common.tasks import worker_loop as loop
from distsgd.common.tasks.checkpointing import Saver
from distsgd.common.tasks.job import CHIEF
from distsgd.common.tasks.local_state import LocalState
from distsgd.common.tasks.standstill import Standstill
from distsgd.common.tasks.worker_calls import WorkerCalls
from distsgd.common.worker.replica import Stream
from doubles import ShortFirst
from runs import DIGITS, record, wait_until

# The same run.


def cell(units=8, **names):
    """A model that a notebook cell builds anew each time: Keras counts its names up."""
    flat = keras.Input((64,))
    inner = keras.Sequential([keras.layers.Dense(units, activation="tanh"), keras.layers.Dense(units)])
    model = keras.Model(flat, keras.layers.Dense(10)(keras.layers.add([inner(flat), inner(flat)])), **names)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def go_on(model, run_dir, steps, learning_rate=0.1):
    return train(
        model,
        DIGITS.train,
        Serial(learning_rate=learning_rate),
        cluster=Cluster.local(1, backend="threads"),
        steps=steps,
        recovery=Recovery(checkpoint_steps=1000),
        run_dir=run_dir,
        verbose=False,
    )


@pytest.mark.rotating
def test_a_cell_run_again_resumes_and_with_another_model_is_refused(tmp_path):
    first, again, other = cell(), cell(), cell(units=9)
    assert first.name != again.name
    go_on(first, tmp_path / "run", 10)
    assert go_on(again, tmp_path / "run", 20).metrics["recovery"]["resumed_from"] == 10
    with pytest.raises(UserError, match=r"holds checkpoints of a run with architecture='6 variables"):
        go_on(other, tmp_path / "run", 30)
    with pytest.raises(UserError, match="holds checkpoints of a run with model='functional'"):
        go_on(cell(name="mine"), tmp_path / "run", 30)
    with (
        using({"epsilon": 0.2}),
        pytest.raises(UserError, match=r"keras_settings=None: .*: keras_settings={'epsilon': 0"),
    ):
        go_on(cell(), tmp_path / "run", 30)


@pytest.mark.rotating
def test_a_run_resumes_with_an_equal_keras_schedule_and_refuses_another(tmp_path):
    decay = keras.optimizers.schedules.ExponentialDecay
    first, again, other = decay(0.1, 9, 0.9), decay(0.1, 9, 0.9), decay(0.1, 9, 0.8)
    go_on(cell(), tmp_path / "run", 10, first)
    assert go_on(cell(), tmp_path / "run", 20, again).metrics["recovery"]["resumed_from"] == 10
    with pytest.raises(UserError, match=r"with hyperparameters=.*'decay_rate': 0\.9.* Received: .*'decay_rate': 0\.8"):
        go_on(cell(), tmp_path / "run", 30, other)


# The state of workers.

STEPS, MIDDLE = 24, 3


@pytest.fixture
def halfway(monkeypatch):
    """A checkpoint is made when worker 0, or another `worker`, has done three rounds, and at the end."""
    now = SimpleNamespace(worker=CHIEF, due=threading.Event(), saved=threading.Event(), ready=lambda calls: True)
    inner, save = LocalState.pause_if_asked, Saver.save

    def pause_if_asked(self):
        if (self.calls.index, self.progress.rounds) == (now.worker, MIDDLE):
            wait_until(lambda: now.ready(self.calls))
            now.due.set()
            wait_until(lambda: now.saved.is_set() or self.calls.read_asked() >= 0)
        inner(self)

    def save_and_tell(self, calls):
        save(self, calls)
        if now.due.is_set():
            now.saved.set()

    monkeypatch.setattr(LocalState, "pause_if_asked", pause_if_asked)
    monkeypatch.setattr(Saver, "is_due", lambda self, calls: now.due.is_set() and not now.saved.is_set())
    monkeypatch.setattr(Saver, "save", save_and_tell)
    monkeypatch.setattr(state_manager, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(standstill, "PAUSE_SECONDS", 60.0)  # for workers of a busy machine
    return now


def interrupted(run_dir, copy):
    """The folder of a run that was killed after its first checkpoint."""
    shutil.copytree(run_dir, copy, ignore=shutil.ignore_patterns("result.json", "*.lock"))
    (_, *later) = checkpoint.found(copy)
    assert later
    for path in later:
        checkpoint.discard(path)
    return checkpoint.newest(copy)


def scheme_of(name):
    if name == "demo over its senders":
        return DeMo(mean_over="senders")
    period = {"communication_period": 2} if "communication_period" in SCHEMES[name].__dataclass_fields__ else {}
    return SCHEMES[name](**period)


# One of each kind of state: of workers, or none; of the ps, with pulled centers; without a ps.
FAST, OTHERS = ("ef_sgd", "aeamsgd"), ("downpour", "async_diloco", "bmuf", "adag", "all_reduce", "serial")
OTHERS += ("gasloc", "trimmed_mean", "demo over its senders", "choco_sgd", "centered_clipping")
ROTATING = pytest.mark.rotating


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=ROTATING) for name in OTHERS)])
@pytest.mark.rotating
def test_an_interrupted_run_that_is_resumed_is_the_uninterrupted_one(name, halfway, tmp_path):
    """Bit by bit: all workers of a synchronous one, the one worker of another."""
    scheme = scheme_of(name)
    in_step = scheme.sync.set_size(2) == 2
    asked = {"workers": 2 if in_step else 1, "backend": "threads", "batch_size": 4, "hidden": (4,), "ema_decay": 0.9}
    steps = STEPS if scheme.sync.exchanges else 6 * ALONE_STEPS  # which are a round
    keep = {"recovery": Recovery(checkpoint_steps=1000, keep_checkpoints=9), "steps": steps, **asked}
    whole = record(scheme, tmp_path / "whole", **keep)
    before = interrupted(tmp_path / "whole", tmp_path / "again")
    again = record(scheme, tmp_path / "again", **keep)
    assert again.result["recovery"]["resumed_from"] == before.version
    assert again.result["recovery"]["warnings"] == []
    assert 0 < before.version < whole.result["updates"] == again.result["updates"]
    rows = [*read_rows(tmp_path / "again" / "metrics.jsonl")]
    for kind, count in (("center", "version"), ("worker", "steps")):  # those after the checkpoint are not there twice
        for worker in {row.get("worker") for row in rows if row["kind"] == kind}:
            counts = [row[count] for row in rows if (row["kind"], row.get("worker")) == (kind, worker)]
            assert counts == sorted(counts)
    if scheme.sync.uses_ps and scheme.sync.exchanges:
        assert departure_of(scheme, asked["workers"], again.trace, again.result, sparse=False) == ""
    last, first = (checkpoint.newest(tmp_path / folder) for folder in ("again", "whole"))
    assert last.arrays.keys() == first.arrays.keys()
    for part in first.arrays:
        # A worker leaves the barrier before or after the last checkpoint, and `released` is a time of day; `begun` has
        # the rounds from which on workers that gossip take part.
        if part not in ("pulled", "joins", "active", "released", "begun"):
            np.testing.assert_array_equal(last.arrays[part], first.arrays[part], err_msg=part)


SMALL = {"workers": 2, "backend": "threads", "batch_size": 4, "hidden": (4,)}


@pytest.mark.rotating
def test_an_elastic_run_that_is_resumed_within_a_period_replays_and_more_steps_without_an_exchange_are_refused(
    tmp_path,
):
    scheme, keep = AEASGD(communication_period=4), {"recovery": Recovery(checkpoint_steps=1000), **SMALL}
    first = record(scheme, tmp_path / "run", steps=7, **keep)  # exchanges before the steps 0 and 4
    assert first.result["updates"] == 4
    with pytest.raises(UserError, match=r"has done all that is asked for: .*Received: 8 steps"):
        record(scheme, tmp_path / "run", steps=8, **keep)
    again = record(scheme, tmp_path / "run", steps=14, **keep)
    assert again.result["updates"] == 8
    assert again.error() < 1e-4


OFTEN = {"recovery": Recovery(checkpoint_steps=1000, keep_checkpoints=9), "steps": STEPS, **SMALL}


@pytest.mark.rotating
def test_workers_of_an_asynchronous_run_resume_from_the_centers_they_had(halfway, monkeypatch, tmp_path):
    """Also on the ps, which knows them: its rule compares what a worker sends with the center that it has pulled."""
    inner, seen, keep = LocalState.pause_if_asked, [], OFTEN | {"steps": 60}
    scheme = AsyncDiLoCo(communication_period=2)

    def pause_if_asked(self):
        if (self.calls.index, self.progress.rounds) == (1, MIDDLE):
            wait_until(lambda: seen)
        inner(self)

    def is_behind(calls):
        seen.append(calls.version())
        return seen[-1] > seen[0]

    monkeypatch.setattr(LocalState, "pause_if_asked", pause_if_asked)
    halfway.ready = is_behind
    record(scheme, tmp_path / "whole", **keep)
    before = interrupted(tmp_path / "whole", tmp_path / "again")
    assert before.arrays["pulled"][0] < before.version
    assert before.local(0).keys() == before.local(1).keys() >= {"params"}
    again = record(scheme, tmp_path / "again", **keep)
    assert again.result["recovery"]["warnings"] == []
    assert again.error() < 1e-5
    assert departure_of(scheme, 2, again.trace, again.result, sparse=False) == ""
    for k in range(2):
        mine = again.trace["worker"] == k
        versions, staleness = again.trace["version"][mine], again.trace["staleness"][mine]
        np.testing.assert_array_equal(staleness[1:], np.diff(versions) - 1)


@pytest.mark.rotating
def test_a_checkpoint_of_a_worker_alone_is_that_of_its_version(halfway, monkeypatch, tmp_path):
    """No lock keeps it from the center: one was read in the middle of a call, some steps after its version."""
    inner, halfway.worker = WorkerCalls.rounds, None

    def rounds(self, event, batches, before, **limits):
        if before[0] == 1:
            halfway.due.set()
        return inner(self, event, batches, before, **limits)

    monkeypatch.setattr(WorkerCalls, "rounds", rounds)
    asked = {"workers": 1, "backend": "threads", "batch_size": 512, "hidden": (1024,)}
    record(Serial(), tmp_path / "run", steps=4 * ALONE_STEPS, recovery=Recovery(keep_checkpoints=9), **asked)
    first, *_ = checkpoint.found(tmp_path / "run")
    before = checkpoint.read(first)
    assert before.version in (2 * ALONE_STEPS, 3 * ALONE_STEPS)
    expected = record(Serial(), tmp_path / "expected", steps=before.version, **asked)
    np.testing.assert_array_equal(before.arrays["center"], expected.center)


@pytest.mark.rotating
def test_a_completed_run_that_is_asked_for_more_steps_is_the_longer_one(tmp_path):
    keep = {"recovery": Recovery(checkpoint_steps=1000), **SMALL}
    longer = record(EFSGD(), tmp_path / "longer", steps=20, **keep)
    record(EFSGD(), tmp_path / "run", steps=10, **keep)
    again = record(EFSGD(), tmp_path / "run", steps=20, **keep)
    assert again.result["recovery"]["resumed_from"] == 10
    np.testing.assert_array_equal(again.center, longer.center)
    now = again.result["examples_per_second"] * again.result["seconds_training"]
    assert now == pytest.approx(2 * 10 * 4, rel=0.1)  # without those before it was resumed
    again.earlier_step_targets = [10]
    assert again.error() < 1e-5  # no worker has begun anew


@pytest.mark.rotating
def test_a_resumed_run_that_fails_is_not_compared_with_the_events_of_the_start_before(monkeypatch, tmp_path):
    go_on(cell(), tmp_path / "run", 10)
    assert (tmp_path / "run" / "trace.npz").exists()

    def fail(*_):
        raise OSError("as of a full disk")

    monkeypatch.setattr("distsgd.common.tasks.ending.Ending.finish", fail)
    with pytest.raises(OSError, match="as of a full disk"):
        go_on(cell(), tmp_path / "run", 20)
    assert not (tmp_path / "run" / "trace.npz").exists()


@pytest.mark.rotating
def test_an_absent_worker_delays_no_checkpoint_and_its_missing_state_warns(halfway, monkeypatch, tmp_path):
    asked, write_copy, stands = LocalState.is_asked, LocalState.write_copy, threading.Event()

    def write_and_tell(self):
        write_copy(self)
        if self.calls.index == 0:
            stands.set()

    def limit():
        return 0.3 if stands.is_set() else 60.0

    monkeypatch.setattr(LocalState, "is_asked", lambda self: self.calls.index == 0 and asked(self))
    monkeypatch.setattr(LocalState, "write_copy", write_and_tell)
    monkeypatch.setattr(loop, "Standstill", lambda keeping, patience, place: Standstill(keeping, limit, place))
    keep = {"recovery": Recovery(checkpoint_seconds=1000, keep_checkpoints=9), "steps": STEPS, **SMALL}
    run = record(EFSGD(), tmp_path / "run", **keep)
    (warning,) = run.result["recovery"]["warnings"]
    assert re.fullmatch(
        r"the checkpoint of version \d is without the local state \(memory\) of worker 1: they did not come in time. A "
        "resumed run begins with it anew", warning
    )  # fmt: skip
    interrupted(tmp_path / "run", tmp_path / "again")
    (said,) = record(EFSGD(), tmp_path / "again", **keep).result["recovery"]["warnings"]
    assert re.fullmatch(r"the checkpoint of version \d is without .* of worker 1: it begins anew", said)


@pytest.mark.rotating
def test_what_is_too_large_for_a_checkpoint_is_left_out_and_told(monkeypatch, tmp_path):
    monkeypatch.setattr(local_state, "MOST_BYTES", 100)
    keep = {"recovery": Recovery(checkpoint_steps=1000), **SMALL}
    (warning,) = record(EFSGD(), tmp_path / "run", steps=5, **keep).result["recovery"]["warnings"]
    assert (
        "(memory) of all workers: 2.31e-06 GiB of all workers are more than the 9.31e-08 GiB that are kept" in warning
    )
    monkeypatch.undo()
    (said,) = record(EFSGD(), tmp_path / "run", steps=10, **keep).result["recovery"]["warnings"]
    assert said == "the checkpoint of version 5 is without the local state (memory) of all workers: it begins anew"


@pytest.mark.rotating
def test_statistics_seeds_and_what_a_codec_sends_later_are_kept(halfway, tmp_path):
    """Of batch normalisation and dropout; with two ps, whose slices are rounded apart."""

    def run(folder, steps=STEPS):
        keras.utils.set_random_seed(0)
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((64,)), layers.Dense(6), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(10)]
        )
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        cluster = Cluster.local(2, ps=2, backend="threads")
        return train(
            model, DIGITS.train, SyncSGD(), cluster=cluster, steps=steps, batch_size=4,
            codec="int8", recovery=Recovery(checkpoint_steps=1000, keep_checkpoints=9), run_dir=folder, verbose=False,
        )  # fmt: skip

    whole = run(tmp_path / "whole")
    before = interrupted(tmp_path / "whole", tmp_path / "again")
    assert before.local(1).keys() == {"codec.memory", "model.state", "model.seed_0"}
    again = run(tmp_path / "again")
    assert again.metrics["recovery"]["warnings"] == []
    for mine, its in zip(again.model.variables, whole.model.variables, strict=True):
        np.testing.assert_array_equal(mine, its, err_msg=mine.path)


@pytest.mark.rotating
def test_a_checkpoint_whose_center_is_of_another_length_is_refused(tmp_path):
    keep = {"recovery": Recovery(checkpoint_steps=1000), **SMALL, "workers": 1}
    record(Serial(), tmp_path / "run", steps=4, **keep)
    last = checkpoint.newest(tmp_path / "run")
    checkpoint.discard(checkpoint.found(tmp_path / "run")[0])
    forged = checkpoint.Checkpoint({**last.arrays, "center": np.ones(7, np.float32)}, last.about)
    checkpoint.publish(checkpoint.write(tmp_path / "run", forged), keep=3)
    with pytest.raises(
        UserError, match=r"cannot be of this run: center should be float32 \[310\]. Received: float32 \[7\]"
    ):
        record(Serial(), tmp_path / "run", steps=8, **keep)


@pytest.mark.rotating
def test_workers_within_a_slack_reach_the_same_round_for_a_checkpoint(halfway, tmp_path):
    """One that waits for others for another that stands cannot come."""
    keep = OFTEN | {"workers": 3, "codec": "int8"}
    run = record(SSP(slack=1), tmp_path / "run", **keep)
    assert run.result["recovery"]["warnings"] == []
    before = interrupted(tmp_path / "run", tmp_path / "again")
    assert len(set(before.arrays["rounds_applied"])) == 1
    assert all(before.local(k).keys() == {"codec.memory", "params"} for k in range(3))


@pytest.mark.rotating
def test_checkpoints_after_worker_0_finished_have_the_other_workers_states(halfway, tmp_path):
    halfway.worker, halfway.ready = 1, lambda calls: calls.worker_flags().finished[CHIEF]
    run = record(ShortFirst(), tmp_path / "run", **OFTEN | {"recovery": Recovery(keep_checkpoints=9)})
    assert run.result["recovery"]["warnings"] == []
    first, *_ = checkpoint.found(tmp_path / "run")
    before = checkpoint.read(first)
    assert before.arrays["finished"].tolist() == [True, False]
    assert all(before.local(k).keys() == {"params", "sent", "velocity"} for k in range(2))


@pytest.mark.rotating
def test_a_meeting_that_is_asked_for_again_after_a_restoration_is_kept(halfway, monkeypatch, tmp_path):
    """The state was restored when all stood, to before they had come there."""
    inner, asked = Standstill._stands, []

    def stands(self, calls, *limits):
        stood = inner(self, calls, *limits)
        asked.append(calls._read_asked())
        if len(asked) > 1:
            return stood
        halfway.due.clear()
        calls._shut()
        return False

    monkeypatch.setattr(Standstill, "_stands", stands)
    keep = OFTEN | {"recovery": Recovery(checkpoint_steps=1000, keep_checkpoints=9, max_restarts=1)}
    run = record(EFSGD(), tmp_path / "run", **keep)
    assert asked[0] == asked[1]
    assert run.result["recovery"]["warnings"] == []


@pytest.mark.parametrize(
    ("scheme", "steps"),
    [
        (RestingEFSGD(), 300),
        (EFSGD(), 900),  # several rounds in a call
        (RestingHeavyAllReduce(), 300),
    ],
    ids=["ef_sgd", "several rounds in a call", "all_reduce"],
)
@pytest.mark.rotating
def test_a_run_of_processes_resumes_as_if_its_chief_had_not_been_killed(scheme, steps, warm, tmp_path):
    """At arbitrary moments."""
    asked = {"steps": steps, "workers": 2, "batch_size": 8, "hidden": (16,)}
    often = Recovery(checkpoint_seconds=0.3)
    run = Going(scheme, tmp_path / "run", updates=0, recovery=often, **asked)
    wait_until(lambda: len(checkpoint.found(tmp_path / "run")) >= 2)
    run.send("worker-0", signal.SIGKILL)
    assert isinstance(run.end(), TaskLost)
    before = checkpoint.newest(tmp_path / "run")
    assert before.version < steps
    assert before.local(1)
    again = record(scheme, tmp_path / "run", recovery=often, **asked)
    assert again.result["recovery"]["resumed_from"] == before.version
    assert again.result["recovery"]["warnings"] == []
    whole = record(scheme, tmp_path / "whole", **asked)
    np.testing.assert_array_equal(again.center, whole.center)


@pytest.mark.parametrize(
    ("data", "length", "after"),
    [
        (lambda: tf.data.Dataset.range(5), 5, 2),
        (lambda: tf.data.Dataset.range(5).repeat(), -1, 0),
        (lambda: tf.data.Dataset.range(5).filter(lambda number: number >= 0), -2, 0),
    ],
    ids=["known", "endless", "unknown"],
)
def test_the_batches_of_an_earlier_start_are_skipped_if_the_length_of_the_data_is_known(data, length, after):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        stream = Stream(data(), "worker_0")
        skip, (batch,) = tf.function(stream.skip, autograph=False)(tf.constant(7, tf.int64)), stream.batch(None)
        session.run(stream.initialize)
        assert session.run(skip) == length
        assert [int(session.run(batch)) for _ in range(6)] == [(after + i) % 5 for i in range(6)]


class Told(Callback):
    """The warnings of a run."""

    def __init__(self, said):
        self.said = said

    def on_event(self, event):
        if event["event"] == "warning":
            self.said.append(event["message"])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.rotating
def test_a_resumed_run_continues_in_its_data_or_says_that_it_does_not(known, tmp_path):
    """The loss is the mean of weights that count the visits of each example."""

    def data():
        batches = tf.data.Dataset.from_tensor_slices((np.eye(16, dtype="f"), np.zeros((16, 1), "f"))).batch(2)
        return batches if known else batches.filter(lambda x, y: True)

    said = []
    for steps in (3, 4):
        model = keras.Sequential(
            [keras.Input((16,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        model.compile(loss=lambda y, p: keras.ops.mean(p))
        train(
            model, data, AsyncSGD(learning_rate=2.0), cluster=Cluster.local(2, backend="threads"), steps=steps,
            batch_size=2, run_dir=tmp_path, recovery=Recovery(checkpoint_steps=2), verbose=False,
            callbacks=[Told(said)],
        )  # fmt: skip
    assert (np.abs(model.get_weights()[0] + 1).max() < 1e-5) == known
    assert any("read from the beginning" in message for message in said) != known
