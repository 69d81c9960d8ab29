"""The papers' claims: verdicts follow from numbers, settings from seeds that are not shown, the page from results."""

import json
import math
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from distsgd.benchmarks import (
    claims,
    claims_cache,
    claims_catalogue,
    claims_page,
    claims_quadratic,
    claims_runs,
    claims_study,
    claims_tasks,
    claims_variants,
    outcome_files,
)
from distsgd.benchmarks.claims_of_asynchrony import (
    judge_adag,
    judge_agn,
    judge_downpour,
    judge_momentum,
    judge_period,
)
from distsgd.benchmarks.claims_of_bytes import (
    judge_demo,
    judge_des_loc,
    judge_one_bit_adam,
    judge_palsgd,
    judge_sparseloco,
    judge_sparta,
    judge_zero_one_adam,
)
from distsgd.benchmarks.claims_of_clients import judge_fedopt, judge_participation, judge_unequal_buffer
from distsgd.benchmarks.claims_of_delay import judge_hogwild
from distsgd.benchmarks.claims_of_language import HERE, VARIABLES, judge_bytes, judge_language
from distsgd.benchmarks.claims_of_machines import judge_all_reduce, judge_asynchronous, judge_backups, judge_ssp
from distsgd.benchmarks.claims_of_messages import SHAPES, judge_ef, judge_low_rank, judge_sign
from distsgd.benchmarks.claims_of_rounds import judge_local_sgd, judge_outer, judge_per_update, judge_post_local
from distsgd.benchmarks.claims_of_speeds import judge_fedbuff, judge_ringmaster
from distsgd.benchmarks.claims_pictures import dots
from distsgd.benchmarks.claims_study import Arm, Found, Row, clearly_less, until
from distsgd.common.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
NEVER = math.inf


def found(**arms):
    """Rows of made-up means: `arm={"place": mean}`; `_` in an arm's name is a space."""
    return Found(
        Row(arm, str(place), {}, [], [mean, mean]) for arm, places in arms.items() for place, mean in places.items()
    )


TUNED = {"downpour": {1: 0.5, 8: 1.2}, "agn": {1: 0.6, 8: 0.65}}
AGN = TUNED | {"downpour_kept": {1: 0.5, 8: 50.0}, "agn_kept": {1: 0.9, 8: 0.95}}
ADAGRAD = {"plain": {8: 0.9}, "adagrad": {8: 0.8}, "plain_kept": {8: NEVER}, "adagrad_kept": {8: 1.0}}
MEMORY = {"whole": {8: 0.57}, "top, with": {8: 0.58}, "top, without": {8: 0.7}}
RANKS = {
    "whole gradients": {"whole": 0.6},
    "powersgd": {"1": 0.7, "2": 0.61, "4": 0.6},
    "largest": {"1": 0.8, "2": 0.7, "4": 0.65},
    "signs": {"1": 0.75},
}
CLIENTS = {"equal data": {"1": 300, "10": 90, "100": 70}, "unequal data": {"1": NEVER, "10": 600, "100": 400}}
SERVED = {"FedAvg": {"a": 0.9}, "FedAvgM": {"a": 0.8}, "FedAdam": {"a": 0.7}, "FedYogi": {"a": 0.7}}
OWNED = {"local_sgd": {"equal": 9.0, "unequal": 20.0}, "K 1": {"equal": 3.0, "unequal": NEVER}}
SENT = {"diloco": 2.2, "muloco": 2.1, "sparseloco": 2.21, "powersgd, rank 2": 2.3, "demo": 2.2}
BYTES = {arm: {HERE: loss} for arm, loss in SENT.items()}
LATE = {"sync": {1: 1.0, 16: 0.6}, "large": {1: 1.0, 16: 0.9}}
ELASTIC = {"aeasgd": {1: 1.3, 64: 1.35}, "aeamsgd": {1: 1.0, 64: 1.05}, "downpour_easy": {1: 1.5, 64: NEVER}}
RING = {"ring": {2: 1.0}, "tree": {2: 1.0}, "one ps": {2: 4.0}, "as many ps as workers": {2: 1.0}}
MOMENTUM = {"aeasgd": {1: 5000, 64: 6000}, "aeamsgd": {1: 1300, 64: 1800}, "mdownpour": {1: 4000}}
OUTER = {
    f"{inner} inside: {name}": {"12 rounds": 1.0}
    for inner in ("SGD", "AdamW")
    for name in ("averaging", "outer Nesterov")
}
LANGUAGE = {"local_sgd": {1: 3.0, 50: 3.2}, "AdamW inside, averaging": {1: 2.0, 50: 2.3}, "diloco": {50: 2.01}}
RARE = {"local_adam": {10: 0.7, 40: 0.8}, "des_loc": {10: 0.7, 40: 0.8}, "moments that stay": {10: 0.9, 40: 0.9}}
SPARSE = {"diloco": {9: 0.7}, "sparseloco, 0.05": {9: 0.705}, "sparseloco, 0.2": {9: 0.7}}
SIGNS = {"AdamW, a message each step": {9: 0.7}, "signsgd_mv": {9: 0.8}}
SIGNS |= {"demo, α 0.2": {9: 0.705}, "demo, α 0.5": {9: 0.7}, "demo, α 1": {9: 0.71}}
ADAMS = {
    "Adam, floats": {9: 0.7},
    "one_bit_adam": {9: 0.7},
    "Adam on signs of gradients": {9: 0.8},
    "zero_one_adam": {9: 0.7},
}
CLOCK = {"even": 5.0, "uneven": 5.0, "lognormal": 5.0, "pareto": 5.0}
EVERYWHERE = dict.fromkeys(CLOCK, 1.0)


