"""The mutations follow the code; `bash run.sh mutants` runs them."""

import ast
import shutil

import pytest

from mutants import MUTATIONS, ROOT, apply, main, named_tests

MOST = 45


def test_mutations_are_few():
    assert 0 < len(MUTATIONS) <= MOST


def test_an_unknown_mutation_is_refused_in_one_line(capsys):
    assert main(["no-such-fault"]) == 2
    assert capsys.readouterr() == ("", "error: no mutation has such a name. Received: no-such-fault. See --list\n")


@pytest.mark.skipif(shutil.which("git") is None, reason="git applies the mutations")
@pytest.mark.parametrize("diff", MUTATIONS, ids=lambda diff: diff.stem)
def test_a_mutation_applies_in_one_place_and_names_tests(diff, tmp_path):
    about, _, change = diff.read_text().partition("diff --git")
    files = [line.removeprefix("--- a/") for line in change.splitlines() if line.startswith("--- ")]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    apply(diff, tmp_path)
    for file in files:
        compile((tmp_path / file).read_text(), file, "exec")
    for hunk in change.split("\n@@ ")[1:]:
        lines = [line for line in hunk.split("\n")[1:] if line[:1] in (" ", "-")]
        before = "\n".join(line[1:] for line in lines if not line.startswith("--- "))
        assert sum((ROOT / file).read_text().count(f"\n{before}\n") for file in files) == 1, before
    assert about.count("\nTests:") == 1
    assert named_tests(diff)
    for test in named_tests(diff):
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(), test


def test_the_tests_that_mutations_name_exist_with_their_parameters(collected):
    """Those of the files that pytest has read; the gate reads all."""
    names = {name for test in collected for name in (test.nodeid, test.nodeid.partition("[")[0])}
    files = {name.partition("::")[0] for name in names}
    named = {test for diff in MUTATIONS for test in named_tests(diff) if test.partition("::")[0] in files}
    if not named:
        pytest.skip("no file that a mutation names was read")
    assert not named - names


def test_the_process_of_a_mutation_imports_nothing_of_the_checkout():
    """It imports the file of this program; the package must come from the copy, which has the fault."""
    imports = [ast.unparse(node) for node in ast.parse((ROOT / "tests" / "mutants.py").read_text()).body]
    assert not [line for line in imports if line.startswith(("import distsgd", "from distsgd"))]
