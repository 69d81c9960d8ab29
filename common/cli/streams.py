"""Standard output and standard error: they may be closed, on a full disk, or read by a program that stops early."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Any, TextIO

from ..errors import CannotWrite
from ..files import STDERR

STDOUT = 1


class StandardStream(io.FileIO):
    """One of the two. A message that cannot be written ends no run; after an output that cannot, later ones are lost.

    To stop reading early, as `| head` does, is no error.
    """

    def write(self, data: Any) -> int:
        """Write bytes.

        Raises:
            SystemExit: standard output has no reader; with status 0.
            CannotWrite: standard output cannot be written.
        """
        try:
            while (written := super().write(data)) is None:  # its reader has made it non-blocking, and it is full
                select.select([], [self], [])
            return written
        except OSError as error:
            _open_null(self.fileno())
            if self.fileno() == STDERR:
                return len(data)
            if isinstance(error, BrokenPipeError):
                raise SystemExit(0) from None
            raise CannotWrite(f"cannot write standard output: {error.strerror}") from None


def prepare() -> None:
    """Let this program write both through a `StandardStream`, also if one is closed (`>&-`).

    Otherwise the next file that is opened would get the number of a closed one, and with it what native code prints.
    """
    for descriptor in range(STDERR + 1):
        try:
            os.fstat(descriptor)
        except OSError:
            _open_null(descriptor)
    sys.stdout, sys.stderr = _opened(STDOUT, sys.stdout), _opened(STDERR, sys.stderr)


def _open_null(descriptor: int) -> None:
    """Open the null device as a descriptor, for child processes, too."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == descriptor:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, descriptor)
        os.close(null)


def _opened(descriptor: int, before: TextIO | None) -> TextIO:
    raw = StandardStream(descriptor, "w", closefd=False)
    encoding = before.encoding if before else "utf-8"  # which may lack Greek letters: they become question marks
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "replace", line_buffering=True)
