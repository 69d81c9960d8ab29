"""Advice before anything is bought: predicted figures, limits in numbers, and a sentence."""

import math
import re

import numpy as np
import pytest
from scheduled import happens

from distsgd.algorithms import (
    AEASGD,
    AGN,
    EASGD,
    SCHEMES,
    SSP,
    AllReduce,
    AsyncSGD,
    DownpourEasy,
    DynSGD,
    Ringmaster,
    Serial,
    SparseLoCo,
    SyncSGD,
    SyncSGDLR,
)
from distsgd.common.cli.main import dispatch
from distsgd.common.cluster.platform import Platform
from distsgd.common.contract.stability import STEPS, largest_rate, rate_of
from distsgd.common.errors import UserError
from distsgd.simulator.cli import advise
from distsgd.simulator.cli.advise import BACKED, Question, predict, recommendation
from distsgd.simulator.virtual_time.forecast import forecast, steady_staleness
from distsgd.simulator.virtual_time.schedule import EventLoop

EVEN = Platform(step_ms=20.0)
ONE_SLOW = Platform(step_ms=20.0, step_factors="1,1,1,1,1,1,1,5")


# Figures.


def test_undisturbed_workers_always_compute():
    run = forecast(AGN(communication_period=4), EVEN, workers=8, parameters=1000)
    assert (run.compute, run.waiting, run.communication) == (1, 0, 0)
    assert run.updates == pytest.approx(8 / 0.08)
    assert run.gradients == pytest.approx(8 / 0.02)
    assert run.staleness == 7  # Little's law: W - 1
    assert (run.sent, run.received) == pytest.approx((4000 / 0.08, 4000 / 0.08))


def test_a_barrier_waits_for_the_slowest_and_backup_workers_spare_that():
    run = forecast(SyncSGD(), ONE_SLOW, workers=8, parameters=1000)
    assert run.updates == pytest.approx(1 / 0.1)
    assert run.waiting == pytest.approx(7 / 8 * 0.8)
    assert run.staleness == 0
    spared = forecast(SyncSGD(backup_workers=1), ONE_SLOW, workers=8, parameters=1000)
    assert spared.updates == pytest.approx(1 / 0.02)
    assert spared.gradients == pytest.approx(7 / 0.02)  # those of the slow one are dropped


def test_elastic_workers_count_their_computing_after_the_reply():
    run = forecast(EASGD(), ONE_SLOW, workers=8, parameters=1000)
    late = forecast(SCHEMES["local_sgd"](), ONE_SLOW, workers=8, parameters=1000)
    assert run.compute == pytest.approx(late.compute, abs=0.03)


def test_gradients_that_are_refused_do_not_count():
    run = forecast(Ringmaster(delay_threshold=4), EVEN, workers=16, parameters=1000)
    assert run.gradients == pytest.approx(4 / 0.02, rel=0.1)
    assert run.staleness <= 3


MACHINES = [
    {"uplink": "1Gbit"},
    {"uplink": "1Gbit", "ps_link": "1Gbit", "latency": "20ms", "compute": "lognormal:sigma=0.3"},
    {"network": "cloud-regions", "step_factors": "1,1,1,3"},
]


@pytest.mark.parametrize("machines", MACHINES, ids=str)
@pytest.mark.rotating
def test_each_row_is_the_forecast_of_its_algorithm_alone(machines):
    rows = predict(Question(workers=8, parameters="1M"), Platform(**machines))
    assert len(rows) > len(SCHEMES) - 2
    for row in rows.values():
        assert row.run == forecast(row.scheme, Platform(**machines), workers=8, parameters=10**6), row.scheme


def test_updates_of_several_messages_are_as_many_times_rarer():
    """Eight equal workers whose messages and replies take 32 ms each, and steps 10 ms."""
    rows = predict(Question(workers=8, parameters="1M"), Platform(uplink="1Gbit"))
    rounds = {1: 8 / 0.074, 10: 8 / 0.164}
    for name, messages in {"async_sgd": 1, "softsync": 2, "k_batch_async": 4, "fedbuff": 4}.items():
        run, period = rows[name].run, rows[name].scheme.period
        assert run.updates == pytest.approx(rounds[period] / messages, rel=0.01), name
        assert run.gradients == pytest.approx(period * rounds[period], rel=0.01), name
        assert run.staleness == pytest.approx(7 / messages, rel=0.02), name