@pytest.mark.parametrize(
    ("judge", "arms", "word"),
    [
        (judge_agn, AGN, "shown"),
        (judge_agn, AGN | {"agn_kept": {1: 0.9, 8: 1.1}}, "shown in part"),
        (judge_agn, AGN | {"downpour_kept": {1: 0.5, 8: 0.6}}, "shown in part"),
        (judge_agn, AGN | {"agn": {1: 0.6, 8: 1.3}}, "shown in part"),
        (judge_agn, AGN | {"agn": {1: 0.6, 8: 1.3}, "downpour_kept": {1: 0.5, 8: 0.6}}, "not seen here"),
        (judge_adag, {"agn": {8: 9.0, 16: 60.0}, "damped": {8: 0.7, 16: 0.8}}, "shown"),
        (judge_adag, {"agn": {8: 9.0, 16: 60.0}, "damped": {8: 0.7, 16: 3.0}}, "shown in part"),
        (judge_adag, {"agn": {8: 0.7}, "damped": {8: 0.6}}, "not seen here"),
        (judge_downpour, ADAGRAD, "shown"),
        (judge_downpour, ADAGRAD | {"adagrad": {8: 0.95}}, "shown in part"),
        (judge_downpour, ADAGRAD | {"adagrad": {8: 0.95}, "adagrad_kept": {8: NEVER}}, "not seen here"),
        (judge_downpour, ADAGRAD | {"plain_kept": {8: 1.0}}, "not seen here"),
        (judge_period, ELASTIC, "shown"),
        (judge_period, ELASTIC | {"aeamsgd": {1: 1.0, 64: 1.2}}, "shown in part"),
        (judge_hogwild, {"any": {"rare, 1": 0.4, "rare, 9": 0.401, "certain, 1": 0.6, "certain, 9": 0.7}}, "shown"),
        (judge_per_update, LATE | {"small": {1: 1.0, 16: 0.8}}, "shown"),
        (judge_per_update, LATE | {"small": {1: 1.0, 16: 0.5}}, "shown in part"),
        (judge_per_update, LATE | {"large": {1: 1.0, 16: 0.5}, "small": {1: 1.0, 16: 0.5}}, "not seen here"),
        (judge_local_sgd, {"local_sgd": {1: 200, 16: 15}}, "shown"),
        (judge_local_sgd, {"local_sgd": {1: 200, 16: 90}}, "shown in part"),
        (judge_outer, OUTER, "undecided"),
        (judge_outer, OUTER | {"SGD inside: outer Nesterov": {"12 rounds": 0.8}}, "shown in part"),
        (judge_language, LANGUAGE, "shown"),
        (judge_language, LANGUAGE | {"diloco": {50: 2.2}}, "shown in part"),
        (judge_language, LANGUAGE | {"diloco": {50: 3.3}}, "not seen here"),
        (judge_bytes, BYTES, "shown"),
        (judge_bytes, BYTES | {"sparseloco": {HERE: 2.3}}, "shown in part"),
        (judge_bytes, BYTES | {"sparseloco": {HERE: 2.3}, "muloco": {HERE: 2.2}}, "not seen here"),
        (judge_des_loc, RARE, "shown"),
        (judge_des_loc, RARE | {"des_loc": {10: 0.73, 40: 0.83}}, "shown in part"),  # better than without means
        (judge_des_loc, RARE | {"des_loc": {10: 0.9, 40: 0.9}}, "not seen here"),
        (judge_sparseloco, SPARSE, "shown"),
        (judge_sparseloco, SPARSE | {"sparseloco, 0.05": {9: 0.73}}, "shown in part"),
        (judge_sparta, {"local_sgd": {9: 0.8}, "sparta": {9: 0.7}}, "shown"),
        (judge_sparta, {"local_sgd": {9: 0.8}, "sparta": {9: 0.8}}, "undecided"),
        (judge_palsgd, {"diloco": {20: 0.6, 80: 0.7}, "palsgd": {20: 0.6, 80: 0.6}}, "shown"),
        (
            judge_palsgd,
            {"diloco": {20: 0.6, 80: 0.6}, "palsgd": {20: 0.5, 80: 0.7}},
            "not seen here",
        ),  # the longest counts
        (judge_demo, SIGNS, "shown"),
        (judge_demo, SIGNS | {"demo, α 1": {9: 0.73}}, "shown in part"),
        (judge_demo, SIGNS | {arm: {9: 0.73} for arm in SIGNS if "α" in arm}, "not seen here"),
        (judge_one_bit_adam, ADAMS, "shown"),
        (judge_one_bit_adam, ADAMS | {"Adam on signs of gradients": {9: 0.7}}, "shown in part"),
        (judge_zero_one_adam, ADAMS, "shown"),
        (judge_zero_one_adam, ADAMS | {"one_bit_adam": {9: 0.67}}, "shown in part"),
        (judge_post_local, {"sync": {32: 0.03, 256: 0.03}, "local": {32: 0.03, 256: 0.01}}, "not seen here"),
        (judge_post_local, {"sync": {32: 0.03, 256: 0.05}, "local": {32: 0.03, 256: 0.03}}, "shown"),
        (judge_all_reduce, RING, "shown"),
        (judge_all_reduce, RING | {"ring": {2: 5.0}}, "not seen here"),
        (judge_asynchronous, {"sync_sgd": CLOCK, "async_sgd": EVERYWHERE}, "shown"),
        (judge_asynchronous, {"sync_sgd": EVERYWHERE, "async_sgd": CLOCK}, "not seen here"),
        (judge_ssp, {"sync_sgd": CLOCK, "async_sgd": CLOCK, "ssp": EVERYWHERE}, "shown"),
        (judge_ssp, {"sync_sgd": CLOCK, "async_sgd": EVERYWHERE, "ssp": EVERYWHERE}, "shown in part"),
        (judge_ringmaster, {"ring": {"9 s": 0.1}, "adaptive": {"9 s": 0.2}, "async": {"9 s": NEVER}}, "shown"),
        (judge_ringmaster, {"ring": {"9 s": 0.1}, "adaptive": {"9 s": 0.1}, "async": {"9 s": 0.3}}, "shown in part"),
        (judge_fedbuff, {"sync": {"s": 3.0}, "1": {"s": 2.0}, "10": {"s": 1.0}}, "shown"),
        (judge_fedbuff, {"sync": {"s": 3.0}, "1": {"s": 0.9}, "10": {"s": 1.0}}, "shown in part"),
        (judge_ef, MEMORY, "shown"),
        (judge_ef, MEMORY | {"top, without": {8: 0.58}}, "shown in part"),  # memory makes nothing better
        (judge_ef, MEMORY | {"top, with": {8: 0.7}}, "not seen here"),
        (judge_sign, {"signs": {"falling": 0.51}, "whole messages": {"falling": 0.5}}, "shown"),
        (judge_sign, {"signs": {"falling": 0.53}, "whole messages": {"falling": 0.5}}, "not seen here"),
        (judge_low_rank, RANKS, "shown"),
        (judge_low_rank, RANKS | {"signs": {"1": 0.7}}, "shown in part"),
        (judge_low_rank, RANKS | {"powersgd": {"1": 0.9, "2": 0.8, "4": 0.7}}, "not seen here"),
        (judge_participation, CLIENTS, "shown"),
        (judge_participation, CLIENTS | {"unequal data": {"1": NEVER, "10": 600, "100": 200}}, "shown in part"),
        (judge_fedopt, SERVED, "shown"),
        (judge_fedopt, SERVED | {"FedAvgM": {"a": 0.7}}, "shown in part"),
        (judge_fedopt, SERVED | {"FedAvg": {"a": 0.6}, "FedAvgM": {"a": 0.6}}, "not seen here"),
        (judge_unequal_buffer, OWNED | {"K 10": {"equal": 1.0, "unequal": 1.0}}, "shown"),
        (judge_unequal_buffer, OWNED | {"K 10": {"equal": 1.0, "unequal": 21.0}}, "shown in part"),
        (judge_unequal_buffer, OWNED | {"K 10": {"equal": 1.0, "unequal": NEVER}}, "not seen here"),
        (judge_backups, {"sync_sgd": CLOCK, "sync_sgd, 1 backups": EVERYWHERE | {"pareto": NEVER}}, "shown in part"),
        (judge_momentum, MOMENTUM, "shown"),
        (judge_momentum, MOMENTUM | {"mdownpour": {1: 1400}}, "shown in part"),  # it is not only better than without
    ],
)
def test_a_verdict_follows_from_the_numbers(judge, arms, word):
    verdict = judge(found(**arms))
    assert verdict.word == word
    assert verdict.why


