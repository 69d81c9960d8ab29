"""Checkpoints: what a parameter server keeps, as files that hold numbers and nothing else.

checkpoints/<version>/
    arrays.npz          every variable by name, vectors whole whatever the number of ps tasks; no pickle
    checkpoint.json     what it belongs to

A checkpoint is written beside its place, flushed to the disk and renamed: it is there as a whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from .errors import UserError

FORMAT = 1
ARRAYS, ABOUT = "arrays.npz", "checkpoint.json"


@dataclass(frozen=True)
class Checkpoint:
    """The global state of a run at one version of the center."""

    arrays: Mapping[str, np.ndarray]
    about: Mapping[str, Any]

    @property
    def version(self) -> int:
        """Updates in its center."""
        return int(self.arrays["version"])

    @property
    def events(self) -> int:
        """How many events were on record."""
        return int(self.arrays["folded"].sum() + self.arrays["joins"])


def folder(run_dir: Path) -> Path:
    """Where the checkpoints of a run are."""
    return run_dir / "checkpoints"


def write(run_dir: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint beside its place; `publish` puts it there."""
    part = folder(run_dir) / f".{checkpoint.version:012d}.part"
    discard(part)  # what an earlier attempt has left
    part.mkdir(parents=True)
    with (part / ARRAYS).open("wb") as file:
        np.savez(file, allow_pickle=False, **{name: np.asarray(a) for name, a in checkpoint.arrays.items()})  # pyright: ignore
        flush(file)
    with (part / ABOUT).open("w") as file:
        json.dump({"format": FORMAT, **checkpoint.about}, file, indent=2)
        flush(file)
    return part


def discard(part: Path) -> None:
    """Delete a checkpoint that is not to be published."""
    shutil.rmtree(part, ignore_errors=True)


def publish(part: Path, keep: int) -> Path:
    """Give a written checkpoint its name, and delete all but the last `keep`."""
    place = part.with_name(part.name.strip(".").removesuffix(".part"))
    if place.exists():  # the same version again: the run was restored from it, or nothing has happened since
        shutil.rmtree(part)
    else:
        part.rename(place)
        handle = os.open(place.parent, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    for old in found(place.parent.parent)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def found(run_dir: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted(path for path in folder(run_dir).glob("[0-9]*") if (path / ABOUT).exists())


def newest(run_dir: Path) -> Checkpoint | None:
    """The newest checkpoint of a run that can be read, if there is one."""
    for path in reversed(found(run_dir)):
        try:
            return read(path)
        except UserError:
            continue
    return None


def take_over(source: Path, run_dir: Path) -> None:
    """Let a new run directory go on from the newest checkpoint of another.

    Raises:
        UserError: there is none.
    """
    if found(run_dir):
        return  # it has gone on already
    available = found(source)
    if not available:
        raise UserError(f"there is no checkpoint to resume from in {folder(source)}")
    read(available[-1])
    folder(run_dir).mkdir(parents=True, exist_ok=True)
    shutil.copytree(available[-1], folder(run_dir) / available[-1].name)
    take_over_record(source, run_dir)


def take_over_record(source: Path, run_dir: Path) -> None:
    """Copy what a run has recorded so far, unless there is a record already."""
    run_dir.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "events.bin", "metrics.jsonl"):
        if (source / name).exists() and not (run_dir / name).exists():
            shutil.copy(source / name, run_dir / name)


def read(path: Path) -> Checkpoint:
    """A checkpoint from its folder. Nothing in it is executed.

    Raises:
        UserError: it is damaged, or of another format.
    """
    try:
        about = json.loads((path / ABOUT).read_text())
        with (path / ARRAYS).open("rb") as file, np.load(file, allow_pickle=False) as saved:
            arrays = dict(saved)
        if about["format"] != FORMAT:
            raise UserError(f"the checkpoint {path} has format {about['format']}, and this program reads {FORMAT}")
        return Checkpoint(arrays, about)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise UserError(f"the checkpoint {path} cannot be read: {error}") from None


def whole(slices: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Vectors from the slices of the ps tasks, `name/0`, `name/1`, ...; what is no vector is the same on all."""
    names = dict.fromkeys(name.rsplit("/", 1)[0] for name in slices)
    parts = {name: [slices[f"{name}/{i}"] for i in range(len(slices)) if f"{name}/{i}" in slices] for name in names}
    return {name: np.concatenate(p, -1) if np.ndim(p[0]) else p[0] for name, p in parts.items()}


def sliced(array: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """A vector as slices of those sizes, along its last axis."""
    if np.ndim(array) == 0:
        return [array] * len(sizes)
    return np.split(array, np.cumsum(sizes)[:-1], -1)


def flush(file: Any) -> None:
    """What has been written survives a machine that loses its power now."""
    file.flush()
    os.fsync(file.fileno())