def test_algorithms_with_other_messages_have_their_own_bytes():
    """PowerSGD of rank 2 on 24 layers of 204², DSGD with tracking two vectors to each of two neighbours."""
    rows = predict(Question(workers=8, parameters="1M"), Platform(uplink="1Gbit"))
    factors = 4 * (2 * 2 * 204 * 24 + 10**6 - 24 * 204**2)
    low = rows["powersgd"].run
    assert low.sent / low.updates == pytest.approx(2 * 7 / 8 * factors)
    tracked = rows["dsgd_tracking"].run
    assert tracked.sent / tracked.updates == pytest.approx(2 * 2 * 4e6)
    assert tracked.updates == pytest.approx(1 / (0.010 + 4 * 0.032), rel=1e-3)


@pytest.mark.parametrize("name", ["one_bit_adam", "zero_one_adam"])
def test_rounds_sent_as_floats_have_the_bytes_of_floats(name):
    """Before its variance is frozen either is `sync_sgd`; after that a message has two bits for each parameter."""
    machines = Platform(step_ms=10.0, uplink="1Gbit")
    floats, plain, signs = (
        forecast(scheme, machines, workers=8, parameters=10**6)
        for scheme in (
            SCHEMES[name](warmup_steps=10**6, **({"variance_repeats": 10**6} if name == "zero_one_adam" else {})),
            SyncSGD(),
            SCHEMES[name](),
        )
    )
    assert floats.sent == pytest.approx(plain.sent, rel=1e-4)
    assert floats.updates == pytest.approx(plain.updates, rel=1e-4) == pytest.approx(1 / 0.074, rel=1e-4)
    assert signs.sent / signs.updates == pytest.approx(250_000, rel=1e-3)
    assert signs.updates == pytest.approx(1 / (SCHEMES[name]().period * 0.010 + 2 * 0.002), rel=1e-3)


def test_a_run_sends_floats_in_the_rounds_that_have_them_and_signs_after():
    """Two rounds of floats of 1 s each way, and three of 10 ms."""
    sizes = {"size": 1e4, "reply_bytes": 1e4, "apart": {"floats": (1e6, 1e6)}, "uplink": "8Mbit"}
    found = happens(SCHEMES["one_bit_adam"](warmup_steps=2), workers=2, steps=5, **sizes)
    assert found.seconds == pytest.approx(5 * 0.010 + 2 * 2 + 3 * 0.020)


def test_a_warm_up_is_over_in_a_long_run():
    """Whatever it has: single steps, rounds of floats, updates of worker 0 alone."""
    machines = Platform(uplink="1Gbit")
    for name, warm_up in (
        ("local_sgd", lambda n: {"communication_period": f"post-local:{n},10"}),
        ("one_bit_adam", lambda n: {"warmup_steps": n}),
        ("downpour", lambda n: {"warm_start": n}),
    ):
        short, long = (forecast(SCHEMES[name](**warm_up(n)), machines, workers=4, parameters=10**6) for n in (1, 500))
        assert short == long, name


def test_equal_workers_do_not_stay_in_step_at_a_card_that_they_share():
    """W/(W + 1) of its rate by mean value analysis, each way, where computing takes no time; in step it is a half."""
    for workers, least in ((8, 0.85), (64, 0.97)):
        run = forecast(AsyncSGD(), Platform(ps_link="100Gbit"), workers=workers, parameters=7 * 10**10)
        assert least < run.updates * 280 / 12.5 <= 1.0


# A reduction among the workers in place of parameter servers.


def test_a_period_with_a_reduction_is_that_of_the_closed_form():
    """H steps, two latencies, and 2 (W - 1)/W vectors; over one ps 2 W of them pass its card."""
    machines = Platform(uplink="1Gbit", ps_link="1Gbit", latency="5ms")
    for name, period in (("diloco", 20), ("local_sgd", 10), ("sync_sgd", 1)):
        for workers in (1, 4):
            how = {"workers": workers, "parameters": 10**6}
            reduced, over_ps = (
                forecast(SCHEMES[name](), machines, over=over, **how) for over in ("collective", "as-here")
            )
            seconds = period * 0.010 + (2 * 0.005 + 2 * 3 / 4 * 0.032) * (workers > 1)
            assert reduced.updates == pytest.approx(1 / seconds, rel=1e-5)
            assert over_ps.updates == pytest.approx(1 / (period * 0.010 + 2 * 0.005 + 2 * workers * 0.032), rel=1e-5)
            assert reduced.sent == pytest.approx((workers > 1) * 1.5 * 4e6 / seconds, rel=1e-5)