def test_a_difference_within_the_spread_of_seeds_does_not_count():
    one, other = (Row("a", "b", {}, [], scores) for scores in ([1.0, 2.0], [2.0, 2.1]))
    assert not clearly_less(one, other)
    assert clearly_less(one, Row("a", "b", {}, [], [1.1, 2.1]))  # paired: on each seed by as much
    assert clearly_less(Row("a", "b", {}, [], [1.0, 1.1]), other)
    assert clearly_less(one, Row("a", "b", {}, [], [1.0, NEVER]))
    assert not clearly_less(Row("a", "b", {}, [], [NEVER]), one)


def test_a_claim_near_the_limit_is_undecided_unless_seeds_agree():
    whole = Row("whole messages", "falling", {}, [], [0.5, 0.5, 0.5])
    for scores, word in (([0.50, 0.52, 0.54], "undecided"), ([0.54, 0.55, 0.56], "not seen here")):
        assert judge_sign(Found([whole, Row("signs", "falling", {}, [], scores)])).word == word


def test_a_claim_to_be_as_good_is_undecided_if_neither_is_sure():
    whole = [Row("AdamW", "here", {}, [], [0.5, 0.52, 0.48], tried=9), Row("signsgd_mv", "here", {}, [], [0.9] * 3)]
    for excess, word in ((0.0, "shown"), (0.01, "undecided"), (0.03, "undecided"), (0.06, "not seen here")):
        scores = [score + excess + noise for score, noise in zip(whole[0].scores, (0.01, 0.0, -0.01), strict=True)]
        arms = [Row(f"demo, α {alpha:g}", "here", {}, ["learning_rate"], scores, 9, 2) for alpha in (0.2, 0.5, 1)]
        if excess == 0:
            arms = [Row(arm.arm, "here", {}, [], whole[0].scores, 9, 2) for arm in arms]
        verdict = judge_demo(Found([*whole, *arms]))
        assert verdict.word == word
        assert "margin 0.02 of loss, three standard errors, 3 seeds" in verdict.why
    assert "(11, learning_rate at an end against 9)" in verdict.why


