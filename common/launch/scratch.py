"""Temporary folders that are deleted with the process that has created them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

SCRATCH, OWNER = "distsgd-", "owner"

FRESH_SECONDS = 60.0


class Scratch:
    """A temporary folder that is deleted with this process; the next process deletes those of killed processes.

    Attributes:
        name: path of the folder.
    """

    def __init__(self):
        for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
            with contextlib.suppress(OSError):  # another process owns it, or it is deleted already
                _sweep(left)
        self.folder = tempfile.TemporaryDirectory(prefix=SCRATCH)
        self.name = self.folder.name
        self.owned = os.open(Path(self.name) / OWNER, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.owned, fcntl.LOCK_EX)

    def cleanup(self) -> None:
        """Delete the folder."""
        self.folder.cleanup()
        os.close(self.owned)


def _sweep(folder: Path) -> None:
    """Delete a folder of this user whose owner has ended; raises `OSError` if the owner is alive."""
    owner = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        status = os.fstat(owner)
        fresh = time.time() - status.st_mtime < FRESH_SECONDS  # its owner may not have locked it yet
        if status.st_uid == folder.lstat().st_uid == os.getuid() and not fresh:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(owner)