@pytest.mark.parametrize("collective", ["slices", "ring", "tree"])
def test_compressed_messages_are_reduced_or_gathered_whichever_is_less(collective):
    """SparseLoCo sends 8 bytes for each element of 3 %, and gets up to W times as many; the sum of all has floats."""
    machines = Platform(uplink="8Mbit", collective=collective)  # a microsecond a byte
    for workers in (2, 8):
        run = forecast(SparseLoCo(), machines, workers=workers, parameters=10**6, over="collective")
        message = 0.03 * 8e6
        seconds = min((workers - 1) * message, (workers - 1) / workers * (message + workers * message)) / 1e6
        assert 1 / run.updates == pytest.approx(20 * 0.010 + seconds, rel=1e-3)


def test_steps_during_a_reduction_hide_it_as_they_hide_a_message():
    machines = Platform(uplink="1Gbit")
    run = forecast(SCHEMES["co2"](), machines, workers=4, parameters=10**6, over="collective")
    assert run.compute == 1.0


@pytest.mark.rotating
def test_an_algorithm_without_an_update_of_all_has_no_reduction(capsys):
    for scheme in (AsyncSGD(), SyncSGD(backup_workers=1), Ringmaster()):
        with pytest.raises(UserError, match=r"update of .* may have fewer"):
            forecast(scheme, EVEN, workers=4, parameters=10, over="collective")
    for name in ("all_reduce", "d_psgd", "serial"):
        runs = [
            forecast(SCHEMES[name](), EVEN, workers=4, parameters=10, over=over) for over in ("collective", "as-here")
        ]
        assert runs[0] == runs[1]
    machines = ["--workers", "4", "--parameters", "1M", "--uplink", "1Gbit", "--ps-link", "1Gbit"]
    reduced, _, text = gradients("local_sgd", *machines, "--over", "collective", capsys=capsys)
    assert float(reduced[2]) == pytest.approx(4 / (0.010 + 1.5 * 0.0032), rel=0.01)
    assert "are reduced among the workers (--over)" in text
    _, _, text = gradients("local_sgd", *machines, capsys=capsys)
    assert "share the network card of 1 ps (--ps)" in text


# Limits.


@pytest.mark.parametrize("workers", [1, 2, 5, 16])
@pytest.mark.parametrize("curvature", [1.0, 3.0])
def test_limits_are_those_that_the_identities_find(workers, curvature):
    limit = largest_rate(AsyncSGD(), workers, workers - 1, curvature)
    assert limit == pytest.approx(2 * math.sin(math.pi / (4 * workers - 2)) / curvature)
    alpha = 0.9 / workers
    limit = largest_rate(EASGD(), workers, 0, 1)
    assert alpha == pytest.approx((4 - 2 * limit) / (2 + workers * (2 - limit)))
    limit = largest_rate(AEASGD(), workers, workers - 1, 1)
    assert alpha == pytest.approx((4 - 2 * limit) / (4 - limit))