def test_without_memory_only_the_largest_of_the_first_message_has_moved():
    settings = {"learning_rate": 0.5, "share": 0.01}
    runs = [
        claims_runs.ClaimRun(scheme=scheme, settings=settings, workers=2, steps=steps, seed=3)
        for steps in (1, 40)
        for scheme in ("ef_sgd", "forgetful_ef_sgd")
    ]
    one, alike, late, lost = (claims_runs.execute(run)["loss"] for run in runs)
    assert one == alike  # nothing is remembered yet
    assert late[-1] < lost[-1] < one[-1]


def test_other_compressors_send_as_many_bytes_as_low_rank():
    problem = claims_runs.task("wide", workers=2, steps=1, batch=16, seed=3)
    assert problem.shapes == SHAPES
    vector = problem.gradient(problem.start, 0, 0)
    of_matrix = slice(20 * 128 + 128, 20 * 128 + 128 + 128 * 128)  # the middle one
    for compressor, kept in (("largest", 256), ("random elements", 512), ("random block", 512), ("signs", 128 * 128)):
        random = (np.random.default_rng(0) for _ in range(2))
        one, other = (claims_variants.compressed(vector, SHAPES, compressor, 2, drawn) for drawn in random)
        assert (one == other).all()  # all workers draw alike
        assert np.count_nonzero(one[of_matrix]) == kept
        where = np.flatnonzero(one[of_matrix])
        if compressor == "signs":
            assert np.unique(np.abs(one[of_matrix])).size == 1
            assert np.abs(one[of_matrix]).sum() == pytest.approx(np.abs(vector[of_matrix]).sum())
        else:
            assert (one[of_matrix][where] == vector[of_matrix][where]).all()
        if compressor == "largest":
            assert np.abs(one[of_matrix][where]).min() >= np.sort(np.abs(vector[of_matrix]))[-256]
        if compressor == "random block":
            assert where[-1] - where[0] == 511
        assert (one[20 * 128 : 20 * 128 + 128] == vector[20 * 128 : 20 * 128 + 128]).all()  # a bias goes as it is


