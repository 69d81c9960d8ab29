"""Copying a checkpoint and a record into a new run directory, in which the run is resumed."""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError
from ..files import PART, copy, delete, own_folder, writing
from ..record_format import INITIAL
from . import checkpoint


def take_over(source: Path, run_dir: Path) -> list[str]:
    """Copy the newest checkpoint and the record of a run into a new run directory, to resume from there.

    Returns:
        Warnings on damaged checkpoints, which are skipped.

    Raises:
        UserError: the source has no checkpoint that can be read.
    """
    if checkpoint.found(run_dir):
        return []  # it was resumed here before
    if not checkpoint.found(source):
        raise UserError(f"there is no checkpoint to resume from in {checkpoint.folder(source)}")
    problems: list[checkpoint.Damaged] = []
    last = checkpoint.newest(source, lambda path, problem: problems.append(problem))
    if last is None:
        raise checkpoint.all_damaged(source, *problems)
    name = f"{last.version:012d}"
    part = checkpoint.folder(run_dir) / f".{name}{PART}"
    with writing(part):
        own_folder(part.parent)
        delete(part)
        part.mkdir()
        for file in (checkpoint.ARRAYS, checkpoint.ABOUT):
            copy(checkpoint.folder(source) / name / file, part / file)
        part.rename(checkpoint.folder(run_dir) / name)
    take_over_record(source, run_dir)
    return [f"{problem}; it was passed over" for problem in problems]


def take_over_record(source: Path, run_dir: Path) -> None:
    """Copy the files of the record of a run, except those that the new folder has."""
    run_dir.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "counts.json", "events.bin", "metrics.jsonl", INITIAL):
        if (source / name).exists() and not (run_dir / name).exists():
            copy(source / name, run_dir / name)
