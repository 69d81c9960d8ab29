"""The leaderboard: the same budget for all, scores that follow from seconds, which rows are kept."""

from dataclasses import dataclass, replace
from pathlib import Path

import cloudpickle
import pytest

from distsgd import Scheme
from distsgd.algorithms import SCHEMES
from distsgd.benchmarks import grids, leaderboard, tables
from distsgd.benchmarks.leaderboard_page import Entry, cells, keep, kept, scores
from distsgd.common.errors import UserError

ROOT = Path(__file__).resolve().parent.parent


def entry(algorithm, seconds, platform="rack", task="digits"):
    """An entry with three seeds that took these seconds, or twice as many megabytes."""
    return Entry(algorithm, platform, task, {}, seconds, [one and 2 * one for one in seconds])


@pytest.mark.parametrize("name", leaderboard.ALGORITHMS)
def test_each_algorithm_has_as_many_trials_which_differ_and_can_be(name):
    tried = grids.settings_of_trials(SCHEMES[name], 20, 8)
    assert len({str(one) for one in tried}) == 8
    space = grids.search_space(SCHEMES[name])
    for one in tried:
        assert SCHEMES[name](**one).period in (1, 20)
        assert all(least <= one[key] <= most for key, (least, most) in space.items())


def test_tuples_are_tuned_and_single_values_stay():
    assert grids.search_space(SCHEMES["sync_sgd_lr"]) == {"learning_rates": ((0.2,), (6.4,))}
    tried = grids.settings_of_trials(SCHEMES["signsgd_mv"], 10, 3)
    assert {one["momentum"] for one in tried} == {0.0}
    assert tried[0]["learning_rate"] == pytest.approx((0.0005 * 0.032) ** 0.5)  # the middle, on a logarithmic scale
    (first, *_) = grids.settings_of_trials(SCHEMES["sync_sgd_lr"], 10, 3)
    assert first["learning_rates"] == (1.13,)


@dataclass(frozen=True, kw_only=True)
class Own(SCHEMES["async_sgd"]):
    """Asynchronous SGD under another name."""

    name = "own"
    search_space = {"learning_rate": (0.1, 0.4)}  # noqa: RUF012


@dataclass(frozen=True, kw_only=True)
class Fixed(Scheme):
    """Nothing to tune."""

    name = "fixed"


def test_an_own_algorithm_brings_its_search_space():
    assert [one["learning_rate"] for one in grids.settings_of_trials(Own, 10, 3)] == [0.2, 0.141, 0.283]
    assert grids.settings_of_trials(Fixed, 10, 8) == [{}]


def test_the_score_is_the_area_under_the_performance_profile():
    board = [
        entry("a", [10, 11, 12]),
        entry("b", [22, None, 20]),
        entry("c", [44, 44, 44]),
        entry("a", [None, None, 9], task="clusters"),
        entry("b", [5, 5, 5], task="clusters"),
    ]
    assert scores(board) == pytest.approx({"a": 0.5, "b": (2 / 3 + 1) / 2, "c": 0.0})
    titles, *rows = cells(board)
    assert titles == ["algorithm", "score: seconds", "bytes", "rack, clusters", "rack, digits"]
    assert [row[0] for row in rows] == ["b", "a", "c"]
    assert rows[1][3:] == ["never", "11 s, 22 MB"]
    assert rows[2][3] == ""


def test_a_new_entry_replaces_that_of_its_workload(tmp_path):
    keep([entry("a", [1, 1, 1]), entry("a", [2, 2, 2], "regions")], tmp_path)
    keep([entry("a", [3, 3, None])], tmp_path)
    assert kept(tmp_path) == [entry("a", [3, 3, None]), entry("a", [2, 2, 2], "regions")]
    assert "| `a` | 1.00 | 1.00 | 3 s, 6 MB | 2 s, 4 MB |" in tables.leaderboard(tmp_path)


def test_an_own_row_is_printed_with_the_others_and_not_kept(tmp_path, monkeypatch, capsys):
    out = ["--output", str(tmp_path)]
    keep([entry("async_sgd", [10, 10, 10])], tmp_path)
    monkeypatch.setitem(SCHEMES, "own", Own)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(
        leaderboard, "measured", lambda studies, console: [entry(s.kind.name, [5] * 3) for s in studies]
    )
    assert leaderboard.main(out, tmp_path) == 0
    printed = capsys.readouterr().out
    assert printed.index("own") < printed.index("async_sgd")
    assert [one.algorithm for one in kept(tmp_path)] == ["async_sgd"]
    assert leaderboard.main(["diloco", *out], tmp_path) == 0
    assert {one.algorithm for one in kept(tmp_path)} == {"async_sgd", "diloco"}
    with pytest.raises(UserError, match=r"unknown algorithm 'dilocco'.*diloco"):
        leaderboard.main(["dilocco", *out], tmp_path)


@pytest.mark.rotating
def test_a_study_finds_settings_and_measures_them(monkeypatch):
    monkeypatch.setattr(leaderboard, "GRADIENTS", 256)
    (place,) = (one for one in leaderboard.PLACES if one.name == "federated")
    goal = replace(leaderboard.GOALS[0], target=2.0)
    study = leaderboard.Study(Own, place, goal, trials=2, seeds=(0,))
    found = leaderboard._execute(cloudpickle.dumps(study))
    assert (found.algorithm, found.workload) == ("own", "federated, digits")
    assert found.settings["learning_rate"] in (0.2, 0.141)
    assert 0 < found.seconds[0] < 100
    assert found.megabytes[0] > 0


@pytest.mark.gate
def test_an_error_of_an_own_rule_is_named_without_a_traceback(monkeypatch):
    def fails(*arguments, **how):
        raise ValueError("no such shape")

    monkeypatch.setattr(leaderboard, "simulated", fails)
    place, goal = leaderboard.PLACES[0], leaderboard.GOALS[0]
    with pytest.raises(UserError, match="ValueError: no such shape"):
        leaderboard._execute(cloudpickle.dumps(leaderboard.Study(Own, place, goal)))
    with pytest.raises(ValueError, match=r"^no such shape"):
        leaderboard._execute(cloudpickle.dumps(leaderboard.Study(SCHEMES["async_sgd"], place, goal)))


def test_the_page_shows_the_committed_results():
    page = (ROOT / "docs" / "leaderboard.md").read_text()
    assert tables.with_tables(page) == page
    assert {one.algorithm for one in kept(tables.RESULTS)} == set(leaderboard.ALGORITHMS)
