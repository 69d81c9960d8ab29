"""The command line: `distsgd`, `python -m distsgd`, `bash run.sh`. It handles signals from the first moment."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Import the command line and run it. During the import a signal just ends the program: no task has begun."""
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")  # as `common.signals` has them; not every system has all
    for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell script ignores SIGINT in its background jobs
            signal.signal(number, _end)
    if sys.argv[1:2] == ["pip"]:  # it imports nothing that it may have to repair
        sys.exit(importlib.import_module("distsgd.common.packages").pip(sys.argv[2:]))
    importlib.import_module("distsgd.common.cli.streams").prepare()
    importlib.import_module("distsgd.common.cli.main").main()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End the process without an exception: an import that it interrupts may turn it into another one."""
    os.write(2, f"error: interrupted by {signal.Signals(number).name}\n".encode())
    os._exit(128 + number)


if __name__ == "__main__":
    main()
