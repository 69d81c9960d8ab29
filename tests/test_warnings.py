"""What a scheme warns of before a run: it is true, and defaults warn of nothing."""

import json
from functools import partial

import numpy as np
import pytest

from distsgd.algorithms import AEAMSGD, AEASGD, EASGD, SCHEMES, AsyncSGD
from distsgd.common import UserError
from distsgd.common.contract.checks import check_scheme, warnings_of
from distsgd.common.launch import run as launch
from distsgd.common.replay.reference import asynchronous_rules, synchronous_rules
from runs import record

ROUNDS = 400


def kick(x, k, t):
    """The gradient of a flat loss, but for the first step, which drives the workers apart."""
    return np.array([(-1.0) ** k if t == 0 else 0.0])


def farthest(path) -> float:
    return float(np.abs(path).max())


def in_any_order(rule, beta, workers, **more):
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(workers), ROUNDS)).tolist()
    return rule(np.zeros(1), kick, order, workers, eta=1.0, alpha=beta / workers, period=1, steps=ROUNDS, **more)


RULES = {
    EASGD: lambda beta, workers: synchronous_rules.easgd(
        np.zeros(1), kick, workers, eta=1.0, beta=beta, period=1, steps=ROUNDS
    ),
    AEASGD: partial(in_any_order, asynchronous_rules.aeasgd),
    AEAMSGD: partial(in_any_order, asynchronous_rules.aeamsgd, delta=0.5),
}


@pytest.mark.parametrize("workers", [1, 3, 5])
@pytest.mark.parametrize("scheme", RULES, ids=lambda scheme: scheme.name)
def test_elastic_workers_are_warned_only_where_exchanges_drive_them_apart(scheme, workers):
    limit = 2 * workers / (workers + 1) if scheme is EASGD else workers
    for factor, stable in ((0.97, True), (1.03, False)):
        beta = factor * limit
        assert (farthest(RULES[scheme](beta, workers)) < 100) == stable
        assert (list(scheme(beta=beta).check(workers)) == []) == stable
    (line,) = scheme(beta=2 * limit).check(workers)
    assert f"{workers} workers" in line
    assert line.endswith(f"Received: beta={2 * limit:g}")


class Yields(AsyncSGD):
    def check(self, workers):
        if workers > 2:
            raise UserError("too many")
        yield "mind the rate"


class ReturnsOne(AsyncSGD):
    def check(self, workers):
        return "mind the rate"


def test_a_check_may_yield_its_warnings_or_return_one_and_a_refusal_is_never_lost():
    for kind in (Yields, ReturnsOne):
        assert warnings_of(kind(), 2) == ["mind the rate"]
    with pytest.raises(UserError, match="too many"):
        check_scheme(Yields(), 3)


@pytest.mark.parametrize("name", SCHEMES)
def test_defaults_warn_of_nothing(name):
    for workers in (1, 2, 16, 1000):
        assert warnings_of(SCHEMES[name](), workers) == []


def test_a_run_logs_the_warning_of_its_scheme_and_begins(monkeypatch, tmp_path):
    def start(*_: object) -> None:
        raise UserError("it has begun")

    monkeypatch.setattr(launch, "start", start)
    with pytest.raises(UserError, match="it has begun"):
        record(EASGD(beta=3), tmp_path, workers=2)
    (line,) = json.loads((tmp_path / "result.json").read_text())["recovery"]["warnings"]
    assert "not stable" in line
