"""Which tests a gate runs, which a change touches, and where their time goes."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import selection
import times
from mutants import MUTATIONS, named_tests
from selection import LANDING, ROOT, SHARES, Git, Near, Rotation, files_near, is_of_gate, is_rotating, schemes_of


def item(nodeid, index=0, *which, mark="rotating"):
    file, _, name = nodeid.partition("::")
    marks, callspec = {mark: [SimpleNamespace(args=which)]}, SimpleNamespace(indices={"name": index})
    own = {"nodeid": nodeid, "name": name, "path": ROOT / file, "callspec": callspec}
    return SimpleNamespace(iter_markers=lambda mark: marks.get(mark, []), **own)


def history(*changed):
    """What git would say of a checkout in which these files and tests have changed since the last landing."""
    files = {name.partition("::")[0] for name in changed}
    tests = {name for name in changed if "::" in name}
    return SimpleNamespace(landed="1a2b3c4d5e", changed_since=lambda _: files, tests_changed_since=lambda _: tests)


NAMES = ("ssp", "easgd", "diloco, late")
CASES = [item(f"tests/test_group.py::test_it[{name}]", index) for index, name in enumerate(NAMES)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_rotating_test_is_in_one_gate_of_as_many_landings_as_there_are_shares(case):
    assert [Rotation(share, history()).has(case) for share in range(SHARES)].count(True) == 1


@pytest.mark.parametrize(
    ("changed", "cases"),
    [
        ("algorithms/diloco.py", "diloco, late"),
        ("common/server/center.py", ""),  # an executor is proven with the schemes that do not rotate
        ("tests/test_group.py::test_it", "ssp"),  # `--changed` runs all its cases
        ("tests/test_group.py::test_another", ""),
        ("tutorials/diloco, late.ipynb", "diloco, late"),
        ("docs/proof.md", ""),
    ],
)
def test_a_gate_runs_all_of_what_has_changed_since_the_last_landing(changed, cases, monkeypatch):
    monkeypatch.setattr("zlib.crc32", lambda name: 1)
    rotation = Rotation(0, history(changed))
    assert [case.name for case in CASES if rotation.has(case)] == [c.name for c in CASES if c.name[8:-1] in cases]


def test_a_changed_module_adds_the_first_cases_of_the_tests_near_it(monkeypatch):
    """In the file with its name, and in those that import it, unless most do."""
    monkeypatch.setattr("zlib.crc32", lambda name: 1)
    rotation = Rotation(0, history("simulator/virtual_time/grace.py", "common/tasks/job.py"))
    names = "tests/test_grace.py::test_any[{}]", "tests/test_group.py::test_it[{}]"
    cases = [item(name.format(case), case) for name in names for case in (0, 1)]
    assert [rotation.has(case) for case in cases] == [True, False, False, False]
    assert ROOT / "tests" / "test_supervision.py" in files_near(["common/launch/supervisor.py"])


@pytest.mark.parametrize(("mark", "has"), [("rotating", is_rotating), ("gate", is_of_gate)])
def test_the_first_case_has_no_mark_that_the_others_have(mark, has):
    cases = [item("tests/test_grace.py::test_any[x]", index, "others", mark=mark) for index in (0, 1)]
    assert [has(case) for case in cases] == [False, True]


def test_the_number_of_landings_advances_the_share(monkeypatch, tmp_path):
    monkeypatch.setattr(selection, "ROOT", tmp_path)
    for text, share in {"0": 0, "7\n": 7, "32": 0, "69": 5, "": 0}.items():
        (tmp_path / LANDING).parent.mkdir(exist_ok=True)
        (tmp_path / LANDING).write_text(text)
        assert Rotation(None, history()).share == share
    changed = history("common/optimizer.py", "algorithms/ssp.py")
    assert str(Rotation(None, changed)) == "rotating tests: share 0 of 32; changed since the landing 1a2b3c4d5: ssp"


def test_a_scheme_changes_with_the_one_that_it_extends():
    assert schemes_of(["algorithms/one_bit_adam.py", "common/server/center.py"]) == {"one_bit_adam", "zero_one_adam"}
    assert schemes_of(["algorithms/zero_one_adam.py"]) == {"zero_one_adam"}


def test_git_knows_the_last_landing_and_the_changes_since(monkeypatch, tmp_path):
    monkeypatch.setattr(selection, "ROOT", tmp_path)

    def git(*words):
        who = "-c", "user.name=a", "-c", "user.email=a@b"
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    def write(name, text):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert (Git().landed, Git().changed_since("HEAD")) == ("", set())
    assert str(Rotation(2, Git())) == "rotating tests: share 2 of 32; changed as git knows no landing here: none"
    git("init")
    test = "@pytest.mark.parametrize('x', [{}])\ndef test_{}():\n    assert {}\n"
    for landing in "12":
        write(LANDING, landing)
        write("tests/test_a.py", test.format(1, "same", 1) + test.format(1, "other", 1))
        git("add", "."), git("commit", "-m", landing)
    landed = Git().landed
    write("algorithms/a.py", "")
    git("add", "."), git("commit", "-m", "a")
    assert (Git().landed, Git().last_changes()) == (landed, {"algorithms/a.py"})
    write("common/b.py", "")
    assert Git().changed_since(landed) == {"algorithms/a.py", "common/b.py"}
    assert Git().last_changes() == {"common/b.py"}
    write("tests/test_a.py", test.format(2, "same", 1) + test.format(1, "other", 2))
    write("tests/test_b.py", test.format(1, "new", 1))
    assert Git().tests_changed_since(landed) == {"tests/test_a.py::test_other", "tests/test_b.py::test_new"}


def test_each_gate_runs_the_rotating_tests_that_mutations_name():
    named = "tests/test_group.py::test_center_is_that_of_the_engine_on_the_same_order[easgd]"
    assert all(Rotation(share, history()).has(item(named)) for share in range(SHARES))


def test_a_change_touches_its_algorithm_the_tests_of_its_module_and_those_that_mutations_name():
    near = Near({"algorithms/ssp.py", "simulator/virtual_time/grace.py", "tests/test_order.py"})
    assert [near.rank(case) for case in CASES[:2]] == [None, None]  # they rotate
    names = {
        "tests/test_order.py::test_any": 0,
        "tests/test_group.py::test_it[ssp]": 1,
        "tests/test_grace.py::test_any": 2,
        "tests/test_group.py::test_it[easgd]": None,
    }
    for name, rank in names.items():
        own = SimpleNamespace(**vars(item(name)) | {"iter_markers": lambda mark: []})
        assert near.rank(own) == rank, name
    assert near.rank(item("tests/test_grace.py::test_any", mark="gate")) == 3
    diff = next(diff for diff in MUTATIONS if diff.stem == "barrier-divides-by-all-workers")
    (test,) = named_tests(diff)
    assert Near({"common/sync/barrier.py"}).rank(item(test)) == 0


def test_seconds_are_added_up_by_function_by_file_and_by_kind():
    report = times.Report(everything=False)
    report.tests = {
        "tests/test_a.py::one[x]": {"threads": 2.0, "processes": 1.0, "waiting": 0.5},
        "tests/test_a.py::one[y]": {"threads": 0.5, "processes": 0.5, "waiting": 0.0},
        "tests/test_b.py::two": {"tracing": 1.0, "processes": 0.0, "waiting": 4.0},
    }
    _, first, second = report.table("function", lambda test: test.partition("[")[0])
    assert first.split() == ["4.0", "80.0%", "0.5", "2", "tests/test_a.py::one"]
    assert second.split() == ["1.0", "20.0%", "4.0", "1", "tests/test_b.py::two"]
    assert list(report.kinds()) == ["CPU seconds: 5 (threads 2, processes 2, tracing 1); waiting 4, summed over tests"]


def test_a_stopwatch_counts_the_innermost_kind_and_other_processes():
    watch = times.Stopwatch()

    def busy(rounds):
        return sum(i * i for i in range(rounds))

    inner = watch.counted("tracing", busy)
    watch.counted("threads", lambda: (busy(30_000), inner(300_000)))()
    assert watch.kinds["tracing"] > 3 * watch.kinds["threads"] > 0
    before = times.cpu_of_processes()
    subprocess.run([sys.executable, "-c", "sum(i * i for i in range(10 ** 6))"], check=True)
    assert times.cpu_of_processes() > before
