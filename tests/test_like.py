"""Machines that are fitted to the rounds of a run: simulated runs, whose machines are known, give them back."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scheduled import happens

from distsgd.algorithms import (
    ADPSGD,
    AEASGD,
    AGN,
    DPSGD,
    EFSGD,
    SCHEMES,
    AllReduce,
    AsyncSGD,
    Downpour,
    LocalSGD,
    StreamingDiLoCo,
    SyncSGD,
)
from distsgd.benchmarks import stragglers
from distsgd.common.cli.flag_groups import parse_flags, with_machines
from distsgd.common.cli.main import dispatch
from distsgd.common.cluster.distributions import RecordedSteps
from distsgd.common.cluster.platform import Machines, Platform
from distsgd.common.errors import UserError
from distsgd.common.messages.cut import even_sizes
from distsgd.common.record.cpu import REPORTS, CpuRecord
from distsgd.common.record.round_log import BEGUN, COMPUTED, NUMBER, REPLIED, load_rounds, save_rounds
from distsgd.common.record_format import OF_SCRIPT
from distsgd.common.server.trace import UNKNOWN
from distsgd.common.server.traffic import Traffic
from distsgd.simulator.fitting.calibration import RoundTimes, rounds_of
from distsgd.simulator.fitting.fit import block_of, fit
from distsgd.simulator.virtual_time.forecast import forecast

PARAMETERS = 5000


def recorded(run_dir, scheme, workers=4, steps=300, cpu=None, **machines):
    """The folder of a run on such machines, as far as the fit reads it; virtual time has no gaps between rounds."""
    traffic = Traffic(scheme, scheme.codecs()[0], workers, even_sizes(PARAMETERS, 1))
    schedule = happens(scheme, workers, steps, 3, traffic.message, reply_bytes=traffic.reply, **machines)
    run_dir.mkdir(exist_ok=True)
    save_rounds(run_dir / "rounds.npz", schedule.rounds)
    np.savez(run_dir / "center.npz", center=np.zeros(PARAMETERS), state=np.zeros(0))
    config = {"algorithm": scheme.name, "hyperparameters": vars(scheme), "workers": workers, "ps": 1}
    (run_dir / "config.json").write_text(json.dumps(config | {"codec": "float32", "steps_per_worker": steps}))
    (run_dir / "result.json").write_text(json.dumps({"cpu": cpu and cpu(schedule.rounds)}))
    return fit(run_dir, SCHEMES)


# What is recovered.


def test_the_first_two_rounds_of_each_worker_are_left_out_as_they_warm_up():
    scheme = AsyncSGD()
    times = {n: RoundTimes.of(happens(scheme, 2, n).rounds, scheme.rounds(n)) for n in (11, 12)}
    assert {int(times[12].rows[times[12].rows[:, 0] == k, 1].min()) for k in range(2)} == {2}
    times[12].need(2)  # ten are left
    with pytest.raises(UserError, match="needs 10 complete rounds"):
        times[11].need(2)


@pytest.mark.parametrize("scheme", [AsyncSGD(), SyncSGD(), DPSGD(topology="ring")])
def test_the_pause_and_the_warm_up_of_a_resumed_run_are_left_out(tmp_path, scheme):
    """The last reply before a start is unknown, and the first call of a session takes seconds."""
    whole = recorded(tmp_path, scheme, step_ms=20, latency="3ms")
    rows = load_rounds(tmp_path)
    number, begun, later = rows[:, NUMBER], rows[:, BEGUN:], np.array([REPLIED, COMPUTED])
    rows[np.ix_(number == 99, later)] = UNKNOWN
    begun[number > 99] += 60_000_000
    begun[number > 101] += 2_000_000
    save_rounds(tmp_path / "rounds.npz", rows)
    found = fit(tmp_path, SCHEMES)
    assert found.step == pytest.approx(whole.step, rel=0.01)
    assert found.latency == pytest.approx(whole.latency, rel=0.05)


def test_the_fit_recovers_computing_messages_and_lock_without_lock_waits(tmp_path):
    found = recorded(
        tmp_path,
        AsyncSGD(),
        step_ms=20,
        step_factors="1,1.5",
        compute="lognormal:sigma=0.3",
        latency="3ms",
        service="4ms",
    )  # the lock is busy half of the time
    assert found.step == pytest.approx(0.025, rel=0.03)
    assert found.steps.mean(1) / found.step == pytest.approx([0.8, 1.2, 0.8, 1.2], rel=0.06)
    assert found.latency == pytest.approx(0.003, rel=0.05)
    assert found.service == pytest.approx(0.004, rel=0.01)
    assert (found.run.cores, found.rate) == (None, np.inf)
    logs = np.log(found.steps)
    assert logs.std(1) == pytest.approx(0.3, rel=0.15)


def test_messages_of_different_sizes_tell_bandwidth_from_latency(tmp_path):
    """The messages of ef_sgd are a hundredth of its replies; downpour pulls more seldom than it pushes."""
    links = {"uplink": "20Mbit", "downlink": "20Mbit", "latency": "3ms"}
    for scheme in (EFSGD(), Downpour(communication_period=2, pull_period=4)):
        found = recorded(tmp_path, scheme, step_ms=20, service="1ms", **links)
        assert found.rate == pytest.approx(2.5e6, rel=0.03), scheme.name
        assert found.latency == pytest.approx(0.003, rel=0.05), scheme.name


def test_latencies_that_vary_are_not_taken_for_a_lock(tmp_path):
    found = recorded(tmp_path, SyncSGD(), step_ms=5, latency="4ms", latency_sigma=0.5)
    assert found.latency == pytest.approx(0.004, rel=0.05)
    assert found.latency_sigma == pytest.approx(0.5, abs=0.08)
    assert found.service is None


SHARED = {"step_ms": 20, "compute": "lognormal:sigma=0.5", "latency": "2ms", "ps_link": "50Mbit"}  # 20 kB: 3.2 ms


@pytest.mark.parametrize(
    ("scheme", "within"), [(AsyncSGD(), 0.1), (SyncSGD(), 0.1), (LocalSGD(communication_period=10), 0.2)]
)
@pytest.mark.rotating
def test_a_card_that_all_messages_share_is_not_taken_for_a_latency_of_each(tmp_path, scheme, within):
    """Four workers on record; 16 and 64 saturate the card. A private latency is 2 to 8 times too fast."""
    found = recorded(tmp_path, scheme, steps=600, **SHARED)
    assert found.card == pytest.approx(50e6 / 8, rel=within)
    assert found.latency == pytest.approx(0.002, abs=0.0006)
    assert not found.service
    assert any("Mbit/s, shared by all messages" in line for line in found.in_words())
    for other, workers in ((AsyncSGD(), 16), (AsyncSGD(), 64), (SyncSGD(), 16), (SyncSGD(), 64)):
        many = {"workers": workers, "parameters": PARAMETERS}
        there, like = (forecast(other, some, **many).updates for some in (Platform(**SHARED), found.machines()))
        assert like == pytest.approx(there, rel=within), (other.name, workers)


@pytest.mark.parametrize(
    ("scheme", "workers", "more"),
    [
        (AsyncSGD(), 8, {}),  # messages come one after the other, as they leave a lock; replies tell
        (SyncSGD(), 4, {"latency_sigma": 0.5}),
        (AsyncSGD(), 4, {"service": "2ms"}),
    ],
)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_a_card_is_told_from_a_lock_and_from_latencies_that_vary(tmp_path, scheme, workers, more):
    found = recorded(tmp_path, scheme, workers, steps=600, **SHARED, **more)
    assert found.card == pytest.approx(50e6 / 8, rel=0.06)
    assert found.latency == pytest.approx(0.002, rel=0.15)
    assert found.service == (pytest.approx(0.002, rel=0.01) if "service" in more else None)


@pytest.mark.parametrize("scheme", [AsyncSGD(), SyncSGD(), LocalSGD(communication_period=10)])
@pytest.mark.parametrize("links", [{"latency": "5ms"}, {"latency": "2ms", "latency_sigma": 0.5}, {"uplink": "20Mbit"}])
@pytest.mark.rotating("others")
def test_the_fit_takes_unshared_links_for_no_card_and_no_lock(tmp_path, scheme, links):
    found = recorded(tmp_path, scheme, steps=600, step_ms=20, compute="lognormal:sigma=0.5", **links)
    assert (found.card, found.service) == (np.inf, None)
    (said,) = [line for line in found.in_words() if line.startswith("card of the ps")]
    assert "unlimited, so more workers may look too fast (--ps-link)" in said


@pytest.mark.rotating
def test_a_lock_that_few_wait_for_is_found_by_their_waits(tmp_path):
    """Too few for the time between two messages to say; and replies do not wait, as they would at a card."""
    found = recorded(tmp_path, SyncSGD(), steps=600, step_ms=20, compute="shifted", latency="2ms", service="500us")
    assert found.service == pytest.approx(0.0005, rel=0.2)
    assert (found.card, found.latency) == (np.inf, pytest.approx(0.002, rel=0.03))


def test_what_the_record_cannot_tell_is_said(tmp_path):
    few = recorded(tmp_path, AllReduce(), step_ms=20, compute="pareto:shape=2").in_words()
    assert few[-1].endswith("card and lock of a ps, as the run had none: taken as ideal (--ps-link, --service)")
    assert any("rare steps longer than the longest recorded one" in line for line in few)
    (tmp_path / "seldom").mkdir()
    seldom = recorded(tmp_path / "seldom", LocalSGD(communication_period=10), steps=600, step_ms=20).in_words()
    assert any("the variation of steps within a round of 10: take a run of period 1" in line for line in seldom)
    assert any("too few messages waited to measure it: none is assumed (--service)" in line for line in seldom)


def test_step_factors_override_like_for_one_slow_machine_among_many(tmp_path, capsys):
    """Of three workers one is slow: of six, two would be; --step-factors says how workers differ instead."""
    mean = recorded(
        tmp_path, AsyncSGD(), workers=3, step_ms=20, step_factors="1,1,2.5", compute="lognormal:sigma=0.3"
    ).step
    assert mean == pytest.approx(0.030, rel=0.03)
    given = ["--backend", "simulation", "--like", str(tmp_path), "--step-ms", "20", "--step-factors", "2.5,1*5"]
    platforms = [with_machines(parse_flags(SyncSGD, given[:end])[1]).platform for end in (4, len(given))]
    two, one = (forecast(AsyncSGD(), some, workers=6, parameters=100).updates for some in platforms)
    assert two == pytest.approx((4 + 2 / 2.5) / 0.020, rel=0.03)
    assert one == pytest.approx((5 + 1 / 2.5) / 0.020, rel=0.03)


def test_elastic_workers_compute_from_the_reply_to_the_next_message(tmp_path):
    found = recorded(tmp_path, AEASGD(communication_period=10), steps=600, step_ms=7, latency="2ms")
    assert (found.period, found.step) == (10, pytest.approx(0.007, rel=0.001))
    assert found.latency == pytest.approx(0.002, rel=0.01)


def test_without_a_ps_a_round_has_two_latencies(tmp_path):
    found = recorded(tmp_path, AllReduce(), workers=5, step_ms=7, latency="2ms")
    assert found.latency == pytest.approx(0.002, rel=0.01)
    assert found.step == pytest.approx(0.007, rel=0.001)


@pytest.mark.parametrize("scheme", [DPSGD(), DPSGD(topology="complete")])
def test_a_round_of_gossip_has_one_latency_and_copies_for_neighbours(tmp_path, scheme):
    """A model of ten times the size has messages that take ten times as long."""
    found = recorded(tmp_path, scheme, workers=5, step_ms=7, uplink="8Mbit")
    copies, _ = scheme.sync.traffic(5)
    assert (found.step, found.latency) == pytest.approx((0.007, copies * 0.020), rel=0.01)
    larger = 10 * PARAMETERS
    run = forecast(scheme, found.with_parameters(larger).machines(), workers=5, parameters=larger)
    assert run.updates == pytest.approx(1 / (0.007 + copies * 0.200), rel=0.01)


@pytest.mark.parametrize("other", [AsyncSGD(), SyncSGD(backup_workers=2), LocalSGD(communication_period=10)])
@pytest.mark.rotating("others")
def test_the_fit_predicts_other_algorithms_worker_counts_and_periods(tmp_path, other):
    machines = {
        "step_ms": 20, "step_factors": "1,1.4", "compute": "shifted:fixed=0.5", "latency": "3ms", "service": "1ms",
    }  # fmt: skip
    found = recorded(tmp_path, AsyncSGD(), steps=500, **machines)
    there, like = (
        forecast(other, platform, workers=12, parameters=PARAMETERS)
        for platform in (Platform(**machines), found.machines())
    )
    assert like.updates == pytest.approx(there.updates, rel=0.05)
    assert like.staleness == pytest.approx(there.staleness, abs=0.3)
    assert like.waiting == pytest.approx(there.waiting, abs=0.03)


def used(rows, milliseconds=6.0):
    """What result.json says of the cores, if each step takes that long of one."""
    begun, ended = int(rows[:, 2].min()), int(rows[:, -1].max())
    seconds = {"worker-0": len(rows) * milliseconds / 1e3, "evaluator-0": 99.0}
    return {"cores": 2, "begun": begun, "ended": ended, "seconds": seconds}


def test_cores_that_all_share_are_known_from_what_was_used_of_them(tmp_path):
    machines = {"step_ms": 20, "compute": "lognormal:sigma=0.3", "cores": 2, "core_ms": 6}
    found = recorded(tmp_path, AsyncSGD(), workers=4, cpu=used, **machines)
    assert (found.run.cores, found.run.core) == (2, pytest.approx(0.006, rel=0.01))
    assert found.step == pytest.approx(0.020, rel=0.03)
    many = {"workers": 16, "parameters": PARAMETERS}
    there = forecast(AsyncSGD(), Platform(**machines), **many).updates  # no more than 2 cores / 6 ms
    assert there == pytest.approx(2 / 0.006, rel=0.02)
    assert forecast(AsyncSGD(), found.machines(), **many).updates == pytest.approx(there, rel=0.02)
    unaware = recorded(tmp_path, AsyncSGD(), workers=4, **machines)
    assert forecast(AsyncSGD(), unaware.machines(), **many).updates > 1.5 * there


@pytest.mark.rotating
def test_a_barrier_with_stragglers_predicts_what_backup_workers_save(tmp_path):
    """As the benchmark of stragglers has it: from eight workers that all wait for the last one, on two cores."""
    late = {"step_ms": 30 * 1.18, "compute": "phases:slow=10,probability=0.02", "cores": 2, "core_ms": 3.4}
    found = recorded(tmp_path, SyncSGD(), workers=8, steps=400, cpu=lambda rows: used(rows, 3.4), **late)
    options = stragglers.Options()
    for scheme in (SyncSGD(backup_workers=1), SyncSGD(backup_workers=4), AsyncSGD()):
        there, said = (
            stragglers.predict(scheme, machines, options, PARAMETERS)
            for machines in (Machines(Platform(**late)), found.machines())
        )
        assert said["milliseconds"] == pytest.approx(there["milliseconds"], rel=0.1)
        assert said["dropped"] == pytest.approx(there["dropped"], abs=0.03)


def test_the_period_that_was_measured_is_drawn_again_as_it_was(tmp_path):
    found = recorded(tmp_path, AGN(communication_period=5), steps=500, step_ms=4, compute="exponential")
    times = found._times
    assert times.shape == (4, 5 * found.steps.shape[1])
    assert (times.reshape(4, -1, 5) == times.reshape(4, -1, 5)[:, :, :1]).all()


# Blocks.


def correlation(values, lag):
    deviations = values - values.mean(1, keepdims=True)
    return (deviations[:, lag:] * deviations[:, :-lag]).mean() / deviations.var()


def test_blocks_keep_what_rounds_have_to_do_with_each_other(tmp_path):
    slow_for_long = "phases:slow=5,probability=0.2,length=10"
    found = recorded(tmp_path, AsyncSGD(), steps=2000, step_ms=10, compute=slow_for_long)
    assert found.block > 10
    rng = np.random.default_rng(0)
    drawn = []
    for block in (found.block, 1):
        model = RecordedSteps(found.steps / found.step, block)
        numbers = rng.random((4, 2000))
        multiples, _ = model.multiples(lambda steps, numbers=numbers: numbers[:, steps], 0, 2000, None)
        drawn.append(multiples)
        assert multiples.mean() == pytest.approx(1, rel=0.1)
    for lag in (1, 5):
        assert correlation(drawn[0], lag) == pytest.approx(correlation(found.steps, lag), abs=0.1)
        assert abs(correlation(drawn[1], lag)) < 0.05


def test_independent_rounds_are_drawn_one_by_one():
    assert block_of(np.random.default_rng(0).lognormal(size=(3, 500))) == 1
    assert block_of(np.ones((2, 50))) == 1


# The files, the flags.


@pytest.mark.gate
def test_the_fit_is_a_network_of_the_folder_and_flags_override_it(tmp_path, capsys):
    found = recorded(tmp_path, AsyncSGD(), step_ms=20, compute="lognormal:sigma=0.3", latency="3ms", service="1ms")
    scheme, options = parse_flags(SyncSGD, ["--backend", "simulation", "--like", str(tmp_path), "--service", "5ms"])
    platform = with_machines(options).platform
    assert platform == Platform(network=str(tmp_path / "machines.toml"), service="5ms")
    told = capsys.readouterr().err.splitlines()
    assert told[0] == f"like {tmp_path}:"
    assert told[-1] == f"  (--network {tmp_path / 'machines.toml'})"
    assert [line.split("  ")[1] for line in told[2:-1]] == [
        "a step", "a message", "under the lock", "card of the ps", "not known",
    ]  # fmt: skip
    same = replace(platform, service=None)
    runs = [forecast(scheme, machines, workers=6, parameters=100) for machines in (same, found.machines())]
    assert runs[0].updates == pytest.approx(runs[1].updates, rel=1e-3)


def test_advice_for_machines_like_those_of_a_run(tmp_path, capsys):
    recorded(tmp_path, AsyncSGD(), step_ms=20)
    capsys.readouterr()
    assert dispatch(["advise", "--workers", "6", "--like", str(tmp_path)]) == 0
    output = capsys.readouterr()
    (asynchronous,) = [line.split() for line in output.out.splitlines() if line.startswith("async_sgd")]
    assert asynchronous[1] == "300"
    assert "a step          20 ms in the median" in output.err


@pytest.mark.rotating
def test_a_model_of_another_size_has_longer_messages_than_the_run(tmp_path, capsys):
    """One size of messages does not tell bytes from latency: all of it counts as bytes, and that is said."""
    recorded(tmp_path, AsyncSGD(), step_ms=20, compute="lognormal", latency="2ms")
    shown = {}
    for parameters in ([], ["--parameters", "5k"], ["--parameters", "500k"]):
        assert dispatch(["advise", "--workers", "6", "--like", str(tmp_path), *parameters]) == 0
        output = capsys.readouterr()
        shown[tuple(parameters)] = output.out
        assert ("a message takes 100 times as long as the run's" in output.err) == ("500k" in parameters)
    own, same, other = shown.values()
    assert own == same  # the size of the run is the default
    rates = []
    for text in (own, other):
        (line,) = [line.split() for line in text.splitlines() if line.startswith("async_sgd")]
        rates.append(float(line[2]))
    assert rates[0] == pytest.approx(6 / 0.024, rel=0.05)
    assert rates[1] == pytest.approx(6 / 0.420, rel=0.05)


@pytest.mark.rotating
def test_with_a_fitted_card_a_larger_model_is_slower_there_with_a_note(tmp_path, capsys):
    recorded(tmp_path, AsyncSGD(), steps=600, **SHARED)
    machines = ["--like", str(tmp_path), "--workers", "16", "--parameters", "50k"]
    assert dispatch(["advise", *machines]) == 0
    output = capsys.readouterr()
    assert "a message takes longer at the card of the ps alone: its " in output.err
    (line,) = [line.split() for line in output.out.splitlines() if line.startswith("async_sgd")]
    there = forecast(AsyncSGD(), Platform(**SHARED), workers=16, parameters=10 * PARAMETERS)
    assert float(line[2]) == pytest.approx(there.gradients, rel=0.1)


def swapped(path):
    with np.load(path) as file:
        columns = dict(file)
    columns["ready"], columns["begun"] = columns["begun"], columns["ready"]
    np.savez(path, **columns)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda d: (d / "config.json").unlink(), "not a run directory: it has no config.json"),
        (lambda d: (d / "config.json").write_text("{}"), "are not those of a run: they have no 'algorithm'"),
        (lambda d: (d / "rounds.npz").unlink(), "has no rounds.npz, as the run was recorded with record=off"),
        (
            lambda d: (d / "rounds.npz").write_text("something else"),
            "rounds.npz, which is damaged: File is not a zip file",
        ),
        (lambda d: swapped(d / "rounds.npz"), "the recorded rounds in .* are damaged"),
        (lambda d: (d / "center.npz").unlink(), "has no center.npz"),
        (lambda d: (d / "result.json").write_text("[1"), "result.json"),
        (lambda d: recorded(d, AsyncSGD(), steps=9), "too few rounds to fit .* worker 0 has 7 of"),
        (lambda d: recorded(d, AsyncSGD(), steps=0), "steps_per_worker must be a whole number from 1"),
        (lambda d: recorded(d, ADPSGD()), "without pairs, .* ad_psgd"),
        (lambda d: recorded(d, StreamingDiLoCo(delay=1)), "pairs, steps after the message.* streaming_diloco"),
        (lambda d: recorded(d, AllReduce(buckets=2)), "message, buckets or means. .* all_reduce"),
    ],
)
def test_a_run_that_says_nothing_of_its_machines_is_one_line(spoil, message, tmp_path):
    recorded(tmp_path, AsyncSGD(), steps=30)
    with pytest.raises(UserError, match=message):
        [spoil(tmp_path), fit(tmp_path, SCHEMES)]


def test_an_algorithm_that_is_not_known_is_to_be_imported(tmp_path):
    recorded(tmp_path, AsyncSGD(), steps=30)
    with pytest.raises(UserError, match="is of async_sgd, which is not known here: --import its file"):
        fit(tmp_path, {"agn": AGN})


def test_a_run_of_a_script_is_read_with_the_steps_that_were_counted(tmp_path):
    found = recorded(tmp_path, LocalSGD(communication_period=5), step_ms=20, latency="2ms")
    config = json.loads((tmp_path / "config.json").read_text())
    config["hyperparameters"] |= OF_SCRIPT  # its own optimizer made the steps
    del config["steps_per_worker"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "result.json").write_text(json.dumps({"cpu": None, "steps": 4 * 300}))
    assert fit(tmp_path, SCHEMES).in_words() == found.in_words()
    for steps, said in (("many", "steps must be a whole number from 0"), (0, "too few rounds")):
        (tmp_path / "result.json").write_text(json.dumps({"cpu": None, "steps": steps}))
        with pytest.raises(UserError, match=said):
            fit(tmp_path, SCHEMES)


def test_like_excludes_a_network_and_real_runs(tmp_path):
    with pytest.raises(UserError, match="--like and --network exclude each other"):
        dispatch(["advise", "--like", str(tmp_path), "--network", "internet"])
    with pytest.raises(UserError, match="--like describes simulated machines: give --backend simulation too"):
        dispatch(["agn", "--like", str(tmp_path)])


# What the tasks use of the cores.


def test_the_time_of_cores_is_counted_while_all_workers_are_at_work():
    clocks = {1: 5.0, 2: 7.0, 3: None}
    record = CpuRecord(workers=2, cpu=clocks.get)
    record.on_event({"event": "started", "pids": {"ps-0": 1, "worker-0": 2, "worker-1": 3}})
    for worker in (0, 1):
        for _ in range(REPORTS):
            assert record.summary() is None
            clocks[1] += 1
            record.on_event({"event": "worker", "worker": worker})
    clocks |= {1: 20.0, 2: 9.0}
    record.on_event({"event": "finished", "worker": 1})
    clocks[1] = 99.0
    record.on_event({"event": "finished", "worker": 0})
    told = record.summary()
    assert told["seconds"] == {"ps-0": 20 - 5 - 2 * REPORTS, "worker-0": 2.0}
    assert told["cores"] >= 1
    assert told["begun"] <= told["ended"]


def test_a_restart_voids_the_cpu_summary_since_its_clock_is_new():
    record = CpuRecord(workers=1, cpu=lambda pid: 1.0)
    record.on_event({"event": "started", "pids": {"worker-0": 2}})
    for _ in range(REPORTS):
        record.on_event({"event": "worker", "worker": 0})
    record.on_event({"event": "started", "pids": {"worker-0": 5}})
    record.on_event({"event": "finished", "worker": 0})
    assert record.summary() is None


def test_what_belongs_together_is_drawn_together_on_the_machines_too(tmp_path):
    found = recorded(
        tmp_path, AGN(communication_period=2), steps=2000, compute="phases:slow=5,probability=0.2,length=20"
    )
    assert found.block > 1
    assert found.machines().model.block == found.block * 2


def test_the_rounds_of_a_resumed_run_have_the_short_last_one_of_the_run_before():
    """A fit to such a run ended in an IndexError: it had a round more than a run of as many steps in one go."""
    assert [steps for steps, _ in rounds_of(LocalSGD(communication_period=10), [45, 90], 0)] == [*[10] * 4, 5] * 2
    assert rounds_of(LocalSGD(communication_period="post-local:50,10"), [45, 90], 0).steps(51) == 60
