"""`distsgd`, `python -m distsgd`, `bash run.sh`: the command line, which can be interrupted from the start on."""

from __future__ import annotations

import importlib
import os
import signal
from types import FrameType
from typing import NoReturn


def main() -> None:
    """Import the command line and run it. Until it is there, a signal just ends the program: nothing has begun."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as in the background of a script
            signal.signal(number, _end)
    importlib.import_module("distsgd.common.cli.main").main()


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """No exception: thrown into the middle of an import it may come out as another one."""
    os.write(2, f"error: interrupted by signal {number}\n".encode())
    os._exit(128 + number)


if __name__ == "__main__":
    main()