@pytest.mark.parametrize(
    ("scheme", "step"),
    [
        (DownpourEasy(communication_period=1), 1),
        (DownpourEasy(communication_period=10), 10),
        (DynSGD(communication_period=10), 10 / 4),
        (SSP(), 1 / 4),
        (SyncSGDLR(learning_rates=(0.1,) * 4, reduction="sum"), 4),
        (SyncSGDLR(learning_rates=(0.1,) * 4, reduction="mean"), 1),
        *((SCHEMES[name](), 1) for name in ("serial", "all_reduce", "local_sgd", "hogwild", "dc_asgd", "agn", "adag")),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_limit_falls_with_the_size_of_the_step_that_a_message_makes(scheme, step):
    """Of four workers whose messages are three updates old."""
    assert largest_rate(scheme, 4, 3, 1) == pytest.approx(largest_rate(AsyncSGD(), 4, 3, 1) / step)
    assert largest_rate(scheme, 4, 0, 2) == pytest.approx(2 / 2 / (step if scheme.name != "dynsgd" else 10))


def test_a_scheme_without_a_formula_has_no_limit():
    assert largest_rate(SCHEMES["downpour"](), 4, 3, 1) is None
    assert set(STEPS) <= set(SCHEMES)


@pytest.mark.parametrize(
    ("scheme", "rate"),
    [
        (AsyncSGD(learning_rate=0.3), 0.3),
        (SyncSGDLR(learning_rates=(0.1, 0.4, 0.2)), 0.4),
        (AGN(learning_rate=0.1, server_learning_rate=0.7), 0.7),
        (AGN(learning_rate=0.2), 0.2),
    ],
)
def test_the_rate_that_a_limit_is_about(scheme, rate):
    assert rate_of(scheme) == rate


# The sentence and the table.


def test_equal_workers_on_a_fast_network_should_train_synchronously():
    rows = predict(Question(workers=8), EVEN)
    assert set(rows) == {*SCHEMES, BACKED}
    assert recommendation(rows).startswith("Take sync_sgd: 400 gradients/s, as many as any that is stable")


def test_one_slow_worker_is_a_reason_for_a_backup_worker():
    said = recommendation(predict(Question(workers=8), ONE_SLOW))
    assert said.startswith("Take sync_sgd --backup-workers 1: 350 gradients/s")
    assert said.endswith(
        "sync_sgd, whose arithmetic is nearer to serial SGD, computes 30%, waits 70%, communicates 0% of the time."
    )


def test_of_backup_workers_the_best_number_is_shown(monkeypatch):
    three_slow = Platform(step_ms=20.0, step_factors="5,5,5,1,1,1,1,1,1,1,1,1,1,1,1,1")
    row = predict(Question(workers=16), three_slow)[BACKED]
    assert row.scheme == SyncSGD(backup_workers=4)
    assert row.run.gradients == pytest.approx(12 / 0.02)


def test_an_algorithm_beyond_its_limit_is_not_recommended():
    slow = Platform(step_ms=20.0, step_factors="9,1")
    rows = predict(Question(workers=2, curvature=1.0), slow)
    assert rows["async_sgd"].stable
    rows = predict(Question(workers=2, curvature=50.0), slow)
    assert not rows["async_sgd"].stable
    assert not any(row.stable for row in rows.values() if row.run.staleness > 0)


def test_one_worker_alone_is_recommended_where_others_only_hold_it_up():
    rows = predict(Question(workers=2), Platform(step_ms=20.0, step_factors="1,1"))
    alone = {"serial": rows["serial"], "all_reduce": rows["all_reduce"]}
    alone["all_reduce"] = advise.Prediction(
        AllReduce(), forecast(SyncSGD(), Platform(step_ms=500.0), workers=2, parameters=10), 2.0
    )
    assert recommendation(alone) == "Take one worker: serial makes 50 gradients/s, and all_reduce no more than 4."


def test_the_command_prints_every_algorithm_and_one_sentence(capsys):
    assert dispatch(["advise", "--workers", "6", "--parameters", "25M", "--step-ms", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["algorithm", "updates/s", "gradients/s", "computing", "staleness", "bytes/s", "rate"]
    assert {line.split()[0] for line in lines[1 : 2 + len(SCHEMES)]} == set(SCHEMES)
    (asynchronous,) = [line.split() for line in lines if line.startswith("async_sgd")]
    assert asynchronous == ["async_sgd", "150", "150", "100%", "5", "5.0", "GB", "<", "0.28"]
    assert " ".join(lines).count("Take sync_sgd: 150 gradients/s") == 1
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parameters", "many"], "parameters takes a number, as in 25M or 7e9, with k, M, G, B or T"),
        (["--parameters", "0"], "parameters takes a number"),
        (["--workers", "0"], "workers must be at least 1. Received: workers=0"),
        (["--workers", "5000"], "workers must be at most 1000"),
        (["--curvature", "-1"], "curvature must be a positive number"),
        (["--seed", "-1"], "seed must be at least 0"),
        (
            ["--settings", "diloco:communication_period=1000000000"],
            "diloco: communication_period must be at most 125000",
        ),
        (["--step-ms", "1e-9"], "async_sgd takes no microsecond on these machines"),
        (["--parameters", "1T", "--uplink", "1bit"], "async_sgd takes more than a century on these machines"),
        (["--step-ms", "0"], "step_ms must be a positive number"),
        (["--wrokers", "3"], "unknown option --wrokers of advise. Did you mean --workers"),
    ],
)
def test_a_question_without_sense_is_one_line(arguments, message):
    with pytest.raises(UserError, match=message):
        dispatch(["advise", *arguments])


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("25M", 25_000_000),
        ("1.5k", 1500),
        ("2.01k", 2010),
        ("9610", 9610),
        ("7B", 7 * 10**9),
        ("7b", 7 * 10**9),
        ("1T", 10**12),
        ("0.5T", 5 * 10**11),
        ("7e9", 7 * 10**9),
        ("1E6", 10**6),
        ("1.5e+3", 1500),
        ("1e3k", 10**6),
        ("1_000_000", 10**6),
        (".5M", 500_000),
    ],
)
def test_a_number_of_parameters_is_what_people_type(text, size):
    assert Question(parameters=text).size == size


