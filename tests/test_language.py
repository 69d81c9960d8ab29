"""Words that leave the subject of a sentence unnamed are banned from code, help, docs, tests and notebooks."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BANNED = [
    "whoever", "nobody", "somebody", "everybody", "anybody", "who waits", "who comes", "who is", "goes on", "go on",
]  # fmt: skip
PATTERN = re.compile(rf"\b({'|'.join(BANNED)})\b".replace(" ", r"\s+(?:#\s*)?"), re.IGNORECASE)
PLACES = {
    "code": [
        "algorithms/**/*.py",
        "common/**/*.py",
        "simulator/**/*.py",
        "benchmarks/**/*.py",
        "run.sh",
        "deploy/**/*",
    ],
    "docs": ["README.md", "docs/*.md", "docs/claims/*.md", "docs/exercises/*.md"],
    "tests": ["tests/*.py", "tests/mutations/*.diff"],
    "notebooks": ["tutorials/*.ipynb"],
}


@pytest.mark.parametrize("place", PLACES)
def test_sentences_name_their_subject(place):
    paths = {path for pattern in PLACES[place] for path in ROOT.glob(pattern) if path.is_file()}
    assert paths
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()!r}"
        for path in sorted(paths - {Path(__file__).resolve()})
        for text in [path.read_text()]
        for match in PATTERN.finditer(text)
    ]
    assert not found, "\n".join(found)