def test_without_a_loss_other_compressors_are_powersgd():
    how = {"workers": 2, "steps": 12, "seed": 3, "settings": {"rank": 32, "learning_rate": 0.1}}
    kinds = "powersgd", "other_than_low_rank"
    low, other = (claims_runs.execute(claims_runs.ClaimRun(scheme=kind, **how))["loss"] for kind in kinds)
    assert low == other
    kept = {"rank": 1, "compressor": "random elements", "learning_rate": 0.1}
    run = claims_runs.ClaimRun(scheme=kinds[1], **how | {"settings": kept})
    assert claims_runs.execute(run)["loss"] != other


def test_clients_take_turns_with_data_of_their_own():
    how = {
        "scheme": "local_sgd",
        "settings": {"communication_period": 10, "learning_rate": 0.4},
        "steps": 40,
        "seed": 3,
    }
    few = claims_runs.ClaimRun(**how, workers=2, clients=8, task="dirichlet")
    every = claims_runs.ClaimRun(**how, workers=8, clients=8, task="dirichlet")
    assert claims_runs.execute(few)["gradients"][-1] == 80
    owners = claims_runs.execute(claims_runs.ClaimRun(**how, workers=8, task="dirichlet"))["loss"]
    # all take part: which worker plays which client has no weight in a mean
    assert claims_runs.execute(every)["loss"] == pytest.approx(owners, abs=2e-5)
    assert claims_runs.execute(few)["loss"] != owners


def test_a_client_with_unequal_labels_has_few_of_them():
    def labels(task):  # that more than a fifth of a client's examples have, in the mean
        problem = claims_runs.task(task, workers=20, steps=10, batch=160, seed=3)
        biases = [problem.gradient(problem.start, k, 0)[-8:] for k in range(20)]  # softmax less one for the label
        return np.mean([np.count_nonzero(bias < -0.1) for bias in biases])

    assert labels("shards") < 0.2 < 0.8 < labels("dirichlet") < 3


@pytest.mark.parametrize("scheme", ["sparta", "palsgd"])
@pytest.mark.gate("others")
def test_the_random_numbers_of_an_algorithm_differ_between_seeds(scheme, monkeypatch):
    problem = claims_runs.task("clusters", workers=2, steps=40, batch=16, seed=3)
    monkeypatch.setattr(claims_runs, "task", lambda name, **how: problem)  # only what the algorithm draws is left
    settings = {"communication_period": {"sparta": 1, "palsgd": 20}[scheme], "learning_rate": 0.05}
    one, other = (
        claims_runs.execute(claims_runs.ClaimRun(scheme=scheme, settings=settings, workers=2, steps=40, seed=seed))[
            "loss"
        ]
        for seed in (3, 4)
    )
    assert one != other


