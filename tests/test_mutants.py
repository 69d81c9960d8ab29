"""The list of mutations follows the code; `bash run.sh mutants` runs it."""

import pytest

from mutants import ROOT, mutated
from mutations import MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_code_once_and_its_tests_are_there(mutation):
    path, text = mutated(mutation)
    compile(text, path, "exec")
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(), test


def test_mutations_have_names_of_their_own():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
