"""What the algorithms' docstrings state and no run shows: defaults, values at their limits, few workers."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from covering import CATALOGUE
from distsgd.algorithms import (
    DESLOC,
    PALSGD,
    SCHEMES,
    AsyncDiLoCo,
    Krum,
    OneBitAdam,
    PowerSGD,
    Scaffold,
    StreamingDiLoCo,
    SyncSGDLR,
    TrimmedMean,
)
from distsgd.common import Group, UserError
from distsgd.common.contract import Async, Barrier, Bounded, Gossip, Pairs, Quorum

DEFAULTS = Path(__file__).with_name("defaults.json")


def test_defaults_are_those_of_the_table():
    """A change of one changes what users train. Change the table, too, and name it in the changelog."""
    table = json.loads(DEFAULTS.read_text())
    found = {name: {"communication_period": SCHEMES[name]().period} | vars(SCHEMES[name]()) for name in table}
    own = {name: {field: found[name][field] for field in fields} for name, fields in table.items()}
    assert json.loads(json.dumps(own)) == table


# Other names that stand for an algorithm with options.
OTHER_NAMES = {
    "median --trim 0.5": "trimmed_mean",
    "multi_krum --chosen 2": "krum",
    "fedadam --server-optimizer adam": "fedopt",
    "fedyogi --server-optimizer yogi": "fedopt",
    "fedadagrad --server-optimizer adagrad --beta-1 0": "fedopt",
    "fedavgm --form classical --block-momentum 0.9": "bmuf",
    "lookahead --workers 1 --momentum 0 --outer-learning-rate 0.5": "diloco",
    "snoo --workers 1": "diloco",
    "muloco --inner-optimizer muon --learning-rate 0.02 --communication-period 30 --momentum 0.6": "diloco",
    "local_adam --first-moment-every 1 --second-moment-every 1": "des_loc",
    "overlapped_all_reduce --buckets 4": "all_reduce",
    "ddp --buckets 4": "all_reduce",
    "one_step_delay --delay 1": "all_reduce",
    "pipe_sgd --delay 1": "all_reduce",
}


def test_other_names_have_the_options_of_the_table():
    assert [name for name, of in OTHER_NAMES.items() if name not in SCHEMES[of].aliases] == []


@pytest.mark.parametrize(
    ("workers", "allowed", "refused"),
    [
        (4, DESLOC(communication_period=3), DESLOC(communication_period=2)),
        (4, AsyncDiLoCo(momentum_share=0.25), AsyncDiLoCo(momentum_share=0.26)),
        (5, Krum(hostile_share=0.2), Krum(hostile_share=0.4)),
        (7, Krum(hostile_share=0.4), Krum(hostile_share=0.5)),
        (2, PALSGD(pull_probability=0.999), PALSGD(pull_probability=1.0)),
        (
            2,
            StreamingDiLoCo(communication_period=9, fragments=3),
            StreamingDiLoCo(communication_period=10, fragments=3),
        ),
        (3, SyncSGDLR(learning_rates=(0.1, 0.2, 0.3)), SyncSGDLR(learning_rates=(0.1, 0.2))),
        (3, TrimmedMean(trim=0.5), TrimmedMean(trim=0.51)),
        (3, Barrier(backup_workers=2), Barrier(backup_workers=3)),
        (3, Bounded(slack=0), Bounded(slack=-1)),
        (3, Quorum(1, grace=0.0), Quorum(0)),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_value_at_its_limit_is_allowed_and_the_next_is_refused(workers, allowed, refused):
    allowed.check(workers)
    with pytest.raises(UserError, match="Received: "):
        refused.check(workers)


def test_an_update_has_a_message_of_as_many_workers_as_a_rule_says_and_at_least_of_one():
    active = range(6)
    assert [Barrier(backup_workers=2).set_size(number) for number in active] == [1, 1, 1, 1, 2, 3]
    assert [Quorum(3).set_size(number) for number in active] == [1, 1, 2, 3, 3, 3]
    rules = {Barrier(1): 1, Quorum(2): 1, Quorum(2, late="count"): 2.5, Bounded(1): 5, Async(): 5, Gossip(): 1}
    assert {rule: rule.updates_per_round(5) for rule in rules} == rules


def test_the_mean_of_workers_that_gossip_is_collected_a_hundred_times_in_a_run_unless_snapshots_are_taken():
    for every in (lambda last: Gossip().every(last, None), Pairs().every):
        assert [every(last) for last in (None, 20, 199, 200, 5000)] == [10, 1, 1, 2, 50]
    assert Gossip().every(5000, (7, 3)) == 7


def test_a_run_that_is_resumed_after_any_round_has_the_rounds_of_one_that_is_not():
    """A push or a pull alone ends no run."""
    cycle = DESLOC(communication_period=6, first_moment_every=2, second_moment_every=3)  # of 36 steps
    for name, scheme in {**CATALOGUE, "cycle": cycle}.items():
        rounds, done = [*scheme.rounds(80)], 0
        for number, (steps, kind) in enumerate(rounds, 1):
            done += steps
            if kind not in ("push", "pull"):
                assert [*scheme.rounds(80 - done, done)] == rounds[number:], (name, done)


def test_of_few_workers_one_value_is_left_to_the_trimmed_mean():
    assert [TrimmedMean(trim=0.5).sync.most_left_out(messages) for messages in range(6)] == [0, 0, 0, 1, 1, 2]
    assert [TrimmedMean(trim=0.25).sync.most_left_out(messages) for messages in range(6)] == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("present", [[0, 1, 0], [0, 1, 1], [1, 1, 1]])
def test_krum_chooses_among_the_workers_that_are_left(present):
    """Of one worker, or of as few as the hostile ones it expects, each still has a score."""
    gradients, center = np.array([[5.0, 0.0], [1.0, 0.0], [1.2, 0.0]], "f"), tf.Variable([0.0, 0.0])
    server = SimpleNamespace(
        num_workers=3,
        center=center,
        gradients=tf.Variable(gradients),
        present=tf.Variable(tf.constant(present, tf.float32)),
    )
    scheme = Krum(learning_rate=1.0, hostile_share=0.34)
    scheme.server_update(server, None, 0.0)
    np.testing.assert_array_equal(-center.numpy(), gradients[1])
    assert server.present.numpy().tolist() == [0, 0, 0]


def test_powersgd_sends_a_matrix_as_it_is_if_its_factors_are_as_long():
    sizes = {(4, 4): [16], (4, 5): [8, 10], (3, 5): [15], (4,): [4], (5, 2, 3): [20, 6]}
    assert {shape: PowerSGD(rank=2).message_sizes([shape]) for shape in sizes} == sizes


def test_scaffold_divides_a_move_by_the_steps_of_its_round():
    worker = SimpleNamespace(steps=3.0, **{name: tf.Variable([4.0]) for name in ("began", "common", "params")})
    Scaffold(communication_period=10, learning_rate=0.5, server_learning_rate=2.0).on_reply(worker, tf.constant([1.0]))
    np.testing.assert_allclose(worker.common, [1.0])


def test_one_bit_adam_steps_where_a_variance_is_tiny():
    group = Group(OneBitAdam(learning_rate=0.1), np.zeros(2), workers=1)
    group.step(0, np.array([1e-6, 0.0]))
    np.testing.assert_allclose(group.center, [-0.1, 0], rtol=0.02)
