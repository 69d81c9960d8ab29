"""What the benchmark keeps: the sources that an outcome belongs to, results beside those of others, chosen settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..algorithms import SCHEMES
from ..common.cluster.fingerprint import class_digest, source_digest
from ..common.files import write_json

PARTS = "convergence", "throughput", "period", "workers"
DECISIVE = "contract", "engine", "gates", "problems", "run"  # folders of common/ on which the course of a run depends


@cache
def sources(algorithm: str) -> str:
    """A digest of what decides on a run of the algorithm: its module, the engine, and TensorFlow."""
    kind = SCHEMES[algorithm]
    mine = kind.__module__.rpartition(".")[2]
    own = class_digest(kind)  # empty if it is of the catalogue
    within = [*(f"common/{folder}" for folder in DECISIVE), *([] if own else [f"algorithms/{mine}.py"])]
    return f"{source_digest(within=within)} {own} {version('tensorflow')}"


def merged(outcomes: Sequence[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """The outcomes beside those in the file, whose rows of other algorithms and parts stay; in a fixed order."""

    def place(outcome: dict[str, Any]) -> tuple[str, str]:
        return outcome["cell"]["part"], outcome["cell"]["algorithm"]

    new, names = {place(outcome) for outcome in outcomes}, list(SCHEMES)
    old = json.loads(path.read_text()) if path.exists() else []
    stay = [outcome for outcome in old if place(outcome) not in new and place(outcome)[1] in SCHEMES]
    return sorted([*stay, *outcomes], key=lambda o: (PARTS.index(place(o)[0]), names.index(place(o)[1])))


def choose(outcomes: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the settings of least validation loss, beside all that were tried; other algorithms' rows stay."""
    table = json.loads(path.read_text()) if path.exists() else {"settings": {}, "tried": {}}
    for name in {o["cell"]["algorithm"]: None for o in outcomes}:
        mine = [o for o in outcomes if o["cell"]["algorithm"] == name]
        tried = [
            {
                "settings": {k: v for k, v in o["cell"]["settings"].items() if k != "communication_period"},
                "validation_loss": o["test_loss"] if o["outcome"] == "completed" else None,
            }
            for o in mine
        ]
        good = [row for row in tried if row["validation_loss"] is not None]
        if good:
            table["settings"][name] = min(good, key=lambda row: row["validation_loss"])["settings"]
        table["tried"][name] = tried
    write(path, table, indent=1)


def write(path: Path, content: Any, indent: int | None = None) -> None:
    """Write JSON into a folder that may not be there yet, whole or not at all; in one line unless it is indented."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content, indent)
