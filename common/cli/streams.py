"""Standard output and standard error, whose readers may stop early, as `| head` does, which is no error."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO


class StandardStream(io.FileIO):
    """One of the two. Without a reader of its output the program ends; without one of its messages a run continues."""

    def write(self, data: Any) -> int:
        """Write bytes; raises `SystemExit` with status 0 if standard output has no reader."""
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if self.fileno() == 1:
                raise SystemExit(0) from None
            return len(data)


def outlive_readers() -> None:
    """Let this program write both through a `StandardStream`."""
    sys.stdout, sys.stderr = (_opened(stream) if stream else stream for stream in (sys.stdout, sys.stderr))


def _opened(stream: TextIO) -> TextIO:
    raw = StandardStream(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, stream.errors, line_buffering=True)
