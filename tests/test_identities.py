"""What must be equal, conserved or bounded: played in a group, or on threads, where the order is an input, too."""

import functools
import heapq
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from distsgd.algorithms import (
    ADAG,
    AEAMSGD,
    AEASGD,
    AGN,
    BMUF,
    CO2,
    DCASGD,
    DESLOC,
    DIANA,
    DPSGD,
    EASGD,
    EF21SGDM,
    EFSGD,
    MARINA,
    PALSGD,
    RFA,
    SAGN,
    SCHEMES,
    SGP,
    SSP,
    AllReduce,
    AsyncDiLoCo,
    AsyncSGD,
    CenteredClipping,
    ChocoSGD,
    CoCoDSGD,
    DecoupledDiLoCo,
    DelayAdaptive,
    DeMo,
    DiLoCo,
    DistLion,
    Downpour,
    DownpourEasy,
    DSGDTracking,
    DynSGD,
    EDiT,
    EF21Muon,
    ExactDiffusion,
    FedAsync,
    FedBuff,
    FedDyn,
    FedExP,
    FedNova,
    FedOpt,
    FedProx,
    GASLoC,
    HALoS,
    HeLoCo,
    Hierarchical,
    Hogwild,
    KAsync,
    KBatchAsync,
    KBatchSync,
    Krum,
    KSync,
    LocalSGD,
    LoSCAR,
    Malenia,
    MultiGPU,
    NoLoCo,
    PowerSGD,
    ProxSkip,
    QGDSGDm,
    RescaledASGD,
    Ringleader,
    Ringmaster,
    RingmasterLMO,
    Scaffold,
    Serial,
    SignSGDMV,
    SlowMo,
    SoftSync,
    SparseLoCo,
    Sparta,
    StreamingDiLoCo,
    SyncSGD,
    SyncSGDLR,
    TrimmedMean,
)
from distsgd.common import Cluster, Group, Recovery, train
from distsgd.common.cluster.platform import Machines, Platform
from distsgd.common.contract import Rounds, Server, Worker, uniform_numbers
from distsgd.common.contract.optimizers import adamw, sgd, top_k
from distsgd.common.contract.rounds import COINS
from distsgd.common.data.models import ModelRecipe
from distsgd.common.errors import UserError, WaitTimeout
from distsgd.common.replay.reference import (
    asynchronous_rules,
    buffered_rules,
    gossip_rules,
    gradients,
    synchronous_rules,
)
from distsgd.common.sync.topology import Topology
from distsgd.common.tasks.graph import TaskGraph
from distsgd.common.worker.flat_model import FlatModel
from distsgd.simulator.virtual_time.schedule import check
from runs import DIGITS, PlayedRun, before, job_of, record

CLOSE = {"rtol": 2e-5, "atol": 2e-6}  # float32 against float32 in another order


def threads(scheme, tmp_path, name="run", **options):
    return record(scheme, tmp_path / name, **{"backend": "threads", "workers": 1, "steps": 30, **options})


@functools.cache
def played(scheme, workers=1, steps=40, schedule=()):
    """A run in a group, in the order of a schedule of rounds, or step by step in turn."""
    run = PlayedRun(scheme, workers=workers)
    return run.play(schedule) if schedule else run.in_turn(steps)


ETA = 0.2
UNTURNED: dict[str, Any] = {"shrinkage": 0.0, "turning": 0.0}


class FixedProxSkip(ProxSkip):
    """With a fixed period in place of the coin."""

    def rounds(self, steps, done=0, worker=0, seed=0):
        return Rounds.even(steps, self.period)


class ForgetfulFedDyn(FedDyn):
    """Without what workers and server know of the slopes."""

    def message(self, worker):
        return worker.params

    def weighted(self, server, message, staleness):
        return message


class PlainEF21Muon(EF21Muon):
    """With steps along the estimate itself."""

    def _direction(self, known, shapes):
        return known


class PlainRingmasterLMO(RingmasterLMO):
    """With steps along the momentum itself."""

    def _direction(self, velocity, shapes):
        return velocity


ONE_WORKER = [
    AsyncSGD(learning_rate=ETA),
    Hogwild(learning_rate=ETA),
    DownpourEasy(learning_rate=ETA, communication_period=4),
    DelayAdaptive(learning_rate=ETA),
    RescaledASGD(learning_rate=ETA),
    Ringleader(learning_rate=ETA),
    Malenia(learning_rate=ETA),
    SoftSync(learning_rate=ETA, messages_per_update=1),
    FedAsync(learning_rate=ETA, mixing=1.0, proximity=0.0, communication_period=4),
    FedBuff(learning_rate=ETA, messages_per_update=1, communication_period=4),
    KBatchAsync(learning_rate=ETA, messages_per_update=1),
    KBatchSync(learning_rate=ETA, messages_per_update=1),
    DynSGD(learning_rate=ETA, communication_period=4),
    AGN(learning_rate=ETA, server_learning_rate=ETA, communication_period=1),
    ADAG(learning_rate=ETA, communication_period=1),
    DCASGD(learning_rate=ETA, compensation=1.0),
    SSP(learning_rate=ETA),
    EFSGD(learning_rate=ETA, share=1.0),
    EF21SGDM(learning_rate=ETA, share=1.0, momentum=0.0),
    DIANA(learning_rate=ETA, share=1.0, memory_rate=1.0),
    MARINA(learning_rate=ETA, share=1.0),
    Hierarchical(learning_rate=ETA),
    SyncSGD(learning_rate=ETA),
    KSync(learning_rate=ETA),
    KAsync(learning_rate=ETA),
    SyncSGDLR(learning_rates=(ETA,)),
    SAGN(learning_rate=ETA, server_learning_rate=ETA, communication_period=1),
    LocalSGD(learning_rate=ETA, communication_period=4),
    DiLoCo(inner_optimizer="sgd", learning_rate=ETA, outer_learning_rate=1.0, momentum=0.0),
    DecoupledDiLoCo(inner_optimizer="sgd", learning_rate=ETA, outer_learning_rate=1.0, momentum=0.0),
    HeLoCo(inner_optimizer="sgd", learning_rate=ETA, outer_learning_rate=1.0, momentum=0.0, **UNTURNED),
    EDiT(inner_optimizer="sgd", learning_rate=ETA, outer_learning_rate=1.0, momentum=0.0),
    SlowMo(learning_rate=ETA, slow_momentum=0.0),
    BMUF(learning_rate=ETA),
    Scaffold(learning_rate=ETA, communication_period=4),
    ProxSkip(learning_rate=ETA, probability=1.0),
    FedProx(learning_rate=ETA, proximity=0.0),
    FedDyn(learning_rate=ETA / 2, communication_period=1, regularization=1 / ETA),
    FedExP(learning_rate=ETA, communication_period=4),
    FedNova(learning_rate=ETA, communication_period=4),
    TrimmedMean(learning_rate=ETA),
    RFA(learning_rate=ETA),
    CenteredClipping(learning_rate=ETA, momentum=0.0, radius=1e6),
    ExactDiffusion(learning_rate=ETA),
    ChocoSGD(learning_rate=ETA),
    AllReduce(learning_rate=ETA),
    LoSCAR(learning_rate=ETA, share=1.0, delay=0),
    PowerSGD(learning_rate=ETA / 2, momentum=0.0, rank=100),
    DSGDTracking(learning_rate=ETA),
    SGP(learning_rate=ETA),
    QGDSGDm(learning_rate=ETA, momentum=0.0),
    GASLoC(inner_optimizer="sgd", learning_rate=ETA, outer_learning_rate=1.0, momentum=0.0),
    NoLoCo(inner_optimizer="sgd", learning_rate=ETA, outer_learning_rate=1.0, consensus_rate=1.0, momentum=0.0),
    MultiGPU(learning_rate=ETA),
]


@pytest.mark.rotating  # as below: what a rule is in a limit, which each gate compares with its equations in NumPy
@pytest.mark.parametrize("scheme", ONE_WORKER, ids=lambda scheme: scheme.name)
def test_one_worker_is_serial_sgd(scheme):
    np.testing.assert_allclose(played(scheme).center, played(Serial(learning_rate=ETA)).center, **CLOSE)


