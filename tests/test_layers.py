"""Steps of layers in virtual time, computed by hand, and the links that they need."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from distsgd.algorithms import DPSGD, AllReduce, SyncSGD
from distsgd.benchmarks.reproduced_links import TABLE, exchange, first_points, point, step_of
from distsgd.common import UserError
from distsgd.common.cli.main import dispatch
from distsgd.common.cluster.platform import Platform
from distsgd.simulator.cli.advise import Question, predict
from distsgd.simulator.virtual_time.forecast import forecast
from distsgd.simulator.virtual_time.layers import Exchange, LayeredStep, largest_of, needed_rate, utilisation

TWO = LayeredStep(layers=2, seconds=5.0, parameters=2.0)  # nodes of 1 s: F1 F2 A2 P2 P1; a bit for each layer

BIT = Exchange(bits_up=1, bits_down=1)  # two workers send half of a vector twice, so a layer takes 1/rate seconds


@pytest.mark.parametrize(
    ("changes", "rate", "period"),
    [
        ({}, math.inf, 5),
        ({}, 1.0, 6),  # P2 is sent from 4 to 5, P1 from 5 to 6, when F1 begins
        ({}, 1 / 3, 10),  # P2 from 4 to 7, P1 from 7 to 10
        ({"buckets": 1}, 1.0, 7),  # both from 5 to 7
        ({"delay": 1}, 1.0, 5),
        ({"delay": 1}, 1 / 3, 6),  # the link is always busy
        ({"workers": 4}, 1.0, 7),  # a layer takes 1.5 s: P2 from 4 to 5.5, P1 from 5.5 to 7
        ({"latency": 0.25}, 1.0, 6.5),  # of both halves of the reduction
        ({"goodput": 0.5}, 2.0, 6),
        ({"gathered": True, "workers": 3}, 2.0, 6),  # two messages of half a second, in place of 2/3 of two vectors
        ({"neighbours": 2}, 2.0, 6),
        ({"neighbours": 2, "latency": 0.25}, 2.0, 6.25),
        ({"uses_ps": True}, 1.0, 7),  # up: P2 4 to 5, P1 5 to 6; down: P2 5 to 6, P1 6 to 7
        ({"uses_ps": True, "latency": 0.25}, 1.0, 7.5),  # of each message, and of its reply
        ({"bits_down": 3}, 1.0, 8),  # a layer takes 2 s: P2 from 4 to 6, P1 to 8
    ],
)
def test_the_time_of_a_step_of_two_layers_is_that_worked_out_by_hand(changes, rate, period):
    assert utilisation(TWO, replace(BIT, **changes), rate) == pytest.approx(5 / period)


@pytest.mark.parametrize("periods", [1, 2, 6, 12, 50])
@pytest.mark.parametrize("period", [1, 10])
def test_no_delay_hides_that_a_link_is_too_slow(periods, period):
    sent = replace(BIT, period=period, delay=periods * period)
    assert utilisation(TWO, sent, 0.2 / period) == pytest.approx(0.5)  # 10 s of messages for 5 s of computing
    assert needed_rate(TWO, sent, 0.9) >= 0.9 * 0.4 / period * (1 - 1e-5)


def test_no_delay_hides_that_a_link_falls_behind_slowly():
    assert utilisation(TWO, replace(BIT, delay=50), 2 / 5.4) == pytest.approx(5 / 5.4)  # 5.4 s of messages


@pytest.mark.parametrize("delay", [4, 20])
def test_a_reply_that_comes_later_than_its_step_is_waited_for(delay):
    latency = 10.0 * (delay + 1)  # P1 ends at 5 k; its reply, of no length, is needed τ + 1 steps later, by F1
    sent = replace(BIT, delay=delay, latency=latency / 2)  # in both halves of the reduction
    # From the end of a step: the latency, then that step of which F1 needs the reply; τ + 1 steps in all.
    assert utilisation(TWO, sent, math.inf) == pytest.approx(5 * (delay + 1) / (latency + 5))


def test_a_model_of_one_layer_overlaps_nothing():
    step = LayeredStep(layers=1, seconds=2.0, parameters=8.0)
    assert utilisation(step, BIT, 2.0) == pytest.approx(2 / 6)
    assert utilisation(step, replace(BIT, period=10), 2.0) == pytest.approx(20 / 24)


def test_fragments_are_sent_in_turn_and_cover_each_layer_once_in_a_period():
    for pattern, expected in (("strided", [{0, 3}, {1, 4}, {2, 5}]), ("sequential", [{0, 1}, {2, 3}, {4, 5}])):
        sent = Exchange(period=6, fragments=3, pattern=pattern)
        steps = [{first for first, _ in sent.messages(step, 6)} for step in range(12)]
        assert [some for some in steps[:6] if some] == expected
        assert steps[:6] == steps[6:]
        assert [i for i, some in enumerate(steps[:6]) if some] == [1, 3, 5]


def test_a_message_of_several_layers_has_all_of_them():
    for buckets in (1, 2, 3, 5, 99):
        messages = list(Exchange(buckets=buckets).messages(0, 7))
        assert len(messages) == min(buckets, 7)
        assert sum(number for _, number in messages) == 7
        assert [first for first, _ in messages] == sorted((first for first, _ in messages), reverse=True)


def test_the_needed_rate_is_the_least_that_reaches_the_utilisation():
    step = LayeredStep(layers=12, seconds=0.3, parameters=1e8)
    for sent in (Exchange(), Exchange(period=30, fragments=4, delay=1), Exchange(period=20, buckets=1, uses_ps=True)):
        rate = needed_rate(step, sent, 0.9)
        assert utilisation(step, sent, rate) >= 0.9 - 1e-6
        assert utilisation(step, sent, 0.99 * rate) < 0.9
    assert needed_rate(step, Exchange(latency=0.1), 0.9) == math.inf


@pytest.mark.parametrize(
    "size", [size if size == "1B" else pytest.param(size, marks=pytest.mark.rotating) for size in TABLE]
)
@pytest.mark.rotating
def test_the_bandwidths_of_streaming_diloco_are_those_of_the_paper(size):
    layers, rows = TABLE[size]
    apart = [
        ours - point(theirs)
        for method, printed in rows.items()
        for ours, theirs in zip(first_points(step_of(size), exchange(method, layers)), printed, strict=True)
    ]
    assert sum(each == 0 for each in apart) >= 23
    assert all(abs(each) <= 1 for each in apart)


@pytest.mark.parametrize(("scheme", "moved"), [(SyncSGD(), 4), (AllReduce(), 2 * 3 / 4 * 4), (DPSGD(), 2 * 4)])
def test_a_worker_sends_its_message_both_halves_of_a_reduction_or_one_to_each_neighbour(scheme, moved):
    found = forecast(scheme, Platform(step_ms=10.0), workers=4, parameters=1000, layers=4)
    assert (found.sent, found.received) == pytest.approx((moved * 1000 / 0.01,) * 2)


def test_workers_share_the_card_of_the_ps():
    own, shared = {"uplink": "40Mbit", "downlink": "40Mbit"}, {"ps_link": "160Mbit"}
    found = [forecast(SyncSGD(), Platform(**way), workers=4, parameters=10**6, layers=4) for way in (own, shared)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "name", ["compute", "step_factors", "cores", "link_sigma", "latency_sigma", "regions", "failures"]
)
def test_machines_that_differ_are_refused_with_layers(name):
    unequal = {"compute": "exponential", "step_factors": "1,2", "cores": 1, "regions": "0ms/1Gbit,9ms/1Gbit"}
    machines = Platform(**{name: (unequal | {"failures": "crashes", "latency": "1ms"}).get(name, 0.5)})
    with pytest.raises(UserError, match=f"--layers assumes equal workers and links: leave .*{name}.* out"):
        forecast(SyncSGD(), machines, workers=4, parameters=10**6, layers=4)


def test_the_command_prints_the_bandwidth_of_a_closed_form(capsys):
    words = "--parameters 1M --layers 4 --step-ms 10 --buckets 1 --utilisation 0.5,0.8 --goodput 1 --spread 0 --json"
    assert dispatch(["bandwidth", "sync_sgd", "diloco:communication_period=50", "all_reduce", *words.split()]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sync_sgd"] == {
        "0.5": pytest.approx(2 * 32e6 / 0.01, rel=1e-5),
        "0.8": pytest.approx(4 * 6.4e9, rel=1e-5),
    }
    assert found["diloco:communication_period=50"]["0.5"] == pytest.approx(6.4e9 / 50, rel=1e-5)
    assert found["all_reduce"]["0.5"] == pytest.approx(3.2e9, rel=1e-5)


def asked(capsys, *words):
    """Bits per second that `bandwidth` prints for a utilisation of a half."""
    plain = ["--parameters", "1M", "--step-ms", "10", "--buckets", "1", "--utilisation", "0.5", "--goodput", "1"]
    assert dispatch(["bandwidth", *plain, "--spread", "0", "--json", *words]) == 0
    return [rates["0.5"] for rates in json.loads(capsys.readouterr().out).values()]


@pytest.mark.parametrize("layers", [1, 4, 25])
def test_two_factors_of_each_layer_are_sent_and_what_is_in_no_matrix(layers, capsys):
    """2 r √(P/L) floats of each of L layers: √L times as many bits as of one square matrix."""
    side = math.isqrt(10**6 // layers)
    bits = 32 * (2 * 2 * side * layers + 10**6 - layers * side**2)
    assert asked(capsys, "powersgd", "--layers", str(layers)) == [pytest.approx(bits / 0.01, rel=1e-5)]


def test_compressed_messages_are_counted_in_both_directions(capsys):
    """DeMo has 4 bits a parameter up and 32 down; without a ps, 2 workers send each other 4."""
    over_ps, over_all, few, many = (
        asked(capsys, "demo", "--layers", "1", *words)
        for words in (
            ("--over", "ps"),
            ("--over", "collective"),
            ("--over", "collective", "--workers", "8"),
            ("--over", "collective", "--workers", "64"),
        )
    )
    assert over_ps == [pytest.approx((4 + 32) * 1e6 / 0.01, rel=1e-5)]
    assert over_all == [pytest.approx(4e6 / 0.01, rel=1e-5)]
    assert few == [pytest.approx(7 * 4e6 / 0.01, rel=1e-5)]
    assert many == [pytest.approx(63 / 64 * 36e6 / 0.01, rel=1e-5)]  # fewer than 63 messages of 4
    assert dispatch(["bandwidth", "demo"]) == 0
    assert "4 bits a parameter up, 32 down" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("scheme", "copies"), [("d_psgd", 2), ("sgp", 1), ("d_psgd:topology=complete", 7)])
def test_gossip_sends_a_copy_to_each_neighbour(scheme, copies, capsys):
    assert asked(capsys, scheme, "--layers", "1", "--workers", "8") == [pytest.approx(copies * 32e6 / 0.01, rel=1e-5)]


@pytest.mark.parametrize("period", [1, 100])
def test_links_have_headers_and_workers_wait_for_the_slowest_in_proportion_to_the_period(period, capsys):
    """H (1 + σ E max z) steps and 8 n/(g b) of messages, of which H steps compute; max z of two is 1/√π in the mean."""
    words = "--parameters 1M --layers 4 --step-ms 10 --buckets 1 --utilisation 0.8"
    assert dispatch(["bandwidth", f"local_sgd:communication_period={period}", *words.split(), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    slowest = 1 + 0.015 / math.sqrt(math.pi)
    seconds = period * 0.01 / 0.8 - period * 0.01 * slowest
    assert found["0.8"] == pytest.approx(64e6 / seconds / 0.941, rel=1e-4)
    assert dispatch(["bandwidth", "async_sgd", "local_sgd", *words.split()]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Messages have 0.941 of a link's rate (--goodput)" in text
    assert "differ by 0.015 of their mean (--spread): all wait for the slowest" in text


@pytest.mark.parametrize("number", [1, 2, 3, 64])
def test_the_largest_of_normal_numbers(number):
    drawn = np.random.default_rng(0).standard_normal((40_000, number)).max(1)
    assert largest_of(number) == pytest.approx(drawn.mean(), abs=0.02)
    assert largest_of(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-6)


def test_workers_that_do_not_wait_do_not_wait_for_the_slowest(capsys):
    found = [asked(capsys, "async_sgd", "--spread", spread) for spread in ("0", "0.3")]
    assert found[0] == found[1]


def test_an_algorithm_in_buckets_has_them_on_its_links_too(capsys):
    words, found = "--parameters 1M --layers 8 --step-ms 10 --json", []
    for more in (["all_reduce:buckets=2"], ["all_reduce", "--buckets", "2"], ["all_reduce"]):
        assert dispatch(["bandwidth", *more, *words.split()]) == 0
        found += json.loads(capsys.readouterr().out).values()
    assert found[0] == found[1] != found[2]
    assert dispatch(["bandwidth", "all_reduce:buckets=2", "sync_sgd"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "all_reduce:buckets=2: a vector is sent in 2 messages." in text
    assert "sync_sgd: a layer is sent as soon as its gradient is known" in text
    machines, computes = "--parameters 1G --step-ms 100 --layers 8 --uplink 1Tbit --downlink 1Tbit --json", []
    for number in ("1", "2"):  # one bucket is taken for messages of layers
        assert dispatch(["simulate", "all_reduce", "--buckets", number, *machines.split()]) == 0
        computes.append(json.loads(capsys.readouterr().out)["compute"])
    assert computes[0] > computes[1]


def test_the_command_draws_the_curves_and_names_what_is_out_of_reach(tmp_path, capsys):
    picture = tmp_path / "links.svg"
    assert dispatch(["bandwidth", "all_reduce", "--latency", "1s", "--plot", str(picture)]) == 0
    assert "none" in capsys.readouterr().out
    assert "all_reduce" in picture.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "bandwidth needs an algorithm"),
        ("serial", "one worker"),
        ("downpour:push_period=2,pull_period=3", "periods of their own"),
        ("diloco --utilisation 1", "below 1"),
        ("diloco --utilisation 0.5,x", "numbers between commas"),
        ("diloco --bits 1,2,3", "two for messages and replies"),
        ("diloco:communication_period=100 --fragments 99", "at most the number of layers"),
        ("all_reduce --fragments 3", "fragments must be at most 1, the period"),
        ("diloco --plot a.txt", "ends in"),
        ("diloco --parameters 0", "takes a number, as in 25M or 7e9"),
    ],
)
def test_a_question_without_an_answer_ends_in_one_line(words, message):
    with pytest.raises(UserError, match=message):
        dispatch(["bandwidth", *words.split()])


def test_a_simulation_of_time_alone_is_that_of_the_closed_form(capsys):
    words = "--parameters 10G --step-ms 800 --uplink 80Gbit --downlink 80Gbit --workers 4 --json"
    found = {}
    for more in ("", "--layers 48"):
        assert dispatch(["simulate", "all_reduce", *words.split(), *more.split()]) == 0
        found[more] = json.loads(capsys.readouterr().out)
    whole = 0.8 / (0.8 + 2 * 3 / 4 * 4)  # 40 GB at 10 GB/s, in slices of a quarter
    assert found[""]["compute"] == pytest.approx(whole, rel=1e-3)
    assert found["--layers 48"]["compute"] > 1.04 * whole  # the backward pass hides a part
    step = LayeredStep(layers=48, seconds=0.8, parameters=1e10)
    assert found["--layers 48"]["compute"] == pytest.approx(utilisation(step, Exchange(workers=4), 8e10))
    assert found["--layers 48"]["sent"] == pytest.approx(2 * 0.75 * 4e10 * found["--layers 48"]["updates"])


def test_layers_need_equal_workers_that_wait_for_each_other():
    for words, message in (
        ("async_sgd", "for algorithms whose workers wait for each other: .*async_sgd"),
        ("sync_sgd --step-factors 1,2", "leave step_factors out"),
    ):
        with pytest.raises(UserError, match=message):
            dispatch(["simulate", *words.split(), "--parameters", "1M", "--layers", "4"])


@pytest.mark.rotating
def test_advice_with_layers_lets_an_all_reduce_overlap():
    machines = Platform(step_ms=500.0, uplink="100Gbit", downlink="100Gbit", ps_link="100Gbit")
    question = Question(workers=16, parameters="1B")
    whole, layered = (predict(replace(question, layers=layers), machines) for layers in (None, 24))
    assert layered["all_reduce"].run.gradients > 1.2 * whole["all_reduce"].run.gradients
    assert layered["sync_sgd"].run == whole["sync_sgd"].run
