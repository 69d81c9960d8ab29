"""Text for a character model: Python's own standard library, which is wherever this package is.

Source and documentation of the modules, `pydoc_data/topics.py` (the language reference, as prose) among them. The same
Python gives the same text; other versions, and distributions with patches of their own, give another one. A digest of
the data is among what tasks on several machines must have in common.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..errors import UserError
from .dataset import Dataset

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # numbered from 1; 0 is any other

KINDS = 1 + len(CHARACTERS)

# What is no text to learn from (tables of numbers, tests), or not part of each installation.
SKIPPED = {
    "__pycache__", "config", "dist-packages", "distutils", "encodings", "ensurepip", "idlelib", "lib2to3",
    "site-packages", "test", "tests", "tkinter", "turtledemo",
}  # fmt: skip

TEST_FILES = 8  # one of so many is a test file; 1/8 as many test characters are taken

FILE_LIMIT = 2**16  # characters of a file that are used: the text is one of many hands


def text(*, context: int = 64, characters: int = 1_000_000) -> Dataset:
    """Characters of Python's standard library, each to be told from those before it; the test text is of other files.

    Args:
        context: characters of an example.
        characters: of the training text; it is cut into examples that do not overlap.

    Returns:
        x [examples, context] and y, the same moved on by one character, int32 numbers below `KINDS`. They are views of
        one array.
    """
    files = library()
    test = files[::TEST_FILES]
    train = [path for number, path in enumerate(files) if number % TEST_FILES]
    return Dataset(
        windows(_numbers(train, characters), context),
        windows(_numbers(test, max(characters // TEST_FILES, context + 1)), context),
        classes=KINDS,
        text=True,
    )


def library(root: Path | None = None) -> list[Path]:
    """The modules of the standard library, in an order by chance that depends on their names alone."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    found: list[str] = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in SKIPPED and not name.startswith(("config-", "."))]
        own = [name for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata")]
        found += [(Path(folder) / name).relative_to(root).as_posix() for name in own]
    return [root / name for name in sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())]


def windows(numbers: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """x and y, [examples, context] each, of a text [characters]: windows one after the other, and one further on."""
    count = (len(numbers) - 1) // context
    if count < 1:
        raise UserError(
            f"data set text needs more characters than its context. Received: {len(numbers)} characters, "
            f"context={context}"
        )
    return numbers[: count * context].reshape(count, context), numbers[1 : count * context + 1].reshape(count, context)


def _numbers(files: Iterable[Path], characters: int) -> np.ndarray:
    """The first characters of files as int32 numbers.

    Raises:
        UserError: there are not as many.
    """
    parts, total = [], 0
    for path in files:
        part = numbered(path.read_bytes()[:FILE_LIMIT])
        parts.append(part)
        total += len(part)
        if total >= characters:
            return np.concatenate(parts)[:characters]
    raise UserError(f"data set text has {total} characters of this kind. Received: characters={characters}")


def numbered(source: bytes) -> np.ndarray:
    """The number of each character of a text in UTF-8, int32."""
    table = np.zeros(256, np.int32)
    table[list(CHARACTERS.encode())] = np.arange(1, KINDS)
    code = np.frombuffer(source, np.uint8)
    return table[code[(code & 0xC0) != 0x80]]  # what follows the first byte of a character is no character
