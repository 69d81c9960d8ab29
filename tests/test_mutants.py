"""The list of mutations follows the code; `bash run.sh mutants` runs it."""

from collections import Counter

from mutants import ROOT, mutated
from mutations import MUTATIONS


def test_each_mutation_applies_to_one_place_and_names_tests_that_exist():
    wrong, texts = [], {}
    for mutation in MUTATIONS:
        try:
            path, text = mutated(mutation)
            compile(text, path, "exec")
        except (ValueError, SyntaxError) as error:
            wrong.append(f"{mutation.name}: {error}")
        for test in mutation.tests:
            file, _, name = test.partition("::")
            text = texts.setdefault(file, (ROOT / file).read_text())
            if f"def {name.partition('[')[0]}(" not in text:
                wrong.append(f"{mutation.name}: no test {test}")
    assert not wrong, "\n".join(wrong)


def test_mutations_have_different_names():
    assert [name for name, times in Counter(mutation.name for mutation in MUTATIONS).items() if times > 1] == []
