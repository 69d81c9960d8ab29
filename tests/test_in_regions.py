"""`halos` with servers of regions on ps tasks of their own: what is merged, where messages travel, what is refused."""

import json
import os
import signal
from dataclasses import asdict, dataclass, replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from resting import RestingHALoS

from distsgd import Cluster, Group, train
from distsgd.algorithms.halos import HALoS
from distsgd.common.cli.flag_groups import Options, parse_flags
from distsgd.common.contract import EachWorker, PulledCenter, Rate, Scheme
from distsgd.common.contract.rounds import USUAL
from distsgd.common.contract.schedules import shaped
from distsgd.common.errors import Diverged, TaskLost, UserError, WaitTimeout
from distsgd.common.record.round_log import load_rounds
from distsgd.common.record_format import EVENTS
from distsgd.common.replay.comparison import judge
from distsgd.common.server.trace import ROUND
from distsgd.common.sync.asynchronous import Async, Unlocked
from distsgd.common.tasks.calls import ObserverCalls, RegionCalls
from distsgd.common.tasks.graph import TaskGraph
from distsgd.common.tasks.job import describe
from distsgd.common.tasks.options import Recovery
from distsgd.common.tasks.progress import Progress
from machines import Run, machines_with_servers, task_process
from runs import DIGITS, LASTING, job_of, patience, record, spoiled, wait_until

SCHEME = HALoS(
    **{"communication_period": 3, "regional_buffer": 3, "moves_per_merge": 2, "merge_delay": 1, "merge_share": 0.5},
    **{"inner_optimizer": "sgd", "learning_rate": 0.1},
)
REGIONS = 2


def number_of(run, event):
    return int((run.trace["event"] == EVENTS.index(event)).sum())


def check_run(run):
    """Check that regions have merged again and again, and that the record has all messages, in a possible order."""
    verdict = judge(run)
    assert verdict.agrees, (verdict.error, verdict.limit, verdict.reason)
    assert number_of(run, "up") >= number_of(run, "down") >= 2 * REGIONS
    assert np.array_equal(
        np.unique(run.trace["version"][run.trace["event"] == 0]), np.arange(number_of(run, "exchange"))
    )
    assert number_of(run, "exchange") == run.result["updates"]


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.rotating
def test_regions_with_servers_of_their_own_follow_the_equations_in_the_order_of_the_record(tmp_path, delay):
    scheme = SCHEME.but(merge_delay=delay)
    run = record(scheme, tmp_path, workers=3, ps=1 + REGIONS, backend="threads", steps=600)
    check_run(run)
    if delay:
        ups = np.flatnonzero(run.trace["event"] == EVENTS.index("up"))
        run.trace = {name: np.delete(column, ups[-1]) for name, column in run.trace.items()}
        assert not judge(run).agrees


@pytest.mark.rotating
def test_a_run_is_stopped_early_and_all_its_messages_are_in_the_record(tmp_path, monkeypatch):
    more = []  # rounds that a worker does not know of when it is stopped; it has made those that its region has to tell
    note = Progress.stopped
    monkeypatch.setattr(Progress, "stopped", lambda own, n: (more.append(n - own.rounds), note(own, n)))
    scheme = RestingHALoS(milliseconds=50, **asdict(SCHEME))  # the graph of a long run takes 10 s to build
    run = record(scheme, tmp_path, workers=3, ps=1 + REGIONS, backend="threads", steps=600, stop_at_version=30)
    assert min(more) >= 0
    assert 30 <= run.result["updates"] < 3 * 600 / SCHEME.communication_period
    check_run(run)


@pytest.mark.rotating
def test_regions_on_processes_follow_the_equations(tmp_path):
    check_run(record(SCHEME, tmp_path, workers=3, ps=1 + REGIONS, steps=600, test=DIGITS.test))


@pytest.mark.rotating
def test_a_round_of_a_worker_has_no_operation_on_the_task_of_the_global_server():
    job = job_of(SCHEME, 4, ps=1 + REGIONS, backend="processes")
    operations = TaskGraph(job, [1]).graph.get_operations()
    rounds = {op.device for op in operations if op.name.startswith("in_order")}  # those of requests have longer names
    tasks = {device.split("/device")[0] for device in rounds if device}
    assert tasks == {"/job:worker/task:1", "/job:ps/task:2"}


@pytest.mark.parametrize(
    "how",
    [
        {"recovery": Recovery(max_restarts=1)},
        {"recovery": Recovery(checkpoint_seconds=5.0)},
        {"ema_decay": 0.9},
        {"schedule": (0, 1)},
        {"workers": 1},
    ],
)
def test_what_servers_of_regions_cannot_do_is_refused_in_one_line(how):
    workers = how.pop("workers", 2)
    with pytest.raises(UserError, match="region") as refused:
        job_of(SCHEME, workers, ps=1 + REGIONS, **how)
    assert "\n" not in str(refused.value)