@pytest.mark.parametrize(
    "text", ["", "M", "-1", "1e-3", "1e99", "nan", "inf", "0x10", "1,000", "5MB", "1.5", "1.0005k"]
)
def test_other_texts_are_no_number_of_parameters(text):
    with pytest.raises(UserError, match="parameters takes a number"):
        Question(parameters=text)


# What is worth it, and what was assumed.


def gradients(name, *arguments, capsys):
    """What the table says of an algorithm, the sentence, and all that was printed."""
    assert dispatch(["advise", *arguments]) == 0
    text = capsys.readouterr().out
    line = next(line.split() for line in text.splitlines() if line.split()[:1] == [name])
    return line, " ".join(text.split("\n\n")[-1].split()), " ".join(text.split())


SLOW_LINKS = ["--workers", "8", "--parameters", "10M", "--step-ms", "100", "--compute", "lognormal:sigma=0.5"]
SLOW_LINKS += ["--uplink", "75Mbit", "--downlink", "75Mbit", "--ps-link", "1Gbit", "--latency", "40ms"]


@pytest.mark.rotating
def test_on_slow_links_a_longer_period_is_found_and_several_are_worth_it(capsys):
    """With the default period local_sgd makes 8 gradients/s; one worker makes 10."""
    line, said, _ = gradients("local_sgd", *SLOW_LINKS, capsys=capsys)
    period = int(line[1].removeprefix("H="))
    assert period > 10
    assert float(line[3]) > 1.3 * 10
    assert said.startswith("Take ")
    assert "--communication-period" in said


@pytest.mark.rotating
def test_advice_is_one_worker_if_several_gain_less_than_a_third(capsys):
    links = [*SLOW_LINKS[:-1], "20s"]  # for which sparse messages do not make up, either
    _, said, _ = gradients("serial", *links, "--communication-period", "10", capsys=capsys)
    assert said.startswith("Take one worker: serial makes 10 gradients/s, and ")
    fast = ["--uplink", "100Gbit", "--downlink", "100Gbit", "--ps-link", "100Gbit", "--communication-period", "10"]
    four = ["--workers", "4", "--parameters", "1B", "--step-ms", "100", *fast]
    _, said, _ = gradients("serial", *four, capsys=capsys)
    assert said.startswith("Take one worker") or float(said.split(": ")[1].split()[0]) >= 13


@pytest.mark.parametrize("seed", range(3))
def test_one_worker_is_not_a_sample(seed):
    for compute in ("lognormal:sigma=1", "pareto:shape=1.2", "phases"):
        run = forecast(Serial(), Platform(step_ms=100.0, compute=compute), workers=8, parameters=10, seed=seed)
        assert (run.updates, run.gradients, run.staleness, run.compute) == (10, 10, 0, 1)


def test_one_worker_is_on_the_fastest_machine_with_a_core_of_its_own(tmp_path):
    np.save(tmp_path / "steps.npy", [[3.0, 5.0], [1.0, 3.0]])
    for machines, seconds in (
        ({"step_factors": "3,1*7"}, 0.100),
        ({"cores": 2, "core_ms": 25.0}, 0.125),
        ({"compute": f"recorded:path={tmp_path / 'steps.npy'}"}, 0.100 * 2 / 3),
    ):
        run = forecast(Serial(), Platform(step_ms=100.0, **machines), workers=8, parameters=10)
        assert run.gradients == pytest.approx(1 / seconds), machines