@pytest.mark.rotating
def test_the_masters_momentum_is_nesterovs_and_none_is_async_sgd():
    def losses(scheme, workers, **settings):
        return claims_runs.execute(
            claims_runs.ClaimRun(scheme=scheme, settings=settings, workers=workers, steps=30, seed=3)
        )["loss"]

    plain = losses("async_sgd", 4, learning_rate=0.1)
    assert losses("mdownpour", 4, learning_rate=0.1, momentum=0.0) == plain
    nesterov = losses("mdownpour", 1, learning_rate=0.1, momentum=0.9)
    problem = claims_runs.task("clusters", workers=1, steps=30, batch=16, seed=3)
    theta, v = problem.start, 0 * problem.start
    for t in range(30):
        v = 0.9 * v - 0.1 * problem.gradient(theta + 0.9 * v, 0, t)
        theta = theta + v
    assert nesterov[-1] == pytest.approx(problem.measure(theta)[0], abs=1e-5)


def test_a_score_lies_between_two_measurements():
    curve = {"loss": [2.0, 1.0, 0.5], "seconds": [1.0, 3.0, 4.0]}
    assert [until(loss, "seconds")(curve) for loss in (1.5, 0.75, 0.1)] == [2.0, 3.5, NEVER]


def test_settings_are_chosen_by_seeds_that_are_not_shown(monkeypatch):
    """A made-up loss: of 0.2 it is least in tuning, of 0.4 in what is shown."""

    def run(runs, about):
        best = dict.fromkeys(claims_study.TUNING_SEEDS, 0.2) | dict.fromkeys(claims_study.SHOWING_SEEDS, 0.4)
        return [{"loss": [abs(run.settings["learning_rate"] - best[run.seed]) * run.workers]} for run in runs]

    monkeypatch.setattr(claims_study, "outcomes", run)
    rates = {"learning_rate": (0.1, 0.2, 0.4)}
    places = {"4": {"workers": 4, "steps": 1}, "8": {"workers": 8, "steps": 1, "settings": {"learning_rate": 0.4}}}
    rows = claims_study.study("", [Arm("agn", "agn", rates)], places, claims_study.final_loss, tuned_at="4")
    assert [(row.settings, row.edges, row.mean) for row in rows] == [
        ({"learning_rate": 0.2}, [], pytest.approx(0.8)),
        ({"learning_rate": 0.2}, [], pytest.approx(0.0)),
    ]
    assert not {*claims_study.TUNING_SEEDS} & {*claims_study.SHOWING_SEEDS}


def made_up(monkeypatch, best):
    """Runs whose loss is the distance of the rate, as a logarithm, from the best; the runs are counted."""
    asked = []

    def run(runs, about):
        asked.extend(runs)
        return [{"loss": [abs(math.log(run.settings["learning_rate"] / best))]} for run in runs]

    monkeypatch.setattr(claims_study, "outcomes", run)
    return asked


def test_a_grid_with_its_best_setting_at_the_end_is_extended_or_marked(monkeypatch):
    places = {"4": {"workers": 4, "steps": 1}}
    for best, chosen, edges, further in ((0.2, 0.2, [], 0), (0.8, 0.8, [], 2), (1e9, 25.6, ["learning_rate"], 6)):
        made_up(monkeypatch, best)
        arm = Arm("agn", "agn", {"learning_rate": (0.1, 0.2, 0.4)})
        (row,) = claims_study.study("", [arm], places, claims_study.final_loss)
        assert (row.settings, row.edges) == ({"learning_rate": chosen}, edges)
        assert (row.tried, row.further) == (3, further)


def test_a_grid_of_two_has_only_edges_and_one_of_momenta_nears_one():
    arm = Arm("agn", "agn", {"momentum": (0.8, 0.9), "form": ("a",), "delay_threshold": (2, 6)})
    longer = arm.beyond({"momentum": 0.9, "form": "a", "delay_threshold": 2})
    assert longer.grid == {"momentum": (0.8, 0.9, 0.95), "form": ("a",), "delay_threshold": (2, 6)}
    assert longer.edges({"momentum": 0.9, "form": "a", "delay_threshold": 2}) == ["delay_threshold"]
    assert longer.beyond({"momentum": 0.9, "form": "a", "delay_threshold": 6}).grid["delay_threshold"] == (2, 6, 18)