def keeps(name, value):
    """Members of a class that keeps one variable more."""
    return {
        "global_variables": lambda self, center: HALoS.global_variables(self, center) | {name: value},
        f"keeps {name}": None,
    }


@pytest.mark.parametrize(
    "own",
    [
        {"sync": Async(messages_per_update=2)},
        {"sync": Unlocked()},
        {"kinds": USUAL},
        {"sync": Async(drop_after=2)},
        {"sparse": True},
        keeps("pulled", PulledCenter()),
        keeps("number", EachWorker(0.0)),
        keeps("vector", EachWorker(np.zeros(3, np.float32))),
    ],
    ids=lambda own: [*own][-1],
)
def test_a_scheme_whose_messages_need_more_than_a_region_has_is_refused(own):
    scheme = dataclass(frozen=True, kw_only=True)(type("Other", (HALoS,), own))()
    with pytest.raises(UserError, match="choose another number of ps tasks"):
        job_of(scheme, 2, ps=1 + REGIONS)
    job_of(HALoS(), 2, ps=1 + REGIONS)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ((2, 4, 0), "return the servers of regions as regions = Regions"),
        ({"above": HALoS}, "above must be a scheme"),
        ({"above": Scheme()}, "has no server_update: write that of the global server"),
        ({"every": 0}, "every must be at least 1. Received: every=0"),
        ({"delay": -1}, "delay must be at least 0"),
        ({"number": "2"}, "number must be a whole number"),
    ],
    ids=str,
)
def test_servers_of_regions_that_cannot_be_are_refused_in_one_line(declared, message):
    class Other(HALoS):
        @property
        def regions(self):
            return replace(super().regions, **declared) if isinstance(declared, dict) else declared

    with pytest.raises(UserError, match=message) as refused:
        Group(Other(), np.zeros(3), workers=2)
    assert "\n" not in str(refused.value)


def test_a_region_may_keep_something_for_each_worker_and_the_global_server_for_each_region():
    seen = {}

    class Above(type(SCHEME.regions.above)):
        def global_variables(self, center):
            return {**super().global_variables(center), "moves": EachWorker(0.0)}

        def server_update(self, server, message, staleness):
            seen["of regions", int(server.sender)] = float(server.moves.assign_add(1.0))
            return super().server_update(server, message, staleness)

    class Counts(HALoS):
        def global_variables(self, center):
            return {**super().global_variables(center), "counts": EachWorker(0.0), "last": EachWorker(0 * center)}

        def server_update(self, server, message, staleness):
            seen["of workers", int(server.sender)] = float(server.counts.assign_add(1.0))
            server.last.assign(message)
            return super().server_update(server, message, staleness)

        @property
        def regions(self):
            return replace(super().regions, above=Above(of=self))

    own = asdict(SCHEME)
    group, plain = (Group(kind(**own), np.ones(3), workers=4) for kind in (Counts, HALoS))
    for i in range(48):
        for each in (group, plain):
            each.step(i % 4, np.full(3, 0.1))
    np.testing.assert_array_equal(group.center, plain.center)
    assert [seen["of workers", k] for k in range(4)] == [4.0] * 4
    assert seen["of regions", 0] == seen["of regions", 1] >= 2