@pytest.mark.rotating
def test_hyperparameters_can_be_given(capsys):
    machines = ["--workers", "4", "--uplink", "100Mbit", "--downlink", "100Mbit", "--settings"]
    line, _, _ = gradients("diloco", *machines, "diloco:communication_period=100,ssp:slack=3", capsys=capsys)
    scheme = SCHEMES["diloco"](communication_period=100)
    platform = Platform(uplink="100Mbit", downlink="100Mbit")
    expected = forecast(scheme, platform, workers=4, parameters=10**6).gradients
    assert float(line[2]) == pytest.approx(expected, rel=0.005)
    rows = predict(Question(workers=4, communication_period=7), platform)
    assert {row.scheme.communication_period for row in rows.values() if advise.has_period(row.scheme)} == {7}
    for wrong in ("diloc:x=1", "diloco:x=1"):
        with pytest.raises(UserError):
            Question(settings=wrong)


@pytest.mark.rotating
def test_updates_that_are_rare_have_three_digits(capsys):
    machines = ["--workers", "8", "--parameters", "25M", "--step-ms", "100", "--uplink", "20Mbit"]
    line, _, _ = gradients("sync_sgd", *machines, capsys=capsys)
    assert 0 < float(line[1]) < 0.05
    assert len(line[1].lstrip("0.")) == 3


@pytest.mark.rotating
def test_what_was_taken_as_ideal_is_said(capsys):
    _, _, text = gradients("serial", "--uplink", "1Gbit", "--latency", "20ms", capsys=capsys)
    assert "Not given, so taken as ideal: --compute, --ps-link, --service." in text
    assert "Warning: the network card of a ps carries any number of messages in the time of one" in text
    assert "Not given, so assumed: a step takes 10 ms (--step-ms)." in text
    given = "--uplink 1Gbit --downlink 1Gbit --latency 1ms --ps-link unlimited --service 1us --compute lognormal"
    _, _, text = gradients("serial", *given.split(), "--step-ms", "3", capsys=capsys)
    assert "Not given, so" not in text
    assert "Warning" not in text
    _, _, text = gradients("serial", "--ps-link", "1Gbit", capsys=capsys)
    assert "Warning: the links of the workers carry any number of messages in the time of one" in text


@pytest.mark.rotating
def test_failures_that_were_not_seen_are_said(capsys):
    """An hour between two crashes; 60 rounds take less than a second."""
    for every, rare in (("1h", True), ("200ms", False)):
        failures = ["--failures", f"crashes:every={every},down=100ms", "--communication-period", "2"]
        _, said, text = gradients("async_sgd", "--workers", "8", *failures, capsys=capsys)
        assert ("Failures are too rare in the few simulated rounds" in text) == rare
    _, said, _ = gradients("serial", "--failures", "crashes:every=1ms,down=1ms", capsys=capsys)
    assert said == "Take one worker: no algorithm supports so many on such machines."


def test_algorithms_that_cannot_have_such_machines_are_left_out_and_named(capsys):
    _, _, text = gradients("sync_sgd", "--workers", "4", "--failures", "crashes:every=10s,down=1s", capsys=capsys)
    assert "all_reduce" in text.split("Left out")[1]


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"workers": "4"}, {"parameters": "25M"}, {"parameters": 0}])
def test_an_impossible_number_of_a_forecast_is_refused_by_its_name(wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(UserError, match=f"{name} must be .* Received: {name}={value!r}"):
        forecast(AsyncSGD(), EVEN, **({"workers": 4, "parameters": 10} | wrong))


def test_mean_staleness_agrees_in_advice_and_simulation_without_start_up():
    """100 workers, 5 rounds each: 89.1 with the start-up, (49.5 + 4 x 99)/5; W - 1 without."""
    rounds = AsyncSGD().rounds(5)
    sizes = {"message_bytes": 1.0, "reply_bytes": 1.0}
    schedule = EventLoop(AsyncSGD(), EVEN, workers=100, rounds=rounds, seed=0, **sizes).run()
    assert schedule.trace["staleness"].mean() == pytest.approx(89.1)
    assert steady_staleness(schedule.trace) == 99
    assert forecast(AsyncSGD(), EVEN, workers=100, parameters=10).staleness == 99
    assert steady_staleness({name: column[:0] for name, column in schedule.trace.items()}) is None


@pytest.mark.rotating
def test_the_table_breaks_no_name_and_cuts_no_heading_at_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert dispatch(["advise", "--workers", "16", "--uplink", "10Mbit"]) == 0
    table = capsys.readouterr().out.split("\n\n")[0]
    assert "…" not in table
    assert all(re.search(rf"^{name}\b", table, re.MULTILINE) for name in SCHEMES if name != "multi_gpu")
    assert {"updates/s", "gradients/s", "computing", "staleness", "bytes/s", "rate"} < set(table.split())
