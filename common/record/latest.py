"""The word `latest` for a run: links in `runs/` point to the newest folder there.

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
    """Point the links to a run that begins; a run whose folder lies elsewhere changes none of them."""
    if run_dir.parent.parent != ROOT:
        return
    with contextlib.suppress(OSError):  # a file system without links: the run does not need them
        for folder in (run_dir.parent, ROOT):
            if (folder / LATEST).exists() and not (folder / LATEST).is_symlink():
                continue  # of the user
            fresh = folder / f".{LATEST}-{uuid.uuid4().hex[:6]}"
            fresh.symlink_to(run_dir.relative_to(folder))
            fresh.replace(folder / LATEST)


def newest(run_dir: Path) -> Path:
    """Return the folder that `latest` or `downpour/latest` stands for, if there is one; else the folder itself."""
    if run_dir.name != LATEST:
        return run_dir
    link = next((path for path in (run_dir, ROOT / run_dir) if path.exists()), run_dir)
    return link.parent / link.readlink() if link.is_symlink() else link


def named(run_dir: Path) -> Path:
    """Return the folder of a run that a user has named: `latest`, `downpour/latest`, or the folder itself.

    Raises:
        UserError: the word is `latest`, and there is no such run in `runs/`.
    """
    folder = newest(run_dir)
    if run_dir.name == LATEST and not folder.exists():
        raise UserError(f"no run here is the latest: there is no folder {ROOT / run_dir}. Received: {run_dir}")
    return folder
