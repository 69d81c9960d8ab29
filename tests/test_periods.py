"""Rules by which the local steps of a round change over a run: post-local SGD and the quadratic rule (QSR)."""

import math
import signal
from dataclasses import dataclass

import keras
import numpy as np
import pytest
from going import Going

from distsgd.algorithms import AGN, SCHEMES, AsyncSGD, DiLoCo, LocalSGD
from distsgd.common import Group, Recovery, UserError
from distsgd.common.cli.config_file import read_config_file, settings
from distsgd.common.cli.main import dispatch
from distsgd.common.contract import Barrier, Period, Scheme
from distsgd.common.contract.adapting import adapting
from distsgd.common.contract.checks import check_scheme
from distsgd.common.contract.hyperparameters import kinds_of
from distsgd.common.contract.periods import rule_of, steps_after
from distsgd.common.contract.rounds import ENDLESS
from distsgd.common.contract.schedules import Schedule, ruled, shaped
from distsgd.common.record_format import read_config, read_result
from distsgd.common.replay.replay import replay
from distsgd.common.sync.mean_loss import MeanLoss
from runs import PlayedRun, change, record

SMALL = {"hidden": (8,), "batch_size": 8}


class WarmCosine:
    """A rate that rises linearly to a peak, and falls as a cosine to zero."""

    def __init__(self, peak, steps, warm_up=0):
        self.peak, self.steps, self.warm_up = peak, steps, warm_up

    def __call__(self, t):
        t = float(t)
        if t < self.warm_up:
            return self.peak * t / self.warm_up
        done = min(1, (t - self.warm_up) / (self.steps - self.warm_up))
        return self.peak * (1 + math.cos(math.pi * done)) / 2


def lengths(scheme, steps, done=0):
    return [length for length, _ in scheme.rounds(steps, done)]