def test_a_model_with_state_is_refused_before_the_run_starts(tmp_path):
    layers = [keras.Input((64,)), keras.layers.BatchNormalization(), keras.layers.Dense(10, "softmax")]
    model = keras.Sequential(layers)
    model.compile(loss="sparse_categorical_crossentropy")
    with pytest.raises(UserError, match="batch normalisation") as refused:
        train(model, DIGITS.train, SCHEME, cluster=Cluster.local(workers=2, ps=1 + REGIONS), run_dir=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.rotating
def test_requests_of_regions_are_built_before_the_first_message():
    graph = TaskGraph(job_of(SCHEME, 2, ps=1 + REGIONS, backend="threads"), [0, 1])
    built = len(graph.graph.get_operations())
    for r in range(REGIONS):
        assert None not in (graph.operations[f"serve_{r}"], graph.operations[f"tell_{r}"])
    assert len(graph.graph.get_operations()) == built


@pytest.mark.gate
def test_the_rates_of_a_region_follow_a_schedule_in_both_rules():
    class Above(type(HALoS().regions.above)):
        def on_reply(self, worker, reply):
            worker.params.assign(self.of.merge_rate * reply)

    @dataclass(frozen=True, kw_only=True)
    class Falling(HALoS):
        merge_rate: Rate = 0.25

        @property
        def regions(self):
            return replace(super().regions, above=Above(of=self))

    job = job_of(Falling(), 2, ps=1 + REGIONS, backend="threads")
    job.scheme = shaped(job.scheme, "linear", 100)
    assert TaskGraph(job).operations["serve_0"]


@pytest.mark.rotating
def test_a_message_that_is_not_finite_ends_the_run_without_advice_that_would_be_refused(tmp_path):
    with pytest.raises(Diverged, match="not finite") as refused:
        record(SCHEME, tmp_path, workers=2, ps=1 + REGIONS, backend="threads", data=spoiled, batch_size=8, steps=300)
    assert "on-nan" not in str(refused.value)


@pytest.mark.rotating
def test_a_lost_message_between_servers_ends_the_run_at_once(tmp_path, monkeypatch):
    """It may have been taken from the region, so it is not repeated."""

    def serve(self, request, *values):
        raise tf.errors.AbortedError(None, None, "request was received twice")

    monkeypatch.setattr(RegionCalls, "make", serve)
    monkeypatch.setattr(ObserverCalls, "reconnect", lambda *_: pytest.fail("the evaluator tries again"))
    with pytest.raises(tf.errors.AbortedError):
        record(SCHEME, tmp_path, workers=2, ps=1 + REGIONS, backend="threads", steps=600)


def test_the_settings_of_a_run_repeat_it(tmp_path):
    config = describe(job_of(SCHEME, 4, ps=1 + REGIONS), "digits", "mlp")
    (tmp_path / "config.json").write_text(json.dumps(config))
    scheme, options = parse_flags(HALoS, ["--config", str(tmp_path)])
    assert (scheme, options.workers, options.ps) == (SCHEME, 4, 1 + REGIONS)
    assert options.platform == Options().platform


@pytest.fixture(scope="module")
def machines():
    with machines_with_servers(3 + REGIONS) as machines:
        yield machines


def exchanges(run_dir):
    """Return the microseconds from message to reply of each round of a run; prints them, and their share of a round."""
    rounds = load_rounds(run_dir)
    begun, ready, replied = (rounds[:, ROUND.index(name)] for name in ("begun", "ready", "replied"))
    times, share = replied - ready, (replied - ready).sum() / (replied - begun).sum()
    print(f"{run_dir.name} ps: exchange {np.median(times) / 1e3:.2f} ms in the median, {share:.1%} of the rounds")  # noqa: T201
    return times


@pytest.mark.rotating
def test_workers_wait_for_no_link_between_regions(machines, tmp_path):
    """Each task has a machine of its own, and that of the first ps is far away."""
    if not machines.real:
        pytest.skip(f"this machine allows no network of its own: {machines.refusal}")
    delay, scheme = 0.1, SCHEME.but(communication_period=10, learning_rate=0.01)
    with machines.slow_link(0, delay=delay, jitter=0.0, loss=0.0) as link:
        if link.refusal:
            pytest.skip(f"this machine allows no link in user space: {link.refusal}")
        for ps, steps in ((1, 200), (1 + REGIONS, 20000)):
            tasks = Run(machines, tmp_path / str(ps), ps=ps, workers=2).start_all(scheme, steps=steps)
            assert [task.end() for task in tasks.values()] == [None] * (ps + 2)
    run = tasks["worker", 0].recorded()
    assert judge(run).agrees
    assert number_of(run, "down") > 2
    assert exchanges(tmp_path / "1").min() > 2e6 * delay
    assert np.percentile(exchanges(tmp_path / "3"), 95) < 1e6 * delay


@pytest.mark.parametrize(
    "victim",
    [("ps", 1), *(pytest.param(task, marks=pytest.mark.rotating) for task in [("ps", 0), ("worker", 1)])],
    ids=lambda task: "{}-{}".format(*task),
)
@pytest.mark.rotating
def test_a_task_that_is_lost_ends_the_run_everywhere_and_is_named(victim, machines, tmp_path):
    """Of the first ps, which no worker calls, only the silence is noticed; the loss of the others at once."""
    cluster = Run(machines, tmp_path, ps=1 + REGIONS, workers=2)
    seconds = patience(10) if victim == ("ps", 0) else 10**3
    tasks = cluster.start_all(SCHEME, **LASTING, wait_seconds=seconds)
    wait_until(cluster.trains)
    os.kill(task_process(tmp_path, "{}-{}".format(*victim)), signal.SIGKILL)
    for task in tasks.keys() - {victim}:
        error = tasks[task].end()
        assert isinstance(error, TaskLost | WaitTimeout), error
        assert "{} {}".format(*victim) in str(error)
    assert "{}-{} was killed by SIGKILL".format(*victim) in str(tasks[victim].end())