def test_arms_have_as_many_settings(monkeypatch):
    assert not made_up(monkeypatch, 1.0)
    arms = [Arm(str(n), "agn", {"learning_rate": (0.1, 0.2, 0.4)[:n]}) for n in (2, 3)]
    with pytest.raises(ValueError, match="as many settings"):
        claims_study.study("", arms, {"4": {"workers": 4, "steps": 1}}, claims_study.final_loss)


def test_arms_of_a_claim_had_as_many_settings_and_no_best_one_at_an_end():
    for name, content in json.loads(claims_page.RESULTS.read_text()).items():
        rows = Found.of_json(content).rows
        assert not [row for row in rows if row.edges], name
        assert all((row.tried > 1) == bool(row.settings) for row in rows), name
        assert len({row.tried for row in rows if row.settings}) <= 1, name
        assert len({len(row.scores) for row in rows}) == 1, name  # differences are paired over seeds


def test_below_a_table_is_how_many_settings_each_side_tried():
    """One number stood for all rows: the sides of a claim differed, up to 30 against 9."""
    claim = next(claim for claim in claims_catalogue.CLAIMS if claim.name == "agn")
    rows = [Row("a", "4", {"learning_rate": 0.1}, [], [0.5] * 3, 4), Row("b", "4", {}, [], [0.5] * 3)]
    rows.append(Row("a", "8", {"learning_rate": 0.1}, [], [0.5] * 3, 4, further=2))
    *_, tuned, plain = claims_page.table(claim, Found(rows)).splitlines()
    assert tuned.endswith(" | 4 to 6 |")
    assert tuned.startswith("| a (η 0.1) | 0.500 ")  # once, as it is the same in both columns
    assert plain.endswith(" | 1 |")
    assert "tried" not in claims_page.table(claim, Found(rows[1:2]))
    assert "on 3 seeds." in claims_page.about(claim, Found(rows), "agn")


def test_the_quadratic_has_its_stated_minimum_and_ignores_late_gradients():
    x = -(1 - np.arange(1, claims_quadratic.SIZE + 1) / (claims_quadratic.SIZE + 1))
    assert np.abs(claims_quadratic.gradient(x)).max() < 1e-12
    assert claims_quadratic.value(x) == claims_quadratic.least() < claims_quadratic.value(x + 1e-3)
    slow = {"learning_rate": 0.02, "workers": 10}
    few, many = (claims_quadratic.run("ringmaster", 0, delay_threshold=r, **slow)[-1] for r in (1, 99))
    assert few != many == claims_quadratic.run("async_sgd", 0, **slow)[-1]
    ends, stops = (claims_quadratic.run("ringmaster", 0, delay_threshold=2, cancel_late=c, **slow) for c in (0, 1))
    assert stops[-1] < 0.8 * ends[-1]  # no worker computes what will be ignored
    assert not claims_quadratic.run("async_sgd", 0, learning_rate=3.0, workers=20)


def test_a_run_is_the_same_twice_and_a_wild_one_has_diverged():
    run = claims_runs.ClaimRun(scheme="agn", settings={"learning_rate": 0.5}, workers=4, steps=40, seed=3)
    curve = claims_runs.execute(run)
    assert curve == claims_runs.execute(run)
    assert (curve["updates"][-1], curve["gradients"][-1]) == (16, 160)
    assert curve["loss"][-1] < curve["loss"][0]
    ahead = claims_runs.ClaimRun(scheme="aeasgd", settings={"communication_period": 30}, workers=2, steps=50, seed=3)
    assert claims_runs.execute(ahead)["gradients"] == [1, 2, 32, 62]
    wild = claims_runs.ClaimRun(scheme="downpour_easy", settings={"learning_rate": 1e4}, workers=4, steps=40, seed=3)
    assert not claims_runs.execute(wild)["loss"]


@pytest.mark.rotating
def test_a_run_on_text_learns_and_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(claims_cache, "FILE", tmp_path / "claims.jsonl")
    settings = {"learning_rate": 0.5, "communication_period": 1}
    run = claims_runs.ClaimRun(scheme="local_sgd", settings=settings, workers=2, steps=8, seed=3, task="text")
    (curve,) = claims_cache.outcomes([run], "in a process of its own, on one core")
    assert curve["loss"][-1] < curve["loss"][0] - 0.2
    assert claims_tasks._transformer_recipe(3).flat().shapes == VARIABLES
    monkeypatch.setattr(claims_runs.ClaimRun, "execute", None)  # it is not run again
    assert claims_cache.outcomes([run], "kept")[0]["loss"] == curve["loss"]