def test_the_quadratic_rule_has_the_papers_share_of_rounds():
    """Without a floor 3/8 (η₀/α)² of the steps; with that of the paper's ViT-B, and its warm-up, 10.4 % in all."""
    free = LocalSGD(communication_period="qsr:0.1,1", learning_rate=WarmCosine(0.01, 400_000))
    assert len(free.rounds(400_000)) == pytest.approx(3 / 8 * (0.01 / 0.1) ** 2 * 400_000, rel=0.02)
    steps, warm_up, peak, alpha = 93_600, 10_000, 0.008, 0.0175
    paper = LocalSGD(communication_period=f"qsr:{alpha},4", learning_rate=WarmCosine(peak, steps, warm_up))
    assert len(paper.rounds(steps)) / steps == pytest.approx(0.104, abs=5e-4)
    assert {*lengths(paper, steps)[: warm_up // 4]} == {4}


@dataclass
class WithoutHash:
    """As a user writes it: a dataclass that compares has no hash."""

    rate: float
    steps: int

    def __call__(self, t):
        return self.rate * (1 + math.cos(math.pi * float(t) / self.steps)) / 2


@pytest.mark.parametrize("shape", ["linear", "cosine", "exponential"])
def test_a_schedule_is_the_same_as_a_number_and_as_a_tensor(shape):
    schedule = Schedule(shape, 0.4, 50)
    for step in (0, 1, 24, 49, 50, 70):
        assert schedule.value(step) == pytest.approx(float(schedule(np.float32(step))), abs=1e-6)


@pytest.mark.parametrize(
    "made", [lambda r, n: Schedule("cosine", r, n), keras.optimizers.schedules.CosineDecay, WithoutHash]
)
def test_the_length_of_a_round_follows_the_rate_at_its_first_step(made):
    scheme = LocalSGD(communication_period="qsr:0.3,2", learning_rate=made(0.1, 100))
    found, t = lengths(scheme, 90), 0
    for length in found:
        eta = 0.05 * (1 + math.cos(math.pi * t / 100))
        assert length == min(90 - t, max(2, int((0.3 / eta) ** 2 + 1e-4)))
        t += length
    assert found[0] == 9  # 0.3/0.1 is less than three in floating point
    first = sum(found[:4])
    assert lengths(scheme, first) + lengths(scheme, 90 - first, first) == found
    group = Group(scheme, np.zeros(2), workers=1)
    for _ in range(found[0]):
        assert group.version == 0
        group.step(0, np.ones(2))
    assert group.version == 1


def test_a_run_without_an_end_has_the_last_period_in_its_tail():
    ending = LocalSGD(communication_period="qsr:0.1,2", learning_rate=Schedule("exponential", 0.05, 50))
    found = lengths(ending, 40)[:-1]
    assert found == [length for length, _ in ending.rounds(ENDLESS).first(len(found))]
    post = LocalSGD(communication_period="post-local:3,5")
    assert [length for length, _ in post.rounds(ENDLESS).first(6)] == [1, 1, 1, 5, 5, 5]
    assert post.rounds(ENDLESS).steps() == ENDLESS


def test_the_server_counts_the_steps_of_rounds_that_differ():
    after = steps_after(LocalSGD(communication_period="post-local:3,5").rounds(20))
    assert [float(after(np.float32(n))) for n in (0, 1, 3, 4, 4.5, 6, 8)] == [0, 1, 3, 8, 10.5, 18, 22]


def test_each_algorithm_with_a_period_takes_a_rule_or_has_rounds_of_its_own():
    for name, kind in SCHEMES.items():
        scheme = kind()
        own = kind.rounds is not Scheme.rounds or kind.period is not Scheme.period or scheme.overlap > 0
        takes = kinds_of(kind).get("communication_period") == Period
        if takes:
            assert not own, name
            changed = ruled(scheme, "post-local:3")
            check_scheme(changed, 1 if not scheme.sync.exchanges else 4)
            assert lengths(changed, 8)[:4] == [1, 1, 1, min(5, scheme.period)], name
        elif hasattr(scheme, "communication_period"):
            assert own, name
            with pytest.raises(UserError, match=f"{name} has rounds of its own, whose lengths no rule can change"):
                check_scheme(ruled(scheme, "post-local:3"), 4)


@pytest.mark.parametrize(
    "text", ["qsr", "qsr:x", "qsr:0,4", "qsr:-1,4", "qsr:nan,4", "qsr:1,2,3", "post-local:1.5,4", "adacomm:2.5,4", ""]
)
def test_what_is_no_rule_is_refused_with_the_rules(text):
    with pytest.raises(UserError, match=r"post-local:N,H .* qsr:ALPHA,H .* adacomm:N,H .* as in qsr:0.0175,4. Rec"):
        rule_of(text)


def test_the_text_of_a_rule_has_all_digits():
    for text in ("qsr:0.012345678,4", "post-local:1000,7", "qsr:2,1", "post-local:1234567890,3"):
        assert str(rule_of(text)) == text
    assert str(rule_of("qsr:0.3", 5)) == "qsr:0.3,5"


def test_a_rule_needs_a_period_and_the_quadratic_one_a_rate():
    with pytest.raises(UserError, match="communication_period must be at least 1"):
        LocalSGD(communication_period="qsr:0.1,0")
    with pytest.raises(UserError, match="async_sgd has no communication_period that a rule could change"):
        ruled(AsyncSGD(), "qsr:0.1")
    with pytest.raises(UserError, match="the period follows post-local:N,H"):
        dispatch(["local_sgd", "--period-rule", "post-local", "--dry-run"])


def test_the_outer_rate_falls_as_in_the_engine_while_rounds_become_longer(tmp_path):
    own = {"inner_optimizer": "sgd", "learning_rate": 0.1, "outer_learning_rate": 0.5}
    falling = shaped(DiLoCo(communication_period="qsr:0.13,2", **own), "linear", 30)
    engine = record(falling, tmp_path, backend="threads", workers=2, schedule=(0, 1) * 5, **SMALL)
    assert engine.result["steps"] == 2 * falling.rounds(ENDLESS).steps(5) > 2 * 5 * 2
    group = PlayedRun(falling, workers=2, **SMALL).replay(engine.trace)
    assert np.linalg.norm(group.center - engine.center) < 1e-5 * np.linalg.norm(engine.center)
    fixed = PlayedRun(falling.but(communication_period=2), workers=2, **SMALL).replay(engine.trace)
    assert np.linalg.norm(fixed.center - engine.center) > 1e-3 * np.linalg.norm(engine.center)


def test_a_run_of_the_quadratic_rule_is_replayed_also_if_it_was_resumed(tmp_path):
    scheme = shaped(LocalSGD(communication_period="qsr:0.3,2", learning_rate=0.2), "cosine", 60)
    first = scheme.rounds(60).steps(7)
    how = {"backend": "threads", "workers": 2, **SMALL}
    record(scheme, tmp_path, steps=first, recovery=Recovery(checkpoint_steps=1), **how)
    run = record(scheme, tmp_path, steps=60, recovery=Recovery(checkpoint_steps=1, resume=tmp_path), **how)
    assert run.result["updates"] == len(scheme.rounds(60)) < 30
    assert replay(tmp_path, SCHEMES).agrees
    other = read_config(tmp_path)["hyperparameters"] | {"communication_period": 2}
    change(tmp_path, "config.json", hyperparameters=other)
    assert not replay(tmp_path, SCHEMES).agrees


def test_a_record_of_an_older_version_has_its_steps_of_one_by_one_as_a_rule(tmp_path):
    record(LocalSGD(communication_period="post-local:5,4"), tmp_path, backend="threads", workers=2, steps=13, **SMALL)
    older = {"communication_period": 4, "synchronous_steps": 5, "learning_rate": 0.2, "inner_optimizer": "sgd"}
    change(tmp_path, "config.json", hyperparameters=older)
    assert read_config(tmp_path)["hyperparameters"]["communication_period"] == "post-local:5,4"
    assert replay(tmp_path, SCHEMES).agrees
    assert settings(read_config_file(tmp_path / "config.json"))["period_rule"] == "post-local:5,4"  # it runs again
    change(tmp_path, "config.json", hyperparameters=older | {"synchronous_steps": 0})
    assert "synchronous_steps" not in settings(read_config_file(tmp_path / "config.json"))


def test_the_period_of_adacomm_falls_with_the_root_of_the_loss_or_is_halved():
    rule = rule_of("adacomm:3,20")
    assert rule.periods([]) == rule.periods([4.0]) == [20]
    assert rule.periods([4.0, 1.0, 1.0, 0.25, 9.0, 0.01]) == [
        20,
        10,
        5,
        3,
        2,
        1,
    ]  # ⌈20/2⌉; 10 is not smaller; ⌈2.5⌉; ...
    assert rule.periods([1.0, 2.0, 0.0, 0.0]) == [20, 10, 1, 1]
    assert rule.periods([-1.0, -2.0]) == rule.periods([1.0, -2.0]) == [20, 10]  # a loss below zero has no root
    assert lengths(LocalSGD(communication_period="adacomm:3,20"), 100)[:4] == [20, 20, 20, 20]  # without a loss


def test_rounds_of_adacomm_are_cut_at_the_ends_of_the_runs_that_are_resumed():
    rule = rule_of("adacomm:2,8")
    found = [steps for steps, _ in rule.adapted([11, 40], [1.0, 0.25])]
    assert found == [8, 3, 4, 4, 4, 4, 4, 4, 4, 1]
    assert [steps for steps, _ in rule.adapted([40], [1.0, 0.25, 0.25])] == [8, 8, 4, 4, *[2] * 8]
    assert len(rule.adapted([10**12], [1.0])) == 10**12 // 8  # and takes no time


ADACOMM = LocalSGD(communication_period="adacomm:3,8", learning_rate=0.2)


def test_a_run_of_adacomm_is_replayed_from_its_losses_also_if_it_was_resumed(tmp_path):
    how = {"backend": "threads", "workers": 3, **SMALL}
    record(ADACOMM, tmp_path, steps=45, recovery=Recovery(checkpoint_steps=1), **how)  # ends within a round
    first = read_result(tmp_path)["losses"]
    run = record(ADACOMM, tmp_path, steps=90, recovery=Recovery(checkpoint_steps=1, resume=tmp_path), **how)
    assert run.result["losses"][: len(first)] == first
    assert run.result["steps"] == 3 * 90
    assert run.result["updates"] == len(rule_of("adacomm:3,8").adapted([45, 90], run.result["losses"])) > 90 // 4
    assert replay(tmp_path, SCHEMES).agrees
    initial, *others = run.result["losses"]
    change(tmp_path, "result.json", losses=[100 * initial, *others])
    assert not replay(tmp_path, SCHEMES).agrees
    for damaged in (["a"], 3, None):
        change(tmp_path, "result.json", losses=damaged)
        with pytest.raises(UserError, match="losses must be a list of numbers"):
            replay(tmp_path, SCHEMES)


@pytest.mark.rotating
def test_workers_and_a_ps_of_adacomm_that_are_killed_find_their_rounds_again(warm, tmp_path):
    keep = Recovery(checkpoint_seconds=0.5, max_restarts=2)
    run = Going(ADACOMM, tmp_path / "run", steps=480, updates=15, workers=3, recovery=keep, **SMALL)
    run.send("worker-1", signal.SIGKILL)
    run.send("ps-0", signal.SIGKILL)
    assert run.survived()["restarts"] == {"worker-1": 1, "ps-0": 1}
    result = read_result(tmp_path / "run")
    assert result["updates"] == len(rule_of("adacomm:3,8").adapted([480], result["losses"]))


def test_adacomm_is_for_workers_that_meet_at_a_server_in_a_run_with_a_number_of_steps():
    with pytest.raises(UserError, match="needs an algorithm with sync = Barrier\\(\\), whose workers all meet"):
        adapting(AGN(communication_period="adacomm:3,8"), 3)
    told = "adacomm needs constant learning rates: with a schedule take qsr"
    with pytest.raises(UserError, match=told):
        adapting(LocalSGD(communication_period="adacomm:3,8", learning_rate=Schedule("cosine", 0.1, 9)), 3)
    with pytest.raises(UserError, match=told):
        shaped(ADACOMM, "cosine", 9)
    with pytest.raises(UserError, match="adacomm needs a run whose server keeps the losses"):
        Group(ADACOMM, [np.zeros(2)], workers=2)


class Weighted(LocalSGD):
    """An own algorithm that sets its barrier and its scalars in the instance."""

    def __init__(self, **given):
        super().__init__(**given)
        object.__setattr__(self, "sync", Barrier())
        object.__setattr__(self, "scalars", ("own",))


def test_adacomm_keeps_its_barrier_and_its_scalar_for_an_algorithm_that_has_set_its_own():
    made = adapting(Weighted(communication_period="adacomm:3,8"), 3)
    assert (made.sync, made.scalars) == (MeanLoss(block=3), ("own", "mean_loss"))
