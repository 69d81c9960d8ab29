"""The order of events against formulas of queueing and order statistics: what virtual time says is what theory says.

Seeds are fixed, so that a test passes always or never; tolerances are a few standard errors.
"""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scheduled
from scipy import integrate, special, stats

from distsgd.algorithms import (
    SSP,
    AllReduce,
    AsyncSGD,
    KAsync,
    KBatchAsync,
    KBatchSync,
    KSync,
    LocalSGD,
    SoftSync,
    SyncSGD,
)
from distsgd.common.cluster.platform import Machines, Platform
from distsgd.common.contract.rounds import Rounds
from distsgd.simulator.virtual_time.durations import WorkerPlan

MEGABYTE = 1e6


happens = partial(scheduled.happens, seed=1)


def middle(found, column):
    """Values without the first and the last tenth, when not all workers are in a cycle."""
    values = found.trace[column]
    return values[len(values) // 10 : -len(values) // 10]


def rate(found):
    """Updates of the center per second, in the middle of the run."""
    at, version = middle(found, "microseconds"), middle(found, "version")
    return (version[-1] - version[0]) / (at[-1] - at[0]) * 1e6


def steps_of(compute, workers, steps, seed=1):
    """Durations of single steps as multiples of their mean, [workers, steps]."""
    plan = WorkerPlan(Machines(Platform(step_ms=1000.0, compute=compute)), Rounds.even(steps, 1), workers, seed)
    return np.array([[plan.total(k, r) for r in range(steps)] for k in range(workers)]) / 1e9


def harmonic(n):
    return sum(1 / i for i in range(1, n + 1))


NETWORKS = [
    {},
    {"network": "one-rack"},
    {"network": "internet"},
    {"network": "cloud-regions"},
    {"network": "federated"},
    {"service": "3ms"},
    {"service": "1ms", "ps_link": "1Gbit", "sharing": "fifo"},
    {"step_factors": "0.58,0.75,1.51,3.33"},
    {"cores": 4, "core_ms": 3.0},
]


@pytest.mark.parametrize("machines", NETWORKS, ids=str)
@pytest.mark.rotating("others")
def test_mean_staleness_is_the_other_workers_on_any_machines(machines):
    """Little's law: each worker is always in a cycle, and each update ends one of them."""
    workers = 16
    found = happens(AsyncSGD(), workers, 400, size=1e5, reply_bytes=1e5, compute="lognormal:sigma=0.8", **machines)
    at = found.trace["microseconds"]
    end = min(at[found.trace["worker"] == k].max() for k in range(workers))  # then the first has no more rounds
    counted = (at < end) & (found.trace["version"] > 5 * workers)
    assert found.trace["staleness"][counted].mean() == pytest.approx(workers - 1, rel=0.03)


@pytest.mark.parametrize("n", [1, 15, 30])
def test_the_staleness_of_n_softsync_is_about_n_and_rarely_twice_that(n):
    """Figure 1 of Zhang et al. 2016, on 30 learners of about the same speed."""
    scheme = SoftSync(messages_per_update=30 // n)
    staleness = middle(happens(scheme, 30, 100, compute="lognormal:sigma=0.1"), "staleness")
    assert staleness.mean() == pytest.approx(29 / 30 * n, rel=0.05)
    assert np.mean(staleness > 2 * n) < 1e-3


@pytest.mark.parametrize(
    "compute", ["constant", "exponential", "shifted:fixed=0.3", "lognormal:sigma=0.7", "phases:slow=10,length=5"]
)
@pytest.mark.rotating("others")
def test_asynchronous_updates_come_at_the_rate_of_all_workers_alone(compute):
    """Renewal theory: W/E[X] for any distribution."""
    assert rate(happens(AsyncSGD(), 8, 4000, compute=compute)) == pytest.approx(8 / 0.010, rel=0.03)


@pytest.mark.rotating
def test_staleness_is_geometric_where_computing_has_no_memory():
    """P(tau_k = j) = p_k (1 - p_k)^j with p_k the share of commits of worker k, for the time that all work."""
    speeds = np.array([1, 1, 2, 4])
    found = happens(AsyncSGD(), 4, 40_000, compute="exponential", step_factors="1,1,0.5,0.25")
    at, worker = found.trace["microseconds"], found.trace["worker"]
    counted = at < at[worker == 3].max()
    for k, p in enumerate(speeds / speeds.sum()):
        mine = counted & (worker == k)
        staleness = found.trace["staleness"][mine]
        assert mine.sum() / counted.sum() == pytest.approx(p, rel=0.03)
        assert staleness.mean() == pytest.approx(1 / p - 1, rel=0.04)
        for j in range(4):
            assert np.mean(staleness == j) == pytest.approx(p * (1 - p) ** j, abs=3.5 * math.sqrt(p / mine.sum()))


def test_a_worker_begins_an_abandoned_round_again():
    """E[min(X, T)]/P(X < T) for each gradient, of constant X given up at exponential times T, and the pauses.

    The catalogue has no scheme that stops a worker while it computes (Ringmaster drops what has come too late); a crash
    does, and the worker begins the round anew.
    """
    every, down = 10, 20  # milliseconds; a gradient takes 10
    found = happens(AsyncSGD(), 8, 500, failures=f"crashes:every={every}ms,down={down}ms")
    survive = math.exp(-10 / every)
    computing, pauses = every * (1 - survive) / survive, down * (1 / survive - 1)
    assert rate(found) == pytest.approx(8 / (computing + pauses) * 1e3, rel=0.05)


def test_order_statistics_of_shifted_exponential_steps():
    """E[X_K:W] = delta + (H_W - H_(W-K))/mu."""
    drawn = np.sort(steps_of("shifted:fixed=0.4", 8, 20_000), 0)
    for k in (1, 5, 8):
        expected = 0.4 + 0.6 * (harmonic(8) - harmonic(8 - k))
        assert drawn[k - 1].mean() == pytest.approx(expected, rel=0.01)


def test_order_statistics_of_pareto_steps():
    """E[X_K:W] = x_m Gamma(W+1) Gamma(W-K+1-1/a) / (Gamma(W-K+1) Gamma(W+1-1/a))."""
    a, workers = 3.5, 8
    drawn = np.sort(steps_of(f"pareto:shape={a}", workers, 40_000), 0)
    for k in (1, 5, 7):
        logs = special.gammaln([workers + 1, workers - k + 1 - 1 / a, workers - k + 1, workers + 1 - 1 / a])
        expected = (a - 1) / a * math.exp(logs[0] + logs[1] - logs[2] - logs[3])
        assert drawn[k - 1].mean() == pytest.approx(expected, rel=0.01)


def test_a_barrier_takes_as_long_as_the_slowest_of_all():
    """1/E[X_W:W]; exponential: H_W times the mean."""
    assert 1 / rate(happens(SyncSGD(), 8, 8000, compute="exponential")) == pytest.approx(0.01 * harmonic(8), rel=0.02)


@pytest.mark.parametrize("compute", ["constant", "exponential", "lognormal:sigma=0.7"])
@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.rotating("others")
def test_k_batch_async_has_the_rate_and_the_staleness_of_a_kth_of_the_updates(count, compute):
    """W/(K·E[X]) and (W - 1)/K for any distribution: Dutta et al. 2018, and Little's law."""
    found = happens(KBatchAsync(messages_per_update=count), 8, 4000, compute=compute)
    assert rate(found) == pytest.approx(8 / count / 0.010, rel=0.03)
    assert middle(found, "staleness").mean() == pytest.approx(7 / count, rel=0.03)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.rotating("others")
def test_k_async_takes_as_long_as_the_kth_of_all_where_computing_has_no_memory(count):
    """E[X_K:W] = H_W - H_(W-K) times the mean: Dutta et al. 2018."""
    found = happens(KAsync(workers_per_update=count), 8, 6000, compute="exponential")
    assert 1 / rate(found) == pytest.approx(0.01 * (harmonic(8) - harmonic(8 - count)), rel=0.03)


def until_update(fresh, late, left, waits):
    """Steps of all workers until `left` more workers have a gradient at the present center, without memory.

    Each busy worker is the next to end with the same chance: one with a late gradient then begins at the present
    center, one with a fresh gradient waits, or begins again. In units of the mean time of a worker.
    """
    if not left:
        return 0.0
    busy, again = fresh + late, fresh - waits
    here = 1 / busy + (fresh / busy * until_update(again, late, left - 1, waits) if fresh else 0.0)
    return here + (late / busy * until_update(fresh + 1, late - 1, left, waits) if late else 0.0)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.rotating("others")
def test_without_cancelling_late_gradients_delay_the_next_update(count):
    """With cancelling it would be E[X_K:W] for K-sync, and K/W for K-batch-sync: Dutta et al. 2018."""
    together = happens(KSync(workers_per_update=count), 8, 6000, compute="exponential")
    alone = happens(KBatchSync(messages_per_update=count), 8, 6000, compute="exponential")
    assert 1 / rate(together) == pytest.approx(0.01 * until_update(count, 8 - count, count, 1), rel=0.03)
    assert 1 / rate(alone) == pytest.approx(0.01 * until_update(1, 7, count, 0), rel=0.03)
    assert until_update(8, 0, count, 1) == pytest.approx(harmonic(8) - harmonic(8 - count))


@pytest.mark.parametrize("period", [1, 10, 100])
def test_local_steps_hide_stragglers(period):
    """The maximum of W sums of H exponential steps, per step: 3.37, 1.64, 1.19 for 16 workers."""
    workers = 16
    found = happens(LocalSGD(communication_period=period), workers, 1500 * period, compute="exponential")
    most, _ = integrate.quad(lambda x: 1 - stats.gamma.cdf(x, period) ** workers, 0, 10 * period + 50, limit=500)
    assert 1 / rate(found) == pytest.approx(0.01 * most, rel=0.02)


def test_fewer_exchanges_hide_their_delay():
    """AdaComm: (1 + a)/(1 + a/H) for constant steps y and a delay a y."""
    every = happens(LocalSGD(communication_period=1), 4, 200, latency="15ms").seconds
    seldom = happens(LocalSGD(communication_period=10), 4, 200, latency="15ms").seconds
    assert every / seldom == pytest.approx((1 + 3) / (1 + 3 / 10), rel=1e-6)


def test_with_bounded_staleness_the_slowest_sets_the_rate():
    """W/max X for any slack, after a while."""
    for slack in (0, 3):
        found = happens(SSP(slack=slack), 4, 2000, step_factors="0.58,0.75,1.51,3.33")
        assert rate(found) == pytest.approx(4 / 0.0333, rel=0.01)


def repairman(workers, think, service):
    """Updates per second of workers that think and then queue for one server that is shared fairly."""
    ways = sum(math.perm(workers, i) * (service / think) ** i for i in range(workers + 1))
    return (1 - 1 / ways) / service


@pytest.mark.parametrize(("workers", "compute"), [(4, "exponential"), (16, "exponential"), (16, "lognormal:sigma=1")])
@pytest.mark.rotating("others")
def test_the_card_of_the_ps_is_the_server_of_the_machine_repairman(workers, compute):
    """(1 - p_0)/S with 1/p_0 = sum of W!/(W-i)! (S/Z)^i, for any distribution of thinking; MVA has the same."""
    one_millisecond = {"reply_bytes": 0.0, "ps_link": "8Gbit"}
    found = happens(AsyncSGD(), workers, 20_000 // workers, compute=compute, **one_millisecond)
    assert rate(found) == pytest.approx(repairman(workers, 0.010, 0.001), rel=0.03)


def test_both_ways_of_the_card_are_servers_of_their_own():
    """Mean value analysis of thinking and two fairly shared servers."""
    workers, think, services = 16, 0.010, (0.001, 0.002)
    queues = [0.0, 0.0]
    for n in range(1, workers + 1):
        waits = [s * (1 + q) for s, q in zip(services, queues, strict=True)]
        speed = n / (think + sum(waits))
        queues = [speed * wait for wait in waits]
    found = happens(AsyncSGD(), workers, 1500, reply_bytes=2 * MEGABYTE, compute="exponential", ps_link="8Gbit")
    assert rate(found) == pytest.approx(speed, rel=0.02)


@pytest.mark.parametrize("workers", [2, 10, 11, 12, 40])
def test_the_lock_of_the_ps_has_its_knee_where_workers_fill_it(workers):
    """min(W/(Z + S), 1/S) where nothing is random: the knee is at W = (Z + S)/S = 11."""
    found = happens(AsyncSGD(), workers, 200, service="1ms")
    assert rate(found) == pytest.approx(min(workers / 0.011, 1 / 0.001), rel=0.01)


@pytest.mark.parametrize(("workers", "ps"), [(4, 1), (4, 2), (4, 4), (16, 2)])
def test_messages_of_a_barrier_take_as_long_as_the_narrowest_place(workers, ps):
    """Each way max(n/b_w, W n/(n_ps b_ps)): at n_ps = W as long as a ring with the same links takes without latency."""
    found = happens(SyncSGD(), workers, 5, ps=ps, uplink="1Gbit", downlink="1Gbit", ps_link="1Gbit")
    alone = MEGABYTE * 8 / 1e9
    assert found.seconds == pytest.approx(5 * (0.010 + 2 * max(alone, workers / ps * alone)), rel=1e-6)


@pytest.mark.parametrize(("collective", "turns"), [("slices", 1), ("ring", 7), ("tree", 3)])
def test_reductions_cost_latency_for_each_turn_and_two_vectors(collective, turns):
    machines = {"uplink": "1Gbit", "downlink": "1Gbit", "latency": "2ms", "collective": collective}
    found = happens(AllReduce(), 8, 5, size=4 * MEGABYTE, **machines)
    cost = 2 * turns * 0.002 + 2 * 7 / 8 * 4 * MEGABYTE * 8 / 1e9
    assert found.seconds == pytest.approx(5 * (0.010 + cost), rel=1e-6)


def test_a_small_vector_is_added_up_by_one_worker_whose_link_has_them_all():
    found = happens(AllReduce(), 8, 5, size=MEGABYTE / 10, uplink="1Gbit", downlink="1Gbit", latency="2ms")
    cost = 2 * 0.002 + 2 * 7 * MEGABYTE / 10 * 8 / 1e9
    assert found.seconds == pytest.approx(5 * (0.010 + cost), rel=1e-6)


@pytest.mark.parametrize(("period", "utilisation"), [(1, 10 / 42), (10, 100 / 132)])
def test_the_part_of_a_round_that_is_computing(period, utilisation):
    """H c/(H c + communication), without overlap: 2 latencies and 2 transfers of 8 ms here."""
    found = happens(LocalSGD(communication_period=period), 1, 100, uplink="1Gbit", downlink="1Gbit", latency="8ms")
    begun, ready, replied = (found.rounds[:, column] for column in (2, 3, -1))
    assert (ready - begun).sum() / (replied - begun).sum() == pytest.approx(utilisation, rel=1e-6)


STRAGGLERS = Path(__file__).parent.parent / "benchmarks" / "results" / "stragglers.json"


def test_each_row_of_stragglers_is_predicted_within_a_tenth_from_its_first():
    """What is committed: real runs, and what simulations said that were fitted to the one without backup workers."""
    for runs in json.loads(STRAGGLERS.read_text())["runs"].values():
        real = np.mean([run["milliseconds"] for run in runs])
        said = np.mean([run["predicted"]["milliseconds"] for run in runs])
        assert said == pytest.approx(real, rel=0.1)
        dropped = np.mean([run["predicted"]["dropped"] - run["dropped"] for run in runs])
        assert abs(dropped) < 0.02
