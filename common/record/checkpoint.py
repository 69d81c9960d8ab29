"""Checkpoints: the variables of the parameter servers as files that hold numbers and nothing else.

checkpoints/<version>/
    arrays.npz          every variable by name, without pickle; the slices of several ps tasks are joined. Variables
                        of worker 3 are worker_3.<name>
    checkpoint.json     the run that it belongs to, and a checksum of both files

A checkpoint is written under a temporary name, flushed to the disk and renamed: it exists as a whole or not at all. A
damaged checkpoint is renamed to <version>.damaged, and does not count among those that are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import PART, cannot_write_into, copy, delete, flush, open_in_place, own_folder, refuse_link, writing
from ..record_format import INITIAL, NUMBERS, open_to_read, read_text, stored_arrays
from ..sync.topology import GRAPH
from .array_files import write_array

FORMAT = 2

ARRAYS, ABOUT = "arrays.npz", "checkpoint.json"

TYPES = f"{NUMBERS}bV"  # kinds of NumPy types; V is bfloat16

LOCAL = re.compile(r"worker_\d+\.")  # prefix of a variable of one worker

DAMAGED = ".damaged"

# The variables of `halos` under the names that they had before, all of which such a checkpoint has.
FORMER = {
    **{f"scheme.{name}": f"scheme.global_{name}" for name in ("velocity", "buffer", "count")},
    **{"scheme.velocities": "scheme.server_velocity", "scheme.buffers": "scheme.server_buffer"},
    **{"scheme.counts": "scheme.server_count", "scheme.merged": "scheme.client_merged"},
}


class Damaged(UserError):
    """A checkpoint that differs from what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """The global state of a run at one version of the center."""

    arrays: Mapping[str, Any]  # or `Slices`
    about: Mapping[str, Any]

    @property
    def version(self) -> int:
        """Number of updates in its center."""
        return int(self.arrays["version"])

    @property
    def events(self) -> int:
        """Number of events that were logged."""
        return int(self.arrays["rounds_applied"].sum() + self.arrays["joins"])

    @property
    def shared(self) -> dict[str, Any]:
        """Arrays that belong to no single worker, by name."""
        return {name: array for name, array in self.arrays.items() if not LOCAL.match(name)}

    def local(self, worker: int) -> dict[str, Any]:
        """Return the arrays of the local state of a worker, by name."""
        prefix = local_name(worker, "")
        return {name.removeprefix(prefix): array for name, array in self.arrays.items() if name.startswith(prefix)}


def local_name(worker: int, name: str) -> str:
    """Return the name of a worker's variable in a checkpoint."""
    return f"worker_{worker}.{name}"


def folder(run_dir: Path) -> Path:
    """Return the folder of the checkpoints of a run."""
    return run_dir / "checkpoints"


