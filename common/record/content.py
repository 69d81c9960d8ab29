"""The JSON files in a run directory, checked as they are read: they may be foreign or damaged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import read_json
from . import kinds


class Content(dict[str, Any]):
    """The values in a file of a run, by name; a missing one raises `UserError` when it is read."""

    def __init__(self, path: Path, values: Mapping[str, Any]):
        super().__init__(values)
        self.path = path

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"the files in {self.path.parent} are not those of a run: they have no {name!r} ({self.path.name}). Give "
            "the folder of a run of this version"
        )


def checked(path: Path, content: Mapping[str, Any], known: Mapping[str, kinds.Kind]) -> Content:
    """Check the values in a file, and return them.

    Args:
        path: path of the file.
        content: values by name.
        known: the kind of each value; values may be missing.

    Raises:
        UserError: a value is not of its kind.
    """
    for name, (what, fits) in known.items():
        if name in content and not fits(content[name]):
            raise UserError(f"{path} is damaged: {name} must be {what}. Received: {kinds.short(content[name])}")
    return Content(path, content)


def read_config(run_dir: Path) -> dict[str, Any]:
    """Return the content of config.json.

    Raises:
        UserError: the file is missing or damaged.
    """
    if not (run_dir / "config.json").is_file():
        raise UserError(f"not a run directory: it has no config.json. Received: {run_dir}")
    path = run_dir / "config.json"
    return checked(path, read_json(path), kinds.CONFIG)


def read_result(run_dir: Path) -> dict[str, Any]:
    """Return the content of result.json; raises `UserError` if it is missing or damaged."""
    path = run_dir / "result.json"
    return checked(path, read_json(path), kinds.RESULT)