INTERLEAVED = {"schedule": (0, 1, 1, 2, 0, 2, 2, 1, 0, 0, 1, 2) * 2}
IN_TURN = {"schedule": (0, 1, 2) * 8}
TOGETHER = {"steps": 20}
EQUAL: dict[str, Any] = {"staleness_exponent": 0.0}


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("one", "other", "options"),
    [
        (AsyncSGD(), DownpourEasy(communication_period=1, learning_rate=0.1), INTERLEAVED),
        (AsyncSGD(), Hogwild(learning_rate=0.1), INTERLEAVED),  # one worker after the other
        (AsyncSGD(), AGN(communication_period=1, server_learning_rate=0.1), INTERLEAVED),
        (
            AGN(communication_period=4, learning_rate=0.1, server_learning_rate=0.4),
            DownpourEasy(communication_period=4, learning_rate=0.1),
            INTERLEAVED,
        ),
        (AGN(learning_rate=0.1), ADAG(learning_rate=0.1, distance_scale=1e30), INTERLEAVED),
        (SyncSGD(), SyncSGDLR(learning_rates=(0.2,), reduction="mean"), TOGETHER),
        (SyncSGD(), SyncSGDLR(learning_rates=(0.2 / 3,) * 3, reduction="sum"), TOGETHER),
        (SyncSGD(), AllReduce(), TOGETHER),
        (AllReduce(), PowerSGD(learning_rate=0.1, momentum=0.0, rank=100), TOGETHER),  # 0.1: η (d + v), and v = d
        (AllReduce(), SGP(topology="complete"), TOGETHER),
        (SGP(topology="ring", learning_rate=0.02), QGDSGDm(momentum=0.0), TOGETHER),
        (AllReduce(), DSGDTracking(topology="complete"), TOGETHER),
        (AllReduce(), ExactDiffusion(topology="complete", form="d2"), TOGETHER),
        (SGP(topology="ring"), ChocoSGD(compressor="float32", consensus_rate=1.0), {"workers": 5, **TOGETHER}),
        (DPSGD(), ChocoSGD(compressor="float32", consensus_rate=1.0, order="authors"), {"workers": 5, **TOGETHER}),
        (SyncSGD(), RFA(smoothing=1e6), TOGETHER),
        (DistLion(), DistLion(form="average"), {**TOGETHER, "workers": 1}),
        (DistLion(), LocalSGD(communication_period=1, inner_optimizer="lion", learning_rate=0.003), {"workers": 1}),
        (SyncSGD(), CenteredClipping(momentum=0.0, radius=1e6, iterations=1), TOGETHER),
        (
            RFA(smoothing=0.5, iterations=40),
            CenteredClipping(momentum=0.0, radius=0.5, iterations=40),
            {**TOGETHER, "workers": 5},
        ),
        (SyncSGD(), Krum(bucket=3, hostile_share=0.01), TOGETHER),
        (DiLoCo(), GASLoC(topology="ring"), TOGETHER),
        (
            SlowMo(inner_optimizer="adamw", learning_rate=0.002, slow_momentum=0.5, slow_learning_rate=0.7),
            NoLoCo(topology="complete", communication_period=10),
            TOGETHER,
        ),
        (
            SGP(topology="ring"),
            GASLoC(
                communication_period=1, inner_optimizer="sgd", learning_rate=0.2, outer_learning_rate=1.0, momentum=0.0
            ),
            {"workers": 5, **TOGETHER},
        ),
        (SyncSGD(), KSync(workers_per_update=3), TOGETHER),
        (SyncSGD(), KAsync(workers_per_update=3), TOGETHER),
        (AsyncSGD(), KAsync(learning_rate=0.1, workers_per_update=1), INTERLEAVED),
        (SyncSGD(), SAGN(communication_period=1, server_learning_rate=0.2), TOGETHER),
        (SyncSGD(), LocalSGD(communication_period=1), TOGETHER),
        (SyncSGD(), LocalSGD(communication_period="post-local:1000,10"), TOGETHER),
        (
            SyncSGD(),
            DiLoCo(communication_period=1, inner_optimizer="sgd", learning_rate=0.2, outer_learning_rate=1, momentum=0),
            TOGETHER,
        ),
        (LocalSGD(communication_period=5), SAGN(communication_period=5, server_learning_rate=1.0), {"steps": 25}),
        (AsyncSGD(), DCASGD(compensation=0.0), INTERLEAVED),
        (AsyncSGD(), DCASGD(form="adaptive", compensation=0.0), INTERLEAVED),
        (AsyncSGD(), Ringmaster(delay_threshold=24), INTERLEAVED),
        (
            Ringmaster(delay_threshold=2),
            PlainRingmasterLMO(delay_threshold=2, momentum=0.0, learning_rate=0.1),
            INTERLEAVED,
        ),
        (SignSGDMV(), RingmasterLMO(step="sign", learning_rate=SignSGDMV().learning_rate), {"workers": 1}),
        (
            EF21Muon(share=1.0, reply_share=1.0),
            RingmasterLMO(learning_rate=0.02, momentum=0.9),
            {"workers": 1, "steps": 5},
        ),
        (AsyncSGD(), DelayAdaptive(), IN_TURN),
        (AsyncSGD(), FedBuff(communication_period=1, learning_rate=0.1, messages_per_update=1, **EQUAL), INTERLEAVED),
        (
            AsyncDiLoCo(inner_optimizer="sgd", momentum=0, outer_learning_rate=0.6, learning_rate=0.1),
            FedBuff(
                communication_period=20, learning_rate=0.1, messages_per_update=1, server_learning_rate=0.2, **EQUAL
            ),
            INTERLEAVED,
        ),
        (SoftSync(messages_per_update=3), FedBuff(communication_period=1, messages_per_update=3, **EQUAL), IN_TURN),
        (FedAsync(weight="constant"), FedAsync(weight="hinge", patience=2), IN_TURN),
        (FedAsync(weight="constant"), FedAsync(weight="polynomial", exponent=0.0), INTERLEAVED),
        (AsyncSGD(), KBatchAsync(learning_rate=0.1, messages_per_update=1), INTERLEAVED),
        (LocalSGD(), FedOpt(server_optimizer="adagrad", beta_1=0.0, tau=1e4, server_learning_rate=2e4), TOGETHER),
        (LocalSGD(), FedProx(proximity=0.0), TOGETHER),
        (SyncSGD(), FedProx(communication_period=1, proximity=3.0), TOGETHER),
        (SyncSGD(), Scaffold(communication_period=1), TOGETHER),
        (SyncSGD(), ProxSkip(probability=1.0), TOGETHER),
        (Scaffold(communication_period=5), FixedProxSkip(probability=0.2), TOGETHER),
        (FedProx(proximity=0.5), ForgetfulFedDyn(regularization=0.5), TOGETHER),
        (SyncSGD(), FedDyn(communication_period=1, learning_rate=0.1, regularization=5.0), TOGETHER),
        (LocalSGD(), FedExP(epsilon=1e6), TOGETHER),
        (LocalSGD(), FedNova(work=(1.0,)), TOGETHER),
        (SyncSGD(), TrimmedMean(trim=0.0), TOGETHER),
        (SyncSGD(), Krum(chosen=3), TOGETHER),
        (SyncSGD(), EFSGD(share=1.0), TOGETHER),
        (SyncSGD(), EF21SGDM(share=1.0, momentum=0.0), TOGETHER),
        (SyncSGD(), DIANA(share=1.0, learning_rate=0.2, memory_rate=0.5), TOGETHER),
        (SyncSGD(), MARINA(probability=1.0, learning_rate=0.2), TOGETHER),
        (SyncSGD(), MARINA(share=1.0, probability=0.3, learning_rate=0.2), TOGETHER),
        (EF21SGDM(share=0.3), PlainEF21Muon(share=0.3, reply_share=1.0, learning_rate=0.2), TOGETHER),
        (
            EF21Muon(share=1.0, reply_share=1.0, momentum=0.45),
            DeMo(step="muon", decay=0.9, subtraction=0.5, chunk=64, kept=64, learning_rate=0.02),
            {**TOGETHER, "steps": 5},
        ),
        (DiLoCo(momentum=0.0), SparseLoCo(share=1.0, outer_learning_rate=0.7), TOGETHER),
        (
            LocalSGD(inner_optimizer="adamw", learning_rate=0.002),
            DESLOC(communication_period=10, first_moment_every=9, second_moment_every=9),
            TOGETHER,
        ),
        (DiLoCo(), StreamingDiLoCo(delay=0, mixing=0.0), TOGETHER),
        (
            CO2(communication_period=5, outer_learning_rate=0.5, gap_penalty=1.0, momentum_clip=0.006),  # is reached
            CO2(communication_period=5, outer_learning_rate=1.0, gap_penalty=2.0, momentum_clip=0.003),
            TOGETHER,
        ),
        (DiLoCo(), DecoupledDiLoCo(quorum=3, average="plain"), TOGETHER),
        (DiLoCo(), DecoupledDiLoCo(), {"workers": 1}),
        (DiLoCo(), EDiT(momentum=0.9, temperature=1e6), TOGETHER),
        (DiLoCo(), PALSGD(pull_probability=0.0), TOGETHER),
        (SyncSGD(), Sparta(share=1.0, inner_optimizer="sgd", learning_rate=0.2), TOGETHER),
        (LocalSGD(communication_period=4), LoSCAR(communication_period=4, share=1.0, delay=0), TOGETHER),
        (CoCoDSGD(communication_period=4), LoSCAR(communication_period=4, share=1.0, delay=4), TOGETHER),
        (LocalSGD(), SlowMo(slow_momentum=0.0), TOGETHER),
        (LocalSGD(), BMUF(learning_rate=0.2, block_momentum=0.0), TOGETHER),
        (DiLoCo(communication_period=5), AsyncDiLoCo(communication_period=5, learning_rate=0.002), {"workers": 1}),
        (
            AsyncDiLoCo(communication_period=4, outer_learning_rate=0.9, momentum=0.0),
            HeLoCo(communication_period=4, learning_rate=0.005, outer_learning_rate=0.3, momentum=0.0, **UNTURNED),
            INTERLEAVED,
        ),
        (
            HeLoCo(communication_period=4, momentum_weight=1e9),
            HeLoCo(communication_period=4, **UNTURNED),
            INTERLEAVED,
        ),
        (
            AsyncDiLoCo(communication_period=4, outer_learning_rate=0.6),
            HALoS(
                **{"communication_period": 4, "regional_servers": 1, "moves_per_merge": 1, "merge_share": 1.0},
                **{"regional_learning_rate": 0.2, "regional_buffer": 3},
                **{"global_learning_rate": 1.0, "global_momentum": 0.0, "global_buffer": 1},
            ),
            INTERLEAVED,
        ),
        (
            AsyncDiLoCo(communication_period=4, momentum_share=0.2, momentum=0.0),
            AsyncDiLoCo(communication_period=4, momentum=0.0),
            INTERLEAVED,
        ),
        (Downpour(), Downpour(push_period=5, pull_period=5, warm_start=0), INTERLEAVED),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_two_schemes_are_one_in_a_limit(one, other, options):
    options = {"workers": 3, **options}
    np.testing.assert_allclose(played(one, **options).center, played(other, **options).center, **CLOSE)


MARKED = [  # with the options that the mark `= ...` of the catalogue names, and equal rates
    (KSync(workers_per_update=2), SyncSGD(backup_workers=1), {"schedule": (0, 1, 2) * 8}),
    (
        KBatchAsync(learning_rate=0.1, messages_per_update=3),
        FedBuff(communication_period=1, messages_per_update=3, learning_rate=0.1, **EQUAL),
        INTERLEAVED,
    ),
    (Ringmaster(delay_threshold=1), KBatchSync(learning_rate=0.1, messages_per_update=1), INTERLEAVED),
    (
        SlowMo(learning_rate=0.1, slow_momentum=0.6, slow_learning_rate=0.7),
        BMUF(block_momentum=0.6, block_learning_rate=0.7, form="classical"),
        TOGETHER,
    ),
    (LoSCAR(delay=0), Sparta(communication_period=2, inner_optimizer="sgd", learning_rate=0.2), TOGETHER),
    (AEASGD(), AEAMSGD(learning_rate=0.2, momentum=0.0), INTERLEAVED),
    (Hierarchical(), AsyncSGD(), INTERLEAVED),
    (SignSGDMV(), DistLion(beta_2=0.9), TOGETHER),
    (
        LocalSGD(inner_optimizer="momentum"),
        DiLoCo(
            communication_period=10, inner_optimizer="momentum", learning_rate=0.2, outer_learning_rate=1, momentum=0
        ),
        TOGETHER,
    ),
    (
        DynSGD(),
        FedBuff(communication_period=5, learning_rate=0.1, messages_per_update=1, staleness_exponent=1),
        INTERLEAVED,
    ),
]


@pytest.mark.parametrize(("one", "other", "options"), MARKED, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.rotating("others")
def test_a_scheme_is_the_other_one_that_the_catalogue_says_it_is(one, other, options):
    assert one.equals.split()[0] == other.name
    options = {"workers": 3, **options}
    np.testing.assert_allclose(played(one, **options).center, played(other, **options).center, **CLOSE)


def test_every_mark_of_the_catalogue_is_tried():
    assert {one.name for one, *_ in MARKED} == {name for name, kind in SCHEMES.items() if kind.equals}


@pytest.mark.parametrize("topology", ["ring", "random-matching", "one-peer"])
def test_the_mean_of_noloco_follows_heavy_ball_momentum_on_any_graph(topology):
    """Whatever the workers' moves are: the pull to the neighbours is zero in the mean."""
    weights, scheme = Topology(topology).weights, NoLoCo(consensus_rate=0.4)
    moves = np.random.default_rng(3).normal(size=(200, 4, 5))
    gradient = lambda x, k, t: moves[t, k]  # noqa: E731
    options = {"eta": 0.1, "epsilon": 0.7, "mu": scheme.momentum, "period": 5, "steps": 200}
    path = gossip_rules.noloco(np.ones(5), gradient, 4, weights=lambda number: weights(4, number), gamma=0.4, **options)
    center, velocity = np.ones(5), np.zeros(5)
    for number, mean in enumerate(path):
        velocity = 0.5 * velocity - 0.7 * 0.1 * moves[5 * number : 5 * number + 5].mean(1).sum(0)
        center = center + velocity
        np.testing.assert_allclose(mean, center, rtol=1e-12, atol=1e-12)


def test_post_local_sgd_is_synchronous_once_even_if_the_run_is_resumed():
    def lengths(steps, done=0):
        return [length for length, _ in LocalSGD(communication_period="post-local:6,4").rounds(steps, done)]

    assert lengths(15) == [1, 1, 1, 1, 1, 1, 4, 4, 1]
    assert lengths(5) + lengths(10, 5) == [1, 1, 1, 1, 1, 1, 4, 4, 1]
    assert lengths(9, 15) == [4, 4, 1]


def test_diloco_with_sgd_inside_is_blockwise_model_update_filtering():
    scheme = DiLoCo(inner_optimizer="sgd", learning_rate=0.1, communication_period=6, momentum=0.8)
    run = played(scheme, workers=3, steps=30)
    path = synchronous_rules.bmuf(run.start, run.gradient, 3, eta=0.1, zeta=0.7, mu=0.8, period=6, steps=30)
    np.testing.assert_allclose(run.center, path[-1] + 0.8 * (path[-1] - path[-2]), **CLOSE)


@pytest.mark.rotating
def test_bmuf_shows_its_global_model_and_starts_blocks_at_diloco_s_center():
    bmuf = BMUF(block_momentum=0.9, block_learning_rate=0.7, communication_period=6)
    scheme = DiLoCo(inner_optimizer="sgd", learning_rate=0.1, communication_period=6)
    before, last, diloco = (played(s, 3, steps).center for s, steps in ((bmuf, 18), (bmuf, 24), (scheme, 24)))
    np.testing.assert_allclose(last + 0.9 * (last - before), diloco, **CLOSE)
    assert np.linalg.norm(last - diloco) > 0.01 * np.linalg.norm(diloco)


def test_diloco_of_one_worker_is_lookahead():
    scheme = DiLoCo(
        inner_optimizer="sgd", learning_rate=0.1, communication_period=5, outer_learning_rate=0.5, momentum=0
    )
    run = played(scheme, steps=20)
    slow = run.start
    for t in range(0, 20, 5):
        fast = slow
        for h in range(5):
            fast = fast - 0.1 * run.gradient(fast, 0, t + h)
        slow = slow + 0.5 * (fast - slow)
    np.testing.assert_allclose(run.center, slow, **CLOSE)


def test_bmuf_in_its_classical_form_is_federated_averaging_with_momentum():
    """FedAvgM (Hsu, Qi, Brown 2019): v ← β v + Δ, w ← w + v, where Δ is the mean move of the clients."""
    run = played(BMUF(form="classical", block_momentum=0.9, communication_period=5), workers=3, steps=20)
    w, v = run.start, 0 * run.start
    for t in range(0, 20, 5):
        v = 0.9 * v + synchronous_rules.local_sgd(w, later(run.gradient, t), 3, eta=0.1, period=5, steps=5)[-1] - w
        w = w + v
    np.testing.assert_allclose(run.center, w, **CLOSE)


def later(gradient, first):
    """Return the gradient of worker k's batches from the first one on."""
    return lambda x, k, t: gradient(x, k, first + t)


def test_with_beta_one_easgd_centers_on_the_mean_of_its_workers():
    run = played(EASGD(beta=1.0, communication_period=1), workers=3, steps=8)
    x, center = [run.start.copy() for _ in range(3)], run.start
    for t in range(8):
        before, mean = center, np.mean(x, axis=0)
        x = [x_k - 0.2 * run.gradient(x_k, k, t) - (x_k - before) / 3 for k, x_k in enumerate(x)]
        center = mean
    np.testing.assert_allclose(run.center, center, **CLOSE)


@pytest.mark.rotating
def test_a_warm_start_longer_than_the_run_is_one_worker_after_the_other(tmp_path):
    run = threads(Downpour(warm_start=10**6), tmp_path, workers=2, steps=20)
    assert run.order[:4] == [0] * 4
    assert run.trace["staleness"][4] == 0
    assert run.error() < 1e-5


def test_dean_s_phase_first_pushes_one_gradient_and_drops_its_newest_steps():
    ends = [(1, "push"), (2, "pull"), (1, "push"), (2, "pull"), (1, "push"), (1, "exchange")]
    assert list(Downpour(phase="dean", communication_period=3).rounds(8)) == ends


@pytest.mark.rotating
def test_push_and_pull_may_have_periods_of_their_own(tmp_path):
    scheme = Downpour(push_period=2, pull_period=3, server_learning_rate=0.07, initial_accumulator=0.5)
    ends = [(2, "push"), (1, "pull"), (1, "push"), (2, "exchange"), (2, "push"), (1, "exchange")]
    assert list(scheme.rounds(9)) == ends
    run = threads(scheme, tmp_path, workers=2, schedule=[0, 1, 1, 0, 0, 1, 0, 1])
    run.steps = 10**6
    assert run.error() < 1e-5
    parameters = 4 * len(run.start)
    pushes = (run.trace["event"] != 2).sum()
    assert (run.result["bytes_pushed"], run.result["bytes_pulled"]) == (pushes * parameters, (4 + 2) * parameters)


def test_downpour_with_period_one_is_async_sgd_with_adagrad_on_the_server():
    run = played(Downpour(communication_period=1, server_learning_rate=0.05), workers=2, steps=10)
    theta, squares = run.start.copy(), np.full_like(run.start, 0.1)
    x = [theta.copy(), theta.copy()]
    for t in range(10):
        for k in range(2):
            g = run.gradient(x[k], k, t)
            squares += g * g
            theta = theta - 0.05 * g / np.sqrt(squares)
            x[k] = theta.copy()
    np.testing.assert_allclose(run.center, theta, **CLOSE)


@pytest.mark.rotating
def test_no_worker_is_further_ahead_than_the_slack(tmp_path):
    run = threads(SSP(slack=1), tmp_path, workers=3, steps=40)
    clocks, ahead = [0] * 3, 0
    for k in run.order:
        ahead = max(ahead, clocks[k] - min(clocks))
        clocks[k] += 1
    assert ahead <= 1
    assert run.error() < 1e-5


def events(scheme, schedule):
    """Return whether each event of a schedule made an update, and its staleness."""
    run, found = PlayedRun(scheme), []
    for k in schedule:
        before, staleness = run.group.version, run.group.staleness(k)
        run.step(k)
        found.append((run.group.version - before, staleness))
    return [list(column) for column in zip(*found, strict=True)]


def test_a_gradient_that_is_too_late_is_ignored_and_makes_no_other_later():
    accepted, staleness = events(Ringmaster(delay_threshold=2), [0, 1, 0, 2, 0, 1, 2, 2])
    assert accepted == [1, 1, 1, 0, 1, 0, 1, 1]
    assert staleness == [0, 1, 1, 3, 0, 2, 1, 0]


def test_k_gradients_at_the_present_center_make_an_update():
    order = [0, 0, 1, 1, 2, 0]
    assert events(KBatchSync(messages_per_update=2), order) == [[0, 1, 0, 0, 0, 1], [0, 0, 1, 0, 1, 0]]
    assert events(KBatchAsync(messages_per_update=2), order) == [[0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 2, 1]]


def test_late_messages_are_dropped_or_count_in_the_next_set():
    order = [0, 1, 2, 0, 1, 2]
    assert events(KSync(workers_per_update=2), order) == [[0, 1, 0, 0, 1, 0], [0, 0, 1, 0, 0, 1]]
    assert events(KAsync(workers_per_update=2), order) == [[0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 1, 0]]


@pytest.mark.parametrize("kind", [KBatchSync, KBatchAsync], ids=lambda kind: kind.name)
def test_k_gradients_of_one_worker_are_accumulated(kind):
    run = played(kind(learning_rate=0.3, messages_per_update=3), steps=12)
    theta = run.start
    for t in range(0, 12, 3):
        theta = theta - 0.3 * np.mean([run.gradient(theta, 0, t + i) for i in range(3)], axis=0)
    np.testing.assert_allclose(run.center, theta, **CLOSE)


def test_staleness_is_what_the_schedule_makes_it():
    _, staleness = events(AsyncSGD(), [0, 1, 0, 0, 0, 2, 1])
    assert staleness == [0, 1, 1, 0, 0, 5, 4]


def test_a_gradient_counts_as_the_updates_that_it_took():
    """The rates of each worker sum to η/W times the updates until its last one, however fast the worker is."""
    group = Group(RescaledASGD(learning_rate=0.3), np.zeros(3), workers=3)
    for k in (0, 1, 0, 0, 2, 0, 0, 2, 1, 0):
        group.step(k, -np.eye(3)[k])
    np.testing.assert_allclose(group.center, [10 * 0.1, 9 * 0.1, 8 * 0.1], rtol=1e-6)


def test_a_ringleader_moves_with_the_table_of_all_workers_once_for_each_in_a_cycle():
    group = Group(Ringleader(learning_rate=1.0), np.zeros(1), workers=2)
    centers, at = [], []
    for k, gradient in [(0, 1), (0, 3), (1, 4), (1, 10), (0, 5), (1, 20), (0, 1), (1, 2)]:
        group.step(k, np.array([float(gradient)]))
        centers.append(group.center[0])
        at.append(group.params(k)[0])
    moves = [0, 0, (2 + 4) / 2, 0, (3 + 4) / 2, 0, (1 + 15) / 2, (1 + 32 / 3) / 2]
    np.testing.assert_allclose(centers, -np.cumsum(moves), rtol=1e-5)
    np.testing.assert_allclose(at, [0, 0, -3, -3, -6.5, -3, -14.5, centers[-1]], rtol=1e-5)


@pytest.mark.parametrize(
    ("rule", "most"), [(buffered_rules.ringleader, 4), (functools.partial(buffered_rules.malenia, s=1), 1)]
)
def test_the_center_soon_stands_still_without_one_of_its_workers(rule, most):
    """Once worker 0 of three has finished, 2W - 2 messages move a ringleader's center at most, and one Malenia's."""
    rng, moves = np.random.default_rng(0), set()
    for _ in range(200):
        order = [*rng.integers(0, 3, rng.integers(5, 30)), 0, *rng.integers(1, 3, 40)]
        path = np.array(rule(np.array([1.0]), lambda x, k, t: np.ones(1), order, 3, eta=1.0))[:, 0]
        moves.add(np.count_nonzero(np.diff(path[-41:])))
    assert max(moves) == most


@pytest.mark.parametrize(
    ("enough", "messages", "moves"),
    [
        (1.0, [(0, 1), (0, 3), (1, 4), (0, 100), (1, 6), (0, 2)], [0, 0, (2 + 4) / 2, 0, 0, (6 + 2) / 2]),
        (1.5, [(0, 1), (0, 3), (1, 4), (1, 8), (0, 100), (1, 1)], [0, 0, 0, (2 + 6) / 2, 0, 0]),
    ],
    ids=str,
)
def test_malenia_waits_for_enough_gradients_at_one_center_and_ignores_older_ones(enough, messages, moves):
    group = Group(Malenia(learning_rate=1.0, gradients_per_worker=enough), np.zeros(1), workers=2)
    centers = []
    for k, gradient in messages:
        group.step(k, np.array([float(gradient)]))
        centers.append(group.center[0])
        assert group.params(k) == group.center
    np.testing.assert_allclose(centers, -np.cumsum(moves), rtol=1e-5)


TIMES = (1, 2, 5, 20)  # of a gradient of each worker; worker k has the minimum k


def in_time(until):
    """Return the worker of each gradient up to a time, in which all workers have finished one together."""
    ends, order = [(time, k) for k, time in enumerate(TIMES)], []
    while ends[0][0] <= until:
        now, k = ends[0]
        heapq.heapreplace(ends, (now + TIMES[k], k))
        order.append(k)
    return order


def test_fast_workers_draw_async_sgd_to_their_minimum_and_no_scheme_that_is_fair():
    """On Σ (x − k)²/2 asynchronous SGD converges to the mean weighted by speed, (0 + 1/2 + 2/5 + 3/20)/1.75 = 0.6."""
    order, slope = in_time(2000), lambda x, k, t: x - k
    for rule, eta, mean in (
        (asynchronous_rules.async_sgd, 0.005, 0.6),
        (asynchronous_rules.rescaled_asgd, 0.005, 1.5),
        (buffered_rules.ringleader, 0.05, 1.5),  # 4 updates in the 35 messages of 20 s
        (functools.partial(buffered_rules.malenia, s=1), 0.2, 1.5),  # one update
    ):
        path = rule(np.array([4.0]), slope, order, 4, eta=eta)
        assert np.mean(path[-35:]) == pytest.approx(mean, abs=0.01)


def test_without_a_bound_it_is_async_sgd_with_a_share_of_the_rate():
    run = played(SSP(learning_rate=0.3, slack=1000), workers=3, **INTERLEAVED)
    path = asynchronous_rules.async_sgd(run.start, run.gradient, INTERLEAVED["schedule"], 3, eta=0.1)
    np.testing.assert_allclose(run.center, path[-1], **CLOSE)


def test_a_vote_moves_each_weight_by_the_rate_or_not_at_all():
    run = played(SignSGDMV(learning_rate=0.01), workers=3, steps=1)
    moves = np.round(np.abs(run.center - run.start) / 0.01, 3)
    assert set(moves) == {0.0, 1.0}  # the mean of three signs may be a third


def test_without_momentum_and_decay_one_worker_steps_along_gradient_signs():
    run = played(SignSGDMV(learning_rate=0.01, momentum=0.0), steps=6)
    theta = run.start
    for t in range(6):
        theta = theta - 0.01 * np.sign(run.gradient(theta, 0, t))
    np.testing.assert_allclose(run.center, theta, **CLOSE)


def test_scaled_signs_are_of_each_variable():
    run = PlayedRun(EFSGD(compressor="sign", learning_rate=0.1), workers=1).in_turn(1)
    moved, gradient = run.start - run.center, run.gradient(run.start, 0, 0)
    cuts = np.cumsum([np.prod(shape) for shape in run.shapes])[:-1]
    assert len(cuts) == 5
    for part, step in zip(*(np.split(vector, cuts) for vector in (moved, gradient)), strict=True):
        np.testing.assert_allclose(part, 0.1 * np.abs(step).mean() * np.sign(step), rtol=1e-3, atol=1e-7)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("scheme", "workers", "devices"),
    [
        pytest.param(MultiGPU(learning_rate=0.3), 1, 3, marks=pytest.mark.rotating),
        pytest.param(Hierarchical(learning_rate=0.3), 1, 3, marks=pytest.mark.rotating),
        (SyncSGD(learning_rate=0.3), 3, 2),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_workers_and_devices_are_serial_sgd_on_larger_batches(scheme, workers, devices, tmp_path):
    x, y = (array[:96] for array in DIGITS.train)

    def batches(context):
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(24 // workers)
        return data.shard(context.num_input_pipelines, context.input_pipeline_id)

    model = ModelRecipe.named("mlp:hidden=7-5", (64,), 10, 0).build()
    center = FlatModel(model).pack().astype(np.float64)
    cluster = Cluster.local(workers, ps=2 if scheme.sync.uses_ps else 1, backend="threads", devices_per_worker=devices)
    options = {"steps": 12, "batch_size": 24 // workers, "run_dir": tmp_path, "verbose": False, "jit": "on"}
    result = train(model, batches, scheme, cluster=cluster, **options)
    assert result.metrics["arithmetic"]["xla"]
    slope = gradients.mlp_gradient(x, y, [64, 7, 5, 10])
    for t in range(12):
        center = center - 0.3 * slope(center, np.arange(24) + 24 * (t % 4))
    np.testing.assert_allclose(FlatModel(model).pack(), center, **CLOSE)


@pytest.mark.rotating
def test_the_late_gradient_is_dropped_and_its_worker_continues(tmp_path):
    run = threads(SyncSGD(backup_workers=1), tmp_path, workers=3, schedule=[0, 1, 1, 2, 2, 0, 0, 2])
    assert run.trace["accepted"].tolist() == [1, 1, 1, 0, 1, 0, 1, 1]  # late in the middle of a set, and before one
    assert run.error() < 1e-5
    assert run.result["dropped"] == 2


@pytest.mark.rotating
def test_a_barrier_that_cannot_fill_names_the_missing_workers(tmp_path):
    with pytest.raises(WaitTimeout, match=r"barrier for worker 1, worker 2|turn"):
        threads(SyncSGD(), tmp_path, workers=3, schedule=[0, 0], wait_seconds=1)


def test_an_elastic_exchange_conserves_params_plus_center():
    """Σ x_k + θ moves by exactly −η g for every local step, exchanges or not."""
    gradient = np.array([1.0, -2.0, 0.5])
    group = Group(AEASGD(learning_rate=0.01, communication_period=2), np.zeros(3), workers=3)
    for steps, k in enumerate([0, 1, 1, 0, 2, 0, 1, 2], start=1):
        group.step(k, gradient)
        total = group.center + sum(group.params(j) for j in range(3))
        np.testing.assert_allclose(total, -0.01 * steps * gradient, rtol=1e-5)
    assert np.abs(group.center).max() > 0.001


@pytest.mark.parametrize("scheme", [AEASGD(beta=0.0), EASGD(beta=0.0), AEAMSGD(beta=0.0)], ids=lambda s: s.name)
@pytest.mark.gate("others")
def test_without_elasticity_the_center_never_moves(scheme):
    run = played(scheme, workers=2, steps=25)
    np.testing.assert_array_equal(run.center, run.start.astype(np.float32))


def size_after(scheme, workers, rounds=60):
    """|x| on ½x² after that number of rounds of workers in turn, from 1."""
    group = Group(scheme, np.array([1.0, -0.5]), workers=workers)
    for k in list(range(workers)) * rounds:
        group.step(k, group.point(k))
    return np.abs(group.center).max()


CURVATURES, MINIMA = np.array([0.5, 2.0]), np.array([-1.0, 1.0])  # of two workers with unequal data
MINIMUM = CURVATURES @ MINIMA / CURVATURES.sum()  # of the mean loss
LOCAL: dict[str, Any] = {"learning_rate": 0.1, "communication_period": 10}


def at_rest(scheme, rounds=40):
    """Return the center at which two workers with ½ a_k (x − b_k)² come to rest."""
    group = Group(scheme, np.array([3.0]), workers=2)
    while group.version < rounds:
        for k in group.ready:
            group.step(k, CURVATURES[k] * (group.point(k) - MINIMA[k]))
    return group.center[0]


def drifted(steps=(10, 10), mu=0.0, weights=(1, 1)):
    """Return that center by hand, if the move of each worker has a weight.

    After H steps worker k is at m_k + (1 − η (a_k + μ))^H (θ − m_k); m_k minimizes ½ a_k (x − b_k)² + ½ μ (x − θ)².
    """
    moved = (1 - (1 - 0.1 * (CURVATURES + mu)) ** steps) * CURVATURES / (CURVATURES + mu) * weights
    return moved @ MINIMA / moved.sum()


def test_the_common_variate_of_a_short_round_is_the_mean_gradient_of_its_steps():
    """The last round of a run may be short, and one that resumes it continues with the variate."""
    scheme = Scaffold(communication_period=4, learning_rate=0.1, server_learning_rate=0.5)
    values = {name: tf.Variable([value]) for name, value in {"params": 1.0, "began": 1.0, "common": 0.0}.items()}
    gradients = 3.0, 5.0  # two steps in place of four: the center moves by ε η times their sum
    scheme.on_reply(Worker(steps=tf.constant(2.0), **values), tf.constant([1.0 - 0.5 * 0.1 * sum(gradients)]))
    np.testing.assert_allclose(values["common"], [np.mean(gradients)], rtol=1e-5)


@pytest.mark.rotating
def test_scaffold_reaches_the_minimum_where_local_sgd_drifts_away_from_it():
    assert at_rest(LocalSGD(**LOCAL)) == pytest.approx(drifted(), rel=1e-4)
    assert abs(drifted() - MINIMUM) > 0.2
    assert at_rest(Scaffold(**LOCAL)) == pytest.approx(MINIMUM, rel=1e-4)
    assert at_rest(Scaffold(server_learning_rate=0.5, **LOCAL)) == pytest.approx(MINIMUM, rel=1e-4)
    assert at_rest(ProxSkip(learning_rate=0.1)) == pytest.approx(MINIMUM, rel=1e-4)
    assert at_rest(FedDyn(regularization=0.5, **LOCAL)) == pytest.approx(MINIMUM, rel=1e-4)


@pytest.mark.parametrize("steps", [1, 3, 40])
def test_the_slope_of_feddyn_s_server_is_the_mean_of_its_workers_which_are_the_gradients_at_the_minimum(steps):
    group = Group(FedDyn(regularization=0.5, **LOCAL), np.array([3.0]), workers=2)
    while group.version < steps:
        for k in group.ready:
            group.step(k, CURVATURES[k] * (group.point(k) - MINIMA[k]))
    slopes = [group._operations.local.row("slope", k).read_value().numpy() for k in (0, 1)]
    np.testing.assert_allclose(group._operations.servers[0].variables["slope"], np.mean(slopes, axis=0), atol=1e-5)
    if steps == 40:
        np.testing.assert_allclose(np.ravel(slopes), CURVATURES * (MINIMUM - MINIMA), rtol=1e-3)


def test_rounds_are_drawn_from_the_seed_alike_for_all_workers_and_a_resumed_run_continues_the_draw():
    scheme = ProxSkip(probability=0.1)
    drawn, other = ([*scheme.rounds(3 * COINS, seed=seed)] for seed in (0, 1))
    assert drawn != other
    assert [*scheme.rounds(3 * COINS, worker=2)] == drawn
    ends = np.cumsum([steps for steps, _ in drawn])
    assert ends[-1] == 3 * COINS
    assert len(drawn) / (3 * COINS) == pytest.approx(0.1, rel=0.02)
    for done in (1, 7, int(ends[4]), COINS - 1, COINS, COINS + 5):
        again = done + np.cumsum([steps for steps, _ in scheme.rounds(COINS, done)])
        expected = ends[(ends > done) & (ends < done + COINS)].tolist()
        assert again.tolist() == [*expected, done + COINS]  # the last round ends with the run


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.rotating
def test_fedprox_drifts_less_the_stronger_its_spring(mu):
    center = at_rest(FedProx(proximity=mu, **LOCAL))
    assert center == pytest.approx(drifted(mu=mu), rel=1e-4)
    assert drifted() < center < MINIMUM


def test_the_slope_of_a_lost_worker_stays_in_that_of_feddyn_s_server():
    """s ← s − (α/W) Σ over those that have sent, of three workers two; the mean of the parameters is theirs."""
    server = Server(center=tf.Variable([1.0]), num_workers=3, slope=tf.Variable([0.3]), messages=tf.Variable(2.0))
    center = FedDyn(regularization=0.5).server_update(server, tf.constant([2.0]), tf.constant(0.0))
    slope = 0.3 - 0.5 * 2 / 3
    np.testing.assert_allclose(server.slope, [slope], rtol=1e-5)
    np.testing.assert_allclose(center, [2 - slope / 0.5], rtol=1e-5)


@pytest.mark.parametrize(
    ("moves", "factor"),
    [
        ([[1, 0, 0, 0], [1, 0, 0, 0]], 1),  # equal moves: as local_sgd
        (np.eye(4)[:2], 1),
        (np.eye(4)[:3], 1.5),
        (np.eye(4), 2),  # orthogonal ones of one length: W/2
        ([[3, 0, 0, 0], [-1, 0, 0, 0]], 2.5),
    ],
)
def test_fedexp_steps_the_further_the_less_the_moves_agree(moves, factor):
    group = Group(FedExP(communication_period=1, learning_rate=1.0, epsilon=0.0), np.zeros(4), workers=len(moves), ps=1)
    for k, move in enumerate(moves):
        group.step(k, np.array(move, float))
    np.testing.assert_allclose(-group.center, factor * np.mean(moves, axis=0), rtol=1e-6)


@pytest.mark.rotating
def test_fednova_counts_workers_alike_whatever_the_number_of_their_steps():
    center = at_rest(FedNova(work=(1.0, 0.3), **LOCAL))
    assert center == pytest.approx(drifted(steps=(10, 3), weights=(1 / 10, 1 / 3)), rel=1e-4)
    assert abs(center - MINIMUM) < 0.3 * abs(drifted(steps=(10, 3)) - MINIMUM)


def test_fednova_s_workers_make_their_part_of_each_period():
    def lengths(worker):
        return [length for length, _ in FedNova(work=(1.0, 0.5, 0.0)).rounds(23, worker=worker)]

    assert [lengths(worker) for worker in range(4)] == [[10, 10, 3], [5, 5, 2], [1, 1, 1], [10, 10, 3]]


@pytest.mark.parametrize(
    ("workers", "trim", "hostile", "stands"),
    [
        (5, 0.2, 1, True),
        (5, 0.2, 2, False),
        (5, 0.5, 2, True),
        (5, 0.5, 3, False),
        (4, 0.5, 1, True),
        (4, 0.5, 2, False),
    ],
)
@pytest.mark.rotating
def test_a_trimmed_mean_stands_as_many_hostile_workers_as_it_drops(workers, trim, hostile, stands):
    """Workers with ½(x − b)², b near 1; some send the gradient with the wrong sign, ten times as large."""
    group = Group(TrimmedMean(trim=trim), np.array([3.0, -2.0]), workers=workers)
    for k in list(range(workers)) * 60:
        gradient = group.point(k) - (1 + 0.01 * k)
        group.step(k, -10 * gradient if k < hostile else gradient)
    assert (np.abs(group.center - 1).max() < 0.1) == stands


@pytest.mark.parametrize(("workers", "hostile", "stands"), [(5, 1, True), (7, 2, True), (5, 3, False)])
@pytest.mark.parametrize("chosen", [1, 2])
@pytest.mark.rotating
def test_krum_stands_a_minority_of_hostile_workers_and_no_majority(workers, hostile, stands, chosen):
    """Honest workers have ½(x − b)², b near 1; hostile ones send the same gradient, which leads away."""
    group = Group(Krum(hostile_share=0.29, chosen=chosen), np.array([3.0, -2.0]), workers=workers)
    for k in list(range(workers)) * 60:
        gradient = group.point(k) - (1 + 0.01 * k)
        group.step(k, np.array([5.0, 5.0]) if k < hostile else gradient)
    assert (np.abs(group.center - 1).max() < 0.1) == stands


def test_krum_chooses_the_gradient_with_the_nearest_neighbours():
    gradients = np.array([[0.0, 0.0], [1.0, 0.0], [1.5, 0.0], [1.0, 1.0], [9.0, 9.0]])
    # With f = 1, two neighbours count: the sums are 3.25 - 1 = 3.25, 1.25, 1.5, 2.25 and more than 100.
    for chosen, expected in ((1, [1.0, 0.0]), (2, [1.25, 0.0]), (3, [3.5 / 3, 1 / 3])):
        group = Group(Krum(learning_rate=1.0, chosen=chosen), np.zeros(2), workers=5)
        for k, gradient in enumerate(gradients):
            group.step(k, gradient)
        np.testing.assert_allclose(-group.center, expected, rtol=1e-6)


def test_krum_leaves_out_the_row_of_a_worker_that_is_lost_and_takes_the_last_one_alone():
    for present, expected in ([1.0, 0.0, 1.0, 1.0], -1.0), ([0.0, 0.0, 0.0, 1.0], -9.0):
        rows, flags = tf.Variable([[1.0], [3.5], [3.0], [9.0]]), tf.Variable(present)
        server = Server(center=tf.Variable([0.0]), num_workers=4, gradients=rows, present=flags)
        scheme = Krum(hostile_share=0.0, learning_rate=1.0)
        assert scheme.server_update(server, tf.constant([0.0]), tf.constant(0.0)).numpy() == [expected]
        assert flags.numpy().tolist() == [0.0] * 4


def test_krum_needs_the_whole_vector_on_one_ps():
    with pytest.raises(UserError, match=r"^krum needs the whole vectors on one ps: leave ps out\. Received: ps=2$"):
        job_of(Krum(), ps=2)


def test_a_trimmed_mean_leaves_out_the_row_of_a_worker_that_is_lost():
    rows, present = tf.Variable([[1.0], [100.0], [3.0], [9.0]]), tf.Variable([1.0, 0.0, 1.0, 1.0])
    server = Server(center=tf.Variable([0.0]), num_workers=4, gradients=rows, present=present)
    center = TrimmedMean(trim=0.5, learning_rate=1.0).server_update(server, tf.constant([0.0]), tf.constant(0.0))
    assert (center.numpy(), present.numpy().tolist()) == ([-3.0], [0.0] * 4)


def test_the_share_that_is_trimmed_is_a_half_at_most():
    with pytest.raises(UserError, match=r"^trim must be at most 0\.5, the median\. Received: trim=0\.6"):
        Group(TrimmedMean(trim=0.6), np.zeros(1), workers=2)


def test_adamw_is_that_of_keras_with_the_epsilon_of_the_paper():
    """Keras adds ε to the square root of v itself, the paper to that of v/(1 − β₂ᵗ): here ε is large, so it shows."""
    theirs = keras.optimizers.AdamW(0.05, weight_decay=0.3, beta_1=0.9, beta_2=0.999, epsilon=1e-2)
    rng = np.random.default_rng(0)
    start = rng.normal(size=5).astype("f")
    expected, x, first, second = keras.Variable(start), tf.Variable(start), *(tf.Variable(tf.zeros(5)) for _ in "mv")
    steps = tf.Variable(0.0)
    for t in range(1, 6):
        gradient = 0.1 * rng.normal(size=5).astype("f")
        theirs.epsilon = 1e-2 * np.sqrt(1 - 0.999**t)
        theirs.apply([tf.constant(gradient)], [expected])
        adamw(x, first, second, steps, tf.constant(gradient), 0.05, 0.3, epsilon=1e-2)
        np.testing.assert_allclose(x, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("inner", "kind", "options"),
    [
        ("momentum:momentum=0.8", "SGD", {"momentum": 0.8}),
        ("adam:beta_1=0.8", "Adam", {"beta_1": 0.8, "epsilon": 1e-8}),
        ("adamw:weight_decay=0.3", "AdamW", {"weight_decay": 0.3, "epsilon": 1e-8}),
        ("lion:weight_decay=0", "Lion", {"beta_2": 0.99, "weight_decay": 0.0}),
        ("lion:beta_2=0.9,weight_decay=0.3", "Lion", {"beta_2": 0.9, "weight_decay": 0.3}),
    ],
)
def test_an_inner_optimizer_is_that_of_keras_and_keeps_its_state(inner, kind, options):
    theirs = getattr(keras.optimizers, kind)(0.05, **options)
    rng = np.random.default_rng(0)
    expected = keras.Variable(start := rng.normal(size=5).astype("f"))
    group = Group(LocalSGD(learning_rate=0.05, communication_period=2, inner_optimizer=inner), start, workers=1)
    for _ in range(6):
        gradient = rng.normal(size=5).astype("f")
        theirs.apply([tf.constant(gradient)], [expected])
        group.step(0, gradient)
    assert group.version == 3
    np.testing.assert_allclose(group.center, expected, rtol=1e-4)


def test_muon_is_that_of_keras_for_matrices_and_other_variables():
    import keras

    options = {"momentum": 0.9, "weight_decay": 0.3, "adam_weight_decay": 0.3, "epsilon": 1e-8}
    theirs, rng = keras.optimizers.Muon(0.05, **options), np.random.default_rng(0)
    start = [rng.normal(size=shape).astype("f") for shape in ((3, 5), (6, 2), (4,), (2, 3, 2), ())]
    expected = [keras.Variable(array) for array in start]
    scheme = LocalSGD(learning_rate=0.05, inner_optimizer="muon:momentum=0.9,weight_decay=0.3", communication_period=2)
    group = Group(scheme, start, workers=1)
    for _ in range(6):
        gradients = [rng.normal(size=array.shape).astype("f") for array in start]
        theirs.apply(list(map(tf.constant, gradients)), expected)
        group.step(0, gradients)
    for own, array in zip(group.center, expected, strict=True):
        np.testing.assert_allclose(own, array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [LocalSGD, SlowMo, BMUF, DiLoCo, AsyncDiLoCo])
@pytest.mark.parametrize(
    ("inner", "message"),
    [
        ("adamx", "unknown inner_optimizer 'adamx'. Did you mean adam"),
        ("lion:beta=1", "inner_optimizer lion has no option 'beta' .its options: beta_1, beta_2, weight_decay."),
        ("momentum:momentum=1", "momentum must be below 1. Received: momentum=1"),
        (None, "inner_optimizer must be a text: sgd, momentum, adam, adamw, lion, muon, or .* Received: None"),
    ],
)
def test_a_wrong_inner_optimizer_is_refused(kind, inner, message):
    kind(inner_optimizer="adam:epsilon=1")
    with pytest.raises(UserError, match=message):
        kind(inner_optimizer=inner)


@pytest.mark.parametrize(("share", "kept"), [(1e-9, 1), (0.19, 1), (0.2, 2), (0.59, 5), (1.0, 10)])
def test_top_k_keeps_that_share_of_the_largest_elements_and_at_least_one(share, kept):
    vector = np.array([1, -10, 3, -2, 5, 9, -8, 4, 7, -6], "f")
    largest = np.where(np.abs(vector) > 10 - kept, vector, 0)
    np.testing.assert_array_equal(top_k(tf.constant(vector), share), largest)


def test_a_step_with_a_mean_divides_its_rate_and_not_the_vector():
    x = tf.Variable([1.0, 2.0, 3.0])

    @tf.function(autograph=False)
    def step(total, number):
        sgd(x, total / number, 0.5)

    step(tf.constant([3.0, 6.0, -3.0]), tf.constant(3.0))
    np.testing.assert_allclose(x.numpy(), [0.5, 1.0, 3.5], rtol=1e-6)
    step(tf.constant([3.0, 6.0, -3.0]), tf.constant([3.0, 6.0, 3.0]))  # no number: a divisor for each element
    np.testing.assert_allclose(x.numpy(), [0.0, 0.5, 4.0], rtol=1e-6)
    operations = step.get_concrete_function(tf.TensorSpec([3]), tf.TensorSpec([])).graph.get_operations()
    (kernel,) = (op for op in operations if op.type == "ResourceApplyGradientDescent")
    assert kernel.inputs[2].op.type == "Placeholder"


@pytest.mark.parametrize(("factor", "stable"), [(0.93, True), (1.07, False)])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.rotating("others")
def test_workers_in_turn_are_stable_exactly_below_the_known_step(workers, factor, stable):
    """On ½x² with W workers in turn the limit is 2 sin(π/(4W − 2)): 2, 1, 0.618, 0.445."""
    limit = 2 * np.sin(np.pi / (4 * workers - 2))
    size = size_after(AsyncSGD(learning_rate=factor * limit), workers)
    assert size < 0.3 if stable else size > 3


@pytest.mark.parametrize(("factor", "stable"), [(0.93, True), (1.07, False)])
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.rotating("others")
def test_elastic_workers_in_turn_are_stable_exactly_below_the_papers_bound(workers, factor, stable):
    """On ½x² with period one: α ≤ (4 − 2η)/(4 − η), whatever the odd number of workers."""
    eta = 1.2
    alpha = factor * (4 - 2 * eta) / (4 - eta)
    scheme = AEASGD(learning_rate=eta, beta=alpha * workers, communication_period=1)
    size = size_after(scheme, workers)
    assert size < 0.3 if stable else size > 3


@pytest.mark.parametrize(("factor", "stable"), [(0.93, True), (1.07, False)])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.rotating("others")
def test_synchronous_elastic_workers_are_stable_only_below_the_known_bound(workers, factor, stable):
    """On ½x² with period one: α ≤ (4 − 2η)/(2 + W(2 − η))."""
    eta = 1.2
    alpha = factor * (4 - 2 * eta) / (2 + workers * (2 - eta))
    scheme = EASGD(learning_rate=eta, beta=alpha * workers, communication_period=1)
    size = size_after(scheme, workers, rounds=90)
    assert size < 0.3 if stable else size > 3


@pytest.mark.parametrize(
    "scheme",
    [Downpour(push_period=3, pull_period=4), AEASGD(), SyncSGD(backup_workers=1), TrimmedMean(trim=0.4), DPSGD()],
    ids=lambda s: s.name,
)
@pytest.mark.gate
@pytest.mark.rotating("others")
def test_nothing_leaves_the_task_of_the_lock_under_it(scheme, tmp_path):
    """Else a worker that is stopped or cut off in this moment would hold it.

    A checkpoint once made a round trip to the chief; numbers of a request once followed it from the worker.
    """
    ps, keep = (1, Recovery(min_workers=2)) if scheme.sync.gossips else (2, Recovery())
    job = job_of(scheme, workers=3, ps=ps, backend="processes", steps=9, run_dir=tmp_path, recovery=keep)
    operations = TaskGraph(job, [1]).graph.get_operations()
    locks = [op for op in operations if op.type == "MutexLock"]
    assert len(locks) > 5
    for lock in locks:
        (unlock,) = (op for op in lock.outputs[0].consumers() if op.type == "ConsumeMutexLock")
        for op in before(unlock) - before(lock):
            assert op.type == "ReadVariableOp" or "/job:ps" in op.device or task_of(op) == task_of(lock), op


def task_of(op):
    return op.device.partition("/device:")[0]


def test_sparta_makes_the_drawn_elements_their_mean_and_leaves_the_others():
    start, rng = np.arange(40.0), np.random.default_rng(0)
    group = Group(Sparta(share=0.3, inner_optimizer="sgd", learning_rate=1.0), start, workers=2, seed=5)
    own, center = [start.copy(), start.copy()], start.copy()
    for number in range(6):
        for k in (0, 1):
            gradient = rng.normal(size=40)
            group.step(k, gradient)
            own[k] = own[k] - gradient
        drawn = uniform_numbers(5, 40, number) < 0.3
        assert 0 < drawn.sum() < 40
        mean = np.mean(own, axis=0)
        center, *own = (np.where(drawn, mean, x) for x in (center, *own))
        np.testing.assert_allclose(group.center, center, rtol=1e-5, atol=1e-5)
        for k in (0, 1):
            np.testing.assert_allclose(group.params(k), own[k], rtol=1e-5, atol=1e-5)


def test_loscar_adds_the_steps_since_the_message_to_the_mean_of_drawn_elements_and_keeps_the_mean_of_all():
    start, rng = np.arange(40.0), np.random.default_rng(0)
    scheme = LoSCAR(communication_period=3, delay=2, share=0.3, learning_rate=1.0)
    group = Group(scheme, start, workers=2, seed=5)
    own = sent = np.stack([start, start])
    center = start
    for number in range(6):
        for step in range(3):
            gradients = rng.normal(size=(2, 40))
            own = own - gradients
            sent = own if step == 0 else sent
            for k in (0, 1):
                group.step(k, gradients[k])
        drawn, mean = uniform_numbers(5, 40, number) < 0.3, own.mean(axis=0)
        center = np.where(drawn, sent.mean(axis=0), center)
        own = np.where(drawn, center + own - sent, own)
        np.testing.assert_allclose(own.mean(axis=0), mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(group.center, center, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose([group.params(k) for k in (0, 1)], own, rtol=1e-5, atol=1e-5)


def test_palsgd_pulls_the_drawn_steps_to_the_last_center_and_makes_the_others_longer():
    start, rng = np.arange(4.0), np.random.default_rng(0)
    scheme = PALSGD(inner_optimizer="sgd", learning_rate=0.1, pull_probability=0.4, communication_period=8)
    group = Group(scheme, start, workers=2, seed=5)
    x, pulls = [start.copy(), start.copy()], []
    for t in range(7):
        for k in (0, 1):
            gradient = rng.normal(size=4)
            pulls.append(uniform_numbers(5, 1, k, t)[0] < 0.4)
            x[k] = x[k] - 0.1 * 0.5 / 0.4 * (x[k] - start) if pulls[-1] else x[k] - 0.1 / 0.6 * gradient
            group.step(k, gradient)
            np.testing.assert_allclose(group.params(k), x[k], rtol=1e-5, atol=1e-5)
    assert 0 < sum(pulls) < len(pulls)
    assert pulls[::2] != pulls[1::2], "workers draw for themselves"


def test_des_loc_averages_one_vector_at_a_time_and_half_as_many_as_local_adam():
    def ends(steps, done=0, **options):
        lengths, kinds = zip(*DESLOC(**options).rounds(steps, done=done), strict=True)
        return dict(zip((np.cumsum(lengths) + done).tolist(), kinds, strict=True))

    means = ends(60)
    assert [t for t, kind in means.items() if kind == "parameters"] == [10, 20, 30, 40, 50, 60]
    assert [t for t, kind in means.items() if kind == "first_moment"] == [23, 53]
    assert [t for t, kind in means.items() if kind == "second_moment"] == [56]
    assert 2 * len(means) == len(ends(60, first_moment_every=1, second_moment_every=1))
    assert {t: kind for t, kind in ends(300).items() if t > 170} == ends(130, done=170), "a resumed run continues"
    assert list(ends(8)) == [8]


@pytest.mark.parametrize(("often", "equal"), [(1, True), (9, False)])
def test_des_loc_makes_the_moments_of_the_workers_equal(often, equal):
    scheme = DESLOC(communication_period=3, first_moment_every=often, second_moment_every=often, weight_decay=0.0)
    group, rng = Group(scheme, np.zeros(4), workers=2), np.random.default_rng(0)
    moves = []
    for t in range(4):  # the means: of m after one step, of v after two, of the parameters after three
        begun = [group.params(k) for k in (0, 1)]
        for k in (0, 1):
            group.step(k, rng.normal(size=4) if t == 0 else np.zeros(4))
        moves = [group.params(k) - begun[k] for k in (0, 1)]
    assert np.abs(moves[0]).min() > 1e-5
    assert np.allclose(*moves, rtol=1e-4, atol=0) == equal


@pytest.mark.parametrize("recovery", [{"max_restarts": 1}, {"min_workers": 1}, {"on_nan": "drop"}])
def test_workers_of_des_loc_cannot_fall_behind(recovery):
    with pytest.raises(UserError, match=r"^workers of des_loc must make the same rounds: leave max_restarts,"):
        job_of(DESLOC(), workers=2, recovery=Recovery(**recovery))
    with pytest.raises(UserError, match=r"^workers of des_loc must make the same rounds: leave failures out$"):
        check(DESLOC(), Machines(Platform(failures="crashes:every=1h")), 2)


def test_des_loc_has_no_codec_whose_memory_would_mix_its_vectors():
    with pytest.raises(
        UserError, match=r"^des_loc sends several vectors in turn: leave codec out\. Received: codec=bf16"
    ):
        job_of(DESLOC(), codec="bf16")