def write(run_dir: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint under a temporary name; `publish` renames it.

    Raises:
        CannotWrite: the incomplete checkpoint has been deleted.
    """
    part = folder(run_dir) / f".{checkpoint.version:012d}{PART}"
    with writing(part):
        try:
            own_folder(part.parent)
            delete(part)  # the rest of an earlier attempt
            part.mkdir()
            about = {"format": FORMAT, **checkpoint.about}
            with open_in_place(part / ARRAYS, "xb+") as file:
                with zipfile.ZipFile(file, "w") as archive:
                    for name, array in checkpoint.arrays.items():
                        with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                            write_array(member, array)
                flush(file)
                checksum = _checksum(about, file)
            with open_in_place(part / ABOUT, "x") as file:
                json.dump({**about, "sha256": checksum}, file, indent=2)
                flush(file)
        except BaseException:
            discard(part)
            raise
    return part


def _checksum(about: Mapping[str, Any], arrays: Any) -> str:
    """Return the checksum of a checkpoint: of `about`, and of the open file of its arrays."""
    arrays.seek(0)
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    return hashlib.file_digest(arrays, lambda: digest).hexdigest()


def discard(part: Path) -> None:
    """Delete a checkpoint that is not to be published."""
    shutil.rmtree(part, ignore_errors=True)


def publish(part: Path, keep: int) -> Path:
    """Rename a written checkpoint to its final name, and delete all but this and the last `keep` - 1 others.

    Raises:
        CannotWrite: it cannot be renamed.
    """
    place = part.with_name(part.name.strip(".").removesuffix(PART))
    run_dir = place.parent.parent
    for path in found(run_dir):  # older ones than this have been checked at the start of the run
        if path.name >= place.name and (problem := damage(path)):
            quarantine(path, problem)
    with writing(place):
        if place.exists():  # the same version again: the run was restored from it, or had no update since
            shutil.rmtree(part)
        else:
            part.rename(place)
            handle = os.open(place.parent, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
    others = [path for path in found(run_dir) if path != place]
    for old in others[: max(0, len(others) - (keep - 1))]:
        discard(old)
    return place


def found(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run, oldest first, without those renamed as damaged."""
    return sorted(path for path in folder(run_dir).glob("[0-9]*") if re.fullmatch(r"[0-9]+", path.name))


def newest(
    run_dir: Path, passed_over: Callable[[Path, Damaged], object] = lambda path, problem: None
) -> Checkpoint | None:
    """Return the newest checkpoint that is not damaged, if any; call `passed_over` for each damaged one.

    Raises:
        UserError: the checkpoint has another format.
    """
    for path in reversed(found(run_dir)):
        try:
            return read(path)
        except Damaged as problem:
            passed_over(path, problem)
    return None


def damage(path: Path) -> Damaged | None:
    """Return the error of a damaged checkpoint; None if it is intact."""
    try:
        read(path, ["version", "rounds_applied", "joins"])  # these arrays suffice: the checksum covers all
    except Damaged as problem:
        return problem
    return None


def quarantine(path: Path, problem: Damaged) -> str:
    """Rename a damaged checkpoint, which is kept for inspection; returns a warning."""
    aside = path.with_name(path.name + DAMAGED)
    try:
        delete(aside)
        path.rename(aside)
    except OSError as error:
        return f"{problem}; it was passed over, and cannot be renamed: {error.strerror}"
    return f"{problem}; it was passed over, and is now {aside.name}"


def is_quarantined(path: Path) -> bool:
    """Return True if the checkpoint of this path was renamed as damaged."""
    return path.with_name(path.name + DAMAGED).exists()


def sweep(run_dir: Path) -> None:
    """Delete incomplete checkpoints of tasks that were killed; ignore those that cannot be deleted."""
    for part in folder(run_dir).glob(f".*{PART}"):
        discard(part)


def sweep_results(run_dir: Path) -> None:
    """Delete incomplete results of an evaluator that was killed; ignore those that cannot be deleted."""
    with contextlib.suppress(OSError):
        for part in run_dir.glob(f".*{PART}*"):
            delete(part)


def tidy(run_dir: Path) -> list[str]:
    """Check the checkpoints of a run that is resumed: rename damaged ones, delete incomplete ones.

    Returns:
        Warnings, one for each damaged checkpoint.

    Raises:
        UserError: all are damaged, or one has another format.
    """
    try:
        refuse_link(folder(run_dir))
    except OSError as error:
        raise cannot_write_into(run_dir, error) from None
    for part in [*folder(run_dir).glob(f".*{PART}"), *run_dir.glob(f".*{PART}*")]:
        with writing(part):
            delete(part)
    problems = {path: problem for path in found(run_dir) if (problem := damage(path))}
    if len(problems) == len(found(run_dir)) and (problems or any(folder(run_dir).glob(f"*{DAMAGED}"))):
        raise all_damaged(run_dir, *problems.values())
    return [quarantine(path, problem) for path, problem in problems.items()]


def all_damaged(run_dir: Path, *problems: Damaged) -> UserError:
    """Return the error for a run of which no checkpoint can be read."""
    why = f" ({problems[-1]})" if problems else ""
    return UserError(
        f"all checkpoints in {folder(run_dir)} are damaged{why}: no state is left to resume from. To start over, "
        f"choose another run directory, or delete {run_dir}"
    )


def read(path: Path, names: Collection[str] = ()) -> Checkpoint:
    """Read a checkpoint from its folder, all arrays or those of these `names`. Nothing in it is executed.

    Raises:
        Damaged: it differs from what was written.
        UserError: it has another format, or this user may not read it.
    """
    try:
        about = json.loads(read_text(path / ABOUT))
        checksum = about.pop("sha256", None)
        with open_to_read(path / ARRAYS) as file:
            if checksum != _checksum(about, file):
                raise Damaged(f"the checkpoint {path} cannot be read: its checksum is wrong")
            if about["format"] != FORMAT:
                raise UserError(
                    f"the checkpoint {path} has format {about['format']}, and this program reads {FORMAT}: resume with "
                    "the version that wrote it, or choose another run directory"
                )
            file.seek(0)
            saved = stored_arrays(file, TYPES, names)
            former = FORMER if FORMER.keys() <= {*saved} else {}
            checkpoint = Checkpoint({former.get(name, name): saved[name] for name in names or saved}, about)
        rounds = checkpoint.arrays["rounds_applied"]
        if checkpoint.version != int(path.name) or rounds.min() < 0 or checkpoint.events < 0:
            raise Damaged(f"the checkpoint {path} cannot be read: it is of version {checkpoint.version}")
        return checkpoint
    except UserError:
        raise
    except PermissionError as error:
        raise UserError(f"the checkpoint {path} cannot be read: {error.strerror}") from None
    except Exception as error:  # damaged files raise errors of nearly every kind
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is damaged"
        raise Damaged(f"the checkpoint {path} cannot be read: {reason} ({type(error).__name__})") from None


def take_over(source: Path, run_dir: Path) -> list[str]:
    """Copy the newest checkpoint and the record of a run into a new run directory, to resume from there.

    Returns:
        Warnings on damaged checkpoints, which are skipped.

    Raises:
        UserError: the source has no checkpoint that can be read.
    """
    if found(run_dir):
        return []  # it was resumed here before
    if not found(source):
        raise UserError(f"there is no checkpoint to resume from in {folder(source)}")
    problems: list[Damaged] = []
    last = newest(source, lambda path, problem: problems.append(problem))
    if last is None:
        raise all_damaged(source, *problems)
    name = f"{last.version:012d}"
    part = folder(run_dir) / f".{name}{PART}"
    with writing(part):
        own_folder(part.parent)
        delete(part)
        part.mkdir()
        for file in (ARRAYS, ABOUT):
            copy(folder(source) / name / file, part / file)
        part.rename(folder(run_dir) / name)
    take_over_record(source, run_dir)
    return [f"{problem}; it was passed over" for problem in problems]


def take_over_record(source: Path, run_dir: Path) -> None:
    """Copy the files of the record of a run, except those that the new folder has."""
    run_dir.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "counts.json", "events.bin", "metrics.jsonl", INITIAL, GRAPH):
        if (source / name).exists() and not (run_dir / name).exists():
            copy(source / name, run_dir / name)
