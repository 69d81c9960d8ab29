"""The experiment of HALoS' paper: a server in each region, and one above them."""

import numpy as np
import pytest

from distsgd.benchmarks import reproduced, reproduced_regions
from distsgd.common.replay.reference.regional_rules import delayed_server


def gradient(x, k, t):
    return x - k - np.sin(t + np.arange(len(x)))


def alone(monkeypatch, **constants):
    """Let there be one region of three workers, with links that take no time, for so many seconds."""
    monkeypatch.setattr(reproduced_regions, "SPEEDS", ((0.9, 0.53, 0.17),))
    monkeypatch.setattr(reproduced_regions, "LINKS", ((1e9,),))
    monkeypatch.setattr(reproduced_regions, "SECONDS", 60.0)
    for name, value in constants.items():
        monkeypatch.setattr(reproduced_regions, name, value)


def test_a_server_takes_each_step_whole_and_its_momentum_with_every_third():
    epsilon, beta = 0.3, 0.8
    server = delayed_server(np.ones(4), epsilon, beta, 3)
    theta, m, total = np.ones(4), np.zeros(4), np.zeros(4)
    for n, g in enumerate(np.random.default_rng(0).normal(size=(10, 4)), 1):
        theta, total = theta - epsilon * g, total + g
        if n % 3 == 0:
            m, total = beta * m + total / 3, np.zeros(4)
            theta = theta - 3 * epsilon * beta * m
        np.testing.assert_allclose(server.step(g), theta, rtol=1e-12)


def test_one_region_that_merges_each_update_is_one_server(monkeypatch):
    alone(monkeypatch, MERGED=1, SHARE=1.0, GLOBAL=(1.0, 0.0, 1), LOCAL=(0.05, 0.9, 32))
    monkeypatch.setattr(reproduced_regions, "PERIODS", {"async_diloco": 8, "halos": 8})
    one, regional = (
        list(rule(np.ones(4), gradient)) for rule in (reproduced_regions.async_diloco, reproduced_regions.halos)
    )
    assert len(one) > 32
    for (at, theta), (then, merged) in zip(one, regional, strict=True):
        assert then == pytest.approx(at, abs=1e-3)
        np.testing.assert_allclose(merged, theta, rtol=1e-9)


def test_a_region_sends_its_news_after_k_updates_since_a_merge(monkeypatch):
    alone(monkeypatch, MERGED=4, PERIODS={"async_diloco": 8, "halos": 8})
    arrivals = [at for at, _, _ in reproduced_regions._at_one_server()]
    sent = [at for at, _ in reproduced_regions.halos(np.ones(4), gradient)]
    assert sent == pytest.approx(arrivals[3::4], abs=1e-3)


@pytest.mark.rotating
def test_regional_servers_are_as_much_faster_as_the_paper_says(monkeypatch):
    monkeypatch.setattr(reproduced_regions, "SEEDS", 1)
    (regions,) = (each for each in reproduced.EXPERIMENTS if each.name == "regions")
    numbers = regions.measure()
    assert regions.agrees(numbers)
    assert not regions.agrees(numbers | {"diloco_faster": 5.0})
    assert not regions.agrees(numbers | {"async_diloco_faster": 1.0})
