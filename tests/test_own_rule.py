"""A synchronization rule in a user's own file, of public parts alone, in a run that loses a worker."""

import signal
from pathlib import Path

import numpy as np
import pytest
from going import Going

from distsgd.algorithms import SCHEMES
from distsgd.common.cli.imports import import_schemes
from distsgd.common.contract import Alone, Async, Barrier, Bounded, Collective, Synchronization, Unlocked
from distsgd.common.errors import UserError
from distsgd.common.record_format import EVENTS
from distsgd.common.sync.release import waiting_at
from distsgd.common.tasks.options import Recovery
from runs import DIGITS

FILE = Path(__file__).with_name("own_rule.py")
SLACK = 2
STEPS = 300


@pytest.mark.rotating
def test_a_custom_rule_survives_a_killed_process_and_keeps_its_bound(warm, tmp_path):
    scheme = import_schemes(FILE, {})["bounded_sgd"](slack=SLACK)
    options = {"workers": 3, "ps": 2, "steps": STEPS, "recovery": Recovery(max_restarts=1), "test": DIGITS.test}
    run = Going(scheme, tmp_path / "run", **options)
    run.send("worker-1", signal.SIGKILL)
    result = run.end().result
    assert (result["outcome"], result["recovery"]["restarts"]) == ("completed", {"worker-1": 1})
    assert (result["updates"], result["test_accuracy"] > 0.8) == (3 * STEPS, True)
    with np.load(tmp_path / "run" / "trace.npz") as trace:
        messages = trace["worker"][trace["event"] == EVENTS.index("exchange")]
    ahead = bounds(messages, 3)
    assert max(ahead) <= SLACK


def bounds(order, workers):
    """For each message, how many rounds its worker was ahead of the last one while it computed it, at least."""
    clocks = np.zeros(workers, int)
    for k in order:
        yield int(clocks[k] - clocks.min())
        clocks[k] += 1


RING = """
from dataclasses import dataclass

from distsgd.common.contract import Collective, Rate, Scheme, sgd

@dataclass(frozen=True)
class Ring(Collective):
    def exchange(self, ps, slot, message):
        sides = {(slot.index - 1) % ps.num_workers, (slot.index + 1) % ps.num_workers}
        for k in sides:
            slot.mail.send(k, message.vector)
        return sum((slot.mail.receive(k, message.vector.shape[0]) for k in sides), start=message.vector) / 3

@dataclass(frozen=True, kw_only=True)
class Gossip(Scheme):
    name = "gossip"
    sync = Ring()

    learning_rate: Rate = 0.1

    def message(self, worker):
        return worker.gradient
"""


@pytest.mark.parametrize("command", [["simulate", "gossip"], ["rumour", "--backend", "simulation"]])
def test_a_rule_that_overrides_exchange_is_not_simulated_as_its_base(command, tmp_path, run_main):
    (tmp_path / "ring.py").write_text(RING.replace("gossip", command[command[0] == "simulate"]))
    try:
        code, out, errors = run_main("--import", str(tmp_path / "ring.py"), *command, "--workers", "5", "--steps", "5")
    finally:  # other tests look at the whole catalogue
        SCHEMES.pop(command[command[0] == "simulate"])
    assert (code, out) == (2, "")
    (line,) = [line for line in errors.splitlines() if "error:" in line]
    assert line.startswith("error: Ring overrides methods that a simulation and a Group do not call")
    assert "starting TensorFlow" not in errors


def varied(parent, **own):
    return type("Own", (parent,), own)()


@pytest.mark.parametrize(
    ("sync", "known"),
    [
        *((kind(), True) for kind in (Alone, Async, Barrier, Bounded, Collective, Unlocked)),
        (varied(Barrier, check=lambda self, workers: None, label="mine"), True),
        (varied(Barrier, exchange=lambda self, ps, slot, message: message), False),
        (varied(Barrier, exchange=lambda self, ps, slot, message: message, simulated=True), True),
        (varied(Barrier, exchange=lambda self, ps, slot, message: message, set_size=lambda self, active: active), True),
        (varied(type(varied(Async, simulated=True)), push=lambda self, ps, slot, message: None), False),
        (varied(Collective, _mean=lambda self, *_: None), False),
        (varied(Bounded, release=property(lambda self: None)), False),
        (varied(Synchronization), False),
    ],
)
def test_a_rule_s_own_methods_are_refused_unless_it_declares_simulated(sync, known):
    assert sync.simulated is known
    if known:
        assert waiting_at(sync, 1)
    else:
        with pytest.raises(UserError, match="set `simulated = True`"):
            waiting_at(sync, 1)


def test_a_rule_of_ones_own_has_a_label_and_checks_its_options(tmp_path):
    scheme = import_schemes(FILE, SCHEMES)["bounded_sgd"]
    assert (scheme().sync.label, scheme().sync.updates_per_round(3)) == ("bounded rounds", 3)
    with pytest.raises(UserError, match="slack"):
        scheme(slack=-1)
