"""The command line: `distsgd`, `python -m distsgd`, `bash run.sh`. It handles signals from the first moment."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

# Words of runs in this process, on other machines, with modules or kernels of their own; and of commands without a run.
OTHERWISE = r"-h$|--(help|import|backend|cluster|print.commands|ps.hosts|worker.hosts|job.name|run.dir|resume)|.*\.py:"


def main() -> None:
    """Import the command line and run it. During the import a signal just ends the program: no task has begun."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # a shell script ignores SIGINT in its background jobs
            signal.signal(number, _end)
    _start_early(sys.argv[1:])
    importlib.import_module("distsgd.common.cli.main").main()


def _start_early(words: list[str]) -> None:
    """Start the fork server before the command line is imported, if the words most likely start a run on processes.

    Its kernels must not depend on the model. If the run turns out to be another one, the fork server is killed.
    """
    found = importlib.util.find_spec("distsgd.algorithms")  # without importing it
    places = (found and found.submodule_search_locations) or ()
    name = words[0].replace("-", "_") if words else ""
    named = name == "launch" or any((Path(place) / f"{name}.py").is_file() for place in places)
    if not named or "TF_CONFIG" in os.environ or any(re.match(OTHERWISE, word) for word in words):
        return
    given = dict(re.findall(r"--(isolation|kernels)[= ](\w+)", " ".join(words)))
    choose = importlib.import_module("distsgd.common.kernels").choose
    with contextlib.suppress(Exception):  # the command line reports it
        small, large = (choose(given.get("kernels", "auto"), products) for products in (0, math.inf))
        if small == large and given.get("kernels", "auto") in ("auto", "eigen", "onednn"):
            importlib.import_module("distsgd.common.launch.client").start_early(given.get("isolation", "auto"), small)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """End the process without an exception: an import that it interrupts may turn it into another one."""
    os.write(2, f"error: interrupted by signal {number}\n".encode())
    os._exit(128 + number)


if __name__ == "__main__":
    main()
