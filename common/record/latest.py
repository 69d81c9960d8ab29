"""The name `latest` for a run: links in `runs/` point to the newest run directory.

runs/latest                 -> <algorithm>/<time>-<id>, the newest run
runs/<algorithm>/latest     -> <time>-<id>, the newest run of that algorithm
"""

from __future__ import annotations

import contextlib
import uuid
from pathlib import Path

from ..errors import UserError

ROOT = Path("runs")

LATEST = "latest"


def make_latest(run_dir: Path) -> None:
    """Point the links to a run that begins, if its folder is in `runs/`."""
    if run_dir.parent.parent != ROOT:
        return
    with contextlib.suppress(OSError):  # some file systems have no links, and the run does not need them
        for folder in (run_dir.parent, ROOT):
            if (folder / LATEST).exists() and not (folder / LATEST).is_symlink():
                continue  # a file of the user with this name
            fresh = folder / f".{LATEST}-{uuid.uuid4().hex[:6]}"
            fresh.symlink_to(run_dir.relative_to(folder))
            fresh.replace(folder / LATEST)


def newest(run_dir: Path) -> Path:
    """Return the folder to which `latest` or `downpour/latest` points, if it exists; else the folder itself."""
    if run_dir.name != LATEST:
        return run_dir
    link = next((path for path in (run_dir, ROOT / run_dir) if path.exists()), run_dir)
    return link.parent / link.readlink() if link.is_symlink() else link


def named(run_dir: Path) -> Path:
    """Return the folder of a run that a user has named: `latest`, `downpour/latest`, its path or its path in `runs/`.

    Raises:
        UserError: `latest` was given, and `runs/` has no such run.
    """
    folder = newest(run_dir)
    if run_dir.name == LATEST and not folder.exists():
        raise UserError(f"no run here is the latest: there is no folder {ROOT / run_dir}. Received: {run_dir}")
    return ROOT / folder if not folder.exists() and (ROOT / folder).exists() else folder
