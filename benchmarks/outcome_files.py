"""Files of outcomes: the sources on which an outcome depends, and its place beside the outcomes of others."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..algorithms import SCHEMES
from ..common.cluster.fingerprint import class_digest, source_digest
from ..common.errors import UserError
from ..common.files import reason_of, write_json
from ..common.system import lock

HERE = Path(__file__).resolve().parent

RESULTS = HERE / "results"  # those that the docs show

# What has been measured before. An installed package is never written to, nor can a checkout of another user be.
IS_OURS = (HERE.parent / "pyproject.toml").exists() and os.access(HERE, os.W_OK)
CACHE = (HERE if IS_OURS else Path.home() / ".cache" / "distsgd") / "cache"

PARTS = "main", "workers", "period"
DECISIVE = (  # on which the course of a simulated run depends
    *(
        f"common/{part}"
        for part in (
            *("cluster/distributions.py", "cluster/platform.py"),
            *("contract", "data", "messages", "server", "sync", "worker"),
        )
    ),
    *("simulator/execution", "simulator/virtual_time"),
    *(f"benchmarks/{module}.py" for module in ("virtual", "copies", "crossing")),
)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Where a measurement leaves its results."""

    output: Path = Path("measured")
    """Folder of the results and pictures. The folder benchmarks/results of a checkout has those of the docs: the pages
    that show them are updated, too."""

    def __post_init__(self):
        folder = next(place for place in (self.output.absolute(), *self.output.absolute().parents) if place.exists())
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:  # before hours of measurements
            raise UserError(
                f"cannot write into --output {self.output}: {reason_of(error)}. Choose another folder"
            ) from None

    @property
    def is_shown(self) -> bool:
        """True if the docs show what is in the folder."""
        return self.output.resolve() == RESULTS


@cache
def sources(algorithm: str) -> str:
    """Return a digest of what decides on a run of the algorithm: its module, the engine, and TensorFlow."""
    kind = SCHEMES[algorithm]
    module = kind.__module__.rpartition(".")[2]
    digest = class_digest(kind)  # empty if it is of the catalogue
    within = [*DECISIVE, *([] if digest else [f"algorithms/{module}.py"])]
    return f"{source_digest(within=within)} {digest} {version('tensorflow')}"


def merged(outcomes: Sequence[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Return the outcomes beside those in the file, whose rows of other algorithms and parts stay; in a fixed order."""

    def place(outcome: dict[str, Any]) -> tuple[str, str]:
        return outcome["part"], outcome["algorithm"]

    new, names = {place(outcome) for outcome in outcomes}, list(SCHEMES)
    old = json.loads(path.read_text()) if path.exists() else []
    stay = [row for row in old if place(row) not in new and row["algorithm"] in names and row["part"] in PARTS]
    return sorted([*stay, *outcomes], key=lambda o: (PARTS.index(o["part"]), names.index(o["algorithm"])))


def write(path: Path, content: Any, indent: int | None = None) -> None:
    """Write JSON into a folder that may not exist yet, whole or not at all; in one line unless it is indented."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content, indent)


def keep(path: Path, entries: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Put entries into a JSON file, and return all that the file then has, in the order of `names`, and no others.

    Another command may do the same meanwhile: its entries stay, as the file is read again under a lock.
    """
    with locked(path):
        before = json.loads(path.read_text()) if path.exists() else {}
        content = {**before, **entries}
        content = {name: content[name] for name in names if name in content}
        write(path, content)
    return content


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on the folder of a file inside the block: commands that change it at a time wait for each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        lock(folder, wait=True)
        yield
    finally:
        os.close(folder)  # releases the lock
