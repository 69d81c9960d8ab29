"""Text for a character model: Python's standard library, which needs no download.

It holds source and documentation of the modules, `pydoc_data/topics.py` (the language reference, as prose) among them.
The text depends on the Python version, and on patches of a distribution. So tasks on several machines compare a digest
of the data.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..errors import UserError
from .recipes import Dataset

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # numbered from 1; 0 stands for all others

KINDS = 1 + len(CHARACTERS)

# Folders without useful text (tables of numbers, tests), or missing in some installations.
SKIPPED = {
    "__pycache__", "config", "dist-packages", "distutils", "encodings", "ensurepip", "idlelib", "lib2to3",
    "site-packages", "test", "tests", "tkinter", "turtledemo",
}  # fmt: skip

TEST_FILES = 8  # every 8th file is a test file; the test text has 1/8 as many characters

FILE_LIMIT = 2**16  # characters used of a file, so that no file dominates the text


def text(*, context: int = 64, characters: int = 1_000_000) -> Dataset:
    """Load characters of Python's standard library; the test text is of other files than the training text.

    Args:
        context: characters of an example.
        characters: length of the training text, which is cut into examples that do not overlap.

    Returns:
        x [examples, context] and y, which is x shifted by one character, int32 numbers below `KINDS`. Both are views of
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
    """Return the modules of the standard library, shuffled by a hash of their names."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    found: list[str] = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in SKIPPED and not name.startswith(("config-", "."))]
        sources = [name for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata")]
        found += [(Path(folder) / name).relative_to(root).as_posix() for name in sources]
    return [root / name for name in sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())]


def windows(numbers: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut a text [characters] into consecutive windows x, and y shifted by one; [examples, context] each."""
    count = (len(numbers) - 1) // context
    if count < 1:
        raise UserError(
            f"data set text needs more characters than its context. Received: {len(numbers)} characters, "
            f"context={context}"
        )
    return numbers[: count * context].reshape(count, context), numbers[1 : count * context + 1].reshape(count, context)


def _numbers(files: Iterable[Path], characters: int) -> np.ndarray:
    """Return the first characters of files as int32 numbers.

    Raises:
        UserError: the files have fewer characters.
    """
    parts, total = [], 0
    for path in files:
        part = numbered(path.read_bytes()[:FILE_LIMIT])
        parts.append(part)
        total += len(part)
        if total >= characters:
            return np.concatenate(parts)[:characters]
    raise UserError(f"characters must be at most {total}, the length of this text. Received: characters={characters}")


def numbered(source: bytes) -> np.ndarray:
    """Return the number of each character of a text in UTF-8, int32."""
    table = np.zeros(256, np.int32)
    table[list(CHARACTERS.encode())] = np.arange(1, KINDS)
    code = np.frombuffer(source, np.uint8)
    return table[code[(code & 0xC0) != 0x80]]  # drop the continuation bytes of UTF-8