def test_the_picture_shows_arms_that_never_reach_the_target():
    figure = dots(found(a={"even": 3.0, "pareto": NEVER}, b={"even": 5.0, "pareto": 9.0}), "seconds")
    assert [len(axes.collections[-1].get_offsets()) for axes in figure.axes] == [0, 1]


def page_of(group):
    return (ROOT / "docs" / "claims" / f"{group.file}.md").read_text()


def test_the_pages_show_what_was_measured_and_their_commands_exist():
    known, names = claims_page.read(), {claim.name for claim in claims_catalogue.CLAIMS}
    first = claims_page.PAGE.read_text()
    assert claims_page.with_verdicts(first, known) == first
    pages = {group: page_of(group) for group in claims_page.GROUPS}
    assert pages == {group: claims_page.page_of(group, known) for group in claims_page.GROUPS}
    text = first + "".join(pages.values())
    assert set(json.loads(claims_page.RESULTS.read_text())) == names
    headings = re.findall(r"^## ([\w-]+)(?:: not seen here .*)?$", "".join(pages.values()), re.MULTILINE)
    assert sorted(headings) == sorted(names)
    assert {
        name for line in re.findall(r"run\.sh claims ([\w -]+)", text) for name in line.split("  ")[0].split()
    } <= names
    drawn = {claim.name for claim in claims_catalogue.pictured()}
    assert set(re.findall(r"results/claims-([\w-]+)\.png", text)) == drawn


def test_a_claim_has_a_verdict_a_picture_and_120_words_at_most():
    for group in claims_page.GROUPS:
        for section in page_of(group).split("\n## ")[1:]:
            words = [line for line in section.splitlines()[1:] if not line.startswith(("|", "![", "<a"))]
            assert len(" ".join(words).split()) <= 120, section
            assert "| measured here | |" in section
            assert "![" in section or "Picture and numbers are those of" in " ".join(section.split())


def test_commands_at_the_same_time_keep_the_results_of_each_other(tmp_path):
    file, names = tmp_path / "results" / "claims.json", [f"{k} {n}" for k in range(4) for n in range(5)]

    def command(k):
        for n in range(5):
            outcome_files.keep(file, {f"{k} {n}": k}, names)

    commands = [threading.Thread(target=command, args=(k,)) for k in range(4)]
    for each in commands:
        each.start()
    for each in commands:
        each.join()
    assert json.loads(file.read_text()) == {name: int(name[0]) for name in names}
    assert list(outcome_files.keep(file, {"0 1": 7}, ["3 0", "0 1"]).items()) == [("3 0", 3), ("0 1", 7)]


def test_an_unknown_claim_is_one_line():
    with pytest.raises(UserError, match="unknown claim 'agm'"):
        claims.Options(names=("agm",))


def test_the_heading_of_a_claim_that_is_not_seen_here_names_task_size_and_steps():
    content = json.loads(claims_page.RESULTS.read_text())
    known = [(claim, Found.of_json(content[claim.name])) for claim in claims_catalogue.CLAIMS if claim.name in content]
    unseen = [claim for claim, mine in known if claim.judge(mine).word == "not seen here"]
    assert unseen
    for claim in unseen:
        assert re.fullmatch(r"[^,]+, [\d,]+ parameters, \d+ (steps|epochs)", claim.scale), claim.name
        (group,) = [each for each in claims_page.GROUPS if claim.name in each.names]
        anchor = f'<a id="{claim.name}"></a>'  # for links to it
        assert f"{anchor}\n\n## {claim.name}: not seen here ({claim.scale})\n" in page_of(group)


def test_the_heading_of_a_claim_follows_its_verdict():
    claim, better, worse = next(each for each in claims_catalogue.CLAIMS if each.name == "palsgd"), 0.5, 0.7
    lines = []
    for loss in (better, worse):
        rows = [Row(arm, place, {}, [], [0.6, 0.6] if arm == "diloco" else [loss, loss])
                for arm in ("diloco", "palsgd") for place in ("20", "80")]  # fmt: skip
        lines.append(claims_page.heading(claim, Found(rows)))
    assert lines[0] == "## palsgd"
    assert "## palsgd: not seen here (" in lines[1]
